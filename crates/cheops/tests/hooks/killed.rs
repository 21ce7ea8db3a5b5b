//! Agents that are killed while events wait: none is lost, and ids let doubles be dropped.

use std::collections::BTreeSet;

use super::{
    at,
    field::{agent::Agent, all_ok, eventually, read},
    hook,
    mail::mail_server,
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

/// The queue is the same for all ways to tell; what is in the middle of a delivery differs.
#[test]
fn a_command_that_runs_when_the_agent_is_killed_runs_again() {
    let directory = tempfile::tempdir().unwrap();
    let line = "echo $CHEOPS_EVENT_ID >> told; while [ ! -e now ]; do sleep 0.02; done";
    let settings = format!(
        "work = 'work'\n[[hook]]\nname = 'log'\non = ['operation.ran']\ntimeout = '1m'\ncommand = '{line}'\n"
    );
    let mut site = Agent::alone_with(directory.path(), &settings);
    site.exec("web", &at("site1", "true"));
    let told = || read(&site.work().join("told")).unwrap_or_default();
    eventually("it runs", || !told().is_empty());
    let first = told();
    site.restart();
    let told = || read(&site.work().join("told")).unwrap_or_default();
    eventually("it runs again", || told() == first.repeat(2));
    std::fs::write(site.work().join("now"), "").unwrap();
    eventually("it is told", || hook(&site, "log").delivered == 1);
    assert_eq!(told(), first.repeat(2));
}

#[test]
fn a_mail_that_is_on_its_way_when_the_agent_is_killed_is_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let mails = directory.path().join("mails");
    std::fs::create_dir(&mails).unwrap();
    let server = mail_server(&mails);
    let settings = format!(
        "[[hook]]\nname = 'mail'\non = ['operation.accepted']\n[hook.mail]\nserver = '{}'\ntls = 'none'\nfrom = 'cheops@example.org'\nto = ['ops@example.org']\n",
        server.address
    );
    let mut site = Agent::alone_with(directory.path(), &settings);
    site.exec("web", &at("site1", "true # take your time"));
    let waits = mails.join("waits");
    eventually("the server has it", || waits.exists());
    site.kill();
    std::fs::remove_file(&waits).unwrap();
    site.start();
    site.wait_until_ready();
    eventually("the server has it again", || waits.exists());
    std::fs::write(mails.join("now"), "").unwrap();
    eventually("it is delivered", || hook(&site, "mail").delivered == 1);
    let ids: BTreeSet<String> = (1..=2)
        .filter_map(|n| read(&mails.join(format!("{n}.eml"))))
        .map(|mail| mail.lines().find(|line| line.starts_with("Message-ID:")).unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
}
