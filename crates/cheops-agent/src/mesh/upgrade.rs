//! Connections that change what they speak: WebSocket, and whatever else an application agrees on.
//!
//! The two ends talk to each other, and the agent only carries bytes, until one of them is done. Over
//! a link to another agent, which is HTTP/2 and knows no such change, the bytes of one direction are
//! the body of a request, and those of the other the body of its answer.

use axum::body::Body as AnyBody;
use futures_util::TryStreamExt as _;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{CONNECTION, HeaderName, HeaderValue, UPGRADE},
    http::request::Parts,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use tokio::io::{
    AsyncRead, AsyncWrite, SimplexStream, WriteHalf, copy_bidirectional, join, simplex,
};
use tokio_util::io::{ReaderStream, StreamReader};

use super::pool::Answer;

/// What the client of another agent wants to change to; in an answer, what the instance changes to.
pub(super) const CHANGE: HeaderName = HeaderName::from_static("x-cheops-upgrade");

/// How many bytes of one direction wait between two tasks.
const PIPE: usize = 64 << 10;
const CHUNK: usize = 16 << 10;

/// The connection of the client, when it has changed.
pub(super) fn of(parts: &mut Parts) -> Option<OnUpgrade> {
    parts.extensions.remove::<OnUpgrade>()
}

/// Asks the next one to change, too.
pub(super) fn ask(headers: &mut HeaderMap, to: &HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, to.clone());
}

/// Joins the connections of the client and of the instance here, as soon as both have changed.
pub(super) fn join_local(client: Option<OnUpgrade>, response: &mut Response<Answer>) {
    let Some(client) = client else { return };
    let Some(instance) = response.extensions_mut().remove::<OnUpgrade>() else { return };
    tokio::spawn(async move {
        let Ok((client, instance)) = tokio::try_join!(client, instance) else { return };
        carry(TokioIo::new(client), TokioIo::new(instance)).await;
    });
}

/// The two directions of a changed connection, on their way over a link.
pub(super) struct Way {
    writer: WriteHalf<SimplexStream>,
}

impl Way {
    /// The way from here to the other agent, as the body of a request to it.
    pub(super) fn open() -> (AnyBody, Self) {
        let (body, writer) = pipe();
        (body, Self { writer })
    }

    /// Joins it with the client, if the other agent says that its instance has changed. The answer is
    /// then what the client expects.
    pub(super) fn join_client(self, client: OnUpgrade, response: &mut Response<AnyBody>) {
        let Some(to) = response.headers_mut().remove(CHANGE) else { return };
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        ask(response.headers_mut(), &to);
        let back = std::mem::take(response.body_mut());
        let link = joined(back, self.writer);
        tokio::spawn(async move {
            let Ok(client) = client.await else { return };
            carry(TokioIo::new(client), link).await;
        });
    }
}

/// At the other agent: joins what came over a link with the instance, if that has changed. The answer
/// is then one that a link can carry.
pub(super) fn join_forwarded(request: AnyBody, response: &mut Response<Answer>) {
    let Some(instance) = response.extensions_mut().remove::<OnUpgrade>() else { return };
    let headers = response.headers_mut();
    let to = headers.remove(UPGRADE).unwrap_or(HeaderValue::from_static("unknown"));
    headers.remove(CONNECTION);
    headers.insert(CHANGE, to);
    *response.status_mut() = StatusCode::OK;
    let (body, writer) = pipe();
    *response.body_mut() = Answer::from(body);
    let link = joined(request, writer);
    tokio::spawn(async move {
        let Ok(instance) = instance.await else { return };
        carry(TokioIo::new(instance), link).await;
    });
}

async fn carry(
    mut one: impl AsyncRead + AsyncWrite + Unpin,
    mut other: impl AsyncRead + AsyncWrite + Unpin,
) {
    // Either end may be gone at any time.
    let _ = copy_bidirectional(&mut one, &mut other).await;
}

fn pipe() -> (AnyBody, WriteHalf<SimplexStream>) {
    let (reader, writer) = simplex(PIPE);
    (AnyBody::from_stream(ReaderStream::with_capacity(reader, CHUNK)), writer)
}

fn joined(
    body: AnyBody,
    writer: WriteHalf<SimplexStream>,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static {
    let bytes = body.into_data_stream().map_err(std::io::Error::other);
    join(StreamReader::new(bytes), writer)
}
