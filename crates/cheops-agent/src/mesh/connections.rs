//! The connections of one listener: how many there are, whose they are, and which one makes room for another.
//!
//! What must stay true:
//! - there are never more than the limit, those included that have changed what they speak; one more waits;
//! - no address other than this machine has more than its share (IPv6: no /64);
//! - a connection with a request is never closed for another one. One that has never had a request is closed before one
//!   that waits for its next, and among these the one that has waited for longest.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::sleep};

use crate::limits::{NoPlace, Place, Places, sharer};

/// What part of the connections one address may have: half, as at the API.
const PART: usize = 2;
/// How long a connection is left alone before it may be closed for another. A request that is on its way arrives meanwhile.
const GRACE: Duration = Duration::from_millis(500);
/// How long to wait before it is looked again which connection can make room.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of a listener.
pub(super) struct Connections {
    places: Places,
    /// Whether addresses are told apart.
    shared: bool,
    /// Those that speak HTTP, the oldest first.
    open: Mutex<BTreeMap<u64, Arc<Open>>>,
    next: AtomicU64,
    /// A place is free.
    freed: Arc<Notify>,
}

/// The address has its share of connections, and each of them has a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// What came of looking for a connection to close.
enum Room {
    /// One of them is being closed.
    Soon,
    /// None can be closed now.
    None,
}

impl Connections {
    /// So many connections. `shared`: one address can't have all of them.
    pub(super) fn new(most: usize, shared: bool) -> Self {
        Self {
            places: Places::new(most, PART),
            shared,
            open: Mutex::default(),
            next: AtomicU64::new(0),
            freed: Arc::default(),
        }
    }

    /// How many connections one address may have.
    pub(super) fn share(&self) -> usize {
        self.places.share()
    }

    /// Takes a place for a connection. Waits as long as all are taken by connections with requests.
    pub(super) async fn admit(&self, from: IpAddr) -> Result<Arc<Seat>, TooMany> {
        let who = self.sharer(from);
        loop {
            let full = match self.places.take(who.clone()) {
                Ok(place) => {
                    let freed = self.freed.clone();
                    return Ok(Arc::new(Seat { place: Some(place), freed }));
                }
                Err(full) => full,
            };
            let room = match full {
                NoPlace::All => self.make_room(None),
                NoPlace::Share => self.make_room(who.as_deref()),
            };
            if let (NoPlace::Share, Room::None) = (full, room) {
                return Err(TooMany);
            }
            tokio::select! {
                () = self.freed.notified() => {}
                () = sleep(PAUSE) => {}
            }
        }
    }

    /// Lists a connection that begins to speak HTTP.
    pub(super) fn list(self: &Arc<Self>, from: IpAddr) -> Listed {
        let open = Arc::new(Open::new(self.sharer(from)));
        let id = self.next.fetch_add(1, Relaxed);
        self.lock().insert(id, open.clone());
        Listed { connections: self.clone(), id, open }
    }

    fn sharer(&self, from: IpAddr) -> Option<String> {
        self.shared.then(|| sharer(from)).flatten()
    }

    /// Has one connection closed that has no request: any, or one of an address.
    fn make_room(&self, whose: Option<&str>) -> Room {
        let open = self.lock();
        let theirs = || open.iter().filter(|(_, o)| whose.is_none() || o.whose.as_deref() == whose);
        if theirs().any(|(_, open)| open.closing.load(Relaxed)) {
            return Room::Soon;
        }
        let found = first_to_close(theirs().map(|(id, open)| (*id, open.state())));
        match found.and_then(|id| open.get(&id)) {
            Some(open) => {
                open.closing.store(true, Relaxed);
                open.close.notify_one();
                Room::Soon
            }
            None => Room::None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection. It is free when the last clone is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    place: Option<Place>,
    freed: Arc<Notify>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Whoever waits looks for the place when it is told.
        self.place = None;
        self.freed.notify_one();
    }
}

/// A connection that speaks HTTP, until this is dropped.
pub(super) struct Listed {
    connections: Arc<Connections>,
    id: u64,
    pub(super) open: Arc<Open>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.connections.lock().remove(&self.id);
    }
}

/// What is known of a connection when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// Whether there was a request on it.
    asked: bool,
    /// For how long it has had none; nothing, if it has one.
    idle: Option<Duration>,
}

/// The connection that is closed first when room is needed, if there is one that can be.
fn first_to_close(all: impl Iterator<Item = (u64, State)>) -> Option<u64> {
    let idle = all.filter_map(|(id, state)| Some((id, state.asked, state.idle?)));
    let ripe = idle.filter(|(.., idle)| *idle >= GRACE);
    ripe.min_by_key(|(_, asked, idle)| (*asked, Reverse(*idle))).map(|(id, ..)| id)
}

/// What happens on a connection.
#[derive(Debug)]
pub(super) struct Open {
    /// Who shares connections with it, if that is limited.
    whose: Option<String>,
    began: Instant,
    /// How many requests came.
    asked: AtomicU64,
    /// How many of them have no answer yet, and of how many the answer is being taken.
    waiting: AtomicUsize,
    answering: AtomicUsize,
    /// How many parts of answers were taken.
    taken: AtomicU64,
    /// When the last request ended, in milliseconds after it began.
    ended: AtomicU64,
    /// It is to make room, and has not yet said that it can't.
    closing: AtomicBool,
    close: Notify,
}

impl Open {
    fn new(whose: Option<String>) -> Self {
        Self {
            whose,
            began: Instant::now(),
            asked: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            answering: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            close: Notify::new(),
        }
    }

    /// Waits until it is to make room for another connection.
    pub(super) async fn asked_to_close(&self) {
        self.close.notified().await;
    }

    /// Whether it can make room: no request has come meanwhile.
    pub(super) fn can_close(&self) -> bool {
        let can = !self.is_busy();
        self.closing.store(can, Relaxed);
        can
    }

    /// What has to change as long as nobody has asked for anything.
    pub(super) fn asks(&self) -> Option<u64> {
        (!self.is_busy()).then(|| self.asked.load(Relaxed))
    }

    /// What has to change as long as there are answers to take and nothing to wait for.
    pub(super) fn takes(&self) -> Option<u64> {
        let answers = self.waiting.load(Relaxed) == 0 && self.answering.load(Relaxed) > 0;
        answers.then(|| self.taken.load(Relaxed))
    }

    fn is_busy(&self) -> bool {
        self.waiting.load(Relaxed) + self.answering.load(Relaxed) > 0
    }

    fn state(&self) -> State {
        let ended = Duration::from_millis(self.ended.load(Relaxed));
        let idle = self.began.elapsed().saturating_sub(ended);
        State { asked: self.asked.load(Relaxed) > 0, idle: (!self.is_busy()).then_some(idle) }
    }

    fn request_ended(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.ended.store(now, Relaxed);
    }
}

/// A request of a connection, until it is answered.
pub(super) struct Asked(Arc<Open>);

impl Asked {
    pub(super) fn new(open: &Arc<Open>) -> Self {
        open.asked.fetch_add(1, Relaxed);
        open.waiting.fetch_add(1, Relaxed);
        Self(open.clone())
    }

    pub(super) fn answered(self) -> Answering {
        self.0.answering.fetch_add(1, Relaxed);
        Answering(self.0.clone())
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // It may have been given up without an answer.
        self.0.request_ended();
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// An answer of a connection, until it is taken whole.
pub(super) struct Answering(Arc<Open>);

impl Answering {
    /// A part of it was taken.
    pub(super) fn taken(&self) {
        self.0.taken.fetch_add(1, Relaxed);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.request_ended();
        self.0.answering.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_without_a_request_that_has_waited_for_longest_is_closed_first() {
        let silent = |ms| State { asked: false, idle: Some(Duration::from_millis(ms)) };
        let kept = |ms| State { asked: true, idle: Some(Duration::from_millis(ms)) };
        let busy = State { asked: true, idle: None };
        for (all, expected) in [
            (&[][..], None),
            (&[busy], None),
            (&[silent(0), kept(499), busy], None),
            (&[busy, silent(500)], Some(1)),
            (&[kept(60_000), silent(500)], Some(1)),
            (&[silent(600), silent(900), silent(700)], Some(1)),
            (&[kept(600), busy, kept(900)], Some(2)),
            // The older one of two that have waited for as long.
            (&[kept(600), kept(600)], Some(0)),
            // One that has just come is left alone, even if it is the only one without a request.
            (&[silent(10), kept(600)], Some(1)),
        ] {
            let all = (0..).zip(all.iter().copied());
            assert_eq!(first_to_close(all.clone()), expected, "{:?}", all.collect::<Vec<_>>());
        }
    }

    /// The address of another machine.
    const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[tokio::test]
    async fn an_address_has_its_share_and_closes_its_own_idle_connections_first() {
        let connections = Arc::new(Connections::new(16, true));
        let mut seats = Vec::new();
        let mut listed = Vec::new();
        for _ in 0..connections.share() {
            seats.push(connections.admit(FAR).await.unwrap());
            listed.push(connections.list(FAR));
        }
        // All are new, and a request may be on its way.
        assert_eq!(connections.admit(FAR).await.unwrap_err(), TooMany);
        // One that serves a request is not closed, however long it takes; one that has none is.
        let _asked: Vec<Asked> =
            listed[1..].iter().map(|listed| Asked::new(&listed.open)).collect();
        sleep(GRACE).await;
        let (admitted, ()) = tokio::join!(connections.admit(FAR), async {
            listed[0].open.asked_to_close().await;
            assert!(listed[0].open.can_close());
            seats.remove(0);
        });
        seats.push(admitted.unwrap());
        drop(listed.remove(0));
        assert_eq!(connections.admit(FAR).await.unwrap_err(), TooMany);
        // This machine is not told apart, nor is anybody where addresses are not.
        let here: IpAddr = std::net::Ipv4Addr::LOCALHOST.into();
        seats.push(connections.admit(here).await.unwrap());
        let calls = Connections::new(16, false);
        for _ in 0..16 {
            seats.push(calls.admit(FAR).await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_connection_that_gets_a_request_meanwhile_stays() {
        let connections = Arc::new(Connections::new(1, false));
        let seat = connections.admit(FAR).await.unwrap();
        let listed = connections.list(FAR);
        sleep(GRACE).await;
        let waits = tokio::spawn({
            let connections = connections.clone();
            async move { connections.admit(FAR).await.is_ok() }
        });
        listed.open.asked_to_close().await;
        let asked = Asked::new(&listed.open);
        assert!(!listed.open.can_close());
        // It is asked again when that has ended, and not before it was left alone for a while.
        drop(asked.answered());
        listed.open.asked_to_close().await;
        assert!(listed.open.state().idle >= Some(GRACE) && listed.open.can_close());
        drop((listed, seat));
        assert!(waits.await.unwrap());
    }
}
