//! Several agents at one site: one is at work, the others stand by.
//!
//! They share the databases and the data directory of the site. Who holds the lease (`engine::couchdb::lease`) is at work;
//! whoever comes to another of them, by whichever of its doors, is passed on to that one, byte by byte. What must stay
//! true:
//! - an agent that stands by changes nothing that another has written, neither in the databases nor in the data
//!   directory;
//! - one that has lost the lease ends: nothing is written or run by it any more.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::StartError,
    config::{self, Config},
    contended,
    engine::{
        EngineError, Sort,
        couchdb::{Attempt, BEAT, Fence, Held, Holder, Lease, Owner},
    },
    trust::Identity,
};

/// How often the lease is looked at by those that stand by.
const LOOK: Duration = Duration::from_secs(1);
/// How long the agent at work may take to answer the phone.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many connections are passed on by one door at the same time.
const MOST: usize = 1_000;
/// How long the server may take to hear that the lease is given up.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long another may still be at work that was not stopped as it should.
const WAIT: Duration = Duration::from_secs(10);

/// This agent is the one at work.
pub(crate) struct AtWork {
    pub(crate) fence: Fence,
    /// Another has taken over.
    pub(crate) lost: CancellationToken,
    stop: CancellationToken,
    renewing: tokio::task::JoinHandle<()>,
}

impl AtWork {
    /// One that shares nothing with others.
    fn alone() -> Self {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        Self { fence: Fence::open(), lost, stop, renewing: tokio::spawn(async {}) }
    }

    fn with(held: Held) -> Self {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let fence = held.fence();
        let renewing = tokio::spawn(renew(held, lost.clone(), stop.clone()));
        Self { fence, lost, stop, renewing }
    }

    /// Lets another take over at once.
    pub(crate) async fn release(self) {
        self.stop.cancel();
        let _ = timeout(FAREWELL, self.renewing).await;
    }
}

/// Waits until this agent is the one at work. Until then, it passes on whoever comes.
pub(crate) async fn stand_by(config: &Config) -> Result<AtWork, StartError> {
    let config::Engine::CouchDb(couchdb) = &config.engine else { return Ok(AtWork::alone()) };
    let place = couchdb.url.to_string();
    let failed = |problem: String| {
        StartError::Store(EngineError { place: place.clone(), problem, sort: Sort::Server })
    };
    let owner = Owner::with(config.site.clone(), &config.data);
    let (couchdb, data, doors) = (couchdb.clone(), config.data.clone(), doors(config));
    let opened = blocking(move || {
        Lease::open(&couchdb, &owner, &data, couchdb.local_journal.is_some(), doors)
    });
    let opened = opened.await;
    let mut lease = opened.map_err(&failed)?;
    let (mut passing, mut silent) = (None::<Passing>, false);
    loop {
        // The agent at work may have got the site a new one.
        let key = match Identity::open(&config.data) {
            Ok(identity) => identity.public().to_string(),
            // One that stands by can wait until it can be read.
            Err(error) if passing.is_some() => {
                tracing::warn!("{error}");
                sleep(LOOK).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let ours = key.clone();
        match blocking(move || lease.try_take(ours)).await {
            Attempt::Ours(held) => {
                if passing.is_some() {
                    tracing::info!("this agent takes over");
                }
                return Ok(AtWork::with(held));
            }
            Attempt::Theirs(again, holder) => {
                (lease, silent) = (again, false);
                if holder.alone {
                    return Err(failed(
                        "another process is at work on these databases, and takes no turns: an agent with `couchdb.local_journal`, or `cheops engine copy`. If it is gone for good, with its machine, delete the document `lease` in the database that ends with -local".to_owned(),
                    ));
                }
                if holder.key != key {
                    return Err(failed(
                        "another agent is at work on these databases, with another key: agents of one site share their data directory".to_owned(),
                    ));
                }
                if let Some(passing) = &passing {
                    passing.to(holder);
                } else {
                    let api = holder.doors.get(API).map(ToString::to_string).unwrap_or_default();
                    passing = Some(Passing::open(config, holder).await?);
                    tracing::info!(
                        "another agent of `{}` is at work, with its API on {api}: this one stands by, and passes on whoever comes",
                        config.site
                    );
                }
            }
            Attempt::Failed(_, trouble) if passing.is_none() => {
                return Err(failed(trouble.to_string()));
            }
            Attempt::Failed(again, trouble) => {
                lease = again;
                if !silent {
                    tracing::warn!("who is at work can't be told: {trouble}");
                }
                silent = true;
            }
        }
        sleep(LOOK).await;
    }
}

/// Takes the databases of a site for this process alone, for as long as what this gives is there. Waits for the
/// server.
pub(crate) fn claim(config: &Config, couchdb: &config::CouchDb) -> Result<Held, String> {
    let owner = Owner::any(config.site.clone());
    let mut lease = Lease::open(couchdb, &owner, &config.data, true, BTreeMap::new())?;
    let start = Instant::now();
    loop {
        match lease.try_take(String::new()) {
            Attempt::Ours(held) => return Ok(held),
            Attempt::Theirs(_, holder) if holder.alone || start.elapsed() >= WAIT => {
                return Err(
                    "another process is at work on these databases: stop it first".to_owned()
                );
            }
            Attempt::Theirs(again, _) => lease = again,
            Attempt::Failed(_, trouble) => return Err(trouble.to_string()),
        }
        std::thread::sleep(LOOK);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Writes the lease anew, until it is lost or given up.
async fn renew(mut held: Held, lost: CancellationToken, stop: CancellationToken) {
    loop {
        let stopping = tokio::select! {
            () = sleep(BEAT) => false,
            () = stop.cancelled() => true,
        };
        let written = blocking(move || {
            let written = if stopping { held.release() } else { held.renew() };
            (held, written)
        });
        let outcome;
        (held, outcome) = written.await;
        match outcome {
            Ok(true) => {}
            Ok(false) => {
                tracing::error!(
                    "another agent of this site has taken over, or an old lease was put back from a backup: this one ends"
                );
                lost.cancel();
                return;
            }
            Err(trouble) => tracing::debug!("the lease can't be written: {trouble}"),
        }
        if stopping {
            return;
        }
    }
}

/// The name of the door that people come by.
const API: &str = "api";

/// Where an agent listens, by what for.
fn doors(config: &Config) -> BTreeMap<String, SocketAddr> {
    let services = config.mesh.services.values();
    let services = services.flat_map(|service| {
        let name = &service.name;
        let outbound = service.outbound.map(|at| (format!("calls to {name}"), at));
        [(format!("service {name}"), service.listen)].into_iter().chain(outbound)
    });
    let outbound = config.mesh.outbound.map(|at| ("calls".to_owned(), at));
    let own = [(API.to_owned(), config.api), ("peers".to_owned(), config.peers)];
    own.into_iter().chain(outbound).chain(services).collect()
}

/// Passes on whoever comes by any door, until it is dropped.
struct Passing {
    holder: Arc<Mutex<Holder>>,
    _doors: JoinSet<()>,
}

impl Passing {
    async fn open(config: &Config, holder: Holder) -> Result<Self, StartError> {
        let holder = Arc::new(Mutex::new(holder));
        let mut open = JoinSet::new();
        for (name, address) in doors(config) {
            if way(address, holder_door(&holder, &name)).is_none() {
                tracing::warn!(
                    "whoever comes for the {name} on {address} is not passed on: the agent at work listens where this one can't reach it, or where it would take strangers for users of its machine; write addresses that both reach in `listen`"
                );
                continue;
            }
            let failed = |error| StartError::Listen { address, what: "those who come by", error };
            let listener = contended::listen(address).await.map_err(failed)?;
            open.spawn(pass(listener, (name, address), holder.clone()));
        }
        Ok(Self { holder, _doors: open })
    }

    /// Passes on to another one from now on.
    fn to(&self, holder: Holder) {
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner) = holder;
    }
}

/// Where a door leads of which the one at work has another, if it may be passed on there: to loopback only from loopback,
/// for whoever comes there is trusted, and never to an address that is no one's own.
fn way(own: SocketAddr, theirs: Option<SocketAddr>) -> Option<SocketAddr> {
    let theirs = theirs.filter(|theirs| !theirs.ip().is_unspecified() && theirs.port() != 0)?;
    (theirs.ip().is_loopback() == own.ip().is_loopback() && theirs != own).then_some(theirs)
}

fn holder_door(holder: &Mutex<Holder>, name: &str) -> Option<SocketAddr> {
    holder.lock().unwrap_or_else(PoisonError::into_inner).doors.get(name).copied()
}

/// Passes on whoever comes by one door.
async fn pass(listener: TcpListener, door: (String, SocketAddr), holder: Arc<Mutex<Holder>>) {
    let ((name, own), mut passing) = (door, JoinSet::new());
    loop {
        tokio::select! {
            accepted = listener.accept(), if passing.len() < MOST => {
                let Ok((mut from, _)) = accepted else {
                    sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let Some(to) = way(own, holder_door(&holder, &name)) else { continue };
                passing.spawn(async move {
                    let Ok(Ok(mut to)) = timeout(PATIENCE, TcpStream::connect(to)).await else {
                        return;
                    };
                    let _ = from.set_nodelay(true);
                    let _ = to.set_nodelay(true);
                    let _ = copy_bidirectional(&mut from, &mut to).await;
                });
            }
            Some(_) = passing.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_passed_on_to_where_they_would_count_for_more() {
        for (own, theirs, expected) in [
            ("127.0.0.1:1", "127.0.0.1:2", true),
            ("192.0.2.1:1", "192.0.2.2:1", true),
            ("192.0.2.1:1", "127.0.0.1:2", false),
            ("0.0.0.0:1", "127.0.0.1:2", false),
            ("127.0.0.1:1", "192.0.2.2:2", false),
            ("0.0.0.0:1", "0.0.0.0:1", false),
            ("192.0.2.1:1", "0.0.0.0:2", false),
            ("192.0.2.1:1", "192.0.2.1:1", false),
            ("127.0.0.1:1", "127.0.0.1:0", false),
        ] {
            let theirs: SocketAddr = theirs.parse().unwrap();
            let found = way(own.parse().unwrap(), Some(theirs));
            assert_eq!(found, expected.then_some(theirs), "{own} to {theirs}");
        }
        assert_eq!(way("127.0.0.1:1".parse().unwrap(), None), None);
    }
}
