//! The door for people and programs, and clients that are slow, many or greedy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use axum::body::Body;
use cheops_agent::{
    Agent,
    config::{Config, Serve},
};
use http_body_util::BodyExt as _;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// What a client has to wait for in vain is cut after this.
const SHORT: Duration = Duration::from_millis(400);

struct Site {
    agent: Agent,
    _directory: tempfile::TempDir,
}

impl Site {
    async fn start(limit: impl FnOnce(&mut Serve)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::new("here".parse().unwrap(), directory.path());
        config.api = SocketAddr::from(([127, 0, 0, 1], 0));
        config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
        // Everything else is long enough not to matter.
        let serve = &mut config.serve;
        (serve.headers, serve.idle, serve.stall) = (PATIENCE, PATIENCE, PATIENCE);
        limit(serve);
        Self { agent: Agent::start(config).await.unwrap(), _directory: directory }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.agent.api()).await.unwrap()
    }

    /// Sends a request as it stands, on a connection of its own.
    async fn send(&self, request: &str) -> TcpStream {
        let mut tcp = self.connect().await;
        tcp.write_all(request.as_bytes()).await.unwrap();
        tcp
    }

    async fn is_served(&self) -> bool {
        let mut tcp = self.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        head(&mut tcp).await.starts_with("HTTP/1.1 200")
    }

    /// Accepts operations that are so long together that no socket holds them.
    async fn fill(&self) {
        for n in 0..150 {
            self.submit(&format!("r{n}"), &"x".repeat(90_000)).await;
        }
    }

    async fn submit(&self, id: &str, command: &str) {
        let body = json!({ "command": command, "sites": "here", "wait": "0s" }).to_string();
        let request = format!(
            "POST /api/v1/resources/{id}/operations HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len(),
        );
        let answer = head(&mut self.send(&request).await).await;
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    }
}

const FEED: &str = "GET /api/v1/changes?since=0 HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// What comes up to the end of the headers.
async fn head(tcp: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            match tcp.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
    };
    timeout(PATIENCE, read).await.unwrap();
    String::from_utf8(head).unwrap()
}

/// Waits until the other side closes.
async fn cut(tcp: &mut TcpStream) {
    let mut rest = Vec::new();
    // Cut in the middle, or with a farewell.
    let _ = timeout(PATIENCE, tcp.read_to_end(&mut rest)).await.unwrap();
}

async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "it does not come true");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_client_whose_headers_do_not_come_is_cut_however_it_drips() {
    let site = Site::start(|serve| serve.headers = SHORT).await;
    let mut silent = site.connect().await;
    let mut half = site.send("GET /healthz HTTP/1.1\r\nhost:").await;
    let (mut reader, mut writer) = site.connect().await.into_split();
    let drip = tokio::spawn(async move {
        for byte in b"GET /healthz HTTP/1.1\r\nx: ".iter().chain(&[b'y'; 10_000]) {
            if writer.write_u8(*byte).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("it could drip for ever");
    });
    // One that asked before gets no more time for what it asks next.
    let mut second = site.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(head(&mut second).await.starts_with("HTTP/1.1 200"));
    second.write_all(b"GET /he").await.unwrap();
    assert!(site.is_served().await, "others are served meanwhile");
    for tcp in [&mut silent, &mut half, &mut second] {
        cut(tcp).await;
    }
    let _ = timeout(PATIENCE, reader.read_to_end(&mut Vec::new())).await.unwrap();
    timeout(PATIENCE, drip).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_asks_for_nothing_more_is_cut_and_one_that_waits_is_not() {
    let site = Site::start(|serve| (serve.idle, serve.headers) = (SHORT, SHORT)).await;
    let mut follows = site.send(FEED).await;
    assert!(head(&mut follows).await.starts_with("HTTP/1.1 200"));
    let mut idle = site.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(head(&mut idle).await.starts_with("HTTP/1.1 200"));
    cut(&mut idle).await;
    let mut late = site.connect().await;
    cut(&mut late).await;
    // Twice the time has passed: who follows hears of the next change all the same.
    site.submit("late", "true").await;
    let mut heard = String::new();
    let hear = async {
        while !heard.contains("late") {
            let mut part = vec![0; 4096];
            let read = follows.read(&mut part).await.unwrap();
            assert!(read > 0, "it was cut: {heard}");
            heard.push_str(&String::from_utf8_lossy(&part[..read]));
        }
    };
    timeout(PATIENCE, hear).await.unwrap();
}

#[tokio::test]
async fn a_body_that_stops_in_the_middle_is_not_waited_for() {
    let site = Site::start(|serve| serve.stall = SHORT).await;
    let request = "POST /api/v1/resources/r/operations HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"comm";
    let mut stalled = site.send(request).await;
    assert!(head(&mut stalled).await.starts_with("HTTP/1.1 400"));
    let upload = "POST /api/v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nabc";
    let mut stalled = site.send(upload).await;
    assert!(head(&mut stalled).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn headers_without_end_are_refused() {
    let site = Site::start(|serve| serve.header_bytes = 8 << 10).await;
    let long = format!("GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    let answer = head(&mut site.send(&long).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1_000));
    let answer = head(&mut site.send(&many).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert!(site.is_served().await);
}

#[tokio::test]
async fn a_connection_too_many_is_told_so_and_there_is_room_when_others_leave() {
    let site = Site::start(|serve| serve.connections = 8).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut tcp = site.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(head(&mut tcp).await.starts_with("HTTP/1.1 200"));
        held.push(tcp);
    }
    let mut one_more = site.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut answer = String::new();
    timeout(PATIENCE, one_more.read_to_string(&mut answer)).await.unwrap().unwrap();
    for expected in
        ["HTTP/1.1 503", "retry-after: 5", "application/problem+json", "too-many-connections"]
    {
        assert!(answer.contains(expected), "{expected}: {answer}");
    }
    held.clear();
    eventually(async || site.is_served().await).await;
}

#[tokio::test]
async fn a_thousand_readers_of_the_feed_are_served_within_the_limit() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let site = Site::start(|serve| serve.feeds = 50).await;
    let (mut served, mut refused, mut held) = (0, 0, Vec::new());
    for _ in 0..1_000 {
        let mut tcp = site.send(FEED).await;
        let answer = head(&mut tcp).await;
        if answer.starts_with("HTTP/1.1 200") {
            served += 1;
        } else {
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            assert!(answer.contains("retry-after: 5"), "{answer}");
            refused += 1;
        }
        held.push(tcp);
    }
    assert_eq!((served, refused), (50, 950));
    assert!(site.is_served().await);
    held.clear();
    let follows = async || head(&mut site.send(FEED).await).await.starts_with("HTTP/1.1 200");
    eventually(follows).await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_loses_its_connection() {
    let site = Site::start(|serve| (serve.feeds, serve.stall) = (1, SHORT)).await;
    site.fill().await;
    let mut slow = site.send(FEED).await;
    assert!(head(&mut slow).await.starts_with("HTTP/1.1 200"));
    let answer = head(&mut site.send(FEED).await).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let follows = async || head(&mut site.send(FEED).await).await.starts_with("HTTP/1.1 200");
    eventually(follows).await;
}

#[tokio::test]
async fn a_reader_that_took_nothing_is_told_where_to_go_on() {
    let site = Site::start(|serve| (serve.feeds, serve.stall) = (1, SHORT)).await;
    site.fill().await;
    // A stream that nobody reads does not block its connection, so that there is a last word.
    let tcp = TokioIo::new(site.connect().await);
    let (mut requests, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), tcp).await.unwrap();
    tokio::spawn(connection);
    let request = |since: u64| {
        let uri = format!("http://localhost/api/v1/changes?since={since}&once=true");
        Request::get(uri).body(Body::empty()).unwrap()
    };
    let slow = requests.send_request(request(0)).await.unwrap();
    assert_eq!(slow.status(), StatusCode::OK);
    // Its place is free again when it was let go.
    eventually(async || {
        let answer = requests.send_request(request(0)).await.unwrap();
        answer.status() == StatusCode::OK
    })
    .await;
    let mut lines = read(slow).await;
    let why = lines.last().unwrap()["why"].as_str().unwrap().to_owned();
    let since = why.split("go on with since=").nth(1).unwrap().parse().unwrap();
    // That of the reader that only tried is, too, when it was noticed that it is gone.
    let deadline = Instant::now() + PATIENCE;
    let rest = loop {
        let rest = requests.send_request(request(since)).await.unwrap();
        if rest.status() == StatusCode::OK || Instant::now() > deadline {
            break rest;
        }
    };
    lines.extend(read(rest).await);
    let operations: Vec<_> = lines.iter().filter(|line| line["type"] == "operation").collect();
    let resources: BTreeSet<_> = operations.iter().map(|line| line["resource"].as_str()).collect();
    assert_eq!((operations.len(), resources.len()), (150, 150), "each came once");
}

#[tokio::test]
async fn readers_of_the_feed_do_not_keep_the_agent_from_stopping() {
    let site = Site::start(|_| {}).await;
    site.submit("r", "true").await;
    let tcp = TokioIo::new(site.connect().await);
    let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/api/v1/changes?since=0").header("host", "localhost");
    let follows = requests.send_request(request.body(Body::empty()).unwrap()).await.unwrap();
    let mut events = site
        .send(
            "GET /api/v1/changes HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n",
        )
        .await;
    assert!(head(&mut events).await.starts_with("HTTP/1.1 200"));
    let start = Instant::now();
    site.agent.stop().await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "it took {took:?}, as if nobody had left");
    // The end of the body is said, and not only the connection cut.
    let lines = read(follows).await;
    assert_eq!(lines[0]["type"], "following");
    let mut rest = String::new();
    timeout(PATIENCE, events.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
}

/// All lines of a feed that ends.
async fn read(answer: hyper::Response<hyper::body::Incoming>) -> Vec<Value> {
    assert_eq!(answer.status(), StatusCode::OK);
    let body = timeout(PATIENCE, answer.into_body().collect()).await.unwrap().unwrap().to_bytes();
    body.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}
