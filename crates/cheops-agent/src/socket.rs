//! A TCP connection that carries many short messages.
//!
//! To send one piece costs the system less than to gather it from several, even if there is only one:
//! about a fortieth of what it costs to pass a request on. So what is short is put together here.
//!
//! What must stay true: the bytes go out in order, and what is reported as written is what was.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Up to how many bytes pieces are put together. Most heads of messages are shorter.
const SHORT: usize = 1 << 10;

/// The connection.
#[derive(Debug)]
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// A connection that sends what it is given at once.
    pub(crate) fn new(tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(Self(tcp))
    }

    fn tcp(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.tcp().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        piece: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.tcp().poll_write(cx, piece)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [piece] = pieces {
            return self.poll_write(cx, piece);
        }
        let mut together = [0; SHORT];
        let mut room = &mut together[..];
        for piece in pieces {
            let Some((place, rest)) = room.split_at_mut_checked(piece.len()) else {
                return self.tcp().poll_write_vectored(cx, pieces);
            };
            place.copy_from_slice(piece);
            room = rest;
        }
        let length = SHORT - room.len();
        self.poll_write(cx, &together[..length])
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn what_is_written_in_pieces_arrives_as_it_was() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for lengths in [
            &[3][..],
            &[SHORT + 1],
            &[2, 0, 3],
            &[0, 0],
            &[SHORT - 1, 1],
            &[SHORT, 1],
            &[1, SHORT],
            &[100_000, 2, 100_000],
        ] {
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut there, _) = listener.accept().await.unwrap();
            let mut here = Socket::new(tcp).unwrap();
            let all: Vec<Vec<u8>> =
                lengths.iter().zip(b'a'..).map(|(length, letter)| vec![letter; *length]).collect();
            let pieces: Vec<IoSlice<'_>> = all.iter().map(|piece| IoSlice::new(piece)).collect();
            let written = poll_fn(|cx| Pin::new(&mut here).poll_write_vectored(cx, &pieces)).await;
            let written = written.unwrap();
            here.shutdown().await.unwrap();
            let mut arrived = Vec::new();
            there.read_to_end(&mut arrived).await.unwrap();
            assert_eq!(arrived, all.concat()[..written], "{lengths:?}");
            assert!(written == all.concat().len() || written > SHORT, "{lengths:?}");
        }
    }
}
