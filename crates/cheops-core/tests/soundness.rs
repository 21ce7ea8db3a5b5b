//! The plan is sound: whatever the order of arrival, cuts, crashes and restarts, once the links are
//! back every site's application is in the state of a fresh one that runs the block once.
//!
//! Small real applications, with matrices that tell the truth about them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod support;

use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action, HttpBody, HttpRequest, Names, Operation},
    plan::Outcome,
    replica::{Resource, Settings, Submission, Ticket},
    time::Millis,
};
use support::world::{App, Weather, World};

fn line(op: &Operation) -> (&str, i64) {
    let Action::Command { line, .. } = &op.action else { panic!("a command") };
    let (verb, number) = line.split_once(' ').unwrap();
    (verb, number.parse().unwrap())
}

/// A number that can be set, added to and multiplied.
#[derive(Debug, Default, Clone, PartialEq)]
struct Register(i64);

impl App for Register {
    fn run(&mut self, op: &Operation) -> Outcome {
        match line(op) {
            ("set", n) => self.0 = n,
            ("inc", n) => self.0 = self.0.wrapping_add(n),
            ("fail", _) => return Outcome::Ko,
            other => panic!("{other:?}"),
        }
        Outcome::Ok
    }
}

/// A text that grows at the end and shrinks at the start.
#[derive(Debug, Default, Clone, PartialEq)]
struct Text(String);

impl App for Text {
    fn run(&mut self, op: &Operation) -> Outcome {
        match line(op) {
            ("set", n) => self.0 = n.to_string(),
            ("append", n) => self.0 += &n.to_string(),
            ("shift", _) if self.0.is_empty() => return Outcome::Ko,
            ("shift", _) => drop(self.0.remove(0)),
            ("fail", _) => return Outcome::Ko,
            other => panic!("{other:?}"),
        }
        Outcome::Ok
    }
}

/// A set of numbers. Adding and removing the same number does not commute.
#[derive(Debug, Default, Clone, PartialEq)]
struct Set(std::collections::BTreeSet<i64>);

impl App for Set {
    fn run(&mut self, op: &Operation) -> Outcome {
        match line(op) {
            ("add", n) => drop(self.0.insert(n)),
            ("remove", n) => drop(self.0.remove(&n)),
            ("empty", _) => self.0.clear(),
            ("fail", _) => return Outcome::Ko,
            other => panic!("{other:?}"),
        }
        Outcome::Ok
    }
}

/// A counter that never falls below zero: what would is refused.
#[derive(Debug, Default, Clone, PartialEq)]
struct Bounded(i64);

impl App for Bounded {
    fn run(&mut self, op: &Operation) -> Outcome {
        let (verb, n) = line(op);
        let next = match verb {
            "inc" => self.0 + n,
            "dec" => self.0 - n,
            "fail" => return Outcome::Ko,
            other => panic!("{other:?}"),
        };
        if next < 0 {
            return Outcome::Ko;
        }
        self.0 = next;
        Outcome::Ok
    }
}

const REGISTER: &str = r#"{"Reset": "set 0", "ResolutionMatrix": [
    {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
    {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "set", "Result": "take-one"},
    {"Before": "inc", "After": "inc", "Result": "take-both"}]}"#;

const REGISTER_BOTH: &str = r#"{"Reset": "set 0", "ResolutionMatrix": [
    {"Before": "set", "After": "inc", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "set", "Result": "take-one"},
    {"Before": "inc", "After": "inc", "Result": "take-both"}]}"#;

const TEXT: &str = r#"{"Reset": "clear", "ResolutionMatrix": [
    {"Before": "set", "After": "append", "Result": "take-both-keep-order"},
    {"Before": "append", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "shift", "Result": "take-both-keep-order"},
    {"Before": "shift", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "set", "Result": "take-one"},
    {"Before": "append", "After": "append", "Result": "take-both-agreed-order"},
    {"Before": "append", "After": "shift", "Result": "take-both-agreed-order"},
    {"Before": "shift", "After": "shift", "Result": "take-both-agreed-order"}]}"#;

const SET: &str = r#"{"Reset": "clear", "ResolutionMatrix": [
    {"Before": "add", "After": "add", "Result": "take-both"},
    {"Before": "remove", "After": "remove", "Result": "take-both"},
    {"Before": "add", "After": "remove", "Result": "take-both-agreed-order"},
    {"Before": "empty", "After": "empty", "Result": "take-one"},
    {"Before": "empty", "After": "add", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "add", "After": "empty", "Result": "take-both-reverse-order"},
    {"Before": "empty", "After": "remove", "Result": "take-both-keep-order"},
    {"Before": "remove", "After": "empty", "Result": "take-both-reverse-order"}]}"#;

const BOUNDED: &str = r#"{"Reset": "clear", "ResolutionMatrix": [
    {"Before": "inc", "After": "inc", "Result": "take-both"},
    {"Before": "inc", "After": "dec", "Result": "take-both-agreed-order"},
    {"Before": "dec", "After": "dec", "Result": "take-both-agreed-order"}]}"#;

/// A document of fields behind a REST API, and how often it was told to do something.
#[derive(Debug, Default, Clone, PartialEq)]
struct Document {
    made: u32,
    fields: std::collections::BTreeMap<i64, i64>,
    acts: i64,
}

impl App for Document {
    fn run(&mut self, op: &Operation) -> Outcome {
        let Action::Http(request) = &op.action else { panic!("a request") };
        let n: i64 = request.target.strip_prefix('/').unwrap().parse().unwrap();
        match &*request.method {
            "POST" if op.kind.as_str() == "create" => self.made += 1,
            "POST" => self.acts += n,
            "PATCH" if n % 7 == 0 => return Outcome::Ko,
            "PATCH" => drop(self.fields.insert(n % 3, n)),
            "PUT" => self.fields = (0..3).map(|field| (field, -n)).collect(),
            other => panic!("{other}"),
        }
        Outcome::Ok
    }
}

const DOCUMENT: &str = r#"{"ResolutionMatrix": [
    {"Before": "create", "After": "create", "Result": "take-one"},
    {"Before": "create", "After": "set", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "set", "After": "create", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "set", "After": "set", "Result": "take-both-agreed-order"}]}"#;

/// The same with a name that clients choose: a `PUT` makes it, or replaces all of it.
const NAMED: &str = r#"{"ResolutionMatrix": [
    {"Before": "replace", "After": "replace", "Result": "take-one"},
    {"Before": "replace", "After": "merge", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "merge", "After": "replace", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "merge", "After": "merge", "Result": "take-both-agreed-order"}]}"#;

/// What someone asks a site for: the kind and the action.
type Asked = (String, Action);

/// A command of one of these verbs, or one that fails.
fn command(verbs: &[&str], rng: &mut fastrand::Rng, step: usize) -> Asked {
    let verb = if rng.u8(0..8) == 0 { "fail" } else { verbs[rng.usize(0..verbs.len())] };
    let kind = if verb == "fail" { verbs[rng.usize(0..verbs.len())] } else { verb };
    (kind.to_owned(), Action::command(format!("{verb} {}", step + 1)))
}

/// A request: the first one makes the document, and whoever does not know it asks for nothing.
fn request(rng: &mut fastrand::Rng, step: usize, is_new: bool) -> Option<Asked> {
    let (kind, method) = match (step, is_new) {
        (0, _) => ("create", "POST"),
        (_, true) => return None,
        (_, false) => ("set", ["PATCH", "PATCH", "PATCH", "PUT", "POST"][rng.usize(0..5)]),
    };
    Some((kind.to_owned(), http(method, step)))
}

/// A request for what has a name: anyone may make it.
fn named(rng: &mut fastrand::Rng, step: usize) -> Asked {
    let (kind, method) =
        [("merge", "PATCH"), ("merge", "PATCH"), ("replace", "PUT")][rng.usize(0..3)];
    (kind.to_owned(), http(method, step))
}

fn http(method: &str, step: usize) -> Action {
    Action::Http(Box::new(HttpRequest {
        service: "document".parse().unwrap(),
        method: method.into(),
        target: format!("/{}", step + 1).into(),
        headers: [].into(),
        body: HttpBody::None,
        names: Names::Nothing,
    }))
}

/// One random history, of cuts, crashes and what is asked for, for one application.
fn history<A: App>(
    seed: u64,
    config: &str,
    ask: impl Fn(&mut fastrand::Rng, usize, bool) -> Option<Asked>,
) {
    let names: Vec<SiteId> = ["a", "b", "c"].iter().map(|name| name.parse().unwrap()).collect();
    let weather = Weather {
        delay: (10, 300),
        loss: 20,
        double: 20,
        run: (1, 200),
        notice: (1, 500),
        crash: 60,
        power_cut: 0,
    };
    let settings = Settings { compare_every: Millis(3_000), ..Settings::default() };
    let mut world: World<A> = World::new(&names, seed, weather, settings);
    world.introduce_all();
    let resource: ResourceId = "r".parse().unwrap();
    let config = Config::from_json(config).unwrap();
    let steps = world.rng.usize(3..25);
    for step in 0..steps {
        let site = world.rng.usize(0..3);
        let is_new = world_is_new(&world, site, &resource);
        let Some((kind, action)) = ask(&mut world.rng, step, is_new) else { continue };
        let keep_going = action.is_request();
        world.submit(
            site,
            Submission {
                ticket: Ticket(0),
                resource: resource.clone(),
                sites: Some(Sites::new(names.clone()).unwrap()),
                config: (step == 0 || is_new).then(|| config.clone()),
                kind: kind.parse().unwrap(),
                author: "test".parse().unwrap(),
                action,
                force: false,
                keep_going,
                key: None,
                wait: Millis(30_000),
            },
        );
        match world.rng.u8(0..6) {
            0 => world.partition(&[vec![0], vec![1], vec![2]]),
            1 => world.partition(&[vec![0, 1], vec![2]]),
            2 => world.cut(0, 1),
            3 => world.heal_all(),
            _ => {}
        }
        let pause = world.rng.u64(0..2_000);
        world.run_for(pause);
    }
    world.weather.crash = 0;
    world.weather.loss = 0;
    world.heal_all();
    world.run_for(60_000);

    let found: Vec<&Resource> = world
        .sites
        .iter()
        .filter_map(|site| site.replica.as_ref().unwrap().resource(&resource))
        .collect();
    let Some(first) = found.first() else { return };
    let ids = |found: &Resource| found.block().map(|op| op.id.to_string()).collect::<Vec<_>>();
    let mut fresh = A::default();
    for op in first.block() {
        fresh.run(op);
    }
    for (n, (site, found)) in world.sites.iter().zip(&found).enumerate() {
        let what = format!("seed {seed}, site {}, block {:?}", site.name, ids(found));
        let runs: Vec<String> =
            site.runs.iter().map(|(_, op, n)| format!("{}#{n}", op.id)).collect();
        assert_eq!(found.version(), first.version(), "{what}");
        assert_eq!(ids(found), ids(first), "{what}");
        assert!(found.is_idle() && !found.is_stuck(), "{what}: work is left, after {runs:?}");
        assert_eq!(world.app(n, &resource), fresh, "{what} after {runs:?}");
    }
}

fn world_is_new<A: App>(world: &World<A>, site: usize, resource: &ResourceId) -> bool {
    world.sites[site].replica.as_ref().is_some_and(|replica| replica.resource(resource).is_none())
}

fn all<A: App>(config: &str, verbs: &[&str]) {
    let seeds = u64::from(support::cases(2000));
    for seed in 0..seeds {
        history::<A>(seed, config, |rng, step, _| Some(command(verbs, rng, step)));
    }
}

#[test]
fn a_register_with_add() {
    all::<Register>(REGISTER, &["set", "inc", "inc"]);
}

#[test]
fn a_register_that_keeps_concurrent_adds() {
    all::<Register>(REGISTER_BOTH, &["set", "inc", "inc"]);
}

#[test]
fn a_text_with_append_and_shift() {
    all::<Text>(TEXT, &["set", "append", "append", "shift"]);
}

#[test]
fn a_set() {
    all::<Set>(SET, &["add", "remove", "add", "empty"]);
}

#[test]
fn a_bounded_counter() {
    all::<Bounded>(BOUNDED, &["inc", "dec"]);
}

#[test]
fn a_document_behind_requests() {
    for seed in 0..u64::from(support::cases(2000)) {
        history::<Document>(seed, DOCUMENT, request);
    }
}

#[test]
fn a_document_with_a_name_behind_requests() {
    for seed in 0..u64::from(support::cases(2000)) {
        history::<Document>(seed, NAMED, |rng, step, _| Some(named(rng, step)));
    }
}
