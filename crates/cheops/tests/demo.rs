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

/// A demo that is ready, and the address of its first site. It goes on while someone may read.
fn ready(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.as_mut().unwrap();
    let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
    let look = lines.by_ref().find(|line| line.contains("in a browser")).unwrap();
    let export = lines.by_ref().find(|line| line.contains("export CHEOPS_AGENT=")).unwrap();
    assert!(look.contains(export.split_once('=').unwrap().1), "{look}");
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
    let directory = fs::read_dir(temporary.path()).unwrap().next().unwrap().unwrap().path();
    let log = fs::read_to_string(directory.join("site1/log")).unwrap();
    assert!(log.contains(&format!("its page is at {agent}")), "{log}");

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(is_empty(temporary.path()));
    assert!(processes_in(temporary.path()).is_empty());
}

#[test]
fn the_pages_of_the_demo_lead_to_each_other() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, first) = ready(&mut demo(temporary.path(), &[]));
    let page = |url: &str| ureq::get(url).call().unwrap().body_mut().read_to_string().unwrap();
    let links = || {
        let page = page(&first);
        let links = page.split("class=\"elsewhere\" href=\"").skip(1);
        links.map(|link| link.split('"').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    wait_until("there is a link to each other page", || links().len() == 2);
    for (site, link) in ["site2", "site3"].into_iter().zip(links()) {
        assert_ne!(link, first);
        let text = page(&link);
        assert!(text.contains(&format!("Sites, as {site} sees them")), "{site} at {link}: {text}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Starts a command that goes on for longer than the test, and waits until it runs at three sites.
fn long_command(agent: &str, work: &Path) {
    let started = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["exec", "--agent", agent, "--id", "long", "--sites", "site1 & site2 & site3"])
        .args(["--command", "touch {id}; sleep 600 & sleep 600", "--wait", "0s"])
        .output()
        .unwrap();
    assert_eq!(started.status.code(), Some(0), "{started:?}");
    wait_until("the command runs everywhere", || {
        let sites = fs::read_dir(work).unwrap().map(|site| site.unwrap().path());
        sites.filter(|site| site.join("work/long").exists()).count() == 3
    });
}

/// The processes that work in a directory, or below it.
fn working_in(directory: &Path) -> usize {
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let places = all.filter_map(|process| fs::read_link(process.path().join("cwd")).ok());
    places.filter(|place| place.starts_with(directory)).count()
}

#[test]
fn a_terminal_that_is_closed_ends_the_demo_and_its_commands() {
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        let temporary = tempfile::tempdir().unwrap();
        let (mut child, agent) = ready(&mut demo(temporary.path(), &[]));
        let directory = fs::read_dir(temporary.path()).unwrap().next().unwrap().unwrap().path();
        long_command(&agent, &directory);
        wait_until("there are two processes at three sites", || working_in(&directory) >= 6);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal:?}");
        assert!(is_empty(temporary.path()));
        assert_eq!(processes_in(temporary.path()), Vec::<String>::new());
        assert_eq!(working_in(temporary.path()), 0, "{signal:?}");
    }
}

#[test]
fn a_demo_that_is_to_outlive_its_terminal_does() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_cheops"), "demo"]).env("TMPDIR", temporary.path());
    let (mut child, agent) = ready(command.stderr(Stdio::null()).stdin(Stdio::null()));
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let answer = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["get", "sites", "-o", "name", "--agent", &agent])
        .output()
        .unwrap();
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert_eq!(child.try_wait().unwrap(), None);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_demo_that_nobody_reads_ends_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let mut child =
        demo(temporary.path(), &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("Three sites are ready"), "{first}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    assert!(is_empty(temporary.path()));
    assert_eq!(processes_in(temporary.path()), Vec::<String>::new());
}

#[test]
fn a_directory_that_can_not_be_used_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let (file, used) = (temporary.path().join("file"), temporary.path().join("used"));
    fs::write(&file, "").unwrap();
    fs::create_dir_all(used.join("site1/data")).unwrap();
    for (arguments, expected) in [
        (&["--keep", file.to_str().unwrap()][..], "Cannot keep the sites in"),
        (&["--tour", "--keep", used.to_str().unwrap()], "holds the sites of an earlier demo"),
    ] {
        let output = demo(temporary.path(), arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && said.contains("hint: "), "{said}");
        assert!(output.stdout.is_empty());
    }
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
