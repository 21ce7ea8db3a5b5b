//! What a site has lost, and nobody else had, is gone; and nothing of that resource is run there
//! before its state is made anew.

use std::collections::BTreeSet;

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{Durable, Effect, Record},
};

use super::RecordKey;
use crate::support::world::Seen;

#[derive(Default)]
pub struct Lost {
    /// The operations that were lost where they were received.
    ops: BTreeSet<RecordKey>,
    /// Where nothing that changes the state may be run.
    unknown: BTreeSet<(SiteId, ResourceId)>,
    /// How often something was lost, and how often the state was made anew after that.
    pub losses: u64,
    pub made_anew: u64,
}

impl Lost {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        match seen {
            Seen::Withheld { resource, gone, .. } => {
                self.losses += 1;
                self.unknown.insert((site.clone(), resource.clone()));
                let ops = gone.iter().filter_map(|durable| match durable {
                    Durable::Record(Record::Operation(op), _) if op.id.site == *site => Some(op),
                    _ => None,
                });
                self.ops.extend(ops.map(|op| (op.resource.clone(), op.id.clone())));
            }
            Seen::Done(Effect::Persist(Durable::Intent { resource, op, fresh, .. })) => {
                let unknown = self.unknown.contains(&(site.clone(), resource.clone()));
                assert!(*fresh || !unknown, "{site} runs {resource} {op}, and has lost its state");
            }
            Seen::Done(Effect::Persist(durable)) => {
                let anew = match durable {
                    Durable::Cleared(resource) => Some(resource),
                    Durable::Record(Record::Reply(reply), _) if reply.id.site == *site => {
                        (reply.outcome == cheops_core::plan::Outcome::Ok).then_some(&reply.resource)
                    }
                    _ => None,
                };
                if let Some(resource) = anew {
                    let was = self.unknown.remove(&(site.clone(), resource.clone()));
                    self.made_anew += u64::from(was);
                }
            }
            _ => {}
        }
    }

    /// Whether an operation was lost where it was received.
    pub fn is_gone(&self, op: &RecordKey) -> bool {
        self.ops.contains(op)
    }
}
