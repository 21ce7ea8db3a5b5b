//! How long a start takes on CouchDB, and where the time goes, by the length of the history.
//!
//! The server is one in memory that answers at once: what is measured is the engine, and the replica that is made of
//! what it reads. `cargo bench -p cheops-agent --bench couchdb`; with `-- 1000000` as the number of operations (100,000
//! otherwise), and with `-- 1000000 replies` if each of them has a reply.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench prints, and fails by panic"
)]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

use std::{
    collections::BTreeMap,
    fs,
    ops::RangeInclusive,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_agent::{
    config,
    engine::{Engine as _, Opened as _, couchdb::CouchDb},
    wire::{self, Names},
};
use cheops_core::{
    id::{OpId, ResourceId, SiteId, Sites},
    matrix::Config,
    operation::Declaration,
    plan::Outcome,
    replica::{Durable, Record, Replica, Reply, Settings},
    time::Millis,
};

use rustix::time::{ClockId, clock_gettime};

#[path = "../tests/couch/mod.rs"]
mod couch;
#[path = "../tests/storage/mod.rs"]
mod storage;

use couch::memory::Memory;

/// The one of an agent.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const RESOURCES: u64 = 1_000;
/// How many operations a batch has.
const BATCH: u64 = 500;

fn main() {
    let operations = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(100_000);
    let history =
        History { operations, replies: std::env::args().skip(1).any(|word| word == "replies") };
    let replies = if history.replies { ", each with a reply" } else { "" };
    println!(
        "{operations} operations of 500 bytes{replies}, {RESOURCES} resources, one site: time, and processor time"
    );
    parts(history);
    let server = Memory::start();
    let couch = couch::Couch::at_address(server.address);
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    row("written", fill(&couch.config, data.path(), history));
    server.follow(&couch.config.database, &couch.config.local());
    let snapshot = data.path().join("couchdb/snapshot");
    for round in 1..=3 {
        // There may be none yet.
        let _ = fs::remove_file(&snapshot);
        println!("start {round} without a snapshot");
        start(&couch.config, data.path(), history);
    }
    let begin = Begin::now();
    CouchDb::open(&couch.config, here(), data.path()).unwrap().snapshot().unwrap();
    row("a snapshot made of all", begin.elapsed());
    let length = fs::metadata(&snapshot).unwrap().len();
    println!("  {:<44} {:>8.0} MB", "its length", length as f64 / 1e6);
    let starts = (1..=3).map(|round| {
        println!("start {round} with a snapshot");
        start(&couch.config, data.path(), history)
    });
    let best = starts.min_by_key(|span| span.took).unwrap();
    row("the best of them (limit: 2 s for 1,000,000)", best);
}

fn row(what: &str, span: Span) {
    let (took, cpu) = (span.took.as_secs_f64(), span.cpu.as_secs_f64());
    println!("  {what:<44} {took:>8.2} s {cpu:>8.2} s");
}

/// How long something took, and how much of the processors all threads have used meanwhile: those of the server, too.
/// On a machine that others use, only the latter says something.
#[derive(Clone, Copy)]
struct Span {
    took: Duration,
    cpu: Duration,
}

/// When something began.
struct Begin(Instant, Duration);

impl Begin {
    fn now() -> Self {
        Self(Instant::now(), used())
    }

    fn elapsed(&self) -> Span {
        Span { took: self.0.elapsed(), cpu: used().saturating_sub(self.1) }
    }
}

fn used() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap())
}

fn here() -> SiteId {
    "here".parse().unwrap()
}

/// What no engine can do without: to decode the values, and to make the replica of them.
fn parts(history: History) {
    let encoded: Vec<Vec<u8>> =
        history.values().map(|n| wire::encode_durable(&history.value(n)).unwrap()).collect();
    let begin = Begin::now();
    let mut names = Names::default();
    let decoded: Vec<Durable> =
        encoded.iter().map(|bytes| wire::decode_durable(bytes, &mut names).unwrap()).collect();
    row("decoding alone, one thread", begin.elapsed());
    let begin = Begin::now();
    let replica = Replica::restore(here(), Settings::default(), decoded);
    row("Replica::restore alone", begin.elapsed());
    history.assert_is(&replica);
}

fn fill(config: &config::CouchDb, data: &Path, history: History) -> Span {
    let count = *history.values().end();
    let begin = Begin::now();
    let mut engine = CouchDb::open(config, here(), data).unwrap();
    let mut next = 1;
    while next <= count {
        let batch: Vec<_> =
            (next..=count.min(next + BATCH - 1)).map(|n| history.value(n)).collect();
        next = engine.append(&batch).unwrap() + 1;
    }
    engine.tend().unwrap();
    let written = begin.elapsed();
    engine.snapshot().unwrap();
    written
}

fn start(config: &config::CouchDb, data: &Path, history: History) -> Span {
    let (all, begin) = (Begin::now(), Begin::now());
    let mut engine = CouchDb::open(config, here(), data).unwrap();
    row("the databases opened", begin.elapsed());
    let begin = Begin::now();
    let strays = engine.strays().unwrap();
    row("looked for what was not acknowledged", begin.elapsed());
    let begin = Begin::now();
    let mut read = 0;
    let written = engine.written().map(Result::unwrap).inspect(|_| read += 1);
    let replica = Replica::restore(here(), Settings::default(), written);
    row("all read, and the replica made", begin.elapsed());
    let restored = all.elapsed();
    row("in all", restored);
    assert_eq!((read, strays.len()), (*history.values().end(), 0));
    history.assert_is(&replica);
    restored
}

/// What a site has written.
#[derive(Clone, Copy)]
struct History {
    operations: u64,
    /// Whether each operation has a reply, which is written right after it.
    replies: bool,
}

impl History {
    /// The numbers of all values.
    fn values(self) -> RangeInclusive<u64> {
        1..=self.operations * if self.replies { 2 } else { 1 }
    }

    /// Checks that a replica has all of it.
    fn assert_is(self, replica: &Replica) {
        let (mut operations, mut waiting) = (0, 0);
        for resource in replica.resources() {
            operations += resource.log().len() as u64;
            waiting += resource.waiting();
        }
        assert_eq!((operations, waiting), (self.operations, 0));
        assert_eq!(replica.resources().count() as u64, RESOURCES.min(self.operations));
    }

    /// A value by its number.
    fn value(self, number: u64) -> Durable {
        if !self.replies {
            return operation(number, number.div_ceil(RESOURCES), 1);
        }
        let n = number.div_ceil(2);
        let own = 2 * n.div_ceil(RESOURCES);
        if number.is_multiple_of(2) { reply(n, own) } else { operation(n, own - 1, 2) }
    }
}

fn resource(n: u64) -> ResourceId {
    format!("resource-{}", n % RESOURCES).parse().unwrap()
}

/// An operation, with the number of its record, and how much lower that of the operation before it is. Each is of this
/// site; the first of a resource declares it.
fn operation(n: u64, own: u64, apart: u64) -> Durable {
    let durable = storage::operation_of(own, "here", &resource(n));
    let Durable::Record(Record::Operation(op), seal) = durable else { panic!("an operation") };
    let mut op = (*op).clone();
    if own == 1 {
        let sites = Sites::new([here()]).unwrap();
        let (config, base) = (Config::default(), BTreeMap::new());
        op.declares = Some(Box::new(Declaration { sites, config: config.into(), base }));
    } else {
        op.parents = [OpId { site: here(), number: own - apart }].into();
    }
    Durable::Record(Record::Operation(Arc::new(op)), seal)
}

/// The reply to an operation, with the number of its record.
fn reply(n: u64, own: u64) -> Durable {
    let reply = Reply {
        id: OpId { site: here(), number: own },
        resource: resource(n),
        op: OpId { site: here(), number: own - 1 },
        attempt: 1,
        outcome: Outcome::Ok,
        era: 0,
        took: Millis(3),
        output: "done".into(),
        made: None,
    };
    Durable::Record(Record::Reply(Arc::new(reply)), None)
}
