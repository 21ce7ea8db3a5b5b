//! What a site had recorded while it was removed, and what becomes of it when it is let back in.
//!
//! A site that is removed may go on by itself, or be in the hands of a thief. When it is let back in, a
//! line is drawn: of its records, those count that the others had taken in, up to its *fence*. All
//! sites cut its stream there, itself included, and with it whatever depends on what is beyond. The
//! operations among that which were received here are *held*: nobody else will ever take them as they
//! are, so they are in no log and no stream, and a person decides about each: it is submitted again as a
//! new operation, or discarded.
//!
//! What must stay true:
//! - what is beyond the fence is never sent, and not in the block: the ordinary plan brings the
//!   application back to what the others have;
//! - no number is used twice: new records of this site come above all that it ever recorded;
//! - what this site has run of what is left is told again, under new numbers: nobody waits for it, and
//!   no attempt is counted twice;
//! - a cut waits for a run that is under way, and nothing of the resource is sent before it;
//! - an operation is held until an operator has decided, and the decision is known from then on: both also after
//!   the resource was forgotten.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};

use super::{
    Alarm, Answer, Outbox, Replica, Resource,
    message::{Durable, Record, Reply, Version},
    run::Work,
};
use crate::{
    id::{OpId, ResourceId, SiteId},
    log::Ix,
    operation::{Declaration, SharedOperation},
    time::Now,
};

/// An operation that was received here, and that the others do not take.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Held {
    /// The operation.
    pub op: SharedOperation,
    /// How it went here, if it was run.
    pub reply: Option<Arc<Reply>>,
}

/// What is held of a resource, and what was decided about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Hold {
    ops: BTreeMap<OpId, Held>,
    /// What was decided: the operation that each was submitted as again, or nothing.
    decided: BTreeMap<OpId, Option<OpId>>,
    /// What this site has run of what is left, and has yet to tell again.
    owed: Vec<Arc<Reply>>,
    /// Nothing of the resource is left, and what it ran may still be in the application.
    left_over: bool,
}

impl Hold {
    pub(super) fn is_left_over(&self) -> bool {
        self.left_over
    }

    /// Takes note of what was decided about an operation. After the resource was forgotten, only that is left
    /// of the operation.
    fn decide(&mut self, op: &OpId, adopted: Option<OpId>) {
        self.ops.remove(op);
        self.decided.insert(op.clone(), adopted);
    }
}

/// A resource in two: what stays, and this site's own records among the rest.
struct Cut {
    stays: Option<Resource>,
    own: Vec<Record>,
}

impl Resource {
    /// Cuts the stream of a site after a number, with all that depends on what comes then.
    fn cut(&self, here: &SiteId, site: &SiteId, known: u64) -> Cut {
        let (mut stays, mut own) = (Vec::new(), Vec::new());
        let mut left: BTreeSet<OpId> = BTreeSet::new();
        let mut cut: BTreeSet<SiteId> = BTreeSet::new();
        let mut ends = self.log.forgotten().clone();
        for (origin, number, item) in self.streams().beyond(self.log.forgotten()) {
            let Some(record) = self.record(origin, number, item) else { continue };
            let is_there = |op: &OpId| left.contains(op) || self.log.find(op).is_none();
            let rests = match &record {
                Record::Operation(op) => op.parents.iter().all(is_there),
                Record::Reply(_) | Record::Shown(_) => is_there(record.about()),
            };
            if cut.contains(origin) || origin == site && number > known || !rests {
                cut.insert(origin.clone());
                if origin == here {
                    own.push(record);
                }
                continue;
            }
            if let Record::Operation(op) = &record {
                left.insert(op.id.clone());
            }
            ends.insert(origin.clone(), number);
            stays.push(record);
        }
        // Where a stream was cut, what stood for earlier records may be gone with the rest: it is known
        // up to the last that is still here, and others send what comes then.
        let mut version = self.version();
        version.retain(|origin, _| !cut.contains(origin));
        ends.retain(|origin, _| cut.contains(origin));
        version.extend(ends);
        let stays = (!left.is_empty()).then(|| self.of(&stays, &version, here));
        Cut { stays, own }
    }

    /// The resource with these records alone, of which these are known.
    fn of(&self, records: &[Record], version: &Version, here: &SiteId) -> Self {
        let declared = records.iter().find_map(|record| match record {
            Record::Operation(op) => op.declares.as_deref().cloned(),
            Record::Reply(_) | Record::Shown(_) => None,
        });
        let declared = declared.unwrap_or_else(|| Declaration {
            sites: self.sites().clone(),
            config: self.shared_config(),
            base: Version::new(),
        });
        let mut fresh = Self::new(self.id().clone(), &declared, self.log.forgotten());
        fresh.leave_out(self.removed.clone());
        for record in records {
            fresh.take(record);
        }
        fresh.reach(version);
        fresh.news.of_all();
        fresh.floor = self.floor;
        fresh.keep_contradictions(self);
        fresh.due.clone_from(&self.due);
        if let Some(before) = self.rare.as_ref().and_then(|rare| rare.forgotten_before.clone()) {
            fresh.rare.get_or_insert_default().forgotten_before = Some(before);
        }
        fresh.looking = self.looking;
        let is_gone = |op: Ix| fresh.log.find(&self.log.op(op).id).is_none();
        let moved = if self.depends_on(here, is_gone) { None } else { self.journal_for(&fresh) };
        fresh.journal = moved.unwrap_or_else(|| self.journal.anew());
        fresh
    }

    /// Whether the application's state here may depend on any of some operations. One that failed when it
    /// was run again may have succeeded before.
    fn depends_on(&self, here: &SiteId, some: impl Fn(Ix) -> bool) -> bool {
        let failed = |op: Ix| {
            let reply = self.reply_to(op, here);
            reply.is_some_and(|reply| reply.outcome.is_failure() && reply.attempt == 1)
        };
        let counts = |(op, _): (Ix, _)| some(op) && self.journal.counts(op) && !failed(op);
        self.journal.base().is_some_and(&some) || self.log.iter().any(counts)
    }
}

impl Replica {
    /// The operations that were received here and that the others do not take, undecided.
    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.values().flat_map(|hold| hold.ops.values())
    }

    /// One of them.
    pub fn held_operation(&self, resource: &ResourceId, op: &OpId) -> Option<&Held> {
        self.held.get(resource)?.ops.get(op)
    }

    /// What was decided about an operation that was held: the one that it was submitted as again, or
    /// nothing.
    pub fn decision(&self, resource: &ResourceId, op: &OpId) -> Option<Option<&OpId>> {
        self.held.get(resource)?.decided.get(op).map(Option::as_ref)
    }

    /// Hears where the stream of a site ends that was removed and is let back in.
    pub(super) fn fence(
        &mut self,
        site: &SiteId,
        known: &BTreeMap<ResourceId, u64>,
        now: Now,
        out: &mut Outbox,
    ) {
        let mine = *site == self.here;
        let shared = self.resources.values().filter(|resource| {
            // Nobody else is concerned by what exists here alone.
            resource.sites().contains(site) && !(mine && resource.sites().len() == 1)
        });
        let mut ids: BTreeSet<ResourceId> = shared.map(|resource| resource.id().clone()).collect();
        ids.extend(known.keys().filter(|_| mine).cloned());
        for id in ids {
            let last = known.get(&id).copied().unwrap_or(0);
            let high = self.resources.get_mut(&id).map_or(0, |resource| {
                // What came too early counts no more; what still does comes again.
                resource.waiting.give_up(site);
                resource.streams().high(site)
            });
            let used = self.last_number(&id).max(self.floor(&id));
            // Where this site lacks some of its own, their numbers are still taken.
            let floor = if mine { used.max(last) } else { used };
            if high <= last && floor == used {
                continue;
            }
            self.raise_floor(&id, floor);
            let Some(resource) = self.resources.get_mut(&id) else {
                out.persist(held(&id, site, last, floor, true));
                continue;
            };
            resource.fenced.insert(site.clone(), last);
            if !resource.is_idle() {
                out.persist(held(&id, site, last, floor, false));
            }
            self.proceed(&id, now, out);
        }
    }

    /// Cuts what is to be cut of a resource, once nothing of it is under way.
    pub(super) fn cut_if_due(&mut self, id: &ResourceId, now: Now, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        if resource.fenced.is_empty() || !resource.is_idle() {
            return;
        }
        let fences = core::mem::take(&mut resource.fenced);
        let (before, sites) = (resource.digest(), resource.sites().clone());
        let mut waiting = resource.waiting.drain();
        // Also what has come while the cut had to wait.
        waiting.retain(|sent| !fences.contains_key(&sent.record.id().site));
        for (site, known) in fences {
            let floor = self.last_number(id).max(self.floor(id));
            out.persist(held(id, &site, known, floor, true));
            self.cut_out(id, &site, known, floor);
        }
        for site in sites.iter().filter(|&site| *site != self.here) {
            let shared = self.shared.entry(site.clone()).or_default();
            *shared = shared.wrapping_sub(before);
        }
        if let Some(resource) = self.resources.get(id) {
            for site in resource.sites().iter().filter(|&site| *site != self.here) {
                let shared = self.shared.entry(site.clone()).or_default();
                *shared = shared.wrapping_add(resource.digest());
            }
        } else {
            self.keep_tomb(id, out);
            self.dismiss(id, out);
        }
        self.pay(id, now, out);
        let here = self.here.clone();
        self.take_each(&here, id, waiting, now, out);
    }

    /// Ends what waits for something of a resource that is not here any more.
    fn dismiss(&mut self, id: &ResourceId, out: &mut Outbox) {
        for ticket in self.awaited.remove(id).unwrap_or_default().into_values().flatten() {
            out.answer(ticket, Answer::Done);
            self.alarms.cancel(&Alarm::Deadline(ticket));
            self.waiters.remove(&ticket);
        }
    }

    /// Takes what is beyond a fence out of a resource, and holds what was received here.
    fn cut_out(&mut self, id: &ResourceId, site: &SiteId, known: u64, floor: u64) {
        self.raise_floor(id, floor);
        let Some(resource) = self.resources.get_mut(id) else { return };
        resource.order_streams();
        resource.work = Work::Idle;
        let Cut { stays, own } = resource.cut(&self.here, site, known);
        let leaves_something =
            !resource.journal.is_sure() || resource.depends_on(&self.here, |_| true);
        let hold = self.held.entry(id.clone()).or_default();
        let mut told = Vec::new();
        for record in own {
            match record {
                Record::Operation(op) => {
                    hold.ops.insert(op.id.clone(), Held { op, reply: None });
                }
                Record::Reply(reply) => told.push(reply),
                Record::Shown(_) => {}
            }
        }
        for reply in told {
            match hold.ops.get_mut(&reply.op) {
                Some(of) => of.reply = Some(reply),
                None => hold.owed.push(reply),
            }
        }
        if let Some(stays) = stays {
            **resource = stays;
        } else {
            hold.left_over |= leaves_something;
            hold.owed.clear();
            let forgotten = resource.forgotten_durably().clone();
            self.resources.remove(id);
            self.take_over_tomb(id, &forgotten);
        }
        if self.held.get(id).is_some_and(|hold| *hold == Hold::default()) {
            self.held.remove(id);
        }
    }

    /// Tells again what this site has run of what is left of a resource.
    fn pay(&mut self, id: &ResourceId, now: Now, out: &mut Outbox) {
        let owed = self.held.get_mut(id).map(|hold| core::mem::take(&mut hold.owed));
        for reply in owed.unwrap_or_default() {
            let Some(resource) = self.resources.get(id) else { return };
            let told = resource.reply(&reply.op, &self.here).map_or(0, |told| told.attempt);
            if told >= reply.attempt || resource.log.find(&reply.op).is_none() {
                continue;
            }
            let after = self.last_number(id);
            let number = self.next_number(id);
            let reply = Reply { id: OpId { site: self.here.clone(), number }, ..(*reply).clone() };
            let record = Record::Reply(Arc::new(reply));
            self.admit(id, &record, None, now, out);
            self.publish(&record, after, out);
        }
    }

    /// Goes on, when the site starts, with what it has yet to cut and to tell again.
    pub(super) fn go_on_holding(&mut self, now: Now, out: &mut Outbox) {
        let ids: BTreeSet<ResourceId> =
            self.resources.keys().chain(self.held.keys()).cloned().collect();
        for id in ids {
            self.cut_if_due(&id, now, out);
            self.pay(&id, now, out);
        }
    }

    /// Takes note of what a person has decided.
    pub(super) fn decided(
        &mut self,
        id: &ResourceId,
        op: &OpId,
        adopted: Option<OpId>,
        out: &mut Outbox,
    ) {
        let Some(hold) = self.held.get_mut(id).filter(|hold| hold.ops.contains_key(op)) else {
            return;
        };
        hold.decide(op, adopted.clone());
        let (resource, op) = (id.clone(), op.clone());
        out.persist(Durable::Decided { resource, op, adopted });
    }

    /// Writes down again what is held of a resource whose tombstone was just written, and what was decided
    /// about it.
    pub(super) fn keep_held(&self, id: &ResourceId, out: &mut Outbox) {
        let Some(hold) = self.held.get(id) else { return };
        for Held { op, reply } in hold.ops.values() {
            out.persist(Durable::Aside(Record::Operation(op.clone())));
            if let Some(reply) = reply {
                out.persist(Durable::Aside(Record::Reply(reply.clone())));
            }
        }
        for (op, adopted) in &hold.decided {
            let (resource, op, adopted) = (id.clone(), op.clone(), adopted.clone());
            out.persist(Durable::Decided { resource, op, adopted });
        }
        if hold.left_over {
            out.persist(Durable::Leftover(id.clone()));
        }
    }

    /// Writes down again which numbers this site has used beyond those of a tombstone.
    pub(super) fn keep_floor(&self, id: &ResourceId, out: &mut Outbox) {
        let (known, floor) = (self.last_number(id), self.floor(id));
        if floor > known {
            out.persist(held(id, &self.here, known, floor, true));
        }
    }

    /// Takes note that a resource was deleted here: nothing is left in the application, and no site waits
    /// for a reply.
    pub(super) fn outlive(&mut self, id: &ResourceId) {
        if let Some(hold) = self.held.get_mut(id) {
            hold.left_over = false;
            hold.owed.clear();
        }
    }

    /// Reads what was written down about what is held. Whether it was that.
    pub(super) fn read_held(&mut self, durable: &Durable) -> bool {
        match durable {
            Durable::Held { resource, site, known, floor, done: true } => {
                if let Some(resource) = self.resources.get_mut(resource) {
                    resource.fenced.remove(site);
                }
                self.cut_out(resource, site, *known, *floor);
            }
            Durable::Held { resource, site, known, floor, done: false } => {
                self.raise_floor(resource, *floor);
                if let Some(resource) = self.resources.get_mut(resource) {
                    resource.fenced.insert(site.clone(), *known);
                }
            }
            Durable::Aside(record) => {
                let hold = self.held.entry(record.resource().clone()).or_default();
                match record {
                    Record::Operation(op) => {
                        hold.ops.insert(op.id.clone(), Held { op: op.clone(), reply: None });
                    }
                    Record::Reply(reply) => {
                        if let Some(of) = hold.ops.get_mut(&reply.op) {
                            of.reply = Some(reply.clone());
                        }
                    }
                    Record::Shown(_) => {}
                }
            }
            Durable::Leftover(resource) => {
                self.held.entry(resource.clone()).or_default().left_over = true;
            }
            Durable::Decided { resource, op, adopted } => {
                self.held.entry(resource.clone()).or_default().decide(op, adopted.clone());
            }
            _ => return false,
        }
        true
    }

    fn raise_floor(&mut self, id: &ResourceId, floor: u64) {
        let known = self.floors.entry(id.clone()).or_default();
        *known = floor.max(*known);
    }
}

fn held(resource: &ResourceId, site: &SiteId, known: u64, floor: u64, done: bool) -> Durable {
    Durable::Held { resource: resource.clone(), site: site.clone(), known, floor, done }
}
