//! One connection between two agents, from the first word to the last.
//!
//! A connection becomes the link of two sites in three steps: each says who it is, each judges the
//! other, and the site with the smaller name says that this is the link. Both may dial at the same
//! time; since one of them decides, and decides once, both keep the same connection. It decides
//! only after it knows that it is heard, so that a line that carries bytes one way is no link.
//!
//! What must stay true:
//! - the node is told that a site is up before the first message of it, and that it is down after
//!   the last, once each and in this order, also when one link takes the place of another;
//! - messages are handed over one after the other: while the node has no room the reader waits, and
//!   HTTP/2 makes the other end wait. Pings have a stream of their own and do not wait for that;
//! - the node hears of no record that its site has not sealed;
//! - a link has one end, with a reason, whoever brings it about first. The connection outlives it
//!   until the other end has read why, or some time has passed;
//! - a task of a link that panics ends the link: half of one would look like a site that can be
//!   reached, for ever.

use std::{
    collections::VecDeque,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::Body;
use cheops_core::{
    duration,
    id::SiteId,
    replica::{Input, Message},
    trust::PublicKey,
};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    Shared,
    pace::{self, Gone},
    queue::Queue,
    slot::Slot,
    transport::Meter,
};
use crate::{
    trust::{Inspector, authority::Use, pki::Chain},
    wire::{
        self, Names,
        frame::{Code, Frame, FrameError, Frames, Hello, LINK_VERSION},
    },
};

/// How many pings, pongs and last words may wait for a site that does not read.
const CONTROL: usize = 64;
/// How many pings without an answer are remembered.
const PINGS: usize = 64;
/// How many signatures may be checked before others get a turn.
const ROUND: usize = 32;
/// How long a connection that was ended here is kept, so that the other end reads why.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Why a link ended, or never came to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) code: Code,
    pub(super) text: String,
    /// It was decided here: the other end has to be told.
    pub(super) ours: bool,
}

impl End {
    pub(super) fn ours(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), ours: true }
    }

    pub(super) fn fault(text: impl Into<String>) -> Self {
        Self::ours(Code::Fault, text)
    }

    /// There is nobody left to tell.
    pub(super) fn lost(text: impl Into<String>) -> Self {
        Self { code: Code::Fault, text: text.into(), ours: false }
    }
}

/// One connection to another agent.
pub(super) struct Link {
    /// It was dialled from here.
    pub(super) dialled: bool,
    /// What the other end has proved to have.
    pub(super) key: PublicKey,
    /// The certificates that it has shown, and for what.
    pub(super) shown: Option<(Chain, Use)>,
    pub(super) control: Arc<Queue<Frame>>,
    pub(super) outbox: Arc<Queue<Message>>,
    pub(super) meter: Arc<Meter>,
    /// The way to ask the other agent something. Where it was the other that dialled, it is made when
    /// it is first needed.
    calls: watch::Sender<Option<SendRequest<Body>>>,
    /// Someone needs it.
    needed: Notify,
    /// The site at the other end, once this connection is the link with it.
    pub(super) site: watch::Sender<Option<SiteId>>,
    /// How many messages came.
    pub(super) received: AtomicU64,
    /// Where the stream of messages is handed in once it is open.
    records: Mutex<Option<oneshot::Sender<Incoming>>>,
    records_in: Mutex<Option<oneshot::Receiver<Incoming>>>,
    greeted: AtomicBool,
    lent: AtomicBool,
    pings: Mutex<Pings>,
    end: OnceLock<End>,
    ended: CancellationToken,
    left: CancellationToken,
}

#[derive(Default)]
struct Pings {
    next: u64,
    waiting: VecDeque<(u64, Instant, Option<oneshot::Sender<Duration>>)>,
}

impl Link {
    pub(super) fn new(
        dialled: bool,
        (key, shown): (PublicKey, Option<(Chain, Use)>),
        meter: Arc<Meter>,
        queue: usize,
    ) -> Arc<Self> {
        let (records, records_in) = oneshot::channel();
        Arc::new(Self {
            dialled,
            key,
            shown,
            control: Queue::new(CONTROL),
            outbox: Queue::new(queue),
            meter,
            calls: watch::Sender::new(None),
            needed: Notify::new(),
            site: watch::Sender::new(None),
            received: AtomicU64::new(0),
            records: Mutex::new(Some(records)),
            records_in: Mutex::new(Some(records_in)),
            greeted: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            pings: Mutex::default(),
            end: OnceLock::new(),
            ended: CancellationToken::new(),
            left: CancellationToken::new(),
        })
    }

    /// Ends the link. Only the first reason counts.
    pub(super) fn close(&self, end: End) {
        let last = end.ours.then(|| Frame::Close { code: end.code, text: end.text.clone() });
        if self.end.set(end).is_ok() {
            self.control.finish(last);
            self.ended.cancel();
        }
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The same, for whoever outlives this borrow.
    pub(super) fn ended_owned(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
    }

    /// The connection may be dropped, and all streams on it.
    pub(super) fn leave(&self) {
        self.left.cancel();
    }

    pub(super) async fn left(&self) {
        self.left.cancelled().await;
    }

    /// The same, for whoever outlives this borrow.
    pub(super) fn left_owned(&self) -> WaitForCancellationFutureOwned {
        self.left.clone().cancelled_owned()
    }

    /// Why it ended, if it has.
    pub(super) fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// Whether this is the first time that the stream of frames is asked for.
    pub(super) fn greets(&self) -> bool {
        !self.greeted.swap(true, Ordering::Relaxed)
    }

    /// Whether this is the first time that the stream for calls the other way is offered.
    pub(super) fn lends(&self) -> bool {
        !self.lent.swap(true, Ordering::Relaxed)
    }

    /// The way to ask the other agent something; none if it is not there in time.
    pub(super) async fn calls(&self, patience: Duration) -> Option<SendRequest<Body>> {
        self.needed.notify_one();
        let mut calls = self.calls.subscribe();
        let calls = async { calls.wait_for(Option::is_some).await.ok()?.clone() };
        tokio::select! {
            calls = timeout(patience, calls) => calls.ok().flatten(),
            () = self.ended() => None,
        }
    }

    /// Once someone wants to ask the other agent something.
    pub(super) async fn needed(&self) {
        self.needed.notified().await;
    }

    /// From now on it can be asked this way.
    pub(super) fn hand_in_calls(&self, calls: SendRequest<Body>) {
        self.calls.send_replace(Some(calls));
    }

    /// Hands in the stream of messages. Whether it was the first.
    pub(super) fn hand_in_records(&self, body: Incoming) -> bool {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner).take();
        records.is_some_and(|records| records.send(body).is_ok())
    }

    /// The site at the other end, once that is settled; none if it is not in time.
    pub(super) async fn settled(&self, patience: Duration) -> Option<SiteId> {
        let mut site = self.site.subscribe();
        let settled = async { site.wait_for(Option::is_some).await.ok()?.clone() };
        tokio::select! {
            settled = timeout(patience, settled) => settled.ok().flatten(),
            () = self.ended() => None,
        }
    }

    /// Sends a ping. Whoever waits for it is told how long the answer took.
    pub(super) fn ping(&self, digest: Option<u64>, waiter: Option<oneshot::Sender<Duration>>) {
        let mut pings = self.pings.lock().unwrap_or_else(PoisonError::into_inner);
        pings.next += 1;
        let nonce = pings.next;
        if pings.waiting.len() == PINGS {
            pings.waiting.pop_front();
        }
        // One that there is no room for is not asked. Older ones wait then, and tell enough.
        if self.control.push(Frame::Ping { nonce, digest }) {
            pings.waiting.push_back((nonce, Instant::now(), waiter));
        }
    }

    /// How long an answer took. It is none if nothing was asked.
    fn answered(&self, nonce: u64) -> Option<Duration> {
        let mut pings = self.pings.lock().unwrap_or_else(PoisonError::into_inner);
        let at = pings.waiting.iter().position(|(asked, ..)| *asked == nonce)?;
        // Answers come in the order of the pings: one that was passed over will not come any more.
        let (_, asked, waiter) = pings.waiting.drain(..=at).next_back()?;
        let took = asked.elapsed();
        if let Some(waiter) = waiter {
            // Whoever asked may be gone.
            let _ = waiter.send(took);
        }
        Some(took)
    }

    fn oldest_ping(&self) -> Option<Instant> {
        let pings = self.pings.lock().unwrap_or_else(PoisonError::into_inner);
        pings.waiting.front().map(|&(_, asked, _)| asked)
    }
}

/// Frames as they come in on one stream.
pub(super) struct Reading {
    body: Incoming,
    frames: Frames,
}

impl Reading {
    pub(super) fn control(body: Incoming) -> Self {
        Self { body, frames: Frames::of_control() }
    }

    fn messages(body: Incoming) -> Self {
        Self { body, frames: Frames::of_messages() }
    }

    /// The next frame. Nothing is lost if nobody waits for it to the end.
    async fn next(&mut self, here: &SiteId) -> Result<Frame, End> {
        loop {
            match self.frames.take() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(FrameError::Version(version)) => {
                    let text = format!(
                        "an agent that speaks version {version} of the protocol for links met `{here}`, which speaks version {LINK_VERSION}: update the older one"
                    );
                    return Err(End::ours(Code::Refused, text));
                }
                Err(error) => return Err(unreadable(here, &error)),
            }
            match self.body.frame().await {
                Some(Ok(piece)) => {
                    if let Ok(bytes) = piece.into_data() {
                        self.frames.push(&bytes);
                    }
                }
                Some(Err(error)) => {
                    return Err(End::lost(format!("the connection broke: {}", root(&error))));
                }
                None => {
                    self.frames.end().map_err(|error| unreadable(here, &error))?;
                    return Err(End::lost("the connection was closed"));
                }
            }
        }
    }

    /// Reads on until the other end has said its last. What can't be read is no last word: whoever
    /// speaks nonsense still has to be told so.
    async fn last(&mut self, here: &SiteId) {
        loop {
            match self.next(here).await {
                Ok(Frame::Close { .. }) => return,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        while let Some(Ok(_)) = self.body.frame().await {}
    }
}

fn unreadable(here: &SiteId, error: &dyn std::fmt::Display) -> End {
    End::fault(format!("`{here}` could not read what was sent to it: {error}"))
}

fn unexpected(here: &SiteId, frame: &Frame) -> End {
    let sort = match frame {
        Frame::Hello(_) => "a second greeting",
        Frame::Ready | Frame::Up => "a link that was up already",
        Frame::Message(_) => "a message among pings",
        Frame::Ping { .. } | Frame::Pong { .. } => "a ping before the link was up",
        Frame::Close { .. } => "an end",
    };
    unreadable(here, &sort)
}

fn said(code: Code, text: &str) -> End {
    End { code, text: format!("the other end says: {text}"), ours: false }
}

/// What lies under an error: the layers above it say the same in vaguer words.
pub(super) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    match root.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
        // TLS has a longer word for an agent that was killed.
        Some(std::io::ErrorKind::UnexpectedEof) => "the other end closed it".to_owned(),
        _ => root.to_string(),
    }
}

/// Lets a part of a link do its work. A panic is an end like others.
pub(super) async fn caught<T>(here: &SiteId, work: impl Future<Output = T>) -> Result<T, End> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.map_err(|_| {
        End::fault(format!("`{here}` met a case that it was not made for; its log says more"))
    })
}

/// Lets a task of a link do its work, and ends the link if it panics.
pub(super) async fn held(here: &SiteId, link: &Link, work: impl Future<Output = ()>) {
    if let Err(end) = caught(here, work).await {
        link.close(end);
    }
}

/// Says who is here, hears who is there, and makes the connection the link of the two if both agree
/// to it. `there` is the site whose key was proved on it.
pub(super) async fn greet(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    mut control: Reading,
    there: &SiteId,
) -> Result<(), End> {
    let hello = match control.next(&shared.here).await? {
        Frame::Hello(hello) => hello,
        Frame::Close { code, text } => return Err(said(code, &text)),
        frame => return Err(unexpected(&shared.here, &frame)),
    };
    let slot = judge(shared, there, &hello)?;
    // Said before the other may count on a link.
    slot.may_link(shared)?;
    if !link.dialled {
        link.control.push(shared.hello());
    }
    let decides = shared.here < slot.site;
    let awaited = match (decides, link.dialled) {
        // The greeting was an answer to ours.
        (true, true) => None,
        (true, false) => Some(Frame::Ready),
        (false, true) => {
            link.control.push(Frame::Ready);
            Some(Frame::Up)
        }
        (false, false) => Some(Frame::Up),
    };
    if let Some(awaited) = awaited {
        match control.next(&shared.here).await? {
            frame if frame == awaited => {}
            Frame::Close { code, text } => return Err(said(code, &text)),
            frame => return Err(unexpected(&shared.here, &frame)),
        }
    }
    slot.install(shared, link, hello.life, decides)?;
    // No waiting between the two: once it is the link, someone has to run it.
    shared.tasks.spawn(run(shared.clone(), slot, link.clone(), control));
    Ok(())
}

/// Whether this is someone to have a link with: the site that it has proved to be, under that name.
fn judge(shared: &Shared, there: &SiteId, hello: &Hello) -> Result<Arc<Slot>, End> {
    let here = &shared.here;
    let refused = |text| Err(End::ours(Code::Refused, text));
    if hello.site != *there {
        return refused(format!(
            "the site that `{here}` knows as `{there}` by its key calls itself `{}`: give it one name in both configurations",
            hello.site
        ));
    }
    match shared.slot(there) {
        Some(slot) => Ok(slot),
        None if shared.members.has_joined(there) => {
            refused(format!("`{there}` has just joined the federation of `{here}`, or left it"))
        }
        None => refused(format!(
            "`{there}` is not a site that `{here}` knows: let it join, or add it to the configuration of `{here}`"
        )),
    }
}

/// Runs a link to its end.
async fn run(shared: Arc<Shared>, slot: Arc<Slot>, link: Arc<Link>, mut control: Reading) {
    let theirs = watch::Sender::new(None);
    // Kept until the node was told the last of this link: the next one waits for its turn.
    let mut turn = None;
    let mut told = false;
    let end = {
        let feed = async {
            turn = Some(slot.turn.lock().await);
            if shared.node.tell(Input::PeerUp(slot.site.clone())).await.is_err() {
                return shared.stopping();
            }
            told = true;
            feed(&shared, &slot, &link).await
        };
        let work = async {
            tracing::info!(site = %slot.site, "linked");
            link.ping(None, None);
            tokio::select! {
                () = link.ended() => None,
                end = listen(&shared, &slot, &link, &mut control, &theirs) => Some(end),
                end = watch_over(&shared, &link) => Some(end),
                end = feed => Some(end),
                end = agree(&shared, &slot, &theirs) => Some(end),
            }
        };
        caught(&shared.here, work).await.unwrap_or_else(Some)
    };
    if let Some(end) = end {
        link.close(end);
    }
    slot.remove(&link);
    shared.tasks.spawn(part(shared.here.clone(), link, control));
    if told {
        // A node that is gone needs no news.
        let _ = shared.node.tell(Input::PeerDown(slot.site.clone())).await;
    }
    drop(turn);
}

/// Leaves a connection once the other end has said its last.
async fn part(here: SiteId, link: Arc<Link>, mut control: Reading) {
    if link.end().is_some_and(|end| end.ours) {
        let _ = timeout(LINGER, control.last(&here)).await;
    }
    link.leave();
}

/// Reads pings and pongs.
async fn listen(
    shared: &Shared,
    slot: &Slot,
    link: &Link,
    control: &mut Reading,
    theirs: &watch::Sender<Option<u64>>,
) -> End {
    loop {
        match control.next(&shared.here).await {
            Ok(Frame::Ping { nonce, digest }) => {
                // Whoever asks more than it reads answers to has to wait.
                link.control.room().await;
                link.control.push(Frame::Pong { nonce, wall: shared.wall() });
                if digest.is_some() {
                    theirs.send_replace(digest);
                }
            }
            Ok(Frame::Pong { nonce, wall }) => {
                if let Some(took) = link.answered(nonce) {
                    slot.measured(took, pace::clock_offset(wall, shared.wall(), took));
                }
            }
            Ok(Frame::Close { code, text }) => return said(code, &text),
            Ok(frame) => return unexpected(&shared.here, &frame),
            Err(end) => return end,
        }
    }
}

/// Ends the link when the other site is gone.
async fn watch_over(shared: &Shared, link: &Link) -> End {
    let silence = shared.links.silence;
    loop {
        let gone = pace::is_gone(Instant::now(), link.meter.heard(), link.oldest_ping(), silence);
        match gone {
            Ok(then) => sleep_until(then.into()).await,
            Err(Gone::Silent(_)) => {
                let silence = duration::print(silence);
                return End::fault(format!("`{}` heard nothing for {silence}", shared.here));
            }
            Err(Gone::Deaf(span)) => {
                let span = duration::print(Duration::from_secs(span.as_secs().max(1)));
                return End::fault(format!("`{}` got no answer for {span}", shared.here));
            }
        }
    }
}

/// Hands what the other site says to the node.
async fn feed(shared: &Shared, slot: &Slot, link: &Link) -> End {
    let records = link.records_in.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(records) = records else { return End::fault("the link was run twice") };
    let Ok(Ok(records)) = timeout(shared.links.silence, records).await else {
        return End::fault(format!("`{}` waited for a stream of messages in vain", shared.here));
    };
    let mut reading = Reading::messages(records);
    let mut names = Names::default();
    let mut inspector = Inspector::new(Arc::new(shared.members.clone()));
    loop {
        let input = tokio::select! {
            biased;
            () = link.outbox.missed() => Input::PeerUp(slot.site.clone()),
            frame = reading.next(&shared.here) => match frame {
                Ok(Frame::Message(bytes)) => {
                    let message = match wire::decode_message(&bytes, &mut names) {
                        Ok(message) => message,
                        Err(error) => {
                            let end = unreadable(&shared.here, &error);
                            shared.unreadable(slot, &end.text);
                            return end;
                        }
                    };
                    link.received.fetch_add(1, Ordering::Relaxed);
                    // In a box of its own: most links are silent most of the time.
                    match Box::pin(vouched(shared, slot, &mut inspector, message)).await {
                        Some(message) => Input::Received { from: slot.site.clone(), message },
                        None => continue,
                    }
                }
                Ok(frame) => return unexpected(&shared.here, &frame),
                Err(end) => return end,
            },
        };
        if shared.node.tell(input).await.is_err() {
            return shared.stopping();
        }
    }
}

/// A message with the records that their sites have sealed; none if nothing is left of it.
async fn vouched(
    shared: &Shared,
    slot: &Slot,
    inspector: &mut Inspector,
    message: Message,
) -> Option<Message> {
    let Message::Records { resource, records, more } = message else { return Some(message) };
    let mut vouched = Vec::with_capacity(records.len());
    for (n, sent) in records.into_iter().enumerate() {
        if n % ROUND == ROUND - 1 {
            tokio::task::yield_now().await;
        }
        match inspector.inspect(&sent) {
            Ok(()) => vouched.push(sent),
            Err(doubt) => shared.doubted(slot, &sent.record, doubt),
        }
    }
    let records = vouched;
    (!records.is_empty() || more).then_some(Message::Records { resource, records, more })
}

/// Compares the digest of each ping with our own.
async fn agree(shared: &Shared, slot: &Slot, theirs: &watch::Sender<Option<u64>>) -> End {
    let mut news = theirs.subscribe();
    loop {
        if news.changed().await.is_err() {
            return shared.stopping();
        }
        let Some(theirs) = *news.borrow_and_update() else { continue };
        // While nothing changes, what was read for the last ping is enough: the node is left alone.
        let equal = slot.sampled() == Some(theirs) || {
            let site = slot.site.clone();
            match shared.node.read(move |replica| replica.shared_digest(&site)).await {
                Ok(ours) => ours == theirs,
                Err(_) => return shared.stopping(),
            }
        };
        slot.compared(equal);
    }
}
