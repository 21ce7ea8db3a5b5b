//! Agents that keep their records in CouchDB, beside what the same server does without them.
//!
//! `pouchdb-server` takes its part where no real one is named: its numbers say how much the agent adds, and
//! nothing of how fast CouchDB is.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cheops_agent::config::Secret;
use serde_json::{Value, json};

use super::{
    CLIENTS, Changes, SPAN, an_operation, blocker,
    field::couch::{Couch, Pouch},
    fleet::{Fleet, post},
    load, millis, occupy, percentile, row,
};

const ROUNDS: usize = 5;
const PROPAGATED: usize = 200;

pub(crate) fn all() {
    let servers = ["CHEOPS_TEST_COUCHDB", "CHEOPS_POUCHDB"];
    if servers.iter().all(|name| std::env::var_os(name).is_none()) {
        row("on CouchDB", "-", "", "no server is named, and pouchdb-server is not installed");
        return;
    }
    accept();
    propagate();
}

/// An empty database at a server of its own, if there are as many.
fn database(n: usize) -> Couch {
    Couch::named(n).unwrap_or_else(|| Couch::of(Arc::new(Pouch::start())))
}

/// Operations that a site accepts, on its disk and on CouchDB, and documents of the same size that the server
/// takes from as many clients.
fn accept() {
    let couches = [database(0)];
    let server = Server::of(&couches[0]);
    let (on_couchdb, on_disk) = (Fleet::on(&couches), Fleet::start(1, 0));
    for fleet in [&on_couchdb, &on_disk] {
        occupy(fleet.api(0));
    }
    load::exactly(on_couchdb.api(0), CLIENTS, CLIENTS, &an_operation);
    let document = server.a_document();
    let plain = format!("{}-plain", server.database);
    server.ask("PUT", &format!("/{plain}"), "");
    let body = json!({"docs": [document]}).to_string();
    let one_document = |_| server.request("POST", &format!("/{plain}/_bulk_docs"), &body);

    let (mut agents, mut servers, mut disks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        agents.push(load::run(on_couchdb.api(0), CLIENTS, SPAN, &an_operation));
        servers.push(load::run(server.address, CLIENTS, SPAN, &one_document));
        disks.push(load::run(on_disk.api(0), CLIENTS, SPAN, &an_operation));
    }
    for rates in [&mut agents, &mut servers, &mut disks] {
        rates.sort_by(f64::total_cmp);
    }
    let [agent, server, disk] = [&agents, &servers, &disks].map(|rates| rates[ROUNDS / 2]);
    let note = format!(
        "x {:.2} of the {server:.0} documents of {} bytes that the server takes (limit x 0.8)",
        agent / server,
        body.len()
    );
    row("on CouchDB: operations accepted, 64 clients", &format!("{agent:.0} /s"), "", &note);
    row("on its disk: the same, in between", &format!("{disk:.0} /s"), "", "");
}

/// From accepted at one site to the database of another, and to what its agent knows; and what CouchDB's own
/// replication takes between the same servers.
fn propagate() {
    let couches = [database(0), database(1)];
    let servers = [0, 1].map(|n| Server::of(&couches[n]));
    let fleet = Fleet::on(&couches);
    let body = json!({"command": blocker(), "sites": fleet.everywhere(), "wait": "0s"});
    assert!(post(fleet.api(0), "/api/v1/resources/x/operations", &body).0 < 300);

    let plain = [0, 1].map(|n| format!("{}-plain{n}", servers[n].database));
    for n in [0, 1] {
        servers[n].ask("PUT", &format!("/{}", plain[n]), "");
    }
    let job = json!({
        "_id": plain[0],
        "continuous": true,
        "source": servers[0].place(&plain[0]),
        "target": servers[1].place(&plain[1]),
    });
    servers[0].ask("POST", "/_replicator", &job.to_string());
    let mut replicated = servers[1].changes(&plain[1]);
    let mut stored = servers[1].changes(&servers[1].database);
    let mut known = fleet.changes(1);
    let document = json!({"Record": "x".repeat(1_000)}).to_string();
    // The job takes a while to begin.
    servers[0].ask("PUT", &format!("/{}/first", plain[0]), &document);
    replicated.wait_for_text(r#""id":"first""#);

    let (mut in_database, mut at_agent, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    let body = json!({"command": "true", "kind": "inc", "wait": "0s"});
    for n in 0..PROPAGATED {
        let (status, answer) = post(fleet.api(0), "/api/v1/resources/x/operations", &body);
        let accepted = Instant::now();
        assert!(status < 300, "{answer}");
        let id = answer["operation"].as_str().unwrap();
        let (told, there) = thread::scope(|scope| {
            let there = scope.spawn(|| stored.wait_for_text(&format!(r#""id":"record:x:{id}:"#)));
            (known.wait_for(id), there.join().unwrap())
        });
        at_agent.push(told.saturating_duration_since(accepted));
        in_database.push(there.saturating_duration_since(accepted));

        servers[0].ask("PUT", &format!("/{}/n{n}", plain[0]), &document);
        let put = Instant::now();
        let arrived = replicated.wait_for_text(&format!(r#""id":"n{n}""#));
        alone.push(arrived.saturating_duration_since(put));
    }
    for spans in [&mut in_database, &mut at_agent, &mut alone] {
        spans.sort();
    }
    let [database, agent, alone] =
        [&in_database, &at_agent, &alone].map(|spans| percentile(spans, 50));
    let note = format!("CouchDB's own replication of a document: {}", millis(alone));
    row("on CouchDB: accepted to the other database, median", &millis(database), "", &note);
    let added = (agent.as_secs_f64() - alone.as_secs_f64()) * 1_000.0;
    let note = format!("added to CouchDB's own: {added:.2} ms (limit 10 ms)");
    row("on CouchDB: accepted to the other agent, median", &millis(agent), "", &note);
}

/// A server, asked without an agent.
struct Server {
    address: SocketAddr,
    database: String,
    /// The name and the password that it wants, in a header.
    entry: String,
    /// The same, before a place.
    before: String,
}

impl Server {
    fn of(couch: &Couch) -> Self {
        let config = &couch.config;
        let (entry, before) = match (&config.user, &config.password) {
            (Some(user), Some(Secret::Text(password))) => {
                let pair = format!("{user}:{password}");
                (format!("Authorization: Basic {}\r\n", base64(&pair)), format!("{pair}@"))
            }
            _ => (String::new(), String::new()),
        };
        let address = config.place().to_socket_addrs().unwrap().next().unwrap();
        Self { address, database: config.database.clone(), entry, before }
    }

    /// Where a database is, for the other server.
    fn place(&self, database: &str) -> String {
        format!("http://{}{}/{database}", self.before, self.address)
    }

    fn request(&self, method: &str, path: &str, body: &str) -> String {
        let (entry, length) = (&self.entry, body.len());
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{entry}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Asks for something that has to succeed.
    fn ask(&self, method: &str, path: &str, body: &str) -> Value {
        let request = self.request(method, path, body);
        let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        // A body that comes in pieces has their lengths before and after it.
        let json = body.find('{').zip(body.rfind('}')).map(|(from, to)| &body[from..=to]);
        serde_json::from_str(json.unwrap_or("null")).unwrap_or_default()
    }

    /// The document of an operation as the clients send it, without its name, and as long as with it.
    fn a_document(&self) -> Value {
        let path = format!("/{}/_all_docs?include_docs=true&limit=1", self.database);
        // The first one of a resource is what occupies it.
        let found = self.ask("GET", &format!("{path}&startkey=%22record:r0:site1:2:%22"), "");
        let mut document = found["rows"][0]["doc"].clone();
        let fields = document.as_object_mut().unwrap();
        let names = ["_id", "_rev"].map(|name| fields.remove(name).unwrap().to_string());
        fields.insert("Padding".into(), names.concat().into());
        document
    }

    /// What comes into a database from now on.
    fn changes(&self, database: &str) -> Changes {
        let path = format!("/{database}/_changes?feed=continuous&since=now&heartbeat=1000");
        let mut stream = self.connect();
        stream.write_all(self.request("GET", &path, "").as_bytes()).unwrap();
        // The first bytes say that the feed is followed.
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        Changes::new(stream)
    }
}

fn base64(text: &str) -> String {
    let mut encode = Command::new("base64");
    let mut encode =
        encode.arg("-w0").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    encode.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    String::from_utf8(encode.wait_with_output().unwrap().stdout).unwrap()
}
