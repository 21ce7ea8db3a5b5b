//! What whole agents do, as processes on loopback: accept, replicate, run, heal, idle, tell of each other.
//!
//! Prints a table with each number's limit and, where there is a peer to compare with, the ratio to
//! what that peer did in the same run. `cargo bench -p cheops --bench sites`; `-- NAME…` for some
//! of them. `CHEOPS_POUCHDB` names the program `pouchdb-server`, if it is installed; `CHEOPS_TEST_COUCHDB`
//! names real servers for the part `couchdb`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench prints, and fails by panic"
)]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

#[path = "sites/couchdb.rs"]
mod couchdb;
#[path = "../tests/page/federation.rs"]
mod federation;
#[path = "../tests/field/mod.rs"]
mod field;
#[path = "sites/fleet.rs"]
mod fleet;
#[path = "sites/load.rs"]
mod load;
#[path = "sites/pouch.rs"]
mod pouch;
#[path = "sites/seals.rs"]
mod seals;

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fleet::{Fleet, post};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let parts: [(&str, fn()); 7] = [
        ("accept", accept),
        ("propagate", propagate),
        ("exec", exec),
        ("heal", heal),
        ("idle", idle),
        ("grid", grid),
        ("couchdb", couchdb::all),
    ];
    row("what", "measured", "limit", "");
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            part();
        }
    }
}

fn row(what: &str, measured: &str, limit: &str, note: &str) {
    println!("{what:<52} {measured:>22} {limit:>16}  {note}");
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

fn millis(span: Duration) -> String {
    format!("{:.2} ms", span.as_secs_f64() * 1_000.0)
}

/// A command that keeps a site from running anything else of a resource, for as long as the bench
/// lasts: what is measured is accepting, not the commands.
fn blocker() -> String {
    format!("sleep 600.{}", std::process::id())
}

/// About how many operations are written in one batch while 64 clients ask, from the number of syncs that
/// the agent makes meanwhile.
const SEALED_TOGETHER: usize = 5;

/// How many ask at once, and for how long.
const CLIENTS: usize = 64;
const SPAN: Duration = Duration::from_secs(4);

/// Gives a site a resource for each client, of which it runs nothing more.
fn occupy(address: std::net::SocketAddr) {
    for n in 0..CLIENTS {
        let body = serde_json::json!({"command": blocker(), "sites": "site1", "wait": "0s"});
        assert!(post(address, &format!("/api/v1/resources/r{n}/operations"), &body).0 < 300);
    }
}

/// An operation of a client, on its own resource.
fn an_operation(client: usize) -> String {
    let padding = "x".repeat(300);
    let body = format!(r#"{{"command":"true {padding}","kind":"inc","wait":"0s"}}"#);
    load::request(&format!("/api/v1/resources/r{client}/operations"), &body)
}

/// Operations accepted in a second by one site, durable, with 64 clients.
fn accept() {
    let fleet = Fleet::start(1, 0);
    let address = fleet.api(0);
    occupy(address);
    let pouch = pouch::Pouch::start();
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    // What an operation takes of the processors, of the round in which it took least.
    let mut each = Duration::MAX;
    for _ in 0..3 {
        let before = fleet.processor_time(0);
        let rate = load::run(address, CLIENTS, SPAN, &an_operation);
        let used = fleet.processor_time(0).saturating_sub(before);
        each = each.min(used.div_f64(rate * SPAN.as_secs_f64()));
        ours.push(rate);
        if let Some(pouch) = &pouch {
            theirs.push(load::run(pouch.address(), CLIENTS, SPAN, &pouch::Pouch::request));
        }
    }
    ours.sort_by(f64::total_cmp);
    theirs.sort_by(f64::total_cmp);
    let rate = ours[ours.len() / 2];
    let note = match theirs.get(theirs.len() / 2) {
        Some(theirs) => {
            format!("x {:.1} of pouchdb-server's {theirs:.0} (limit x 20)", rate / theirs)
        }
        None => "pouchdb-server is not installed: no ratio".to_owned(),
    };
    row("operations accepted, 64 clients, one site", &format!("{rate:.0} /s"), "> 20000 /s", &note);
    // All of them are signed as they are accepted. A site that also has to check as many of others spends
    // that on top: what both are of the whole is what is lacking in the operations of a second.
    let [signing, checking] = seals::cost(SEALED_TOGETHER);
    let whole = each + checking;
    let share = (signing + checking).as_secs_f64() / whole.as_secs_f64() * 100.0;
    let micros = |span: Duration| format!("{:.1} us", span.as_secs_f64() * 1e6);
    let note = format!(
        "signed in {}, checked in {}, in batches of {SEALED_TOGETHER}, of {} for an operation",
        micros(signing),
        micros(checking),
        micros(whole)
    );
    row("signing and checking, of the processors", &format!("{share:.1} %"), "< 25 %", &note);
}

/// From accepted at one site to durable at two others.
fn propagate() {
    const COUNT: usize = 400;
    let fleet = Fleet::start(3, 0);
    let body = serde_json::json!({"command": blocker(), "sites": fleet.everywhere(), "wait": "0s"});
    assert!(post(fleet.api(0), "/api/v1/resources/x/operations", &body).0 < 300);
    let mut feeds: Vec<_> = [1, 2].map(|n| fleet.changes(n)).into();
    let (mut spans, mut from_asking) = (Vec::new(), Vec::new());
    let body = serde_json::json!({"command": "true", "kind": "inc", "wait": "0s"});
    for _ in 0..COUNT {
        let start = Instant::now();
        let (status, answer) = post(fleet.api(0), "/api/v1/resources/x/operations", &body);
        assert!(status < 300, "{answer}");
        let accepted = Instant::now();
        let id = answer["operation"].as_str().unwrap().to_owned();
        let arrived = feeds.iter_mut().map(|feed| feed.wait_for(&id)).max().unwrap();
        spans.push(arrived.saturating_duration_since(accepted));
        from_asking.push(arrived - start);
    }
    spans.sort();
    from_asking.sort();
    let note = format!("from the request on: {}", millis(percentile(&from_asking, 50)));
    row(
        "accepted here to durable at two others, median",
        &millis(percentile(&spans, 50)),
        "< 5 ms",
        &note,
    );
    let note = format!("from the request on: {}", millis(percentile(&from_asking, 99)));
    row(
        "accepted here to durable at two others, p99",
        &millis(percentile(&spans, 99)),
        "< 20 ms",
        &note,
    );
}

/// A whole `exec` of `true`, and what is added to `sh -c true`.
fn exec() {
    const COUNT: usize = 200;
    let fleet = Fleet::start(3, 0);
    let create = |id: &str, sites: &str| {
        let body = serde_json::json!({"command": "true", "sites": sites});
        assert_eq!(post(fleet.api(0), &format!("/api/v1/resources/{id}/operations"), &body).0, 200);
    };
    create("three", &fleet.everywhere());
    create("one", "site1");
    let body = serde_json::json!({"command": "true"});
    let (mut three, mut one, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..COUNT {
        for (id, spans) in [("three", &mut three), ("one", &mut one)] {
            let start = Instant::now();
            let answer = post(fleet.api(0), &format!("/api/v1/resources/{id}/operations"), &body);
            assert_eq!(answer.0, 200, "{}", answer.1);
            spans.push(start.elapsed());
        }
        let start = Instant::now();
        assert!(
            Command::new("sh")
                .args(["-c", "true"])
                .stdin(Stdio::null())
                .status()
                .unwrap()
                .success()
        );
        plain.push(start.elapsed());
    }
    for spans in [&mut three, &mut one, &mut plain] {
        spans.sort();
    }
    let note = format!("p99 {}", millis(percentile(&three, 99)));
    row(
        "exec of `true` on three sites, all replies, median",
        &millis(percentile(&three, 50)),
        "< 15 ms",
        &note,
    );
    let added = percentile(&one, 50).saturating_sub(percentile(&plain, 50));
    let note = format!(
        "exec at one site {}, sh -c alone {}; accepting included",
        millis(percentile(&one, 50)),
        millis(percentile(&plain, 50))
    );
    row("added to `sh -c true`, median", &millis(added), "< 3 ms", &note);
}

/// Three sites cut apart, 10,000 operations at each, healed.
fn heal() {
    const EACH: usize = 10_000;
    const RESOURCES: usize = 100;
    let fleet = Fleet::start(3, 0);
    for n in 0..RESOURCES {
        let body =
            serde_json::json!({"command": blocker(), "sites": fleet.everywhere(), "wait": "0s"});
        assert!(post(fleet.api(0), &format!("/api/v1/resources/r{n}/operations"), &body).0 < 300);
    }
    fleet.wait_for_operations(RESOURCES);
    for n in 0..3 {
        let (status, _) = post(fleet.api(n), &format!("/api/v1/sites/site{}/pause", n + 1), &());
        assert_eq!(status, 204);
    }
    let padding = "x".repeat(300);
    for n in 0..3 {
        let padding = padding.clone();
        let request = move |client: usize| {
            let body = format!(r#"{{"command":"true {padding}","kind":"inc","wait":"0s"}}"#);
            load::request(&format!("/api/v1/resources/r{}/operations", client % RESOURCES), &body)
        };
        load::exactly(fleet.api(n), RESOURCES, EACH, &request);
    }
    let start = Instant::now();
    for n in 0..3 {
        let (status, _) = post(fleet.api(n), &format!("/api/v1/sites/site{}/resume", n + 1), &());
        assert_eq!(status, 204);
    }
    fleet.wait_for_operations(RESOURCES + 3 * EACH);
    let span = start.elapsed();
    let note = "CouchDB 3: 35 to 59 s; the original: 688 s for a tenth of that";
    row("3 x 10,000 operations healed", &format!("{:.2} s", span.as_secs_f64()), "< 3 s", note);
}

/// What an idle agent costs that knows a hundred sites.
fn idle() {
    const SPAN: Duration = Duration::from_secs(20);
    let fleet = Fleet::hub(100);
    fleet.wait_until_linked(0, 100);
    thread::sleep(Duration::from_secs(5));
    let before = fleet.processor_time(0);
    thread::sleep(SPAN);
    let used = fleet.processor_time(0).saturating_sub(before);
    let share = used.as_secs_f64() / SPAN.as_secs_f64() * 100.0;
    row("idle with 100 known sites: processor", &format!("{share:.2} % of a core"), "< 0.5 %", "");
    let resident = fleet.resident(0) as f64 / f64::from(1 << 20);
    row("idle with 100 known sites: memory", &format!("{resident:.1} MB"), "< 30 MB", "");
}

/// What it takes to tell of 10,000 resources at 100 sites, of which 5 are silent.
fn grid() {
    const COUNT: usize = 50;
    let federation = federation::Federation::start();
    for (what, path, limit) in [
        ("a page", "/api/v1/grid", "< 200 ms"),
        ("a search", "/api/v1/grid?contains=777", "< 200 ms"),
        ("those that failed", "/api/v1/grid?state=failed", "< 400 ms"),
        ("one row", "/api/v1/grid?ids=resource-00004", "< 20 ms"),
        ("all sites", "/api/v1/sites", "< 20 ms"),
        ("problems, by site", "/api/v1/problems/count", "< 200 ms"),
    ] {
        let ask = |_| {
            let start = Instant::now();
            assert_eq!(federation.hub().ask(path).unwrap().0, 200, "{path}");
            start.elapsed()
        };
        let mut spans: Vec<Duration> = (0..COUNT).map(ask).collect();
        spans.sort();
        let what = format!("10,000 resources x 100 sites: {what}, median");
        let note = format!("p99 {}", millis(percentile(&spans, 99)));
        row(&what, &millis(percentile(&spans, 50)), limit, &note);
    }
}

/// One change after the other.
pub(crate) struct Changes(Box<dyn BufRead + Send>);

impl Changes {
    fn new(stream: std::net::TcpStream) -> Self {
        Self(Box::new(BufReader::new(stream)))
    }

    /// The moment when this operation is told.
    fn wait_for(&mut self, operation: &str) -> Instant {
        self.wait_for_text(&format!(r#""id":"{operation}""#))
    }

    /// The moment when something is told that holds this text.
    fn wait_for_text(&mut self, wanted: &str) -> Instant {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the feed ended");
            if line.contains(wanted) {
                return Instant::now();
            }
        }
    }
}
