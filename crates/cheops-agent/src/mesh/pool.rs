//! Connections to the application's instance at this site.
//!
//! A connection that has carried an answer to its end is kept, and the one that was used last is used
//! first. Whoever uses a connection moves its bytes (see `wire`): one that is kept is no task, and only
//! looked at when it is to be used, and every now and then to see whether it still can be.
//!
//! What must stay true:
//! - a connection carries one request at a time (see `streams` for HTTP/2), and is kept only after the
//!   request was sent and the answer read whole;
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
    HeaderMap, Request, Response,
    body::{Body as _, Frame, Incoming, SizeHint},
    header::{HeaderValue, UPGRADE},
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    Held,
    attempt::Came,
    body::{Body, BodyError, Patience, Timed},
    connections::Answering,
    hide::Rewriting,
    streams::Streams,
    upgrade::Place,
    wire::Wire,
};
use crate::{
    config::Limits,
    framing::{UnsoundResponse, sound_response},
    socket::Socket,
};

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
    Http2(Streams),
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
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Failed {
    #[error("no connection to {address}: {error}")]
    Connect { address: SocketAddr, error: Arc<io::Error> },
    #[error("no connection to {address} within {limit:?}")]
    ConnectLate { address: SocketAddr, limit: Duration },
    #[error("{address} did not take the request: {error}")]
    Refused { address: SocketAddr, error: Arc<hyper::Error> },
    #[error("{address} closed the connection, or broke it off: {error}")]
    Broke { address: SocketAddr, error: Arc<hyper::Error> },
    #[error("{address} did not answer within {limit:?}")]
    Late { address: SocketAddr, limit: Duration },
    #[error("{address} answered in a way that can't be passed on: {why}")]
    Unsound { address: SocketAddr, why: UnsoundResponse },
    #[error("{0}")]
    BrokenBody(String),
}

/// No answer, and the body of the request if none of it was sent.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) failed: Failed,
    pub(super) body: Option<Body>,
}

impl Unanswered {
    pub(super) fn unsent(failed: Failed, request: Request<Timed>) -> Self {
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
            Self::Connect { .. } | Self::ConnectLate { .. } | Self::Refused { .. } => {
                Came::NotThere
            }
            Self::Broke { .. } | Self::Unsound { .. } => Came::Silence,
            Self::Late { .. } => Came::Late,
            Self::BrokenBody(_) => Came::BrokenBody,
        }
    }
}

impl Upstream {
    pub(super) fn new(address: SocketAddr, limits: Limits, speaks_http2: bool) -> Self {
        let kind = if speaks_http2 {
            Kind::Http2(Streams::default())
        } else {
            Kind::Http1(Arc::default())
        };
        Self { address, limits, kind }
    }

    /// Whether there is anybody to connect to.
    pub(super) async fn is_there(&self) -> bool {
        connect(self.address, self.limits).await.is_ok()
    }

    /// Sends a request, and waits for the head of the answer.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<Response<Answer>, Unanswered> {
        let request = request.map(|body| Timed::new(body, self.limits.idle));
        let waiting = request.body().waiting();
        let answered = match &self.kind {
            Kind::Http1(idle) => self.send_http1(idle, request).await,
            Kind::Http2(streams) => {
                let sending = streams.send(self.address, self.limits, request);
                let answered = waiting.within(self.limits, sending).await;
                answered.unwrap_or(Err(self.late().into())).and_then(|response| {
                    self.check(&response, None)?;
                    let (head, body) = response.into_parts();
                    let body = self.passing(&head.headers, body);
                    Ok(Response::from_parts(head, body))
                })
            }
        };
        answered.map_err(|unanswered| {
            let late = matches!(unanswered.failed, Failed::Late { .. });
            match waiting.broken(late, self.limits.idle) {
                Some(why) if unanswered.body.is_none() => Failed::BrokenBody(why).into(),
                _ => unanswered,
            }
        })
    }

    /// Checks that a response means the same to all who read it. `upgrade`: the protocols that the request asked
    /// for, if it did.
    fn check(
        &self,
        response: &Response<Incoming>,
        upgrade: Option<&HeaderValue>,
    ) -> Result<(), Failed> {
        sound_response(response.status(), response.headers(), upgrade)
            .map_err(|why| Failed::Unsound { address: self.address, why })
    }

    async fn send_http1(
        &self,
        idle: &Arc<Mutex<Idle>>,
        mut request: Request<Timed>,
    ) -> Result<Response<Answer>, Unanswered> {
        let limits = self.limits;
        let upgrade = request.headers().get(UPGRADE).cloned();
        while let Some(mut wire) = take(idle) {
            let again = copy(&request);
            match wire.ask(request, limits).await {
                None => return Err(self.late().into()),
                Some(Ok(response)) => return self.answered(response, upgrade.as_ref(), wire, idle),
                Some(Err(mut failed)) => {
                    // What comes back was not sent.
                    match (failed.take_message(), again) {
                        (Some(unsent), _) => request = unsent,
                        // It may have arrived: once more, over a connection that is surely open.
                        (None, Some(again)) => {
                            request = again;
                            break;
                        }
                        (None, None) => return Err(self.broke(failed.into_error()).into()),
                    }
                }
            }
        }
        let mut wire = match self.connect_http1().await {
            Ok(wire) => wire,
            Err(failed) => return Err(Unanswered::unsent(failed, request)),
        };
        match wire.ask(request, limits).await {
            None => Err(self.late().into()),
            Some(Ok(response)) => self.answered(response, upgrade.as_ref(), wire, idle),
            Some(Err(failed)) => Err(self.broke(failed.into_error()).into()),
        }
    }

    fn answered(
        &self,
        response: Response<Incoming>,
        upgrade: Option<&HeaderValue>,
        wire: Box<Wire>,
        idle: &Arc<Mutex<Idle>>,
    ) -> Result<Response<Answer>, Unanswered> {
        // The connection is closed with `wire`.
        self.check(&response, upgrade)?;
        let (head, body) = response.into_parts();
        let lease = Lease { wire, idle: idle.clone() };
        let answer = if body.is_end_stream() {
            lease.give_back();
            Answer::from(Body::Empty)
        } else {
            Answer { lease: Some(lease), ..self.passing(&head.headers, body) }
        };
        Ok(Response::from_parts(head, answer))
    }

    fn passing(&self, head: &HeaderMap, body: Incoming) -> Answer {
        let patience = Some(Patience::new(self.limits.idle));
        Answer { patience, ..Answer::from(Body::of(head, body)) }
    }

    fn broke(&self, error: hyper::Error) -> Failed {
        Failed::Broke { address: self.address, error: Arc::new(error) }
    }

    fn late(&self) -> Failed {
        Failed::Late { address: self.address, limit: self.limits.answer }
    }

    async fn connect_http1(&self) -> Result<Box<Wire>, Failed> {
        let wire = Wire::new(connect(self.address, self.limits).await?).await;
        // It is large, and goes from hand to hand.
        wire.map(Box::new).map_err(|error| self.broke(error))
    }
}

/// A connection to an instance.
pub(super) async fn connect(address: SocketAddr, limits: Limits) -> Result<Socket, Failed> {
    let limit = limits.connect;
    let failed = |error| Failed::Connect { address, error: Arc::new(error) };
    let tcp = timeout(limit, TcpStream::connect(address)).await;
    let tcp = tcp.map_err(|_| Failed::ConnectLate { address, limit })?;
    tcp.and_then(Socket::new).map_err(failed)
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
    /// What it takes up on a link.
    place: Option<Place>,
    /// The connection of a client that takes it.
    answering: Option<Answering>,
    /// Why it has broken off, until that is said.
    broken: Option<BodyError>,
}

impl Answer {
    /// Tells a client's connection that it is being taken.
    pub(super) fn is_answer_to(&mut self, answering: Answering) {
        self.answering = Some(answering);
    }

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

    /// Takes up a place for as long.
    pub(super) fn take_up(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// As the links between agents carry it.
    pub(super) fn any(self) -> AnyBody {
        match self {
            Self {
                body,
                patience: None,
                lease: None,
                rewriting: None,
                held: None,
                place: None,
                answering: None,
                broken: None,
            } => body.any(),
            other => AnyBody::new(other),
        }
    }
}

impl<T: Into<Body>> From<T> for Answer {
    fn from(body: T) -> Self {
        let body = body.into();
        Self {
            body,
            patience: None,
            lease: None,
            rewriting: None,
            held: None,
            place: None,
            answering: None,
            broken: None,
        }
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
        if let Some(error) = self.broken.take() {
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
            // Whoever takes the answer drops what it has not written when it hears of this. It has a turn
            // for that, so that a client sees what there was of the answer.
            self.broken = Some(error);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if (frame.is_none() || self.body.is_end_stream())
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
        if let Some(answering) = &self.answering {
            answering.taken();
        }
        Poll::Ready(frame)
    }
}
