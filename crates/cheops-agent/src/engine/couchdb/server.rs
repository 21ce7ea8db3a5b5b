//! The HTTP of one CouchDB server: a request, its answer, and what went wrong in words.
//!
//! What must stay true:
//! - every request can be sent twice: one that got no answer is, once, over a new connection, since a
//!   server may close an old one at any time;
//! - whoever waits for an answer waits no longer than [`PATIENCE`];
//! - a password that the server rejects is not sent again before a pause ([`PAUSES`]), so that the agent does not lock
//!   its own user out;
//! - what names the server to people never holds a password.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Frame, Incoming},
    client::conn::http1::{self, SendRequest},
    header,
    http::request,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::{either::Either, io::ReaderStream};

use crate::{
    config::{CouchDb, Secret},
    trust::roots,
};

/// How long a request may take, with its answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a TLS handshake may take. CouchDB never answers one on a port for plain HTTP.
const HANDSHAKE: Duration = Duration::from_secs(4);
/// The longest answer that is read, in bytes.
pub(super) const LONGEST: usize = 256 << 20;
/// How much of a file is read at once.
const UPLOADED: usize = 64 << 10;
/// How many connections are kept for later.
const KEPT: usize = 4;
/// How long no request is sent after the server has rejected the password: for the first time, and each time after
/// that. The server locks a user out after five failed logins within five minutes.
const PAUSES: [Duration; 2] = [Duration::from_secs(10), Duration::from_mins(2)];

/// Why there is no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nobody answers.
    Silent(String),
    /// Whoever answers is not known to be CouchDB.
    Untrusted(String),
    /// There is no answer to a TLS handshake, or one that is no TLS.
    NoTls,
    /// The user has failed to log in too often, and is locked out for some time.
    LockedOut(String),
    /// Only a server admin may do that.
    NotAdmin(String),
    /// It answers that something is wrong.
    Refused {
        status: StatusCode,
        /// In its own words.
        why: String,
    },
    /// It answers with more than fits into memory.
    Long,
    /// It answers something else.
    Odd(String),
    /// Another has written a page of the journal meanwhile.
    Taken(String),
    /// The last page of the journal is not what the engine has written.
    Spoilt(String),
    /// The journal has lost its end while the engine was open.
    SetBack,
    /// There is no such database, and it can't be made.
    NotMade { database: String, why: String },
}

impl Trouble {
    /// Whether the server is away, and takes the same when it is back.
    pub(super) fn is_away(&self) -> bool {
        match self {
            Self::Silent(_) | Self::NoTls | Self::LockedOut(_) => true,
            Self::Refused { status, .. } => status.is_server_error(),
            Self::NotAdmin(_)
            | Self::Untrusted(_)
            | Self::Long
            | Self::Odd(_)
            | Self::Taken(_)
            | Self::Spoilt(_)
            | Self::SetBack
            | Self::NotMade { .. } => false,
        }
    }
}

impl std::error::Error for Trouble {}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Silent(why) => {
                write!(
                    f,
                    "CouchDB can't be reached ({why}): is it running, and is `couchdb.url` right?"
                )
            }
            Self::Untrusted(why) => write!(
                f,
                "the certificate of CouchDB does not count ({why}): name the CA that has signed it in `couchdb.ca`, and the host that it is for in `couchdb.url`"
            ),
            Self::NoTls => write!(
                f,
                "no TLS response: if CouchDB listens for plain HTTP on this port, write `http://` in `couchdb.url`, or name the port where it speaks TLS (6984); is `couchdb.url` right?"
            ),
            Self::LockedOut(why) => write!(
                f,
                "CouchDB has locked `couchdb.user` out after failed logins from this address ({why}): find the client that uses a wrong password. The lock ends by itself, after 5 minutes by default ([chttpd_auth_lockout] in CouchDB)"
            ),
            Self::NotAdmin(why) => write!(
                f,
                "only a server admin may do that, and `couchdb.user` is none ({why}): make it a server admin; docs/couchdb.md lists the rights"
            ),
            Self::NotMade { database, why } => write!(
                f,
                "there is no database `{database}`, and CouchDB does not let `couchdb.user` make it ({why}): make both databases, with this user as their admin, or name an admin of the server in `couchdb.user`"
            ),
            Self::Refused { status: StatusCode::UNAUTHORIZED, why } => write!(
                f,
                "CouchDB does not take the name and the password ({why}): correct `couchdb.user` and `couchdb.password_file`"
            ),
            Self::Refused { status: StatusCode::FORBIDDEN, why } => write!(
                f,
                "CouchDB does not let `couchdb.user` do that ({why}): make it an admin of both databases, or of the server"
            ),
            Self::Refused { status: StatusCode::PAYLOAD_TOO_LARGE, why } => write!(
                f,
                "a document is too large for CouchDB ({why}): raise `max_document_size` in its section [couchdb]; see docs/couchdb.md"
            ),
            Self::Refused { status, why } => write!(f, "CouchDB answers {status} ({why})"),
            Self::Taken(page) => write!(
                f,
                "another agent has written `{page}` of the journal: one site has one agent at work on its databases"
            ),
            Self::Spoilt(page) => write!(
                f,
                "`{page}`, the last of the journal, makes no sense: somebody has changed it. Put both databases back from a backup; see docs/couchdb.md"
            ),
            Self::Long => f.write_str("CouchDB answers with a document that is too long"),
            Self::SetBack => f.write_str(
                "the end of the journal is gone: was a backup put back? Started again, the agent finds what is missing; see docs/couchdb.md",
            ),
            Self::Odd(why) => write!(f, "CouchDB answers something that makes no sense ({why})"),
        }
    }
}

/// One server.
pub(crate) struct Server {
    config: CouchDb,
    tls: Option<Arc<ClientConfig>>,
    authorization: Option<String>,
    kept: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    /// Whether the last request got no answer.
    silent: AtomicBool,
    /// How many connections were made.
    connections: AtomicU64,
    /// The last login, if the server has rejected it.
    rejection: Mutex<Option<Rejection>>,
    /// How long no request is sent after that: the first time, and then.
    pauses: [Duration; 2],
}

/// A login that the server has rejected.
struct Rejection {
    at: Instant,
    /// It has rejected the one before it, too.
    again: bool,
    /// In its own words.
    body: Bytes,
}

/// What an answer says that has to be a success.
pub(crate) fn read<T: DeserializeOwned>(status: StatusCode, bytes: &[u8]) -> Result<T, Trouble> {
    if !status.is_success() {
        return Err(refused(status, bytes));
    }
    serde_json::from_slice(bytes).map_err(|error| Trouble::Odd(error.to_string()))
}

/// A text as a part of an address.
pub(crate) fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// What a write was answered with, if as many nodes have stored it as make it last.
pub(super) fn lasting<T: DeserializeOwned>(
    (status, bytes): (StatusCode, Bytes),
) -> Result<T, Trouble> {
    if status == StatusCode::ACCEPTED { Err(few_nodes()) } else { read(status, &bytes) }
}

/// CouchDB has taken something, and not on as many nodes as make it last.
pub(super) fn few_nodes() -> Trouble {
    let why = "too few of its nodes take what is written".to_owned();
    Trouble::Refused { status: StatusCode::SERVICE_UNAVAILABLE, why }
}

/// Whether a database that says this of itself keeps each document on several nodes, of which more than one has to
/// store it before it is lasting.
pub(super) fn is_clustered(info: &Value) -> bool {
    info["cluster"]["w"].as_u64().is_some_and(|w| w > 1)
}

/// A refusal in the words of the server. CouchDB has two statuses for what are four cases to an operator.
pub(crate) fn refused(status: StatusCode, bytes: &[u8]) -> Trouble {
    let why = said(bytes);
    match status {
        StatusCode::FORBIDDEN if why.contains("temporarily locked") => Trouble::LockedOut(why),
        StatusCode::UNAUTHORIZED if why.contains("not a server admin") => Trouble::NotAdmin(why),
        _ => Trouble::Refused { status, why },
    }
}

/// Why the server refuses something, in its own words.
pub(super) fn said(bytes: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Said {
        error: String,
        #[serde(default)]
        reason: Option<String>,
    }
    match serde_json::from_slice(bytes) {
        Ok(Said { error, reason: Some(reason) }) => format!("{error}: {reason}"),
        Ok(Said { error, reason: None }) => error,
        Err(_) => "without saying why".to_owned(),
    }
}

/// Why there is no connection.
fn unreached(error: &io::Error) -> Trouble {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(why)) => Trouble::Untrusted(why.to_string()),
        // What answers does not speak TLS.
        Some(rustls::Error::InvalidMessage(_)) => Trouble::NoTls,
        _ if has_no_tls(error) => Trouble::NoTls,
        _ => Trouble::Silent(error.to_string()),
    }
}

/// Whether a connection failed because nobody has answered the TLS handshake.
fn has_no_tls(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<NoHandshake>()).is_some()
}

/// Nobody has answered a TLS handshake in time.
#[derive(Debug, thiserror::Error)]
#[error("no response to the TLS handshake")]
struct NoHandshake;

impl Server {
    /// The server that a configuration names. Reads files.
    pub(crate) fn new(config: &CouchDb) -> Result<Self, String> {
        let protected = config.url.scheme_str() == Some("https");
        let tls = protected.then(|| roots::client(config.ca.as_deref())).transpose()?;
        let password = config.password.as_ref().map(Secret::read).transpose()?;
        let authorization = config.user.as_ref().map(|user| {
            let pair = format!("{user}:{}", password.unwrap_or_default());
            format!("Basic {}", BASE64_STANDARD.encode(pair))
        });
        Ok(Self {
            config: config.clone(),
            tls,
            authorization,
            kept: Mutex::default(),
            silent: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            rejection: Mutex::default(),
            pauses: PAUSES,
        })
    }

    /// What proves who asks, as a header has it.
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    /// Asks, and reads the answer, whatever its status is.
    pub(crate) async fn answer(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        self.answer_within(method, path, body, LONGEST).await
    }

    /// The same, with an answer of so many bytes at most.
    pub(crate) async fn answer_within(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        if let Some(rejected) = self.rejected() {
            return Ok(rejected);
        }
        let late = || Trouble::Silent(format!("no answer within {} s", PATIENCE.as_secs()));
        let asked = timeout(PATIENCE, self.exchange(method, path, body, most)).await;
        let answer = asked.unwrap_or_else(|_| Err(late()));
        let answer = answer.map(|(status, body)| self.login(status, body));
        let silent = matches!(answer, Err(Trouble::Silent(_) | Trouble::NoTls));
        self.silent.store(silent, Ordering::Relaxed);
        answer
    }

    /// The answer to the last login, if the server has rejected it a short time ago.
    fn rejected(&self) -> Option<(StatusCode, Bytes)> {
        let rejection = self.rejection.lock().unwrap_or_else(PoisonError::into_inner);
        let rejection = rejection.as_ref()?;
        if rejection.at.elapsed() >= self.pauses[usize::from(rejection.again)] {
            return None;
        }
        Some((StatusCode::UNAUTHORIZED, rejection.body.clone()))
    }

    /// Takes note of whether an answer rejects the login. Where failed logins of this agent have locked the user
    /// out, the answer is still that the password is wrong: that is what has to be corrected.
    fn login(&self, status: StatusCode, body: Bytes) -> (StatusCode, Bytes) {
        let mut rejection = self.rejection.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        match (refused(status, &body), rejection.as_mut()) {
            (Trouble::Refused { status: StatusCode::UNAUTHORIZED, .. }, _) => {
                let again = rejection.is_some();
                *rejection = Some(Rejection { at, again, body: body.clone() });
            }
            (Trouble::LockedOut(_), Some(earlier)) => {
                (earlier.at, earlier.again) = (at, true);
                return (StatusCode::UNAUTHORIZED, earlier.body.clone());
            }
            _ => *rejection = None,
        }
        (status, body)
    }

    /// Whether the last request got no answer.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// How many connections were made so far: over another one, it may be another server that answers.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    /// Asks for something that has to succeed.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<T, Trouble> {
        let (status, bytes) = self.answer(method, path, body.into()).await?;
        read(status, &bytes)
    }

    /// Asks for something that goes on for as long as somebody reads it.
    pub(crate) async fn listen(&self, path: &str) -> Result<Response<Incoming>, Trouble> {
        if let Some((status, body)) = self.rejected() {
            return Err(refused(status, &body));
        }
        let listening = async {
            let mut requests = self.connect().await.map_err(|error| unreached(&error))?;
            let request = self.request(&Method::GET, path, Bytes::new());
            let request = request.map_err(|error| silent(&error))?;
            requests.send_request(request).await.map_err(|error| silent(&error))
        };
        let late = || Trouble::Silent(format!("no answer within {} s", PATIENCE.as_secs()));
        let response = timeout(PATIENCE, listening).await.unwrap_or_else(|_| Err(late()))?;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.login(response.status(), Bytes::new());
        }
        Ok(response)
    }

    /// Sends a file of so many bytes. How long that may take is up to the caller.
    pub(crate) async fn upload(
        &self,
        path: &str,
        file: tokio::fs::File,
        length: u64,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        if let Some(rejected) = self.rejected() {
            return Ok(rejected);
        }
        let stream = self.stream().await.map_err(|error| unreached(&error))?;
        let mut requests = shake(stream).await.map_err(|error| silent(&error))?;
        let parts = ReaderStream::with_capacity(file, UPLOADED).map_ok(Frame::data);
        let mut request = self.head(&Method::PUT, path);
        request = request.header(header::CONTENT_TYPE, "application/octet-stream");
        let request = request.header(header::CONTENT_LENGTH, length);
        let request = request.body(StreamBody::new(parts)).map_err(|error| silent(&error))?;
        let response = requests.send_request(request).await.map_err(|error| silent(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        Ok(self.login(status, body.map_err(|error| silent(&error))?.to_bytes()))
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        loop {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let fresh = kept.is_none();
            let mut requests = match kept {
                Some(kept) => kept,
                None => self.connect().await.map_err(|error| unreached(&error))?,
            };
            let request = self.request(method, path, body.clone()).map_err(|e| silent(&e))?;
            let response = match requests.send_request(request).await {
                Ok(response) => response,
                Err(_) if !fresh => continue,
                Err(error) => return Err(silent(&error)),
            };
            let status = response.status();
            let body = Limited::new(response.into_body(), most).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() { Trouble::Long } else { silent(&error) }
            });
            let body = body?.to_bytes();
            if requests.ready().await.is_ok() {
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() < KEPT {
                    kept.push(requests);
                }
            }
            return Ok((status, body));
        }
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> hyper::http::Result<Request<Full<Bytes>>> {
        let mut request = self.head(method, path).header(header::ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(body))
    }

    fn head(&self, method: &Method, path: &str) -> request::Builder {
        let host = self.config.url.authority().map_or("", |authority| authority.as_str());
        let base = self.config.url.path().trim_end_matches('/');
        let request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(header::HOST, host)
            .header(header::USER_AGENT, concat!("cheops/", env!("CARGO_PKG_VERSION")));
        match &self.authorization {
            Some(authorization) => request.header(header::AUTHORIZATION, authorization),
            None => request,
        }
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        self.connections.fetch_add(1, Ordering::AcqRel);
        shake(self.stream().await?).await
    }

    async fn stream(&self) -> io::Result<Either<TcpStream, TlsStream<TcpStream>>> {
        let (host, port) = self.config.place();
        let tcp = TcpStream::connect((host, port)).await?;
        // Small requests wait for nobody.
        tcp.set_nodelay(true)?;
        let Some(tls) = self.tls.clone() else { return Ok(Either::Left(tcp)) };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connected = timeout(HANDSHAKE, TlsConnector::from(tls).connect(name, tcp)).await;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, NoHandshake);
        connected.map_err(late)?.map(Either::Right)
    }
}

fn silent(error: &dyn std::fmt::Display) -> Trouble {
    Trouble::Silent(error.to_string())
}

async fn shake<B>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<SendRequest<B>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (requests, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the last request over it.
    tokio::spawn(connection);
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_says_what_to_do_about_it() {
        for (status, said, expected, away) in [
            (
                401,
                r#"{"error":"unauthorized","reason":"Name or password is incorrect."}"#,
                "correct `couchdb.user`",
                false,
            ),
            (
                401,
                r#"{"error":"unauthorized","reason":"You are not a server admin."}"#,
                "make it a server admin",
                false,
            ),
            (
                403,
                r#"{"error":"forbidden","reason":"you may only read"}"#,
                "an admin of both databases",
                false,
            ),
            (
                403,
                r#"{"error":"forbidden","reason":"Account is temporarily locked due to multiple authentication failures"}"#,
                "The lock ends by itself",
                true,
            ),
            (500, r#"{"error":"internal_server_error"}"#, "answers 500", true),
        ] {
            let trouble = refused(StatusCode::from_u16(status).unwrap(), said.as_bytes());
            assert!(trouble.to_string().contains(expected), "{trouble}");
            assert_eq!(trouble.is_away(), away, "{trouble}");
        }
    }

    /// A server that gives these answers, one after the other. Counts the requests.
    fn answering(answers: &'static [(u16, &str)]) -> (Server, Arc<AtomicU64>) {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let config = CouchDb {
            url: format!("http://{}", listener.local_addr().unwrap()).parse().unwrap(),
            user: Some("cheops".to_owned()),
            password: None,
            database: "cheops".to_owned(),
            ca: None,
            replicate: false,
            relay: None,
            relay_name: None,
            local_journal: None,
        };
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.extend(byte);
                }
                count.fetch_add(1, Ordering::Relaxed);
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (Server::new(&config).unwrap(), asked)
    }

    const WRONG: (u16, &str) =
        (401, r#"{"error":"unauthorized","reason":"Name or password is incorrect."}"#);
    const LOCKED: (u16, &str) =
        (403, r#"{"error":"forbidden","reason":"Account is temporarily locked"}"#);

    async fn status_of(server: &Server) -> u16 {
        server.answer(&Method::GET, "/", Bytes::new()).await.unwrap().0.as_u16()
    }

    #[tokio::test]
    async fn a_password_that_is_rejected_is_not_sent_again_at_once() {
        let (mut server, asked) = answering(&[WRONG, WRONG, (200, "{}"), (200, "{}")]);
        for _ in 0..10 {
            assert_eq!(status_of(&server).await, 401);
            assert!(server.listen("/_changes").await.is_err());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        server.pauses[0] = Duration::ZERO;
        for _ in 0..10 {
            assert_eq!(status_of(&server).await, 401);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2, "the second pause is another");
        server.pauses[1] = Duration::ZERO;
        for _ in 0..2 {
            assert_eq!(status_of(&server).await, 200);
        }
    }

    #[tokio::test]
    async fn a_lock_by_failed_logins_of_the_agent_is_a_wrong_password() {
        let (mut server, _) = answering(&[LOCKED, WRONG, LOCKED, (200, "{}"), LOCKED]);
        server.pauses = [Duration::ZERO; 2];
        for expected in [403, 401, 401, 200, 403] {
            assert_eq!(status_of(&server).await, expected);
        }
    }

    #[tokio::test]
    async fn plain_http_where_tls_was_meant_is_named() {
        let mut config = answering(&[]).0.config;
        let talking = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        config.url = format!("https://{}", talking.local_addr().unwrap()).parse().unwrap();
        std::thread::spawn(move || {
            use std::io::Write as _;
            let (mut stream, _) = talking.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            // The client closes it.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let trouble = Server::new(&config).unwrap().answer(&Method::GET, "/", Bytes::new()).await;
        assert_eq!(trouble, Err(Trouble::NoTls));
    }

    #[test]
    fn a_write_that_too_few_nodes_stored_is_none() {
        let body = Bytes::from_static(b"[]");
        assert!(lasting::<Value>((StatusCode::CREATED, body.clone())).is_ok());
        let trouble = lasting::<Value>((StatusCode::ACCEPTED, body)).unwrap_err();
        assert!(trouble.is_away(), "{trouble}");
    }

    #[test]
    fn a_server_is_a_cluster_if_more_than_one_node_has_to_store_something() {
        for (info, expected) in [
            (serde_json::json!({"cluster": {"n": 3, "w": 2}}), true),
            (serde_json::json!({"cluster": {"n": 1, "w": 1}}), false),
            (serde_json::json!({"db_name": "x"}), false),
        ] {
            assert_eq!(is_clustered(&info), expected, "{info}");
        }
    }
}
