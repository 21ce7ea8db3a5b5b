//! An agent that does as it is told: it speaks the protocol, and may break off anywhere.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use cheops_agent::{
    trust::{Expected, Known, Tls},
    wire::frame::{Frame, Frames, Hello},
};
use cheops_core::{id::SiteId, trust::PublicKey};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::{Request, Version, body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, sync::mpsc, time::timeout};
use tokio_rustls::client::TlsStream;

use super::site::{Site, identity, name};

/// One stream of a link.
pub(crate) struct Stream {
    out: mpsc::UnboundedSender<Bytes>,
    body: Incoming,
    frames: Frames,
}

/// The client's end of a connection to an agent.
pub(crate) struct Fake {
    requests: SendRequest<Body>,
    pub(crate) control: Stream,
}

impl Stream {
    pub(crate) fn send(&self, frame: &Frame) {
        let mut bytes = BytesMut::new();
        frame.write(&mut bytes);
        self.send_bytes(bytes.freeze());
    }

    pub(crate) fn send_bytes(&self, bytes: impl Into<Bytes>) {
        let _ = self.out.send(bytes.into());
    }

    /// The next frame; none when the connection is over.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let next = async {
            loop {
                if let Some(frame) = self.frames.take().unwrap() {
                    return Some(frame);
                }
                let piece = self.body.frame().await?.ok()?;
                self.frames.push(&piece.into_data().unwrap());
            }
        };
        timeout(Duration::from_secs(30), next).await.unwrap()
    }

    /// Reads on until the link is closed, and says why.
    pub(crate) async fn reason(&mut self) -> String {
        loop {
            match self.next().await {
                Some(Frame::Close { text, .. }) => return text,
                Some(_) => {}
                None => panic!("closed without a reason"),
            }
        }
    }
}

pub(crate) fn hello(site: &str, wall: u64) -> Frame {
    Frame::Hello(Hello { site: name(site), life: fastrand::u64(..), wall })
}

/// Nobody.
struct NotOne;

impl Known for NotOne {
    fn site_of(&self, _: &PublicKey) -> Option<SiteId> {
        None
    }
}

/// A connection to an agent, with the key of a site.
pub(crate) async fn connect(site: &Site, from: &str) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect(site.peers.address()).await.unwrap();
    let tls = Tls::new(&identity(from), Arc::new(NotOne)).unwrap();
    let there = &site.plan.config.site;
    let key = Some(identity(there.as_str()).public());
    tls.dial(tcp, Expected { site: there, key }).await.unwrap().io
}

impl Fake {
    /// Dials an agent with the key of a site, and opens the stream for greetings.
    pub(crate) async fn dial(site: &Site, from: &str) -> Self {
        let io = TokioIo::new(connect(site, from).await);
        let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
        let (requests, connection) = connected.unwrap();
        tokio::spawn(connection);
        let control = open(requests.clone(), "link", Frames::of_control()).await;
        Self { requests, control }
    }

    /// A link in the name of a site that comes before the other.
    pub(crate) async fn link(site: &Site, from: &str) -> (Self, Stream) {
        let mut fake = Self::dial(site, from).await;
        fake.control.send(&hello(from, wall()));
        let greeting = fake.control.next().await;
        assert!(matches!(greeting, Some(Frame::Hello(_))), "{greeting:?}");
        fake.control.send(&Frame::Up);
        let records = open(fake.requests.clone(), "records", Frames::of_messages()).await;
        (fake, records)
    }

    /// Answers pings from now on, and does nothing else.
    pub(crate) fn answer_pings(self) {
        let mut control = self.control;
        let requests = self.requests;
        tokio::spawn(async move {
            while let Some(frame) = control.next().await {
                if let Frame::Ping { nonce, .. } = frame {
                    control.send(&Frame::Pong { nonce, wall: wall() });
                    control.send(&Frame::Ping { nonce, digest: None });
                }
            }
            drop(requests);
        });
    }
}

async fn open(mut requests: SendRequest<Body>, stream: &str, frames: Frames) -> Stream {
    let (out, mut wait) = mpsc::unbounded_channel::<Bytes>();
    let bytes = futures_util::stream::poll_fn(move |cx| wait.poll_recv(cx));
    let body = Body::from_stream(bytes.map(Ok::<_, Arc<std::io::Error>>));
    let mut request = Request::post(format!("http://peer/peer/v1/{stream}")).body(body).unwrap();
    *request.version_mut() = Version::HTTP_2;
    let response = requests.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    Stream { out, body: response.into_body(), frames }
}

pub(crate) fn wall() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}
