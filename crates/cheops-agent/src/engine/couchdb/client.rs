//! The HTTP of one CouchDB server: a request, its answer, and what went wrong in words.
//!
//! What must stay true:
//! - every request can be sent twice: one that got no answer is, once, over a new connection, since a
//!   server may close an old one at any time;
//! - whoever waits for an answer waits no longer than [`PATIENCE`];
//! - what names the server to people never holds a password;
//! - callers block. The requests have a thread of their own, so that they can be made from anywhere.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::{Builder, Runtime},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{
    config::{CouchDb, Secret},
    trust::roots,
};

/// How long a request may take, with its answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes.
const LONGEST: usize = 256 << 20;
/// How many connections are kept for later.
const KEPT: usize = 4;

/// Why there is no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nobody answers.
    Silent(String),
    /// Whoever answers is not known to be CouchDB.
    Untrusted(String),
    /// It answers that something is wrong.
    Refused {
        status: StatusCode,
        /// In its own words.
        why: String,
    },
    /// It answers something else.
    Odd(String),
    /// Another has written a page of the journal meanwhile.
    Taken(String),
    /// There is no such database, and it can't be made.
    NotMade { database: String, why: String },
}

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
            Self::Odd(why) => write!(f, "CouchDB answers something that makes no sense ({why})"),
        }
    }
}

/// One server.
pub(super) struct Client {
    /// None only while it is dropped.
    runtime: Option<Runtime>,
    server: Arc<Server>,
}

struct Server {
    config: CouchDb,
    tls: Option<Arc<ClientConfig>>,
    authorization: Option<String>,
    kept: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // Not by waiting for what is under way: an agent that stops would wait for a server that hangs.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    pub(super) fn new(config: &CouchDb) -> Result<Self, String> {
        let protected = config.url.scheme_str() == Some("https");
        let tls = protected.then(|| roots::client(config.ca.as_deref())).transpose()?;
        let password = config.password.as_ref().map(Secret::read).transpose()?;
        let authorization = config.user.as_ref().map(|user| {
            let pair = format!("{user}:{}", password.unwrap_or_default());
            format!("Basic {}", BASE64_STANDARD.encode(pair))
        });
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("couchdb")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let config = config.clone();
        let kept = Mutex::default();
        let server = Arc::new(Server { config, tls, authorization, kept });
        Ok(Self { runtime: Some(runtime), server })
    }

    /// Asks, and reads the answer, whatever its status is.
    pub(super) fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        let odd = |error: serde_json::Error| Trouble::Odd(error.to_string());
        let body = body.map(serde_json::to_vec).transpose().map_err(odd)?;
        let (server, path) = (self.server.clone(), path.to_owned());
        let (tell, told) = mpsc::sync_channel(1);
        let gone = || Trouble::Silent("the agent is stopping".to_owned());
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        runtime.spawn(async move {
            let asked = server.ask(&method, &path, Bytes::from(body.unwrap_or_default()));
            let late = || Trouble::Silent(format!("no answer within {} s", PATIENCE.as_secs()));
            let answer = timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(late()));
            // Whoever asked may be gone.
            let _ = tell.send(answer);
        });
        told.recv().unwrap_or_else(|_| Err(gone()))
    }

    /// Asks for something that has to succeed, and reads what it is.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Trouble> {
        let (status, bytes) = self.answer(method, path, body)?;
        read(status, &bytes)
    }

    /// Asks for something that may not be there.
    pub(super) fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Trouble> {
        match self.answer(Method::GET, path, None::<&()>)? {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, bytes) => read(status, &bytes).map(Some),
        }
    }
}

fn read<T: DeserializeOwned>(status: StatusCode, bytes: &[u8]) -> Result<T, Trouble> {
    if !status.is_success() {
        return Err(refused(status, bytes));
    }
    serde_json::from_slice(bytes).map_err(|error| Trouble::Odd(error.to_string()))
}

/// A refusal in the words of the server.
pub(super) fn refused(status: StatusCode, bytes: &[u8]) -> Trouble {
    Trouble::Refused { status, why: said(bytes) }
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
        _ => Trouble::Silent(error.to_string()),
    }
}

impl Server {
    async fn ask(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        let silent = |error: &dyn std::fmt::Display| Trouble::Silent(error.to_string());
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
            let body = Limited::new(response.into_body(), LONGEST).collect().await;
            let body = body.map_err(|error| silent(&error))?.to_bytes();
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
        let host = self.config.url.authority().map_or("", |authority| authority.as_str());
        let base = self.config.url.path().trim_end_matches('/');
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("cheops/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(body))
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let (host, port) = self.config.place();
        let tcp = TcpStream::connect((host, port)).await?;
        // Small requests wait for nobody.
        tcp.set_nodelay(true)?;
        let Some(tls) = self.tls.clone() else { return shake(tcp).await };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        shake(TlsConnector::from(tls).connect(name, tcp).await?).await
    }
}

async fn shake(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> io::Result<SendRequest<Full<Bytes>>> {
    let (requests, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the last request over it.
    tokio::spawn(connection);
    Ok(requests)
}
