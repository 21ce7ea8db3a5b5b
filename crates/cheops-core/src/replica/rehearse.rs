//! What would become of a request, if it were made here and now.
//!
//! What must stay true: nothing changes; a request that would be refused is refused here, too; and
//! what is told comes from the same code that would do it. It is a guess in two ways: other sites
//! may know what is not known here, and commands may fail.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};

use super::{Asked, Record, Refusal, Replica, Resource, Submission};
use crate::{
    id::{Kind, OpId, SiteId, Sites},
    operation::{Operation, SharedOperation},
    plan::{Act, Journal, Outcome},
    resolve::{Account, Resolution},
    time::Now,
};

/// The most steps that are told of a site.
const MOST: usize = 1_000;

/// What would become of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsal {
    /// The operation that it would be; the one that there is, if the request repeats it.
    pub op: Operation,
    /// The operation that the request repeats: then nothing new would happen.
    pub known: Option<OpId>,
    /// The block as it is.
    pub before: Vec<OpId>,
    /// The block as it would be.
    pub after: Vec<OpId>,
    /// What would leave the block, in its order, and why.
    pub dropped: Vec<(OpId, Account)>,
    /// What each site would do to get to the new block, from what is known here of its runs.
    pub sites: BTreeMap<SiteId, Vec<Planned>>,
    /// The parts that the resource would be in; empty if each site would have all of it.
    pub parts: Vec<Sites>,
}

/// One thing that a site would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Planned {
    /// Run an operation.
    Run {
        /// Which one.
        op: OpId,
        /// Its kind.
        kind: Kind,
        /// It replaces the state.
        fresh: bool,
        /// The site has run it before.
        again: bool,
    },
    /// Run the resource's `Reset` command.
    Clear,
    /// Wait for a person's decision.
    Decide,
    /// More than is told.
    More,
}

/// A request that is about to be rehearsed, with a copy of its resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    here: SiteId,
    /// The operation that the request repeats, or would be.
    op: SharedOperation,
    is_known: bool,
    /// The resource as it is, or as the request would begin it.
    resource: Resource,
}

impl Replica {
    /// Prepares the rehearsal of a request. It copies the resource; all else is done without the replica,
    /// which others wait for.
    pub fn draft(&self, submission: &Submission, now: Now) -> Result<Draft, Refusal> {
        let id = &submission.resource;
        let (op, is_known) = match self.asked(submission)? {
            Asked::Known(op) => (op, true),
            Asked::New(declares) => {
                let at = self.clock.clone().tick(now.wall, self.followed(id));
                (Arc::new(self.operation(submission.clone(), declares, at)), false)
            }
        };
        let begun = || op.declares.as_ref().map(|declared| self.begun(id, declared));
        let Some(resource) = self.resource(id).cloned().or_else(begun) else {
            return Err(Refusal::NoSites(id.clone()));
        };
        Ok(Draft { here: self.here.clone(), op, is_known, resource })
    }
}

impl Draft {
    /// What would become of the request.
    pub fn rehearse(self) -> Rehearsal {
        let Self { here, op, is_known, resource: mut then } = self;
        let block = |resource: &Resource| resource.block().map(|op| op.id.clone()).collect();
        let before: Vec<OpId> = block(&then);
        let mut rehearsal = Rehearsal {
            known: is_known.then(|| op.id.clone()),
            op: (*op).clone(),
            after: before.clone(),
            before,
            dropped: Vec::new(),
            sites: BTreeMap::new(),
            parts: then.config().parts.clone(),
        };
        if is_known {
            return rehearsal;
        }
        then.take(&Record::Operation(op));
        rehearsal.after = block(&then);
        rehearsal.parts.clone_from(&then.config().parts);
        let stays: BTreeSet<&OpId> = rehearsal.after.iter().collect();
        let gone = rehearsal.before.iter().filter(|op| !stays.contains(op));
        let dropped = gone.filter_map(|op| Some((op.clone(), then.dropped(then.log.find(op)?)?)));
        rehearsal.dropped = dropped.collect();
        // No command fails here, so that one copy serves all sites.
        let mut resolution = then.resolution.clone();
        let way = |site: &SiteId| (site.clone(), then.way(&here, site, &mut resolution));
        rehearsal.sites = then.sites().iter().map(way).collect();
        rehearsal
    }
}

impl Resource {
    /// What a site would do to get to the block, if all its commands succeed.
    fn way(&self, here: &SiteId, site: &SiteId, resolution: &mut Resolution) -> Vec<Planned> {
        let mut journal = if here == site { self.journal.clone() } else { self.journal_of(site) };
        let can_clear = self.config().reset.is_some() && !(here == site && self.clear_failed);
        let acts = journal.follow(&self.log, resolution, can_clear, |_| false, MOST + 1);
        let run = |op, fresh, again| {
            let op = self.log.op(op);
            Planned::Run { op: op.id.clone(), kind: op.kind.clone(), fresh, again }
        };
        let told = acts.into_iter().enumerate().map(|(n, act)| match act {
            _ if n == MOST => Planned::More,
            Act::Run { op, fresh, again, .. } => run(op, fresh, again),
            Act::Clear => Planned::Clear,
            Act::Decide => Planned::Decide,
        });
        told.collect()
    }

    /// What another site has run, as its replies tell.
    fn journal_of(&self, site: &SiteId) -> Journal {
        let mut replied: Vec<_> = self.streams().replied(site).collect();
        replied.reverse();
        let mut journal = Journal::default();
        for (number, op) in replied {
            let reply = self.reply_to(op, site).filter(|reply| reply.id.number == number);
            let Some(reply) = reply else { continue };
            let fresh = self.resolution.replaces(&self.log, op);
            let made_anew = u32::from(fresh && reply.outcome == Outcome::Ok);
            // A greater number than this run accounts for comes from `Reset`.
            if reply.era > journal.era() + made_anew {
                journal.cleared();
            }
            journal.ran(op, fresh, reply.outcome);
            journal.reach(reply.era);
        }
        journal
    }
}
