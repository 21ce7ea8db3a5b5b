//! Web hooks: what is sent, and a receiver that fails, hangs and comes back.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cheops_agent::api::model::Troubles;

use super::{
    at,
    field::{agent::Agent, all_ok, eventually, read},
    hook,
    python::{Server, certificate},
    receiver::{Mood, Receiver},
    sample,
};

fn settings(receiver: &Receiver) -> String {
    format!(
        "[[hook]]\nname = 'ops'\non = ['operation.*', 'resource.*']\nurl = 'http://{}/hooks?token=t0ken'\nsecret = 'hush'\ntimeout = '1s'\nretry = '1s'\n",
        receiver.address
    )
}

fn problems(site: &Agent) -> Vec<String> {
    let troubles: Troubles = site.try_get("/api/v1/problems?local=true").unwrap();
    troubles.problems.into_iter().filter(|t| t.what == "hook").map(|t| t.text).collect()
}

/// What another program makes of a secret and a body, as docs/hooks.md says.
fn hmac(secret: &str, body: &[u8]) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-hmac", secret]);
    let mut child = openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(body).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    output.split_whitespace().last().unwrap().to_owned()
}

#[test]
fn events_arrive_signed_and_in_order() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let site = Agent::alone_with(directory.path(), &settings(&receiver));
    assert!(all_ok(&site.exec("web", &at("site1", "echo hi")), 1));
    // A state that lasts for a moment is not told.
    eventually("it has settled", || receiver.told().len() == 4);
    site.exec("web", &at("site1", "echo no >&2; false"));
    eventually("seven events", || receiver.told().len() >= 7);
    let told = receiver.told();
    let names: Vec<&str> = told.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(
        names,
        [
            "operation.accepted",
            "operation.ran",
            "operation.settled",
            "resource.settled",
            "operation.accepted",
            "operation.failed",
            // It is void, and all else has run.
            "resource.settled",
        ]
    );
    assert!(
        told[5].text.contains("(set by local) failed at site1: no; exit code 1"),
        "{}",
        told[5].text
    );
    for received in receiver.received() {
        assert_eq!(received.header("x-cheops-id"), Some(received.event.id.as_str()));
        assert_eq!(received.header("x-cheops-event"), Some(received.event.event.as_str()));
        assert_eq!(received.header("content-type"), Some("application/json"));
        let signed = received.header("x-cheops-signature").unwrap().to_owned();
        assert_eq!(signed, format!("sha256={}", hmac("hush", &received.body)));
    }
    let (_, text) = site.ask("/api/v1/hooks").unwrap();
    assert!(!text.contains("hush") && !text.contains("t0ken"), "{text}");
}

#[test]
fn a_receiver_that_fails_hangs_and_comes_back_gets_everything_and_slows_nobody() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    receiver.feel(Mood::Answer(500));
    let settings = settings(&receiver).replace(", 'resource.*'", "");
    let site = Agent::alone_with(directory.path(), &settings);
    let mut expected = 0;
    for mood in [Mood::Answer(500), Mood::Hang, Mood::Redirect, Mood::Answer(404)] {
        receiver.feel(mood);
        let before = receiver.received().len();
        let start = Instant::now();
        for n in 0..5 {
            assert!(all_ok(&site.exec(&format!("r{n}"), &at("site1", "true")), 1));
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        expected += 5 * 3;
        eventually("it is tried", || receiver.received().len() > before);
        eventually("it fails", || hook(&site, "ops").failing_since.is_some());
        assert!(receiver.told().is_empty());
    }
    eventually("all of it waits", || hook(&site, "ops").waiting == expected);
    let [problem] = problems(&site).try_into().unwrap();
    assert!(problem.contains("the hook `ops` has told nothing"), "{problem}");
    assert!(problem.contains(&format!("{expected} events wait")), "{problem}");
    let (_, metrics) = site.ask("/metrics").unwrap();
    assert!(metrics.contains(r#"cheops_hook_failing{hook="ops"} 1"#), "{metrics}");
    assert!(metrics.contains(&format!(r#"cheops_hook_waiting{{hook="ops"}} {expected}"#)));
    let tested = sample(&site, "ops");
    assert!(!tested.delivered);
    assert!(tested.error.unwrap().contains("404"));

    receiver.feel(Mood::Answer(200));
    eventually("all of it arrives", || receiver.told().len() == expected);
    eventually("nothing waits", || hook(&site, "ops").waiting == 0);
    let state = hook(&site, "ops");
    assert_eq!((state.dropped, state.delivered), (0, expected as u64));
    assert!(state.last_delivery.is_some() && state.failing_since.is_none());
    assert!(problems(&site).is_empty());
    assert!(sample(&site, "ops").delivered);
    assert_eq!(receiver.told().last().unwrap().event, "test");
}

#[test]
fn what_a_receiver_refuses_is_given_up_and_does_not_hold_up_the_rest() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    receiver.feel(Mood::Answer(422));
    let site = Agent::alone_with(directory.path(), &settings(&receiver));
    site.exec("web", &at("site1", "true"));
    eventually("some are given up", || hook(&site, "ops").dropped > 0);
    receiver.feel(Mood::Answer(200));
    eventually("the rest arrives", || {
        let hook = hook(&site, "ops");
        hook.dropped + hook.delivered == 4
    });
    assert_eq!(receiver.told().len() as u64, hook(&site, "ops").delivered);
}

#[test]
fn a_hook_that_works_again_is_no_problem_when_its_sample_arrives() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    receiver.feel(Mood::Answer(400));
    let settings = settings(&receiver).replace("'operation.*', 'resource.*'", "'operation.ran'");
    let site = Agent::alone_with(directory.path(), &settings);
    site.exec("web", &at("site1", "true"));
    eventually("it is given up", || hook(&site, "ops").dropped == 1);
    assert!(!sample(&site, "ops").delivered);
    let failing = hook(&site, "ops");
    assert_eq!((failing.waiting, failing.delivered, failing.last_delivery), (0, 0, None));
    assert!(failing.failing_since.is_some() && failing.last_error.is_some());
    assert_eq!(problems(&site).len(), 1);

    receiver.feel(Mood::Answer(200));
    assert!(sample(&site, "ops").delivered);
    let well = hook(&site, "ops");
    assert!(well.failing_since.is_none() && well.last_error.is_none());
    assert!(well.last_delivery.is_some());
    assert!(problems(&site).is_empty());
}

#[test]
fn events_go_over_tls_to_who_is_trusted_and_to_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(directory.path());
    let told = directory.path().join("told");
    let arguments = [told.to_str().unwrap(), &certificate, &key];
    let server = Server::start(Path::new("python3"), "https.py", &arguments);
    let port = server.address.port();
    let settings = format!(
        "[[hook]]\nname = 'trusting'\non = ['operation.ran']\nurl = 'https://localhost:{port}/'\nca = 'cert.pem'\n[[hook]]\nname = 'wary'\non = ['operation.ran']\nurl = 'https://localhost:{port}/'\n[[hook]]\nname = 'misled'\non = ['operation.ran']\nurl = 'https://127.0.0.1:{port}/'\nca = 'cert.pem'\n"
    );
    let site = Agent::alone_with(directory.path(), &settings);
    for wary in ["wary", "misled"] {
        let tested = sample(&site, wary);
        assert!(!tested.delivered, "{wary}");
        assert!(tested.error.as_ref().unwrap().contains("certificate"), "{tested:?}");
    }
    assert!(!told.exists());
    let tested = sample(&site, "trusting");
    assert!(tested.delivered, "{tested:?}");
    site.exec("web", &at("site1", "true"));
    eventually("it arrives", || read(&told).unwrap_or_default().lines().count() == 2);
    assert!(read(&told).unwrap().contains(r#""event":"operation.ran""#));
}
