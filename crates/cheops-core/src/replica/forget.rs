//! Deletion: when a site forgets a resource, and what it still knows of it then.
//!
//! A delete is an operation like others until all sites of the resource have run it. From then on
//! every operation that does not follow the delete is known to be over, and can be forgotten, and so
//! can the delete itself. What is forgotten counts as known: a *tomb* keeps how far each stream had
//! got, so that no number is used twice and nothing of it is taken in again.
//!
//! What must stay true:
//! - a site forgets by itself only what each site of the resource has run the delete after, and only
//!   if it knows of nothing that follows the delete, or follows a concurrent one alone: so all that
//!   forget by one of two deletes forget the same. That holds for sites that were removed, too: one that
//!   is let back in has to hear of the delete, and whatever it records before that does not follow it.
//!   Until then the resource is *gone*, and kept out of sight;
//! - what follows the delete outlives it: a site that knows of such a thing, and hears that another
//!   has forgotten, *trims*: it drops what the other one has forgotten and keeps the rest;
//! - tombs of one resource merge to the greater number of each site: a site may forget before a reply
//!   of another reaches it, and what comes next in that stream follows the reply;
//! - after any of these, sites that know the same have the same log.

use alloc::{borrow::Cow, vec, vec::Vec};

use super::{
    Alarm, Answer, Event, Outbox, Replica, Resource,
    message::{Durable, Message, Record, Reply, Sent, Version},
    resource::LAST_NUMBER,
    run::Work,
    stream::digest,
};
use crate::{
    id::{OpId, ResourceId, SiteId},
    log::Ix,
    operation::Declaration,
    plan::{Journal, Outcome},
    resolve::Fate,
    time::{Now, Timestamp},
};

/// How many numbers of its own a site may have used beyond those that it knows of: more than any site counts to,
/// and few enough to leave numbers for all that comes.
const UNKNOWN: u64 = 1 << 32;

/// What a site remembers of a resource that it has forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Tomb {
    /// How far the stream of each site had got. All sites of the resource are named, since all have
    /// replied to the delete.
    pub(super) version: Version,
    /// The operation that deleted it.
    pub(super) by: OpId,
    /// When that was.
    pub(super) at: Timestamp,
}

/// Whether a record lies within a version.
pub(super) fn covers(version: &Version, id: &OpId) -> bool {
    version.get(&id.site).is_some_and(|&number| id.number <= number)
}

/// The greater number of each site.
pub(super) fn join(version: &mut Version, other: &Version) {
    for (site, &number) in other {
        let known = version.entry(site.clone()).or_default();
        *known = number.max(*known);
    }
}

impl Resource {
    /// Whether it is being deleted: the block ends with a delete.
    pub fn is_deleting(&self) -> bool {
        self.block().last().is_some_and(|op| op.kind.is_delete())
    }

    /// Up to where its records were forgotten with an earlier life, which was deleted.
    pub fn forgotten(&self) -> &Version {
        self.log.forgotten()
    }

    /// The same, as far as it is written down. A record is taken in only if its parents are here or forgotten
    /// in this way: otherwise it would not fit after a restart, and be lost with all that was run of it.
    pub(super) fn forgotten_durably(&self) -> &Version {
        let before = self.rare.as_ref().and_then(|rare| rare.forgotten_before.as_ref());
        before.unwrap_or_else(|| self.forgotten())
    }

    /// Counts records as known that are forgotten.
    pub(super) fn skip(&mut self, version: &Version) {
        self.reach(version);
        self.log.forget(version);
    }

    /// Counts records as known that are not here.
    pub(super) fn reach(&mut self, version: &Version) {
        for (site, &number) in version {
            let high = self.streams().high(site);
            if number > high {
                let change =
                    digest(self.id(), site, number).wrapping_sub(digest(self.id(), site, high));
                self.add_to_digest(change);
            }
        }
        self.streams_mut().skip(version);
    }

    /// The delete that is all there is in the block, if this site has run it and nothing is under
    /// way.
    fn deleted(&self, here: &SiteId) -> Option<Ix> {
        let &[delete] = self.resolution.block() else { return None };
        let is_delete = self.log.op(delete).kind.is_delete();
        (is_delete && self.work == Work::Idle && self.rests_on(delete, here)).then_some(delete)
    }

    /// Whether a site has run an operation, and nothing after it that changed anything.
    fn rests_on(&self, op: Ix, site: &SiteId) -> bool {
        let Some(reply) = self.reply_to(op, site).filter(|reply| reply.outcome == Outcome::Ok)
        else {
            return false;
        };
        let changed = |reply: &Reply| !reply.outcome.is_failure();
        let later =
            self.streams().replied(site).take_while(|&(number, _)| number > reply.id.number);
        later.map(|(_, op)| self.reply_to(op, site)).all(|later| !later.is_some_and(changed))
    }

    /// Whether it was deleted at all of its sites but for some that were removed: it is kept for them alone.
    pub fn is_gone(&self, here: &SiteId) -> bool {
        let deleted = || self.deleted(here).filter(|&delete| !self.log.is_followed(delete));
        self.absent().next().is_some()
            && deleted().is_some_and(|delete| {
                self.present().all(|site| self.rests_on(delete, site)) && !self.lives_apart(delete)
            })
    }

    /// The delete after which nothing came, at any site, if there is one.
    fn forgettable(&self, here: &SiteId) -> Option<Ix> {
        let delete = self.deleted(here).filter(|&delete| !self.log.is_followed(delete))?;
        let ends = self.sites().iter().all(|site| self.rests_on(delete, site));
        (ends && !self.lives_apart(delete)).then_some(delete)
    }

    /// Whether the resource lives again after another delete, of which whoever lives there need not
    /// have known this one. Others may forget by that delete, and would forget what follows this one;
    /// here it would be the other way round, and nothing would be left that both have.
    fn lives_apart(&self, delete: Ix) -> bool {
        let apart =
            |other: Ix| self.fate(other) != Fate::Void && self.log.concurrent(delete, other);
        self.log.deletes().any(|other| apart(other) && self.log.is_followed(other))
    }

    /// The resource without what lies within a version, which counts as known.
    fn without(&self, version: &Version) -> Self {
        let mut forgotten = self.log.forgotten().clone();
        join(&mut forgotten, version);
        let mut left = self.log.iter().filter(|(_, op)| !covers(version, &op.id));
        let declared = left.find_map(|(_, op)| op.declares.as_deref());
        let nothing = || Declaration {
            sites: self.sites().clone(),
            config: self.shared_config(),
            base: Version::new(),
        };
        let declared = declared.map_or_else(|| Cow::Owned(nothing()), Cow::Borrowed);
        let mut fresh = Self::new(self.id().clone(), &declared, &forgotten);
        fresh.leave_out(self.removed.clone());
        for (site, number, item) in self.streams().beyond(&forgotten) {
            if let Some(record) = self.record(site, number, item) {
                fresh.take(&record);
            }
        }
        fresh.reach(&self.version());
        fresh.news.of_all();
        fresh.floor = self.floor;
        fresh.keep_contradictions(self);
        fresh
    }

    /// Drops what lies within a version, and counts it as known. Nothing changes, and the answer is
    /// no, as long as the application's state depends on what would be dropped.
    pub(super) fn trim(&mut self, version: &Version) -> bool {
        if !self.has_within(version) {
            self.skip(version);
            if let Some(rare) = &mut self.rare {
                rare.forgotten_before = None;
            }
            return true;
        }
        let over = |op: Ix| covers(version, &self.log.op(op).id);
        let block = self.resolution.block();
        let gone = block.iter().take_while(|&&op| over(op)).count();
        let ends_empty = match self.journal.base() {
            Some(base) if over(base) => self.log.op(base).kind.is_delete(),
            Some(_) | None => true,
        };
        if self.work != Work::Idle || !ends_empty || block[gone..].iter().any(|&op| over(op)) {
            return false;
        }
        let mut fresh = self.without(version);
        let Some(journal) = self.journal_for(&fresh) else { return false };
        fresh.journal = journal;
        fresh.waiting = core::mem::take(&mut self.waiting);
        fresh.looking = self.looking;
        *self = fresh;
        true
    }

    /// Drops, when the site starts, what it had dropped before it stopped. That is not asked again:
    /// the log may have been shorter then, if a delete was run again, so the block was another.
    pub(super) fn trim_again(&mut self, version: &Version) {
        if !self.has_within(version) {
            return self.skip(version);
        }
        self.order_streams();
        let mut fresh = self.without(version);
        fresh.journal = self.journal_for(&fresh).unwrap_or_else(|| self.journal.anew());
        *self = fresh;
    }

    /// Whether an operation of the log lies within a version.
    fn has_within(&self, version: &Version) -> bool {
        self.log.iter().any(|(_, op)| covers(version, &op.id))
    }

    /// The journal, for what is left of the log; nothing if the state depends on the rest.
    pub(super) fn journal_for(&self, left: &Self) -> Option<Journal> {
        self.journal.moved(|op| left.log.find(&self.log.op(op).id))
    }

    /// Drops what lies within a version but for a delete, which is run again: what others have
    /// forgotten may have changed the state here after the delete was run, in a way that only they
    /// know to be over. The answer is no if there is nothing that could be dropped.
    /// `retries`: also if that was all that was tried before.
    fn delete_again(&mut self, here: &SiteId, version: &Version, retries: bool) -> bool {
        let (over, left): (Vec<Ix>, Vec<Ix>) =
            self.log.iter().map(|(op, _)| op).partition(|&op| covers(version, &self.log.op(op).id));
        let was_run = |&&op: &&Ix| {
            self.log.op(op).kind.is_delete()
                && self.fate(op) != Fate::Void
                && self.reply_to(op, here).is_some()
        };
        // The one that others have forgotten it by is not known. It is followed by what is left, and
        // by nothing that is over.
        let rank = |&&op: &&Ix| {
            let ends = !over.iter().any(|&other| self.log.precedes(op, other));
            let followed = left.iter().all(|&other| self.log.precedes(op, other));
            (ends, followed, self.log.op(op).key())
        };
        let Some(&delete) = over.iter().filter(was_run).max_by_key(rank) else { return false };
        // A site that is stuck and whose journal knows nothing would come out as it is, and try again
        // without end. One whose last try has failed tries again after a while.
        let failed = self.reply_to(delete, here).is_some_and(|reply| reply.outcome.is_failure());
        let is_lost = !self.journal.is_sure() && !self.clear_failed && !failed;
        let nothing_to_gain = self.work == Work::Idle || is_lost || !retries;
        if !self.is_idle() || over == [delete] && nothing_to_gain {
            return false;
        }
        let mut fresh = self.without(version);
        let before = self.forgotten_durably().clone();
        fresh.rare.get_or_insert_default().forgotten_before = Some(before);
        fresh.put_first(self.log.op(delete), here, self.reply_to(delete, here));
        // What is deleted again is what there is here, by whatever it was made.
        fresh.made.extend(self.made.remove_entry(here));
        fresh.journal = self.journal.anew();
        fresh.due = core::mem::take(&mut self.due);
        fresh.waiting = core::mem::take(&mut self.waiting);
        fresh.looking = self.looking;
        *self = fresh;
        true
    }

    /// What a site lacks that has this version and is not told of what is forgotten.
    pub(super) fn forgotten_beyond(&self, version: &Version) -> Option<&Version> {
        let forgotten = self.log.forgotten();
        let lacks =
            |(site, &number): (&SiteId, &u64)| version.get(site).is_none_or(|&n| n < number);
        forgotten.iter().any(lacks).then_some(forgotten)
    }
}

impl Replica {
    /// Goes on with what can be forgotten of a resource, now that it has changed.
    /// `retries`: what has failed before may be tried again now.
    pub(super) fn bury(&mut self, id: &ResourceId, retries: bool, now: Now, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        if let Some(delete) = resource.forgettable(&self.here) {
            return self.forget(id, delete, now, out);
        }
        if resource.due.is_empty() {
            return;
        }
        let due = resource.due.clone();
        let all_over = resource.log.iter().all(|(_, op)| covers(&due, &op.id));
        if all_over && let Some(delete) = resource.deleted(&self.here) {
            return self.forget(id, delete, now, out);
        }
        let (before, sites) = (resource.digest(), resource.sites().clone());
        let (forgotten, known) = (resource.forgotten_durably().clone(), resource.log.len());
        if !all_over && resource.trim(&due) {
            resource.due.clear();
            if *resource.log.forgotten() == forgotten && resource.log.len() == known {
                return;
            }
            resource.forget_contradictions(&due);
            out.persist(Durable::Trimmed { resource: id.clone(), version: due });
        } else if !resource.delete_again(&self.here, &due, retries) {
            // This site, too, has run the delete that others forgot it by, and knows it no more.
            let last =
                resource.log.iter().map(|(op, _)| op).max_by_key(|&op| resource.log.op(op).key());
            let may_forget = all_over && resource.is_idle() && self.withheld.contains_key(id);
            if let Some(last) = last.filter(|_| may_forget) {
                self.forget(id, last, now, out);
            } else if !retries {
                self.arm(now, self.settings.compare_every, Alarm::Bury(id.clone()));
            }
            return;
        }
        let waiting = resource.waiting.drain();
        let (after, now_at) = (resource.digest(), resource.sites().clone());
        for site in sites.iter().filter(|&site| *site != self.here) {
            let shared = self.shared.entry(site.clone()).or_default();
            *shared = shared.wrapping_sub(before);
        }
        for site in now_at.iter().filter(|&site| *site != self.here) {
            let shared = self.shared.entry(site.clone()).or_default();
            *shared = shared.wrapping_add(after);
        }
        // What waited for something that is forgotten waits no longer.
        let here = self.here.clone();
        self.take_each(&here, id, waiting, now, out);
        self.proceed(id, now, out);
    }

    fn forget(&mut self, id: &ResourceId, delete: Ix, now: Now, out: &mut Outbox) {
        let Some(mut resource) = self.resources.remove(id) else { return };
        for site in resource.sites().iter().filter(|&site| *site != self.here) {
            let shared = self.shared.entry(site.clone()).or_default();
            *shared = shared.wrapping_sub(resource.digest());
            self.alarms.cancel(&Alarm::Ask(id.clone(), site.clone()));
        }
        for ticket in self.awaited.remove(id).unwrap_or_default().into_values().flatten() {
            out.answer(ticket, Answer::Done);
            self.alarms.cancel(&Alarm::Deadline(ticket));
            self.waiters.remove(&ticket);
        }
        let mut version = resource.version();
        join(&mut version, &resource.due);
        // Numbers that this site has used beyond those may stand for records of a new life, which it has lost.
        version.entry(self.here.clone()).or_default();
        let op = resource.log().op(delete);
        let tomb = Tomb { version, by: op.id.clone(), at: op.at };
        self.tombs.insert(id.clone(), tomb);
        self.outlive(id);
        self.keep_tomb(id, out);
        out.tell(Event::Forgotten(id.clone()));
        // What waited may be the first of a new life.
        let here = self.here.clone();
        if self.take_each(&here, id, resource.waiting.drain(), now, out) {
            self.proceed(id, now, out);
        }
    }

    /// Takes note that another site of a forgotten resource has forgotten more of it. Replies that did
    /// not get here before this site forgot are kept by none; without this, a new life that follows
    /// them would wait for them forever.
    fn raise_tomb(&mut self, from: &SiteId, id: &ResourceId, version: &Version, out: &mut Outbox) {
        // This site knows which numbers it has used, unless it has lost some.
        let used = self.last_number(id).max(self.floor(id));
        let forgets = self.withheld.contains_key(id) || self.gap.is_some();
        if forgets && !self.tombs.contains_key(id) {
            // The tombstone is among what was lost. It names all sites of the resource.
            if [from, &self.here].iter().all(|site| version.contains_key(*site)) {
                self.take_over_tomb(id, version);
                self.keep_tomb(id, out);
            }
            return;
        }
        let Some(tomb) = self.tombs.get_mut(id) else { return };
        let known = tomb.version.clone();
        if !known.contains_key(from) {
            return;
        }
        let mut version = version.clone();
        version.retain(|site, number| *site != self.here || *number <= used || forgets);
        join(&mut tomb.version, &version);
        if tomb.version != known {
            self.keep_tomb(id, out);
        }
    }

    /// Remembers how far an earlier life of a resource is forgotten that is not here. Without this, a new life
    /// that follows it would wait forever for what no site keeps.
    pub(super) fn take_over_tomb(&mut self, id: &ResourceId, version: &Version) {
        // Which operation deleted it is not known here. Any record that the line covers stands for it: a new
        // life follows all of them.
        let Some((site, &number)) = version.iter().rfind(|&(_, &number)| number > 0) else {
            return;
        };
        let by = OpId { site: site.clone(), number };
        let nothing = || Tomb { version: Version::new(), by, at: Timestamp::default() };
        join(&mut self.tombs.entry(id.clone()).or_insert_with(nothing).version, version);
    }

    /// Forgets a record that comes after its resource was forgotten, and says nothing that counts since then.
    /// A new life may follow it. Whether that raises the tombstone.
    pub(super) fn pass_over(&mut self, sent: &Sent) -> bool {
        let id = sent.record.id();
        let Some(tomb) = self.tombs.get_mut(sent.record.resource()) else { return false };
        let known = tomb.version.get(&id.site).copied().unwrap_or(0);
        let is_next = sent.after <= known && known < id.number && id.number <= LAST_NUMBER;
        if is_next {
            tomb.version.insert(id.site.clone(), id.number);
        }
        is_next
    }

    /// Writes a tombstone down again, with all that outlasts it: a store drops what was written of the
    /// resource before that.
    pub(super) fn keep_tomb(&mut self, id: &ResourceId, out: &mut Outbox) {
        let Some(tomb) = self.tombs.get(id) else { return };
        let (version, by, at) = (tomb.version.clone(), tomb.by.clone(), tomb.at);
        out.persist(Durable::Forgotten { resource: id.clone(), version, by, at });
        self.keep_held(id, out);
        self.keep_floor(id, out);
        self.keep_withheld(id, out);
    }

    /// What is forgotten of a resource that is not here.
    pub(super) fn tomb(&self, id: &ResourceId) -> Option<&Tomb> {
        self.tombs.get(id).filter(|_| !self.resources.contains_key(id))
    }

    /// Tells a site that shows a copy of a resource that it is forgotten here.
    pub(super) fn tell_forgotten(&self, to: &SiteId, id: &ResourceId, out: &mut Outbox) {
        if let Some(tomb) = self.tomb(id).filter(|tomb| tomb.version.contains_key(to)) {
            out.send(to, Message::Forgotten(vec![(id.clone(), tomb.version.clone())]));
        }
    }

    /// Tells the sites of a resource that its old life is forgotten, when an operation begins a new
    /// one here that follows the delete where it was received: some have yet to forget.
    pub(super) fn tell_trimmed(&self, record: &Record, out: &mut Outbox) {
        if let Record::Operation(op) = record
            && let Some(declared) = &op.declares
            && let Some(resource) = self.resources.get(&op.resource)
            && op.parents.iter().any(|parent| resource.log.is_forgotten(parent))
            && let Some(forgotten) = resource.forgotten_beyond(&declared.base)
        {
            for to in resource.sites().iter().filter(|site| self.up.contains(site)) {
                out.send(to, Message::Forgotten(vec![(op.resource.clone(), forgotten.clone())]));
            }
        }
    }

    /// Whether another site counts more records of this site than there can be. It would use up the numbers that
    /// are left.
    pub(super) fn overstates(&self, id: &ResourceId, version: &Version) -> bool {
        let used = self.last_number(id).max(self.floor(id));
        version.get(&self.here).is_some_and(|&number| number > used.saturating_add(UNKNOWN))
    }

    /// Hears that a site has forgotten records of a resource.
    pub(super) fn heard_forgotten(
        &mut self,
        from: &SiteId,
        id: &ResourceId,
        version: &Version,
        now: Now,
        out: &mut Outbox,
    ) {
        let counted = version.values().all(|&number| number <= LAST_NUMBER);
        if !counted || self.overstates(id, version) {
            let (from, resource) = (from.clone(), id.clone());
            let why = "it forgets records with numbers that can not have been used";
            return out.tell(Event::Refused { from, resource, why });
        }
        let Some(resource) = self.resources.get_mut(id) else {
            return self.raise_tomb(from, id, version, out);
        };
        if !resource.sites().contains(from) {
            let (from, resource) = (from.clone(), id.clone());
            let why = "it forgets a resource that is not its own";
            return out.tell(Event::Refused { from, resource, why });
        }
        // The delete may be what is lost here.
        let deleted = resource.log.deletes().next().is_some() || self.withheld.contains_key(id);
        let over = |op: &OpId| covers(version, op) && !resource.log.is_forgotten(op);
        if !deleted && resource.log.iter().any(|(_, op)| over(&op.id)) {
            let (from, resource) = (from.clone(), id.clone());
            let why = "it has deleted other operations by the same numbers: was this site restored from an old backup?";
            return out.tell(Event::Refused { from, resource, why });
        }
        join(&mut resource.due, version);
        self.bury(id, true, now, out);
    }
}
