//! The tests of `replication.rs` with the strict stand-in, which answers as CouchDB does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "replication.rs"]
mod replication;

use replication::{
    Sites, at,
    field::{all_ok, eventually, submit},
    line,
};

#[test]
fn purged_records_do_not_come_back() {
    let sites = Sites::start();
    let everywhere = "site1 & site2 & site3";
    assert!(all_ok(&sites.agents[0].exec("lines", &at(everywhere, line(1))), 3));
    let gone = ["gone1", "gone2", "gone3", "gone4"];
    for (n, id) in gone.iter().enumerate() {
        let agent = &sites.agents[n % 3];
        assert!(all_ok(&agent.exec(id, &at(everywhere, submit("true", "set"))), 3));
    }
    eventually("the servers replicate", || (0..3).all(|n| sites.replicated(n, "offered") > 0));
    for (n, id) in gone.iter().enumerate() {
        assert!(all_ok(&sites.agents[n % 3].exec(id, &submit("true", "delete")), 3));
    }
    let left = || {
        let all = (0..3).flat_map(|n| sites.records(n));
        all.filter(|id| id.starts_with("record:gone")).collect::<Vec<_>>()
    };
    eventually("all is purged", || left().is_empty());
    // What comes later passes through the same jobs, behind all that came before.
    let offered: Vec<u64> = (0..3).map(|n| sites.replicated(n, "offered")).collect();
    for (n, agent) in sites.agents.iter().enumerate() {
        assert!(all_ok(&agent.exec("lines", &line(n + 2)), 3));
    }
    eventually("the servers have replicated what came later", || {
        (0..3).all(|n| sites.replicated(n, "offered") > offered[n])
    });
    assert_eq!(left(), Vec::<String>::new(), "purged records came back");
}
