//! Two different records under one number: an agent was started from a copy of a site's data. Who finds out, and
//! who hears of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod support;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use cheops_core::{
    id::{OpId, SiteId},
    operation::{Action, Operation, SharedOperation},
    plan::Outcome,
    replica::{
        Durable, Effect, Input, Message, Record, Replica, Reply, Report, Resource, Sent, Settings,
        State, Version,
    },
    time::{Millis, Now},
};
use support::pair::{now, operation, records, replica, resource, serve, site, submission};

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

/// All three have the operation of `c`, so that their records are the same. `a` alone meets the one of the copy.
#[test]
fn sites_that_are_linked_hear_of_a_contradiction_at_once() {
    let [(mut a, _), (mut b, _), (mut c, _)] = ["a", "b", "c"].map(with_first);
    for (one, other) in [(&mut a, "c"), (&mut b, "c"), (&mut c, "b")] {
        one.handle(Input::PeerUp(site(other)), now(2));
    }
    let to_c = carried("a", "c", &mut a, records("b", 0, copied()));
    let [hears] = &to_c[..] else { panic!("{to_c:?}") };
    assert_ne!(state(&c), State::Diverged);
    // The third one, which `a` can't reach, hears it from the second.
    let to_b = carried("c", "b", &mut c, hears.clone());
    let [hears] = &to_b[..] else { panic!("{to_b:?}") };
    assert_ne!(state(&b), State::Diverged);
    assert_eq!(carried("b", "c", &mut b, hears.clone()).len(), 1, "it says so once");
    assert_eq!(carried("c", "b", &mut c, told("b", "c:1")), vec![], "known already");
    assert_eq!([&a, &b, &c].map(state), [State::Diverged; 3]);
}

#[test]
fn sites_that_compare_hear_of_a_contradiction() {
    for restarts in [false, true] {
        let [(mut a, mut written), (mut b, _), (mut c, _)] = ["a", "b", "c"].map(with_first);
        exchange(&mut b, &mut c, now(10));
        written.extend(serve(&mut a, records("b", 0, copied()), now(20)).0);
        if restarts {
            a = restarted("a", written);
        }
        exchange(&mut a, &mut c, now(30));
        assert_eq!(state(&c), State::Diverged, "restarted: {restarts}");
        exchange(&mut b, &mut c, now(40));
        assert_eq!(state(&b), State::Diverged, "restarted: {restarts}");
        assert_eq!(b.shared_digest(&site("c")), c.shared_digest(&site("b")), "nothing differs now");
    }
}

/// They may have the same operation and the same outcome.
#[test]
fn sites_that_compare_find_two_replies_that_have_the_same_number() {
    let reply = |took, output: &str, made: Option<&str>| Reply {
        id: "b:2".parse().unwrap(),
        resource: resource("r"),
        op: "b:1".parse().unwrap(),
        attempt: 1,
        outcome: Outcome::Ok,
        era: 1,
        took: Millis(took),
        output: output.into(),
        made: made.map(Into::into),
    };
    let one = reply(1, "x", Some("id-1"));
    for other in [reply(2, "x", Some("id-1")), reply(1, "y", Some("id-1")), reply(1, "x", None)] {
        let sites = [("a", &one), ("c", &other)].map(|(name, reply)| {
            let mut replica = replica(name);
            let record = Record::Reply(Arc::new(reply.clone()));
            let records = vec![
                sent(0, Record::Operation(Arc::new(operation("b:1", 5, &[], Some(ALL))))),
                sent(1, record),
            ];
            let message = Message::Records { resource: resource("r"), records, more: false };
            serve(&mut replica, Input::Received { from: site("b"), message }, now(1));
            replica
        });
        let [mut a, mut c] = sites;
        // They exchange their own replies first.
        exchange(&mut a, &mut c, now(30));
        exchange(&mut a, &mut c, now(60));
        assert_eq!([&a, &c].map(state), [State::Diverged; 2], "{other:?}");
    }
}

fn sent(after: u64, record: Record) -> Sent {
    Sent { after, record, seal: None }
}

/// The record is genuine, but it is of another resource, which has other sites.
#[test]
fn a_record_of_another_resource_contradicts_nothing() {
    let (mut a, _) = with_first("a");
    let sites = &["c", "z"];
    let other = Operation { resource: resource("s"), ..operation("c:1", 7, &[], Some(sites)) };
    let (written, _) = serve(&mut a, records("z", 0, other), now(2));
    assert_eq!((written, state(&a)), (vec![], State::Pending));
}

/// The site forgot an earlier life of the resource by a reply: any record of it stands for all.
#[test]
fn a_new_life_contradicts_no_reply_of_the_one_before() {
    let mut a = replica("a");
    serve(&mut a, records("c", 0, operation("c:1", 5, &[], Some(ALL))), now(1));
    let reply = Reply {
        id: "c:2".parse().unwrap(),
        resource: resource("r"),
        op: "c:1".parse().unwrap(),
        attempt: 1,
        outcome: Outcome::Ok,
        era: 1,
        took: Millis(1),
        output: Box::default(),
        made: None,
    };
    let records_of = |records| Input::Received {
        from: site("c"),
        message: Message::Records { resource: resource("r"), records, more: false },
    };
    serve(&mut a, records_of(vec![sent(1, Record::Reply(Arc::new(reply)))]), now(1));
    let mut begins = operation("c:3", 50, &["c:2"], Some(ALL));
    begins.declares.as_mut().unwrap().base = [(site("c"), 2)].into();
    let begins = sent(2, Record::Operation(Arc::new(begins)));
    let (written, _) = serve(&mut a, records_of(vec![begins]), now(2));
    assert_eq!((written, state(&a)), (vec![], State::Pending), "it waits until `a` has forgotten");
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
    for (from, number) in [("z", "c:1"), ("a", "z:1"), ("a", "c:2")] {
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
    for (numbers, ends) in [(&["c:1"][..], true), (&["b:1"], false), (&["c:1", "b:1"], false)] {
        let (mut a, mut written) = with_first("a");
        let lives = [records("c", 1, delete.clone()), records("b", 0, begins.clone())];
        let forgets = Input::Received { from: site("c"), message: forgotten.clone() };
        let told_of = numbers.iter().map(|number| told("b", number));
        for input in lives.into_iter().chain(told_of).chain([forgets, told("b", "c:1")]) {
            written.extend(serve(&mut a, input, now(2)).0);
        }
        for a in [restarted("a", written), a] {
            assert_eq!(a.resource(&resource("r")).unwrap().log().len(), 1, "{numbers:?}: trimmed");
            assert_eq!(state(&a) != State::Diverged, ends, "{numbers:?}");
        }
    }
}

const RESOURCES: [&str; 3] = ["r", "s", "t"];

/// Three sites, and a copy of the third that runs beside it for a while.
struct Copied {
    rng: fastrand::Rng,
    seconds: u64,
    places: [Replica; 4],
}

impl Copied {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(replica);
        for id in RESOURCES {
            serve(&mut a, submission(id, ALL), now(0));
        }
        exchange(&mut a, &mut b, now(1));
        exchange(&mut a, &mut c, now(2));
        let places = [a, b, c.clone(), c];
        let seconds = 100 + rng.u64(..10);
        Self { rng, seconds, places }
    }

    fn submit(&mut self) {
        let n = self.rng.usize(..self.places.len());
        let id = RESOURCES[self.rng.usize(..RESOURCES.len())];
        serve(&mut self.places[n], submission(id, ALL), now(self.seconds));
    }

    /// Two of them compare what they know. The third and its copy never see each other.
    fn meet(&mut self, n: usize, other: usize) {
        self.seconds += 20;
        let [one, other] = self.places.get_disjoint_mut([n, other]).unwrap();
        exchange(one, other, now(self.seconds));
    }

    fn play(&mut self) {
        for _ in 0..self.rng.usize(3..25) {
            self.seconds += 1;
            match self.rng.u8(..3) {
                0 => {
                    let links = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)];
                    let (n, other) = links[self.rng.usize(..links.len())];
                    self.meet(n, other);
                }
                _ => self.submit(),
            }
        }
        // The copy is stopped. The others meet until each has heard from each of what there was at the start.
        for _ in 0..4 {
            for (n, other) in [(0, 1), (1, 2), (0, 2)] {
                self.meet(n, other);
            }
        }
    }
}

/// Connects two sites and carries their messages until both are silent. Each command goes well, and how long it
/// takes depends on when it is run.
fn exchange(a: &mut Replica, b: &mut Replica, at: Now) {
    let names = [a.here().clone(), b.here().clone()];
    let mut queue: VecDeque<(usize, Input)> = VecDeque::new();
    for n in [0, 1] {
        queue.extend([(n, Input::PeerUp(names[1 - n].clone())), (n, Input::Tick)]);
    }
    let mut inputs = 0;
    while let Some((n, input)) = queue.pop_front() {
        inputs += 1;
        assert!(inputs < 20_000, "they never stop");
        let replica = if n == 0 { &mut *a } else { &mut *b };
        for effect in replica.handle(input, at) {
            match effect {
                Effect::Send { to, message } if to == names[1 - n] => {
                    queue.push_back((1 - n, Input::Received { from: names[n].clone(), message }));
                }
                Effect::Run { run, .. } => {
                    let (outcome, took) = (Outcome::Ok, Millis(at.steady.0 / 1_000 % 3));
                    let report = Report { outcome, took, output: Box::default(), made: None };
                    queue.push_back((n, Input::Ran { run, report }));
                }
                _ => {}
            }
        }
    }
    for (replica, other) in [(a, &names[1]), (b, &names[0])] {
        replica.handle(Input::PeerDown(other.clone()), at);
    }
}

/// All that a site knows of a resource.
type Known = (Version, BTreeMap<OpId, SharedOperation>, BTreeMap<(OpId, SiteId), Arc<Reply>>);

fn all_of(resource: &Resource) -> Known {
    let ops = resource.log().iter().map(|(_, op)| (op.id.clone(), op.clone()));
    let ops: BTreeMap<OpId, SharedOperation> = ops.collect();
    let pairs = ops.keys().flat_map(|op| resource.sites().iter().map(move |site| (op, site)));
    let reply = |(op, site): (&OpId, &SiteId)| {
        let reply = resource.reply(op, site)?;
        Some(((op.clone(), site.clone()), Arc::new(reply.clone())))
    };
    let replies = pairs.filter_map(reply).collect();
    (resource.version(), ops, replies)
}

/// Whatever the two agents with one key have recorded, and whom they have met: in the end the three sites
/// know the same of a resource, or all know that it has diverged.
#[test]
fn sites_agree_on_a_resource_or_know_that_they_do_not() {
    let mut found = [0, 0];
    for seed in 0..u64::from(support::cases(3000)) {
        let mut copied = Copied::new(seed);
        copied.play();
        for id in RESOURCES {
            let here = |n: usize| copied.places[n].resource(&resource(id)).unwrap();
            let states = [0, 1, 2].map(|n| here(n).state());
            if states == [State::Diverged; 3] {
                found[0] += 1;
                continue;
            }
            found[1] += 1;
            assert_eq!(states, [State::Settled; 3], "seed {seed}: {id}");
            let known = [0, 1, 2].map(|n| all_of(here(n)));
            assert!(known[0] == known[1] && known[1] == known[2], "seed {seed}: {id} {known:#?}");
        }
    }
    assert!(found.iter().all(|&count| count > 500), "{found:?}");
}
