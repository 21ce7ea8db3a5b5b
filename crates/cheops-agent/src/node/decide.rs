//! The decider: inputs in, batches out.

use std::{collections::HashMap, mem};

use cheops_core::replica::{Answer, Durable, Effect, Input, Message, Replica, Ticket};
use tokio::{
    sync::{mpsc, watch},
    time,
};

use super::{Clock, Feed, Health, Letter, Release};

/// How many inputs are handled for one batch at most.
const ROUND: usize = 512;
/// How many effects a batch may hold before no more inputs are taken.
const FULL: usize = 8_192;

/// What must be durable, and what is to be done then, in order.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) durables: Vec<Durable>,
    pub(super) then: Vec<Then>,
}

impl Batch {
    fn is_empty(&self) -> bool {
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

    fn is_full(&self) -> bool {
        self.durables.len() + self.then.len() >= FULL
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
    batches: mpsc::Sender<Batch>,
    health: watch::Receiver<Health>,
    feed: Feed,
    answers: HashMap<Ticket, mpsc::UnboundedSender<Answer>>,
    next: Batch,
}

impl Decider {
    pub(super) fn new(
        replica: Replica,
        clock: Clock,
        batches: mpsc::Sender<Batch>,
        health: watch::Receiver<Health>,
        feed: Feed,
    ) -> Self {
        Self {
            replica,
            clock,
            batches,
            health,
            feed,
            answers: HashMap::new(),
            next: Batch::default(),
        }
    }

    pub(super) async fn work(
        mut self,
        mut inputs: mpsc::Receiver<Letter>,
        mut requests: mpsc::Receiver<Letter>,
    ) {
        self.handle(Input::Started);
        let batches = self.batches.clone();
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        loop {
            let wake = self.replica.wake().map(|wake| self.clock.instant(wake));
            let wake = wake.map(time::Instant::from_std);
            let room = !self.next.is_full();
            let stalled = matches!(*self.health.borrow(), Health::Stalled { .. });
            tokio::select! {
                permit = batches.reserve(), if !self.next.is_empty() => match permit {
                    Ok(permit) => permit.send(mem::take(&mut self.next)),
                    Err(_) => return,
                },
                count = requests.recv_many(&mut asked, ROUND), if room || stalled => {
                    if count == 0 {
                        break;
                    }
                }
                count = inputs.recv_many(&mut told, ROUND), if room && !stalled => {
                    if count == 0 {
                        break;
                    }
                }
                () = time::sleep_until(wake.unwrap_or_else(time::Instant::now)),
                    if wake.is_some() && room && !stalled => self.handle(Input::Tick),
                changed = self.health.changed() => if changed.is_err() {
                    return;
                },
            }
            if stalled {
                self.next.release();
            }
            for letter in asked.drain(..).chain(told.drain(..)) {
                match letter {
                    Letter::Input(input) => self.input(input),
                    Letter::Submit(..) if stalled => {}
                    Letter::Submit(submission, answers) => {
                        self.answers.insert(submission.ticket, answers);
                        self.handle(Input::Submit(submission));
                    }
                    Letter::Read(look) => {
                        let release = look(&self.replica);
                        if stalled {
                            release();
                        } else {
                            self.next.then.push(Then::Release(release));
                        }
                    }
                    Letter::Stop => return self.flush().await,
                }
            }
        }
        self.flush().await;
    }

    async fn flush(&mut self) {
        if !self.next.is_empty() {
            // Only a committer that is gone does not take it, and then nobody can be told.
            let _ = self.batches.send(mem::take(&mut self.next)).await;
        }
    }

    /// An input, unless it would fill a disk that has no room: peers keep what they have and send it
    /// again when the two compare.
    fn input(&mut self, input: Input) {
        match &input {
            Input::PeerUp(site) => self.feed.link(self.replica.here(), site, true),
            Input::PeerDown(site) => self.feed.link(self.replica.here(), site, false),
            _ => {}
        }
        let brings_records =
            matches!(&input, Input::Received { message: Message::Records { .. }, .. });
        if !(brings_records && *self.health.borrow() != Health::Well) {
            self.handle(input);
        }
    }

    fn handle(&mut self, input: Input) {
        for effect in self.replica.handle(input, self.clock.now()) {
            match effect {
                Effect::Persist(durable) => self.next.durables.push(durable),
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
