//! The key pair of a site.
//!
//! It is kept in the data directory as `site.key`, in PEM (PKCS#8), as `openssl genpkey -algorithm
//! ed25519` writes it. What must stay true: of two processes that make the key at the same time, both
//! have the same one after; a file that is there is never written over, but for a key that the others
//! have heard of.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use cheops_core::trust::PublicKey;
use ring::{
    rand::{SecureRandom as _, SystemRandom},
    signature::{Ed25519KeyPair, KeyPair as _},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject as _};

/// The name of the file in the data directory.
pub const FILE: &str = "site.key";
/// The name of one that will take its place.
const NEXT: &str = "site.key.next";

/// How many bytes a private key has.
const SEED: usize = 32;
/// What stands before it in PKCS#8.
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// The key pair of a site.
pub struct Identity {
    pair: Ed25519KeyPair,
    pkcs8: PrivatePkcs8KeyDer<'static>,
}

/// Why there is no key to be had.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file can't be read or written.
    #[error("the key of this site, {}, can't be used: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Others can read the file.
    #[error(
        "the key of this site, {path}, can be read by others (mode {mode:o}): `chmod 600 {path}`, and consider it stolen if somebody may have",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// What is in the file is not a key.
    #[error(
        "{} is not the key of a site ({why}): restore it from a backup; without it the site has to join again",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers, so no key can be made")]
    NoRandomness,
}

impl Identity {
    /// The key in a data directory. If there is none, one is made.
    pub fn open(data: &Path) -> Result<Self, IdentityError> {
        let path = data.join(FILE);
        match Self::read(&path) {
            Err(IdentityError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                Self::make(data, &path)
            }
            read => read,
        }
    }

    /// A key made of 32 bytes that nobody else has.
    pub fn from_seed(seed: &[u8; SEED]) -> Result<Self, IdentityError> {
        let pair =
            Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| IdentityError::NoRandomness)?;
        let pkcs8 = PrivatePkcs8KeyDer::from([&PKCS8[..], seed].concat());
        Ok(Self { pair, pkcs8 })
    }

    fn read(path: &Path) -> Result<Self, IdentityError> {
        let failed = |error| IdentityError::File { path: path.to_owned(), error };
        let malformed = |why: String| IdentityError::Malformed { path: path.to_owned(), why };
        let mode = fs::metadata(path).map_err(failed)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::Open { path: path.to_owned(), mode });
        }
        let text = fs::read(path).map_err(failed)?;
        let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(&text)
            .map_err(|error| malformed(error.to_string()))?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8.secret_pkcs8_der())
            .map_err(|error| malformed(error.to_string()))?;
        Ok(Self { pair, pkcs8 })
    }

    /// Makes a key that will take the place of the one in a data directory.
    pub fn draft(data: &Path) -> Result<Self, IdentityError> {
        let path = data.join(NEXT);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(IdentityError::File { path, error })
            }
            _ => Self::make(data, &path),
        }
    }

    /// The key that was made to take the place of the one in a data directory, if there is one.
    pub fn drafted(data: &Path) -> Result<Option<Self>, IdentityError> {
        match Self::read(&data.join(NEXT)) {
            Err(IdentityError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Lets the key that was made for it take its place.
    pub fn adopt(data: &Path) -> Result<(), IdentityError> {
        let path = data.join(FILE);
        let failed = |error| IdentityError::File { path: path.clone(), error };
        fs::rename(data.join(NEXT), &path).map_err(failed)?;
        fs::File::open(data).and_then(|data| data.sync_all()).map_err(failed)
    }

    /// Makes a key, unless somebody else is faster.
    fn make(data: &Path, path: &Path) -> Result<Self, IdentityError> {
        let mut seed = [0; SEED];
        SystemRandom::new().fill(&mut seed).map_err(|_| IdentityError::NoRandomness)?;
        let made = Self::from_seed(&seed)?;
        let failed = |error| IdentityError::File { path: path.to_owned(), error };
        let draft = data.join(format!("{FILE}.{:016x}", fastrand::u64(..)));
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        let written = file.write_all(made.pem().as_bytes()).and_then(|()| file.sync_all());
        let linked = written.and_then(|()| fs::hard_link(&draft, path));
        let _ = fs::remove_file(&draft);
        match linked {
            Ok(()) => fs::File::open(data).and_then(|data| data.sync_all()).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Self::read(path),
            Err(error) => return Err(failed(error)),
        }
        Ok(made)
    }

    /// When the key in a data directory was made, as far as its file says.
    pub fn made(data: &Path) -> Option<SystemTime> {
        fs::metadata(data.join(FILE)).and_then(|about| about.modified()).ok()
    }

    /// What the others know it by.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey::from_bytes(bytes)
    }

    /// Signs bytes.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.pair.sign(bytes).as_ref());
        signature
    }

    /// The private key, as programs for TLS take it.
    pub(super) fn pkcs8(&self) -> PrivatePkcs8KeyDer<'static> {
        self.pkcs8.clone_key()
    }

    fn pem(&self) -> String {
        let body = BASE64_STANDARD.encode(self.pkcs8.secret_pkcs8_der());
        format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n")
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Identity").field(&self.public()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, process::Command, thread};

    use super::*;

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let data = tempfile::tempdir().unwrap();
        let at_once: Vec<PublicKey> = thread::scope(|scope| {
            let open = || Identity::open(data.path()).unwrap().public();
            let opening: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            opening.into_iter().map(|opening| opening.join().unwrap()).collect()
        });
        let again = Identity::open(data.path()).unwrap().public();
        assert!(at_once.iter().all(|key| *key == again), "{at_once:?}");
        let files: Vec<_> = fs::read_dir(data.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let other = tempfile::tempdir().unwrap();
        assert_ne!(Identity::open(other.path()).unwrap().public(), again);
    }

    #[test]
    fn others_can_read_the_file_that_we_write() {
        let data = tempfile::tempdir().unwrap();
        let key = Identity::open(data.path()).unwrap().public();
        let file = data.path().join(FILE);
        let openssl = Command::new("openssl")
            .args(["pkey", "-pubout", "-outform", "DER", "-in"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(openssl.stdout.ends_with(key.as_bytes()), "{openssl:?}");
        // And we can read what they write.
        fs::remove_file(&file).unwrap();
        let mut make = Command::new("openssl");
        make.args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(&file);
        assert!(make.status().unwrap().success());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_ne!(Identity::open(data.path()).unwrap().public(), key);
    }

    #[test]
    fn a_key_that_can_not_be_used_says_why() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join(FILE);
        for (text, mode, why) in [
            ("", 0o600, "is not the key of a site"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600, "is not the"),
            ("anything", 0o640, "can be read by others (mode 640)"),
        ] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let error = Identity::open(data.path()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is left as it was");
        }
        let nowhere = Identity::open(&data.path().join("nowhere")).unwrap_err();
        assert!(matches!(nowhere, IdentityError::File { .. }), "{nowhere}");
    }

    #[test]
    fn nothing_shows_the_private_key() {
        let seed = [7; SEED];
        let shown = format!("{:?}", Identity::from_seed(&seed).unwrap());
        assert!(!shown.contains("7, 7") && shown.starts_with("Identity("), "{shown}");
    }
}
