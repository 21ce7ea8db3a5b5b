//! A server that speaks the protocol of `CouchDB`, for tests: a real one, or `pouchdb-server`.
#![allow(dead_code, reason = "each test uses what it needs")]

pub(crate) mod lagging;
pub(crate) mod memory;
#[path = "../support/ports.rs"]
pub(crate) mod ports;
pub(crate) mod strict;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cheops_agent::config::{self, Secret};

use self::strict::{
    Strict,
    accounts::{Login, SERVER_ADMIN},
};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_mins(1);

/// A database of its own at a server.
pub(crate) struct Couch {
    pub(crate) config: config::CouchDb,
    _server: Option<Arc<Pouch>>,
    _strict: Option<Arc<Strict>>,
}

/// Whether this is a test binary that runs with the strict stand-in: its name says so. The same tests run in a binary
/// without the suffix, with `pouchdb-server` itself or with the servers in `CHEOPS_TEST_COUCHDB`.
pub(crate) fn is_strict() -> bool {
    env!("CARGO_CRATE_NAME").ends_with("_strict")
}

impl Couch {
    /// An empty database, which nobody else has.
    pub(crate) fn get() -> Self {
        if is_strict() {
            return Self::on(Strict::get());
        }
        Self::named(0).unwrap_or_else(|| Self::of(Pouch::get()))
    }

    /// The same at a strict stand-in, as a server admin.
    pub(crate) fn on(strict: Arc<Strict>) -> Self {
        Self::known_as(SERVER_ADMIN, strict)
    }

    /// The same, as a user.
    pub(crate) fn known_as((user, password): Login, strict: Arc<Strict>) -> Self {
        let config = at(&format!("http://{user}:{password}@{}", strict.address), unused());
        Self { config, _server: None, _strict: Some(strict) }
    }

    /// The same at one of the servers that `CHEOPS_TEST_COUCHDB` names, which take turns; nothing if it names
    /// none.
    pub(crate) fn named(n: usize) -> Option<Self> {
        let servers = std::env::var("CHEOPS_TEST_COUCHDB").ok()?;
        let servers: Vec<&str> = servers.split(',').collect();
        Some(Self {
            config: at(servers[n % servers.len()], unused()),
            _server: None,
            _strict: None,
        })
    }

    /// The same at a server, which ends with the last who has it.
    pub(crate) fn of(server: Arc<Pouch>) -> Self {
        let config = at(&format!("http://{}", server.address), unused());
        Self { config, _server: Some(server), _strict: None }
    }

    /// The same at a server that the test has for itself.
    pub(crate) fn at(server: &Pouch) -> Self {
        let config = at(&format!("http://{}", server.address), unused());
        Self { config, _server: None, _strict: None }
    }

    /// The same at an address, where a server of the test listens.
    pub(crate) fn at_address(address: SocketAddr) -> Self {
        let config = at(&format!("http://{address}"), unused());
        Self { config, _server: None, _strict: None }
    }

    /// Has the server drop what was replaced and removed from both databases.
    pub(crate) fn compact(&self) {
        let url = self.config.url.to_string();
        for database in [&self.config.database, &self.config.local()] {
            let path = format!("{}/{database}/_compact", url.trim_end_matches('/'));
            let json = "content-type: application/json";
            self.curl(&["-f", "-X", "POST", "-H", json, &path]);
        }
    }

    /// What stands in a configuration, in this directory, that names the database at an address.
    pub(crate) fn settings_at(&self, address: &str, directory: &Path) -> String {
        let (database, login) = (&self.config.database, self.login(directory));
        format!(
            "engine = 'couchdb'\n[couchdb]\nurl = 'http://{address}'\ndatabase = '{database}'\n{login}"
        )
    }

    /// What stands there of the user, if there is one, with a password in a file in this directory.
    pub(crate) fn login(&self, directory: &Path) -> String {
        match (&self.config.user, &self.config.password) {
            (Some(user), Some(Secret::Text(password))) => {
                fs::write(directory.join("password"), password).unwrap();
                format!("user = '{user}'\npassword_file = 'password'\n")
            }
            _ => String::new(),
        }
    }

    /// The same, of the server itself.
    pub(crate) fn settings(&self, directory: &Path) -> String {
        let (host, port) = self.config.place();
        self.settings_at(&format!("{host}:{port}"), directory)
    }
}

/// A name that no database has.
fn unused() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test-{}-{number}-{:08x}", std::process::id(), fastrand::u32(..))
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

    /// Writes a document.
    pub(crate) fn put(&self, path: &str, document: &serde_json::Value) {
        let url = self.config.url.to_string();
        let path = format!("{}{path}", url.trim_end_matches('/'));
        let json = "content-type: application/json";
        self.curl(&["-f", "-X", "PUT", "-H", json, "-d", &document.to_string(), &path]);
    }

    /// Removes the document whose id begins like this.
    pub(crate) fn remove_like(&self, database: &str, id: &str) {
        self.remove(database, &self.id_like(database, id));
    }

    /// The id that begins like this.
    pub(crate) fn id_like(&self, database: &str, id: &str) -> String {
        let url = self.config.url.to_string();
        let path = format!("{}/{database}/_all_docs", url.trim_end_matches('/'));
        let found: serde_json::Value = serde_json::from_str(&self.curl(&["-f", &path])).unwrap();
        let ids = found["rows"].as_array().unwrap().iter().filter_map(|row| row["id"].as_str());
        let ids: Vec<_> = ids.filter(|found| found.starts_with(id)).collect();
        let [id] = ids[..] else { panic!("{id}: {ids:?}") };
        id.to_owned()
    }

    /// Removes both databases.
    pub(crate) fn wipe(&self) {
        let url = self.config.url.to_string();
        for database in [&self.config.database, &self.config.local()] {
            let path = format!("{}/{database}", url.trim_end_matches('/'));
            self.curl(&["-f", "-X", "DELETE", &path]);
        }
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
        relay_name: None,
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
    pub(crate) fn to(server: (&str, u16)) -> Self {
        Self::at("127.0.0.1", server)
    }

    /// The same for those who see this address.
    pub(crate) fn at(address: &str, (host, port): (&str, u16)) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
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

/// `pouchdb-server`, for as long as this is there.
pub(crate) struct Pouch {
    child: Child,
    pub(crate) address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Pouch {
    /// The one that all tests of this process share, for as long as one of them uses it.
    pub(crate) fn get() -> Arc<Self> {
        static RUNNING: Mutex<Weak<Pouch>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap();
        if let Some(server) = running.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start());
        *running = Arc::downgrade(&server);
        server
    }

    /// Starts one, on loopback.
    pub(crate) fn start() -> Self {
        let server = Self::begin(ports::unused(), |program| Command::new(program));
        server.wait_until_it_answers();
        server
    }

    /// Starts one at an address, by what runs a program there. It does not answer yet.
    pub(crate) fn begin(address: SocketAddr, run: impl FnOnce(&str) -> Command) -> Self {
        let Ok(program) = std::env::var("CHEOPS_POUCHDB") else {
            panic!(
                "this needs a server: install pouchdb-server with `make pouchdb` and name it in CHEOPS_POUCHDB, or a CouchDB in CHEOPS_TEST_COUCHDB"
            );
        };
        let directory = tempfile::tempdir().unwrap();
        let child = Self::spawn(run(&program), address, directory.path());
        Self { child, address, directory }
    }

    fn spawn(mut program: Command, address: SocketAddr, directory: &Path) -> Child {
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        program
            .args(["--port", &port, "--host", &host, "--dir", "."])
            .env("NODE_OPTIONS", "--unhandled-rejections=warn")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Copies its files to a directory, and starts it again.
    pub(crate) fn back_up(&mut self, to: &Path) {
        self.restart(|files| copy(files, to));
    }

    /// Puts its files back as they are in a directory, and starts it again.
    pub(crate) fn put_back(&mut self, from: &Path) {
        self.restart(|files| copy(from, files));
    }

    /// Ends it, does something to the directory of its files, and starts it again, on loopback.
    fn restart(&mut self, meanwhile: impl FnOnce(&Path)) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        meanwhile(self.directory.path());
        let program = Command::new(std::env::var("CHEOPS_POUCHDB").unwrap());
        self.child = Self::spawn(program, self.address, self.directory.path());
        self.wait_until_it_answers();
    }

    pub(crate) fn wait_until_it_answers(&self) {
        let start = Instant::now();
        while !self.answers() {
            assert!(start.elapsed() < PATIENCE, "pouchdb-server does not start");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether it has made what it needs itself: before that it forgets who is an admin.
    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return false };
        let mut answer = String::new();
        stream.write_all(b"GET /_users HTTP/1.0\r\n\r\n").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    /// The id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Copies a directory with all that is in it, in the place of what is there.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

impl Drop for Pouch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
