//! Seals what this site has recorded.
//!
//! What must stay true: only records of this site are sealed here; one that has a seal keeps it.

use std::sync::Arc;

use cheops_core::{
    id::SiteId,
    replica::{Durable, Record},
    trust::Seal,
};

use super::{Identity, Members, Own, seal};
use crate::wire;

/// Seals the records of a site, with the key that it has at the time.
#[derive(Clone)]
pub struct Sealer {
    here: SiteId,
    own: Own,
}

impl Sealer {
    /// For a site that keeps its key.
    pub fn new(identity: Arc<Identity>, here: SiteId) -> Self {
        Self { here, own: Arc::new(move || identity.clone()) }
    }

    /// For this site, whose key may be renewed.
    pub fn of(members: &Members) -> Self {
        Self { here: members.here().clone(), own: members.own() }
    }

    /// Seals the records of this site among what is to be written down: many with one signature.
    pub fn seal(&self, batch: &mut [Durable]) {
        let own = batch.iter_mut().filter_map(|durable| match durable {
            Durable::Record(record, seal @ None) => Some((&*record, seal)),
            _ => None,
        });
        self.seal_each(own);
    }

    /// Seals records, each in its place, those of this site alone.
    pub fn seal_each<'a>(&self, records: impl Iterator<Item = (&'a Record, &'a mut Option<Seal>)>) {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for (record, place) in records.filter(|(record, _)| record.id().site == self.here) {
            // What can't be encoded can't be written down or sent either; whoever tries says so.
            if let Ok(encoded) = wire::encode_record(record) {
                bytes.push(encoded);
                places.push(place);
            }
        }
        let proofs = seal::seal(&(self.own)(), &self.here, &bytes);
        for (place, proof) in places.into_iter().zip(proofs) {
            *place = proof.encode();
        }
    }
}
