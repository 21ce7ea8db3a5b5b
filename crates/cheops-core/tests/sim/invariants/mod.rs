//! What must hold, whatever happens: a file each.
//!
//! Some are about every step and look on while the storm goes; the others are about the sites as
//! they are after it. Each panics with what it found.

pub mod agree;
pub mod alone;
pub mod answered;
pub mod at_home;
pub mod buried;
pub mod durable;
pub mod glance;
pub mod kept;
pub mod lost;
pub mod once;
pub mod quiet;
pub mod receipts;
pub mod refused;
pub mod replies;
pub mod restart;
pub mod shown;
pub mod truth;

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::Resource,
};

use crate::{
    register::Register,
    support::world::{Seen, Watch, World},
    trace::Trace,
};

/// A resource at all of the sites that hold it, by the number of the site.
pub type Held<'a> = Vec<(usize, &'a SiteId, &'a Resource)>;

/// All that look on.
#[derive(Default)]
pub struct Witness {
    pub trace: Trace,
    pub durable: durable::Durable,
    pub once: once::Once,
    pub at_home: at_home::AtHome,
    pub answered: answered::Answered,
    pub quiet: quiet::Quiet,
    pub buried: buried::Buried,
    pub lost: lost::Lost,
    pub alone: alone::Alone,
}

impl Default for Trace {
    fn default() -> Self {
        Self::none()
    }
}

impl Watch for Witness {
    fn see(&mut self, now: u64, site: &SiteId, seen: Seen<'_>) {
        self.trace.see(now, site, seen);
        self.durable.see(site, seen);
        self.once.see(site, seen);
        self.at_home.see(site, seen);
        self.answered.see(site, seen);
        self.quiet.see(site, seen);
        self.buried.see(site, seen);
        self.lost.see(site, seen);
        self.alone.see(site, seen);
        refused::see(site, seen);
    }
}

pub type Sky = World<Register, Witness>;

/// The resource at each site that holds it.
pub fn held<'a>(world: &'a Sky, resource: &ResourceId) -> Held<'a> {
    let found = |(n, site): (usize, &'a crate::support::world::Site<Register>)| {
        Some((n, &site.name, site.replica.as_ref()?.resource(resource)?))
    };
    world.sites.iter().enumerate().filter_map(found).collect()
}

/// A record: the resource, and its place in a stream.
pub type RecordKey = (ResourceId, OpId);
