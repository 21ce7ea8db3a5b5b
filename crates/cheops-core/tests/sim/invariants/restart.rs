//! A site that is started again knows all that it knew: its operations and how they went, what is held and decided,
//! and up to where it has forgotten.

use cheops_core::replica::{Replica, Resource};

use super::Sky;

pub fn check(world: &Sky) {
    (0..world.sites.len()).for_each(|n| check_site(world, n));
}

pub fn check_site(world: &Sky, n: usize) {
    let site = &world.sites[n];
    let Some(live) = &site.replica else { return };
    let restored = world.restored(n);
    for resource in live.resources() {
        let what = format!("{} at {}", resource.id(), site.name);
        let Some(again) = restored.resource(resource.id()) else {
            panic!("{what} is not there after a restart");
        };
        knows(resource, again, &what);
    }
    for (id, version) in live.tombs() {
        assert_eq!(restored.forgotten(id), Some(version), "tombstone of {id} at {}", site.name);
    }
    let held = |replica: &Replica| replica.held().cloned().collect::<Vec<_>>();
    assert_eq!(held(live), held(&restored), "held at {}", site.name);
    for (id, op) in world.watch.answered.accepted() {
        let decisions = [live, &restored].map(|replica| replica.decision(id, op));
        assert_eq!(decisions[0], decisions[1], "decision about {id} {op} at {}", site.name);
    }
    assert!(live.withheld().eq(restored.withheld()), "withheld at {}", site.name);
}

/// What is forgotten while a delete is run again is not written down before that is over, so a restarted site may
/// know more.
fn knows(live: &Resource, again: &Resource, what: &str) {
    for (_, op) in live.log().iter() {
        assert!(again.log().find(&op.id).is_some(), "{what} lacks {} after a restart", op.id);
        for reply in live.sites().iter().filter_map(|site| live.reply(&op.id, site)) {
            let after = again.reply(&op.id, &reply.id.site);
            assert_eq!(Some(reply), after, "{what}: reply of {} to {}", reply.id.site, op.id);
        }
    }
}
