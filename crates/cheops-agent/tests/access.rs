//! Who gets in, and what they may do there: against real agents, with what an attacker would send.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "support/ca.rs"]
mod ca;

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use cheops_agent::{
    Agent, StartError,
    config::{Config, Entry, Socket},
    trust::{
        Identity,
        kept::Kept,
        people::{Grants as _, Token, now},
    },
};
use cheops_core::{
    time::Millis,
    trust::people::{Grant, Role},
};
use http_body_util::BodyExt as _;
use hyper::{HeaderMap, Request, header};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;

use self::ca::{Ca, Wanted};

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

    /// Over the Unix socket, as whoever runs this.
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
    // Nobody here can run anything: what is looked at is whether it is accepted.
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

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_what_it_is_for_and_nothing_else() {
    let site = Site::strict().await;
    let viewer = site.token(json!({ "name": "vera", "role": "viewer" })).await;
    let reach = json!({ "name": "omar", "role": "operator", "resources": ["web-*"], "kinds": ["set", "delete"] });
    let operator = site.token(reach).await;
    let elsewhere = json!({ "name": "olga", "role": "operator", "sites": ["there"] });
    let elsewhere = site.token(elsewhere).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let hook = json!({ "name": "h", "url": "https://hooks.example/" });
    let show = |command: Value| post("/api/v1/resources/web-1/show", &command);
    let delete = |id: &str| {
        Request::delete(format!("/api/v1/resources/{id}?author=eve&wait=0s"))
            .body(Body::empty())
            .unwrap()
    };
    for (token, request, expected) in [
        (&viewer, get("/api/v1/sites"), (200, "")),
        (&viewer, get("/metrics"), (200, "")),
        (&viewer, operation("web-1", "set", "here"), (403, "not-allowed")),
        (&viewer, post("/api/v1/files", &json!({})), (403, "not-allowed")),
        (&viewer, delete("web-1"), (403, "not-allowed")),
        (&viewer, post("/api/v1/sites/here/pause", &json!({})), (403, "not-allowed")),
        (&viewer, post("/api/v1/access", &json!({})), (403, "not-allowed")),
        (&viewer, get("/api/v1/access"), (403, "not-allowed")),
        (&viewer, get("/nothing"), (404, "unknown-path")),
        (&operator, operation("web-1", "set", "here"), (202, "")),
        (&operator, operation("db-1", "set", "here"), (403, "not-allowed")),
        (&operator, operation("web-1", "inc", "here"), (403, "not-allowed")),
        (&operator, post("/api/v1/hooks", &hook), (403, "not-allowed")),
        (&operator, post("/api/v1/sites/here/pause", &json!({})), (403, "not-allowed")),
        // A command of one's own is an operation of the kind `show`; the resource's own is not.
        (&operator, show(json!({ "command": "id" })), (403, "not-allowed")),
        (&operator, show(json!({})), (400, "no-command")),
        (&viewer, show(json!({})), (400, "no-command")),
        (&viewer, show(json!({ "command": "id" })), (403, "not-allowed")),
        // It is named in the request, or known of the resource.
        (&elsewhere, operation("other", "set", "here"), (403, "not-allowed")),
        (&elsewhere, delete("web-1"), (403, "not-allowed")),
        (&operator, delete("web-1"), (202, "")),
        (&admin, operation("db-1", "inc", "here"), (202, "")),
        (&admin, post("/api/v1/hooks", &hook), (201, "")),
        (&admin, get("/api/v1/access"), (200, "")),
    ] {
        let what = format!("{} {}", request.method(), request.uri());
        let (status, kind) = site.with(token, request).await;
        assert_eq!((status, kind.as_str()), expected, "{what}");
        assert!(site.serves_others().await);
    }
    assert_eq!(author(&site, "db-1").await, "ada");
}

/// A request for an operation of the kind `set` that brings a configuration.
fn configured(id: &str, sites: Option<&str>, config: &Value) -> Request<Body> {
    let body =
        json!({ "command": "true", "kind": "set", "sites": sites, "config": config, "wait": "0s" });
    post(&format!("/api/v1/resources/{id}/operations"), &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_some_kinds_can_not_set_commands_of_a_resource() {
    let site = Site::strict().await;
    let of_kinds =
        |name: &str, kinds: &[&str]| json!({ "name": name, "role": "operator", "kinds": kinds });
    let limited = site.token(of_kinds("omar", &["set", "delete"])).await;
    let all = site.token(of_kinds("olga", &["*"])).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let show = json!({ "Show": "cat /etc/shadow" });
    let matrix = json!([{ "Before": "set", "After": "set", "Result": "take-one" }]);
    for (token, id, sites, config, expected) in [
        (&limited, "new", Some("here"), show.clone(), 403),
        (&limited, "new", Some("here"), json!({ "Reset": "rm -rf /" }), 403),
        (
            &limited,
            "new",
            Some("here"),
            json!({ "Check": "true", "ResolutionMatrix": matrix }),
            403,
        ),
        (&limited, "new", Some("here"), json!({ "ResolutionMatrix": matrix }), 202),
        (&limited, "new", None, show.clone(), 403),
        (&limited, "new", None, json!({ "Timeout": "3s" }), 202),
        (&all, "new", None, show.clone(), 202),
        (&admin, "old", Some("here"), show.clone(), 202),
        // What is there may stay. It may be neither changed nor removed.
        (&limited, "old", None, json!({ "Show": "cat /etc/shadow", "Timeout": "3s" }), 202),
        (&limited, "old", None, json!({ "Show": "cat /etc/passwd" }), 403),
        (&limited, "old", None, json!({ "Timeout": "3s" }), 403),
        // An empty configuration changes nothing.
        (&limited, "old", None, json!({}), 202),
        (&admin, "old", None, json!({ "Timeout": "3s" }), 202),
    ] {
        let (status, _, body) = site.ask(bearer(configured(id, sites, &config), token)).await;
        assert_eq!(status, expected, "{id} {config}: {body}");
        if expected == 403 {
            assert_eq!(body["type"], "not-allowed", "{body}");
            let detail = body["detail"].as_str().unwrap();
            assert!(detail.contains("of the kinds set, delete"), "{detail}");
        }
    }
    // The same for a rehearsal, and for the API of the original program.
    let mut rehearsal =
        json!({ "command": "true", "kind": "set", "config": show, "dry_run": true });
    rehearsal["sites"] = "here".into();
    let rehearsal = post("/api/v1/resources/third/operations", &rehearsal);
    assert_eq!(site.with(&limited, rehearsal).await, (403, "not-allowed".to_owned()));
    let part = |name: &str, value: &str| {
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let parts =
        [("command", "true"), ("sites", "here"), ("type", "set"), ("config", &show.to_string())];
    let form: String = parts.iter().map(|(name, value)| part(name, value)).collect();
    let exec =
        Request::post("/exec/third").header("content-type", "multipart/form-data; boundary=x");
    let exec = exec.body(Body::from(form + "--x--\r\n")).unwrap();
    assert_eq!(site.with(&limited, exec).await, (403, "not-allowed".to_owned()));
    let (status, _) = site.ask_as_user(get("/api/v1/resources/third")).await;
    assert_eq!(status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_author_is_what_the_door_found_out() {
    let site = Site::start(|_| {}).await;
    let operator = site.token(json!({ "name": "omar", "role": "operator" })).await;
    assert_eq!(site.with(&operator, operation("by-token", "set", "here")).await.0, 202);
    assert_eq!(site.ask(operation("by-loopback", "set", "here")).await.0, 202);
    assert_eq!(site.ask_as_user(operation("by-socket", "set", "here")).await.0, 202);
    // Nobody can say for whom another site asks but another site.
    let mut forged = operation("forged", "set", "here");
    let told = "eyJhdXRob3IiOiJyb290Iiwicm9sZSI6ImFkbWluIn0=".parse().unwrap();
    forged.headers_mut().insert("x-cheops-asked-by", told);
    assert_eq!(site.ask(forged).await.0, 202);
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    for (id, expected) in [
        ("by-token", "omar".to_owned()),
        ("by-loopback", "local:eve".to_owned()),
        ("by-socket", format!("unix:{}", user.trim())),
        ("forged", "local:eve".to_owned()),
    ] {
        assert_eq!(author(&site, id).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_does_not_count_says_why() {
    let site = Site::strict().await;
    assert_eq!(site.ask(get("/api/v1/sites")).await.0, 401);
    assert_eq!(site.ask(get("/readyz")).await.0, 200);
    let made = json!({ "name": "ada", "role": "viewer" });
    let token = site.token(made.clone()).await;
    let (status, refused) = site.ask_as_user(post("/api/v1/access", &made)).await;
    assert_eq!((status, &refused["type"]), (409, &json!("known-token")));
    // What is misspelt is no limit, and no token either.
    let misspelt = json!({ "name": "eve", "role": "operator", "resource": ["web-*"] });
    let (status, refused) = site.ask_as_user(post("/api/v1/access", &misspelt)).await;
    assert_eq!(status, 400, "{refused}");
    let short = site.token(json!({ "name": "bob", "role": "viewer", "ttl": "1ms" })).await;
    let unknown = Token::make().unwrap().reveal();
    let revoke = Request::delete("/api/v1/access/ada").body(Body::empty()).unwrap();
    assert_eq!(site.with(&token, get("/api/v1/sites")).await.0, 200);
    let (status, revoked) = site.ask_as_user(revoke).await;
    assert_eq!((status, &revoked["tokens"][0]["state"]), (200, &json!("revoked")));
    for (token, expected) in [
        (&*token, "revoked-token"),
        (&short, "expired-token"),
        (&unknown, "unknown-token"),
        (&unknown[..40], "bad-token"),
        ("nonsense", "bad-token"),
    ] {
        let (status, kind) = site.with(token, get("/api/v1/sites")).await;
        assert_eq!((status, kind.as_str()), (401, expected));
    }
    // Nothing of them is shown anywhere, and what is kept does not help who steals it.
    let (_, listed) = site.ask_as_user(get("/api/v1/access")).await;
    let kept = fs::read_to_string(site.directory.path().join("data/access")).unwrap();
    for text in [listed.to_string(), kept] {
        assert!(!text.contains(&token["cheops_".len()..][..16]), "{text}");
    }
    // The list is there after a start.
    let Site { agent, directory } = site;
    agent.stop().await;
    let kept = Kept::open(&directory.path().join("data"), now()).unwrap();
    assert_eq!(kept.all().len(), 2);
    assert!(kept.find(&token.parse::<Token>().unwrap().digest(), now()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_flows_to_somebody_ends_with_the_token() {
    let site = Site::strict().await;
    let token = site.token(json!({ "name": "ada", "role": "viewer" })).await;
    let tcp = TokioIo::new(TcpStream::connect(site.agent.api()).await.unwrap());
    let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
    tokio::spawn(connection);
    let mut request = bearer(get("/api/v1/changes"), &token);
    request.headers_mut().insert("host", "localhost".parse().unwrap());
    let mut feed = requests.send_request(request).await.unwrap().into_body();
    assert!(timeout(PATIENCE, feed.frame()).await.unwrap().is_some());
    let revoke = Request::delete("/api/v1/access/ada").body(Body::empty()).unwrap();
    assert_eq!(site.ask_as_user(revoke).await.0, 200);
    let over = async { while feed.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    timeout(PATIENCE, over).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_can_be_neither_fixed_nor_forged_and_ends_with_its_token() {
    let site = Site::strict().await;
    let token = site.token(json!({ "name": "ada", "role": "admin" })).await;
    // An attacker has put a cookie of its own into the browser before.
    let (name, _) = site
        .login(&token, None)
        .await
        .0
        .split_once('=')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let fixed = format!("{name}={}", Token::make().unwrap().reveal());
    let (cookie, set) = site.login(&token, Some(&fixed)).await;
    assert_ne!(cookie, fixed);
    for flag in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(flag), "{set}");
    }
    assert!(!set.contains("Secure"), "{set}");
    let with = |mut request: Request<Body>, cookie: &str, more: &[(&'static str, &str)]| {
        request.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
        for (name, value) in more {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        request
    };
    assert_eq!(site.ask(with(get("/api/v1/sites"), &fixed, &[])).await.0, 401);
    assert_eq!(site.ask(with(get("/api/v1/sites"), &cookie, &[])).await.0, 200);
    let (_, _, who) = site.ask(with(get("/api/v1/session"), &cookie, &[])).await;
    assert_eq!((&who["author"], &who["by"]), (&json!("ada"), &json!("session")));
    // What a page of somebody else can have the browser send, with the cookie.
    let pause = || post("/api/v1/sites/here/pause", &json!({}));
    let own = format!("http://localhost:{}", site.agent.api().port());
    for (more, expected) in [
        (&[][..], 403),
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("sec-fetch-site", "same-site")], 403),
        (&[("sec-fetch-site", "none")], 403),
        (&[("origin", "https://evil.example")], 403),
        (&[("origin", "null")], 403),
        (&[("origin", own.as_str())], 403),
        (&[("sec-fetch-site", "same-origin")], 204),
        (&[("origin", "http://localhost")], 204),
    ] {
        let (status, _, body) = site.ask(with(pause(), &cookie, more)).await;
        assert_eq!(status, expected, "{more:?}: {body}");
    }
    // Another login ends the session before it; a logout ends the one that it comes from.
    let (second, _) = site.login(&token, Some(&cookie)).await;
    assert_eq!(site.ask(with(get("/api/v1/sites"), &cookie, &[])).await.0, 401);
    let logout = Request::delete("/api/v1/session").body(Body::empty()).unwrap();
    let same = [("sec-fetch-site", "same-origin")];
    assert_eq!(site.ask(with(logout, &second, &same)).await.0, 204);
    assert_eq!(site.ask(with(get("/api/v1/sites"), &second, &[])).await.0, 401);
    let (third, _) = site.login(&token, None).await;
    let revoke = Request::delete("/api/v1/access/ada").body(Body::empty()).unwrap();
    assert_eq!(site.ask_as_user(revoke).await.0, 200);
    assert_eq!(site.ask(with(get("/api/v1/sites"), &third, &[])).await.0, 401);
    let (status, kind) =
        site.with(&token, post("/api/v1/session", &json!({ "token": token }))).await;
    assert_eq!((status, kind.as_str()), (401, "revoked-token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_made_to_stand_for_loopback_leads_nowhere() {
    let site = Site::start(|_| {}).await;
    let port = site.agent.api().port();
    for (host, expected) in [
        (format!("evil.example:{port}"), false),
        (format!("localhost.evil.example:{port}"), false),
        (format!("127.0.0.1.evil.example:{port}"), false),
        (format!("localhost:{port}"), true),
        (format!("127.0.0.1:{port}"), true),
    ] {
        for mut request in [get("/api/v1/sites"), operation("x", "set", "here")] {
            request.headers_mut().insert("host", host.parse().unwrap());
            let (status, _, body) = site.ask(request).await;
            let is_served = (200..300).contains(&status);
            assert_eq!((is_served, status == 403), (expected, !expected), "{host}: {body}");
        }
    }
    assert!(site.serves_others().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_for_its_owner_and_group_and_goes_with_the_agent() {
    let site = Site::start(|_| {}).await;
    let path = site.agent.socket().unwrap().to_owned();
    let about = fs::metadata(&path).unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o777, 0o660);
    // An agent that was killed leaves its socket, and the next takes its place.
    let left = site.directory.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let text = site.directory.path().join("text");
    fs::write(&text, "mine").unwrap();
    let other = |socket: PathBuf| async {
        let mut config = Config::new("other".parse().unwrap(), site.directory.path().join("other"));
        config.api = SocketAddr::from(([127, 0, 0, 1], 0));
        config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
        config.socket = Socket::At(socket);
        Agent::start(config).await
    };
    let second = other(left.clone()).await.unwrap();
    assert!(UnixStream::connect(&left).await.is_ok());
    second.stop().await;
    assert!(!left.exists());
    for taken in [text.clone(), path.clone()] {
        let Err(error) = other(taken).await else { panic!("it started") };
        assert!(error.to_string().contains("`listen.socket`"), "{error}");
    }
    assert_eq!(fs::read_to_string(&text).unwrap(), "mine");
    site.agent.stop().await;
    assert!(!path.exists());
}

/// A certificate for 127.0.0.1, and its key.
fn certificate(directory: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = (directory.join("api.crt"), directory.join("api.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1,DNS:here.example"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-days", "300", "-out"])
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    (certificate, key)
}

async fn send_secure(
    api: SocketAddr,
    trusted: &Path,
    request: Request<Body>,
) -> (u16, HeaderMap, Value) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let tcp = TcpStream::connect(("127.0.0.1", api.port())).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    send(TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap(), request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_reach_needs_tls_and_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let wide = SocketAddr::from(([0, 0, 0, 0], 0));
    let config = |entry: Entry| {
        let mut config = Config::new("here".parse().unwrap(), directory.path().join("data"));
        (config.api, config.entry) = (wide, entry);
        config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
        config
    };
    let refused = Agent::start(config(Entry::default())).await.err().unwrap();
    assert!(matches!(refused, StartError::TooWide(_)));
    let text = refused.to_string();
    assert!(
        text.contains("[api]\ncertificate = ") && text.contains("cheops access create"),
        "{text}"
    );
    let ca = Ca::new(&directory.path().join("ca"));
    let here = Wanted::of("here", "IP:127.0.0.1");
    let issued = ca.issue("api", &Wanted { from: "-60 days", until: "+3 days", ..here });
    let pair = (directory.path().join("api.crt"), directory.path().join("api.key"));
    fs::rename(issued.0, &pair.0).unwrap();
    fs::rename(issued.1, &pair.1).unwrap();
    let trusted = ca.path("ca.pem");
    let entry = Entry { certificate: Some(pair), ..Entry::default() };
    let agent = Agent::start(config(entry)).await.unwrap();
    let site = Site { agent, directory };
    let api = site.agent.api();
    assert_eq!(send_secure(api, &trusted, get("/healthz")).await.0, 200);
    let (status, _, body) = send_secure(api, &trusted, get("/api/v1/sites")).await;
    assert_eq!((status, &body["type"]), (401, &json!("token-required")));
    let token = site.token(json!({ "name": "ada", "role": "viewer" })).await;
    let asked = bearer(get("/api/v1/sites"), &token);
    assert_eq!(send_secure(api, &trusted, asked).await.0, 200);
    let (status, headers, _) =
        send_secure(api, &trusted, post("/api/v1/session", &json!({ "token": token }))).await;
    assert_eq!(status, 204);
    assert!(headers[header::SET_COOKIE].to_str().unwrap().ends_with("; Secure"));
    // Who speaks no TLS there is not answered, and holds up nobody.
    let plain = TcpStream::connect(("127.0.0.1", api.port())).await.unwrap();
    let (mut requests, connection) =
        hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(plain)).await.unwrap();
    tokio::spawn(connection);
    assert!(timeout(PATIENCE, requests.send_request(get("/healthz"))).await.unwrap().is_err());
    // It ends soon, which is said; a new one is taken without a restart.
    let troubles = || async { site.ask_as_user(get("/api/v1/problems")).await.1.to_string() };
    assert!(troubles().await.contains("the certificate of the API expires in"));
    let (renewed, _) = certificate(site.directory.path());
    let deadline = Instant::now() + PATIENCE;
    while troubles().await.contains("certificate") {
        assert!(Instant::now() < deadline, "it is not renewed");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(send_secure(api, &renewed, get("/healthz")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_door_that_is_open_to_anyone_is_a_problem_that_is_shown() {
    let site = Site::start(|config| {
        config.api = SocketAddr::from(([0, 0, 0, 0], 0));
        config.entry.insecure = true;
    })
    .await;
    let tcp = TcpStream::connect(("127.0.0.1", site.agent.api().port())).await.unwrap();
    let (status, _, problems) = send(tcp, get("/api/v1/problems")).await;
    assert_eq!(status, 200);
    assert!(problems.to_string().contains("insecure_anyone_may_do_anything"), "{problems}");
}

/// Two agents that know each other and are linked.
async fn linked(directory: &tempfile::TempDir) -> [Agent; 2] {
    let data = |site: &str| {
        let data = directory.path().join(site);
        fs::create_dir_all(&data).unwrap();
        data
    };
    let config = |site: &str, other: &str, address: String| {
        let mut config = Config::new(site.parse().unwrap(), data(site));
        config.api = SocketAddr::from(([127, 0, 0, 1], 0));
        config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
        let key = Identity::open(&data(other)).unwrap().public();
        config.add_site(other.parse().unwrap(), address, key).unwrap();
        config
    };
    let a = Agent::start(config("a", "b", "127.0.0.1:1".to_owned())).await.unwrap();
    let b = Agent::start(config("b", "a", a.peers().to_string())).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    for agent in [&a, &b] {
        loop {
            let tcp = TcpStream::connect(agent.api()).await.unwrap();
            let (_, _, sites) = send(tcp, get("/api/v1/sites")).await;
            if sites.to_string().contains("\"reachable\"") {
                break;
            }
            assert!(Instant::now() < deadline, "no link");
            sleep(Duration::from_millis(10)).await;
        }
    }
    [a, b]
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asked_is_the_author_at_the_site_that_it_is_passed_on_to_and_may_no_more_there() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = linked(&directory).await;
    let [a, b] = [a, b].map(|agent| Site { agent, directory: tempfile::tempdir().unwrap() });
    let on_b = json!({ "name": "omar", "role": "operator", "sites": ["b"] });
    let on_b = a.token(on_b).await;
    let on_a = a.token(json!({ "name": "olga", "role": "operator", "sites": ["a"] })).await;
    assert_eq!(a.with(&on_b, operation("x", "set", "b")).await.0, 202);
    assert_eq!(author(&b, "x").await, "omar");
    // The site that is asked first does not know where the resource is; the other does.
    let again = || {
        let body = json!({ "command": "true", "kind": "set", "wait": "0s" });
        post("/api/v1/resources/x/operations", &body)
    };
    assert_eq!(a.with(&on_b, again()).await.0, 202);
    let (status, kind) = a.with(&on_a, again()).await;
    assert_eq!((status, kind.as_str()), (403, "not-allowed"));
    // Nor may somebody set commands there who may not here.
    let of_kind = a.token(json!({ "name": "kim", "role": "operator", "kinds": ["set"] })).await;
    for (config, status) in [(json!({ "Show": "id" }), 403), (json!({ "Timeout": "3s" }), 202)] {
        assert_eq!(a.with(&of_kind, configured("x", None, &config)).await.0, status, "{config}");
    }
    let admin = a.token(json!({ "name": "ada", "role": "admin" })).await;
    assert_eq!(a.with(&admin, configured("x", None, &json!({ "Show": "id" }))).await.0, 202);
    let (status, kind) = a.with(&of_kind, configured("x", None, &json!({ "Timeout": "4s" }))).await;
    assert_eq!(
        (status, kind.as_str()),
        (403, "not-allowed"),
        "only the other site knows of `Show`"
    );
    let show = || post("/api/v1/resources/x/show", &json!({ "command": "echo hello" }));
    let (status, kind) = a.with(&on_a, show()).await;
    assert_eq!((status, kind.as_str()), (403, "not-allowed"));
    assert_eq!(a.with(&on_b, show()).await.0, 200);
}

#[tokio::test]
async fn a_list_of_tokens_that_can_not_be_read_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let kept = Kept::open(&data, now()).unwrap();
    let digest = [7; 32];
    let grant = Grant {
        name: "ada".parse().unwrap(),
        digest,
        role: Role::Admin,
        issued: Millis(0),
        expires: Millis(u64::MAX),
    };
    kept.grant(grant).await.unwrap();
    let text = fs::read_to_string(data.join("access")).unwrap().replace("admin", "admim");
    fs::write(data.join("access"), text).unwrap();
    let mut config = Config::new("here".parse().unwrap(), &data);
    config.api = SocketAddr::from(([127, 0, 0, 1], 0));
    config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
    let Err(error) = Agent::start(config).await else { panic!("it started") };
    assert!(error.to_string().contains("line 1 of the list of tokens"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_tries_tokens_is_told_to_stop_and_whoever_has_one_is_not() {
    let site = Site::start(|config| {
        config.entry.tokens_required = true;
        (config.rates.rate, config.rates.burst) = (1, 5);
    })
    .await;
    let good = site.token(json!({ "name": "ada", "role": "viewer" })).await;
    let mut told = Vec::new();
    for n in 0..20 {
        let tried = if n % 2 == 0 { Token::make().unwrap().reveal() } else { "x".to_owned() };
        told.push(site.with(&tried, get("/api/v1/sites")).await.0);
    }
    assert_eq!(told[..5], [401; 5], "{told:?}");
    let refused = told.iter().filter(|status| **status == 429).count();
    assert!(refused >= 10, "{told:?}");
    assert_eq!(site.with(&good, get("/api/v1/sites")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_all_places_of_the_change_feed() {
    let site = Site::start(|config| {
        config.entry.tokens_required = true;
        config.serve.feeds = 16;
    })
    .await;
    let viewer = site.token(json!({ "name": "vera", "role": "viewer" })).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let mut held = Vec::new();
    let mut follow = async |token: &str| {
        let tcp = TokioIo::new(TcpStream::connect(site.agent.api()).await.unwrap());
        let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
        tokio::spawn(connection);
        let mut request = bearer(get("/api/v1/changes"), token);
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        let answer = timeout(PATIENCE, requests.send_request(request)).await.unwrap().unwrap();
        let status = answer.status().as_u16();
        held.push((requests, answer));
        status
    };
    for _ in 0..4 {
        assert_eq!(follow(&viewer).await, 200);
    }
    assert_eq!(follow(&viewer).await, 503);
    assert_eq!(follow(&admin).await, 200);
}

/// The lines of the audit of a site, of a sort.
async fn lines(agent: &Agent, what: &str) -> Vec<Value> {
    let unix = UnixStream::connect(agent.socket().unwrap()).await.unwrap();
    let (status, _, page) = send(unix, get("/api/v1/audit")).await;
    assert_eq!(status, 200, "{page}");
    let all = page["entries"].as_array().unwrap().iter();
    all.filter(|entry| entry["what"] == what).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_what_was_made() {
    let site = Site::strict().await;
    let operator =
        json!({ "name": "omar", "role": "operator", "resources": ["web-*"], "ttl": "2h" });
    let token = site.token(operator).await;
    let hook = json!({ "name": "news", "url": "https://hooks.example/secret" });
    let (status, body) = site.ask_as_user(post("/api/v1/hooks", &hook)).await;
    assert_eq!(status, 201, "{body}");
    let (status, body) =
        site.ask_as_user(post("/api/v1/federation/tokens", &json!({ "ttl": "5m" }))).await;
    assert_eq!(status, 201, "{body}");
    let show = json!({ "command": "echo shown", "sites": "here" });
    let (status, _) = site.with(&token, post("/api/v1/resources/web-1/show", &show)).await;
    assert_eq!(status, 200);
    let (_, kind) = site.with(&token, post("/api/v1/resources/db-1/show", &show)).await;
    assert_eq!(kind, "not-allowed");
    site.login(&token, None).await;
    let made: Vec<(Value, Value)> = lines(&site.agent, "request")
        .await
        .iter()
        .map(|line| (line["path"].clone(), line["subject"].clone()))
        .collect();
    let expected = [
        ("/api/v1/access", Some("omar: operator (resources web-*; kinds all; sites all), for 2h")),
        ("/api/v1/hooks", Some("news")),
        ("/api/v1/federation/tokens", Some("for 5m")),
        ("/api/v1/resources/web-1/show", Some("echo shown")),
        ("/api/v1/resources/db-1/show", Some("echo shown")),
        ("/api/v1/session", None),
    ];
    assert_eq!(made, expected.map(|(path, subject)| (json!(path), json!(subject))));
    let login = lines(&site.agent, "request").await.pop().unwrap();
    assert_eq!(login["author"], "omar");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_logs_in_again_and_again_ends_nobody_elses_session_and_does_not_fill_the_audit() {
    const LOGINS: usize = 1_200;
    let site = Site::strict().await;
    let viewer = site.token(json!({ "name": "vera", "role": "viewer" })).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let (cookie, _) = site.login(&admin, None).await;
    let tcp = TokioIo::new(TcpStream::connect(site.agent.api()).await.unwrap());
    let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..LOGINS {
        let mut request = post("/api/v1/session", &json!({ "token": viewer }));
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        requests.ready().await.unwrap();
        let answer = requests.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 204);
        answer.into_body().collect().await.unwrap();
    }
    let mut who = get("/api/v1/session");
    who.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
    assert_eq!(site.ask(who).await.2["author"], "ada");
    let (_, page) = site.ask_as_user(get("/api/v1/audit?limit=1000")).await;
    let (_, older) = site.ask_as_user(get("/api/v1/audit?after=0&limit=1000")).await;
    // What was done besides is still there.
    assert!(older.to_string().contains("vera: viewer"), "{older}");
    let last = page["entries"].as_array().unwrap().last().unwrap()["n"].as_u64().unwrap();
    assert!((1_000..LOGINS as u64).contains(&last), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_site_that_is_asked_has_a_line_of_each_who_wants_to_join() {
    let named = |name: &'static str| Site::start(move |config| config.site = name.parse().unwrap());
    let (first, second, third) = (named("a").await, named("b").await, named("c").await);
    let (status, made) = first.ask_as_user(post("/api/v1/federation/tokens", &json!({}))).await;
    assert_eq!(status, 201, "{made}");
    let join = post("/api/v1/federation/join", &json!({ "token": made["token"] }));
    assert_eq!(second.ask_as_user(join).await.0, 200);
    let join = post("/api/v1/federation/join", &json!({ "token": made["token"] }));
    assert_eq!(third.ask_as_user(join).await.0, 403);
    let lines = lines(&first.agent, "join").await;
    let [joined, refused] = &lines[..] else { panic!("{lines:?}") };
    for (line, site, status, why) in
        [(joined, "b ", 200, Value::Null), (refused, "c ", 403, json!("token-used"))]
    {
        assert!(line["subject"].as_str().unwrap().starts_with(site), "{line}");
        assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert_eq!((&line["status"], &line["why"]), (&json!(status), &why));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_too_many_over_tls_is_told_so_in_words_that_it_knows() {
    let directory = tempfile::tempdir().unwrap();
    let pair = certificate(directory.path());
    let trusted = pair.0.clone();
    let site = Site::start(|config| {
        config.entry.certificate = Some(pair);
        config.serve.connections = 1;
    })
    .await;
    let held = TcpStream::connect(site.agent.api()).await.unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let tcp = TcpStream::connect(site.agent.api()).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut answer = String::new();
    timeout(PATIENCE, tls.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("too-many-connections"), "{answer}");
    drop(held);
}
