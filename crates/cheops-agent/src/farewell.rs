//! The last answer to a client that is one connection too many.
//!
//! What must stay true: such clients take no more than a second each, and few of them are answered at once; more are
//! closed without a word.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Collected};
use hyper::{Response, body::Body};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// How long such a client has to take its answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How many of them are answered at once.
pub(crate) const MOST: usize = 64;

/// Sends a response in HTTP/1.1 and closes. What the client sends is read to its end, or the system would throw the
/// answer away with it.
pub(crate) async fn say<T, B>(mut io: T, response: Response<B>) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes>,
{
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_or_else(|_| Bytes::new(), Collected::to_bytes);
    let mut answer = Vec::new();
    write!(answer, "HTTP/1.1 {}\r\nconnection: close\r\n", head.status)?;
    for (name, value) in &head.headers {
        write!(answer, "{name}: {}\r\n", value.to_str().unwrap_or_default())?;
    }
    write!(answer, "content-length: {}\r\n\r\n", body.len())?;
    answer.extend_from_slice(&body);
    io.write_all(&answer).await?;
    io.shutdown().await?;
    let mut rest = [0; 1024];
    while io.read(&mut rest).await? > 0 {}
    Ok(())
}
