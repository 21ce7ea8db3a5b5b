//! A new life of a resource, at a site that no longer has the records of the earlier one: an operator removed
//! the site and let it back in, or the site lost them. The other sites have deleted and forgotten the earlier
//! life, so nobody can send it again.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::{collections::BTreeMap, sync::Arc};

use cheops_core::{
    operation::Operation,
    plan::Outcome,
    replica::{
        Durable, Effect, Input, Message, Record, Replica, Report, Settings, Stretch, Version,
    },
    time::{Millis, Timestamp},
};
use support::pair::{known, now, operation, records, replica, resource, serve, site, submission};

const ALL: &[&str] = &["a", "b", "c"];

/// How far the other sites have forgotten the earlier life.
fn line() -> Version {
    [("a", 5), ("b", 2), ("c", 2)].map(|(name, number)| (site(name), number)).into()
}

fn forgotten() -> Input {
    let message = Message::Forgotten(vec![(resource("r"), line())]);
    Input::Received { from: site("a"), message }
}

/// The first operation of the new life. Its site had not forgotten the delete yet, so the operation itself does
/// not tell how far the earlier life is forgotten.
fn begins() -> Input {
    records("b", 2, operation("b:3", 50, &["a:3"], Some(ALL)))
}

fn delete() -> Operation {
    let kind = "delete".parse().unwrap();
    Operation { kind, reset: true, ..operation("a:3", 20, &["a:1"], None) }
}

fn restarted(written: Vec<Durable>) -> Replica {
    Replica::restore(site("c"), Settings::default(), written)
}

#[test]
fn a_site_that_was_removed_takes_part_in_a_new_life_after_a_cut_of_all_that_it_had() {
    let mut c = replica("c");
    let mut written = Vec::new();
    let submit = submission("r", ALL);
    let fenced = Input::Fenced { site: site("c"), known: BTreeMap::from([(resource("r"), 2)]) };
    // It runs the delete and begins the resource again, which nobody else takes from it.
    let earlier = [
        records("a", 0, operation("a:1", 10, &[], Some(ALL))),
        records("a", 1, delete()),
        submit,
        forgotten(),
    ];
    for input in earlier {
        written.extend(serve(&mut c, input, now(1)).0);
    }
    assert_eq!(known(&c), 1, "what it has received itself is left");
    written.extend(serve(&mut c, fenced, now(2)).0);
    assert_eq!((known(&c), c.held().count()), (0, 1));
    for mut c in [restarted(written), c] {
        assert_eq!(c.forgotten(&resource("r")), Some(&line()));
        serve(&mut c, begins(), now(3));
        assert_eq!(known(&c), 1, "the new life has begun");
    }
}

#[test]
fn a_site_that_lost_a_resource_takes_part_in_its_new_life() {
    let withheld = Durable::Withheld { resource: resource("r"), floor: 7 };
    let mut lost_unknown = replica("c");
    lost_unknown.lose_unknown(Millis(1), 7);
    for mut c in [restarted(vec![withheld]), lost_unknown] {
        serve(&mut c, begins(), now(1));
        assert_eq!(known(&c), 0, "what it follows is not here");
        let (written, _) = serve(&mut c, forgotten(), now(2));
        for mut c in [restarted(written), c] {
            serve(&mut c, begins(), now(3));
            assert_eq!(known(&c), 1);
        }
    }
}

#[test]
fn a_site_that_lost_nothing_takes_no_tombstone_of_a_resource_that_it_never_had() {
    let mut c = replica("c");
    serve(&mut c, forgotten(), now(1));
    assert_eq!(c.forgotten(&resource("r")), None);
    // Neither does one that lost something, if the tombstone does not name it.
    c.lose_unknown(Millis(1), 7);
    let mut line = line();
    line.remove(&site("c"));
    let message = Message::Forgotten(vec![(resource("r"), line)]);
    serve(&mut c, Input::Received { from: site("a"), message }, now(2));
    assert_eq!(c.forgotten(&resource("r")), None);
}

/// An operation that came after that would run beside the command, which has outlived the resource.
#[test]
fn a_resource_is_not_forgotten_while_its_delete_is_run_again() {
    let loss = Durable::Withheld { resource: resource("r"), floor: 7 };
    let mut c = restarted(vec![loss]);
    let begins = operation("a:1", 5, &[], Some(&["a", "c"]));
    for input in [records("a", 0, begins), records("a", 1, delete())] {
        c.handle(input, now(1));
    }
    let from_a = |message| Input::Received { from: site("a"), message };
    let version = Version::from([(site("a"), 3)]);
    let digest = c.shared_digest(&site("a"));
    let has = Message::Have(Stretch::default(), vec![(resource("r"), version.clone())], digest);
    let runs = c.handle(from_a(has), now(2)).into_iter().find_map(|effect| match effect {
        Effect::Run { run, .. } => Some(run),
        _ => None,
    });
    let run = runs.unwrap();
    let forgotten = Message::Forgotten(vec![(resource("r"), version)]);
    c.handle(from_a(forgotten), now(3));
    assert!(c.resource(&resource("r")).is_some(), "the command is still running");
    let report = Report { outcome: Outcome::Ok, took: Millis(1), output: "".into(), made: None };
    c.handle(Input::Ran { run, report }, now(4));
    assert!(c.resource(&resource("r")).is_none());
}

/// It has lost the delete and its reply to it. The other sites have forgotten all of that: no site can send it again.
#[test]
fn a_site_that_lost_a_delete_forgets_what_the_others_have_forgotten() {
    let first = Record::Operation(Arc::new(operation("a:1", 5, &[], Some(ALL))));
    let left =
        vec![Durable::Record(first, None), Durable::Withheld { resource: resource("r"), floor: 7 }];
    let mut c = restarted(left.clone());
    let (more, _) = serve(&mut c, forgotten(), now(1));
    for mut c in [restarted([left, more].concat()), c] {
        assert_eq!(c.forgotten(&resource("r")), Some(&line()), "and not what it may have lost");
        serve(&mut c, begins(), now(2));
        serve(&mut c, records("c", 2, operation("c:3", 60, &["b:3"], None)), now(3));
        assert_eq!(known(&c), 2, "one of its own in the new life, which it had lost");
    }
}

#[test]
fn a_site_that_forgets_after_a_loss_uses_no_number_again_that_it_may_have_used() {
    let mut c = restarted(vec![Durable::Withheld { resource: resource("r"), floor: 7 }]);
    let (written, _) = serve(&mut c, forgotten(), now(1));
    let loss = Durable::Withheld { resource: resource("r"), floor: 7 };
    for mut c in [restarted([vec![loss], written].concat()), c] {
        serve(&mut c, begins(), now(2));
        let delete = Operation {
            id: "b:4".parse().unwrap(),
            parents: ["b:3".parse().unwrap()].into(),
            ..delete()
        };
        serve(
            &mut c,
            records("b", 3, Operation { at: Timestamp::from_bits(70), ..delete }),
            now(3),
        );
        let heard = |name: &str| {
            let digest = c.shared_digest(&site(name));
            let version = c.resource(&resource("r")).unwrap().version();
            let message = Message::Have(Stretch::default(), vec![(resource("r"), version)], digest);
            Input::Received { from: site(name), message }
        };
        let rounds = [heard("a"), heard("b"), heard("a"), heard("b")];
        let written = rounds.into_iter().flat_map(|heard| serve(&mut c, heard, now(4)).0);
        let own = written.filter_map(|durable| match durable {
            Durable::Record(record, _) => Some(record.id().number),
            _ => None,
        });
        assert_eq!(own.collect::<Vec<u64>>(), [8]);
    }
}
