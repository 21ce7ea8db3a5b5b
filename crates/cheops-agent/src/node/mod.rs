//! The node: the single owner of the [`Replica`].
//!
//! Inputs come in through a [`Handle`]; the replica decides; the effects go out through [`Hands`],
//! in order, and not before what must be durable is. Two workers share this:
//! - the *decider* takes all inputs that wait, lets the replica handle them, and puts what must be
//!   written into one batch with what is to be done after;
//! - the *committer*, a thread of its own, makes the batch durable and then does the rest. While
//!   it waits for the disk, the decider fills the next batch (`tray`): that is the group commit.
//!
//! What must stay true:
//! - only the decider touches the replica;
//! - what is recorded here is sealed before it is written down (`sealing`);
//! - nothing is sent, run, answered or shown before what it rests on is durable. The one exception
//!   is a read while the disk fails: it is answered from memory, for there is nothing else to show;
//! - a disk that fails stops what needs it, and nothing is lost: the batch is tried again until
//!   there is room, and whoever asks meanwhile is told to come back.

mod commit;
mod decide;
mod feed;
mod sealing;
mod tray;

use std::{
    io,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{self, Answer, Effect, Event, Input, Replica, Resource, Submission, Ticket},
    time::{Millis, Now},
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::feed::{Feed, Told};
use crate::{
    engine::{Engine, Reader},
    trust::Sealer,
};

/// How many inputs may wait for the decider. Whoever brings more waits.
const INBOX: usize = 256;
/// How many resources are looked at before others get a turn at the replica. One with many operations
/// counts for several.
const ROUND: usize = 1_000;
const LONG: usize = 64;
/// How many changes a reader of the feed may be behind before it misses some.
const FEED: usize = 4_096;

/// What carries out the effects that leave the node. Called in the order of the effects, from a
/// thread that others wait for: it must not block.
pub trait Hands: Send + 'static {
    /// Sends a message to another site; it may get lost.
    fn send(&mut self, to: &SiteId, message: replica::Message);

    /// Starts a run, a recall, a check, a clearing or a show.
    fn run(&mut self, effect: Effect);

    /// Something happened that others than the requester may want to know.
    fn tell(&mut self, event: &Event);
}

/// Whether the site can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Well,
    /// There is less room left than the reserve.
    Full {
        /// How many bytes are free.
        free: u64,
    },
    /// Writing failed, and is tried again.
    Stalled {
        /// Why.
        why: String,
        /// It is a server that is to be looked at, and not the disk.
        away: bool,
    },
}

impl Health {
    /// What those are told who ask for something while writing fails.
    pub fn stalled(&self) -> Option<Busy> {
        match self {
            Self::Stalled { why, away: false } => Some(Busy::Stalled(why.clone())),
            Self::Stalled { why, away: true } => Some(Busy::Away(why.clone())),
            Self::Well | Self::Full { .. } => None,
        }
    }
}

/// Why a request for an operation was not taken in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// There is no room.
    #[error("the disk is full: {0} bytes are free where the agent stores its data")]
    Full(u64),
    /// Writing fails.
    #[error("the agent can't write: {0}")]
    Stalled(String),
    /// What the agent writes to can't be reached, or does not take anything.
    #[error("the agent can't write: {0}")]
    Away(String),
    /// The agent is going down.
    #[error("the agent is stopping")]
    Stopping,
}

/// The agent is going down; nobody will answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent is stopping")]
pub struct Stopping;

/// What comes in for the decider.
enum Letter {
    Input(Input),
    Submit(Box<Submission>, mpsc::UnboundedSender<Answer>, Option<Condition>),
    Read(Box<dyn FnOnce(&Replica) -> Release + Send>),
}

/// What must hold for a request when it is its turn.
type Condition = Box<dyn FnOnce(&Replica) -> bool + Send>;

/// Hands out a value once it may be seen.
type Release = Box<dyn FnOnce() + Send>;

/// The way to the node, for everyone.
#[derive(Clone)]
pub struct Handle {
    inputs: mpsc::Sender<Letter>,
    /// Requests of people and programs have a way of their own, so that they are answered even
    /// while inputs have to wait for the disk.
    requests: mpsc::Sender<Letter>,
    health: watch::Receiver<Health>,
    feed: Feed,
    tickets: Arc<AtomicU64>,
    clock: Clock,
    stop: CancellationToken,
}

/// The other ends of a [`Handle`], for [`start`].
pub struct Inbox {
    inputs: mpsc::Receiver<Letter>,
    requests: mpsc::Receiver<Letter>,
    health: watch::Sender<Health>,
    feed: Feed,
    clock: Clock,
    stop: CancellationToken,
}

/// A handle, before there is a node. What needs the node and what the node needs can so be made one
/// after the other.
pub fn channel(clock: Clock) -> (Handle, Inbox) {
    let (to_inputs, inputs) = mpsc::channel(INBOX);
    let (to_requests, requests) = mpsc::channel(INBOX);
    let (to_health, health) = watch::channel(Health::Well);
    let feed = Feed::new(broadcast::channel(FEED).0);
    let stop = CancellationToken::new();
    let handle = Handle {
        inputs: to_inputs,
        requests: to_requests,
        health,
        feed: feed.clone(),
        tickets: Arc::default(),
        clock,
        stop: stop.clone(),
    };
    (handle, Inbox { inputs, requests, health: to_health, feed, clock, stop })
}

/// Starts the node, which seals what it records. It stops when [`Handle::stop`] is called or all handles are gone, after the
/// last batch is durable.
pub fn start(
    inbox: Inbox,
    replica: Replica,
    engine: Box<dyn Engine>,
    hands: Box<dyn Hands>,
    sealer: Sealer,
    reserve: u64,
) -> io::Result<Running> {
    let Inbox { inputs, requests, health, feed, clock, stop } = inbox;
    let reader = engine.reader();
    feed.reads_from(reader.clone());
    let tray = Arc::<tray::Tray>::default();
    let health = Arc::new(health);
    let sealing = sealing::Sealing::new(sealer, reader.clone());
    let committer = commit::Committer::new(
        engine,
        hands,
        sealing,
        feed.clone(),
        health.clone(),
        stop.clone(),
        tray.clone(),
    );
    let thread =
        std::thread::Builder::new().name("commit".into()).spawn(move || committer.work())?;
    let decider = decide::Decider::new(replica, clock, tray, health.subscribe(), feed);
    let watch = tokio::spawn(commit::watch_room(reader, health, reserve));
    let task = tokio::spawn(async move {
        let _ = decider.work(inputs, requests, stop).await;
        watch.abort();
    });
    Ok(Running { task, thread })
}

/// A node at work.
pub struct Running {
    task: tokio::task::JoinHandle<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Running {
    /// Waits until the node has stopped and all is durable.
    pub async fn stopped(self) {
        let _ = self.task.await;
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }

    /// Waits until the node has come to an end, whyever.
    pub async fn ended(&mut self) {
        let _ = (&mut self.task).await;
    }
}

impl Handle {
    /// Asks for an operation. The answers come one by one; [`Answer::Done`] is the last.
    pub async fn submit(
        &self,
        submission: Submission,
    ) -> Result<mpsc::UnboundedReceiver<Answer>, Busy> {
        self.request(submission, None).await
    }

    /// Asks for an operation if a condition holds for the replica at the moment when it decides. Otherwise
    /// there is no answer at all.
    pub async fn submit_if(
        &self,
        submission: Submission,
        condition: impl FnOnce(&Replica) -> bool + Send + 'static,
    ) -> Result<mpsc::UnboundedReceiver<Answer>, Busy> {
        self.request(submission, Some(Box::new(condition))).await
    }

    async fn request(
        &self,
        mut submission: Submission,
        condition: Option<Condition>,
    ) -> Result<mpsc::UnboundedReceiver<Answer>, Busy> {
        match &*self.health.borrow() {
            Health::Full { free } => return Err(Busy::Full(*free)),
            health => health.stalled().map_or(Ok(()), Err)?,
        }
        submission.ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        // As many answers come as a resource has sites, and a few more.
        let (to_answers, answers) = mpsc::unbounded_channel();
        let letter = Letter::Submit(Box::new(submission), to_answers, condition);
        self.requests.send(letter).await.map_err(|_| Busy::Stopping)?;
        Ok(answers)
    }

    /// Looks at the replica. The value is handed out once all that it may rest on is durable.
    /// Others wait meanwhile: it must be quick.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Replica) -> T + Send + 'static,
    ) -> Result<T, Stopping> {
        let (to_value, value) = oneshot::channel();
        let read = move |replica: &Replica| -> Release {
            let seen = look(replica);
            Box::new(move || {
                // Whoever asked may be gone.
                let _ = to_value.send(seen);
            })
        };
        self.requests.send(Letter::Read(Box::new(read))).await.map_err(|_| Stopping)?;
        value.await.map_err(|_| Stopping)
    }

    /// Looks at all resources in the order of their ids, a few at a time, so that others get a turn
    /// between. What is gathered is the result; a look that says no ends the walk.
    pub async fn walk<T: Send + 'static>(
        &self,
        mut gathered: T,
        look: impl Fn(&Replica, &Resource, &mut T) -> bool + Clone + Send + 'static,
    ) -> Result<T, Stopping> {
        let mut from = Bound::Unbounded;
        loop {
            let look = look.clone();
            let round = move |replica: &Replica| {
                let mut left = ROUND;
                for resource in replica.resources_from((from, Bound::Unbounded)) {
                    if !look(replica, resource, &mut gathered) {
                        return (gathered, None);
                    }
                    left = left.saturating_sub(1 + resource.log().len() / LONG);
                    if left == 0 {
                        return (gathered, Some(resource.id().clone()));
                    }
                }
                (gathered, None)
            };
            let (so_far, next) = self.read(round).await?;
            gathered = so_far;
            match next {
                Some(next) => from = Bound::Excluded(next),
                None => return Ok(gathered),
            }
        }
    }

    /// Tells the node what happened. Waits while the node has more to do than it can keep.
    pub async fn tell(&self, input: Input) -> Result<(), Stopping> {
        self.inputs.send(Letter::Input(input)).await.map_err(|_| Stopping)
    }

    /// Says when all that was told before is durable.
    pub async fn tell_then(&self, reached: oneshot::Sender<()>) -> Result<(), Stopping> {
        let read = move |_: &Replica| -> Release {
            Box::new(move || {
                let _ = reached.send(());
            })
        };
        self.inputs.send(Letter::Read(Box::new(read))).await.map_err(|_| Stopping)
    }

    /// Tells whoever watches that what another site said was refused before it got here.
    pub fn refused(&self, from: &SiteId, resource: &ResourceId, why: &'static str) {
        let (from, resource) = (from.clone(), resource.clone());
        self.feed.tell(Told::Event(Event::Refused { from, resource, why }));
    }

    /// Whether the site can write.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// What changes at this site.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The time, as the replica is told it.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Stops the node, after what was told before.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the node is to stop.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }
}

/// The two clocks of this process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock {
    /// The time.
    pub fn now(&self) -> Now {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis =
            |span: std::time::Duration| Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        Now { wall: millis(since_1970), steady: millis(self.start.elapsed()) }
    }

    /// When a time on the steady clock is.
    fn instant(&self, steady: Millis) -> Instant {
        let day = std::time::Duration::from_hours(24);
        let span = std::time::Duration::from_millis(steady.0);
        // A time that the clock can't express is far away; looking again tomorrow is soon enough.
        self.start.checked_add(span).unwrap_or_else(|| Instant::now() + day)
    }
}

/// The reader of an engine, for the feed.
pub(crate) type SharedReader = Arc<dyn Reader>;
