//! Agents that keep what they must not lose in CouchDB, as processes, with a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

pub(crate) mod field;
#[path = "couchdb/refused.rs"]
mod refused;

use std::{fs, path::Path, process::Command};

use cheops_agent::api::model::Submit;
use field::{
    agent::{Agent, peer},
    all_ok,
    couch::{Couch, Relay},
    eventually,
    ports::unused,
    submit,
};

/// The setting of an agent that accepts operations while CouchDB is down.
const LOCAL_JOURNAL: &str = "local_journal = 1048576\n";

/// Settings of an agent whose commands run in a directory of their own.
pub(crate) fn in_work(settings: &str) -> String {
    format!("work = 'work'\n{settings}")
}

/// Adds a line to a file: what is run twice is seen.
pub(crate) fn line(number: usize) -> Submit {
    submit(&format!("echo {number} >> lines"), "append")
}

fn lines(agent: &Agent) -> Vec<String> {
    let text = fs::read_to_string(agent.work().join("lines")).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

fn operations(agent: &Agent) -> usize {
    agent.resource("lines").map_or(0, |resource| resource.operations.len())
}

/// Starts an agent alone on databases, with more settings. Its directory is dropped after it.
pub(crate) fn alone_on(couch: &Couch, more: &str) -> (tempfile::TempDir, Agent) {
    let directory = tempfile::tempdir().unwrap();
    let settings = in_work(&couch.settings(directory.path()));
    let agent = Agent::alone_with(directory.path(), &format!("{settings}{more}"));
    (directory, agent)
}

/// An agent alone on databases, with a way to their server that can be cut.
struct Relayed {
    directory: tempfile::TempDir,
    couch: Couch,
    relay: Relay,
    agent: Agent,
}

impl Relayed {
    /// Starts it, with more settings.
    fn start(more: &str) -> Self {
        let couch = Couch::get();
        let relay = Relay::to(couch.config.place());
        let directory = tempfile::tempdir().unwrap();
        let relayed = format!("127.0.0.1:{}", relay.port);
        let settings = in_work(&couch.settings_at(&relayed, directory.path()));
        let agent = Agent::alone_with(directory.path(), &format!("{settings}{more}"));
        Self { directory, couch, relay, agent }
    }
}

/// The documents of attached files.
fn attached_files(couch: &Couch) -> Vec<serde_json::Value> {
    let path = format!("/{}/_all_docs?include_docs=true", couch.config.database);
    let rows = couch.look(&path)["rows"].as_array().cloned().unwrap_or_default();
    let documents = rows.into_iter().map(|row| row["doc"].clone());
    documents.filter(|document| document["Type"] == "FILE").collect()
}

#[test]
fn an_agent_that_is_killed_has_all_that_it_accepted_and_runs_nothing_twice() {
    let couch = Couch::get();
    let (_directory, mut agent) = alone_on(&couch, "");
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
    let Relayed { directory: _directory, couch: _couch, relay, mut agent } = Relayed::start("");
    agent.exec("lines", &Submit { sites: Some("site1".into()), ..line(1) });

    relay.cut();
    eventually("the agent says that it is not ready", || agent.ask("/readyz").unwrap().0 == 503);
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
    let places: [_; 3] = std::array::from_fn(|_| (unused(), unused()));
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

#[test]
fn attached_files_are_in_the_database_once_and_come_back_from_there() {
    let couch = Couch::get();
    let (directory, mut agent) = alone_on(&couch, "");
    let attached = directory.path().join("attached");
    // Longer than what passes through memory at once.
    let content = "0123456789abcdef".repeat(200_000);
    fs::write(&attached, &content).unwrap();
    let run = |agent: &Agent, id: &str| {
        let command = format!("cat {{{}}} >> {id}", attached.display());
        let ran = Command::new(env!("CARGO_BIN_EXE_cheops"))
            .args(["--agent", &agent.url, "exec", "--id", id, "--sites", "site1"])
            .args(["--type", "append", "--command", &command])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(fs::read_to_string(agent.work().join(id)).unwrap(), content, "{id}");
    };
    // At the same time: one of them is faster, and the others find it there.
    std::thread::scope(|scope| {
        for id in ["one", "two", "both"] {
            scope.spawn(|| run(&agent, id));
        }
    });
    let found = attached_files(&couch);
    let [file] = &found[..] else { panic!("{found:?}") };
    assert_eq!(file["_attachments"]["content"]["length"], content.len(), "{file}");

    // Another machine, which has only the database: the API has it, and so have those who run something.
    agent.kill();
    let cached = directory.path().join("data/files");
    fs::remove_dir_all(&cached).unwrap();
    agent.start();
    agent.wait_until_ready();
    let hash = file["_id"].as_str().unwrap().strip_prefix("file:").unwrap();
    let (status, served) = agent.ask(&format!("/api/v1/files/{hash}")).unwrap();
    assert_eq!((status, served == content), (200, true));
    run(&agent, "three");
    assert_eq!(attached_files(&couch).len(), 1);
}

#[test]
fn attached_files_that_were_accepted_while_couchdb_was_down_get_there_and_unused_ones_go() {
    let Relayed { directory, couch, relay, mut agent } = Relayed::start(LOCAL_JOURNAL);
    let attached = directory.path().join("attached");
    fs::write(&attached, "attached while it was down").unwrap();
    relay.cut();
    let command = format!("cat {{{}}} > x", attached.display());
    let ran = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["--agent", &agent.url, "exec", "--id", "x", "--sites", "site1"])
        .args(["--type", "set", "--command", &command])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    relay.heal();
    // One that no operation names, of long ago.
    let unused = format!("file:{}", "ab".repeat(32));
    let path = format!("/{}/{unused}", couch.config.database);
    couch.put(&path, &serde_json::json!({"Type": "FILE", "Length": 1, "Time": 1}));

    // Files are looked through at the start, and every ten minutes.
    agent.restart();
    eventually(
        "the file is in CouchDB, and the unused one is not",
        || matches!(&attached_files(&couch)[..], [file] if file["_attachments"]["content"]["length"] == 26),
    );
}

#[test]
fn a_site_moves_to_couchdb_and_back_with_all_that_it_knows_and_runs_nothing_twice() {
    let couch = Couch::get();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("site.toml");
    let settings = in_work(&couch.settings(directory.path()));
    let settings = settings.replace("engine = 'couchdb'", "engine = 'embedded'");
    let mut agent = Agent::alone_with(directory.path(), &settings);
    let cheops = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cheops"));
        let output = command.args(arguments).arg("--config").arg(&file).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let engines = ["embedded", "couchdb", "embedded"];
    for number in 1..=5 {
        let sites = (number == 1).then(|| "site1".to_owned());
        agent.exec("lines", &Submit { sites, ..line(number) });
    }
    let mut digests = Vec::new();
    for (round, engines) in engines.windows(2).enumerate() {
        let [from, to] = engines else { panic!("{engines:?}") };
        let copy = ["engine", "copy", "--from", from, "--to", to, "-o", "json"];
        let (code, _, said) = cheops(&copy);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(if round == 0 { "in use" } else { "is at work" }), "{said}");
        agent.kill();
        if round == 1 {
            let (code, _, said) = cheops(&copy);
            assert_eq!(code, Some(2), "{said}");
            assert!(said.contains("it is not empty: move it away first: mv "), "{said}");
            let store = directory.path().join("data/store");
            fs::rename(&store, store.with_extension("old")).unwrap();
        }
        let (code, report, said) = cheops(&copy);
        assert_eq!(code, Some(0), "{said}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert!(report["values"].as_u64() > Some(10), "{report}");
        digests.push(report["digest"].as_str().unwrap().to_owned());

        let (code, _, said) = cheops(&["agent"]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&format!("are in {to}, and `engine` is {from}")), "{said}");
        let config = fs::read_to_string(&file).unwrap();
        let line_of = |engine| format!("engine = '{engine}'");
        fs::write(&file, config.replace(&line_of(from), &line_of(to))).unwrap();
        agent.start();
        agent.wait_until_ready();
        assert_eq!(operations(&agent), 5 + round);
        let submitted = agent.exec("lines", &line(6 + round));
        assert!(all_ok(&submitted, 1), "{submitted:?}");
    }
    assert_ne!(digests[0], digests[1]);
    assert_eq!(lines(&agent), ["1", "2", "3", "4", "5", "6", "7"]);
}

/// What an agent says that does not start on a database, from a directory of its own.
fn refusal(couch: &Couch, directory: &Path, more: &str) -> String {
    let section = couch.settings(directory).replace("engine = 'couchdb'\n", "");
    refused::said(&format!("{section}{more}"), directory)
}

#[test]
fn one_that_takes_no_turns_goes_on_after_its_machine_was_booted_and_lets_nobody_else_in() {
    let (couch, other) = (Couch::get(), tempfile::tempdir().unwrap());
    let (_directory, mut agent) = alone_on(&couch, LOCAL_JOURNAL);
    agent.exec("lines", &Submit { sites: Some("site1".into()), ..line(1) });
    let said = refusal(&couch, other.path(), LOCAL_JOURNAL);
    assert!(said.contains("takes no turns"), "{said}");

    agent.kill();
    couch.edit(&couch.config.local(), "lease", |lease| {
        assert_eq!(lease["Locked"], true, "{lease}");
        lease["Holder"]["Boot"] = "an earlier one".into();
    });
    let said = refusal(&couch, other.path(), LOCAL_JOURNAL);
    assert!(said.contains("takes no turns"), "what it accepted may be nowhere else: {said}");
    agent.start();
    agent.wait_until_ready();
    assert!(all_ok(&agent.exec("lines", &line(2)), 1));
    assert_eq!(lines(&agent), ["1", "2"]);
}

#[test]
fn a_site_does_not_go_on_with_other_databases_of_its_name() {
    let (old, new) = (Couch::get(), Couch::get());
    let [_, directory] = [&old, &new].map(|couch| {
        let (directory, mut agent) = alone_on(couch, "");
        agent.exec("lines", &Submit { sites: Some("site1".into()), ..line(1) });
        agent.kill();
        directory
    });
    let lease = || old.look(&format!("/{}/lease", old.config.local()));
    let before = lease();
    let said = refusal(&old, directory.path(), "");
    assert!(said.contains("not the databases that this agent has written to"), "{said}");
    assert_eq!(lease(), before, "it has not touched them");

    let mistyped = Couch::get();
    let said = refusal(&mistyped, directory.path(), "");
    assert!(said.contains("are not there") && said.contains("mv "), "{said}");
    let found = mistyped.look(&format!("/{}", mistyped.config.local()));
    assert_eq!(found["error"], "not_found", "nothing was made");
}

#[test]
fn after_a_hole_in_the_journal_no_number_is_given_twice() {
    let couch = Couch::get();
    let (_directory, mut agent) = alone_on(&couch, "");
    for number in 1..=6 {
        let sites = (number == 1).then(|| "site1".to_owned());
        assert!(all_ok(&agent.exec("lines", &Submit { sites, ..line(number) }), 1));
    }
    agent.kill();
    let local = couch.config.local();
    let found =
        couch.look(&format!("/{local}/_all_docs?startkey=%22page:%22&endkey=%22page%3B%22"));
    let pages = found["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap());
    let pages: Vec<&str> = pages.collect();
    for page in &pages[pages.len() / 3..pages.len() / 2] {
        couch.remove(&local, page);
    }
    agent.start();
    agent.wait_until_ready();
    let declared = Submit { force: true, ..submit("echo declared > lines", "set") };
    assert!(all_ok(&agent.exec("lines", &declared), 1));
    let found = couch.look(&format!("/{}/_all_docs", couch.config.database));
    let ids = found["rows"].as_array().unwrap().iter().filter_map(|row| row["id"].as_str());
    let records = ids.filter_map(|id| id.strip_prefix("record:")?.rsplit_once(':'));
    let mut numbers: Vec<&str> = records.map(|(number, _)| number).collect();
    let count = numbers.len();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "{numbers:?}");
    assert_eq!(lines(&agent), ["declared"]);
}

#[test]
fn with_a_local_journal_operations_are_accepted_and_run_while_couchdb_is_down_and_all_are_there_once()
 {
    let Relayed { directory, couch: _couch, relay, mut agent } = Relayed::start(LOCAL_JOURNAL);
    agent.exec("lines", &Submit { sites: Some("site1".into()), ..line(1) });
    let waits = |agent: &Agent| {
        let problems = agent.ask("/api/v1/problems").unwrap().1;
        assert_eq!(agent.ask("/readyz").unwrap().0, 200, "{problems}");
        problems.contains("wait in the local journal")
    };
    let mut asked = 1;
    for round in 0..3 {
        relay.cut();
        for _ in 0..3 {
            asked += 1;
            let submitted = agent.exec("lines", &line(asked));
            assert!(all_ok(&submitted, 1), "{submitted:?}");
        }
        assert!(waits(&agent), "round {round}");
        let metrics = agent.ask("/metrics").unwrap().1;
        assert!(!metrics.contains("cheops_local_journal_bytes 0\n"), "{metrics}");
        if round == 1 {
            // It does not come back while CouchDB is down.
            agent.kill();
            agent.start();
            eventually("it ends", || agent.ended().is_some());
            agent.kill();
            relay.heal();
            agent.start();
            agent.wait_until_ready();
        } else {
            relay.heal();
        }
        eventually("CouchDB has all", || !waits(&agent));
        asked += 1;
        let submitted = agent.exec("lines", &line(asked));
        assert!(all_ok(&submitted, 1), "{submitted:?}");
        let expected: Vec<_> = (1..=asked).map(|number| number.to_string()).collect();
        assert_eq!(lines(&agent), expected);
        assert_eq!(operations(&agent), asked);
    }
    let waiting = directory.path().join("data/couchdb/waiting");
    assert_eq!(fs::metadata(waiting).unwrap().len(), 0);
    agent.restart();
    assert_eq!(operations(&agent), asked);
    let problems = agent.ask("/api/v1/problems").unwrap().1;
    assert!(!problems.contains("damaged") && !problems.contains("\"store\""), "{problems}");
}
