//! The environment variables that commands get from the agent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use cheops_agent::config::Config;
use cheops_core::{matrix, operation::Action, plan::Outcome, replica::Durable};
use site::{Disk, Plan, Site, eventually};
use tempfile::TempDir;

#[path = "support/site.rs"]
mod site;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheops-test-runner");
/// A variable that the process of this test has, since Cargo sets it.
const UNRELATED: &str = "CARGO_MANIFEST_DIR";

/// Starts a site whose configuration has these settings.
fn site_with(settings: &str, written: Vec<Durable>) -> (TempDir, Site) {
    assert!(std::env::var_os(UNRELATED).is_some(), "this test needs to be started by Cargo");
    let directory = tempfile::tempdir().unwrap();
    let mut plan = Plan::new(directory.path(), PROGRAM);
    let text = format!("site = 'site1'\ndata = '{}'\n{settings}", directory.path().display());
    plan.config = Config::from_toml(&text, Path::new("/")).unwrap();
    plan.log = Disk::of(written);
    (directory, plan.start())
}

/// The names of the variables in what `env` printed.
fn names(printed: &str) -> BTreeSet<&str> {
    // The shell itself sets these.
    let by_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    let names = printed.lines().filter_map(|line| Some(line.split_once('=')?.0));
    names.filter(|name| !by_shell.contains(name)).collect()
}

/// Whether these are the variables that every command may have, and nothing else.
fn are_clean(names: &BTreeSet<&str>) -> bool {
    let known =
        ["PATH", "HOME", "LANG", "CHEOPS_ID", "CHEOPS_SITE", "CHEOPS_OPERATION", "CHEOPS_TYPE"];
    names.contains("PATH") && names.iter().all(|name| known.contains(name))
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_and_show_have_a_clean_environment() {
    let (_directory, site) = site_with("", Vec::new());
    let reply = site.exec("r", "env", None).await;
    assert!(are_clean(&names(&reply.output)), "{}", reply.output);
    assert!(names(&reply.output).contains("CHEOPS_OPERATION"));
    let minute = Duration::from_mins(1);
    let shown = site.runner.show(&"r".parse().unwrap(), "env", None, minute).await;
    assert!(are_clean(&names(&shown.output)), "{}", shown.output);
    // The supervisor has no other variables either: a command can read those of its parent.
    let line = "tr '\\0' '\\n' < /proc/$PPID/environ";
    let reply = site.exec("s", line, None).await;
    let mut supervisor = names(&reply.output);
    supervisor.remove("CHEOPS_OPEN_FILES");
    assert!(are_clean(&supervisor), "{}", reply.output);
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_and_check_have_a_clean_environment() {
    let config = matrix::Config {
        reset: Some("env > reset".to_owned()),
        check: Some("env > check".to_owned()),
        ..matrix::Config::default()
    };
    let mut written = {
        let (_directory, site) = site_with("", Vec::new());
        let mut submission = site.request("r", Action::command("echo"), &[]);
        submission.config = Some(config);
        site.submit(submission).await;
        site.stop().await.written()
    };
    let is_intent = |durable: &Durable| matches!(durable, Durable::Intent { .. });
    let intent = written.iter().position(is_intent).unwrap();
    written.truncate(intent + 1);
    let mut clearing = written.clone();
    clearing.pop();
    clearing.push(Durable::Clearing("r".parse().unwrap()));
    // A log that ends with an intent leaves a run in doubt, so the site asks `Check`. One that ends
    // with the start of a clearing makes the site run `Reset` again.
    for (log, file) in [(written, "check"), (clearing, "reset")] {
        let (_directory, site) = site_with("", log);
        let path = site.config.work.join(file);
        let printed = eventually(async || {
            fs::read_to_string(&path).ok().filter(|text| text.contains("CHEOPS_ID="))
        });
        let printed = printed.await;
        assert!(are_clean(&names(&printed)), "{file}: {printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_the_variables_that_the_configuration_names() {
    for settings in [
        "[runs]\nenvironment = { keep = ['CARGO_MANIFEST_*'], set = { COLOUR = 'blue' } }",
        "[runs]\nenvironment = { keep = ['*'], set = { COLOUR = 'blue' } }",
        "[policy]\n[[policy.rule]]\nname = 'r'\ndecision = 'allow'\nallow_any_shell_command = true\n\
         environment = { keep = ['PATH', 'CARGO_MANIFEST_DIR'], set = { COLOUR = 'blue' } }",
    ] {
        let (_directory, site) = site_with(settings, Vec::new());
        let line = format!("echo ${UNRELATED} $COLOUR $CHEOPS_ID");
        let expected = format!("{} blue r\n", env!("CARGO_MANIFEST_DIR"));
        let reply = site.exec("r", &line, None).await;
        assert_eq!((reply.outcome, &*reply.output), (Outcome::Ok, &*expected), "{settings}");
    }
}
