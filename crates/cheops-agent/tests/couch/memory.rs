//! A server in memory that answers as a `CouchDB` of one node does, for what a real one or `pouchdb-server` is too slow:
//! a long history, or a purge that takes its time. It implements what the engine asks for, and nothing else: no
//! continuous feed, no attachments, no replication.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// The server. Its threads end with the process.
pub(crate) struct Memory {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

/// What a server held at some time.
pub(crate) struct Backup(BTreeMap<String, Database>);

#[derive(Default)]
struct State {
    databases: Mutex<BTreeMap<String, Database>>,
    /// How long each purge takes.
    purge: Mutex<Duration>,
    /// How many requests of each sort were answered, by the last part of their paths.
    counts: Mutex<BTreeMap<String, usize>>,
    /// How long the longest answer was since this was last asked, in bytes.
    longest: AtomicUsize,
    /// How many answers were not read to their end.
    cut_off: AtomicUsize,
}

#[derive(Clone, Default)]
struct Database {
    documents: BTreeMap<String, Stored>,
    /// The id of the document that was changed last, by the number of the change.
    changes: BTreeMap<u64, String>,
    seq: u64,
    local: BTreeMap<String, Value>,
}

#[derive(Clone)]
struct Stored {
    revision: String,
    seq: u64,
    /// The document as JSON; none if it was removed.
    text: Option<String>,
}

/// The status of an answer, and its body.
type Answer = (u16, String);

impl Memory {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(State::default()));
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let state = shared.clone();
                thread::spawn(move || serve(&client, &state));
            }
        });
        Self { address, state }
    }

    /// Makes each purge from now on take so long.
    pub(crate) fn slow_purges(&self, each: Duration) {
        *lock(&self.state.purge) = each;
    }

    /// A copy of all that it holds.
    pub(crate) fn back_up(&self) -> Backup {
        Backup(lock(&self.state.databases).clone())
    }

    /// Puts back what it held.
    pub(crate) fn put_back(&self, backup: Backup) {
        *lock(&self.state.databases) = backup.0;
    }

    /// Has all databases be others with the same documents, as if replication had filled them anew.
    pub(crate) fn replicate_anew(&self) {
        for database in lock(&self.state.databases).values_mut() {
            let documents = std::mem::take(&mut database.documents);
            *database = Database::default();
            for (id, stored) in documents.into_iter().filter(|(_, it)| it.text.is_some()) {
                database.seq += 1;
                database.changes.insert(database.seq, id.clone());
                database.documents.insert(id, Stored { seq: database.seq, ..stored });
            }
        }
    }

    /// Has an agent have followed all changes of a site's database, as one that is at work has.
    pub(crate) fn follow(&self, records: &str, local: &str) {
        let mut databases = lock(&self.state.databases);
        let since = position(databases[records].seq);
        let database = databases.get_mut(local).unwrap();
        let there = database.local.get("_local/checkpoint").map(|it| it["_rev"].clone());
        let checkpoint = json!({"Since": since, "_rev": there.unwrap_or_default()});
        assert_eq!(database.put("_local/checkpoint", checkpoint).0, 201);
    }

    /// Removes the documents of a database whose ids begin like this, as somebody with the rights to do so can.
    pub(crate) fn remove(&self, database: &str, prefix: &str) -> usize {
        let mut databases = lock(&self.state.databases);
        let database = databases.get_mut(database).unwrap();
        let ids = database
            .documents
            .iter()
            .filter(|(id, it)| id.starts_with(prefix) && it.text.is_some());
        let found: Vec<_> = ids.map(|(id, stored)| (id.clone(), stored.revision.clone())).collect();
        for (id, revision) in &found {
            assert_eq!(database.put(id, json!({"_rev": revision, "_deleted": true})).0, 201);
        }
        found.len()
    }

    /// Drops the documents of a database whose ids begin like this, without a trace.
    pub(crate) fn drop_documents(&self, database: &str, prefix: &str) {
        let mut databases = lock(&self.state.databases);
        let database = databases.get_mut(database).unwrap();
        database.documents.retain(|id, _| !id.starts_with(prefix));
        let documents = &database.documents;
        database.changes.retain(|_, id| documents.contains_key(id));
    }

    /// A document of a database.
    pub(crate) fn document(&self, database: &str, prefix: &str) -> Value {
        serde_json::from_str(&self.text(database, prefix)).unwrap()
    }

    /// Stores a document with a revision of its own in place of the one there.
    pub(crate) fn replace(&self, database: &str, mut document: Value, revision: &str) {
        let id = document["_id"].as_str().unwrap().to_owned();
        document["_rev"] = revision.into();
        let mut databases = lock(&self.state.databases);
        databases.get_mut(database).unwrap().store(id, revision.to_owned(), &document);
    }

    /// Stores a document as replication from another server does.
    pub(crate) fn bring(&self, database: &str, id: &str) {
        let (mut databases, revision) = (lock(&self.state.databases), format!("1-{:032x}", 7));
        let document = json!({"_id": id, "_rev": revision, "Record": "AAAA"});
        databases.get_mut(database).unwrap().store(id.to_owned(), revision, &document);
    }

    /// How long the longest answer was since this was last asked, in bytes.
    pub(crate) fn longest_answer(&self) -> usize {
        self.state.longest.swap(0, Ordering::Relaxed)
    }

    /// How many answers were not read to their end.
    pub(crate) fn cut_off(&self) -> usize {
        self.state.cut_off.load(Ordering::Relaxed)
    }

    /// How many requests of a sort were answered.
    pub(crate) fn count(&self, sort: &str) -> usize {
        lock(&self.state.counts).get(sort).copied().unwrap_or(0)
    }

    /// The documents of a database whose ids begin like this, one after the other.
    pub(crate) fn text(&self, database: &str, prefix: &str) -> String {
        let databases = lock(&self.state.databases);
        let documents = databases.get(database).into_iter().flat_map(|it| it.documents.iter());
        let texts = documents.filter(|(id, _)| id.starts_with(prefix));
        texts.filter_map(|(_, stored)| stored.text.as_deref()).collect()
    }

    /// How many documents there are in a database whose ids begin like this.
    pub(crate) fn documents(&self, database: &str, prefix: &str) -> usize {
        let databases = lock(&self.state.databases);
        let Some(database) = databases.get(database) else { return 0 };
        let documents = database.documents.iter();
        documents.filter(|(id, stored)| id.starts_with(prefix) && stored.text.is_some()).count()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers the requests of one connection.
fn serve(client: &TcpStream, state: &State) {
    let _ = client.set_nodelay(true);
    let mut reader = BufReader::with_capacity(64 << 10, client);
    while let Some((method, target, body)) = request(&mut reader) {
        let (status, body) = answer(state, &method, &target, &body);
        state.longest.fetch_max(body.len(), Ordering::Relaxed);
        let head = format!(
            "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut client = client;
        if client
            .write_all(head.as_bytes())
            .and_then(|()| client.write_all(body.as_bytes()))
            .is_err()
        {
            state.cut_off.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

fn request(reader: &mut BufReader<&TcpStream>) -> Option<(String, String, Vec<u8>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ').map(ToOwned::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((method, target, body))
}

/// A text with what is percent-encoded in it as it is.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = byte.filter(|_| *first == b'%') {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn failure(status: u16, error: &str) -> Answer {
    (status, json!({"error": error, "reason": error}).to_string())
}

fn answer(state: &State, method: &str, target: &str, body: &[u8]) -> Answer {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query: BTreeMap<String, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), decoded(value)))
        .collect();
    let path = decoded(path.trim_matches('/'));
    if path.is_empty() {
        return (200, json!({"couchdb": "Welcome", "version": "3.5.0"}).to_string());
    }
    let (name, rest) = path.split_once('/').unwrap_or((&path, ""));
    *lock(&state.counts).entry(rest.to_owned()).or_default() += 1;
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    if rest == "_purge" {
        let pause = *lock(&state.purge);
        thread::sleep(pause);
    }
    let mut databases = lock(&state.databases);
    if (method, rest) == ("PUT", "") {
        databases.entry(name.to_owned()).or_default();
        return (201, "{}".to_owned());
    }
    let Some(database) = databases.get_mut(name) else { return failure(404, "not_found") };
    match (method, rest) {
        ("GET", "") => {
            let count = database.documents.values().filter(|stored| stored.text.is_some()).count();
            let info = json!({"update_seq": position(database.seq), "doc_count": count});
            (200, info.to_string())
        }
        (_, "_all_docs") => database.all_docs(&query, &body),
        ("GET", "_changes") => database.changed(&query),
        ("POST", "_bulk_docs") => database.bulk(body),
        ("POST", "_purge") => {
            for id in body.as_object().into_iter().flat_map(|purged| purged.keys()) {
                if let Some(stored) = database.documents.remove(id) {
                    database.changes.remove(&stored.seq);
                }
            }
            (201, json!({"purge_seq": null, "purged": {}}).to_string())
        }
        ("GET", id) => database.get(id),
        ("PUT", id) => database.put(id, body),
        ("DELETE", id) => {
            let revision = query.get("rev").cloned().unwrap_or_default();
            database.put(id, json!({"_rev": revision, "_deleted": true}))
        }
        _ => failure(405, "method_not_allowed"),
    }
}

fn position(seq: u64) -> String {
    format!("{seq}-memory")
}

impl Database {
    fn get(&self, id: &str) -> Answer {
        if id.starts_with("_local/") {
            return self
                .local
                .get(id)
                .map_or_else(|| failure(404, "not_found"), |it| (200, it.to_string()));
        }
        match self.documents.get(id).and_then(|stored| stored.text.clone()) {
            Some(text) => (200, text),
            None => failure(404, "not_found"),
        }
    }

    fn put(&mut self, id: &str, mut document: Value) -> Answer {
        if id.starts_with("_local/") {
            let revision = self.local.get(id).map(|it| it["_rev"].clone()).unwrap_or_default();
            if revision != document["_rev"] {
                return failure(409, "conflict");
            }
            let last = revision.as_str().and_then(|text| text[2..].parse().ok()).unwrap_or(0_u64);
            let next = format!("0-{}", last + 1);
            document["_rev"] = next.clone().into();
            self.local.insert(id.to_owned(), document);
            return (201, json!({"ok": true, "id": id, "rev": next}).to_string());
        }
        document["_id"] = id.into();
        match self.edit(document) {
            Some(revision) => (201, json!({"ok": true, "id": id, "rev": revision}).to_string()),
            None => failure(409, "conflict"),
        }
    }

    /// Writes a document on top of the revision that it names; nothing if that is not the last.
    fn edit(&mut self, mut document: Value) -> Option<String> {
        let id = document["_id"].as_str()?.to_owned();
        let there = self.documents.get(&id);
        let last = there.filter(|stored| stored.text.is_some()).map(|it| it.revision.clone());
        if last.as_deref() != document["_rev"].as_str() {
            return None;
        }
        let before = there.and_then(|stored| stored.revision.split('-').next()?.parse().ok());
        let revision = format!("{}-{:032x}", before.unwrap_or(0_u64) + 1, fastrand::u128(..));
        document["_rev"] = revision.clone().into();
        self.store(id, revision.clone(), &document);
        Some(revision)
    }

    fn store(&mut self, id: String, revision: String, document: &Value) {
        self.seq += 1;
        let text = (document["_deleted"] != true).then(|| document.to_string());
        let stored = Stored { revision, seq: self.seq, text };
        if let Some(old) = self.documents.insert(id.clone(), stored) {
            self.changes.remove(&old.seq);
        }
        self.changes.insert(self.seq, id);
    }

    fn bulk(&mut self, mut body: Value) -> Answer {
        let Value::Array(documents) = body["docs"].take() else {
            return failure(400, "bad_request");
        };
        if body["new_edits"] == false {
            for document in documents {
                let text = |field: &str| document[field].as_str().unwrap().to_owned();
                let (id, revision) = (text("_id"), text("_rev"));
                // One that is there stays as it is.
                if self.documents.get(&id).is_none_or(|stored| stored.revision != revision) {
                    self.store(id, revision, &document);
                }
            }
            return (201, "[]".to_owned());
        }
        let written = documents.into_iter().map(|document| {
            let id = document["_id"].as_str().unwrap().to_owned();
            match self.edit(document) {
                Some(revision) => json!({"ok": true, "id": id, "rev": revision}),
                None => {
                    json!({"id": id, "error": "conflict", "reason": "Document update conflict."})
                }
            }
        });
        (201, Value::from(written.collect::<Vec<_>>()).to_string())
    }

    fn all_docs(&self, query: &BTreeMap<String, String>, body: &Value) -> Answer {
        let mut rows = String::from(r#"{"rows":["#);
        let mut row = |id: &str, stored: Option<&Stored>| {
            let comma = if rows.ends_with('[') { "" } else { "," };
            let id = Value::from(id);
            let _ = match stored {
                None => write!(rows, r#"{comma}{{"key":{id},"error":"not_found"}}"#),
                Some(Stored { revision, text, .. }) => {
                    let gone = if text.is_none() { r#","deleted":true"# } else { "" };
                    let text = text.as_deref().unwrap_or("null");
                    write!(
                        rows,
                        r#"{comma}{{"id":{id},"key":{id},"value":{{"rev":"{revision}"{gone}}},"doc":{text}}}"#
                    )
                }
            };
        };
        if let Some(keys) = body["keys"].as_array() {
            for key in keys.iter().filter_map(Value::as_str) {
                row(key, self.documents.get(key));
            }
        } else {
            let key = |name: &str| -> Option<String> {
                query.get(name).and_then(|key| serde_json::from_str(key).ok())
            };
            let most =
                query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
            let descending = query.get("descending").is_some_and(|text| text == "true");
            let (from, upto) = (key("startkey").unwrap(), key("endkey").unwrap());
            let (low, high) = if descending { (upto, from) } else { (from, upto) };
            let all = self.documents.range(low..=high).filter(|(_, it)| it.text.is_some());
            let mut write = |(id, stored): (&String, &Stored)| row(id, Some(stored));
            if descending {
                all.rev().take(most).for_each(&mut write);
            } else {
                all.take(most).for_each(&mut write);
            }
        }
        rows.push_str("]}");
        (200, rows)
    }

    fn changed(&self, query: &BTreeMap<String, String>) -> Answer {
        let number = |name: &str| {
            let text = query.get(name)?.trim_matches('"');
            text.split('-').next().and_then(|text| text.parse::<u64>().ok())
        };
        let (since, most) = (number("since").unwrap_or(0), number("limit").unwrap_or(u64::MAX));
        let with_docs = query.get("include_docs").is_some_and(|text| text == "true");
        let (mut rows, mut last) = (String::from(r#"{"results":["#), since);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        for (seq, id) in self.changes.range(since + 1..).take(most) {
            let Some(Stored { revision, text, .. }) = self.documents.get(id) else { continue };
            let comma = if rows.ends_with('[') { "" } else { "," };
            let (at, key) = (position(*seq), Value::from(id.as_str()));
            let gone = if text.is_none() { r#","deleted":true"# } else { "" };
            let doc = text.as_deref().filter(|_| with_docs);
            let doc = doc.map(|text| format!(r#","doc":{text}"#)).unwrap_or_default();
            let _ = write!(
                rows,
                r#"{comma}{{"seq":"{at}","id":{key},"changes":[{{"rev":"{revision}"}}]{gone}{doc}}}"#
            );
            last = *seq;
        }
        let _ = write!(rows, r#"],"last_seq":"{}"}}"#, position(last));
        (200, rows)
    }
}
