//! What stands in the databases of a site that keeps its records in CouchDB, as anybody there can have edited
//! it: documents of records, pages of the journal, the checkpoint. One document on each line.
//!
//! A server that is honest, and no more, hands them out; the engine starts, reads everything, and writes on.
//! It must not panic, nor make room for as much as a number says.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Arc, LazyLock, Mutex},
    thread,
};

use cheops_agent::{
    config::CouchDb as Config,
    engine::{Engine as _, Opened as _, couchdb::CouchDb},
};
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    operation::{Action, Operation},
    replica::{Durable, Record},
    time::{Millis, Timestamp},
    trust::Seal,
};
use serde_json::{Value, json};

/// Documents by their ids, of the database of records and of the site's own.
type Documents = [BTreeMap<String, Value>; 2];

struct Server {
    port: u16,
    documents: Arc<Mutex<Documents>>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let documents = Arc::<Mutex<Documents>>::default();
    let shared = documents.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let shared = shared.clone();
            thread::spawn(move || serve(&stream, &shared));
        }
    });
    Server { port, documents }
});

pub(crate) fn site_reads(text: &str) {
    let mut documents = Documents::default();
    for line in text.lines() {
        let Ok(document) = serde_json::from_str::<Value>(line) else { continue };
        let Some(id) = document["_id"].as_str().map(ToOwned::to_owned) else { continue };
        documents[usize::from(!id.starts_with("record:"))].insert(id, document);
    }
    begin_with(documents);
    // What it writes is read again.
    for _ in 0..2 {
        let Some(mut engine) = open() else { return };
        let _ = engine.strays();
        let read = engine.written().filter_map(Result::ok).count();
        assert!(read <= text.len() + 1, "{read} of {} bytes", text.len());
        assert!(engine.damage().iter().all(|damage| !damage.to_string().is_empty()));
        let after = engine.reader().after(0, usize::MAX).unwrap_or_default();
        assert!(after.is_sorted_by(|a, b| a.0 < b.0), "{after:?}");
        let last = engine.reader().last();
        if let Ok(written) = engine.append(&[Durable::Clearing("a".parse().unwrap())]) {
            assert_eq!(written, last + 1);
        }
    }
}

/// Where the engine keeps what is not in the databases.
const DATA: &str = env!("CARGO_TARGET_TMPDIR");

/// Has the server hold these documents, and nobody know of others.
fn begin_with(documents: Documents) {
    *SERVER.documents.lock().unwrap() = documents;
    let _ = std::fs::remove_dir_all(Path::new(DATA).join("couchdb"));
}

/// The engine of `site1` on what the server has.
fn open() -> Option<CouchDb> {
    let config = Config {
        url: format!("http://127.0.0.1:{}", SERVER.port).parse().unwrap(),
        user: None,
        password: None,
        database: "cheops".into(),
        ca: None,
        replicate: false,
        relay: None,
        relay_name: None,
        local_journal: None,
    };
    CouchDb::open(&config, "site1".parse().unwrap(), DATA.as_ref()).ok()
}

/// What an engine has written itself: batch after batch, and with some of it gone.
pub(crate) fn seeds() -> Vec<String> {
    let (resource, site) = ("a".parse::<ResourceId>().unwrap(), "site1".parse::<SiteId>().unwrap());
    let record = |number| {
        let operation = Operation {
            id: OpId { site: site.clone(), number },
            resource: resource.clone(),
            kind: "inc".parse().unwrap(),
            author: "operator".parse().unwrap(),
            at: Timestamp::at(Millis(1_800_000_000_000)),
            parents: [].into(),
            action: Action::command("true"),
            reset: false,
            keep_going: false,
            key: None,
            declares: None,
        };
        Durable::Record(Record::Operation(Arc::new(operation)), Seal::new(b"sealed"))
    };
    let clearing = Durable::Clearing(resource.clone());
    let forgotten = Durable::Forgotten {
        resource: resource.clone(),
        version: [(site.clone(), 2)].into(),
        by: OpId { site: site.clone(), number: 2 },
        at: Timestamp::at(Millis(1)),
    };
    let batches =
        [vec![record(1), clearing.clone()], vec![clearing.clone(), record(2)], vec![clearing]];
    let mut seeds: Vec<String> = Vec::new();
    for gone in [None, Some("record:a:site1:1:"), Some("page:00000000000000000003")] {
        begin_with(Documents::default());
        let mut engine = open().unwrap();
        for batch in &batches {
            engine.append(batch).unwrap();
        }
        if let Some(gone) = gone {
            let mut documents = SERVER.documents.lock().unwrap();
            documents.iter_mut().for_each(|some| some.retain(|id, _| !id.starts_with(gone)));
        } else {
            engine.append(std::slice::from_ref(&forgotten)).unwrap();
        }
        let mut engine = open().unwrap();
        assert!(engine.written().all(|read| read.is_ok()));
        engine.append(&[record(3)]).unwrap();
        let documents = SERVER.documents.lock().unwrap();
        let lines = documents.iter().flat_map(BTreeMap::values);
        seeds.push(lines.map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
    // Pages as far away as a number can say.
    for far in [1 << 62, u64::MAX / 2, u64::MAX] {
        let id = format!("page:{far:020}");
        let page =
            json!({"_id": id, "_rev": "1-a", "First": far, "Batch": [far, far], "Entries": [null]});
        seeds.push(format!("{}\n{page}", seeds[0]));
    }
    seeds
}

fn serve(stream: &TcpStream, documents: &Mutex<Documents>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let mut words = first.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let (status, answer) = {
            let mut documents = documents.lock().ok()?;
            answer(method, target, &body, &mut documents)
        };
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n", answer.len());
        (&*stream).write_all(format!("{head}{answer}").as_bytes()).ok()?;
    }
}

/// What an honest server answers.
fn answer(method: &str, target: &str, body: &[u8], documents: &mut Documents) -> (u16, Value) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut parts = path.trim_start_matches('/').splitn(2, '/');
    let (database, rest) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let documents = &mut documents[usize::from(database == "cheops-local")];
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let row =
        |id: &String, doc: &Value| json!({"id": id, "value": {"rev": doc["_rev"]}, "doc": doc});
    match (method, rest) {
        (_, "") if database.is_empty() => (200, json!({"couchdb": "Welcome", "version": "3.3.3"})),
        (_, "") => (200, json!({"update_seq": "5-abc"})),
        ("POST", "_all_docs") => {
            let keys = body["keys"].as_array().cloned().unwrap_or_default();
            let found = keys.iter().filter_map(Value::as_str).map(|key| {
                documents.get(key).map_or(json!({"key": key, "error": "not_found"}), |doc| {
                    row(&key.to_owned(), doc)
                })
            });
            (200, json!({"rows": found.collect::<Vec<_>>()}))
        }
        (_, "_all_docs") => {
            let value = |name: &str| {
                let found = query.split('&').find_map(|pair| pair.strip_prefix(name));
                found.map(decoded).unwrap_or_default()
            };
            let (start, most) = (value("startkey="), value("limit=").parse().unwrap_or(1));
            let start = start.trim_matches('"').to_owned();
            let pages = documents.range("page:".to_owned()..="page:\u{fff0}".to_owned());
            let rows: Vec<Value> = if query.contains("descending=true") {
                let pages = pages.rev().filter(|(id, _)| **id <= start);
                pages.take(most).map(|(id, doc)| row(id, doc)).collect()
            } else {
                let pages = pages.filter(|(id, _)| **id >= start);
                pages.take(most).map(|(id, doc)| row(id, doc)).collect()
            };
            (200, json!({"rows": rows}))
        }
        (_, "_changes") => {
            let all = !query.contains("since=9");
            let rows = documents.iter().filter(|_| all).map(|(id, doc)| row(id, doc));
            (200, json!({"results": rows.collect::<Vec<_>>(), "last_seq": "9-abc"}))
        }
        ("POST", "_bulk_docs") => {
            let docs = body["docs"].as_array().cloned().unwrap_or_default();
            let written = docs.into_iter().map(|doc| write(documents, doc));
            (201, written.collect::<Vec<_>>().into())
        }
        ("POST", _) => (200, json!({})),
        ("PUT", id) => {
            let mut document = body;
            document["_id"] = id.into();
            (201, write(documents, document))
        }
        (_, id) => match documents.get(id) {
            Some(document) => (200, document.clone()),
            None => (404, json!({"error": "not_found", "reason": "missing"})),
        },
    }
}

/// Writes a document, or removes it, if it follows what is there.
fn write(documents: &mut BTreeMap<String, Value>, mut document: Value) -> Value {
    let id = document["_id"].as_str().unwrap_or("").to_owned();
    if documents.get(&id).is_some_and(|there| there["_rev"] != document["_rev"]) {
        return json!({"id": id, "error": "conflict"});
    }
    if document["_rev"].is_null() {
        document["_rev"] = "1-a".into();
    }
    let revision = document["_rev"].clone();
    if document["_deleted"] == true {
        documents.remove(&id);
    } else {
        documents.insert(id.clone(), document);
    }
    json!({"ok": true, "id": id, "rev": revision})
}

/// A value of a query as it is meant.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        let hex =
            |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|d| u8::try_from(d).ok());
        bytes.push(match byte {
            b'%' => hex(rest.next()).unwrap_or(0) * 16 + hex(rest.next()).unwrap_or(0),
            other => other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
