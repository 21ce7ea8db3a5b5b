//! `site`, `completions`, and what needs no agent.

use cheops_agent::api::model::{Hook, HookTested, Hooks, Pong, SiteState};

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

#[test]
fn hooks_are_listed_and_tried() {
    let hook = |name: &str, error: Option<&str>| Hook {
        name: name.into(),
        on: vec!["site.*".into(), "operation.failed".into()],
        mode: "each".into(),
        way: "web".into(),
        to: "https://example.org/…".into(),
        resources: Vec::new(),
        kinds: Vec::new(),
        sites: Vec::new(),
        added: false,
        waiting: 3,
        delivered: 5,
        dropped: 1,
        last_delivery: None,
        failing_since: error.map(|_| "2026-11-15T08:33:03.033Z".into()),
        last_error: error.map(Into::into),
    };
    let hooks = Hooks {
        site: "site1".into(),
        unfollowed: 0,
        hooks: vec![hook("a", None), hook("b", Some("it answered 500\u{1b}[2J"))],
    };
    let tested = |delivered: bool| HookTested {
        hook: "a".into(),
        delivered,
        took_ms: 12,
        error: (!delivered).then(|| "it answered 500".into()),
    };
    let agent = Agent::start(move |seen| match seen.path.as_str() {
        "/api/v1/hooks" => json(&hooks),
        "/api/v1/hooks/a/test" => json(&tested(true)),
        "/api/v1/hooks/b/test" => json(&tested(false)),
        _ => problem(404, "unknown hook", "there is no hook `c` at this site", "see /api/v1/hooks"),
    });
    let listed = agent.cheops(&["hooks", "list"]).fine();
    assert!(!listed.contains('\u{1b}'), "{listed:?}");
    assert_eq!(
        listed.lines().next().unwrap(),
        "NAME   WAY   MODE   WAITING   DROPPED   LAST   ERROR"
    );
    assert!(listed.contains("a      web   each   3         1         -      -"), "{listed}");
    let wide = agent.cheops(&["hooks", "ls", "-o", "wide"]).fine();
    assert!(wide.contains("site.* operation.failed   https://example.org/…"), "{wide}");
    assert_eq!(agent.cheops(&["hooks", "list", "-o", "name"]).fine(), "hook/a\nhook/b\n");
    assert_eq!(agent.cheops(&["hooks", "test", "a"]).fine(), "a delivered a sample in 12ms\n");
    assert_eq!(agent.last().line(), "POST /api/v1/hooks/a/test");
    let failed = agent.cheops(&["hooks", "test", "b"]);
    assert_eq!(failed.code, Some(1));
    assert_eq!(failed.out, "a did not deliver a sample (12ms): it answered 500\n");
    let unknown = agent.cheops(&["hooks", "test", "c"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.err.contains("cheops hooks list"), "{}", unknown.err);
}
