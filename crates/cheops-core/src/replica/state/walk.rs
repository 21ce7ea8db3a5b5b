//! A resource's state, by walking over what is known: what it means, and how short resources are looked
//! at. Longer ones have an index, which must tell the same.
//!
//! What must stay true: what is here reads like the definition. It takes a time that grows with the
//! square of the block, so that it is used for few records only, and by the tests.

use super::{Seen, State, Tally, digest::Hasher, index::Last, tail_of};
use crate::{
    id::{OpId, SiteId},
    log::Ix,
    operation::SharedOperation,
    plan::Outcome,
    replica::{Reply, Resource},
    resolve::{Fate, Resolution},
};

/// A resource, to be walked over.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a>(pub(super) &'a Resource);

/// What the sites say about an operation: how many of them say what.
#[derive(Debug, Clone, Copy, Default)]
struct Said {
    ok: usize,
    ko: usize,
    /// Their policies do not let it run.
    denied: usize,
    /// They do not know.
    unknown: usize,
    /// They have not answered.
    nothing: usize,
}

impl Said {
    fn add(mut self, reply: Option<&Reply>) -> Self {
        let said = match reply.map(|reply| reply.outcome) {
            Some(Outcome::Ok) => &mut self.ok,
            Some(Outcome::Ko) => &mut self.ko,
            Some(Outcome::Denied) => &mut self.denied,
            Some(Outcome::Unknown) => &mut self.unknown,
            None => &mut self.nothing,
        };
        *said += 1;
        self
    }

    fn all_ok(self) -> bool {
        self.ko + self.denied + self.unknown + self.nothing == 0
    }

    /// It has changed nothing, anywhere.
    fn all_failed(self) -> bool {
        self.ok + self.unknown + self.nothing == 0
    }

    /// It went well at one site, and failed at another.
    fn differs(self) -> bool {
        self.ok > 0 && self.ko > 0
    }

    /// It went well at one site, and another did not let it run.
    fn is_withstood(self) -> bool {
        self.ok > 0 && self.denied > 0
    }
}

impl<'a> Walk<'a> {
    /// The state that the replies tell of, whatever `Show` prints.
    pub(super) fn replied(self) -> State {
        let told = self.told_by(&self.0.resolution, true);
        match told {
            State::Settled | State::Failed => {
                self.without_failed().map_or(told, |effective| self.told_by(&effective, false))
            }
            State::Pending | State::Diverged | State::Denied => told,
        }
    }

    /// What operations amount to without those that failed at all sites; nothing if that makes no
    /// difference: it does only if what the tail begins with is one of them.
    fn without_failed(self) -> Option<Resolution> {
        let base = self.0.resolution.last_replacing()?;
        self.failed_everywhere(self.0.resolution.block()[base]).then(|| {
            let void = |op| self.0.is_void(op) || self.failed_everywhere(op);
            Resolution::of(self.0.resolution.shared_rules().clone(), &self.0.log, void)
        })
    }

    /// The state that the replies to the end of a block tell of: the one that the sites run, or one in
    /// which something is back that has left it. That is not run any more: who has not run it never
    /// will, and nobody finds a way back to it.
    fn told_by(self, resolution: &Resolution, is_run: bool) -> State {
        let tail = tail_of(resolution);
        let (mut pending, mut denied) = (false, false);
        for &op in tail {
            let said = self.said(tail, op);
            if said.all_ok() || said.all_failed() || self.is_made_good(tail, op) {
                continue;
            }
            let waits = said.nothing > 0 && is_run;
            let never = said.nothing > 0 && !is_run;
            if said.differs() || said.ok > 0 && never {
                return State::Diverged;
            }
            pending |= said.unknown > 0 || waits;
            denied |= said.is_withstood();
        }
        let seen = Seen {
            pending,
            denied,
            strays: self.0.present().any(|site| self.has_strays(resolution, site)),
            is_run,
            replaces: resolution.last_replacing().is_some(),
        };
        let last = Last { denied: self.denied_last(), failed: self.has_failed_last() };
        seen.state(self.0, last)
    }

    /// Whether what was asked for last has failed at all sites.
    fn has_failed_last(self) -> bool {
        let tail = self.0.tail();
        tail.last().is_some_and(|&last| self.said(tail, last).all_failed())
    }

    /// Whether what was asked for last was let run nowhere.
    fn denied_last(self) -> bool {
        let tail = self.0.tail();
        tail.last().is_some_and(|&last| {
            let said = self.said(tail, last);
            said.all_failed() && said.denied > 0
        })
    }

    fn failed_everywhere(self, op: Ix) -> bool {
        let failed = |site| self.0.reply_to(op, site).is_some_and(|r| r.outcome.is_failure());
        self.0.present().all(failed)
    }

    /// What all sites say about an operation of a tail.
    fn said(self, tail: &[Ix], op: Ix) -> Said {
        let replies = self.0.present().map(|site| self.standing(tail, op, site));
        replies.fold(Said::default(), Said::add)
    }

    /// Whether another operation, which follows this one and went well at all sites, says all about what
    /// this one wrote to: however it went, nothing is left of it.
    fn is_made_good(self, tail: &[Ix], op: Ix) -> bool {
        let action = &self.0.log.op(op).action;
        let mut later = tail.iter().rev().take_while(|&&other| other != op);
        later.any(|&other| {
            self.0.log.op(other).action.stands_for(action)
                && self.0.log.precedes(op, other)
                && self.said(tail, other).all_ok()
        })
    }

    /// How many operations at the end of the block a site has not answered, as far as is known here.
    /// What has no influence on the state any more is not counted, and what the site has yet to replay
    /// is.
    pub(super) fn unanswered(self, site: &SiteId) -> usize {
        let tail = self.0.tail();
        tail.iter().rev().take_while(|&&op| self.standing(tail, op, site).is_none()).count()
    }

    /// What a site says of the block.
    pub(super) fn tally(self, site: &SiteId) -> Tally {
        let mut tally = Tally::default();
        for &op in self.0.resolution.block() {
            if let Some(reply) = self.0.reply_to(op, site) {
                tally.add(reply.outcome, true);
            }
        }
        tally
    }

    /// Stands for the tail, and for the command that shows it.
    pub(super) fn block_digest(self, command: &str) -> u64 {
        let mut hasher = Hasher::new(command);
        self.0.tail().iter().for_each(|&op| hasher.add(&self.0.log.op(op).id));
        hasher.finish()
    }

    /// The last known reply of a site to an operation of a tail. What a site ran before it made the
    /// state anew is gone, and it has yet to replay it. A replacing operation that failed has made
    /// nothing anew: it counts in the era that there was.
    fn standing(self, tail: &[Ix], op: Ix, site: &SiteId) -> Option<&'a Reply> {
        let anew = tail.first().and_then(|&first| self.0.reply_to(first, site)).map(|r| r.era);
        self.0.reply_to(op, site).filter(|reply| Some(reply.era) >= anew)
    }

    /// An operation of which a site can't say whether it took effect, and the site, if that still
    /// matters.
    pub(super) fn in_doubt(self) -> Option<(&'a OpId, &'a SiteId)> {
        let tail = self.0.tail();
        tail.iter().find_map(|&op| {
            let unknown = |site: &&SiteId| {
                self.0.reply_to(op, site).is_some_and(|reply| reply.outcome == Outcome::Unknown)
            };
            let site = self.0.present().find(unknown)?;
            (!self.is_made_good(tail, op)).then(|| (&self.0.log.op(op).id, site))
        })
    }

    /// An operation that went well at one site and failed at another, and the other, if that still leaves
    /// them apart.
    pub(super) fn apart(self) -> Option<(&'a SharedOperation, &'a SiteId)> {
        let tail = self.0.tail();
        tail.iter().find_map(|&op| {
            if !self.said(tail, op).differs() || self.is_made_good(tail, op) {
                return None;
            }
            let is_ko = |reply: &Reply| reply.outcome == Outcome::Ko;
            let failed = |site: &&SiteId| self.standing(tail, op, site).is_some_and(is_ko);
            Some((self.0.log.op(op), self.0.present().find(failed)?))
        })
    }

    /// An operation that the policy of a site did not let run, and the site, if that still matters.
    pub(super) fn denied(self) -> Option<(&'a SharedOperation, &'a SiteId)> {
        let tail = self.0.tail();
        tail.iter().find_map(|&op| {
            let said = self.said(tail, op);
            let matters = said.is_withstood() || said.denied > 0 && tail.last() == Some(&op);
            if !matters || self.is_made_good(tail, op) {
                return None;
            }
            let is_denied = |reply: &Reply| reply.outcome == Outcome::Denied;
            let denies = |site: &&SiteId| self.standing(tail, op, site).is_some_and(is_denied);
            Some((self.0.log.op(op), self.0.present().find(denies)?))
        })
    }

    /// Whether something that a site has run and that has left the block is still in its state.
    fn has_strays(self, resolution: &Resolution, site: &SiteId) -> bool {
        let replies = self.0.streams().replied(site).filter_map(|(number, op)| {
            self.0.reply_to(op, site).filter(|reply| reply.id.number == number).map(|r| (op, r))
        });
        // What was run before the state was last made anew is gone; or, if that failed somewhere, it is
        // what is reported.
        let anew = resolution.last_replacing().map(|place| resolution.block()[place]);
        let mut era = None;
        replies
            .take_while(|&(op, reply)| {
                *era.get_or_insert(reply.era) == reply.era && Some(op) != anew
            })
            .any(|(op, reply)| !reply.outcome.is_failure() && resolution.fate(op) != Fate::Kept)
    }
}
