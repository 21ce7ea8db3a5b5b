//! The engine on CouchDB with a local journal: while the server is away, batches wait in a file of the data
//! directory, and are acknowledged.
//!
//! What must stay true, beside what every engine promises:
//! - while something waits, nothing is written to CouchDB but that, batch by batch, with the bounds and the numbers
//!   that it was acknowledged with;
//! - only what a server that is away does not take is kept here. That another agent has taken a number stays an
//!   error;
//! - whoever reads sees what waits as if it were written.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::Durable,
    time::Millis,
    trust::Seal,
};

use super::{
    CouchDb, Shared, error,
    local_journal::{self, Batch, LocalJournal},
    place,
};
use crate::{
    config,
    engine::{
        Arrivals, Damage, Engine, EngineError, LostUnknown, Opened, Reader, Seq, Waiting, disk,
        meaning,
    },
};

/// How often is looked whether the server is back.
const LOOK: Duration = Duration::from_secs(1);
/// How long what waits is written before something else has its turn.
const TURN: Duration = Duration::from_millis(500);

/// The engine on CouchDB with a local journal.
pub struct Buffered {
    inner: CouchDb,
    journal: LocalJournal,
    /// How long the local journal may get, in bytes.
    limit: u64,
    waits: Arc<Waits>,
    looking: thread::JoinHandle<()>,
}

/// What waits, for the engine, for readers, and for the one who looks whether the server is back.
#[derive(Default)]
struct Waits {
    state: Mutex<State>,
    /// Whether the server has answered since it was away.
    is_back: AtomicBool,
    over: AtomicBool,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Arc<Batch>>,
    /// Since when.
    since: Millis,
    why: String,
    /// What waits can't be written, and that the server is away is not the reason.
    stuck: bool,
    bytes: u64,
}

impl Waits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.state().batches.is_empty()
    }

    fn last(&self) -> Option<Seq> {
        self.state().batches.back().map(|batch| batch.last())
    }
}

impl Buffered {
    /// Opens the databases of a site, with a local journal of so many bytes. What waits in it is written first.
    pub fn open(
        config: &config::CouchDb,
        here: SiteId,
        data: &Path,
        limit: u64,
    ) -> Result<Self, EngineError> {
        let inner = CouchDb::open(config, here, data)?;
        let place = place(data);
        disk::create_directory(&place)
            .map_err(|failure| disk::error(&place, disk::explain(&failure)))?;
        let (journal, _) = LocalJournal::open(&place)?;
        let waits = Arc::new(Waits::default());
        let (shared, watched) = (inner.shared.clone(), waits.clone());
        let looking = thread::Builder::new()
            .name("couchdb-look".to_owned())
            .spawn(move || look(&shared, &watched))
            .map_err(|failure| error(&inner.shared.databases.place, failure.to_string()))?;
        Ok(Self { inner, journal, limit, waits, looking })
    }

    /// Keeps a batch here, since the server does not take it for this reason.
    fn keep(&mut self, batch: &[Durable], why: &str) -> Result<Seq, EngineError> {
        let first = self.last() + 1;
        let entry = local_journal::encode(first, batch)
            .map_err(|(n, problem)| self.inner.unwritable(&batch[n], &problem))?;
        if self.waits.is_empty() {
            // What could not be dropped when it was written: other numbers have come since.
            self.journal.clear()?;
        }
        let (used, limit) = (self.journal.length(), self.limit);
        if used + entry.len() as u64 > limit {
            let problem = format!(
                "{why}; and the local journal is full ({used} of {limit} bytes): `couchdb.local_journal` says how long it may get"
            );
            return Err(error(&self.inner.shared.databases.place, problem));
        }
        self.journal.append(&entry)?;
        let mut state = self.waits.state();
        if state.batches.is_empty() {
            tracing::warn!("{why}; what is accepted is kept in the local journal until it is back");
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            state.since = Millis::from(now);
            why.clone_into(&mut state.why);
            state.stuck = false;
            self.waits.is_back.store(false, Ordering::Release);
            self.looking.thread().unpark();
        }
        state.bytes = self.journal.length();
        let batch = Arc::new(Batch { first, values: batch.to_vec() });
        let last = batch.last();
        state.batches.push_back(batch);
        Ok(last)
    }

    /// Writes what waits to the server, if it is back, for as long as a turn takes.
    fn write_on(&mut self) {
        let start = Instant::now();
        while self.waits.is_back.load(Ordering::Acquire) && start.elapsed() < TURN {
            let Some(batch) = self.waits.state().batches.front().cloned() else { return };
            if let Err(failed) = self.inner.try_append(&batch.values) {
                self.waits.is_back.store(false, Ordering::Release);
                let stuck = !failed.is_away();
                let why = self.inner.worded(failed).problem;
                let mut state = self.waits.state();
                if stuck && state.why != why {
                    tracing::error!("what waits in the local journal can't be written: {why}");
                }
                (state.stuck, state.why) = (stuck, why);
                return;
            }
            let mut state = self.waits.state();
            state.batches.pop_front();
            if state.batches.is_empty() {
                tracing::info!("CouchDB is back, and has all that waited in the local journal");
                // What stays in the file is found to be in CouchDB at the next start.
                if let Err(error) = self.journal.clear() {
                    tracing::warn!("{error}");
                }
                state.bytes = self.journal.length();
            }
        }
    }

    fn last(&self) -> Seq {
        self.waits.last().unwrap_or(self.inner.next - 1)
    }
}

/// Looks whether the server is back, while something waits.
fn look(shared: &Shared, waits: &Waits) {
    while !waits.over.load(Ordering::Acquire) {
        if waits.is_empty() {
            thread::park();
            continue;
        }
        if !waits.is_back.load(Ordering::Acquire) && shared.look_back().is_ok() {
            waits.is_back.store(true, Ordering::Release);
        }
        thread::park_timeout(LOOK);
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        self.waits.over.store(true, Ordering::Release);
        // Not waited for: it may be waiting for a server that hangs.
        self.looking.thread().unpark();
    }
}

impl Engine for Buffered {
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        if batch.is_empty() {
            return Ok(self.last());
        }
        self.write_on();
        if !self.waits.is_empty() {
            let (stuck, why) = {
                let state = self.waits.state();
                (state.stuck, state.why.clone())
            };
            if stuck {
                return Err(error(&self.inner.shared.databases.place, why));
            }
            return self.keep(batch, &why);
        }
        match self.inner.try_append(batch) {
            Err(failed) if failed.is_away() => {
                let why = self.inner.worded(failed).problem;
                self.keep(batch, &why)
            }
            written => written.map_err(|failed| self.inner.worded(failed)),
        }
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        // What can't be written to the server can still be kept here.
        Ok(())
    }

    fn tend(&mut self) -> Result<(), EngineError> {
        let shared = &self.inner.shared;
        shared.check_end().map_err(|trouble| shared.fail(&trouble))?;
        self.inner.note(self.last());
        self.write_on();
        Ok(())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        let (inner, waits) = (self.inner.shared.clone(), self.waits.clone());
        Arc::new(Through { inner, waits, limit: self.limit })
    }
}

impl Opened for Buffered {
    fn written(&mut self) -> Box<dyn Iterator<Item = Result<Durable, EngineError>> + '_> {
        self.inner.written()
    }

    fn strays(&mut self) -> Result<Vec<Durable>, EngineError> {
        self.inner.strays()
    }

    fn arrivals(&self) -> Option<Box<dyn Arrivals>> {
        self.inner.arrivals()
    }

    fn damage(&self) -> &[Damage] {
        self.inner.damage()
    }

    fn lost_unknown(&self) -> Option<LostUnknown> {
        self.inner.lost_unknown()
    }
}

/// Reads what is in CouchDB, and what waits.
struct Through {
    inner: Arc<Shared>,
    waits: Arc<Waits>,
    limit: u64,
}

impl Through {
    fn waiting(&self) -> Vec<Arc<Batch>> {
        self.waits.state().batches.iter().cloned().collect()
    }
}

impl Reader for Through {
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        // In this order: what is written meanwhile is in both, and never in none.
        let waiting = self.waiting();
        let Some(first) = waiting.first().map(|batch| batch.first) else {
            return self.inner.after(seq, most);
        };
        let mut read = Vec::new();
        if seq.saturating_add(1) < first {
            read = self.inner.after(seq, most)?;
            read.retain(|(number, _)| *number < first);
        }
        let waiting = || waiting.iter().flat_map(|batch| batch.numbered());
        let forgotten: BTreeMap<_, _> = waiting()
            .filter_map(|(number, durable)| Some((meaning::forgets(durable)?, number)))
            .collect();
        let later = waiting().filter(|(number, _)| *number > seq);
        read.extend(later.map(|(number, durable)| (number, durable.clone())));
        read.retain(|(number, durable)| {
            forgotten.get(durable.resource()).is_none_or(|forgotten| number >= forgotten)
        });
        read.truncate(most);
        Ok(read)
    }

    fn seals(
        &self,
        resource: &ResourceId,
        records: &BTreeSet<OpId>,
    ) -> Result<BTreeMap<OpId, Seal>, EngineError> {
        let (mut seals, mut others) = (BTreeMap::new(), records.clone());
        for batch in self.waiting() {
            for durable in &batch.values {
                if let Durable::Record(record, seal) = durable
                    && record.resource() == resource
                    && others.remove(record.id())
                {
                    seals.extend(seal.clone().map(|seal| (record.id().clone(), seal)));
                }
            }
        }
        seals.extend(self.inner.seals(resource, &others)?);
        Ok(seals)
    }

    fn last(&self) -> Seq {
        self.waits.last().unwrap_or(0).max(self.inner.last())
    }

    fn free(&self) -> io::Result<u64> {
        self.inner.free()
    }

    fn waiting(&self) -> Option<Waiting> {
        let state = self.waits.state();
        let values = state.batches.iter().map(|batch| batch.values.len() as u64).sum();
        (!state.batches.is_empty()).then(|| Waiting {
            since: state.since,
            why: state.why.clone(),
            values,
            bytes: state.bytes,
            limit: self.limit,
        })
    }
}
