//! Agents as processes on loopback.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use cheops_agent::trust::Identity;
use cheops_core::trust::PublicKey;
use serde::Serialize;
use serde_json::Value;

use super::{Changes, field::couch::Couch};

pub(crate) struct Fleet {
    agents: Vec<(Child, SocketAddr)>,
    _directory: tempfile::TempDir,
}

impl Fleet {
    /// So many sites that all know each other, and so many more that nobody hears of.
    pub(crate) fn start(count: usize, strangers: usize) -> Self {
        let fleet = Self::build(count + strangers, |_, _| true, |_, _| String::new());
        for n in 0..count {
            fleet.wait_until_linked(n, count - 1);
        }
        fleet
    }

    /// One site that knows so many others, each of which knows only the one.
    pub(crate) fn hub(others: usize) -> Self {
        Self::build(others + 1, |n, m| n == 0 || m == 0, |_, _| String::new())
    }

    /// A site for each of these databases, which it keeps its records in; all know each other.
    pub(crate) fn on(databases: &[Couch]) -> Self {
        let settings = |n: usize, home: &Path| databases[n].settings(home);
        let fleet = Self::build(databases.len(), |_, _| true, settings);
        for n in 0..databases.len() {
            fleet.wait_until_linked(n, databases.len() - 1);
        }
        fleet
    }

    fn build(
        count: usize,
        knows: impl Fn(usize, usize) -> bool,
        settings: impl Fn(usize, &Path) -> String,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listeners: Vec<_> =
            (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<SocketAddr> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        drop(listeners);
        let home_of = |n: usize| directory.path().join(format!("site{}", n + 1));
        let agents = (0..count).map(|n| {
            let home = home_of(n);
            fs::create_dir_all(&home).unwrap();
            let (api, peers) = (ports[2 * n], ports[2 * n + 1]);
            let others = (0..count).filter(|&m| m != n && knows(n, m)).map(|m| {
                let (address, key) = (ports[2 * m + 1], key(&home_of(m)));
                format!("[[peer]]\nname = 'site{}'\naddress = '{address}'\nkey = '{key}'\n", m + 1)
            });
            let config = format!(
                "site = 'site{}'\n{}[policy]\nallow_any_shell_command = true\n[listen]\napi = '{api}'\npeers = '{peers}'\n{}",
                n + 1,
                settings(n, &home),
                others.collect::<String>()
            );
            fs::write(home.join("site.toml"), config).unwrap();
            let log = fs::File::create(home.join("log")).unwrap();
            let child = Command::new(env!("CARGO_BIN_EXE_cheops"))
                .args(["agent", "--config"])
                .arg(home.join("site.toml"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap();
            (child, api)
        });
        let fleet = Self { agents: agents.collect(), _directory: directory };
        for n in 0..count {
            eventually("an agent is ready", || {
                TcpStream::connect(fleet.api(n)).is_ok() && get(fleet.api(n), "/readyz").0 == 200
            });
        }
        fleet
    }

    pub(crate) fn api(&self, n: usize) -> SocketAddr {
        self.agents[n].1
    }

    pub(crate) fn everywhere(&self) -> String {
        let names: Vec<String> = (1..=self.agents.len()).map(|n| format!("site{n}")).collect();
        names.join(" & ")
    }

    pub(crate) fn wait_until_linked(&self, n: usize, others: usize) {
        eventually("all links are there", || {
            let (_, sites) = get(self.api(n), "/api/v1/sites");
            let sites = sites["sites"].as_array().map_or(&[][..], Vec::as_slice);
            sites.iter().filter(|site| site["state"] == "reachable").count() == others
        });
    }

    /// Waits until every site knows so many operations.
    pub(crate) fn wait_for_operations(&self, count: usize) {
        let wanted = format!("\ncheops_operations {count}\n");
        eventually("all operations are everywhere", || {
            (0..self.agents.len()).all(|n| text(self.api(n), "/metrics").1.contains(&wanted))
        });
    }

    /// What changes at a site from now on.
    pub(crate) fn changes(&self, n: usize) -> Changes {
        let mut stream = TcpStream::connect(self.api(n)).unwrap();
        stream.set_nodelay(true).unwrap();
        write!(stream, "GET /api/v1/changes HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        // The first bytes say that the feed is followed.
        let mut head = [0; 16];
        stream.read_exact(&mut head).unwrap();
        Changes::new(stream)
    }

    pub(crate) fn processor_time(&self, n: usize) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.agents[n].0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |n: usize| fields[n].parse::<u64>().unwrap();
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    pub(crate) fn resident(&self, n: usize) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.agents[n].0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for (child, _) in &mut self.agents {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What the agents ran goes on without them, by design.
        let _ = Command::new("pkill").args(["-f", &super::blocker()]).status();
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_mins(2), "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What an agent answers.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, Value) {
    let (status, text) = text(address, path);
    (status, serde_json::from_str(&text).unwrap_or_default())
}

fn text(address: SocketAddr, path: &str) -> (u16, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

/// What an agent answers to a body of JSON.
pub(crate) fn post(address: SocketAddr, path: &str, body: &impl Serialize) -> (u16, Value) {
    let body = serde_json::to_string(body).unwrap();
    let length = body.len();
    let (status, text) = ask(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    );
    (status, serde_json::from_str(&text).unwrap_or_default())
}

fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let Ok(mut stream) = TcpStream::connect(address) else { return (0, String::new()) };
    let _ = stream.set_nodelay(true);
    let mut answer = Vec::new();
    if stream.write_all(request.as_bytes()).is_err() || stream.read_to_end(&mut answer).is_err() {
        return (0, String::new());
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

/// The key of a site, from its directory, which is made.
fn key(home: &Path) -> PublicKey {
    let data = home.join("data");
    fs::create_dir_all(&data).unwrap();
    Identity::open(&data).unwrap().public()
}
