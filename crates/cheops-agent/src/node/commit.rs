//! The committer: makes batches durable, then does what waits for that.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cheops_core::replica::{Effect, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Feed, Hands, Health, SharedReader, Told,
    decide::{Batch, Then},
    sealing::Sealing,
    tray::Tray,
};
use crate::engine::{Engine, EngineError, Seq, Sort};

/// How long to wait before a batch that could not be written is tried again, and how often to look
/// at the room that is left.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Committer {
    engine: Box<dyn Engine>,
    hands: Box<dyn Hands>,
    sealing: Sealing,
    feed: Feed,
    health: Arc<watch::Sender<Health>>,
    stop: CancellationToken,
    tray: Arc<Tray>,
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.tray.close();
        // The decider looks up.
        self.health.send_modify(|_| {});
    }
}

impl Committer {
    pub(super) fn new(
        engine: Box<dyn Engine>,
        hands: Box<dyn Hands>,
        sealing: Sealing,
        feed: Feed,
        health: Arc<watch::Sender<Health>>,
        stop: CancellationToken,
        tray: Arc<Tray>,
    ) -> Self {
        Self { engine, hands, sealing, feed, health, stop, tray }
    }

    pub(super) fn work(mut self) {
        let tray = self.tray.clone();
        let mut tended = Instant::now();
        while let Ok(taken) = tray.take(PAUSE) {
            // Also while others only look, and that without a pause.
            if tended.elapsed() >= PAUSE {
                if !self.tend() {
                    return;
                }
                tended = Instant::now();
            }
            let Some(mut batch) = taken else { continue };
            if !batch.durables.is_empty() {
                self.sealing.seal(&mut batch.durables);
                let Some(last) = self.append(&mut batch) else { return };
                self.feed.wrote(&batch.durables, last);
            }
            self.sealing.put_on(&mut batch.then, &batch.durables);
            for then in batch.then {
                self.carry_out(then);
            }
        }
    }

    /// Lets the engine do what is due. Whether it is of any use still.
    fn tend(&mut self) -> bool {
        match self.engine.tend() {
            Ok(()) => self.well(),
            Err(error) if error.is_permanent() => {
                tracing::error!("{error}; the agent ends");
                return false;
            }
            Err(error) => self.stalled(&error),
        }
        true
    }

    fn well(&self) {
        if matches!(*self.health.borrow(), Health::Stalled { .. }) {
            tracing::info!("the store takes records again");
            self.health.send_replace(Health::Well);
        }
    }

    fn stalled(&self, error: &EngineError) {
        let stalled = Health::Stalled { why: error.to_string(), away: error.sort == Sort::Server };
        if *self.health.borrow() != stalled {
            tracing::error!("{error}; it is tried again every second");
            self.health.send_replace(stalled);
        }
    }

    /// Makes a batch durable, however long that takes; nothing if the agent stops meanwhile. Who
    /// only looks is let go: also those who came after this batch.
    fn append(&mut self, batch: &mut Batch) -> Option<Seq> {
        let mut outcome = self.engine.append(&batch.durables);
        loop {
            match outcome {
                Ok(last) => {
                    self.well();
                    return Some(last);
                }
                // What can never be written was never told to anyone. The replica counts on it, so
                // the only way back is to start again without it.
                Err(error) if error.is_permanent() => {
                    tracing::error!("{error}; the agent ends");
                    return None;
                }
                Err(error) => {
                    self.stalled(&error);
                    batch.release();
                    self.tray.release();
                    if self.stop.is_cancelled() {
                        tracing::error!("what was not written is given up; nobody was told of it");
                        return None;
                    }
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
        if let Event::Refused { from, resource, why } = &event {
            tracing::warn!(%from, %resource, "what a peer said was not taken in: {why}");
        }
        self.hands.tell(&event);
        // What was recorded is told with its number.
        if !matches!(event, Event::Recorded { .. }) {
            self.feed.tell(Told::Event(event));
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
