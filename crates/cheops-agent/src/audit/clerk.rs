//! The clerk: the thread that writes the record, since writing may wait for the disk.
//!
//! What must stay true:
//! - whoever waits for a line goes on when it is with the system, or can't be for now;
//! - all that has come meanwhile is written at once;
//! - an event is written, or counted as lost, whatever becomes of the queue, of the clerk and of the one who
//!   wanted it written;
//! - nothing is written while another agent of the site may be at work: the record is that one's then.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::{
    Desk,
    entry::Event,
    write::{Settle, Writer},
};
use crate::engine::couchdb::Fence;

/// How many jobs are taken at a time.
const BATCH: usize = 256;

/// What the clerk is asked to do.
pub(super) enum Job {
    /// To write down what happened.
    Write(Note),
    /// To try once more what could not be written, and to say what has to be made durable.
    Settle(Question),
    /// To write all that has come, to say the same, and to do nothing after that.
    Stop(Question),
}

/// What has to be made durable, if there are lines after this number?
pub(super) struct Question {
    pub(super) after: u64,
    pub(super) ready: oneshot::Sender<Option<Settle>>,
}

/// An event on its way to the clerk. If it is dropped before it is there, it is counted.
pub(super) struct Note {
    at: Timestamp,
    event: Option<Box<Event>>,
    written: Option<oneshot::Sender<()>>,
    desk: Arc<Desk>,
}

impl Note {
    /// What happened now. As long as it waits, it has no more than a line needs.
    pub(super) fn of(event: Event, written: Option<oneshot::Sender<()>>, desk: &Arc<Desk>) -> Self {
        let event = Some(Box::new(event.shortened()));
        Self { at: Timestamp::now(), event, written, desk: desk.clone() }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.desk.miss(&event);
        }
    }
}

pub(super) struct Clerk {
    writer: Writer,
    directory: PathBuf,
    desk: Arc<Desk>,
    fence: Fence,
    /// Those who wait for lines of the batch.
    waiting: Vec<oneshot::Sender<()>>,
}

impl Clerk {
    pub(super) fn new(writer: Writer, directory: PathBuf, desk: Arc<Desk>, fence: Fence) -> Self {
        Self { writer, directory, desk, fence, waiting: Vec::new() }
    }

    /// Writes until it is told to stop, or nobody is left who could ask.
    pub(super) fn work(mut self, mut jobs: mpsc::Receiver<Job>) {
        let (mut batch, mut asked, mut last) = (Vec::new(), Vec::new(), None);
        while jobs.blocking_recv_many(&mut batch, BATCH) > 0 {
            self.writer.lose(self.desk.missed.swap(0, Relaxed));
            let before = self.writer.lost();
            for job in batch.drain(..) {
                match job {
                    Job::Write(note) => self.keep(note),
                    Job::Settle(question) => asked.push(question),
                    Job::Stop(question) => {
                        // What has come by then is written; whoever comes later hears that it is not.
                        jobs.close();
                        last = Some(question);
                    }
                }
            }
            self.write(self.writer.lost() - before);
            asked.drain(..).for_each(|question| self.answer(question));
        }
        if let Some(question) = last {
            self.answer(question);
        }
    }

    fn keep(&mut self, mut note: Note) {
        if let Some(event) = note.event.take() {
            self.writer.keep(note.at, *event);
        }
        self.waiting.extend(note.written.take());
    }

    fn answer(&self, Question { after, ready }: Question) {
        let new = self.writer.last().n > after && self.fence.holds();
        let _ = ready.send(new.then(|| self.writer.settle()));
    }

    /// Writes what waits, and lets those go on who wait for it, written or not.
    fn write(&mut self, lost: u64) {
        if self.writer.waits() {
            let written = if self.fence.holds() {
                self.writer.write()
            } else {
                Err(io::Error::other(
                    "this agent does not have the lease of its site: CouchDB can't be used, or another agent of this site is at work",
                ))
            };
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

impl Drop for Clerk {
    fn drop(&mut self) {
        let (unwritten, fault) = (self.writer.waiting(), thread::panicking());
        self.desk.state(|state| {
            state.lost += unwritten;
            state.ended = true;
            if fault {
                state.failing = Some("the thread that writes it has ended by a fault".to_owned());
            }
        });
        let place = self.directory.display();
        if fault {
            tracing::error!("nobody writes the audit in {place} any more, by a fault of the agent");
        }
        if unwritten > 0 {
            tracing::error!("{unwritten} lines of the audit in {place} could not be written");
        }
    }
}
