//! The entrances to the API: loopback, the Unix socket, and TLS.

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
};
use hyper::{HeaderMap, Request, header};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpStream, UnixStream},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;

use crate::{
    PATIENCE, Site, bearer,
    ca::{Ca, Wanted},
    get, operation, post, send,
};

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
    // A client that speaks no TLS gets no answer, and delays no other client.
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
