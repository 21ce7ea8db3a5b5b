//! TLS between agents: both ends prove that they have the private half of a key that the other knows.
//!
//! Keys travel as they are (RFC 7250), without certificates around them. What must stay true:
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
    Error, OtherError, ServerConfig, SignatureScheme,
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

use super::Identity;

/// What is spoken inside, by sites and by guests: one that has a token, or brings news.
const PROTOCOL: &[u8] = b"h2";
const AS_GUEST: &[u8] = b"cheops-guest";
/// What stands before an Ed25519 key when it travels.
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// Whose key this is, if it is one of a site that is known.
pub trait Known: Send + Sync + 'static {
    /// The site with this key.
    fn site_of(&self, key: &PublicKey) -> Option<SiteId>;
}

/// This site's end of protected connections.
pub struct Tls {
    provider: Arc<CryptoProvider>,
    known: Arc<dyn Known>,
    own: RwLock<Own>,
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
    /// A site that is known, by this key.
    Site(server::TlsStream<T>, SiteId, PublicKey),
    /// One with this key, that wants to be a guest.
    Guest(server::TlsStream<T>, PublicKey),
}

impl Tls {
    /// The end of the site with this key pair, which knows the sites that `known` does.
    pub fn new(identity: &Identity, known: Arc<dyn Known>) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let own = RwLock::new(Own::new(identity, &provider, &known)?);
        Ok(Self { provider, known, own })
    }

    /// Shows another key from now on.
    pub fn renew(&self, identity: &Identity) -> Result<(), Error> {
        let renewed = Own::new(identity, &self.provider, &self.known)?;
        *self.own.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }

    /// The key of this site.
    pub fn own(&self) -> PublicKey {
        self.now().key
    }

    fn now(&self) -> Own {
        self.own.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The site with a key.
    pub fn known(&self, key: &PublicKey) -> Option<SiteId> {
        self.known.site_of(key)
    }

    /// Protects a connection to a site with this key.
    pub async fn dial<T>(&self, io: T, expected: PublicKey) -> io::Result<client::TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        self.connect(io, expected, PROTOCOL).await
    }

    /// Protects a connection to a site with this key, as its guest.
    pub async fn visit<T>(&self, io: T, expected: PublicKey) -> io::Result<client::TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        self.connect(io, expected, AS_GUEST).await
    }

    async fn connect<T>(
        &self,
        io: T,
        expected: PublicKey,
        protocol: &[u8],
    ) -> io::Result<client::TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let verifier = Arc::new(Is { expected, provider: self.provider.clone() });
        let resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.now().pair));
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
        let own = self.now();
        let config = if guest { own.for_guests } else { own.for_sites };
        let io = start.into_stream(config).await?;
        let keys = io.get_ref().1.peer_certificates();
        let key = keys.and_then(<[_]>::first).and_then(|key| key_of(key));
        let key = key.ok_or_else(|| io::Error::other("it has shown no key"))?;
        if guest {
            return Ok(Arrived::Guest(io, key));
        }
        // It may have gone since the other proved that it has the key.
        let site = self.known.site_of(&key);
        let site = site.ok_or_else(|| io::Error::other("its key is not known any more"))?;
        Ok(Arrived::Site(io, site, key))
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
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the key {0} is not that of a site that is known here")]
pub(crate) struct UnknownKey(pub(crate) PublicKey);

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

/// Whether the other end has closed a connection because it does not know the key of this site.
pub(crate) fn is_unknown_there(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(tls, Some(Error::AlertReceived(AlertDescription::CertificateUnknown)))
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
fn too_old() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(rustls::PeerIncompatible::Tls13RequiredForQuic))
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
        if known { Ok(ClientCertVerified::assertion()) } else { Err(refused(UnknownKey(key))) }
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
