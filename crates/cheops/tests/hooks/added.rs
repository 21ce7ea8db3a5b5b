//! Hooks that are added and removed while the agent runs, and commands.

use std::process::Command;

use cheops_agent::api::model::{HookEvent, Problem};
use serde_json::json;

use super::{
    at,
    field::{agent::Agent, eventually, read},
    hook,
    receiver::Receiver,
};

fn cheops(site: &Agent, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cheops"));
    let output = command.args(["--agent", &site.url]).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_hook_is_added_outlives_the_agent_and_is_removed() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let mut site = Agent::alone_with(directory.path(), "work = 'work'");
    site.exec("before", &at("site1", "true"));
    let url = format!("http://{}/", receiver.address);
    let new = json!({"name": "log", "on": ["operation.ran"], "url": url});
    let (status, text) = site.post("/api/v1/hooks", &new).unwrap();
    assert_eq!(status, 201, "{text}");
    assert_eq!(site.post("/api/v1/hooks", &new).unwrap().0, 409);
    for (bad, why) in [
        (json!({"name": "x"}), "needs a way to tell"),
        (json!({"name": "x", "url": url, "on": ["nothing"]}), "no event is called `nothing`"),
        (json!({"name": "../x", "url": url}), "needs a `name`"),
        (json!({"name": "x", "comand": "true"}), "unknown field `comand`"),
    ] {
        let (status, text) = site.post("/api/v1/hooks", &bad).unwrap();
        let problem: Problem = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 400, "{text}");
        assert!(problem.detail.contains(why), "{text}");
    }
    let told = || -> Vec<String> {
        let resource = |event: HookEvent| event.resource.unwrap_or(event.event);
        receiver.told().into_iter().map(resource).collect()
    };
    site.exec("one", &at("site1", "true"));
    eventually("one is told", || told() == ["one"]);
    assert!(hook(&site, "log").added);
    site.restart();
    site.exec("two", &at("site1", "true"));
    eventually("two is told", || told() == ["one", "two"]);

    let (code, text) = cheops(&site, &["hooks", "list"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("NAME") && text.contains("log"), "{text}");
    let (code, text) = cheops(&site, &["hooks", "test", "log"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("log delivered a sample in"), "{text}");
    assert_eq!(told().last().unwrap(), "test");
    let (code, text) = cheops(&site, &["hooks", "test", "none"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("cheops hooks list"), "{text}");

    let mut delete = Command::new("curl");
    let url = format!("{}/api/v1/hooks/log", site.url);
    assert!(delete.args(["-sf", "-X", "DELETE", &url]).status().unwrap().success());
    let (_, text) = cheops(&site, &["hooks", "list"]);
    assert!(text.contains("site1 has no hooks"), "{text}");
    let before = told();
    site.exec("three", &at("site1", "true"));
    site.restart();
    assert!(site.ask("/api/v1/hooks").unwrap().1.contains(r#""hooks":[]"#));
    assert_eq!(told(), before);
}

#[test]
fn what_runs_at_a_site_is_not_decided_from_outside() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone_with(directory.path(), "work = 'work'");
    let ran = directory.path().join("ran");
    let new = json!({"name": "log", "command": format!("touch {}", ran.display())});
    let (status, text) = site.post("/api/v1/hooks", &new).unwrap();
    let problem: Problem = serde_json::from_str(&text).unwrap();
    assert_eq!((status, problem.kind.as_str()), (403, "command-hook"), "{text}");
    assert!(problem.hint.contains("[[hook]]"), "{text}");
    assert_eq!(site.post("/api/v1/hooks/log/test", &json!({})).unwrap().0, 404);
    assert!(!ran.exists());
}

#[test]
fn a_command_that_fails_is_tried_again_and_cheops_hooks_test_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let settings = "work = 'work'\n[[hook]]\nname = 'log'\non = ['operation.ran']\nretry = '500ms'\ncommand = 'cat > told; [ -e there ] || { echo not yet >&2; false; }'\n";
    let site = Agent::alone_with(directory.path(), settings);
    site.exec("web", &at("site1", "true"));
    eventually("it fails", || {
        hook(&site, "log").last_error.is_some_and(|error| error.contains("not yet"))
    });
    let (code, text) = cheops(&site, &["hooks", "test", "log"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("did not deliver a sample") && text.contains("not yet"), "{text}");
    std::fs::write(site.work().join("there"), "").unwrap();
    eventually("it is told", || hook(&site, "log").delivered == 1);
    let told = read(&site.work().join("told")).unwrap();
    let event: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(event["event"], "operation.ran");
    assert_eq!(event["runs"][0]["status"], "OK");
}
