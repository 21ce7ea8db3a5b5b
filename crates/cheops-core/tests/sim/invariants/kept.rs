//! What was accepted is never lost: in the end it is in the log of every site of the resource, or
//! was forgotten at every site after a delete (of which more in `buried.rs`). But a site may lose what
//! it has accepted, before anybody else has it.

use cheops_core::{
    id::{OpId, ResourceId},
    replica::Version,
};

use super::{Sky, held};

pub fn check<'a>(world: &'a Sky, accepted: impl Iterator<Item = (&'a ResourceId, &'a OpId)>) {
    for (resource, op) in accepted {
        if world.watch.lost.is_gone(&(resource.clone(), op.clone())) {
            continue;
        }
        let held = held(world, resource);
        let covers = |version: &Version| version.get(&op.site).is_some_and(|&n| op.number <= n);
        let Some(sites) = held.first().map(|(_, _, resource)| resource.sites()) else {
            let replicas = world.sites.iter().filter_map(|site| site.replica.as_ref());
            let mut tombs = replicas.filter_map(|replica| replica.forgotten(resource)).peekable();
            assert!(tombs.peek().is_some(), "nobody knows {resource}, with {op} in it");
            assert!(tombs.all(covers), "{resource} is forgotten, but not {op}");
            continue;
        };
        for site in sites.iter() {
            let found = held.iter().find(|(_, name, _)| *name == site).map(|found| found.2);
            let known = found.is_some_and(|r| r.log().find(op).is_some() || covers(r.forgotten()));
            assert!(known, "{site} lacks {resource} {op}");
        }
    }
}
