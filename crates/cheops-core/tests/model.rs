//! Every state that three sites can get into with a few operations, cuts, duplicates, messages that
//! overtake others, and a crash between any two effects, visited one by one.
//!
//! Two things hold in all of them: once the network is quiet and whole, the sites are equal; and no
//! site has run an operation twice, save as part of a replay from one that replaces.
//!
//! Each link delivers at its own pace, all that waits on it together, as the frames of a stream do.
//! Even so the number of states grows fast, so the number of operations is small. The simulator
//! covers the long histories, and messages that come one by one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(clippy::print_stdout, reason = "the number of states is part of the result")]

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::{Arc, OnceLock},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action as Act, Operation},
    plan::Outcome,
    replica::{
        Durable, Effect, Input, Message, Replica, Report, RunId, Settings, Submission, Ticket,
    },
    time::{Millis, Now},
};
use stateright::{Checker, Model, Property};

const SITES: usize = 3;

fn site(n: usize) -> SiteId {
    ["a", "b", "c"][n].parse().unwrap()
}

fn resource() -> ResourceId {
    "r".parse().unwrap()
}

/// An operation that someone will ask for, at some time.
#[derive(Debug, Clone)]
struct Wish {
    site: usize,
    kind: &'static str,
    number: i64,
}

/// What may happen, and how often.
#[derive(Debug, Clone)]
struct Federation {
    config: Config,
    wishes: Vec<Wish>,
    /// The site that is cut off at the start.
    cut_off: Option<usize>,
    /// The site whose agent may crash: at any time, or while it is asked for an operation.
    crashing: usize,
    only_when_asked: bool,
    limits: Counts,
}

/// How often things that go wrong may happen, or have happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Counts {
    cuts: u8,
    /// A message is delivered twice.
    doubles: u8,
    /// A message is delivered before one that was sent earlier on the same link.
    overtakes: u8,
    crashes: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    replica: Replica,
    disk: Vec<Durable>,
    /// Results of commands that have ended; they outlive the agent.
    results: BTreeMap<RunId, Outcome>,
    /// The application: a number.
    value: i64,
    /// How often each operation took effect since the state was last replaced.
    effects: BTreeMap<OpId, u8>,
}

/// A place that states have in common until one of them changes it: most steps are about one place of three, and to
/// copy and to sum up the others is most of the work.
#[derive(Debug, Clone)]
struct Kept {
    place: Arc<Place>,
    sum: OnceLock<u64>,
}

impl Kept {
    fn new(place: Place) -> Self {
        Self { place: Arc::new(place), sum: OnceLock::new() }
    }

    fn get_mut(&mut self) -> &mut Place {
        self.sum.take();
        Arc::make_mut(&mut self.place)
    }

    fn sum(&self) -> u64 {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        *self.sum.get_or_init(|| hasher.hash_one(&*self.place))
    }
}

impl Deref for Kept {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.place, &other.place) || self.place == other.place
    }
}

impl Eq for Kept {}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.sum());
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    places: Vec<Kept>,
    /// Messages on their way, for each link.
    network: BTreeMap<Link, VecDeque<Message>>,
    /// The site that is cut off.
    cut: Option<usize>,
    /// Which of the wishes have been asked for.
    asked: Vec<bool>,
    counts: Counts,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Action {
    Ask(usize),
    /// Delivers all that waits on a link.
    Deliver(Link),
    /// Delivers the first message of a link, which stays on its way.
    Double(Link),
    /// Delivers the second message of a link.
    Overtake(Link),
    Cut(usize),
    Heal,
}

/// An action, and in which of its inputs and after how many effects of that the site crashes, if it
/// does.
type Step = (Action, Option<(usize, usize)>);

/// From one site to another.
type Link = (usize, usize);

impl State {
    fn linked(&self, a: usize, b: usize) -> bool {
        self.cut.is_none_or(|cut| (a == cut) == (b == cut))
    }

    fn input(&mut self, n: usize, input: Input, crash: Option<usize>) {
        let effects = self.places[n].get_mut().replica.handle(input, Now::default());
        let done = crash.unwrap_or(effects.len());
        let mut ended = Vec::new();
        for effect in effects.into_iter().take(done) {
            if let Effect::Run { run, .. } = &effect {
                ended.push(run.clone());
            }
            self.carry_out(n, effect);
        }
        if crash.is_some() {
            self.crash(n);
            return;
        }
        for run in ended {
            let report = self.places[n].report(&run);
            self.input(n, Input::Ran { run, report }, None);
        }
    }

    fn carry_out(&mut self, n: usize, effect: Effect) {
        let place = self.places[n].get_mut();
        match effect {
            Effect::Persist(durable) => place.disk.push(durable),
            Effect::Send { to, message } => {
                let to = (0..SITES).find(|&n| site(n) == to).unwrap();
                if self.linked(n, to) {
                    self.network.entry((n, to)).or_default().push_back(message);
                }
            }
            Effect::Run { run, op, .. } => {
                let outcome = place.run(&op);
                place.results.insert(run, outcome);
            }
            Effect::Recall(run) => {
                let input = if place.results.contains_key(&run) {
                    Input::Ran { report: place.report(&run), run }
                } else {
                    Input::NotStarted(run)
                };
                self.input(n, input, None);
            }
            Effect::Clear { resource, .. } => {
                place.value = 0;
                place.effects.clear();
                self.input(n, Input::Cleared { resource, ok: true }, None);
            }
            // It ends with its input, so none is ever under way.
            Effect::RecallClear(resource) => self.input(n, Input::NotClearing(resource), None),
            Effect::Show { .. } => panic!("nothing is to be shown"),
            Effect::Check { .. } => panic!("nothing is in doubt: the power stays on"),
            Effect::Answer { .. } | Effect::Tell(_) => {}
        }
    }

    /// The agent dies and starts again. What was on its way to it is lost.
    fn crash(&mut self, n: usize) {
        let place = self.places[n].get_mut();
        let disk = place.disk.clone();
        place.replica = Replica::restore(site(n), Settings::default(), disk);
        self.network.retain(|&(from, to), _| from != n && to != n);
        self.input(n, Input::Started, None);
        for other in (0..SITES).filter(|&other| other != n) {
            self.input(other, Input::PeerDown(site(n)), None);
            self.reconnect(n, other);
        }
    }

    fn reconnect(&mut self, a: usize, b: usize) {
        if self.linked(a, b) {
            self.input(a, Input::PeerUp(site(b)), None);
            self.input(b, Input::PeerUp(site(a)), None);
        }
    }

    /// Cuts a site off. What was on its way to or from it is lost.
    fn cut(&mut self, n: usize) {
        self.cut = Some(n);
        self.network.retain(|&(from, to), _| (from == n) == (to == n));
        for other in (0..SITES).filter(|&other| other != n) {
            self.input(n, Input::PeerDown(site(other)), None);
            self.input(other, Input::PeerDown(site(n)), None);
        }
    }

    fn quiet(&self) -> bool {
        self.network.is_empty() && self.cut.is_none()
    }
}

impl Place {
    fn report(&self, run: &RunId) -> Report {
        Report { outcome: self.results[run], took: Millis(0), output: Box::default(), made: None }
    }

    fn run(&mut self, op: &Operation) -> Outcome {
        let Act::Command { line, .. } = &op.action else { panic!("a command") };
        let number: i64 = line.parse().unwrap();
        if matches!(op.kind.as_str(), "set" | "delete") {
            self.value = number;
            self.effects.clear();
        } else {
            self.value += number;
        }
        *self.effects.entry(op.id.clone()).or_default() += 1;
        Outcome::Ok
    }
}

impl Federation {
    fn submission(wish: &Wish) -> Submission {
        Submission {
            ticket: Ticket(0),
            resource: resource(),
            sites: Some(Sites::new((0..SITES).map(site)).unwrap()),
            config: None,
            kind: wish.kind.parse().unwrap(),
            author: "test".parse().unwrap(),
            action: Act::command(wish.number.to_string()),
            force: false,
            keep_going: false,
            key: None,
            wait: Millis(0),
        }
    }

    /// The site that an action happens to, and the inputs that it gives to it.
    fn inputs(&self, state: &State, action: &Action) -> Option<(usize, Vec<Input>)> {
        let (link, from, to) = match action {
            Action::Ask(n) => {
                let wish = &self.wishes[*n];
                return Some((wish.site, vec![Input::Submit(Box::new(Self::submission(wish)))]));
            }
            Action::Deliver(link) => (link, 0, usize::MAX),
            Action::Double(link) => (link, 0, 1),
            Action::Overtake(link) => (link, 1, 2),
            Action::Cut(_) | Action::Heal => return None,
        };
        let queue = &state.network[link];
        let messages = queue.range(from..to.min(queue.len())).cloned();
        let receive = |message| Input::Received { from: site(link.0), message };
        Some((link.1, messages.map(receive).collect()))
    }

    /// All places where a site may crash in the course of an action.
    fn crashes(&self, state: &State, action: &Action) -> Vec<(usize, usize)> {
        let Some((n, inputs)) = self.inputs(state, action) else { return Vec::new() };
        let asked = matches!(action, Action::Ask(_));
        if n != self.crashing || self.only_when_asked && !asked {
            return Vec::new();
        }
        let mut crashes = Vec::new();
        let mut state = state.clone();
        for (at, input) in inputs.into_iter().enumerate() {
            let effects = state.places[n].replica.clone().handle(input.clone(), Now::default());
            crashes.extend((0..=effects.len()).map(|done| (at, done)));
            state.input(n, input, None);
        }
        crashes
    }
}

impl Model for Federation {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let place = |n| {
            Kept::new(Place {
                replica: Replica::new(site(n), Settings::default()),
                disk: Vec::new(),
                results: BTreeMap::new(),
                value: 0,
                effects: BTreeMap::new(),
            })
        };
        let mut state = State {
            places: (0..SITES).map(place).collect(),
            network: BTreeMap::new(),
            cut: None,
            asked: vec![false; self.wishes.len()],
            counts: Counts::default(),
        };
        for a in 0..SITES {
            for b in 0..a {
                state.reconnect(a, b);
            }
        }
        // The resource exists everywhere, and all have heard of that, before anything goes wrong.
        let first = Wish { site: 0, kind: "set", number: 100 };
        let mut submission = Self::submission(&first);
        submission.config = Some(self.config.clone());
        state.input(0, Input::Submit(Box::new(submission)), None);
        while let Some(&link) = state.network.keys().next() {
            state = self.next_state(&state, (Action::Deliver(link), None)).unwrap();
        }
        if let Some(n) = self.cut_off {
            state.cut(n);
        }
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let mut actions = Vec::new();
        let unasked = (0..self.wishes.len()).filter(|&n| !state.asked[n]);
        // The wishes of one site come in their order.
        actions.extend(
            unasked
                .filter(|&n| {
                    (0..n).all(|m| state.asked[m] || self.wishes[m].site != self.wishes[n].site)
                })
                .map(Action::Ask),
        );
        for (&link, queue) in &state.network {
            actions.push(Action::Deliver(link));
            if state.counts.doubles < self.limits.doubles {
                actions.push(Action::Double(link));
            }
            if state.counts.overtakes < self.limits.overtakes && queue.len() > 1 {
                actions.push(Action::Overtake(link));
            }
        }
        match state.cut {
            Some(_) => actions.push(Action::Heal),
            None if state.counts.cuts < self.limits.cuts => {
                actions.extend((0..SITES).map(Action::Cut));
            }
            None => {}
        }
        for action in actions {
            if state.counts.crashes < self.limits.crashes {
                let crashes = self.crashes(state, &action);
                steps.extend(crashes.into_iter().map(|crash| (action.clone(), Some(crash))));
            }
            steps.push((action, None));
        }
    }

    fn next_state(&self, before: &State, (action, crash): Step) -> Option<State> {
        let mut state = before.clone();
        let inputs = self.inputs(before, &action);
        match action {
            Action::Ask(n) => state.asked[n] = true,
            Action::Deliver(link) => drop(state.network.remove(&link)),
            Action::Double(_) => state.counts.doubles += 1,
            Action::Overtake(link) => {
                state.counts.overtakes += 1;
                state.network.entry(link).or_default().remove(1);
            }
            Action::Cut(n) => {
                state.counts.cuts += 1;
                state.cut(n);
            }
            Action::Heal => {
                let cut = state.cut.take();
                for other in (0..SITES).filter(|&other| Some(other) != cut) {
                    state.reconnect(cut.unwrap_or(other), other);
                }
            }
        }
        let (n, inputs) = inputs.unwrap_or_default();
        for (at, input) in inputs.into_iter().enumerate() {
            let crash = crash.filter(|&(crash, _)| crash == at).map(|(_, done)| done);
            state.input(n, input, crash);
            if crash.is_some() {
                state.counts.crashes += 1;
                break;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("network quiet implies sites equal", |_, state: &State| {
                !state.quiet() || equal(state)
            }),
            Property::always("at most once", |_, state: &State| {
                state.places.iter().all(|place| place.effects.values().all(|&times| times <= 1))
            }),
            Property::sometimes("all was asked for, and all is quiet", |_, state: &State| {
                state.quiet() && state.asked.iter().all(|&asked| asked)
            }),
        ]
    }
}

/// Whether all sites know the same, have nothing left to do, and their applications agree.
fn equal(state: &State) -> bool {
    let known = |place: &Place| {
        let replica = &place.replica;
        let found = replica.resource(&resource())?;
        let block: Vec<OpId> = found.block().map(|op| op.id.clone()).collect();
        Some((found.version(), block, found.is_idle(), found.waiting(), place.value))
    };
    let first = known(&state.places[0]);
    first.as_ref().is_none_or(|(_, _, idle, waiting, _)| *idle && *waiting == 0)
        && state.places.iter().all(|place| known(place) == first)
}

fn check(what: &str, federation: Federation) {
    let start = std::time::Instant::now();
    // One thread: what runs these tests runs several of them at once.
    let checker = federation.checker().spawn_bfs().join();
    println!("{what}: {} states, {:?}", checker.unique_state_count(), start.elapsed());
    checker.assert_properties();
}

fn config() -> Config {
    Config::from_json(
        r#"{"ResolutionMatrix": [
            {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
            {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
            {"Before": "set", "After": "set", "Result": "take-one"},
            {"Before": "inc", "After": "inc", "Result": "take-both"}]}"#,
    )
    .unwrap()
}

fn inc(site: usize, number: i64) -> Wish {
    Wish { site, kind: "inc", number }
}

fn set(site: usize, number: i64) -> Wish {
    Wish { site, kind: "set", number }
}

fn delete(site: usize) -> Wish {
    Wish { site, kind: "delete", number: 0 }
}

fn federation(wishes: Vec<Wish>, limits: Counts) -> Federation {
    Federation {
        config: config(),
        wishes,
        cut_off: None,
        crashing: 1,
        only_when_asked: false,
        limits,
    }
}

#[test]
fn an_increment_with_a_cut_and_a_crash() {
    let limits = Counts { cuts: 1, crashes: 1, ..Counts::default() };
    check("an increment; cut, crash", federation(vec![inc(1, 1)], limits));
}

#[test]
fn an_increment_with_a_double_an_overtaking_and_a_crash() {
    let limits = Counts { doubles: 1, overtakes: 1, crashes: 1, ..Counts::default() };
    check("an increment; double, overtaking, crash", federation(vec![inc(1, 1)], limits));
}

#[test]
fn two_operations_and_a_crash_when_asked() {
    let limits = Counts { crashes: 1, ..Counts::default() };
    let federation = federation(vec![set(0, 1), inc(1, 2)], limits);
    check("two operations; crash when asked", Federation { only_when_asked: true, ..federation });
}

#[test]
fn two_operations_on_both_sides_of_a_cut() {
    let wishes = vec![set(0, 1), inc(2, 2)];
    let federation = Federation { cut_off: Some(2), ..federation(wishes, Counts::default()) };
    check("two operations; cut off at first", federation);
}

#[test]
fn two_operations_with_doubles_and_overtaking() {
    let limits = Counts { doubles: 1, overtakes: 1, ..Counts::default() };
    check("two operations; double, overtaking", federation(vec![set(0, 1), inc(1, 2)], limits));
}

#[test]
fn a_delete_and_an_operation_on_both_sides_of_a_cut() {
    let wishes = vec![delete(0), set(2, 2)];
    let federation = Federation { cut_off: Some(2), ..federation(wishes, Counts::default()) };
    check("a delete and an operation; cut off at first", federation);
}

#[test]
fn a_delete_and_an_operation_on_both_sides_of_a_cut_and_a_crash_when_asked() {
    let limits = Counts { crashes: 1, ..Counts::default() };
    let federation = federation(vec![delete(0), set(2, 2)], limits);
    let federation =
        Federation { cut_off: Some(2), crashing: 2, only_when_asked: true, ..federation };
    check("a delete and an operation; cut off at first, crash when asked", federation);
}

#[test]
fn a_delete_with_a_cut_and_a_crash_when_asked() {
    let limits = Counts { cuts: 1, crashes: 1, ..Counts::default() };
    let federation = Federation { only_when_asked: true, ..federation(vec![delete(1)], limits) };
    check("a delete; cut, crash when asked", federation);
}

#[test]
fn a_delete_and_an_operation_that_follows_it_or_not() {
    let wishes = vec![delete(0), set(1, 2)];
    check("a delete and an operation", federation(wishes, Counts::default()));
}

#[test]
fn three_operations() {
    let wishes = vec![set(0, 1), set(1, 2), inc(2, 3)];
    check("three operations", federation(wishes, Counts::default()));
}
