//! A server that speaks the protocol of `CouchDB`, for tests: a real one, or `pouchdb-server`.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::{
    io::Write as _,
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cheops_agent::config::{self, Secret};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_mins(1);

/// A database of its own at a server.
pub(crate) struct Couch {
    pub(crate) config: config::CouchDb,
    _server: Option<Arc<Pouch>>,
}

impl Couch {
    /// An empty database, which nobody else has.
    pub(crate) fn get() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let database = format!("test-{}-{number}-{:08x}", std::process::id(), fastrand::u32(..));
        if let Ok(servers) = std::env::var("CHEOPS_TEST_COUCHDB") {
            let url = servers.split(',').next().unwrap_or_default();
            return Self { config: at(url, database), _server: None };
        }
        let server = Pouch::get();
        let config = at(&format!("http://127.0.0.1:{}", server.port), database);
        Self { config, _server: Some(server) }
    }
}

impl Couch {
    /// Removes a document, as somebody with the rights to do so can.
    pub(crate) fn remove(&self, database: &str, id: &str) {
        let url = self.config.url.to_string();
        let path = format!("{}/{database}/{id}", url.trim_end_matches('/'));
        let found: serde_json::Value = serde_json::from_str(&self.curl(&["-f", &path])).unwrap();
        let revision = found["_rev"].as_str().unwrap();
        self.curl(&["-f", "-X", "DELETE", &format!("{path}?rev={revision}")]);
    }

    /// Changes a document, as somebody with the rights to do so can.
    pub(crate) fn edit(&self, database: &str, id: &str, edit: impl FnOnce(&mut serde_json::Value)) {
        let url = self.config.url.to_string();
        let path = format!("{}/{database}/{id}", url.trim_end_matches('/'));
        let mut found = serde_json::from_str(&self.curl(&["-f", &path])).unwrap();
        edit(&mut found);
        let json = "content-type: application/json";
        self.curl(&["-f", "-X", "PUT", "-H", json, "-d", &found.to_string(), &path]);
    }

    /// Removes the document whose id begins like this.
    pub(crate) fn remove_like(&self, database: &str, id: &str) {
        let url = self.config.url.to_string();
        let path = format!("{}/{database}/_all_docs", url.trim_end_matches('/'));
        let found: serde_json::Value = serde_json::from_str(&self.curl(&["-f", &path])).unwrap();
        let ids = found["rows"].as_array().unwrap().iter().filter_map(|row| row["id"].as_str());
        let ids: Vec<_> = ids.filter(|found| found.starts_with(id)).collect();
        let [id] = ids[..] else { panic!("{id}: {ids:?}") };
        self.remove(database, id);
    }

    /// Has the server copy all documents to another database, once, as replication would.
    pub(crate) fn copy_to(&self, other: &Self) {
        let job = format!(r#"{{"source":"{}","target":"{}"}}"#, self.address(), other.address());
        let url = self.config.url.to_string();
        let path = format!("{}/_replicate", url.trim_end_matches('/'));
        let json = "content-type: application/json";
        self.curl(&["-f", "-X", "POST", "-H", json, "-d", &job, &path]);
    }

    /// What is at a path of the server.
    pub(crate) fn look(&self, path: &str) -> serde_json::Value {
        let url = self.config.url.to_string();
        let path = format!("{}{path}", url.trim_end_matches('/'));
        serde_json::from_str(&self.curl(&["-g", &path])).unwrap()
    }

    /// The address of the database, with what lets one in.
    fn address(&self) -> String {
        let url = self.config.url.to_string();
        let (scheme, place) = url.trim_end_matches('/').split_once("://").unwrap();
        let entry = match (&self.config.user, &self.config.password) {
            (Some(user), Some(Secret::Text(password))) => format!("{user}:{password}@"),
            _ => String::new(),
        };
        format!("{scheme}://{entry}{place}/{}", self.config.database)
    }

    fn curl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("curl");
        if let (Some(user), Some(Secret::Text(password))) =
            (&self.config.user, &self.config.password)
        {
            command.args(["-u", &format!("{user}:{password}")]);
        }
        let output = command.arg("-sS").args(arguments).output().unwrap();
        let (out, err) = (output.stdout, output.stderr);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&err));
        String::from_utf8(out).unwrap()
    }
}

/// A server by its address, in which there may be a name and a password.
fn at(url: &str, database: String) -> config::CouchDb {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (entry, place) = rest.rsplit_once('@').map_or((None, rest), |(e, p)| (Some(e), p));
    let (user, password) = match entry.and_then(|entry| entry.split_once(':')) {
        Some((user, password)) => (Some(user.to_owned()), Some(Secret::Text(password.to_owned()))),
        None => (None, None),
    };
    let url = format!("{scheme}://{place}").parse().unwrap();
    config::CouchDb {
        url,
        user,
        password,
        database,
        ca: None,
        replicate: true,
        relay: None,
        local_journal: None,
    }
}

/// A way to a server that can be cut.
pub(crate) struct Relay {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: bool,
    /// The connections that are open, both ends of each.
    open: Vec<TcpStream>,
}

impl Relay {
    pub(crate) fn to((host, port): (&str, u16)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap().port();
        let (state, host) = (Arc::new(Mutex::new(State::default())), host.to_owned());
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap();
                let Ok(server) = TcpStream::connect((host.as_str(), port)) else { continue };
                if state.cut {
                    continue;
                }
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                state.open.extend([client, server]);
            }
        });
        Self { port: here, state }
    }

    pub(crate) fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn heal(&self) {
        self.state.lock().unwrap().cut = false;
    }
}

/// `pouchdb-server`, for as long as a test of this process uses it.
pub(crate) struct Pouch {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Pouch {
    fn get() -> Arc<Self> {
        static RUNNING: Mutex<Weak<Pouch>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap();
        if let Some(server) = running.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start());
        *running = Arc::downgrade(&server);
        server
    }

    fn start() -> Self {
        let Ok(program) = std::env::var("CHEOPS_POUCHDB") else {
            panic!(
                "these tests need a server: install pouchdb-server with `make pouchdb` and name it in CHEOPS_POUCHDB, or a CouchDB in CHEOPS_TEST_COUCHDB"
            );
        };
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--host", "127.0.0.1", "--dir", "."])
            .env("NODE_OPTIONS", "--unhandled-rejections=warn")
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, port, _directory: directory };
        let start = Instant::now();
        while !server.answers() {
            assert!(start.elapsed() < PATIENCE, "pouchdb-server does not start");
            thread::sleep(Duration::from_millis(50));
        }
        server
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").is_ok()
    }
}

impl Drop for Pouch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
