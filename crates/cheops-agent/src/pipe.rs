//! Bytes in both directions as two bodies of HTTP: one that goes, one that comes.

use std::io;

use axum::body::Body;
use futures_util::TryStreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite, SimplexStream, WriteHalf, join, simplex};
use tokio_util::io::{ReaderStream, StreamReader};

/// How many bytes of one direction wait between two tasks.
const WAITING: usize = 64 << 10;
/// How many are taken at once.
const CHUNK: usize = 16 << 10;

/// Where the bytes are written that a body carries.
pub(crate) type Writer = WriteHalf<SimplexStream>;

/// A body that goes, and where to write what it carries.
pub(crate) fn pipe() -> (Body, Writer) {
    let (reader, writer) = simplex(WAITING);
    (Body::from_stream(ReaderStream::with_capacity(reader, CHUNK)), writer)
}

/// One connection of a body that comes and one that goes.
pub(crate) fn joined(
    body: Body,
    writer: Writer,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static {
    let bytes = body.into_data_stream().map_err(io::Error::other);
    join(StreamReader::new(bytes), writer)
}
