//! Hooks that fail while operations come in: these take as long as without hooks, what waits is bounded,
//! and hooks that work are not held up.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::{
    at,
    field::{agent::Agent, all_ok, eventually},
    hook,
    receiver::{Mood, Receiver},
};

/// The rounds of operations, and how many are in each.
const ROUNDS: (usize, usize) = (12, 12);
/// How many events a hook keeps.
const KEEP: usize = 50;

fn alone(directory: &Path, name: &str, settings: &str) -> Agent {
    let place = directory.join(name);
    std::fs::create_dir(&place).unwrap();
    Agent::alone_with(&place, &format!("work = 'work'\n{settings}"))
}

/// How long some operations take, one after the other.
fn round(site: &Agent, round: usize) -> Duration {
    let start = Instant::now();
    for n in 0..ROUNDS.1 {
        assert!(all_ok(&site.exec(&format!("r{round}-{n}"), &at("site1", "true")), 1));
    }
    start.elapsed()
}

#[test]
fn operations_take_as_long_as_without_hooks() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    receiver.feel(Mood::Hang);
    let settings = format!(
        "[[hook]]\nname = 'hangs'\nurl = 'http://{}/'\ntimeout = '10m'\nkeep = {KEEP}\n[[hook]]\nname = 'fails'\ncommand = 'false'\nretry = '500ms'\nkeep = {KEEP}\n",
        receiver.address
    );
    let told = alone(directory.path(), "told", &settings);
    let bare = alone(directory.path(), "bare", "");
    // What is slow the first time is so for both.
    round(&told, ROUNDS.0);
    round(&bare, ROUNDS.0);
    // In turns, and each pair for itself: others share the machine. What it costs without them is in
    // docs/hooks.md.
    let pair = |n| round(&told, n).as_secs_f64() / round(&bare, n).as_secs_f64();
    let mut ratios: Vec<f64> = (0..ROUNDS.0).map(pair).collect();
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[ratios.len() / 2] < 2.0, "with hooks, as many times as without: {ratios:.2?}");
    for name in ["hangs", "fails"] {
        let expected = 4 * (ROUNDS.0 + 1) * ROUNDS.1;
        eventually("all events are there, or dropped", || {
            let hook = hook(&told, name);
            assert!(hook.waiting <= KEEP, "{hook:?}");
            hook.waiting == KEEP && hook.dropped == (expected - KEEP) as u64
        });
    }
    assert_eq!(receiver.received().len(), 1, "one at a time");
    let more = told.memory("VmRSS").saturating_sub(bare.memory("VmRSS"));
    assert!(more < 64 << 10, "{more} kB more with hooks");
}

#[test]
fn a_hook_that_hangs_holds_up_no_other_and_gets_all_in_order_later() {
    let (directory, good, bad) =
        (tempfile::tempdir().unwrap(), Receiver::start(), Receiver::start());
    let way = |name: &str, receiver: &Receiver| {
        format!(
            "[[hook]]\nname = '{name}'\non = ['operation.*']\nurl = 'http://{}/'\ntimeout = '1s'\nretry = '1s'\n",
            receiver.address
        )
    };
    let site = Agent::alone_with(directory.path(), &(way("bad", &bad) + &way("good", &good)));
    bad.feel(Mood::Hang);
    for n in 0..10 {
        site.exec(&format!("r{n}"), &at("site1", "true"));
        eventually("who listens hears it", || good.told().len() == 3 * (n + 1));
    }
    assert!(bad.told().is_empty());
    // It is tried all the time, with a pause that stays short.
    let tries = bad.received().len();
    eventually("it is tried", || bad.received().len() >= tries + 2);
    bad.feel(Mood::Answer(503));
    eventually("it fails in another way", || bad.received().len() >= tries + 4);
    let pauses = bad.received();
    let pauses = pauses.windows(2).map(|two| two[1].at.saturating_duration_since(two[0].at));
    let longest = pauses.max().unwrap();
    assert!(longest < Duration::from_secs(10), "{longest:?}");
    bad.feel(Mood::Answer(200));
    eventually("it hears all", || bad.told().len() == 30);
    let ids = |receiver: &Receiver| receiver.told().into_iter().map(|e| e.id).collect::<Vec<_>>();
    assert_eq!(ids(&bad), ids(&good), "in the same order");
    assert_eq!(hook(&site, "bad").dropped, 0);
}

#[test]
fn a_sample_that_arrives_ends_the_pause() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    receiver.feel(Mood::Answer(503));
    let settings = format!(
        "[[hook]]\nname = 'ops'\non = ['operation.ran']\nurl = 'http://{}/'\nretry = '1h'\n",
        receiver.address
    );
    let site = Agent::alone_with(directory.path(), &settings);
    site.exec("web", &at("site1", "true"));
    // The pause after these is six seconds or more.
    eventually("some attempts fail", || receiver.received().len() >= 5);
    receiver.feel(Mood::Answer(200));
    let start = Instant::now();
    assert!(super::sample(&site, "ops").delivered);
    eventually("it is told", || hook(&site, "ops").delivered == 1);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
