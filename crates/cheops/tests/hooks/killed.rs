//! Agents that are killed while events wait: none is lost, and ids let doubles be dropped.

use std::collections::BTreeSet;

use super::{
    at,
    field::{agent::Agent, all_ok, eventually},
    receiver::{Mood, Receiver},
};

fn settings(receiver: &Receiver) -> String {
    format!(
        "[[hook]]\nname = 'ops'\non = ['operation.*']\nurl = 'http://{}/'\ntimeout = '2s'\nretry = '500ms'\n",
        receiver.address
    )
}

/// What should be told of so many operations, by name and operation.
fn expected(resources: usize) -> BTreeSet<(String, String, String)> {
    let names = ["operation.accepted", "operation.ran", "operation.settled"];
    let of = |n: usize| {
        names.iter().map(move |name| (format!("r{n}"), (*name).to_owned(), "site1:1".to_owned()))
    };
    (0..resources).flat_map(of).collect()
}

fn told(receiver: &Receiver) -> BTreeSet<(String, String, String)> {
    let told = receiver.told().into_iter();
    told.map(|e| (e.resource.unwrap(), e.event, e.operation.unwrap())).collect()
}

#[test]
fn events_that_wait_are_told_after_a_kill() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    receiver.feel(Mood::Answer(503));
    let mut site = Agent::alone_with(directory.path(), &settings(&receiver));
    for n in 0..20 {
        assert!(all_ok(&site.exec(&format!("r{n}"), &at("site1", "true")), 1));
        // Also between what was written down and what was made of it.
        if n % 5 == 4 {
            site.restart();
        }
    }
    receiver.feel(Mood::Answer(200));
    eventually("all is told", || told(&receiver) == expected(20));
    assert_eq!(receiver.told().len(), 60, "an event has one id");
}

#[test]
fn an_agent_that_is_killed_while_it_tells_loses_nothing() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let mut site = Agent::alone_with(directory.path(), &settings(&receiver));
    for n in 0..30 {
        receiver.feel(if n % 3 == 0 { Mood::Hang } else { Mood::Answer(200) });
        assert!(all_ok(&site.exec(&format!("r{n}"), &at("site1", "true")), 1));
        if n % 4 == 0 {
            let before = receiver.received().len();
            if n % 8 == 0 {
                eventually("something is on its way", || receiver.received().len() > before);
            }
            site.restart();
        }
    }
    receiver.feel(Mood::Answer(200));
    eventually("all is told", || told(&receiver) == expected(30));
    assert_eq!(receiver.told().len(), 90, "an event has one id");
}
