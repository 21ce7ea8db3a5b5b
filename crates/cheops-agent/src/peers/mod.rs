//! Links to other agents: messages of the replica, calls, and who can be reached.
//!
//! There is one TCP connection between two agents, protected by TLS, in HTTP/2, for everything that they
//! have to tell each other. `dial` and `http` make connections, `link` makes one of them the link of two sites
//! and runs it, `call` asks another agent over it, `slot` is what is known of one site, `queue` is what waits to be sent, `pace` is
//! arithmetic, `lives` tells one agent from two, `transport` is what lies under HTTP/2. `guest` is for those who are not known yet, `odds` is
//! what is said of those who are not recognised.
//!
//! What must stay true:
//! - there is a slot for each site that [`Members`] names and for no other: one that is named no more has
//!   no link from then on;
//! - sending never blocks, and nothing is unbounded: what does not fit is dropped, and the two sites
//!   compare when there is room again;
//! - each link has tasks of its own: a site that is slow or gone delays no other;
//! - whatever waits on a link fails when the link ends;
//! - no record reaches the node that its site has not sealed, whoever brings it;
//! - nothing that a peer sends leads to a panic, or to memory in proportion to a number it names.

mod call;
mod dial;
mod guest;
mod http;
mod link;
mod lives;
mod odds;
mod pace;
mod queue;
mod slot;
mod transport;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use axum::{Router, body::Body};
use cheops_core::{
    id::SiteId,
    replica::{Message, Record},
    scope::Catalogue,
    trust::PublicKey,
};
use futures_util::future::BoxFuture;
use hyper::{Request, Response, StatusCode};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot, watch},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

pub use self::guest::{Guest, VisitError};
pub(crate) use self::http::{MOST_FORWARDED, SERVICE};
use self::{
    link::{End, Link},
    slot::Slot,
};
use crate::{
    config::{Config, Links},
    contended,
    limits::Seldom,
    node,
    problems::Noted,
    trust::{Doubt, Identity, Members, Tls, followed::LOOK, pki::Pki, tls},
    wire::frame::{Code, Frame, Hello},
};

/// By how much the clocks of two sites may differ before that is worth a word.
pub const CLOCK_LIMIT: Duration = Duration::from_secs(5);
/// How many connections of each site may be open, and how many more: from agents that are not known.
const OF_A_SITE: usize = 4;
const STRANGERS: usize = 64;
/// How many reasons for turning somebody away are remembered, so that the log says each once.
const REASONS: usize = 64;
/// And how many of them in a minute; the others are counted.
const SAID: u32 = 10;
/// How long the streams of a new link may take before a call fails.
const OPENING: Duration = Duration::from_secs(1);
/// How long to wait for links to be closed.
const STOPPING: Duration = Duration::from_secs(3);

/// The links of this site. All clones are the same.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<Shared>,
}

/// Who asks: in the extensions of each request that another agent sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(pub SiteId);

/// Who answers the requests of other agents.
pub trait Calls: Send + Sync + 'static {
    /// Answers a request; it has a [`Caller`] among its extensions.
    fn answer(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>>;

    /// Answers a request of one that is not known; it has a [`Guest`] among its extensions.
    fn welcome(&self, _request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        Box::pin(async { http::refuse(StatusCode::FORBIDDEN, "there is nothing here for guests") })
    }
    /// Hears that one who dialled from an address was turned away.
    fn turned_away(&self, _from: SocketAddr, _why: &str) {}
}

impl Calls for Router {
    fn answer(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let answered = self.clone().oneshot(request);
        Box::pin(async move {
            match answered.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

/// What is known of another site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The site.
    pub site: SiteId,
    /// Where its agent listens.
    pub address: String,
    /// What it is recognised by; none if it has not said it yet.
    pub key: Option<PublicKey>,
    /// When the certificate ends that it has shown on the link.
    pub certificate: Option<SystemTime>,
    /// Whether there is a link.
    pub state: State,
    /// When its pause ends by itself, if it is paused for a time.
    pub paused_until: Option<SystemTime>,
    /// How long a ping takes there and back, smoothed. The last known if there is no link.
    pub round_trip: Option<Duration>,
    /// When anything was last heard.
    pub last_seen: Option<SystemTime>,
    /// How long ago the two sites last knew the same of what they share: zero if they do. None if
    /// that was not seen since the agent started.
    pub lag: Option<Duration>,
    /// By how many milliseconds its clock is ahead of ours.
    pub clock_offset: Option<i64>,
    /// What waits to be sent.
    pub queue: Queued,
    /// Why there is no link.
    pub error: Option<String>,
    /// Whether two agents have its key: the link has switched between them.
    pub is_doubled: bool,
    /// How many messages were dropped since the agent started because too much waited.
    pub dropped: u64,
    /// How many records and messages of it were refused since the agent started.
    pub refused: u64,
    /// How many links have broken, or ended because of what came over them.
    pub faults: u64,
    /// What was sent since the agent started.
    pub sent: Traffic,
    /// What was received since the agent started.
    pub received: Traffic,
}

impl Peer {
    /// Whether the clocks of the two sites differ by more than [`CLOCK_LIMIT`].
    pub fn clock_is_off(&self) -> bool {
        let offset = self.clock_offset.map_or(0, i64::unsigned_abs);
        u128::from(offset) > CLOCK_LIMIT.as_millis()
    }
}

/// What a site says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Learned {
    /// Its round trips to other sites, as it has measured them.
    pub round_trips: BTreeMap<SiteId, Duration>,
    /// The sites that it has no link to; a round trip to one of them is the last known.
    pub cut: BTreeSet<SiteId>,
    /// The services of which it has an instance.
    pub services: BTreeSet<String>,
    /// Where people reach its page.
    pub page: Option<String>,
    /// Whether it takes in what another site's CouchDB replicates.
    pub replicates: bool,
}

/// Whether a site can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// There is a link.
    Reachable,
    /// There is none, and one is tried for.
    Unreachable,
    /// There is none, because someone said so.
    Paused,
}

/// What waits to be sent to a site.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queued {
    /// How many messages.
    pub messages: usize,
    /// About how many bytes they take.
    pub bytes: usize,
}

/// What went one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many messages of the replica.
    pub messages: u64,
    /// How many bytes of all sorts.
    pub bytes: u64,
}

impl Traffic {
    fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }
}

/// Why another agent did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It is not known.
    #[error("`{0}` is not a site that is known here: let it join, or add it to the configuration")]
    Unknown(SiteId),
    /// There is no link.
    #[error("`{site}` can't be reached now: {why}")]
    NotConnected {
        /// The site.
        site: SiteId,
        /// Why not, as far as it is known.
        why: String,
    },
    /// Someone has paused the link.
    #[error("the link with `{0}` is paused: resume it first")]
    Paused(SiteId),
    /// The link or the other agent failed before there was an answer. The call may have been
    /// carried out.
    #[error("the call to `{site}` broke off: {why}")]
    Broke {
        /// The site.
        site: SiteId,
        /// What happened.
        why: String,
    },
}

/// What all tasks of the links share.
pub(crate) struct Shared {
    here: SiteId,
    life: u64,
    links: Links,
    node: node::Handle,
    members: Members,
    slots: RwLock<BTreeMap<SiteId, Arc<Slot>>>,
    /// Counts how often a site was linked.
    linked: watch::Sender<u64>,
    noted: Noted,
    tls: Tls,
    /// How many connections may be open.
    room: Arc<Semaphore>,
    address: SocketAddr,
    listener: Mutex<Option<TcpListener>>,
    calls: OnceLock<Box<dyn Calls>>,
    turned_away: Mutex<BTreeSet<String>>,
    /// What is said of those who are turned away, and of those for whom there is no room.
    strangers: Seldom,
    crowd: Seldom,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Shared {
    fn slot(&self, site: &SiteId) -> Option<Arc<Slot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).get(site).cloned()
    }

    fn slots(&self) -> Vec<Arc<Slot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Makes a slot for each site that is known now, and ends those of the others.
    fn reconcile(self: &Arc<Self>, dials: bool) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        // Asked while nobody else does this: who is slower must not bring back what it has asked before.
        let mut others = self.members.others();
        slots.retain(|site, slot| {
            let place = others.remove(site);
            if let Some(place) = &place {
                slot.settle(place);
            } else {
                slot.retire(&self.here);
                self.room.forget_permits(OF_A_SITE);
            }
            place.is_some()
        });
        for (site, place) in others {
            let slot = Arc::new(Slot::new(site.clone(), place));
            self.room.add_permits(OF_A_SITE);
            if dials {
                // It has just joined, or this site has: it is dialled when it has heard of that, too.
                slot.take_fresh();
                self.tasks.spawn(dial::keep(self.clone(), slot.clone()));
            }
            slots.insert(site, slot);
        }
    }

    fn wall(&self) -> u64 {
        self.node.now().wall.0
    }

    fn hello(&self) -> Frame {
        Frame::Hello(Hello { site: self.here.clone(), life: self.life, wall: self.wall() })
    }

    fn stopping(&self) -> End {
        End::ours(Code::Stopping, format!("`{}` is stopping", self.here))
    }

    /// Someone dialled from an address, and there is no link.
    fn turned_away(&self, from: SocketAddr, end: &End) {
        if end.code == Code::Already {
            return;
        }
        self.say_once(from, end.text.clone());
    }

    /// Someone dialled from an address, and did not prove to be a site that is known.
    fn not_known(&self, from: SocketAddr, error: &io::Error) {
        if tls::has_left(error) {
            return;
        }
        let text = odds::arrived(self, from.ip(), error);
        self.say_once(from, text);
    }

    /// A site has sent a record that its own site has not sealed, or that does not count.
    fn doubted(&self, slot: &Slot, record: &Record, doubt: Doubt) {
        let (from, origin) = (&slot.site, &record.id().site);
        slot.refused();
        let (why, next) = (doubt.says(origin), doubt.next(&self.here, from, origin));
        if self.noted.doubted(from, Some(record.resource()), &why, &next) {
            let (resource, id) = (record.resource(), record.id());
            tracing::warn!(%from, %resource, %id, "a record was not taken in: {why}; {next}");
            self.node.refused(from, resource, doubt.word());
        }
    }

    /// A site has sent what is no message.
    fn unreadable(&self, slot: &Slot, why: &str) {
        slot.refused();
        let next = format!(
            "look at the versions of both agents; if they are the same, look at the machine of `{}`",
            slot.site
        );
        self.noted.doubted(&slot.site, None, why, &next);
    }

    fn say_once(&self, from: SocketAddr, text: String) {
        if let Some(calls) = self.calls.get() {
            calls.turned_away(from, &text);
        }
        let mut said = self.turned_away.lock().unwrap_or_else(PoisonError::into_inner);
        if said.contains(&text) {
            return;
        }
        // Whoever makes a new key for each attempt has a new text each time.
        if let Some(unsaid) = self.strangers.again(Instant::now()) {
            tracing::warn!(unsaid, "no link with one who dialled: {text}");
        }
        if said.len() >= REASONS {
            said.clear();
        }
        said.insert(text);
    }
}

impl Peers {
    /// Binds the port for other agents. Nobody is answered and nobody dialled before [`Peers::serve`].
    pub async fn bind(
        config: &Config,
        members: Members,
        pki: Option<Arc<Pki>>,
        noted: Noted,
        node: node::Handle,
    ) -> io::Result<Self> {
        let listener = contended::listen(config.peers).await?;
        let known = Arc::new(members.clone());
        let tls = match pki {
            Some(pki) => Ok(Tls::with_pki(pki, members.own(), known)),
            None => Tls::new(&members.identity(), known),
        };
        let shared = Arc::new(Shared {
            here: config.site.clone(),
            life: fastrand::u64(..),
            links: config.links.clone(),
            node,
            members,
            noted,
            slots: RwLock::default(),
            linked: watch::Sender::new(0),
            tls: tls.map_err(io::Error::other)?,
            room: Arc::new(Semaphore::new(STRANGERS)),
            address: listener.local_addr()?,
            listener: Mutex::new(Some(listener)),
            calls: OnceLock::new(),
            turned_away: Mutex::default(),
            strangers: Seldom::new(SAID),
            crowd: Seldom::new(1),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        shared.reconcile(false);
        Ok(Self { shared })
    }

    /// Answers and dials other agents from now on, for ever. Only the first call has an effect.
    pub fn serve(&self, calls: impl Calls) {
        let shared = &self.shared;
        let listener = shared.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(listener) = listener else { return };
        // It was not set before: whoever takes the listener is the only one to set it.
        let _ = shared.calls.set(Box::new(calls));
        shared.tasks.spawn(accept(shared.clone(), listener));
        shared.tasks.spawn(beat(shared.clone()));
        for slot in shared.slots() {
            shared.tasks.spawn(dial::keep(shared.clone(), slot));
        }
        shared.tasks.spawn(follow(shared.clone()));
        if let Some(pki) = shared.tls.pki() {
            shared.tasks.spawn(renew(shared.clone(), pki.clone()));
        }
    }

    /// The PKI by which sites recognise each other, if there is one.
    pub fn pki(&self) -> Option<&Arc<Pki>> {
        self.shared.tls.pki()
    }

    /// Who this site takes for whom.
    pub fn members(&self) -> &Members {
        &self.shared.members
    }

    /// Counts how often a site was linked, so that one can wait for the next time.
    pub fn links(&self) -> watch::Receiver<u64> {
        self.shared.linked.subscribe()
    }

    /// The other sites that are known now.
    pub fn sites(&self) -> BTreeSet<SiteId> {
        self.shared.slots().into_iter().map(|slot| slot.site.clone()).collect()
    }

    /// Whether there is another site with this name.
    pub fn knows(&self, site: &SiteId) -> bool {
        self.shared.slot(site).is_some()
    }

    /// Those that are linked now.
    pub fn reachable(&self) -> Vec<SiteId> {
        self.linked_by(|_| true)
    }

    /// Those of them that were dialled from here: of two sites that are linked, the other is one for
    /// exactly one of them.
    pub fn dialled(&self) -> Vec<SiteId> {
        self.linked_by(|link| link.dialled)
    }

    fn linked_by(&self, which: impl Fn(&Link) -> bool) -> Vec<SiteId> {
        let slots = self.shared.slots();
        let linked = slots.iter().filter(|slot| slot.link().is_some_and(|link| which(&link)));
        linked.map(|slot| slot.site.clone()).collect()
    }

    /// Whether a site does not know the key of this one.
    pub fn is_strange(&self, site: &SiteId) -> bool {
        self.shared.slot(site).is_some_and(|slot| slot.is_strange())
    }

    /// Tries for a link now, without the wait that is due.
    pub fn redial(&self, site: &SiteId) {
        if let Some(slot) = self.shared.slot(site) {
            slot.nudged.notify_one();
        }
    }

    /// Takes note of why there is no link to a site.
    pub fn note(&self, site: &SiteId, why: String) {
        if let Some(slot) = self.shared.slot(site) {
            slot.note(why);
        }
    }

    /// Shows another key to the others from now on; links that are there stay.
    pub fn renew(&self, identity: &Identity) -> io::Result<()> {
        self.shared.tls.renew(identity).map_err(io::Error::other)
    }

    /// The key of this site.
    pub fn key(&self) -> PublicKey {
        self.shared.tls.own()
    }

    /// Where this agent listens for others.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Sends a message, or drops it: if there is no link, or too much waits already. In the second
    /// case the node is told once more that the site is up as soon as nothing waits.
    pub fn send(&self, to: &SiteId, message: Message) {
        if let Some(link) = self.shared.slot(to).and_then(|slot| slot.link()) {
            link.outbox.push(message);
        }
    }

    /// Takes note that something a site has sent was refused.
    pub fn refused(&self, site: &SiteId) {
        if let Some(slot) = self.shared.slot(site) {
            slot.refused();
        }
    }

    /// Whether there is a link to a site; if not, why a call would fail.
    pub fn linked(&self, site: &SiteId) -> Result<(), CallError> {
        self.link(site).map(|_| ())
    }

    /// What is known of the other sites, by name.
    pub fn view(&self) -> Vec<Peer> {
        self.shared.slots().iter().map(|slot| slot.view()).collect()
    }

    /// The sites, how far they are from here, and which of them can be reached.
    pub fn catalogue(&self) -> Catalogue {
        let here = &self.shared.here;
        let slots = self.shared.slots();
        let names = slots.iter().map(|slot| slot.site.clone()).chain([here.clone()]);
        let mut catalogue = Catalogue::new(names);
        for (site, learned) in self.learned() {
            for (to, round_trip) in learned.round_trips {
                catalogue.measure(site.clone(), to, round_trip);
            }
        }
        for peer in slots.iter().map(|slot| slot.view()) {
            if let Some(round_trip) = peer.round_trip {
                catalogue.measure(here.clone(), peer.site.clone(), round_trip);
            }
            catalogue.set_reachable(peer.site, peer.state == State::Reachable);
        }
        catalogue
    }

    /// Takes note of what a site says of itself.
    pub fn learn(&self, site: &SiteId, learned: Learned) {
        if let Some(slot) = self.shared.slot(site) {
            slot.learn(learned);
        }
    }

    /// What the other sites say of themselves, as far as they have said anything.
    pub fn learned(&self) -> BTreeMap<SiteId, Learned> {
        let slots = self.shared.slots();
        slots.iter().filter_map(|slot| Some((slot.site.clone(), slot.learned()?))).collect()
    }

    /// Whether a site has said that it has no instance of a service.
    pub fn lacks(&self, site: &SiteId, service: &str) -> bool {
        let learned = self.shared.slot(site).and_then(|slot| slot.learned());
        learned.is_some_and(|learned| !learned.services.contains(service))
    }

    /// Measures a round trip now.
    pub async fn ping(&self, site: &SiteId) -> Result<Duration, CallError> {
        let (slot, link) = self.link(site)?;
        let (to_answer, answer) = oneshot::channel();
        link.ping(None, Some(to_answer));
        tokio::select! {
            answer = timeout(self.shared.links.silence, answer) => {
                let broke = |why: &str| CallError::Broke { site: site.clone(), why: why.to_owned() };
                answer.ok().and_then(Result::ok).ok_or_else(|| broke("a ping was not answered"))
            }
            () = link.ended() => Err(not_connected(&slot, &link)),
        }
    }

    /// Closes the link with a site, or all links, and keeps them closed: for some time, or until
    /// they are resumed. To the two nodes it looks like a cut.
    pub fn pause(&self, site: Option<&SiteId>, span: Option<Duration>) -> Result<(), CallError> {
        let until = span.and_then(|span| SystemTime::now().checked_add(span));
        for slot in self.meant(site)? {
            let pause = slot.pause(&self.shared.here, until);
            tracing::info!(site = %slot.site, "the link is paused");
            let Some(span) = span else { continue };
            let (stop, slot) = (self.shared.stop.clone(), slot.clone());
            self.shared.tasks.spawn(async move {
                tokio::select! {
                    () = sleep(span) => slot.resume(Some(pause)),
                    () = stop.cancelled() => {}
                }
            });
        }
        Ok(())
    }

    /// Ends a pause of the link with a site, or of all links.
    pub fn resume(&self, site: Option<&SiteId>) -> Result<(), CallError> {
        self.meant(site)?.iter().for_each(|slot| slot.resume(None));
        Ok(())
    }

    /// Closes all links and the port, and waits for that, within reason.
    pub async fn stop(&self) {
        let shared = &self.shared;
        shared.stop.cancel();
        // A port that was never served is closed, too.
        drop(shared.listener.lock().unwrap_or_else(PoisonError::into_inner).take());
        for link in shared.slots().iter().filter_map(|slot| slot.link()) {
            link.close(shared.stopping());
        }
        shared.tasks.close();
        if timeout(STOPPING, shared.tasks.wait()).await.is_err() {
            tracing::warn!("some links could not be closed in time");
        }
    }

    fn slot(&self, site: &SiteId) -> Result<Arc<Slot>, CallError> {
        self.shared.slot(site).ok_or_else(|| CallError::Unknown(site.clone()))
    }

    fn meant(&self, site: Option<&SiteId>) -> Result<Vec<Arc<Slot>>, CallError> {
        match site {
            Some(site) => Ok(vec![self.slot(site)?]),
            None => Ok(self.shared.slots()),
        }
    }

    fn link(&self, site: &SiteId) -> Result<(Arc<Slot>, Arc<Link>), CallError> {
        let slot = self.slot(site)?;
        match slot.link().filter(|link| link.end().is_none()) {
            Some(link) => Ok((slot, link)),
            None if *slot.state().borrow() == State::Paused => Err(CallError::Paused(site.clone())),
            None => {
                let why = slot.error().unwrap_or_else(|| "there was no link yet".to_owned());
                Err(CallError::NotConnected { site: site.clone(), why })
            }
        }
    }
}

fn not_connected(slot: &Slot, link: &Link) -> CallError {
    let why = link.end().map_or("its link is not open yet", |end| &end.text);
    CallError::NotConnected { site: slot.site.clone(), why: why.to_owned() }
}

/// Keeps to the sites that are known, as they come and go.
async fn follow(shared: Arc<Shared>) {
    let mut ledger = shared.members.ledger().changes();
    loop {
        shared.reconcile(true);
        tokio::select! {
            changed = ledger.changed() => if changed.is_err() { return },
            () = shared.stop.cancelled() => return,
        }
    }
}

/// Keeps to the certificates that count, as they come and go. Links that were made with one that does not count any
/// more are ended; a site that has a new one makes another link with it.
async fn renew(shared: Arc<Shared>, pki: Arc<Pki>) {
    let mut learned = shared.members.introductions();
    loop {
        tokio::select! {
            () = sleep(LOOK) => {}
            _ = learned.changed() => {
                shared.reconcile(true);
                continue;
            }
            () = shared.stop.cancelled() => return,
        }
        let looking = pki.clone();
        let _ = tokio::task::spawn_blocking(move || looking.look()).await;
        let now = SystemTime::now();
        for slot in shared.slots() {
            let Some(link) = slot.link() else { continue };
            let Some((chain, shown)) = &link.shown else { continue };
            if let Err(refusal) = pki.judge(&slot.site, chain, *shown, now) {
                let why = refusal.says(&format!("`{}`", slot.site));
                link.close(End::ours(Code::Refused, why));
            }
        }
    }
}

/// Accepts connections until the agent stops.
async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        match accepted {
            Ok((tcp, from)) => {
                let Ok(permit) = shared.room.clone().try_acquire_owned() else {
                    if let Some(unsaid) = shared.crowd.again(Instant::now()) {
                        tracing::warn!(%from, unsaid, "as many connections are open as may be: one more is closed");
                    }
                    continue;
                };
                let serving = Box::pin(http::serve(shared.clone(), tcp, from));
                shared.tasks.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Pings all sites that are linked, each with the digest of what the two share. The node is asked
/// once for all of them.
async fn beat(shared: Arc<Shared>) {
    let mut ticks = interval(shared.links.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.stop.cancelled() => return,
        }
        let linked = |slot: &Arc<Slot>| slot.link().map(|link| (slot.clone(), link));
        let linked: Vec<_> = shared.slots().iter().filter_map(linked).collect();
        if linked.is_empty() {
            continue;
        }
        let sites: Vec<SiteId> = linked.iter().map(|(slot, _)| slot.site.clone()).collect();
        let read = shared.node.read(move |replica| {
            sites.iter().map(|site| replica.shared_digest(site)).collect::<Vec<_>>()
        });
        // A node that is busy must not make this site look dead.
        let digests = match timeout(shared.links.heartbeat / 4, read).await {
            Ok(Ok(digests)) => digests,
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        for (n, (slot, link)) in linked.iter().enumerate() {
            let digest = digests.get(n).copied();
            slot.sample(digest);
            link.ping(digest, None);
        }
    }
}
