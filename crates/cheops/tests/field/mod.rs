//! Sites as hosts of a small network of their own: each is a network namespace with one agent, the
//! real program, and whatever applications a test starts there. All hang on one bridge; packets
//! between two of them can be dropped, in one direction or both.
//!
//! What must stay true: nothing of a field is left when it is dropped, whatever the test did.

#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod agent;
pub(crate) mod application;
#[path = "../../../cheops-agent/tests/couch/mod.rs"]
pub(crate) mod couch;
pub(crate) mod engine;
pub(crate) mod http;
pub(crate) mod net;
pub(crate) mod redis;
pub(crate) mod websocket;

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::{Resource, RunStatus, State, Submit, Submitted};

#[allow(unused_imports, reason = "not every test starts programs on loopback")]
pub(crate) use self::couch::ports;

use self::{
    agent::Agent,
    engine::{Databases, Engine},
    net::Network,
};

/// How long anything may take that should happen.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// Several sites: `site1`, `site2`…
pub(crate) struct Field {
    pub(crate) sites: Vec<Agent>,
    /// Where they keep their records, if not on their disks.
    pub(crate) databases: Option<Databases>,
    pub(crate) net: Network,
    directory: tempfile::TempDir,
}

/// Nobody but the test is in the network of these hosts, and it looks from outside.
const OPEN: &str = "[api]\ninsecure_anyone_may_do_anything = true\n";

impl Field {
    /// A network with so many sites, and an agent at each.
    pub(crate) fn new(count: usize) -> Self {
        Self::with(count, "")
    }

    /// The same, with more sections in the configuration of each site.
    pub(crate) fn with(count: usize, settings: &str) -> Self {
        Self::on(Engine::Embedded, count, settings)
    }

    /// The same, of agents with this engine.
    pub(crate) fn on(engine: Engine, count: usize, settings: &str) -> Self {
        let field = Self::begun(engine, count, true, |_, _| settings.to_owned());
        field.wait_until_linked();
        field
    }

    /// The same, with what each site's configuration has, by its place and its address.
    pub(crate) fn with_each(count: usize, settings: impl Fn(usize, &str) -> String) -> Self {
        let field = Self::started(count, true, settings);
        field.wait_until_linked();
        field
    }

    /// Sites that do not know each other, with more sections in the configuration of each; `HOST` in them is
    /// its own address.
    pub(crate) fn of_strangers(count: usize, settings: &str) -> Self {
        Self::started(count, false, |_, ip| settings.replace("HOST", ip))
    }

    /// The same, with what each site's configuration has, by its place and the addresses of all.
    pub(crate) fn of_strangers_each(
        count: usize,
        settings: impl Fn(usize, &[String]) -> String,
    ) -> Self {
        Self::begun(Engine::Embedded, count, false, settings)
    }

    fn started(count: usize, known: bool, settings: impl Fn(usize, &str) -> String) -> Self {
        Self::begun(Engine::Embedded, count, known, |n, ips| settings(n, &ips[n]))
    }

    fn begun(
        engine: Engine,
        count: usize,
        known: bool,
        settings: impl Fn(usize, &[String]) -> String,
    ) -> Self {
        let net = Network::new(count);
        let databases = (engine == Engine::CouchDb).then(|| Databases::start(&net, count));
        let directory = tempfile::tempdir().unwrap();
        let ips: Vec<String> = (0..count).map(|n| net.ip(n)).collect();
        let names: Vec<String> = (1..=count).map(|n| format!("site{n}")).collect();
        let sites = names.iter().enumerate().map(|(n, name)| {
            let data = directory.path().join(name);
            fs::create_dir_all(&data).unwrap();
            let others = names.iter().enumerate().filter(|&(m, _)| known && m != n);
            let peers = others.map(|(m, peer)| {
                let address = format!("{}:8078", net.ip(m));
                agent::peer(peer, &address, &directory.path().join(peer))
            });
            let ip = &ips[n];
            let engine = databases.as_ref().map(|databases| databases.settings(n, &data));
            let config = format!(
                "site = '{name}'\nwork = 'work'\n{}{}{}\n{OPEN}[listen]\napi = '{ip}:8079'\npeers = '{ip}:8078'\n",
                engine.unwrap_or_default(),
                peers.collect::<String>(),
                settings(n, &ips)
            );
            fs::write(data.join("site.toml"), config).unwrap();
            Agent::new(name, net.namespace(n), &net.ip(n), &data)
        });
        let mut field = Self { sites: sites.collect(), databases, net, directory };
        for site in &mut field.sites {
            site.start();
        }
        field.sites.iter().for_each(Agent::wait_until_ready);
        field
    }

    /// The directory of a site.
    pub(crate) fn directory(&self, n: usize) -> PathBuf {
        self.directory.path().join(&self.sites[n].name)
    }

    /// Waits until all sites see each other.
    pub(crate) fn wait_until_linked(&self) {
        eventually("all sites see each other", || {
            self.sites.iter().all(|site| site.reachable().len() == self.sites.len() - 1)
        });
    }

    /// Waits until no site sees another.
    pub(crate) fn wait_until_apart(&self) {
        eventually("no site sees another", || {
            self.sites.iter().all(|site| site.reachable().is_empty())
        });
    }

    /// Cuts all sites apart, and waits until they have noticed.
    pub(crate) fn cut(&self) {
        self.net.cut_all();
        self.wait_until_apart();
    }

    /// Heals all cuts, and waits until the sites see each other.
    pub(crate) fn heal(&self) {
        self.net.heal();
        self.wait_until_linked();
    }

    /// All sites, as a place of the scope language.
    pub(crate) fn everywhere(&self) -> String {
        let names: Vec<&str> = self.sites.iter().map(|site| site.name.as_str()).collect();
        names.join(" & ")
    }

    /// Waits until these sites know the same of a resource, have run all of its block, and have all
    /// replies; gives it as the first of them sees it.
    pub(crate) fn agreed(&self, id: &str, sites: &[usize]) -> Resource {
        let mut seen = Vec::new();
        let start = Instant::now();
        while start.elapsed() < SOON {
            seen = sites.iter().filter_map(|&n| self.sites[n].resource(id)).collect::<Vec<_>>();
            if seen.len() == sites.len()
                && seen.iter().all(|r| done(r) && r.version == seen[0].version)
            {
                return seen.swap_remove(0);
            }
            thread::sleep(Duration::from_millis(20));
        }
        let told: Vec<String> = seen.iter().map(summary).collect();
        panic!("`{id}` is not agreed on after {SOON:?}:\n{}", told.join("\n"));
    }
}

/// Whether nothing of a resource is under way or unanswered.
fn done(resource: &Resource) -> bool {
    let runs = resource.operations.iter().flat_map(|op| &op.runs);
    resource.summary.state != State::Pending
        && !runs
            .into_iter()
            .any(|run| matches!(run.status, RunStatus::Waiting | RunStatus::Running))
}

fn summary(resource: &Resource) -> String {
    let mut text = format!(
        "  {} sees {:?}, version {:?}, block {:?}",
        resource.seen_by, resource.summary.state, resource.version, resource.block_ids
    );
    for op in &resource.operations {
        let runs = op.runs.iter().map(|run| format!("{} {:?}", run.site, run.status));
        let runs = runs.collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\n    {} {} {}: {runs}", op.id, op.kind, op.command);
    }
    text
}

/// A request for an operation of a kind.
pub(crate) fn submit(command: &str, kind: &str) -> Submit {
    Submit { command: command.into(), kind: Some(kind.into()), ..Submit::default() }
}

/// Waits for something that should happen.
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(SOON, what, condition);
}

/// Waits for something that should happen before long.
pub(crate) fn within(span: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < span, "not after {span:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The text of a file, if there is one.
pub(crate) fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Whether so many sites replied, and all of them `OK`.
pub(crate) fn all_ok(submitted: &Submitted, sites: usize) -> bool {
    submitted.runs.len() == sites && submitted.runs.iter().all(|run| run.status == RunStatus::Ok)
}
