//! A resource's state at a glance: what the replies of its sites tell about how things stand now.
//!
//! What must stay true:
//! - it is about now. What failed in the past counts only as long as it leaves the sites apart: one
//!   that failed at all sites has changed nothing, and what replaces it has made it good;
//! - a site that was removed is neither waited for nor compared with;
//! - `settled` is never said of sites that differ, as far as replies can tell: an operation that
//!   replaces and failed at all sites has replaced nothing, so that what came before it counts;
//! - a look costs the same however long the log is. A resource with few records is walked over
//!   (`walk`); one with more has a [`Glance`], which is brought up to date when records come in.

mod digest;
mod glance;
mod good;
mod index;
mod places;
mod strays;
mod walk;

use alloc::collections::BTreeMap;

pub(super) use self::glance::Glance;
use self::{index::Last, walk::Walk};
use super::Resource;
use crate::{
    id::{OpId, SiteId},
    log::Ix,
    operation::SharedOperation,
    plan::Outcome,
    resolve::Resolution,
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

/// How the operations of a block went at one site, by its last replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tally {
    /// How many went well.
    pub ok: usize,
    /// How many failed.
    pub ko: usize,
    /// How many its policy did not let run.
    pub denied: usize,
    /// Of how many it can't say whether they took effect.
    pub unknown: usize,
}

impl Tally {
    /// How many the site has replied to.
    pub fn total(self) -> usize {
        self.ok + self.ko + self.denied + self.unknown
    }

    fn add(&mut self, outcome: Outcome, more: bool) {
        let number = match outcome {
            Outcome::Ok => &mut self.ok,
            Outcome::Ko => &mut self.ko,
            Outcome::Denied => &mut self.denied,
            Outcome::Unknown => &mut self.unknown,
        };
        if more { *number += 1 } else { *number -= 1 }
    }
}

/// All that is told of a resource at a glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// See [`Resource::state`].
    pub state: State,
    /// See [`Resource::replied`].
    pub replied: State,
    /// See [`Resource::in_doubt`].
    pub in_doubt: Option<(OpId, SiteId)>,
    /// See [`Resource::apart`].
    pub apart: Option<(OpId, SiteId)>,
    /// See [`Resource::denied`].
    pub denied: Option<(OpId, SiteId)>,
    /// See [`Resource::unanswered`] and [`Resource::tally`], for each site.
    pub sites: BTreeMap<SiteId, (usize, Tally)>,
    /// A digest of what `Show` is to show, if there is such a command.
    pub block: Option<u64>,
}

/// What is seen of a tail that leaves nothing apart.
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
struct Seen {
    /// Something is still to come, or nobody knows of it.
    pending: bool,
    /// What went well at one site was not let run at another.
    denied: bool,
    /// Some site has run what is not in the block.
    strays: bool,
    /// It is the block that the sites run.
    is_run: bool,
    /// It begins with an operation that replaces the state.
    replaces: bool,
}

impl Seen {
    /// The state that it amounts to. `last`: what was asked for last, of the block that the sites run.
    fn state(&self, resource: &Resource, last: Last) -> State {
        let way_back = self.is_run && (self.replaces || resource.config().reset.is_some());
        // Where nothing is left to replay, a site that finds its way back has nothing to say of it.
        let replays = self.strays && way_back && !resource.nothing_left();
        if self.strays && !way_back {
            State::Diverged
        } else if self.pending || replays {
            State::Pending
        } else if self.denied || last.denied {
            State::Denied
        } else if resource.nothing_left() || last.failed {
            State::Failed
        } else {
            State::Settled
        }
    }
}

impl Resource {
    /// The resource's state at a glance, as far as it is known here.
    pub fn state(&self) -> State {
        if self.is_contradicted() {
            return State::Diverged;
        }
        match self.replied() {
            State::Settled | State::Failed if self.shows_differ() => State::Diverged,
            state => state,
        }
    }

    /// The state that the replies tell of, whatever `Show` prints.
    pub fn replied(&self) -> State {
        self.glance.fresh().map_or_else(|| Walk(self).replied(), glance::Kept::replied)
    }

    /// How many operations at the end of the block a site has not answered, as far as is known here.
    /// What has no influence on the state any more is not counted, and what the site has yet to replay
    /// is.
    pub fn unanswered(&self, site: &SiteId) -> usize {
        let fresh = self.glance.fresh();
        let known = fresh.and_then(|fresh| fresh.unanswered(self, site));
        known.unwrap_or_else(|| Walk(self).unanswered(site))
    }

    /// How the operations of the block went at a site, by its last replies.
    pub fn tally(&self, site: &SiteId) -> Tally {
        let known = self.glance.fresh().and_then(|fresh| fresh.tally(site));
        known.unwrap_or_else(|| Walk(self).tally(site))
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

    /// An operation of which a site can't say whether it took effect, and the site, if that still
    /// matters.
    pub fn in_doubt(&self) -> Option<(&OpId, &SiteId)> {
        match self.glance.fresh() {
            Some(fresh) => fresh.in_doubt(self),
            None => Walk(self).in_doubt(),
        }
    }

    /// An operation that went well at one site and failed at another, and the other, if that still leaves
    /// them apart.
    pub fn apart(&self) -> Option<(&SharedOperation, &SiteId)> {
        match self.glance.fresh() {
            Some(fresh) => fresh.apart(self),
            None => Walk(self).apart(),
        }
    }

    /// An operation that the policy of a site did not let run, and the site, if that still matters.
    pub fn denied(&self) -> Option<(&SharedOperation, &SiteId)> {
        match self.glance.fresh() {
            Some(fresh) => fresh.denied(self),
            None => Walk(self).denied(),
        }
    }

    /// Whether all that was ever asked for is void.
    fn nothing_left(&self) -> bool {
        self.tail().is_empty() && !self.log.is_empty()
    }

    /// Stands for the tail of the block, and for the command that shows it.
    pub(super) fn tail_digest(&self, command: &str) -> u64 {
        let known = self.glance.fresh().and_then(glance::Kept::digest);
        known.unwrap_or_else(|| Walk(self).block_digest(command))
    }

    /// All of it.
    pub fn summary(&self) -> Summary {
        let named = |(op, site): (&SharedOperation, &SiteId)| (op.id.clone(), site.clone());
        Summary {
            state: self.state(),
            replied: self.replied(),
            in_doubt: self.in_doubt().map(|(op, site)| (op.clone(), site.clone())),
            apart: self.apart().map(named),
            denied: self.denied().map(named),
            sites: self
                .sites()
                .iter()
                .map(|site| (site.clone(), (self.unanswered(site), self.tally(site))))
                .collect(),
            block: self.config().show.as_deref().map(|command| self.tail_digest(command)),
        }
    }

    /// The same, by walking over all that is known. For tests: it takes long.
    pub fn summary_by_walking(&self) -> Summary {
        let mut bare = self.clone();
        bare.glance = Glance::default();
        bare.summary()
    }

    /// Whether a look costs the same however long the log is. For tests.
    pub fn is_up_to_date(&self) -> bool {
        self.glance.fresh().is_some() || !Glance::is_needed(self)
    }
}

/// A block from its last replacing operation on.
pub(super) fn tail_of(resolution: &Resolution) -> &[Ix] {
    &resolution.block()[resolution.last_replacing().unwrap_or(0)..]
}
