//! Connections to the application's instance at this site.
//!
//! A connection that has carried an answer to its end is kept, and the one that was used last is used
//! first. Whoever uses a connection moves its bytes (see `wire`): one that is kept is no task, and only
//! looked at when it is to be used, and every now and then to see whether it still can be.
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
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body as _, Frame, Incoming, SizeHint},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    Held,
    attempt::Came,
    body::{Body, BodyError, Patience, Timed},
    hide::Rewriting,
    wire::Wire,
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
    Http1(Arc<Mutex<Idle>>),
    Http2(tokio::sync::Mutex<Option<http2::SendRequest<Timed>>>),
}

/// Connections that nobody uses.
#[derive(Default)]
struct Idle {
    /// The one that was used last is the last.
    kept: Vec<Kept>,
    /// Whether somebody looks after them.
    tended: bool,
}

struct Kept {
    wire: Box<Wire>,
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
        let request = request.map(|body| Timed::new(body, self.limits.idle));
        match &self.kind {
            Kind::Http1(idle) => self.send_http1(idle, request).await,
            Kind::Http2(shared) => {
                let waiting = request.body().waiting();
                let sending = self.send_http2(shared, request);
                let answered = waiting.within(self.limits.answer, sending).await;
                answered.unwrap_or(Err(self.late().into()))
            }
        }
    }

    async fn send_http1(
        &self,
        idle: &Arc<Mutex<Idle>>,
        mut request: Request<Timed>,
    ) -> Result<Response<Answer>, Unanswered> {
        let limit = self.limits.answer;
        while let Some(mut wire) = take(idle) {
            let again = copy(&request);
            match wire.ask(request, limit).await {
                None => return Err(self.late().into()),
                Some(Ok(response)) => return Ok(self.answered(response, wire, idle)),
                Some(Err(mut failed)) => {
                    // What comes back was not sent.
                    let unsent = failed.take_message();
                    match unsent.or(again) {
                        Some(next) => request = next,
                        None => return Err(self.broke(failed.into_error()).into()),
                    }
                }
            }
        }
        let mut wire = match self.connect_http1().await {
            Ok(wire) => wire,
            Err(failed) => return Err(Unanswered::unsent(failed, request)),
        };
        match wire.ask(request, limit).await {
            None => Err(self.late().into()),
            Some(Ok(response)) => Ok(self.answered(response, wire, idle)),
            Some(Err(failed)) => Err(self.broke(failed.into_error()).into()),
        }
    }

    fn answered(
        &self,
        response: Response<Incoming>,
        wire: Box<Wire>,
        idle: &Arc<Mutex<Idle>>,
    ) -> Response<Answer> {
        response.map(|body| {
            let lease = Lease { wire, idle: idle.clone() };
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

    fn late(&self) -> Failed {
        Failed::Late { address: self.address, limit: self.limits.answer }
    }

    async fn connect(&self) -> Result<TcpStream, Failed> {
        let (address, limit) = (self.address, self.limits.connect);
        let tcp = timeout(limit, TcpStream::connect(address)).await;
        let tcp = tcp.map_err(|_| Failed::ConnectLate { address, limit })?;
        let tcp = tcp.map_err(|error| Failed::Connect { address, error })?;
        tcp.set_nodelay(true).map_err(|error| Failed::Connect { address, error })?;
        Ok(tcp)
    }

    async fn connect_http1(&self) -> Result<Box<Wire>, Failed> {
        let wire = Wire::new(self.connect().await?).await;
        // It is large, and goes from hand to hand.
        wire.map(Box::new).map_err(|error| self.broke(error))
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

/// A connection that is free, the one that was used last first.
fn take(idle: &Mutex<Idle>) -> Option<Box<Wire>> {
    loop {
        let mut newest = lock(idle).kept.pop()?;
        if newest.since.elapsed() > IDLE {
            // Those below have waited longer.
            lock(idle).kept.clear();
            return None;
        }
        if newest.wire.is_free() {
            return Some(newest.wire);
        }
    }
}

/// Drops connections that were not used for long, or that the server has closed, as long as there are
/// any.
async fn tend(idle: Weak<Mutex<Idle>>) {
    loop {
        sleep(IDLE).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut idle = lock(&idle);
        idle.kept.retain_mut(|kept| kept.since.elapsed() < IDLE && kept.wire.is_free());
        if idle.kept.is_empty() {
            idle.tended = false;
            return;
        }
    }
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
    wire: Box<Wire>,
    idle: Arc<Mutex<Idle>>,
}

impl Lease {
    fn give_back(self) {
        if !self.wire.can_be_kept() {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.kept.len() < KEPT {
            idle.kept.push(Kept { wire: self.wire, since: Instant::now() });
        }
        if !idle.tended {
            idle.tended = true;
            tokio::spawn(tend(Arc::downgrade(&self.idle)));
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
    /// Why it breaks off, until what came before was written.
    broke: Option<BodyError>,
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
            Self { body, patience: None, lease: None, rewriting: None, held: None, .. } => {
                body.any()
            }
            other => AnyBody::new(other),
        }
    }
}

impl<T: Into<Body>> From<T> for Answer {
    fn from(body: T) -> Self {
        let body = body.into();
        Self { body, patience: None, lease: None, rewriting: None, held: None, broke: None }
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
        if let Some(error) = self.broke.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let said = match &mut self.lease {
            Some(lease) => lease.wire.poll_frame(&mut self.body, cx),
            None => Pin::new(&mut self.body).poll_frame(cx),
        };
        let frame = ready!(match &mut self.patience {
            Some(patience) => patience.poll(said, cx),
            None => said,
        });
        if let Some(Err(error)) = frame {
            // Whoever writes the answer drops what is not written yet when it breaks off, even its
            // head: it may have come at the same moment.
            self.broke = Some(error);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if (frame.is_none() || self.body.is_end_stream())
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
        Poll::Ready(frame)
    }
}
