//! Checks fjall's files before fjall opens them.
//!
//! fjall trusts its files. Where a journal has a broken byte it cuts off all that follows; a broken
//! list of tables can make it delete tables, or ask for more memory than there is. So every byte is
//! held against its checksum first. What must stay true: fjall only ever opens files that are
//! sound, and a store that is called sound is one that fjall opens without losing anything.
//!
//! What is known of the formats is that of fjall 3. If a later version changed them, stores would
//! be called broken: a test opens one after a kill and after compactions, and would notice.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hash::Hasher,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

use super::frame::{self, Kind};
use crate::engine::Seq;

const CUT: &str = "it ends in the middle of a batch";
const NO_END: &str = "a batch has no end";

/// What fjall's files are found to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All checksums are right.
    Sound,
    /// The last journal ends in the middle of a batch that was never acknowledged: the machine or
    /// the agent stopped while writing it. It is sound up to there.
    Torn { journal: PathBuf, at: u64 },
    /// This is wrong.
    Broken(String),
}

/// Why a check ends early.
enum Stop {
    Broken(String),
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::OutOfMemory => Self::Io(error),
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// Checks all files of a database. `acknowledged`: the last number that is known to be.
pub(super) fn check(database: &Path, acknowledged: Seq) -> io::Result<Verdict> {
    match trees(database).and_then(|()| journals(database, acknowledged)) {
        Ok(verdict) => Ok(verdict),
        Err(Stop::Broken(why)) => Ok(Verdict::Broken(why)),
        Err(Stop::Io(error)) => Err(error),
    }
}

fn broken<T>(path: &Path, why: impl std::fmt::Display) -> Result<T, Stop> {
    Err(Stop::Broken(format!("{}: {why}", path.display())))
}

/// Says which file a failure was about.
fn of<T>(path: &Path, result: io::Result<T>) -> Result<T, Stop> {
    result.map_err(|error| match Stop::from(error) {
        Stop::Broken(why) => Stop::Broken(format!("{}: {why}", path.display())),
        other @ Stop::Io(_) => other,
    })
}

/// The paths in a directory, in order.
fn list(directory: &Path) -> Result<Vec<PathBuf>, Stop> {
    let mut paths = of(directory, fs::read_dir(directory))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Each keyspace has a file `current` that names its list of tables and the list's checksum; the
/// list has the checksum of each table.
fn trees(database: &Path) -> Result<(), Stop> {
    if !database.join("version").exists() {
        return broken(database, "the file `version` is missing");
    }
    let mut trees = 0;
    for tree in list(&database.join("keyspaces"))? {
        let current = tree.join("current");
        if current.exists() {
            trees += 1;
            let current = of(&current, fs::read(&current))?;
            tables(&tree, &current)?;
        } else if list(&tree.join("tables")).is_ok_and(|tables| !tables.is_empty()) {
            // Without tables it was never in use.
            return broken(&tree, "the file `current` is missing");
        }
    }
    if trees == 0 {
        return broken(database, "there is no keyspace");
    }
    Ok(())
}

fn tables(tree: &Path, current: &[u8]) -> Result<(), Stop> {
    let mut bytes = current;
    let (Some(version), Some(sum), Some([0]), []) =
        (u64_le(&mut bytes), u128_le(&mut bytes), take(&mut bytes, 1), bytes)
    else {
        return broken(&tree.join("current"), "it is not what it should be");
    };
    let path = tree.join(format!("v{version}"));
    let manifest = of(&path, fs::read(&path))?;
    if xxhash_rust::xxh3::xxh3_128(&manifest) != sum {
        return broken(&path, "its checksum is wrong");
    }
    let Some(tables) = section(&manifest, b"tables").and_then(listed) else {
        return broken(&path, "its list of tables can't be read");
    };
    for (id, sum) in tables {
        let path = tree.join("tables").join(id.to_string());
        let mut file = of(&path, File::open(&path))?;
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = of(&path, file.read(&mut buffer))?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
        }
        if hasher.digest128() != sum {
            return broken(&path, "its checksum is wrong");
        }
    }
    Ok(())
}

/// A section of an archive: the trailer says where the table of contents is, that where each
/// section is.
fn section<'a>(archive: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    const TRAILER: usize = 38;
    let mut trailer = &archive[archive.len().checked_sub(TRAILER)?..];
    take(&mut trailer, 22)?;
    let contents = usize::try_from(u64_le(&mut trailer)?).ok()?;
    let mut contents = archive.get(contents..)?;
    take(&mut contents, 4)?;
    for _ in 0..u32_le(&mut contents)? {
        let start = usize::try_from(u64_le(&mut contents)?).ok()?;
        let length = usize::try_from(u64_le(&mut contents)?).ok()?;
        let name_length = u16_le(&mut contents)?;
        if take(&mut contents, name_length.into())? == name {
            return archive.get(start..start.checked_add(length)?);
        }
    }
    None
}

/// The tables that a manifest lists, with their checksums: levels of runs of tables.
fn listed(mut bytes: &[u8]) -> Option<Vec<(u64, u128)>> {
    let bytes = &mut bytes;
    let mut tables = Vec::new();
    for _level in 0..take(bytes, 1)?[0] {
        for _run in 0..take(bytes, 1)?[0] {
            for _table in 0..u32_le(bytes)? {
                let id = u64_le(bytes)?;
                take(bytes, 1)?;
                tables.push((id, u128_le(bytes)?));
                u64_le(bytes)?;
            }
        }
    }
    bytes.is_empty().then_some(tables)
}

fn journals(database: &Path, acknowledged: Seq) -> Result<Verdict, Stop> {
    let mut journals = Vec::new();
    for path in list(database)? {
        if path.extension().is_some_and(|extension| extension == "jnl") {
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
            let Some(number) = number else { return broken(&path, "its name is not a number") };
            journals.push((number, path));
        }
    }
    journals.sort();
    // There is always one. Without any, fjall would count its batches from 0 again, and later take
    // new ones for old ones.
    let Some((_, active)) = journals.last().cloned() else {
        return broken(database, "there is no journal");
    };
    let mut last_batch = None;
    for (_, path) in journals {
        let (sound, problem) = journal(&path, &mut last_batch)?;
        let Some(problem) = problem else { continue };
        let cut = [CUT, NO_END].contains(&problem);
        if path != active || was_acknowledged(&path, sound, cut, acknowledged)? {
            return broken(&path, format!("at byte {sound}: {problem}"));
        }
        return Ok(Verdict::Torn { journal: path, at: sound });
    }
    Ok(Verdict::Sound)
}

/// Reads a journal: up to where it is sound, and what is wrong there.
fn journal(path: &Path, last_batch: &mut Option<u64>) -> Result<(u64, Option<&'static str>), Stop> {
    let file = of(path, File::open(path))?;
    let length = file.metadata()?.len();
    let mut journal = Journal { reader: BufReader::with_capacity(1 << 16, file), at: 0, length };
    loop {
        let sound = journal.at;
        match journal.batch(last_batch) {
            Ok(true) => {}
            Ok(false) => return Ok((sound, None)),
            Err(Flaw::Io(error)) => return of(path, Err(error)),
            Err(Flaw::Bad(problem)) => return Ok((sound, Some(problem))),
        }
    }
}

/// Whether what follows in the last journal was acknowledged, in part or whole, or can be: then it
/// is not the torn end of the last write. `cut`: the batch there has no end, so it was not.
fn was_acknowledged(path: &Path, from: u64, cut: bool, tail: Seq) -> Result<bool, Stop> {
    let file = of(path, File::open(path))?;
    // For each batch, how many frames there are. A whole one has two for each number.
    let mut batches = BTreeMap::new();
    let mut known = false;
    frame::scan(&file, from, |_, frame| {
        if frame.kind != Kind::Gone {
            known |= frame.seq <= tail;
            *batches.entry(frame.batch).or_insert(0) += 1;
        }
    });
    let whole = batches.iter().any(|((first, last), count)| 2 * (last - first + 1) == *count);
    Ok(known || (whole && !cut) || batches.len() > 1)
}

/// What is wrong in a journal.
enum Flaw {
    Bad(&'static str),
    Io(io::Error),
}

impl From<io::Error> for Flaw {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Bad(CUT),
            _ => Self::Io(error),
        }
    }
}

struct Journal {
    reader: BufReader<File>,
    at: u64,
    length: u64,
}

impl Journal {
    /// Reads a batch: a start with the number of its items, the items, an end with their checksum.
    /// No batch follows where there is nothing more, or only zeros.
    fn batch(&mut self, last_batch: &mut Option<u64>) -> Result<bool, Flaw> {
        if self.at == self.length {
            return Ok(false);
        }
        match self.take()? {
            [1] => {}
            [0] => return self.zeros(),
            _ => return Err(Flaw::Bad("no batch begins there")),
        }
        let items = u32::from_le_bytes(self.take()?);
        let number = u64::from_le_bytes(self.take()?);
        if last_batch.is_some_and(|last| number <= last) || number >= 1 << 62 {
            return Err(Flaw::Bad("the number of a batch is wrong"));
        }
        let mut hasher = Xxh3::new();
        for _ in 0..items {
            self.item(&mut hasher)?;
        }
        let [tag] = self.take()?;
        let sum = u64::from_le_bytes(self.take()?);
        if tag != 3 || &self.take()? != b"FJL\x03" {
            return Err(Flaw::Bad(NO_END));
        }
        if sum != hasher.finish() {
            return Err(Flaw::Bad("the checksum of a batch is wrong"));
        }
        *last_batch = Some(number);
        Ok(true)
    }

    fn item(&mut self, hasher: &mut Xxh3) -> Result<(), Flaw> {
        // Tag, type of the value, compression, keyspace, length of the key, of the value, and of
        // the value as it stands here.
        let header: [u8; 21] = self.take()?;
        let kinds = [0, 1].contains(&header[1]) && header[2] == 0;
        let mut rest = &header[11..];
        let lengths = (u16_le(&mut rest), u32_le(&mut rest), u32_le(&mut rest));
        let (Some(key), Some(value), Some(stored)) = lengths else {
            return Err(Flaw::Bad("an item is not what it should be"));
        };
        if header[0] != 2 || !kinds || value != stored {
            return Err(Flaw::Bad("an item is not what it should be"));
        }
        let length = u64::from(key) + u64::from(value);
        if length > self.length - self.at {
            return Err(Flaw::Bad(CUT));
        }
        let mut content = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.reader.read_exact(&mut content)?;
        self.at += length;
        hasher.update(&header);
        hasher.update(&content);
        Ok(())
    }

    /// A journal's file is longer than what was written to it: the rest is zeros.
    fn zeros(&mut self) -> Result<bool, Flaw> {
        // There are many: they are compared as a whole, not one by one.
        let (zeros, mut buffer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        loop {
            match self.reader.read(&mut buffer)? {
                0 => return Ok(false),
                read if buffer[..read] == zeros[..read] => {}
                _ => return Err(Flaw::Bad("something follows after the end")),
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn u16_le(bytes: &mut &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes(take(bytes, 2)?.try_into().ok()?))
}

fn u32_le(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?))
}

fn u64_le(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?))
}

fn u128_le(bytes: &mut &[u8]) -> Option<u128> {
    Some(u128::from_le_bytes(take(bytes, 16)?.try_into().ok()?))
}
