//! The lock of a data directory: what proves that whoever was at work from there is gone.
//!
//! A file in the directory has a name for it, made by chance, and is locked by the process that holds the lease. The
//! system frees it when that process is gone, however that happened. What must stay true: a name is given once, and
//! with the file, so that two processes never see two names.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use super::{chance, place};
use crate::{contended, engine::disk};

/// The file, beside what else is kept of the databases.
const FILE: &str = "lock";

/// The lock, held or not.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    held: bool,
    /// The name of the directory. A copy of it has the same.
    pub(super) directory: String,
    /// Which file it is, on this machine until it is booted again. A copy is another.
    pub(super) inode: String,
}

impl Lock {
    /// The lock of a data directory, held by nobody or by another process.
    pub(super) fn open(data: &Path) -> io::Result<Self> {
        let place = place(data);
        disk::create_directory(&place)?;
        let path = place.join(FILE);
        if !path.exists() {
            make(&place, &path)?;
        }
        let file = File::options().read(true).write(true).open(&path)?;
        let about = file.metadata()?;
        let directory = io::read_to_string(&file)?.trim().to_owned();
        let inode = format!("{}:{}", about.dev(), about.ino());
        Ok(Self { file, held: false, directory, inode })
    }

    /// Takes it, and waits briefly for a process that was killed just now; nothing if another process has it. A file
    /// system without locks is a failure.
    pub(super) fn hold(&mut self) -> io::Result<Option<()>> {
        self.hold_by(contended::lock)
    }

    fn hold_by(
        &mut self,
        lock: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> io::Result<Option<()>> {
        if self.held {
            return Ok(Some(()));
        }
        match lock(&self.file) {
            Ok(()) => self.held = true,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(failure)) => return Err(failure),
        }
        Ok(Some(()))
    }

    /// Takes it if that can be done at once, and says whether it is held now.
    pub(super) fn try_hold(&mut self) -> bool {
        matches!(self.hold_by(File::try_lock), Ok(Some(())))
    }

    /// Lets others have it.
    pub(super) fn give_up(&mut self) {
        // A command that is just being started has the file open, too: to close it would not be enough.
        let _ = self.file.unlock();
        self.held = false;
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Makes the file, whole, unless another process has.
fn make(place: &Path, path: &Path) -> io::Result<()> {
    let name = chance();
    let new = place.join(format!("{FILE}.{name}"));
    let mut file = File::create(&new)?;
    writeln!(file, "{name}")?;
    file.sync_all()?;
    let made = match fs::hard_link(&new, path) {
        Err(failure) if failure.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    fs::remove_file(new)?;
    made?;
    disk::sync_directory(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_it() {
        let data = tempfile::tempdir().unwrap();
        let [mut one, mut other] = [(); 2].map(|()| Lock::open(data.path()).unwrap());
        assert_eq!((&one.directory, &one.inode), (&other.directory, &other.inode));
        assert!(one.try_hold() && one.try_hold() && !other.try_hold());
        one.give_up();
        assert!(other.try_hold() && !one.try_hold());
        drop(other);
        assert!(one.try_hold());
    }

    #[test]
    fn a_copy_of_a_directory_has_a_lock_of_its_own() {
        let [data, copy] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut one = Lock::open(data.path()).unwrap();
        fs::create_dir(place(copy.path())).unwrap();
        fs::copy(place(data.path()).join(FILE), place(copy.path()).join(FILE)).unwrap();
        let mut other = Lock::open(copy.path()).unwrap();
        assert!(one.try_hold() && other.try_hold());
        assert_eq!(one.directory, other.directory);
        assert_ne!(one.inode, other.inode);
    }
}
