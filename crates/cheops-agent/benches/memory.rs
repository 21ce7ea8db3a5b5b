//! The memory that an agent takes for a resource with one operation: `cargo bench -p cheops-agent --bench
//! memory`.
//!
//! An agent with 15,000 such resources is compared with one that has none. Another process fills the store
//! of each first: what is measured is what an agent keeps, not what it needs while it takes operations in.
//! The bench fails above the limit.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and fails by panic")]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use cheops_agent::{
    Agent,
    config::Config,
    engine::{
        Engine as _, Opened as _,
        embedded::{Embedded, Options},
    },
};
use cheops_core::{
    id::{OpId, ResourceId, Sites},
    operation::{Action, Declaration, Operation},
    plan::Outcome,
    replica::{Durable, Record, Reply, Version},
    time::{Millis, Timestamp},
};

const RESOURCES: u64 = 15_000;
/// How many bytes each may take.
const LIMIT: f64 = 2_048.0;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fill", data, resources] => {
            fill(&Path::new(data).join("store"), resources.parse().unwrap());
        }
        ["agent", data] => println!("{}", resident_with(Path::new(data))),
        _ => compare(),
    }
}

/// Measures an agent without resources and one with many, and fails if each takes more than it may.
fn compare() {
    let (none, all) = (measured(0), measured(RESOURCES));
    let each = (all - none) / RESOURCES as f64;
    println!("{:<60} {:>10} {:>10}  note", "what", "measured", "limit");
    println!(
        "{:<60} {:>10} {:>10}  an agent without any: {:.1} MB",
        "memory of a resource with one operation, in an agent",
        format!("{each:.0} B"),
        format!("{LIMIT:.0} B"),
        none / 1e6,
    );
    assert!(each <= LIMIT, "a resource takes {each:.0} B: more than {LIMIT:.0} B");
}

/// The memory of an agent at rest with so many resources, in bytes.
fn measured(resources: u64) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap();
    child(&["fill", data, &resources.to_string()]);
    child(&["agent", data]).trim().parse().unwrap()
}

/// Runs this program once more, and gives what it prints.
fn child(words: &[&str]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(words)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Starts an agent, and gives the memory of this process, in bytes.
fn resident_with(data: &Path) -> f64 {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut config = Config::new("site1".parse().unwrap(), data);
        config.api = SocketAddr::from(([127, 0, 0, 1], 0));
        config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
        let agent = Agent::start(config).await.unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident = line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0;
        agent.stop().await;
        resident
    })
}

fn fill(store: &Path, resources: u64) {
    let mut engine = Embedded::open(store, Options::of("site1".parse().unwrap())).unwrap();
    assert_eq!(engine.written().count(), 0);
    for first in (0..resources).step_by(500) {
        let numbers = first..resources.min(first + 500);
        let batch: Vec<Durable> = numbers.flat_map(records).collect();
        engine.append(&batch).unwrap();
    }
}

/// An operation on a resource of its own, and that it went well here.
fn records(n: u64) -> [Durable; 3] {
    let here = "site1".parse().unwrap();
    let resource: ResourceId = format!("resource-{n:06}").parse().unwrap();
    let op = OpId { site: here, number: 1 };
    let operation = Operation {
        id: op.clone(),
        resource: resource.clone(),
        kind: "set".parse().unwrap(),
        author: "operator".parse().unwrap(),
        at: Timestamp::at(Millis(1_700_000_000_000 + n)),
        parents: [].into(),
        action: Action::command(format!("redis-cli set {resource} {n}")),
        reset: false,
        keep_going: false,
        key: None,
        declares: Some(Box::new(Declaration {
            sites: Sites::new(["site1", "site2", "site3"].map(|site| site.parse().unwrap()))
                .unwrap(),
            config: Arc::default(),
            base: Version::new(),
        })),
    };
    let reply = Reply {
        id: OpId { number: 2, ..op.clone() },
        resource: resource.clone(),
        op: op.clone(),
        attempt: 1,
        outcome: Outcome::Ok,
        era: 0,
        took: Millis(1),
        output: "OK\n".into(),
        made: None,
    };
    [
        Durable::Record(Record::Operation(Arc::new(operation)), None),
        Durable::Intent { resource, op, attempt: 1, fresh: false },
        Durable::Record(Record::Reply(Arc::new(reply)), None),
    ]
}
