//! Sites on CouchDB whose servers replicate, as processes, with a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../../cheops-agent/tests/support/ca.rs"]
mod ca;
pub(crate) mod field;

use std::{fs, process::Command};

use ca::{Ca, Wanted};
use cheops_agent::api::model::Submit;
use field::{
    agent::{Agent, peer},
    all_ok,
    couch::{self, Couch},
    eventually,
    ports::unused,
    submit,
};

/// Sites, each with a database of its own.
pub(crate) struct Sites {
    pub(crate) agents: Vec<Agent>,
    couches: Vec<Couch>,
    directories: Vec<tempfile::TempDir>,
}

impl Sites {
    pub(crate) fn start() -> Self {
        Self::on((0..3).map(|_| Couch::get()).collect())
    }

    /// Sites on these databases.
    fn on(couches: Vec<Couch>) -> Self {
        let count = couches.len();
        let directories: Vec<_> = couches.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        let places: Vec<_> = couches.iter().map(|_| (unused(), unused())).collect();
        let name = |n: usize| format!("site{}", n + 1);
        let agent = |n: usize| {
            let (directory, (api, peers)) = (directories[n].path(), places[n]);
            let others: String = (0..count)
                .filter(|m| *m != n)
                .map(|m| peer(&name(m), &places[m].1.to_string(), directories[m].path()))
                .collect();
            let couchdb = couches[n].settings(directory);
            let site = name(n);
            let config = format!(
                "site = '{site}'\nwork = 'work'\n{couchdb}\n[listen]\napi = '{api}'\npeers = '{peers}'\n{others}"
            );
            fs::write(directory.join("site.toml"), config).unwrap();
            let mut agent = Agent::on_loopback(&site, &api.to_string(), directory);
            agent.start();
            agent
        };
        let agents: Vec<Agent> = (0..count).map(agent).collect();
        agents.iter().for_each(Agent::wait_until_ready);
        for agent in &agents {
            eventually("all are linked", || agent.reachable().len() == count - 1);
        }
        Self { agents, couches, directories }
    }

    /// The job at a site's server that carries documents to another.
    fn job(&self, from: usize, to: usize) -> Option<serde_json::Value> {
        let id = format!("cheops:{}:site{}:", self.couches[from].config.database, to + 1);
        let found = self.couches[from].look("/_replicator/_all_docs?include_docs=true");
        let rows = found["rows"].as_array().cloned().unwrap_or_default();
        let mut jobs = rows.into_iter().map(|row| row["doc"].clone());
        jobs.find(|job| job["_id"].as_str().is_some_and(|other| other.starts_with(&id)))
    }

    /// The names of the records in a site's database.
    pub(crate) fn records(&self, site: usize) -> Vec<String> {
        let couch = &self.couches[site];
        let found = couch.look(&format!("/{}/_all_docs", couch.config.database));
        let rows = found["rows"].as_array().cloned().unwrap_or_default();
        let ids = rows.iter().filter_map(|row| row["id"].as_str());
        ids.filter(|id| id.starts_with("record:")).map(ToOwned::to_owned).collect()
    }

    fn lines(&self, site: usize) -> Vec<String> {
        let text = fs::read_to_string(self.agents[site].work().join("lines"));
        let mut lines: Vec<_> = text.unwrap_or_default().lines().map(ToOwned::to_owned).collect();
        lines.sort();
        lines
    }

    /// How many documents of another's server a site's agent has heard of, or has let in.
    pub(crate) fn replicated(&self, site: usize, what: &str) -> u64 {
        let (_, text) = self.agents[site].ask("/metrics").unwrap();
        let counted = format!("cheops_replicated{{documents=\"{what}\"}}");
        let line = text.lines().find(|line| line.starts_with(&counted));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    }
}

pub(crate) fn line(number: usize) -> Submit {
    submit(&format!("echo {number} >> lines"), "append")
}

pub(crate) fn at(sites: &str, submit: Submit) -> Submit {
    Submit { sites: Some(sites.to_owned()), ..submit }
}

#[test]
fn what_the_links_do_not_carry_the_servers_do_and_only_to_the_sites_of_a_resource() {
    let sites = Sites::start();
    let everywhere = at("site1 & site2 & site3", line(1));
    assert!(all_ok(&sites.agents[0].exec("lines", &everywhere), 3));
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        eventually("there is a job for each site", || sites.job(from, to).is_some());
        let job = sites.job(from, to).unwrap();
        assert_eq!(job["continuous"], true, "{job}");
        assert!(!job["source"]["url"].as_str().unwrap().contains('@'), "{job}");
        assert!(!job["target"]["url"].as_str().unwrap().contains('@'), "{job}");
        assert!(job["target"]["headers"]["Authorization"].as_str().unwrap().len() > 80);
    }
    // Two sites share something that the third has nothing to do with.
    assert!(all_ok(
        &sites.agents[0].exec("secret", &at("site1 & site3", submit("true", "set"))),
        2
    ));

    // Site 3 is cut off by hand. What it records gets into the database of site 1 by its server alone, and from
    // there to site 2.
    for other in ["site1", "site2"] {
        let path = format!("/api/v1/sites/{other}/pause");
        assert_eq!(sites.agents[2].post(&path, &()).unwrap().0, 204);
    }
    eventually("site 3 is cut off", || sites.agents[0].reachable() == ["site2"]);
    let cut_off = Submit { wait: Some("0s".into()), ..line(2) };
    sites.agents[2].exec("lines", &cut_off);
    eventually("site 3 has run it", || sites.lines(2) == ["1", "2"]);
    sites.couches[2].copy_to(&sites.couches[0]);
    for site in [0, 1] {
        eventually("what replication brought is run", || sites.lines(site) == ["1", "2"]);
    }
    eventually("the server of site 1 has brought it to site 2", || {
        let all = sites.records(0).into_iter().filter(|id| !id.starts_with("record:secret:"));
        sites.records(1) == all.collect::<Vec<_>>()
    });
    assert!(sites.records(0).iter().any(|id| id.starts_with("record:secret:")));
    assert!(sites.replicated(1, "taken") > 0, "some of them came through the door");

    for other in ["site1", "site2"] {
        let path = format!("/api/v1/sites/{other}/resume");
        assert_eq!(sites.agents[2].post(&path, &()).unwrap().0, 204);
    }
    eventually("all is known everywhere", || {
        let known = |n: usize| sites.agents[n].resource("lines").map(|r| r.operations.len());
        (0..3).all(|n| known(n) == Some(2))
    });
    for site in 0..3 {
        assert_eq!(sites.lines(site), ["1", "2"], "nothing is run twice");
    }
}

#[test]
fn a_job_that_fell_asleep_is_woken_and_one_of_a_site_that_is_no_more_goes() {
    let mut sites = Sites::start();
    let everywhere = at("site1 & site2 & site3", line(1));
    assert!(all_ok(&sites.agents[0].exec("lines", &everywhere), 3));
    eventually("there is a job", || sites.job(0, 1).is_some());
    let name = |sites: &Sites| sites.job(0, 1).map(|job| job["_id"].to_string());

    sites.agents[1].kill();
    eventually("site 2 is gone", || sites.agents[0].reachable() == ["site3"]);
    let before = name(&sites);
    let unheard = Submit { wait: Some("0s".into()), ..line(2) };
    sites.agents[0].exec("lines", &unheard);
    // The job finds nobody, and is not tried again by the server before long.
    eventually("it has been tried", || {
        let (_, text) = sites.agents[0].ask("/metrics").unwrap();
        text.lines()
            .any(|line| line.starts_with("cheops_replication_failing") && line.ends_with(" 1"))
    });
    sites.agents[1].start();
    sites.agents[1].wait_until_ready();
    eventually("it is woken", || name(&sites).is_some_and(|now| Some(now) != before));
    eventually("all is there", || {
        sites.lines(1) == ["1", "2"] && sites.records(1) == sites.records(0)
    });
    let offered = sites.replicated(1, "offered");
    sites.agents[0].exec("lines", &line(3));
    eventually("it carries what there is", || sites.replicated(1, "offered") > offered);

    let file = sites.directories[0].path().join("site.toml");
    let config = fs::read_to_string(&file).unwrap();
    let (without, _) = config.split_once("[[peer]]\nname = 'site3'").unwrap();
    fs::write(file, without).unwrap();
    sites.agents[0].restart();
    eventually("the job of a site that is no more is removed", || sites.job(0, 2).is_none());
    eventually("the other one is there again", || sites.job(0, 1).is_some());

    // Nobody who listens in the place of an agent that is stopped is sent anything.
    let pid = sites.agents[0].pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    eventually("it has stopped", || sites.agents[0].ended() == Some(0));
    assert!(sites.job(0, 1).is_none());
}

/// This needs a server whose files the test can copy and put back: `pouchdb-server` itself.
mod pouchdb_only {
    use super::{
        Sites, Submit, all_ok, at,
        couch::{Couch, Pouch},
        eventually, line,
    };

    #[test]
    fn what_replication_brings_is_taken_in_after_compaction_a_restart_and_a_backup() {
        let mut server = Pouch::start();
        let couches = [Couch::at(&server), Couch::get()];
        let mut sites = Sites::on(couches.into());
        let everywhere = at("site1 & site2", line(1));
        assert!(all_ok(&sites.agents[0].exec("lines", &everywhere), 2));
        // Nothing but what is copied from one database to the other gets to site 1.
        assert_eq!(sites.agents[1].post("/api/v1/sites/site1/pause", &()).unwrap().0, 204);
        eventually("it is cut off", || sites.agents[0].reachable().is_empty());
        let bring = |sites: &Sites, resource: &str, number| {
            let submit = Submit { wait: Some("0s".into()), ..line(number) };
            sites.agents[1].exec(resource, &submit);
            eventually("site 2 has run it", || sites.lines(1).contains(&number.to_string()));
            sites.couches[1].copy_to(&sites.couches[0]);
            eventually("site 1 runs what was brought", || sites.lines(0) == sites.lines(1));
        };
        bring(&sites, "lines", 2);
        sites.couches[0].compact();
        bring(&sites, "lines", 3);
        let backup = sites.directories[0].path().join("backup");
        server.back_up(&backup);
        eventually("the agent sees it again", || sites.agents[0].ask("/readyz").unwrap().0 == 200);
        bring(&sites, "lines", 4);

        // What was brought since is gone, and the numbers that it had here are not given again.
        let end = |sites: &Sites| {
            let local = sites.couches[0].config.local();
            let pages =
                format!("/{local}/_all_docs?descending=true&startkey=%22page%3B%22&limit=1");
            sites.couches[0].look(&pages)["rows"][0]["id"].as_str().unwrap().to_owned()
        };
        let before = end(&sites);
        server.put_back(&backup);
        assert!(end(&sites) < before);
        eventually("the agent ends", || sites.agents[0].ended().is_some_and(|code| code != 0));
        sites.agents[0].start();
        sites.agents[0].wait_until_ready();
        let problems = sites.agents[0].ask("/api/v1/problems").unwrap().1;
        assert!(problems.contains("damaged"), "{problems}");
        eventually("it writes after what it had written", || end(&sites) > before);
        assert_eq!(sites.lines(0), ["1", "2", "3", "4"], "nothing is run twice");
    }
}

#[test]
fn a_server_elsewhere_is_served_over_tls() {
    let couch = Couch::get();
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(&directory.path().join("ca"));
    let (certificate, key) = ca.issue("agent", &Wanted::of("agent", "DNS:localhost"));
    let (api, peers, relay) = (unused(), unused(), unused());
    let (couchdb, port) = (couch.settings(directory.path()), relay.port());
    let config = format!(
        "site = 'site1'\n{couchdb}relay = '{relay}'\nrelay_name = 'localhost'\n[listen]\napi = '{api}'\npeers = '{peers}'\n"
    );
    let file = directory.path().join("site.toml");
    fs::write(&file, &config).unwrap();
    let mut cheops = Command::new(env!("CARGO_BIN_EXE_cheops"));
    let refused = cheops.args(["agent", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("`couchdb.relay_name` needs `api.certificate`"), "{said}");

    let files = format!("certificate = '{}'\nkey = '{}'", certificate.display(), key.display());
    fs::write(&file, format!("{config}[api]\n{files}\n")).unwrap();
    let mut agent = Agent::on_loopback("site1", &api.to_string(), directory.path());
    agent.start();
    let curl = |url: &str, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-m", "10"]).args(more).arg(url);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let trusted = ca.path("ca.pem");
    let trusted = ["--cacert", trusted.to_str().unwrap()];
    let place = format!("https://localhost:{port}");
    eventually("it is served", || curl(&place, &trusted).contains("Welcome"));
    assert!(curl(&format!("{place}/site2"), &trusted).contains("the token is not right"));
    assert_eq!(curl(&format!("http://localhost:{port}"), &[]), "", "nothing but TLS is spoken");
}
