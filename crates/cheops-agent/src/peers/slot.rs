//! What is known of one other site, and its link if there is one.
//!
//! What must stay true: there is at most one link; a paused site has none; whatever changes that is
//! told to the dialler.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use cheops_core::{duration, id::SiteId};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    CLOCK_LIMIT, Learned, Peer, Queued, Shared, State, Traffic,
    link::{End, Link},
    lives::Lives,
    pace::{self, Agreement},
};
use crate::{
    config,
    trust::certificate::Validity,
    wire::frame::{Code, Frame},
};

pub(super) struct Slot {
    pub(super) site: SiteId,
    /// Where it is, and by which key it is known.
    place: Mutex<config::Peer>,
    /// It is not a site that is known any more.
    pub(super) retired: CancellationToken,
    /// The site may be reached now: the next attempt need not wait.
    pub(super) nudged: Notify,
    /// The site does not know the key of this one.
    strange: AtomicBool,
    /// Held from when the node is told that the site is up until it is told that it is down.
    pub(super) turn: tokio::sync::Mutex<()>,
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
}

struct Inner {
    link: Option<Linked>,
    /// Counts pauses, so that the end of an old one does not end a new one.
    pauses: u64,
    /// When the pause ends by itself, if it does.
    paused_until: Option<SystemTime>,
    /// The next attempt to reach the site need not wait.
    fresh: bool,
    error: Option<String>,
    lives: Lives,
    round_trip: Option<Duration>,
    clock_offset: Option<i64>,
    seen: Option<SystemTime>,
    agreement: Agreement,
    sampled: Option<u64>,
    dropped: u64,
    refused: u64,
    faults: u64,
    sent: Traffic,
    received: Traffic,
    learned: Option<Learned>,
}

struct Linked {
    link: Arc<Link>,
    life: u64,
    since: Instant,
}

impl Slot {
    pub(super) fn new(site: SiteId, place: config::Peer) -> Self {
        Self {
            site,
            place: Mutex::new(place),
            retired: CancellationToken::new(),
            nudged: Notify::new(),
            strange: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
            state: watch::Sender::new(State::Unreachable),
            inner: Mutex::new(Inner {
                link: None,
                pauses: 0,
                paused_until: None,
                fresh: true,
                error: None,
                lives: Lives::default(),
                round_trip: None,
                clock_offset: None,
                seen: None,
                agreement: Agreement::default(),
                sampled: None,
                dropped: 0,
                refused: 0,
                faults: 0,
                sent: Traffic::default(),
                received: Traffic::default(),
                learned: None,
            }),
        }
    }

    /// Where the site is, and by which key it is known.
    pub(super) fn place(&self) -> config::Peer {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note of where it is now. A link was made with the key of then: with another, it is made anew.
    pub(super) fn settle(&self, place: &config::Peer) {
        let before = {
            let mut now = self.place.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *now, place.clone())
        };
        if before == *place {
            return;
        }
        let mut inner = self.lock();
        inner.fresh = true;
        let renewed = |linked: &&Linked| place.key.is_some_and(|key| linked.link.key != key);
        if let Some(linked) = inner.link.as_ref().filter(renewed) {
            linked.link.close(End::ours(Code::Already, "its key was renewed"));
        }
    }

    /// The site does not know the key of this one, or does.
    pub(super) fn set_strange(&self, strange: bool) {
        self.strange.store(strange, Ordering::Relaxed);
    }

    pub(super) fn is_strange(&self) -> bool {
        self.strange.load(Ordering::Relaxed)
    }

    /// Takes note of why there is no link.
    pub(super) fn note(&self, why: String) {
        let mut inner = self.lock();
        if *self.state.borrow() == State::Unreachable {
            inner.error = Some(why);
        }
    }

    /// Ends the link for ever.
    pub(super) fn retire(&self, here: &SiteId) {
        let inner = self.lock();
        self.retired.cancel();
        if let Some(linked) = &inner.link {
            let text =
                format!("`{}` does not belong to the federation of `{here}` any more", self.site);
            linked.link.close(End::ours(Code::Refused, text));
        }
    }

    /// Takes note of what the site says of itself.
    pub(super) fn learn(&self, learned: Learned) {
        self.lock().learned = Some(learned);
    }

    pub(super) fn learned(&self) -> Option<Learned> {
        self.lock().learned.clone()
    }

    /// Something that the site has sent was not let in.
    pub(super) fn refused(&self) {
        self.lock().refused += 1;
    }

    pub(super) fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.lock().link.as_ref().map(|linked| linked.link.clone())
    }

    /// Whether there may be a link at all.
    pub(super) fn may_link(&self, shared: &Shared) -> Result<(), End> {
        if shared.stop.is_cancelled() {
            Err(shared.stopping())
        } else if self.retired.is_cancelled() {
            let text =
                format!("`{}` is not a site that `{}` knows any more", self.site, shared.here);
            Err(End::ours(Code::Refused, text))
        } else if *self.state.borrow() == State::Paused {
            Err(paused(&shared.here, &self.site))
        } else {
            Ok(())
        }
    }

    /// Makes a connection the link with the site, if it may be. Whoever `decides` keeps a link that
    /// there is, unless the other agent was started again since; whoever does not takes what the
    /// other has decided.
    pub(super) fn install(
        &self,
        shared: &Shared,
        link: &Arc<Link>,
        life: u64,
        decides: bool,
    ) -> Result<(), End> {
        let mut inner = self.lock();
        self.may_link(shared)?;
        let (here, there) = (&shared.here, &self.site);
        if shared.tls.known(&link.key).as_ref() != Some(there) {
            let text = format!("`{there}` has another key by now than it has shown to `{here}`");
            return Err(End::ours(Code::Refused, text));
        }
        if let Some(old) = &inner.link {
            let holds = old.link.end().is_none();
            if decides && holds && old.life == life {
                let text = format!("`{here}` and `{there}` have a link already");
                return Err(End::ours(Code::Already, text));
            }
            old.link.close(End::ours(Code::Already, "another connection took its place"));
            inner.leave();
        }
        if decides {
            link.control.push(Frame::Up);
        }
        let now = Instant::now();
        if inner.lives.linked(life, now) {
            tracing::error!(site = %there, "two agents have the key of this site: its link switches between them");
        }
        inner.link = Some(Linked { link: link.clone(), life, since: now });
        inner.error = None;
        self.set_strange(false);
        link.site.send_replace(Some(there.clone()));
        self.state.send_replace(State::Reachable);
        shared.linked.send_modify(|count| *count += 1);
        Ok(())
    }

    /// The link has ended.
    pub(super) fn remove(&self, link: &Arc<Link>) {
        let mut inner = self.lock();
        let end = link.end();
        if end.is_some_and(|end| end.code == Code::Fault) {
            inner.faults += 1;
        }
        let current = inner.link.as_ref().is_some_and(|linked| Arc::ptr_eq(&linked.link, link));
        if !current {
            return;
        }
        inner.leave();
        let why = end.map_or("it ended", |end| &end.text);
        if *self.state.borrow() != State::Paused {
            inner.error = Some(why.to_owned());
            self.state.send_replace(State::Unreachable);
        }
        drop(inner);
        tracing::warn!(site = %self.site, "not linked any more: {why}");
    }

    /// An attempt to get a link has failed.
    pub(super) fn failed(&self, end: &End) {
        let mut inner = self.lock();
        if end.code == Code::Already || *self.state.borrow() != State::Unreachable {
            return;
        }
        // Whoever was told more by the site itself knows better.
        if self.is_strange() && inner.error.is_some() {
            return;
        }
        if inner.error.as_ref() != Some(&end.text) {
            let address = self.place().address;
            tracing::warn!(site = %self.site, address, "no link: {}", end.text);
            inner.error = Some(end.text.clone());
        }
    }

    /// Whether the next attempt may be made at once. It is asked once.
    pub(super) fn take_fresh(&self) -> bool {
        std::mem::take(&mut self.lock().fresh)
    }

    /// Closes the link and keeps it closed; until when is what is shown, and whoever pauses sees to it.
    /// Says which pause this is.
    pub(super) fn pause(&self, here: &SiteId, until: Option<SystemTime>) -> u64 {
        let mut inner = self.lock();
        inner.pauses += 1;
        inner.paused_until = until;
        self.state.send_replace(State::Paused);
        inner.error = None;
        if let Some(linked) = &inner.link {
            linked.link.close(paused(here, &self.site));
        }
        inner.pauses
    }

    /// Ends a pause, or any.
    pub(super) fn resume(&self, pause: Option<u64>) {
        let mut inner = self.lock();
        let meant = pause.is_none_or(|pause| pause == inner.pauses);
        if meant && *self.state.borrow() == State::Paused {
            inner.fresh = true;
            inner.paused_until = None;
            // A link that was closed and is not yet gone is not one to be counted on.
            inner.leave();
            self.state.send_replace(State::Unreachable);
        }
    }

    /// A ping was answered.
    pub(super) fn measured(&self, took: Duration, clock_offset: i64) {
        let mut inner = self.lock();
        inner.round_trip = Some(pace::smooth(inner.round_trip, took));
        let limit = CLOCK_LIMIT.as_millis();
        let off = |offset: i64| u128::from(offset.unsigned_abs()) > limit;
        if off(clock_offset) && !inner.clock_offset.is_some_and(off) {
            let span = duration::print(Duration::from_millis(clock_offset.unsigned_abs()));
            let way = if clock_offset > 0 { "ahead of" } else { "behind" };
            tracing::warn!(site = %self.site, "its clock is {span} {way} ours: set one of them");
        }
        inner.clock_offset = Some(clock_offset);
    }

    /// What the node knows of what the two share, for the next ping.
    pub(super) fn sample(&self, digest: Option<u64>) {
        self.lock().sampled = digest;
    }

    pub(super) fn sampled(&self) -> Option<u64> {
        self.lock().sampled
    }

    /// The two have compared what they know.
    pub(super) fn compared(&self, equal: bool) {
        self.lock().agreement.compared(equal, Instant::now());
    }

    pub(super) fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    pub(super) fn view(&self) -> Peer {
        let inner = self.lock();
        let (mut sent, mut received) = (inner.sent, inner.received);
        let (mut queue, mut dropped, mut seen) = (Queued::default(), inner.dropped, inner.seen);
        if let Some(Linked { link, .. }) = &inner.link {
            let standing = link.outbox.standing();
            queue = Queued { messages: standing.waiting, bytes: standing.weight };
            dropped += standing.dropped;
            let (more_sent, more_received) = traffic(link);
            sent.add(more_sent);
            received.add(more_received);
            seen = Some(wall(link.meter.heard()));
        }
        let shown = inner.link.as_ref().and_then(|linked| linked.link.shown.as_ref());
        let certificate = shown.and_then(|(chain, _)| Validity::of(chain.first()?));
        let certificate = certificate.map(|valid| valid.until);
        let config::Peer { address, key } = self.place();
        Peer {
            site: self.site.clone(),
            address,
            key,
            certificate,
            state: *self.state.borrow(),
            paused_until: inner.paused_until,
            round_trip: inner.round_trip,
            last_seen: seen,
            lag: inner.agreement.lag(Instant::now()),
            clock_offset: inner.clock_offset,
            queue,
            error: inner.error.clone(),
            is_doubled: inner.lives.are_two(Instant::now()),
            dropped,
            refused: inner.refused,
            faults: inner.faults,
            sent,
            received,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes the link out, and keeps what it had counted.
    fn leave(&mut self) {
        let Some(Linked { link, since, .. }) = self.link.take() else { return };
        let (sent, received) = traffic(&link);
        self.sent.add(sent);
        self.received.add(received);
        self.dropped += link.outbox.standing().dropped;
        self.seen = Some(wall(link.meter.heard()));
        self.agreement.cut();
        self.sampled = None;
        // One that ended as soon as it was there would end so again.
        self.fresh |= since.elapsed() >= Duration::from_secs(1);
    }
}

fn paused(here: &SiteId, there: &SiteId) -> End {
    End::ours(Code::Paused, format!("`{here}` has paused its link with `{there}`"))
}

fn traffic(link: &Link) -> (Traffic, Traffic) {
    let sent = Traffic { messages: link.outbox.standing().taken, bytes: link.meter.sent() };
    let messages = link.received.load(Ordering::Relaxed);
    (sent, Traffic { messages, bytes: link.meter.received() })
}

/// When that was on the wall clock.
fn wall(then: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(then.elapsed()).unwrap_or(now)
}
