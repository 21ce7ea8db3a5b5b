//! Resources in parts: each site does its own share of an operation, and all sites come to know the
//! same parts, in whatever order they hear of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(unreachable_pub, reason = "a test program exports nothing")]

mod support;

use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix::{Config, Share},
    operation::{Action, Operation},
    plan::Outcome,
    replica::{
        Answer, Effect, Input, Refusal, Replica, Report, Resource, Settings, State, Submission,
        Ticket,
    },
    time::{Millis, Now},
};
use support::world::{App, Weather, World};

/// The commands that were run.
#[derive(Debug, Default, Clone, PartialEq)]
struct Lines(Vec<String>);

impl App for Lines {
    fn run(&mut self, op: &Operation) -> Outcome {
        let Action::Command { line, .. } = &op.action else { panic!("a command") };
        self.0.push(line.to_string());
        Outcome::Ok
    }
}

fn site(name: &str) -> SiteId {
    name.parse().unwrap()
}

fn resource() -> ResourceId {
    "r".parse().unwrap()
}

/// A request for a command, which creates the resource in these parts.
fn request(line: &str, parts: &str) -> Submission {
    let config = |parts: &str| {
        let parts = parts.split(" % ").map(|part| serde_json::json!(part)).collect();
        let config = serde_json::json!({ "Parts": serde_json::Value::Array(parts) });
        Config::from_json(&config.to_string()).unwrap()
    };
    let config = (!parts.is_empty()).then(|| config(parts));
    let parts = config.iter().flat_map(|config| config.parts.iter().flat_map(Sites::iter));
    Submission {
        ticket: Ticket(1),
        resource: resource(),
        sites: Sites::new(parts.cloned()).ok(),
        config,
        kind: "set".parse().unwrap(),
        author: "someone".parse().unwrap(),
        action: Action::command(line),
        force: false,
        keep_going: false,
        key: None,
        wait: Millis(60_000),
    }
}

fn now() -> Now {
    Now { wall: Millis(1_000_000), steady: Millis(1) }
}

/// The parts of a resource: `a % b & c`.
fn parts(resource: &Resource) -> String {
    let parts: Vec<String> = resource.config().parts.iter().map(ToString::to_string).collect();
    parts.join(" % ")
}

/// The shares of the runs that are begun.
fn shares(effects: &[Effect]) -> Vec<Option<Share>> {
    let share = |effect: &Effect| match effect {
        Effect::Run { share, .. } => Some(*share),
        _ => None,
    };
    effects.iter().filter_map(share).collect()
}

fn refusal(effects: &[Effect]) -> Option<Refusal> {
    effects.iter().find_map(|effect| match effect {
        Effect::Answer { answer: Answer::Refused(refusal), .. } => Some(refusal.clone()),
        _ => None,
    })
}

/// Ends the run that is under way.
fn end(replica: &mut Replica, effects: &[Effect]) {
    for effect in effects {
        if let Effect::Run { run, .. } = effect {
            let report = Report {
                outcome: Outcome::Ok,
                took: Millis(1),
                output: Box::default(),
                made: None,
            };
            replica.handle(Input::Ran { run: run.clone(), report }, now());
        }
    }
}

#[test]
fn every_operation_of_a_resource_in_parts_is_run_with_a_share() {
    let mut replica = Replica::new(site("b"), Settings::default());
    let submit = |replica: &mut Replica, submission| {
        let effects = replica.handle(Input::Submit(Box::new(submission)), now());
        end(replica, &effects);
        effects
    };
    let share = Some(Share { part: 1, parts: 3 });
    assert_eq!(shares(&submit(&mut replica, request("1", "c % b % a"))), [share]);
    assert_eq!(shares(&submit(&mut replica, request("2", ""))), [share]);
    // A configuration without parts, and one with others, leave them as they are.
    for config in [r#"{"Show": "x"}"#, r#"{"Show": "y", "Parts": ["a", "b"]}"#] {
        let config = Some(Config::from_json(config).unwrap());
        let effects = submit(&mut replica, Submission { config, ..request("3", "") });
        assert_eq!((shares(&effects), refusal(&effects)), (vec![share], None));
        let known = replica.resource(&resource()).unwrap();
        assert_eq!(parts(known), "c % b % a");
    }
    assert_eq!(replica.resource(&resource()).unwrap().config().show.as_deref(), Some("y"));
    // Parts alone take nothing else away.
    submit(&mut replica, request("4", "c % b % a"));
    assert_eq!(replica.resource(&resource()).unwrap().config().show.as_deref(), Some("y"));
    let rehearsal = replica.draft(&request("5", ""), now()).unwrap().rehearse();
    assert_eq!(rehearsal.parts.len(), 3);
}

#[test]
fn what_is_whole_on_each_site_is_not_divided_later() {
    let mut replica = Replica::new(site("a"), Settings::default());
    let both = Sites::new(["a", "b"].map(site)).unwrap();
    let whole = Submission { sites: Some(both.clone()), ..request("1", "") };
    let effects = replica.handle(Input::Submit(Box::new(whole)), now());
    assert_eq!(shares(&effects), [None]);
    let effects = replica.handle(Input::Submit(Box::new(request("2", "a % b"))), now());
    let expected = Refusal::Whole { resource: resource(), sites: both };
    assert_eq!(refusal(&effects), Some(expected));
    assert_eq!(replica.resource(&resource()).unwrap().log().len(), 1);
}

#[test]
fn sites_that_create_a_resource_apart_come_to_the_same_parts() {
    let names = ["a", "b", "c", "d"].map(site);
    for seed in 0..10 {
        let mut world: World<Lines> =
            World::new(&names, seed, Weather::calm(), Settings::default());
        world.introduce_all();
        world.run_for(1_000);
        world.partition(&[vec![0], vec![1], vec![2], vec![3]]);
        // Those that were named later count; who is in none of them comes after.
        let (first, second, expected) = if seed % 2 == 0 {
            ((0, "b % a"), (3, "d % c & b"), "d % b & c % a")
        } else {
            ((3, "d % c & b"), (0, "b % a"), "b % a % c % d")
        };
        for (n, place) in [first, second] {
            world.submit(n, request("x", place));
            world.run_for(1_000);
        }
        world.heal_all();
        world.run_for(60_000);
        for (n, name) in names.iter().enumerate() {
            let known = world.sites[n].replica.as_ref().unwrap().resource(&resource()).unwrap();
            assert_eq!(parts(known), expected, "{name}, seed {seed}");
            assert!(known.config().share(name).is_some());
        }
    }
}

#[test]
fn parts_that_print_different_things_have_not_diverged() {
    let names = ["a", "b", "c"].map(site);
    let mut world: World<Lines> = World::new(&names, 1, Weather::calm(), Settings::default());
    world.introduce_all();
    world.run_for(1_000);
    let mut request = request("1", "a % b & c");
    request.config.as_mut().unwrap().show = Some("show".into());
    world.submit(0, request);
    world.run_for(1_000);
    let known = |world: &World<Lines>, n: usize| {
        let replica = world.sites[n].replica.as_ref().unwrap();
        replica.resource(&resource()).unwrap().state()
    };
    // Something from outside changes a part as a whole, and then one of its two sites.
    for (changed, expected) in [(&[0][..], State::Settled), (&[2], State::Diverged)] {
        for &n in changed {
            world.sites[n].apps.get_mut(&resource()).unwrap().0.push("other".to_owned());
        }
        let again = Submission { config: None, ..self::request("2", "") };
        world.submit(0, again);
        world.run_for(60_000);
        for (n, name) in names.iter().enumerate() {
            assert_eq!(known(&world, n), expected, "at {name}");
        }
    }
}
