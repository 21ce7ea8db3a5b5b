//! What who asks a site gets to know: requests that are repeated, and a resource as others ask for
//! it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(unreachable_pub, reason = "a test program exports nothing")]

mod support;

use std::{collections::BTreeMap, slice::from_ref, time::Duration};

use cheops_core::{
    id::{OpId, ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action, Operation},
    plan::Outcome,
    replica::{
        Answer, Draft, Effect, Input, Planned, Refusal, Rehearsal, Replica, Resource, Settings,
        State, Submission, Ticket,
    },
    resolve::Fate,
    time::{Millis, Now},
};
use support::world::{App, Weather, World};

/// The commands that were run, and `fail`, which fails.
#[derive(Debug, Default, Clone, PartialEq)]
struct Lines(Vec<String>);

impl App for Lines {
    fn run(&mut self, op: &Operation) -> Outcome {
        let Action::Command { line, .. } = &op.action else { panic!("a command") };
        self.0.push(line.to_string());
        if line.starts_with("fail") { Outcome::Ko } else { Outcome::Ok }
    }
}

const CONFIG: &str = r#"{
    "ResolutionMatrix": [
        {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
        {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
        {"Before": "set", "After": "set", "Result": "take-one"},
        {"Before": "inc", "After": "inc", "Result": "take-both"}],
    "Reset": "reset", "Check": "check", "Timeout": "1500ms"}"#;

fn site(name: &str) -> SiteId {
    name.parse().unwrap()
}

fn resource() -> ResourceId {
    "r".parse().unwrap()
}

/// A request for a command; its first word is the kind.
fn request(line: &str) -> Submission {
    Submission {
        ticket: Ticket(0),
        resource: resource(),
        sites: Some(Sites::new(["a", "b", "c"].map(site)).unwrap()),
        config: None,
        kind: line.split(' ').next().unwrap().parse().unwrap(),
        author: "someone".parse().unwrap(),
        action: Action::command(line),
        force: false,
        keep_going: false,
        key: None,
        wait: Millis(60_000),
    }
}

fn keyed(line: &str, key: &str) -> Submission {
    Submission { key: Some(key.parse().unwrap()), ..request(line) }
}

fn world() -> World<Lines> {
    let mut world = World::new(&["a", "b", "c"].map(site), 1, Weather::calm(), Settings::default());
    world.introduce_all();
    world.run_for(1_000);
    let config = Some(Config::from_json(CONFIG).unwrap());
    world.submit(0, Submission { config, ..request("set 1") });
    world.run_for(1_000);
    world
}

fn at(world: &World<Lines>, n: usize) -> &Resource {
    world.sites[n].replica.as_ref().unwrap().resource(&resource()).unwrap()
}

/// What became of a request once everyone has answered.
fn answers(world: &mut World<Lines>, n: usize, submission: Submission) -> Vec<Answer> {
    let ticket = world.submit(n, submission).unwrap();
    world.run_for(1_000);
    world.answers[&ticket].clone()
}

fn accepted(answers: &[Answer]) -> OpId {
    match answers {
        [Answer::Accepted(op, sites), rest @ ..] => {
            assert_eq!(*sites, Sites::new(["a", "b", "c"].map(site)).unwrap());
            let replies = rest.iter().filter(|answer| matches!(answer, Answer::Reply(_)));
            assert_eq!(replies.count(), 3, "{rest:?}");
            assert_eq!(rest.last(), Some(&Answer::Done));
            op.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_that_is_repeated_with_its_key_is_one_operation() {
    let mut world = world();
    let first = accepted(&answers(&mut world, 0, keyed("inc 1", "k")));
    let again = accepted(&answers(&mut world, 0, keyed("inc 1", "k")));
    let elsewhere = accepted(&answers(&mut world, 1, keyed("inc 1", "k")));
    // A configuration that comes with it is no new one.
    let config = Some(Config::from_json(CONFIG).unwrap());
    let once_more = Submission { config, force: true, ..keyed("inc 1", "k") };
    let once_more = accepted(&answers(&mut world, 2, once_more));
    // The operation carries the key, so it outlives the agent.
    world.crash(0, false);
    world.run_for(5_000);
    let later = accepted(&answers(&mut world, 0, keyed("inc 1", "k")));
    assert_eq!([&again, &elsewhere, &once_more, &later], [&first; 4]);
    assert_eq!(at(&world, 0).log().len(), 2);
    assert_eq!(world.app(0, &resource()).0, ["set 1", "inc 1"]);
    let other = accepted(&answers(&mut world, 0, keyed("inc 1", "other")));
    assert_ne!(other, first);
    assert_eq!(at(&world, 0).log().len(), 3);
}

#[test]
fn a_key_stands_for_one_request() {
    let mut world = world();
    let op = accepted(&answers(&mut world, 0, keyed("inc 1", "k")));
    for different in [
        keyed("inc 2", "k"),
        Submission { kind: "set".parse().unwrap(), ..keyed("inc 1", "k") },
        Submission { keep_going: true, ..keyed("inc 1", "k") },
    ] {
        let refusal = Refusal::KeyReused { key: "k".parse().unwrap(), op: op.clone() };
        assert_eq!(answers(&mut world, 1, different), [Answer::Refused(refusal)]);
    }
    assert_eq!(at(&world, 1).log().len(), 2);
}

#[test]
fn one_key_used_apart_is_two_operations_and_the_earlier_one_answers() {
    let mut world = world();
    world.partition(&[vec![0], vec![1, 2]]);
    world.run_for(1_000);
    world.submit(1, keyed("inc 1", "k")).unwrap();
    world.run_for(1_000);
    world.submit(0, keyed("inc 1", "k")).unwrap();
    world.run_for(1_000);
    world.heal_all();
    world.run_for(30_000);
    for n in 0..3 {
        let op = accepted(&answers(&mut world, n, keyed("inc 1", "k")));
        assert_eq!(op.site, site("b"));
        assert_eq!(at(&world, n).log().len(), 3);
    }
}

#[test]
fn what_a_site_owes_is_counted_from_the_end_of_the_block() {
    let mut world = world();
    world.partition(&[vec![0, 1], vec![2]]);
    world.run_for(1_000);
    for n in 1..=3 {
        world.submit(0, request(&format!("inc {n}"))).unwrap();
    }
    world.run_for(1_000);
    let owed =
        |world: &World<Lines>| ["a", "b", "c", "z"].map(|n| at(world, 0).unanswered(&site(n)));
    assert_eq!(owed(&world), [0, 0, 3, 4]);
    world.heal_all();
    world.run_for(30_000);
    assert_eq!(owed(&world), [0, 0, 0, 4]);
}

#[test]
fn what_became_of_an_operation_is_said_in_words() {
    let mut world = world();
    world.submit(0, request("inc 2")).unwrap();
    world.run_for(1_000);
    world.partition(&[vec![0], vec![1], vec![2]]);
    world.run_for(1_000);
    world.submit(0, request("set 3")).unwrap();
    world.submit(1, request("inc 4")).unwrap();
    world.submit(2, Submission { kind: "inc".parse().unwrap(), ..request("fail 5") }).unwrap();
    world.run_for(1_000);
    world.heal_all();
    world.run_for(30_000);
    let told = |line: &str| {
        let r = at(&world, 1);
        let is_it = |op: &&_| matches!(&Operation::clone(op).action, Action::Command { line: l, .. } if **l == *line);
        let op = r.log().iter().map(|(_, op)| &**op).find(is_it).unwrap();
        let account = r.receipt(&op.id).unwrap();
        let dropped = r.dropped(r.log().find(&op.id).unwrap());
        assert_eq!(dropped.is_none(), account.fate == Fate::Kept);
        (account.fate, account.row, account.to_string())
    };
    let set = at(&world, 1).block().next().unwrap().id.clone();
    for (line, expected) in [
        ("set 3", (Fate::Kept, None, "in the block".to_owned())),
        (
            "inc 2",
            (Fate::Over, None, format!("lost to {set}: reset: set replaced what came before")),
        ),
        ("inc 4", (Fate::Fallen, Some(1), format!("lost to {set}: set over inc (matrix row 1)"))),
        ("fail 5", (Fate::Void, None, "void: failed at c".to_owned())),
    ] {
        assert_eq!(told(line), expected, "{line}");
    }
    assert_eq!(at(&world, 1).receipt(&"a:99".parse().unwrap()), None);
}

fn rehearse(world: &World<Lines>, n: usize, submission: &Submission) -> Result<Rehearsal, Refusal> {
    let replica = world.sites[n].replica.as_ref().unwrap();
    let now = Now { wall: Millis(1_000_000_000 + world.now), steady: Millis(world.now) };
    let before = replica.clone();
    let rehearsal = replica.draft(submission, now).map(Draft::rehearse);
    assert_eq!(*replica, before, "nothing changes");
    rehearsal
}

/// What sites would do, in short: `inc 3`, `set 1 (again)`.
fn planned(world: &World<Lines>, rehearsal: &Rehearsal) -> BTreeMap<String, Vec<String>> {
    let line = |id: &OpId| {
        let op = if *id == rehearsal.op.id {
            &rehearsal.op
        } else {
            let log = at(world, 0).log();
            &**log.op(log.find(id).unwrap())
        };
        let Action::Command { line, .. } = &op.action else { panic!("a command") };
        line.to_string()
    };
    let say = |planned: &Planned| match planned {
        Planned::Run { op, again: true, .. } => format!("{} (again)", line(op)),
        Planned::Run { op, .. } => line(op),
        other => format!("{other:?}"),
    };
    let site =
        |(site, all): (&SiteId, &Vec<Planned>)| (site.to_string(), all.iter().map(say).collect());
    rehearsal.sites.iter().map(site).collect()
}

/// What a rehearsal says is what happens.
#[test]
fn a_rehearsal_tells_what_would_happen_and_changes_nothing() {
    let mut world = world();
    world.submit(0, request("inc 2")).unwrap();
    world.run_for(1_000);
    world.partition(&[vec![0, 1], vec![2]]);
    world.run_for(1_000);
    world.submit(0, request("inc 3")).unwrap();
    world.run_for(1_000);

    let told = rehearse(&world, 0, &request("inc 4")).unwrap();
    assert_eq!(told.after, [&told.before[..], from_ref(&told.op.id)].concat());
    assert_eq!((&told.known, &told.dropped[..]), (&None, &[][..]));
    let sites = planned(&world, &told);
    assert_eq!(sites["a"], ["inc 4"]);
    assert_eq!(sites["b"], ["inc 4"]);
    assert_eq!(sites["c"], ["inc 3", "inc 4"], "as far as is known here");

    let told = rehearse(&world, 0, &request("set 5")).unwrap();
    assert_eq!(told.after, from_ref(&told.op.id));
    let because: Vec<String> = told.dropped.iter().map(|(_, why)| why.because.clone()).collect();
    assert_eq!(because, ["reset: set replaced what came before"; 3]);
    assert!(planned(&world, &told).values().all(|steps| *steps == ["set 5"]));

    world.submit(0, request("set 5")).unwrap();
    world.run_for(1_000);
    let block: Vec<OpId> = at(&world, 0).block().map(|op| op.id.clone()).collect();
    assert_eq!(block, told.after);
    let op = at(&world, 0).block().next().unwrap();
    assert_eq!((&op.parents, op.reset), (&told.op.parents, told.op.reset));
}

#[test]
fn a_rehearsal_knows_replays_and_resets() {
    let mut world = world();
    // Kinds that have no entry: an operation that failed at another site only has no way back.
    world.partition(&[vec![0], vec![1, 2]]);
    world.run_for(1_000);
    world.submit(1, request("inc 2")).unwrap();
    world.run_for(1_000);
    world.submit(0, request("set 3")).unwrap();
    world.run_for(1_000);
    world.heal_all();
    world.run_for(30_000);
    // `inc 2` fell to `set 3`; b and c ran it, and then the set.
    let told = rehearse(&world, 1, &request("inc 4")).unwrap();
    assert!(planned(&world, &told).values().all(|steps| *steps == ["inc 4"]), "{told:?}");
    let forced = Submission { force: true, ..request("inc 4") };
    let told = rehearse(&world, 1, &forced).unwrap();
    assert_eq!(told.after, from_ref(&told.op.id));
}

#[test]
fn a_rehearsal_refuses_what_the_site_would() {
    let mut world = world();
    let op = accepted(&answers(&mut world, 0, keyed("inc 1", "k")));
    let told = rehearse(&world, 1, &keyed("inc 1", "k")).unwrap();
    assert_eq!((told.known, told.op.id), (Some(op.clone()), op));
    assert!(matches!(rehearse(&world, 1, &keyed("inc 2", "k")), Err(Refusal::KeyReused { .. })));
    let unknown = Submission { resource: "other".parse().unwrap(), ..request("set 1") };
    let told = rehearse(&world, 1, &unknown).unwrap();
    assert_eq!((told.before.len(), &told.after[..], told.sites.len()), (0, &[told.op.id][..], 3));
    let nowhere = Submission { sites: None, ..unknown.clone() };
    assert!(matches!(rehearse(&world, 1, &nowhere), Err(Refusal::NoSites(_))));
    let deleting = Submission { kind: "delete".parse().unwrap(), ..unknown };
    assert!(matches!(rehearse(&world, 1, &deleting), Err(Refusal::NoSites(_))));
}

#[test]
fn commands_come_with_their_time_limit() {
    let now = Now::default();
    let mut replica = Replica::new(site("a"), Settings::default());
    let config = Some(Config::from_json(CONFIG).unwrap());
    let first = Submission { config, ..request("inc 1") };
    let effects = replica.handle(Input::Submit(Box::new(first)), now);
    let limits = |effects: &[Effect]| -> Vec<Option<Millis>> {
        let limit = |effect: &Effect| match effect {
            Effect::Run { timeout, .. }
            | Effect::Check { timeout, .. }
            | Effect::Clear { timeout, .. } => Some(*timeout),
            _ => None,
        };
        effects.iter().filter_map(limit).collect()
    };
    assert_eq!(limits(&effects), [Some(Millis(1_500))]);
    let run = effects.iter().find_map(|effect| match effect {
        Effect::Run { run, .. } => Some(run.clone()),
        _ => None,
    });
    let run = run.unwrap();
    let running = replica.resource(&resource()).unwrap().running();
    assert_eq!(running, Some((&run.op, 1)));
    let effects = replica.handle(Input::Lost(run.clone()), now);
    assert!(matches!(effects[..], [Effect::Check { .. }]), "{effects:?}");
    assert_eq!(limits(&effects), [Some(Millis(1_500))]);
    assert_eq!(replica.resource(&resource()).unwrap().running(), Some((&run.op, 1)));
    replica.handle(Input::Checked { run, happened: true }, now);
    assert_eq!(replica.resource(&resource()).unwrap().running(), None);
}

#[test]
fn a_time_limit_is_rounded_up() {
    for (nanos, millis) in [(1, 1), (1_000_000, 1), (1_000_001, 2)] {
        assert_eq!(Millis::from(Duration::from_nanos(nanos)), Millis(millis));
    }
    assert_eq!(Millis::from(Duration::MAX), Millis(u64::MAX));
}

#[test]
fn a_site_that_replays_has_yet_to_answer() {
    let config = r#"{"ResolutionMatrix": [
        {"Before": "set", "After": "add", "Result": "take-both-keep-order"},
        {"Before": "add", "After": "set", "Result": "take-both-reverse-order"},
        {"Before": "set", "After": "set", "Result": "take-one"},
        {"Before": "add", "After": "add", "Result": "take-both-agreed-order"}]}"#;
    let mut world = world();
    let config = Some(Config::from_json(config).unwrap());
    world.submit(0, Submission { config, ..request("set 2") });
    world.run_for(1_000);
    // `b` runs the two in the order that does not stand.
    world.partition(&[vec![0, 2], vec![1]]);
    world.submit(0, request("add 3"));
    world.run_for(100);
    world.submit(1, request("add 4"));
    world.run_for(100);
    world.weather.run = (50, 50);
    world.heal_all();
    let (mut replayed, mut settled) = (false, false);
    for _ in 0..30_000 {
        world.run_for(1);
        let here = at(&world, 0);
        if here.log().len() < 4 {
            continue;
        }
        let set = here.block().next().unwrap().id.clone();
        let again = here.reply(&set, &site("b")).is_some_and(|reply| reply.attempt == 2);
        let left = here.unanswered(&site("b"));
        settled = here.state() == State::Settled;
        replayed |= again && left == 2;
        assert_eq!(settled, left == 0 && here.unanswered(&site("c")) == 0, "{:?}", here.state());
        if settled {
            assert!(
                world
                    .app(1, &resource())
                    .0
                    .ends_with(&["set 2", "add 3", "add 4"].map(str::to_owned))
            );
            break;
        }
    }
    assert!(replayed && settled, "replayed {replayed}, settled {settled}");
}
