//! The mesh: the application's own requests, on their way to where their scope says.
//!
//! The agent listens once for each service, in front of its instance at this site, and once for the
//! calls that the application itself makes. A request goes to the instance here or to the agent of
//! another site; never straight to an instance elsewhere.
//!
//! | module | question it answers |
//! |---|---|
//! | `read` | what is the scope of a request? |
//! | `headers` | which header fields go on? |
//! | `linked` | which request does a call of the application belong to? |
//! | `serve` | what happens to one request, from start to end? |
//! | `attempt` | may it be tried elsewhere? |
//! | `pool` | over which connection does the instance get it? |
//! | `body` | how does a body pass? |
//! | `upgrade` | and a connection that changes what it speaks? |
//! | `answer` | what is the client told? |
//! | `listen` | how do requests come in? |

#![allow(dead_code)]
mod answer;
mod attempt;
mod body;
mod headers;
mod linked;
mod listen;
mod pool;
mod read;
mod serve;
mod upgrade;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use cheops_core::{
    id::{ServiceName, SiteId},
    scope::Catalogue,
};
use hyper::{header::HeaderValue, http::request::Parts};

use self::{
    linked::{Linked, Serving},
    pool::{Limits, Upstream},
    read::{Named, Reader},
};
use crate::peers::Peers;

/// A service of the application.
struct Service {
    name: ServiceName,
    /// Its instance at this site, if there is one.
    instance: Option<Upstream>,
    limits: Limits,
    /// Where the agent listens for it.
    listens: SocketAddr,
}

impl Service {
    /// Whether a host names its instance, or where the agent listens for it.
    fn is_at(&self, host: &str) -> bool {
        let is = |address: SocketAddr| host.parse() == Ok(address);
        self.instance.as_ref().is_some_and(|instance| is(instance.address())) || is(self.listens)
    }
}

/// What all requests share.
struct Shared {
    here: SiteId,
    /// The same, as a header says it.
    named: HeaderValue,
    services: BTreeMap<ServiceName, Arc<Service>>,
    peers: Peers,
    reader: Reader,
    linked: Mutex<Linked>,
    known: RwLock<(Instant, Arc<Catalogue>)>,
}

/// How old the knowledge of the other sites may be.
const FRESH: Duration = Duration::from_millis(200);

impl Shared {
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

    /// Takes note that a request with a scope is being served here.
    fn serving(self: &Arc<Self>, request: &Parts, named: &Arc<Named>) -> Held {
        let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        let serving = linked.begin(&request.headers, named, Instant::now());
        drop(linked);
        Held { shared: self.clone(), serving: Some(serving) }
    }
}

/// A request that is being served, until this is dropped.
struct Held {
    shared: Arc<Shared>,
    serving: Option<Serving>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            let mut linked = self.shared.linked.lock().unwrap_or_else(PoisonError::into_inner);
            linked.end(serving, Instant::now());
        }
    }
}
