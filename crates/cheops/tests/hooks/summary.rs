//! One message for all sites: sent by the site that received the operation, or by another if that is
//! gone.

use std::path::Path;

use cheops_agent::api::model::{RunStatus, Submit};

use super::{
    at,
    field::{agent::Agent, all_ok, eventually},
    receiver::{Mood, Receiver},
    sites::{pause, resume, sites},
};

/// Three sites that all tell the same receiver.
fn three(directory: &Path, receiver: &Receiver) -> Vec<Agent> {
    let at = receiver.address;
    let settings = format!(
        "[hooks]\ntakeover = '2s'\n[[hook]]\nname = 'all'\nmode = 'summary'\nurl = 'http://{at}/'\nretry = '500ms'\n[[hook]]\nname = 'links'\non = ['site.*']\nurl = 'http://{at}/'\nretry = '500ms'\n"
    );
    sites(directory, 3, &settings)
}

const ALL: &str = "site1 & site2 & site3";

#[test]
fn an_operation_is_told_once_when_all_sites_have_run_it() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let sites = three(directory.path(), &receiver);
    assert!(all_ok(&sites[1].exec("web", &at(ALL, "true")), 3));
    sites[0].exec("web", &at(ALL, "[ $CHEOPS_SITE = site1 ]"));
    eventually("two summaries", || receiver.told().len() == 2);
    // Each site has a queue of its own: which of the two arrives first is left to chance.
    let told = receiver.told();
    let by = |site: &str| told.iter().find(|event| event.told_by == site).unwrap();
    assert_eq!((by("site2").event.as_str(), by("site2").runs.len()), ("operation.settled", 3));
    assert_eq!(by("site1").event, "operation.failed");
    let text = &by("site1").text;
    assert!(text.contains("has failed at 2 of 3 sites: site2, site3"), "{text}");
    assert_eq!(receiver.received().len(), 2, "each is sent once, if nothing goes wrong");
}

#[test]
fn another_site_takes_over_and_a_double_has_the_same_id() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    let mut sites = three(directory.path(), &receiver);
    assert!(all_ok(&sites[0].exec("web", &at(ALL, "true")), 3));
    eventually("a summary", || receiver.told().len() == 1);
    // The last site is away until the one that receives the operation is gone.
    pause(&sites[2]);
    let first = Submit { wait: Some("0s".into()), ..at(ALL, "true") };
    let operation = sites[0].exec("web", &first).operation;
    sites[1].wait_for("web", "site2 knows that site1 and itself have run it", |resource| {
        let op = resource.operations.iter().find(|op| op.id == operation);
        op.is_some_and(|op| op.runs.iter().filter(|r| r.status == RunStatus::Ok).count() == 2)
    });
    sites[0].kill();
    resume(&sites[2]);
    let summaries = || {
        let all = receiver.received().into_iter().map(|received| received.event);
        all.filter(|e| e.summary && e.operation.as_ref() == Some(&operation)).collect::<Vec<_>>()
    };
    eventually("another site tells", || !summaries().is_empty());
    let [taken_over] = summaries().try_into().unwrap();
    assert_eq!((taken_over.told_by.as_str(), taken_over.site.as_str()), ("site2", "site1"));
    assert_eq!(taken_over.event, "operation.settled");
    // Who comes back tells it, too, since nobody can know who has heard what.
    sites[0].start();
    sites[0].wait_until_ready();
    eventually("the origin tells", || summaries().iter().any(|event| event.told_by == "site1"));
    assert!(summaries().iter().all(|event| event.id == taken_over.id));
    let lost = receiver.told().into_iter().filter(|e| e.event == "site.lost");
    let lost: Vec<_> = lost.map(|e| (e.told_by, e.peer.unwrap())).collect();
    assert!(lost.contains(&("site2".into(), "site1".into())), "{lost:?}");
    let returned = || {
        receiver.told().into_iter().any(|e| {
            e.event == "site.returned" && e.told_by == "site2" && e.peer.as_deref() == Some("site1")
        })
    };
    eventually("it is back", returned);
}

#[test]
fn a_cut_that_ends_one_of_two_operations_is_told() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Receiver::start());
    receiver.feel(Mood::Answer(200));
    let sites = three(directory.path(), &receiver);
    let config = serde_json::json!({"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]});
    let created = Submit { config: Some(config), ..at(ALL, "true") };
    assert!(all_ok(&sites[0].exec("web", &created), 3));
    pause(&sites[2]);
    let quick = Submit { wait: Some("0s".into()), ..at(ALL, "true") };
    let loser = sites[0].exec("web", &quick).operation;
    let winner = sites[2].exec("web", &quick).operation;
    resume(&sites[2]);
    let of = |operation: &str| {
        let mut told = receiver.told().into_iter();
        told.find(|e| e.summary && e.operation.as_deref() == Some(operation))
    };
    eventually("both are told", || of(&loser).is_some() && of(&winner).is_some());
    let lost = of(&loser).unwrap();
    assert_eq!(
        (lost.event.as_str(), lost.by.as_deref()),
        ("operation.superseded", Some(winner.as_str()))
    );
    assert!(lost.text.contains("the later of two set"), "{}", lost.text);
    assert_eq!(of(&winner).unwrap().event, "operation.settled");
}
