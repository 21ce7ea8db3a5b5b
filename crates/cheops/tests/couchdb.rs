//! Agents that keep what they must not lose in CouchDB, as processes, with a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;
#[path = "couchdb/refused.rs"]
mod refused;

use std::{fs, net::TcpListener};

use cheops_agent::api::model::Submit;
use field::{
    agent::{Agent, peer},
    all_ok,
    couch::{Couch, Relay},
    eventually, submit,
};

/// Settings of an agent whose commands run in a directory of their own.
fn in_work(settings: &str) -> String {
    format!("work = 'work'\n{settings}")
}

/// Adds a line to a file: what is run twice is seen.
fn line(number: usize) -> Submit {
    submit(&format!("echo {number} >> lines"), "append")
}

fn lines(agent: &Agent) -> Vec<String> {
    let text = fs::read_to_string(agent.work().join("lines")).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

fn operations(agent: &Agent) -> usize {
    agent.resource("lines").map_or(0, |resource| resource.operations.len())
}

#[test]
fn an_agent_that_is_killed_has_all_that_it_accepted_and_runs_nothing_twice() {
    let couch = Couch::get();
    let directory = tempfile::tempdir().unwrap();
    let mut agent =
        Agent::alone_with(directory.path(), &in_work(&couch.settings(directory.path())));
    let mut accepted = 0;
    for round in 1..=3 {
        for _ in 0..5 {
            accepted += 1;
            let sites = (accepted == 1).then(|| "site1".to_owned());
            let submitted = agent.exec("lines", &Submit { sites, ..line(accepted) });
            assert!(all_ok(&submitted, 1), "{submitted:?}");
        }
        agent.restart();
        assert_eq!(operations(&agent), 5 * round);
    }
    let expected: Vec<_> = (1..=accepted).map(|number| number.to_string()).collect();
    assert_eq!(lines(&agent), expected);
    let changes = agent.ask("/api/v1/problems").unwrap().1;
    assert!(!changes.contains("damaged"), "{changes}");
}

#[test]
fn while_couchdb_is_down_nothing_is_accepted_and_then_all_goes_on() {
    let couch = Couch::get();
    let relay = Relay::to(couch.config.place());
    let directory = tempfile::tempdir().unwrap();
    let relayed = format!("127.0.0.1:{}", relay.port);
    let settings = in_work(&couch.settings_at(&relayed, directory.path()));
    let mut agent = Agent::alone_with(directory.path(), &settings);
    agent.exec("lines", &Submit { sites: Some("site1".into()), ..line(1) });

    relay.cut();
    // The agent learns of it by the first that it can't write.
    let mut asked = 1;
    eventually("the agent says that it is not ready", || {
        asked += 1;
        let _ = agent.try_exec("lines", &Submit { wait: Some("0s".into()), ..line(asked) });
        agent.ask("/readyz").unwrap().0 == 503
    });
    let problem = agent.try_exec("lines", &line(0)).unwrap_err();
    assert_eq!(problem.status, 503, "{problem:?}");
    assert!(problem.kind.ends_with("store-unreachable"), "{problem:?}");
    assert!(problem.detail.contains("CouchDB can't be reached"), "{problem:?}");
    let problems = agent.ask("/api/v1/problems").unwrap().1;
    assert!(problems.contains("\"store\""), "{problems}");
    assert!(operations(&agent) > 0, "what is known is told");

    relay.heal();
    eventually("the agent is ready", || agent.ask("/readyz").unwrap().0 == 200);
    let submitted = agent.exec("lines", &line(1_000));
    assert!(all_ok(&submitted, 1), "{submitted:?}");
    let run = lines(&agent);
    assert_eq!(run.len(), operations(&agent), "{run:?}");
    let mut once = run.clone();
    once.dedup();
    assert_eq!(once, run, "something was run twice");
    agent.restart();
    assert_eq!((lines(&agent), operations(&agent)), (run.clone(), run.len()));
}

#[test]
fn sites_on_couchdb_and_on_their_disks_work_together() {
    let couches = [Couch::get(), Couch::get()];
    let directories: [tempfile::TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let places: [_; 3] = std::array::from_fn(|_| (free(), free()));
    let name = |n: usize| format!("site{}", n + 1);
    let mut agents: Vec<Agent> = (0..3)
        .map(|n| {
            let directory = directories[n].path();
            let (api, peers) = places[n];
            let engine = couches.get(n).map(|couch| couch.settings(directory));
            let engine = in_work(&engine.unwrap_or_default());
            let others = (0..3).filter(|m| *m != n);
            let others: String = others
                .map(|m| peer(&name(m), &places[m].1.to_string(), directories[m].path()))
                .collect();
            let site = name(n);
            let config = format!(
                "site = '{site}'\n{engine}\n[listen]\napi = '{api}'\npeers = '{peers}'\n{others}"
            );
            fs::write(directory.join("site.toml"), config).unwrap();
            let mut agent = Agent::on_loopback(&site, &api.to_string(), directory);
            agent.start();
            agent
        })
        .collect();
    agents.iter().for_each(Agent::wait_until_ready);
    for agent in &agents {
        eventually("all are linked", || agent.reachable().len() == 2);
    }
    let everywhere = Some("site1 & site2 & site3".to_owned());
    let submitted = agents[0].exec("lines", &Submit { sites: everywhere, ..line(1) });
    assert!(all_ok(&submitted, 3), "{submitted:?}");
    agents[1].kill();
    for number in 2..=6 {
        let from = if number % 2 == 0 { 0 } else { 2 };
        agents[from].exec("lines", &Submit { wait: Some("0s".into()), ..line(number) });
    }
    agents[1].start();
    for agent in &agents {
        eventually("all has arrived and was run", || lines(agent).len() == 6);
        let mut run = lines(agent);
        run.sort();
        assert_eq!(run, ["1", "2", "3", "4", "5", "6"], "{}", agent.name);
    }
}
