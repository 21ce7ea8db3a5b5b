//! Reading or rehearsing a long resource does not delay operations on another.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use cheops_agent::{
    api::model::Submit,
    engine::{
        Engine as _, Opened as _,
        embedded::{Embedded, Options},
    },
};
use cheops_core::{
    id::{OpId, SiteId, Sites},
    operation::{Action, Declaration, HttpBody, HttpRequest, Names, Operation},
    replica::{Durable, Record, Version},
    time::{Millis, Timestamp},
};
use field::{agent::Agent, eventually, submit};

/// How many operations of the long resource no site has answered.
const OPERATIONS: u64 = 40_000;
/// How many operations are asked for on the other resource, without readers and with them.
const ASKED: usize = 20;
/// By how much readers may delay one: a walk over the long resource for each of its operations takes
/// several times as long.
const DELAY: Duration = Duration::from_secs(1);
/// How long any answer may take. Where reads stall the site, the test ends by this.
const ANSWER: Duration = Duration::from_secs(20);
/// When readers end by themselves, should the test fail meanwhile.
const LONGEST: Duration = Duration::from_mins(2);

/// An operation of a site that can't be reached. The first one runs here for as long as the directory is there;
/// the others wait for it. They are requests to the same target: each might make good those before it.
fn operation(number: u64, directory: &Path) -> Durable {
    let away: SiteId = "away".parse().unwrap();
    let first = number == 1;
    let request = HttpRequest {
        service: "image".parse().unwrap(),
        method: "PUT".into(),
        target: "/m".into(),
        headers: Box::default(),
        body: HttpBody::None,
        names: Names::Nothing,
    };
    let declaration = || Declaration {
        sites: Sites::new(["site1", "away"].map(|name| name.parse().unwrap())).unwrap(),
        config: Arc::default(),
        base: Version::new(),
    };
    let parents = (!first).then(|| OpId { site: away.clone(), number: number - 1 });
    let operation = Operation {
        id: OpId { site: away.clone(), number },
        resource: "long".parse().unwrap(),
        kind: "write".parse().unwrap(),
        author: "operator".parse().unwrap(),
        at: Timestamp::at(Millis(1_700_000_000_000 + number)),
        parents: parents.into_iter().collect(),
        action: if first {
            Action::command(format!("while test -d {}; do sleep 0.2; done", directory.display()))
        } else {
            Action::Http(Box::new(request))
        },
        reset: false,
        keep_going: false,
        key: None,
        declares: first.then(|| Box::new(declaration())),
    };
    Durable::Record(Record::Operation(Arc::new(operation)), None)
}

fn fill(directory: &Path) {
    let store = directory.join("data/store");
    let mut engine = Embedded::open(&store, Options::of("site1".parse().unwrap())).unwrap();
    assert_eq!(engine.written().count(), 0);
    let records: Vec<Durable> = (1..=OPERATIONS).map(|n| operation(n, directory)).collect();
    for batch in records.chunks(5_000) {
        engine.append(batch).unwrap();
    }
}

/// What is read, and what the answer says if all of it is there. What this site has not answered counts operations on the
/// other resource, too: up to as many as are [`ASKED`].
const LOOKS: [(&str, &str); 9] = [
    ("/api/v1/resources", r#""operation_count":40000"#),
    ("/api/v1/resources/long", r#""waiting":40000"#),
    ("/api/v1/resources/long/operations/away:7", r#""place":7"#),
    ("/api/v1/problems", r#""problems""#),
    ("/api/v1/sites", r#""unanswered":400"#),
    ("/api/v1/grid", r#""long""#),
    ("/resources", "long"),
    ("/resources/long", "<title>long"),
    ("/problems", "Problems"),
];

fn look(agent: &Agent, path: &str, expected: &str) {
    let asked = Instant::now();
    let (status, body) = agent.ask(path).unwrap_or_else(|| panic!("{path}: no answer"));
    assert!(asked.elapsed() < ANSWER, "{path}: no answer within {ANSWER:?}");
    let begins: String = body.chars().take(2_000).collect();
    assert!(status == 200 && body.contains(expected), "{path}: {status} {begins}");
}

fn rehearse(agent: &Agent) {
    let rehearsal = Submit { dry_run: true, ..submit("true", "write") };
    let asked = Instant::now();
    let path = "/api/v1/resources/long/operations";
    let (status, body) = agent.post(path, &rehearsal).unwrap();
    assert!(asked.elapsed() < ANSWER, "a rehearsal took {:?}", asked.elapsed());
    assert!(status == 200 && body.contains(r#""before""#), "{status} {body}");
}

/// Asks for operations on another resource, one after the other. How long the slowest took to be
/// accepted.
fn slowest(agent: &Agent) -> Duration {
    let ask = |_| {
        let (sites, wait) = (Some("site1".to_owned()), Some("0s".to_owned()));
        let asked = Instant::now();
        agent.exec("other", &Submit { sites, wait, ..submit("true", "write") });
        asked.elapsed()
    };
    (0..ASKED).map(ask).max().unwrap()
}

#[test]
fn reads_of_a_long_resource_delay_no_operation_on_another() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let agent = &Agent::alone_with(directory.path(), "");
    // What is asked for next is to be accepted beside the operation that runs, not beside its start.
    eventually("the first operation runs", || {
        agent.ask("/metrics").is_some_and(|(_, metrics)| metrics.contains("cheops_runs_running 1"))
    });
    let alone = slowest(agent);

    let (stop, until) = (AtomicBool::new(false), Instant::now() + LONGEST);
    let looked: [AtomicUsize; LOOKS.len() + 1] = Default::default();
    let watched = thread::scope(|scope| {
        let stop = &stop;
        let readers: Vec<_> = looked
            .iter()
            .enumerate()
            .map(|(n, looked)| {
                scope.spawn(move || {
                    while !stop.load(Relaxed) && Instant::now() < until {
                        match LOOKS.get(n) {
                            Some((path, expected)) => look(agent, path, expected),
                            None => rehearse(agent),
                        }
                        looked.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        let watched = slowest(agent);
        // Each of them has looked while operations were asked for.
        while looked.iter().any(|looked| looked.load(Relaxed) == 0)
            && !readers.iter().any(thread::ScopedJoinHandle::is_finished)
            && Instant::now() < until
        {
            slowest(agent);
        }
        stop.store(true, Relaxed);
        watched
    });
    let looked = looked.map(AtomicUsize::into_inner);
    assert!(looked.iter().all(|&looked| looked > 0), "a reader got no answer: {looked:?}");
    assert!(watched < alone + DELAY, "{watched:?} with readers, {alone:?} without");
}
