//! HTTP/2 on a connection between two agents: its limits, its three long streams, and calls.
//!
//! Whoever dialled is the client. It opens three requests that last as long as the link, each a
//! stream in both directions: [`LINK`] for greetings, pings and ends, [`RECORDS`] for messages, and
//! [`CALLS`]. All other requests are calls. HTTP/2 lets only the client ask; so that the other agent
//! can ask, too, the bytes of the third stream are an HTTP/2 connection with the roles exchanged.
//!
//! What must stay true:
//! - the window of the connection is as large as those of all its streams, so that no stream that
//!   nobody reads can stop the others, pings above all;
//! - that window bounds what the other end can make us keep: calls times window, 128 MiB for a link
//!   on which nobody reads anything;
//! - requests of clients, which may last for as long as clients like, leave a part of the streams to the
//!   calls of the agents themselves (see [`MOST_FORWARDED`]).

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc};

use axum::body::Body;
use cheops_core::id::SiteId;
use futures_util::FutureExt as _;
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    client::conn::http2::{Connection, SendRequest},
    header::HeaderName,
    http::uri::{Authority, Parts, PathAndQuery, Scheme},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    Caller, Guest, Shared, guest,
    link::{self, End, LINGER, Link, Reading, root},
    transport::{self, Meter, Metered},
};
use crate::{
    pipe::{joined, pipe},
    trust::{Arrived, authority::Use},
};

/// The service of the application that a call is for, if it is not for the agent itself.
pub(crate) const SERVICE: HeaderName = HeaderName::from_static("x-cheops-service");
/// Greetings, pings, ends.
pub(super) const LINK: &str = "/peer/v1/link";
/// Messages.
pub(super) const RECORDS: &str = "/peer/v1/records";
/// Calls from the agent that was dialled to the one that dialled.
pub(super) const CALLS: &str = "/peer/v1/calls";

/// How many calls may be under way at once on one connection, in one direction. More wait.
const MOST_CALLS: u32 = 256;
/// How many of them may be requests of the application's clients. More are refused.
pub(crate) const MOST_FORWARDED: usize = MOST_CALLS as usize / 4 * 3;
const STREAMS: u32 = MOST_CALLS + 3;
/// How many bytes may be on their way on one stream. A line with a round trip of 100 ms so carries
/// 5 MB/s.
const WINDOW: u32 = 512 << 10;
const CONNECTION_WINDOW: u32 = STREAMS * WINDOW;
/// How many bytes of one stream wait here for the socket.
const SEND_BUFFER: usize = 128 << 10;
const FRAME: u32 = 64 << 10;
const HEADERS: u32 = 64 << 10;

/// Makes this end of a connection the one that asks.
pub(super) async fn client<T>(
    io: T,
) -> hyper::Result<(SendRequest<Body>, Connection<TokioIo<T>, Body, TokioExecutor>)>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .handshake(TokioIo::new(io))
        .await
}

fn server() -> hyper::server::conn::http2::Builder<TokioExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .max_concurrent_streams(STREAMS)
        .auto_date_header(false);
    builder
}

/// Keeps a connection going until the link on it ends, and ends the link when it breaks.
pub(super) async fn drive(connection: impl Future<Output = hyper::Result<()>>, link: Arc<Link>) {
    let mut connection = pin!(connection);
    let over = async {
        link.ended().await;
        if link.end().is_some_and(|end| end.ours) {
            let _ = timeout(LINGER, link.left()).await;
        }
    };
    tokio::select! {
        ended = &mut connection => link.close(broke(ended)),
        () = over => {}
    }
    link.leave();
}

fn broke(ended: hyper::Result<()>) -> End {
    End::lost(match ended {
        Ok(()) => "the connection was closed".to_owned(),
        Err(error) => format!("the connection broke: {}", root(&error)),
    })
}

/// Serves a connection that another agent has dialled.
pub(super) async fn serve(shared: Arc<Shared>, tcp: TcpStream, from: SocketAddr) {
    // In boxes of their own, which go: a link lasts, and what it takes once need not.
    let accepted = Box::pin(transport::accepted(&shared.tls, tcp));
    let (io, site, key, chain) = match timeout(shared.links.silence, accepted).await {
        Ok(Ok(Arrived::Site { io, site, key, chain })) => (io, site, key, chain),
        Ok(Ok(Arrived::Guest { io, key, site })) => {
            return Box::pin(guest::serve(shared, io, Guest { key, site, from })).await;
        }
        Ok(Err(error)) => return shared.not_known(from, &error),
        Err(_) => return,
    };
    let site = Arc::new(site);
    let meter = Meter::new();
    let shown = chain.map(|chain| (chain, Use::Dialling));
    let link = Link::new(false, (key, shown), meter, shared.links.queue);
    let service = {
        let (shared, link) = (shared.clone(), link.clone());
        service_fn(move |request| {
            let (shared, link, site) = (shared.clone(), link.clone(), site.clone());
            async move { Ok::<_, Infallible>(receive(&shared, &link, &site, from, request).await) }
        })
    };
    let io = TokioIo::new(Metered::new(io, &link));
    let connection = server().serve_connection(io, service);
    let watch = async {
        tokio::select! {
            () = sleep(shared.links.silence) => {
                if link.site.borrow().is_none() {
                    let text = format!("`{}` waited for a greeting in vain", shared.here);
                    link.close(End::fault(text));
                }
            }
            () = shared.stop.cancelled() => {}
        }
        shared.stop.cancelled().await;
        link.close(shared.stopping());
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = link::held(&shared.here, &link, drive(connection, link.clone())) => {}
        () = watch => {}
    }
}

/// Answers a request of the site that has dialled.
async fn receive(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    dialler: &Arc<SiteId>,
    from: SocketAddr,
    request: Request<Incoming>,
) -> Response<Body> {
    // The paths of the application are its own business, whatever they are.
    let ours = !request.headers().contains_key(SERVICE);
    let post = ours && request.method() == Method::POST;
    match request.uri().path() {
        LINK if post && link.greets() => {
            let (shared, control) = (shared.clone(), link.control.body());
            let (link, dialler) = (link.clone(), dialler.clone());
            shared.clone().tasks.spawn(async move {
                let control = Reading::control(request.into_body());
                let greeting = link::greet(&shared, &link, control, &dialler);
                let greeting = link::caught(&shared.here, greeting).map(Result::flatten);
                // Whoever says nothing is sent away by the connection itself.
                let greeted = tokio::select! {
                    greeted = greeting => greeted,
                    () = link.ended() => return,
                };
                if let Err(end) = greeted {
                    shared.turned_away(from, &end);
                    link.close(end);
                }
            });
            Response::new(Body::new(control))
        }
        RECORDS if post && link.settled(shared.links.silence).await.is_some() => {
            if link.hand_in_records(request.into_body()) {
                Response::new(Body::new(link.outbox.body()))
            } else {
                refuse(StatusCode::CONFLICT, "the stream is open already")
            }
        }
        CALLS if post && link.settled(shared.links.silence).await.is_some() => {
            if !link.lends() {
                return refuse(StatusCode::CONFLICT, "the stream is open already");
            }
            let (reader, writer) = pipe();
            let (here, link) = (shared.here.clone(), link.clone());
            let io = joined(Body::new(request.into_body()), writer);
            shared.tasks.spawn(async move {
                link::held(&here, &link, ask(link.clone(), io)).await;
            });
            Response::new(reader)
        }
        _ => match link.settled(shared.links.silence).await {
            Some(site) => call(shared, site, request).await,
            None => {
                refuse(StatusCode::FORBIDDEN, "a connection between agents begins with a greeting")
            }
        },
    }
}

pub(super) fn refuse(status: StatusCode, why: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(why));
    *response.status_mut() = status;
    response
}

/// Lets whoever answers calls answer one.
async fn call(shared: &Shared, site: SiteId, request: Request<Incoming>) -> Response<Body> {
    let Some(calls) = shared.calls.get() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "the agent is starting");
    };
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Caller(site));
    calls.answer(request).await
}

/// Makes the third stream of a link the way to ask the agent that dialled, once there is something to
/// ask: of many links most are never asked anything, and a connection takes its room.
async fn ask(link: Arc<Link>, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let asking = async {
        link.needed().await;
        let connected = async {
            if let Ok((requests, connection)) = client(io).await {
                link.hand_in_calls(requests);
                // If it breaks, calls fail; the link itself says whether the other is there.
                let _ = connection.await;
            }
        };
        Box::pin(connected).await;
        link.close(End::lost("the stream of calls was closed"));
    };
    tokio::select! {
        () = asking => {}
        () = link.left() => {}
    }
}

/// Answers what the agent that was dialled asks over the third stream of a link.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    mut io: impl AsyncBufRead + AsyncWrite + Unpin + Send + 'static,
) {
    let asked = tokio::select! {
        first = io.fill_buf() => first.is_ok_and(|first| !first.is_empty()),
        () = link.left() => return,
    };
    if !asked {
        return link.close(End::lost("the stream of calls was closed"));
    }
    let Some(site) = link.site.borrow().clone() else { return };
    let service = {
        let shared = shared.clone();
        service_fn(move |request| {
            let (shared, site) = (shared.clone(), site.clone());
            async move { Ok::<_, Infallible>(call(&shared, site, request).await) }
        })
    };
    let connection = Box::pin(server().serve_connection(TokioIo::new(io), service));
    tokio::select! {
        _ = connection => link.close(End::lost("the stream of calls was closed")),
        () = link.left() => {}
    }
}

/// The address of something at the other end of a connection: its host has no meaning.
pub(super) fn uri(path: &'static str) -> Uri {
    at_peer(Uri::from_static(path))
}

/// A target with all that HTTP/2 asks for.
pub(super) fn at_peer(target: Uri) -> Uri {
    let mut parts: Parts = target.into_parts();
    parts.scheme.get_or_insert(Scheme::HTTP);
    parts.authority.get_or_insert(Authority::from_static("peer"));
    parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    // All three parts are there, which is all that can be missing.
    Uri::from_parts(parts).unwrap_or_default()
}
