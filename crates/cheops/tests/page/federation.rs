//! A federation that is as large as one gets: a hundred sites and ten thousand resources, from a generator.
//!
//! What is real: every site is an agent of its own, the program as it is shipped, with its own store and its
//! own links; each answers for itself. What is not: nobody waited for ten thousand commands to run. What the
//! sites have written down of them was decided by the core itself, replicas that talk to each other here, and
//! put into each site's store by the engine before its agent starts.
//!
//! One site, the one that is looked at, knows all others and has a part in every second resource. The others
//! live in regions: they know it and their neighbours. A resource is on two to five sites of one region; a few
//! are on all sites of one. Some sites are silent: they were there once, and their agents don't run.

#![allow(dead_code, reason = "a bench takes less of it")]

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    thread,
};

use cheops_agent::engine::{
    Engine as _, Opened as _,
    embedded::{Embedded, Options},
};
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    operation::Action,
    plan::Outcome,
    replica::{Durable, Effect, Input, Replica, Report, Settings, Submission, Ticket},
    time::{Millis, Now},
};
use fastrand::Rng;

use crate::field::{
    agent::{Agent, peer},
    eventually,
};

pub(crate) const SITES: usize = 100;
pub(crate) const RESOURCES: usize = 10_000;
/// How many sites a region has, besides the one that all know.
const REGION: usize = 11;
/// One of so many sites is silent.
const SILENT: usize = 20;
/// One of so many resources is on all sites of its region.
const WIDE: usize = 100;
/// How many values are written at a time.
const BATCH: usize = 2_000;

/// What has become of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Settled,
    /// It has failed everywhere.
    Failed,
    /// It has failed at the last of its sites only.
    Diverged,
    /// The silent ones of its sites have never heard of it.
    Unheard,
}

/// A resource, and the sites that it is on.
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) sites: Vec<usize>,
    fate: Fate,
}

impl Made {
    /// Whether it is settled on sites that can all be asked, the one that is looked at among them.
    pub(crate) fn is_plain(&self) -> bool {
        let asked = self.sites.iter().all(|&site| !is_silent(site));
        self.fate == Fate::Settled && asked && self.sites[0] == 0
    }
}

pub(crate) struct Federation {
    /// Those that are not silent; the first is the one that is looked at.
    pub(crate) agents: Vec<Agent>,
    pub(crate) resources: Vec<Made>,
    directory: tempfile::TempDir,
}

pub(crate) fn name(site: usize) -> String {
    format!("site-{:03}", site + 1)
}

pub(crate) fn is_silent(site: usize) -> bool {
    site % SILENT == SILENT - 1
}

pub(crate) fn silent() -> usize {
    (0..SITES).filter(|&site| is_silent(site)).count()
}

fn region(site: usize) -> usize {
    (site - 1) / REGION
}

/// Whether two sites know each other.
fn know(a: usize, b: usize) -> bool {
    a != b && (a == 0 || b == 0 || region(a) == region(b))
}

impl Federation {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut rng = Rng::with_seed(5);
        let resources: Vec<Made> = (0..RESOURCES).map(|n| make(n, &mut rng)).collect();
        fill(directory.path(), &resources);
        let listeners: Vec<TcpListener> =
            (0..2 * SITES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<SocketAddr> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        drop(listeners);
        let agents = (0..SITES).filter(|&site| !is_silent(site)).map(|site| {
            let place = directory.path().join(name(site));
            let others = (0..SITES).filter(|&other| know(site, other)).map(|other| {
                let home = directory.path().join(name(other));
                peer(&name(other), &ports[2 * other].to_string(), &home)
            });
            let (api, peers) = (ports[2 * site + 1].to_string(), ports[2 * site]);
            let config = format!(
                "site = '{}'\n{}[listen]\napi = '{api}'\npeers = '{peers}'\n",
                name(site),
                others.collect::<String>()
            );
            fs::write(place.join("site.toml"), config).unwrap();
            let mut agent = Agent::on_loopback(&name(site), &api, &place);
            agent.start();
            agent
        });
        let agents: Vec<Agent> = agents.collect();
        agents.iter().for_each(Agent::wait_until_ready);
        eventually("the first sees all others", || agents[0].reachable().len() == agents.len() - 1);
        Self { agents, resources, directory }
    }

    /// The agent that is looked at.
    pub(crate) fn hub(&self) -> &Agent {
        &self.agents[0]
    }

    /// A directory that is gone when the federation is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The agent of a site.
    pub(crate) fn at(&self, site: usize) -> &Agent {
        let wanted = name(site);
        self.agents.iter().find(|agent| agent.name == wanted).unwrap()
    }
}

fn make(n: usize, rng: &mut Rng) -> Made {
    let region = n % (SITES / REGION);
    let mut near: Vec<usize> = (1..=REGION).map(|place| region * REGION + place).collect();
    rng.shuffle(&mut near);
    let wide = n % WIDE == WIDE - 1;
    let hub = wide || n.is_multiple_of(2);
    let count = if wide { REGION } else { rng.usize(2..=5) - usize::from(hub) };
    near.truncate(count);
    let fate = match n % 20 {
        3 => Fate::Failed,
        8 => Fate::Diverged,
        14 => Fate::Unheard,
        _ => Fate::Settled,
    };
    let unheard = (1..SITES).find(|&site| is_silent(site) && self::region(site) == region);
    let unheard = unheard.filter(|site| fate == Fate::Unheard && !near.contains(site));
    let mut sites: Vec<usize> = near.into_iter().chain(unheard).chain(hub.then_some(0)).collect();
    sites.sort_unstable();
    Made { id: format!("resource-{n:05}"), sites, fate }
}

/// Writes the stores of all sites.
fn fill(directory: &Path, resources: &[Made]) {
    let mut written: Vec<Vec<Durable>> = vec![Vec::new(); SITES];
    for (n, made) in resources.iter().enumerate() {
        for (site, durables) in made.sites.iter().zip(play(made, n)) {
            written[*site].extend(durables);
        }
    }
    let written: Vec<(usize, Vec<Durable>)> = written.into_iter().enumerate().collect();
    thread::scope(|scope| {
        for part in written.chunks(SITES / 4) {
            scope.spawn(move || part.iter().for_each(|(site, all)| store(directory, *site, all)));
        }
    });
}

fn store(directory: &Path, site: usize, all: &[Durable]) {
    if is_silent(site) {
        return;
    }
    let data = directory.join(name(site)).join("data");
    fs::create_dir_all(&data).unwrap();
    let options = Options::of(name(site).parse().unwrap());
    let mut engine = Embedded::open(&data.join("store"), options).unwrap();
    assert_eq!(engine.written().count(), 0);
    for batch in all.chunks(BATCH) {
        engine.append(batch).unwrap();
    }
}

/// What each site of a resource writes down, in the order of its sites: the first receives an operation,
/// all that hear of it run it.
fn play(made: &Made, n: usize) -> Vec<Vec<Durable>> {
    let names: Vec<SiteId> = made.sites.iter().map(|&site| name(site).parse().unwrap()).collect();
    let seconds = u64::try_from(n).unwrap();
    let now = Now { wall: Millis(1_750_000_000_000 + 1_000 * seconds), steady: Millis(0) };
    let settings = Settings { show_after: None, ..Settings::default() };
    let mut replicas: BTreeMap<&SiteId, (Replica, Vec<Durable>)> = BTreeMap::new();
    for name in &names {
        let mut replica = Replica::new(name.clone(), settings.clone());
        for other in names.iter().filter(|other| *other != name) {
            replica.handle(Input::PeerUp(other.clone()), now);
        }
        replicas.insert(name, (replica, Vec::new()));
    }
    let place = |name: &SiteId| names.iter().position(|other| other == name).unwrap();
    let hears =
        |site: usize| made.fate != Fate::Unheard || !is_silent(site) || site == made.sites[0];
    let mut inputs = VecDeque::from([(names[0].clone(), submit(&made.id, &names))]);
    while let Some((site, input)) = inputs.pop_front() {
        let Some((replica, written)) = replicas.get_mut(&site) else { continue };
        for effect in replica.handle(input, now) {
            match effect {
                Effect::Persist(durable) => written.push(durable),
                Effect::Send { to, message } if hears(made.sites[place(&to)]) => {
                    inputs.push_back((to, Input::Received { from: site.clone(), message }));
                }
                Effect::Run { run, .. } => {
                    let last = place(&site) + 1 == names.len();
                    let ko = made.fate == Fate::Failed || made.fate == Fate::Diverged && last;
                    let outcome = if ko { Outcome::Ko } else { Outcome::Ok };
                    let report =
                        Report { outcome, took: Millis(3), output: "done\n".into(), made: None };
                    inputs.push_back((site.clone(), Input::Ran { run, report }));
                }
                _ => {}
            }
        }
    }
    names.iter().map(|name| replicas.remove(name).unwrap().1).collect()
}

fn submit(id: &str, sites: &[SiteId]) -> Input {
    let resource: ResourceId = id.parse().unwrap();
    Input::Submit(Box::new(Submission {
        ticket: Ticket(0),
        resource,
        sites: Some(Sites::new(sites.iter().cloned()).unwrap()),
        config: None,
        kind: "set".parse().unwrap(),
        author: "generator".parse().unwrap(),
        action: Action::Command { line: "echo done".into(), files: Box::default() },
        force: false,
        keep_going: true,
        key: None,
        wait: Millis(0),
    }))
}
