//! What was accepted is never lost: in the end it is in the log of every site of the resource.

use cheops_core::id::{OpId, ResourceId};

use super::{Sky, held};

pub fn check<'a>(world: &'a Sky, accepted: impl Iterator<Item = (&'a ResourceId, &'a OpId)>) {
    for (resource, op) in accepted {
        let held = held(world, resource);
        let sites = held.first().map(|(_, _, resource)| resource.sites());
        let sites = sites.unwrap_or_else(|| panic!("nobody knows {resource}, with {op} in it"));
        for site in sites.iter() {
            let log = held.iter().find(|(_, name, _)| *name == site).map(|found| found.2.log());
            assert!(log.is_some_and(|log| log.find(op).is_some()), "{site} lacks {resource} {op}");
        }
    }
}
