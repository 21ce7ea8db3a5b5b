//! An agent that is killed at any moment, again and again: each operation takes effect exactly once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheops-test-runner");
const RESOURCES: u32 = 4;
const OPERATIONS: u32 = 60;
/// At least so many times.
const KILLS: usize = 60;

fn start(directory: &Path) -> Child {
    Command::new(PROGRAM)
        .arg("agent")
        .arg(directory)
        .arg(RESOURCES.to_string())
        .arg(OPERATIONS.to_string())
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for the end of a process, for some time.
fn ends_within(child: &mut Child, span: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < span {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "the agent ended with {status}");
            return true;
        }
        thread::sleep(Duration::from_micros(500));
    }
    false
}

/// Answers, of this site's own, in the agent's log.
fn done(directory: &Path) -> usize {
    let effects = |n| fs::read_to_string(directory.join(format!("work/effects-r{n}")));
    (0..RESOURCES).filter_map(|n| effects(n).ok()).map(|text| text.lines().count()).sum()
}

#[test]
fn each_operation_takes_effect_exactly_once() {
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut kills = 0;
    let start_of_all = Instant::now();
    loop {
        assert!(start_of_all.elapsed() < Duration::from_mins(5), "{} done", done(directory));
        let mut agent = start(directory);
        while !directory.join("runs/@boot").exists() {
            assert!(!ends_within(&mut agent, Duration::from_millis(1)), "no run without a note");
        }
        // While there is much to do, it gets to do about one thing; and nothing at times.
        let all = (RESOURCES * OPERATIONS) as usize;
        let life = if kills < KILLS || done(directory) < all { random.u64(0..120) } else { 60_000 };
        if ends_within(&mut agent, Duration::from_millis(life)) {
            break;
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
        kills += 1;
    }
    println!("killed {kills} times");
    assert!(kills >= KILLS, "only {kills} kills; the agent was too fast for this test");
    let expected: Vec<_> = (0..OPERATIONS).map(|n| n.to_string()).collect();
    for n in 0..RESOURCES {
        let effects = fs::read_to_string(directory.join(format!("work/effects-r{n}"))).unwrap();
        assert_eq!(effects.lines().collect::<Vec<_>>(), expected, "r{n}");
    }
    assert!(!directory.join("work/wrong").exists(), "two commands of a resource overlapped");
}
