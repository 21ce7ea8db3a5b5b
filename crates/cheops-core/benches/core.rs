//! What the core costs: reading a scope, deciding a route, adding an operation, planning, memory.
//!
//! Prints a table, with each number's limit and its ratio to something that anyone can judge: the
//! same keys put into a `BTreeMap`. Rounds are interleaved and the median is taken, since machines
//! are noisy. `cargo bench -p cheops-core --bench core`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and fails by panic")]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_core::{
    Rules,
    id::{OpId, ResourceId, ServiceName, SiteId, Sites},
    log::Log,
    matrix::{Config, Matrix},
    operation::{Action, Operation},
    plan::{Journal, Outcome, Step},
    replica::{Effect, Input, Message, Replica, Report, Settings, Submission, Ticket},
    resolve::Resolution,
    route::{self, Access},
    scope::{self, Catalogue},
    time::{Millis, Now, Timestamp},
};

const SITES: usize = 10;
/// The sites are cut off from each other for so many operations, then all hear of all.
const CUT: usize = 1_000;
const WEIGHT: usize = 300;

fn main() {
    row("what", "measured", "limit", "");
    let incs = matrix(r#"{"Before": "inc", "After": "inc", "Result": "take-both"}"#);
    // First, before the other rounds have left the allocator with memory to give away.
    memory(&incs);
    scopes();
    adding("add an operation: all stay", &incs, 0);
    let sets = matrix(
        r#"{"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
           {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
           {"Before": "set", "After": "set", "Result": "take-one"},
           {"Before": "inc", "After": "inc", "Result": "take-both"}"#,
    );
    adding("add an operation: 1 of 50 replaces", &sets, 50);
    let both = matrix(
        r#"{"Before": "set", "After": "inc", "Result": "take-both-keep-order", "Concurrent": "take-both"},
           {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
           {"Before": "set", "After": "set", "Result": "take-one"},
           {"Before": "inc", "After": "inc", "Result": "take-both"}"#,
    );
    adding("add an operation: 1 of 2000 replaces, entries order", &both, 2_000);
    planning(&incs);
    handling();
}

fn row(what: &str, measured: &str, limit: &str, note: &str) {
    println!("{what:<66} {measured:>10} {limit:>10}  {note}");
}

fn matrix(entries: &str) -> Matrix {
    Config::from_json(&format!("{{\"ResolutionMatrix\": [{entries}]}}")).unwrap().matrix
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Nanoseconds for each of so many calls: the median of some rounds.
fn nanoseconds(calls: u32, mut call: impl FnMut()) -> f64 {
    median(
        (0..9)
            .map(|_| {
                let start = Instant::now();
                (0..calls).for_each(|_| call());
                start.elapsed().as_nanos() as f64 / f64::from(calls)
            })
            .collect(),
    )
}

fn scopes() {
    let text = "compute: dc1, image: dc1 & dc2";
    let parse = nanoseconds(100_000, || {
        black_box(scope::parse(black_box(text)).unwrap());
    });
    row("parse a typical scope", &format!("{parse:.0} ns"), "2000 ns", text);
    let parsed = scope::parse(text).unwrap();
    let sites: Vec<SiteId> = ["dc1", "dc2", "dc3"].map(|name| name.parse().unwrap()).into();
    let catalogue = Catalogue::new(sites.iter().cloned());
    let service: ServiceName = "image".parse().unwrap();
    let decide = nanoseconds(100_000, || {
        black_box(route::decide(&parsed, &service, Access::Write, &sites[2], &catalogue).unwrap());
    });
    row("decide the route of a request", &format!("{decide:.0} ns"), "", "");
}

/// A history as one site hears it: operations of all sites, made apart during cuts and heard of at
/// the end of each, one site after the other. Names are shared, as the agent shares them.
struct History {
    sites: Vec<SiteId>,
    kinds: [cheops_core::id::Kind; 2],
    resource: ResourceId,
    author: cheops_core::id::Author,
    line: Box<str>,
    heads: Vec<OpId>,
    number: u64,
    time: u64,
    /// One of so many operations is a `set`; none if 0.
    sets: u64,
}

impl History {
    fn new(sets: u64) -> Self {
        let mut this = Self {
            sites: (0..SITES).map(|n| format!("site{n:02}").parse().unwrap()).collect(),
            kinds: ["inc".parse().unwrap(), "set".parse().unwrap()],
            resource: "counter-of-visitors".parse().unwrap(),
            author: "operator".parse().unwrap(),
            line: Box::default(),
            heads: Vec::new(),
            number: 0,
            time: 0,
            sets,
        };
        let lacks = WEIGHT - this.operation(0, Vec::new(), 0).weight();
        this.line = "x".repeat(lacks).into();
        this
    }

    fn operation(&self, site: usize, parents: Vec<OpId>, time: u64) -> Operation {
        let set = self.sets > 0 && self.number % self.sets == self.sets - 1;
        Operation {
            id: OpId { site: self.sites[site].clone(), number: self.number },
            resource: self.resource.clone(),
            kind: self.kinds[usize::from(set)].clone(),
            author: self.author.clone(),
            at: Timestamp::at(Millis(time)),
            parents: parents.into(),
            action: Action::command(self.line.clone()),
            // The append rule, for these kinds: a set on anything starts afresh.
            reset: set,
            keep_going: false,
            key: None,
            declares: None,
        }
    }

    /// The operations of one cut, in the order in which one site hears them.
    fn cut(&mut self) -> Vec<Arc<Operation>> {
        let mut heard = Vec::with_capacity(CUT);
        let mut heads = Vec::new();
        for site in 0..SITES {
            let mut parents = self.heads.clone();
            for n in 0..CUT / SITES {
                self.number += 1;
                // All sites work at the same pace.
                let time = self.time + (n * SITES + site) as u64;
                let op = self.operation(site, std::mem::take(&mut parents), time);
                parents = vec![op.id.clone()];
                heard.push(Arc::new(op));
            }
            heads.extend(parents);
        }
        self.time += CUT as u64;
        self.heads = heads;
        heard
    }
}

fn add(log: &mut Log, resolution: &mut Resolution, op: &Arc<Operation>) {
    let ix = log.insert(op.clone()).unwrap();
    black_box(resolution.add(log, ix));
}

/// Nanoseconds to add an operation to a log of about 1,000, to one of a million, and to put the
/// same keys into a map of a million.
fn adding(what: &str, matrix: &Matrix, sets: u64) {
    let small = median(
        (0..9)
            .map(|_| {
                let mut history = History::new(sets);
                let (mut log, mut resolution) = empty(matrix);
                let cuts: Vec<_> = (0..2).map(|_| history.cut()).collect();
                let start = Instant::now();
                for op in cuts.iter().flatten() {
                    add(&mut log, &mut resolution, op);
                }
                start.elapsed().as_nanos() as f64 / (2 * CUT) as f64
            })
            .collect(),
    );
    let mut history = History::new(sets);
    let (mut log, mut resolution) = empty(matrix);
    let mut keys = BTreeMap::new();
    let (mut samples, mut map_samples) = (Vec::new(), Vec::new());
    while log.len() < 1_000_000 {
        let cut = history.cut();
        let start = Instant::now();
        for op in &cut {
            add(&mut log, &mut resolution, op);
        }
        let spent = start.elapsed().as_nanos() as f64 / CUT as f64;
        let start = Instant::now();
        for op in &cut {
            keys.insert((op.at, op.id.site.clone(), op.id.number), op.clone());
        }
        let map_spent = start.elapsed().as_nanos() as f64 / CUT as f64;
        if log.len() > 900_000 {
            samples.push(spent);
            map_samples.push(map_spent);
        }
    }
    black_box(&keys);
    let large = samples.iter().sum::<f64>() / samples.len() as f64;
    let map = map_samples.iter().sum::<f64>() / map_samples.len() as f64;
    row(&format!("{what}, to 1,000"), &format!("{small:.0} ns"), "", "");
    let note =
        format!("x{:.1} of 1,000 (limit 3), x{:.1} of a BTreeMap", large / small, large / map);
    row(&format!("{what}, to 1,000,000"), &format!("{large:.0} ns"), "5000 ns", &note);
}

fn empty(matrix: &Matrix) -> (Log, Resolution) {
    (Log::default(), Resolution::new(Rules::new(matrix)))
}

/// Adding, planning and running, one by one: what a site does for each operation that it hears of.
fn planning(matrix: &Matrix) {
    let mut history = History::new(0);
    let (mut log, mut resolution) = empty(matrix);
    let mut journal = Journal::default();
    let mut samples = Vec::new();
    while log.len() < 200_000 {
        let cut = history.cut();
        let start = Instant::now();
        for op in &cut {
            let ix = log.insert(op.clone()).unwrap();
            journal.changed(resolution.add(&log, ix).from);
            while let Step::Run { op, fresh } = journal.next(&log, &resolution, false) {
                journal.ran(op, fresh, Outcome::Ok);
            }
        }
        samples.push(start.elapsed().as_nanos() as f64 / CUT as f64);
    }
    let each = median(samples);
    row("add and plan, one by one, at 200,000", &format!("{each:.0} ns"), "", "");
}

/// What a site does for each operation that it is asked for, from the request to its own reply, and
/// what another does that hears of both: all of `Replica::handle`, without disk, network and command.
fn handling() {
    const ASKED: u32 = 20_000;
    let names: Vec<SiteId> = ["a", "b"].map(|name| name.parse().unwrap()).into();
    let replica = |n: usize| Replica::new(names[n].clone(), Settings::default());
    let (mut near, mut far) = (replica(0), replica(1));
    near.handle(Input::PeerUp(names[1].clone()), Now::default());
    let submission = || Submission {
        ticket: Ticket(1),
        resource: "r".parse().unwrap(),
        sites: Some(Sites::new(names.clone()).unwrap()),
        config: None,
        kind: "inc".parse().unwrap(),
        author: "operator".parse().unwrap(),
        action: Action::command("x".repeat(200)),
        force: false,
        keep_going: false,
        key: None,
        wait: Millis(0),
    };
    let (mut asked, mut heard) = (Duration::ZERO, Duration::ZERO);
    for n in 0..ASKED {
        let now = Now { wall: Millis(u64::from(n)), steady: Millis(u64::from(n)) };
        let start = Instant::now();
        let mut sent = serve(&mut near, Input::Submit(Box::new(submission())), now);
        near.handle(Input::Tick, now);
        asked += start.elapsed();
        let start = Instant::now();
        for message in sent.drain(..) {
            let from = names[0].clone();
            serve(&mut far, Input::Received { from, message }, now);
        }
        heard += start.elapsed();
    }
    let each = |spent: Duration| format!("{:.0} ns", spent.as_nanos() as f64 / f64::from(ASKED));
    row("a site is asked: request, run and reply", &each(asked), "", "");
    row("another hears of it: operation, reply, run and its own reply", &each(heard), "", "");
}

/// Gives a site an input, lets what it runs succeed at once, and returns what it sends.
fn serve(replica: &mut Replica, input: Input, now: Now) -> Vec<Message> {
    let mut sent = Vec::new();
    let mut inputs = vec![input];
    while let Some(input) = inputs.pop() {
        for effect in replica.handle(input, now) {
            match effect {
                Effect::Send { message, .. } => sent.push(message),
                Effect::Run { run, .. } => {
                    let report = Report {
                        outcome: Outcome::Ok,
                        took: Millis(1),
                        output: Box::default(),
                        made: None,
                    };
                    inputs.push(Input::Ran { run, report });
                }
                other => drop(black_box(other)),
            }
        }
    }
    sent
}

fn memory(matrix: &Matrix) {
    let before = resident();
    let mut history = History::new(0);
    let (mut log, mut resolution) = empty(matrix);
    while log.len() < 1_000_000 {
        for op in history.cut() {
            add(&mut log, &mut resolution, &op);
        }
    }
    let each = resident().saturating_sub(before) as f64 / log.len() as f64;
    let weight = log.iter().next().unwrap().1.weight() as f64;
    black_box(&resolution);
    row(
        "resident memory an operation, at 1,000,000",
        &format!("{each:.0} B"),
        &format!("{:.0} B", 2.0 * weight),
        &format!("x{:.2} of its {weight:.0} bytes", each / weight),
    );
}

/// Resident memory of this process, in bytes; 0 where the system does not say.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    kilobytes.unwrap_or(0) * 1024
}
