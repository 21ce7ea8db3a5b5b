//! What a look at a resource needs, kept up to date: the index of its block, and what follows from it.
//!
//! While records are taken in, what has changed is only noted; [`Resource::refresh`] then brings the
//! index up to date once, for all records of a message together. A look in between walks.
//!
//! What must stay true: a glance is made of the rest of its resource alone. So it takes no part when
//! two resources are compared.

use alloc::boxed::Box;
use core::{
    hash::{Hash, Hasher},
    mem,
};

use super::{
    State, Tally,
    digest::BlockDigest,
    index::{Changes, Index, Last, On},
};
use crate::{
    id::{OpId, SiteId},
    log::Ix,
    operation::SharedOperation,
    plan::Outcome,
    replica::{Reply, Resource},
    resolve::{Change, Fate, Resolution},
};

/// As few records as this are walked over.
const FEW: usize = 16;

#[derive(Debug, Clone, Default)]
pub(in crate::replica) struct Glance(Option<Box<Kept>>);

impl PartialEq for Glance {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Glance {}

impl Hash for Glance {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[derive(Debug, Clone)]
pub(super) struct Kept {
    stale: Stale,
    index: Index,
    effective: Option<Effective>,
    digest: Option<BlockDigest>,
    replied: State,
}

/// What has changed since.
#[derive(Debug, Clone)]
enum Stale {
    Nothing,
    Some(Changes),
    /// Everything may have.
    All,
}

/// What operations amount to without those that failed at all sites, as far as it was ever asked for.
#[derive(Debug, Clone)]
struct Effective {
    resolution: Resolution,
    index: Index,
}

impl Glance {
    /// Whether a resource has too many records to be walked over.
    pub(super) fn is_needed(resource: &Resource) -> bool {
        resource.streams().len() > FEW || resource.log.len() > FEW
    }

    /// What is known, if it is up to date.
    pub(super) fn fresh(&self) -> Option<&Kept> {
        self.0.as_deref().filter(|kept| matches!(kept.stale, Stale::Nothing))
    }

    fn changes(&mut self) -> Option<&mut Changes> {
        let stale = &mut self.0.as_mut()?.stale;
        if matches!(stale, Stale::Nothing) {
            *stale = Stale::Some(Changes::default());
        }
        match stale {
            Stale::Some(changes) => Some(changes),
            Stale::Nothing | Stale::All => None,
        }
    }

    /// Takes note that something has changed, but for the block and the replies.
    pub(in crate::replica) fn changed(&mut self) {
        self.changes();
    }

    /// Takes note that the block has.
    pub(in crate::replica) fn block_changed(&mut self, change: Change) {
        if let Some(changes) = self.changes() {
            changes.block(change);
        }
    }

    /// Takes note of a reply that stands from now on.
    pub(in crate::replica) fn replied(&mut self, op: Ix, reply: &Reply, stood: Option<&Reply>) {
        if let Some(changes) = self.changes() {
            let stood = stood.map(|stood| stood.id.number);
            changes.replied.push((op, reply.id.site.clone(), stood));
        }
    }

    /// Takes note that anything may have changed.
    pub(in crate::replica) fn all_changed(&mut self) {
        if let Some(kept) = &mut self.0 {
            kept.stale = Stale::All;
        }
    }
}

impl Resource {
    /// Brings up to date what a look at the resource needs.
    pub(in crate::replica) fn refresh(&mut self) {
        if !Glance::is_needed(self) {
            self.glance = Glance::default();
            return;
        }
        if self.glance.fresh().is_some() {
            return;
        }
        let kept = self.glance.0.take();
        let kept = match kept.map(|mut kept| (mem::replace(&mut kept.stale, Stale::Nothing), kept))
        {
            Some((Stale::Some(changes), mut kept)) => {
                kept.update(self, &changes);
                kept
            }
            Some((Stale::Nothing, kept)) => kept,
            Some((Stale::All, _)) | None => Box::new(Kept::new(self)),
        };
        self.glance.0 = Some(kept);
    }
}

fn on(resource: &Resource) -> On<'_> {
    On { resource, resolution: &resource.resolution }
}

impl Kept {
    fn new(resource: &Resource) -> Self {
        let on = on(resource);
        let command = resource.config().show.as_deref();
        let mut this = Self {
            stale: Stale::Nothing,
            index: Index::new(on, true),
            effective: None,
            digest: command.map(|command| BlockDigest::new(command, on)),
            replied: State::Settled,
        };
        this.conclude(resource);
        this
    }

    fn update(&mut self, resource: &Resource, changes: &Changes) {
        let on = on(resource);
        self.index.update(on, changes);
        self.digest = match (resource.config().show.as_deref(), self.digest.take()) {
            (Some(command), Some(mut digest)) => {
                digest.update(command, on, changes.from);
                Some(digest)
            }
            (Some(command), None) => Some(BlockDigest::new(command, on)),
            (None, _) => None,
        };
        let index = &self.index;
        self.effective.take_if(|effective| !effective.update(resource, index, changes));
        self.conclude(resource);
    }

    /// Says what follows from the index.
    fn conclude(&mut self, resource: &Resource) {
        let on = on(resource);
        let last = resource.resolution.block().last();
        let last = Last {
            failed: last.is_some_and(|&op| self.index.all_failed(op)),
            denied: last.is_some_and(|&op| self.index.all_failed(op) && self.index.is_denied(op)),
        };
        self.replied = self.index.told(on, last);
        if !matches!(self.replied, State::Settled | State::Failed) {
            return;
        }
        let base = on.resolution.last_replacing().map(|place| on.resolution.block()[place]);
        // What failed everywhere has replaced nothing.
        if base.is_some_and(|base| self.index.failed_everywhere(base)) {
            let index = &self.index;
            let effective = self.effective.get_or_insert_with(|| Effective::new(resource, index));
            let on = On { resource, resolution: &effective.resolution };
            self.replied = effective.index.told(on, last);
        }
    }

    pub(super) fn replied(&self) -> State {
        self.replied
    }

    pub(super) fn digest(&self) -> Option<u64> {
        self.digest.as_ref().map(BlockDigest::value)
    }

    pub(super) fn unanswered(&self, resource: &Resource, site: &SiteId) -> Option<usize> {
        self.index.unanswered(on(resource), site)
    }

    pub(super) fn tally(&self, site: &SiteId) -> Option<Tally> {
        self.index.tally(site)
    }

    pub(super) fn in_doubt<'a>(&self, resource: &'a Resource) -> Option<(&'a OpId, &'a SiteId)> {
        let op = self.index.doubted(on(resource))?;
        let unknown = |site: &&SiteId| {
            resource.reply_to(op, site).is_some_and(|reply| reply.outcome == Outcome::Unknown)
        };
        Some((&resource.log.op(op).id, resource.present().find(unknown)?))
    }

    pub(super) fn apart<'a>(
        &self,
        resource: &'a Resource,
    ) -> Option<(&'a SharedOperation, &'a SiteId)> {
        let op = self.index.apart(on(resource))?;
        self.of(resource, op, Outcome::Ko)
    }

    pub(super) fn denied<'a>(
        &self,
        resource: &'a Resource,
    ) -> Option<(&'a SharedOperation, &'a SiteId)> {
        let last = resource.resolution.block().last().copied();
        let withstood = self.index.withstood(on(resource));
        let op = withstood.or(last.filter(|&last| self.index.is_denied(last)))?;
        self.of(resource, op, Outcome::Denied)
    }

    /// An operation, and the first site that says this of it.
    fn of<'a>(
        &self,
        resource: &'a Resource,
        op: Ix,
        outcome: Outcome,
    ) -> Option<(&'a SharedOperation, &'a SiteId)> {
        let site = resource.present().find(|site| self.index.says(site, op, outcome))?;
        Some((resource.log.op(op), site))
    }
}

impl Effective {
    fn new(resource: &Resource, index: &Index) -> Self {
        let void = |op| resource.is_void(op) || index.failed_everywhere(op);
        let rules = resource.resolution.shared_rules().clone();
        let resolution = Resolution::of(rules, &resource.log, void);
        let index = Index::new(On { resource, resolution: &resolution }, false);
        Self { resolution, index }
    }

    /// Takes in what has changed of the resource. Whether that could be done: nothing that failed comes
    /// back to life.
    fn update(&mut self, resource: &Resource, index: &Index, changes: &Changes) -> bool {
        let log = &resource.log;
        let is_void = |op: Ix| resource.is_void(op) || index.failed_everywhere(op);
        let mut own = Changes { replied: changes.replied.clone(), ..Changes::default() };
        for place in self.resolution.len()..log.len() {
            let op = Ix::new(place);
            own.block(self.resolution.add(log, op));
            if is_void(op) {
                own.block(self.resolution.void(log, op));
            }
        }
        for &(op, ..) in &changes.replied {
            match (is_void(op), self.resolution.fate(op) == Fate::Void) {
                (true, false) => own.block(self.resolution.void(log, op)),
                (false, true) => return false,
                (true, true) | (false, false) => {}
            }
        }
        self.index.update(On { resource, resolution: &self.resolution }, &own);
        true
    }
}
