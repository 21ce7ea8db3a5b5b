//! The database: three keyspaces of fjall, and what is read from and written to them.
//!
//! - `log`: number → what the site wrote down
//! - `index`: (resource, number) → what that is, so that a resource is one range
//! - `gone`: first number of a range → why its numbers are missing in `log`
//!
//! What must stay true: a batch is one atomic write, synced before [`Store::write`] returns for it;
//! every value that is read is checked against its own checksum.

use std::{io, path::Path, thread, time::Duration};

use cheops_core::{id::ResourceId, replica::Durable, trust::Seal};
use fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Slice,
    config::{FilterPolicy, PinningPolicy},
};

use super::{
    Options, disk,
    frame::{self, Frame, Kind},
};
use crate::{
    engine::{
        Seq,
        entry::{Entry, Gone},
    },
    wire::{self, Names, WireError},
};

/// What all journals may take on disk before what they hold is written to tables.
const JOURNALS: u64 = 64 << 20;
/// Entries of the index are about a quarter of what they stand for: with a quarter of the room its
/// memory fills as fast as the log's.
const INDEX_SHARE: u64 = 4;
/// How many filled memtables may wait for the disk before writers wait, too. fjall has limits of
/// its own, but whoever waits there does not notice that nobody works any more.
const SEALED: usize = 2;
/// How many runs of tables may wait to be merged before writers wait, too.
const RUNS: usize = 16;

pub(super) struct Store {
    database: Database,
    log: Keyspace,
    index: Keyspace,
    gone: Keyspace,
}

/// Why something was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// fjall can't read it, or its checksum is wrong.
    #[error("{0}")]
    Broken(String),
    /// It was to be noted that something is lost, and that can't be written.
    #[error("what is lost can't be noted: {0}")]
    Unwritten(String),
    /// It is whole, but this program does not know it.
    #[error("number {0} was written by another version of the program ({1}): use that one")]
    Unknown(Seq, WireError),
}

/// A batch for the database.
#[derive(Default)]
pub(super) struct Items {
    pub(super) bytes: usize,
    items: Vec<(Part, Vec<u8>, Option<Vec<u8>>)>,
}

#[derive(Clone, Copy)]
enum Part {
    Log,
    Index,
    Gone,
}

impl Items {
    fn put(&mut self, part: Part, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.items.push((part, key, value));
    }

    pub(super) fn log(&mut self, seq: Seq, batch: (Seq, Seq), body: &[u8]) {
        let value = Frame { kind: Kind::Log, seq, batch, body }.seal();
        self.put(Part::Log, seq.to_be_bytes().into(), Some(value));
    }

    pub(super) fn index(&mut self, seq: Seq, batch: (Seq, Seq), entry: &Entry) {
        let value = Frame { kind: Kind::Index, seq, batch, body: &entry.encode() }.seal();
        self.put(Part::Index, index_key(&entry.resource, seq), Some(value));
    }

    pub(super) fn gone(&mut self, gone: &Gone) {
        let seq = gone.first;
        let value = Frame { kind: Kind::Gone, seq, batch: (seq, seq), body: &gone.encode() }.seal();
        self.put(Part::Gone, seq.to_be_bytes().into(), Some(value));
    }

    pub(super) fn remove(&mut self, resource: &ResourceId, seq: Seq) {
        self.put(Part::Log, seq.to_be_bytes().into(), None);
        self.put(Part::Index, index_key(resource, seq), None);
    }

    /// Takes something from the log alone, as a fault would.
    #[cfg(test)]
    pub(super) fn lose(&mut self, seq: Seq) {
        self.put(Part::Log, seq.to_be_bytes().into(), None);
    }

    /// Makes what the index has of something unreadable, as a fault would.
    #[cfg(test)]
    pub(super) fn garble(&mut self, resource: &ResourceId, seq: Seq) {
        self.put(Part::Index, index_key(resource, seq), Some(vec![0; 4]));
    }
}

/// An id has no zero byte, so a resource is one range.
fn index_key(resource: &ResourceId, seq: Seq) -> Vec<u8> {
    let mut key = resource.as_str().as_bytes().to_vec();
    key.push(0);
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

impl Store {
    pub(super) fn open(path: &Path, options: &Options) -> fjall::Result<Self> {
        let database = Database::builder(path)
            .cache_size(options.cache)
            .max_cached_files(Some(64))
            .max_journaling_size(JOURNALS)
            .worker_threads(2)
            .open()?;
        let keyspace = |name, memtable| {
            // Almost all reads are ranges: filters would only take memory.
            let options = || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(memtable)
                    .filter_policy(FilterPolicy::disabled())
                    .index_block_pinning_policy(PinningPolicy::disabled())
            };
            database.keyspace(name, options)
        };
        let new = !database.keyspace_exists("gone");
        let log = keyspace("log", options.memtable)?;
        let index = keyspace("index", options.memtable / INDEX_SHARE)?;
        let gone = keyspace("gone", options.memtable / INDEX_SHARE)?;
        if new {
            // fjall syncs what is in these directories, and not that they are there.
            let keyspaces = path.join("keyspaces");
            for directory in [keyspaces.as_path(), path].into_iter().chain(path.parent()) {
                disk::sync_directory(directory)?;
            }
        }
        Ok(Self { database, log, index, gone })
    }

    fn part(&self, part: Part) -> &Keyspace {
        match part {
            Part::Log => &self.log,
            Part::Index => &self.index,
            Part::Gone => &self.gone,
        }
    }

    /// Writes a batch whole, and makes it durable if asked to.
    pub(super) fn write(&self, items: Items, durable: bool) -> fjall::Result<()> {
        self.wait_for_workers()?;
        let mode = if durable { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        for (part, key, value) in items.items {
            match value {
                Some(value) => batch.insert(self.part(part), key, value),
                None => batch.remove(self.part(part), key),
            }
        }
        batch.commit()
    }

    /// Waits while those who write tables are behind; fails if they have given up.
    fn wait_for_workers(&self) -> fjall::Result<()> {
        let behind = |keyspace: &Keyspace| {
            keyspace.sealed_memtable_count() >= SEALED || keyspace.tree.l0_run_count() >= RUNS
        };
        while [&self.log, &self.index, &self.gone].into_iter().any(behind) {
            self.database.persist(PersistMode::Buffer)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Makes all that was written durable.
    pub(super) fn sync(&self) -> fjall::Result<()> {
        self.database.persist(PersistMode::SyncAll)
    }

    /// The last number that the database knows of, 0 if none.
    pub(super) fn last(&self) -> Result<Seq, Trouble> {
        let log = match self.log.last_key_value() {
            Some(last) => number(&last.key().map_err(cannot_read)?)?,
            None => 0,
        };
        let gone = match self.gone.last_key_value() {
            Some(last) => read_gone(last.into_inner().map_err(cannot_read)?)?.last,
            None => 0,
        };
        Ok(log.max(gone))
    }

    /// The first that were written from a number on: so many, or fewer if they are long.
    pub(super) fn records(
        &self,
        from: Seq,
        most: usize,
        names: &mut Names,
    ) -> Result<Vec<(Seq, Durable)>, Trouble> {
        /// What is read at once, about.
        const BYTES: usize = 4 << 20;
        let mut records = Vec::new();
        let mut bytes = 0;
        for pair in self.log.range(from.to_be_bytes()..).take(most) {
            let (key, value) = pair.into_inner().map_err(cannot_read)?;
            let seq = number(&key)?;
            records.push((seq, decode(seq, &value, names)?));
            bytes += value.len();
            if bytes > BYTES {
                break;
            }
        }
        Ok(records)
    }

    /// The numbers of the log, from one on.
    pub(super) fn numbers(&self, from: Seq) -> impl Iterator<Item = Result<Seq, Trouble>> {
        self.log.range(from.to_be_bytes()..).map(|pair| number(&pair.key().map_err(cannot_read)?))
    }

    /// What has a number, if anything.
    pub(super) fn record(&self, seq: Seq, names: &mut Names) -> Result<Option<Durable>, Trouble> {
        match self.value(seq)? {
            Some(value) => decode(seq, &value, names).map(Some),
            None => Ok(None),
        }
    }

    /// The seal of the record that has a number, if it has one.
    pub(super) fn seal(&self, seq: Seq, names: &mut Names) -> Result<Option<Seal>, Trouble> {
        let Some(value) = self.value(seq)? else { return Ok(None) };
        wire::decode_seal(body(seq, &value)?, names).map_err(|error| Trouble::Unknown(seq, error))
    }

    /// The bytes that have a number.
    pub(super) fn value(&self, seq: Seq) -> Result<Option<Slice>, Trouble> {
        self.log.get(seq.to_be_bytes()).map_err(cannot_read)
    }

    /// The first ranges of numbers that are gone, from a number on.
    pub(super) fn gone(&self, from: Seq, most: usize) -> Result<Vec<Gone>, Trouble> {
        let pairs = self.gone.range(from.to_be_bytes()..).take(most);
        pairs.map(|pair| read_gone(pair.into_inner().map_err(cannot_read)?)).collect()
    }

    /// What the index has of a resource, in the order of the numbers.
    pub(super) fn of_resource(
        &self,
        resource: &ResourceId,
    ) -> impl Iterator<Item = Result<(Seq, Entry), Trouble>> {
        let mut prefix = resource.as_str().as_bytes().to_vec();
        prefix.push(0);
        self.index.prefix(prefix).map(|pair| read_entry(pair.into_inner().map_err(cannot_read)?))
    }

    /// All that the index has.
    pub(super) fn entries(&self) -> impl Iterator<Item = Result<(Seq, Entry), Trouble>> {
        self.index.iter().map(|pair| read_entry(pair.into_inner().map_err(cannot_read)?))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in `map_err`")]
fn cannot_read(error: fjall::Error) -> Trouble {
    Trouble::Broken(match io_error(&error) {
        Some(error) => error.to_string(),
        None => format!("a block can't be read ({error})"),
    })
}

fn number(key: &[u8]) -> Result<Seq, Trouble> {
    let wrong = |_| Trouble::Broken("a key is not a number".into());
    key.try_into().map(Seq::from_be_bytes).map_err(wrong)
}

/// What a value of the log is, if it belongs to that number.
fn decode(seq: Seq, value: &[u8], names: &mut Names) -> Result<Durable, Trouble> {
    wire::decode_durable(body(seq, value)?, names).map_err(|error| Trouble::Unknown(seq, error))
}

/// What a value of the log holds, if it belongs to that number.
fn body(seq: Seq, value: &[u8]) -> Result<&[u8], Trouble> {
    let frame = open(value, Kind::Log)?;
    if frame.seq != seq {
        return Err(Trouble::Broken(format!("number {seq} is not what it should be")));
    }
    Ok(frame.body)
}

fn open(value: &[u8], kind: Kind) -> Result<Frame<'_>, Trouble> {
    let frame = frame::open(value).filter(|frame| frame.kind == kind);
    frame.ok_or_else(|| Trouble::Broken("the checksum of a value is wrong".into()))
}

fn read_entry((_, value): (Slice, Slice)) -> Result<(Seq, Entry), Trouble> {
    let frame = open(&value, Kind::Index)?;
    let entry = Entry::decode(frame.body);
    let wrong = || Trouble::Broken("an entry of the index is not what it should be".into());
    Ok((frame.seq, entry.ok_or_else(wrong)?))
}

fn read_gone((_, value): (Slice, Slice)) -> Result<Gone, Trouble> {
    let frame = open(&value, Kind::Gone)?;
    let gone = Gone::decode(frame.seq, frame.body);
    gone.ok_or_else(|| Trouble::Broken("a range of numbers is not what it should be".into()))
}

/// The failure of the disk behind a failure of fjall.
pub(super) fn io_error(error: &fjall::Error) -> Option<&io::Error> {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => Some(error),
        _ => None,
    }
}
