//! The replies of all runs are known at all sites, and all sites have run what the block asks for.
//!
//! A command that a power cut ended before it took effect is no run.

use std::collections::BTreeMap;

use super::{Held, Sky};

pub fn check(world: &Sky, held: &Held<'_>) {
    for (n, site, resource) in held {
        let mut attempts = BTreeMap::new();
        for (of, op, attempt) in world.sites[*n].ended() {
            let forgotten = resource.forgotten().get(&op.site).is_some_and(|&n| op.number <= n);
            if of == resource.id() && !forgotten {
                let last: &mut u32 = attempts.entry(op).or_default();
                *last = (*last).max(*attempt);
            }
        }
        for (op, attempt) in attempts {
            for (_, elsewhere, other) in held {
                let reply = other.reply(op, site);
                assert!(
                    reply.is_some_and(|reply| reply.attempt >= attempt),
                    "{elsewhere} has not heard of run {attempt} of {} {op} at {site}: {reply:?}",
                    resource.id()
                );
            }
        }
        if !resource.is_stuck() {
            let from = resource.resolution().last_replacing().unwrap_or(0);
            for op in resource.block().skip(from) {
                let ran = resource.reply(&op.id, site).is_some();
                assert!(ran, "{site} has not run {} {}, and rests", resource.id(), op.id);
            }
        }
    }
}
