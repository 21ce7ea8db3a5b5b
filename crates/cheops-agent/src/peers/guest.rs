//! One who is not known, and has something to say all the same: a token, or news of the federation.
//!
//! What a guest says is believed for what is in it, not for who says it. What must stay true: a guest
//! gets nothing but an answer to that, from whoever answers for this agent; its connection does not last,
//! and what is read of it is bounded.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use cheops_core::{id::SiteId, trust::PublicKey};
use http_body_util::{BodyExt as _, Limited};
use hyper::{Request, StatusCode, Version, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use super::{Peers, Shared, http, link::root, odds, transport};
use crate::trust::{
    Identity,
    tls::{self, Tls, WrongKey},
};

/// How long a visit may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How much an answer may be.
const LONGEST: usize = 64 << 20;

/// Who asks: in the extensions of each request of one that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The key that it has proved to have.
    pub key: PublicKey,
    /// The site that it is by its certificate, if it has one.
    pub site: Option<SiteId>,
    /// Where it comes from.
    pub from: SocketAddr,
}

/// Why a site could not be visited.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// There is no way to it.
    #[error("{address} can't be reached: {why}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// Why not.
        why: String,
    },
    /// It is another site.
    #[error("the site at {0} is not the one that was meant: its key is another")]
    Another(String),
    /// The two do not take each other's certificates.
    #[error("{address} and this site do not recognise each other: {why}")]
    Certificate {
        /// Where it is.
        address: String,
        /// Why not.
        why: String,
    },
    /// It answers something else.
    #[error("{address} does not answer as an agent does ({why}): is it the port for other agents?")]
    Foreign {
        /// Where it is.
        address: String,
        /// What is odd.
        why: String,
    },
}

/// Serves a guest, not for long.
pub(super) async fn serve<T>(shared: Arc<Shared>, io: T, guest: Guest)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = {
        let shared = shared.clone();
        service_fn(move |request: Request<Incoming>| {
            let (shared, guest) = (shared.clone(), guest.clone());
            async move {
                let Some(calls) = shared.calls.get() else {
                    let starting = "the agent is starting";
                    return Ok(http::refuse(StatusCode::SERVICE_UNAVAILABLE, starting));
                };
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(guest);
                Ok::<_, Infallible>(calls.welcome(request).await)
            }
        })
    };
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(1)
        .max_header_list_size(16 << 10)
        .serve_connection(TokioIo::new(io), service);
    tokio::select! {
        _ = timeout(PATIENCE, connection) => {}
        () = shared.stop.cancelled() => {}
    }
}

impl Peers {
    /// Asks the site with this key something, as a guest: it need not know this one.
    pub async fn visit(
        &self,
        address: &str,
        key: PublicKey,
        path: &'static str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), VisitError> {
        self.visit_with(&self.shared.tls, address, key, path, body).await
    }

    /// The same, with a key that is not the one of this site, or not yet.
    pub async fn visit_as(
        &self,
        identity: &Arc<Identity>,
        address: &str,
        key: PublicKey,
        path: &'static str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), VisitError> {
        let known = Arc::new(self.members().clone());
        let tls = match self.shared.tls.pki() {
            Some(pki) => {
                let identity = identity.clone();
                Ok(Tls::with_pki(pki.clone(), Arc::new(move || identity.clone()), known))
            }
            None => Tls::new(identity, known),
        };
        let unreachable = |error: rustls::Error| VisitError::Unreachable {
            address: address.to_owned(),
            why: error.to_string(),
        };
        self.visit_with(&tls.map_err(unreachable)?, address, key, path, body).await
    }

    async fn visit_with(
        &self,
        tls: &Tls,
        address: &str,
        key: PublicKey,
        path: &'static str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), VisitError> {
        let unreachable =
            |why: String| VisitError::Unreachable { address: address.to_owned(), why };
        let foreign = |why: String| VisitError::Foreign { address: address.to_owned(), why };
        let visit = async {
            let silence = self.shared.links.silence;
            let tcp = transport::connect(address, silence).await;
            let tcp = tcp.map_err(|error| unreachable(error.to_string()))?;
            let io = transport::visiting(tls, tcp, key).await;
            let io = io.map_err(|error: io::Error| match tls::why::<WrongKey>(&error) {
                Some(_) => VisitError::Another(address.to_owned()),
                None => match odds::visited(&self.shared.tls, &error) {
                    Some(why) => VisitError::Certificate { address: address.to_owned(), why },
                    None => foreign(error.to_string()),
                },
            })?;
            let client = http::client(io).await.map_err(|error| foreign(root(&error)))?;
            let (mut requests, connection) = client;
            let asking = async {
                let mut request = Request::post(http::uri(path))
                    .body(Body::from(body))
                    .map_err(|error| foreign(root(&error)))?;
                *request.version_mut() = Version::HTTP_2;
                let answer = requests.send_request(request).await;
                let answer = answer.map_err(|error| foreign(root(&error)))?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), LONGEST).collect().await;
                let body = body.map_err(|error| foreign(error.to_string()))?;
                Ok((status, body.to_bytes()))
            };
            tokio::select! {
                answer = asking => answer,
                ended = connection => Err(foreign(match ended {
                    Ok(()) => "it has closed the connection".to_owned(),
                    Err(error) => root(&error),
                })),
            }
        };
        let late = || unreachable("it did not answer in time".to_owned());
        timeout(PATIENCE, visit).await.unwrap_or_else(|_| Err(late()))
    }
}
