//! The tests of `couchdb.rs` with the strict stand-in, which answers as CouchDB does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "couchdb.rs"]
mod couchdb;

use std::{fs, sync::Arc};

use cheops_agent::api::model::Submit;
use couchdb::{
    alone_on,
    field::{
        all_ok,
        couch::{
            Couch,
            strict::{
                Strict,
                accounts::{DATABASE_ADMIN, SERVER_ADMIN},
            },
        },
        eventually,
    },
    line,
};

#[test]
fn a_user_without_the_right_to_purge_is_reported_at_the_start_and_all_else_works() {
    let strict = Arc::new(Strict::start(1));
    let couch = Couch::on(strict.clone());
    let (directory, mut agent) = alone_on(&couch, "");
    agent.kill();
    let file = directory.path().join("site.toml");
    let config = fs::read_to_string(&file).unwrap();
    let (user, password) = DATABASE_ADMIN;
    let config = config.replace(&format!("'{}'", SERVER_ADMIN.0), &format!("'{user}'"));
    fs::write(&file, config).unwrap();
    fs::write(directory.path().join("password"), password).unwrap();
    agent.start();
    agent.wait_until_ready();
    let log = || fs::read_to_string(directory.path().join("log")).unwrap_or_default();
    assert!(log().contains("may not purge documents"), "{}", log());
    let made = Submit { sites: Some("site1".into()), ..line(1) };
    assert!(all_ok(&agent.exec("lines", &made), 1));
    assert!(all_ok(&agent.exec("lines", &couchdb::field::submit("true", "delete")), 1));
    eventually("it is forgotten", || agent.resource("lines").is_none());
    assert!(all_ok(&agent.exec("other", &made), 1));
    assert!(!log().contains("does not take the name and the password"), "{}", log());
}

#[test]
fn a_user_who_is_locked_out_is_reported_as_that() {
    let strict = Arc::new(Strict::start(1));
    let couch = Couch::on(strict.clone());
    let (_directory, agent) = alone_on(&couch, "");
    let made = Submit { sites: Some("site1".into()), ..line(1) };
    assert!(all_ok(&agent.exec("lines", &made), 1));
    strict.lock(SERVER_ADMIN.0);
    eventually("the agent says that it is not ready", || agent.ask("/readyz").unwrap().0 == 503);
    let problem = agent.try_exec("lines", &line(2)).unwrap_err();
    assert_eq!(problem.status, 503, "{problem:?}");
    assert!(problem.detail.contains("locked `couchdb.user` out"), "{problem:?}");
    strict.unlock();
    eventually("the agent is ready", || agent.ask("/readyz").unwrap().0 == 200);
    assert!(all_ok(&agent.exec("lines", &line(3)), 1));
}

#[test]
fn an_agent_on_a_cluster_keeps_all_that_it_acknowledged_when_the_only_node_that_was_up_is_lost() {
    let strict = Arc::new(Strict::start(3));
    let couch = Couch::on(strict.clone());
    let (_directory, mut agent) = alone_on(&couch, "");
    let made = Submit { sites: Some("site1".into()), ..line(1) };
    assert!(all_ok(&agent.exec("lines", &made), 1));
    assert!(all_ok(&agent.exec("lines", &line(2)), 1));
    for node in [1, 2] {
        strict.stop_node(node);
    }
    std::thread::scope(|scope| {
        // It waits until a quorum has stored it.
        let waits = scope.spawn(|| agent.try_exec("lines", &line(3)));
        eventually("the agent is not ready", || agent.ask("/readyz").unwrap().0 == 503);
        let problem = agent.try_exec("lines", &line(0)).unwrap_err();
        assert!(problem.detail.contains("too few of its nodes"), "{problem:?}");
        assert!(!waits.is_finished());
        strict.stop_node(0);
        for node in [1, 2] {
            strict.start_node(node);
        }
        let submitted = waits.join().unwrap().unwrap();
        assert!(all_ok(&submitted, 1), "{submitted:?}");
    });
    assert!(all_ok(&agent.exec("lines", &line(4)), 1));
    let ran = fs::read_to_string(agent.work().join("lines")).unwrap_or_default();
    let known = agent.resource("lines").unwrap().operations.len();
    assert_eq!(ran.lines().count(), known, "{ran}");
    agent.restart();
    assert_eq!(agent.resource("lines").unwrap().operations.len(), known);
    let problems = agent.ask("/api/v1/problems").unwrap().1;
    assert!(!problems.contains("damaged"), "{problems}");
    let text = fs::read_to_string(agent.work().join("lines")).unwrap_or_default();
    assert_eq!(text, ran, "nothing is run twice");
    strict.start_node(0);
    agent.restart();
    assert_eq!(agent.resource("lines").unwrap().operations.len(), known);
}
