//! Connections that change what they speak: WebSocket, and whatever else an application agrees on.
//!
//! The two ends talk to each other, and the agent only carries bytes, until one of them is done. Over
//! a link to another agent, which is HTTP/2 and knows no such change, the bytes of one direction are
//! the body of a request, and those of the other the body of its answer.
//!
//! What must stay true:
//! - a connection that has changed is counted as long as it is open, here and on the link;
//! - one on which nothing passes in either direction for too long is closed, wherever its two ends are;
//! - an agent that stops ends them.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::body::Body as AnyBody;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{CONNECTION, HeaderName, HeaderValue, UPGRADE},
    http::request::Parts,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep_until},
};
use tokio_util::io::{InspectReader, InspectWriter};

use super::{Held, Shared, connections::Seat, pool::Answer};
use crate::pipe::{Writer, joined, pipe};

/// What the client of another agent wants to change to; in an answer, what the instance changes to.
pub(super) const CHANGE: HeaderName = HeaderName::from_static("x-cheops-upgrade");

/// A place among those that there are for requests to a site. It is free when the last clone is dropped.
pub(super) type Place = Arc<OwnedSemaphorePermit>;

/// A client that asks to change what its connection speaks.
pub(super) struct Changing {
    client: OnUpgrade,
    /// Its place among the connections.
    place: Option<Arc<Seat>>,
}

/// The connection of the client, when it has changed.
pub(super) fn of(parts: &mut Parts) -> Option<Changing> {
    let client = parts.extensions.remove::<OnUpgrade>()?;
    Some(Changing { client, place: parts.extensions.remove() })
}

/// Asks the next one to change, too.
pub(super) fn ask(headers: &mut HeaderMap, to: &HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, to.clone());
}

/// The way from here to another agent.
pub(super) struct Way(Writer);

impl Way {
    /// Opens it, as the body of a request.
    pub(super) fn open() -> (AnyBody, Self) {
        let (body, writer) = pipe();
        (body, Self(writer))
    }
}

impl Shared {
    /// Joins the connections of the client and of the instance here, as soon as both have changed.
    pub(super) fn join_local(
        &self,
        changing: Option<Changing>,
        serving: Option<Held>,
        idle: Duration,
        response: &mut Response<Answer>,
    ) {
        let Some(Changing { client, place }) = changing else { return };
        let Some(instance) = response.extensions_mut().remove::<OnUpgrade>() else { return };
        self.aside(async move {
            let Ok((client, instance)) = tokio::try_join!(client, instance) else { return };
            carry(TokioIo::new(client), TokioIo::new(instance), idle).await;
            drop((place, serving));
        });
    }

    /// Joins the client with the way to another agent, if that says that its instance has changed. The
    /// answer is then what the client expects.
    pub(super) fn join_far(
        &self,
        (changing, way): (Changing, Way),
        stream: Place,
        idle: Duration,
        response: &mut Response<AnyBody>,
    ) {
        let Some(to) = response.headers_mut().remove(CHANGE) else { return };
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        ask(response.headers_mut(), &to);
        let back = std::mem::take(response.body_mut());
        let (Changing { client, place }, link) = (changing, joined(back, way.0));
        self.aside(async move {
            let Ok(client) = client.await else { return };
            carry(TokioIo::new(client), link, idle).await;
            drop((place, stream));
        });
    }

    /// At the other agent: joins what came over a link with the instance, if that has changed. The
    /// answer is then one that a link can carry.
    pub(super) fn join_forwarded(
        &self,
        request: AnyBody,
        idle: Duration,
        response: &mut Response<Answer>,
    ) {
        let Some(instance) = response.extensions_mut().remove::<OnUpgrade>() else { return };
        let headers = response.headers_mut();
        let to = headers.remove(UPGRADE).unwrap_or(HeaderValue::from_static("unknown"));
        headers.remove(CONNECTION);
        headers.insert(CHANGE, to);
        *response.status_mut() = StatusCode::OK;
        let (body, writer) = pipe();
        *response.body_mut() = Answer::from(body);
        let link = joined(request, writer);
        self.aside(async move {
            let Ok(instance) = instance.await else { return };
            carry(TokioIo::new(instance), link, idle).await;
        });
    }

    /// Does something that nobody waits for, until the agent stops.
    fn aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// Carries bytes between two ends until they are done, or nothing passes for too long.
async fn carry(
    one: impl AsyncRead + AsyncWrite + Unpin,
    mut other: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
) {
    let start = Instant::now();
    // After how many milliseconds something has last passed.
    let last = AtomicU64::new(0);
    let passes = |_: &[u8]| {
        last.store(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX), Relaxed);
    };
    // Whatever passes is read from this end, or written to it.
    let mut one = InspectWriter::new(InspectReader::new(one, passes), passes);
    let mut carried = pin!(copy_bidirectional(&mut one, &mut other));
    loop {
        let until = start + Duration::from_millis(last.load(Relaxed)) + idle;
        tokio::select! {
            // Either end may be gone at any time.
            _ = carried.as_mut() => return,
            () = sleep_until(until) => {
                if start + Duration::from_millis(last.load(Relaxed)) + idle <= until {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::sleep,
    };

    use super::*;

    /// Whichever of the two talks, the other may be silent.
    #[tokio::test]
    async fn a_connection_is_closed_when_nothing_passes_in_either_direction() {
        const IDLE: Duration = Duration::from_millis(400);
        for talks_first in [true, false] {
            let ((one, near), (far, other)) = (duplex(64), duplex(64));
            let carried = tokio::spawn(carry(near, far, IDLE));
            let (mut talks, mut listens) = if talks_first { (one, other) } else { (other, one) };
            let mut byte = [0];
            for _ in 0..4 {
                sleep(IDLE / 2).await;
                talks.write_all(b"x").await.unwrap();
                listens.read_exact(&mut byte).await.unwrap();
            }
            let since = Instant::now();
            assert_eq!(listens.read(&mut byte).await.unwrap(), 0, "it is open");
            let took = since.elapsed();
            assert!(took >= IDLE / 2 && took <= IDLE * 20, "{took:?}");
            carried.await.unwrap();
        }
    }
}
