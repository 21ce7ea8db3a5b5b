//! CouchDB's own replication between sites that keep their records there.
//!
//! A job at the server of one site carries documents to the server of another, through both agents: the job's target
//! is the agent beside it (`relay`), which passes what it asks over the link to the other agent, which passes on to
//! its server what another site may ask (`door`). So no server is open to other sites, the link is what proves who
//! is at its other end, and what is written was looked at. `jobs` says which jobs there are to be.
//!
//! What must stay true:
//! - no document gets to a site that its resource is not at, whatever a job asks;
//! - no document gets into the database of a site that is not a record, whole, sealed by its own site;
//! - another site reads nothing of the database but which records it lacks;
//! - records get everywhere without it, too: the links carry what it does not.

mod door;
mod jobs;
mod relay;

use std::{
    collections::BTreeMap,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::Body;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use cheops_core::id::SiteId;
use hyper::{Method, Request, Response, StatusCode};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle, time::timeout};

pub(crate) use self::door::is_for;
use self::jobs::Failing;
use crate::{
    api::{self, Listener},
    config::{self, Config},
    contended,
    engine::couchdb::{Dialect, Server},
    node,
    peers::{Caller, Peers},
    trust::{
        Inspector, Members,
        certificate::Certificate,
        people::{NoRandomness, Token},
    },
};

/// Where the port is kept that the agent has chosen: replication begins anew with another one.
const PORT: &str = "relay.port";
/// How long the server may take to end its jobs when the agent stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// How many batches of documents of other sites are in memory at once.
const AT_ONCE: usize = 4;

/// CouchDB's replication at this site. All clones are the same.
#[derive(Clone)]
pub(crate) struct Replication(Arc<Shared>);

struct Shared {
    server: Server,
    /// How the server was configured.
    config: config::CouchDb,
    dialect: Dialect,
    /// Where the relay listens, and what proves that it is the server that asks.
    relay: SocketAddr,
    listener: Mutex<Option<Listener>>,
    entry: String,
    peers: Peers,
    node: node::Handle,
    inspector: Mutex<Inspector>,
    /// Sites whose jobs have failed.
    failing: Mutex<BTreeMap<SiteId, Failing>>,
    /// Locked while jobs are changed. Whether the agent has stopped, so that none is made any more.
    stopped: tokio::sync::Mutex<bool>,
    room: Semaphore,
    /// How many documents were offered by their names, how many of them were taken in, and how many refused.
    offered: AtomicU64,
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Replication {
    /// Makes ready for replication, if records are kept in CouchDB and it is wanted. That it can't be used is no
    /// reason not to start.
    pub(crate) async fn open(
        config: &Config,
        certificate: Option<&Arc<Certificate>>,
        members: &Members,
        peers: &Peers,
        node: &node::Handle,
    ) -> Option<Self> {
        let config::Engine::CouchDb(couchdb) = &config.engine else { return None };
        if !couchdb.replicate {
            return None;
        }
        let opened = Shared::open(couchdb, (config, certificate), members, peers, node).await;
        let unused = |why| tracing::warn!("CouchDB's own replication is not used: {why}");
        opened.map_err(unused).ok().map(|shared| Self(Arc::new(shared)))
    }

    /// Serves the server at this site, and keeps its jobs right, until the tasks are ended. Once.
    pub(crate) fn start(&self, context: &api::Shared) -> Vec<JoinHandle<()>> {
        let listener = self.0.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(listener) = listener else { return Vec::new() };
        let (limits, counts) = (context.config.serve.clone(), context.metrics.clone());
        let router = relay::router(self.0.clone());
        let relay = api::serve(listener, router, limits, counts, context.stopping.clone());
        vec![tokio::spawn(relay), tokio::spawn(jobs::keep(self.0.clone()))]
    }

    /// Ends the jobs, once the tasks are ended: whoever listened in the agent's place would be sent records.
    pub(crate) async fn stop(&self) {
        let ending = async {
            let mut stopped = self.0.stopped.lock().await;
            *stopped = true;
            self.0.end_jobs().await
        };
        match timeout(FAREWELL, ending).await {
            Ok(Ok(())) => {}
            Ok(Err(trouble)) => self.0.jobs_stay(&trouble.to_string()),
            Err(_) => self.0.jobs_stay("CouchDB does not answer"),
        }
    }

    /// How many documents other sites have brought since the agent started, by what became of them.
    pub(crate) fn brought(&self) -> [(&'static str, u64); 3] {
        let Shared { offered, taken, refused, .. } = &*self.0;
        [("offered", offered), ("taken", taken), ("refused", refused)]
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    /// How many jobs have failed and were not woken since.
    pub(crate) fn asleep(&self) -> usize {
        self.0.failing().values().filter(|failing| failing.is_asleep()).count()
    }

    /// Answers the agent of another site.
    pub(crate) async fn answer(self, request: Request<Body>) -> Response<Body> {
        let caller = request.extensions().get::<Caller>().map(|Caller(site)| site.clone());
        match caller {
            Some(from) => self.0.admit(&from, request).await,
            None => problem(StatusCode::FORBIDDEN, "forbidden", "who asks is not known"),
        }
    }
}

impl Shared {
    async fn open(
        couchdb: &config::CouchDb,
        (config, certificate): (&Config, Option<&Arc<Certificate>>),
        members: &Members,
        peers: &Peers,
        node: &node::Handle,
    ) -> Result<Self, String> {
        let server = Server::new(couchdb)?;
        let welcome = server.answer(&Method::GET, "/", Bytes::new()).await;
        let (_, welcome) = welcome.map_err(|trouble| trouble.to_string())?;
        let dialect = Dialect::of(serde_json::from_slice(&welcome).unwrap_or_default())?;
        if couchdb.relay.is_none() && !couchdb.is_near() {
            return Err(format!(
                "CouchDB at {} has to reach this agent: write in `couchdb.relay` on which address of this machine, and a port",
                couchdb.url
            ));
        }
        let listener = listen(couchdb.relay, &config.data).await.map_err(|error| {
            let relay = couchdb.relay.map(|relay| format!(" on {relay}")).unwrap_or_default();
            format!("can't listen{relay} for it: {error}; look at `couchdb.relay`")
        })?;
        let relay = listener.local_addr().map_err(|error| error.to_string())?;
        let listener = match certificate.filter(|_| couchdb.relay_name.is_some()) {
            None => Listener::Tcp(listener),
            Some(certificate) => {
                let acceptor = certificate.acceptor().map_err(|error| error.to_string())?;
                Listener::Tls(listener, acceptor)
            }
        };
        Ok(Self {
            server,
            config: couchdb.clone(),
            dialect,
            relay,
            listener: Mutex::new(Some(listener)),
            entry: entry().map_err(|error| error.to_string())?,
            peers: peers.clone(),
            node: node.clone(),
            inspector: Mutex::new(Inspector::new(Arc::new(members.clone()))),
            failing: Mutex::default(),
            stopped: tokio::sync::Mutex::default(),
            room: Semaphore::new(AT_ONCE),
            offered: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    fn failing(&self) -> MutexGuard<'_, BTreeMap<SiteId, Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that the job for a site got no good answer.
    fn failed(&self, site: &SiteId) {
        self.failing().entry(site.clone()).or_default().failed(Instant::now());
    }
}

/// Listens where it is told to; otherwise on loopback, on the port of the last time if it is free.
async fn listen(relay: Option<SocketAddr>, data: &Path) -> io::Result<TcpListener> {
    if let Some(relay) = relay {
        return contended::listen(relay).await;
    }
    let note = data.join(PORT);
    let last = fs::read_to_string(&note).ok().and_then(|port| port.trim().parse().ok());
    if let Some(port) = last
        && let Ok(listener) = contended::listen((Ipv4Addr::LOCALHOST, port).into()).await
    {
        return Ok(listener);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    fs::write(note, format!("{}\n", listener.local_addr()?.port()))?;
    Ok(listener)
}

/// What the server shows the relay, as a header has it. Another one at each start: what somebody has got hold of is
/// worth nothing then.
fn entry() -> Result<String, NoRandomness> {
    let token = Token::make()?.reveal();
    Ok(format!("Basic {}", BASE64_STANDARD.encode(format!("cheops:{token}"))))
}

/// An answer, as CouchDB would give it.
fn answer(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    response
}

fn problem(status: StatusCode, error: &str, reason: &str) -> Response<Body> {
    answer(status, serde_json::json!({"error": error, "reason": reason}).to_string())
}
