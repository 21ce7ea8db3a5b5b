//! The files beside the database: which store this is, who has it open, and the last number that
//! was acknowledged.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
};

use cheops_core::id::SiteId;

use crate::engine::{EngineError, Seq, Sort};

/// The format that is written, and the only one that is read.
pub(super) const FORMAT: u32 = 1;

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
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(error(
            directory,
            "it is in use: is another agent running on it? Stop that one, or name another \
             directory",
        )),
        Err(TryLockError::Error(failure)) => Err(error(directory, explain(&failure))),
    }
}

/// What a store says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum About {
    /// It says nothing yet: it is new.
    New,
    /// It is of this format and this site.
    Ours,
    /// It can't be read.
    Unreadable,
}

/// Reads what a store says of itself, and refuses a store that is not for us.
pub(super) fn about(directory: &Path, site: &SiteId) -> Result<About, EngineError> {
    let bytes = match fs::read(directory.join("about")) {
        Ok(bytes) => bytes,
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => return Ok(About::New),
        Err(failure) => return Err(error(directory, explain(&failure))),
    };
    let Some((format, owner)) = parse(&bytes) else { return Ok(About::Unreadable) };
    if format != FORMAT {
        let advice =
            if format > FORMAT { "upgrade the program" } else { "use the program that wrote it" };
        return Err(error(
            directory,
            format!(
                "it was written by cheops with format {format}; this program reads {FORMAT}: \
                 {advice}"
            ),
        ));
    }
    if owner != site.as_str() {
        return Err(error(
            directory,
            format!(
                "it belongs to site `{owner}`, and this agent is `{site}`: name another directory, \
                 or give the site its name back"
            ),
        ));
    }
    Ok(About::Ours)
}

fn parse(bytes: &[u8]) -> Option<(u32, &str)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (content, sum) = text.trim_end().rsplit_once("checksum ")?;
    if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(content.as_bytes()) {
        return None;
    }
    let mut lines = content.lines();
    let format = lines.next()?.strip_prefix("format ")?.parse().ok()?;
    let site = lines.next()?.strip_prefix("site ")?;
    Some((format, site))
}

/// Writes what a store says of itself, for programs and for people.
pub(super) fn write_about(directory: &Path, site: &SiteId) -> io::Result<()> {
    let now = jiff::Timestamp::now();
    let content = format!("format {FORMAT}\nsite {site}\ncreated {now:.0}\n");
    let sum = crc32fast::hash(content.as_bytes());
    let new = directory.join("about.new");
    let mut file = File::create(&new)?;
    file.write_all(format!("{content}checksum {sum:08x}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(new, directory.join("about"))?;
    sync_directory(directory)
}

/// The last number that was acknowledged.
///
/// It is written after each batch and not synced: after a crash it may be behind, but it is never
/// ahead of what was durable. So if it is ahead of what is read back, something was lost.
pub(super) struct Tail(File);

impl Tail {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join("tail");
        Ok(Self(File::options().create(true).truncate(false).read(true).write(true).open(path)?))
    }

    /// The number, or 0 if none was written or it can't be read.
    pub(super) fn read(&self) -> Seq {
        let mut bytes = [0; 12];
        let (number, sum) = match self.0.read_exact_at(&mut bytes, 0) {
            Ok(()) => bytes.split_at(8),
            Err(_) => return 0,
        };
        match (number.try_into(), sum.try_into()) {
            (Ok(seq), Ok(sum)) if u32::from_be_bytes(sum) == crc32fast::hash(number) => {
                Seq::from_be_bytes(seq)
            }
            _ => 0,
        }
    }

    pub(super) fn write(&self, seq: Seq) -> io::Result<()> {
        let number = seq.to_be_bytes();
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&number);
        bytes[8..].copy_from_slice(&crc32fast::hash(&number).to_be_bytes());
        self.0.write_all_at(&bytes, 0)
    }
}
