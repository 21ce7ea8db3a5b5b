//! The experiments of the report, with real packets, real files and real Redis servers: three sites,
//! each operation at another site, one after the other or while all links are cut. Each is played
//! at least twenty times, with other moments each time, and the values are what counts, not only
//! that the sites agree.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{thread, time::Duration};

use cheops_agent::api::model::{Fate, RunStatus, Submit};
use field::{
    Field, all_ok,
    engine::{Engine, on_both_engines},
    read,
    redis::Redis,
    submit,
};

on_both_engines!(
    one_after_the_other_on_files_and_redis,
    concurrent_on_files_and_redis_with_and_without_one_that_fails,
    nothing_is_lost_where_the_matrix_takes_both,
);

/// How often each experiment is done. What is slower is done less often: the rounds differ in their cuts alone.
fn rounds(field: &Field) -> usize {
    if field.databases.is_some() { 8 } else { 20 }
}

/// Settings under which a cut is noticed soon.
const QUICK: &str = "[links]\nheartbeat = '100ms'\nsilence = '400ms'\nretry = '200ms'";

/// The report's table 5, for an integer in Redis, and table 6, for a file.
const TABLE_5: &str = r#"{"ResolutionMatrix": [
    {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
    {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "inc", "After": "inc", "Result": "take-both"}]}"#;
const TABLE_6: &str = r#"{"ResolutionMatrix": [
    {"Before": "set", "After": "add", "Result": "take-both-keep-order"},
    {"Before": "add", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "set", "Result": "take-one"}]}"#;

/// An application, and what is done to it at each site.
struct Experiment {
    name: &'static str,
    table: &'static str,
    first: (&'static str, &'static str),
    /// A command and its kind, for each site.
    then: [(&'static str, &'static str); 3],
    /// Which of them is the one that wins when all are concurrent.
    winner: usize,
    /// Which of them fails.
    fails: Option<usize>,
    in_redis: bool,
    expected: &'static str,
}

const FILES: Experiment = Experiment {
    name: "file",
    table: TABLE_6,
    first: ("echo begin > {id}", "set"),
    then: [
        ("echo left >> {id}", "add"),
        ("echo middle > {id}", "set"),
        ("echo right >> {id}", "add"),
    ],
    winner: 1,
    fails: None,
    in_redis: false,
    expected: "middle\n",
};

const REDIS: Experiment = Experiment {
    name: "redis",
    table: TABLE_5,
    first: ("redis-cli -e set {id} 1", "set"),
    then: [
        ("redis-cli -e set {id} 29", "set"),
        ("redis-cli -e incrby {id} 13", "inc"),
        ("redis-cli -e incrby {id} -12", "inc"),
    ],
    winner: 0,
    fails: None,
    in_redis: true,
    expected: "29",
};

impl Experiment {
    fn id(&self, round: usize) -> String {
        format!("{}-{round}", self.name)
    }

    fn create(&self, field: &Field, round: usize) {
        let (command, kind) = self.first;
        let request = Submit {
            sites: Some(field.everywhere()),
            config: Some(serde_json::from_str(self.table).unwrap()),
            ..submit(command, kind)
        };
        let created = field.sites[round % 3].exec(&self.id(round), &request);
        assert!(all_ok(&created, 3), "{created:?}");
    }

    /// What each site holds in the end.
    fn holds(&self, field: &Field, round: usize, expected: &str) {
        for site in &field.sites {
            let id = self.id(round);
            let held = if self.in_redis {
                Redis::get(site, &id)
            } else {
                read(&site.work().join(&id)).unwrap_or_default()
            };
            assert_eq!(held, expected, "{id} at {}", site.name);
        }
    }

    fn one_after_the_other(&self, field: &Field, expected: &str) {
        for round in 0..rounds(field) {
            self.create(field, round);
            for (site, (command, kind)) in field.sites.iter().zip(self.then) {
                let submitted = site.exec(&self.id(round), &submit(command, kind));
                assert!(all_ok(&submitted, 3), "{submitted:?}");
            }
            let resource = field.agreed(&self.id(round), &[0, 1, 2]);
            assert_eq!(resource.operations.len(), 4);
            self.holds(field, round, expected);
        }
    }

    /// Each operation at its own site, at a moment of its own.
    fn all_at_once(&self, field: &Field, round: usize, random: &mut fastrand::Rng) {
        let id = &self.id(round);
        thread::scope(|scope| {
            for (site, (command, kind)) in field.sites.iter().zip(self.then) {
                let pause = Duration::from_micros(random.u64(..20_000));
                scope.spawn(move || {
                    thread::sleep(pause);
                    let request = Submit { wait: Some("0s".into()), ..submit(command, kind) };
                    site.exec(id, &request);
                });
            }
        });
    }

    /// All is known, run and answered everywhere, and the losers have receipts.
    fn converged(&self, field: &Field, round: usize) {
        let resource = field.agreed(&self.id(round), &[0, 1, 2]);
        let id = &resource.summary.id;
        assert_eq!(resource.operations.len(), 4, "{id}");
        let winner = format!("site{}", self.winner + 1);
        for op in resource.operations.iter().filter(|op| op.command != self.first.0) {
            let origin = op.id.split(':').next().unwrap();
            let fails = self.fails.is_some_and(|n| origin == format!("site{}", n + 1));
            if origin == winner {
                assert_eq!(op.fate, Fate::Kept, "{id}: {op:?}");
                assert!(op.runs.iter().all(|run| run.status == RunStatus::Ok), "{id}: {op:?}");
            } else {
                let expected = if fails { Fate::Void } else { Fate::Fallen };
                assert_eq!(op.fate, expected, "{id}: {op:?}");
                assert!(op.receipt.as_ref().is_some_and(|r| !r.why.is_empty()), "{id}: {op:?}");
                let at_origin = op.runs.iter().find(|run| run.site == origin).unwrap();
                let expected = if fails { RunStatus::Ko } else { RunStatus::Ok };
                assert_eq!(at_origin.status, expected, "{id}: {op:?}");
            }
        }
        self.holds(field, round, self.expected);
    }
}

fn one_after_the_other_on_files_and_redis(engine: Engine) {
    let field = Field::on(engine, 3, QUICK);
    let _redis = Redis::start(&field);
    FILES.one_after_the_other(&field, "middle\nright\n");
    REDIS.one_after_the_other(&field, "30");
}

fn concurrent_on_files_and_redis_with_and_without_one_that_fails(engine: Engine) {
    let failing_file = Experiment {
        name: "file-fails",
        then: [FILES.then[0], FILES.then[1], ("echo right >> {id}/subfile", "add")],
        fails: Some(2),
        ..FILES
    };
    let failing_redis = Experiment {
        name: "redis-fails",
        then: [REDIS.then[0], REDIS.then[1], ("redis-cli -e sadd {id} 12", "inc")],
        fails: Some(2),
        ..REDIS
    };
    let experiments = [FILES, REDIS, failing_file, failing_redis];

    let field = Field::on(engine, 3, QUICK);
    let _redis = Redis::start(&field);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..rounds(&field) {
        for experiment in &experiments {
            experiment.create(&field, round);
        }
        field.net.cut_all();
        if random.bool() {
            field.wait_until_apart();
        }
        for experiment in &experiments {
            experiment.all_at_once(&field, round, &mut random);
        }
        thread::sleep(Duration::from_millis(random.u64(..600)));
        field.net.heal();
        for experiment in &experiments {
            experiment.converged(&field, round);
        }
    }
}

/// With `"Concurrent": "take-both"` in table 5 nothing is lost, and the sites agree on 30.
fn nothing_is_lost_where_the_matrix_takes_both(engine: Engine) {
    let table = TABLE_5.replace(
        r#""After": "inc", "Result": "take-both-keep-order""#,
        r#""After": "inc", "Result": "take-both-keep-order", "Concurrent": "take-both""#,
    );
    let both = Experiment { name: "both", table: Box::leak(table.into_boxed_str()), ..REDIS };
    let field = Field::on(engine, 3, QUICK);
    let _redis = Redis::start(&field);
    let mut random = fastrand::Rng::new();
    for round in 0..rounds(&field) {
        both.create(&field, round);
        field.net.cut_all();
        both.all_at_once(&field, round, &mut random);
        field.net.heal();
        let resource = field.agreed(&both.id(round), &[0, 1, 2]);
        assert_eq!(resource.block_ids.len(), 4);
        both.holds(&field, round, "30");
    }
}
