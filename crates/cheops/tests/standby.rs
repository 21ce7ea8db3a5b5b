//! Two agents of one site on one CouchDB: one is at work, the other stands by and takes over.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cheops_agent::api::model::Submit;
use field::{agent::Agent, all_ok, couch::Couch, eventually, ports::unused, submit};

/// How long it may take until another is at work.
const SECONDS: Duration = Duration::from_secs(15);

/// A site with two agents.
struct Site {
    agents: [Agent; 2],
    work: PathBuf,
    _couch: Couch,
    _directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let couch = Couch::get();
        let directory = tempfile::tempdir().unwrap();
        let agents = [1, 2].map(|n| {
            let own = directory.path().join(format!("agent{n}"));
            fs::create_dir(&own).unwrap();
            let (api, peers) = (unused(), unused());
            fs::write(own.join("site.toml"), config(&couch, (directory.path(), &own), api, peers))
                .unwrap();
            Agent::on_loopback("site1", &api.to_string(), &own)
        });
        let work = directory.path().join("work");
        Self { agents, work, _couch: couch, _directory: directory }
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.work.join("lines")).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// The socket in the data directory.
    fn socket(&self) -> PathBuf {
        self.work.with_file_name("data").join("api.sock")
    }

    /// Whether an agent answers there.
    fn socket_answers(&self) -> bool {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-f", "-m", "10", "--unix-socket"]).arg(self.socket());
        curl.arg("http://agent/healthz").output().unwrap().status.success()
    }

    /// Asks an agent for a line, which has to be written.
    fn write(&self, agent: usize, number: usize) {
        let sites = (number == 1).then(|| "site1".to_owned());
        let submitted = self.agents[agent].exec("lines", &Submit { sites, ..line(number) });
        assert!(all_ok(&submitted, 1), "{submitted:?}");
    }

    /// Waits until something is accepted again by way of an agent, and says what was not: it may have been.
    fn goes_on(&self, agent: usize, number: usize) {
        let start = Instant::now();
        let key = Some(format!("line {number}"));
        while self.agents[agent]
            .try_exec("lines", &Submit { key: key.clone(), ..line(number) })
            .is_err()
        {
            assert!(start.elapsed() < SECONDS, "nobody takes over");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn config(
    couch: &Couch,
    (shared, own): (&Path, &Path),
    api: std::net::SocketAddr,
    peers: std::net::SocketAddr,
) -> String {
    let couchdb = couch.settings(own);
    let (data, work) = (shared.join("data"), shared.join("work"));
    format!(
        "site = 'site1'\ndata = '{}'\nwork = '{}'\n{couchdb}\n[listen]\napi = '{api}'\npeers = '{peers}'\n",
        data.display(),
        work.display()
    )
}

fn line(number: usize) -> Submit {
    submit(&format!("echo {number} >> lines"), "append")
}

fn signal(agent: &Agent, signal: &str) {
    let sent = Command::new("kill").args([signal, &agent.pid().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn one_is_at_work_and_the_other_passes_on_until_it_takes_over() {
    let mut site = Site::new();
    for n in 0..2 {
        site.agents[n].start();
        site.agents[n].wait_until_ready();
    }
    site.write(0, 1);
    site.write(1, 2);

    // One that is killed is followed by the other, which waits for what is under way.
    let long = submit("sleep 2; echo 3 >> lines", "append");
    site.agents[1].exec("lines", &Submit { wait: Some("0s".into()), ..long });
    eventually("it is under way", || {
        let text = site.agents[1].ask("/metrics").unwrap().1;
        text.lines().any(|line| line == "cheops_runs_running 1")
    });
    site.agents[0].kill();
    site.goes_on(1, 4);
    eventually("all is done", || site.lines().len() == 4);
    assert_eq!(site.lines(), ["1", "2", "3", "4"]);

    // It comes back, and stands by.
    site.agents[0].start();
    site.agents[0].wait_until_ready();
    site.write(0, 5);
    // One that is told to stop hands over at once.
    signal(&site.agents[1], "-TERM");
    eventually("it has stopped", || site.agents[1].ended() == Some(0));
    site.goes_on(0, 6);
    assert_eq!(site.lines(), ["1", "2", "3", "4", "5", "6"]);
}

#[test]
fn one_that_was_frozen_ends_when_it_goes_on() {
    let mut site = Site::new();
    for n in 0..2 {
        site.agents[n].start();
        site.agents[n].wait_until_ready();
    }
    site.write(1, 1);
    // Somebody waits for an answer from it, which has a line in the audit.
    let url = format!("{}/api/v1/resources/other/operations", site.agents[0].url);
    let body = r#"{"command": "sleep 1", "kind": "set", "sites": "site1"}"#;
    let json = "content-type: application/json";
    let mut curl = Command::new("curl");
    curl.args(["-s", "-m", "60", "-H", json, "-d", body, &url]);
    let mut asked = curl.stdout(Stdio::null()).spawn().unwrap();
    eventually("it is under way", || site.agents[1].resource("other").is_some());
    signal(&site.agents[0], "-STOP");
    site.goes_on(1, 2);
    assert!(site.socket_answers(), "the socket is that of the one at work");
    signal(&site.agents[0], "-CONT");
    eventually("it ends", || site.agents[0].ended().is_some_and(|code| code != 0));
    assert!(site.socket_answers(), "the other one has not taken it along");
    asked.wait().unwrap();
    site.write(1, 3);
    let socket = format!("unix:{}", site.socket().display());
    let mut verify = Command::new(env!("CARGO_BIN_EXE_cheops"));
    let verified = verify.args(["--agent", &socket, "audit", "--verify"]).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success() && said.contains("are as they were written"), "{said}");
    assert_eq!(site.lines(), ["1", "2", "3"]);
}
