//! What the sites say about each operation of a block, kept up to date as records come in.
//!
//! A block is divided by the operations that replace the state; its last part is its *tail*, which the
//! state is about. Each part is kept, so that a new operation that replaces, and one of those that
//! becomes void, cost no more than what stands after it.
//!
//! What must stay true:
//! - what is told is what a walk over the block tells (`walk`);
//! - an update costs as much as has changed: the records that came in, and the part of the block that
//!   was arranged anew. A site that makes its state anew has to answer all that follows again, so that
//!   its reply to the first of a part costs as much as the part is long.

use alloc::vec::Vec;

use super::{
    State, Tally,
    good::{MadeGood, Target, is_whole},
    places::Places,
    strays::Strays,
};
use crate::{
    id::SiteId,
    log::Ix,
    plan::Outcome,
    replica::{Reply, Resource},
    resolve::{Change, Resolution},
};

/// What an index is about.
#[derive(Clone, Copy)]
pub(super) struct On<'a> {
    pub(super) resource: &'a Resource,
    /// The resource's own, or one that is made of the same log.
    pub(super) resolution: &'a Resolution,
}

impl On<'_> {
    /// Where the tail of the block begins.
    pub(super) fn tail(self) -> usize {
        self.resolution.last_replacing().unwrap_or(0)
    }

    /// The era in which a site last ran the first operation of a part.
    fn anew(self, base: Ix, site: &SiteId) -> Option<u32> {
        self.resource.reply_to(base, site).map(|reply| reply.era)
    }
}

/// What has changed since an index was brought up to date.
#[derive(Debug, Clone)]
pub(super) struct Changes {
    /// The first place of the block that has.
    pub(super) from: usize,
    /// What has entered or left the block.
    pub(super) moved: Vec<Ix>,
    /// Replies that stand from now on: to which operation, of which site, and the number of the reply
    /// that stood before.
    pub(super) replied: Vec<(Ix, SiteId, Option<u64>)>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { from: usize::MAX, moved: Vec::new(), replied: Vec::new() }
    }
}

impl Changes {
    pub(super) fn block(&mut self, mut change: Change) {
        self.from = self.from.min(change.from);
        self.moved.append(&mut change.moved);
    }
}

/// What a site says of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Word {
    reply: Option<Outcome>,
    /// It counts: what the site has run since has not made it run in vain.
    stands: bool,
}

#[derive(Debug, Clone)]
struct AtSite {
    id: SiteId,
    /// It was not removed: what it says counts.
    is_present: bool,
    /// By operation.
    words: Vec<Word>,
    /// The places in the block of what it has answered, as far as that counts.
    answered: Places,
    /// What it says of the block.
    tally: Tally,
    strays: Strays,
}

/// How many sites say what of an operation.
#[derive(Debug, Clone, Copy, Default)]
struct Said {
    ok: u32,
    ko: u32,
    denied: u32,
    unknown: u32,
}

impl Said {
    fn of(&mut self, outcome: Outcome) -> &mut u32 {
        match outcome {
            Outcome::Ok => &mut self.ok,
            Outcome::Ko => &mut self.ko,
            Outcome::Denied => &mut self.denied,
            Outcome::Unknown => &mut self.unknown,
        }
    }

    fn failed(self) -> u32 {
        self.ko + self.denied
    }

    fn total(self) -> u32 {
        self.ok + self.ko + self.denied + self.unknown
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// The first operation of the part of the block that it is in; nothing if it is in none.
    base: Option<Ix>,
    /// What its replies say, whether they count or not.
    replies: Said,
    /// What they say as far as they count. Zero for what is not in the block.
    said: Said,
    /// What it is sent to, if another can cover it.
    target: Option<Target>,
    /// It covers others, if it went well at all sites.
    whole: bool,
    /// Another covers it.
    good: bool,
}

/// Places in the block of operations that are of interest, unless they are made good.
#[derive(Debug, Clone, Default)]
struct Places4 {
    /// Something is still to come, or nobody knows.
    open: Places,
    /// It leaves the sites apart.
    apart: Places,
    /// It went well at one site, and another did not let it run.
    withstood: Places,
    /// Some site can't say whether it took effect.
    doubted: Places,
}

#[derive(Debug, Clone)]
pub(super) struct Index {
    /// The block is the one that the sites run. Otherwise what nobody has answered never will be.
    is_run: bool,
    /// How many sites were not removed.
    present: u32,
    sites: Vec<AtSite>,
    ops: Vec<Known>,
    places: Places4,
    made_good: MadeGood,
}

impl Index {
    /// The index of a whole log.
    pub(super) fn new(on: On<'_>, is_run: bool) -> Self {
        let present: Vec<&SiteId> = on.resource.present().collect();
        let at = |id: &SiteId| AtSite {
            id: id.clone(),
            is_present: present.binary_search(&id).is_ok(),
            words: Vec::new(),
            answered: Places::default(),
            tally: Tally::default(),
            strays: Strays::default(),
        };
        let mut this = Self {
            is_run,
            present: u32::try_from(present.len()).unwrap_or(u32::MAX),
            sites: on.resource.sites().iter().map(at).collect(),
            ops: Vec::new(),
            places: Places4::default(),
            made_good: MadeGood::default(),
        };
        let ops = || on.resource.log.iter().map(|(op, _)| op);
        let replies = ops().flat_map(|op| {
            let replies = on.resource.replies().to(op).iter();
            replies.map(move |reply| (op, reply.id.site.clone(), None))
        });
        this.update(on, &Changes { from: 0, moved: Vec::new(), replied: replies.collect() });
        this
    }

    /// Takes in what has changed.
    pub(super) fn update(&mut self, on: On<'_>, changes: &Changes) {
        let mut due = Vec::new();
        self.grow(on);
        for (op, site, _) in &changes.replied {
            if let Ok(at) = self.at(site) {
                self.hear(on, *op, at);
                due.push(*op);
            }
        }
        for &op in &changes.moved {
            self.move_out(on, op, &mut due);
        }
        self.arrange(on, changes.from, &mut due);
        for (op, site, _) in &changes.replied {
            if self.ops[op.usize()].base == Some(*op)
                && let Ok(at) = self.at(site)
            {
                self.stand_anew(on, *op, at, &mut due);
            }
        }
        while let Some(op) = due.pop() {
            self.sort_in(on, op, &mut due);
        }
        self.find_strays(on, changes);
    }

    fn at(&self, site: &SiteId) -> Result<usize, usize> {
        self.sites.binary_search_by(|at| at.id.cmp(site))
    }

    /// Makes room for operations that are new.
    fn grow(&mut self, on: On<'_>) {
        let log = &on.resource.log;
        for place in self.ops.len()..log.len() {
            let action = &log.op(Ix::new(place)).action;
            let (target, whole) = (self.made_good.target(action), is_whole(action));
            self.ops.push(Known { target, whole, ..Known::default() });
        }
        for at in &mut self.sites {
            at.words.resize(log.len(), Word::default());
        }
    }

    /// Takes note of a reply that stands.
    fn hear(&mut self, on: On<'_>, op: Ix, at: usize) {
        let known = &mut self.ops[op.usize()];
        let AtSite { id, is_present, words, tally, .. } = &mut self.sites[at];
        let outcome = on.resource.reply_to(op, id).map(|reply| reply.outcome);
        let before = words[op.usize()].reply;
        for (outcome, change) in [(before, false), (outcome, true)] {
            if let Some(outcome) = outcome {
                if *is_present {
                    count(known.replies.of(outcome), change);
                }
                if known.base.is_some() {
                    tally.add(outcome, change);
                }
            }
        }
        let word = &mut words[op.usize()];
        if let Some(outcome) = before.filter(|_| word.stands && *is_present) {
            count(known.said.of(outcome), false);
        }
        *word = Word { reply: outcome, stands: false };
        if let Some(base) = known.base {
            self.stand(on, op, base, at);
        }
    }

    /// Brings up to date whether the reply of a site to an operation of the block counts.
    fn stand(&mut self, on: On<'_>, op: Ix, base: Ix, at: usize) -> bool {
        let AtSite { id, is_present, words, answered, .. } = &mut self.sites[at];
        let reply = on.resource.reply_to(op, id);
        let stands = reply.is_some_and(|reply: &Reply| Some(reply.era) >= on.anew(base, id));
        let word = &mut words[op.usize()];
        let changed = word.stands != stands;
        word.stands = stands;
        if changed
            && *is_present
            && let Some(outcome) = word.reply
        {
            count(self.ops[op.usize()].said.of(outcome), stands);
        }
        if let Some(place) = on.resolution.place(op) {
            answered.set(place, stands);
        }
        changed
    }

    /// Takes out an operation that may have left the block. What has entered it is taken in with its
    /// place.
    fn move_out(&mut self, on: On<'_>, op: Ix, due: &mut Vec<Ix>) {
        if on.resolution.place(op).is_none() {
            self.leave(on, op, due);
            for at in &mut self.sites {
                at.words[op.usize()].stands = false;
            }
        }
    }

    /// Takes an operation out of the part of the block that it was in.
    fn leave(&mut self, on: On<'_>, op: Ix, due: &mut Vec<Ix>) {
        let known = &mut self.ops[op.usize()];
        let Some(base) = known.base.take() else { return };
        known.said = Said::default();
        if let Some(target) = known.target {
            due.extend(self.made_good.remove(&on.resource.log, base, target, op));
        }
        for at in &mut self.sites {
            if let Some(outcome) = at.words[op.usize()].reply {
                at.tally.add(outcome, false);
            }
        }
    }

    /// Puts operations where they stand, from a place on.
    fn arrange(&mut self, on: On<'_>, from: usize, due: &mut Vec<Ix>) {
        let block = on.resolution.block();
        if from > block.len() {
            return;
        }
        self.places.truncate(from);
        for at in &mut self.sites {
            at.answered.truncate(from);
        }
        let replacing = on.resolution.replacing();
        let mut next = replacing.partition_point(|&place| place < from);
        for (place, &op) in block.iter().enumerate().skip(from) {
            if replacing.get(next) == Some(&place) {
                next += 1;
            }
            let first = next.checked_sub(1).map_or(0, |last| replacing[last]);
            if self.ops[op.usize()].base == Some(block[first]) {
                for at in &mut self.sites {
                    at.answered.set(place, at.words[op.usize()].stands);
                }
                self.mark(op, place);
            } else {
                self.enter(on, op, block[first], due);
            }
        }
    }

    /// Takes an operation into a part of the block.
    fn enter(&mut self, on: On<'_>, op: Ix, base: Ix, due: &mut Vec<Ix>) {
        self.leave(on, op, due);
        for at in 0..self.sites.len() {
            let AtSite { words, tally, .. } = &mut self.sites[at];
            words[op.usize()].stands = false;
            if let Some(outcome) = words[op.usize()].reply {
                tally.add(outcome, true);
            }
            self.stand(on, op, base, at);
        }
        let known = &mut self.ops[op.usize()];
        known.base = Some(base);
        known.good = known
            .target
            .is_some_and(|target| self.made_good.insert(&on.resource.log, base, target, op));
        due.push(op);
    }

    /// Takes note that a site may have made its state anew with the first operation of a part.
    fn stand_anew(&mut self, on: On<'_>, base: Ix, at: usize, due: &mut Vec<Ix>) {
        let Some(from) = on.resolution.place(base) else { return };
        let (block, replacing) = (on.resolution.block(), on.resolution.replacing());
        let next = replacing.partition_point(|&place| place <= from);
        let to = replacing.get(next).copied().unwrap_or(block.len());
        for &op in &block[from..to] {
            if self.sites[at].words[op.usize()].reply.is_some() && self.stand(on, op, base, at) {
                due.push(op);
            }
        }
    }

    /// Sorts in an operation anew, after something was said about it.
    fn sort_in(&mut self, on: On<'_>, op: Ix, due: &mut Vec<Ix>) {
        let known = self.ops[op.usize()];
        let (Some(base), Some(place)) = (known.base, on.resolution.place(op)) else { return };
        if let Some(target) = known.target {
            let log = &on.resource.log;
            if known.whole {
                let covers = self.is_all_ok(known.said);
                due.extend(self.made_good.cover(log, base, target, op, covers));
            }
            self.ops[op.usize()].good = self.made_good.is_good(log, base, target, op);
        }
        self.mark(op, place);
    }

    /// Marks the place of an operation by what the sites say about it.
    fn mark(&mut self, op: Ix, place: usize) {
        let nothing = self.silent(op) > 0;
        let Known { said, replies, good, .. } = self.ops[op.usize()];
        let matters = !good;
        let apart = said.ok > 0 && (said.ko > 0 || !self.is_run && nothing);
        let open = said.unknown > 0 || self.is_run && nothing;
        self.places.open.set(place, matters && open);
        self.places.apart.set(place, matters && apart);
        self.places.withstood.set(place, matters && said.ok > 0 && said.denied > 0);
        self.places.doubted.set(place, matters && replies.unknown > 0);
    }

    fn find_strays(&mut self, on: On<'_>, changes: &Changes) {
        for (_, site, stood) in &changes.replied {
            if let (Ok(at), Some(number)) = (self.at(site), stood)
                && self.sites[at].is_present
            {
                self.sites[at].strays.replaced(on, site, *number);
            }
        }
        let present = self.sites.iter_mut().filter(|at| at.is_present);
        for AtSite { id, strays, words, .. } in present {
            strays.catch_up(on, id);
            let answered = |op: &&Ix| words[op.usize()].reply.is_some();
            changes.moved.iter().filter(answered).for_each(|&op| strays.moved(on, id, op));
        }
    }

    fn is_all_ok(&self, said: Said) -> bool {
        said.ok == self.present
    }

    /// How many sites have not answered an operation of the block.
    fn silent(&self, op: Ix) -> u32 {
        self.present - self.ops[op.usize()].said.total()
    }

    /// Whether an operation of the block has changed nothing, anywhere.
    pub(super) fn all_failed(&self, op: Ix) -> bool {
        self.ops[op.usize()].said.failed() == self.present
    }

    /// Whether the policy of a site did not let an operation of the block run.
    pub(super) fn is_denied(&self, op: Ix) -> bool {
        self.ops[op.usize()].said.denied > 0
    }

    /// Whether the last replies of all sites to an operation say that it failed.
    pub(super) fn failed_everywhere(&self, op: Ix) -> bool {
        self.ops[op.usize()].replies.failed() == self.present
    }

    /// Whether some site has a stray.
    fn has_strays(&self, on: On<'_>) -> bool {
        let anew = on.resolution.last_replacing().map(|place| on.resolution.block()[place]);
        self.sites.iter().filter(|at| !at.strays.is_empty()).any(|at| {
            let reply = anew.and_then(|anew| on.resource.reply_to(anew, &at.id));
            // What is in no stream ends no stretch.
            let reply = reply.zip(anew).filter(|(reply, anew)| {
                on.resource.streams().is_reply(&at.id, reply.id.number, *anew)
            });
            at.strays.has_after(reply.map_or(0, |(reply, _)| reply.id.number))
        })
    }

    /// The state that the replies to the tail tell of.
    pub(super) fn told(&self, on: On<'_>, last: Last) -> State {
        let tail = on.tail();
        let any = |places: &Places| places.first_from(tail).is_some();
        if any(&self.places.apart) {
            return State::Diverged;
        }
        let seen = super::Seen {
            pending: any(&self.places.open),
            denied: any(&self.places.withstood),
            strays: self.has_strays(on),
            is_run: self.is_run,
            replaces: on.resolution.last_replacing().is_some(),
        };
        seen.state(on.resource, last)
    }

    /// The first operation of the tail that leaves sites apart.
    pub(super) fn apart(&self, on: On<'_>) -> Option<Ix> {
        self.places.apart.first_from(on.tail()).map(|place| on.resolution.block()[place])
    }

    /// The first of which some site can't say whether it took effect.
    pub(super) fn doubted(&self, on: On<'_>) -> Option<Ix> {
        self.places.doubted.first_from(on.tail()).map(|place| on.resolution.block()[place])
    }

    /// The first that went well at one site, and that another did not let run.
    pub(super) fn withstood(&self, on: On<'_>) -> Option<Ix> {
        self.places.withstood.first_from(on.tail()).map(|place| on.resolution.block()[place])
    }

    /// How many operations at the end of the block a site has not answered; nothing if it is not one of
    /// the resource's.
    pub(super) fn unanswered(&self, on: On<'_>, site: &SiteId) -> Option<usize> {
        let at = &self.sites[self.at(site).ok()?];
        let last = at.answered.last().filter(|&place| place >= on.tail());
        Some(on.resolution.block().len() - last.map_or(on.tail(), |last| last + 1))
    }

    /// What a site says of the block.
    pub(super) fn tally(&self, site: &SiteId) -> Option<Tally> {
        Some(self.sites[self.at(site).ok()?].tally)
    }

    /// Whether the last reply of a site to an operation of the block counts, and is this.
    pub(super) fn says(&self, site: &SiteId, op: Ix, outcome: Outcome) -> bool {
        let Ok(at) = self.at(site) else { return false };
        self.sites[at].words[op.usize()] == Word { reply: Some(outcome), stands: true }
    }
}

impl Places4 {
    fn truncate(&mut self, from: usize) {
        for places in [&mut self.open, &mut self.apart, &mut self.withstood, &mut self.doubted] {
            places.truncate(from);
        }
    }
}

/// What the last operation of the block has come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Last {
    pub(super) denied: bool,
    pub(super) failed: bool,
}

fn count(number: &mut u32, more: bool) {
    if more { *number += 1 } else { *number -= 1 }
}
