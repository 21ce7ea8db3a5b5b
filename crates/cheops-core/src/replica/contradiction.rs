//! Contradictions: two different records of a resource that have the same number. One of the two was made by an
//! agent that was started from a copy, or from an old backup, of a site's data.
//!
//! What must stay true:
//! - once a site knows of a contradiction, the resource is not settled there, also after a restart, until its
//!   records up to that number are forgotten;
//! - every site of the resource hears of it, and so does each site that sends the other record. Sites that have
//!   the same one of the two records can't find it out by comparing them. They are told the number and not the
//!   other record: a site that has neither of the two would take that for the true one;
//! - the digest of the resource counts each contradiction, so that sites compare until all know of it;
//! - a site believes only what can be: a number that it knows to be used, of a site of the resource.

use alloc::vec::Vec;

use super::{Durable, Message, Outbox, Replica, Resource, Version, forget::covers, stream};
use crate::id::{OpId, ResourceId, SiteId};

impl Resource {
    /// Whether two different records are known to have the same number.
    pub fn is_contradicted(&self) -> bool {
        self.contradictions().next().is_some()
    }

    /// The last number of each site that two different records have.
    fn contradictions(&self) -> impl Iterator<Item = OpId> {
        let known = self.rare.iter().flat_map(|rare| &rare.contradictions);
        known.map(|(site, &number)| OpId { site: site.clone(), number })
    }

    /// Takes note of a contradiction. Whether it says more than what is known.
    pub(super) fn add_contradiction(&mut self, number: &OpId) -> bool {
        let known = self.rare.as_ref().map(|rare| &rare.contradictions);
        if known.is_some_and(|known| covers(known, number)) {
            return false;
        }
        let contradictions = &mut self.rare.get_or_insert_default().contradictions;
        let earlier = contradictions.insert(number.site.clone(), number.number);
        let mark = |n| stream::mark_contradiction(self.id(), &number.site, n);
        let change = mark(number.number).wrapping_sub(earlier.map_or(0, mark));
        self.add_to_digest(change);
        true
    }

    /// Takes over the contradictions of a resource that this one takes the place of.
    pub(super) fn keep_contradictions(&mut self, of: &Self) {
        for number in of.contradictions() {
            self.add_contradiction(&number);
        }
    }

    /// Forgets contradictions with the records that they were about.
    pub(super) fn forget_contradictions(&mut self, forgotten: &Version) {
        let over: Vec<OpId> =
            self.contradictions().filter(|number| covers(forgotten, number)).collect();
        for number in over {
            let mark = stream::mark_contradiction(self.id(), &number.site, number.number);
            self.add_to_digest(0_u64.wrapping_sub(mark));
            if let Some(rare) = &mut self.rare {
                rare.contradictions.remove(&number.site);
            }
        }
    }

    /// Tells a site of the contradictions, if there are any.
    pub(super) fn tell_contradictions(&self, to: &SiteId, out: &mut Outbox) {
        for number in self.contradictions() {
            out.send(to, Message::Contradicted { resource: self.id().clone(), number });
        }
    }
}

impl Replica {
    /// Takes note that two different records have the same number, and tells the sites that can be reached. It is
    /// written down, since the other record may never come again.
    pub(super) fn contradict(&mut self, id: &ResourceId, number: &OpId, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        let before = resource.digest();
        if !resource.add_contradiction(number) {
            return;
        }
        self.digest_changed(id, before);
        let told = || (id.clone(), number.clone());
        let (resource, number) = told();
        out.persist(Durable::Contradicted { resource, number });
        let sites = self.resources.get(id).into_iter().flat_map(|resource| resource.sites().iter());
        for site in sites.filter(|site| self.up.contains(site)) {
            let (resource, number) = told();
            out.send(site, Message::Contradicted { resource, number });
        }
    }

    /// Tells a site of contradictions that sent a record which contradicts one here, and is not known to have the
    /// resource.
    pub(super) fn tell_other_site(&self, to: &SiteId, id: &ResourceId, out: &mut Outbox) {
        if let Some(resource) = self.resources.get(id)
            && *to != self.here
            && !resource.sites().contains(to)
        {
            resource.tell_contradictions(to, out);
        }
    }

    /// Hears from another site that two different records have the same number.
    pub(super) fn heard_contradiction(
        &mut self,
        from: &SiteId,
        id: &ResourceId,
        number: &OpId,
        out: &mut Outbox,
    ) {
        let concerns = |resource: &Resource| {
            let sites = resource.sites();
            [from, &number.site].iter().all(|site| sites.contains(site))
                && number.number <= resource.streams().high(&number.site)
                && !covers(resource.forgotten(), number)
        };
        if self.resources.get(id).is_some_and(|resource| concerns(resource)) {
            self.contradict(id, number, out);
        }
    }
}
