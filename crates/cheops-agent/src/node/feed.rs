//! The change feed: what happened at this site, as it happens or from a number on.
//!
//! What must stay true: what has a number is durable before it is told, and told in the order of the
//! numbers; a reader that is too slow finds it on the disk, and never slows others. What has no
//! number is told to those who listen, and kept nowhere.

use std::sync::{Arc, OnceLock};

use cheops_core::{
    id::SiteId,
    replica::{Durable, Event},
};
use tokio::sync::broadcast;

use super::SharedReader;
use crate::engine::{EngineError, Seq, Waiting};

/// Something that happened at this site. Cheap to clone: what is large is shared with the replica.
#[derive(Debug, Clone)]
pub enum Told {
    /// Something is durable.
    Wrote(Seq, Durable),
    /// The replica tells something.
    Event(Event),
    /// A site can be reached, or no more.
    Link {
        /// The site.
        peer: SiteId,
        /// It can.
        up: bool,
    },
}

/// The feed of a site.
#[derive(Clone)]
pub struct Feed {
    live: broadcast::Sender<Told>,
    reader: Arc<OnceLock<SharedReader>>,
}

impl Feed {
    pub(super) fn new(live: broadcast::Sender<Told>) -> Self {
        Self { live, reader: Arc::default() }
    }

    pub(super) fn reads_from(&self, reader: SharedReader) {
        let _ = self.reader.set(reader);
    }

    /// What happens from now on.
    pub fn follow(&self) -> broadcast::Receiver<Told> {
        self.live.subscribe()
    }

    /// What was written down after a number, at most so much at a time. Reads the disk.
    pub fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        self.reader.get().map_or_else(|| Ok(Vec::new()), |reader| reader.after(seq, most))
    }

    /// The number of the last that was written down.
    pub fn last(&self) -> Seq {
        self.reader.get().map_or(0, |reader| reader.last())
    }

    /// What is written down here, and waits for a server that is away, if anything does.
    pub fn waiting(&self) -> Option<Waiting> {
        self.reader.get().and_then(|reader| reader.waiting())
    }

    pub(super) fn tell(&self, told: Told) {
        // Nobody listens: fine.
        let _ = self.live.send(told);
    }

    pub(super) fn wrote(&self, durables: &[Durable], last: Seq) {
        if self.live.receiver_count() == 0 {
            return;
        }
        let first = last + 1 - durables.len() as Seq;
        for (seq, durable) in (first..).zip(durables) {
            self.tell(Told::Wrote(seq, durable.clone()));
        }
    }
}
