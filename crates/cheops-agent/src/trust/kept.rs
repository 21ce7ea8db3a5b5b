//! The list of those who were given a role, as a file of this site.
//!
//! A line for each grant and each revocation, with its checksum in front, in the order in which they came.
//! What must stay true:
//! - what was reported as done is in the file after a crash; what was not may be missing, whole;
//! - only what was never reported is left out when the file is read: the end of a line that was cut off. Any
//!   other line that can't be read stops the start, since it may have been a revocation;
//! - nobody else may read the file, and it never holds a token.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cheops_core::{
    time::Millis,
    trust::people::{Digest, Grant, Invalid, People},
};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::people::{Grants, GrantsError, Rights};

/// The name of the file in the data directory.
pub const FILE: &str = "access";
/// How many grants there may be.
pub const MOST: usize = 4_096;
/// For how long what has expired is still listed.
const REMEMBERED: Duration = Duration::from_hours(30 * 24);
/// The longest file that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// Why the list can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The file can't be read or written.
    #[error("the list of tokens, {}, can't be used: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A line makes no sense.
    #[error(
        "line {line} of the list of tokens, {}, can't be read: restore the file from a backup; without it (move it away) all tokens have to be made anew",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its line.
        line: usize,
    },
}

/// The list.
#[derive(Debug, Clone)]
pub struct Kept(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    people: People,
    file: File,
    /// How much of the file is whole lines.
    length: u64,
}

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Grant {
        name: String,
        digest: String,
        #[serde(flatten)]
        rights: Rights,
        issued: u64,
        expires: u64,
    },
    Revoke {
        digest: String,
        at: u64,
    },
}

impl Line {
    fn of_grant(grant: &Grant) -> Self {
        Self::Grant {
            name: grant.name.to_string(),
            digest: hex(&grant.digest),
            rights: Rights::of(&grant.role),
            issued: grant.issued.0,
            expires: grant.expires.0,
        }
    }

    fn of_revocation(digest: &Digest, at: Millis) -> Self {
        Self::Revoke { digest: hex(digest), at: at.0 }
    }

    /// With its checksum.
    fn write(&self) -> io::Result<String> {
        let text = serde_json::to_string(self)?;
        Ok(format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes())))
    }

    fn read(line: &str) -> Option<Self> {
        let (sum, text) = line.split_once(' ')?;
        let sum = u32::from_str_radix(sum, 16).ok()?;
        (sum == crc32fast::hash(text.as_bytes())).then(|| serde_json::from_str(text).ok())?
    }

    fn add_to(self, people: &mut People) -> Option<()> {
        match self {
            Self::Grant { name, digest, rights, issued, expires } => people.grant(Grant {
                name: name.parse().ok()?,
                digest: bytes(&digest)?,
                role: rights.role().ok()?,
                issued: Millis(issued),
                expires: Millis(expires),
            }),
            Self::Revoke { digest, at } => people.revoke(bytes(&digest)?, Millis(at)),
        };
        Some(())
    }
}

fn hex(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

fn bytes(text: &str) -> Option<Digest> {
    blake3::Hash::from_hex(text).ok().map(Into::into)
}

impl Kept {
    /// Opens the list in a data directory, or begins one.
    pub fn open(data: &Path, now: Millis) -> Result<Self, KeptError> {
        let path = data.join(FILE);
        let failed = |error| KeptError::File { path: path.clone(), error };
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = options.open(&path).map_err(failed)?;
        let mut text = String::new();
        (&mut file).take(LONGEST).read_to_string(&mut text).map_err(failed)?;
        // What was cut off in the middle was never reported as done.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut people = People::default();
        for (n, line) in text[..whole].lines().enumerate() {
            let read = Line::read(line).and_then(|line| line.add_to(&mut people));
            read.ok_or_else(|| KeptError::Malformed { path: path.clone(), line: n + 1 })?;
        }
        let before = people.len();
        people.forget(Millis(now.0.saturating_sub(Millis::from(REMEMBERED).0)));
        if people.len() < before {
            file = rewrite(data, &path, &people).map_err(failed)?;
        } else {
            file.set_len(whole as u64).map_err(failed)?;
        }
        File::open(data).and_then(|data| data.sync_all()).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        Ok(Self(Arc::new(Mutex::new(Inner { people, file, length }))))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line down, and takes it in when it is durable.
    async fn write(&self, line: Line) -> Result<(), GrantsError> {
        let this = self.clone();
        let written = tokio::task::spawn_blocking(move || this.lock().write(line)).await;
        written.map_err(|_| io::Error::other("the agent is stopping"))?
    }
}

impl Inner {
    fn write(&mut self, line: Line) -> Result<(), GrantsError> {
        let most = if matches!(line, Line::Grant { .. }) { MOST } else { 2 * MOST };
        if self.people.len() >= most {
            return Err(GrantsError::Full(MOST));
        }
        let text = line.write()?;
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // A line that is half there would be taken for damage once another follows it.
            self.file.set_len(self.length)?;
            return Err(error.into());
        }
        self.length += text.len() as u64;
        let taken = line.add_to(&mut self.people);
        Ok(taken.ok_or_else(|| io::Error::other("it could not be read again"))?)
    }
}

/// Writes the file anew, with what is still needed.
fn rewrite(data: &Path, path: &Path, people: &People) -> io::Result<File> {
    let draft = data.join(format!("{FILE}.new"));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    for (grant, _) in people.all() {
        file.write_all(Line::of_grant(grant).write()?.as_bytes())?;
    }
    for (digest, at) in people.revoked() {
        file.write_all(Line::of_revocation(digest, at).write()?.as_bytes())?;
    }
    file.sync_all()?;
    fs::rename(&draft, path)?;
    OpenOptions::new().append(true).open(path)
}

impl Grants for Kept {
    fn find(&self, digest: &Digest, now: Millis) -> Result<Grant, Invalid> {
        self.lock().people.find(digest, now).cloned()
    }

    fn all(&self) -> Vec<(Grant, Option<Millis>)> {
        let inner = self.lock();
        inner.people.all().map(|(grant, revoked)| (grant.clone(), revoked)).collect()
    }

    fn grant(&self, grant: Grant) -> BoxFuture<'_, Result<(), GrantsError>> {
        Box::pin(self.write(Line::of_grant(&grant)))
    }

    fn revoke(&self, digest: Digest, at: Millis) -> BoxFuture<'_, Result<(), GrantsError>> {
        Box::pin(self.write(Line::of_revocation(&digest, at)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use cheops_core::trust::people::Role;

    use super::*;

    fn grant(byte: u8, expires: u64) -> Grant {
        Grant {
            name: format!("name{byte}").parse().unwrap(),
            digest: [byte; 32],
            role: Role::Viewer,
            issued: Millis(1),
            expires: Millis(expires),
        }
    }

    async fn filled(data: &Path) -> Kept {
        let kept = Kept::open(data, Millis(5)).unwrap();
        kept.grant(grant(1, 100)).await.unwrap();
        kept.grant(grant(2, 100)).await.unwrap();
        kept.revoke([1; 32], Millis(7)).await.unwrap();
        kept
    }

    #[tokio::test]
    async fn what_was_granted_and_revoked_is_known_after_a_start() {
        let data = tempfile::tempdir().unwrap();
        let all = filled(data.path()).await.all();
        let again = Kept::open(data.path(), Millis(9)).unwrap();
        assert_eq!(again.all(), all);
        assert_eq!(again.find(&[1; 32], Millis(9)), Err(Invalid::Revoked));
        assert_eq!(again.find(&[2; 32], Millis(9)), Ok(grant(2, 100)));
        assert_eq!(fs::metadata(data.path().join(FILE)).unwrap().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_line_that_was_cut_off_anywhere_was_never_there_and_others_follow_it() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join(FILE);
        filled(data.path()).await;
        let text = fs::read_to_string(&path).unwrap();
        let second = text.match_indices('\n').nth(1).unwrap().0 + 1;
        for end in second..text.len() {
            fs::write(&path, &text[..end]).unwrap();
            let kept = Kept::open(data.path(), Millis(9)).unwrap();
            assert!(kept.find(&[1; 32], Millis(9)).is_ok(), "{end}");
            kept.revoke([1; 32], Millis(8)).await.unwrap();
            let again = Kept::open(data.path(), Millis(9)).unwrap();
            assert_eq!(again.find(&[1; 32], Millis(9)), Err(Invalid::Revoked), "{end}");
        }
    }

    #[tokio::test]
    async fn a_line_that_was_changed_stops_the_start() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join(FILE);
        filled(data.path()).await;
        let text = fs::read(&path).unwrap();
        for at in [0, 9, 30, text.len() - 4] {
            let mut broken = text.clone();
            broken[at] ^= 1;
            fs::write(&path, &broken).unwrap();
            let error = Kept::open(data.path(), Millis(9)).unwrap_err();
            assert!(matches!(error, KeptError::Malformed { .. }), "{at}: {error}");
        }
    }

    #[tokio::test]
    async fn what_has_long_expired_leaves_the_file() {
        let data = tempfile::tempdir().unwrap();
        filled(data.path()).await;
        let late = Millis(101 + Millis::from(REMEMBERED).0);
        let kept = Kept::open(data.path(), late).unwrap();
        assert_eq!(kept.all(), []);
        kept.grant(grant(3, u64::MAX)).await.unwrap();
        let again = Kept::open(data.path(), late).unwrap();
        assert_eq!(again.all(), [(grant(3, u64::MAX), None)]);
    }

    #[tokio::test]
    async fn there_is_an_end_to_tokens_but_one_can_always_be_revoked() {
        let data = tempfile::tempdir().unwrap();
        let kept = Kept::open(data.path(), Millis(5)).unwrap();
        for n in 0..MOST {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&n.to_be_bytes());
            kept.lock().people.grant(Grant { digest, ..grant(1, 100) });
        }
        let full = kept.grant(grant(9, 100)).await;
        assert!(matches!(full, Err(GrantsError::Full(MOST))), "{full:?}");
        kept.revoke([0; 32], Millis(6)).await.unwrap();
    }
}
