//! How requests come in: a listener for each service, and one for the calls of the application.
//!
//! What must stay true: there are never more connections than the limit, and one on which no request
//! comes is closed; a client that goes away ends what was begun for it.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    Service, Shared, body::Body, clock::Clock, headers::Client, pool::Answer, serve::Asks,
};

/// How long to wait when the system has no more room for connections.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest head of a request.
const HEADERS: usize = 64 << 10;
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
pub(super) async fn accept(
    shared: Arc<Shared>,
    door: Door,
    listener: TcpListener,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(shared.config.connections));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((tcp, client)) => {
                let (shared, door, stop) = (shared.clone(), door.clone(), stop.clone());
                let tasks = shared.tasks.clone();
                tasks.spawn(converse(shared, door, tcp, client, place, stop));
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
    _place: OwnedSemaphorePermit,
    stop: CancellationToken,
) {
    // Without it answers would only be slower.
    let _ = tcp.set_nodelay(true);
    let head = shared.config.head;
    let all = Arc::new((shared, door, Client::from(client.ip())));
    let service = service_fn(move |request: Request<Incoming>| {
        let all = all.clone();
        async move {
            let (shared, door, client) = &*all;
            Ok::<_, Infallible>(answer(shared, door, client, request).await)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(Clock::default()).header_read_timeout(head).max_buf_size(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HTTP2_HEADERS)
        .max_concurrent_streams(STREAMS);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tcp), service);
    tokio::pin!(connection);
    tokio::select! {
        // Whatever goes wrong with the connection is the client's to notice.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn answer(
    shared: &Arc<Shared>,
    door: &Door,
    client: &Client,
    request: Request<Incoming>,
) -> Response<Answer> {
    let request = request.map(Body::from);
    match door {
        Door::Service(service) => shared.serve(service, Asks::Client(client), request).await,
        Door::Calls(service) => shared.call(service.as_ref(), client, request).await,
    }
}
