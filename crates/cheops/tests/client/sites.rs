//! `site`, `completions`, and what needs no agent.

use cheops_agent::api::model::{Pong, SiteState};

use crate::{
    samples,
    support::{Agent, Reply, cheops, json, problem},
};

fn agent() -> Agent {
    Agent::start(|seen| match seen.path.as_str() {
        "/api/v1/sites" => json(&samples::sites()),
        "/api/v1/sites/DC%203/ping" => problem(504, "DC 3 does not answer", "no link", ""),
        path if path.ends_with("/ping") => json(&Pong { site: "x".into(), round_trip_ms: 8.25 }),
        _ => Reply::Done,
    })
}

#[test]
fn sites_are_asked_whether_they_answer() {
    let agent = agent();
    let said = agent.cheops(&["site", "ping"]);
    assert_eq!(said.code, Some(3));
    assert_eq!(
        said.out,
        "SITE    RTT         ERROR\nsite2   8.2ms       -\nDC 3    no answer   DC 3 does not answer: no link\n"
    );
    assert_eq!(
        agent.cheops(&["site", "ping", "site2"]).fine(),
        "SITE    RTT     ERROR\nsite2   8.2ms   -\n"
    );
    let said = agent.cheops(&["site", "ping", "site9"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("Unknown site `site9`"), "{}", said.err);
    assert!(said.err.contains("site1, site2 and DC 3"), "{}", said.err);
}

#[test]
fn links_are_paused_and_resumed() {
    let agent = agent();
    assert_eq!(
        agent.cheops(&["site", "pause", "DC 3", "--for", "10m"]).fine(),
        "paused DC 3 for 10m; resume with: cheops site resume 'DC 3'\n"
    );
    assert_eq!(agent.last().line(), "POST /api/v1/sites/DC%203/pause?for=10m");
    assert_eq!(
        agent.cheops(&["site", "resume", "site1", "site2"]).fine(),
        "resumed site1\nresumed site2\n"
    );
    assert_eq!(
        agent.asked()[1..],
        ["POST /api/v1/sites/site1/resume", "POST /api/v1/sites/site2/resume"]
    );
    let said = agent.cheops(&["site", "pause", "site2", "-o", "json"]).fine();
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(value, serde_json::json!([{"site": "site2", "wanted": SiteState::Paused}]));
    assert_eq!(agent.cheops(&["site", "pause", "site2", "--for", "10"]).code, Some(2));
    assert_eq!(agent.cheops(&["site", "pause"]).code, Some(2));
}

#[test]
fn completions_for_shells() {
    for (shell, expected) in [
        ("bash", "complete -F _cheops"),
        ("zsh", "#compdef cheops"),
        ("fish", "complete -c cheops"),
    ] {
        let output = cheops(&["completions", shell]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(expected), "{shell}");
        for verb in ["exec", "describe", "completions"] {
            assert!(text.contains(verb), "{shell}: {verb}");
        }
        assert!(!text.contains("supervise"), "{shell}: what is not for people is not completed");
    }
}

#[test]
fn help_names_the_exit_status() {
    let output = cheops(&["--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "exec",
        "show",
        "get",
        "describe",
        "log",
        "watch",
        "diff",
        "demo",
        "Exit status",
        "4 no agent",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn local_verbs_have_all_forms_of_output() {
    let scope = |form: &str| cheops(&["scope", "image: site1", "-o", form]).output().unwrap();
    assert_eq!(scope("text").stdout, scope("table").stdout);
    let yaml = String::from_utf8(scope("yaml").stdout).unwrap();
    assert!(yaml.contains("Service: image"), "{yaml}");
    let name = scope("name");
    assert_eq!(name.status.code(), Some(2));
}

#[test]
fn a_demo_has_no_form_for_programs() {
    for line in [&["demo", "--tour", "-o", "json"][..], &["demo", "-o", "name"]] {
        let output = cheops(line).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line:?}");
    }
}
