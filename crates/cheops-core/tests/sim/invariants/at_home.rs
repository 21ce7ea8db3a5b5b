//! Only a resource's sites hold its records, and only they ever hear of it.
//!
//! Its sites are all that were declared for it, at whatever site.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{Durable, Effect, Message, Record, Stretch},
};

use crate::support::world::Seen;

#[derive(Default)]
pub struct AtHome {
    homes: BTreeMap<ResourceId, BTreeSet<SiteId>>,
}

impl AtHome {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        match seen {
            Seen::Done(Effect::Persist(Durable::Record(record, _))) => {
                if let Record::Operation(op) = record
                    && let Some(declared) = &op.declares
                {
                    let homes = self.homes.entry(op.resource.clone()).or_default();
                    homes.extend(declared.sites.iter().cloned());
                }
                self.check(site, record.resource());
            }
            Seen::Done(Effect::Send { to, message }) => match message {
                Message::Compare(stretches) => {
                    for (stretch, _) in stretches {
                        let ends = [&stretch.from, &stretch.to].into_iter().flatten();
                        let one = stretch.from.as_ref().map(Stretch::of);
                        // The stretch of one id names no other.
                        for id in ends.take(if one.as_ref() == Some(stretch) { 1 } else { 2 }) {
                            self.check(to, id);
                        }
                    }
                }
                Message::Have(_, versions, _)
                | Message::Want(versions)
                | Message::Forgotten(versions) => {
                    for (id, _) in versions {
                        self.check(to, id);
                    }
                }
                Message::Records { resource, .. } | Message::Contradicted { resource, .. } => {
                    self.check(to, resource);
                }
            },
            _ => {}
        }
    }

    fn check(&self, site: &SiteId, resource: &ResourceId) {
        let home = self.homes.get(resource).is_some_and(|homes| homes.contains(site));
        assert!(home, "{site} hears of {resource}, which is not its business");
    }
}
