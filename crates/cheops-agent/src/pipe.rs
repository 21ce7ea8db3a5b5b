//! Bytes in both directions as two bodies of HTTP: one that goes, one that comes.

use std::{io, pin::Pin, task::ready};

use axum::body::Body;
use bytes::BytesMut;
use futures_util::{TryStreamExt as _, stream};
use tokio::io::{AsyncBufRead, AsyncWrite, SimplexStream, WriteHalf, join, simplex};
use tokio_util::io::{StreamReader, poll_read_buf};

/// How many bytes of one direction wait between two tasks.
const WAITING: usize = 64 << 10;
/// How many are taken at once.
const CHUNK: usize = 16 << 10;

/// Where the bytes are written that a body carries.
pub(crate) type Writer = WriteHalf<SimplexStream>;

/// A body that goes, and where to write what it carries.
pub(crate) fn pipe() -> (Body, Writer) {
    let (mut reader, writer) = simplex(WAITING);
    let pieces = stream::poll_fn(move |cx| {
        // Taken anew each time: a pipe that waits, and each link has one, so holds no room.
        let mut piece = BytesMut::with_capacity(CHUNK);
        let read = ready!(poll_read_buf(Pin::new(&mut reader), cx, &mut piece));
        read.map(|count| (count > 0).then(|| piece.freeze())).transpose().into()
    });
    (Body::from_stream(pieces), writer)
}

/// One connection of a body that comes and one that goes.
pub(crate) fn joined(
    body: Body,
    writer: Writer,
) -> impl AsyncBufRead + AsyncWrite + Unpin + Send + 'static {
    let bytes = body.into_data_stream().map_err(io::Error::other);
    join(StreamReader::new(bytes), writer)
}
