//! What is told of a resource at a glance is kept up to date record by record. It must be what a walk
//! over all that is known tells, after whatever came in, in whatever order.
//!
//! Each seed is a history at one site: its own requests and runs, and records that other sites may have
//! made, among them some that no site that behaves would make. `CHEOPS_SEED` is the first seed and
//! `CHEOPS_SEEDS` says how many.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cheops_core::{
    id::{Kind, OpId, ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action, Declaration, HttpBody, HttpRequest, Names, Operation},
    plan::Outcome,
    replica::{
        Durable, Effect, Input, Message, Record, Replica, Reply, Report, RunId, Sent, Settings,
        Shown, State, Submission, Ticket, Version,
    },
    time::{Millis, Now, Timestamp},
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const KINDS: [&str; 5] = ["set", "inc", "write", "other", "delete"];
const CONFIGS: [&str; 5] = [
    r#"{"ResolutionMatrix": [], "Show": "show"}"#,
    r#"{"ResolutionMatrix": [
        {"Before": "set", "After": "set", "Result": "take-one"},
        {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
        {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"}], "Reset": "reset"}"#,
    r#"{"ResolutionMatrix": [
        {"Before": "other", "After": "set", "Result": "take-one", "Concurrent": "take-both"},
        {"Before": "write", "After": "write", "Result": "take-both-agreed-order"}]}"#,
    r#"{"ResolutionMatrix": [
        {"Before": "inc", "After": "write", "Result": "take-both-reverse-order"},
        {"Before": "write", "After": "other", "Result": "take-both-reverse-order"},
        {"Before": "other", "After": "inc", "Result": "take-both-reverse-order"}], "Show": "show it"}"#,
    r#"{"ResolutionMatrix": [
        {"Before": "set", "After": "write", "Result": "take-both", "Concurrent": "take-before"},
        {"Before": "write", "After": "set", "Result": "take-both-reverse-order", "Concurrent": "take-both"}],
        "Reset": "reset", "Check": "check"}"#,
];

fn id() -> ResourceId {
    "r".parse().unwrap()
}

/// Another site, as far as it matters.
#[derive(Default)]
struct Peer {
    /// Its records, in order.
    stream: Vec<Sent>,
    number: u64,
    era: u32,
    /// How many of them were sent.
    sent: usize,
    /// The attempts at each operation.
    attempts: BTreeMap<OpId, u32>,
    last: Option<OpId>,
}

struct History {
    rng: fastrand::Rng,
    replica: Replica,
    written: Vec<Durable>,
    peers: Vec<Peer>,
    /// What is under way at the site.
    runs: Vec<RunId>,
    clearing: bool,
    checks: Vec<RunId>,
    shows: Vec<u64>,
    /// All operations, with their times.
    ops: BTreeMap<OpId, Timestamp>,
    now: u64,
    /// How much of everything goes well: one of so many does not.
    mishap: u32,
    requests: bool,
    /// One record of so many of other sites is an operation.
    busy: u32,
    /// The kinds of its operations, and the configuration that most of them have.
    kinds: Vec<&'static str>,
    usual: usize,
    seen: BTreeSet<State>,
    compared: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mishap = [2, 5, 50][rng.usize(..3)];
        let requests = rng.bool();
        let busy = [3, 10, 40][rng.usize(..3)];
        let mut kinds = KINDS.to_vec();
        rng.shuffle(&mut kinds);
        kinds.truncate(rng.usize(2..=KINDS.len()));
        let usual = rng.usize(..CONFIGS.len());
        let settings = Settings { show_after: Some(Millis(1)), ..Settings::default() };
        Self {
            rng,
            replica: Replica::new(NAMES[0].parse().unwrap(), settings),
            written: Vec::new(),
            peers: (0..NAMES.len()).map(|_| Peer::default()).collect(),
            runs: Vec::new(),
            clearing: false,
            checks: Vec::new(),
            shows: Vec::new(),
            ops: BTreeMap::new(),
            now: 1_000_000,
            mishap,
            requests,
            busy,
            kinds,
            usual,
            seen: BTreeSet::new(),
            compared: 0,
        }
    }

    fn one_of(&mut self, so_many: u32) -> bool {
        self.rng.u32(..so_many) == 0
    }

    fn outcome(&mut self) -> Outcome {
        if !self.one_of(self.mishap) {
            return Outcome::Ok;
        }
        [Outcome::Ko, Outcome::Denied, Outcome::Unknown, Outcome::Ko][self.rng.usize(..4)]
    }

    fn config(&mut self) -> Config {
        let other = self.rng.usize(..CONFIGS.len());
        Config::from_json(CONFIGS[if self.one_of(8) { other } else { self.usual }]).unwrap()
    }

    fn kind(&mut self) -> Kind {
        self.rng.choice(&self.kinds).unwrap().parse().unwrap()
    }

    fn sites(&mut self) -> Sites {
        let some = |rng: &mut fastrand::Rng| NAMES[..rng.usize(2..=NAMES.len())].iter();
        Sites::new(some(&mut self.rng).map(|name| name.parse().unwrap())).unwrap()
    }

    fn action(&mut self) -> Action {
        if !self.requests || self.one_of(8) {
            return Action::command("do");
        }
        let request = HttpRequest {
            service: "image".parse().unwrap(),
            method: ["PUT", "put", "PATCH", "POST", "DELETE"][self.rng.usize(..5)].into(),
            target: ["/m", "/n"][self.rng.usize(..2)].into(),
            headers: Box::default(),
            body: HttpBody::None,
            names: Names::Nothing,
        };
        let action = Action::Http(Box::new(request));
        if self.one_of(10) { Action::Steps([action].into()) } else { action }
    }

    /// Gives the site an input, and compares.
    fn give(&mut self, input: Input) {
        self.now += 1;
        let now = Now { wall: Millis(self.now), steady: Millis(self.now) };
        for effect in self.replica.handle(input, now) {
            match effect {
                Effect::Persist(durable) => {
                    if let Durable::Record(Record::Operation(op), _) = &durable {
                        self.ops.insert(op.id.clone(), op.at);
                    }
                    self.written.push(durable);
                }
                Effect::Run { run, .. } | Effect::Recall(run) => self.runs.push(run),
                Effect::Clear { .. } => self.clearing = true,
                Effect::Check { run, .. } => self.checks.push(run),
                Effect::Show { block, .. } => self.shows.push(block),
                _ => {}
            }
        }
        self.compare();
    }

    fn compare(&mut self) {
        for resource in self.replica.resources() {
            assert!(resource.is_up_to_date(), "{} is", resource.id());
            let told = resource.summary();
            assert_eq!(told, resource.summary_by_walking());
            if resource.log().len() > 16 {
                self.seen.insert(told.state);
                self.compared += 1;
            }
        }
    }

    /// Something that happens at the site itself.
    fn act(&mut self) {
        if !self.runs.is_empty() && !self.one_of(3) {
            let run = self.runs.remove(0);
            if self.one_of(30) {
                let lost = self.rng.bool();
                return self.give(if lost { Input::Lost(run) } else { Input::NotStarted(run) });
            }
            let (outcome, output) = (self.outcome(), Box::default());
            let report = Report { outcome, took: Millis(1), output, made: None };
            return self.give(Input::Ran { run, report });
        }
        if self.clearing {
            self.clearing = false;
            let ok = !self.one_of(self.mishap);
            return self.give(Input::Cleared { resource: id(), ok });
        }
        if let Some(run) = self.checks.pop() {
            let happened = self.rng.bool();
            return self.give(Input::Checked { run, happened });
        }
        if let Some(block) = self.shows.pop() {
            let print = Some([self.rng.u8(..2); 16]);
            return self.give(Input::Shown { resource: id(), block, print });
        }
        match self.rng.u32(..30) {
            0 => {
                let removed = NAMES[2..].iter().filter(|_| self.rng.bool());
                let removed = removed.map(|name| name.parse().unwrap()).collect();
                self.give(Input::Removed(removed));
            }
            1 => self.restart(),
            2 => self.give(Input::Tick),
            3 if self.one_of(3) => {
                let n = self.rng.usize(1..NAMES.len());
                let known = [(id(), self.rng.u64(..=self.peers[n].number))].into();
                self.give(Input::Fenced { site: NAMES[n].parse().unwrap(), known });
            }
            4 if self.one_of(3) => {
                let n = self.rng.usize(1..NAMES.len());
                let some = |peer: &Peer| self.rng.u64(..=peer.number);
                let heads = self.peers.iter().map(some).collect::<Vec<_>>();
                let version = NAMES.iter().zip(heads).skip(1);
                let version: Version =
                    version.map(|(name, number)| (name.parse().unwrap(), number)).collect();
                let message = Message::Forgotten(vec![(id(), version)]);
                self.give(Input::Received { from: NAMES[n].parse().unwrap(), message });
            }
            _ => {
                let (config, sites) = (self.config(), self.sites());
                let submission = Submission {
                    ticket: Ticket(self.now),
                    resource: id(),
                    sites: Some(sites),
                    config: (self.one_of(6) || self.ops.is_empty()).then_some(config),
                    kind: self.kind(),
                    author: "someone".parse().unwrap(),
                    action: self.action(),
                    force: self.one_of(12),
                    keep_going: self.one_of(2),
                    key: None,
                    wait: Millis(0),
                };
                self.give(Input::Submit(Box::new(submission)));
            }
        }
    }

    /// The agent dies and comes back.
    fn restart(&mut self) {
        let here = NAMES[0].parse().unwrap();
        let settings = Settings { show_after: Some(Millis(1)), ..Settings::default() };
        let removed = self.replica.removed().clone();
        self.replica = Replica::restore(here, settings, self.written.iter().cloned());
        self.replica.leave_out(removed);
        (self.clearing, self.runs, self.checks, self.shows) = Default::default();
        self.give(Input::Started);
    }

    /// Another site records something.
    fn record(&mut self, n: usize) {
        let site: SiteId = NAMES[n].parse().unwrap();
        let number = self.peers[n].number + 1;
        let own = OpId { site: site.clone(), number };
        let known: Vec<OpId> = self.ops.keys().cloned().collect();
        let record = if known.is_empty() || self.one_of(self.busy) {
            let mut parents: BTreeSet<OpId> = self.peers[n].last.iter().cloned().collect();
            for _ in 0..self.rng.usize(..3) {
                parents.extend(self.rng.choice(&known).cloned());
            }
            let latest = parents.iter().filter_map(|id| self.ops.get(id)).max();
            let latest = latest.map_or(1_000_000 << 16, |at| at.to_bits());
            let at = Timestamp::from_bits(latest + 1 + self.rng.u64(..2_000));
            let (config, sites) = (self.config(), self.sites());
            let declares = self.one_of(6) || parents.is_empty();
            let op = Operation {
                id: own.clone(),
                resource: id(),
                kind: self.kind(),
                author: "someone".parse().unwrap(),
                at,
                parents: parents.into_iter().collect(),
                action: self.action(),
                reset: self.one_of(12),
                keep_going: self.one_of(2),
                key: None,
                declares: declares.then(|| {
                    Box::new(Declaration { sites, config: Arc::new(config), base: Version::new() })
                }),
            };
            self.ops.insert(own.clone(), at);
            self.peers[n].last = Some(own);
            Record::Operation(Arc::new(op))
        } else if self.one_of(12) {
            let block = self.replica.resource(&id()).and_then(|resource| resource.summary().block);
            Record::Shown(Arc::new(Shown {
                id: own,
                resource: id(),
                op: self.rng.choice(&known).unwrap().clone(),
                block: block.unwrap_or_default(),
                print: Some([self.rng.u8(..2); 16]),
            }))
        } else {
            // Most of the time a site answers what it has not answered, and counts on.
            let open = known.iter().filter(|op| !self.peers[n].attempts.contains_key(op)).cloned();
            let open: Vec<OpId> = open.collect();
            let among = if open.is_empty() || self.one_of(4) { &known } else { &open };
            let op = self.rng.choice(among).unwrap().clone();
            let outcome = self.outcome();
            let (odd, more) = (self.one_of(20), u32::from(self.one_of(8)));
            let peer = &mut self.peers[n];
            peer.era = if odd { self.rng.u32(..4) } else { peer.era + more };
            if odd {
                peer.attempts.insert(op.clone(), self.rng.u32(..3));
            }
            self.reply(n, op, outcome)
        };
        self.push(n, record);
    }

    /// The reply of a site to an operation: one more than there are.
    fn reply(&mut self, n: usize, op: OpId, outcome: Outcome) -> Record {
        let peer = &mut self.peers[n];
        let attempt = peer.attempts.entry(op.clone()).or_default();
        *attempt += 1;
        Record::Reply(Arc::new(Reply {
            id: OpId { site: NAMES[n].parse().unwrap(), number: peer.number + 1 },
            resource: id(),
            op,
            attempt: *attempt,
            outcome,
            era: peer.era,
            took: Millis(1),
            output: Box::default(),
            made: None,
        }))
    }

    fn push(&mut self, n: usize, record: Record) {
        let peer = &mut self.peers[n];
        peer.stream.push(Sent { after: peer.number, record, seal: None });
        peer.number += 1;
    }

    /// All other sites answer all of the block, each of its operations in one way.
    fn answer_all(&mut self) {
        let Some(resource) = self.replica.resource(&id()) else { return };
        let block: Vec<OpId> = resource.block().map(|op| op.id.clone()).collect();
        let end = [Outcome::Ok, Outcome::Ko, Outcome::Denied][self.rng.usize(..3)];
        let well = self.rng.bool();
        for n in 1..NAMES.len() {
            if self.one_of(3) {
                self.peers[n].era = self.rng.u32(..3);
            }
        }
        for (place, op) in block.iter().enumerate() {
            let last = place + 1 == block.len();
            let outcome = if well || self.rng.bool() { Outcome::Ok } else { Outcome::Ko };
            for n in 1..NAMES.len() {
                let reply = self.reply(n, op.clone(), if last { end } else { outcome });
                self.push(n, reply);
            }
        }
    }

    fn send_all(&mut self) {
        for n in 1..NAMES.len() {
            while self.peers[n].sent < self.peers[n].stream.len() {
                self.send(n);
            }
        }
    }

    /// Another site sends some of what it has recorded; perhaps again, or too early.
    fn send(&mut self, n: usize) {
        let peer = &self.peers[n];
        let most = peer.stream.len();
        let from = if self.rng.u32(..20) == 0 { self.rng.usize(..=most) } else { peer.sent };
        let to = most.min(from + self.rng.usize(1..12));
        let records = peer.stream[from..to].to_vec();
        self.peers[n].sent = self.peers[n].sent.max(to);
        if !records.is_empty() {
            let message = Message::Records { resource: id(), records, more: false };
            self.give(Input::Received { from: NAMES[n].parse().unwrap(), message });
        }
    }

    fn play(&mut self, length: usize) {
        for _ in 0..length {
            match self.rng.u32(..10) {
                0 => self.act(),
                1..7 => {
                    let n = self.rng.usize(1..NAMES.len());
                    self.record(n);
                }
                _ => {
                    let n = self.rng.usize(1..NAMES.len());
                    self.send(n);
                }
            }
        }
        // At last all is sent, and what is under way at the site ends.
        self.send_all();
        for _ in 0..length / 10 {
            for _ in 0..4 {
                self.act();
            }
            self.answer_all();
            self.send_all();
        }
    }
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn what_is_kept_up_to_date_is_what_a_walk_tells() {
    let first = from_env("CHEOPS_SEED").unwrap_or(1);
    let count = from_env("CHEOPS_SEEDS").unwrap_or(120);
    let (mut seen, mut compared) = (BTreeSet::new(), 0);
    for seed in first..first + count {
        let mut history = History::new(seed);
        let length = 100 + usize::try_from(seed % 3).unwrap() * 150;
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            history.play(length);
        }));
        assert!(played.is_ok(), "seed {seed} fails: CHEOPS_SEED={seed} CHEOPS_SEEDS=1");
        seen.extend(history.seen);
        compared += history.compared;
    }
    if count >= 100 {
        assert_eq!(seen.len(), 5, "histories lead to all states: {seen:?}");
        assert!(compared > 1_000, "histories are long enough to have an index: {compared}");
    }
}
