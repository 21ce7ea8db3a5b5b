//! What a site has shown is what its application holds, all sites know it, and a resource of which
//! two sites show different things is never called settled.
//!
//! A site that has lost something may have run more than anybody knows since it showed what it had.

use std::collections::BTreeSet;

use cheops_core::{id::ResourceId, replica::State};

use super::{Held, Sky};
use crate::support::world::print;

fn is_withheld(world: &Sky, n: usize, id: &ResourceId) -> bool {
    world.sites[n].replica.as_ref().is_some_and(|replica| replica.is_withheld(id))
}

/// Whether each site that can has shown what came of the block, and all know that.
pub fn is_complete(world: &Sky, held: &Held<'_>) -> bool {
    held.iter().all(|(n, site, resource)| {
        let nothing = resource.block().next().is_none() || resource.is_deleting();
        resource.config().show.is_none()
            || resource.is_stuck()
            || is_withheld(world, *n, resource.id())
            || nothing
            || held.iter().all(|(_, _, other)| other.shown(site).is_some())
    })
}

/// How many sites have shown what they have, and whether that differs.
pub fn check(world: &Sky, held: &Held<'_>) -> (u64, u64) {
    let Some((_, _, first)) = held.first() else { return (0, 0) };
    let mut prints = BTreeSet::new();
    let mut count = 0;
    for (n, site, resource) in held {
        let shown = resource.shown(site);
        assert_eq!(first.shown(site), shown, "{} of {site} at {site}", resource.id());
        let Some(shown) = shown else { continue };
        count += 1;
        prints.insert(shown.print);
        if let Some(found) = shown.print {
            let app = world.app(*n, resource.id());
            let right = found == print(&app) || is_withheld(world, *n, resource.id());
            assert!(right, "{} at {site} holds {app:?}, and has shown {found:?}", resource.id());
        }
    }
    let apart = prints.len() > 1;
    for (_, site, resource) in held {
        assert_eq!(resource.shows_differ(), apart, "{} at {site}", resource.id());
        let settled = resource.state() == State::Settled;
        assert!(!(apart && settled), "{} at {site} is settled, and shows differ", resource.id());
    }
    (count, u64::from(apart))
}
