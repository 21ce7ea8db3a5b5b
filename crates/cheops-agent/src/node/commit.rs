//! The committer: makes batches durable, then does what waits for that.

use std::{sync::Arc, thread, time::Duration};

use cheops_core::{
    id::SiteId,
    replica::{Effect, Event},
};
use tokio::sync::{mpsc, watch};

use super::{
    Feed, Hands, Health, SharedReader,
    decide::{Batch, Then},
    feed,
};
use crate::engine::{Engine, Seq};

/// How long to wait before a batch that could not be written is tried again, and how often to look
/// at the room that is left.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Committer {
    engine: Box<dyn Engine>,
    hands: Box<dyn Hands>,
    feed: Feed,
    health: Arc<watch::Sender<Health>>,
    here: SiteId,
}

impl Committer {
    pub(super) fn new(
        engine: Box<dyn Engine>,
        hands: Box<dyn Hands>,
        feed: Feed,
        health: Arc<watch::Sender<Health>>,
        here: SiteId,
    ) -> Self {
        Self { engine, hands, feed, health, here }
    }

    pub(super) fn work(mut self, mut batches: mpsc::Receiver<Batch>) {
        while let Some(mut batch) = batches.blocking_recv() {
            if !batch.durables.is_empty() {
                let last = self.append(&mut batch);
                self.feed.wrote(&self.here, &batch.durables, last);
            }
            for then in batch.then {
                self.carry_out(then);
            }
        }
    }

    /// Makes a batch durable, however long that takes.
    fn append(&mut self, batch: &mut Batch) -> Seq {
        let mut outcome = self.engine.append(&batch.durables);
        loop {
            match outcome {
                Ok(last) => {
                    if matches!(*self.health.borrow(), Health::Stalled { .. }) {
                        tracing::info!("the store takes records again");
                        self.health.send_replace(Health::Well);
                    }
                    return last;
                }
                Err(error) => {
                    let why = error.to_string();
                    let stalled = Health::Stalled { why };
                    if *self.health.borrow() != stalled {
                        tracing::error!("{error}; it is tried again every second");
                        self.health.send_replace(stalled);
                    }
                    batch.release();
                    thread::sleep(PAUSE);
                    let recovered = self.engine.recover();
                    outcome = recovered.and_then(|()| self.engine.append(&batch.durables));
                }
            }
        }
    }

    fn carry_out(&mut self, then: Then) {
        match then {
            Then::Do(Effect::Send { to, message }) => self.hands.send(&to, message),
            Then::Do(Effect::Tell(event)) => self.tell(event),
            Then::Do(run) => self.hands.run(run),
            Then::Answer(requester, answer) => {
                // Whoever asked may be gone.
                let _ = requester.send(answer);
            }
            Then::Release(release) => release(),
        }
    }

    fn tell(&mut self, event: Event) {
        self.hands.tell(&event);
        if let Event::Refused { from, resource, why } = &event {
            tracing::warn!(%from, %resource, "what a peer said was not taken in: {why}");
        }
        if let Some(change) = feed::told(&self.here, event) {
            self.feed.publish(change);
        }
    }
}

/// Looks at the room that is left, for ever.
pub(super) async fn watch_room(
    reader: SharedReader,
    health: Arc<watch::Sender<Health>>,
    reserve: u64,
) {
    let mut ticks = tokio::time::interval(PAUSE);
    loop {
        ticks.tick().await;
        let Ok(free) = reader.free() else { continue };
        health.send_if_modified(|health| {
            let next = match health {
                Health::Well if free < reserve => Health::Full { free },
                Health::Full { .. } if free >= reserve => Health::Well,
                _ => return false,
            };
            tracing::warn!(
                "{free} bytes are free: {}",
                match next {
                    Health::Well => "operations are accepted again",
                    _ => "no operation is accepted until there is more room",
                }
            );
            *health = next;
            true
        });
    }
}
