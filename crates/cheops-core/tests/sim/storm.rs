//! A storm: what is asked for, what goes wrong, and what must have come of it a while after all is
//! well again. Everything about it is drawn from the seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    operation::Action,
    replica::{Replica, Settings, Submission, Ticket},
    time::Millis,
};

use crate::{
    invariants::{Sky, agree, glance, held, kept, receipts, replies, restart, shown, truth},
    register::{KINDS, Register, config},
    support::world::{Mishaps, Site, Weather},
    trace::Trace,
};

/// The longest that a message takes.
const DELAY: u64 = 300;
/// The longest that an agent stays down.
const DOWN: u64 = 2_000;
/// Each so many steps, what a look at the resources shows is compared with a walk over their logs, which
/// takes longer than all the rest of a step.
const GLANCES: usize = 4;
/// Each so many steps, what a site knows is compared with what it would know after a restart. The sites take turns.
const RESTARTS: usize = 5;
/// The longest that a requester waits.
const PATIENCE: u64 = 15_000;

/// A resource that is going to be created, perhaps at two sites apart.
struct Planned {
    id: ResourceId,
    /// Where it is to exist, in the words of each that may create it. One site is in all of them:
    /// otherwise they are different resources that happen to have the same name.
    places: Vec<Sites>,
    /// Its matrices tell the truth about the application.
    truthful: bool,
    /// Sites lose what they wrote about it now and then. It is not deleted, and created at one place:
    /// who does not know all of its sites can't know what they have of it.
    lossy: bool,
}

pub struct Storm {
    world: Sky,
    settings: Settings,
    resources: Vec<Planned>,
    names: Vec<SiteId>,
    submitted: u64,
    /// A request that may be asked for again, at any site.
    last: Option<Submission>,
    agreed: u64,
}

/// How a storm ended, or several together.
#[derive(Debug, Clone, Default)]
pub struct Calm {
    /// How long the sites took to come to rest, and how long they might have.
    took: u64,
    bound: u64,
    crashes: u64,
    power_cuts: u64,
    replays: u64,
    stuck: u64,
    /// How often resources were forgotten, whole and in part.
    forgotten: u64,
    trimmed: u64,
    /// How often sites that knew the same were compared, and applications with their blocks.
    agreed: u64,
    true_states: u64,
    /// How often something was lost, and how often a state was made anew after that.
    losses: u64,
    made_anew: u64,
    /// How many sites showed what they had, and of how many resources they showed different things.
    shown: u64,
    apart: u64,
}

fn pick<T: Clone>(rng: &mut fastrand::Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

impl Storm {
    pub fn brew(seed: u64, trace: Trace) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let names: Vec<SiteId> = ["a", "b", "c", "d", "e", "f"][..rng.usize(3..=6)]
            .iter()
            .map(|name| name.parse().unwrap())
            .collect();
        let settings = Settings {
            compare_every: Millis(rng.u64(2_000..=10_000)),
            ask_after: Millis(rng.u64(200..=1_000)),
            most_waiting: pick(rng, &[1, 3, 4_096]),
            message_bytes: pick(rng, &[100, 1_000, 256 << 10]),
            burst_bytes: pick(rng, &[1_000, 5_000, 4 << 20]),
            show_after: pick(rng, &[None, Some(Millis(0)), Some(Millis(100)), Some(Millis(1_000))]),
        };
        let weather = Weather {
            delay: (10, DELAY),
            loss: pick(rng, &[0, 3, 10, 40]),
            double: pick(rng, &[0, 5, 30]),
            run: (1, pick(rng, &[20, 200, 800])),
            notice: (1, pick(rng, &[100, 1_500])),
            crash: pick(rng, &[0, 30, 100]),
            power_cut: pick(rng, &[0, 0, 1, 3]),
        };
        let mut world: Sky = Sky::new(&names, rng.u64(..), weather, settings.clone());
        world.mishaps = Mishaps { run: pick(rng, &[0, 8]), reset: pick(rng, &[0, 0, 3]) };
        world.watch.trace = trace;
        world.introduce_all();
        for site in &mut world.sites {
            site.skew = rng.i64(-300_000..300_000);
        }
        let resources = (0..rng.usize(1..=4)).map(|n| planned(rng, n, &names)).collect();
        Self { world, settings, resources, names, submitted: 0, last: None, agreed: 0 }
    }

    pub fn rage(&mut self) {
        let steps = self.world.rng.usize(5..40);
        for step in 0..steps {
            if self.world.rng.u8(0..3) > 0 {
                self.submit();
            } else {
                self.trouble();
            }
            let pause = pick(&mut self.world.rng, &[0, 100, 1_000, 4_000]);
            let pause = self.world.rng.u64(0..=pause);
            self.world.run_for(pause);
            self.compare_all(step % GLANCES == 0);
            if step % RESTARTS == 0 {
                restart::check_site(&self.world, step / RESTARTS % self.names.len());
            }
        }
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        self.world.watch.trace.say(self.world.now, what);
    }

    fn submit(&mut self) {
        let rng = &mut self.world.rng;
        let site = rng.usize(0..self.names.len());
        if let Some(again) = self.last.take_if(|_| rng.u8(0..6) == 0) {
            let replica = self.world.sites[site].replica.as_ref();
            // Where the resource is not known it would be created, perhaps with a lie.
            if replica.is_some_and(|replica| replica.resource(&again.resource).is_some()) {
                self.world.submit(site, again);
            }
            return;
        }
        let planned = &self.resources[rng.usize(0..self.resources.len())];
        let replica = self.world.sites[site].replica.as_ref();
        let known = replica.and_then(|replica| replica.resource(&planned.id)).is_some();
        let kind = pick(rng, &KINDS[..2]);
        let verb = if rng.u8(0..8) == 0 { "fail" } else { kind };
        let kind = if planned.truthful { kind } else { pick(rng, &KINDS) };
        // Who creates a resource apart and does not know of its delete may bring it back.
        let deletes = known && planned.places.len() == 1 && !planned.lossy && rng.u8(0..7) == 0;
        let (kind, verb) = if deletes { ("delete", "delete") } else { (kind, verb) };
        self.submitted += 1;
        let submission = Submission {
            ticket: Ticket(0),
            resource: planned.id.clone(),
            sites: (rng.u8(0..10) > 0).then(|| pick(rng, &planned.places)),
            // One that creates a truthful resource without a configuration would tell a lie.
            config: (!known && planned.truthful || rng.u8(0..6) == 0)
                .then(|| config(rng, planned.truthful)),
            kind: kind.parse().unwrap(),
            author: "storm".parse().unwrap(),
            action: Action::command(format!("{verb} {}", self.submitted)),
            // Who declares a repair with a command that adds would tell a lie, too.
            force: rng.u8(0..if planned.lossy { 4 } else { 12 }) == 0
                && (kind != "inc" || !planned.truthful),
            keep_going: rng.u8(0..10) == 0,
            key: (rng.u8(0..4) == 0).then(|| format!("key {}", rng.u8(0..30)).parse().unwrap()),
            wait: Millis(rng.u64(0..=PATIENCE)),
        };
        if submission.key.is_some() {
            self.last = Some(submission.clone());
        }
        self.world.submit(site, submission);
    }

    fn trouble(&mut self) {
        let count = self.names.len();
        let rng = &mut self.world.rng;
        let (a, b) = (rng.usize(0..count), rng.usize(0..count));
        if let Some(lossy) = self.resources.iter().find(|planned| planned.lossy)
            && rng.u8(0..4) == 0
        {
            let id = lossy.id.clone();
            let written = self.world.sites[a].disk.iter().filter(|d| *d.resource() == id).count();
            if written > 0 {
                let kept = rng.usize(0..written);
                self.world.lose(a, &id, kept);
            }
            return;
        }
        match rng.u8(0..8) {
            0 | 1 if a != b => {
                self.say(|| format!("cut from {a} to {b}"));
                self.world.cut(a, b);
            }
            2 if a != b => {
                self.say(|| format!("heal from {a} to {b}"));
                self.world.heal(a, b);
            }
            3 | 4 => {
                let mut groups = vec![Vec::new(); rng.usize(2..=3)];
                for site in 0..count {
                    let group = self.world.rng.usize(0..groups.len());
                    groups[group].push(site);
                }
                self.say(|| format!("partition {groups:?}"));
                self.world.partition(&groups);
            }
            5 => {
                self.say(|| "heal all".to_owned());
                self.world.heal_all();
            }
            6 => {
                let skew = rng.i64(-300_000..300_000);
                self.say(|| format!("clock {a} jumps to {skew} ms"));
                self.world.sites[a].skew = skew;
            }
            _ => {
                let power = self.world.weather.power_cut > 0 && self.world.rng.bool();
                if self.world.weather.crash > 0 {
                    self.world.crash(a, power);
                }
            }
        }
    }

    fn compare_all(&mut self, glances: bool) {
        for planned in &self.resources {
            let held = held(&self.world, &planned.id);
            if glances {
                glance::check(&held);
            }
            self.agreed += agree::check(&held);
        }
    }

    /// Whether all sites of all resources know the same and have nothing left to do.
    fn is_calm(&self) -> bool {
        let heard = |replica: &Replica| {
            self.resources.iter().all(|planned| replica.unheard(&planned.id).is_empty())
        };
        self.world.sites.iter().all(|site| site.replica.as_ref().is_some_and(heard))
            && self.resources.iter().all(|planned| {
                let held = held(&self.world, &planned.id);
                let Some((_, _, first)) = held.first() else { return true };
                held.len() == first.sites().len()
                    && held.iter().all(|(_, _, resource)| {
                        resource.is_idle()
                            && resource.version() == first.version()
                            && agree::logged(resource) == agree::logged(first)
                    })
                    && (self.settings.show_after.is_none()
                        || shown::is_complete(&self.world, &held))
            })
    }

    /// The longest that sites may need to come to rest once everything is well.
    ///
    /// They start again and see each other; one round of comparing finds what is missing, and a
    /// second one what a site could only hear of through a third that had to hear of it first. Each
    /// round takes a few messages, more where little fits in one answer, and now and then a record
    /// that overtook another is asked for. Then what is left is run, one command at a time; each
    /// reply may give the others something to run. At last what came of it is shown.
    fn bound(&self, commands: u64) -> u64 {
        let weight: u64 = self
            .resources
            .iter()
            .flat_map(|planned| held(&self.world, &planned.id))
            .map(|(_, _, resource)| {
                let ops: usize = resource.log().iter().map(|(_, op)| op.weight()).sum();
                ops as u64 * 3
            })
            .max()
            .unwrap_or(0);
        let bursts = weight / self.settings.burst_bytes as u64;
        let weather = &self.world.weather;
        // Who has lost something hears of the others in a round of its own.
        let rounds = if self.resources.iter().any(|planned| planned.lossy) { 3 } else { 2 };
        DOWN + weather.notice.1
            + rounds * self.settings.compare_every.0
            + 2 * self.settings.ask_after.0
            + (8 + 2 * bursts) * DELAY
            + commands * (weather.run.1 + DELAY)
            + self.settings.show_after.map_or(0, |quiet| quiet.0 + 2 * weather.run.1 + DELAY)
    }

    /// The most commands that a site has started for one resource, beyond those of a given time.
    fn commands_since(&self, before: &BTreeMap<(SiteId, ResourceId), u64>) -> u64 {
        let started = &self.world.watch.quiet.started;
        let since = started.iter().map(|(key, count)| count - before.get(key).unwrap_or(&0));
        since.max().unwrap_or(0)
    }

    /// Heals everything, waits for the sites to come to rest, and looks at what has become of them.
    pub fn calm_down(&mut self) -> Calm {
        self.say(|| "all is well from here on".to_owned());
        self.world.weather.crash = 0;
        self.world.weather.loss = 0;
        self.world.mishaps = Mishaps::default();
        self.world.heal_all();
        let healed = self.world.now;
        let before = self.world.watch.quiet.started.clone();
        let mut patience = self.bound(0);
        while !self.is_calm() {
            self.world.run_for(50);
            let took = self.world.now - healed;
            if took > patience {
                let commands = self.commands_since(&before);
                assert!(commands < 2_000, "there is no end to running: {}", self.unrest());
                patience = self.bound(commands);
                assert!(
                    took <= patience,
                    "not at rest {took} ms after all is well: {}",
                    self.unrest()
                );
            }
        }
        let took = self.world.now - healed;
        let bound = self.bound(self.commands_since(&before));

        // What is on its way may still arrive, and requesters may still wait.
        self.world.run_for(PATIENCE + 4 * DELAY);
        self.world.watch.quiet.expected = true;
        self.say(|| "nothing happens from here on".to_owned());
        self.world.run_for(self.settings.compare_every.0 + self.settings.ask_after.0);
        assert!(self.is_calm(), "at rest, and then no longer: {}", self.unrest());
        let mut calm = self.examine();
        self.world.watch.quiet.expected = false;
        self.declare_states();
        (calm.took, calm.bound) = (took, bound);
        calm
    }

    /// Heals everything but the applications, whose commands go on failing. How many commands a site starts
    /// for a resource while nothing else happens, and how often others compare what they know with it.
    pub fn count_vain_tries(&mut self) -> (u64, u64) {
        self.world.weather.crash = 0;
        self.world.weather.loss = 0;
        self.world.mishaps = Mishaps { run: 1, reset: 1 };
        self.world.heal_all();
        self.world.run_for(60_000);
        let before = self.world.watch.quiet.started.clone();
        let rounds = 10;
        self.world.run_for(rounds * self.settings.compare_every.0);
        (self.commands_since(&before), rounds * self.names.len() as u64)
    }

    /// Declares the state of all that is withheld somewhere: then nothing is any more.
    fn declare_states(&mut self) {
        let withheld = |site: &Site<Register>| {
            let replica = site.replica.as_ref();
            replica.into_iter().flat_map(|r| r.withheld().cloned()).collect::<Vec<_>>()
        };
        let all: BTreeSet<ResourceId> = self.world.sites.iter().flat_map(withheld).collect();
        for id in &all {
            let planned = self.resources.iter().find(|planned| planned.id == *id).unwrap();
            let sites: Vec<SiteId> = planned.places[0].iter().cloned().collect();
            let site = pick(&mut self.world.rng, &sites);
            let site = self.world.site(site.as_str());
            let declaration = Submission {
                ticket: Ticket(0),
                resource: id.clone(),
                sites: Some(planned.places[0].clone()),
                config: planned.truthful.then(|| config(&mut self.world.rng, true)),
                kind: "set".parse().unwrap(),
                author: "storm".parse().unwrap(),
                action: Action::command("set 5"),
                force: true,
                keep_going: false,
                key: None,
                wait: Millis(PATIENCE),
            };
            self.say(|| format!("declare {id} at {site}"));
            // Where the others have yet to be heard of, they are asked, and it is asked for again.
            self.world.submit(site, declaration.clone());
            self.world.run_for(10 * DELAY);
            if self.world.sites[site].replica.as_ref().unwrap().is_withheld(id) {
                self.world.submit(site, declaration);
            }
        }
        if !all.is_empty() {
            self.world.run_for(PATIENCE + 2 * self.settings.compare_every.0);
            assert!(self.is_calm(), "at rest, and then no longer: {}", self.unrest());
            let left: Vec<ResourceId> = self.world.sites.iter().flat_map(withheld).collect();
            assert!(left.is_empty(), "{left:?} are withheld, and their states were declared");
            self.examine();
        }
    }

    fn unrest(&self) -> String {
        let mut text = String::new();
        for planned in &self.resources {
            for (_, site, resource) in held(&self.world, &planned.id) {
                let (id, idle, version) = (&planned.id, resource.is_idle(), resource.version());
                let (logged, forgotten) = (agree::logged(resource), resource.forgotten());
                let _ = write!(
                    text,
                    "\n  {id} at {site}: idle {idle}, {version:?}, {logged:?} after {forgotten:?}"
                );
            }
        }
        text
    }

    fn examine(&mut self) -> Calm {
        self.compare_all(true);
        let world = &self.world;
        restart::check(world);
        world.watch.answered.check();
        kept::check(world, world.watch.answered.accepted());
        let mut calm = Calm {
            crashes: world.books.crashes,
            power_cuts: world.books.power_cuts,
            agreed: self.agreed,
            forgotten: world.watch.buried.forgotten,
            trimmed: world.watch.buried.trimmed,
            losses: world.watch.lost.losses,
            made_anew: world.watch.lost.made_anew,
            ..Calm::default()
        };
        for planned in &self.resources {
            let held = held(world, &planned.id);
            for (_, _, resource) in &held {
                receipts::check(resource);
                calm.stuck += u64::from(resource.is_stuck());
            }
            replies::check(world, &held);
            let (shown, apart) = shown::check(world, &held);
            calm.shown += shown;
            calm.apart += apart;
            if planned.truthful {
                calm.true_states += truth::check(world, &held);
            }
        }
        let runs = world.sites.iter().flat_map(|site| &site.runs);
        calm.replays = runs.filter(|(_, _, attempt)| *attempt > 1).count() as u64;
        calm
    }

    pub fn into_trace(self) -> Trace {
        self.world.watch.trace
    }
}

fn planned(rng: &mut fastrand::Rng, n: usize, names: &[SiteId]) -> Planned {
    let hub = rng.usize(0..names.len());
    let creators = if rng.u8(0..3) == 0 { 2 } else { 1 };
    let places = (0..creators).map(|_| {
        let mut sites = names.to_vec();
        let hub = sites.remove(hub);
        rng.shuffle(&mut sites);
        sites.truncate(rng.usize(1..=sites.len().min(4)));
        sites.push(hub);
        Sites::new(sites).unwrap()
    });
    let places: Vec<Sites> = places.collect();
    Planned {
        id: format!("r{n}").parse().unwrap(),
        truthful: rng.u8(0..4) > 0,
        lossy: places.len() == 1 && rng.u8(0..4) == 0,
        places,
    }
}

impl Calm {
    /// Several, as one: sums, and the one that came nearest to its bound.
    pub fn of_all(calms: &[Self]) -> Self {
        let nearest = calms.iter().max_by_key(|calm| calm.took * 1_000 / calm.bound).unwrap();
        let sum = |of: fn(&Self) -> u64| calms.iter().map(of).sum();
        Self {
            took: nearest.took,
            bound: nearest.bound,
            crashes: sum(|calm| calm.crashes),
            power_cuts: sum(|calm| calm.power_cuts),
            replays: sum(|calm| calm.replays),
            stuck: sum(|calm| calm.stuck),
            forgotten: sum(|calm| calm.forgotten),
            trimmed: sum(|calm| calm.trimmed),
            agreed: sum(|calm| calm.agreed),
            true_states: sum(|calm| calm.true_states),
            losses: sum(|calm| calm.losses),
            made_anew: sum(|calm| calm.made_anew),
            shown: sum(|calm| calm.shown),
            apart: sum(|calm| calm.apart),
        }
    }

    /// That it was a storm.
    pub fn check(&self) {
        assert!(self.took * 4 > self.bound, "the bound on coming to rest is too easy: {self:?}");
        let rare = [
            self.crashes,
            self.power_cuts,
            self.replays,
            self.stuck,
            self.forgotten,
            self.trimmed,
            self.losses,
            self.made_anew,
            self.apart,
        ];
        let usual = self.agreed.min(self.true_states).min(self.shown);
        assert!(
            rare.into_iter().all(|count| count > 10) && usual > 1_000,
            "a storm in a teacup: {self:?}"
        );
    }
}
