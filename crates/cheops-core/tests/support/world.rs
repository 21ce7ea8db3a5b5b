//! A federation in a box: many replicas, their disks, their applications, the links between them,
//! and a clock that goes as fast as it can.
//!
//! The same seed gives the same world, to the last message. What must stay true for the tests to
//! mean something: the world does to a replica only what the real one does. It keeps what was
//! persisted and forgets the rest in a crash; it may lose, double, delay and reorder messages; it
//! never alters one. A command goes on when its agent dies, and its result is kept; a power cut
//! ends both, and nobody can tell if the command had taken effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use cheops_core::{
    id::{ResourceId, SiteId},
    operation::Operation,
    plan::Outcome,
    replica::{
        Answer, Durable, Effect, Event, Input, Message, Replica, Report, RunId, Settings,
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
    },
    Clears {
        resource: ResourceId,
    },
    Ticks,
    Starts,
}

/// A command that has started and not ended yet.
#[derive(Debug, Clone)]
struct Command {
    op: Arc<Operation>,
}

/// A site: what survives a crash, and the agent, which does not.
pub struct Site<A> {
    pub name: SiteId,
    pub replica: Option<Replica>,
    pub disk: Vec<Durable>,
    pub apps: BTreeMap<ResourceId, A>,
    /// The commands that were started here, in order: resource, operation, outcome.
    pub runs: Vec<(ResourceId, Arc<Operation>, u32)>,
    /// Times that the `Reset` command was run.
    pub clears: Vec<ResourceId>,
    pub events: Vec<Event>,
    commands: BTreeMap<(ResourceId, u32, String), Command>,
    results: BTreeMap<(ResourceId, u32, String), Report>,
    /// The power was cut since the agent last ran.
    power_was_cut: bool,
    /// How far its wall clock is off, in milliseconds.
    pub skew: i64,
    ticks_at: Option<u64>,
    /// The links that the agent believes to be up.
    seen_up: BTreeSet<usize>,
}

/// What was sent and done, for the books.
#[derive(Debug, Clone, Default)]
pub struct Books {
    pub messages: u64,
    pub bytes: u64,
    pub compares: u64,
    pub records: u64,
    pub crashes: u64,
    pub power_cuts: u64,
    pub inputs: u64,
}

pub struct World<A> {
    pub now: u64,
    pub sites: Vec<Site<A>>,
    pub weather: Weather,
    pub books: Books,
    pub answers: BTreeMap<Ticket, Vec<Answer>>,
    pub rng: fastrand::Rng,
    settings: Settings,
    names: BTreeMap<SiteId, usize>,
    queue: BTreeMap<(u64, u64), (usize, Happening)>,
    queued: u64,
    /// Directed links that are cut.
    cuts: BTreeSet<(usize, usize)>,
    next_ticket: u64,
    /// What is checked after each input that a site has handled.
    pub watch: fn(&Site<A>, &[Effect]),
}

impl<A: App> World<A> {
    pub fn new(names: &[SiteId], seed: u64, weather: Weather, settings: Settings) -> Self {
        let mut world = Self {
            // Wall clocks begin some time after 1970, so that they can be off in both directions.
            now: 0,
            sites: Vec::new(),
            weather,
            books: Books::default(),
            answers: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            names: names.iter().cloned().zip(0..).collect(),
            queue: BTreeMap::new(),
            queued: 0,
            cuts: BTreeSet::new(),
            next_ticket: 0,
            watch: |_, _| {},
            settings,
        };
        for name in names {
            world.sites.push(Site {
                name: name.clone(),
                replica: Some(Replica::new(name.clone(), world.settings.clone())),
                disk: Vec::new(),
                apps: BTreeMap::new(),
                runs: Vec::new(),
                clears: Vec::new(),
                events: Vec::new(),
                commands: BTreeMap::new(),
                results: BTreeMap::new(),
                power_was_cut: false,
                skew: 0,
                ticks_at: None,
                seen_up: BTreeSet::new(),
            });
        }
        world
    }

    /// Tells two sites of each other.
    pub fn introduce(&mut self, a: usize, b: usize) {
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
        let site = &mut self.sites[n];
        if site.replica.take().is_none() {
            return;
        }
        self.books.crashes += 1;
        site.seen_up.clear();
        site.ticks_at = None;
        if power {
            self.books.power_cuts += 1;
            site.power_was_cut = true;
            for ((resource, ..), command) in std::mem::take(&mut site.commands) {
                if self.rng.bool() {
                    site.apps.entry(resource).or_default().run(&command.op);
                }
            }
        }
        let after = self.rng.u64(1..2_000);
        self.schedule(after, n, Happening::Starts);
    }

    /// Lets time pass until nothing is due before the given moment.
    pub fn run_until(&mut self, end: u64) {
        while let Some((&(at, order), _)) = self.queue.first_key_value() {
            if at > end {
                break;
            }
            let Some((site, happening)) = self.queue.remove(&(at, order)) else { break };
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
            Happening::Ends { run } => self.command_ends(n, &run),
            Happening::Clears { resource } => {
                let site = &mut self.sites[n];
                site.clears.push(resource.clone());
                site.apps.entry(resource.clone()).or_default().clear();
                self.input(n, Input::Cleared { resource, ok: true });
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

    fn start(&mut self, n: usize) {
        let site = &mut self.sites[n];
        if site.replica.is_some() {
            return;
        }
        let disk = site.disk.clone();
        site.replica = Some(Replica::restore(site.name.clone(), self.settings.clone(), disk));
        self.input(n, Input::Started);
        self.sites[n].power_was_cut = false;
        for other in 0..self.sites.len() {
            if other != n {
                self.introduce(n, other);
            }
        }
    }

    fn command_ends(&mut self, n: usize, run: &RunId) {
        let key = key(run);
        let site = &mut self.sites[n];
        // A power cut has ended it.
        let Some(command) = site.commands.remove(&key) else { return };
        let outcome = site.apps.entry(run.resource.clone()).or_default().run(&command.op);
        let report = Report { outcome, took: Millis(1), output: Box::default() };
        site.results.insert(key, report.clone());
        self.input(n, Input::Ran { run: run.clone(), report });
    }

    /// Gives an input to a site and carries out the effects; perhaps not all of them.
    pub fn input(&mut self, n: usize, input: Input) {
        let now = Now {
            wall: Millis(1_000_000_000_u64.saturating_add_signed(self.sites[n].skew) + self.now),
            steady: Millis(self.now),
        };
        let Some(replica) = &mut self.sites[n].replica else { return };
        self.books.inputs += 1;
        let effects = replica.handle(input, now);
        (self.watch)(&self.sites[n], &effects);
        let crash = self.weather.crash > 0 && self.one_of(self.weather.crash);
        let done = if crash { self.rng.usize(0..=effects.len()) } else { effects.len() };
        for effect in effects.into_iter().take(done) {
            self.carry_out(n, effect);
        }
        if crash {
            let power = self.one_of(self.weather.power_cut);
            self.crash(n, power);
        }
        self.set_tick(n);
    }

    fn set_tick(&mut self, n: usize) {
        let Some(replica) = &self.sites[n].replica else { return };
        let Some(Millis(at)) = replica.wake() else { return };
        let at = at.max(self.now);
        if self.sites[n].ticks_at.is_none_or(|set| at < set) {
            self.sites[n].ticks_at = Some(at);
            self.schedule(at - self.now, n, Happening::Ticks);
        }
    }

    fn carry_out(&mut self, n: usize, effect: Effect) {
        match effect {
            Effect::Persist(durable) => self.sites[n].disk.push(durable),
            Effect::Send { to, message } => self.send(n, &to, message),
            Effect::Run { run, op } => {
                let site = &mut self.sites[n];
                site.runs.push((run.resource.clone(), op.clone(), run.attempt));
                site.commands.insert(key(&run), Command { op });
                let after = self.between(self.weather.run);
                self.schedule(after, n, Happening::Ends { run });
            }
            Effect::Recall(run) => {
                let site = &self.sites[n];
                if let Some(report) = site.results.get(&key(&run)).cloned() {
                    self.input(n, Input::Ran { run, report });
                } else if !site.commands.contains_key(&key(&run)) {
                    let in_doubt = site.power_was_cut;
                    self.input(n, if in_doubt { Input::Lost(run) } else { Input::NotStarted(run) });
                }
            }
            Effect::Check { run, .. } => self.input(n, Input::Checked { run, happened: true }),
            Effect::Clear { resource, .. } => {
                let after = self.between(self.weather.run);
                self.schedule(after, n, Happening::Clears { resource });
            }
            Effect::Answer { ticket, answer } => {
                self.answers.entry(ticket).or_default().push(answer);
            }
            Effect::Tell(event) => self.sites[n].events.push(event),
        }
    }

    fn send(&mut self, from: usize, to: &SiteId, message: Message) {
        let Some(&to) = self.names.get(to) else { return };
        self.books.messages += 1;
        self.books.bytes += message.weight() as u64;
        match &message {
            Message::Compare(_) => self.books.compares += 1,
            Message::Records { records, .. } => self.books.records += records.len() as u64,
            Message::Have(..) | Message::Want(_) => {}
        }
        if self.cuts.contains(&(from, to)) || self.one_of(self.weather.loss) {
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

fn key(run: &RunId) -> (ResourceId, u32, String) {
    (run.resource.clone(), run.attempt, run.op.to_string())
}
