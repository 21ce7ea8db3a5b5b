//! Sites that are removed: nothing waits for them, and what only they had is held when they are back.
//!
//! The stories are about one thing each. The storms remove a site of several at any time, with all else
//! that can go wrong between sites, and let it back in; the invariants of `sim` hold throughout.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(unreachable_pub, dead_code, reason = "a test program exports nothing")]

mod support;

#[path = "sim/invariants/mod.rs"]
mod invariants;
#[path = "sim/register.rs"]
mod register;
#[path = "sim/trace.rs"]
mod trace;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId, Sites},
    matrix::Config,
    operation::Action,
    replica::{
        Answer, Durable, Held, Input, Message, Replica, Resource, Settings, State, Submission,
        Ticket,
    },
    time::Millis,
};
use invariants::{Sky, agree, held, kept, restart, truth};
use register::config;
use support::world::{Mishaps, Weather};

/// The longest that a message takes.
const DELAY: u64 = 300;

const CONFIG: &str = r#"{"ResolutionMatrix": [
    {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
    {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "set", "Result": "take-one"},
    {"Before": "inc", "After": "inc", "Result": "take-both"}]}"#;

fn site(name: &str) -> SiteId {
    name.parse().unwrap()
}

fn resource() -> ResourceId {
    "r".parse().unwrap()
}

fn on(sites: &[&str], line: &str) -> Submission {
    Submission {
        ticket: Ticket(0),
        resource: resource(),
        sites: Some(Sites::new(sites.iter().map(|name| site(name))).unwrap()),
        config: None,
        kind: line.split(' ').next().unwrap().parse().unwrap(),
        author: "someone".parse().unwrap(),
        action: Action::command(line),
        force: false,
        keep_going: false,
        key: None,
        wait: Millis(600_000),
    }
}

fn request(line: &str) -> Submission {
    on(&["a", "b", "c"], line)
}

/// Three sites that have run `set 1`.
fn three(config: &str) -> Sky {
    let mut world = Sky::new(&["a", "b", "c"].map(site), 1, Weather::calm(), Settings::default());
    world.introduce_all();
    world.run_for(1_000);
    let config = Some(Config::from_json(config).unwrap());
    world.submit(0, Submission { config, ..request("set 1") });
    world.run_for(2_000);
    world
}

fn replica(world: &Sky, n: usize) -> &Replica {
    world.sites[n].replica.as_ref().unwrap()
}

fn at(world: &Sky, n: usize) -> &Resource {
    replica(world, n).resource(&resource()).unwrap()
}

fn states(world: &Sky) -> Vec<State> {
    (0..world.sites.len()).map(|n| at(world, n).state()).collect()
}

/// Cuts a site off, and has it removed at the others.
fn remove(world: &mut Sky, n: usize) {
    let others: Vec<usize> = (0..world.sites.len()).filter(|other| *other != n).collect();
    world.partition(&[vec![n], others.clone()]);
    world.run_for(100);
    let removed = BTreeSet::from([world.sites[n].name.clone()]);
    for other in others {
        world.tell_removed(other, &removed);
    }
}

/// How far a site knows the records of another.
fn known(world: &Sky, by: usize, site: &SiteId) -> BTreeMap<ResourceId, u64> {
    let of = |resource: &Resource| {
        Some((resource.id().clone(), resource.version().get(site).copied().filter(|n| *n > 0)?))
    };
    let replica = replica(world, by);
    let mut known: BTreeMap<ResourceId, u64> = replica.resources().filter_map(of).collect();
    for (id, version) in replica.tombs() {
        let number = known.entry(id.clone()).or_default();
        *number = version.get(site).copied().unwrap_or(0).max(*number);
    }
    known
}

/// Lets a site back in: all hear of the line before they see each other again.
fn let_in(world: &mut Sky, n: usize, fence: &BTreeMap<ResourceId, u64>) {
    let site = world.sites[n].name.clone();
    for other in 0..world.sites.len() {
        loop {
            let life = world.sites[other].life;
            world.input(other, Input::Fenced { site: site.clone(), known: fence.clone() });
            if world.sites[other].life == life && world.sites[other].replica.is_some() {
                break;
            }
            // It has died over it, and is told again before it speaks with anybody.
            let weather = std::mem::replace(&mut world.weather, Weather::calm());
            world.run_for(2_000);
            world.weather = weather;
        }
        world.tell_removed(other, &BTreeSet::new());
    }
    world.heal_all();
}

fn back(world: &mut Sky, n: usize) {
    let fence = known(world, usize::from(n == 0), &world.sites[n].name);
    let_in(world, n, &fence);
    world.run_for(30_000);
}

fn all_held(world: &Sky, n: usize) -> Vec<String> {
    let line = |held: &Held| match &held.op.action {
        Action::Command { line, .. } => format!("{} {line}", held.op.id),
        _ => panic!("a command"),
    };
    replica(world, n).held().map(line).collect()
}

fn adopt(world: &mut Sky, n: usize, op: &OpId, id: &ResourceId) -> Option<OpId> {
    // It may have died meanwhile.
    let replica = world.sites[n].replica.as_ref()?;
    let held = replica.held_operation(id, op)?.op.clone();
    let begins = replica.resource(id).is_none();
    let declared = held.declares.as_ref().filter(|_| begins);
    let submission = Submission {
        ticket: Ticket(0),
        resource: id.clone(),
        sites: declared.map(|declared| declared.sites.clone()),
        config: declared.map(|declared| (*declared.config).clone()),
        kind: held.kind.clone(),
        author: held.author.clone(),
        action: held.action.clone(),
        force: false,
        keep_going: held.keep_going,
        key: Some(format!("adopts {op}").parse().unwrap()),
        wait: Millis(1_000),
    };
    let ticket = world.submit(n, submission)?;
    let accepted = world.answers.get(&ticket).and_then(|answers| answers.first().cloned());
    let Some(Answer::Accepted(adopted, _)) = accepted else { return None };
    let decided =
        Input::Decided { resource: id.clone(), op: op.clone(), adopted: Some(adopted.clone()) };
    world.input(n, decided);
    Some(adopted)
}

#[test]
fn nothing_waits_for_a_site_that_was_removed() {
    let mut world = three(CONFIG);
    world.partition(&[vec![2], vec![0, 1]]);
    world.run_for(100);
    let ticket = world.submit(0, request("inc 2")).unwrap();
    world.run_for(1_000);
    assert_eq!(at(&world, 0).state(), State::Pending);
    assert_ne!(world.answers[&ticket].last(), Some(&Answer::Done));
    remove(&mut world, 2);
    assert_eq!(states(&world)[..2], [State::Settled; 2]);
    assert_eq!(world.answers[&ticket].last(), Some(&Answer::Done), "who waits is told");
    assert_eq!(at(&world, 0).present().count(), 2);
    // Who asks after that waits for those who are there.
    let ticket = world.submit(1, request("inc 3")).unwrap();
    world.run_for(1_000);
    let [Answer::Accepted(_, sites), .., Answer::Done] = &world.answers[&ticket][..] else {
        panic!("not over")
    };
    assert_eq!(*sites, Sites::new(["a", "b"].map(site)).unwrap());
    // It is known again after a restart, and all wait again when the site is back.
    world.crash(0, false);
    world.run_for(3_000);
    assert_eq!(states(&world)[..2], [State::Settled; 2]);
    back(&mut world, 2);
    assert_eq!(states(&world), [State::Settled; 3]);
    assert_eq!(world.app(2, &resource()), world.app(0, &resource()));
}

#[test]
fn what_failed_at_a_removed_site_alone_is_no_divergence() {
    let mut world = three(CONFIG);
    world.mishaps = Mishaps { run: 1, reset: 0 };
    world.partition(&[vec![0, 1], vec![2]]);
    world.run_for(100);
    world.mishaps.run = 0;
    world.submit(0, request("inc 2"));
    world.run_for(1_000);
    world.mishaps.run = 1;
    world.heal_all();
    world.run_for(15_000);
    world.mishaps.run = 0;
    assert!(matches!(at(&world, 0).state(), State::Diverged | State::Denied));
    remove(&mut world, 2);
    assert_eq!(states(&world)[..2], [State::Settled; 2]);
}

#[test]
fn what_is_deleted_is_gone_without_a_removed_site_and_deleted_there_when_it_is_back() {
    let mut world = three(CONFIG);
    world.partition(&[vec![2], vec![0, 1]]);
    world.run_for(100);
    let ticket = world.submit(0, request("delete 0")).unwrap();
    world.submit(2, request("inc 10"));
    world.run_for(1_000);
    assert!(!at(&world, 0).is_gone(&site("a")), "it waits");
    remove(&mut world, 2);
    world.run_for(1_000);
    assert_eq!(world.answers[&ticket].last(), Some(&Answer::Done));
    for (n, name) in [(0, "a"), (1, "b")] {
        assert!(at(&world, n).is_gone(&site(name)));
        assert_eq!(at(&world, n).state(), State::Settled);
    }
    // The site that comes back hears of the delete, and runs it.
    back(&mut world, 2);
    assert_eq!(world.app(2, &resource()).0, 0);
    assert!(
        (0..3).all(|n| replica(&world, n).resource(&resource()).is_none()),
        "now it is forgotten"
    );
    assert_eq!(all_held(&world, 2).len(), 1);
}

#[test]
fn what_only_the_removed_site_had_is_held_there_and_comes_in_when_it_is_adopted() {
    let mut world = three(CONFIG);
    remove(&mut world, 2);
    world.submit(2, request("inc 10"));
    world.submit(2, request("inc 100"));
    world.run_for(100);
    world.submit(0, request("inc 2"));
    world.run_for(1_000);
    assert_eq!(world.app(2, &resource()).0, 111);
    back(&mut world, 2);
    let [first, second] = &all_held(&world, 2)[..] else { panic!("{:?}", all_held(&world, 2)) };
    assert!(first.ends_with("inc 10") && second.ends_with("inc 100"));
    assert!([0, 1, 2].iter().all(|&n| world.app(n, &resource()).0 == 3), "all are the same");
    let ids: Vec<OpId> = replica(&world, 2).held().map(|held| held.op.id.clone()).collect();
    let adopted = adopt(&mut world, 2, &ids[0], &resource()).unwrap();
    assert!(adopted.number > ids[1].number, "no number is used twice");
    let discard = Input::Decided { resource: resource(), op: ids[1].clone(), adopted: None };
    world.input(2, discard.clone());
    world.input(2, discard);
    world.run_for(1_000);
    assert!([0, 1, 2].iter().all(|&n| world.app(n, &resource()).0 == 13));
    assert_eq!(states(&world), [State::Settled; 3]);
    // Also after a restart.
    world.crash(2, true);
    world.run_for(5_000);
    assert_eq!(all_held(&world, 2), Vec::<String>::new());
    assert_eq!(replica(&world, 2).decision(&resource(), &ids[0]), Some(Some(&adopted)));
    assert_eq!(replica(&world, 2).decision(&resource(), &ids[1]), Some(None));
    assert!([0, 1, 2].iter().all(|&n| world.app(n, &resource()).0 == 13));
}

#[test]
fn a_resource_that_only_the_removed_site_had_begins_anew_when_its_first_operation_is_adopted() {
    let mut world = three(CONFIG);
    let other: ResourceId = "other".parse().unwrap();
    remove(&mut world, 2);
    let mut begin = Submission { resource: other.clone(), ..request("inc 5") };
    begin.config = Some(with_reset());
    world.submit(2, begin);
    world.submit(2, Submission { resource: other.clone(), sites: None, ..request("inc 6") });
    world.run_for(1_000);
    back(&mut world, 2);
    assert!([0, 1, 2].iter().all(|&n| replica(&world, n).resource(&other).is_none()));
    let ids: Vec<OpId> = replica(&world, 2).held().map(|held| held.op.id.clone()).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(world.app(2, &other).0, 11, "what it has run is still in the application");
    adopt(&mut world, 2, &ids[0], &other).unwrap();
    world.run_for(1_000);
    adopt(&mut world, 2, &ids[1], &other).unwrap();
    world.run_for(1_000);
    assert!([0, 1, 2].iter().all(|&n| world.app(n, &other).0 == 11));
    let settled = |n: usize| replica(&world, n).resource(&other).unwrap().state();
    assert!([0, 1, 2].iter().all(|&n| settled(n) == State::Settled));
}

#[test]
fn what_a_site_has_run_of_what_is_left_is_told_again_and_not_run_again() {
    let mut world = three(CONFIG);
    // The third hears of an operation, and nobody hears that it has run it.
    world.weather.run = (500, 500);
    world.submit(0, request("inc 2"));
    world.run_for(100);
    world.partition(&[vec![2], vec![0, 1]]);
    world.run_for(1_000);
    remove(&mut world, 2);
    let runs = world.sites[2].runs.len();
    back(&mut world, 2);
    assert_eq!(all_held(&world, 2), Vec::<String>::new());
    assert_eq!(states(&world), [State::Settled; 3]);
    assert_eq!(world.sites[2].runs.len(), runs);
}

#[test]
fn what_is_held_outlives_the_resource() {
    let mut world = three(CONFIG);
    remove(&mut world, 2);
    world.submit(2, request("inc 10"));
    world.run_for(100);
    back(&mut world, 2);
    world.submit(0, request("delete 0"));
    world.run_for(10_000);
    assert!([0, 1, 2].iter().all(|&n| replica(&world, n).resource(&resource()).is_none()));
    world.crash(2, false);
    world.run_for(5_000);
    assert_eq!(all_held(&world, 2).len(), 1);
}

#[test]
fn a_decision_outlives_the_resource() {
    let mut world = three(CONFIG);
    remove(&mut world, 2);
    world.submit(2, request("inc 10"));
    world.submit(2, request("inc 100"));
    world.run_for(100);
    back(&mut world, 2);
    let ids: Vec<OpId> = replica(&world, 2).held().map(|held| held.op.id.clone()).collect();
    let adopted = adopt(&mut world, 2, &ids[0], &resource()).unwrap();
    let discard = Input::Decided { resource: resource(), op: ids[1].clone(), adopted: None };
    world.input(2, discard);
    world.run_for(1_000);
    world.submit(0, request("delete 0"));
    world.run_for(10_000);
    assert!([0, 1, 2].iter().all(|&n| replica(&world, n).resource(&resource()).is_none()));
    restart_after_tombstone(&mut world, 2);
    assert_eq!(replica(&world, 2).decision(&resource(), &ids[0]), Some(Some(&adopted)));
    assert_eq!(replica(&world, 2).decision(&resource(), &ids[1]), Some(None));
    assert_eq!(all_held(&world, 2), Vec::<String>::new());
}

/// Three sites have forgotten a resource. The third is removed, begins it again and is let back in, so that
/// what it received is held. Then it hears that another site has forgotten more of the earlier life.
fn begun_again_while_removed(config: &str) -> Sky {
    let mut world = three(config);
    world.submit(0, request("delete 0"));
    world.run_for(10_000);
    assert!((0..3).all(|n| replica(&world, n).resource(&resource()).is_none()));
    remove(&mut world, 2);
    let config = Some(Config::from_json(config).unwrap());
    world.submit(2, Submission { config, ..request("set 30") });
    world.run_for(1_000);
    back(&mut world, 2);
    assert!(replica(&world, 2).resource(&resource()).is_none());
    assert_eq!(all_held(&world, 2).len(), 1);
    assert_eq!(world.app(2, &resource()).0, 30, "what it has run is still in the application");
    let mut version = replica(&world, 0).forgotten(&resource()).unwrap().clone();
    *version.get_mut(&site("b")).unwrap() += 1;
    let message = Message::Forgotten(vec![(resource(), version)]);
    world.input(2, Input::Received { from: site("b"), message });
    world
}

/// Restarts a site. Its store has dropped all that was written before the last tombstone.
fn restart_after_tombstone(world: &mut Sky, n: usize) {
    let disk = &mut world.sites[n].disk;
    let tombstone = disk.iter().rposition(|durable| matches!(durable, Durable::Forgotten { .. }));
    disk.drain(..tombstone.unwrap());
    world.crash(n, false);
    world.run_for(5_000);
}

#[test]
fn what_a_held_operation_has_left_in_the_application_is_known_after_a_later_tombstone() {
    let config = CONFIG.replacen('{', "{\"Reset\": \"set 0\", ", 1);
    for restarts in [false, true] {
        let mut world = begun_again_while_removed(&config);
        if restarts {
            restart_after_tombstone(&mut world, 2);
        }
        let config = Some(Config::from_json(&config).unwrap());
        world.submit(0, Submission { config, ..request("inc 10") });
        world.run_for(30_000);
        let apps = [0, 1, 2].map(|n| world.app(n, &resource()).0);
        assert_eq!(apps, [10; 3], "restarts: {restarts}");
    }
}

#[test]
fn a_number_of_a_held_operation_is_not_used_again_after_a_later_tombstone() {
    let mut world = begun_again_while_removed(CONFIG);
    let held = replica(&world, 2).held().next().unwrap().op.id.clone();
    restart_after_tombstone(&mut world, 2);
    let ticket = world.submit(2, request("set 31")).unwrap();
    let Some(Answer::Accepted(op, _)) = world.answers[&ticket].first() else { panic!("refused") };
    assert!(op.number > held.number, "{op} after {held}");
}

/// A configuration with a `Reset` command.
fn with_reset() -> Config {
    Config::from_json(&CONFIG.replacen('{', "{\"Reset\": \"set 0\", ", 1)).unwrap()
}

#[test]
fn what_an_earlier_cut_has_left_in_the_application_is_known_after_a_cut_of_all() {
    let mut world = Sky::new(&["a", "b", "c"].map(site), 1, Weather::calm(), Settings::default());
    world.introduce_all();
    world.run_for(1_000);
    // What stays after the first cut has failed here.
    world.mishaps.run = 1;
    let config = Some(Config::from_json(CONFIG).unwrap());
    world.submit(2, Submission { config, ..request("inc 1") });
    world.run_for(500);
    world.mishaps.run = 0;
    world.submit(0, request("inc 20"));
    world.run_for(2_000);
    assert_eq!(world.app(2, &resource()).0, 20);
    remove(&mut world, 0);
    let_in(&mut world, 0, &BTreeMap::new());
    world.run_for(10_000);
    remove(&mut world, 2);
    let_in(&mut world, 2, &BTreeMap::new());
    world.run_for(10_000);
    assert!(replica(&world, 2).resource(&resource()).is_none());
    assert_eq!(world.app(2, &resource()).0, 20, "nothing could take it back");
    world.submit(0, Submission { config: Some(with_reset()), ..request("inc 3") });
    world.run_for(30_000);
    assert_eq!([0, 1, 2].map(|n| world.app(n, &resource()).0), [3; 3]);
}

fn pick<T: Clone>(rng: &mut fastrand::Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

struct Storm {
    world: Sky,
    ids: Vec<(ResourceId, Sites)>,
    submitted: u64,
    /// Resources are deleted now and then, and the line is drawn by all.
    deletes: bool,
    /// Sites lose what they wrote last, now and then.
    loses: bool,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let names: Vec<SiteId> =
            ["a", "b", "c", "d"][..rng.usize(3..=4)].iter().map(|name| site(name)).collect();
        let settings = Settings {
            compare_every: Millis(rng.u64(2_000..=10_000)),
            ask_after: Millis(rng.u64(200..=1_000)),
            most_waiting: pick(rng, &[3, 4_096]),
            message_bytes: pick(rng, &[100, 256 << 10]),
            burst_bytes: pick(rng, &[1_000, 4 << 20]),
            show_after: pick(rng, &[None, Some(Millis(100))]),
        };
        let weather = Weather {
            delay: (10, DELAY),
            loss: pick(rng, &[0, 10]),
            double: pick(rng, &[0, 10]),
            run: (1, pick(rng, &[20, 800])),
            notice: (1, 100),
            crash: pick(rng, &[0, 40]),
            power_cut: pick(rng, &[0, 3]),
        };
        let mut world = Sky::new(&names, rng.u64(..), weather, settings);
        world.mishaps = Mishaps { run: pick(rng, &[0, 0, 8]), reset: 0 };
        world.introduce_all();
        let ids = (0..rng.usize(1..=3)).map(|n| {
            let mut sites = names.clone();
            rng.shuffle(&mut sites);
            sites.truncate(rng.usize(2..=sites.len()));
            (format!("r{n}").parse().unwrap(), Sites::new(sites).unwrap())
        });
        let ids = ids.collect();
        Self { world, ids, submitted: 0, deletes: seed.is_multiple_of(2), loses: seed % 4 == 1 }
    }

    /// A site loses what it wrote last about a resource; but not where a line was drawn, which is kept
    /// with the roster.
    fn lose(&mut self) {
        let n = self.world.rng.usize(0..self.world.sites.len());
        let (id, _) = pick(&mut self.world.rng, &self.ids);
        let written: Vec<&Durable> =
            self.world.sites[n].disk.iter().filter(|durable| *durable.resource() == id).collect();
        let line = |durable: &&Durable| {
            matches!(
                durable,
                Durable::Held { .. }
                    | Durable::Aside(_)
                    | Durable::Leftover(_)
                    | Durable::Decided { .. }
            )
        };
        let least = written.iter().rposition(line).map_or(0, |last| last + 1);
        if least < written.len() {
            let kept = self.world.rng.usize(least..written.len());
            self.world.lose(n, &id, kept);
        }
    }

    fn submit(&mut self) {
        let rng = &mut self.world.rng;
        let n = rng.usize(0..self.world.sites.len());
        let (id, sites) = pick(rng, &self.ids);
        let replica = self.world.sites[n].replica.as_ref();
        let known = replica.is_some_and(|replica| replica.resource(&id).is_some());
        let kind = pick(rng, &["set", "inc", "inc"]);
        let kind = if self.deletes && known && rng.u8(0..10) == 0 { "delete" } else { kind };
        self.submitted += 1;
        let submission = Submission {
            ticket: Ticket(0),
            resource: id,
            sites: Some(sites),
            config: (!known).then(|| config(rng, true)),
            kind: kind.parse().unwrap(),
            author: "storm".parse().unwrap(),
            action: Action::command(format!("{kind} {}", self.submitted)),
            force: kind == "set" && rng.u8(0..if self.loses { 2 } else { 8 }) == 0,
            keep_going: false,
            key: None,
            wait: Millis(rng.u64(0..5_000)),
        };
        self.world.submit(n, submission);
    }

    fn go_on(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.loses && self.world.rng.u8(0..8) == 0 {
                self.lose();
            } else {
                self.submit();
            }
            let pause = self.world.rng.u64(0..1_500);
            self.world.run_for(pause);
        }
        restart::check(&self.world);
    }

    fn all_up(&mut self) {
        let weather = std::mem::replace(&mut self.world.weather, Weather::calm());
        self.world.run_for(2_500);
        self.world.weather = weather;
        assert!(self.world.sites.iter().all(|site| site.replica.is_some()));
    }

    /// Removes a site, perhaps while another is cut off with it, and lets it back in.
    fn remove_one(&mut self) {
        let count = self.world.sites.len();
        let gone = self.world.rng.usize(0..count);
        let mut others: Vec<usize> = (0..count).filter(|n| *n != gone).collect();
        self.world.rng.shuffle(&mut others);
        let late = if self.world.rng.bool() && others.len() > 1 { others.pop() } else { None };
        let mut alone = vec![gone];
        alone.extend(late);
        self.world.partition(&[alone, others.clone()]);
        self.go_on(6);
        let removed = BTreeSet::from([self.world.sites[gone].name.clone()]);
        for &other in &others {
            if self.world.rng.bool() {
                self.world.tell_removed(other, &removed);
            }
        }
        self.go_on(6);
        self.all_up();
        // What is under way arrives before anybody hears that the site is back, or is refused then.
        self.world.partition(&(0..count).map(|n| vec![n]).collect::<Vec<_>>());
        self.all_up();
        // All have said how far they knew it; or the line was drawn by those who had heard of the removal,
        // and there was somebody that they did not know of.
        let gone_site = self.world.sites[gone].name.clone();
        let said = if self.deletes { (0..count).filter(|n| *n != gone).collect() } else { others };
        let mut fence = BTreeMap::new();
        for by in said {
            for (id, number) in known(&self.world, by, &gone_site) {
                let furthest: &mut u64 = fence.entry(id).or_default();
                *furthest = number.max(*furthest);
            }
        }
        let_in(&mut self.world, gone, &fence);
        self.go_on(4);
    }

    fn decide(&mut self) {
        for n in 0..self.world.sites.len() {
            let Some(replica) = &self.world.sites[n].replica else { continue };
            let all: Vec<(ResourceId, OpId)> =
                replica.held().map(|held| (held.op.resource.clone(), held.op.id.clone())).collect();
            for (id, op) in all {
                match self.world.rng.u8(0..3) {
                    0 => drop(adopt(&mut self.world, n, &op, &id)),
                    1 => self.world.input(n, Input::Decided { resource: id, op, adopted: None }),
                    _ => {}
                }
            }
        }
    }

    fn is_calm(&self) -> bool {
        self.ids.iter().all(|(id, _)| {
            let held = held(&self.world, id);
            let Some((_, _, first)) = held.first() else { return true };
            held.len() == first.sites().len()
                && held.iter().all(|(_, _, resource)| {
                    resource.is_idle()
                        && resource.version() == first.version()
                        && agree::logged(resource) == agree::logged(first)
                })
        })
    }

    fn unrest(&self) -> String {
        let all = self.ids.iter().flat_map(|(id, sites)| {
            held(&self.world, id).into_iter().map(move |(_, site, resource)| {
                let (version, logged) = (resource.version(), agree::logged(resource));
                format!(
                    "\n{id} of {sites} at {site}: {}, {version:?}, {logged:?}",
                    resource.is_idle()
                )
            })
        });
        all.collect()
    }

    /// Heals all, and looks at what has become of it: how many were held, and how many states compared.
    fn calm_down(mut self) -> (usize, u64) {
        self.world.weather.crash = 0;
        self.world.weather.loss = 0;
        self.world.mishaps = Mishaps::default();
        self.world.heal_all();
        self.world.run_for(90_000);
        assert!(self.is_calm(), "{}", self.unrest());
        let world = &self.world;
        restart::check(world);
        world.watch.answered.check();
        let replicas = || world.sites.iter().map(|site| site.replica.as_ref().unwrap());
        let out: BTreeSet<(ResourceId, OpId)> = world
            .watch
            .answered
            .accepted()
            .filter(|(id, op)| {
                replicas().any(|replica| {
                    replica.held_operation(id, op).is_some() || replica.decision(id, op).is_some()
                })
            })
            .map(|(id, op)| (id.clone(), op.clone()))
            .collect();
        let accepted = world.watch.answered.accepted();
        kept::check(
            world,
            accepted.filter(|(id, op)| !out.contains(&((*id).clone(), (*op).clone()))),
        );
        let mut compared = 0;
        for (id, _) in &self.ids {
            let held = held(world, id);
            agree::check(&held);
            compared += truth::check(world, &held);
            for (_, _, resource) in held {
                for (of, op) in &out {
                    let known = of == id && resource.log().find(op).is_some();
                    assert!(!known, "{op} of {id} is held, and slips in");
                }
            }
        }
        (out.len(), compared)
    }
}

/// Seeds that once failed:
/// - operations that were held while another site forgot more of the resource;
/// - a decision about an operation, and a tombstone after it;
/// - a cut of all that was left, after a cut that had left something in the application;
/// - a cut of an operation that had replaced the state, and failed when it was run again;
/// - a new life of a resource of which a cut had left nothing;
/// - a gap behind a gap, while few records may wait;
/// - records of one stream that were sent out of their order.
const FAILED_ONCE: [u64; 7] =
    [2_328_446, 4_045_726, 4_199_791, 4_322_205, 6_027_350, 7_028_233, 40_562_265];

/// Plays a seed. How many operations were held, and how many states compared.
fn play(seed: u64, print: bool) -> (usize, u64) {
    let mut storm = Storm::new(seed);
    if print {
        storm.world.watch.trace = trace::Trace::print();
    }
    storm.go_on(8);
    for _ in 0..storm.world.rng.usize(1..=2) {
        storm.remove_one();
        storm.decide();
        storm.go_on(3);
    }
    storm.decide();
    storm.calm_down()
}

#[test]
fn seeds_that_failed_once_pass() {
    for seed in FAILED_ONCE {
        play(seed, false);
    }
}

#[test]
fn storms_in_which_a_site_is_removed_and_let_back_in() {
    let (mut held, mut compared) = (0, 0);
    let from_env = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let first: u64 = from_env("CHEOPS_SEED").unwrap_or(1);
    let count: u64 = from_env("CHEOPS_SEEDS").unwrap_or(600);
    for seed in first..first + count {
        let Ok((out, states)) = catch_unwind(AssertUnwindSafe(|| play(seed, count == 1))) else {
            panic!("seed {seed} fails; CHEOPS_SEEDS=1 CHEOPS_SEED={seed} prints it");
        };
        held += out;
        compared += states;
    }
    assert!(count < 500 || held > 500 && compared > 1_000, "{held} held, {compared} compared");
}
