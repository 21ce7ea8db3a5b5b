//! A federation in a box: many replicas, their disks, their applications, the links between them,
//! and a clock that goes as fast as it can.
//!
//! The same seed gives the same world, to the last message. What must stay true for the tests to
//! mean something: the world does to a replica only what the real one does. It keeps what was
//! persisted and forgets the rest in a crash; it may lose, double, delay and reorder messages; it
//! never alters one. A command goes on when its agent dies, and its result is kept; a power cut
//! ends both, and nobody can tell if the command had taken effect. A `Reset` command goes on, too;
//! a `Check` command ends with its agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    operation::Operation,
    plan::Outcome,
    replica::{
        Answer, Durable, Effect, Event, Input, Message, Print, Replica, Report, RunId, Settings,
        Submission, Ticket,
    },
    time::{Millis, Now},
};

/// An instance of an application at one site: the state of one resource in it.
pub trait App: Default + Debug + Clone + PartialEq {
    /// Runs an operation's command.
    fn run(&mut self, op: &Operation) -> Outcome;
    /// Runs the `Reset` command.
    fn clear(&mut self) {
        *self = Self::default();
    }
    /// What the `Show` command prints.
    fn show(&self) -> String {
        format!("{self:?}")
    }
}

/// Whoever looks on, and hears of everything that happens, in order.
pub trait Watch {
    fn see(&mut self, now: u64, site: &SiteId, seen: Seen<'_>);
}

impl Watch for () {
    fn see(&mut self, _: u64, _: &SiteId, _: Seen<'_>) {}
}

/// Something that happened at a site.
#[derive(Debug, Clone, Copy)]
pub enum Seen<'a> {
    /// The replica is given this.
    Given(&'a Input),
    /// This effect is carried out.
    Done(&'a Effect),
    /// The message that was just sent will not arrive.
    Lost,
    /// A command ended: it took effect, or failed and changed nothing.
    Took { run: &'a RunId, outcome: Outcome },
    /// The `Reset` command ended, and took effect.
    Emptied(&'a ResourceId),
    /// The `Reset` command failed, and changed nothing.
    NotEmptied(&'a ResourceId),
    /// The agent ended; perhaps with the power.
    Crashed { power: bool },
    /// Something of a resource is lost: all that was written of it since some time.
    Withheld { resource: &'a ResourceId, gone: &'a [Durable], floor: u64 },
    /// The agent is back.
    Started,
}

/// How links behave and how long things take.
#[derive(Debug, Clone)]
pub struct Weather {
    /// A message takes this long, in milliseconds: at least, at most.
    pub delay: (u64, u64),
    /// One message of so many is lost; 0 for none.
    pub loss: u32,
    /// One message of so many arrives twice.
    pub double: u32,
    /// A run takes this long: at least, at most.
    pub run: (u64, u64),
    /// How long it takes until a site notices that a link is cut or back.
    pub notice: (u64, u64),
    /// One input of so many ends in a crash of the agent, after some of its effects.
    pub crash: u32,
    /// Of so many crashes one is a power cut.
    pub power_cut: u32,
}

impl Weather {
    /// Nothing ever goes wrong, and everything takes a millisecond.
    pub fn calm() -> Self {
        Self {
            delay: (1, 1),
            loss: 0,
            double: 0,
            run: (1, 1),
            notice: (1, 1),
            crash: 0,
            power_cut: 0,
        }
    }
}

/// How often commands fail for reasons of their own, one of so many; 0 for never.
#[derive(Debug, Clone, Default)]
pub struct Mishaps {
    pub run: u32,
    pub reset: u32,
}

/// Something that will happen to a site.
#[derive(Debug, Clone)]
enum Happening {
    Arrives {
        from: usize,
        message: Message,
    },
    /// A link is noticed to be up or down.
    Link {
        other: usize,
    },
    Ends {
        run: RunId,
        command: u64,
    },
    Clears {
        resource: ResourceId,
        command: u64,
    },
    /// The `Show` command has looked at the application.
    Shows {
        life: u64,
        resource: ResourceId,
        block: u64,
    },
    /// The shell around the replica has found the answer to a question.
    Told {
        life: u64,
        input: Input,
    },
    Ticks,
    Starts,
}

/// A command that has started and not ended yet.
#[derive(Debug, Clone)]
struct Command {
    number: u64,
    run: RunId,
    op: Arc<Operation>,
}

/// A run: the resource, the operation, the attempt.
pub type RunKey = (ResourceId, OpId, u32);

/// A site: what survives a crash, and the agent, which does not.
pub struct Site<A> {
    pub name: SiteId,
    pub replica: Option<Replica>,
    pub disk: Vec<Durable>,
    pub apps: BTreeMap<ResourceId, A>,
    /// The commands that were started here, in order: resource, operation, attempt.
    pub runs: Vec<(ResourceId, Arc<Operation>, u32)>,
    /// Times that the `Reset` command was run.
    pub clears: Vec<ResourceId>,
    pub events: Vec<Event>,
    /// How often the agent has died.
    pub life: u64,
    commands: BTreeMap<RunKey, Command>,
    /// `Reset` commands that have started and not ended yet.
    clearing: BTreeMap<ResourceId, u64>,
    results: BTreeMap<RunKey, Report>,
    /// The runs that took effect, whether or not anybody knows.
    took: BTreeSet<RunKey>,
    /// The runs that were intended before the last power cut.
    doubted: BTreeSet<RunKey>,
    intended: Vec<RunKey>,
    /// The sites that it has heard to be removed.
    removed: BTreeSet<SiteId>,
    /// How far its wall clock is off, in milliseconds.
    pub skew: i64,
    /// When the agent was started: its steady clock begins there.
    born: u64,
    ticks_at: Option<u64>,
    peers: BTreeSet<usize>,
    /// The links that the agent believes to be up.
    seen_up: BTreeSet<usize>,
}

impl<A> Site<A> {
    fn new(name: SiteId, settings: Settings) -> Self {
        Self {
            replica: Some(Replica::new(name.clone(), settings)),
            name,
            disk: Vec::new(),
            apps: BTreeMap::new(),
            runs: Vec::new(),
            clears: Vec::new(),
            events: Vec::new(),
            life: 0,
            commands: BTreeMap::new(),
            clearing: BTreeMap::new(),
            results: BTreeMap::new(),
            took: BTreeSet::new(),
            doubted: BTreeSet::new(),
            intended: Vec::new(),
            removed: BTreeSet::new(),
            skew: 0,
            born: 0,
            ticks_at: None,
            peers: BTreeSet::new(),
            seen_up: BTreeSet::new(),
        }
    }

    /// The runs that ended or took effect, perhaps more than once each. Others were cut short.
    pub fn ended(&self) -> impl Iterator<Item = &RunKey> {
        self.results.keys().chain(&self.took)
    }
}

/// How much of one sort was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    pub messages: u64,
    pub bytes: u64,
}

/// What was sent and done, for the books.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// New records, from the site that made them.
    pub push: Tally,
    /// Digests, versions and requests.
    pub compare: Tally,
    /// Records that were found missing.
    pub repair: Tally,
    pub crashes: u64,
    pub power_cuts: u64,
    pub inputs: u64,
}

pub struct World<A, W = ()> {
    pub now: u64,
    pub sites: Vec<Site<A>>,
    pub weather: Weather,
    pub mishaps: Mishaps,
    pub books: Books,
    pub answers: BTreeMap<Ticket, Vec<Answer>>,
    pub rng: fastrand::Rng,
    pub watch: W,
    /// Keeps no disks, no results and no records of what happened: for worlds that are large and
    /// in which nobody crashes.
    pub lean: bool,
    settings: Settings,
    names: BTreeMap<SiteId, usize>,
    queue: BTreeMap<(u64, u64), (usize, Happening)>,
    queued: u64,
    /// Directed links that are cut.
    cuts: BTreeSet<(usize, usize)>,
    next_ticket: u64,
    next_command: u64,
}

impl<A: App, W: Watch + Default> World<A, W> {
    pub fn new(names: &[SiteId], seed: u64, weather: Weather, settings: Settings) -> Self {
        let site = |name: &SiteId| Site::new(name.clone(), settings.clone());
        Self {
            now: 0,
            sites: names.iter().map(site).collect(),
            weather,
            mishaps: Mishaps::default(),
            books: Books::default(),
            answers: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            watch: W::default(),
            lean: false,
            names: names.iter().cloned().zip(0..).collect(),
            queue: BTreeMap::new(),
            queued: 0,
            cuts: BTreeSet::new(),
            next_ticket: 0,
            next_command: 0,
            settings,
        }
    }
}

impl<A: App, W: Watch> World<A, W> {
    fn see(&mut self, n: usize, seen: Seen<'_>) {
        self.watch.see(self.now, &self.sites[n].name, seen);
    }

    /// Tells two sites of each other, or that something about their link has changed.
    pub fn introduce(&mut self, a: usize, b: usize) {
        self.sites[a].peers.insert(b);
        self.sites[b].peers.insert(a);
        self.notice(a, b);
        self.notice(b, a);
    }

    /// Tells all sites of each other.
    pub fn introduce_all(&mut self) {
        for a in 0..self.sites.len() {
            for b in 0..a {
                self.introduce(a, b);
            }
        }
    }

    pub fn site(&self, name: &str) -> usize {
        self.names[&name.parse::<SiteId>().unwrap()]
    }

    fn between(&mut self, (least, most): (u64, u64)) -> u64 {
        self.rng.u64(least..=most)
    }

    fn one_of(&mut self, so_many: u32) -> bool {
        so_many > 0 && self.rng.u32(0..so_many) == 0
    }

    fn schedule(&mut self, after: u64, site: usize, happening: Happening) {
        self.queued += 1;
        self.queue.insert((self.now + after, self.queued), (site, happening));
    }

    fn notice(&mut self, site: usize, other: usize) {
        let after = self.between(self.weather.notice);
        self.schedule(after, site, Happening::Link { other });
    }

    /// Cuts a link in one direction. Both ends notice after a while.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
        self.introduce(from, to);
    }

    pub fn heal(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
        self.introduce(from, to);
    }

    pub fn heal_all(&mut self) {
        for (from, to) in std::mem::take(&mut self.cuts) {
            self.introduce(from, to);
        }
    }

    /// Cuts or heals both directions between all sites of different groups.
    pub fn partition(&mut self, groups: &[Vec<usize>]) {
        self.heal_all();
        for (n, group) in groups.iter().enumerate() {
            for other in &groups[..n] {
                for &a in group {
                    for &b in other {
                        self.cut(a, b);
                        self.cut(b, a);
                    }
                }
            }
        }
    }

    fn linked(&self, a: usize, b: usize) -> bool {
        !self.cuts.contains(&(a, b)) && !self.cuts.contains(&(b, a))
    }

    /// Tells a site which sites were removed, also if it is down: its shell knows it when it starts.
    pub fn tell_removed(&mut self, n: usize, removed: &BTreeSet<SiteId>) {
        self.sites[n].removed.clone_from(removed);
        self.input(n, Input::Removed(removed.clone()));
    }

    /// Asks a site for an operation; nothing if it is down.
    pub fn submit(&mut self, site: usize, mut submission: Submission) -> Option<Ticket> {
        self.sites[site].replica.as_ref()?;
        self.next_ticket += 1;
        submission.ticket = Ticket(self.next_ticket);
        let ticket = submission.ticket;
        self.input(site, Input::Submit(Box::new(submission)));
        Some(ticket)
    }

    /// Ends a site's agent. With the power, its commands end as well.
    pub fn crash(&mut self, n: usize, power: bool) {
        self.crash_for(n, power, 1);
    }

    /// Cuts the power of a site, and loses all but the first so many things that it wrote about a
    /// resource. Whatever it has sent has arrived before it is back, or never will.
    pub fn lose(&mut self, n: usize, resource: &ResourceId, kept: usize) {
        if self.sites[n].replica.is_none() {
            return;
        }
        let least = self.weather.delay.1 + 1;
        self.crash_for(n, true, least);
        let site = &mut self.sites[n];
        let (mut met, mut gone, mut floor) = (0, Vec::new(), 0);
        site.disk.retain(|durable| {
            if durable.resource() != resource {
                return true;
            }
            met += 1;
            match durable {
                Durable::Record(record, _) if record.id().site == site.name => {
                    floor = floor.max(record.id().number);
                }
                Durable::Withheld { floor: earlier, .. } | Durable::Held { floor: earlier, .. } => {
                    floor = floor.max(*earlier);
                }
                Durable::Forgotten { version, .. } | Durable::Trimmed { version, .. } => {
                    floor = floor.max(version.get(&site.name).copied().unwrap_or(0));
                }
                _ => {}
            }
            if met > kept {
                gone.push(durable.clone());
            }
            met <= kept
        });
        let marker = Durable::Withheld { resource: resource.clone(), floor };
        site.disk.push(marker);
        site.results.retain(|(of, ..), _| of != resource);
        site.took.retain(|(of, ..)| of != resource);
        self.see(n, Seen::Withheld { resource, gone: &gone, floor });
    }

    fn crash_for(&mut self, n: usize, power: bool, least: u64) {
        if self.sites[n].replica.take().is_none() {
            return;
        }
        self.books.crashes += 1;
        self.see(n, Seen::Crashed { power });
        let site = &mut self.sites[n];
        site.life += 1;
        site.seen_up.clear();
        site.ticks_at = None;
        if power {
            self.books.power_cuts += 1;
            site.doubted.extend(std::mem::take(&mut site.intended));
            for resource in std::mem::take(&mut site.clearing).into_keys() {
                if self.rng.bool() {
                    self.empty(n, &resource);
                }
            }
            let site = &mut self.sites[n];
            for command in std::mem::take(&mut site.commands).into_values() {
                if self.rng.bool() {
                    self.take_effect(n, &command);
                }
            }
        }
        let after = self.rng.u64(least..2_000);
        self.schedule(after, n, Happening::Starts);
        for other in self.sites[n].peers.clone() {
            self.notice(other, n);
        }
    }

    /// Lets time pass until nothing is due before the given moment.
    pub fn run_until(&mut self, end: u64) {
        while let Some(next) = self.queue.first_entry() {
            let (at, _) = *next.key();
            if at > end {
                break;
            }
            let (site, happening) = next.remove();
            self.now = at;
            self.happen(site, happening);
        }
        self.now = self.now.max(end);
    }

    pub fn run_for(&mut self, span: u64) {
        self.run_until(self.now + span);
    }

    fn happen(&mut self, n: usize, happening: Happening) {
        match happening {
            Happening::Arrives { from, message } => {
                let from = self.sites[from].name.clone();
                self.input(n, Input::Received { from, message });
            }
            Happening::Link { other } => self.link(n, other),
            Happening::Ticks => {
                if self.sites[n].ticks_at == Some(self.now) {
                    self.sites[n].ticks_at = None;
                    self.input(n, Input::Tick);
                }
            }
            Happening::Ends { run, command } => self.command_ends(n, &run, command),
            Happening::Clears { resource, command } => {
                // Otherwise a power cut has ended it.
                if self.sites[n].clearing.get(&resource) == Some(&command) {
                    self.sites[n].clearing.remove(&resource);
                    let ok = !self.one_of(self.mishaps.reset);
                    if ok {
                        self.empty(n, &resource);
                    } else {
                        self.see(n, Seen::NotEmptied(&resource));
                    }
                    self.input(n, Input::Cleared { resource, ok });
                }
            }
            Happening::Shows { life, resource, block } => {
                if self.sites[n].life == life {
                    let print = Some(print(&self.app(n, &resource)));
                    let print = print.filter(|_| !self.one_of(self.mishaps.run));
                    self.input(n, Input::Shown { resource, block, print });
                }
            }
            Happening::Told { life, input } => {
                if self.sites[n].life == life {
                    self.input(n, input);
                }
            }
            Happening::Starts => self.start(n),
        }
    }

    fn link(&mut self, n: usize, other: usize) {
        if self.sites[n].replica.is_none() {
            return;
        }
        let up = self.linked(n, other) && self.sites[other].replica.is_some();
        let name = self.sites[other].name.clone();
        let seen = &mut self.sites[n].seen_up;
        if up && seen.insert(other) {
            self.input(n, Input::PeerUp(name));
        } else if !up && seen.remove(&other) {
            self.input(n, Input::PeerDown(name));
        }
    }

    /// The replica that a site would have after a restart.
    pub fn restored(&self, n: usize) -> Replica {
        let site = &self.sites[n];
        let (name, disk) = (site.name.clone(), site.disk.clone());
        let mut replica = Replica::restore(name, self.settings.clone(), disk);
        replica.leave_out(site.removed.clone());
        replica
    }

    fn start(&mut self, n: usize) {
        if self.sites[n].replica.is_some() {
            return;
        }
        let replica = self.restored(n);
        let site = &mut self.sites[n];
        site.replica = Some(replica);
        site.born = self.now;
        self.see(n, Seen::Started);
        self.input(n, Input::Started);
        for other in self.sites[n].peers.clone() {
            self.introduce(n, other);
        }
    }

    fn empty(&mut self, n: usize, resource: &ResourceId) {
        let site = &mut self.sites[n];
        site.clears.push(resource.clone());
        site.apps.entry(resource.clone()).or_default().clear();
        self.see(n, Seen::Emptied(resource));
    }

    /// Carries out a command in the application, for better or worse.
    fn take_effect(&mut self, n: usize, command: &Command) -> Outcome {
        let mishap = self.one_of(self.mishaps.run);
        let denied = mishap && self.one_of(3);
        let site = &mut self.sites[n];
        let outcome = if denied {
            Outcome::Denied
        } else if mishap {
            Outcome::Ko
        } else {
            site.apps.entry(command.run.resource.clone()).or_default().run(&command.op)
        };
        if outcome == Outcome::Ok && !self.lean {
            site.took.insert(key(&command.run));
        }
        self.see(n, Seen::Took { run: &command.run, outcome });
        outcome
    }

    fn command_ends(&mut self, n: usize, run: &RunId, number: u64) {
        let key = key(run);
        let site = &mut self.sites[n];
        // Otherwise a power cut has ended it.
        if site.commands.get(&key).is_none_or(|command| command.number != number) {
            return;
        }
        let Some(command) = site.commands.remove(&key) else { return };
        let outcome = self.take_effect(n, &command);
        let report = Report { outcome, took: Millis(1), output: Box::default(), made: None };
        if !self.lean {
            self.sites[n].results.insert(key, report.clone());
        }
        self.input(n, Input::Ran { run: run.clone(), report });
    }

    /// Gives an input to a site and carries out the effects; perhaps not all of them.
    pub fn input(&mut self, n: usize, input: Input) {
        if self.sites[n].replica.is_none() {
            return;
        }
        self.see(n, Seen::Given(&input));
        let site = &mut self.sites[n];
        // Wall clocks begin some time after 1970, so that they can be off in both directions.
        let now = Now {
            wall: Millis(1_000_000_000_u64.saturating_add_signed(site.skew) + self.now),
            steady: Millis(self.now - site.born),
        };
        let Some(replica) = &mut site.replica else { return };
        self.books.inputs += 1;
        let asked = matches!(input, Input::Received { .. });
        let effects = replica.handle(input, now);
        let crash = self.one_of(self.weather.crash);
        let done = if crash { self.done_before_crash(&effects) } else { effects.len() };
        for effect in effects.into_iter().take(done) {
            self.see(n, Seen::Done(&effect));
            self.carry_out(n, effect, asked);
        }
        if crash {
            let power = self.one_of(self.weather.power_cut);
            self.crash(n, power);
        }
        self.set_tick(n);
    }

    /// How many effects of an input are carried out before a crash. An engine writes a batch whole or
    /// not at all, so either all that the input persists is on disk or nothing is.
    fn done_before_crash(&mut self, effects: &[Effect]) -> usize {
        let is_persist = |effect: &&Effect| matches!(effect, Effect::Persist(_));
        let persists = effects.iter().take_while(is_persist).count();
        let done = self.rng.usize(0..=effects.len());
        if done < persists { 0 } else { done }
    }

    fn set_tick(&mut self, n: usize) {
        let site = &mut self.sites[n];
        let Some(replica) = &site.replica else { return };
        let Some(Millis(at)) = replica.wake() else { return };
        let at = (at + site.born).max(self.now);
        if site.ticks_at.is_none_or(|set| at < set) {
            site.ticks_at = Some(at);
            self.schedule(at - self.now, n, Happening::Ticks);
        }
    }

    /// `asked`: it is about a message that came in.
    fn carry_out(&mut self, n: usize, effect: Effect, asked: bool) {
        match effect {
            Effect::Persist(durable) => self.persist(n, durable),
            Effect::Send { to, message } => self.send(n, &to, message, asked),
            // What makes one more of something each time is not done twice.
            Effect::Run { run, op, before: Some(before), .. }
                if !op.action.is_repeatable() && !before.outcome.is_failure() =>
            {
                let report = before.report();
                self.tell(n, 1, Input::Ran { run, report });
            }
            Effect::Run { run, op, .. } => {
                self.next_command += 1;
                let number = self.next_command;
                let site = &mut self.sites[n];
                if !self.lean {
                    site.runs.push((run.resource.clone(), op.clone(), run.attempt));
                }
                site.commands.insert(key(&run), Command { number, run: run.clone(), op });
                let after = self.between(self.weather.run);
                self.schedule(after, n, Happening::Ends { run, command: number });
            }
            Effect::Recall(run) => self.recall(n, run),
            Effect::Check { run, .. } => {
                let happened = self.sites[n].took.contains(&key(&run));
                let after = self.between(self.weather.run);
                self.tell(n, after, Input::Checked { run, happened });
            }
            Effect::Clear { resource, .. } => {
                self.next_command += 1;
                let command = self.next_command;
                self.sites[n].clearing.insert(resource.clone(), command);
                let after = self.between(self.weather.run);
                self.schedule(after, n, Happening::Clears { resource, command });
            }
            // One that is still under way will tell its end.
            Effect::RecallClear(resource) if self.sites[n].clearing.contains_key(&resource) => {}
            Effect::RecallClear(resource) => self.tell(n, 1, Input::NotClearing(resource)),
            Effect::Show { resource, block, .. } => {
                let (life, after) = (self.sites[n].life, self.between(self.weather.run));
                self.schedule(after, n, Happening::Shows { life, resource, block });
            }
            Effect::Answer { ticket, answer } => {
                if !self.lean {
                    self.answers.entry(ticket).or_default().push(answer);
                }
            }
            Effect::Tell(event) => {
                if !self.lean {
                    self.sites[n].events.push(event);
                }
            }
        }
    }

    fn persist(&mut self, n: usize, durable: Durable) {
        if self.lean {
            return;
        }
        let site = &mut self.sites[n];
        if let Durable::Intent { resource, op, attempt, .. } = &durable {
            site.intended.push((resource.clone(), op.clone(), *attempt));
        }
        // What was written about it before may go, now or later.
        if let Durable::Forgotten { resource, .. } = &durable
            && self.rng.bool()
        {
            site.disk.retain(|earlier| earlier.resource() != resource);
        }
        site.disk.push(durable);
    }

    fn recall(&mut self, n: usize, run: RunId) {
        let (site, key) = (&self.sites[n], key(&run));
        let found = if let Some(report) = site.results.get(&key).cloned() {
            Input::Ran { run, report }
        } else if site.commands.contains_key(&key) {
            // It still runs; its end will be told.
            return;
        } else if site.doubted.contains(&key) {
            Input::Lost(run)
        } else {
            Input::NotStarted(run)
        };
        self.tell(n, 1, found);
    }

    fn tell(&mut self, n: usize, after: u64, input: Input) {
        let life = self.sites[n].life;
        self.schedule(after, n, Happening::Told { life, input });
    }

    fn send(&mut self, from: usize, to: &SiteId, message: Message, asked: bool) {
        let Some(&to) = self.names.get(to) else { return };
        let tally = match &message {
            Message::Records { .. } if asked => &mut self.books.repair,
            Message::Records { .. } => &mut self.books.push,
            Message::Compare(_)
            | Message::Have(..)
            | Message::Want(_)
            | Message::Forgotten(_)
            | Message::Contradicted { .. } => &mut self.books.compare,
        };
        tally.messages += 1;
        tally.bytes += message.weight() as u64;
        if self.cuts.contains(&(from, to)) || self.one_of(self.weather.loss) {
            self.see(from, Seen::Lost);
            return;
        }
        if self.one_of(self.weather.double) {
            let after = self.between(self.weather.delay);
            self.schedule(after, to, Happening::Arrives { from, message: message.clone() });
        }
        let after = self.between(self.weather.delay);
        self.schedule(after, to, Happening::Arrives { from, message });
    }

    /// The state of the application for a resource at a site.
    pub fn app(&self, site: usize, resource: &ResourceId) -> A {
        self.sites[site].apps.get(resource).cloned().unwrap_or_default()
    }
}

/// What `Show` prints of an application, as a digest.
pub fn print(app: &impl App) -> Print {
    let mut print = Print::default();
    for (n, byte) in app.show().bytes().enumerate() {
        let at = n % print.len();
        print[at] = print[at].wrapping_mul(31).wrapping_add(byte);
    }
    print
}

fn key(run: &RunId) -> RunKey {
    (run.resource.clone(), run.op.clone(), run.attempt)
}
