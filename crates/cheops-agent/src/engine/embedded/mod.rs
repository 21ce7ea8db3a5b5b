//! The embedded engine: a log on the local disk, kept by [fjall](https://docs.rs/fjall).
//!
//! `docs/store.md` says what is in the directory and what an operator does with it. What must stay
//! true, beside what every engine promises:
//! - numbers are dense: one that is missing is noted as forgotten or lost, or it is found to be lost
//!   when the log is read;
//! - after something of a resource was lost, its later records are not handed out until a record
//!   that says so: they may rest on what is lost;
//! - a batch that failed is written again under the same numbers, so it is never there twice;
//! - fjall opens only what was checked, and what can't be opened is rebuilt from what can be read.

mod check;
mod disk;
mod frame;
mod read;
mod rebuild;
mod store;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::Durable,
    trust::Seal,
};

use self::{
    check::Verdict,
    disk::{About, Tail, error, explain},
    read::Written,
    store::{Items, Store, Trouble, io_error},
};
use super::{
    Damage, Engine, EngineError, Filling, HALF_FILLED, LostUnknown, Opened, Reader, Seq, Sort,
    entry::{Entry, Gone, Loss, Why},
    free, meaning,
};
use crate::{
    shell,
    wire::{self, Names},
};

/// How long fjall may take to let go of its files.
const LET_GO: Duration = Duration::from_secs(10);
/// With less room than this, a failure of fjall that says nothing else is one of room.
const NO_ROOM: u64 = 1 << 20;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The site that it belongs to.
    pub site: SiteId,
    /// How many bytes of the log are kept in memory before they are written to a table.
    pub memtable: u64,
    /// How many bytes of tables are kept in memory for reading.
    pub cache: u64,
}

impl Options {
    /// The store of a site, with little memory.
    pub fn of(site: SiteId) -> Self {
        Self { site, memtable: 2 << 20, cache: 1 << 20 }
    }
}

/// The embedded engine.
pub struct Embedded {
    shared: Arc<Shared>,
    options: Options,
    tail: Tail,
    /// The number of the next value.
    next: Seq,
    state: State,
    damage: Vec<Damage>,
    /// What is lost of resources that are not known: noted as told with the next batch.
    untold: Vec<Gone>,
    /// Whether something of a resource that is not known was ever lost.
    lost_unknown: Option<LostUnknown>,
    /// Held as long as the store is open.
    _lock: disk::Lock,
}

/// Whether something can be appended.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Writing failed. Whether the failure was one of the disk.
    Failed {
        disk: bool,
    },
    /// The store was opened again after a failure, and the batch that failed is there up to this
    /// number.
    Again {
        last: Seq,
    },
}

/// The last number that was acknowledged, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledged {
    /// Another process wrote the store, and later numbers may have been, too.
    AtLeast(Seq),
    /// We wrote it: what is missing of later numbers is not lost, since it comes again.
    Exactly(Seq),
}

impl Acknowledged {
    fn last(self) -> Seq {
        match self {
            Self::AtLeast(last) | Self::Exactly(last) => last,
        }
    }
}

/// What the engine and its readers share.
struct Shared {
    directory: PathBuf,
    /// None while it is opened again, and after the engine is gone.
    store: RwLock<Option<Store>>,
    /// The number of the last value that is durable.
    last: AtomicU64,
}

impl Shared {
    fn store(&self) -> RwLockReadGuard<'_, Option<Store>> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, store: Option<Store>) {
        let old = {
            let mut place = self.store.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *place, store)
        };
        drop(old);
    }

    fn closed(&self) -> EngineError {
        error(&self.directory, "it is closed, or being opened again after a failure: try again")
    }

    fn fail(&self, trouble: &Trouble) -> EngineError {
        error(&self.directory, trouble.to_string())
    }
}

impl Embedded {
    /// Opens the store in a directory, and makes one if there is none. What is broken is rebuilt:
    /// [`damage`](Opened::damage) says what was lost, once all was read.
    pub fn open(directory: &Path, options: Options) -> Result<Self, EngineError> {
        let (lock, filling) = take(directory)?;
        if filling {
            return Err(error(directory, HALF_FILLED));
        }
        Self::open_taken(directory, options, lock)
    }

    /// Opens the store in a directory to fill it: an empty one, or one that is half filled.
    pub fn fill(directory: &Path, options: Options) -> Result<Self, EngineError> {
        let (lock, filling) = take(directory)?;
        let this = Self::open_taken(directory, options, lock)?;
        if !filling {
            if this.next > 1 {
                let from = directory.to_string_lossy();
                let (from, to) = (shell::word(&from), shell::word(&format!("{from}.old")));
                let problem = format!("it is not empty: move it away first: mv {from} {to}");
                return Err(error(directory, problem));
            }
            disk::mark_filling(directory).map_err(|failure| error(directory, explain(&failure)))?;
        }
        Ok(this)
    }

    fn open_taken(
        directory: &Path,
        options: Options,
        lock: disk::Lock,
    ) -> Result<Self, EngineError> {
        let failed = |failure: io::Error| error(directory, explain(&failure));
        let about = disk::about(directory, &options.site)?;
        rebuild::tidy(directory).map_err(failed)?;
        let new = about == About::New && !rebuild::database(directory).exists();
        let mut damage = Vec::new();
        if about != About::Ours {
            disk::write_about(directory, &options.site).map_err(failed)?;
            if !new {
                damage.push(forgot_itself());
            }
        }
        let tail = Tail::open(directory).map_err(failed)?;
        let acknowledged = Acknowledged::AtLeast(tail.read());
        let (store, last) = open_store(directory, &options, acknowledged)?;
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            store: RwLock::new(Some(store)),
            last: AtomicU64::new(last),
        });
        let (state, untold) = (State::Ready, Vec::new());
        let (next, lost_unknown) = (last + 1, None);
        Ok(Self { shared, options, tail, next, state, damage, untold, lost_unknown, _lock: lock })
    }

    /// Closes the store, rebuilds it, and opens it again. Says the last number that is there. Whether
    /// what comes with it counts is for the caller to say: it may be a batch that failed.
    fn rebuild(&mut self, acknowledged: Acknowledged, why: &str) -> Result<Seq, EngineError> {
        self.shared.replace(None);
        let directory = self.shared.directory.clone();
        rebuild::rebuild(&directory, &self.options, acknowledged, why)?;
        let (store, last) = open_store(&directory, &self.options, acknowledged)?;
        self.shared.replace(Some(store));
        Ok(last)
    }

    /// Whether everything in the store can be read.
    fn read_all(&self) -> Result<(), Trouble> {
        let guard = self.shared.store();
        let Some(store) = guard.as_ref() else { return Ok(()) };
        let mut names = Names::default();
        let mut from = 1;
        loop {
            match store.records(from, 1_024, &mut names) {
                Ok(records) => match records.last() {
                    Some((last, _)) => from = last + 1,
                    None => break,
                },
                Err(Trouble::Unknown(seq, _)) => from = seq + 1,
                Err(trouble) => return Err(trouble),
            }
        }
        for entry in store.entries() {
            entry?;
        }
        store.gone(0, usize::MAX).map(|_| ())
    }

    /// The values of a batch as they stand in the database.
    fn items(&self, store: &Store, batch: &[Durable]) -> Result<(Items, Seq), EngineError> {
        let place = &self.shared.directory;
        let first = self.next;
        let last = first + batch.len() as Seq - 1;
        let mut items = Items::default();
        // Where each resource that the batch forgets is forgotten last.
        let forgotten: BTreeMap<_, _> = (first..)
            .zip(batch)
            .filter_map(|(seq, durable)| Some((meaning::forgets(durable)?, seq)))
            .collect();
        for (seq, durable) in (first..).zip(batch) {
            if forgotten.get(durable.resource()).is_some_and(|last| seq < *last) {
                items.gone(&Gone { first: seq, last: seq, why: Why::Forgotten });
                continue;
            }
            let body = wire::encode_durable(durable).map_err(|problem| {
                let what = Entry::of(durable);
                let resource = durable.resource();
                let problem = format!("{what} of resource {resource} can't be written: {problem}");
                EngineError { sort: Sort::Permanent, ..error(place, problem) }
            })?;
            items.log(seq, (first, last), &body);
            items.index(seq, (first, last), &Entry::of(durable));
            if let Some(resource) = meaning::forgets(durable) {
                rebuild::forget(store, resource, first, &mut items)
                    .map_err(|trouble| self.shared.fail(&trouble))?;
            }
        }
        for gone in &self.untold {
            if let Why::Lost(loss) = &gone.why {
                let why = Why::Lost(Loss { told: true, ..loss.clone() });
                items.gone(&Gone { why, ..gone.clone() });
            }
        }
        Ok((items, last))
    }

    /// Whether what is there of a batch that failed is the same batch.
    fn is_same(&self, store: &Store, batch: &[Durable], last: Seq) -> Result<bool, EngineError> {
        let mut names = Names::default();
        for (seq, durable) in (self.next..=last).zip(batch) {
            let there =
                store.record(seq, &mut names).map_err(|trouble| self.shared.fail(&trouble))?;
            if there.is_some_and(|there| there != *durable) {
                return Ok(false);
            }
        }
        Ok(self.next + batch.len() as Seq == last + 1)
    }

    fn try_append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        let place = &self.shared.directory;
        let guard = self.shared.store();
        let store = guard.as_ref().ok_or_else(|| self.shared.closed())?;
        if let State::Again { last } = self.state
            && !self.is_same(store, batch, last)?
        {
            return Err(error(place, "another batch than the one that failed can't come first"));
        }
        let (items, last) = self.items(store, batch)?;
        // A batch that is there after a failure is written again all the same: a sync that failed
        // says nothing of what is on disk, and the same values under the same numbers change
        // nothing.
        if let Err(failure) = store.write(items, true) {
            let problem = self::failure(place, &failure);
            self.state = State::Failed { disk: io_error(&failure).is_some() };
            return Err(error(&self.shared.directory, problem));
        }
        if let Err(failure) = self.tail.write(last) {
            tracing::warn!("the store in {}: `tail`: {}", place.display(), explain(&failure));
        }
        self.shared.last.store(last, Ordering::Release);
        Ok(last)
    }
}

impl Opened for Embedded {
    fn written(&mut self) -> Box<dyn Iterator<Item = Result<Durable, EngineError>> + '_> {
        Box::new(Written::new(self))
    }

    fn damage(&self) -> &[Damage] {
        &self.damage
    }

    fn lost_unknown(&self) -> Option<LostUnknown> {
        self.lost_unknown
    }
}

impl Filling for Embedded {
    fn lose_unknown(&mut self, lost: LostUnknown) -> Result<(), EngineError> {
        let guard = self.shared.store();
        let store = guard.as_ref().ok_or_else(|| self.shared.closed())?;
        let why = Why::Lost(Loss {
            resource: None,
            told: true,
            found: lost.found,
            what: "something of resources that are not known".into(),
            why: "it was lost before all was copied here".into(),
        });
        let mut items = Items::default();
        items.gone(&Gone { first: 1, last: lost.records, why });
        let place = &self.shared.directory;
        store.write(items, true).map_err(|error| self::error(place, failure(place, &error)))?;
        self.next = lost.records + 1;
        self.shared.last.store(lost.records, Ordering::Release);
        Ok(())
    }

    fn how_to_begin_again(&self) -> String {
        format!("remove it: rm -r {}", shell::word(&self.shared.directory.to_string_lossy()))
    }

    fn finish(&mut self) -> Result<(), EngineError> {
        let directory = &self.shared.directory;
        disk::unmark_filling(directory).map_err(|failure| error(directory, explain(&failure)))
    }
}

impl Drop for Embedded {
    /// Closes the store, even if somebody still has a reader: whoever opens it next finds it free.
    fn drop(&mut self) {
        self.shared.replace(None);
    }
}

impl Engine for Embedded {
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        if batch.is_empty() {
            return Ok(self.shared.last.load(Ordering::Acquire));
        }
        if matches!(self.state, State::Failed { .. }) {
            let problem = "a batch failed before: it has to recover first";
            return Err(error(&self.shared.directory, problem));
        }
        let appended = self.try_append(batch);
        if appended.as_ref().is_err_and(|error| !error.is_permanent()) && self.state == State::Ready
        {
            self.state = State::Failed { disk: false };
        }
        let last = appended?;
        self.next = last + 1;
        self.state = State::Ready;
        self.untold.clear();
        Ok(last)
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        let disk = match self.state {
            State::Failed { disk } => disk,
            State::Ready | State::Again { .. } => return Ok(()),
        };
        self.shared.replace(None);
        let directory = self.shared.directory.clone();
        let acknowledged = Acknowledged::Exactly(self.next - 1);
        let (store, mut last) = open_store(&directory, &self.options, acknowledged)?;
        self.shared.replace(Some(store));
        let room = free(&directory).is_ok_and(|free| free > NO_ROOM);
        if !disk && room {
            // fjall gave up by itself: what it could not read must not make it give up for ever.
            if let Err(trouble) = self.read_all() {
                last = self.rebuild(acknowledged, &trouble.to_string())?;
            }
        }
        self.state = if last >= self.next { State::Again { last } } else { State::Ready };
        Ok(())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.shared.clone()
    }
}

impl Reader for Shared {
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        let Some(from) = seq.checked_add(1) else { return Ok(Vec::new()) };
        let guard = self.store();
        let store = guard.as_ref().ok_or_else(|| self.closed())?;
        let mut names = Names::default();
        match store.records(from, most, &mut names) {
            Ok(mut records) => {
                let last = self.last();
                records.retain(|(seq, _)| *seq <= last);
                return Ok(records);
            }
            Err(Trouble::Broken(_)) => {}
            Err(trouble) => return Err(self.fail(&trouble)),
        }
        // A range ends at what can't be read, and the numbers after that can be asked for one by
        // one.
        let mut records = Vec::new();
        for seq in from..=self.last() {
            if records.len() == most {
                break;
            }
            if let Ok(Some(durable)) = store.record(seq, &mut names) {
                records.push((seq, durable));
            }
        }
        Ok(records)
    }

    fn seals(
        &self,
        resource: &ResourceId,
        records: &BTreeSet<OpId>,
    ) -> Result<BTreeMap<OpId, Seal>, EngineError> {
        let guard = self.store();
        let store = guard.as_ref().ok_or_else(|| self.closed())?;
        let (mut seals, mut names) = (BTreeMap::new(), Names::default());
        for entry in store.of_resource(resource) {
            let (seq, entry) = entry.map_err(|trouble| self.fail(&trouble))?;
            let Some(id) = entry.record().filter(|id| records.contains(id)) else { continue };
            let seal = store.seal(seq, &mut names).map_err(|trouble| self.fail(&trouble))?;
            seals.extend(seal.map(|seal| (id.clone(), seal)));
        }
        Ok(seals)
    }

    fn last(&self) -> Seq {
        self.last.load(Ordering::Acquire)
    }

    fn free(&self) -> io::Result<u64> {
        free(&self.directory)
    }
}

/// What a failure of fjall to write means to an operator.
fn failure(directory: &Path, failure: &fjall::Error) -> String {
    match io_error(failure) {
        Some(failure) => explain(failure),
        None => match free(directory) {
            Ok(free) if free <= NO_ROOM => {
                format!("the disk is full ({free} bytes are free): make room there")
            }
            _ => format!("writing failed ({failure}); look at the disk and the system's log"),
        },
    }
}

/// A store whose file `about` is gone or can't be read.
fn forgot_itself() -> Damage {
    Damage {
        seqs: RangeInclusive::new(1, 0),
        resource: None,
        what: "the file `about`, with the site that the store belongs to".into(),
        why: "it is missing, or its checksum is wrong; it was written anew for this site".into(),
        floor: 0,
    }
}

/// Whether something was written to the store in a directory, as far as its file `tail` says; one that is being
/// filled does not count yet.
pub(super) fn is_used(directory: &Path) -> bool {
    File::open(directory.join("tail")).is_ok_and(|tail| Tail::of(tail).read() > 0)
        && !disk::is_filling(directory).unwrap_or(false)
}

/// Takes a directory for this process, and says whether the store in it is being filled.
fn take(directory: &Path) -> Result<(disk::Lock, bool), EngineError> {
    let failed = |failure: io::Error| error(directory, explain(&failure));
    disk::create_directory(directory).map_err(failed)?;
    let lock = disk::lock(directory)?;
    Ok((lock, disk::is_filling(directory).map_err(failed)?))
}

/// Checks the database and opens it; what can't be opened is rebuilt first. Says the last number,
/// too.
fn open_store(
    directory: &Path,
    options: &Options,
    acknowledged: Acknowledged,
) -> Result<(Store, Seq), EngineError> {
    let database = rebuild::database(directory);
    let failed = |failure: io::Error| error(directory, explain(&failure));
    if database.exists() {
        match check::check(&database, acknowledged.last()).map_err(failed)? {
            Verdict::Sound => {}
            Verdict::Torn { journal, at } => {
                // fjall would do the same, but not with everything that a torn write can leave.
                let cut = || {
                    let file = File::options().write(true).open(journal)?;
                    file.set_len(at)?;
                    file.sync_all()
                };
                cut().map_err(failed)?;
            }
            Verdict::Broken(why) => rebuild::rebuild(directory, options, acknowledged, &why)?,
        }
    }
    match try_open(&database, options) {
        Ok((store, last)) => Ok((store, last.max(acknowledged.last()))),
        Err(Refusal::Disk(failure)) => Err(failed(failure)),
        Err(Refusal::Broken(why)) => {
            rebuild::rebuild(directory, options, acknowledged, &why)?;
            match try_open(&database, options) {
                Ok((store, last)) => Ok((store, last.max(acknowledged.last()))),
                Err(Refusal::Disk(failure)) => Err(failed(failure)),
                Err(Refusal::Broken(why)) => Err(error(directory, why)),
            }
        }
    }
}

/// Why a database was not opened.
enum Refusal {
    /// The disk has no room, or can't be written.
    Disk(io::Error),
    /// What is there can't be read.
    Broken(String),
}

fn try_open(database: &Path, options: &Options) -> Result<(Store, Seq), Refusal> {
    let deadline = Instant::now() + LET_GO;
    let store = loop {
        match Store::open(database, options) {
            Ok(store) => break store,
            // Nobody else can have it, since the directory is ours: it is about to be let go.
            Err(fjall::Error::Locked) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(failure) => return Err(refusal(database, failure)),
        }
    };
    let last = store.last().map_err(|trouble| Refusal::Broken(trouble.to_string()))?;
    Ok((store, last))
}

fn refusal(database: &Path, failure: fjall::Error) -> Refusal {
    use io::ErrorKind::{
        PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull, WouldBlock,
    };
    let why = failure.to_string();
    match failure {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            match error.kind() {
                PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull
                | WouldBlock => Refusal::Disk(error),
                _ => Refusal::Broken(error.to_string()),
            }
        }
        fjall::Error::Locked => Refusal::Disk(io::Error::new(WouldBlock, "it is in use")),
        // Whoever writes its tables has given up: for want of room, or of something to read.
        fjall::Error::Poisoned if free(database).is_ok_and(|free| free <= NO_ROOM) => {
            Refusal::Disk(io::Error::new(StorageFull, "there is no room for tables"))
        }
        _ => Refusal::Broken(why),
    }
}
