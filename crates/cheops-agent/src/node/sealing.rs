//! The seals of what this site writes down and sends.
//!
//! The replica keeps no seals: they would take more memory than most records. What is sent as it is
//! recorded has just been sealed; what others lack from before is read from the store.
//!
//! What must stay true: a record of this site is sealed before it is written down; no record is sent
//! without the seal of its site.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cheops_core::{
    id::{OpId, ResourceId},
    replica::{Durable, Effect, Message, Sent},
    trust::Seal,
};

use super::{SharedReader, decide::Then};
use crate::trust::Sealer;

/// Records of one resource, by their ids.
type Wanted = BTreeMap<ResourceId, BTreeSet<OpId>>;

pub(super) struct Sealing {
    sealer: Sealer,
    reader: SharedReader,
}

impl Sealing {
    pub(super) fn new(sealer: Sealer, reader: SharedReader) -> Self {
        Self { sealer, reader }
    }

    /// Seals what is about to be written down.
    pub(super) fn seal(&self, durables: &mut [Durable]) {
        self.sealer.seal(durables);
    }

    /// Gives each record that is to be sent the seal of its site, after what was written down with it.
    /// One of this site's own that was recorded before there were seals gets one now; another's is left
    /// out, and its own site will send it.
    pub(super) fn put_on(&self, then: &mut Vec<Then>, written: &[Durable]) {
        if unsealed(then).next().is_none() {
            return;
        }
        let wanted = just_written(then, written);
        if wanted.is_empty() {
            return;
        }
        let found: BTreeMap<ResourceId, BTreeMap<OpId, Seal>> =
            wanted.into_iter().map(|(resource, ids)| self.look_up(resource, &ids)).collect();
        for sent in unsealed(then) {
            let seals = found.get(sent.record.resource());
            sent.seal = seals.and_then(|seals| seals.get(sent.record.id())).cloned();
        }
        self.sealer.seal_each(unsealed(then).map(|sent| (&sent.record, &mut sent.seal)));
        then.retain_mut(|then| {
            let Some(records) = records(then) else { return true };
            let count = records.len();
            records.retain(|sent| sent.seal.is_some());
            records.len() == count || !records.is_empty()
        });
    }

    fn look_up(
        &self,
        resource: ResourceId,
        ids: &BTreeSet<OpId>,
    ) -> (ResourceId, BTreeMap<OpId, Seal>) {
        let seals = self.reader.seals(&resource, ids).unwrap_or_else(|error| {
            tracing::warn!("the signatures of records of `{resource}` can't be read: {error}");
            BTreeMap::new()
        });
        (resource, seals)
    }
}

/// Puts on the seals of what was just written down. The rest is still wanted.
fn just_written(then: &mut [Then], written: &[Durable]) -> Wanted {
    let sealed = written.iter().filter_map(|durable| match durable {
        Durable::Record(record, Some(seal)) => Some(((record.resource(), record.id()), seal)),
        _ => None,
    });
    let sealed: HashMap<(&ResourceId, &OpId), &Seal> = sealed.collect();
    let mut wanted = Wanted::new();
    for sent in unsealed(then) {
        let (resource, id) = (sent.record.resource(), sent.record.id());
        match sealed.get(&(resource, id)) {
            Some(&seal) => sent.seal = Some(seal.clone()),
            None => {
                wanted.entry(resource.clone()).or_default().insert(id.clone());
            }
        }
    }
    wanted
}

fn unsealed(then: &mut [Then]) -> impl Iterator<Item = &mut Sent> {
    then.iter_mut().filter_map(records).flatten().filter(|sent| sent.seal.is_none())
}

fn records(then: &mut Then) -> Option<&mut Vec<Sent>> {
    match then {
        Then::Do(Effect::Send { message: Message::Records { records, .. }, .. }) => Some(records),
        _ => None,
    }
}
