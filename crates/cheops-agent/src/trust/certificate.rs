//! The certificate by which clients of the API recognise this agent, where others than this machine reach it.
//!
//! Its files are followed, so that it is renewed without a restart. What must stay true: a private key that anyone
//! can read is not used; a certificate and a key that do not belong together are not used.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_rustls::TlsAcceptor;

use super::followed::{Followed, LOOK};

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file can't be read.
    #[error("{} can't be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Anyone can read the key.
    #[error(
        "{path} can be read by everyone (mode {mode:o}): `chmod 600 {path}`, and consider it stolen if somebody may have",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// What is in a file is not what it should be.
    #[error("{} is not {what} in PEM: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The two do not belong together.
    #[error("the key {} does not belong to the certificate {}: {why}", key.display(), certificate.display())]
    Apart {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why not.
        why: String,
    },
    /// It would be refused by others.
    #[error("{}: {why}", certificate.display())]
    Refused {
        /// The certificate.
        certificate: PathBuf,
        /// Why.
        why: String,
    },
}

/// A certificate and its key, as they are in their files.
pub struct Certificate(Followed<Pair>);

/// A certificate with its key, and when it may be used.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) valid: Validity,
}

impl Certificate {
    /// Reads the two files.
    pub fn open(certificate: &Path, key: &Path) -> Result<Arc<Self>, CertificateError> {
        let files = vec![certificate.to_owned(), key.to_owned()];
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let read = move |_: Option<&Pair>| read(&certificate, &key);
        Ok(Arc::new(Self(Followed::open("the certificate of the API", files, read)?)))
    }

    /// Accepts connections with whatever certificate there is at that time.
    pub fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// When it ends.
    pub fn expires(&self) -> SystemTime {
        self.0.now().valid.until
    }

    /// When it may be used.
    pub fn valid(&self) -> Validity {
        self.0.now().valid
    }

    /// Why the files that are there now can't be used.
    pub fn failure(&self) -> Option<String> {
        self.0.failure()
    }

    /// Reads the files again if they have changed.
    pub fn look(&self) {
        self.0.look();
    }

    /// Follows the files.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let this = self.clone();
            let _ = tokio::task::spawn_blocking(move || this.look()).await;
        }
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.now().certified.clone())
    }
}

/// Reads the files, and sees whether they can be used.
pub(super) fn read(certificate: &Path, key: &Path) -> Result<Pair, CertificateError> {
    let mode = fs::metadata(key).map_err(|error| failed(key, error))?.mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(CertificateError::Open { path: key.to_owned(), mode });
    }
    let chain = certificates(certificate)?;
    let valid = chain.first().and_then(|first| Validity::of(first)).ok_or_else(|| {
        malformed(certificate, "a certificate", "there is none that can be read".to_owned())
    })?;
    let private = PrivateKeyDer::from_pem_slice(&bytes(key)?)
        .map_err(|error| malformed(key, "a private key", error.to_string()))?;
    let provider = ring::default_provider();
    let private = provider
        .key_provider
        .load_private_key(private)
        .map_err(|error| malformed(key, "a private key that can be used", error.to_string()))?;
    let pair = CertifiedKey::new(chain, private);
    pair.keys_match().map_err(|error| CertificateError::Apart {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        why: error.to_string(),
    })?;
    Ok(Pair { certified: Arc::new(pair), valid })
}

/// All certificates in a file.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let read = CertificateDer::pem_slice_iter(&bytes(path)?).collect::<Result<Vec<_>, _>>();
    read.map_err(|error| malformed(path, "a certificate", error.to_string()))
}

pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, CertificateError> {
    fs::read(path).map_err(|error| failed(path, error))
}

pub(super) fn malformed(path: &Path, what: &'static str, why: String) -> CertificateError {
    CertificateError::Malformed { path: path.to_owned(), what, why }
}

fn failed(path: &Path, error: io::Error) -> CertificateError {
    CertificateError::File { path: path.to_owned(), error }
}

/// When a certificate may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub from: SystemTime,
    /// Not after.
    pub until: SystemTime,
}

impl Validity {
    /// What a certificate says (RFC 5280).
    pub(crate) fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate, _) = element(der)?;
        let (_, mut rest, _) = element(certificate)?;
        // The version, which may be left out, the serial number, the algorithm and the issuer.
        if rest.first() == Some(&0xa0) {
            rest = element(rest)?.2;
        }
        for _ in 0..3 {
            rest = element(rest)?.2;
        }
        let (_, validity, _) = element(rest)?;
        let (tag, text, rest) = element(validity)?;
        let from = time(tag, text)?;
        let (tag, text, _) = element(rest)?;
        Some(Self { from, until: time(tag, text)? })
    }
}

fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i16>().ok());
    let (year, rest) = match tag {
        // Years of two digits count from 1950 to 2049.
        0x17 => {
            let year = number(text.get(..2))?;
            (if year < 50 { 2_000 + year } else { 1_900 + year }, text.get(2..)?)
        }
        0x18 => (number(text.get(..4))?, text.get(4..)?),
        _ => return None,
    };
    let two = |at: usize| number(rest.get(at..at + 2)).and_then(|two| i8::try_from(two).ok());
    let date = jiff::civil::DateTime::new(year, two(0)?, two(2)?, two(4)?, two(6)?, two(8)?, 0);
    let zoned = date.ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(zoned.timestamp().into())
}

/// The first element of DER: its tag, what is in it, and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        let (digits, rest) = rest.split_at_checked(count).filter(|_| (1..=4).contains(&count))?;
        (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

    use super::*;

    /// Makes a certificate that is good for some days.
    fn make(directory: &Path, name: &str, days: u32) -> (PathBuf, PathBuf) {
        let (certificate, key) =
            (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-nodes", "-subj", "/CN=site1", "-days", &days.to_string(), "-out"])
            .arg(&certificate)
            .arg("-keyout")
            .arg(&key)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        (certificate, key)
    }

    fn days_left(certificate: &Certificate) -> u64 {
        let left = certificate.expires().duration_since(SystemTime::now()).unwrap();
        (left + Duration::from_hours(1)).as_secs() / 86_400
    }

    #[test]
    fn a_certificate_says_when_it_ends_and_is_renewed_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let (first, key) = make(directory.path(), "a", 10);
        let (second, second_key) = make(directory.path(), "b", 90);
        let certificate = Certificate::open(&first, &key).unwrap();
        assert_eq!(days_left(&certificate), 10);
        // Half of a change is no change.
        fs::rename(&second, &first).unwrap();
        certificate.look();
        assert_eq!(days_left(&certificate), 10);
        assert!(certificate.failure().unwrap().contains("does not belong"));
        fs::rename(&second_key, &key).unwrap();
        certificate.look();
        assert_eq!(days_left(&certificate), 90);
        assert_eq!(certificate.failure(), None);
        fs::remove_file(&first).unwrap();
        certificate.look();
        assert_eq!(days_left(&certificate), 90);
        assert!(certificate.failure().unwrap().contains("can't be read"));
    }

    #[test]
    fn what_can_not_be_used_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = make(directory.path(), "a", 10);
        let text = directory.path().join("text");
        fs::write(&text, "no pem").unwrap();
        fs::set_permissions(&text, fs::Permissions::from_mode(0o600)).unwrap();
        let missing = directory.path().join("missing");
        for (certificate, key, expected) in [
            (&missing, &key, "missing can't be read"),
            (&certificate, &missing, "missing can't be read"),
            (&text, &key, "text is not a certificate"),
            (&certificate, &text, "text is not a private key"),
        ] {
            let error = Certificate::open(certificate, key).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Certificate::open(&certificate, &key).unwrap_err().to_string();
        assert!(error.contains("can be read by everyone"), "{error}");
    }

    #[test]
    fn broken_certificates_have_no_end() {
        for der in [
            &[][..],
            &[0x30],
            &[0x30, 0x80],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x30, 2, 0x30, 0],
        ] {
            assert_eq!(Validity::of(der), None, "{der:?}");
        }
    }
}
