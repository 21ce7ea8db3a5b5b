//! The mesh: the application's own requests, on their way to where their scope says.
//!
//! The agent listens once for each service, in front of its instance at this site, and for the calls
//! that the application itself makes. A request goes to the instance here or to the agent of another
//! site; never straight to an instance elsewhere.
//!
//! | module | question it answers |
//! |---|---|
//! | `listen` | how do requests come in? |
//! | `connections` | how many connections are there, and which makes room for another? |
//! | `serve` | what happens to one request, from start to end? |
//! | `read` | what is the scope of a request? |
//! | `choice` | may this client choose sites? |
//! | `correlation` | which request does a call of the application belong to? |
//! | `request_id` | and by which ids of ours is that recognised? |
//! | `headers` | which header fields go on? |
//! | `routes` | where does a request with a scope go? |
//! | `legs` | which attempts are made, and in which order? |
//! | `attempt` | may it be tried elsewhere? |
//! | `forward` | how does the instance here, or another agent, get it? |
//! | `pool` | over which connection does the instance get it? |
//! | `streams` | and if that speaks HTTP/2? |
//! | `wire` | and who moves the bytes of that connection? |
//! | `clock` | how is time kept where each request sets a limit? |
//! | `body` | how does a body pass? |
//! | `upgrade` | and a connection that changes what it speaks? |
//! | `answer` | what is the client told? |
//! | `replicated` | where is what a request names, if it is at several sites? |
//! | `strangers` | and where is what this site has no part in? |
//! | `write` | how does a write become an operation? |
//! | `heard` | what is known of it when the client is answered? |
//! | `nothing` | and if nothing has come of it? |
//! | `told` | how does a reply become an answer? |
//! | `hide` | which ids does a client see? |
//! | `asking` | how much of the answers of several sites is kept? |
//! | `across` | how do collections of several sites become one? |
//! | `divided` | and the parts of one resource? |
//! | `once` | what is sent to several sites, and not recorded? |
//!
//! What must stay true:
//! - a request without a scope depends on the instance here and on nothing else;
//! - a body is never kept whole, but for one that is short and may be needed again;
//! - a request that another agent has forwarded is served here or nowhere.

mod across;
mod answer;
mod asking;
mod attempt;
mod body;
mod choice;
mod clock;
mod connections;
mod correlation;
mod divided;
mod forward;
mod headers;
mod heard;
mod hide;
mod legs;
mod listen;
mod nothing;
mod once;
mod pool;
pub mod read;
mod replicated;
mod request_id;
mod routes;
mod serve;
mod strangers;
mod streams;
mod told;
mod upgrade;
mod wire;
mod write;

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock, Weak},
    time::{Duration, Instant},
};

use axum::body::Body as AnyBody;
use cheops_core::{
    id::{ServiceName, SiteId},
    scope::Catalogue,
};
use hyper::{
    HeaderMap, Request, Response,
    header::{HeaderName, HeaderValue},
    http::request::Parts,
};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    correlation::{Correlation, Serving},
    headers::FOR,
    listen::Door,
    pool::Upstream,
    read::{Named, Reader},
    request_id::RequestIds,
    routes::Routes,
    strangers::Strangers,
};
use crate::{
    api::{Access, Context},
    config, contended,
    files::Files,
    metrics::{self, Metrics},
    node,
    peers::{MOST_FORWARDED, Peers, SERVICE},
    policy::Gate,
    replicants::Replicants,
    run::{Runner, Watch},
};

/// How old the knowledge of the other sites may be.
const FRESH: Duration = Duration::from_millis(200);

/// The head of a request. It goes from hand to hand, and is too large to be copied at each.
type Head = Box<Parts>;

/// Where the agent listens for the application's requests, before any of them is answered.
pub struct Doors(Vec<(Which, TcpListener)>);

/// Whom a door is for.
enum Which {
    /// Clients of a service.
    Service(ServiceName),
    /// The application, when it calls a service.
    Calls(Option<ServiceName>),
}

impl Doors {
    /// Takes all addresses that the configuration names. The error names the one that can't be had.
    pub async fn open(mesh: &config::Mesh) -> Result<Self, (SocketAddr, io::Error)> {
        let services = mesh.services.values().flat_map(|service| {
            let clients = (Which::Service(service.name.clone()), Some(service.listen));
            let calls = (Which::Calls(Some(service.name.clone())), service.outbound);
            [clients, calls]
        });
        let mut doors = Vec::new();
        for (which, address) in services.chain([(Which::Calls(None), mesh.outbound)]) {
            let Some(address) = address else { continue };
            let listener = contended::listen(address).await.map_err(|error| (address, error))?;
            doors.push((which, listener));
        }
        Ok(Self(doors))
    }
}

/// The mesh at work. All clones are one.
#[derive(Clone)]
pub struct Mesh {
    shared: Arc<Shared>,
    addresses: Arc<BTreeMap<ServiceName, SocketAddr>>,
}

impl Mesh {
    /// Answers the application's requests from now on.
    pub fn start(context: &Context, doors: Doors) -> Self {
        let shared = Arc::new(Shared::new(context));
        context.runner.watched_by(Links(Arc::downgrade(&shared)));
        let mut addresses = BTreeMap::new();
        for (which, listener) in doors.0 {
            let door = match which {
                Which::Service(name) => {
                    if let Ok(address) = listener.local_addr() {
                        addresses.insert(name.clone(), address);
                    }
                    shared.services.get(&name).cloned().map(Door::Service)
                }
                Which::Calls(name) => {
                    Some(Door::Calls(name.and_then(|name| shared.services.get(&name).cloned())))
                }
            };
            let Some(door) = door else { continue };
            let accepting = listen::accept(shared.clone(), door, listener);
            shared.tasks.spawn(accepting);
        }
        if !shared.services.is_empty() {
            shared.tasks.spawn(shared.clone().forget_nothing());
        }
        Self { shared, addresses: Arc::new(addresses) }
    }

    /// Where it listens for a service.
    pub fn address(&self, service: &ServiceName) -> Option<SocketAddr> {
        self.addresses.get(service).copied()
    }

    /// Whether another agent asks for a service, and not for the agent itself.
    pub(crate) fn is_for<T>(request: &Request<T>) -> bool {
        request.headers().contains_key(SERVICE)
    }

    /// Answers a request that another agent has forwarded.
    pub(crate) async fn forwarded(&self, request: Request<AnyBody>) -> Response<AnyBody> {
        let answered = self.shared.serve_forwarded(request.map(Into::into)).await;
        answered.map(pool::Answer::any)
    }

    /// Answers no more requests. Those under way have some time to end.
    pub(crate) async fn stop(&self, limit: Duration) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        // What has not ended by then is broken off with the process.
        let _ = timeout(limit, self.shared.tasks.wait()).await;
    }
}

/// A service of the application.
struct Service {
    config: config::Service,
    /// Its instance at this site, if there is one.
    instance: Option<Upstream>,
    counts: metrics::Service,
}

impl Service {
    fn name(&self) -> &ServiceName {
        &self.config.name
    }

    /// Whether a host names its instance, or where the agent listens for it.
    fn is_at(&self, host: &str) -> bool {
        let Ok(host) = host.parse::<SocketAddr>() else { return false };
        self.config.address == Some(host) || self.config.listen == host
    }
}

/// What all requests share.
struct Shared {
    here: SiteId,
    /// The same, as a header says it.
    named: HeaderValue,
    config: config::Mesh,
    services: BTreeMap<ServiceName, Arc<Service>>,
    peers: Peers,
    reader: Reader,
    routes: Routes,
    /// The requests being served, if calls of the application are listened for.
    correlation: Option<Correlation>,
    known: RwLock<(Instant, Arc<Catalogue>)>,
    node: node::Handle,
    files: Files,
    runner: Runner,
    gate: Gate,
    metrics: Metrics,
    access: Arc<Access>,
    replicants: Arc<Replicants>,
    strangers: Strangers,
    /// How many bytes more of answers of several sites can be merged.
    gathered: Arc<Semaphore>,
    /// For how many requests more there is room on the link to each site.
    room: RwLock<BTreeMap<SiteId, Arc<Semaphore>>>,
    /// The listeners, and the connections that are open.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Shared {
    fn new(context: &Context) -> Self {
        let (config, peers) = (&context.config, context.peers.clone());
        let mesh = config.mesh.clone();
        let service = |service: &config::Service| {
            let instance =
                service.address.map(|at| Upstream::new(at, service.limits, service.http2));
            let counts = context.metrics.service(&service.name);
            let name = service.name.clone();
            (name, Arc::new(Service { config: service.clone(), instance, counts }))
        };
        let takes_calls =
            mesh.outbound.is_some() || mesh.services.values().any(|s| s.outbound.is_some());
        let correlation = takes_calls.then(|| {
            let ids = RequestIds::of(&peers.members().identity());
            let mut secret = [0; 32];
            fastrand::fill(&mut secret);
            Correlation::new(mesh.link_by.clone(), ids, mesh.linger, mesh.links, secret)
        });
        Self {
            here: config.site.clone(),
            named: answer::name(&config.site),
            services: mesh.services.values().map(service).collect(),
            known: RwLock::new((Instant::now(), Arc::new(peers.catalogue()))),
            reader: Reader::default(),
            routes: Routes::default(),
            config: mesh,
            peers,
            correlation,
            node: context.node.clone(),
            files: context.files.clone(),
            runner: context.runner.clone(),
            gate: context.gate.clone(),
            metrics: context.metrics.clone(),
            access: context.access.clone(),
            replicants: context.replicants.clone(),
            strangers: Strangers::default(),
            gathered: Arc::new(Semaphore::new(asking::MOST_OF_ALL)),
            room: RwLock::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// For how many requests more there is room on the link to a site. Sites may join at any time.
    fn room(&self, site: &SiteId) -> Arc<Semaphore> {
        let known = self.room.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = known.get(site) {
            return room.clone();
        }
        drop(known);
        let mut all = self.room.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Semaphore::new(MOST_FORWARDED));
        all.entry(site.clone()).or_insert_with(new).clone()
    }

    /// How long nothing of a body may come, for the service that has most time.
    fn longest_idle(&self) -> Duration {
        let limits = self.services.values().map(|service| service.config.limits.idle);
        limits.max().unwrap_or(Duration::from_mins(5))
    }

    /// The sites, how far they are, and which can be reached.
    fn catalogue(&self) -> Arc<Catalogue> {
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if known.0.elapsed() < FRESH {
                return known.1.clone();
            }
        }
        let catalogue = Arc::new(self.peers.catalogue());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        *known = (Instant::now(), catalogue.clone());
        catalogue
    }

    /// Gives a request that is about to be served here an id, and takes note of it, so that calls can be
    /// attributed to it.
    fn serving(
        self: &Arc<Self>,
        headers: &mut HeaderMap,
        scope: Option<&Arc<Named>>,
    ) -> Option<Held> {
        let correlation = self.correlation.as_ref()?;
        let given = correlation.give_id(headers, scope.is_some());
        let serving = correlation.begin(headers, scope, Some(given), Instant::now())?;
        Some(Held { shared: self.clone(), serving: Some(serving) })
    }
}

/// Attributes the calls that the application makes for a request of an operation.
struct Links(Weak<Shared>);

impl Watch for Links {
    fn sending(&self, headers: &[(Box<str>, Box<str>)]) -> Option<Box<dyn Any + Send>> {
        let shared = self.0.upgrade()?;
        let field = |(name, value): &(Box<str>, Box<str>)| {
            Some((
                name.parse::<HeaderName>().ok()?,
                HeaderValue::from_bytes(value.as_bytes()).ok()?,
            ))
        };
        let headers: HeaderMap = headers.iter().filter_map(field).collect();
        let scope = headers.get(FOR).and_then(|scope| std::str::from_utf8(scope.as_bytes()).ok());
        let named = scope.and_then(|scope| shared.reader.known(scope));
        // It was given an id, if any, by the site that has accepted it.
        let correlation = shared.correlation.as_ref()?;
        let serving = correlation.begin(&headers, named.as_ref(), None, Instant::now())?;
        Some(Box::new(Held { shared, serving: Some(serving) }))
    }
}

/// A request that is being served, until this is dropped.
struct Held {
    shared: Arc<Shared>,
    serving: Option<Serving>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(serving), Some(correlation)) = (self.serving.take(), &self.shared.correlation)
        {
            correlation.end(serving, Instant::now());
        }
    }
}
