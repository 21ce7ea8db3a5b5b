//! Reads all that a site has written, from the snapshot and then from the databases, side by side and in its order.
//!
//! One thread reads parts of the snapshot and pages of the journal. Several decode them, and fetch the documents that
//! pages name, each for itself. What must stay true: results come in the order of the journal, and no more of them than
//! [`AHEAD`] wait in memory.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use super::{
    Shared,
    journal::Page,
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
/// How many results wait until they are used.
const AHEAD: usize = 16;

/// What one job found.
type Done = Result<Vec<Copied>, Trouble>;

enum Work {
    /// A part of the snapshot.
    Part(Vec<u8>),
    /// Pages of the journal.
    Pages(Vec<Page>),
}

struct Job {
    work: Work,
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
            let forgotten = index.forgotten().map(|(id, known)| (id.to_string(), known.forgotten));
            Arc::new(forgotten.collect())
        };
        for _ in 0..WORKERS {
            let (shared, taken, forgotten) = (shared.clone(), taken.clone(), forgotten.clone());
            let work = move || work(&shared, &taken, &forgotten);
            thread::Builder::new().name("couchdb-read".to_owned()).spawn(work)?;
        }
        let (shared, hand) = (shared.clone(), Hand { jobs, order });
        let read = move || {
            if let Err(trouble) = read(&shared, snapshot, last, &hand) {
                let (done, result) = sync_channel(1);
                let _ = done.send(Err(trouble));
                let _ = hand.order.send(result);
            }
        };
        thread::Builder::new().name("couchdb-pages".to_owned()).spawn(read)?;
        Ok(Self(results))
    }

    /// What comes next; nothing at the end.
    pub(super) fn next(&self) -> Option<Done> {
        let result = self.0.recv().ok()?;
        let stopped = || Err(Trouble::Odd("a part of the journal was not read".to_owned()));
        Some(result.recv().unwrap_or_else(|_| stopped()))
    }
}

/// Gives out jobs, in the order in which their results are wanted.
struct Hand {
    jobs: SyncSender<Job>,
    order: SyncSender<Receiver<Done>>,
}

impl Hand {
    /// Whether somebody still wants results.
    fn give(&self, work: Work) -> bool {
        let (done, result) = sync_channel(1);
        self.order.send(result).is_ok() && self.jobs.send(Job { work, done }).is_ok()
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
        let (mut some, mut entries) = (Vec::new(), 0);
        for page in pages {
            if page.first >= expected {
                expected = page.last() + 1;
            }
            entries += page.entries.len();
            some.push(page);
            if entries >= ENTRIES {
                entries = 0;
                if !hand.give(Work::Pages(std::mem::take(&mut some))) {
                    return Ok(());
                }
            }
        }
        if !some.is_empty() && !hand.give(Work::Pages(some)) {
            return Ok(());
        }
    }
    Ok(())
}

/// Does jobs until there are no more.
fn work(shared: &Shared, jobs: &Mutex<Receiver<Job>>, forgotten: &BTreeMap<String, Seq>) {
    let mut names = Names::default();
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(Job { work, done }) = next() {
        let result = match work {
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
        let _ = done.send(result);
    }
}
