//! An operator's PKI in place of pinned keys: what this site shows of itself, and whom it takes for whom.
//!
//! The certificate says which site is at the other end; then that site says which key it signs its records with, and
//! proves that it has it, on this very connection. So a site that was removed stays out, however long its certificate
//! is good for, and a certificate alone is not enough where a key is known. What must stay true:
//! - nothing is read from one whose certificate does not count, and little before it has shown its key;
//! - whoever was dialled speaks first: what it does not read could keep the other from reading why it was refused;
//! - files that can't be used leave those in place that could be.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cheops_core::{id::SiteId, trust::PublicKey};
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::{
        ResolvesClientCert, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring as suite, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::{StartHandshake, TlsConnector, client, server};

use super::{
    Identity,
    authority::{Authority, Certified, Refusal, Use},
    certificate::{self, CertificateError, Pair, Validity},
    followed::Followed,
    tls,
    voucher::{Stamp, Voucher},
};
use crate::config;

/// The certificates that somebody has shown, its own first.
pub(crate) type Chain = Arc<[CertificateDer<'static>]>;

/// What each end signs to prove that it has its key begins with this.
const SIGNED: &[u8] = b"Cheops: a site at an end of a connection\0";
/// What ties it to one connection (RFC 8446, 7.5).
const LABEL: &[u8] = b"EXPORTER-cheops-site";
/// The longest that is said before the two are sure of each other.
const LONGEST: u16 = 4 << 10;

/// This site's part in a PKI.
pub struct Pki {
    here: SiteId,
    provider: Arc<CryptoProvider>,
    files: Followed<Material>,
}

struct Material {
    pair: Pair,
    authority: Arc<Authority>,
}

/// Somebody with a certificate that counts, and the key that it has proved to have.
pub(super) struct Met<T> {
    pub(super) io: T,
    pub(super) site: SiteId,
    pub(super) key: PublicKey,
    pub(super) voucher: Voucher,
    pub(super) chain: Chain,
}

/// What each end says of itself.
#[derive(Serialize, Deserialize)]
struct Introduction {
    site: String,
    key: [u8; 32],
    proof: Vec<u8>,
    stamp: Stamp,
}

/// What becomes of one who has dialled.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum Verdict {
    Welcome,
    /// Its certificate counts, and its key is not one that is known.
    UnknownKey,
}

/// A certificate was refused here.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.says("the other end"))]
pub(crate) struct NotTaken(pub(crate) Refusal);

/// The other end has closed a connection before it was one of two sites.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the other end has closed the connection")]
pub(crate) struct Left;

/// The other end does not know the key of this one.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the other end does not know the key of this site")]
pub(crate) struct UnknownThere;

impl Pki {
    /// Reads the files.
    pub fn open(here: &SiteId, files: &config::Pki) -> Result<Arc<Self>, CertificateError> {
        let provider = Arc::new(suite::default_provider());
        let config::Pki { ca, certificate, key, revoked } = files.clone();
        let all: Vec<PathBuf> =
            [&ca, &certificate, &key].into_iter().chain(&revoked).cloned().collect();
        let (site, algorithms) = (here.clone(), provider.signature_verification_algorithms);
        let read = move |before: Option<&Material>| {
            let authority = Authority::read(&ca, revoked.as_deref(), algorithms)?;
            let pair = certificate::read(&certificate, &key)?;
            let material = Material { pair, authority: Arc::new(authority) };
            material.usable(&site, before.is_none()).map_err(|refusal| {
                let why = refusal.says(&format!("`{site}`"));
                CertificateError::Refused { certificate: certificate.clone(), why }
            })?;
            Ok(material)
        };
        let files = Followed::open("the certificate for links", all, read)?;
        Ok(Arc::new(Self { here: here.clone(), provider, files }))
    }

    /// Reads the files again if they have changed.
    pub fn look(&self) {
        self.files.look();
    }

    /// Why the files that are there now can't be used.
    pub fn failure(&self) -> Option<String> {
        self.files.failure()
    }

    /// When this site's certificate may be used.
    pub fn valid(&self) -> Validity {
        self.files.now().pair.valid
    }

    /// Why others refuse this site's certificate, as far as it is known here.
    pub fn fault(&self, now: SystemTime) -> Option<Refusal> {
        let Material { pair, authority } = &*self.files.now();
        let refused = |shown| authority.judge(&pair.certified.cert, shown, now).err();
        refused(Use::Answering).or_else(|| refused(Use::Dialling))
    }

    /// Since when the list of revoked certificates is older than it should be.
    pub fn stale(&self, now: SystemTime) -> Option<SystemTime> {
        let Material { pair, authority } = &*self.files.now();
        authority.stale(&pair.certified.cert, now)
    }

    /// Whether the certificates that a site has shown still count.
    pub(crate) fn judge(
        &self,
        site: &SiteId,
        chain: &Chain,
        shown: Use,
        now: SystemTime,
    ) -> Result<(), Refusal> {
        self.files.now().authority.judge(chain, shown, now)?.names(site)
    }

    /// The site and its key, if its certificate counts.
    pub(crate) fn check(&self, voucher: &Voucher) -> Result<(SiteId, PublicKey), Refusal> {
        voucher.check(&self.files.now().authority, SystemTime::now())
    }

    /// Protects a connection to a site, or to any that the CA knows. Nothing is said before it is over.
    pub(super) async fn connect<T>(
        &self,
        io: T,
        expected: Option<&SiteId>,
        protocol: &[u8],
    ) -> io::Result<Met<client::TlsStream<T>>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let material = self.files.now();
        let judge = self.judge_of(&material, expected);
        let refused = judge.refused.clone();
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(judge))
            .with_client_cert_resolver(Arc::new(Shows(material.pair.certified.clone())));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        // The name in it is looked at, and not as that of a host.
        let name = ServerName::try_from("site.cheops").map_err(io::Error::other)?;
        let io = TlsConnector::from(Arc::new(config)).connect(name, io).await;
        let mut io = io.map_err(|error| told(error, &refused))?;
        let theirs: Introduction = read(&mut io).await?;
        let tie = tie(|out| io.get_ref().1.export_keying_material(out, LABEL, None))?;
        let chain = chain(io.get_ref().1.peer_certificates());
        let (site, key, voucher) = Self::met(&material, theirs, &chain, &tie, Use::Answering)?;
        Ok(Met { io, site, key, voucher, chain })
    }

    /// Says who this site is to one that it has dialled, and hears what becomes of it.
    pub(super) async fn introduce<T>(
        &self,
        io: &mut client::TlsStream<T>,
        identity: &Identity,
    ) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let tie = tie(|out| io.get_ref().1.export_keying_material(out, LABEL, None))?;
        write(io, &self.introduction(identity, &tie, Use::Dialling)?).await?;
        match read(io).await? {
            Verdict::Welcome => Ok(()),
            Verdict::UnknownKey => Err(io::Error::other(UnknownThere)),
        }
    }

    /// Protects a connection from somebody whose certificate counts, and hears which key it has.
    pub(super) async fn accept<T>(
        &self,
        start: StartHandshake<T>,
        identity: &Identity,
        protocol: &[u8],
    ) -> io::Result<Met<server::TlsStream<T>>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let material = self.files.now();
        let judge = self.judge_of(&material, None);
        let refused = judge.refused.clone();
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::new(judge))
            .with_cert_resolver(Arc::new(Shows(material.pair.certified.clone())));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.send_tls13_tickets = 0;
        let io = start.into_stream(Arc::new(config)).await;
        let mut io = io.map_err(|error| told(error, &refused))?;
        let tie = tie(|out| io.get_ref().1.export_keying_material(out, LABEL, None))?;
        let own = self.introduction(identity, &tie, Use::Answering)?;
        write(&mut io, &own).await.map_err(left)?;
        let theirs: Introduction = read(&mut io).await.map_err(left)?;
        let chain = chain(io.get_ref().1.peer_certificates());
        let (site, key, voucher) = Self::met(&material, theirs, &chain, &tie, Use::Dialling)?;
        Ok(Met { io, site, key, voucher, chain })
    }

    /// Tells one who has dialled what becomes of it.
    pub(super) async fn decide<T>(io: &mut server::TlsStream<T>, verdict: Verdict) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        write(io, &verdict).await.map_err(left)
    }

    fn judge_of(&self, material: &Material, expected: Option<&SiteId>) -> Judge {
        let (authority, provider) = (material.authority.clone(), self.provider.clone());
        Judge { authority, provider, expected: expected.cloned(), refused: Arc::default() }
    }

    fn introduction(
        &self,
        identity: &Identity,
        tie: &[u8; 32],
        shown: Use,
    ) -> io::Result<Introduction> {
        let (here, key) = (&self.here, identity.public());
        let stamp = Stamp::new(here, identity, &self.files.now().pair.certified);
        Ok(Introduction {
            site: here.to_string(),
            key: *key.as_bytes(),
            proof: identity.sign(&proof(tie, shown, here)).to_vec(),
            stamp: stamp.map_err(io::Error::other)?,
        })
    }

    /// Who somebody is, by its certificate and by what it says.
    fn met(
        material: &Material,
        theirs: Introduction,
        chain: &Chain,
        tie: &[u8; 32],
        shown: Use,
    ) -> io::Result<(SiteId, PublicKey, Voucher)> {
        let Introduction { site, key, proof: proved, stamp } = theirs;
        let site: SiteId = site.parse().map_err(io::Error::other)?;
        let key = PublicKey::from_bytes(key);
        UnparsedPublicKey::new(&ED25519, key.as_bytes())
            .verify(&proof(tie, shown, &site), &proved)
            .map_err(|_| io::Error::other(format!("`{site}` has not the key that it says")))?;
        let now = SystemTime::now();
        let not_taken = |refusal| io::Error::other(NotTaken(refusal));
        let certified: Certified =
            material.authority.judge(chain, shown, now).map_err(not_taken)?;
        certified.names(&site).map_err(not_taken)?;
        let voucher = Voucher::new(&site, &key, chain, stamp);
        voucher.check(&material.authority, now).map_err(not_taken)?;
        Ok((site, key, voucher))
    }
}

impl Material {
    /// Whether others would take it. When nothing is there yet, one whose time is over is taken: the site can still
    /// work by itself, and says what is wrong.
    fn usable(&self, site: &SiteId, first: bool) -> Result<(), Refusal> {
        let now = SystemTime::now();
        let then = if first { self.pair.valid.nearest(now) } else { now };
        for shown in [Use::Answering, Use::Dialling] {
            match self.authority.judge(&self.pair.certified.cert, shown, then) {
                Ok(certified) => certified.names(site)?,
                Err(Refusal::Expired(_) | Refusal::NotYet(_) | Refusal::Revoked) if first => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }
}

/// What ties words to one connection.
fn tie<'a>(export: impl FnOnce([u8; 32]) -> Result<[u8; 32], Error> + 'a) -> io::Result<[u8; 32]> {
    export([0; 32]).map_err(io::Error::other)
}

fn proof(tie: &[u8; 32], shown: Use, site: &SiteId) -> Vec<u8> {
    [SIGNED, &tie[..], &[u8::from(shown == Use::Dialling)], site.as_str().as_bytes()].concat()
}

fn chain(shown: Option<&[CertificateDer<'_>]>) -> Chain {
    shown.unwrap_or_default().iter().map(|der| der.clone().into_owned()).collect()
}

/// One who was let in so far and closes the connection had no need of it: two sites often dial each other at once.
fn left(error: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => io::Error::other(Left),
        _ => error,
    }
}

/// Why there is no connection: in our own words, if it was ended here.
fn told(error: io::Error, refused: &OnceLock<Refusal>) -> io::Error {
    match refused.get() {
        Some(refusal) => io::Error::other(NotTaken(refusal.clone())),
        None => error,
    }
}

async fn write<T: Serialize>(io: &mut (impl AsyncWrite + Unpin), said: &T) -> io::Result<()> {
    let bytes = postcard::to_allocvec(said).map_err(io::Error::other)?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    io.write_all(&length.to_be_bytes()).await?;
    io.write_all(&bytes).await?;
    io.flush().await
}

async fn read<T: DeserializeOwned>(io: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = io.read_u16().await?;
    if length > LONGEST {
        return Err(io::Error::other("what it says of itself is too long"));
    }
    let mut bytes = vec![0; usize::from(length)];
    io.read_exact(&mut bytes).await?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Shows the certificate of this site.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Shows {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Takes certificates of the CA, and remembers why it took one not.
struct Judge {
    authority: Arc<Authority>,
    provider: Arc<CryptoProvider>,
    expected: Option<SiteId>,
    refused: Arc<OnceLock<Refusal>>,
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Judge")
    }
}

impl Judge {
    fn judge(
        &self,
        first: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        shown: Use,
        now: UnixTime,
    ) -> Result<(), Error> {
        let chain: Vec<CertificateDer<'_>> =
            std::iter::once(first).chain(between).cloned().collect();
        let now = UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let judged = self.authority.judge(&chain, shown, now).and_then(|certified| {
            self.expected.as_ref().map_or(Ok(()), |site| certified.names(site))
        });
        judged.map_err(|refusal| {
            let error = Error::InvalidCertificate(refusal.in_tls());
            let _ = self.refused.set(refusal);
            error
        })
    }

    fn proved(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        first: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(first, between, Use::Answering, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls::too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.proved(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Judge {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        first: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge(first, between, Use::Dialling, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls::too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.proved(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
