//! A resource's state at a glance: what the replies of its sites tell about how things stand now.
//!
//! What must stay true:
//! - it is about now. What failed in the past counts only as long as it leaves the sites apart: one
//!   that failed at all sites has changed nothing, and what replaces it has made it good;
//! - a site that was removed is neither waited for nor compared with;
//! - `settled` is never said of sites that differ, as far as replies can tell: an operation that
//!   replaces and failed at all sites has replaced nothing, so that what came before it counts.

use alloc::collections::BTreeMap;

use super::{Reply, Resource};
use crate::{
    id::{OpId, SiteId},
    log::Ix,
    operation::SharedOperation,
    plan::Outcome,
    resolve::{Fate, Resolution},
};

/// A resource's state at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// All sites have run the block.
    Settled,
    /// Some site has not answered yet.
    Pending,
    /// What was asked for last has failed everywhere.
    Failed,
    /// An operation succeeded here and failed there; or a site has run what is not in the block, and
    /// has no way back; or what `Show` prints differs; or two sites know different records by one
    /// number.
    Diverged,
    /// The policy of a site does not let it run what others have run, or what was asked for last, and
    /// nothing else is wrong.
    Denied,
}

/// What a site has in common with this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shared {
    /// How many resources exist at both.
    pub resources: usize,
    /// How many of their operations it [has not answered](Resource::unanswered).
    pub unanswered: usize,
}

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

impl Resource {
    /// The resource's state at a glance, as far as it is known here.
    pub fn state(&self) -> State {
        if self.contradicted {
            return State::Diverged;
        }
        match self.replied() {
            State::Settled | State::Failed if self.shows_differ() => State::Diverged,
            state => state,
        }
    }

    /// The state that the replies tell of, whatever `Show` prints.
    pub fn replied(&self) -> State {
        let told = self.told_by(&self.resolution, true);
        match told {
            State::Settled | State::Failed => {
                self.without_failed().map_or(told, |effective| self.told_by(&effective, false))
            }
            State::Pending | State::Diverged | State::Denied => told,
        }
    }

    /// What operations amount to without those that failed at all sites; nothing if that makes no
    /// difference: it does only if what the tail begins with is one of them.
    fn without_failed(&self) -> Option<Resolution> {
        let base = self.resolution.last_replacing()?;
        self.failed_everywhere(self.resolution.block()[base]).then(|| {
            let void = |op| self.is_void(op) || self.failed_everywhere(op);
            Resolution::of(self.resolution.rules().clone(), &self.log, void)
        })
    }

    /// The state that the replies to the end of a block tell of: the one that the sites run, or one in
    /// which something is back that has left it. That is not run any more: who has not run it never
    /// will, and nobody finds a way back to it.
    fn told_by(&self, resolution: &Resolution, is_run: bool) -> State {
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
        let strays = self.present().any(|site| self.has_strays(resolution, site));
        let replaces = resolution.last_replacing().is_some();
        let way_back = is_run && (replaces || self.config().reset.is_some());
        // Where nothing is left to replay, a site that finds its way back has nothing to say of it.
        let replays = strays && way_back && !self.nothing_left();
        if strays && !way_back {
            State::Diverged
        } else if pending || replays {
            State::Pending
        } else if denied || self.denied_last() {
            State::Denied
        } else if self.nothing_left() || self.has_failed_last() {
            State::Failed
        } else {
            State::Settled
        }
    }

    /// Whether all that was ever asked for is void.
    fn nothing_left(&self) -> bool {
        self.tail().is_empty() && !self.log.is_empty()
    }

    /// Whether what was asked for last has failed at all sites.
    fn has_failed_last(&self) -> bool {
        let tail = self.tail();
        tail.last().is_some_and(|&last| self.said(tail, last).all_failed())
    }

    /// Whether what was asked for last was let run nowhere.
    fn denied_last(&self) -> bool {
        let tail = self.tail();
        tail.last().is_some_and(|&last| {
            let said = self.said(tail, last);
            said.all_failed() && said.denied > 0
        })
    }

    fn failed_everywhere(&self, op: Ix) -> bool {
        let failed = |site| self.reply_to(op, site).is_some_and(|r| r.outcome.is_failure());
        self.present().all(failed)
    }

    /// What all sites say about an operation of a tail.
    fn said(&self, tail: &[Ix], op: Ix) -> Said {
        let replies = self.present().map(|site| self.standing(tail, op, site));
        replies.fold(Said::default(), Said::add)
    }

    /// Whether another operation, which follows this one and went well at all sites, says all about what
    /// this one wrote to: however it went, nothing is left of it.
    fn is_made_good(&self, tail: &[Ix], op: Ix) -> bool {
        let action = &self.log.op(op).action;
        let mut later = tail.iter().rev().take_while(|&&other| other != op);
        later.any(|&other| {
            self.log.op(other).action.stands_for(action)
                && self.log.precedes(op, other)
                && self.said(tail, other).all_ok()
        })
    }

    /// How many operations at the end of the block a site has not answered, as far as is known here.
    /// What has no influence on the state any more is not counted, and what the site has yet to replay
    /// is.
    pub fn unanswered(&self, site: &SiteId) -> usize {
        let tail = self.tail();
        tail.iter().rev().take_while(|&&op| self.standing(tail, op, site).is_none()).count()
    }

    /// Adds this resource to what is counted for those of its sites that are counted for.
    pub fn count(&self, counts: &mut BTreeMap<SiteId, Shared>) {
        for site in self.sites().iter() {
            if let Some(shared) = counts.get_mut(site) {
                shared.resources += 1;
                shared.unanswered += self.unanswered(site);
            }
        }
    }

    /// The last known reply of a site to an operation of a tail. What a site ran before it made the
    /// state anew is gone, and it has yet to replay it. A replacing operation that failed has made
    /// nothing anew: it counts in the era that there was.
    fn standing(&self, tail: &[Ix], op: Ix, site: &SiteId) -> Option<&Reply> {
        let anew = tail.first().and_then(|&first| self.reply_to(first, site)).map(|r| r.era);
        self.reply_to(op, site).filter(|reply| Some(reply.era) >= anew)
    }

    /// An operation of which a site can't say whether it took effect, and the site, if that still
    /// matters.
    pub fn in_doubt(&self) -> Option<(&OpId, &SiteId)> {
        let tail = self.tail();
        tail.iter().find_map(|&op| {
            let unknown = |site: &&SiteId| {
                self.reply_to(op, site).is_some_and(|reply| reply.outcome == Outcome::Unknown)
            };
            let site = self.present().find(unknown)?;
            (!self.is_made_good(tail, op)).then(|| (&self.log.op(op).id, site))
        })
    }

    /// An operation that went well at one site and failed at another, and the other, if that still leaves
    /// them apart.
    pub fn apart(&self) -> Option<(&SharedOperation, &SiteId)> {
        let tail = self.tail();
        tail.iter().find_map(|&op| {
            if !self.said(tail, op).differs() || self.is_made_good(tail, op) {
                return None;
            }
            let is_ko = |reply: &Reply| reply.outcome == Outcome::Ko;
            let failed = |site: &&SiteId| self.standing(tail, op, site).is_some_and(is_ko);
            Some((self.log.op(op), self.present().find(failed)?))
        })
    }

    /// An operation that the policy of a site did not let run, and the site, if that still matters.
    pub fn denied(&self) -> Option<(&SharedOperation, &SiteId)> {
        let tail = self.tail();
        tail.iter().find_map(|&op| {
            let said = self.said(tail, op);
            let matters = said.is_withstood() || said.denied > 0 && tail.last() == Some(&op);
            if !matters || self.is_made_good(tail, op) {
                return None;
            }
            let is_denied = |reply: &Reply| reply.outcome == Outcome::Denied;
            let denies = |site: &&SiteId| self.standing(tail, op, site).is_some_and(is_denied);
            Some((self.log.op(op), self.present().find(denies)?))
        })
    }

    /// Whether something that a site has run and that has left the block is still in its state.
    fn has_strays(&self, resolution: &Resolution, site: &SiteId) -> bool {
        let replies = self.streams().replied(site).filter_map(|(number, op)| {
            self.reply_to(op, site).filter(|reply| reply.id.number == number).map(|r| (op, r))
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

/// A block from its last replacing operation on.
pub(super) fn tail_of(resolution: &Resolution) -> &[Ix] {
    &resolution.block()[resolution.last_replacing().unwrap_or(0)..]
}
