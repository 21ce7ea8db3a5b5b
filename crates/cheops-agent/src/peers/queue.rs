//! What waits to be sent on one stream of a link, and the body that carries it.
//!
//! Whoever has something to say puts it into a [`Queue`] and goes on; HTTP/2 takes it out when the
//! other end has room, all that waits at once, up to [`CHUNK`]. What must stay true:
//! - putting something in never blocks;
//! - a queue holds no more than its limit, one item aside that alone is heavier;
//! - what did not fit is counted, and once the queue is empty whoever listens learns that something
//!   is missing.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::{Bytes, BytesMut};
use cheops_core::replica::Message;
use hyper::body::{Body, Frame as Piece};
use tokio::sync::Notify;

use crate::wire::{self, frame};

/// How many bytes are handed to HTTP/2 at a time; one message may be more.
const CHUNK: usize = 32 << 10;

/// Something that can wait.
pub(super) trait Item: Send + Unpin + 'static {
    /// About how many bytes it takes.
    fn weight(&self) -> usize;
    /// Appends its frame. Whether it could be written.
    fn write(self, to: &mut BytesMut) -> bool;
}

impl Item for Message {
    fn weight(&self) -> usize {
        Message::weight(self)
    }

    fn write(self, to: &mut BytesMut) -> bool {
        match wire::encode_message(&self) {
            Ok(bytes) => frame::write_message(&bytes, to),
            Err(error) => {
                tracing::error!("a message can't be sent: {error}");
                return false;
            }
        }
        true
    }
}

impl Item for frame::Frame {
    fn weight(&self) -> usize {
        1
    }

    fn write(self, to: &mut BytesMut) -> bool {
        frame::Frame::write(&self, to);
        true
    }
}

/// What waits to be sent on one stream.
pub(super) struct Queue<T> {
    limit: usize,
    inner: Mutex<Inner<T>>,
    missed: Notify,
    emptied: Notify,
}

struct Inner<T> {
    items: VecDeque<T>,
    weight: usize,
    /// Nothing more comes: the stream ends behind what waits.
    finished: bool,
    /// Something did not fit since the queue was last empty.
    missing: bool,
    taken: u64,
    dropped: u64,
    waker: Option<Waker>,
}

impl<T> Default for Inner<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            weight: 0,
            finished: false,
            missing: false,
            taken: 0,
            dropped: 0,
            waker: None,
        }
    }
}

/// How a queue stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) waiting: usize,
    pub(super) weight: usize,
    /// How many items were handed to HTTP/2.
    pub(super) taken: u64,
    /// How many items did not fit.
    pub(super) dropped: u64,
}

impl<T: Item> Queue<T> {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            inner: Mutex::default(),
            missed: Notify::new(),
            emptied: Notify::new(),
        })
    }

    /// Puts something at the end. Whether there was room.
    pub(super) fn push(&self, item: T) -> bool {
        let mut inner = self.lock();
        if inner.finished {
            return false;
        }
        let weight = item.weight();
        if !inner.items.is_empty() && inner.weight.saturating_add(weight) > self.limit {
            inner.missing = true;
            inner.dropped += 1;
            return false;
        }
        inner.weight = inner.weight.saturating_add(weight);
        inner.items.push_back(item);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Ends the stream behind what waits, and behind a last item, for which there is always room.
    pub(super) fn finish(&self, last: Option<T>) {
        let mut inner = self.lock();
        if !inner.finished {
            inner.items.extend(last);
        }
        inner.finished = true;
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until the queue is empty after something did not fit.
    pub(super) async fn missed(&self) {
        self.missed.notified().await;
    }

    /// Waits until nothing waits, if the queue is half full.
    pub(super) async fn room(&self) {
        while self.lock().weight > self.limit / 2 {
            self.emptied.notified().await;
        }
    }

    pub(super) fn standing(&self) -> Standing {
        let inner = self.lock();
        Standing {
            waiting: inner.items.len(),
            weight: inner.weight,
            taken: inner.taken,
            dropped: inner.dropped,
        }
    }

    /// The body that carries what is put in.
    pub(super) fn body(self: &Arc<Self>) -> QueueBody<T> {
        QueueBody(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<T> {
        let mut inner = self.lock();
        let item = inner.items.pop_front()?;
        inner.weight = inner.weight.saturating_sub(item.weight());
        inner.taken += 1;
        if inner.items.is_empty() {
            inner.weight = 0;
            // A peer that was slow for once must not cost memory for ever.
            inner.items.shrink_to(64);
            self.emptied.notify_one();
            if std::mem::take(&mut inner.missing) {
                self.missed.notify_one();
            }
        }
        Some(item)
    }

    fn poll_chunk(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut chunk = BytesMut::new();
        while chunk.len() < CHUNK
            && let Some(item) = self.pop()
        {
            if !item.write(&mut chunk) {
                self.lock().dropped += 1;
            }
        }
        if !chunk.is_empty() {
            return Poll::Ready(Some(chunk.freeze()));
        }
        let mut inner = self.lock();
        if !inner.items.is_empty() {
            // It came between the two looks.
            cx.waker().wake_by_ref();
        } else if inner.finished {
            return Poll::Ready(None);
        }
        inner.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The body of a request or a response whose bytes are what a queue holds.
pub(super) struct QueueBody<T>(Arc<Queue<T>>);

impl<T: Item> Body for QueueBody<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece<Bytes>, Infallible>>> {
        self.0.poll_chunk(cx).map(|chunk| chunk.map(|chunk| Ok(Piece::data(chunk))))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    struct Load(usize, u8);

    impl Item for Load {
        fn weight(&self) -> usize {
            self.0
        }

        fn write(self, to: &mut BytesMut) -> bool {
            to.resize(to.len() + self.0, self.1);
            true
        }
    }

    async fn next(body: &mut QueueBody<Load>) -> Option<Bytes> {
        Some(body.frame().await?.unwrap().into_data().unwrap())
    }

    #[tokio::test]
    async fn what_waits_goes_out_together_and_in_order() {
        let queue = Queue::new(100);
        let mut body = queue.body();
        assert!(next(&mut body).now_or_never().is_none(), "nothing waits yet");
        assert!(queue.push(Load(2, 1)) && queue.push(Load(1, 2)));
        assert_eq!(next(&mut body).await.unwrap(), [1, 1, 2][..]);
        queue.finish(Some(Load(1, 3)));
        assert!(!queue.push(Load(1, 4)));
        assert_eq!(next(&mut body).await.unwrap(), [3][..]);
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn a_chunk_is_not_much_longer_than_its_limit() {
        let queue = Queue::new(usize::MAX);
        for _ in 0..100 {
            queue.push(Load(1_000, 0));
        }
        let chunk = next(&mut queue.body()).await.unwrap();
        assert!((CHUNK..CHUNK + 1_000).contains(&chunk.len()));
    }

    #[tokio::test]
    async fn what_does_not_fit_is_told_once_the_queue_is_empty() {
        let queue = Queue::new(10);
        let mut body = queue.body();
        assert!(queue.push(Load(6, 0)) && !queue.push(Load(5, 0)) && queue.push(Load(4, 0)));
        assert!(queue.missed().now_or_never().is_none());
        next(&mut body).await.unwrap();
        queue.missed().await;
        let standing = queue.standing();
        assert_eq!(standing, Standing { waiting: 0, weight: 0, taken: 2, dropped: 1 });
        queue.push(Load(1, 0));
        next(&mut body).await.unwrap();
        assert!(queue.missed().now_or_never().is_none(), "nothing was missed since");
    }

    #[tokio::test]
    async fn there_is_room_again_when_nothing_waits() {
        let queue = Queue::new(10);
        queue.push(Load(5, 0));
        queue.room().await;
        queue.push(Load(1, 0));
        assert!(queue.room().now_or_never().is_none());
        next(&mut queue.body()).await.unwrap();
        queue.room().await;
    }

    #[tokio::test]
    async fn one_item_above_the_limit_passes_an_empty_queue() {
        let queue = Queue::new(10);
        assert!(queue.push(Load(1_000, 0)) && !queue.push(Load(1, 0)));
    }
}
