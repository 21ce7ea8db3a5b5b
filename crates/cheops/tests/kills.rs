//! Agents are killed with SIGKILL at random moments while counters in real Redis servers are
//! incremented through them. Whatever was accepted is run once at every site, no more and no less.
//!
//! `CHEOPS_KILLS` says how many kills; 20 without it, and 8 on CouchDB.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use cheops_agent::api::model::Submit;
use field::{
    Field,
    agent::Agent,
    engine::{Engine, on_both_engines},
    redis::Redis,
    submit,
};

on_both_engines!(
    every_accepted_increment_is_run_once_at_every_site,
    a_reset_that_outlives_its_agent_is_waited_for,
);

const QUICK: &str = "[links]\nheartbeat = '200ms'\nsilence = '1s'\nretry = '300ms'";
const TABLE: &str =
    r#"{"ResolutionMatrix": [{"Before": "inc", "After": "inc", "Result": "take-both"}]}"#;
/// A `fix` wins over an `inc`, and nothing replaces: it takes `Reset`, which says that it runs and
/// waits to be let go on.
const RESETS: &str = r#"{
    "ResolutionMatrix": [
        {"Before": "inc", "After": "inc", "Result": "take-both"},
        {"Before": "fix", "After": "inc", "Result": "take-both-keep-order"},
        {"Before": "fix", "After": "fix", "Result": "take-both"}],
    "Reset": "touch resetting; until [ -e 'go on' ]; do sleep 0.02; done; rm -f {id}",
    "Timeout": "60s"}"#;
const COUNTERS: usize = 4;
/// How long a requester rests between two requests.
const REST: Duration = Duration::from_millis(30);
/// One request in so many is waited for until all sites have run it, so that what was accepted does
/// not run ahead of what was run, however long this goes on.
const WAITED_FOR: usize = 8;

fn every_accepted_increment_is_run_once_at_every_site(engine: Engine) {
    let few = if engine == Engine::CouchDb { 8 } else { 20 };
    let kills = std::env::var("CHEOPS_KILLS").map_or(few, |kills| kills.parse().unwrap());
    let mut field = Field::on(engine, 3, QUICK);
    let _redis = Redis::start(&field);
    let everywhere = field.everywhere();
    for counter in 0..COUNTERS {
        let request = Submit {
            sites: Some(everywhere.clone()),
            config: Some(serde_json::from_str(TABLE).unwrap()),
            ..submit("redis-cli -e incrby {id} 1", "inc")
        };
        field.sites[0].exec(&format!("counter-{counter}"), &request);
    }

    let stop = AtomicBool::new(false);
    let accepted = Mutex::new(BTreeMap::<usize, usize>::new());
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let requesters: Vec<Agent> = field.sites.iter().map(Agent::again).collect();
    thread::scope(|scope| {
        for site in &requesters {
            let (stop, accepted) = (&stop, &accepted);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let counter = n % COUNTERS;
                    let wait = if n % WAITED_FOR == 0 { "5s" } else { "0s" };
                    increment(site, counter, &format!("{}-{n}", site.name), wait);
                    *accepted.lock().unwrap().entry(counter).or_default() += 1;
                    thread::sleep(REST);
                }
            });
        }
        for _ in 0..kills {
            thread::sleep(Duration::from_millis(random.u64(20..500)));
            let victim = random.usize(..3);
            field.sites[victim].restart();
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (counter, count) in accepted.into_inner().unwrap() {
        let id = format!("counter-{counter}");
        let resource = field.agreed(&id, &[0, 1, 2]);
        assert_eq!(resource.summary.operation_count, count + 1, "{id}, seed {seed}");
        for site in &field.sites {
            let held = Redis::get(site, &id);
            assert_eq!(held, (count + 1).to_string(), "{id} at {}, seed {seed}", site.name);
        }
    }
}

/// A `Reset` command goes on when its agent is killed. The next agent runs nothing else of the
/// resource before it has ended, although another site has replaced the configuration meanwhile:
/// otherwise `Reset` would empty what the next operation has written.
fn a_reset_that_outlives_its_agent_is_waited_for(engine: Engine) {
    let mut field = Field::on(engine, 2, QUICK);
    let everywhere = Some(field.everywhere());
    let request = |line: &str, kind: &str| Submit {
        sites: everywhere.clone(),
        wait: Some("0s".into()),
        ..submit(line, kind)
    };
    let config = serde_json::from_str(RESETS).unwrap();
    let first = Submit { config: Some(config), ..request("echo first >> {id}", "inc") };
    field.sites[0].exec("r", &first);
    field.agreed("r", &[0, 1]);
    field.cut();
    field.sites[0].exec("r", &request("echo lost >> {id}", "inc"));
    field.sites[1].exec("r", &request("echo kept >> {id}", "fix"));
    field.heal();
    let work = field.sites[0].work();
    field::eventually("the Reset command runs", || work.join("resetting").exists());

    let plain = serde_json::from_str(r#"{"ResolutionMatrix": []}"#).unwrap();
    let replaces =
        Submit { config: Some(plain), force: true, ..request("echo replaced > {id}", "set") };
    field.sites[1].exec("r", &replaces);
    field.sites[0].wait_for("r", "the operation that replaces arrives", |resource| {
        resource.summary.operation_count == 4
    });
    field.sites[0].restart();
    // What the agent would run at once has run when something else has.
    let other = Submit { sites: Some(field.sites[0].name.clone()), ..submit("true", "set") };
    let ran = field.sites[0].exec("other", &other);
    assert!(field::all_ok(&ran, 1), "{ran:?}");
    std::fs::write(work.join("go on"), "").unwrap();
    field.agreed("r", &[0, 1]);
    for site in &field.sites {
        let text = field::read(&site.work().join("r"));
        assert_eq!(text.as_deref(), Some("replaced\n"), "at {}", site.name);
    }
}

/// Asks until the answer is yes. The key sees to it that asking again is not asking twice.
fn increment(site: &Agent, counter: usize, key: &str, wait: &str) {
    let request = Submit {
        wait: Some(wait.into()),
        key: Some(key.into()),
        ..submit("redis-cli -e incrby {id} 1", "inc")
    };
    field::eventually("an increment is accepted", || {
        site.try_exec(&format!("counter-{counter}"), &request).is_ok()
    });
}
