//! How requests come in: a listener for each service, and one for the calls of the application.
//!
//! What must stay true:
//! - there are never more connections than the limit, those included that have changed what they speak;
//! - one on which no request comes, or on which nobody takes an answer, is closed;
//! - a client that goes away ends what was begun for it;
//! - an agent that stops waits for answers, and for nobody who has not asked for one.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hyper::{Request, Response, body::Incoming, header::UPGRADE, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::sleep,
};

use super::{
    Service, Shared, body::Body, clock::Clock, headers::Client, pool::Answer, serve::Asks,
    upgrade::Place,
};
use crate::socket::Socket;

/// How long to wait when the system has no more room for connections, and between two looks at one that
/// is to end.
const PAUSE: Duration = Duration::from_millis(100);
/// How much of what a client sends is read at a time, at most: what uploads gain by, and more than the
/// head of a request may have.
const BUFFER: usize = 256 << 10;
const HTTP2_HEADERS: u32 = 64 << 10;
/// How many requests of one connection are served at the same time (HTTP/2).
const STREAMS: u32 = 256;

/// Whom the requests of a listener are for.
#[derive(Clone)]
pub(super) enum Door {
    /// A service, asked by clients.
    Service(Arc<Service>),
    /// A service, asked by the application: this one, or whichever a call names.
    Calls(Option<Arc<Service>>),
}

/// Accepts connections until it is told to stop.
pub(super) async fn accept(shared: Arc<Shared>, door: Door, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(shared.config.connections));
    let next = async || {
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (tcp, client) = listener.accept().await?;
        Ok((tcp, client, Arc::new(place)))
    };
    loop {
        let accepted = tokio::select! {
            accepted = next() => accepted,
            () = shared.stop.cancelled() => return,
        };
        match accepted {
            Ok((tcp, client, place)) => {
                let (shared, door) = (shared.clone(), door.clone());
                let tasks = shared.tasks.clone();
                tasks.spawn(converse(shared, door, tcp, client, place));
            }
            Err(error) if is_about_one(&error) => {}
            Err(error) => {
                tracing::warn!("no connection can be accepted: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether an error is about one connection only.
fn is_about_one(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

async fn converse(
    shared: Arc<Shared>,
    door: Door,
    tcp: TcpStream,
    client: SocketAddr,
    place: Place,
) {
    let Ok(socket) = Socket::new(tcp) else { return };
    let (head, idle, stop) = (shared.config.head, shared.longest_idle(), shared.stop.clone());
    let open = Arc::new(Open::default());
    let seen = open.clone();
    let all = Arc::new((shared, door, Client::from(client.ip()), place));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (all, asked) = (all.clone(), Asked::new(&seen));
        async move {
            let (shared, door, client, place) = &*all;
            if request.headers().contains_key(UPGRADE) {
                // It may last longer than what is HTTP of the connection.
                request.extensions_mut().insert(place.clone());
            }
            let mut response = answer(shared, door, client, request).await;
            response.body_mut().is_answer_to(asked.answered());
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(Clock::default()).header_read_timeout(head).max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HTTP2_HEADERS)
        .max_concurrent_streams(STREAMS);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(socket), service);
    tokio::pin!(connection);
    let mut looks = (Look::new(head), Look::new(idle));
    let mut stopping = false;
    loop {
        tokio::select! {
            // Whatever goes wrong with the connection is the client's to notice.
            _ = connection.as_mut() => return,
            () = stop.cancelled(), if !stopping => {
                if open.asks() == Some(0) {
                    return;
                }
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = sleep(if stopping { PAUSE } else { head.min(idle) }) => {
                let (asks, takes) = (open.asks(), open.takes());
                // All is answered, and the client does not go.
                if stopping && asks.is_some() {
                    return;
                }
                if looks.0.nothing_new(asks) || looks.1.nothing_new(takes) {
                    return;
                }
            }
        }
    }
}

/// What happens on a connection.
#[derive(Default)]
pub(super) struct Open {
    /// How many requests came.
    asked: AtomicU64,
    /// How many of them have no answer yet, and of how many the answer is being taken.
    waiting: AtomicUsize,
    answering: AtomicUsize,
    /// How many parts of answers were taken.
    taken: AtomicU64,
}

impl Open {
    /// What has to change as long as nobody has asked for anything.
    fn asks(&self) -> Option<u64> {
        let busy = self.waiting.load(Relaxed) + self.answering.load(Relaxed) > 0;
        (!busy).then(|| self.asked.load(Relaxed))
    }

    /// What has to change as long as there are answers to take and nothing to wait for.
    fn takes(&self) -> Option<u64> {
        let answers = self.waiting.load(Relaxed) == 0 && self.answering.load(Relaxed) > 0;
        answers.then(|| self.taken.load(Relaxed))
    }
}

/// A request of a connection, until it is answered.
struct Asked(Arc<Open>);

impl Asked {
    fn new(open: &Arc<Open>) -> Self {
        open.asked.fetch_add(1, Relaxed);
        open.waiting.fetch_add(1, Relaxed);
        Self(open.clone())
    }

    fn answered(self) -> Answering {
        self.0.answering.fetch_add(1, Relaxed);
        Answering(self.0.clone())
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
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
        self.0.answering.fetch_sub(1, Relaxed);
    }
}

/// Looks now and then whether something has changed.
struct Look {
    limit: Duration,
    since: Instant,
    last: Option<u64>,
}

impl Look {
    fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now(), last: Some(0) }
    }

    /// Whether nothing has changed for too long that should have.
    fn nothing_new(&mut self, now: Option<u64>) -> bool {
        if now.is_none() || now != self.last {
            (self.since, self.last) = (Instant::now(), now);
        }
        self.since.elapsed() >= self.limit && now.is_some()
    }
}

async fn answer(
    shared: &Arc<Shared>,
    door: &Door,
    client: &Client,
    request: Request<Incoming>,
) -> Response<Answer> {
    let (head, body) = request.into_parts();
    let body = Body::of(&head.headers, body);
    let head = Box::new(head);
    match door {
        Door::Service(service) => shared.serve(service, Asks::Client(client), head, body).await,
        Door::Calls(service) => shared.call(service.as_ref(), client, head, body).await,
    }
}
