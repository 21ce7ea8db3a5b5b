//! Operations that a site has lost of its own stream, that others took later ones after, and that a third
//! site still has: they come to all sites all the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod support;

use std::sync::Arc;

use cheops_core::{
    id::OpId,
    operation::Operation,
    plan::Outcome,
    replica::{Input, Message, Record, Replica, Reply, Sent, Settings, State, Version},
    time::Millis,
};
use support::pair::{
    known, now, operation, records, replica, resource, serve, site, talk, talk_on,
};

const ALL: &[&str] = &["a", "b", "c"];

/// The operations of `c`. It has lost the second, and has recorded the third without it.
fn first() -> Operation {
    operation("c:1", 5, &[], Some(ALL))
}

fn lost() -> Operation {
    operation("c:2", 6, &["c:1"], None)
}

fn third() -> Operation {
    operation("c:9", 7, &["c:1"], None)
}

/// Gives a site operations of `c`, each with the number of the one before it. What it runs does not end, so
/// that it records nothing itself.
fn take(replica: &mut Replica, ops: impl IntoIterator<Item = (u64, Operation)>) {
    for (after, op) in ops {
        replica.handle(records("c", after, op), now(1));
    }
}

/// A site that knows of the third, and not of the second.
fn with_gap(name: &str, settings: Settings) -> Replica {
    let mut replica = Replica::new(site(name), settings);
    take(&mut replica, [(0, first()), (1, third())]);
    replica
}

/// A site that knows of all three.
fn without_gap(name: &str, settings: Settings) -> Replica {
    let mut replica = Replica::new(site(name), settings);
    take(&mut replica, [(0, first()), (1, lost()), (2, third())]);
    replica
}

fn ids(replica: &Replica) -> Vec<OpId> {
    let log = replica.resource(&resource("r")).unwrap().log();
    let mut ids: Vec<OpId> = log.iter().map(|(_, op)| op.id.clone()).collect();
    ids.sort();
    ids
}

#[test]
fn what_waits_for_an_operation_in_a_gap_asks_for_it_and_gets_it() {
    let mut a = replica("a");
    let mut written = serve(&mut a, records("c", 0, first()), now(1)).0;
    written.extend(serve(&mut a, records("c", 1, third()), now(1)).0);
    a.handle(Input::PeerUp(site("b")), now(2));
    let follows = operation("b:1", 8, &["c:2"], None);
    a.handle(records("b", 0, follows), now(2));
    assert_eq!(known(&a), 2, "it waits");
    let (_, sent) = serve(&mut a, Input::Tick, now(60));
    let wanted: Vec<&Version> = sent
        .iter()
        .filter_map(|(_, message)| match message {
            Message::Want(wanted) => wanted.first().map(|(_, version)| version),
            _ => None,
        })
        .collect();
    assert!(wanted.iter().any(|version| version[&site("c")] == 1), "{wanted:?}");
    written.extend(serve(&mut a, records("b", 1, lost()), now(61)).0);
    let expected: Vec<OpId> =
        ["b:1", "c:1", "c:2", "c:9"].iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids(&a), expected);
    let restored = Replica::restore(site("a"), Settings::default(), written);
    assert_eq!(ids(&restored), expected);
    assert_eq!(restored.shared_digest(&site("b")), a.shared_digest(&site("b")));
}

/// What is missing is itself blocked by a gap in another stream. That is found however few records may wait.
#[test]
fn a_gap_behind_a_gap_is_asked_for_when_no_more_records_may_wait() {
    let mut a = Replica::new(site("a"), Settings { most_waiting: 3, ..Settings::default() });
    take(&mut a, [(0, first()), (1, third())]);
    let of_b = |number: u64, parent: &str| {
        records("b", number - 1, operation(&format!("b:{number}"), 8 + number, &[parent], None))
    };
    a.handle(of_b(1, "c:1"), now(1));
    a.handle(records("b", 1, operation("b:9", 17, &["b:1"], None)), now(1));
    a.handle(Input::PeerUp(site("b")), now(2));
    for (number, parent) in [(10, "c:4"), (11, "b:10"), (12, "b:11")] {
        a.handle(of_b(number, parent), now(2));
    }
    a.handle(records("b", 1, operation("c:4", 12, &["b:4"], None)), now(2));
    assert_eq!(known(&a), 4, "the rest waits");
    let (_, sent) = serve(&mut a, Input::Tick, now(60));
    let wants = |message: &Message| matches!(message, Message::Want(wanted) if wanted.iter().any(|(_, known)| known[&site("b")] == 1));
    assert!(sent.iter().any(|(_, message)| wants(message)), "{sent:?}");
}

/// However little fits into an answer, and however many operations come before the gap.
#[test]
fn sites_with_equal_versions_exchange_what_one_has_and_the_other_lacks() {
    for burst in [1, 5_000] {
        let settings = Settings { burst_bytes: burst, message_bytes: 1, ..Settings::default() };
        let mut a = with_gap("a", settings.clone());
        let mut b = without_gap("b", settings);
        assert_eq!(talk(&mut a, &mut b), [""; 0], "no site was restored from an old backup");
        assert_eq!(ids(&a), ids(&b), "burst {burst}");
        assert_eq!(a.shared_digest(&site("b")), b.shared_digest(&site("a")), "burst {burst}");
        // A site that comes later gets all of it from the one that filled its gap.
        let mut c = replica("c");
        assert_eq!(talk_on(&mut a, &mut c), [""; 0]);
        assert_eq!(ids(&c), ids(&b), "burst {burst}");
    }
}

#[test]
fn many_gaps_are_filled_in_an_order_that_others_can_take() {
    let (mut a, mut b) = (replica("a"), replica("b"));
    let op = |number: u64, parent: u64| {
        let (id, parent) = (format!("c:{number}"), format!("c:{parent}"));
        operation(&id, 5 + number, &[&parent], None)
    };
    take(&mut a, [(0, first()), (1, op(400, 1))]);
    take(&mut b, [(0, first())]);
    take(&mut b, (2..=300).map(|number| (number - 1, op(number, number - 1))));
    take(&mut b, [(300, op(400, 1))]);
    assert_eq!((known(&a), known(&b)), (2, 301));
    talk_on(&mut a, &mut b);
    assert_eq!(known(&a), 301);
    let mut late = replica("c");
    talk_on(&mut a, &mut late);
    assert_eq!(ids(&late), ids(&a));
}

/// A difference that is a contradiction is still found, by the operations themselves.
#[test]
fn two_operations_under_one_number_are_told_from_a_gap() {
    let (mut a, mut b) = (without_gap("a", Settings::default()), replica("b"));
    let other = Operation { key: Some("another".parse().unwrap()), ..lost() };
    let other = Operation { at: cheops_core::time::Timestamp::at(Millis(9)), ..other };
    take(&mut b, [(0, first()), (1, other), (2, third())]);
    let refused = talk_on(&mut a, &mut b);
    assert!(refused.iter().any(|why| why.contains("old backup")), "{refused:?}");
    let states = [&a, &b].map(|site| site.resource(&resource("r")).unwrap().state());
    assert_eq!(states, [State::Diverged; 2]);
}

/// A site has lost the reply that makes its operation void, and has run the operation again. The lost reply
/// stands once it is back, in whatever order the two come, and everybody reaches the end of the stream.
#[test]
fn a_reply_that_makes_an_operation_void_stands_for_a_later_one() {
    let reply = |number: u64, attempt: u32, outcome: Outcome| {
        let reply = Reply {
            id: format!("c:{number}").parse().unwrap(),
            resource: resource("r"),
            op: "c:1".parse().unwrap(),
            attempt,
            outcome,
            era: 1,
            took: Millis(1),
            output: Box::default(),
            made: None,
        };
        Sent { after: 1, record: Record::Reply(Arc::new(reply)), seal: None }
    };
    let (failed, again) = (reply(2, 1, Outcome::Ko), reply(9, 8, Outcome::Ok));
    for order in [[&failed, &again], [&again, &failed]] {
        let mut a = replica("a");
        take(&mut a, [(0, first())]);
        for sent in order {
            let records = vec![sent.clone()];
            let message = Message::Records { resource: resource("r"), records, more: false };
            a.handle(Input::Received { from: site("c"), message }, now(2));
        }
        let mut b = replica("b");
        talk_on(&mut a, &mut b);
        for replica in [&a, &b] {
            let found = replica.resource(&resource("r")).unwrap();
            assert_eq!(found.version()[&site("c")], 9, "{}", replica.here());
            let stands = found.reply(&"c:1".parse().unwrap(), &site("c")).unwrap();
            assert_eq!(stands.attempt, 1, "{}", replica.here());
            assert!(found.block().next().is_none(), "{}", replica.here());
        }
        assert_eq!(a.shared_digest(&site("b")), b.shared_digest(&site("a")));
    }
}

/// The site has lost all of the resource and declared it anew, while another one still had the beginning. A record
/// that came before another of its stream would be refused.
#[test]
fn records_of_a_stream_are_sent_in_their_order() {
    let mut a = replica("a");
    let anew = operation("c:9", 7, &[], Some(ALL));
    take(&mut a, [(0, first()), (1, lost()), (2, anew)]);
    let message = Message::Want(vec![(resource("r"), Version::new())]);
    let (_, sent) = serve(&mut a, Input::Received { from: site("b"), message }, now(2));
    let records = sent.into_iter().flat_map(|(_, message)| match message {
        Message::Records { records, .. } => records,
        _ => Vec::new(),
    });
    let numbers: Vec<(u64, u64)> = records
        .filter(|sent| sent.record.id().site == site("c"))
        .map(|sent| (sent.after, sent.record.id().number))
        .collect();
    assert_eq!(numbers, [(0, 1), (1, 2), (2, 9)]);
}
