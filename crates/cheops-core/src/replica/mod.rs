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
//! - a resource that was deleted at all of its sites is forgotten, and no number is used twice;
//! - a site that can't be reached costs nothing: nothing waits for it, and nothing is queued for
//!   it. When it is back, the two compare what they have and fill the gaps.

mod alarm;
mod contradiction;
mod effect;
mod forget;
mod gap;
mod held;
mod made;
mod message;
mod rehearse;
mod removed;
mod replies;
mod resource;
mod run;
mod shelf;
mod shown;
mod state;
mod stream;
mod sync;
mod wait;
mod waiting;
mod withhold;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use core::ops::Bound;

use self::{
    alarm::{Alarm, Alarms},
    forget::Tomb,
    held::Hold,
    shelf::Shelf,
    wait::{News, Waiter},
    withhold::{Gap, Loss},
};
pub use self::{
    effect::{Answer, Effect, Event, Input, Refusal, Report, RunId, Submission, Ticket},
    held::Held,
    message::{Durable, Message, Record, Reply, Sent, Stretch, Version},
    rehearse::{Draft, Planned, Rehearsal},
    resource::Resource,
    shown::{Print, Shown},
    state::{Shared, State, Summary, Tally},
    withhold::Lost,
};
use crate::{
    id::{OpId, ResourceId, SiteId},
    matrix::Config,
    operation::{Declaration, Operation, SharedOperation},
    time::{Clock, Millis, Now, Timestamp},
    trust::Seal,
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
    /// How long a resource must be quiet before it is shown; never if there is none.
    pub show_after: Option<Millis>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compare_every: Millis(10_000),
            ask_after: Millis(1_000),
            most_waiting: 4_096,
            message_bytes: 256 << 10,
            burst_bytes: 4 << 20,
            show_after: Some(Millis(1_000)),
        }
    }
}

/// A site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    here: SiteId,
    settings: Settings,
    clock: Clock,
    resources: BTreeMap<ResourceId, Box<Resource>>,
    /// What is left of resources that were deleted. Of one that lives again, of its last life.
    tombs: BTreeMap<ResourceId, Tomb>,
    /// The resources of which something is lost here.
    withheld: BTreeMap<ResourceId, Loss>,
    /// Where something was ever lost, the last number that may have been used until then.
    floors: BTreeMap<ResourceId, u64>,
    /// Something else is lost, and nobody knows of which resources.
    gap: Option<Gap>,
    /// The sites that were removed.
    removed: Arc<BTreeSet<SiteId>>,
    /// What this site has received and nobody else takes from it, by resource.
    held: BTreeMap<ResourceId, Hold>,
    /// The sites that can be reached.
    up: BTreeSet<SiteId>,
    /// For each other site, a digest of all that is known here of what the two share.
    shared: BTreeMap<SiteId, u64>,
    alarms: Alarms,
    waiters: BTreeMap<Ticket, Waiter>,
    /// The requests that wait for something of a resource, by the operation that they became.
    awaited: BTreeMap<ResourceId, BTreeMap<OpId, BTreeSet<Ticket>>>,
    shelf: Shelf,
}

/// What a request amounts to.
enum Asked {
    /// It repeats an earlier one, which became this operation.
    Known(SharedOperation),
    /// A new operation, and what it declares.
    New(Option<Declaration>),
}

/// The effects of one input, sorted into the order in which they must be carried out.
#[derive(Default)]
struct Outbox {
    persist: Vec<Effect>,
    send: Vec<Effect>,
    run: Vec<Effect>,
    answer: Vec<Effect>,
    tell: Vec<Effect>,
    /// The resources that went on.
    went_on: Vec<ResourceId>,
}

impl Outbox {
    fn persist(&mut self, durable: Durable) {
        self.persist.push(Effect::Persist(durable));
    }

    fn send(&mut self, to: &SiteId, message: Message) {
        self.send.push(Effect::Send { to: to.clone(), message });
    }

    /// A run, a recall, a check, a clearing or a show.
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
            tombs: BTreeMap::new(),
            withheld: BTreeMap::new(),
            floors: BTreeMap::new(),
            gap: None,
            removed: Arc::default(),
            held: BTreeMap::new(),
            up: BTreeSet::new(),
            shared: BTreeMap::new(),
            alarms: Alarms::default(),
            waiters: BTreeMap::new(),
            awaited: BTreeMap::new(),
            shelf: Shelf::default(),
        }
    }

    /// A site as it was when it stopped, from what it wrote down, in the order of writing. What was
    /// written about a resource before it was forgotten may be missing. The first input is
    /// [`Input::Started`].
    pub fn restore(
        here: SiteId,
        settings: Settings,
        written: impl IntoIterator<Item = Durable>,
    ) -> Self {
        let mut this = Self::new(here, settings);
        for mut durable in written {
            if let Durable::Record(record, _) = &mut durable {
                this.shelf.record(record);
            }
            this.read(&durable);
        }
        for resource in this.resources.values_mut() {
            resource.news = News::default();
            resource.order_streams();
            resource.refresh();
            for site in resource.sites().iter().filter(|&site| *site != this.here) {
                let shared = this.shared.entry(site.clone()).or_default();
                *shared = shared.wrapping_add(resource.digest());
            }
        }
        this
    }

    fn read(&mut self, durable: &Durable) {
        let id = durable.resource();
        if let Durable::Forgotten { version, by, at, .. } = durable {
            self.resources.remove(id);
            let tomb = Tomb { version: version.clone(), by: by.clone(), at: *at };
            self.tombs.insert(id.clone(), tomb);
            self.outlive(id);
            return;
        }
        if self.read_held(durable) {
            return;
        }
        if let Durable::Withheld { floor, .. } = durable {
            return self.withhold(id, *floor);
        }
        if let Durable::Record(Record::Operation(op), _) = durable
            && let Some(declared) = &op.declares
        {
            self.open(id, declared);
        }
        let goes_on = match durable {
            Durable::Record(record, _) => {
                record.id().site == self.here && record.id().number > self.floor(id)
            }
            Durable::Intent { .. } | Durable::Clearing(_) => true,
            _ => false,
        };
        if goes_on {
            self.goes_on(id);
        }
        let Some(resource) = self.resources.get_mut(id) else { return };
        resource.restore(&self.here, durable);
        if let Durable::Record(record, _) = durable {
            resource.take(record);
            if declares(record) {
                self.shelf.resource(resource);
            }
        }
        self.release(id);
    }

    /// What this site does about an input.
    pub fn handle(&mut self, input: Input, now: Now) -> Vec<Effect> {
        let mut out = Outbox::default();
        match input {
            Input::Started => {
                self.go_on_holding(now, &mut out);
                let all: Vec<ResourceId> = self.resources.keys().cloned().collect();
                for id in all {
                    let gate = self.gate(&id);
                    if let Some(resource) = self.resources.get_mut(&id) {
                        resource.resume(&self.here, gate, &mut out);
                    }
                    self.bury(&id, true, now, &mut out);
                    self.show_later(&id, now);
                }
            }
            Input::Submit(submission) => self.submit(*submission, now, &mut out),
            Input::Received { from, mut message } => {
                if let Message::Records { records, .. } = &mut message {
                    for sent in records {
                        self.shelf.record(&mut sent.record);
                    }
                }
                self.received(&from, message, now, &mut out);
            }
            Input::Ran { run, report } => self.ran(&run, report, now, &mut out),
            Input::Lost(run) => self.lost(&run, now, &mut out),
            Input::NotStarted(run) | Input::Checked { run, happened: false } => {
                self.run_again(&run, now, &mut out);
            }
            Input::Checked { run, happened: true } => self.happened(&run, now, &mut out),
            Input::Cleared { resource, ok } => self.cleared(&resource, ok, now, &mut out),
            Input::NotClearing(resource) => self.not_clearing(&resource, now, &mut out),
            Input::NotShown { resource, block } => self.was_not_shown(&resource, block, now),
            Input::Shown { resource, block, print } => {
                self.was_shown(&resource, block, print, now, &mut out);
            }
            Input::Removed(sites) => self.remove(sites, now, &mut out),
            Input::Fenced { site, known } => self.fence(&site, &known, now, &mut out),
            Input::Decided { resource, op, adopted } => {
                self.decided(&resource, &op, adopted, &mut out);
            }
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
        self.refresh(&out);
        out.into_effects()
    }

    /// Brings up to date what a look at the resources needs that have changed: those that went on, and
    /// those of which something is written down.
    fn refresh(&mut self, out: &Outbox) {
        let written = out.persist.iter().filter_map(|effect| match effect {
            Effect::Persist(durable) => Some(durable.resource()),
            _ => None,
        });
        let mut last = None;
        for id in out.went_on.iter().chain(written) {
            if last.replace(id) != Some(id)
                && let Some(resource) = self.resources.get_mut(id)
            {
                resource.refresh();
            }
        }
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

    /// The sites that share something with this one.
    pub fn sharing(&self) -> impl Iterator<Item = &SiteId> {
        self.shared.iter().filter(|(_, digest)| **digest != 0).map(|(site, _)| site)
    }

    /// The resources that exist here.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.resources.values().map(|resource| &**resource)
    }

    /// Those with ids in a range.
    pub fn resources_from(
        &self,
        range: (Bound<ResourceId>, Bound<ResourceId>),
    ) -> impl Iterator<Item = &Resource> {
        self.resources.range(range).map(|(_, resource)| &**resource)
    }

    /// One of them.
    pub fn resource(&self, id: &ResourceId) -> Option<&Resource> {
        self.resources.get(id).map(|resource| &**resource)
    }

    /// Up to where the records of a resource were forgotten that was deleted and is no longer here.
    pub fn forgotten(&self, id: &ResourceId) -> Option<&Version> {
        self.tomb(id).map(|tomb| &tomb.version)
    }

    /// The same for all of them.
    pub fn tombs(&self) -> impl Iterator<Item = (&ResourceId, &Version)> {
        let gone = self.tombs.iter().filter(|(id, _)| !self.resources.contains_key(id));
        gone.map(|(id, tomb)| (id, &tomb.version))
    }

    fn tick(&mut self, now: Now, out: &mut Outbox) {
        while let Some(alarm) = self.alarms.pop(now.steady) {
            match alarm {
                Alarm::Compare(site) => self.compare_with(&site, now, out),
                Alarm::Ask(resource, site) => self.ask(&resource, &site, now, out),
                Alarm::Deadline(ticket) => self.give_up(ticket, out),
                Alarm::Show(resource) => self.show(&resource, out),
                Alarm::Bury(resource) => self.bury(&resource, true, now, out),
            }
        }
    }

    /// Sets an alarm for some time from now.
    fn arm(&mut self, now: Now, span: Millis, alarm: Alarm) {
        self.alarms.set(now.steady.plus(span), alarm);
    }

    fn submit(&mut self, submission: Submission, now: Now, out: &mut Outbox) {
        let (ticket, wait) = (submission.ticket, submission.wait);
        let id = submission.resource.clone();
        self.hear_for(&submission);
        let declares = match self.asked(&submission) {
            Err(refusal) => {
                self.ask_unheard(&refusal, out);
                return out.answer(ticket, Answer::Refused(refusal));
            }
            Ok(Asked::Known(op)) => {
                self.accepted(ticket, &id, &op.id, out);
                self.await_replies(ticket, &id, &op.id, now, wait);
                if let Some(resource) = self.resources.get_mut(&id)
                    && let Some(op) = resource.log.find(&op.id)
                {
                    resource.news.of(op);
                }
                return self.answer_waiters(&id, out);
            }
            Ok(Asked::New(declares)) => declares,
        };
        let at = self.clock.tick(now.wall, self.followed(&id));
        let mut op = self.operation(submission, declares, at);
        self.shelf.operation(&mut op);
        self.await_replies(ticket, &id, &op.id, now, wait);
        let after = self.last_number(&id);
        let record = Record::Operation(Arc::new(op));
        self.goes_on(&id);
        self.admit(&id, &record, None, now, out);
        self.accepted(ticket, &id, record.id(), out);
        self.publish(&record, after, out);
        self.proceed(&id, now, out);
    }

    fn accepted(&self, ticket: Ticket, id: &ResourceId, op: &OpId, out: &mut Outbox) {
        if let Some(resource) = self.resources.get(id) {
            out.answer(ticket, Answer::Accepted(op.clone(), resource.present_sites()));
        }
    }

    /// What a request amounts to here and now, or why it is refused.
    fn asked(&self, submission: &Submission) -> Result<Asked, Refusal> {
        let resource = self.resource(&submission.resource);
        if let Some(op) = resource.map(|r| r.repeated(submission)).transpose()?.flatten() {
            return Ok(Asked::Known(op));
        }
        if let Some(refusal) = self.refused(submission) {
            return Err(refusal);
        }
        let known = resource.map(Resource::sites);
        // There is nothing to delete of what does not exist; but the application may have what nobody
        // has told us of, and a request is for the application.
        let may_begin = !submission.kind.is_delete() || submission.action.is_request();
        let named = submission.sites.as_ref().filter(|_| may_begin);
        let Some(sites) = known.or(named).cloned() else {
            return Err(Refusal::NoSites(submission.resource.clone()));
        };
        if !sites.contains(&self.here) {
            return Err(Refusal::Elsewhere { sites, resource: submission.resource.clone() });
        }
        // Whoever asks for a part of the work on each site must not get all of it.
        let divides = submission.config.as_ref().is_some_and(|config| !config.parts.is_empty());
        if divides && resource.is_some_and(|resource| resource.config().parts.is_empty()) {
            return Err(Refusal::Whole { sites, resource: submission.resource.clone() });
        }
        // What follows a delete may be all that is left of the resource one day.
        let begins = resource.is_none_or(|resource| resource.log.ends_with_a_delete());
        let asked = submission.config.as_ref();
        let says = asked.filter(|config| config.says_more_than_parts());
        Ok(Asked::New((begins || says.is_some()).then(|| {
            let known = resource.map(Resource::config);
            // Like the sites, the parts of a resource that exists stay as they are.
            let parts = known.or(asked).map(|config| config.parts.clone()).unwrap_or_default();
            let config = says.or(known).cloned().unwrap_or_default();
            let forgotten = self.tomb(&submission.resource).map(|tomb| tomb.version.clone());
            Declaration {
                sites,
                config: Arc::new(Config { parts, ..config }),
                base: forgotten.unwrap_or_default(),
            }
        })))
    }

    /// The time of what a new operation follows.
    fn followed(&self, id: &ResourceId) -> Timestamp {
        let newest = self.resources.get(id).map(|resource| resource.log.newest());
        newest.or(self.tomb(id).map(|tomb| tomb.at)).unwrap_or_default()
    }

    /// The operation that a request amounts to, here and now.
    fn operation(
        &self,
        submission: Submission,
        declares: Option<Declaration>,
        at: Timestamp,
    ) -> Operation {
        let resource = self.resource(&submission.resource);
        let tomb = self.tomb(&submission.resource);
        let number = self.next_number(&submission.resource);
        let parents = resource.map(|resource| resource.log.heads());
        let delete = tomb.map(|tomb| [tomb.by.clone()].into());
        let resets = resource.is_some_and(|resource| resource.resolution.resets(&submission.kind));
        Operation {
            id: OpId { site: self.here.clone(), number },
            parents: parents.or(delete).unwrap_or_default(),
            at,
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
    fn admit(
        &mut self,
        id: &ResourceId,
        record: &Record,
        seal: Option<&Seal>,
        now: Now,
        out: &mut Outbox,
    ) {
        if let Record::Operation(op) = record
            && let Some(declared) = &op.declares
        {
            self.open(id, declared);
            self.meet(id, declared, now);
        }
        let Some(resource) = self.resources.get_mut(id) else { return };
        let before = resource.digest();
        resource.take(record);
        if declares(record) {
            self.shelf.resource(resource);
        }
        if let Record::Reply(reply) = record
            && reply.id.site == self.here
        {
            // It was lost here, and has come back.
            resource.journal.reach(reply.era);
        }
        self.digest_changed(id, before);
        Self::recorded(record, seal, out);
    }

    /// Begins a resource, if it is not here, where an earlier life of it ended.
    fn open(&mut self, id: &ResourceId, declared: &Declaration) {
        if !self.resources.contains_key(id) {
            self.resources.insert(id.clone(), Box::new(self.begun(id, declared)));
        }
    }

    /// A resource at its start, where an earlier life of it ended.
    fn begun(&self, id: &ResourceId, declared: &Declaration) -> Resource {
        let nothing = Version::new();
        let forgotten = self.tombs.get(id).map_or(&nothing, |tomb| &tomb.version);
        let mut resource = Resource::new(id.clone(), declared, forgotten);
        resource.leave_out(self.removed.clone());
        if self.withheld.contains_key(id) {
            resource.lose(self.floor(id));
        }
        if self.held.get(id).is_some_and(Hold::is_left_over) {
            resource.journal.doubt();
        }
        resource
    }

    /// Writes down a record that was taken in.
    fn recorded(record: &Record, seal: Option<&Seal>, out: &mut Outbox) {
        out.persist(Durable::Record(record.clone(), seal.cloned()));
        out.tell(Event::Recorded { resource: record.resource().clone(), id: record.id().clone() });
    }

    /// Takes note of the sites that a resource is about to be shared with, and compares with those
    /// that are new to us before long.
    fn meet(&mut self, id: &ResourceId, declared: &Declaration, now: Now) {
        let Some(resource) = self.resources.get(id) else { return };
        // Until its first operation is taken in, a resource has the sites that this one declares, and
        // counts for none of them.
        let new = resource.log.is_empty();
        let (digest, known) = (resource.digest(), resource.sites().clone());
        for site in declared.sites.iter() {
            if *site == self.here {
                continue;
            }
            let shared = self.shared.entry(site.clone()).or_default();
            if new || !known.contains(site) {
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
    fn proceed(&mut self, id: &ResourceId, now: Now, out: &mut Outbox) {
        out.went_on.push(id.clone());
        self.cut_if_due(id, now, out);
        self.answer_waiters(id, out);
        // The sites may have been heard before there was a resource to tell that these are all.
        self.made_whole(id);
        self.release(id);
        let gate = self.gate(id);
        if let Some(resource) = self.resources.get_mut(id) {
            resource.advance(&self.here, gate, out);
        }
        self.bury(id, false, now, out);
        self.show_later(id, now);
    }
}

/// Whether a record says something about the resource itself.
fn declares(record: &Record) -> bool {
    matches!(record, Record::Operation(op) if op.declares.is_some())
}
