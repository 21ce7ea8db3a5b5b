//! The files beside the database: which store this is, whether it is whole, and the last number that
//! was acknowledged.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
};

use cheops_core::id::SiteId;

pub(super) use crate::engine::disk::{
    Lock, create_directory, error, explain, lock, sync_directory,
};
use crate::engine::{EngineError, Seq};

/// The format that is written, and the only one that is read.
pub(super) const FORMAT: u32 = 1;

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

/// The file that says that a store is being filled with what another engine holds.
const FILLING: &str = "filling";

/// Whether a store is being filled, and not whole.
pub(super) fn is_filling(directory: &Path) -> io::Result<bool> {
    directory.join(FILLING).try_exists()
}

/// Marks a store as one that is being filled.
pub(super) fn mark_filling(directory: &Path) -> io::Result<()> {
    let mut file = File::create(directory.join(FILLING))?;
    file.write_all(b"cheops engine copy is filling this store: it is not whole\n")?;
    file.sync_all()?;
    sync_directory(directory)
}

/// Takes the mark away.
pub(super) fn unmark_filling(directory: &Path) -> io::Result<()> {
    fs::remove_file(directory.join(FILLING))?;
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

    /// The one in a file.
    pub(super) fn of(file: File) -> Self {
        Self(file)
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
