//! What a resource costs: the memory of one with a single operation, and a look at one with many.
//!
//! Prints a table, with each number's limit and something to compare it with, measured in the same
//! run. `cargo bench -p cheops-core --bench resources`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and fails by panic")]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action, Declaration, HttpBody, HttpRequest, Names, Operation},
    plan::Outcome,
    replica::{
        Effect, Input, Message, Record, Replica, Report, Resource, Sent, Settings, Submission,
        Ticket, Version,
    },
    time::{Millis, Now, Timestamp},
};

/// How many resources have one operation each.
const RESOURCES: u64 = 15_000;
/// How many bytes each may take.
const BYTES: f64 = 2_048.0;
/// How many operations of one resource no site has answered.
const OPERATIONS: u64 = 200_000;
/// So many are walked over, to compare: it takes a time that grows with their square.
const WALKED: u64 = 2_000;
/// How long a look may take.
const LOOK: Duration = Duration::from_micros(100);

const CONFIG: &str = r#"{"ResolutionMatrix": [
    {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
    {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "set", "Result": "take-one"},
    {"Before": "inc", "After": "inc", "Result": "take-both"}], "Reset": "redis-cli del {id}"}"#;

fn main() {
    println!("{:<72} {:>12} {:>10}  note", "what", "measured", "limit");
    // First, before anything else has left the allocator with memory to give away.
    memory("memory of a resource with one operation, no configuration", 0, None);
    let config = Config::from_json(CONFIG).unwrap();
    memory("memory of a resource with one operation, with a matrix", 1, Some(&config));
    looks();
}

fn row(what: &str, measured: &str, limit: &str, note: &str) {
    println!("{what:<72} {measured:>12} {limit:>10}  {note}");
}

/// The resident memory of this process, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

fn now(at: u64) -> Now {
    Now { wall: Millis(1_800_000_000_000 + at), steady: Millis(at) }
}

fn memory(what: &str, round: u64, config: Option<&Config>) {
    let sites = Sites::new(["site1", "site2", "site3"].map(|name| name.parse().unwrap())).unwrap();
    let mut replica = Replica::new("site1".parse().unwrap(), Settings::default());
    let before = resident();
    let mut texts = 0;
    for n in 0..RESOURCES {
        let id = format!("resource-{round}-{n:06}");
        let line = format!("redis-cli set {id} {n}");
        texts += 2 * id.len() + line.len();
        let submission = Submission {
            ticket: Ticket(n),
            resource: id.parse().unwrap(),
            // As the shell around us does it: names are shared, and so are equal configurations.
            sites: Some(sites.clone()),
            config: config.cloned(),
            kind: "set".parse().unwrap(),
            author: "operator".parse().unwrap(),
            action: Action::command(line),
            force: false,
            keep_going: false,
            key: None,
            wait: Millis(0),
        };
        let effects = replica.handle(Input::Submit(Box::new(submission)), now(n));
        let runs = effects.into_iter().filter_map(|effect| match effect {
            Effect::Run { run, .. } => Some(run),
            _ => None,
        });
        for run in runs.collect::<Vec<_>>() {
            let report =
                Report { outcome: Outcome::Ok, took: Millis(1), output: "OK\n".into(), made: None };
            replica.handle(Input::Ran { run, report }, now(n));
        }
        replica.handle(Input::Tick, now(n + 1));
    }
    let each = (resident() - before) / RESOURCES as f64;
    let text = texts as f64 / RESOURCES as f64;
    assert_eq!(replica.resources().count(), usize::try_from(RESOURCES).unwrap());
    row(
        what,
        &format!("{each:.0} B"),
        &format!("{BYTES:.0} B"),
        &format!("{:.1} times its texts ({text:.0} B)", each / text),
    );
    // What it takes is not given to what is measured next.
    std::mem::forget(replica);
}

/// A site that knows a resource with so many operations, which nobody has answered: the first one
/// runs here.
fn unanswered(operations: u64) -> (Replica, Duration) {
    let from: SiteId = "site2".parse().unwrap();
    let resource: ResourceId = "long".parse().unwrap();
    let sites = Sites::new(["site1", "site2"].map(|name| name.parse().unwrap())).unwrap();
    let mut replica = Replica::new("site1".parse().unwrap(), Settings::default());
    let config = Config::from_json(r#"{"ResolutionMatrix": [], "Show": "show {id}"}"#).unwrap();
    let operation = |number: u64| Operation {
        id: OpId { site: from.clone(), number },
        resource: resource.clone(),
        kind: "write".parse().unwrap(),
        author: "operator".parse().unwrap(),
        at: Timestamp::at(Millis(1_800_000_000_000 + number)),
        parents: (number > 1)
            .then(|| OpId { site: from.clone(), number: number - 1 })
            .into_iter()
            .collect(),
        action: Action::Http(Box::new(HttpRequest {
            service: "image".parse().unwrap(),
            method: "PUT".into(),
            target: "/m".into(),
            headers: Box::default(),
            body: HttpBody::None,
            names: Names::Nothing,
        })),
        reset: false,
        keep_going: false,
        key: None,
        declares: (number == 1).then(|| {
            let (sites, config) = (sites.clone(), Arc::new(config.clone()));
            Box::new(Declaration { sites, config, base: Version::new() })
        }),
    };
    let numbers: Vec<u64> = (1..=operations).collect();
    let mut took = Duration::ZERO;
    for numbers in numbers.chunks(100) {
        let sent = |&number: &u64| Sent {
            after: number - 1,
            record: Record::Operation(Arc::new(operation(number))),
            seal: None,
        };
        let records = numbers.iter().map(sent).collect();
        let message = Message::Records { resource: resource.clone(), records, more: false };
        let started = Instant::now();
        replica.handle(Input::Received { from: from.clone(), message }, now(operations));
        took += started.elapsed();
    }
    (replica, took)
}

/// What `list`, `describe` and `problems` ask for.
fn look(resource: &Resource) {
    let here = "site1".parse().unwrap();
    black_box((resource.state(), resource.in_doubt(), resource.denied(), resource.apart()));
    black_box((resource.unanswered(&here), resource.tally(&here), resource.shown(&here)));
    let latest = resource.log().latest(200, None).into_iter();
    black_box(latest.map(|op| resource.dropped(op)).collect::<Vec<_>>());
}

fn micros(times: u32, mut call: impl FnMut()) -> f64 {
    let mut samples: Vec<f64> = (0..times)
        .map(|_| {
            let started = Instant::now();
            call();
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn looks() {
    let id = "long".parse().unwrap();
    let (few, _) = unanswered(WALKED);
    let (many, took) = unanswered(OPERATIONS);
    rehearsals(&many, &id);
    let (few, many) = (few.resource(&id).unwrap(), many.resource(&id).unwrap());
    assert!(many.is_up_to_date() && many.unanswered(&"site2".parse().unwrap()) == 200_000);
    let short = micros(101, || look(few));
    let long = micros(101, || look(many));
    let walk = micros(3, || {
        black_box(few.summary_by_walking());
    });
    let limit = format!("{} µs", LOOK.as_micros());
    row(
        "a look at a resource with 200,000 unanswered operations",
        &format!("{long:.1} µs"),
        &limit,
        &format!("with {WALKED}: {short:.1} µs"),
    );
    row(
        "the same by walking, with 2,000",
        &format!("{walk:.0} µs"),
        "",
        &format!("{:.0} times as long for 1/{} of it", walk / long, OPERATIONS / WALKED),
    );
    let each = took.as_secs_f64() * 1e6 / OPERATIONS as f64;
    row("taking in one of them, a message of 100 at a time", &format!("{each:.2} µs"), "", "");
}

/// A rehearsal: the part that other requests wait for, and the rest.
fn rehearsals(replica: &Replica, id: &ResourceId) {
    let submission = Submission {
        ticket: Ticket(0),
        resource: id.clone(),
        sites: None,
        config: None,
        kind: "write".parse().unwrap(),
        author: "operator".parse().unwrap(),
        action: Action::command("true"),
        force: false,
        keep_going: false,
        key: None,
        wait: Millis(0),
    };
    let draft = || replica.draft(&submission, now(OPERATIONS)).unwrap();
    let copied = micros(11, || drop(black_box(draft())));
    let all = micros(11, || drop(black_box(draft().rehearse())));
    row(
        "a copy of it for a rehearsal",
        &format!("{:.0} ms", copied / 1e3),
        "",
        &format!("the whole rehearsal: {:.0} ms", all / 1e3),
    );
}
