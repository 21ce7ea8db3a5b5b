//! The audit: an append-only record of who asked for what at this site, from where, with which result.
//!
//! Each line has the hash of the line before ([`chain`]), and the site signs where the record ends; so
//! that whoever changes it without the key of the site is found ([`verify`]). One thread writes (`clerk`,
//! `write`), from a queue; [`entry`] is what a line says, `admission` which events have one, `read` reads.
//!
//! What must stay true:
//! - a request that changes something is not answered before its line is with the system: a killed
//!   agent loses no line of what it has answered, and a power cut no more than the last moments;
//! - each event has a line, or is counted as one that has none, whether or not whoever asked waits;
//! - nobody can fill the record with refusals, or with what whoever looks may do: those over a rate are
//!   counted, and a line has the number;
//! - a disk that takes nothing stops no request: lines wait, within a limit, and it is a problem that is
//!   shown; so is a record that nobody writes any more, and one that was not as it had been left.

mod admission;
pub mod chain;
mod clerk;
pub mod entry;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use cheops_core::{id::SiteId, trust::PublicKey};
use jiff::Timestamp;
use tokio::{
    sync::{Mutex as Turn, Notify, mpsc, oneshot},
    task::spawn_blocking,
    time::{Instant, sleep},
};

use self::{
    admission::Admission,
    clerk::{Clerk, Job, Note, Question},
    write::Writer,
};
pub use self::{
    entry::{Entry, Event, What},
    read::{Place, Verdict, Wanted, directory, entries, verify},
    write::Damage,
};
use crate::{config, engine::couchdb::Fence, limits::Seldom, trust::Own};

/// How many events may be on their way to the one who writes, whether or not whoever asked still waits. More
/// wait for a place, and are counted as lost if they can't.
const QUEUE: usize = 8_192;
/// How often what was written is made to survive a power cut, and what could not be is tried again.
const SETTLE: Duration = Duration::from_millis(250);
/// How often a minute it is said that something has no line because the agent stops.
const SAID: u32 = 10;

/// The audit of this site. A handle; clones share it.
#[derive(Clone)]
pub struct Audit(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    own: Own,
    reads: bool,
    queue: mpsc::Sender<Job>,
    desk: Arc<Desk>,
    admission: Mutex<Admission>,
    began: Instant,
    /// Whose turn it is to read: one at a time, so that the disk has time for others.
    turn: Turn<()>,
    /// The number of the last line that a power cut can't take. Whoever has it makes more of them so.
    settled: Turn<u64>,
}

/// What those who ask and the one who writes share.
struct Desk {
    /// Events that never came to the one who writes, and that no line tells of yet.
    missed: AtomicU64,
    state: Mutex<State>,
    /// Rung when there is something to be made durable, or to be tried once more.
    bell: Notify,
    late: Seldom,
}

impl Desk {
    fn new(found: Option<Damage>) -> Self {
        let state = Mutex::new(State { found, ..State::default() });
        let (missed, bell, late) = (AtomicU64::new(0), Notify::new(), Seldom::new(SAID));
        Self { missed, state, bell, late }
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes how it went to sign where the record ends, says once that it can't be done, and whether it was.
    fn signed(&self, signed: io::Result<()>) -> bool {
        let failed = signed.err().map(|error| error.to_string());
        let newly = self.state(|state| {
            let newly = failed.is_some() && state.unsigned.is_none();
            state.unsigned.clone_from(&failed);
            newly
        });
        let Some(error) = failed else { return true };
        if newly {
            tracing::error!("the head of the audit can't be written: {error}; it is tried again");
        }
        self.bell.notify_one();
        false
    }

    /// Counts an event that does not come to the one who writes.
    fn miss(&self, event: &Event) {
        self.missed.fetch_add(1, Relaxed);
        let ended = self.state(|state| {
            state.lost += 1;
            state.ended
        });
        // A line is to tell of it soon, also if nothing else happens.
        self.bell.notify_one();
        if ended && let Some(unsaid) = self.late.again(std::time::Instant::now()) {
            let (operation, what) = (event.operation.as_deref().unwrap_or("none"), event.what);
            tracing::warn!(operation, ?what, unsaid, "nobody writes the audit: this has no line");
        }
    }
}

/// How it is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Lines that were written since the agent started.
    pub written: u64,
    /// Events since the agent started that no line tells of.
    pub lost: u64,
    /// Refusals, and what only looks, since the agent started that have no line of their own.
    pub unwritten: u64,
    /// Why nothing can be written now.
    pub failing: Option<String>,
    /// Why it can't be signed now where the record ends.
    pub unsigned: Option<String>,
    /// Nobody writes any more.
    pub ended: bool,
    /// What was wrong when the agent started.
    pub found: Option<Damage>,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("directory", &self.0.directory).finish_non_exhaustive()
    }
}

impl Audit {
    /// Opens the record in a data directory, and begins to write, for as long as the fence holds. It has to be called
    /// on a runtime.
    pub fn open(
        data: &Path,
        settings: config::Audit,
        own: Own,
        site: &SiteId,
        fence: Fence,
    ) -> io::Result<Self> {
        let (directory, reads) = (directory(data), settings.reads);
        let now = Timestamp::now();
        let (writer, found) = Writer::open(directory.clone(), settings, own.clone(), site, now)?;
        if let Some(found) = found {
            tracing::error!("the audit is not as it was left: {found}");
        }
        let (queue, jobs) = mpsc::channel(QUEUE);
        let desk = Arc::new(Desk::new(found));
        // From the first request on, there is a head; if not, it is tried again like lines that wait.
        let begun = writer.settle();
        let last = begun.last();
        let settled = if last > 0 && desk.signed(begun.run()) { last } else { 0 };
        desk.bell.notify_one();
        let clerk = Clerk::new(writer, directory.clone(), desk.clone(), fence);
        std::thread::Builder::new().name("audit".into()).spawn(move || clerk.work(jobs))?;
        let audit = Self(Arc::new(Shared {
            directory,
            own,
            reads,
            queue,
            desk,
            admission: Mutex::new(Admission::new()),
            began: Instant::now(),
            turn: Turn::new(()),
            settled: Turn::new(settled),
        }));
        tokio::spawn(audit.clone().keep_settling());
        Ok(audit)
    }

    /// Whether requests that only look are written down.
    pub fn reads(&self) -> bool {
        self.0.reads
    }

    /// Writes down what happened. When this returns, the system has it, or it waits for a disk that
    /// takes nothing. Whoever does not wait for that changes nothing of it, as long as there is a place.
    pub async fn record(&self, event: Event) {
        let Some(event) = self.admitted(event) else { return };
        let (written, done) = oneshot::channel();
        let job = Job::Write(Note::of(event, Some(written), &self.0.desk));
        if self.0.queue.send(job).await.is_ok() {
            let _ = done.await;
        }
    }

    /// Writes down what happened, and does not wait: for those who must not.
    pub fn note(&self, event: Event) {
        let Some(event) = self.admitted(event) else { return };
        // Without a place it is dropped, which counts it.
        let _ = self.0.queue.try_send(Job::Write(Note::of(event, None, &self.0.desk)));
    }

    /// An event that is to have a line: of very many refusals, and of what only looks, not each.
    fn admitted(&self, event: Event) -> Option<Event> {
        if Admission::is_free(&event) {
            return Some(event);
        }
        let admitted = {
            let mut admission = self.0.admission.lock().unwrap_or_else(PoisonError::into_inner);
            admission.admit(event, self.0.began.elapsed())
        };
        if admitted.is_none() {
            self.0.desk.state(|state| state.unwritten += 1);
        }
        admitted
    }

    /// How it is doing.
    pub fn how(&self) -> State {
        self.0.desk.state(|state| state.clone())
    }

    /// The lines that are wanted.
    pub async fn entries(&self, wanted: Wanted) -> io::Result<Vec<Entry>> {
        self.aside(move |directory, _| entries(directory, &wanted)).await
    }

    /// Checks the whole record.
    pub async fn verify(&self) -> io::Result<Verdict> {
        self.aside(|directory, key| verify(directory, Some(key))).await
    }

    async fn aside<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Path, &PublicKey) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let _turn = self.0.turn.lock().await;
        let shared = self.0.clone();
        spawn_blocking(move || read(&shared.directory, &(shared.own)().public()))
            .await
            .map_err(io::Error::other)?
    }

    /// Writes all that waits, signs where it ends, and writes no more.
    pub async fn stop(&self) {
        self.settle(Job::Stop).await;
    }

    /// Has lines made durable soon after they are written, not too often, until there can be no more.
    async fn keep_settling(self) {
        loop {
            self.0.desk.bell.notified().await;
            if !self.settle(Job::Settle).await {
                return;
            }
            sleep(SETTLE).await;
        }
    }

    /// Makes durable what a job finds written, and says whether more can be.
    async fn settle(&self, job: impl FnOnce(Question) -> Job) -> bool {
        let mut settled = self.0.settled.lock().await;
        let (to_ready, ready) = oneshot::channel();
        let question = Question { after: *settled, ready: to_ready };
        if self.0.queue.send(job(question)).await.is_err() {
            return false;
        }
        let Ok(Some(settle)) = ready.await else { return true };
        let last = settle.last();
        let run = spawn_blocking(move || settle.run()).await;
        if self.0.desk.signed(run.unwrap_or_else(|error| Err(io::Error::other(error)))) {
            *settled = last;
        }
        true
    }
}
