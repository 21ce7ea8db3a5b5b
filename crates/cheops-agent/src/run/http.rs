//! How a request is sent to the application's instance at this site, by the supervisor.
//!
//! What must stay true:
//! - nothing is sent before the caller has marked that something may be;
//! - an instance that can't be reached has got nothing: that is tried again until the time is over.
//!   Once there is a connection, the request is sent over it once, and never again, but for one that
//!   does the same if it is sent twice and was answered with 502, 503 or 504;
//! - a body of any length, either way, passes through a buffer.

use std::{
    fs::File,
    future::Future,
    io::{self, Read},
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Response,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout, timeout_at},
};

use super::{
    answer,
    command::{Keep, Sink},
    job::{End, Request},
};
use crate::framing::sound_response;

/// How long to wait before a connection is tried again: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// How much of a body is read at a time.
const BUFFER: usize = 64 << 10;

/// Sends a request, takes in the answer, and says how it ended. `mark` is called once, when there is a
/// connection and nothing was sent yet. An error is its own, or that the instance can't be reached and
/// this is the `first` thing to do: nothing has happened then, and whoever asked may wait for it.
pub(super) fn send(
    request: &Request,
    deadline: Option<Instant>,
    sink: &mut Sink<impl Keep>,
    first: bool,
    mark: impl FnOnce() -> io::Result<()>,
) -> io::Result<End> {
    let unsent = |error: &dyn std::fmt::Display| {
        Ok(End::Failed(format!("the request can't be sent: {error}")))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return unsent(&error),
    };
    let mut mark = Some(mark);
    let mut pause = FIRST_PAUSE;
    runtime.block_on(async {
        loop {
            let message = match message(request) {
                Ok(message) => message,
                Err(error) => return unsent(&error),
            };
            let wait = if first { Some(Instant::now()) } else { deadline };
            let stream = match connect(request, wait.filter(|_| mark.is_some()).or(deadline)).await
            {
                Ok(stream) => stream,
                Err(why) if first && mark.is_some() => {
                    return Err(io::Error::new(io::ErrorKind::NotConnected, why));
                }
                Err(why) => {
                    let (service, address) = (&request.service, request.address);
                    let why =
                        format!("the instance of `{service}` at {address} can't be reached: {why}");
                    return Ok(End::Failed(why));
                }
            };
            if let Some(mark) = mark.take() {
                mark()?;
            }
            let late = |deadline: Instant| Instant::now() + pause >= deadline;
            let again = request.method != "POST" && !deadline.is_some_and(late);
            let exchange = exchange(request, stream, message, again, sink);
            let end = match deadline {
                Some(deadline) => timeout_at(deadline.into(), exchange).await,
                None => Ok(exchange.await),
            };
            match end {
                Ok(Some(end)) => return Ok(end),
                Ok(None) => {}
                Err(_) => return Ok(End::TimedOut),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    })
}

fn message(request: &Request) -> Result<hyper::Request<Content>, String> {
    let body = match request.body.as_ref().map(|(path, length)| Content::open(path, *length)) {
        None => Content { file: None, left: 0 },
        Some(Ok(body)) => body,
        Some(Err(error)) => return Err(format!("its body can't be read: {error}")),
    };
    let mut message = hyper::Request::builder().method(request.method.as_str());
    // HTTP/2 has the name of the host there, HTTP/1.1 among the headers.
    let names_host = request.headers.iter().any(|(name, _)| name == "host");
    message = if request.http2 {
        message.uri(format!("http://{}{}", request.address, request.target))
    } else {
        message.uri(request.target.as_str())
    };
    if !request.http2 && !names_host {
        message = message.header("host", request.address.to_string());
    }
    for (name, value) in &request.headers {
        message = message.header(name.as_str(), value.as_slice());
    }
    message.body(body).map_err(|error| error.to_string())
}

/// A connection with the instance, as soon as it can be reached; it is tried once at least.
async fn connect(request: &Request, deadline: Option<Instant>) -> Result<TcpStream, String> {
    let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let within = |span: Duration| left().map_or(span, |left| left.min(span));
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match timeout(request.connect, TcpStream::connect(request.address)).await {
            // Where nobody listens on this machine, we may be given the same port and meet ourselves.
            Ok(Ok(stream)) if stream.local_addr().ok() == Some(request.address) => {
                "nobody listens there".to_owned()
            }
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "there was no connection in time".to_owned(),
        };
        sleep(within(pause)).await;
        if left().is_some_and(|left| left.is_zero()) {
            return Err(why);
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Sends a request over a connection, and takes in the answer. Nothing, if the answer is that nobody was
/// there to give one, and it is to be tried `again` then.
async fn exchange(
    request: &Request,
    stream: TcpStream,
    message: hyper::Request<Content>,
    again: bool,
    sink: &mut Sink<impl Keep>,
) -> Option<End> {
    let answered = if request.http2 {
        over_http2(stream, message).await
    } else {
        over_http1(stream, message).await
    };
    let (parts, mut body) = match answered {
        Ok(response) => response.into_parts(),
        Err(error) => {
            let (service, address, why) = (&request.service, request.address, chain(&error));
            return Some(End::Failed(format!(
                "the instance of `{service}` at {address} got the request and gave no answer: {why}; nobody knows if it took effect"
            )));
        }
    };
    // A run asks for no change of the protocol.
    if let Err(unsound) = sound_response(parts.status, &parts.headers, None) {
        let (service, address) = (&request.service, request.address);
        return Some(End::Failed(format!(
            "the instance of `{service}` at {address} got the request and answered in a way that can't be passed on: {unsound}; nobody knows if it took effect"
        )));
    }
    if again && matches!(parts.status.as_u16(), 502..=504) {
        return None;
    }
    sink.write(&answer::head(&parts));
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Some(data) = frame.data_ref() {
                    sink.write(data);
                }
            }
            // The head has said how it went.
            Err(error) => {
                sink.write(format!("\n[the answer broke off: {}]", chain(&error)).as_bytes());
                break;
            }
        }
    }
    Some(match parts.status.as_u16() {
        status @ (404 | 410) if request.deletes => End::Gone(status),
        status => End::Http(status),
    })
}

async fn over_http1(
    stream: TcpStream,
    message: hyper::Request<Content>,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    drive(connection);
    sender.send_request(message).await
}

async fn over_http2(
    stream: TcpStream,
    message: hyper::Request<Content>,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    drive(connection);
    sender.send_request(message).await
}

/// Lets a connection go on for as long as there is a runtime. What goes wrong with it is told to whoever
/// waits for the answer.
fn drive(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        let _ = connection.await;
    });
}

/// An error with what is behind it.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The body of a request, from a file.
struct Content {
    file: Option<File>,
    left: u64,
}

impl Content {
    fn open(path: &std::path::Path, length: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let found = file.metadata()?.len();
        if found != length {
            return Err(io::Error::other(format!("it has {found} bytes instead of {length}")));
        }
        Ok(Self { file: Some(file), left: length })
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    /// Reads the disk in place: this process has nothing else to do meanwhile.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let left = self.left;
        let Some(file) = self.file.as_mut().filter(|_| left > 0) else { return Poll::Ready(None) };
        let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
        let mut buffer = vec![0; most];
        let read = loop {
            match file.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        Poll::Ready(Some(match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer.truncate(count);
                self.left -= count as u64;
                Ok(Frame::data(buffer.into()))
            }
            Err(error) => Err(error),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
