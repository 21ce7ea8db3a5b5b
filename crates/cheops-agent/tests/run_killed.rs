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
const KILLS: usize = 100;

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

#[test]
fn each_operation_takes_effect_exactly_once() {
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let mut kills = 0;
    while kills < KILLS {
        kills += one_story(&mut random);
    }
    println!("killed {kills} times");
}

/// Whether an agent has noted which boot this is, to the end of the line.
fn is_noted(directory: &Path) -> bool {
    fs::read_to_string(directory.join("runs/@boot")).is_ok_and(|note| note.ends_with('\n'))
}

/// An agent does all that there is to do, however often it is killed; says how often it was.
fn one_story(random: &mut fastrand::Rng) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut kills = 0;
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_mins(2), "{kills} kills, and no end");
        let mut agent = start(directory);
        // A site that was never there before takes nothing for certain.
        while !is_noted(directory) {
            assert!(!ends_within(&mut agent, Duration::from_millis(1)), "it ran without a note");
        }
        // Some lives are too short for anything, some end in the middle of it. On a machine that is
        // slow they get longer, or there would be no end.
        let longest = random.choice([5, 20, 100]).unwrap() * (1 + kills as u64 / KILLS as u64);
        if ends_within(&mut agent, Duration::from_micros(random.u64(0..longest * 1_000))) {
            break;
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
        kills += 1;
    }
    let expected: Vec<_> = (0..OPERATIONS).map(|n| n.to_string()).collect();
    for n in 0..RESOURCES {
        let effects = fs::read_to_string(directory.join(format!("work/effects-r{n}"))).unwrap();
        assert_eq!(effects.lines().collect::<Vec<_>>(), expected, "r{n}");
    }
    assert!(!directory.join("work/wrong").exists(), "two commands of a resource overlapped");
    kills
}
