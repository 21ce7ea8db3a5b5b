//! What is done beside the writes: the snapshot is brought up to date, and what is forgotten is removed.
//!
//! Both have a thread of their own, in which they take turns. What must stay true:
//! - writes never wait for either of them;
//! - what is forgotten is removed in parts of bounded size. What was not removed when the agent stopped is when it is
//!   started again: the journal says what that is;
//! - once the engine is gone, nothing is written to the snapshot any more.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cheops_core::id::ResourceId;
use serde_json::json;

use super::{
    Shared, chance,
    journal::{self, Entry},
    server::Trouble,
    snapshot::{Keeper, Loaded, Unkept},
};
use crate::{engine::Seq, wire::Names};

/// How often is looked whether there is something to do.
const LOOK: Duration = Duration::from_secs(1);
/// The snapshot is brought up to date once it lacks so many values, or after this time if it lacks any.
const LAG: Seq = 2_000;
const IDLE: Duration = Duration::from_secs(10);
/// How long to wait after something failed.
const PAUSE: Duration = Duration::from_secs(10);
/// How many pages are read at once for the snapshot, and for what is forgotten.
const PAGES: usize = 50;
/// How many documents are removed at once.
const PURGED: usize = 500;
/// How long what was forgotten stays in the snapshot, at most, after it was removed from the databases.
const REWRITE: Duration = Duration::from_hours(1);

/// What works beside the engine, until it is told to end.
pub(super) struct Caretaker {
    shared: Arc<Shared>,
    /// The name of the databases.
    name: String,
    forgotten: Mutex<VecDeque<ResourceId>>,
    keeping: Mutex<Keeping>,
    /// Up to where the snapshot goes.
    covered: AtomicU64,
    stopped: AtomicBool,
    /// Held while the snapshot is written; true once that is over.
    over: Mutex<bool>,
    thread: Mutex<Option<thread::Thread>>,
}

/// What is known of the snapshot.
enum Keeping {
    /// One that was found, and that is not written yet.
    Found(Box<Loaded>),
    /// There is none.
    None,
    Open(Box<Keeper>),
    /// There is to be none: it does not go with the databases.
    Off,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Caretaker {
    /// Begins to work. What was forgotten before and is still there is removed first.
    pub(super) fn start(
        shared: Arc<Shared>,
        name: String,
        snapshot: Option<Loaded>,
    ) -> std::io::Result<Arc<Self>> {
        let forgotten = {
            let index = shared.index();
            let may_purge = shared.databases.may_purge();
            let left = index.forgotten().filter(|(_, known)| may_purge && known.is_unscrubbed());
            left.map(|(id, _)| id.clone()).collect()
        };
        let covered = AtomicU64::new(snapshot.as_ref().map_or(0, Loaded::covered));
        let keeping = snapshot.map_or(Keeping::None, |found| Keeping::Found(Box::new(found)));
        let this = Arc::new(Self {
            shared,
            name,
            forgotten: Mutex::new(forgotten),
            keeping: Mutex::new(keeping),
            covered,
            stopped: AtomicBool::new(false),
            over: Mutex::new(false),
            thread: Mutex::default(),
        });
        let working = this.clone();
        let spawned =
            thread::Builder::new().name("couchdb-care".to_owned()).spawn(move || working.work())?;
        *lock(&this.thread) = Some(spawned.thread().clone());
        Ok(this)
    }

    /// Ends it: nothing is written to the snapshot once this has returned.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        *lock(&self.over) = true;
        // Another engine of this process may want to write it. If it is in use, it is let go a moment later.
        if let Ok(mut keeping) = self.keeping.try_lock() {
            *keeping = Keeping::Off;
        }
        self.wake();
    }

    /// Has what is forgotten of a resource removed.
    pub(super) fn scrub(&self, resource: &ResourceId) {
        // Without the right to purge all stays, so that an agent that has it finds the documents.
        if !self.shared.databases.may_purge() {
            return;
        }
        lock(&self.forgotten).push_back(resource.clone());
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) || self.shared.set_back.load(Ordering::Acquire)
    }

    fn work(&self) {
        let (mut copied, mut rewritten) = (Instant::now(), Instant::now());
        let mut said = BTreeSet::new();
        while !self.is_stopped() {
            let scrubbed = self.scrub_next();
            let lag =
                self.shared.last_number().saturating_sub(self.covered.load(Ordering::Acquire));
            let due = lag >= LAG || (lag > 0 && copied.elapsed() >= IDLE);
            let kept = if due {
                copied = Instant::now();
                self.copy_on().map(drop)
            } else if rewritten.elapsed() >= REWRITE {
                rewritten = Instant::now();
                self.rewrite()
            } else {
                Ok(())
            };
            let problems = [
                scrubbed.as_ref().err().map(ToString::to_string),
                kept.as_ref().err().map(ToString::to_string),
            ];
            let failed = problems.iter().any(Option::is_some);
            for problem in problems.into_iter().flatten() {
                // Once for each reason: it is tried again and again.
                if said.len() < 100 && said.insert(problem.clone()) {
                    let place = &self.shared.databases.place;
                    tracing::warn!(%place, "failed to tidy up, trying again: {problem}");
                }
            }
            if self.is_stopped() {
                return;
            }
            match (failed, scrubbed) {
                (true, _) => thread::park_timeout(PAUSE),
                // There is more.
                (false, Ok(true)) => {}
                (false, _) => thread::park_timeout(LOOK),
            }
        }
    }

    /// Removes a part of what is forgotten. Whether there was something to remove.
    fn scrub_next(&self) -> Result<bool, Trouble> {
        let Some(resource) = lock(&self.forgotten).front().cloned() else { return Ok(false) };
        if self.scrub_part(&resource)? {
            lock(&self.forgotten).pop_front();
            let forgotten = self.shared.index().of(&resource).map_or(0, |known| known.forgotten);
            self.note_scrubbed(&resource, forgotten);
        }
        Ok(true)
    }

    /// Removes what some pages hold of a resource from before it was forgotten. Whether that was the last of it.
    fn scrub_part(&self, resource: &ResourceId) -> Result<bool, Trouble> {
        let Shared { databases, .. } = &*self.shared;
        let (firsts, forgotten) = match self.shared.index().of(resource) {
            None => return Ok(true),
            Some(known) => (known.unscrubbed().take(PAGES).collect::<Vec<_>>(), known.forgotten),
        };
        let ids: Vec<String> = firsts.iter().copied().map(journal::id).collect();
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        for mut page in databases.pages_named(&ids)? {
            let first = page.first;
            let mut touched = false;
            for (seq, entry) in (first..).zip(&mut page.entries) {
                if seq < forgotten && entry.resource().as_ref() == Some(resource) {
                    gone.extend(entry.document().map(ToOwned::to_owned));
                    *entry = Entry::Gone(());
                    touched = true;
                }
            }
            if touched {
                changed.push(json!(page));
            }
        }
        // Pages go last: while one names a document, that can be found. Nobody is shown what is forgotten.
        for some in gone.chunks(PURGED) {
            if self.is_stopped() {
                return Ok(false);
            }
            databases.purge(&databases.documents(some)?)?;
        }
        databases.change_pages(&changed)?;
        Ok(self.shared.index_mut().scrub(resource, &firsts))
    }

    /// Takes note in the snapshot that nothing is left of a resource but that it was forgotten.
    fn note_scrubbed(&self, resource: &ResourceId, forgotten: Seq) {
        if let Keeping::Open(keeper) = &mut *lock(&self.keeping) {
            let over = lock(&self.over);
            // Without the note, the next start looks at the pages once more.
            if !*over && let Err(failure) = keeper.scrubbed(resource, forgotten) {
                tracing::debug!(
                    "failed to note in the snapshot that {resource} is gone: {failure}"
                );
            }
        }
    }

    /// Writes the snapshot without what was forgotten.
    fn rewrite(&self) -> Result<(), Unkept> {
        if let Keeping::Open(keeper) = &mut *lock(&self.keeping) {
            let over = lock(&self.over);
            if !*over {
                keeper.rewrite()?;
            }
        }
        Ok(())
    }

    /// Brings the snapshot up to date. Says up to where it goes.
    pub(super) fn copy_on(&self) -> Result<Seq, Unkept> {
        let mut keeping = lock(&self.keeping);
        let kept = self.try_copy_on(&mut keeping);
        if let Err(Unkept::Doubtful(_)) = kept
            && let Keeping::Open(keeper) = std::mem::replace(&mut *keeping, Keeping::Off)
        {
            keeper.discard();
        }
        kept
    }

    fn try_copy_on(&self, keeping: &mut Keeping) -> Result<Seq, Unkept> {
        let mut keeper = match std::mem::replace(keeping, Keeping::None) {
            Keeping::Off => {
                *keeping = Keeping::Off;
                self.covered.store(Seq::MAX, Ordering::Release);
                return Ok(0);
            }
            Keeping::Open(keeper) => keeper,
            Keeping::None => Box::new(Keeper::begin(&self.shared, &self.name, chance())?),
            Keeping::Found(loaded) => match Keeper::go_on(&loaded, &self.name) {
                Ok(keeper) => Box::new(keeper),
                Err(failure) => {
                    *keeping = Keeping::Found(loaded);
                    return Err(failure);
                }
            },
        };
        let extended = self.extend(&mut keeper);
        let covered = keeper.covered();
        *keeping = Keeping::Open(keeper);
        self.covered.store(covered, Ordering::Release);
        extended.map(|()| covered)
    }

    /// Copies what the snapshot lacks, some pages at a time.
    fn extend(&self, keeper: &mut Keeper) -> Result<(), Unkept> {
        let (last, mut names) = (self.shared.last_number(), Names::default());
        while keeper.covered() < last && !self.is_stopped() {
            let from = keeper.covered() + 1;
            let mut pages = self.shared.databases.pages(from..=last, PAGES)?;
            // What is missing is replaced by a page that says so, with the next batch.
            let mut expected = from;
            let sound = pages.iter().take_while(|page| {
                let follows = page.first == expected && page.last() <= last;
                expected = page.last() + 1;
                follows
            });
            let sound = sound.count();
            pages.truncate(sound);
            if pages.is_empty() {
                return Ok(());
            }
            let opened = self.shared.open_pages(pages, &mut names)?;
            keeper.extend(&self.shared, &opened, &self.over)?;
        }
        Ok(())
    }
}
