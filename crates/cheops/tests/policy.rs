//! Sites that decide for themselves what runs there: real agents, one of which denies what another runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{fs, path::Path, process::Command};

use cheops_agent::api::model::{
    PolicyVerdict, Resource, Run, RunStatus, State, Submit, Trouble, Troubles,
};
use field::{
    agent::{Agent, peer},
    eventually,
    ports::unused,
    submit,
};

const OPEN: &str = "[policy]\nallow_any_shell_command = true\n";
const NARROW: &str = "[[policy.rule]]\nname = 'echo alone'\ndecision = 'allow'\norigins = ['site1']\ncommands = [{ program = 'echo', arguments = ['...'] }]\nlimits = { cpu = '10s' }\n\
                      [[policy.rule]]\nname = 'no guests'\ndecision = 'deny'\nauthors = ['guest', 'local:guest']\n";
/// Says something of policies, and nothing of commands.
const SILENT: &str = "[policy]\nlandlock = 'required'\n";

/// Two sites that see each other, with these policies.
fn two(directory: &Path, policies: [&str; 2]) -> [Agent; 2] {
    let places = ["site1", "site2"].map(|name| (name, unused(), unused()));
    let sites = [0, 1].map(|n| {
        let ((name, api, peers), (other, _, at)) = (places[n], places[1 - n]);
        let other = peer(other, &at.to_string(), &directory.join(other));
        let policy = policies[n];
        let config = format!(
            "site = '{name}'\nwork = 'work'\n{other}[links]\nheartbeat = '200ms'\nsilence = '2s'\nretry = '300ms'\n{policy}[listen]\napi = '{api}'\npeers = '{peers}'\n"
        );
        let place = directory.join(name);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("site.toml"), config).unwrap();
        let mut agent = Agent::on_loopback(name, &api.to_string(), &place);
        agent.start();
        agent
    });
    sites.iter().for_each(Agent::wait_until_ready);
    linked(&sites);
    sites
}

fn linked(sites: &[Agent; 2]) {
    eventually("both sites see each other", || sites.iter().all(|s| s.reachable().len() == 1));
}

fn on_both(command: &str, author: &str) -> Submit {
    Submit {
        sites: Some("site1 & site2".to_owned()),
        author: Some(author.to_owned()),
        ..submit(command, "set")
    }
}

fn at<'a>(resource: &'a Resource, n: usize, site: &str) -> &'a Run {
    resource.operations[n].runs.iter().find(|run| run.site == site).unwrap()
}

fn denied(site: &Agent) -> Vec<Trouble> {
    let troubles: Troubles = site.try_get("/api/v1/problems?local=true").unwrap();
    troubles.problems.into_iter().filter(|trouble| trouble.what == "denied").collect()
}

#[test]
fn what_one_site_denies_runs_at_the_other_and_is_not_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut sites = two(directory.path(), [OPEN, NARROW]);
    let submitted = sites[0].exec("r", &on_both("echo a; echo a >> made", "ops"));
    let statuses: Vec<RunStatus> = submitted.runs.iter().map(|run| run.status).collect();
    assert_eq!(statuses, [RunStatus::Ok, RunStatus::Denied]);
    let said = submitted.runs[1].output.clone().unwrap();
    assert!(said.starts_with("denied by rule `default`: "), "{said}");
    assert!(said.contains("it needs a shell: `;` at column 7"), "{said}");

    let is_denied = |r: &Resource| r.summary.state == State::Denied;
    for site in &sites {
        site.wait_for("r", "it is denied", is_denied);
        let troubles = denied(site);
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        assert!(troubles[0].text.contains("`site2` denied set site1:1 of `r`"), "{troubles:?}");
        assert!(troubles[0].next.contains("policy of `site2`"), "{troubles:?}");
    }
    // Neither a restart nor what comes later makes it try again.
    sites[1].restart();
    linked(&sites);
    let submitted = sites[0].exec("r", &on_both("echo b", "ops"));
    assert!(submitted.runs.iter().all(|run| run.status == RunStatus::Ok), "{submitted:?}");
    for site in &sites {
        site.wait_for("r", "both have run the second", |r| {
            r.operations.len() == 2
                && r.operations[1].runs.iter().all(|r| r.status == RunStatus::Ok)
        });
        let resource = site.resource("r").unwrap();
        assert!(is_denied(&resource), "{:?}", resource.summary);
        let run = at(&resource, 0, "site2");
        assert_eq!((run.status, run.attempt), (RunStatus::Denied, Some(1)));
    }
    assert_eq!(fs::read_to_string(sites[0].work().join("made")).unwrap(), "a\n");
    assert!(!sites[1].work().join("made").exists());

    // What is to be shown at the other site is asked about there as well.
    let shown = sites[0].show("r", Some("cat made"));
    assert_eq!(shown.sites["site1"].output, "a\n");
    assert_eq!(shown.sites["site2"].status, "DENIED", "{:?}", shown.sites);

    // Whom a rule is about counts, not only what.
    let submitted = sites[0].exec("s", &on_both("true", "guest"));
    let at_two = submitted.runs.iter().find(|run| run.site == "site2").unwrap();
    assert!(at_two.output.as_deref().unwrap().contains("rule `no guests`"), "{at_two:?}");
}

#[test]
fn what_the_site_that_is_asked_denies_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let sites = two(directory.path(), [OPEN, SILENT]);
    let file = directory.path().join("site2/site.toml");
    for command in ["echo a; echo a >> made", "echo a"] {
        let problem = sites[1].try_exec("r", &on_both(command, "ops")).unwrap_err();
        assert_eq!((problem.status, problem.kind.as_str()), (403, "denied"), "{problem:?}");
        let line = format!(
            "write `allow_any_shell_command = true` under `[policy]` in {} at `site2`",
            file.display()
        );
        assert!(problem.detail.contains(&line), "{problem:?}");
        let rehearsal = Submit { dry_run: true, ..on_both(command, "ops") };
        assert_eq!(sites[1].try_exec("r", &rehearsal).unwrap_err().status, 403);
    }
    assert!(sites.iter().all(|site| site.resource("r").is_none()), "nothing was made");
    // A delete needs no command, and so no shell.
    sites[0].exec("r", &on_both("true", "ops"));
    let submitted = sites[1].exec("r", &submit("true", "delete"));
    assert!(submitted.runs.iter().all(|run| run.status == RunStatus::Ok), "{submitted:?}");
}

fn cheops(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_cheops")).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text + &String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_policy_says_what_it_would_do_and_how() {
    let directory = tempfile::tempdir().unwrap();
    let sites = two(directory.path(), [OPEN, NARROW]);
    let file = directory.path().join("site2/site.toml");
    let (file, url) = (file.to_str().unwrap(), sites[1].url.as_str());
    for source in [["--config", file], ["--agent", url]] {
        let tried = |rest: &[&str]| {
            cheops(&[&["policy", "test", "--id", "r"][..], &source[..], rest].concat())
        };
        let (code, text) = tried(&["--origin", "site1", "--command", "echo 'a b' {id}"]);
        assert_eq!(code, Some(0), "{text}");
        for words in [
            "allowed at site2 by rule `echo alone`",
            "program     echo (without a shell)",
            "arguments   'a b' '{id}'",
            "user        that of the agent",
            "limits      10 CPU seconds",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        for rest in [
            &["--command", "echo a"][..],
            &["--origin", "site1", "--command", "echo a | b"],
            &["--type", "@show", "--command", "echo a"],
            &["--author", "guest", "--service", "image"],
        ] {
            let (code, text) = tried(rest);
            assert_eq!(code, Some(1), "{rest:?}: {text}");
            assert!(text.starts_with("DENIED at site2 by rule `"), "{rest:?}: {text}");
        }
        let (code, text) =
            tried(&["--service", "image", "--method", "PUT", "--path", "/a", "-o", "json"]);
        assert_eq!(code, Some(0), "{text}");
        let verdict: PolicyVerdict = serde_json::from_str(&text).unwrap();
        assert_eq!((verdict.rule.as_str(), verdict.steps[0].how.as_str()), ("default", "request"));
        assert_eq!(tried(&[]).0, Some(2), "there is nothing to ask about");
    }
    // An operation that there is.
    let operation = sites[0].exec("r", &on_both("echo a; echo b", "ops")).operation;
    let ask = |agent: &str, operation: &str| {
        cheops(&["policy", "test", "--agent", agent, "--id", "r", "--operation", operation])
    };
    assert_eq!(ask(url, &operation).0, Some(1));
    assert_eq!(ask(&sites[0].url, &operation).0, Some(0));
    assert_eq!(ask(url, "site1:99").0, Some(2));
    // A file that can't be used.
    let wrong = directory.path().join("wrong.toml");
    fs::write(&wrong, "site = 'a'\n[policy]\nallow_all = true\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    let (code, text) =
        cheops(&["policy", "test", "--config", wrong, "--id", "r", "--command", "a"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("ine 3: unknown field `allow_all`"), "{text}");
}

#[test]
fn a_rule_that_can_not_be_kept_here_keeps_the_agent_from_starting() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("site.toml");
    let rule = "[[policy.rule]]\nname = 'r'\ndecision = 'allow'\nallow_any_shell_command = true\nuser = 'no such user'\n";
    fs::write(
        &config,
        format!("site = 'a'\n[listen]\napi = '127.0.0.1:0'\npeers = '127.0.0.1:0'\n{rule}"),
    )
    .unwrap();
    let (code, text) = cheops(&["agent", "--config", config.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("rule `r` of the policy can't be used here: there is no user"), "{text}");
}
