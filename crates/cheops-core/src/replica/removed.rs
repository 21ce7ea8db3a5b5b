//! Sites that were removed: a resource keeps them among its sites, and waits for them no more.
//!
//! Who belongs is decided elsewhere; the replica is told. What must stay true: nothing but what others
//! wait for changes with it. The log, the block and what is run do not depend on who was removed, so
//! sites that hear of it at different times run the same.

use alloc::{collections::BTreeSet, sync::Arc, vec::Vec};

use super::{Outbox, Replica};
use crate::{
    id::{ResourceId, SiteId},
    time::Now,
};

impl Replica {
    /// Waits for none of these sites, and for all others. To be told before the first input, too: what
    /// is written down does not say it.
    pub fn leave_out(&mut self, mut sites: BTreeSet<SiteId>) {
        sites.remove(&self.here);
        self.removed = Arc::new(sites);
        for resource in self.resources.values_mut() {
            resource.leave_out(self.removed.clone());
            resource.refresh();
        }
    }

    /// The sites that were removed.
    pub fn removed(&self) -> &BTreeSet<SiteId> {
        &self.removed
    }

    /// Hears who was removed: some who wait for them have waited enough.
    pub(super) fn remove(&mut self, sites: BTreeSet<SiteId>, now: Now, out: &mut Outbox) {
        let before = self.removed.clone();
        self.leave_out(sites);
        let changed: Vec<&SiteId> = before.symmetric_difference(&self.removed).collect();
        let touched = self
            .resources
            .values()
            .filter(|resource| changed.iter().any(|site| resource.sites().contains(site)));
        let touched: Vec<ResourceId> = touched.map(|resource| resource.id().clone()).collect();
        for id in touched {
            if let Some(resource) = self.resources.get_mut(&id) {
                resource.news.of_all();
            }
            self.proceed(&id, now, out);
        }
    }
}
