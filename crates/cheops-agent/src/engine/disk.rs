//! What engines ask of the local disk: directories that are there after a power cut, a lock for one process,
//! and failures in words.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::Path,
};

use super::{EngineError, Sort};
use crate::contended;

pub(super) fn error(place: &Path, problem: impl Into<String>) -> EngineError {
    EngineError { place: place.display().to_string(), problem: problem.into(), sort: Sort::Disk }
}

/// What a failure of the disk means to an operator.
pub(super) fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("the disk is full ({error}): make room there")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{error}: let the agent's user read and write there")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{error}: mount it so that the agent can write, or name another directory")
        }
        _ => format!("{error}: look at the disk and the system's log"),
    }
}

/// Makes what was created, renamed or removed in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Writes a file of one line, whole or not at all, in place of the one that is there.
pub(super) fn replace(path: &Path, line: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    writeln!(file, "{line}")?;
    file.sync_all()?;
    fs::rename(new, path)?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Makes a directory that is still there after a power cut.
pub(super) fn create_directory(directory: &Path) -> io::Result<()> {
    let missing: Vec<_> = directory.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(directory)?;
    for path in missing {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// A store that this process has for itself. It is free again when this is dropped, or when the
/// process is gone, however that happens.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that is just being started has the file open, too, until it becomes another
        // program: to close it here is not enough.
        let _ = self.0.unlock();
    }
}

/// Takes the store for this process.
pub(super) fn lock(directory: &Path) -> Result<Lock, EngineError> {
    let path = directory.join("lock");
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let file = open.map_err(|failure| error(directory, explain(&failure)))?;
    match contended::lock(&file) {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(error(
            directory,
            "it is in use: is another agent running on it? Stop that one, or name another \
             directory",
        )),
        Err(TryLockError::Error(failure)) => Err(error(directory, explain(&failure))),
    }
}
