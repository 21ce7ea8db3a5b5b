//! Contradictions: two different records of a resource that have the same number. One of the two was made by an
//! agent that was started from a copy, or from an old backup, of a site's data.
//!
//! What must stay true:
//! - once a site knows of a contradiction, the resource is not settled there, also after a restart, until its
//!   records up to that number are forgotten;
//! - every site of the resource hears of it, and so does each site that sends the other record. Sites that have
//!   the same one of the two records can't find it out by comparing. They are told the number and not the other
//!   record: a site that has neither of the two would take that for the true one.

use super::{
    Durable, Message, Outbox, Replica, Resource, Version, forget::covers, resource::LAST_NUMBER,
};
use crate::id::{OpId, ResourceId, SiteId};

impl Resource {
    /// Whether two different records are known to have the same number.
    pub fn is_contradicted(&self) -> bool {
        self.contradiction().is_some()
    }

    /// The number that two different records have.
    pub(super) fn contradiction(&self) -> Option<&OpId> {
        self.rare.as_ref()?.contradiction.as_ref()
    }

    pub(super) fn set_contradiction(&mut self, number: Option<OpId>) {
        if number.is_some() || self.is_contradicted() {
            self.rare.get_or_insert_default().contradiction = number;
        }
    }

    /// Forgets a contradiction with the records that it was about.
    pub(super) fn forget_contradiction(&mut self, forgotten: &Version) {
        if self.contradiction().is_some_and(|number| covers(forgotten, number)) {
            self.set_contradiction(None);
        }
    }

    /// Tells a site of the contradiction, if there is one.
    pub(super) fn tell_contradiction(&self, to: &SiteId, out: &mut Outbox) {
        if let Some(number) = self.contradiction().cloned() {
            out.send(to, Message::Contradicted { resource: self.id().clone(), number });
        }
    }
}

impl Replica {
    /// Takes note that two different records have the same number, and tells the sites that can be reached. It is
    /// written down, since the other record may never come again.
    pub(super) fn contradict(&mut self, id: &ResourceId, number: &OpId, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(id).filter(|known| !known.is_contradicted())
        else {
            return;
        };
        resource.set_contradiction(Some(number.clone()));
        out.persist(Durable::Contradicted { resource: id.clone(), number: number.clone() });
        for site in resource.sites().iter().filter(|site| self.up.contains(site)) {
            resource.tell_contradiction(site, out);
        }
    }

    /// Tells a site that holds a record which contradicts one here, and may not be known to have the resource.
    pub(super) fn tell_contradiction(&self, to: &SiteId, id: &ResourceId, out: &mut Outbox) {
        if let Some(resource) = self.resources.get(id)
            && *to != self.here
            && !resource.sites().contains(to)
        {
            resource.tell_contradiction(to, out);
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
                && number.number <= LAST_NUMBER
                && !resource.log().is_forgotten(number)
        };
        if self.resources.get(id).is_some_and(|resource| concerns(resource)) {
            self.contradict(id, number, out);
        }
    }

    /// Tells a site that can be reached again of the contradictions in what the two share.
    pub(super) fn tell_contradictions(&self, to: &SiteId, out: &mut Outbox) {
        let resources = self.resources.values().filter(|resource| resource.is_contradicted());
        for resource in resources.filter(|resource| resource.sites().contains(to)) {
            resource.tell_contradiction(to, out);
        }
    }
}
