//! The clerk: the thread that writes the record, since writing may wait for the disk.
//!
//! What must stay true: whoever waits for a line goes on when it is with the system, or can't be for now;
//! all that has come meanwhile is written at once.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::{
    Desk,
    entry::Event,
    write::{Settle, Writer},
};

/// How many jobs are taken at a time.
const BATCH: usize = 256;

/// What the clerk is asked to do.
pub(super) enum Job {
    /// To write down what happened, and when.
    Write { at: Timestamp, event: Box<Event>, written: Option<oneshot::Sender<()>> },
    /// To try once more what could not be written, and to say what has to be made durable, if there are
    /// lines after that number.
    Settle { after: u64, ready: oneshot::Sender<Option<Settle>> },
    /// The same, and to do nothing after that.
    Stop { after: u64, ready: oneshot::Sender<Option<Settle>> },
}

pub(super) struct Clerk {
    writer: Writer,
    directory: PathBuf,
    desk: Arc<Desk>,
    /// Those who wait for lines of the batch.
    waiting: Vec<oneshot::Sender<()>>,
}

impl Clerk {
    pub(super) fn new(writer: Writer, directory: PathBuf, desk: Arc<Desk>) -> Self {
        Self { writer, directory, desk, waiting: Vec::new() }
    }

    /// Writes until it is told to stop, or nobody is left who could ask.
    pub(super) fn work(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut batch = Vec::new();
        while jobs.blocking_recv_many(&mut batch, BATCH) > 0 {
            let before = self.writer.lost();
            self.writer.lose(self.desk.missed.swap(0, Relaxed));
            let (mut asked, mut stop) = (Vec::new(), false);
            for job in batch.drain(..) {
                match job {
                    Job::Write { at, event, written } => {
                        self.writer.keep(at, *event);
                        self.waiting.extend(written);
                    }
                    Job::Settle { after, ready } => asked.push((after, ready)),
                    Job::Stop { after, ready } => {
                        asked.push((after, ready));
                        stop = true;
                    }
                }
            }
            self.write(self.writer.lost() - before);
            for (after, ready) in asked {
                let new = self.writer.last().n > after;
                let _ = ready.send(new.then(|| self.writer.settle()));
            }
            if stop {
                return;
            }
        }
    }

    /// Writes what waits, and lets those go on who wait for it, written or not.
    fn write(&mut self, lost: u64) {
        if self.writer.waits() {
            let written = self.writer.write();
            self.told(&written, lost);
            self.desk.bell.notify_one();
        }
        for written in self.waiting.drain(..) {
            let _ = written.send(());
        }
    }

    /// Notes how writing went, and says so once.
    fn told(&self, written: &io::Result<u64>, lost: u64) {
        let failed = written.as_ref().err().map(ToString::to_string);
        let newly = self.desk.state(|state| {
            state.written += written.as_ref().copied().unwrap_or(0);
            state.lost += lost;
            let newly = failed.is_some() && state.failing.is_none();
            state.failing.clone_from(&failed);
            newly
        });
        if let Some(error) = failed.filter(|_| newly) {
            let place = self.directory.display();
            tracing::error!("the audit in {place} can't be written: {error}; lines wait");
        }
    }
}
