//! One command at a time works on a resource at a site: a run, or the `Reset` command. That holds
//! for a command that outlived its agent, too.

use std::collections::BTreeSet;

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::Effect,
};

use crate::support::world::Seen;

#[derive(Default)]
pub struct Alone {
    /// The resources of each site that a command works on.
    busy: BTreeSet<(SiteId, ResourceId)>,
}

impl Alone {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        match seen {
            Seen::Done(Effect::Run { run: id, .. }) => self.start(site, &id.resource),
            Seen::Done(Effect::Clear { resource, .. }) => self.start(site, resource),
            Seen::Took { run, .. } => self.end(site, &run.resource),
            Seen::Emptied(resource) | Seen::NotEmptied(resource) => self.end(site, resource),
            Seen::Crashed { power: true } => self.busy.retain(|(of, _)| of != site),
            _ => {}
        }
    }

    fn start(&mut self, site: &SiteId, resource: &ResourceId) {
        let alone = self.busy.insert((site.clone(), resource.clone()));
        assert!(alone, "{site} starts a command of {resource} beside another");
    }

    fn end(&mut self, site: &SiteId, resource: &ResourceId) {
        self.busy.remove(&(site.clone(), resource.clone()));
    }
}
