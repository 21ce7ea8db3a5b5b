//! Sites that have the same set of records of a resource have the same sites, configuration, block
//! and receipts, in whatever order the records came.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::OpId,
    replica::{Resource, Version},
    resolve::Receipt,
};

use super::Held;

/// What a resource amounts to, in words that mean the same at every site.
#[derive(Debug, PartialEq)]
struct Amounts {
    block: Vec<OpId>,
    receipts: BTreeMap<OpId, (&'static str, Option<OpId>, Option<usize>)>,
}

fn amounts(resource: &Resource) -> Amounts {
    let log = resource.log();
    let id = |ix| Some(log.op(ix).id.clone());
    let receipts = log.iter().filter_map(|(ix, op)| {
        let receipt = match resource.resolution().receipt(log, ix)? {
            Receipt::Void => ("void", None, None),
            Receipt::Over { by } => ("over", id(by), None),
            Receipt::Fallen { by, row } => ("fallen", id(by), row),
        };
        Some((op.id.clone(), receipt))
    });
    Amounts {
        block: resource.block().map(|op| op.id.clone()).collect(),
        receipts: receipts.collect(),
    }
}

/// The operations in its log.
pub fn logged(resource: &Resource) -> BTreeSet<OpId> {
    resource.log().iter().map(|(_, op)| op.id.clone()).collect()
}

/// Compares the sites that know the same. How many comparisons that were.
pub fn check(held: &Held<'_>) -> u64 {
    // One of two that know the same may have yet to forget what the other has.
    let mut firsts: BTreeMap<(Version, BTreeSet<OpId>), (&Resource, Amounts)> = BTreeMap::new();
    let mut compared = 0;
    for (_, site, resource) in held {
        let amounts = amounts(resource);
        let knows = (resource.version(), logged(resource));
        if let Some((first, expected)) = firsts.get(&knows) {
            let what = format!("{} at {site}, version {:?}", resource.id(), resource.version());
            assert_eq!(amounts, *expected, "{what}");
            assert_eq!(resource.sites(), first.sites(), "{what}");
            assert_eq!(resource.config(), first.config(), "{what}");
            compared += 1;
        } else {
            firsts.insert(knows, (resource, amounts));
        }
    }
    compared
}
