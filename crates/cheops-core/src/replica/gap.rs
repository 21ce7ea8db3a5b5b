//! Gaps in streams: numbers that a site has used, and whose records are not here.
//!
//! A site that has lost records of its own goes on with higher numbers. A site that takes those in before
//! it has the lost ones has a gap in that stream. The lost ones may still be at a third site, which was
//! removed for a while or was not heard of in time. They are taken in whenever they come, and a site that
//! needs one asks for it.
//!
//! What must stay true:
//! - every operation and every reply that stands at some site of a resource comes to all of them, in
//!   whatever gap it is;
//! - what was forgotten fills no gap. Neither does what was cut when a site was let back in: no site keeps
//!   it, and nobody takes it any more under the key that it is sealed with;
//! - two sites with equal versions and different digests have different gaps, or two operations have
//!   one number. Each asks the other for all that it has, and so finds out which.

use alloc::{vec, vec::Vec};

use super::{
    Event, Message, Outbox, Record, Replica, Resource, Sent, Stretch, Version, forget::join,
};
use crate::id::{OpId, ResourceId, SiteId};

impl Resource {
    /// Whether a record whose number is known belongs in a gap. A reply that another one stands for does
    /// not, and neither does a print: the last one alone counts.
    pub(super) fn fills_gap(&self, record: &Record) -> bool {
        match record {
            Record::Operation(op) => self.is_gap(&op.id),
            Record::Reply(reply) => {
                let stands = || self.log.find(&reply.op).is_none_or(|op| self.stands(op, reply));
                self.is_gap(&reply.id) && !self.log.is_forgotten(&reply.op) && stands()
            }
            Record::Shown(_) => false,
        }
    }

    /// Whether there is nothing here under a number that is known, and something may be.
    fn is_gap(&self, id: &OpId) -> bool {
        !self.streams().contains(id) && !self.log.is_forgotten(id)
    }

    /// What to ask others for: all beyond what is known here. Where something waits for an operation in
    /// a gap, that is asked for too, with all that may be missing around it.
    pub(super) fn wanted(&self) -> Version {
        let mut version = self.version();
        for id in self.waiting.missing().filter(|id| self.is_gap(id)) {
            let forgotten = self.log.forgotten().get(&id.site).copied().unwrap_or(0);
            let before = self.streams().before(id).max(forgotten);
            if let Some(known) = version.get_mut(&id.site) {
                *known = before.min(*known);
            }
        }
        version
    }
}

impl Replica {
    /// Goes on where two sites have the same versions and different digests: finds the resource, and
    /// asks for all that the other site has of it. Whether what differs is still to be found out.
    pub(super) fn ask_for_all(
        &mut self,
        from: &SiteId,
        stretch: &Stretch,
        out: &mut Outbox,
    ) -> bool {
        let ids: Vec<ResourceId> =
            self.shared_with(from, stretch).map(|resource| resource.id().clone()).collect();
        let [id] = &ids[..] else {
            self.compare_each(from, stretch, out);
            return true;
        };
        let Some(resource) = self.resources.get_mut(id) else { return false };
        if resource.is_contradicted() {
            let why = "it knows another operation by the same number: was a site restored from an old backup?";
            out.tell(Event::Refused { from: from.clone(), resource: id.clone(), why });
            return false;
        }
        // The other site may have yet to forget what is forgotten here.
        let forgotten = resource.log.forgotten().clone();
        if !forgotten.is_empty() {
            out.send(from, Message::Forgotten(vec![(id.clone(), forgotten.clone())]));
        }
        out.send(from, Message::Want(vec![(id.clone(), forgotten.clone())]));
        resource.rare.get_or_insert_default().repair = Some((from.clone(), forgotten));
        true
    }

    /// Takes note of how far a site has answered that was asked for all that it has. What to ask it for
    /// next; nothing if it was not asked.
    pub(super) fn answered(
        &mut self,
        from: &SiteId,
        id: &ResourceId,
        records: &[Sent],
    ) -> Option<Version> {
        let resource = self.resources.get_mut(id)?;
        let known = resource.version();
        let repair = &mut resource.rare.as_mut()?.repair;
        let (_, version) = repair.as_mut().filter(|(site, _)| site == from)?;
        for id in records.iter().map(|sent| sent.record.id()) {
            join(version, &Version::from([(id.site.clone(), id.number)]));
        }
        let version = version.clone();
        // When all of it has come, an exchange of new records is none of this.
        let is_reached = |(site, number): (&SiteId, &u64)| version.get(site) >= Some(number);
        repair.take_if(|_| known.iter().all(is_reached));
        Some(version)
    }
}
