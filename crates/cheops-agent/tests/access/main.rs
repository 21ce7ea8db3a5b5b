//! Who gets in, and what they may do there: against real agents, with what an attacker would send.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod audit;
#[path = "../support/ca.rs"]
mod ca;
mod entrances;
mod roles;
mod sessions;
mod tokens;

use std::{net::SocketAddr, time::Duration};

use axum::body::Body;
use cheops_agent::{Agent, config::Config};
use http_body_util::BodyExt as _;
use hyper::{HeaderMap, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_mins(1);

struct Site {
    agent: Agent,
    directory: tempfile::TempDir,
}

impl Site {
    async fn start(settle: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::new("here".parse().unwrap(), directory.path().join("data"));
        config.api = SocketAddr::from(([127, 0, 0, 1], 0));
        config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
        settle(&mut config);
        Self { agent: Agent::start(config).await.unwrap(), directory }
    }

    /// One where everyone needs a token, over whatever door.
    async fn strict() -> Self {
        Self::start(|config| config.entry.tokens_required = true).await
    }

    async fn ask(&self, request: Request<Body>) -> (u16, HeaderMap, Value) {
        send(TcpStream::connect(self.agent.api()).await.unwrap(), request).await
    }

    /// Sends a request over the Unix socket, as the user that runs the tests.
    async fn ask_as_user(&self, request: Request<Body>) -> (u16, Value) {
        let unix = UnixStream::connect(self.agent.socket().unwrap()).await.unwrap();
        let (status, _, body) = send(unix, request).await;
        (status, body)
    }

    /// Makes a token.
    async fn token(&self, asked: Value) -> String {
        let (status, made) = self.ask_as_user(post("/api/v1/access", &asked)).await;
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    }

    /// The status and the sort of refusal of a request with a token.
    async fn with(&self, token: &str, request: Request<Body>) -> (u16, String) {
        let (status, _, body) = self.ask(bearer(request, token)).await;
        (status, body["type"].as_str().unwrap_or_default().to_owned())
    }

    async fn serves_others(&self) -> bool {
        self.ask(get("/healthz")).await.0 == 200
    }

    /// Begins a session: its cookie, as a browser sends it, and as it was set.
    async fn login(&self, token: &str, cookie: Option<&str>) -> (String, String) {
        let mut request = post("/api/v1/session", &json!({ "token": token }));
        request.headers_mut().insert("sec-fetch-site", "same-origin".parse().unwrap());
        if let Some(cookie) = cookie {
            request.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
        }
        let (status, headers, body) = self.ask(request).await;
        assert_eq!(status, 204, "{body}");
        let set = headers.get(header::SET_COOKIE).unwrap().to_str().unwrap().to_owned();
        (set.split(';').next().unwrap().to_owned(), set)
    }
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

fn operation(id: &str, kind: &str, sites: &str) -> Request<Body> {
    // The sites run no commands: the tests look at whether an operation is accepted.
    let body =
        json!({ "command": "true", "kind": kind, "sites": sites, "author": "eve", "wait": "0s" });
    post(&format!("/api/v1/resources/{id}/operations"), &body)
}

fn bearer(mut request: Request<Body>, token: &str) -> Request<Body> {
    let token = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert(header::AUTHORIZATION, token);
    request
}

async fn send(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut request: Request<Body>,
) -> (u16, HeaderMap, Value) {
    let (mut requests, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    request.headers_mut().entry("host").or_insert("localhost".parse().unwrap());
    let answer = timeout(PATIENCE, requests.send_request(request)).await.unwrap().unwrap();
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), head.headers, serde_json::from_slice(&body).unwrap_or_default())
}

/// The author of the first operation of a resource.
async fn author(site: &Site, id: &str) -> String {
    let (status, resource) = site.ask_as_user(get(&format!("/api/v1/resources/{id}"))).await;
    assert_eq!(status, 200, "{resource}");
    let operations = resource["operations"].as_array().unwrap();
    operations[0]["author"].as_str().unwrap().to_owned()
}

/// The lines of the audit of a site, of a sort.
async fn lines(agent: &Agent, what: &str) -> Vec<Value> {
    let unix = UnixStream::connect(agent.socket().unwrap()).await.unwrap();
    let (status, _, page) = send(unix, get("/api/v1/audit")).await;
    assert_eq!(status, 200, "{page}");
    let all = page["entries"].as_array().unwrap().iter();
    all.filter(|entry| entry["what"] == what).cloned().collect()
}
