//! A request for which several sites are asked, and what is kept of their answers meanwhile.
//!
//! What must stay true: no more is kept for one request than its limit, and no more for all of them
//! together than there is room for; what an answer was made of counts until that answer was read.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Service,
    answer::{NO_ROOM, Problem},
    pool::Answer,
    read::Named,
};

/// The most bytes of answers that are kept for one request.
pub(super) const MOST: usize = 16 << 20;
/// The same for all requests together.
pub(super) const MOST_OF_ALL: usize = 64 << 20;
/// A request for which several sites are asked.
pub(super) struct Asking<'a> {
    pub(super) service: &'a Arc<Service>,
    pub(super) named: Option<&'a Arc<Named>>,
    /// How many bytes of answers may still be kept.
    left: AtomicUsize,
    /// Room for all requests, in bytes, and what this one has taken of it.
    room: &'a Arc<Semaphore>,
    taken: Mutex<Option<OwnedSemaphorePermit>>,
    /// There was not enough of it.
    full: AtomicBool,
}

impl<'a> Asking<'a> {
    pub(super) fn new(
        service: &'a Arc<Service>,
        named: Option<&'a Arc<Named>>,
        room: &'a Arc<Semaphore>,
    ) -> Self {
        let (left, taken, full) =
            (AtomicUsize::new(MOST), Mutex::default(), AtomicBool::new(false));
        Self { service, named, left, room, taken, full }
    }

    /// All of a body, if there is room for it.
    pub(super) async fn keep<B>(&self, mut body: B) -> Result<Bytes, String>
    where
        B: HttpBody<Data = Bytes, Error: fmt::Display> + Unpin,
    {
        let mut kept = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let Some(data) = frame.data_ref() else { continue };
            let take = |left: usize| left.checked_sub(data.len());
            if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                return Err(format!("the answers of all sites have more than {MOST} bytes"));
            }
            self.take(data.len())?;
            kept.extend_from_slice(data);
        }
        Ok(kept.freeze())
    }

    fn take(&self, bytes: usize) -> Result<(), String> {
        let permit = u32::try_from(bytes).ok().and_then(|bytes| {
            let permit = self.room.clone().try_acquire_many_owned(bytes);
            permit.ok()
        });
        let Some(permit) = permit else {
            self.full.store(true, Ordering::Relaxed);
            return Err("there is no room for its answer".to_owned());
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *taken {
            Some(taken) => taken.merge(permit),
            None => *taken = Some(permit),
        }
        Ok(())
    }

    /// Why it can't be answered now, if other requests have taken up too much.
    pub(super) fn is_full(&self) -> Option<Box<Problem>> {
        self.full.load(Ordering::Relaxed).then(|| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                NO_ROOM,
                format!(
                    "answers of several sites that are being merged have {MOST_OF_ALL} bytes together"
                ),
                "send it again in a moment, or ask for shorter lists",
            )
        })
    }

    /// Has an answer take up what was kept for it, until it was read.
    pub(super) fn hand_over(&self, answer: &mut Answer) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = taken.take() {
            answer.take_up(Arc::new(taken));
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body as AnyBody;
    use hyper::header::HeaderValue;

    use super::*;
    use crate::{config, metrics::Metrics};

    #[tokio::test]
    async fn all_requests_share_one_room_until_their_answers_were_read() {
        let config =
            config::Service::new("image".parse().unwrap(), "127.0.0.1:1".parse().unwrap(), None);
        let counts = Metrics::default().service(&config.name);
        let service = Arc::new(Service { config, instance: None, counts });
        let room = Arc::new(Semaphore::new(10));
        let asking = || Asking::new(&service, None, &room);
        let body = |bytes: usize| AnyBody::from(vec![b'x'; bytes]);
        let one = asking();
        one.keep(body(4)).await.unwrap();
        one.keep(body(4)).await.unwrap();
        let mut answer = Answer::from(Bytes::new());
        one.hand_over(&mut answer);
        drop(one);
        let other = asking();
        assert!(other.keep(body(4)).await.is_err(), "the answer was not read yet");
        let problem = other.is_full().unwrap().response(&HeaderValue::from_static("a"));
        assert_eq!(
            (problem.status().as_u16(), &problem.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
        drop(answer);
        let third = asking();
        third.keep(body(10)).await.unwrap();
        assert!(third.is_full().is_none());
        drop(third);
        assert_eq!(room.available_permits(), 10);
    }
}
