//! The one HTTP/2 connection to an instance that speaks it, on which each request is a stream.
//!
//! What must stay true:
//! - one connection is made at a time, and all who wait for it wait for the same attempt;
//! - a request that the instance says it has not looked at has not arrived (RFC 9113, 8.7).

use std::{
    error::Error as _,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use h2::Reason;
use hyper::{Request, Response, body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{
    body::Timed,
    pool::{Failed, Unanswered, connect},
};
use crate::config::Limits;

type Sender = http2::SendRequest<Timed>;
/// A connection that is there, or being made.
type Dialled = Shared<BoxFuture<'static, Result<Sender, Failed>>>;

/// The connection, if there was any need for it.
#[derive(Default)]
pub(super) struct Streams(Mutex<Option<Dialled>>);

impl Streams {
    /// Sends a request, and waits for the head of the answer.
    pub(super) async fn send(
        &self,
        address: SocketAddr,
        limits: Limits,
        mut request: Request<Timed>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let mut tried = false;
        loop {
            let mut sender = match self.dialled(address, limits).await {
                Ok(sender) => sender,
                Err(failed) => return Err(Unanswered::unsent(failed, request)),
            };
            let mut failed = match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            let unsent = failed.take_message();
            let error = Arc::new(failed.into_error());
            match unsent {
                // The connection was closed meanwhile; one that is new is not.
                Some(unsent) if !tried => (request, tried) = (unsent, true),
                Some(unsent) => {
                    return Err(Unanswered::unsent(Failed::Refused { address, error }, unsent));
                }
                None if is_refused(&error) => return Err(Failed::Refused { address, error }.into()),
                None => return Err(Failed::Broke { address, error }.into()),
            }
        }
    }

    fn dialled(&self, address: SocketAddr, limits: Limits) -> Dialled {
        let mut dialled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = |dialled: &&Dialled| match dialled.peek() {
            Some(Ok(sender)) => !sender.is_closed(),
            Some(Err(_)) => false,
            None => true,
        };
        if let Some(dialled) = dialled.as_ref().filter(usable) {
            return dialled.clone();
        }
        // Whoever wants it first may go away before it is there.
        let task = tokio::spawn(dial(address, limits));
        let dialling = async move {
            let ended = |error| Failed::Connect { address, error: Arc::new(error) };
            task.await.unwrap_or_else(|error| Err(ended(error.into())))
        };
        dialled.insert(dialling.boxed().shared()).clone()
    }
}

async fn dial(address: SocketAddr, limits: Limits) -> Result<Sender, Failed> {
    let io = TokioIo::new(connect(address, limits).await?);
    let made = http2::Builder::new(TokioExecutor::new()).handshake(io).await;
    let broke = |error| Failed::Broke { address, error: Arc::new(error) };
    let (sender, connection) = made.map_err(broke)?;
    // How it ends is told to whoever uses it.
    tokio::spawn(connection);
    Ok(sender)
}

/// Whether an instance says that it has not looked at a request.
fn is_refused(error: &hyper::Error) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    error.is_some_and(|error| {
        error.is_remote()
            && (error.reason() == Some(Reason::REFUSED_STREAM)
                || error.is_go_away() && error.reason() == Some(Reason::NO_ERROR))
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures_util::future::join_all;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpSocket, TcpStream},
    };

    use super::*;
    use crate::mesh::{attempt::Came, body::Body};

    const LIMITS: Limits = Limits {
        connect: Duration::from_millis(300),
        answer: Duration::from_secs(10),
        idle: Duration::from_secs(10),
    };
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    fn request() -> Request<Timed> {
        let body = Timed::new(Body::from(bytes::Bytes::from("x")), LIMITS.idle);
        Request::post("/").body(body).unwrap()
    }

    /// Says to each request that it was refused.
    async fn refuse(mut tcp: TcpStream) -> std::io::Result<()> {
        tcp.read_exact(&mut [0; 24]).await?;
        tcp.write_all(&SETTINGS).await?;
        loop {
            let mut head = [0; 9];
            tcp.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            tcp.read_exact(&mut vec![0; length as usize]).await?;
            if head[3] == 1 {
                let mut reset = vec![0, 0, 4, 3, 0];
                reset.extend(&head[5..]);
                reset.extend(7_u32.to_be_bytes());
                tcp.write_all(&reset).await?;
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_was_refused_has_not_arrived() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(refuse(tcp));
            }
        });
        let streams = Streams::default();
        for _ in 0..3 {
            let unanswered = streams.send(address, LIMITS, request()).await.unwrap_err();
            let failed = unanswered.failed;
            assert_eq!(failed.came(), Came::NotThere, "{failed}");
        }
    }

    #[tokio::test]
    async fn those_who_wait_for_a_connection_do_not_wait_for_each_other() {
        // Nobody accepts, and there is no room for more: a connection is neither made nor refused.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let address = full.local_addr().unwrap();
        let fill = || tokio::time::timeout(LIMITS.connect, TcpStream::connect(address));
        let _held = join_all((0..4).map(|_| fill())).await;
        let streams = Streams::default();
        let start = Instant::now();
        let all = join_all((0..8).map(|_| streams.send(address, LIMITS, request()))).await;
        for answered in all {
            let failed = answered.unwrap_err().failed;
            assert!(matches!(failed, Failed::ConnectLate { .. }), "{failed}");
        }
        assert!(start.elapsed() < LIMITS.connect * 3, "{:?}", start.elapsed());
    }
}
