//! Bodies on their way through the agent: passed on as they come, never kept whole unless they are
//! small and may be needed again.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body as AnyBody;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use super::attempt::Rest;

/// What goes wrong with a body on its way.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body.
#[derive(Debug, Default)]
pub(super) enum Body {
    /// There is none, or no more.
    #[default]
    Empty,
    /// All of it is here.
    Whole(Bytes),
    /// It comes over a connection of a client or of the local instance.
    Passing(Incoming),
    /// Its beginning is here, and the rest comes.
    Begun(Bytes, Incoming),
    /// Whatever else: it comes over a link, or was made here.
    Other(AnyBody),
}

impl From<Incoming> for Body {
    fn from(incoming: Incoming) -> Self {
        if incoming.is_end_stream() { Self::Empty } else { Self::Passing(incoming) }
    }
}

impl From<AnyBody> for Body {
    fn from(body: AnyBody) -> Self {
        Self::Other(body)
    }
}

impl Body {
    /// Reads the body if it is short, so that it can be sent again.
    pub(super) async fn keep(self, most: usize) -> Result<Self, BodyError> {
        let Self::Passing(mut incoming) = self else { return Ok(self) };
        if incoming.size_hint().lower() > most as u64 {
            return Ok(Self::Passing(incoming));
        }
        let mut kept = BytesMut::new();
        while let Some(frame) = incoming.frame().await.transpose()? {
            // Trailers come last, and a body that has some can't be kept without them.
            let Ok(data) = frame.into_data() else { return Ok(Self::Whole(kept.freeze())) };
            kept.extend_from_slice(&data);
            if kept.len() > most {
                return Ok(Self::Begun(kept.freeze(), incoming));
            }
        }
        Ok(if kept.is_empty() { Self::Empty } else { Self::Whole(kept.freeze()) })
    }

    /// The same body once more, if it can be had twice.
    pub(super) fn again(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Whole(bytes) => Some(Self::Whole(bytes.clone())),
            Self::Passing(_) | Self::Begun(..) | Self::Other(_) => None,
        }
    }

    /// What would be left of it after it was sent.
    pub(super) fn rest(&self) -> Rest {
        if self.again().is_some() { Rest::Whole } else { Rest::Partial }
    }

    /// As the links between agents carry it.
    pub(super) fn any(self) -> AnyBody {
        match self {
            Self::Empty => AnyBody::empty(),
            Self::Whole(bytes) => AnyBody::from(bytes),
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
            Self::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                *this = Self::Empty;
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Begun(..) => {
                let Self::Begun(bytes, rest) = std::mem::take(this) else {
                    return Poll::Ready(None);
                };
                *this = Self::Passing(rest);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Passing(incoming) => {
                Pin::new(incoming).poll_frame(cx).map(|frame| frame.map(|f| f.map_err(Into::into)))
            }
            Self::Other(body) => {
                Pin::new(body).poll_frame(cx).map(|frame| frame.map(|f| f.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Begun(..) => false,
            Self::Passing(incoming) => incoming.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Passing(incoming) => incoming.size_hint(),
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
