//! A site: what it does about everything that happens, for all of its resources.
//!
//! [`Replica::handle`] takes an input and the time and returns effects, which the shell around it
//! carries out in order. There is no other way in and none out: the same code runs in the agent,
//! in the simulator and in the model checker.
//!
//! What must stay true:
//! - nothing leaves the site and nothing is run before it is durable: what must be written down
//!   comes first among the effects of an input;
//! - an operation is run at most once here, except as part of a replay from one that replaces;
//! - what concerns a resource goes to its sites and to no other;
//! - a site that can't be reached costs nothing: nothing waits for it, and nothing is queued for
//!   it. When it is back, the two compare what they have and fill the gaps.

mod alarm;
mod effect;
mod message;
mod resource;
mod run;
mod stream;
mod sync;
mod wait;
mod waiting;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use core::ops::Bound;

use self::{
    alarm::{Alarm, Alarms},
    wait::Waiter,
};
pub use self::{
    effect::{Answer, Effect, Event, Input, Refusal, Report, RunId, Submission, Ticket},
    message::{Durable, Message, Record, Reply, Sent, Stretch, Version},
    resource::{Resource, State},
};
use crate::{
    id::{OpId, ResourceId, SiteId},
    operation::{Declaration, Operation},
    time::{Clock, Millis, Now},
};

/// How often and how much; all of it bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How often two sites that see each other compare what they share.
    pub compare_every: Millis,
    /// How long a record waits for what it depends on before that is asked for.
    pub ask_after: Millis,
    /// How many records of a resource may wait. What is over is dropped, and asked for later.
    pub most_waiting: usize,
    /// About how many bytes of records go into one message.
    pub message_bytes: usize,
    /// About how many bytes of records are sent at one request.
    pub burst_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compare_every: Millis(10_000),
            ask_after: Millis(1_000),
            most_waiting: 4_096,
            message_bytes: 256 << 10,
            burst_bytes: 4 << 20,
        }
    }
}

/// A site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    here: SiteId,
    settings: Settings,
    clock: Clock,
    resources: BTreeMap<ResourceId, Resource>,
    /// The sites that can be reached.
    up: BTreeSet<SiteId>,
    /// For each other site, a digest of all that is known here of what the two share.
    shared: BTreeMap<SiteId, u64>,
    alarms: Alarms,
    waiters: BTreeMap<Ticket, Waiter>,
    /// The requests that wait for something of a resource.
    awaited: BTreeMap<ResourceId, BTreeSet<Ticket>>,
}

/// The effects of one input, sorted into the order in which they must be carried out.
#[derive(Default)]
struct Outbox {
    persist: Vec<Effect>,
    send: Vec<Effect>,
    run: Vec<Effect>,
    answer: Vec<Effect>,
    tell: Vec<Effect>,
}

impl Outbox {
    fn persist(&mut self, durable: Durable) {
        self.persist.push(Effect::Persist(durable));
    }

    fn send(&mut self, to: &SiteId, message: Message) {
        self.send.push(Effect::Send { to: to.clone(), message });
    }

    /// A run, a recall, a check or a clearing.
    fn run(&mut self, effect: Effect) {
        self.run.push(effect);
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.answer.push(Effect::Answer { ticket, answer });
    }

    fn tell(&mut self, event: Event) {
        self.tell.push(Effect::Tell(event));
    }

    fn into_effects(self) -> Vec<Effect> {
        let mut effects = self.persist;
        for more in [self.send, self.run, self.answer, self.tell] {
            effects.extend(more);
        }
        effects
    }
}

impl Replica {
    /// A site that knows nothing yet.
    pub fn new(here: SiteId, settings: Settings) -> Self {
        Self {
            here,
            settings,
            clock: Clock::default(),
            resources: BTreeMap::new(),
            up: BTreeSet::new(),
            shared: BTreeMap::new(),
            alarms: Alarms::default(),
            waiters: BTreeMap::new(),
            awaited: BTreeMap::new(),
        }
    }

    /// A site as it was when it stopped, from what it wrote down, in the order of writing. Its
    /// first input is [`Input::Started`].
    pub fn restore(
        here: SiteId,
        settings: Settings,
        written: impl IntoIterator<Item = Durable>,
    ) -> Self {
        let mut this = Self::new(here, settings);
        for durable in written {
            this.read(&durable);
        }
        for resource in this.resources.values() {
            for site in resource.sites().iter().filter(|&site| *site != this.here) {
                let shared = this.shared.entry(site.clone()).or_default();
                *shared = shared.wrapping_add(resource.digest());
            }
        }
        this
    }

    fn read(&mut self, durable: &Durable) {
        let id = match durable {
            Durable::Record(record) => record.resource(),
            Durable::Intent { resource: id, .. } | Durable::Clearing(id) | Durable::Cleared(id) => {
                id
            }
        };
        if let Durable::Record(Record::Operation(op)) = durable
            && let Some(declared) = &op.declares
        {
            let new = || Resource::new(id.clone(), declared);
            self.resources.entry(id.clone()).or_insert_with(new);
        }
        let Some(resource) = self.resources.get_mut(id) else { return };
        resource.restore(&self.here, durable);
        if let Durable::Record(record) = durable {
            resource.take(record);
        }
    }

    /// What this site does about an input.
    pub fn handle(&mut self, input: Input, now: Now) -> Vec<Effect> {
        let mut out = Outbox::default();
        match input {
            Input::Started => {
                for resource in self.resources.values_mut() {
                    resource.resume(&self.here, &mut out);
                }
            }
            Input::Submit(submission) => self.submit(*submission, now, &mut out),
            Input::Received { from, message } => self.received(&from, message, now, &mut out),
            Input::Ran { run, report } => self.ran(&run, report, &mut out),
            Input::Lost(run) => self.lost(&run, &mut out),
            Input::NotStarted(run) | Input::Checked { run, happened: false } => {
                self.run_again(&run, &mut out);
            }
            Input::Checked { run, happened: true } => self.happened(&run, &mut out),
            Input::Cleared { resource, ok } => self.cleared(&resource, ok, &mut out),
            Input::PeerUp(site) => {
                self.up.insert(site.clone());
                self.compare_with(&site, now, &mut out);
            }
            Input::PeerDown(site) => {
                self.up.remove(&site);
                self.alarms.cancel(&Alarm::Compare(site));
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out.into_effects()
    }

    /// When the next [`Input::Tick`] is due, on the steady clock.
    pub fn wake(&self) -> Option<Millis> {
        self.alarms.next()
    }

    /// The name of this site.
    pub fn here(&self) -> &SiteId {
        &self.here
    }

    /// A digest of all that is known here of what this site shares with another. Two sites with
    /// equal digests know the same of it.
    pub fn shared_digest(&self, site: &SiteId) -> u64 {
        self.shared.get(site).copied().unwrap_or(0)
    }

    /// The resources that exist here.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.resources.values()
    }

    /// Those with ids in a range.
    pub fn resources_from(
        &self,
        range: (Bound<ResourceId>, Bound<ResourceId>),
    ) -> impl Iterator<Item = &Resource> {
        self.resources.range(range).map(|(_, resource)| resource)
    }

    /// One of them.
    pub fn resource(&self, id: &ResourceId) -> Option<&Resource> {
        self.resources.get(id)
    }

    fn tick(&mut self, now: Now, out: &mut Outbox) {
        while let Some(alarm) = self.alarms.pop(now.steady) {
            match alarm {
                Alarm::Compare(site) => self.compare_with(&site, now, out),
                Alarm::Ask(resource, site) => self.ask(&resource, &site, now, out),
                Alarm::Deadline(ticket) => self.give_up(ticket, out),
            }
        }
    }

    /// Sets an alarm for some time from now.
    fn arm(&mut self, now: Now, span: Millis, alarm: Alarm) {
        self.alarms.set(now.steady.plus(span), alarm);
    }

    fn submit(&mut self, submission: Submission, now: Now, out: &mut Outbox) {
        let ticket = submission.ticket;
        let known = self.resources.get(&submission.resource).map(|r| r.repeated(&submission));
        match known.transpose().map(Option::flatten) {
            Ok(None) => {}
            Ok(Some(op)) => {
                out.answer(ticket, Answer::Accepted(op.clone()));
                self.await_replies(ticket, &submission.resource, &op, now, submission.wait);
                return self.answer_waiters(&submission.resource, out);
            }
            Err(refusal) => return out.answer(ticket, Answer::Refused(refusal)),
        }
        let known = self.resources.get(&submission.resource).map(Resource::sites);
        let Some(sites) = known.or(submission.sites.as_ref()) else {
            return out.answer(ticket, Answer::Refused(Refusal::NoSites(submission.resource)));
        };
        if !sites.contains(&self.here) {
            let refusal =
                Refusal::Elsewhere { sites: sites.clone(), resource: submission.resource };
            return out.answer(ticket, Answer::Refused(refusal));
        }
        let declares = (known.is_none() || submission.config.is_some()).then(|| Declaration {
            sites: sites.clone(),
            config: submission.config.clone().unwrap_or_default(),
        });
        let (id, wait) = (submission.resource.clone(), submission.wait);
        let op = self.operation(submission, declares, now);
        let op_id = op.id.clone();
        out.answer(ticket, Answer::Accepted(op_id.clone()));
        self.await_replies(ticket, &id, &op_id, now, wait);
        let record = Record::Operation(Arc::new(op));
        self.admit(&id, &record, now, out);
        self.publish(&record, out);
        self.proceed(&id, out);
    }

    /// The operation that a request amounts to, here and now.
    fn operation(
        &mut self,
        submission: Submission,
        declares: Option<Declaration>,
        now: Now,
    ) -> Operation {
        let resource = self.resources.get(&submission.resource);
        let number = resource.map_or(0, |resource| resource.streams().high(&self.here)) + 1;
        let followed = resource.map(|resource| resource.log.newest()).unwrap_or_default();
        let resets = resource.is_some_and(|resource| resource.resolution.resets(&submission.kind));
        Operation {
            id: OpId { site: self.here.clone(), number },
            parents: resource.map(|resource| resource.log.heads()).unwrap_or_default(),
            at: self.clock.tick(now.wall, followed),
            reset: submission.force || resets,
            resource: submission.resource,
            kind: submission.kind,
            author: submission.author,
            action: submission.action,
            keep_going: submission.keep_going,
            key: submission.key,
            declares: declares.map(Box::new),
        }
    }

    /// Takes in a record that fits, and writes it down.
    fn admit(&mut self, id: &ResourceId, record: &Record, now: Now, out: &mut Outbox) {
        if let Record::Operation(op) = record
            && let Some(declared) = &op.declares
        {
            let new = || Resource::new(id.clone(), declared);
            self.resources.entry(id.clone()).or_insert_with(new);
            self.meet(id, declared, now);
        }
        let Some(resource) = self.resources.get_mut(id) else { return };
        let before = resource.digest();
        resource.take(record);
        self.digest_changed(id, before);
        Self::recorded(record, out);
    }

    /// Writes down a record that was taken in.
    fn recorded(record: &Record, out: &mut Outbox) {
        out.persist(Durable::Record(record.clone()));
        out.tell(Event::Recorded { resource: record.resource().clone(), id: record.id().clone() });
    }

    /// Takes note of the sites that a resource is about to be shared with, and compares with those
    /// that are new to us before long.
    fn meet(&mut self, id: &ResourceId, declared: &Declaration, now: Now) {
        let Some(resource) = self.resources.get(id) else { return };
        // Until its first operation is taken in, a resource has the sites that this one declares.
        let (digest, known) = (resource.digest(), resource.sites().clone());
        for site in declared.sites.iter() {
            if *site == self.here {
                continue;
            }
            let shared = self.shared.entry(site.clone()).or_default();
            if !known.contains(site) {
                *shared = shared.wrapping_add(digest);
            }
            self.arm(now, self.settings.ask_after, Alarm::Compare(site.clone()));
        }
    }

    /// Updates the digests of what is shared with each site after a resource has changed.
    fn digest_changed(&mut self, id: &ResourceId, before: u64) {
        let Some(resource) = self.resources.get(id) else { return };
        let change = resource.digest().wrapping_sub(before);
        for site in resource.sites().iter().filter(|&site| *site != self.here) {
            let shared = self.shared.entry(site.clone()).or_default();
            *shared = shared.wrapping_add(change);
        }
    }

    /// Goes on after a resource has changed: answers who waits, and runs what is next.
    fn proceed(&mut self, id: &ResourceId, out: &mut Outbox) {
        self.answer_waiters(id, out);
        if let Some(resource) = self.resources.get_mut(id) {
            resource.advance(&self.here, out);
        }
    }
}
