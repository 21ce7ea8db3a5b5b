//! What a site has run that has left the block, and is still in its state.
//!
//! A site's *stretch* is made of its last replies that stand, as long as they are of one era: what it
//! ran before that has left no trace. A *stray* is one of them that did not fail, and whose operation
//! is not in the block. Those that come before the reply to the operation that the block begins its
//! tail with do not count; who asks says which number that reply has.
//!
//! What must stay true: `numbers` has the numbers of all strays of the stretch, and no others.

use alloc::collections::BTreeSet;

use super::index::On;
use crate::{id::SiteId, log::Ix, replica::Reply, resolve::Fate};

#[derive(Debug, Clone, Default)]
pub(super) struct Strays {
    /// How many records of the site were looked at.
    seen: usize,
    /// The era of the stretch, if there is a reply.
    era: Option<u32>,
    /// The number of the first reply of the stretch.
    first: u64,
    /// The last reply before the stretch that stands: of another era.
    before: Option<(usize, u64)>,
    /// The numbers of the strays.
    numbers: BTreeSet<u64>,
}

impl Strays {
    /// Whether there is a stray that was recorded after a number.
    pub(super) fn has_after(&self, number: u64) -> bool {
        self.numbers.last().is_some_and(|&last| last > number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Takes note that a reply no longer stands.
    pub(super) fn replaced(&mut self, on: On<'_>, site: &SiteId, number: u64) {
        self.numbers.remove(&number);
        if let Some((place, _)) = self.before.take_if(|(_, before)| *before == number) {
            self.extend(on, site, place);
        }
    }

    /// Takes in what the site has recorded since.
    pub(super) fn catch_up(&mut self, on: On<'_>, site: &SiteId) {
        let streams = on.resource.streams();
        for (place, number, op) in streams.replied_from(site, self.seen) {
            let Some(reply) = standing(on, site, number, op) else { continue };
            if self.era != Some(reply.era) {
                self.era = Some(reply.era);
                self.first = number;
                self.numbers.clear();
                self.before = None;
                self.extend(on, site, place);
            }
            self.note(on, op, reply);
        }
        self.seen = streams.recorded(site);
    }

    /// Takes note that an operation has entered or left the block.
    pub(super) fn moved(&mut self, on: On<'_>, site: &SiteId, op: Ix) {
        if self.era.is_none() {
            return;
        }
        let Some(reply) = on.resource.reply_to(op, site) else { return };
        if reply.id.number >= self.first
            && on.resource.streams().is_reply(site, reply.id.number, op)
        {
            self.note(on, op, reply);
        }
    }

    fn note(&mut self, on: On<'_>, op: Ix, reply: &Reply) {
        if !reply.outcome.is_failure() && on.resolution.fate(op) != Fate::Kept {
            self.numbers.insert(reply.id.number);
        } else {
            self.numbers.remove(&reply.id.number);
        }
    }

    /// Lets the stretch begin earlier, as far as replies before a place are of its era.
    fn extend(&mut self, on: On<'_>, site: &SiteId, before: usize) {
        for (place, number, op) in on.resource.streams().replied_before(site, before) {
            let Some(reply) = standing(on, site, number, op) else { continue };
            if self.era != Some(reply.era) {
                self.before = Some((place, number));
                return;
            }
            self.first = number;
            self.note(on, op, reply);
        }
    }
}

/// The reply that a number stands for, if no later one stands for it.
fn standing<'a>(on: On<'a>, site: &SiteId, number: u64, op: Ix) -> Option<&'a Reply> {
    on.resource.reply_to(op, site).filter(|reply| reply.id.number == number)
}
