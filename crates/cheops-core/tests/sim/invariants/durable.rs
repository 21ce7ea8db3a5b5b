//! Nothing leaves a site, and nothing runs, before it is durable there.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{self, Answer, Effect, Input, Message, RunId, Ticket},
};

use super::RecordKey;
use crate::support::world::Seen;

#[derive(Default)]
struct Disk {
    records: BTreeSet<RecordKey>,
    intents: BTreeSet<(RecordKey, u32)>,
    clearing: BTreeSet<ResourceId>,
}

/// What is on each disk.
#[derive(Default)]
pub struct Durable {
    disks: BTreeMap<SiteId, Disk>,
    asked: BTreeMap<Ticket, ResourceId>,
}

impl Durable {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        match seen {
            Seen::Given(Input::Submit(request)) => {
                self.asked.insert(request.ticket, request.resource.clone());
            }
            Seen::Withheld { gone, .. } => {
                self.disks.get_mut(site).unwrap().lose(gone);
            }
            Seen::Done(effect) => {
                if !self.disks.contains_key(site) {
                    self.disks.insert(site.clone(), Disk::default());
                }
                let disk = self.disks.get_mut(site).unwrap();
                disk.carry_out(site, effect, &self.asked);
            }
            _ => {}
        }
    }
}

impl Disk {
    fn carry_out(&mut self, site: &SiteId, effect: &Effect, asked: &BTreeMap<Ticket, ResourceId>) {
        match effect {
            Effect::Persist(durable) => self.write(durable),
            Effect::Send { message: Message::Records { records, .. }, .. } => {
                for sent in records {
                    let key = (sent.record.resource().clone(), sent.record.id().clone());
                    assert!(
                        self.records.contains(&key),
                        "{site} sends {key:?} before it is durable"
                    );
                }
            }
            Effect::Run { run, .. } => self.intended(site, run),
            Effect::Clear { resource, .. } => {
                let intended = self.clearing.contains(resource);
                assert!(intended, "{site} empties {resource} before that is written down");
            }
            Effect::Answer { ticket, answer: Answer::Accepted(op, _) } => {
                let key = (asked[ticket].clone(), op.clone());
                assert!(self.records.contains(&key), "{site} accepts {key:?} before it is durable");
            }
            Effect::Answer { answer: Answer::Reply(reply), .. } => {
                let key = (reply.resource.clone(), reply.id.clone());
                assert!(self.records.contains(&key), "{site} tells {key:?} before it is durable");
            }
            _ => {}
        }
    }

    fn write(&mut self, durable: &replica::Durable) {
        match durable {
            replica::Durable::Record(record, _) => {
                self.records.insert((record.resource().clone(), record.id().clone()));
            }
            replica::Durable::Intent { resource, op, attempt, .. } => {
                self.intents.insert(((resource.clone(), op.clone()), *attempt));
            }
            replica::Durable::Clearing(resource) => {
                self.clearing.insert(resource.clone());
            }
            replica::Durable::Cleared(resource) => {
                self.clearing.remove(resource);
            }
            replica::Durable::Forgotten { .. }
            | replica::Durable::Trimmed { .. }
            | replica::Durable::Withheld { .. }
            | replica::Durable::Held { .. }
            | replica::Durable::Contradicted { .. }
            | replica::Durable::Aside(_)
            | replica::Durable::Leftover(_)
            | replica::Durable::Decided { .. } => {}
        }
    }

    fn lose(&mut self, gone: &[replica::Durable]) {
        for durable in gone {
            match durable {
                replica::Durable::Record(record, _) => {
                    self.records.remove(&(record.resource().clone(), record.id().clone()));
                }
                replica::Durable::Intent { resource, op, attempt, .. } => {
                    self.intents.remove(&((resource.clone(), op.clone()), *attempt));
                }
                _ => {}
            }
        }
    }

    fn intended(&self, site: &SiteId, run: &RunId) {
        let op = (run.resource.clone(), run.op.clone());
        assert!(self.records.contains(&op), "{site} runs {run:?} before it is durable");
        let intent = (op, run.attempt);
        assert!(self.intents.contains(&intent), "{site} runs {run:?} before that is written down");
    }
}
