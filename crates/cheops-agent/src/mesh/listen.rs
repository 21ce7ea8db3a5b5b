//! How requests come in: a listener for each service, and one for the calls of the application.
//!
//! What must stay true:
//! - there are never more connections than the limit, and one address can't keep others out (see `connections`);
//! - one on which no request comes, or on which nobody takes an answer, is closed;
//! - a client that goes away ends what was begun for it;
//! - an agent that stops waits for answers, and for nobody who has not asked for one.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{Request, Response, StatusCode, body::Incoming, header::UPGRADE, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::{
    Service, Shared,
    answer::{Problem, TOO_MANY},
    body::Body,
    clock::Clock,
    connections::{Asked, Connections, Listed, Seat},
    headers::Client,
    pool::Answer,
    serve::Asks,
};
use crate::{farewell, limits::Seldom, socket::Socket};

/// How long to wait when the system has no more room for connections, and between two looks at one that
/// is to end.
const PAUSE: Duration = Duration::from_millis(100);
/// How much of what a client sends is read at a time, at most: what uploads gain by, and more than the
/// head of a request may have.
const BUFFER: usize = 256 << 10;
const HTTP2_HEADERS: u32 = 64 << 10;
/// How many requests of one connection are served at the same time (HTTP/2).
const STREAMS: u32 = 256;
/// How many times a minute the log says that connections are rejected.
const SAID: u32 = 2;

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
    // The application makes its calls from one address, and is not limited by it.
    let limited = matches!(door, Door::Service(_));
    let connections = Arc::new(Connections::new(shared.config.connections, limited));
    let (farewells, said) = (Arc::new(Semaphore::new(farewell::MOST)), Seldom::new(SAID));
    let next = async || {
        let (tcp, client) = listener.accept().await?;
        io::Result::Ok((tcp, client, connections.admit(client.ip()).await))
    };
    loop {
        let accepted = tokio::select! {
            accepted = next() => accepted,
            () = shared.stop.cancelled() => return,
        };
        let tasks = shared.tasks.clone();
        match accepted {
            Ok((tcp, client, Ok(seat))) => {
                let (shared, door) = (shared.clone(), door.clone());
                let listed = connections.list(client.ip());
                tasks.spawn(converse(shared, door, tcp, client, (seat, listed)));
            }
            Ok((tcp, client, Err(_))) => {
                shared.metrics.refused("connections");
                let share = connections.share();
                if let Some(unsaid) = said.again(Instant::now()) {
                    tracing::warn!(
                        address = %client.ip(), limit = share, unsaid,
                        "rejected connection: the address has its share of the connections of this listener"
                    );
                }
                if let Ok(place) = farewells.clone().try_acquire_owned() {
                    let response = too_many(share).response(&shared.named);
                    tasks.spawn(async move {
                        let _ = timeout(farewell::PATIENCE, farewell::say(tcp, response)).await;
                        drop(place);
                    });
                }
            }
            Err(error) if is_about_one(&error) => {}
            Err(error) => {
                tracing::warn!("no connection can be accepted: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

fn too_many(share: usize) -> Box<Problem> {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        TOO_MANY,
        format!("this address has {share} connections with requests, and can't have more"),
        "close some, or try again; the limit is half of `mesh.connections` of the agent",
    )
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
    (seat, listed): (Arc<Seat>, Listed),
) {
    let Ok(socket) = Socket::new(tcp) else { return };
    let (head, idle, stop) = (shared.config.head, shared.longest_idle(), shared.stop.clone());
    let open = listed.open.clone();
    let seen = open.clone();
    let all = Arc::new((shared, door, Client::from(client.ip()), seat));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (all, asked) = (all.clone(), Asked::new(&seen));
        async move {
            let (shared, door, client, seat) = &*all;
            if request.headers().contains_key(UPGRADE) {
                // It may last longer than what is HTTP of the connection.
                request.extensions_mut().insert(seat.clone());
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
            () = open.asked_to_close() => {
                if open.can_close() {
                    return;
                }
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
