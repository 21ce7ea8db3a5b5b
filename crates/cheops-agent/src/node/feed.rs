//! The change feed: what happened at this site, as it happens or from a number on.
//!
//! What must stay true: a change with a number is durable before it is told, and told in the order
//! of the numbers; a reader that is too slow is told how much it missed, and never slows others.

use std::sync::{Arc, OnceLock};

use cheops_core::{
    id::SiteId,
    operation::Action,
    plan::Outcome,
    replica::{Durable, Event, Record, Reply},
    time::Millis,
};
use tokio::sync::broadcast;

use super::SharedReader;
use crate::{
    api::model::{Change, Happened, Run, RunStatus},
    engine::{EngineError, Seq},
};

/// The feed of a site.
#[derive(Clone)]
pub struct Feed {
    live: broadcast::Sender<Arc<Change>>,
    reader: Arc<OnceLock<SharedReader>>,
}

impl Feed {
    pub(super) fn new(live: broadcast::Sender<Arc<Change>>) -> Self {
        Self { live, reader: Arc::default() }
    }

    pub(super) fn reads_from(&self, reader: SharedReader) {
        let _ = self.reader.set(reader);
    }

    /// What happens from now on.
    pub fn follow(&self) -> broadcast::Receiver<Arc<Change>> {
        self.live.subscribe()
    }

    /// What was written down after a number, and the number of the last that was looked at: at most
    /// so many at a time. Reads the disk.
    pub fn after(
        &self,
        here: &SiteId,
        seq: Seq,
        most: usize,
    ) -> Result<(Vec<Change>, Option<Seq>), EngineError> {
        let Some(reader) = self.reader.get() else { return Ok((Vec::new(), None)) };
        let written = reader.after(seq, most)?;
        let last = written.last().map(|(seq, _)| *seq);
        let changes = written.iter().filter_map(|(seq, durable)| change(here, *seq, durable));
        Ok((changes.collect(), last))
    }

    /// The number of the last that was written down.
    pub fn last(&self) -> Seq {
        self.reader.get().map_or(0, |reader| reader.last())
    }

    /// Tells something that has no number.
    pub fn publish(&self, change: Change) {
        // Nobody listens: fine.
        let _ = self.live.send(Arc::new(change));
    }

    /// Tells that a site can be reached again, or no more.
    pub(super) fn link(&self, here: &SiteId, peer: &SiteId, up: bool) {
        let peer = peer.to_string();
        let what = if up { Happened::SiteReturned { peer } } else { Happened::SiteLost { peer } };
        self.publish(Change { seq: None, site: here.to_string(), resource: None, what });
    }

    pub(super) fn wrote(&self, here: &SiteId, durables: &[Durable], last: Seq) {
        if self.live.receiver_count() == 0 {
            return;
        }
        let first = last + 1 - durables.len() as Seq;
        for (seq, durable) in (first..).zip(durables) {
            if let Some(change) = change(here, seq, durable) {
                self.publish(change);
            }
        }
    }
}

/// What something that was written down means to a reader of the feed.
pub fn change(here: &SiteId, seq: Seq, durable: &Durable) -> Option<Change> {
    let (resource, what) = match durable {
        Durable::Record(Record::Operation(op)) => (
            &op.resource,
            Happened::Operation {
                id: op.id.to_string(),
                kind: op.kind.to_string(),
                author: op.author.to_string(),
                at: rfc3339(op.at.wall()),
                command: command(&op.action),
            },
        ),
        Durable::Record(Record::Reply(reply)) => {
            (&reply.resource, Happened::Reply { operation: reply.op.to_string(), run: run(reply) })
        }
        Durable::Forgotten { resource, .. } => (resource, Happened::Deleted),
        Durable::Intent { .. }
        | Durable::Clearing(_)
        | Durable::Cleared(_)
        | Durable::Trimmed { .. }
        | Durable::Withheld { .. } => return None,
    };
    let resource = Some(resource.to_string());
    Some(Change { seq: Some(seq), site: here.to_string(), resource, what })
}

/// What an event means to a reader of the feed, if it is not told as something that was written.
pub(super) fn told(here: &SiteId, event: Event) -> Option<Change> {
    let (resource, what) = match event {
        Event::Recorded { .. } | Event::Forgotten(_) => return None,
        Event::NeedsDecision(resource) => (resource, Happened::NeedsDecision),
        Event::Unknown(run) => (run.resource, Happened::Unknown { operation: run.op.to_string() }),
        Event::Refused { from, resource, why } => {
            (resource, Happened::Refused { peer: from.to_string(), why: why.to_owned() })
        }
    };
    Some(Change { seq: None, site: here.to_string(), resource: Some(resource.to_string()), what })
}

/// A reply as the API shows it.
pub fn run(reply: &Reply) -> Run {
    Run {
        site: reply.id.site.to_string(),
        status: match reply.outcome {
            Outcome::Ok => RunStatus::Ok,
            Outcome::Ko => RunStatus::Ko,
            Outcome::Unknown => RunStatus::Unknown,
        },
        attempt: Some(reply.attempt),
        took_ms: Some(reply.took.0),
        output: Some(reply.output.to_string()),
    }
}

/// An action as text.
pub fn command(action: &Action) -> String {
    match action {
        Action::Command { line, .. } => line.to_string(),
        Action::Http(request) => {
            format!("{} {} of {}", request.method, request.target, request.service)
        }
        Action::Steps(steps) => steps.iter().map(command).collect::<Vec<_>>().join("; "),
    }
}

/// A time of day, as the API writes it.
pub fn rfc3339(wall: Millis) -> String {
    let millis = i64::try_from(wall.0).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    format!("{time:.3}")
}
