//! Reads all that a site has written, from the snapshot and then from the databases, side by side and in its order.
//!
//! One thread reads parts of the snapshot and pages of the journal. Several decode them, and fetch the documents that
//! pages name, each for itself. What must stay true: results come in the order of the journal, and what is under way or
//! waits to be used has about [`MOST_BYTES`] in memory, or is one part.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use super::{
    Shared,
    journal::{self, Page},
    server::Trouble,
    snapshot::{self, Copied, Stretch},
};
use crate::{engine::Seq, wire::Names};

/// How many pages are asked for at once.
const PAGES: usize = 1_000;
/// How many entries are decoded, and documents fetched, at once.
const ENTRIES: usize = 500;
/// How many such requests are under way at the same time.
const WORKERS: usize = 4;
/// How many results wait until they are used, and about how many bytes they and the jobs under way have.
const AHEAD: usize = 16;
const MOST_BYTES: usize = 64 << 20;

/// What one job found.
pub(super) type Found = Result<Vec<Copied>, Trouble>;

/// The same, with the room that it takes until it is used.
struct Done {
    found: Found,
    _room: Option<Room>,
}

/// How many bytes are in use by all jobs.
#[derive(Default)]
struct Budget {
    used: Mutex<usize>,
    freed: Condvar,
}

/// A part of the budget, for as long as it is held.
struct Room {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// Waits until there is room for so many bytes. What is longer than the budget gets it alone.
    fn take(self: &Arc<Self>, bytes: usize) -> Room {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |used: &mut usize| *used > 0 && used.saturating_add(bytes) > MOST_BYTES;
        let waited = self.freed.wait_while(used, full);
        let mut used = waited.unwrap_or_else(PoisonError::into_inner);
        // What a page says of itself may be any number.
        let bytes = bytes.min(2 * MOST_BYTES);
        *used += bytes;
        Room { budget: self.clone(), bytes }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        *self.budget.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.budget.freed.notify_one();
    }
}

enum Work {
    /// A part of the snapshot.
    Part(Vec<u8>),
    /// Pages of the journal.
    Pages(Vec<Page>),
}

impl Work {
    /// About how many bytes it takes.
    fn weight(&self) -> usize {
        match self {
            Self::Part(bytes) => bytes.len(),
            Self::Pages(pages) => {
                let weight = |page: &Page| page.bytes.saturating_add(page.weight());
                let bytes = pages.iter().map(weight).fold(0, u64::saturating_add);
                usize::try_from(bytes).unwrap_or(usize::MAX)
            }
        }
    }
}

struct Job {
    work: Work,
    room: Room,
    done: SyncSender<Done>,
}

/// All that was written up to a number, as it is found. It ends with the first failure.
pub(super) struct Pipeline(Receiver<Receiver<Done>>);

impl Pipeline {
    pub(super) fn start(
        shared: &Arc<Shared>,
        snapshot: Option<Stretch>,
        last: Seq,
    ) -> io::Result<Self> {
        let (order, results) = sync_channel(AHEAD);
        let (jobs, taken) = sync_channel(WORKERS);
        let taken = Arc::new(Mutex::new(taken));
        let forgotten: Arc<BTreeMap<String, Seq>> = {
            let index = shared.index();
            let forgotten = index.forgotten().map(|(id, known)| (id.to_owned(), known.forgotten));
            Arc::new(forgotten.collect())
        };
        for _ in 0..WORKERS {
            let (shared, taken, forgotten) = (shared.clone(), taken.clone(), forgotten.clone());
            let work = move || work(&shared, &taken, &forgotten);
            thread::Builder::new().name("couchdb-read".to_owned()).spawn(work)?;
        }
        let (shared, hand) = (shared.clone(), Hand { jobs, order, budget: Arc::default() });
        let read = move || {
            if let Err(trouble) = read(&shared, snapshot, last, &hand) {
                let (done, result) = sync_channel(1);
                let _ = done.send(Done { found: Err(trouble), _room: None });
                let _ = hand.order.send(result);
            }
        };
        thread::Builder::new().name("couchdb-pages".to_owned()).spawn(read)?;
        Ok(Self(results))
    }

    /// What comes next; nothing at the end.
    pub(super) fn next(&self) -> Option<Found> {
        let result = self.0.recv().ok()?;
        let stopped = || Err(Trouble::Odd("a part of the journal was not read".to_owned()));
        Some(result.recv().map_or_else(|_| stopped(), |done| done.found))
    }
}

/// Gives out jobs, in the order in which their results are wanted.
struct Hand {
    jobs: SyncSender<Job>,
    order: SyncSender<Receiver<Done>>,
    budget: Arc<Budget>,
}

impl Hand {
    /// Whether somebody still wants results.
    fn give(&self, work: Work) -> bool {
        let (done, result) = sync_channel(1);
        let room = self.budget.take(work.weight());
        self.order.send(result).is_ok() && self.jobs.send(Job { work, room, done }).is_ok()
    }
}

/// Reads the snapshot, and the pages after it.
fn read(shared: &Shared, snapshot: Option<Stretch>, last: Seq, hand: &Hand) -> Result<(), Trouble> {
    let mut expected = 1;
    if let Some(stretch) = snapshot {
        let failed = |failure: io::Error| {
            let path = stretch.path.display();
            Trouble::Odd(format!(
                "the snapshot in {path} can't be read: {failure}; remove it, and start the agent again"
            ))
        };
        let mut frames = snapshot::frames(&stretch.path, stretch.upto).map_err(failed)?;
        while let Some(part) = frames.next().map_err(failed)? {
            if !hand.give(Work::Part(part)) {
                return Ok(());
            }
        }
        if !frames.is_at_end() {
            return Err(failed(io::Error::other("it has changed since it was opened")));
        }
        expected = stretch.covered + 1;
    }
    while expected <= last {
        let pages = shared.databases.pages(expected..=last, PAGES)?;
        if pages.is_empty() {
            break;
        }
        for page in &pages {
            if page.first >= expected {
                expected = page.last() + 1;
            }
        }
        for part in journal::parts(pages, ENTRIES) {
            if !hand.give(Work::Pages(part)) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Does jobs until there are no more.
fn work(shared: &Shared, jobs: &Mutex<Receiver<Job>>, forgotten: &BTreeMap<String, Seq>) {
    let mut names = Names::default();
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(Job { work, room, done }) = next() {
        let found = match work {
            Work::Part(bytes) => {
                let is_forgotten =
                    |resource: &str, seq| forgotten.get(resource).is_some_and(|at| seq < *at);
                let odd = |why| Trouble::Odd(format!("the snapshot makes no sense: {why}"));
                snapshot::open_part(&bytes, is_forgotten, &mut names).map_err(odd)
            }
            Work::Pages(pages) => shared.open_pages(pages, &mut names).map(|opened| {
                let copied = |opened: super::read::OpenPage| Copied {
                    numbers: opened.page.first..=opened.page.last(),
                    lost: opened.page.lost,
                    found: opened.found,
                };
                opened.into_iter().map(copied).collect()
            }),
        };
        // Whoever has wanted it may be gone.
        let _ = done.send(Done { found, _room: Some(room) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_until_there_is_room_for_its_bytes() {
        let budget = Arc::new(Budget::default());
        let some = budget.take(MOST_BYTES / 2);
        let (tell, told) = sync_channel(1);
        let (taken, waiting) = (budget.clone(), tell.clone());
        let waits = thread::spawn(move || {
            let room = taken.take(MOST_BYTES);
            waiting.send("taken").unwrap();
            drop(room);
        });
        let others = budget.take(MOST_BYTES / 2);
        tell.send("given back").unwrap();
        drop((some, others));
        assert_eq!([told.recv(), told.recv()], [Ok("given back"), Ok("taken")]);
        waits.join().unwrap();
        // One that is longer than all gets it alone.
        drop(budget.take(usize::MAX));
        assert_eq!(*budget.used.lock().unwrap(), 0);
    }
}
