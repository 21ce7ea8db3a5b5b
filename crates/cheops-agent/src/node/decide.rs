//! The decider: inputs in, batches out.

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use cheops_core::replica::{Answer, Durable, Effect, Input, Message, Replica, Ticket};
use tokio::{
    sync::{mpsc, watch},
    time,
};
use tokio_util::sync::CancellationToken;

use super::{
    Clock, Condition, Feed, Health, Letter, Release, Told,
    tray::{Closed, Tray},
};

/// How many letters are taken at a time.
const ROUND: usize = 256;
/// How many effects, and about how many bytes of records, make a batch full. In the tray, one that is not
/// yet full may be followed by one that is.
pub(super) const FULL: usize = 8_192;
const FULL_BYTES: usize = 8 << 20;

/// What must be durable, and what is to be done then, in order.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) durables: Vec<Durable>,
    pub(super) then: Vec<Then>,
    bytes: usize,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.durables.is_empty() && self.then.is_empty()
    }

    /// Hands out what only looked: it waits no longer for a disk that fails.
    pub(super) fn release(&mut self) {
        for then in self.then.extract_if(.., |then| matches!(then, Then::Release(_))) {
            if let Then::Release(release) = then {
                release();
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.durables.len() + self.then.len() >= FULL || self.bytes >= FULL_BYTES
    }

    /// Goes on with what another holds.
    pub(super) fn follow(&mut self, mut later: Self) {
        if self.is_empty() {
            *self = later;
            return;
        }
        self.durables.append(&mut later.durables);
        self.then.append(&mut later.then);
        self.bytes += later.bytes;
    }

    fn persist(&mut self, durable: Durable) {
        if let Durable::Record(record, _) = &durable {
            self.bytes += record.weight();
        }
        self.durables.push(durable);
    }
}

/// What is done once a batch is durable.
pub(super) enum Then {
    Do(Effect),
    Answer(mpsc::UnboundedSender<Answer>, Answer),
    Release(Release),
}

pub(super) struct Decider {
    replica: Replica,
    clock: Clock,
    tray: Arc<Tray>,
    health: watch::Receiver<Health>,
    feed: Feed,
    answers: HashMap<Ticket, mpsc::UnboundedSender<Answer>>,
    next: Batch,
}

impl Drop for Decider {
    fn drop(&mut self) {
        self.tray.close();
    }
}

impl Decider {
    pub(super) fn new(
        replica: Replica,
        clock: Clock,
        tray: Arc<Tray>,
        health: watch::Receiver<Health>,
        feed: Feed,
    ) -> Self {
        let (answers, next) = (HashMap::new(), Batch::default());
        Self { replica, clock, tray, health, feed, answers, next }
    }

    /// Works until it is told to stop; then with what has come by then. If the committer has given up,
    /// nobody can be told.
    pub(super) async fn work(
        mut self,
        mut inputs: mpsc::Receiver<Letter>,
        mut requests: mpsc::Receiver<Letter>,
        stop: CancellationToken,
    ) -> Result<(), Closed> {
        self.handle(Input::Started);
        let tray = self.tray.clone();
        let (mut asked, mut told) = (VecDeque::new(), VecDeque::new());
        let (mut requested, mut happened) = (Vec::new(), Vec::new());
        loop {
            let stalled = matches!(*self.health.borrow(), Health::Stalled { .. });
            self.deal_with(&mut asked, &mut told, stalled)?;
            let room = !self.next.is_full() && !stalled;
            let wake = self.replica.wake().map(|wake| self.clock.instant(wake));
            let wake = wake.map(time::Instant::from_std);
            tokio::select! {
                () = tray.taken(), if !self.next.is_empty() && !stalled => {}
                count = requests.recv_many(&mut requested, ROUND), if asked.is_empty() => {
                    asked.extend(requested.drain(..));
                    if count == 0 {
                        break;
                    }
                }
                count = inputs.recv_many(&mut happened, ROUND), if room && told.is_empty() => {
                    told.extend(happened.drain(..));
                    if count == 0 {
                        break;
                    }
                }
                () = time::sleep_until(wake.unwrap_or_else(time::Instant::now)),
                    if wake.is_some() && room => self.handle(Input::Tick),
                changed = self.health.changed() => if changed.is_err() {
                    return Err(Closed);
                },
                () = stop.cancelled() => break,
            }
        }
        inputs.close();
        while let Ok(letter) = inputs.try_recv() {
            told.push_back(letter);
        }
        while !told.is_empty() {
            self.take(&mut told, false);
            self.flush().await?;
        }
        self.flush().await
    }

    /// Hands over what is left.
    async fn flush(&mut self) -> Result<(), Closed> {
        loop {
            self.tray.put(&mut self.next)?;
            if self.next.is_empty() {
                return Ok(());
            }
            self.tray.taken().await;
        }
    }

    /// Deals with letters as long as there is room for what comes of them, here or in the tray. If any are
    /// left, something waits for the tray: nothing else would bring the decider back to them.
    fn deal_with(
        &mut self,
        asked: &mut VecDeque<Letter>,
        told: &mut VecDeque<Letter>,
        stalled: bool,
    ) -> Result<(), Closed> {
        loop {
            self.take(asked, stalled);
            if stalled {
                self.next.release();
                return self.tray.is_open();
            }
            self.take(told, stalled);
            self.tray.put(&mut self.next)?;
            let none_left = asked.is_empty() && told.is_empty();
            if none_left || !self.next.is_empty() {
                return Ok(());
            }
        }
    }

    /// Deals with letters as long as the batch has room for what comes of them.
    fn take(&mut self, letters: &mut VecDeque<Letter>, stalled: bool) {
        while (stalled || !self.next.is_full())
            && let Some(letter) = letters.pop_front()
        {
            match letter {
                Letter::Input(input) => self.input(input),
                // Whoever asked finds the way back closed, and looks at our health.
                Letter::Submit(..) if stalled => {}
                Letter::Submit(submission, answers, condition) => {
                    if condition.is_some_and(|holds| !self.is_met(holds)) {
                        continue;
                    }
                    self.answers.insert(submission.ticket, answers);
                    self.handle(Input::Submit(submission));
                }
                Letter::Read(look) => self.read(look, stalled),
            }
        }
    }

    /// Whether a condition holds. One that breaks does not.
    fn is_met(&self, condition: Condition) -> bool {
        let met = catch_unwind(AssertUnwindSafe(|| condition(&self.replica)));
        met.unwrap_or_else(|_| {
            tracing::error!("a request met a case that the agent was not made for");
            false
        })
    }

    /// A look that breaks ends by itself: whoever looked is told that nobody answers.
    fn read(&mut self, look: Box<dyn FnOnce(&Replica) -> Release + Send>, stalled: bool) {
        let looked = catch_unwind(AssertUnwindSafe(|| look(&self.replica)));
        match looked {
            Ok(release) if stalled => release(),
            Ok(release) => self.next.then.push(Then::Release(release)),
            Err(_) => tracing::error!("a request met a case that the agent was not made for"),
        }
    }

    /// An input, unless it would fill a disk that has no room: peers keep what they have and send it
    /// again when the two compare.
    fn input(&mut self, input: Input) {
        match &input {
            Input::PeerUp(peer) => self.feed.tell(Told::Link { peer: peer.clone(), up: true }),
            Input::PeerDown(peer) => self.feed.tell(Told::Link { peer: peer.clone(), up: false }),
            Input::Received { message: Message::Records { .. }, .. }
                if *self.health.borrow() != Health::Well =>
            {
                return;
            }
            _ => {}
        }
        self.handle(input);
    }

    fn handle(&mut self, input: Input) {
        for effect in self.replica.handle(input, self.clock.now()) {
            match effect {
                Effect::Persist(durable) => self.next.persist(durable),
                Effect::Answer { ticket, answer } => {
                    let last = matches!(answer, Answer::Done | Answer::Refused(_));
                    if let Some(requester) = self.answers.get(&ticket) {
                        self.next.then.push(Then::Answer(requester.clone(), answer));
                    }
                    if last {
                        self.answers.remove(&ticket);
                    }
                }
                other => self.next.then.push(Then::Do(other)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cheops_core::replica::Settings;
    use tokio::sync::broadcast;

    use super::*;

    #[test]
    fn letters_are_left_only_while_something_waits_for_the_tray() {
        const LETTERS: usize = 5 * FULL + 1;
        let (_health, health) = watch::channel(Health::Well);
        let replica = Replica::new("here".parse().unwrap(), Settings::default());
        let tray = Arc::<Tray>::default();
        let feed = Feed::new(broadcast::channel(1).0);
        let mut decider = Decider::new(replica, Clock::default(), tray.clone(), health, feed);
        let look = || Letter::Read(Box::new(|_| Box::new(|| {})));
        let mut asked: VecDeque<_> = std::iter::repeat_with(look).take(LETTERS).collect();
        let mut taken = 0;
        while taken < LETTERS {
            assert!(decider.deal_with(&mut asked, &mut VecDeque::new(), false).is_ok());
            assert!(asked.is_empty() || !decider.next.is_empty());
            let lay = tray.take(std::time::Duration::from_secs(5)).ok().flatten();
            taken += lay.unwrap().then.len();
        }
        assert!(asked.is_empty() && decider.next.is_empty());
    }
}
