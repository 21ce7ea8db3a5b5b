//! The audit: an append-only record of who asked for what at this site, from where, with which result.
//!
//! Each line has the hash of the line before ([`chain`]), and the site signs where the record ends; so
//! that whoever changes it without the key of the site is found ([`verify`]). One task writes
//! (`write`), from a queue; [`entry`] is what a line says, `read` reads.
//!
//! What must stay true:
//! - a request that changes something is not answered before its line is with the system: a killed
//!   agent loses no line of what it has answered, and a power cut no more than the last moments;
//! - nobody can fill the record with refusals, or with what whoever looks may do: those over a rate are
//!   counted, and a line has the number;
//! - a disk that takes nothing stops no request: lines wait, within a limit, and it is a problem that is
//!   shown.

pub mod chain;
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
    sync::{Mutex as Turn, mpsc, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, MissedTickBehavior, interval},
};

use self::write::Writer;
pub use self::{
    entry::{Entry, Event, What},
    read::{Place, Verdict, Wanted, directory, entries, verify},
};
use crate::{
    config,
    limits::{Bucket, Buckets},
    trust::Own,
};

/// How many events may be on their way to the one who writes. More wait.
const QUEUE: usize = 1_024;
/// How many are written at a time.
const BATCH: usize = 256;
/// How often what was written is made to survive a power cut, and what could not be is tried again.
const SETTLE: Duration = Duration::from_millis(250);
/// How many refusals have a line of their own: so many a second in the long run, so many at once.
const REFUSALS: (u32, u32) = (10, 1_000);
/// The same for each author, of what whoever looks may do.
const LOOKS: (u32, u32) = (1, 1_000);

/// The audit of this site. A handle; clones share it.
#[derive(Clone)]
pub struct Audit(Arc<Shared>);

struct Shared {
    directory: PathBuf,
    own: Own,
    reads: bool,
    queue: mpsc::Sender<Job>,
    /// Events that found the queue full, and could not wait.
    missed: AtomicU64,
    refusals: Mutex<Refusals>,
    looks: Mutex<Buckets>,
    state: Mutex<State>,
    /// Whose turn it is to read: one at a time, so that the disk has time for others.
    turn: Turn<()>,
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
    /// What was wrong when the agent started.
    pub cut: Option<(u64, u64)>,
}

/// How many refusals may still have a line of their own.
struct Refusals {
    bucket: Bucket,
    began: Instant,
    /// Those that had none since the last that had, and those of what only looks.
    unwritten: u64,
}

enum Job {
    Write(Timestamp, Box<Event>, Option<oneshot::Sender<()>>),
    Stop(oneshot::Sender<()>),
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("directory", &self.0.directory).finish_non_exhaustive()
    }
}

impl Audit {
    /// Opens the record in a data directory, and begins to write. It has to be called on a runtime.
    pub fn open(data: &Path, settings: config::Audit, own: Own, site: &SiteId) -> io::Result<Self> {
        let (directory, reads) = (directory(data), settings.reads);
        let now = Timestamp::now();
        let (writer, found) = Writer::open(directory.clone(), settings, own.clone(), site, now)?;
        if let Some((from, to)) = found.cut {
            tracing::error!("lines {from} to {to} of the audit are gone: somebody cut them off");
        }
        let (queue, jobs) = mpsc::channel(QUEUE);
        let audit = Self(Arc::new(Shared {
            directory,
            own,
            reads,
            queue,
            missed: AtomicU64::new(0),
            refusals: Mutex::new(Refusals {
                bucket: Bucket::default(),
                began: Instant::now(),
                unwritten: 0,
            }),
            looks: Mutex::new(Buckets::new(LOOKS.0, LOOKS.1)),
            state: Mutex::new(State { cut: found.cut, ..State::default() }),
            turn: Turn::new(()),
        }));
        tokio::spawn(
            Task { audit: audit.clone(), writer: Some(writer), settling: None }.work(jobs),
        );
        Ok(audit)
    }

    /// Whether requests that only look are written down.
    pub fn reads(&self) -> bool {
        self.0.reads
    }

    /// Writes down what happened. When this returns, the system has it, or it waits for a disk that
    /// takes nothing.
    pub async fn record(&self, event: Event) {
        let Some(event) = self.admitted(event) else { return };
        let (written, done) = oneshot::channel();
        let job = Job::Write(Timestamp::now(), Box::new(event), Some(written));
        if self.0.queue.send(job).await.is_ok() {
            let _ = done.await;
        }
    }

    /// Writes down what happened, and does not wait: for those who must not.
    pub fn note(&self, event: Event) {
        let Some(event) = self.admitted(event) else { return };
        if self.0.queue.try_send(Job::Write(Timestamp::now(), Box::new(event), None)).is_err() {
            self.0.missed.fetch_add(1, Relaxed);
        }
    }

    /// An event that is to have a line: of very many refusals, and of what only looks, not each.
    fn admitted(&self, mut event: Event) -> Option<Event> {
        if !event.is_refusal() && !event.looks {
            return Some(event);
        }
        let mut refusals = self.0.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let now = refusals.began.elapsed();
        let taken = if event.is_refusal() {
            let (rate, burst) = REFUSALS;
            refusals.bucket.take(rate, burst, now)
        } else {
            let mut looks = self.0.looks.lock().unwrap_or_else(PoisonError::into_inner);
            looks.take(event.author.as_deref().unwrap_or_default(), now)
        };
        if taken.is_err() {
            refusals.unwritten += 1;
            self.state(|state| state.unwritten += 1);
            return None;
        }
        event.more = Some(std::mem::take(&mut refusals.unwritten)).filter(|more| *more > 0);
        Some(event)
    }

    /// How it is doing.
    pub fn how(&self) -> State {
        self.state(|state| state.clone())
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
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
        let (stopped, done) = oneshot::channel();
        if self.0.queue.send(Job::Stop(stopped)).await.is_ok() {
            let _ = done.await;
        }
    }
}

/// The one who writes.
struct Task {
    audit: Audit,
    /// Away while a thread that may wait for the disk has it.
    writer: Option<Writer>,
    /// Lines are on their way to the disk.
    settling: Option<JoinHandle<io::Result<()>>>,
}

impl Task {
    async fn work(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut ticks = interval(SETTLE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut batch, mut settled) = (Vec::new(), 0);
        loop {
            let stop = tokio::select! {
                count = jobs.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    self.take(&mut batch).await
                }
                _ = ticks.tick() => {
                    self.take(&mut Vec::new()).await;
                    self.settle(&mut settled).await;
                    None
                }
            };
            if let Some(stop) = stop {
                // What is under way may know less than the last line.
                for _ in 0..2 {
                    if let Some(settling) = self.settling.take() {
                        let _ = settling.await;
                    }
                    self.settle(&mut settled).await;
                }
                let _ = stop.send(());
                return;
            }
        }
    }

    /// Writes jobs, and what waited before. Whoever waits for a line goes on, written or not.
    async fn take(&mut self, batch: &mut Vec<Job>) -> Option<oneshot::Sender<()>> {
        let mut writer = self.writer.take()?;
        let (mut waiting, mut stop) = (Vec::new(), None);
        writer.lose(self.audit.0.missed.swap(0, Relaxed));
        let before = writer.lost();
        for job in batch.drain(..) {
            match job {
                Job::Write(at, event, written) => {
                    writer.keep(at, *event);
                    waiting.extend(written);
                }
                Job::Stop(stopped) => stop = Some(stopped),
            }
        }
        let newly_lost = writer.lost() - before;
        if writer.waits() {
            let (writer, written) = spawn_blocking(move || {
                let written = writer.write();
                (writer, written)
            })
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            self.told(&written, newly_lost);
            self.writer = Some(writer);
        } else {
            self.writer = Some(writer);
        }
        for written in waiting {
            let _ = written.send(());
        }
        stop
    }

    /// Notes how writing went, and says so once.
    fn told(&self, written: &io::Result<u64>, lost: u64) {
        let failed = written.as_ref().err().map(ToString::to_string);
        let newly = self.audit.state(|state| {
            state.written += written.as_ref().copied().unwrap_or(0);
            state.lost += lost;
            let newly = failed.is_some() && state.failing.is_none();
            state.failing.clone_from(&failed);
            newly
        });
        if let Some(error) = failed.filter(|_| newly) {
            let place = self.audit.0.directory.display();
            tracing::error!("the audit in {place} can't be written: {error}; lines wait");
        }
    }

    /// Has what was written made durable, unless that is under way.
    async fn settle(&mut self, settled: &mut u64) {
        if let Some(settling) = self.settling.take_if(|settling| settling.is_finished())
            && let Ok(Err(error)) = settling.await
        {
            tracing::warn!("the head of the audit can't be written: {error}");
            *settled = 0;
        }
        let last = self.writer.as_ref().map_or(0, |writer| writer.last().n);
        if last == *settled || self.settling.is_some() {
            return;
        }
        if let Some(settle) = self.writer.as_ref().map(Writer::settle) {
            *settled = last;
            self.settling = Some(spawn_blocking(move || settle.run()));
        }
    }
}
