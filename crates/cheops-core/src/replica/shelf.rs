//! What many resources have in common, so that each need not have its own: names, sets of sites,
//! configurations and compiled matrices.
//!
//! What must stay true: nothing but memory depends on it, so it takes no part when two replicas are
//! compared; and it is bounded.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use super::{Record, Resource};
use crate::{
    id::{Author, Kind, Sites},
    matrix::{Config, Matrix},
    operation::{Declaration, Operation},
    rules::Rules,
};

/// How many of a sort are kept. When there are more, all are dropped, and those in use come back.
const MOST: usize = 1_024;

#[derive(Debug, Clone, Default)]
pub(super) struct Shelf {
    kinds: BTreeSet<Kind>,
    authors: BTreeSet<Author>,
    sites: BTreeSet<Sites>,
    configs: BTreeMap<u64, Arc<Config>>,
    rules: BTreeMap<u64, Arc<Rules>>,
}

impl PartialEq for Shelf {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Shelf {}

impl Hash for Shelf {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Shelf {
    /// Lets a record that nothing else refers to yet share what it can.
    pub(super) fn record(&mut self, record: &mut Record) {
        if let Record::Operation(op) = record
            && let Some(op) = Arc::get_mut(op)
        {
            self.operation(op);
        }
    }

    /// Lets an operation share what it can.
    pub(super) fn operation(&mut self, op: &mut Operation) {
        op.kind = kept(&mut self.kinds, &op.kind);
        op.author = kept(&mut self.authors, &op.author);
        if let Some(declared) = op.declares.as_deref_mut() {
            let Declaration { sites, config, base: _ } = declared;
            *sites = kept(&mut self.sites, sites);
            *config = kept_by_hash(&mut self.configs, config, hash(&**config));
        }
    }

    /// Lets a resource share what it can.
    pub(super) fn resource(&mut self, resource: &mut Resource) {
        let matrix: &Matrix = resource.resolution.rules().matrix();
        let hash = hash(matrix);
        let rules = kept_by_hash(&mut self.rules, resource.resolution.shared_rules(), hash);
        resource.resolution.share_rules(rules);
    }
}

/// The one that is kept and equal to a value; from now on that one, if there is none.
fn kept<T: Ord + Clone>(all: &mut BTreeSet<T>, value: &T) -> T {
    if let Some(kept) = all.get(value) {
        return kept.clone();
    }
    if all.len() >= MOST {
        all.clear();
    }
    all.insert(value.clone());
    value.clone()
}

/// The same for what has no order.
fn kept_by_hash<T: PartialEq>(
    all: &mut BTreeMap<u64, Arc<T>>,
    value: &Arc<T>,
    hash: u64,
) -> Arc<T> {
    match all.get(&hash) {
        Some(kept) if Arc::ptr_eq(kept, value) || **kept == **value => return kept.clone(),
        Some(_) => {}
        None => {
            if all.len() >= MOST {
                all.clear();
            }
            all.insert(hash, value.clone());
        }
    }
    value.clone()
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = SipHasher13::new();
    value.hash(&mut hasher);
    hasher.finish()
}
