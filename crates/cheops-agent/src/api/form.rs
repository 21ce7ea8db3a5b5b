//! A form of several parts, read as it comes.
//!
//! What must stay true: whatever is sent, the reader of parts keeps no more of it than the limit. It
//! reads the head of a part whole, however long that is, so the limit is on what it may take without
//! giving anything.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    extract::{
        FromRequest, Multipart, Request,
        multipart::{Field, MultipartError, MultipartRejection},
    },
};
use futures_util::Stream;

/// How much may be taken in without a part, or a piece of one, to show for it.
const MOST: usize = 1 << 20;

/// The parts of a form.
pub struct Parts {
    inner: Multipart,
    taken: Taken,
}

/// A part of a form.
pub struct Part<'a> {
    field: Field<'a>,
    taken: Taken,
}

/// What was taken in since something was given.
#[derive(Debug, Clone, Default)]
struct Taken(Arc<AtomicUsize>);

impl<S: Send + Sync> FromRequest<S> for Parts {
    type Rejection = MultipartRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let taken = Taken::default();
        let bounded = |body: Body| {
            let (inner, taken) = (body.into_data_stream(), taken.clone());
            Body::from_stream(Bounded { inner, taken, told: false })
        };
        let inner = Multipart::from_request(request.map(bounded), state).await?;
        Ok(Self { inner, taken })
    }
}

impl Parts {
    /// The next part.
    pub async fn next(&mut self) -> Result<Option<Part<'_>>, MultipartError> {
        let field = self.inner.next_field().await?;
        self.taken.0.store(0, Relaxed);
        let taken = self.taken.clone();
        Ok(field.map(|field| Part { field, taken }))
    }
}

impl Part<'_> {
    /// Its name; empty if it has none.
    pub fn name(&self) -> &str {
        self.field.name().unwrap_or_default()
    }

    /// The name of the file that it is; empty if it is none.
    pub fn file_name(&self) -> &str {
        self.field.file_name().unwrap_or_default()
    }

    /// The next piece of it.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, MultipartError> {
        let chunk = self.field.chunk().await;
        self.taken.0.store(0, Relaxed);
        chunk
    }

    /// All pieces of it, as they come. What can't be read on ends it.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, MultipartError>> {
        futures_util::stream::unfold(Some(self), async |part| {
            let mut part = part?;
            let piece = part.chunk().await.transpose()?;
            let rest = piece.is_ok().then_some(part);
            Some((piece, rest))
        })
    }
}

/// A body that ends when too much of it was taken in for nothing.
struct Bounded {
    inner: BodyDataStream,
    taken: Taken,
    /// Whoever reads was made to stop, so as to give what it has.
    told: bool,
}

/// Why a form is not read on.
#[derive(Debug, thiserror::Error)]
#[error("the head of a part is longer than {MOST} bytes")]
struct TooLong;

/// Whether a form is not read on because of how long a part's head is, and how long it may be.
pub(super) fn too_long(error: &MultipartError) -> Option<usize> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<TooLong>() {
            return Some(MOST);
        }
        source = error.source();
    }
    None
}

impl Stream for Bounded {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.taken.0.load(Relaxed) < MOST {
            self.told = false;
        } else if self.told {
            return Poll::Ready(Some(Err(axum::Error::new(TooLong))));
        } else {
            // It takes as much as there is before it looks at it.
            self.told = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = Pin::new(&mut self.inner).poll_next(context);
        if let Poll::Ready(Some(Ok(piece))) = &piece {
            self.taken.0.fetch_add(piece.len(), Relaxed);
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::DefaultBodyLimit;
    use futures_util::{StreamExt as _, stream};

    use super::*;

    fn form(pieces: impl Stream<Item = Vec<u8>> + Send + 'static) -> Request {
        let body = Body::from_stream(pieces.map(Ok::<_, std::convert::Infallible>));
        Request::post("/")
            .header("content-type", "multipart/form-data; boundary=X")
            .body(body)
            .unwrap()
    }

    #[tokio::test]
    async fn a_part_may_have_any_length_and_all_of_it_comes() {
        let head = b"--X\r\nContent-Disposition: form-data; name=\"a\"; filename=\"f\"\r\n\r\n";
        let pieces = stream::iter([head.to_vec()])
            .chain(stream::iter((0..800).map(|_| vec![7; 64 << 10])))
            .chain(stream::iter([b"\r\n--X--\r\n".to_vec()]));
        let mut form = form(pieces);
        DefaultBodyLimit::disable().apply(&mut form);
        let mut parts = Parts::from_request(form, &()).await.unwrap();
        let part = parts.next().await.unwrap().unwrap();
        assert_eq!((part.name(), part.file_name()), ("a", "f"));
        let pieces: Vec<_> = part.into_stream().collect().await;
        let length: usize = pieces.iter().map(|piece| piece.as_ref().unwrap().len()).sum();
        assert_eq!(length, 800 * (64 << 10));
        assert!(parts.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_form_over_the_limit_of_its_route_ends_with_the_reason() {
        let head = b"--X\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n";
        let pieces =
            stream::iter([head.to_vec()]).chain(stream::iter((0..100).map(|_| vec![7; 64 << 10])));
        let mut parts = Parts::from_request(form(pieces), &()).await.unwrap();
        let part = parts.next().await.unwrap().unwrap();
        let pieces: Vec<_> = part.into_stream().collect().await;
        let (last, before) = pieces.split_last().unwrap();
        assert!(last.is_err() && before.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn a_head_without_an_end_is_not_read_on() {
        let given = Arc::new(AtomicUsize::new(0));
        let counted = given.clone();
        let endless = stream::iter((0..).map(move |n| {
            counted.fetch_add(64 << 10, Relaxed);
            if n == 0 { b"--X\r\nX-Long: ".to_vec() } else { vec![b'a'; 64 << 10] }
        }));
        let mut parts = Parts::from_request(form(endless), &()).await.unwrap();
        let error = parts.next().await.err().unwrap();
        assert_eq!(too_long(&error), Some(MOST));
        assert!(given.load(Relaxed) <= MOST + (256 << 10), "{given:?}");
    }
}
