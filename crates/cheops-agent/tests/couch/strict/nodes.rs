//! The nodes of a cluster, each with a copy of every database, and how their responses become one.
//!
//! A server alone is a cluster of one node. Each node has a database of its own at `pouchdb-server`, so that a node
//! that is stopped really lacks what is written meanwhile, and what only a lost node has is really gone.
//!
//! - **Ordinary edits** go to all nodes that are up. If fewer than a quorum stored one, the status is 202. The same
//!   edit once more is a conflict at the nodes that have it, and the status is 201: an error counts as a response.
//! - **Copies** (`new_edits: false`) get 201 and an empty list even if one node stored them: such a write has no
//!   response for each document, and CouchDB takes the absence of errors for agreement.
//! - **Reads of one document** (`GET`, or `_all_docs` with keys) ask all nodes that are up, and copy what some of them
//!   lack to the others. If fewer than `r` nodes are up, CouchDB answers 200 with what it has all the same: no read
//!   proves that a quorum has something.
//! - **Ranges and changes** come from one node.
//! - A node that comes back exchanges documents with the others before it answers.
//! - **Tombstones.** The revision of a deleted document can't be followed by an ordinary edit (409). Without `_rev`, the
//!   document is made again.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Mutex, MutexGuard},
};

use serde_json::{Value, json};

use super::http::{Backend, Request, Response};

pub(super) struct Nodes {
    backend: Backend,
    /// Which of them are up.
    up: Mutex<Vec<bool>>,
    /// Nodes that do not store what is written to a database.
    failing: Mutex<BTreeSet<(usize, String)>>,
    /// The databases that exist.
    databases: Mutex<Vec<String>>,
}

/// What became of one edit at all nodes.
enum Outcome {
    /// A quorum stored it.
    Stored(Value),
    /// Some node stored it, and too few did.
    Accepted(Value),
    Failed(Value),
}

impl Nodes {
    pub(super) fn new(backend: Backend, count: usize) -> Self {
        let up = Mutex::new(vec![true; count]);
        Self { backend, up, failing: Mutex::default(), databases: Mutex::default() }
    }

    fn up(&self) -> MutexGuard<'_, Vec<bool>> {
        self.up.lock().unwrap()
    }

    pub(super) fn count(&self) -> usize {
        self.up().len()
    }

    /// How many nodes have to store something.
    pub(super) fn quorum(&self) -> usize {
        self.count() / 2 + 1
    }

    pub(super) fn stop(&self, node: usize) {
        self.up()[node] = false;
    }

    /// Lets a node store nothing of a database from now on, as one whose file can't be opened.
    pub(super) fn fail(&self, node: usize, database: &str) {
        self.failing.lock().unwrap().insert((node, database.to_owned()));
    }

    /// Lets a node store what is written to a database from now on. The exchange with the other nodes is still to come.
    pub(super) fn mend(&self, node: usize, database: &str) {
        self.failing.lock().unwrap().remove(&(node, database.to_owned()));
    }

    /// Starts a node again, which exchanges documents with those that are up.
    pub(super) fn start(&self, node: usize) -> io::Result<()> {
        self.failing.lock().unwrap().retain(|(failing, _)| *failing != node);
        let others: Vec<usize> = (0..self.count()).filter(|n| self.up()[*n]).collect();
        let databases = self.databases.lock().unwrap().clone();
        for database in &databases {
            for other in &others {
                for (from, to) in [(*other, node), (node, *other)] {
                    let place = |n| format!("http://{}/{}", self.backend.0, name(database, n));
                    let job = json!({"source": place(from), "target": place(to)});
                    self.backend.post("/_replicate", &job)?;
                }
            }
        }
        self.up()[node] = true;
        Ok(())
    }

    /// What the nodes that are up call a database.
    fn places(&self, database: &str) -> Vec<String> {
        // The server's own databases are those of `pouchdb-server` itself.
        if database.starts_with('_') {
            return vec![database.to_owned()];
        }
        let (up, failing) = (self.up(), self.failing.lock().unwrap());
        let works = |n: &usize| up[*n] && !failing.contains(&(*n, database.to_owned()));
        (0..up.len()).filter(works).map(|n| name(database, n)).collect()
    }

    /// The same request at a database of another name.
    fn aimed(request: &Request, database: &str, place: &str) -> Request {
        let rest = request.path.strip_prefix(&format!("/{database}")).unwrap_or_default();
        Request { path: format!("/{place}{rest}"), ..request.clone() }
    }

    /// Asks one node that is up.
    pub(super) fn one(&self, request: &Request, database: &str) -> io::Result<Response> {
        let place = self.places(database).into_iter().next().ok_or(io::ErrorKind::NotConnected)?;
        self.backend.ask(&Self::aimed(request, database, &place))
    }

    /// The request for one node that is up.
    pub(super) fn for_one(&self, request: &Request, database: &str) -> io::Result<Request> {
        let place = self.places(database).into_iter().next().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Self::aimed(request, database, &place))
    }

    /// Asks all nodes that are up for the same, which is a change: the status says whether a quorum has done it.
    pub(super) fn all(&self, request: &Request, database: &str) -> io::Result<Response> {
        let ask = |place: String| self.backend.ask(&Self::aimed(request, database, &place));
        let places = self.places(database);
        let quorum = if places.len() == 1 && database.starts_with('_') { 1 } else { self.quorum() };
        let responses: Vec<Response> = places.into_iter().map(ask).collect::<io::Result<_>>()?;
        let done = responses.iter().filter(|response| response.is_success()).count();
        let best = responses.iter().find(|response| response.is_success());
        let mut best = best.or(responses.first()).cloned().ok_or(io::ErrorKind::NotConnected)?;
        if best.is_success() && done < quorum {
            best.status = 202;
        }
        let is_database = request.path.trim_matches('/') == database;
        if is_database && request.method == "PUT" && best.is_success() {
            self.databases.lock().unwrap().push(database.to_owned());
        }
        Ok(best)
    }

    /// Edits documents, and answers as `_bulk_docs` does.
    pub(super) fn edit(&self, database: &str, documents: &[Value]) -> io::Result<Response> {
        let places = self.places(database);
        let replies: Vec<Vec<Value>> =
            places.iter().map(|place| self.edit_at(place, documents)).collect::<io::Result<_>>()?;
        let quorum = if database.starts_with('_') { 1 } else { self.quorum() };
        let (mut status, mut body) = (201, Vec::new());
        for n in 0..documents.len() {
            let of_document: Vec<&Value> = replies.iter().map(|replies| &replies[n]).collect();
            body.push(match outcome(&of_document, quorum) {
                Outcome::Stored(reply) | Outcome::Failed(reply) => reply,
                Outcome::Accepted(mut reply) => {
                    status = 202;
                    reply["accepted"] = true.into();
                    reply
                }
            });
        }
        Ok(Response::json(status, &body.into()))
    }

    /// What one node answers to edits.
    fn edit_at(&self, place: &str, documents: &[Value]) -> io::Result<Vec<Value>> {
        let follow: Vec<&str> = documents
            .iter()
            .filter(|document| document["_rev"].is_string())
            .filter_map(|document| document["_id"].as_str())
            .collect();
        let mut tombstones = BTreeMap::new();
        if !follow.is_empty() {
            let keys = json!({"keys": follow});
            let found = self.backend.post(&format!("/{place}/_all_docs"), &keys)?;
            for row in found["rows"].as_array().into_iter().flatten() {
                if row["value"]["deleted"] == true {
                    tombstones.insert(row["id"].to_string(), row["value"]["rev"].clone());
                }
            }
        }
        let buried = |document: &Value| {
            tombstones.get(&document["_id"].to_string()) == Some(&document["_rev"])
        };
        let sent: Vec<&Value> = documents.iter().filter(|document| !buried(document)).collect();
        let mut replies = Vec::new();
        if !sent.is_empty() {
            let path = format!("/{place}/_bulk_docs");
            let answered = self.backend.post(&path, &json!({"docs": sent}))?;
            replies = answered.as_array().cloned().ok_or(io::ErrorKind::InvalidData)?;
        }
        let mut replies = replies.into_iter();
        let reply = |document: &Value| {
            if buried(document) {
                let id = &document["_id"];
                return json!({"id": id, "error": "conflict", "reason": "Document update conflict."});
            }
            let mut reply = replies.next().unwrap_or_default();
            if reply["error"].is_string() || reply["error"] == true {
                let error =
                    if reply["status"] == 409 { "conflict".into() } else { reply["error"].take() };
                reply = json!({"id": document["_id"], "error": error, "reason": reply["reason"]});
            }
            reply
        };
        Ok(documents.iter().map(reply).collect())
    }

    /// Writes copies of documents with their revisions, and answers as `_bulk_docs` does.
    pub(super) fn copy(&self, database: &str, body: &Value) -> io::Result<Response> {
        let mut errors = Vec::new();
        for place in self.places(database) {
            errors.push(self.backend.post(&format!("/{place}/_bulk_docs"), body)?);
        }
        let first = errors.first().cloned().ok_or(io::ErrorKind::NotConnected)?;
        let agreed = errors.iter().all(|other| *other == first);
        Ok(Response::json(201, &if agreed { first } else { json!([]) }))
    }

    /// Reads one document from all nodes that are up, and brings it to those that lack it.
    pub(super) fn document(&self, request: &Request, database: &str) -> io::Result<Response> {
        let places = self.places(database);
        let ask = |place: &String| self.backend.ask(&Self::aimed(request, database, place));
        let found: Vec<Response> = places.iter().map(ask).collect::<io::Result<_>>()?;
        let best = (0..found.len()).max_by_key(|n| rank(&found[*n]));
        let best = best.ok_or(io::ErrorKind::NotConnected)?;
        let differs = |n: &usize| rank(&found[*n]) < rank(&found[best]);
        let behind: Vec<usize> = (0..found.len()).filter(differs).collect();
        if found[best].status == 200 && !behind.is_empty() {
            let whole =
                Request { query: "revs=true&attachments=true".to_owned(), ..request.clone() };
            let whole = self.backend.ask(&Self::aimed(&whole, database, &places[best]))?;
            let copies = json!({"new_edits": false, "docs": [whole.value()]});
            for n in behind {
                self.backend.post(&format!("/{}/_bulk_docs", places[n]), &copies)?;
            }
        }
        Ok(found[best].clone())
    }

    /// Reads documents by their ids, each as one alone.
    pub(super) fn keys(&self, request: &Request, database: &str) -> io::Result<Response> {
        let ask = |place: &String| self.backend.ask(&Self::aimed(request, database, place));
        let places = self.places(database);
        let found: Vec<Response> = places.iter().map(ask).collect::<io::Result<_>>()?;
        let mut best = found.first().cloned().ok_or(io::ErrorKind::NotConnected)?;
        if found.len() == 1 || best.status != 200 {
            return Ok(best);
        }
        let mut value = best.value();
        for other in &found[1..] {
            let mut other = other.value();
            let rows = value["rows"].as_array_mut().into_iter().flatten();
            for (row, other) in rows.zip(other["rows"].as_array_mut().into_iter().flatten()) {
                if generation(&other["value"]["rev"]) > generation(&row["value"]["rev"]) {
                    *row = other.take();
                }
            }
        }
        best.body = value.to_string().into_bytes();
        Ok(best)
    }
}

/// What a node calls a database.
fn name(database: &str, node: usize) -> String {
    if node == 0 { database.to_owned() } else { format!("{database}-node{node}") }
}

/// What the replies of the nodes to one edit come to.
fn outcome(replies: &[&Value], quorum: usize) -> Outcome {
    let stored: Vec<&&Value> = replies.iter().filter(|reply| reply["error"].is_null()).collect();
    match stored.first() {
        Some(reply) if stored.len() >= quorum => Outcome::Stored((**reply).clone()),
        Some(reply) => Outcome::Accepted((**reply).clone()),
        None => Outcome::Failed(replies.first().map_or(Value::Null, |reply| (*reply).clone())),
    }
}

/// How good a node's answer about a document is: one that has it, in its latest revision.
fn rank(response: &Response) -> (bool, u64) {
    (response.status == 200, generation(&response.value()["_rev"]))
}

/// The number that a revision begins with; 0 if there is none.
fn generation(revision: &Value) -> u64 {
    let number = revision.as_str().and_then(|revision| revision.split('-').next()?.parse().ok());
    number.unwrap_or(0)
}
