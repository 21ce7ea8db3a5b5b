//! An agent: all parts put together, from a configuration to a site at work.
//!
//! The order in which they start is the order of who needs whom: the store gives the replica back,
//! the links and the runner get a way to the node, the node gets hands to reach them, and the doors
//! open last.

mod copy;
mod restore;

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Request, Response, StatusCode, header},
    response::IntoResponse as _,
};
use cheops_core::{
    id::SiteId,
    replica::{Effect, Event, Message, Replica, Resource},
};
use futures_util::{
    TryStreamExt,
    future::{BoxFuture, join_all},
    stream::BoxStream,
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time,
};

use crate::{
    api::{self, Access, Context, Shared},
    arrivals,
    audit::{self, Audit},
    config::{self, Config},
    engine::{
        self, EngineError, Sort,
        couchdb::{Attachments, CouchDb, Fence},
        embedded::{Embedded, Options},
    },
    entrances::{Entrances, UnixSocket},
    federation::Federation,
    files::{Content, Depot, Fetch, Files},
    hooks::Hooks,
    limits::{Buckets, Places},
    mesh::{Doors, Mesh},
    metrics::Metrics,
    node::{self, Clock, Hands},
    open_files::{self, Connections},
    peers::{Calls, Peers},
    policy::{Gate, Landlock, Unusable},
    private,
    problems::Noted,
    replicants::Replicants,
    replication::{self, Replication},
    run::{self, Runner, Setup},
    standby::{self, AtWork},
    trust::{
        Identity, IdentityError, Inspector, Ledger, LedgerError, Members, Own, Sealer,
        certificate::CertificateError,
        kept::{Kept, KeptError},
        people,
        pki::Pki,
    },
};

pub use self::copy::copy_engine;
use self::restore::restore;

/// How long requests may take to end when the agent stops.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long a file that no operation names is kept: it may have been sent for one that comes.
const UNUSED: Duration = Duration::from_hours(1);
/// How often unused files are looked for.
const SWEEP: Duration = Duration::from_mins(10);

/// Why an agent can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] EngineError),
    /// A directory can't be used.
    #[error("the directory {} can't be used: {error}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The shell can't be used.
    #[error(
        "the shell {} can't be run: {why}; name one that can in `runs.shell`, like /bin/sh",
        path.display()
    )]
    Shell {
        /// The shell.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The site has no key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The list of who belongs can't be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A peer has this site's own key.
    #[error(
        "`{0}` has the key of this site in its configuration: put the one there that `cheops site key` prints at `{0}`"
    )]
    OwnKey(SiteId),
    /// A rule of the policy can't be kept at this site.
    #[error(transparent)]
    Policy(#[from] Unusable),
    /// The list of tokens can't be used.
    #[error(transparent)]
    Access(#[from] KeptError),
    /// The certificate of the API can't be used.
    #[error("the API can't be protected: {0}")]
    Certificate(#[from] CertificateError),
    /// The certificate for links can't be used.
    #[error("links can't be made with the certificate in `[trust]`: {0}")]
    Links(CertificateError),
    /// TLS can't be used.
    #[error("the API can't be protected: {0}")]
    Tls(#[from] rustls::Error),
    /// Others would reach an API that protects nothing.
    #[error(
        "the API would listen on {0}, where others than users of this machine reach it, without TLS. Give it a certificate; then each request needs a token, which `cheops access create` makes. In the site's configuration:\n\n[api]\ncertificate = \"api.crt\"\nkey = \"api.key\"\n\nOr listen on 127.0.0.1. In a closed network for tests, where everyone may run commands here:\n\n[api]\ninsecure_anyone_may_do_anything = true\n\nSee docs/access.md"
    )]
    TooWide(SocketAddr),
    /// The Unix socket can't be listened on.
    #[error("can't listen on {}: {error}; name another path in `listen.socket`, or \"off\"", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A thread can't be started.
    #[error("a thread can't be started: {0}")]
    Thread(io::Error),
    /// An address can't be listened on.
    #[error("can't listen on {address} for {what}: {error}; is another agent running?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// For whom.
        what: &'static str,
        /// Why not.
        error: io::Error,
    },
}

/// An agent at work.
pub struct Agent {
    parts: Parts,
    at_work: AtWork,
}

/// What an agent is made of.
struct Parts {
    context: Shared,
    api: SocketAddr,
    mesh: Mesh,
    node: node::Running,
    servers: Vec<JoinHandle<()>>,
    /// The Unix socket, which goes with the agent.
    socket: Option<UnixSocket>,
    /// Tasks that go on until the agent stops.
    aside: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
}

impl Agent {
    /// Starts an agent. When this returns, it accepts requests.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, |api| api).await
    }

    /// The same, with more at the address of its API than the API: `dress` is given that.
    pub async fn start_with(
        mut config: Config,
        dress: impl FnOnce(Router) -> Router,
    ) -> Result<Self, StartError> {
        prepare(&mut config).await?;
        engine::check_choice(&config.data, config.engine.kind())?;
        let at_work = standby::stand_by(&config).await?;
        match Parts::start(config, &at_work.fence, dress).await {
            Ok(parts) => Ok(Self { parts, at_work }),
            Err(error) => {
                at_work.release().await;
                Err(error)
            }
        }
    }

    /// Where its API listens.
    pub fn api(&self) -> SocketAddr {
        self.parts.api
    }

    /// Where its API listens besides, for users of this machine.
    pub fn socket(&self) -> Option<&Path> {
        self.parts.socket.as_ref().map(UnixSocket::path)
    }

    /// Where it listens for other agents.
    pub fn peers(&self) -> SocketAddr {
        self.parts.context.peers.address()
    }

    /// The application's requests, as they pass.
    pub fn mesh(&self) -> &Mesh {
        &self.parts.mesh
    }

    /// Waits until the agent has come to an end by itself: by a fault, or since another agent of the site has
    /// taken over.
    pub async fn ended(&mut self) {
        tokio::select! {
            () = self.parts.node.ended() => {}
            () = self.at_work.lost.cancelled() => {}
        }
    }

    /// Stops the agent. Commands that run go on; their results are found when it starts again.
    pub async fn stop(self) {
        self.parts.stop(self.at_work.lost.is_cancelled()).await;
        self.at_work.release().await;
    }
}

impl Parts {
    /// Starts all of them, for the agent that is at work for as long as the fence holds.
    async fn start(
        config: Config,
        fence: &Fence,
        dress: impl FnOnce(Router) -> Router,
    ) -> Result<Self, StartError> {
        let noted = Noted::default();
        let members = members(&config)?;
        let (mut replica, engine) = restore(&config, &members, &noted).await?;
        let wary = engine.lost_unknown().is_some();
        let arrivals = engine.arrivals();
        let entrances = Entrances::open(&config).await?;
        let (api, certificate) = (entrances.api, entrances.certificate.clone());
        let kept = Kept::open(&config.data, people::now())?;
        let access =
            Arc::new(Access::new(&config.site, &config.data, Arc::new(kept), &config.entry));
        let doors = Doors::open(&config.mesh)
            .await
            .map_err(|(address, error)| unheard(address, "a service of the application", error))?;

        let (handle, inbox) = node::channel(Clock::default());
        replica.leave_out(members.removed());
        let pki = config.pki.as_ref().map(|files| Pki::open(&config.site, files)).transpose();
        let pki = pki.map_err(StartError::Links)?;
        let peers = Peers::bind(&config, members.clone(), pki, noted.clone(), handle.clone())
            .await
            .map_err(|error| unheard(config.peers, "other agents", error))?;
        let federation = Federation::open(
            members.clone(),
            peers.clone(),
            handle.clone(),
            access.grants.clone(),
            &config,
        );
        let federation = federation.map_err(directory(config.data.clone()))?;
        let files = open_files_store(&config)?;
        let gate = gate(&config, members.clone())?;
        let audit = open_audit(&config, members.own(), fence)?;
        let runner = runner(&config, (&gate, &audit, fence), &files, &peers, &handle)?;
        let hands = AgentHands {
            peers: peers.clone(),
            runner: runner.clone(),
            noted: noted.clone(),
            audit: audit.clone(),
        };
        let reserve = config.store.reserve;
        let sealer = Sealer::of(&members);
        let node = node::start(inbox, replica, engine, Box::new(hands), sealer, reserve)
            .map_err(StartError::Thread)?;

        let replication =
            Replication::open(&config, certificate.as_ref(), &members, &peers, &handle).await;
        let place = config.data.join("hooks");
        let hooks = Hooks::open(&config).map_err(directory(place))?;
        let teller = hooks.start(handle.clone(), peers.clone());
        let metrics = Metrics::default();
        let feeds = Places::new(config.serve.feeds, 4);
        let (stop, stopping) = watch::channel(false);
        let replicants = Arc::new(Replicants::new(config.site.clone()));
        // Before any door is open: what is not known yet would pass as if it were at this site only.
        let feed = replicants.start(&handle).await;
        let follower = tokio::spawn(replicants.clone().follow(handle.clone(), feed));
        let context = Arc::new(Context {
            rates: Mutex::new(Buckets::new(config.rates.rate, config.rates.burst)),
            config,
            audit,
            started: Instant::now(),
            replicants,
            node: handle,
            peers,
            federation,
            runner,
            gate,
            files,
            hooks,
            access,
            certificate,
            replication,
            noted,
            metrics,
            feeds,
            stopping: stopping.clone(),
            rehearsals: Arc::new(Semaphore::new(1)),
            wary,
        });
        let router = api::router(context.clone());
        let mesh = Mesh::start(&context, doors);
        let from_peers = api::attended(router.clone(), None, &context);
        context.peers.serve(Answers {
            router: from_peers,
            context: context.clone(),
            mesh: mesh.clone(),
        });
        let (servers, socket) = entrances.serve(&dress(router), &context);
        let mut aside = vec![follower, teller];
        aside.extend(tasks(&context));
        aside.extend(arrivals.map(|arrivals| {
            let inspector = Inspector::new(Arc::new(members.clone()));
            tokio::spawn(arrivals::take_in(arrivals, inspector, context.node.clone()))
        }));
        let (site, peers) = (context.here(), context.peers.address());
        let key = members.identity().public();
        tracing::info!(%site, %api, %peers, %key, "the agent is at work");
        Ok(Self { context, api, mesh, node, servers, socket, aside, stop })
    }

    /// Stops them, in the opposite order. Another agent of the site may have taken over.
    async fn stop(self, followed: bool) {
        self.aside.iter().for_each(JoinHandle::abort);
        let _ = self.stop.send(true);
        let served = join_all(self.servers);
        let _ = tokio::join!(time::timeout(FAREWELL, served), self.mesh.stop(FAREWELL));
        if let Some(socket) = self.socket {
            socket.remove();
        }
        // Jobs of an agent that has taken over are not this one's to end.
        if let Some(replication) = self.context.replication.as_ref().filter(|_| !followed) {
            replication.stop().await;
        }
        self.context.peers.stop().await;
        self.context.node.stop();
        self.node.stopped().await;
        // A disk that hangs is no reason to.
        if time::timeout(FAREWELL, self.context.audit.stop()).await.is_err() {
            tracing::error!(
                "the audit did not come to its end in time: its last lines may be lost"
            );
        }
    }
}

/// Starts what goes on until the agent stops.
fn tasks(context: &Shared) -> Vec<JoinHandle<()>> {
    let mut tasks = vec![
        tokio::spawn(sweep(context.clone())),
        tokio::spawn(api::learn(context.clone())),
        tokio::spawn(context.federation.clone().serve()),
    ];
    let certificate = context.certificate.clone();
    tasks.extend(certificate.map(|certificate| tokio::spawn(certificate.follow())));
    let replication = context.replication.as_ref();
    tasks.extend(replication.into_iter().flat_map(|it| it.start(context)));
    tasks
}

/// Looks whether an agent can work as it is told to, and makes its directories.
async fn prepare(config: &mut Config) -> Result<(), StartError> {
    Entrances::allow(config)?;
    afford(config);
    let shell = config.runs.shell.clone();
    run::can_run(&shell).map_err(|why| StartError::Shell { path: shell, why })?;
    let other_users = config.policy.rules.iter().any(|rule| rule.terms.user.is_some());
    private::keep(&config.data, other_users).map_err(directory(config.data.clone()))?;
    tokio::fs::create_dir_all(&config.work).await.map_err(directory(config.work.clone()))?;
    Ok(())
}

fn directory(path: PathBuf) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::Directory { path, error }
}

fn unheard(address: SocketAddr, what: &'static str, error: io::Error) -> StartError {
    StartError::Listen { address, what, error }
}

/// What runs commands, as far as the gate lets them through.
fn runner(
    config: &Config,
    (gate, audit, fence): (&Gate, &Audit, &Fence),
    files: &Files,
    peers: &Peers,
    node: &node::Handle,
) -> Result<Runner, StartError> {
    let scratch = config.data.join("runs");
    let setup =
        Setup::new(config.runs.clone(), config.site.clone(), config.work.clone(), scratch.clone());
    let services = config.mesh.services.clone();
    let (gate, audit, fence) = (gate.clone(), Some(audit.clone()), fence.clone());
    let fetch = Arc::new(FromPeers(peers.clone()));
    setup
        .map(|setup| Setup { services, gate, audit, fence, ..setup })
        .and_then(|setup| Runner::start(setup, files.clone(), fetch, node.clone()))
        .map_err(directory(scratch))
}

/// Who this site is, and whom it knows.
fn members(config: &Config) -> Result<Members, StartError> {
    let mut identity = Identity::open(&config.data)?;
    let ledger = Ledger::open(&config.data)?;
    // A key that the others were told of, and that has not taken its place before the agent stopped.
    if let Some(next) = Identity::drafted(&config.data)?
        && ledger.read(|roster| roster.members().contains_key(&next.public())) == Some(true)
    {
        Identity::adopt(&config.data)?;
        identity = next;
    }
    let own = config.sites.iter().find(|(_, peer)| peer.key == Some(identity.public()));
    if let Some((site, _)) = own {
        return Err(StartError::OwnKey(site.clone()));
    }
    let members = Members::new(config, identity, ledger);
    for site in members.shut_out() {
        let here = &config.site;
        tracing::warn!(
            "`{site}` is in the configuration, and was removed from the federation: it is not let in by that; if it should come back, run `cheops token create` at `{here}` and `cheops join TOKEN` at `{site}`"
        );
    }
    Ok(members)
}

/// What decides which commands run here, and a word about those that do not.
fn gate(config: &Config, members: Members) -> Result<Gate, StartError> {
    let gate = Gate::new(config, move || members.has_others());
    gate.check()?;
    if gate.is_silent() {
        tracing::warn!(
            "commands are denied here: this site has others, and its configuration has no [policy]; see docs/policy.md"
        );
    }
    if let Some((rules, landlock)) = gate.unkept() {
        let rules = rules.join(", ");
        match landlock {
            Landlock::Required => tracing::error!(
                "the kernel has no Landlock: what these rules of the policy allow is denied: {rules}"
            ),
            Landlock::BestEffort => tracing::warn!(
                "the kernel has no Landlock: what these rules of the policy allow is not kept to its paths: {rules}"
            ),
        }
    }
    let policy = &config.policy;
    if policy.confines() && config.entry.tokens_required {
        tracing::info!(
            "rules of the policy confine commands: whoever asks on loopback needs a token, the commands among them"
        );
    } else if policy.confines() {
        tracing::warn!(
            "rules of the policy confine commands, and `api.tokens` is optional: whatever they run can do everything by way of loopback"
        );
    }
    for rule in policy.rules.iter().filter(|rule| rule.terms.is_own_user_on_paths()) {
        tracing::warn!(
            "rule `{}` confines commands to paths and names no `user`: as the agent's own, they can do everything by way of its Unix socket",
            rule.name
        );
    }
    Ok(gate)
}

/// Serves no more connections than the files allow that the system lets this process have open.
fn afford(config: &mut Config) {
    let limit = open_files::limit();
    let Connections { api, mesh } = open_files::connections(config, limit);
    for (setting, wanted, served) in [
        ("api.connections", &mut config.serve.connections, api),
        ("mesh.connections", &mut config.mesh.connections, mesh),
    ] {
        if let Some(limit) = limit.filter(|_| served < *wanted) {
            tracing::warn!(
                "`{setting}` is {wanted}, but the system lets this process have no more than {limit} files open: {served} connections are served at the same time; raise the limit (`LimitNOFILE=` in its unit, or `ulimit -n`), or lower the setting",
            );
        }
        *wanted = served;
    }
}

fn open_audit(config: &Config, own: Own, fence: &Fence) -> Result<Audit, StartError> {
    let (data, settings) = (&config.data, config.audit.clone());
    let failed = |error| StartError::Directory { path: audit::directory(data), error };
    Audit::open(data, settings, own, &config.site, fence.clone()).map_err(failed)
}

/// The store of attached files, with another place for them where there is one.
fn open_files_store(config: &Config) -> Result<Files, StartError> {
    let depot = match &config.engine {
        config::Engine::Embedded => None,
        config::Engine::CouchDb(couchdb) => {
            let place = couchdb.url.to_string();
            let failed = |problem| EngineError { place, problem, sort: Sort::Server };
            Some(Box::new(Attachments::new(couchdb).map_err(failed)?) as Box<dyn Depot>)
        }
    };
    let store = config.data.join("files");
    let files = Files::with_depot(store.clone(), config.store.clone(), depot);
    files.map_err(directory(store))
}

/// Answers the requests of other agents: for the application, or for this agent itself.
struct Answers {
    router: Router,
    context: api::Shared,
    mesh: Mesh,
}

impl Calls for Answers {
    fn answer(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        if Mesh::is_for(&request) {
            let mesh = self.mesh.clone();
            return Box::pin(async move { mesh.forwarded(request).await });
        }
        if Federation::is_for(&request) {
            return Box::pin(self.context.federation.clone().answer(request));
        }
        if replication::is_for(&request)
            && let Some(replication) = &self.context.replication
        {
            return Box::pin(replication.clone().answer(request));
        }
        if api::is_offer(&request) {
            return Box::pin(api::answer_offer(self.context.clone(), request));
        }
        match api::who::over_link(request) {
            Ok(request) => self.router.answer(request),
            Err(refusal) => Box::pin(async { refusal.into_response() }),
        }
    }

    fn welcome(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let (federation, audit) = (self.context.federation.clone(), self.context.audit.clone());
        Box::pin(async move {
            let mut response = federation.answer(request).await;
            if let Some(joining) = response.extensions_mut().remove::<audit::Event>() {
                audit.record(joining).await;
            }
            response
        })
    }

    fn turned_away(&self, from: SocketAddr, why: &str) {
        self.context.audit.note(audit::Event::link(from.to_string(), why));
    }
}

/// How the node reaches the rest of the agent.
struct AgentHands {
    peers: Peers,
    runner: Runner,
    noted: Noted,
    audit: Audit,
}

impl Hands for AgentHands {
    fn send(&mut self, to: &SiteId, message: Message) {
        self.peers.send(to, message);
    }

    fn run(&mut self, effect: Effect) {
        self.runner.give(effect);
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::Refused { from, resource, why } => {
                self.peers.refused(from);
                self.noted.refused(from, resource, why);
                self.audit.note(audit::Event::record(from.as_str(), resource.as_str(), *why));
            }
            Event::Forgotten(resource) => self.runner.forget(resource),
            Event::Recorded { .. } | Event::NeedsDecision(_) | Event::Unknown(_) => {}
        }
    }
}

/// Files of other sites, over the links.
struct FromPeers(Peers);

impl Fetch for FromPeers {
    fn fetch(
        &self,
        site: &SiteId,
        content: Content,
        offset: u64,
    ) -> BoxFuture<'static, io::Result<BoxStream<'static, io::Result<Bytes>>>> {
        let (peers, site) = (self.0.clone(), site.clone());
        Box::pin(async move {
            let content = blake3::Hash::from_bytes(content).to_hex();
            let request = Request::get(format!("/api/v1/files/{content}"))
                .header(header::RANGE, format!("bytes={offset}-"))
                .body(Body::empty())
                .map_err(io::Error::other)?;
            let response = peers.call(&site, request).await.map_err(io::Error::other)?;
            let expected = if offset == 0 { StatusCode::OK } else { StatusCode::PARTIAL_CONTENT };
            if response.status() != expected {
                return Err(io::Error::other(format!("`{site}` answered {}", response.status())));
            }
            let parts = response.into_body().into_data_stream().map_err(io::Error::other);
            Ok(Box::pin(parts) as BoxStream<'static, _>)
        })
    }
}

/// Removes files that no operation names any more, now and then.
async fn sweep(context: Shared) {
    let mut ticks = time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let Some(in_use) = in_use(&context).await else { return };
        let (files, used) = (context.files.clone(), in_use.clone());
        let swept = tokio::task::spawn_blocking(move || files.keep_only(&in_use, UNUSED)).await;
        match swept {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(count)) => tracing::info!("removed {count} files that no operation names"),
            Ok(Err(error)) => tracing::warn!("unused files could not be removed: {error}"),
        }
        if let Err(error) = context.files.tend_depot(&used, UNUSED).await {
            tracing::warn!("attached files could not be looked through in CouchDB: {error}");
        }
    }
}

/// The contents of all files that operations name; nothing if the agent is stopping.
async fn in_use(context: &Context) -> Option<BTreeSet<Content>> {
    let look = |_: &Replica, resource: &Resource, all: &mut BTreeSet<Content>| {
        let files = resource.log().iter().flat_map(|(_, op)| op.action.attachments());
        all.extend(files.map(|file| file.content));
        true
    };
    let held = |replica: &Replica| {
        let files = replica.held().flat_map(|held| held.op.action.attachments());
        files.map(|file| file.content).collect::<BTreeSet<Content>>()
    };
    let held = context.node.read(held).await.ok()?;
    context.node.walk(held, look).await.ok()
}
