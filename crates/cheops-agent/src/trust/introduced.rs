//! Keys of sites that the configuration names without one: what they have said themselves, backed by certificates.
//!
//! They are kept in the data directory, with the vouchers, so that they can be passed on to sites that have not met
//! them. What must stay true: a key that was learned stays known, so that what was signed with it can be checked
//! after its site has another one; a site has few.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine as _};
use cheops_core::{id::SiteId, trust::PublicKey};
use tokio::sync::watch;

use super::voucher::Voucher;

/// The name of the file in the data directory.
const FILE: &str = "introduced";
/// The most keys of one site.
const MOST: usize = 64;

/// The keys, and who has vouched for them.
pub(super) struct Introduced {
    path: PathBuf,
    known: Mutex<BTreeMap<SiteId, Vec<(PublicKey, Voucher)>>>,
    changes: watch::Sender<u64>,
}

impl Introduced {
    /// Those in a data directory. What can't be read is left out: its site will say it again.
    pub(super) fn open(data: &Path) -> Self {
        let path = data.join(FILE);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut known: BTreeMap<SiteId, Vec<(PublicKey, Voucher)>> = BTreeMap::new();
        for line in text.lines() {
            let voucher = BASE64_STANDARD_NO_PAD.decode(line).ok();
            let voucher = voucher.and_then(|bytes| postcard::from_bytes::<Voucher>(&bytes).ok());
            let said = voucher.and_then(|voucher| Some((voucher.claimed().ok()?, voucher)));
            let Some(((site, key), voucher)) = said else {
                tracing::warn!("a line of {} can't be read: it is left out", path.display());
                continue;
            };
            known.entry(site).or_default().push((key, voucher));
        }
        Self { path, known: Mutex::new(known), changes: watch::Sender::new(0) }
    }

    /// The keys of a site, the last one first.
    pub(super) fn keys(&self, site: &SiteId) -> Vec<PublicKey> {
        let known = self.lock();
        known.get(site).into_iter().flatten().rev().map(|(key, _)| *key).collect()
    }

    /// The sites with this key.
    pub(super) fn sites(&self, key: &PublicKey) -> Vec<SiteId> {
        let known = self.lock();
        let has = |keys: &[(PublicKey, Voucher)]| keys.iter().any(|(one, _)| one == key);
        known.iter().filter(|(_, keys)| has(keys)).map(|(site, _)| site.clone()).collect()
    }

    /// Takes note of what was checked: of a site that was met, or that somebody else has met. What was said here
    /// counts more than hearsay, which may be old.
    pub(super) fn learn(
        &self,
        site: &SiteId,
        key: PublicKey,
        voucher: &Voucher,
        met: bool,
    ) -> io::Result<()> {
        let mut known = self.lock();
        let mut next = known.clone();
        let keys = next.entry(site.clone()).or_default();
        let same = |(one, said): &(PublicKey, Voucher)| *one == key && said.is_as(voucher);
        if keys.last().is_some_and(same) || !met && keys.iter().any(|(one, _)| *one == key) {
            return Ok(());
        }
        keys.retain(|(one, _)| *one != key);
        if keys.len() >= MOST {
            return Err(io::Error::other(format!("`{site}` has had {MOST} keys already")));
        }
        keys.insert(if met { keys.len() } else { 0 }, (key, voucher.clone()));
        write(&self.path, next.values().flatten().map(|(_, voucher)| voucher))?;
        *known = next;
        drop(known);
        self.changes.send_modify(|count| *count += 1);
        Ok(())
    }

    /// All that was said, but for what somebody knows.
    pub(super) fn beyond(&self, heard: &[(String, [u8; 32])]) -> Vec<Voucher> {
        let known = self.lock();
        let lacks = |site: &SiteId, key: &PublicKey| {
            !heard.iter().any(|(name, bytes)| name == site.as_str() && bytes == key.as_bytes())
        };
        let all = known.iter().flat_map(|(site, keys)| keys.iter().map(move |one| (site, one)));
        all.filter(|(site, (key, _))| lacks(site, key))
            .map(|(_, (_, voucher))| voucher.clone())
            .collect()
    }

    /// Which keys of which sites are known.
    pub(super) fn heard(&self) -> Vec<(String, [u8; 32])> {
        let known = self.lock();
        let all = known.iter().flat_map(|(site, keys)| keys.iter().map(move |one| (site, one)));
        all.map(|(site, (key, _))| (site.to_string(), *key.as_bytes())).collect()
    }

    /// Counts changes, so that one can wait for the next.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SiteId, Vec<(PublicKey, Voucher)>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a new file: all of it or nothing.
fn write<'a>(path: &Path, vouchers: impl Iterator<Item = &'a Voucher>) -> io::Result<()> {
    let draft = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    for voucher in vouchers {
        let bytes = postcard::to_allocvec(voucher).map_err(io::Error::other)?;
        writeln!(file, "{}", BASE64_STANDARD_NO_PAD.encode(bytes))?;
    }
    file.sync_all()?;
    fs::rename(&draft, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voucher(site: &SiteId, key: u8, certificate: u8) -> Voucher {
        let stamp = postcard::from_bytes(&[0, 0, 0]).unwrap();
        let der = rustls::pki_types::CertificateDer::from(vec![certificate]);
        Voucher::new(site, &PublicKey::from_bytes([key; 32]), &[der], stamp)
    }

    #[test]
    fn what_was_learned_is_known_again_and_hearsay_does_not_come_first() {
        let data = tempfile::tempdir().unwrap();
        let site: SiteId = "site2".parse().unwrap();
        let key = |key: u8| PublicKey::from_bytes([key; 32]);
        let known = Introduced::open(data.path());
        let learn = |n, certificate, met| {
            known.learn(&site, key(n), &voucher(&site, n, certificate), met).unwrap();
        };
        learn(1, 1, true);
        learn(2, 1, true);
        // Somebody tells of an older one.
        learn(3, 1, false);
        assert_eq!(known.keys(&site), [key(2), key(1), key(3)]);
        let changes = known.changes();
        learn(2, 1, true);
        learn(1, 9, false);
        assert!(!changes.has_changed().unwrap(), "nothing is new");
        learn(2, 2, true);
        assert!(changes.has_changed().unwrap(), "its certificate is");
        let again = Introduced::open(data.path());
        assert_eq!(again.keys(&site), known.keys(&site));
        assert_eq!(again.sites(&key(3)), std::slice::from_ref(&site));
        assert_eq!(again.beyond(&again.heard()), []);
        assert_eq!(again.beyond(&[]).len(), 3);
    }

    #[test]
    fn a_site_has_few_keys_and_a_line_that_can_not_be_read_is_left_out() {
        let data = tempfile::tempdir().unwrap();
        let site: SiteId = "site2".parse().unwrap();
        let known = Introduced::open(data.path());
        for n in 0..=64 {
            let learned =
                known.learn(&site, PublicKey::from_bytes([n; 32]), &voucher(&site, n, 1), true);
            assert_eq!(learned.is_ok(), n < 64, "{n}");
        }
        let path = data.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("nonsense\n{text}")).unwrap();
        assert_eq!(Introduced::open(data.path()).keys(&site).len(), 64);
    }
}
