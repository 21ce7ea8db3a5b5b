//! Connections to the application's instance at this site.
//!
//! A connection that has carried an answer to its end is kept, and the one that was used last is used
//! first. There is no task and no channel for a request: an idle connection is a handle on a stack.
//!
//! What must stay true:
//! - a connection carries one request at a time, and is kept only after the answer was read whole;
//! - a request that failed on a kept connection before anything came back is sent once more, over a
//!   new one, if it can't have been carried out or if that does no harm: servers close connections
//!   without a word;
//! - no more connections are kept than the limit, and none for longer than the server would.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body as _, Frame, Incoming, SizeHint},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::timeout};

use super::{
    Held,
    attempt::Came,
    body::{Body, BodyError, Patience, Timed},
    hide::Rewriting,
};
use crate::config::Limits;

/// How many idle connections are kept.
const KEPT: usize = 256;
/// How long one is kept. Many servers close theirs after 60 seconds.
const IDLE: Duration = Duration::from_secs(30);

/// An instance of the application.
pub(super) struct Upstream {
    address: SocketAddr,
    limits: Limits,
    kind: Kind,
}

enum Kind {
    Http1(Arc<Mutex<Vec<Idle>>>),
    Http2(tokio::sync::Mutex<Option<http2::SendRequest<Timed>>>),
}

struct Idle {
    connection: http1::SendRequest<Timed>,
    since: Instant,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("no connection to {address}: {error}")]
    Connect { address: SocketAddr, error: io::Error },
    #[error("no connection to {address} within {limit:?}")]
    ConnectLate { address: SocketAddr, limit: Duration },
    #[error("{address} closed the connection, or broke it off: {error}")]
    Broke { address: SocketAddr, error: hyper::Error },
    #[error("{address} did not answer within {limit:?}")]
    Late { address: SocketAddr, limit: Duration },
}

/// No answer, and the body of the request if none of it was sent.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) failed: Failed,
    pub(super) body: Option<Body>,
}

impl Unanswered {
    fn unsent(failed: Failed, request: Request<Timed>) -> Self {
        Self { failed, body: Some(request.into_body().into_inner()) }
    }
}

impl From<Failed> for Unanswered {
    fn from(failed: Failed) -> Self {
        Self { failed, body: None }
    }
}

impl Failed {
    /// Whether the request may have arrived.
    pub(super) fn came(&self) -> Came {
        match self {
            Self::Connect { .. } | Self::ConnectLate { .. } => Came::NotThere,
            Self::Broke { .. } => Came::Silence,
            Self::Late { .. } => Came::Late,
        }
    }
}

impl Upstream {
    pub(super) fn new(address: SocketAddr, limits: Limits, speaks_http2: bool) -> Self {
        let kind = if speaks_http2 {
            Kind::Http2(tokio::sync::Mutex::default())
        } else {
            Kind::Http1(Arc::default())
        };
        Self { address, limits, kind }
    }

    /// Whether there is anybody to connect to.
    pub(super) async fn is_there(&self) -> bool {
        self.connect().await.is_ok()
    }

    /// Sends a request, and waits for the head of the answer.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<Response<Answer>, Unanswered> {
        let (address, limit) = (self.address, self.limits.answer);
        let request = request.map(|body| Timed::new(body, self.limits.idle));
        let sending = async |request| match &self.kind {
            Kind::Http1(idle) => self.send_http1(idle, request).await,
            Kind::Http2(shared) => self.send_http2(shared, request).await,
        };
        let waiting = request.body().waiting();
        let answered = waiting.within(limit, sending(request)).await;
        answered.unwrap_or(Err(Failed::Late { address, limit }.into()))
    }

    async fn send_http1(
        &self,
        idle: &Arc<Mutex<Vec<Idle>>>,
        mut request: Request<Timed>,
    ) -> Result<Response<Answer>, Unanswered> {
        while let Some(mut connection) = take(idle) {
            let again = copy(&request);
            let sent = match connection.ready().await {
                Ok(()) => connection.try_send_request(request).await,
                Err(_) => continue,
            };
            match sent {
                Ok(response) => return Ok(self.answered(response, connection, idle)),
                Err(mut failed) => {
                    // What comes back was not sent.
                    let unsent = failed.take_message();
                    match unsent.or(again) {
                        Some(next) => request = next,
                        None => return Err(self.broke(failed.into_error()).into()),
                    }
                }
            }
        }
        let mut connection = match self.connect_http1().await {
            Ok(connection) => connection,
            Err(failed) => return Err(Unanswered::unsent(failed, request)),
        };
        match connection.send_request(request).await {
            Ok(response) => Ok(self.answered(response, connection, idle)),
            Err(error) => Err(self.broke(error).into()),
        }
    }

    fn answered(
        &self,
        response: Response<Incoming>,
        connection: http1::SendRequest<Timed>,
        idle: &Arc<Mutex<Vec<Idle>>>,
    ) -> Response<Answer> {
        response.map(|body| {
            let lease = Lease { connection, idle: idle.clone() };
            if body.is_end_stream() {
                lease.give_back();
                return Answer::from(Body::Empty);
            }
            Answer { lease: Some(lease), ..self.passing(body) }
        })
    }

    fn passing(&self, body: Incoming) -> Answer {
        let patience = Some(Patience::new(self.limits.idle));
        Answer { patience, ..Answer::from(Body::from(body)) }
    }

    fn broke(&self, error: hyper::Error) -> Failed {
        Failed::Broke { address: self.address, error }
    }

    async fn connect(&self) -> Result<TcpStream, Failed> {
        let (address, limit) = (self.address, self.limits.connect);
        let tcp = timeout(limit, TcpStream::connect(address)).await;
        let tcp = tcp.map_err(|_| Failed::ConnectLate { address, limit })?;
        let tcp = tcp.map_err(|error| Failed::Connect { address, error })?;
        tcp.set_nodelay(true).map_err(|error| Failed::Connect { address, error })?;
        Ok(tcp)
    }

    async fn connect_http1(&self) -> Result<http1::SendRequest<Timed>, Failed> {
        let io = TokioIo::new(self.connect().await?);
        let made = http1::Builder::new().preserve_header_case(true).handshake(io).await;
        let (sender, connection) = made.map_err(|error| self.broke(error))?;
        // How it ends is told to whoever uses it.
        tokio::spawn(async move { connection.with_upgrades().await });
        Ok(sender)
    }

    async fn send_http2(
        &self,
        shared: &tokio::sync::Mutex<Option<http2::SendRequest<Timed>>>,
        request: Request<Timed>,
    ) -> Result<Response<Answer>, Unanswered> {
        let mut sender = {
            let mut shared = shared.lock().await;
            match shared.as_ref().filter(|sender| !sender.is_closed()) {
                Some(sender) => sender.clone(),
                None => match self.connect_http2().await {
                    Ok(sender) => shared.insert(sender).clone(),
                    Err(failed) => return Err(Unanswered::unsent(failed, request)),
                },
            }
        };
        let response = sender.send_request(request).await.map_err(|error| self.broke(error))?;
        Ok(response.map(|body| self.passing(body)))
    }

    async fn connect_http2(&self) -> Result<http2::SendRequest<Timed>, Failed> {
        let io = TokioIo::new(self.connect().await?);
        let made = http2::Builder::new(TokioExecutor::new()).handshake(io).await;
        let (sender, connection) = made.map_err(|error| self.broke(error))?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// A connection that is free, the one that was used last first. One that has just carried an answer
/// may take a moment until it is ready.
fn take(idle: &Mutex<Vec<Idle>>) -> Option<http1::SendRequest<Timed>> {
    let mut idle = lock(idle);
    if idle.last().is_some_and(|newest| newest.since.elapsed() > IDLE) {
        // Those below have waited longer.
        idle.clear();
    }
    idle.retain(|idle| !idle.connection.is_closed());
    let ready = idle.iter().rposition(|idle| idle.connection.is_ready());
    let place = ready.or(idle.len().checked_sub(1))?;
    Some(idle.remove(place).connection)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same request once more, if sending it twice does no harm.
fn copy(request: &Request<Timed>) -> Option<Request<Timed>> {
    let body = request.body().again().filter(|_| request.method().is_idempotent())?;
    let mut again = Request::new(body);
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    Some(again)
}

/// A connection that carries an answer.
struct Lease {
    connection: http1::SendRequest<Timed>,
    idle: Arc<Mutex<Vec<Idle>>>,
}

impl Lease {
    fn give_back(self) {
        let mut idle = lock(&self.idle);
        if idle.len() < KEPT && !self.connection.is_closed() {
            idle.push(Idle { connection: self.connection, since: Instant::now() });
        }
    }
}

/// The body of an answer. The connection is free again when it was read to its end.
pub(super) struct Answer {
    body: Body,
    patience: Option<Patience>,
    lease: Option<Lease>,
    /// Replaces ids in it.
    rewriting: Option<Box<Rewriting>>,
    /// What lasts as long as the answer does.
    held: Option<Held>,
}

impl Answer {
    /// Has ids replaced as it passes.
    pub(super) fn rewrite(&mut self, rewriting: Rewriting) {
        if !self.body.is_end_stream() {
            self.rewriting = Some(Box::new(rewriting));
        }
    }

    /// Holds on to something until the answer was read, or nobody reads it any more.
    pub(super) fn hold(&mut self, held: Held) {
        self.held = Some(held);
    }

    /// As the links between agents carry it.
    pub(super) fn any(self) -> AnyBody {
        match self {
            Self { body, patience: None, lease: None, rewriting: None, held: None } => body.any(),
            other => AnyBody::new(other),
        }
    }
}

impl<T: Into<Body>> From<T> for Answer {
    fn from(body: T) -> Self {
        Self { body: body.into(), patience: None, lease: None, rewriting: None, held: None }
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            let frame = ready!(this.poll_body(cx));
            let Some(mut rewriting) = this.rewriting.take() else {
                return Poll::Ready(frame);
            };
            let data = match frame {
                None => rewriting.finish(),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let data = rewriting.push(&data);
                        this.rewriting = Some(rewriting);
                        data
                    }
                    // Trailers come after what was held back: the rest is here, and short.
                    Err(trailers) => {
                        let rest = rewriting.finish();
                        let trailers = trailers.into_trailers().ok().map(Arc::new);
                        this.body = Body::Whole(rest, trailers);
                        continue;
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            };
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rewriting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rewriting.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

impl Answer {
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let said = Pin::new(&mut self.body).poll_frame(cx);
        let frame = ready!(match &mut self.patience {
            Some(patience) => patience.poll(said, cx),
            None => said,
        });
        let fine = matches!(frame, None | Some(Ok(_)));
        if (frame.is_none() || self.body.is_end_stream())
            && fine
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
        Poll::Ready(frame)
    }
}
