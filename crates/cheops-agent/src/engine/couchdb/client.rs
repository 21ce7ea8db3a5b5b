//! Asks a CouchDB server, for those who wait.
//!
//! What must stay true: callers block. The requests have a thread of their own, so that they can be made from
//! anywhere.

use std::sync::{Arc, mpsc};

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use tokio::runtime::{Builder, Runtime};

use super::server::{LONGEST, Server, Trouble, read};
use crate::config::CouchDb;

/// One server.
pub(super) struct Client {
    /// None only while it is dropped.
    runtime: Option<Runtime>,
    server: Arc<Server>,
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
        let server = Arc::new(Server::new(config)?);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("couchdb")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { runtime: Some(runtime), server })
    }

    /// The server itself, for those who do not wait.
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Asks, and reads the answer, whatever its status is.
    pub(super) fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        self.answer_within(method, path, body, LONGEST)
    }

    /// The same, with an answer of so many bytes at most.
    pub(super) fn answer_within(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Trouble> {
        let odd = |error: serde_json::Error| Trouble::Odd(error.to_string());
        let body = body.map(serde_json::to_vec).transpose().map_err(odd)?;
        let (server, path) = (self.server.clone(), path.to_owned());
        let (tell, told) = mpsc::sync_channel(1);
        let gone = || Trouble::Silent("the agent is stopping".to_owned());
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        runtime.spawn(async move {
            let body = Bytes::from(body.unwrap_or_default());
            // Whoever asked may be gone.
            let _ = tell.send(server.answer_within(&method, &path, body, most).await);
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
