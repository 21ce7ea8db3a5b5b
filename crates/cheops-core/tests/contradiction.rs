//! Two different records under one number: an agent was started from a copy of a site's data. Who finds out, and
//! who hears of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod support;

use cheops_core::{
    operation::{Action, Operation},
    replica::{Durable, Input, Message, Replica, Settings, State, Version},
};
use support::pair::{now, operation, records, replica, resource, serve, site};

const ALL: &[&str] = &["a", "b", "c"];

fn first() -> Operation {
    operation("c:1", 5, &[], Some(ALL))
}

/// The same number, used by the copy of `c`.
fn copied() -> Operation {
    Operation { action: Action::command("inc 2"), ..first() }
}

/// A site that has the operation of `c`, and all that it wrote down.
fn with_first(name: &str) -> (Replica, Vec<Durable>) {
    let mut replica = replica(name);
    let (written, _) = serve(&mut replica, records("c", 0, first()), now(1));
    (replica, written)
}

fn restarted(name: &str, written: Vec<Durable>) -> Replica {
    Replica::restore(site(name), Settings::default(), written)
}

fn state(replica: &Replica) -> State {
    replica.resource(&resource("r")).unwrap().state()
}

fn told(from: &str, number: &str) -> Input {
    let message =
        Message::Contradicted { resource: resource("r"), number: number.parse().unwrap() };
    Input::Received { from: site(from), message }
}

/// What is sent to a site about contradictions, as it receives it.
fn carried(from: &str, to: &str, replica: &mut Replica, input: Input) -> Vec<Input> {
    let (_, sent) = serve(replica, input, now(3));
    let telling = |message: &Message| matches!(message, Message::Contradicted { .. });
    let to_it =
        sent.into_iter().filter(|(site, message)| *site == to.parse().unwrap() && telling(message));
    to_it.map(|(_, message)| Input::Received { from: site(from), message }).collect()
}

/// All three have the operation of `c`, so that comparing shows nothing. `a` alone meets the one of the copy.
#[test]
fn all_sites_of_a_resource_hear_of_a_contradiction() {
    for (is_up, restarts) in [(true, false), (false, false), (false, true)] {
        let [(mut a, written), (mut b, _), (mut c, _)] = ["a", "b", "c"].map(with_first);
        let up = |name: &str| Input::PeerUp(site(name));
        if is_up {
            serve(&mut a, up("c"), now(2));
        }
        b.handle(up("c"), now(2));
        c.handle(up("b"), now(2));
        let mut found = a.clone();
        let (more, _) = serve(&mut found, records("b", 0, copied()), now(3));
        let to_c = if is_up {
            carried("a", "c", &mut a, records("b", 0, copied()))
        } else {
            a = if restarts { restarted("a", [written, more].concat()) } else { found };
            carried("a", "c", &mut a, up("c"))
        };
        let [hears] = &to_c[..] else { panic!("{to_c:?}") };
        assert_ne!(state(&c), State::Diverged);
        // The third one, which `a` can't reach, hears it from the second.
        let to_b = carried("c", "b", &mut c, hears.clone());
        let [hears] = &to_b[..] else { panic!("{to_b:?}") };
        assert_ne!(state(&b), State::Diverged);
        assert_eq!(carried("b", "c", &mut b, hears.clone()).len(), 1, "it says so once");
        assert_eq!(carried("c", "b", &mut c, told("b", "c:1")), vec![], "known already");
        let states = [&a, &b, &c].map(state);
        assert_eq!(states, [State::Diverged; 3], "linked then: {is_up}, restarted: {restarts}");
    }
}

/// A message that got lost is made up for when the sites compare what they know.
#[test]
fn a_site_that_asks_for_records_hears_of_a_contradiction() {
    let (mut a, _) = with_first("a");
    serve(&mut a, records("b", 0, copied()), now(2));
    let message = Message::Want(vec![(resource("r"), Version::new())]);
    let wants = Input::Received { from: site("c"), message };
    assert_eq!(carried("a", "c", &mut a, wants), [told("a", "c:1")]);
}

#[test]
fn a_contradiction_is_believed_only_where_it_can_be() {
    for (from, number) in [("z", "c:1"), ("a", "z:1"), ("a", &*format!("c:{}", u64::MAX))] {
        let (mut b, _) = with_first("b");
        let (written, sent) = serve(&mut b, told(from, number), now(2));
        assert_eq!((state(&b), written, sent), (State::Pending, vec![], vec![]), "{from} {number}");
    }
    let mut b = replica("b");
    assert_eq!(serve(&mut b, told("a", "c:1"), now(2)), (vec![], vec![]), "of no resource here");
}

/// It was about records of an earlier life, which was deleted.
#[test]
fn a_contradiction_ends_with_the_records_that_it_was_about() {
    let delete = Operation {
        kind: "delete".parse().unwrap(),
        reset: true,
        ..operation("c:2", 20, &["c:1"], None)
    };
    let begins = operation("b:1", 50, &["c:2"], None);
    let line: Version = [("a", 3), ("b", 0), ("c", 4)].map(|(name, n)| (site(name), n)).into();
    let forgotten = Message::Forgotten(vec![(resource("r"), line)]);
    for (number, ends) in [("c:1", true), ("b:1", false)] {
        let (mut a, mut written) = with_first("a");
        let inputs = [
            told("b", number),
            records("c", 1, delete.clone()),
            records("b", 0, begins.clone()),
            Input::Received { from: site("c"), message: forgotten.clone() },
            told("b", "c:1"),
        ];
        for input in inputs {
            written.extend(serve(&mut a, input, now(2)).0);
        }
        for a in [restarted("a", written), a] {
            assert_eq!(a.resource(&resource("r")).unwrap().log().len(), 1, "{number}: trimmed");
            assert_eq!(state(&a) != State::Diverged, ends, "{number}");
        }
    }
}
