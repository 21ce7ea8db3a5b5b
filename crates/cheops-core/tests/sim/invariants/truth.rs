//! Where the matrix tells the truth about the application, its state at each site is that of a
//! fresh one that runs the block once.
//!
//! Left out are sites that wait for a person's decision, those where an operation that counts is in
//! doubt, and those where the replacing operation that the state should begin with has failed.
//! What failed at a site is no part of the state there.

use cheops_core::{id::SiteId, plan::Outcome, replica::Resource};

use super::{Held, Sky};
use crate::{register::Register, support::world::App};

/// The state that a site should be in; nothing if it can't be told.
fn expected(resource: &Resource, site: &SiteId) -> Option<Register> {
    if resource.is_stuck() {
        return None;
    }
    let from = resource.resolution().last_replacing();
    let mut fresh = Register::default();
    for (n, op) in resource.block().skip(from.unwrap_or(0)).enumerate() {
        match resource.reply(&op.id, site)?.outcome {
            Outcome::Ok => drop(fresh.run(op)),
            Outcome::Ko | Outcome::Denied if n > 0 || from.is_none() => {}
            Outcome::Ko | Outcome::Denied | Outcome::Unknown => return None,
        }
    }
    Some(fresh)
}

/// Compares all sites with what they should be. How many could be compared.
pub fn check(world: &Sky, held: &Held<'_>) -> u64 {
    let mut compared = 0;
    for (n, site, resource) in held {
        if let Some(expected) = expected(resource, site) {
            let block: Vec<String> = resource.block().map(|op| op.id.to_string()).collect();
            let found = world.app(*n, resource.id());
            assert_eq!(found, expected, "{} at {site}, block {block:?}", resource.id());
            compared += 1;
        }
    }
    compared
}
