//! What a peer may say that is wrong, early, late or a lie, and what a site makes of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod support;

use cheops_core::{
    id::OpId,
    operation::{Action, HttpBody, HttpRequest, Names, Operation},
    replica::{self, Durable, Effect, Input, Message, Replica, Settings, State, Version},
    time::{Millis, Timestamp},
};
use support::pair::{
    known, now, operation, records, refusals, replica, reply, resource, serve, site, sites,
    submission, talk,
};

#[test]
fn a_first_operation_is_checked_like_any_other() {
    let both = Some(&["a", "b"][..]);
    let other = Operation { resource: resource("other"), ..operation("b:1", 5, &[], both) };
    for (op, after, why) in [
        (other, 0, "a record of another resource"),
        (operation("b:1", u64::MAX, &[], both), 0, "an operation from the far future"),
        (
            operation("c:1", 5, &[], both),
            0,
            "an operation of a site that is not one of the resource's",
        ),
        (operation("b:1", 5, &[], both), 1, "a record that comes after itself"),
        (
            operation("b:18446744073709551615", 5, &[], both),
            0,
            "a number that nobody can have counted to",
        ),
        (operation("b:1", 5, &[], Some(&["b", "c"])), 0, "this is not one of the resource's sites"),
        (operation("c:1", 5, &[], Some(&["a", "c"])), 0, "it is not one of the resource's sites"),
    ] {
        let mut a = replica("a");
        let effects = a.handle(records("b", after, op), now(0));
        assert_eq!(refusals(&effects), [why]);
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Persist(_))), "{why}");
        assert_eq!(a.resources().count(), 0, "{why}");
    }
}

#[test]
fn one_that_breaks_a_rule_is_refused() {
    for (op, after, why) in [
        (
            operation("b:2", 4, &["b:1"], None),
            1,
            "an operation that is not later than what it follows",
        ),
        (
            operation("b:2", 9, &[], None),
            1,
            "a first operation that does not say where the resource exists",
        ),
        (
            operation("b:1", 6, &[], Some(&["a", "b"])),
            0,
            "its number stands for another operation: was the site restored from an old backup?",
        ),
        (
            operation("c:1", 9, &["b:1"], None),
            0,
            "an operation of a site that is not one of the resource's",
        ),
    ] {
        let mut a = replica("a");
        a.handle(records("b", 0, operation("b:1", 5, &[], Some(&["a", "b"]))), now(0));
        assert_eq!(refusals(&a.handle(records("b", after, op), now(1))), [why]);
        assert_eq!(known(&a), 1);
    }
}

#[test]
fn a_site_that_dates_an_operation_long_before_its_earlier_ones_is_refused() {
    const DAY: u64 = 24 * 60 * 60;
    let at = |seconds: u64| Timestamp::at(Millis(seconds * 1_000)).to_bits();
    let year = 365 * DAY;
    for (back, refused) in [(0, false), (DAY / 2, false), (DAY + 2, true), (year, true)] {
        let mut a = replica("a");
        let both = Some(&["a", "b", "c"][..]);
        // b:2 follows what b:1 does not, as if b had lost b:1.
        let first = operation("c:1", at(1), &[], both);
        let own = operation("b:1", at(2 * year), &["c:1"], None);
        let next = operation("b:2", at(2 * year - back + 1), &["c:1"], None);
        a.handle(records("b", 0, first), now(0));
        a.handle(records("b", 0, own), now(0));
        let effects = a.handle(records("b", 1, next), now(1));
        let why = "an operation that is dated long before an earlier one of its site";
        assert_eq!(refusals(&effects), if refused { vec![why] } else { vec![] }, "{back} s");
        assert_eq!(known(&a), if refused { 2 } else { 3 });
    }
}

#[test]
fn a_record_that_comes_again_changes_nothing_and_another_under_its_number_is_refused() {
    let mut a = replica("a");
    let first = operation("b:1", 5, &[], Some(&["a", "b"]));
    a.handle(records("b", 0, first.clone()), now(0));
    a.handle(reply("b:2", "done"), now(0));
    let before = a.clone();
    for again in [records("b", 0, first.clone()), reply("b:2", "done")] {
        assert_eq!(a.handle(again, now(1)), vec![]);
    }
    assert_eq!(a, before);
    let other = Operation { action: Action::command("inc 2"), ..first };
    for (other, what) in [(records("b", 0, other), "operation"), (reply("b:2", "not"), "reply")] {
        let refused = refusals(&a.handle(other, now(2)));
        let why = format!("its number stands for another {what}: was the site");
        assert!(refused.len() == 1 && refused[0].starts_with(&why), "{refused:?}");
    }
    let (now_known, known) = (a.resource(&resource("r")), before.resource(&resource("r")));
    let of = |found: &replica::Resource| (found.log().clone(), found.version());
    assert_eq!(now_known.map(of), known.map(of));
}

/// Two agents of one site, started from copies of the same data, give the same number to different records.
/// What the application holds at that site, nobody knows.
#[test]
fn a_resource_is_not_settled_once_a_number_was_used_twice() {
    let state = |a: &Replica| a.resource(&resource("r")).unwrap().state();
    let first = operation("b:1", 5, &[], Some(&["a", "b"]));
    let other = Operation { action: Action::command("inc 2"), ..first.clone() };
    for (contradiction, what) in
        [(records("b", 0, other), "operation"), (reply("b:2", "another"), "reply")]
    {
        let mut a = replica("a");
        let mut written = serve(&mut a, records("b", 0, first.clone()), now(0)).0;
        written.extend(serve(&mut a, reply("b:2", "one"), now(1)).0);
        assert_eq!(state(&a), State::Settled);
        for again in 0..2 {
            let more = serve(&mut a, contradiction.clone(), now(2 + again)).0;
            assert_eq!(more.len(), usize::from(again == 0), "{what}: written down once");
            written.extend(more);
        }
        assert_eq!(state(&a), State::Diverged, "{what}");
        let restored = Replica::restore(site("a"), Settings::default(), written);
        assert_eq!(state(&restored), State::Diverged, "{what}: after a restart");
    }
}

/// One operation from the end of time: its resource lives with it, the others don't notice.
#[test]
fn a_clock_at_the_end_of_time_is_nobody_elses() {
    let (mut a, mut b, mut c) = (replica("a"), replica("b"), replica("c"));
    let last = operation("b:1", Timestamp::LAST.to_bits(), &[], Some(&["a", "b"]));
    a.handle(records("b", 0, last.clone()), now(0));
    b.handle(records("a", 0, last), now(0));
    for name in ["b", "c"] {
        a.handle(Input::PeerUp(site(name)), now(1));
    }
    for id in ["r", "clean", "clean", "r"] {
        let names = if id == "r" { ["a", "b"] } else { ["a", "c"] };
        for (to, message) in serve(&mut a, submission(id, &names), now(2)).1 {
            let other = if to == site("b") { &mut b } else { &mut c };
            let received = Input::Received { from: site("a"), message };
            assert_eq!(refusals(&other.handle(received, now(3))), [""; 0]);
        }
    }
    assert_eq!(known(&b), 3);
    let clean = c.resource(&resource("clean")).unwrap();
    assert_eq!(clean.log().len(), 2);
    assert!(clean.log().newest() < Timestamp::at(Millis(10_000)));
}

/// A site that is restored from an old backup uses numbers again. Versions are then equal and the
/// operations are not; the sites notice, and say so.
#[test]
fn a_number_that_was_used_twice_is_noticed() {
    let (mut a, mut b) = (replica("a"), replica("b"));
    a.handle(Input::PeerUp(site("b")), now(0));
    let (backup, sent) = serve(&mut a, submission("r", &["a", "b"]), now(1));
    let (_, more) = serve(&mut a, submission("r", &["a", "b"]), now(2));
    for (_, message) in sent.into_iter().chain(more) {
        serve(&mut b, Input::Received { from: site("a"), message }, now(3));
    }
    let mut a = Replica::restore(site("a"), Settings::default(), backup);
    serve(&mut a, Input::Started, now(4));
    serve(&mut a, submission("r", &["a", "b"]), now(5));
    // First they tell each other what they lack; then there is nothing left that could differ.
    talk(&mut a, &mut b);
    let refused = talk(&mut a, &mut b);
    assert!(refused.iter().all(|why| why.contains("old backup")), "{refused:?}");
    assert!(!refused.is_empty());
    let states = [&a, &b].map(|site| site.resource(&resource("r")).unwrap().state());
    assert!(states.contains(&State::Diverged), "{states:?}");
    // Once it was deleted at both, nothing is left of it.
    for name in ["a", "b"] {
        let up = Input::PeerUp(site(name));
        serve(if name == "a" { &mut b } else { &mut a }, up, now(20));
    }
    let Input::Submit(mut delete) = submission("r", &["a", "b"]) else { panic!("no submission") };
    delete.kind = "delete".parse().unwrap();
    let (_, sent) = serve(&mut b, Input::Submit(delete), now(21));
    for (_, message) in sent {
        serve(&mut a, Input::Received { from: site("b"), message }, now(21));
    }
    for _ in 0..3 {
        talk(&mut a, &mut b);
    }
    assert_eq!((known(&a), known(&b)), (0, 0));
}

/// Two sites that created a resource apart, and that only a third knew to belong together, meet
/// after the third has gone.
#[test]
fn sites_that_are_joined_by_a_third_meet_without_it() {
    let ours = operation("one:1", 10, &[], Some(&["one", "two"]));
    let theirs = operation("three:1", 11, &[], Some(&["one", "three"]));
    let (mut two, mut three) = (replica("two"), replica("three"));
    two.handle(records("one", 0, ours.clone()), now(0));
    three.handle(records("one", 0, theirs), now(0));
    three.handle(records("one", 0, ours), now(0));
    assert_eq!(talk(&mut two, &mut three), [""; 0]);
    assert_eq!((known(&two), known(&three)), (2, 2));
    let all = sites(&["one", "two", "three"]);
    assert_eq!(two.resource(&resource("r")).unwrap().sites(), &all);
}

/// What waits for something that never comes is bounded, is asked for less and less often, and is
/// given up in the end.
#[test]
fn nobody_waits_for_ever() {
    let mut a = replica("a");
    a.handle(records("b", 0, operation("b:1", 5, &[], Some(&["a", "b"]))), now(0));
    a.handle(Input::PeerUp(site("b")), now(0));
    let size = |a: &Replica| format!("{a:?}").len();
    a.handle(records("b", 1, operation("b:2", 6, &["b:900"], None)), now(0));
    let before = size(&a);
    for number in 100..900 {
        let parent = format!("b:{number}");
        a.handle(records("b", 1, operation("b:2", 6, &[parent.as_str()], None)), now(0));
    }
    assert_eq!(a.resource(&resource("r")).unwrap().waiting(), 1);
    assert_eq!(size(&a), before, "the same record waits for one thing at a time");
    let mut asked = 0;
    for second in 1..=600 {
        let effects = a.handle(Input::Tick, now(second));
        asked += effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Send { message: Message::Want(_), .. }))
            .count();
    }
    assert_eq!(a.resource(&resource("r")).unwrap().waiting(), 0);
    assert!((2..10).contains(&asked), "asked {asked} times");
}

/// Records that come in the wrong order are taken in once what they depend on has come.
#[test]
fn what_comes_early_waits() {
    let mut a = replica("a");
    let chain = [
        operation("b:1", 5, &[], Some(&["a", "b"])),
        operation("b:2", 6, &["b:1"], None),
        operation("b:3", 7, &["b:2"], None),
        operation("b:4", 8, &["b:3"], None),
    ];
    for n in [0, 3, 2, 1] {
        a.handle(records("b", n as u64, chain[n].clone()), now(0));
    }
    let ids: Vec<OpId> =
        a.resource(&resource("r")).unwrap().block().map(|op| op.id.clone()).collect();
    assert_eq!(ids, chain.map(|op| op.id));
}

/// The site is stuck with a delete of which nobody knows whether it took effect here, and hears that
/// the others have forgotten all up to it. To delete again would change nothing.
#[test]
fn a_site_that_is_stuck_does_not_try_for_ever_to_forget() {
    let mut a = replica("a");
    let post = || {
        Action::Http(Box::new(HttpRequest {
            service: "image".parse().unwrap(),
            method: "POST".into(),
            target: "/delete".into(),
            headers: Box::default(),
            body: HttpBody::None,
            names: Names::Nothing,
        }))
    };
    let first = operation("b:1", 1 << 20, &[], Some(&["a", "b"]));
    let delete = Operation {
        kind: "delete".parse().unwrap(),
        action: post(),
        reset: true,
        ..operation("b:2", 2 << 20, &["b:1"], None)
    };
    serve(&mut a, records("b", 0, first), now(2_000));
    let effects = a.handle(records("b", 1, delete), now(2_000));
    let run = effects.into_iter().find_map(|effect| match effect {
        Effect::Run { run, .. } => Some(run),
        _ => None,
    });
    a.handle(Input::Lost(run.unwrap()), now(2_000));
    assert!(a.resource(&resource("r")).unwrap().is_stuck());
    let version = [(site("a"), 2), (site("b"), 2)].into();
    let message = Message::Forgotten(vec![(resource("r"), version)]);
    a.handle(Input::Received { from: site("b"), message }, now(2_001));
    assert!(a.resource(&resource("r")).unwrap().is_stuck(), "a person has to decide");
}

/// Numbers are used once: a site that skips to the last one can record nothing more of the resource.
#[test]
fn no_site_can_use_up_the_numbers_of_another() {
    let last = u64::MAX >> 1;
    let version = |number| Version::from([(site("a"), number)]);
    let counts = |number| {
        let mut op = operation("b:1", 5, &[], Some(&["a", "b"]));
        op.declares.as_mut().unwrap().base = version(number);
        records("b", 0, op)
    };
    let forgets = |number| {
        let message = Message::Forgotten(vec![(resource("r"), version(number))]);
        Input::Received { from: site("b"), message }
    };
    let begins = || records("b", 0, operation("b:1", 5, &[], Some(&["a", "b"])));
    for (earlier, odd) in [
        (None, counts(u64::MAX)),
        (None, counts(last)),
        (Some(begins()), forgets(u64::MAX)),
        (Some(begins()), forgets(last)),
        (None, forgets(last)),
    ] {
        let mut a = replica("a");
        // It has lost something, and takes tombstones of what it does not know.
        a.lose_unknown(Millis(1), 7);
        if let Some(earlier) = earlier {
            serve(&mut a, earlier, now(1));
        }
        let effects = a.handle(odd.clone(), now(2));
        assert_eq!(refusals(&effects).len(), 1, "{odd:?}");
        let (written, _) = serve(&mut a, submission("r", &["a", "b"]), now(3));
        let own = written.iter().filter_map(|durable| match durable {
            Durable::Record(record, _) => Some(record.id().clone()),
            _ => None,
        });
        let highest = own.filter(|id| id.site == site("a")).map(|id| id.number).max();
        assert!(highest.is_none_or(|number| number < 20), "{odd:?}: {highest:?}");
    }
}

/// A site that has lost its data counts on from what the others know of it.
#[test]
fn a_site_counts_on_from_where_others_know_it_to_be() {
    let mut a = replica("a");
    let mut op = operation("b:1", 5, &[], Some(&["a", "b"]));
    op.declares.as_mut().unwrap().base = [(site("a"), 1_000_000)].into();
    serve(&mut a, records("b", 0, op), now(2));
    assert_eq!(a.resource(&resource("r")).unwrap().version()[&site("a")], 1_000_001, "its reply");
}
