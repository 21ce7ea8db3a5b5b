//! TLS between agents: both ends prove that they have the private half of a key that the other knows.
//!
//! Keys travel as they are (RFC 7250), without certificates around them; or, where an operator has a PKI, both show a
//! certificate first (`pki`). A site does one or the other. What must stay true:
//! - TLS 1.3 only, and no session is resumed: a key that is not known any more gets no further;
//! - whoever dials a site takes no other key than that site's;
//! - whoever is dialled takes the keys of the sites that it knows, and says which it was. A guest says
//!   that it is one before it shows its key, which may be any, and is told apart ever after.

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
};

use cheops_core::{id::SiteId, trust::PublicKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    Error, OtherError, PeerIncompatible, ServerConfig, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, client, server};

use super::{
    Identity,
    authority::Refusal,
    members::Own as Current,
    pki::{Chain, Left, Met, NotTaken, Pki, UnknownThere, Verdict},
    voucher::Voucher,
};

/// What is spoken inside, by sites and by guests: one that has a token, or brings news.
const PROTOCOL: &[u8] = b"h2";
const AS_GUEST: &[u8] = b"cheops-guest";
/// What stands before an Ed25519 key when it travels.
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// Whose key this is, if it is one of a site that is known.
pub trait Known: Send + Sync + 'static {
    /// The site with this key.
    fn site_of(&self, key: &PublicKey) -> Option<SiteId>;

    /// Whether a site with a certificate is known by the key that it says it has. May wait for the disk.
    fn recognises(&self, site: &SiteId, key: &PublicKey, _voucher: &Voucher) -> bool {
        self.site_of(key).as_ref() == Some(site)
    }
}

/// Who is dialled.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The site.
    pub site: &'a SiteId,
    /// Its key. Without one, its certificate says that it is that site.
    pub key: Option<PublicKey>,
}

/// Who was dialled.
pub struct Reached<T> {
    /// The connection.
    pub io: client::TlsStream<T>,
    /// The key that the other has proved to have.
    pub key: PublicKey,
    /// The certificates that it has shown.
    pub(crate) chain: Option<Chain>,
}

/// This site's end of protected connections.
pub struct Tls {
    provider: Arc<CryptoProvider>,
    known: Arc<dyn Known>,
    own: How,
}

/// What a site shows of itself.
enum How {
    Key(RwLock<Own>),
    Certificate(Arc<Pki>, Current),
}

/// What shows who this site is.
#[derive(Clone)]
struct Own {
    key: PublicKey,
    pair: Arc<CertifiedKey>,
    for_sites: Arc<ServerConfig>,
    for_guests: Arc<ServerConfig>,
}

/// Whoever has dialled.
pub enum Arrived<T> {
    /// A site that is known.
    Site {
        /// The connection.
        io: server::TlsStream<T>,
        /// The site.
        site: SiteId,
        /// The key that it has proved to have.
        key: PublicKey,
        /// The certificates that it has shown.
        chain: Option<Chain>,
    },
    /// One that wants to be a guest.
    Guest {
        /// The connection.
        io: server::TlsStream<T>,
        /// The key that it has proved to have.
        key: PublicKey,
        /// The site that it is by its certificate, if it has one.
        site: Option<SiteId>,
    },
}

impl Tls {
    /// The end of the site with this key pair, which knows the sites that `known` does.
    pub fn new(identity: &Identity, known: Arc<dyn Known>) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let own = How::Key(RwLock::new(Own::new(identity, &provider, &known)?));
        Ok(Self { provider, known, own })
    }

    /// The same for a site with a certificate.
    pub fn with_pki(pki: Arc<Pki>, identity: Current, known: Arc<dyn Known>) -> Self {
        let provider = Arc::new(ring::default_provider());
        Self { provider, known, own: How::Certificate(pki, identity) }
    }

    /// The PKI that says who is who, if there is one.
    pub fn pki(&self) -> Option<&Arc<Pki>> {
        match &self.own {
            How::Key(_) => None,
            How::Certificate(pki, _) => Some(pki),
        }
    }

    /// Shows another key from now on.
    pub fn renew(&self, identity: &Identity) -> Result<(), Error> {
        // With a certificate, the key is asked for each time.
        if let How::Key(own) = &self.own {
            let renewed = Own::new(identity, &self.provider, &self.known)?;
            *own.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        }
        Ok(())
    }

    /// The key of this site.
    pub fn own(&self) -> PublicKey {
        match &self.own {
            How::Key(own) => own.read().unwrap_or_else(PoisonError::into_inner).key,
            How::Certificate(_, identity) => identity().public(),
        }
    }

    /// The site with a key.
    pub fn known(&self, key: &PublicKey) -> Option<SiteId> {
        self.known.site_of(key)
    }

    /// Protects a connection to a site.
    pub async fn dial<T>(&self, io: T, expected: Expected<'_>) -> io::Result<Reached<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        match &self.own {
            How::Key(own) => {
                let missing = || io::Error::other("its key is not known");
                let key = expected.key.ok_or_else(missing)?;
                let io = self.connect(own, io, key, PROTOCOL).await?;
                Ok(Reached { io, key, chain: None })
            }
            How::Certificate(pki, identity) => {
                let Met { mut io, site, key, voucher, chain } =
                    pki.connect(io, Some(expected.site), PROTOCOL).await?;
                if site != *expected.site {
                    let (site, found) = (expected.site.clone(), vec![site.to_string()]);
                    return Err(io::Error::other(NotTaken(Refusal::Name { site, found })));
                }
                match expected.key {
                    Some(expected) if expected != key => return Err(another(expected, key)),
                    Some(_) => {}
                    None if self.recognises(site, key, voucher).await => {}
                    None => return Err(unknown(key, expected.site)),
                }
                pki.introduce(&mut io, &identity()).await?;
                Ok(Reached { io, key, chain: Some(chain) })
            }
        }
    }

    /// Protects a connection to a site with this key, as its guest.
    pub async fn visit<T>(&self, io: T, expected: PublicKey) -> io::Result<client::TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        match &self.own {
            How::Key(own) => self.connect(own, io, expected, AS_GUEST).await,
            How::Certificate(pki, identity) => {
                let Met { mut io, key, .. } = pki.connect(io, None, AS_GUEST).await?;
                if key != expected {
                    return Err(another(expected, key));
                }
                pki.introduce(&mut io, &identity()).await?;
                Ok(io)
            }
        }
    }

    async fn connect<T>(
        &self,
        own: &RwLock<Own>,
        io: T,
        expected: PublicKey,
        protocol: &[u8],
    ) -> io::Result<client::TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let verifier = Arc::new(Is { expected, provider: self.provider.clone() });
        let pair = own.read().unwrap_or_else(PoisonError::into_inner).pair.clone();
        let resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(pair));
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(resolver);
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        // The name means nothing: the key is what is looked at.
        let name = ServerName::try_from("site.cheops").map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, io).await
    }

    /// Protects a connection from somebody, and says from whom.
    pub async fn accept<T>(&self, io: T) -> io::Result<Arrived<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), io).await?;
        let guest = {
            let hello = start.client_hello();
            hello.alpn().into_iter().flatten().any(|protocol| protocol == AS_GUEST)
        };
        let own = match &self.own {
            How::Key(own) => own.read().unwrap_or_else(PoisonError::into_inner).clone(),
            How::Certificate(pki, identity) => {
                let protocol = if guest { AS_GUEST } else { PROTOCOL };
                let met = pki.accept(start, &identity(), protocol).await?;
                return self.arrived(met, guest).await;
            }
        };
        let config = if guest { own.for_guests } else { own.for_sites };
        let io = start.into_stream(config).await?;
        let keys = io.get_ref().1.peer_certificates();
        let key = keys.and_then(<[_]>::first).and_then(|key| key_of(key));
        let key = key.ok_or_else(|| io::Error::other("it has shown no key"))?;
        if guest {
            return Ok(Arrived::Guest { io, key, site: None });
        }
        // It may have gone since the other proved that it has the key.
        let site = self.known.site_of(&key);
        let site = site.ok_or_else(|| io::Error::other("its key is not known any more"))?;
        Ok(Arrived::Site { io, site, key, chain: None })
    }

    /// Decides what becomes of one that has a certificate.
    async fn arrived<T>(
        &self,
        met: Met<server::TlsStream<T>>,
        guest: bool,
    ) -> io::Result<Arrived<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let Met { mut io, site, key, voucher, chain } = met;
        if guest {
            Pki::decide(&mut io, Verdict::Welcome).await?;
            return Ok(Arrived::Guest { io, key, site: Some(site) });
        }
        if !self.recognises(site.clone(), key, voucher).await {
            Pki::decide(&mut io, Verdict::UnknownKey).await?;
            return Err(unknown(key, &site));
        }
        Pki::decide(&mut io, Verdict::Welcome).await?;
        Ok(Arrived::Site { io, site, key, chain: Some(chain) })
    }

    async fn recognises(&self, site: SiteId, key: PublicKey, voucher: Voucher) -> bool {
        let known = self.known.clone();
        let asked = tokio::task::spawn_blocking(move || known.recognises(&site, &key, &voucher));
        asked.await.unwrap_or(false)
    }
}

impl Own {
    fn new(
        identity: &Identity,
        provider: &Arc<CryptoProvider>,
        known: &Arc<dyn Known>,
    ) -> Result<Self, Error> {
        let key = PrivateKeyDer::from(identity.pkcs8());
        let key = provider.key_provider.load_private_key(key)?;
        let spki = CertificateDer::from([&SPKI[..], identity.public().as_bytes()].concat());
        let pair = Arc::new(CertifiedKey::new(vec![spki], key));
        let config = |known: Option<Arc<dyn Known>>, protocol: &[u8]| {
            let verifier = Arc::new(Knows { known, provider: provider.clone() });
            let mut config = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(pair.clone())));
            config.alpn_protocols = vec![protocol.to_vec()];
            config.send_tls13_tickets = 0;
            Ok::<_, Error>(Arc::new(config))
        };
        Ok(Self {
            key: identity.public(),
            for_sites: config(Some(known.clone()), PROTOCOL)?,
            for_guests: config(None, AS_GUEST)?,
            pair,
        })
    }
}

/// One who was dialled is another than was meant.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("it has another key than {expected}{}", found.map(|key| format!(": {key}")).unwrap_or_default())]
pub(crate) struct WrongKey {
    pub(crate) expected: PublicKey,
    pub(crate) found: Option<PublicKey>,
}

/// One who has dialled is not known.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the key {key} is not that of a site that is known here")]
pub(crate) struct UnknownKey {
    pub(crate) key: PublicKey,
    /// The site that its certificate names, if it has shown one.
    pub(crate) site: Option<SiteId>,
}

fn refused(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
}

/// What lies under a failure of a protected connection, if it is a matter of keys.
pub(crate) fn why<T: Clone + std::error::Error + 'static>(error: &io::Error) -> Option<T> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let Error::InvalidCertificate(CertificateError::Other(OtherError(why))) = error else {
        return None;
    };
    why.downcast_ref::<T>().cloned()
}

fn unknown(key: PublicKey, site: &SiteId) -> io::Error {
    io::Error::other(refused(UnknownKey { key, site: Some(site.clone()) }))
}

fn another(expected: PublicKey, found: PublicKey) -> io::Error {
    io::Error::other(refused(WrongKey { expected, found: Some(found) }))
}

/// Whether the other end has closed a connection because it does not know the key of this site.
pub(crate) fn is_unknown_there(error: &io::Error) -> bool {
    alert(error) == Some(AlertDescription::CertificateUnknown)
        || error.get_ref().is_some_and(|error| error.downcast_ref::<UnknownThere>().is_some())
}

/// Whether one who had a good certificate has closed the connection by itself.
pub(crate) fn has_left(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.downcast_ref::<Left>().is_some())
}

/// Whether one end shows a certificate and the other a key.
pub(crate) fn is_other_way(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    let unfit = PeerIncompatible::IncorrectCertificateTypeExtension;
    matches!(tls, Some(Error::PeerIncompatible(why)) if *why == unfit)
        || alert(error) == Some(AlertDescription::HandshakeFailure)
}

/// Why a certificate was not taken here.
pub(crate) fn not_taken(error: &io::Error) -> Option<Refusal> {
    error.get_ref()?.downcast_ref().map(|NotTaken(refusal)| refusal.clone())
}

/// What the other end has said before it closed a connection.
pub(crate) fn alert(error: &io::Error) -> Option<AlertDescription> {
    match error.get_ref()?.downcast_ref()? {
        Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}

/// The key in what was sent as one.
fn key_of(spki: &[u8]) -> Option<PublicKey> {
    spki.strip_prefix(&SPKI)?.try_into().ok().map(PublicKey::from_bytes)
}

/// Takes one key only.
#[derive(Debug)]
struct Is {
    expected: PublicKey,
    provider: Arc<CryptoProvider>,
}

/// Takes the keys of all sites that are known, or any.
struct Knows {
    known: Option<Arc<dyn Known>>,
    provider: Arc<CryptoProvider>,
}

impl std::fmt::Debug for Knows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Knows")
    }
}

/// The signature by which the other proves that it has the private key.
fn proved(
    message: &[u8],
    key: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    provider: &CryptoProvider,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(key.as_ref());
    let algorithms = &provider.signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
}

/// Nobody speaks anything older.
pub(super) fn too_old() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
}

impl ServerCertVerifier for Is {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match key_of(key) {
            Some(key) if key == self.expected => Ok(ServerCertVerified::assertion()),
            found => Err(refused(WrongKey { expected: self.expected, found })),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(message, key, signature, &self.provider)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Knows {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let key = key_of(key).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let known = self.known.as_ref().is_none_or(|known| known.site_of(&key).is_some());
        if !known {
            return Err(refused(UnknownKey { key, site: None }));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(message, key, signature, &self.provider)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
