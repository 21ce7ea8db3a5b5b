//! What is forgotten is over: it does not follow the delete that it is forgotten by. And no number is
//! used twice, not even after a resource was forgotten and created again.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    operation::Operation,
    replica::{Durable, Effect, Record},
};

use super::RecordKey;
use crate::support::world::Seen;

#[derive(Default)]
pub struct Buried {
    /// The numbers that sites have used, and what for: what a site has lost may come back to it.
    used: BTreeMap<RecordKey, Record>,
    /// All operations that there ever were.
    ops: BTreeMap<ResourceId, BTreeMap<OpId, Operation>>,
    /// The operations that were forgotten together.
    ends: BTreeSet<(ResourceId, Vec<OpId>)>,
    /// How often something was forgotten, and how often a part.
    pub forgotten: u64,
    pub trimmed: u64,
}

impl Buried {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        match seen {
            Seen::Done(Effect::Persist(Durable::Record(record, _)))
                if record.id().site == *site =>
            {
                let key = (record.resource().clone(), record.id().clone());
                if let Record::Operation(op) = record {
                    let ops = self.ops.entry(op.resource.clone()).or_default();
                    ops.insert(op.id.clone(), Operation::clone(op));
                }
                let first = self.used.entry(key).or_insert_with(|| record.clone());
                assert_eq!(first, record, "{site} uses a number twice");
            }
            Seen::Done(Effect::Persist(Durable::Forgotten { resource, version, by, .. })) => {
                self.forgotten += 1;
                let covers =
                    |id: &OpId| version.get(&id.site).is_some_and(|&number| id.number <= number);
                let ops = self.ops[resource].values().filter(|op| covers(&op.id));
                let ids: Vec<OpId> = ops.clone().map(|op| op.id.clone()).collect();
                // Who is told by another may not know by which delete.
                let told = self.ends.contains(&(resource.clone(), ids.clone()));
                for op in ops.filter(|_| !told) {
                    let follows = self.follows(resource, op, by);
                    assert!(!follows, "{site} forgets {resource} {}", op.id);
                }
                self.ends.insert((resource.clone(), ids));
            }
            Seen::Done(Effect::Persist(Durable::Trimmed { .. })) => self.trimmed += 1,
            // What a site had recorded while it was removed is in no log from then on.
            Seen::Done(Effect::Persist(Durable::Held {
                resource, site: of, known, floor, ..
            })) if of == site => {
                self.take_out(resource, |id| {
                    id.site == *of && (known + 1..=*floor).contains(&id.number)
                });
            }
            _ => {}
        }
    }

    /// Takes operations out, and all that follow them.
    fn take_out(&mut self, resource: &ResourceId, is_out: impl Fn(&OpId) -> bool) {
        let Some(ops) = self.ops.get_mut(resource) else { return };
        let mut out: BTreeSet<OpId> = ops.keys().filter(|id| is_out(id)).cloned().collect();
        while let Some(id) = ops
            .values()
            .find(|op| !out.contains(&op.id) && op.parents.iter().any(|id| out.contains(id)))
            .map(|op| op.id.clone())
        {
            out.insert(id);
        }
        ops.retain(|id, _| !out.contains(id));
    }

    fn follows(&self, resource: &ResourceId, op: &Operation, by: &OpId) -> bool {
        let mut open: Vec<&OpId> = op.parents.iter().collect();
        let mut met = BTreeSet::new();
        while let Some(id) = open.pop() {
            if id == by {
                return true;
            }
            if met.insert(id) {
                open.extend(self.ops[resource].get(id).into_iter().flat_map(|op| &op.parents));
            }
        }
        false
    }
}
