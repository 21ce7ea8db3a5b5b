//! What goes on: `watch`, and `get --watch`.

use std::{
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Stdio},
    sync::{Arc, Mutex},
};

use cheops_agent::api::model::{Change, Happened, Resources, RunStatus, State};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    samples::{self, counter, run, summary},
    support::{Agent, Reply, json, lines, problem},
};

fn change(seq: u64, what: Happened) -> Change {
    Change { seq: Some(seq), site: "site1".into(), resource: Some("web".into()), what }
}

fn operation(seq: u64) -> Change {
    change(
        seq,
        Happened::Operation {
            id: format!("site1:{seq}"),
            kind: "set".into(),
            author: "ada".into(),
            at: "2026-01-01T00:00:00Z".into(),
            command: "echo \u{1b}hi".into(),
        },
    )
}

/// A program that goes on, and ends with the test.
struct Going(Child);

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn going(agent: &Agent, arguments: &[&str]) -> (Going, Lines<BufReader<ChildStdout>>) {
    let mut child = agent.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (Going(child), lines)
}

#[test]
fn changes_are_told_as_they_come() {
    let changes = [
        Change { resource: None, ..change(0, Happened::Following) },
        operation(1),
        change(
            2,
            Happened::Reply {
                operation: "site1:1".into(),
                run: run("site2", RunStatus::Ko, "no\nmore\nexit code 2"),
            },
        ),
        change(3, Happened::Deleted),
        Change {
            seq: None,
            site: "site1".into(),
            resource: None,
            what: Happened::SiteLost { peer: "site2".into() },
        },
    ];
    let agent = Agent::start(move |seen| match seen.path.as_str() {
        "/api/v1/resources/web?limit=1&local=true" => json(&counter()),
        _ => lines(&changes),
    });
    let said = agent.cheops(&["watch", "web", "--once"]).fine();
    let told: Vec<&str> = said.lines().map(|line| &line[10..]).collect();
    let times: Vec<&str> = said.lines().map(|line| line[..8].trim()).collect();
    assert_eq!(times[1..], ["", "", ""], "when a reply came is not known afterwards");
    assert!(times[0].ends_with(":00:00"), "{}", times[0]);
    assert_eq!(
        told,
        [
            "web  site1:1  set by ada: echo \u{fffd}hi",
            "web  site1:1  KO (exit 2) at site2 in 12ms: no … 1 line more",
            "web  is gone from all of its sites",
            "site2 can't be reached from site1 any more",
        ]
    );
    assert_eq!(agent.asked()[0], "GET /api/v1/changes?since=0&resource=web&once=true");
    let said = agent.cheops(&["watch", "--once", "--since", "9", "-o", "json"]).fine();
    let first: Change = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(first, operation(1));
    assert_eq!(agent.last().line(), "GET /api/v1/changes?since=9&once=true");
    assert!(agent.last().accept.starts_with("application/x-ndjson"));
}

#[test]
fn an_agent_that_hears_nothing_of_a_resource_says_so_once() {
    for (sites, expected) in [
        (
            Some(&["site2", "DC 3"][..]),
            "site1 is not a site of ~web, and hears nothing of it. It is on site2 and DC 3: name the \
             agent of one of them with --agent, or run `cheops watch '~web'` there\n",
        ),
        (Some(&["site1", "site2"]), ""),
        (
            None,
            "no site that could be asked knows ~web; changes are told once it exists, if site1 is \
             one of its sites\n",
        ),
    ] {
        let agent = Agent::start(move |seen| {
            let unknown = || problem(404, "unknown resource", "", "");
            match (seen.path.as_str(), sites) {
                (path, _) if path.contains("/changes?") => lines(&[operation(1)]),
                ("/api/v1/sites", _) => json(&samples::sites()),
                ("/api/v1/resources/~web?limit=1", Some(sites)) => {
                    let mut resource = counter();
                    resource.summary.sites = sites.iter().map(|&site| site.into()).collect();
                    json(&resource)
                }
                _ => unknown(),
            }
        });
        let said = agent.cheops(&["watch", "~web", "--once", "-o", "name"]);
        assert_eq!((said.code, said.out.as_str()), (Some(0), "resource/web\n"));
        assert_eq!(said.err, expected);
    }
}

#[test]
fn a_feed_that_breaks_off_is_taken_up_where_it_was() {
    let feeds: Mutex<u64> = Mutex::new(0);
    let agent = Agent::start(move |_| {
        let mut feeds = feeds.lock().unwrap();
        *feeds += 1;
        let line = serde_json::to_value(operation(*feeds)).unwrap();
        if *feeds == 1 { Reply::Lines(vec![line]) } else { Reply::Torn(vec![line]) }
    });
    let mut child = agent.command(&["watch", "-o", "wide"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let _child = Going(child);
    for seq in 1..=3 {
        let line = told.next().unwrap().unwrap();
        assert!(
            line.starts_with(&format!("{seq}  ")) && line.contains(&format!("site1:{seq}")),
            "{line}"
        );
    }
    assert_eq!(
        agent.asked()[..3],
        ["GET /api/v1/changes", "GET /api/v1/changes?since=1", "GET /api/v1/changes?since=2"]
    );
    let mut note = || notes.next().unwrap().unwrap();
    assert_eq!(note(), "the feed broke off: the agent ended it; it is taken up again");
    assert_eq!(note(), "the feed goes on after 1");
    let torn = note();
    assert!(torn.starts_with("the feed broke off: ") && torn.contains(&agent.url[7..]), "{torn}");
    assert_eq!(note(), "the feed goes on after 2");
}

#[test]
fn a_list_that_is_watched_tells_what_is_different() {
    let (tell, feed) = mpsc::unbounded_channel::<Value>();
    let feed = Mutex::new(Some(feed));
    let now = Arc::new(Mutex::new(vec![
        summary("counter", State::Settled),
        summary("web", State::Pending),
    ]));
    let listed = now.clone();
    let agent = Agent::start(move |seen| {
        if seen.path.starts_with("/api/v1/changes") {
            return Reply::Stream(feed.lock().unwrap().take().unwrap());
        }
        let resources = listed.lock().unwrap().clone();
        json(&Resources { site: "site1".into(), resources, next: None })
    });
    let (_child, mut told) = going(&agent, &["get", "resources", "--watch"]);
    let mut next = || told.next().unwrap().unwrap();
    assert_eq!(next(), "ID        STATE     OPERATIONS   BLOCK   UPDATED   SITES");
    assert!(next().starts_with("counter   settled"));
    assert!(next().starts_with("web       pending"));

    now.lock().unwrap()[1] = summary("web", State::Settled);
    // The sample's time is that of now, and counter has not changed.
    tell.send(serde_json::to_value(operation(1)).unwrap()).unwrap();
    assert!(next().starts_with("web       settled"));

    now.lock().unwrap().remove(0);
    tell.send(serde_json::to_value(operation(2)).unwrap()).unwrap();
    assert_eq!(next(), "resource/counter is gone");
    assert_eq!(
        agent.asked()[0],
        "GET /api/v1/changes",
        "the feed comes first, so that nothing is missed"
    );
}
