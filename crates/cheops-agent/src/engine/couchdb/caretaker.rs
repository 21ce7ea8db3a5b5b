//! The maintenance thread: keeps the snapshot up to date, and purges resources that are forgotten.
//!
//! The two jobs take turns in one thread. What must stay true:
//! - writes never wait for this thread;
//! - a purge is done in parts of bounded size (`purge`). A purge that an agent did not finish is resumed at the next
//!   start, by what the journal still names;
//! - after [`Caretaker::stop`] has returned, the snapshot is not written any more.

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

use super::{
    Shared, chance, journal,
    purge::{Progress, Purge},
    server::Trouble,
    snapshot::{Keeper, Loaded, Unkept},
};
use crate::{engine::Seq, wire::Names};

/// How often the thread checks whether there is work.
const LOOK: Duration = Duration::from_secs(1);
/// The snapshot is extended when it lacks this many values, or after this time if it lacks any.
const LAG: Seq = 2_000;
const IDLE: Duration = Duration::from_secs(10);
/// How long the thread waits after a failure.
const PAUSE: Duration = Duration::from_secs(10);
/// How many pages are read at once to extend the snapshot, and how many of their entries are copied at once.
const PAGES: usize = 50;
const PART: usize = 10_000;
/// How long the values of a purged resource stay in the snapshot file, at most.
const REWRITE: Duration = Duration::from_hours(1);

/// The maintenance thread's state, which it shares with the engine.
pub(super) struct Caretaker {
    shared: Arc<Shared>,
    /// The name of the databases.
    name: String,
    /// Purges that are not finished, one at a time. There is one for each resource that was forgotten.
    purges: Mutex<VecDeque<Purge>>,
    keeping: Mutex<Keeping>,
    /// The last number in the snapshot.
    covered: AtomicU64,
    stopped: AtomicBool,
    /// Locked during each write to the snapshot. True after the last write.
    over: Mutex<bool>,
    thread: Mutex<Option<thread::Thread>>,
}

/// The state of the snapshot.
enum Keeping {
    /// The start has read it. It is not open for writing yet.
    Found(Box<Loaded>),
    /// There is none: the next extension begins one.
    None,
    Open(Box<Keeper>),
    /// There is none until the next start: a document that it held was removed from the databases.
    Off,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Caretaker {
    /// Starts the thread. It resumes unfinished purges first.
    pub(super) fn start(
        shared: Arc<Shared>,
        name: String,
        snapshot: Option<Loaded>,
    ) -> std::io::Result<Arc<Self>> {
        let purges = {
            let index = shared.index();
            let may_purge = shared.databases.may_purge();
            let left = index.forgotten().filter(|(_, known)| may_purge && known.is_unscrubbed());
            left.filter_map(|(id, _)| id.parse().ok()).map(Purge::of).collect()
        };
        let covered = AtomicU64::new(snapshot.as_ref().map_or(0, Loaded::covered));
        let keeping = snapshot.map_or(Keeping::None, |found| Keeping::Found(Box::new(found)));
        let this = Arc::new(Self {
            shared,
            name,
            purges: Mutex::new(purges),
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

    /// Stops the thread. When this returns, the snapshot is not written any more.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        *lock(&self.over) = true;
        // Closes the file, so that another engine in this process can open it. If the thread uses it right now, the
        // thread closes it a moment later.
        if let Ok(mut keeping) = self.keeping.try_lock() {
            *keeping = Keeping::Off;
        }
        self.wake();
    }

    /// Schedules the purge of a resource that was forgotten.
    pub(super) fn scrub(&self, resource: &ResourceId) {
        // Without the right to purge, pages keep naming the documents: an agent with the right finds them there.
        if !self.shared.databases.may_purge() {
            return;
        }
        lock(&self.purges).push_back(Purge::of(resource.clone()));
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
            let purged = self.purge_next();
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
                purged.as_ref().err().map(ToString::to_string),
                kept.as_ref().err().map(ToString::to_string),
            ];
            let failed = problems.iter().any(Option::is_some);
            for problem in problems.into_iter().flatten() {
                // One line for each problem: the thread retries every few seconds.
                if said.len() < 100 && said.insert(problem.clone()) {
                    let place = &self.shared.databases.place;
                    tracing::warn!(%place, "failed to purge or to write the snapshot, retrying: {problem}");
                }
            }
            if self.is_stopped() {
                return;
            }
            match (failed, purged) {
                (true, _) => thread::park_timeout(PAUSE),
                // More of it is left.
                (false, Ok(true)) => {}
                (false, _) => thread::park_timeout(LOOK),
            }
        }
    }

    /// Does one part of the oldest purge. Returns whether there was one.
    fn purge_next(&self) -> Result<bool, Trouble> {
        let Some(mut purge) = lock(&self.purges).pop_front() else { return Ok(false) };
        match purge.step(&self.shared) {
            Ok(Progress::Done(forgotten)) => self.note_purged(&purge.resource, forgotten),
            unfinished => {
                lock(&self.purges).push_front(purge);
                unfinished?;
            }
        }
        Ok(true)
    }

    /// Writes to the snapshot that a resource is purged.
    fn note_purged(&self, resource: &ResourceId, forgotten: Seq) {
        if let Keeping::Open(keeper) = &mut *lock(&self.keeping) {
            let over = lock(&self.over);
            // Without this note, the next start purges the resource once more and finds nothing.
            if !*over && let Err(failure) = keeper.scrubbed(resource, forgotten) {
                tracing::debug!(%resource, "failed to note a purge in the snapshot: {failure}");
            }
        }
    }

    /// Rewrites the snapshot without the values of purged resources.
    fn rewrite(&self) -> Result<(), Unkept> {
        if let Keeping::Open(keeper) = &mut *lock(&self.keeping) {
            let over = lock(&self.over);
            if !*over {
                keeper.rewrite()?;
            }
        }
        Ok(())
    }

    /// Extends the snapshot to the last number, and returns its last number.
    pub(super) fn copy_on(&self) -> Result<Seq, Unkept> {
        let mut keeping = lock(&self.keeping);
        let kept = self.try_copy_on(&mut keeping);
        let next = match &kept {
            Err(Unkept::Doubtful(_)) => Keeping::Off,
            Err(Unkept::Outdated(_)) => Keeping::None,
            _ => return kept,
        };
        if let Keeping::Open(keeper) = std::mem::replace(&mut *keeping, next) {
            keeper.discard();
        }
        self.covered.store(0, Ordering::Release);
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

    /// Copies the values that the snapshot lacks, some pages at a time.
    fn extend(&self, keeper: &mut Keeper) -> Result<(), Unkept> {
        let (last, mut names) = (self.shared.last_number(), Names::default());
        while keeper.covered() < last && !self.is_stopped() {
            let from = keeper.covered() + 1;
            let mut pages = self.shared.databases.pages(from..=last, PAGES)?;
            // A gap ends the copy: the next batch puts a page there that says what is lost.
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
            for part in journal::parts(pages, PART) {
                let opened = self.shared.open_pages(part, &mut names)?;
                keeper.extend(&self.shared, &opened, &self.over)?;
            }
        }
        Ok(())
    }
}
