//! The bodies of requests.
//!
//! What must stay true: a file is read as it is sent, so that its size does not matter; whoever
//! waits for the answer can tell a body that is still on its way from one that has stopped.

use std::{io, pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::{fs::File, io::AsyncReadExt, sync::watch, time::timeout};

/// How much of a file is read at a time.
const CHUNK: usize = 64 << 10;

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is there as a whole.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A file as a body.
pub(super) fn content(file: File, length: Option<u64>) -> (Body, Moves) {
    let (pulse, moves) = watch::channel(());
    let chunks = stream::try_unfold((file, length, pulse), async |(mut file, left, pulse)| {
        // The next chunk is asked for when there is room for it: those before it went out.
        pulse.send_replace(());
        let most = left.map_or(CHUNK, |left| CHUNK.min(usize::try_from(left).unwrap_or(CHUNK)));
        let mut chunk = BytesMut::with_capacity(most);
        // A file that grows meanwhile is sent as long as it was; what was promised is in the header.
        let read = (&mut file).take(most as u64).read_buf(&mut chunk).await?;
        let left = left.map(|left| left - read as u64);
        match (read, left) {
            (0, Some(1..)) => Err(io::Error::other("the file has become shorter")),
            (0, _) => Ok(None),
            _ => Ok(Some((Frame::data(chunk.freeze()), (file, left, pulse)))),
        }
    });
    (StreamBody::new(chunks).boxed_unsync(), Moves(moves))
}

/// Says when a body moves on.
#[derive(Debug, Clone)]
pub(super) struct Moves(watch::Receiver<()>);

impl Moves {
    /// Those of a body that goes out at once.
    pub(super) fn none() -> Self {
        Self(watch::channel(()).1)
    }

    /// Waits for something that may take so long after the last move; nothing if it takes longer.
    pub(super) async fn within<F: Future>(
        mut self,
        patience: Duration,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        loop {
            let moved = tokio::select! {
                done = &mut future => return Some(done),
                moved = timeout(patience, self.0.changed()) => moved,
            };
            match moved {
                Ok(Ok(())) => {}
                // All of it went out.
                Ok(Err(_)) => return timeout(patience, future).await.ok(),
                Err(_) => return None,
            }
        }
    }
}
