//! From a TCP connection to bytes both ways: the one place that knows what lies under HTTP/2.
//!
//! [`dialled`] and [`accepted`] turn a TCP connection into something to read from and to write to, and
//! make sure who is at its other end.
//!
//! What must stay true:
//! - every byte that comes in, of whatever stream, counts as a sign of life;
//! - a connection whose link was left fails for all who still wait on it. HTTP/2 has tasks of its own
//!   that hold the connection as long as any stream is open, and TCP may take minutes to notice a cut.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use cheops_core::trust::PublicKey;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, BufReader, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::link::Link;
use crate::{
    socket::Socket,
    trust::{Arrived, Expected, Reached, Tls, pki::Chain},
};

/// How many of the first bytes on a connection are looked at before they are read.
const FIRST_WORD: usize = 64;

/// What was made of a connection to a site.
pub(super) struct Dialled {
    pub(super) io: BufReader<client::TlsStream<Socket>>,
    /// The key that it has proved to have.
    pub(super) key: PublicKey,
    /// The certificates that it has shown.
    pub(super) chain: Option<Chain>,
}

/// Makes a connection of one that was dialled, if that site is at its other end and knows us.
pub(super) async fn dialled(
    tls: &Tls,
    tcp: TcpStream,
    expected: Expected<'_>,
) -> io::Result<Dialled> {
    let Reached { io, key, chain } = tls.dial(Socket::new(tcp)?, expected).await?;
    // What is larger is read past it.
    let mut io = BufReader::with_capacity(FIRST_WORD, io);
    // Only its first word shows that it takes our key. Before that there is nothing to say: what it does
    // not read could keep us from reading why it closed the connection.
    if io.fill_buf().await?.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Dialled { io, key, chain })
}

/// Makes a connection to the site with this key, for one that it may not know.
pub(super) async fn visiting(
    tls: &Tls,
    tcp: TcpStream,
    key: PublicKey,
) -> io::Result<client::TlsStream<Socket>> {
    tls.visit(Socket::new(tcp)?, key).await
}

/// Makes a connection of one that was accepted, and says who is at its other end.
pub(super) async fn accepted(tls: &Tls, tcp: TcpStream) -> io::Result<Arrived<Socket>> {
    tls.accept(Socket::new(tcp)?).await
}

/// Connects to one of the addresses that a name stands for now.
pub(super) async fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut failure = None;
    // Not cut short: a lookup that hangs holds a thread, and giving up on it would start another.
    for address in tokio::net::lookup_host(address).await? {
        match tokio::time::timeout(patience, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => failure = Some(error),
            Err(_) => failure = Some(io::ErrorKind::TimedOut.into()),
        }
    }
    Err(failure.unwrap_or_else(|| io::Error::other("the name stands for no address")))
}

/// What went over one connection.
#[derive(Debug)]
pub(super) struct Meter {
    start: Instant,
    /// When something was last heard, in microseconds since the start.
    heard: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Meter {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            heard: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        })
    }

    pub(super) fn heard(&self) -> Instant {
        self.start + Duration::from_micros(self.heard.load(Ordering::Relaxed))
    }

    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn hear(&self, bytes: usize) {
        let since = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.heard.store(since, Ordering::Relaxed);
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn say(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A connection whose bytes are counted, and which fails once its link was left.
pub(super) struct Metered<T> {
    io: T,
    meter: Arc<Meter>,
    left: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<T> Metered<T> {
    pub(super) fn new(io: T, link: &Link) -> Self {
        Self { io, meter: link.meter.clone(), left: Box::pin(link.left_owned()) }
    }

    /// What came of reading or writing; an error if that would have to wait and the link was left.
    fn unless_left<R>(
        &mut self,
        came: Poll<io::Result<R>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<R>> {
        if came.is_pending() && self.left.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        came
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        let bytes = buf.filled().len() - before;
        if bytes > 0 {
            self.meter.hear(bytes);
        }
        self.unless_left(read, cx)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.meter.say(count);
        }
        self.unless_left(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, pieces);
        if let Poll::Ready(Ok(count)) = written {
            self.meter.say(count);
        }
        self.unless_left(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.unless_left(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.io).poll_shutdown(cx);
        self.unless_left(shut_down, cx)
    }
}
