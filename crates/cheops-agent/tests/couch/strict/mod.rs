//! A strict stand-in for CouchDB 3.5: a proxy in front of `pouchdb-server` that answers as CouchDB does where the two
//! differ, one rule for each behaviour that a test would miss otherwise.
//!
//! - **Queries.** `;` separates parameters, as `&` does. A key that holds one and is not encoded is cut there, is no
//!   JSON any more, and gets 400.
//! - **Purging.** `_purge` removes revisions without a trace. A copy of a purged revision that comes later is stored:
//!   CouchDB does not remember what was purged. It takes 100 documents at once.
//! - **TLS on a plain port** gets no response: CouchDB waits for a request line that never ends.
//! - `accounts`: who may do what, and lockout.
//! - `nodes`: quorums and tombstones.
//!
//! What real servers do and it does not: jobs with a selector copy everything, and `_scheduler` lists no job. An ordinary edit of a purged document is not modelled: nothing here makes one.

pub(crate) mod accounts;
mod http;
mod nodes;

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, Weak},
    thread,
};

use serde_json::{Value, json};

use self::{
    accounts::{Accounts, Role, needs_admin, not_admin},
    http::{Backend, Request, Response, decoded},
    nodes::Nodes,
};
use super::Pouch;

/// What a TLS handshake begins with.
const CLIENT_HELLO: u8 = 22;
/// Where the server has its jobs, and what it calls the selector of one there: `pouchdb-server` can't use it.
const JOBS: &str = "_replicator";
const SELECTOR: &str = "selector_that_is_not_used";
/// How many documents may be purged at once.
const PURGED_AT_ONCE: usize = 100;

/// The stand-in, for as long as this is there.
pub(crate) struct Strict {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _server: Arc<Pouch>,
}

struct Shared {
    backend: Backend,
    nodes: Nodes,
    accounts: Mutex<Accounts>,
    /// Databases, ids and revisions.
    purged: Mutex<BTreeSet<(String, String, String)>>,
}

impl Strict {
    /// The one that all tests of this process share, for as long as one of them uses it.
    pub(crate) fn get() -> Arc<Self> {
        static RUNNING: Mutex<Weak<Strict>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap();
        if let Some(server) = running.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start(1));
        *running = Arc::downgrade(&server);
        server
    }

    /// One with so many nodes, for a test alone.
    pub(crate) fn start(nodes: usize) -> Self {
        let server = Pouch::get();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let backend = Backend(server.address);
        let shared = Arc::new(Shared {
            backend,
            nodes: Nodes::new(backend, nodes),
            accounts: Mutex::default(),
            purged: Mutex::default(),
        });
        let serving = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = serving.clone();
                thread::spawn(move || shared.serve(client));
            }
        });
        Self { address, shared, _server: server }
    }

    /// Stops a node of the cluster.
    pub(crate) fn stop_node(&self, node: usize) {
        self.shared.nodes.stop(node);
    }

    /// Lets a node store nothing of a database until it is started again.
    pub(crate) fn fail_database(&self, node: usize, database: &str) {
        self.shared.nodes.fail(node, database);
    }

    /// Lets a node store what is written to a database from now on. It does not get what it lacks.
    pub(crate) fn mend_database(&self, node: usize, database: &str) {
        self.shared.nodes.mend(node, database);
    }

    /// Starts a node again.
    pub(crate) fn start_node(&self, node: usize) {
        self.shared.nodes.start(node).unwrap();
    }

    /// Locks a user out, as five failed logins do.
    pub(crate) fn lock(&self, user: &str) {
        self.shared.accounts.lock().unwrap().lock(user);
    }

    /// Lets all users in again, as time does.
    pub(crate) fn unlock(&self) {
        self.shared.accounts.lock().unwrap().unlock();
    }
}

impl Shared {
    fn serve(&self, client: TcpStream) -> Option<()> {
        let mut to = client.try_clone().ok()?;
        let mut from = BufReader::new(client);
        if *from.fill_buf().ok()?.first()? == CLIENT_HELLO {
            // Whoever sent it closes the connection in the end.
            io::copy(&mut from, &mut io::sink()).ok()?;
            return None;
        }
        while let Some(request) = Request::read(&mut from).ok()? {
            let role = self.accounts.lock().unwrap().role(&request);
            if role.is_ok() && request.parameter("feed").as_deref() == Some("continuous") {
                return self.feed(&request, &mut to).ok();
            }
            let answered = |role| {
                let answered = self.answer(&request, role);
                answered.unwrap_or_else(|error| failure(&error))
            };
            let response = role.map_or_else(|refusal| refusal, answered);
            response.write(&mut to, request.method != "HEAD").ok()?;
        }
        None
    }

    fn answer(&self, request: &Request, role: Role) -> io::Result<Response> {
        if let Some(reason) = bad_query(&request.query) {
            return Ok(Response::refusal(400, "bad_request", &reason));
        }
        let decoded_parts: Vec<String> =
            request.path.trim_matches('/').split('/').map(decoded).collect();
        let parts: Vec<&str> = decoded_parts.iter().map(String::as_str).collect();
        if role != Role::ServerAdmin && needs_admin(&request.method, &parts) {
            return Ok(not_admin());
        }
        match (request.method.as_str(), &parts[..]) {
            (_, [""]) => {
                let welcome = json!({"couchdb": "Welcome", "version": "3.5.0"});
                Ok(Response::json(200, &welcome))
            }
            (_, ["_scheduler", ..]) => {
                Ok(Response::json(200, &json!({"total_rows": 0, "offset": 0, "docs": []})))
            }
            (_, ["_replicate" | "_session" | "_up"]) => self.backend.ask(request),
            ("GET", [database]) => self.about(request, database),
            ("HEAD", [database]) => self.nodes.one(request, database),
            (_, [database]) => self.nodes.all(request, database),
            (_, [database, "_purge"]) => Ok(self.purge(database, &request.json())),
            (_, [database, "_bulk_docs"]) => self.bulk(database, &request.json()),
            ("POST", [database, "_all_docs"]) => {
                Ok(self.without_purged(database, self.nodes.keys(request, database)?))
            }
            ("GET", [JOBS, "_all_docs"]) => {
                let mut found = self.backend.ask(request)?;
                let text = String::from_utf8_lossy(&found.body);
                found.body = text.replace(SELECTOR, "selector").into_bytes();
                Ok(found)
            }
            (_, [database, "_all_docs" | "_changes" | "_bulk_get"]) => {
                Ok(self.without_purged(database, self.nodes.one(request, database)?))
            }
            (_, [database, "_revs_diff"]) => self.missing(request, database),
            (_, [database, "_security" | "_compact" | "_local" | "_design", ..]) => {
                if matches!(request.method.as_str(), "GET" | "HEAD") {
                    self.nodes.one(request, database)
                } else {
                    self.nodes.all(request, database)
                }
            }
            ("GET" | "HEAD", [database, id]) => {
                let found = self.nodes.document(request, database)?;
                let revision = found.value()["_rev"].as_str().unwrap_or_default().to_owned();
                Ok(if self.is_purged(database, id, &revision) {
                    Response::refusal(404, "not_found", "missing")
                } else {
                    found
                })
            }
            ("PUT", [database, id]) => {
                let mut document = request.json();
                document["_id"] = (*id).into();
                if let Some(fields) = document.as_object_mut().filter(|_| *database == JOBS)
                    && let Some(selector) = fields.remove("selector")
                {
                    fields.insert(SELECTOR.to_owned(), selector);
                }
                if let Some(revision) = request.parameter("rev") {
                    document["_rev"] = revision.into();
                }
                Ok(alone(&self.nodes.edit(database, &[document])?, 201))
            }
            ("DELETE", [database, id]) => {
                let revision = request.parameter("rev");
                let gone = json!({"_id": id, "_rev": revision, "_deleted": true});
                Ok(alone(&self.nodes.edit(database, &[gone])?, 200))
            }
            ("GET" | "HEAD", [database, ..]) => self.nodes.one(request, database),
            (_, [database, ..]) => self.nodes.all(request, database),
            (_, []) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// What a database says of itself, with how many nodes have each document.
    fn about(&self, request: &Request, database: &str) -> io::Result<Response> {
        let mut response = self.nodes.one(request, database)?;
        if response.status == 200 && !database.starts_with('_') {
            let (mut about, quorum) = (response.value(), self.nodes.quorum());
            about["cluster"] = json!({"q": 2, "n": self.nodes.count(), "w": quorum, "r": quorum});
            response.body = about.to_string().into_bytes();
        }
        Ok(response)
    }

    fn bulk(&self, database: &str, body: &Value) -> io::Result<Response> {
        let documents = body["docs"].as_array().cloned().unwrap_or_default();
        if body["new_edits"] != false {
            return self.nodes.edit(database, &documents);
        }
        let mut purged = self.purged.lock().unwrap();
        for document in &documents {
            purged.remove(&key(database, &document["_id"], &document["_rev"]));
        }
        drop(purged);
        self.nodes.copy(database, body)
    }

    fn purge(&self, database: &str, asked: &Value) -> Response {
        let asked = asked.as_object().cloned().unwrap_or_default();
        if asked.len() > PURGED_AT_ONCE {
            return Response::refusal(400, "bad_request", "Exceeded maximum number of documents.");
        }
        let mut purged = self.purged.lock().unwrap();
        for (id, revisions) in &asked {
            for revision in revisions.as_array().into_iter().flatten() {
                purged.insert(key(database, &id.as_str().into(), revision));
            }
        }
        Response::json(201, &json!({"purge_seq": null, "purged": asked}))
    }

    fn is_purged(&self, database: &str, id: &str, revision: &str) -> bool {
        let key = (database.to_owned(), id.to_owned(), revision.to_owned());
        self.purged.lock().unwrap().contains(&key)
    }

    /// Whether a row or a change names a purged document.
    fn names_purged(&self, database: &str, row: &Value) -> bool {
        let id = row["id"].as_str().unwrap_or_default();
        let revisions =
            [&row["value"]["rev"], &row["changes"][0]["rev"], &row["docs"][0]["ok"]["_rev"]];
        let mut revisions = revisions.into_iter().filter_map(Value::as_str);
        revisions.any(|revision| self.is_purged(database, id, revision))
    }

    fn without_purged(&self, database: &str, response: Response) -> Response {
        if self.purged.lock().unwrap().is_empty() {
            return response;
        }
        let mut value = response.value();
        for list in ["rows", "results"] {
            for row in value[list].as_array_mut().into_iter().flatten() {
                if !self.names_purged(database, row) {
                    continue;
                }
                let id = row["id"].clone();
                *row = if row["docs"].is_array() {
                    json!({"id": id, "docs": [{"error": {"id": id, "error": "not_found"}}]})
                } else if row["key"].is_string() && row["changes"].is_null() {
                    json!({"key": id, "error": "not_found"})
                } else {
                    Value::Null
                };
            }
            if let Some(rows) = value[list].as_array_mut() {
                rows.retain(|row| !row.is_null());
            } else if let Some(fields) = value.as_object_mut() {
                fields.remove(list);
            }
        }
        Response { body: value.to_string().into_bytes(), ..response }
    }

    /// Which revisions are not there: those that were purged among them.
    fn missing(&self, request: &Request, database: &str) -> io::Result<Response> {
        let mut response = self.nodes.one(request, database)?;
        let (asked, mut missing) = (request.json(), response.value());
        for (id, revisions) in asked.as_object().into_iter().flatten() {
            for revision in revisions.as_array().into_iter().flatten() {
                if self.is_purged(database, id, revision.as_str().unwrap_or_default()) {
                    missing[id] = json!({"missing": [revision]});
                }
            }
        }
        response.body = missing.to_string().into_bytes();
        Ok(response)
    }

    /// Passes a feed on, line by line.
    fn feed(&self, request: &Request, to: &mut TcpStream) -> io::Result<()> {
        let database =
            decoded(request.path.trim_matches('/').split('/').next().unwrap_or_default());
        let (status, _, from) = self.backend.open(&self.nodes.for_one(request, &database)?)?;
        let head = format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
        );
        to.write_all(head.as_bytes())?;
        for line in from.lines() {
            let line = line?;
            let change: Value = serde_json::from_str(&line).unwrap_or_default();
            if !self.names_purged(&database, &change) {
                to.write_all(format!("{line}\n").as_bytes())?;
            }
        }
        Ok(())
    }
}

fn failure(error: &io::Error) -> Response {
    Response::refusal(500, "internal_server_error", &error.to_string())
}

fn key(database: &str, id: &Value, revision: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (database.to_owned(), text(id), text(revision))
}

/// The response to an edit of one document, of that to many.
fn alone(many: &Response, success: u16) -> Response {
    let reply = many.value()[0].take();
    let status = match reply["error"].as_str() {
        None if many.status == 202 => 202,
        None => success,
        Some("conflict") => 409,
        Some("unauthorized") => 401,
        Some("forbidden") => 403,
        Some(_) => 500,
    };
    Response::json(status, &reply)
}

/// Why a query makes no sense, if a key in it is no JSON once the query is cut at its separators.
fn bad_query(query: &str) -> Option<String> {
    let keys = ["key", "keys", "startkey", "endkey", "start_key", "end_key"];
    let mut pairs = query.split(['&', ';']).filter_map(|pair| pair.split_once('='));
    let broken = pairs.find(|(name, value)| {
        keys.contains(name) && serde_json::from_str::<Value>(&decoded(value)).is_err()
    });
    broken.map(|(name, value)| format!("invalid UTF-8 JSON: {name}={value}"))
}
