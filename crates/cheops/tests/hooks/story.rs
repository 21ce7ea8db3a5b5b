//! One story in which everything happens that hooks tell of, with real agents and a real receiver.

use std::{collections::BTreeSet, fs, process::Command};

use cheops_agent::{api::model::Submit, hooks::Name};
use serde_json::json;

use super::{
    at,
    field::{all_ok, eventually, submit},
    receiver::Receiver,
    sites::{pause, resume, sites},
};

const BOTH: &str = "site1 & site2";

#[test]
fn every_event_reaches_a_receiver() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let settings =
        format!("[[hook]]\nname = 'all'\nurl = 'http://{}/'\nretry = '500ms'\n", receiver.address);
    let mut sites = sites(directory.path(), 2, &settings);
    // Events of a resource are told by both sites, with the same id.
    let told = |event: &str, site: &str, resource: &str| {
        let mut all = receiver.received().into_iter().map(|received| received.event);
        all.find(|e| {
            (&*e.event, &*e.site, e.resource.as_deref().unwrap_or("")) == (event, site, resource)
        })
    };
    let hears = |event: &str, site: &str, resource: &str| {
        eventually(&format!("{event} of {resource} at {site}"), || {
            told(event, site, resource).is_some()
        });
        told(event, site, resource).unwrap()
    };
    let matrix = |before: &str, after: &str, result: &str| {
        Some(json!({"ResolutionMatrix": [{"Before": before, "After": after, "Result": result}]}))
    };

    // All goes well, and then it fails at one site.
    let web = Submit { config: matrix("set", "set", "take-one"), ..at(BOTH, "true") };
    assert!(all_ok(&sites[0].exec("web", &web), 2));
    hears("operation.accepted", "site1", "web");
    hears("operation.ran", "site2", "web");
    hears("operation.settled", "site1", "web");
    hears("resource.settled", "site1", "web");
    sites[0].exec("web", &at(BOTH, "[ $CHEOPS_SITE = site1 ]"));
    hears("operation.failed", "site2", "web");
    let diverged = hears("resource.diverged", "site1", "web");
    assert!(diverged.next.is_some(), "{diverged:?}");

    // A cut: of two operations one wins, and one that lost has no way back.
    let count =
        Submit { config: matrix("add", "double", "take-both-keep-order"), ..at(BOTH, "true") };
    assert!(all_ok(&sites[0].exec("count", &count), 2));
    pause(&sites[1]);
    let lost = hears("site.lost", "site1", "");
    assert_eq!(lost.peer.as_deref(), Some("site2"));
    let quick = |kind: &str| Submit { wait: Some("0s".into()), ..submit("true", kind) };
    let loser = sites[0].exec("web", &quick("set")).operation;
    let winner = sites[1].exec("web", &quick("set")).operation;
    sites[0].exec("count", &quick("add"));
    sites[1].exec("count", &quick("double"));
    resume(&sites[1]);
    hears("site.returned", "site1", "");
    let superseded = hears("operation.superseded", "site1", "web");
    assert_eq!((superseded.operation, superseded.by), (Some(loser), Some(winner)));
    let stuck = hears("needs.decision", "site2", "count");
    assert!(stuck.next.is_some(), "{stuck:?}");

    // It is over.
    let mut delete = Command::new(env!("CARGO_BIN_EXE_cheops"));
    let deleted = delete.args(["--agent", &sites[0].url, "delete", "web"]).output().unwrap();
    assert!(deleted.status.success(), "{deleted:?}");
    let [one, two] = ["site1", "site2"].map(|site| hears("resource.deleted", site, "web"));
    assert_eq!((one.id == two.id, one.told_by == two.told_by), (true, false));

    // A site does not want it.
    let config = directory.path().join("site2/site.toml");
    let policy = "[policy]\nallow_any_shell_command = true\n[[policy.rule]]\nname = 'closed'\ndecision = 'deny'\nresources = ['closed']\n";
    fs::write(&config, fs::read_to_string(&config).unwrap() + policy).unwrap();
    sites[1].restart();
    sites[0].exec("closed", &at(BOTH, "true"));
    let denied = hears("operation.denied", "site2", "closed");
    assert!(denied.text.contains("was denied at site2: denied by rule `closed`"), "{denied:?}");

    let names: BTreeSet<String> = receiver.received().into_iter().map(|r| r.event.event).collect();
    let all: BTreeSet<String> = Name::ALL.iter().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(names, all, "and nothing that has another name");
}
