//! The door for people and programs: connections, within limits.
//!
//! Whoever connects may be slow, broken or hostile, and must not keep others out. What must stay
//! true:
//! - there are never more connections than the limit, and no machine but this one has more than half of
//!   them; one more is told so, and let go;
//! - a connection on which nothing happens that should is cut: headers that do not come, a body that
//!   stops in the middle or only trickles, an answer that nobody takes, a client that has nothing more
//!   to ask;
//! - a request that waits for the sites is none of these: it may take as long as it asks for;
//! - whoever is refused before its request was read whole has a second to take the answer.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    BoxError, Router,
    body::{Body, Bytes},
    http::{Request, Response, Version},
    response::IntoResponse as _,
};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body as _, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{Semaphore, watch},
    time::{Instant, Sleep, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use tower_http::timeout::TimeoutBody;

use super::{ApiError, audited::From};
use crate::{
    config, farewell,
    limits::{Places, sharer},
    metrics::Metrics,
};

/// How many fields the headers of a request may have.
const FIELDS: usize = 128;
/// How long to wait after a failure to accept: most often there are no more files to be had.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client that is refused has to take its answer.
const FAREWELL: Duration = Duration::from_secs(1);
/// How much of what it sends meanwhile is read.
const REST: usize = 1 << 20;
/// The fewest bytes of a body that have to come in a second, once it has taken longer than it may stand
/// still.
const SLOWEST: u64 = 1 << 10;
/// Connections are looked at so many times within the shortest of the limits.
const LOOKS: u32 = 4;

/// Where connections come from.
pub(crate) enum Listener {
    /// An address.
    Tcp(TcpListener),
    /// An address where TLS is spoken.
    Tls(TcpListener, TlsAcceptor),
    /// A path.
    Unix(UnixListener),
}

/// The user at the other end of a Unix socket: each of its requests has this among its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connected {
    pub(crate) uid: u32,
}

/// A connection that was accepted.
enum Accepted {
    Tcp(TcpStream, Option<TlsAcceptor>),
    Unix(UnixStream, Option<Connected>),
}

impl Accepted {
    /// The same, for an answer in HTTP/1.1: over TLS nothing else is offered.
    fn plain(self) -> Self {
        match self {
            Self::Tcp(tcp, Some(tls)) => {
                let mut config = rustls::ServerConfig::clone(tls.config());
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                Self::Tcp(tcp, Some(Arc::new(config).into()))
            }
            other => other,
        }
    }

    /// The address at the other end.
    fn from(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(tcp, _) => tcp.peer_addr().ok(),
            Self::Unix(..) => None,
        }
    }
}

/// What bytes come and go over.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Self::Tcp(tcp) => Accepted::Tcp(tcp.accept().await?.0, None),
            Self::Tls(tcp, tls) => Accepted::Tcp(tcp.accept().await?.0, Some(tls.clone())),
            Self::Unix(unix) => {
                let (unix, _) = unix.accept().await?;
                let user = unix.peer_cred().ok().map(|user| Connected { uid: user.uid() });
                Accepted::Unix(unix, user)
            }
        })
    }
}

/// Serves the API until it is to stop, and waits until requests under way have ended.
pub(crate) async fn serve(
    listener: Listener,
    router: Router,
    limits: config::Serve,
    metrics: Metrics,
    mut stop: watch::Receiver<bool>,
) {
    let (places, farewells) =
        (Places::new(limits.connections, 2), Arc::new(Semaphore::new(farewell::MOST)));
    let limits = Arc::new(limits);
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("the API can't accept a connection: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let from = accepted.from();
        let place = places.take(from.and_then(|from| sharer(from.ip())));
        if let Ok(place) = place {
            let (router, limits, stop) = (router.clone(), limits.clone(), stop.clone());
            tasks.spawn(async move {
                if let Some((io, user)) = open(accepted, limits.headers).await {
                    attend(io, from, user, router, &limits, stop).await;
                }
                drop(place);
            });
            continue;
        }
        metrics.refused("connections");
        if let Ok(place) = farewells.clone().try_acquire_owned() {
            let most = limits.connections;
            tasks.spawn(async move {
                let _ = timeout(farewell::PATIENCE, turn_away(accepted, most)).await;
                drop(place);
            });
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// Tells a client that it is one too many.
async fn turn_away(accepted: Accepted, most: usize) -> io::Result<()> {
    let error = too_many(matches!(accepted, Accepted::Unix(..)), most);
    let Some((io, _)) = open(accepted.plain(), farewell::PATIENCE).await else { return Ok(()) };
    farewell::say(io, error.into_response()).await
}

fn too_many(on_unix_socket: bool, most: usize) -> ApiError {
    let (what, hint) = if on_unix_socket {
        (format!("{most} connections at once on its Unix socket"), "close some, or try again")
    } else {
        (
            format!("{most} connections at once, half of them to one machine at most"),
            "close some, or try again; `api.connections` in its configuration is the limit",
        )
    };
    ApiError::too_many(
        "too-many-connections",
        format!("connection limit reached: this agent serves {what}"),
        hint,
    )
}

/// Makes a connection ready for requests: where TLS is spoken, both ends have to agree first.
async fn open(accepted: Accepted, patience: Duration) -> Option<(Box<dyn Io>, Option<Connected>)> {
    match accepted {
        Accepted::Unix(unix, user) => Some((Box::new(unix), user)),
        Accepted::Tcp(tcp, tls) => {
            // An answer of a few bytes is not to wait for more.
            let _ = tcp.set_nodelay(true);
            let Some(tls) = tls else { return Some((Box::new(tcp), None)) };
            // What goes wrong here is the client's to notice.
            let tls = timeout(patience, tls.accept(tcp)).await.ok()?.ok()?;
            Some((Box::new(tls), None))
        }
    }
}

/// Serves one connection to its end.
async fn attend(
    io: Box<dyn Io>,
    from: Option<SocketAddr>,
    user: Option<Connected>,
    router: Router,
    limits: &config::Serve,
    mut stop: watch::Receiver<bool>,
) {
    let pulse = Pulse::new();
    let io = TokioIo::new(Watched { io, pulse: pulse.clone(), farewell: None, rest: 0 });
    let (stall, heard) = (limits.stall, pulse.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(from) = from {
            request.extensions_mut().insert(From(from));
        }
        if let Some(user) = user {
            request.extensions_mut().insert(user);
        }
        let (router, pulse) = (router.clone(), heard.clone());
        async move { Ok::<_, Infallible>(answer(router, &pulse, request, stall).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(limits.header_bytes).max_headers(FIELDS);
    builder
        .http2()
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX));
    let mut connection = pin!(builder.serve_connection(io, service));
    let shortest = limits.headers.min(limits.idle).min(limits.stall);
    let look = (shortest / LOOKS).max(Duration::from_millis(1));
    let mut stopping = false;
    loop {
        tokio::select! {
            // What goes wrong on a connection is the client's to notice.
            _ = connection.as_mut() => return,
            () = sleep(look) => {
                if let Some(why) = pulse.lock().over(limits) {
                    tracing::debug!("a connection to the API was cut: {why}");
                    return;
                }
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(
    router: Router,
    pulse: &Pulse,
    request: Request<Incoming>,
    stall: Duration,
) -> Response<Body> {
    let under_way = pulse.begin(request.version(), request.body().is_end_stream());
    let request = request.map(|body| {
        if body.is_end_stream() { Body::empty() } else { Body::new(Sent::new(body, pulse, stall)) }
    });
    let response = match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    // It is under way until its last byte was handed over.
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &under_way;
            frame
        }))
    })
}

/// The body of a request, as it comes.
struct Sent {
    /// It counts as stalled only while somebody waits for it.
    inner: Pin<Box<TimeoutBody<Incoming>>>,
    pulse: Pulse,
    stall: Duration,
    /// How much came, since when.
    came: u64,
    began: Instant,
}

/// Why a body is not read on.
#[derive(Debug, thiserror::Error)]
#[error("the body comes too slowly: less than {SLOWEST} bytes a second")]
struct TooSlow;

impl Sent {
    fn new(body: Incoming, pulse: &Pulse, stall: Duration) -> Self {
        let inner = Box::pin(TimeoutBody::new(stall, body));
        Self { inner, pulse: pulse.clone(), stall, came: 0, began: Instant::now() }
    }

    fn trickles(&self) -> bool {
        let took = self.began.elapsed();
        took > self.stall && self.came < took.as_secs().saturating_mul(SLOWEST)
    }
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match ready!(self.inner.as_mut().poll_frame(context)) {
            None => {
                self.pulse.lock().unread = false;
                Poll::Ready(None)
            }
            Some(Ok(frame)) => {
                self.came += frame.data_ref().map_or(0, |data| data.len() as u64);
                if self.trickles() {
                    return Poll::Ready(Some(Err(TooSlow.into())));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// What happens on a connection, seen from both sides: the socket and the requests.
#[derive(Clone)]
struct Pulse(Arc<Mutex<Beats>>);

#[derive(Debug)]
struct Beats {
    /// Requests whose answer is not complete.
    under_way: usize,
    /// Since when there are none.
    quiet: Instant,
    /// When the first byte came after that.
    first_byte: Option<Instant>,
    /// Since when bytes wait that the client does not take.
    blocked: Option<Instant>,
    /// Requests come in frames: bytes do not tell that one begins.
    framed: bool,
    /// There was a request already.
    greeted: bool,
    /// The body of the last request was not read to its end.
    unread: bool,
}

impl Pulse {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Beats {
            under_way: 0,
            quiet: Instant::now(),
            first_byte: None,
            blocked: None,
            framed: false,
            greeted: false,
            unread: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Beats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, version: Version, whole: bool) -> UnderWay {
        let mut beats = self.lock();
        beats.under_way += 1;
        beats.framed = version >= Version::HTTP_2;
        beats.greeted = true;
        beats.unread = !whole;
        UnderWay(self.clone())
    }
}

impl Beats {
    /// Why the connection is to be cut, if so.
    fn over(&self, limits: &config::Serve) -> Option<&'static str> {
        if self.blocked.is_some_and(|since| since.elapsed() >= limits.stall) {
            return Some("the client does not take its answer");
        }
        if self.under_way > 0 {
            return None;
        }
        if !self.greeted && self.quiet.elapsed() >= limits.headers {
            return Some("no request came");
        }
        let began = self.first_byte.filter(|_| !self.framed);
        if began.is_some_and(|since| since.elapsed() >= limits.headers) {
            return Some("the headers of a request did not come");
        }
        (self.quiet.elapsed() >= limits.idle).then_some("the client asks for nothing more")
    }

    /// Whether the connection ends while a request on it was not read whole: its headers or its body
    /// were refused.
    fn refused(&self) -> bool {
        self.under_way == 0 && !self.framed && (self.first_byte.is_some() || self.unread)
    }
}

/// A request under way, until it is dropped.
struct UnderWay(Pulse);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut beats = self.0.lock();
        beats.under_way -= 1;
        beats.quiet = Instant::now();
        beats.first_byte = None;
    }
}

/// A socket that notes when bytes come, and when they can't go.
struct Watched {
    io: Box<dyn Io>,
    pulse: Pulse,
    /// When a client that was refused has had the time to take its answer.
    farewell: Option<Pin<Box<Sleep>>>,
    /// How much was read away of what it sent meanwhile.
    rest: usize,
}

impl Watched {
    fn note<T>(&self, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut beats = self.pulse.lock();
        if sent.is_pending() {
            beats.blocked.get_or_insert_with(Instant::now);
        } else {
            beats.blocked = None;
        }
        sent
    }

    /// Reads away what a client sends that was refused, or the system would throw the answer away
    /// with it.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let farewell = self.farewell.get_or_insert_with(|| Box::pin(sleep(FAREWELL)));
        if farewell.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut bytes = [0; 16 << 10];
        while self.rest < REST {
            let mut rest = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.io).poll_read(context, &mut rest));
            if read.is_err() || rest.filled().is_empty() {
                return Poll::Ready(());
            }
            self.rest += rest.filled().len();
        }
        // Who sends on and on is made to wait, until the time is over.
        Poll::Pending
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.pulse.lock().first_byte.get_or_insert_with(Instant::now);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write(context, bytes);
        self.note(sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_shutdown(context))?;
        if self.pulse.lock().refused() {
            ready!(self.poll_rest(context));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write_vectored(context, bytes);
        self.note(sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
