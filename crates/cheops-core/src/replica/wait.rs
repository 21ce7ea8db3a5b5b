//! Who waits for the replies to an operation, and until when.
//!
//! What must stay true: each requester hears of each site at most once and gets a last word, by
//! its deadline at the latest. A reply is told to those who wait for its operation, and costs nothing
//! for the others. Requests do not survive the site; the operations they made do.

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};

use super::{Alarm, Answer, Outbox, Replica, Resource, Ticket};
use crate::{
    id::{OpId, ResourceId, SiteId},
    log::Ix,
    resolve::Fate,
    time::{Millis, Now},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    resource: ResourceId,
    op: OpId,
    answered: BTreeSet<SiteId>,
}

/// The operations of a resource of which there may be something new to tell.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct News {
    /// Those that were recorded or replied to.
    ops: BTreeSet<Ix>,
    /// The block has changed other than at its end: any operation may have left it.
    all: bool,
}

impl News {
    pub(super) fn of(&mut self, op: Ix) {
        self.ops.insert(op);
    }

    pub(super) fn of_all(&mut self) {
        self.all = true;
    }
}

impl Waiter {
    /// The sites that have not answered.
    fn silent(&self, resource: &Resource) -> Vec<SiteId> {
        resource.present().filter(|&site| !self.answered.contains(site)).cloned().collect()
    }

    /// Passes on what is new. Whether that was all.
    fn hear(&mut self, ticket: Ticket, resource: &Resource, op: Ix, out: &mut Outbox) -> bool {
        for site in self.silent(resource) {
            if let Some(reply) = resource.reply_to(op, &site) {
                out.answer(ticket, Answer::Reply(Box::new(reply.clone())));
                self.answered.insert(site);
            }
        }
        let lost_to = resource.lost_to(op);
        let superseded = lost_to.is_some();
        if let Some(by) = lost_to {
            out.answer(ticket, Answer::Superseded { by });
        }
        superseded
            || resource.fate(op) == Fate::Void
            || resource.present().all(|site| self.answered.contains(site))
    }
}

impl Replica {
    pub(super) fn await_replies(
        &mut self,
        ticket: Ticket,
        resource: &ResourceId,
        op: &OpId,
        now: Now,
        wait: Millis,
    ) {
        let waiter =
            Waiter { resource: resource.clone(), op: op.clone(), answered: BTreeSet::new() };
        self.waiters.insert(ticket, waiter);
        let awaited = self.awaited.entry(resource.clone()).or_default();
        awaited.entry(op.clone()).or_default().insert(ticket);
        self.arm(now, wait, Alarm::Deadline(ticket));
    }

    pub(super) fn answer_waiters(&mut self, id: &ResourceId, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        let news = core::mem::take(&mut resource.news);
        let Some(awaited) = self.awaited.get(id) else { return };
        let told: Vec<(&OpId, &BTreeSet<Ticket>)> = if news.all {
            awaited.iter().collect()
        } else {
            let ids = news.ops.iter().map(|&op| &resource.log().op(op).id);
            ids.filter_map(|op| awaited.get_key_value(op)).collect()
        };
        let mut done = Vec::new();
        for (op, tickets) in told {
            // Of what is forgotten, all sites have run the delete.
            let op = resource.log().find(op);
            for &ticket in tickets {
                let Some(waiter) = self.waiters.get_mut(&ticket) else { continue };
                if op.is_none_or(|op| waiter.hear(ticket, resource, op, out)) {
                    done.push(ticket);
                }
            }
        }
        for ticket in done {
            self.last_word(ticket, out);
        }
    }

    /// Ends a wait at its deadline; the work goes on.
    pub(super) fn give_up(&mut self, ticket: Ticket, out: &mut Outbox) {
        let Some(waiter) = self.waiters.get(&ticket) else { return };
        if let Some(resource) = self.resources.get(&waiter.resource) {
            out.answer(ticket, Answer::Silent(waiter.silent(resource)));
        }
        self.last_word(ticket, out);
    }

    fn last_word(&mut self, ticket: Ticket, out: &mut Outbox) {
        out.answer(ticket, Answer::Done);
        self.alarms.cancel(&Alarm::Deadline(ticket));
        let Some(waiter) = self.waiters.remove(&ticket) else { return };
        let Some(awaited) = self.awaited.get_mut(&waiter.resource) else { return };
        if let Some(tickets) = awaited.get_mut(&waiter.op) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                awaited.remove(&waiter.op);
            }
        }
        if awaited.is_empty() {
            self.awaited.remove(&waiter.resource);
        }
    }
}
