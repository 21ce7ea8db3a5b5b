//! The local journal: batches that wait for CouchDB, in the file `waiting` of the data directory.
//!
//! An entry is a mark, a length, a checksum, and a batch with the number of its first value. What must stay true:
//! - an entry that [`LocalJournal::append`] has returned for survives a power cut;
//! - one that was being written then was never acknowledged, and is cut off. Anything else that makes no sense is an
//!   error: something that was acknowledged is lost;
//! - entries are dropped all at once, after CouchDB has all of them.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use cheops_core::replica::Durable;

use crate::{
    engine::{
        EngineError, Seq,
        disk::{error, explain, sync_directory},
    },
    shell,
    wire::{self, Names, WireError},
};

/// What an entry begins with.
const MARK: [u8; 4] = *b"cwj1";
/// The mark, the length and the checksum.
const HEAD: usize = 12;

/// A batch that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// The number of its first value.
    pub(super) first: Seq,
    pub(super) values: Vec<Durable>,
}

impl Batch {
    /// The number of its last value.
    pub(super) fn last(&self) -> Seq {
        (self.first + self.values.len() as Seq).saturating_sub(1)
    }

    /// Its values with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (Seq, &Durable)> {
        (self.first..).zip(&self.values)
    }
}

/// An entry. If a value has no form, says which.
pub(super) fn encode(first: Seq, values: &[Durable]) -> Result<Vec<u8>, (usize, WireError)> {
    let mut entry = vec![0; HEAD];
    entry.extend(first.to_be_bytes());
    for (n, value) in values.iter().enumerate() {
        let bytes = wire::encode_durable(value).map_err(|error| (n, error))?;
        entry.extend(length(bytes.len()));
        entry.extend(bytes);
    }
    let long = length(entry.len() - HEAD);
    entry[..4].copy_from_slice(&MARK);
    entry[4..8].copy_from_slice(&long);
    let sum = checksum(long, &entry[HEAD..]);
    entry[8..HEAD].copy_from_slice(&sum);
    Ok(entry)
}

/// A batch is far shorter than what the number can say.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

fn checksum(long: [u8; 4], body: &[u8]) -> [u8; 4] {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&long);
    hash.update(body);
    hash.finalize().to_be_bytes()
}

/// The first entry, if it is sound.
fn first_entry(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let long: [u8; 4] = head[4..8].try_into().ok()?;
    let body = rest.get(..usize::try_from(u32::from_be_bytes(long)).ok()?)?;
    (head[..4] == MARK && head[8..] == checksum(long, body)).then_some(body)
}

fn read_batch(mut body: &[u8], names: &mut Names) -> Option<Batch> {
    let (first, rest) = body.split_at_checked(8)?;
    let first = Seq::from_be_bytes(first.try_into().ok()?);
    body = rest;
    let mut values = Vec::new();
    while !body.is_empty() {
        let (long, rest) = body.split_at_checked(4)?;
        let long = u32::from_be_bytes(long.try_into().ok()?);
        let (value, rest) = rest.split_at_checked(usize::try_from(long).ok()?)?;
        values.push(wire::decode_durable(value, names).ok()?);
        body = rest;
    }
    (!values.is_empty()).then_some(Batch { first, values })
}

/// The batches in a file, and how long what is sound of it is. If something that was acknowledged can't be read,
/// says where.
pub(super) fn decode(bytes: &[u8]) -> Result<(Vec<Batch>, usize), usize> {
    let (mut batches, mut at, mut names) = (Vec::<Batch>::new(), 0, Names::default());
    while at < bytes.len() {
        let Some(body) = first_entry(&bytes[at..]) else {
            // Entries are written one after the other: only the last can be half there.
            let is_sound = |from: &usize| {
                bytes[*from..].starts_with(&MARK) && first_entry(&bytes[*from..]).is_some()
            };
            return if (at + 1..bytes.len()).any(|from| is_sound(&from)) {
                Err(at)
            } else {
                Ok((batches, at))
            };
        };
        let batch = read_batch(body, &mut names).ok_or(at)?;
        if batches.last().is_some_and(|before| before.last() + 1 != batch.first) {
            return Err(at);
        }
        batches.push(batch);
        at += HEAD + body.len();
    }
    Ok((batches, at))
}

/// The file.
pub(super) struct LocalJournal {
    path: PathBuf,
    file: File,
    length: u64,
}

impl LocalJournal {
    /// Opens the one in a directory, and says what waits in it.
    pub(super) fn open(directory: &Path) -> Result<(Self, Vec<Batch>), EngineError> {
        let path = Self::path(directory);
        let failed = |failure: io::Error| error(&path, explain(&failure));
        let open = || {
            let mut options = File::options();
            let file = options.create(true).truncate(false).read(true).write(true).open(&path)?;
            sync_directory(directory)?;
            Ok(file)
        };
        let mut file = open().map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let (batches, length) = decode(&bytes).map_err(|at| {
            let problem = format!(
                "the local journal can't be read from byte {at} on: what was accepted while CouchDB was down is lost in part. To start without it: {}; then look at the resources of this site",
                aside(&path)
            );
            error(&path, problem)
        })?;
        let length = length as u64;
        if length < bytes.len() as u64 {
            file.set_len(length).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        Ok((Self { path, file, length }, batches))
    }

    /// Whether there is one in a directory.
    pub(super) fn is_in(directory: &Path) -> bool {
        Self::path(directory).exists()
    }

    fn path(directory: &Path) -> PathBuf {
        directory.join("waiting")
    }

    /// How many bytes it has.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Makes an entry durable.
    pub(super) fn append(&mut self, entry: &[u8]) -> Result<(), EngineError> {
        let written = self.file.write_all_at(entry, self.length);
        if let Err(failure) = written.and_then(|()| self.file.sync_all()) {
            // What is left of it is written over by the next, which is the same.
            let _ = self.file.set_len(self.length);
            return Err(error(&self.path, explain(&failure)));
        }
        self.length += entry.len() as u64;
        Ok(())
    }

    /// Drops all: CouchDB has it.
    pub(super) fn clear(&mut self) -> Result<(), EngineError> {
        if self.length > 0 {
            let cleared = self.file.set_len(0).and_then(|()| self.file.sync_all());
            cleared.map_err(|failure| error(&self.path, explain(&failure)))?;
            self.length = 0;
        }
        Ok(())
    }

    /// Something in it does not go with what is in CouchDB.
    pub(super) fn contradiction(&self, problem: &str) -> EngineError {
        let problem = format!(
            "{problem}: were the databases put back from a backup, or has another agent written there? Give the agent the databases back that go with this file, or give up what waits in it: {}",
            aside(&self.path)
        );
        error(&self.path, problem)
    }
}

/// The command that moves a file away.
fn aside(path: &Path) -> String {
    let from = path.to_string_lossy();
    format!("mv {} {}", shell::word(&from), shell::word(&format!("{from}.old")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clearing(name: &str) -> Durable {
        Durable::Clearing(name.parse().unwrap())
    }

    fn batches() -> Vec<Batch> {
        let batch = |first, names: &[&str]| Batch {
            first,
            values: names.iter().map(|name| clearing(name)).collect(),
        };
        vec![batch(7, &["a", "b"]), batch(9, &["c"]), batch(10, &["d", "e", "f"])]
    }

    fn entries() -> Vec<Vec<u8>> {
        batches().iter().map(|batch| encode(batch.first, &batch.values).unwrap()).collect()
    }

    #[test]
    fn a_file_that_ends_anywhere_holds_the_entries_that_are_whole() {
        let (entries, batches) = (entries(), batches());
        let bytes = entries.concat();
        for end in 0..=bytes.len() {
            let mut sound = 0;
            let whole = entries.iter().take_while(|entry| {
                let is_whole = sound + entry.len() <= end;
                sound += if is_whole { entry.len() } else { 0 };
                is_whole
            });
            let whole = whole.count();
            let read = decode(&bytes[..end]);
            assert_eq!(read, Ok((batches[..whole].to_vec(), sound)), "{end}");
            // The file was longer already, and its blocks were not written.
            let mut zeros = bytes[..end].to_vec();
            zeros.resize(bytes.len(), 0);
            if end > sound {
                assert_eq!(decode(&zeros), Ok((batches[..whole].to_vec(), sound)), "{end}");
            }
        }
    }

    #[test]
    fn a_byte_that_changes_before_the_last_entry_is_an_error_and_in_it_cuts_it_off() {
        let (entries, batches) = (entries(), batches());
        let before = entries[0].len() + entries[1].len();
        for at in 0..entries.concat().len() {
            let mut bytes = entries.concat();
            bytes[at] ^= 0x55;
            let read = decode(&bytes);
            if at < before {
                assert!(read.is_err(), "{at}: {read:?}");
            } else {
                assert_eq!(read, Ok((batches[..2].to_vec(), before)), "{at}");
            }
        }
    }

    #[test]
    fn numbers_go_on_without_a_gap() {
        let entries = entries();
        let gap = [entries[0].clone(), entries[2].clone()].concat();
        assert_eq!(decode(&gap), Err(entries[0].len()));
    }

    #[test]
    fn what_is_torn_is_cut_off_and_the_file_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!LocalJournal::is_in(directory.path()));
        let (mut journal, there) = LocalJournal::open(directory.path()).unwrap();
        assert_eq!(there, []);
        let entries = entries();
        journal.append(&entries[0]).unwrap();
        let path = LocalJournal::path(directory.path());
        let torn = [entries[0].as_slice(), &entries[1][..9]].concat();
        std::fs::write(&path, torn).unwrap();
        let (mut journal, there) = LocalJournal::open(directory.path()).unwrap();
        assert_eq!(there, batches()[..1]);
        journal.append(&entries[1]).unwrap();
        assert_eq!(journal.length(), std::fs::metadata(&path).unwrap().len());
        let (mut journal, there) = LocalJournal::open(directory.path()).unwrap();
        assert_eq!(there, batches()[..2]);
        journal.clear().unwrap();
        assert_eq!(LocalJournal::open(directory.path()).unwrap().1, []);
        std::fs::write(&path, [vec![1], entries[0].clone()].concat()).unwrap();
        let Err(error) = LocalJournal::open(directory.path()) else { panic!("it was opened") };
        assert!(error.to_string().contains("from byte 0 on"), "{error}");
    }
}
