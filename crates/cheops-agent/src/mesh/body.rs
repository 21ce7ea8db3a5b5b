//! Bodies on their way through the agent: passed on as they come, never kept whole unless they are
//! small and may be needed again.
//!
//! What must stay true:
//! - a body of which nothing comes for too long is broken off, so that nobody holds a connection for ever
//!   by saying nothing;
//! - trailers arrive with the body that they belong to, by the same rules as header fields;
//! - a request that fails because its client's body is broken is told from one that its receiver fails.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body as AnyBody;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap,
    body::{Body as _, Frame, Incoming, SizeHint},
    header::HeaderName,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{
    clock::Alarm,
    headers::{clean_trailers, named_by_connection},
    upgrade::Place,
};
use crate::config::Limits;

/// What goes wrong with a body on its way.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body.
#[derive(Debug, Default)]
pub(super) enum Body {
    /// There is none, or no more.
    #[default]
    Empty,
    /// All of it is here.
    Whole(Bytes, Option<Arc<HeaderMap>>),
    /// It comes over a connection of a client or of the local instance. `Connection` names these fields in the head.
    Passing(Incoming, Vec<HeaderName>),
    /// Its beginning is here, and the rest comes.
    Begun(Bytes, Box<Self>),
    /// Whatever else: it comes over a link, or was made here.
    Other(AnyBody),
}

impl From<AnyBody> for Body {
    fn from(body: AnyBody) -> Self {
        if body.is_end_stream() { Self::Empty } else { Self::Other(body) }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::Empty } else { Self::Whole(bytes, None) }
    }
}

impl Body {
    /// The body of a message with this head.
    pub(super) fn of(head: &HeaderMap, incoming: Incoming) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        Self::Passing(incoming, named_by_connection(head))
    }

    /// Reads the body if it is short, so that it can be sent again. `idle`: how long nothing of it may
    /// come.
    pub(super) async fn keep(self, most: usize, idle: Duration) -> Result<Self, BodyError> {
        if self.again().is_some() || self.size_hint().lower() > most as u64 {
            return Ok(self);
        }
        let mut coming = Timed::new(self, idle);
        let mut kept = BytesMut::new();
        let mut trailers = None;
        while let Some(frame) = coming.frame().await.transpose()? {
            match frame.into_data() {
                Ok(data) => kept.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok().map(Arc::new),
            }
            if kept.len() > most {
                return Ok(Self::Begun(kept.freeze(), Box::new(coming.into_inner())));
            }
        }
        if kept.is_empty() && trailers.is_none() {
            return Ok(Self::Empty);
        }
        Ok(Self::Whole(kept.freeze(), trailers))
    }

    /// The same body once more, if it can be had twice.
    pub(super) fn again(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Whole(bytes, trailers) => Some(Self::Whole(bytes.clone(), trailers.clone())),
            Self::Passing(..) | Self::Begun(..) | Self::Other(_) => None,
        }
    }

    /// Gives a part on. Trailers of which nothing is left are the end.
    fn goes_on(
        &mut self,
        frame: Option<Result<Frame<Bytes>, BodyError>>,
    ) -> Option<Result<Frame<Bytes>, BodyError>> {
        let is_nothing =
            |frame: &Frame<Bytes>| frame.trailers_ref().is_some_and(HeaderMap::is_empty);
        match frame {
            Some(Ok(frame)) if is_nothing(&frame) => {
                *self = Self::Empty;
                None
            }
            frame => frame,
        }
    }

    /// As the links between agents carry it.
    pub(super) fn any(self) -> AnyBody {
        match self {
            Self::Empty => AnyBody::empty(),
            Self::Whole(bytes, None) => AnyBody::from(bytes),
            Self::Other(body) => body,
            other => AnyBody::new(other),
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match this {
            Self::Empty => Poll::Ready(None),
            Self::Whole(bytes, trailers) => {
                let (bytes, trailers) = (std::mem::take(bytes), trailers.take());
                *this = Self::Empty;
                if bytes.is_empty() {
                    let trailers = trailers.map(|trailers| HeaderMap::clone(&trailers));
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                if trailers.is_some() {
                    *this = Self::Whole(Bytes::new(), trailers);
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Begun(..) => {
                let Self::Begun(bytes, rest) = std::mem::take(this) else {
                    return Poll::Ready(None);
                };
                *this = *rest;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Passing(incoming, named) => {
                let frame = ready!(Pin::new(incoming).poll_frame(cx));
                let frame = frame.map(|frame| Ok(cleaned(frame?, named)));
                Poll::Ready(this.goes_on(frame))
            }
            Self::Other(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                let frame = frame.map(|frame| Ok(cleaned(frame?, &[])));
                Poll::Ready(this.goes_on(frame))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes, trailers) => bytes.is_empty() && trailers.is_none(),
            Self::Begun(..) => false,
            Self::Passing(incoming, _) => incoming.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes, None) => SizeHint::with_exact(bytes.len() as u64),
            // With an exact length it would go on without its trailers.
            Self::Whole(bytes, Some(_)) => {
                let mut hint = SizeHint::new();
                hint.set_lower(bytes.len() as u64);
                hint
            }
            Self::Passing(incoming, _) => incoming.size_hint(),
            Self::Begun(bytes, rest) => {
                let (rest, length) = (rest.size_hint(), bytes.len() as u64);
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower() + length);
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper + length);
                }
                hint
            }
            Self::Other(body) => body.size_hint(),
        }
    }
}

/// A part of a body, without the trailers that do not go on.
fn cleaned(frame: Frame<Bytes>, named: &[HeaderName]) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            clean_trailers(&mut trailers, named);
            Frame::trailers(trailers)
        }
        Err(data) => data,
    }
}

/// Keeps the time while a body is waited for.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
    alarm: Alarm,
    waits: bool,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, alarm: Alarm::default(), waits: false }
    }

    /// Gives on what a body says, or that it has said nothing for too long.
    pub(super) fn poll<T>(
        &mut self,
        said: Poll<Option<Result<T, BodyError>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<T, BodyError>>> {
        if said.is_ready() {
            self.waits = false;
            return said;
        }
        if !self.waits {
            self.alarm.set(Instant::now() + self.limit);
            self.waits = true;
        }
        ready!(self.alarm.poll(cx));
        Poll::Ready(Some(Err(nothing_came(self.limit).into())))
    }
}

fn nothing_came(limit: Duration) -> String {
    format!("nothing came for {limit:?}")
}

/// What is at the bottom of an error of a body.
pub(super) fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// The body of a request, which must not stall.
#[derive(Debug)]
pub(super) struct Timed {
    body: Body,
    patience: Patience,
    /// Told when nothing more is to be sent.
    sent: Option<Sent>,
    /// What it takes up until then.
    place: Option<Place>,
}

impl Timed {
    pub(super) fn new(body: Body, limit: Duration) -> Self {
        let sent = body.again().is_none().then(Sent::default);
        Self { body, patience: Patience::new(limit), sent, place: None }
    }

    /// The same body once more, if it can be had twice.
    pub(super) fn again(&self) -> Option<Self> {
        Some(Self::new(self.body.again()?, self.patience.limit))
    }

    /// Takes up a place until it was sent.
    pub(super) fn hold(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// The body, as it was or what is left of it.
    pub(super) fn into_inner(self) -> Body {
        self.body
    }

    /// As the links between agents carry it.
    pub(super) fn any(self) -> AnyBody {
        if self.sent.is_none() { self.body.any() } else { AnyBody::new(self) }
    }

    /// What it takes to wait for the answer to a request with this body.
    pub(super) fn waiting(&self) -> Waiting {
        Waiting(self.sent.as_ref().map(|sent| sent.0.clone()))
    }
}

/// Waits for the head of an answer.
pub(super) struct Waiting(Option<Arc<Told>>);

impl Waiting {
    /// Whether all of the request's body was sent, or dropped.
    pub(super) fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(|sent| sent.over.load(Ordering::Relaxed))
    }

    /// How much of the request's body was taken, in parts of any size.
    pub(super) fn taken(&self) -> u64 {
        self.0.as_ref().map_or(0, |sent| sent.taken.load(Ordering::Relaxed))
    }

    /// Why the client's body is at fault for that there is no answer, if it is: it is malformed or too short,
    /// or `late`, the time is over while nothing but the client was waited for.
    pub(super) fn broken(&self, late: bool, idle: Duration) -> Option<String> {
        let sent = self.0.as_ref()?;
        let stalls = late && !self.is_over() && sent.stalls.load(Ordering::Relaxed);
        sent.broken.get().cloned().or_else(|| stalls.then(|| nothing_came(idle)))
    }

    /// The answer, unless it takes too long after all of the request's body was sent, or nothing of that
    /// is taken for too long.
    pub(super) async fn within<F: Future>(&self, limits: Limits, answer: F) -> Option<F::Output> {
        let mut answer = pin!(answer);
        let mut taken = self.taken();
        while let Some(sent) = self.0.as_ref().filter(|_| !self.is_over()) {
            tokio::select! {
                answer = answer.as_mut() => return Some(answer),
                () = sent.notify.notified() => break,
                () = sleep(limits.idle) => {}
            }
            if std::mem::replace(&mut taken, self.taken()) == taken {
                return None;
            }
        }
        timeout(limits.answer, answer).await.ok()
    }
}

/// Says so when it is dropped.
#[derive(Debug, Default)]
struct Sent(Arc<Told>);

#[derive(Debug, Default)]
struct Told {
    taken: AtomicU64,
    over: AtomicBool,
    /// The client was asked for more of the body, and it has not come.
    stalls: AtomicBool,
    /// Why the body can't be read on.
    broken: OnceLock<String>,
    notify: Notify,
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.notify.notify_one();
    }
}

impl hyper::body::Body for Timed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let said = Pin::new(&mut this.body).poll_frame(cx);
        let said = this.patience.poll(said, cx);
        if let Some(Sent(told)) = &this.sent {
            told.stalls.store(said.is_pending(), Ordering::Relaxed);
            match &said {
                Poll::Ready(Some(Ok(_))) => {
                    told.taken.fetch_add(1, Ordering::Relaxed);
                }
                Poll::Ready(Some(Err(error))) => {
                    let _ = told.broken.set(reason(&**error));
                }
                Poll::Ready(None) | Poll::Pending => {}
            }
        }
        if matches!(said, Poll::Ready(None)) {
            (this.sent, this.place) = (None, None);
        }
        said
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
