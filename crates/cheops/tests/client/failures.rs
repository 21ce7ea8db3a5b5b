//! No agent, something that is no agent, an agent that says nonsense.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{Agent, Reply, Said, cheops};

#[test]
fn no_agent_is_an_exit_status_of_its_own() {
    // A port that was free a moment ago.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    for line in [
        &["get", "sites"][..],
        &["get", "sites", "-w"],
        &["describe", "web"],
        &["log", "web"],
        &["show", "web"],
        &["diff", "web"],
        &["watch"],
        &["delete", "web"],
        &["site", "ping"],
        &["output", "web", "site1:1"],
        &["exec", "--id", "web", "--command", "true"],
        &["--id", "web", "--sites", "a", "--command", "true"],
    ] {
        let said: Said = cheops(line).args(["--agent", &url]).output().unwrap().into();
        assert_eq!((said.code, said.out.as_str()), (Some(4), ""), "{line:?}");
        assert!(said.err.contains(&format!("No agent answers at {url}")), "{line:?}: {}", said.err);
        assert!(
            said.err.contains("`cheops agent`") && said.err.contains("CHEOPS_AGENT"),
            "{}",
            said.err
        );
    }
}

#[test]
fn a_listener_that_closes_each_connection_is_asked_once() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    let said: Said = cheops(&["get", "sites", "--agent", &url]).output().unwrap().into();
    assert_eq!((said.code, said.out.as_str()), (Some(4), ""));
    assert!(said.err.contains(&format!("The agent at {url} broke off")), "{}", said.err);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn an_agent_that_hangs_is_given_up_soon_and_another_is_named() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let begun = Instant::now();
    // At the same time, since each takes as long as it waits.
    let going = [
        &["get", "sites"][..],
        &["describe", "web"],
        &["log", "web"],
        &["site", "pause", "site2"],
        &["exec", "--id", "web", "--command", "true", "--wait", "0s"],
    ]
    .map(|line| {
        let mut command = cheops(line);
        command.args(["--agent", &url]).stdout(Stdio::piped()).stderr(Stdio::piped());
        (line, command.spawn().unwrap())
    });
    for (line, child) in going {
        let said: Said = child.wait_with_output().unwrap().into();
        assert_eq!((said.code, said.out.as_str()), (Some(3), ""), "{line:?}: {}", said.err);
        assert!(said.err.contains("has not answered within 15s"), "{line:?}: {}", said.err);
        assert!(said.err.contains("another agent: --agent"), "{line:?}: {}", said.err);
        let may_be_done = said.err.contains("may still be done");
        assert_eq!(may_be_done, ["site", "exec"].contains(&line[0]), "{line:?}: {}", said.err);
    }
    assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
}

#[test]
fn the_address_is_checked() {
    for (line, variable, expected) in [
        (&["get", "sites", "--agent", "ftp://a"][..], None, "in `--agent`"),
        (&["get", "sites"], Some("http://a/b"), "in CHEOPS_AGENT"),
    ] {
        let mut command = cheops(line);
        command.envs(variable.map(|value| ("CHEOPS_AGENT", value)));
        let said: Said = command.output().unwrap().into();
        assert_eq!(said.code, Some(2));
        assert!(said.err.contains(expected), "{}", said.err);
    }
}

#[test]
fn an_option_wins_over_the_environment() {
    let agent = Agent::start(|_| Reply::Other(200, "{\"here\": \"a\", \"sites\": []}"));
    let mut command = cheops(&["get", "sites", "--agent", &agent.url]);
    let said: Said = command.env("CHEOPS_AGENT", "http://127.0.0.1:1").output().unwrap().into();
    assert_eq!(said.fine(), "No sites.\n");
}

#[test]
fn something_that_is_no_agent() {
    for (reply, code, expected) in [
        (|| Reply::Other(200, "<html>hello</html>"), 1, "Cannot read the answer"),
        (|| Reply::Other(404, "<html>\u{1b}[2Jno</html>"), 2, "answered 404 Not Found"),
        (|| Reply::Other(502, ""), 3, "answered 502 Bad Gateway"),
        (|| Reply::Other(504, ""), 3, "answered 504 Gateway Timeout"),
        (|| Reply::Torn(Vec::new()), 4, "broke off"),
    ] as [(fn() -> Reply, i32, &str); 5]
    {
        let agent = Agent::start(move |_| reply());
        let said = agent.cheops(&["get", "sites"]);
        assert_eq!((said.code, said.out.as_str()), (Some(code), ""), "{expected}");
        assert!(said.err.contains(expected), "{}", said.err);
        assert!(!said.err.contains('\u{1b}'), "{}", said.err);
    }
}

#[test]
fn what_came_in_does_not_act_on_the_terminal() {
    let agent = Agent::start(|_| {
        Reply::Other(
            400,
            r#"{"type": "x", "title": "bad\u001b[2J", "status": 400, "detail": "\u0007", "hint": "\u009b"}"#,
        )
    });
    let said = agent.cheops(&["get", "sites"]);
    assert_eq!(said.code, Some(2));
    assert!(!said.err.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{:?}", said.err);
}
