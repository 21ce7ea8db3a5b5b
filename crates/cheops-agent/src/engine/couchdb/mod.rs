//! The engine on CouchDB: what a site writes down is in two databases of a server.
//!
//! A record is one document, which is never changed (`document`). In which order the site has written what
//! stands in its journal (`journal`), in a database of its own. `docs/couchdb.md` says what is in them and
//! what an operator does with that. What must stay true, beside what every engine promises:
//! - what a page that counts names can be read: its documents are there before it, or it holds copies of them;
//! - what is there of a batch that failed is the same when it is written again, so it is never there twice;
//! - a batch whose last page is missing was never acknowledged, and does not count.

mod append;
mod attachments;
mod buffered;
mod caretaker;
mod client;
mod databases;
mod dialect;
mod document;
mod feed;
mod fetch;
mod follow;
mod index;
mod journal;
mod lease;
mod local_journal;
mod lock;
mod notes;
mod open;
mod owner;
mod pipeline;
mod purge;
mod quorum;
mod read;
mod restore;
mod server;
mod snapshot;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::Durable,
    trust::Seal,
};

pub(crate) use self::{
    attachments::Attachments,
    dialect::Dialect,
    document::{Document, Name},
    lease::{Attempt, BEAT, Held, Holder, Lease},
    owner::Owner,
    server::{Server, Trouble, encoded, refused},
};
pub use self::{buffered::Buffered, lease::Fence};
use self::{
    caretaker::Caretaker, databases::Databases, feed::Which, index::Index, notes::Notes,
    snapshot::Stretch,
};
use super::{
    Arrivals, Damage, Engine, EngineError, Filling, LostUnknown, Opened, Reader, Seq, Sort, disk,
    entry::Entry as What, free,
};
use crate::{config, wire::Names};

/// How many pages are read at once for those who want the next few values.
const PAGES: usize = 20;

/// The engine on CouchDB.
pub struct CouchDb {
    shared: Arc<Shared>,
    here: SiteId,
    /// The number of the next value.
    next: Seq,
    damage: Vec<Damage>,
    lost_unknown: Option<LostUnknown>,
    /// Pages that are gone: others take their place with the next batch.
    untold: Vec<RangeInclusive<Seq>>,
    /// Documents that the journal names, and that somebody has removed or changed.
    lost: BTreeSet<String>,
    /// The name of the databases, and whether the data directory says that something was written to them.
    name: String,
    noted: bool,
    /// The last number that it says was given.
    reached: Seq,
    /// How many connections there had been when it was last made sure that all is there which was written.
    looked: u64,
    /// The batch that a start in a cluster has found last: its documents may not have been written.
    undocumented: Option<RangeInclusive<Seq>>,
    /// What of the snapshot counts, if there is one.
    snapshot: Option<Stretch>,
    /// None while they are filled.
    caretaker: Option<Arc<Caretaker>>,
}

impl Drop for CouchDb {
    fn drop(&mut self) {
        if let Some(caretaker) = &self.caretaker {
            caretaker.stop();
        }
    }
}

/// Documents that are not in the journal yet, by their hashes.
#[derive(Default)]
struct Afoot {
    /// Others have brought them: they need not be written again.
    brought: BTreeSet<u128>,
    /// They are about to be written here: nobody needs to be told of them.
    ours: BTreeSet<u128>,
}

/// What the engine and its readers share.
struct Shared {
    databases: Databases,
    index: RwLock<Index>,
    afoot: Mutex<Afoot>,
    /// The number of the last value that is durable.
    last: AtomicU64,
    /// The number that the last page begins with; 0 while none is known.
    last_page: AtomicU64,
    /// That page is gone.
    set_back: AtomicBool,
    /// The changes can't be followed.
    unfollowed: AtomicBool,
    data: PathBuf,
}

impl Shared {
    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn afoot(&self) -> MutexGuard<'_, Afoot> {
        self.afoot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, trouble: &Trouble) -> EngineError {
        let failure = error(&self.databases.place, trouble.to_string());
        match trouble {
            // Another agent has gone on from here, or there is less: what this one knows counts no more.
            Trouble::Taken(_) | Trouble::SetBack => {
                EngineError { sort: Sort::Permanent, ..failure }
            }
            _ => failure,
        }
    }

    /// Looks whether the databases are there, with what was written last.
    fn look_back(&self) -> Result<(), Trouble> {
        self.databases.look()?;
        self.look_at_end()
    }

    /// Looks whether the last page is there: the databases may have been put back to an earlier state. How far this
    /// agent had come is kept, so that no number is given twice.
    fn look_at_end(&self) -> Result<(), Trouble> {
        let page = self.last_page.load(Ordering::Acquire);
        if page == 0 || self.databases.page(page)?.is_some() {
            return Ok(());
        }
        let last = self.last.load(Ordering::Acquire);
        if let Err(failure) = Notes::of(&self.data).reach(last) {
            tracing::error!("that {last} was written can't be noted: {failure}");
        }
        self.set_back.store(true, Ordering::Release);
        Err(Trouble::SetBack)
    }

    /// The records of a resource whose documents are lost, of those that the journal holds copies of.
    fn copies(
        &self,
        resource: &ResourceId,
        lost: &BTreeSet<&str>,
    ) -> Result<Vec<Durable>, Trouble> {
        let pages: Vec<String> = match self.index().of(resource) {
            Some(known) if known.copied && !lost.is_empty() => {
                known.pages.iter().copied().map(journal::id).collect()
            }
            _ => return Ok(Vec::new()),
        };
        let (mut copies, mut names) = (Vec::new(), Names::default());
        self.databases.each_page_named(&pages, |page| {
            let is_lost =
                |entry: &&journal::Entry| entry.document().is_some_and(|id| lost.contains(id));
            let found = page.entries.iter().filter(is_lost);
            copies.extend(found.filter_map(|entry| entry.local(&mut names)?.ok()));
        })?;
        Ok(copies)
    }

    fn check_end(&self) -> Result<(), Trouble> {
        if self.set_back.load(Ordering::Acquire) { Err(Trouble::SetBack) } else { Ok(()) }
    }
}

fn error(place: &str, problem: impl Into<String>) -> EngineError {
    EngineError { place: place.to_owned(), problem: problem.into(), sort: Sort::Server }
}

impl CouchDb {
    fn unwritable(&self, durable: &Durable, problem: &dyn std::fmt::Display) -> EngineError {
        let (what, resource) = (What::of(durable), durable.resource());
        let problem = format!("{what} of resource {resource} can't be written: {problem}");
        EngineError { sort: Sort::Permanent, ..error(&self.shared.databases.place, problem) }
    }
}

/// Opens the databases of a site as its configuration says: with a local journal, or without.
pub fn open(
    config: &config::CouchDb,
    here: SiteId,
    data: &Path,
) -> Result<Box<dyn Opened>, EngineError> {
    Ok(match config.local_journal {
        Some(limit) => Box::new(Buffered::open(config, here, data, limit)?),
        None => Box::new(CouchDb::open(config, here, data)?),
    })
}

/// What is kept on the local disk beside the databases.
fn place(data: &Path) -> PathBuf {
    data.join("couchdb")
}

/// Takes note that a site has left its databases for another engine.
pub(crate) fn leave(data: &Path) -> Result<(), EngineError> {
    let notes = Notes::of(data);
    notes.leave().map_err(|failure| disk::error(data, disk::explain(&failure)))
}

/// A name that nothing else has.
fn chance() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Why a batch was not written.
enum Failed {
    /// It can never be.
    ForGood(EngineError),
    /// The server did not take it.
    Trouble(Trouble),
}

impl Failed {
    fn is_away(&self) -> bool {
        matches!(self, Self::Trouble(trouble) if trouble.is_away())
    }
}

impl From<Trouble> for Failed {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl CouchDb {
    /// Brings the snapshot up to date, and says up to which number it goes. Nobody has to ask for it: it is done beside
    /// the writes.
    pub fn snapshot(&self) -> Result<Seq, EngineError> {
        let Some(caretaker) = &self.caretaker else { return Ok(0) };
        let failed =
            |failure: snapshot::Unkept| error(&self.shared.databases.place, failure.to_string());
        caretaker.copy_on().map_err(failed)
    }

    /// Whether a document is of a record of this site that is later than all that the journal names.
    fn is_unknown_and_own(&self, id: &str) -> bool {
        let Some(name) = Name::read(id) else { return false };
        let Ok(resource) = name.resource.parse::<ResourceId>() else { return false };
        let index = self.shared.index();
        let known = index.of(&resource).map_or(0, |known| known.last_of(&self.here));
        name.site == self.here.as_str() && name.number > known
    }

    /// Takes note of the last number that was given, for the case that the databases are put back to an earlier state.
    fn note(&mut self, last: Seq) {
        if last > self.reached && Notes::of(&self.shared.data).reach(last).is_ok() {
            self.reached = last;
        }
    }

    fn worded(&self, failed: Failed) -> EngineError {
        match failed {
            Failed::ForGood(error) => error,
            Failed::Trouble(trouble) => self.shared.fail(&trouble),
        }
    }
}

impl Engine for CouchDb {
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        self.try_append(batch).map_err(|failed| self.worded(failed))
    }

    fn tend(&mut self) -> Result<(), EngineError> {
        self.shared.check_end().map_err(|trouble| self.shared.fail(&trouble))?;
        self.note(self.next - 1);
        // Whoever follows the changes asks all the time: nobody has to write something to find that out.
        let unfollowed = self.shared.unfollowed.load(Ordering::Relaxed);
        let away = unfollowed || self.shared.databases.server().is_silent();
        if away { self.recover() } else { Ok(()) }
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        self.shared.look_back().map_err(|trouble| self.shared.fail(&trouble))
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.shared.clone()
    }
}

impl Opened for CouchDb {
    fn written(&mut self) -> Box<dyn Iterator<Item = Result<Durable, EngineError>> + '_> {
        Box::new(read::Written::new(self))
    }

    fn strays(&mut self) -> Result<Vec<Durable>, EngineError> {
        let fail = |trouble: Trouble| self.shared.fail(&trouble);
        let Shared { databases, .. } = &*self.shared;
        let mut since = databases.checkpoint().map_err(fail)?.since;
        let (mut strays, mut names) = (BTreeMap::new(), Names::default());
        loop {
            let (changed, next) = databases.changed(Which::Records, &since).map_err(fail)?;
            if changed.is_empty() {
                return Ok(strays.into_values().collect());
            }
            since = next;
            // Their names tell most of them apart: only what may be a stray is fetched.
            let unknown = changed
                .into_iter()
                .filter(|change| !change.deleted && self.is_unknown_and_own(&change.id));
            let unknown: Vec<String> = unknown.map(|change| change.id).collect();
            for document in databases.documents(&unknown).map_err(fail)?.into_values() {
                let Ok(durable) = document.read(&mut names) else { continue };
                let Durable::Record(record, _) = &durable else { continue };
                let (resource, number) = (record.resource().clone(), record.id().number);
                strays.insert((resource, number, document.id), durable);
            }
        }
    }

    fn arrivals(&self) -> Option<Box<dyn Arrivals>> {
        Some(Box::new(follow::Follower::new(self.shared.clone(), self.here.clone())))
    }

    fn damage(&self) -> &[Damage] {
        &self.damage
    }

    fn lost_unknown(&self) -> Option<LostUnknown> {
        self.lost_unknown
    }
}

impl Filling for CouchDb {
    fn lose_unknown(&mut self, lost: LostUnknown) -> Result<(), EngineError> {
        let page = journal::in_place_of(&(1..=lost.records), lost.found);
        let made = self.shared.databases.make_pages(&[page]);
        made.map_err(|trouble| self.shared.fail(&trouble))?;
        self.next = lost.records + 1;
        self.shared.last.store(lost.records, Ordering::Release);
        Ok(())
    }

    fn how_to_begin_again(&self) -> String {
        self.shared.databases.how_to_begin_again()
    }

    fn finish(&mut self) -> Result<(), EngineError> {
        let data = &self.shared.data;
        let noted = Notes::of(data).copy(&self.name);
        noted.map_err(|failure| disk::error(data, disk::explain(&failure)))?;
        self.shared.databases.unmark_filling().map_err(|trouble| self.shared.fail(&trouble))
    }
}

impl Reader for Shared {
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        self.read_after(seq, most).map_err(|trouble| self.fail(&trouble))
    }

    fn seals(
        &self,
        resource: &ResourceId,
        records: &BTreeSet<OpId>,
    ) -> Result<BTreeMap<OpId, Seal>, EngineError> {
        let ids: Vec<String> = match self.index().of(resource) {
            None => return Ok(BTreeMap::new()),
            Some(known) => {
                let name =
                    |record| Some(Name::of(resource, record, known.hash(record)?).to_string());
                records.iter().filter_map(name).collect()
            }
        };
        let found = self.databases.documents(&ids).map_err(|trouble| self.fail(&trouble))?;
        let mut names = Names::default();
        let mut read: Vec<_> =
            found.values().filter_map(|document| document.read(&mut names).ok()).collect();
        let lost: BTreeSet<&str> =
            ids.iter().map(String::as_str).filter(|id| !found.contains_key(*id)).collect();
        read.extend(self.copies(resource, &lost).map_err(|trouble| self.fail(&trouble))?);
        let sealed = read.into_iter().filter_map(|durable| match durable {
            Durable::Record(record, Some(seal)) => Some((record.id().clone(), seal)),
            _ => None,
        });
        Ok(sealed.collect())
    }

    fn last(&self) -> Seq {
        self.last.load(Ordering::Acquire)
    }

    fn free(&self) -> io::Result<u64> {
        free(&self.data)
    }
}
