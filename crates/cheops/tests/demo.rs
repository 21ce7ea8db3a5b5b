//! The demo: three real agents on this machine, and what is left of them afterwards.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

fn demo(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cheops"));
    command.arg("demo").args(arguments).env("TMPDIR", temporary);
    command
}

/// The processes whose command line names a directory.
fn processes_in(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = all.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(directory)).collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn the_tour_ends_with_sites_that_agree_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), &["--tour"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{text}");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.ends_with("All 3 sites agree with what was expected.\n"), "{text}");
    assert!(is_empty(temporary.path()));
    assert!(processes_in(temporary.path()).is_empty());
}

/// A demo that is ready; the address of its first site.
fn ready(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let export = lines.by_ref().find(|line| line.contains("export CHEOPS_AGENT=")).unwrap();
    // The rest is read, so that the demo can write it.
    lines.find(|line| line.contains("Ctrl-C"));
    (child, export.split_once('=').unwrap().1.to_owned())
}

#[test]
fn the_demo_stops_with_ctrl_c() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, agent) = ready(&mut demo(temporary.path(), &[]));
    assert_eq!(processes_in(temporary.path()).len(), 3);
    let list = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["get", "sites", "-o", "name", "--agent", &agent])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(list.stdout).unwrap(), "site/site1\nsite/site2\nsite/site3\n");

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(is_empty(temporary.path()));
    assert!(processes_in(temporary.path()).is_empty());
}

#[test]
fn a_demo_that_is_killed_takes_its_agents_along() {
    let kept = tempfile::tempdir().unwrap();
    let directory = kept.path().to_str().unwrap();
    let (mut child, _) = ready(&mut demo(kept.path(), &["--keep", directory]));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the agents end", || processes_in(kept.path()).is_empty());
    assert!(kept.path().join("site1/log").exists(), "what was to be kept is kept");
}
