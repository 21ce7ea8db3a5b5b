//! A small site: a real node and real links, with a disk in memory and commands that succeed.

use std::{
    collections::BTreeMap,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use axum::Router;
use cheops_agent::{
    config::Config,
    node::{self, Clock, Hands, Running},
    peers::{Peer, Peers, State},
    problems::Noted,
    trust::{Identity, Ledger, Members, Sealer, pki::Pki},
};
use cheops_core::{
    id::{SiteId, Sites},
    operation::Action,
    plan::Outcome,
    replica::{
        Answer, Effect, Event, Input, Message, Replica, Report, Settings, Stretch, Submission,
        Ticket,
    },
    time::Millis,
};
use tokio::runtime::Handle;

pub(crate) use crate::disk::{Disk, hold};

struct TestHands {
    peers: Peers,
    noted: Noted,
    node: node::Handle,
    runtime: Handle,
    /// How often each site was asked to compare all: once for each time that it came up.
    compared: Arc<Mutex<BTreeMap<SiteId, u64>>>,
}

impl Hands for TestHands {
    fn send(&mut self, to: &SiteId, message: Message) {
        if let Message::Compare(stretches) = &message
            && stretches[0].0 == Stretch::default()
        {
            *self.compared.lock().unwrap().entry(to.clone()).or_default() += 1;
        }
        self.peers.send(to, message);
    }

    fn run(&mut self, effect: Effect) {
        let Effect::Run { run, .. } = effect else { return };
        let node = self.node.clone();
        self.runtime.spawn(async move {
            let report =
                Report { outcome: Outcome::Ok, took: Millis(1), output: "".into(), made: None };
            let _ = node.tell(Input::Ran { run, report }).await;
        });
    }

    fn tell(&mut self, event: &Event) {
        if let Event::Refused { from, resource, why } = event {
            self.peers.refused(from);
            self.noted.refused(from, resource, why);
        }
    }
}

/// What a site is started with.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) disk: Disk,
    pub(crate) calls: Router,
    pub(crate) settings: Settings,
}

pub(crate) struct Site {
    pub(crate) plan: Plan,
    pub(crate) peers: Peers,
    pub(crate) node: node::Handle,
    pub(crate) noted: Noted,
    pub(crate) compared: Arc<Mutex<BTreeMap<SiteId, u64>>>,
    running: Running,
}

/// An address that no other test has, on the loopback interface, which has sixteen million.
pub(crate) fn address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    // The first of each belong to the machine and to outgoing connections.
    SocketAddr::from(([127, high.max(1), low, last.max(1)], port))
}

pub(crate) fn name(name: &str) -> SiteId {
    name.parse().unwrap()
}

/// The key pair of a site with a name.
pub(crate) fn identity(site: &str) -> Identity {
    Identity::from_seed(blake3::hash(site.as_bytes()).as_bytes()).unwrap()
}

pub(crate) const RESOURCE: &str = "thing";

impl Plan {
    /// A site that knows no other.
    pub(crate) fn new(site: &str) -> Self {
        let mut config = Config::new(name(site), "/nowhere");
        config.peers = address();
        config.links.heartbeat = Duration::from_millis(100);
        config.links.silence = Duration::from_secs(4);
        config.links.retry = Duration::from_millis(400);
        let settings = Settings { compare_every: Millis(3_600_000), ..Settings::default() };
        Self { config, disk: Disk::default(), calls: Router::new(), settings }
    }

    /// Lets it know another site by an address.
    pub(crate) fn knows(&mut self, site: &SiteId, address: SocketAddr) {
        let key = identity(site.as_str()).public();
        self.config.add_site(site.clone(), address.to_string(), key).unwrap();
    }

    /// Lets it find a site that it knows at another address.
    pub(crate) fn finds(&mut self, site: &str, address: SocketAddr) {
        let peer = self.config.sites.get_mut(&name(site)).unwrap();
        peer.address = address.to_string();
    }

    pub(crate) async fn start(self) -> Site {
        let (node, inbox) = node::channel(Clock::default());
        let identity = identity(self.config.site.as_str());
        let ledger = Ledger::open(&self.config.data).unwrap();
        let members = Members::new(&self.config, identity, ledger);
        let noted = Noted::default();
        let pki = self.config.pki.as_ref().map(|files| Pki::open(&self.config.site, files));
        let pki = pki.transpose().unwrap();
        let peers =
            Peers::bind(&self.config, members.clone(), pki, noted.clone(), node.clone()).await;
        let peers = peers.unwrap();
        let compared: Arc<Mutex<BTreeMap<SiteId, u64>>> = Arc::default();
        let hands = TestHands {
            peers: peers.clone(),
            noted: noted.clone(),
            node: node.clone(),
            runtime: Handle::current(),
            compared: compared.clone(),
        };
        let written = self.disk.written();
        let replica = Replica::restore(self.config.site.clone(), self.settings.clone(), written);
        let sealer = Sealer::of(&members);
        let (engine, hands) = (Box::new(self.disk.clone()), Box::new(hands));
        let running = node::start(inbox, replica, engine, hands, sealer, 0).unwrap();
        peers.serve(self.calls.clone());
        Site { plan: self, peers, node, noted, compared, running }
    }
}

/// Plans of sites that all know each other, `site1` and so on.
pub(crate) fn plans(count: usize) -> Vec<Plan> {
    let mut plans: Vec<Plan> = (1..=count).map(|n| Plan::new(&format!("site{n}"))).collect();
    let known: Vec<_> = plans.iter().map(|p| (p.config.site.clone(), p.config.peers)).collect();
    for plan in &mut plans {
        for (site, address) in &known {
            if *site != plan.config.site {
                plan.knows(site, *address);
            }
        }
    }
    plans
}

/// Two sites that know each other.
pub(crate) fn pair() -> [Plan; 2] {
    plans(2).try_into().map_err(|_| "two").unwrap()
}

impl Site {
    pub(crate) fn name(&self) -> &SiteId {
        &self.plan.config.site
    }

    pub(crate) fn peer(&self, site: &str) -> Peer {
        self.peers.view().into_iter().find(|peer| peer.site == name(site)).unwrap()
    }

    pub(crate) fn reaches(&self, site: &str) -> bool {
        self.peer(site).state == State::Reachable
    }

    /// Asks for an operation of so many bytes on a resource of some sites.
    pub(crate) async fn submit(&self, resource: &str, sites: &[&str], bytes: usize) {
        let submission = Submission {
            ticket: Ticket(0),
            resource: resource.parse().unwrap(),
            sites: Some(Sites::new(sites.iter().map(|site| name(site))).unwrap()),
            config: None,
            kind: "inc".parse().unwrap(),
            author: "ana".parse().unwrap(),
            action: Action::command("x".repeat(bytes)),
            force: false,
            keep_going: false,
            key: None,
            wait: Millis(0),
        };
        let mut answers = self.node.submit(submission).await.unwrap();
        let first = answers.recv().await;
        assert!(matches!(first, Some(Answer::Accepted(_, _))), "{first:?}");
    }

    /// How many operations it knows, of all resources.
    pub(crate) async fn operations(&self) -> usize {
        let count = |replica: &Replica| replica.resources().map(|r| r.log().len()).sum();
        self.node.read(count).await.unwrap()
    }

    pub(crate) async fn digest(&self, of: &str) -> u64 {
        let of = name(of);
        self.node.read(move |replica| replica.shared_digest(&of)).await.unwrap()
    }

    /// How often a site came up here, as far as it has anything in common with this one.
    pub(crate) fn came_up(&self, site: &str) -> u64 {
        self.compared.lock().unwrap().get(&name(site)).copied().unwrap_or(0)
    }

    /// Stops it. What it wrote down stays with the plan.
    pub(crate) async fn stop(self) -> Plan {
        self.peers.stop().await;
        self.node.stop();
        self.running.stopped().await;
        self.plan
    }
}

/// Waits until something is so, and fails if that takes too long.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until all sites see each other.
pub(crate) async fn linked(sites: &[&Site]) {
    for site in sites {
        until("all links are up", || async {
            site.peers.view().iter().all(|peer| peer.state == State::Reachable)
        })
        .await;
    }
}
