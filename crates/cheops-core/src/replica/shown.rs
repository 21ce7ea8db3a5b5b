//! What a resource's `Show` command prints, at each of its sites.
//!
//! Replies tell that all sites have run the block, and nothing of what came of it: a matrix that does
//! not tell the truth about the application leaves sites apart that have all answered OK. So, where
//! the configuration has a `Show` command, a site that has come to rest runs it after a while of
//! quiet and records a *print* of what it said. Two sites with different prints of one block have
//! diverged, unless they hold different parts of the resource.
//!
//! What must stay true:
//! - a print stands for the block that it names, and only as long as its site has run nothing since:
//!   no reply comes after it in the site's stream;
//! - `Show` is run here at most once at a time for a resource, and never when nothing has changed
//!   since it was last run, whether that went well or not;
//! - nothing waits for a print: operations run and are answered as if there were none.

use alloc::{collections::BTreeMap, sync::Arc};

use super::{Alarm, Effect, Outbox, Record, Replica, Resource, run::Work, withhold::Gate};
use crate::{
    id::{OpId, ResourceId, SiteId},
    log::Ix,
    time::Now,
};

/// A digest of what `Show` printed. The shell around us makes it.
pub type Print = [u8; 16];

/// What `Show` printed at one site, after a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shown {
    /// The site, and the number of this record in its stream.
    pub id: OpId,
    /// The resource.
    pub resource: ResourceId,
    /// The last operation of the block.
    pub op: OpId,
    /// A digest of the block, as far as it has influence on the state, and of the command.
    pub block: u64,
    /// What was printed; nothing if the command failed.
    pub print: Option<Print>,
}

/// A moment at which `Show` was run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Look {
    block: u64,
    /// The number of this site's last reply.
    after: u64,
}

impl Resource {
    /// What `Show` printed at a site, if that is what there is to see: it belongs to the block as it
    /// is, and the site has run nothing since.
    pub fn shown(&self, site: &SiteId) -> Option<&Shown> {
        let block = self.block_digest()?;
        self.shown_of(site, block)
    }

    fn shown_of(&self, site: &SiteId, block: u64) -> Option<&Shown> {
        let shown = self.last_shown(site)?;
        (shown.block == block && shown.id.number > self.last_reply(site)).then_some(shown)
    }

    /// Whether two sites show different things of the block, or one shows nothing that another does.
    /// Sites that hold different parts of the resource do so by design.
    pub fn shows_differ(&self) -> bool {
        let Some(block) = self.block_digest() else { return false };
        let mut prints = BTreeMap::new();
        self.present().any(|site| {
            let Some(shown) = self.shown_of(site, block) else { return false };
            let first = prints.entry(self.config().share(site)).or_insert(shown.print);
            *first != shown.print
        })
    }

    /// The number of a site's last reply; 0 if there is none.
    fn last_reply(&self, site: &SiteId) -> u64 {
        self.streams().last_reply(site)
    }

    /// Stands for the block, as far as it has influence on the state, and for the command that shows
    /// it. There is none of what can't be shown, or is about to be gone.
    fn block_digest(&self) -> Option<u64> {
        let command = self.config().show.as_deref()?;
        self.shown_last()?;
        Some(self.tail_digest(command))
    }

    /// The last operation of the block, if it leaves something to be shown.
    fn shown_last(&self) -> Option<Ix> {
        let last = *self.tail().last()?;
        (!self.log.op(last).kind.is_delete()).then_some(last)
    }

    /// Whether `Show` may have something new to say here, as far as can be told at a glance.
    fn may_be_shown(&self) -> bool {
        self.config().show.is_some() && self.work == Work::Idle
    }

    /// The moment at which `Show` is to be run here, if it has something new to say.
    fn to_show(&self, here: &SiteId) -> Option<Look> {
        if !self.may_be_shown() {
            return None;
        }
        let look = Look { block: self.block_digest()?, after: self.last_reply(here) };
        self.shown_of(here, look.block).is_none().then_some(look)
    }
}

impl Replica {
    /// Has a resource shown after a while of quiet, now that it has changed.
    pub(super) fn show_later(&mut self, id: &ResourceId, now: Now) {
        let Some(quiet) = self.settings.show_after else { return };
        let may = self.resource(id).is_some_and(Resource::may_be_shown);
        if may && self.gate(id) == Gate::Open {
            let alarm = Alarm::Show(id.clone());
            self.alarms.cancel(&alarm);
            self.arm(now, quiet, alarm);
        }
    }

    /// Has a resource shown, if that is new.
    pub(super) fn show(&mut self, id: &ResourceId, out: &mut Outbox) {
        if self.gate(id) != Gate::Open {
            return;
        }
        let Some(resource) = self.resources.get_mut(id).filter(|r| r.looking.is_none()) else {
            return;
        };
        if let Some(look) = resource.to_show(&self.here)
            && let Some(command) = resource.config().show.clone()
        {
            resource.looking = Some(look);
            let (resource, timeout) = (id.clone(), resource.timeout());
            out.run(Effect::Show { resource, command, timeout, block: look.block });
        }
    }

    /// `Show` may not be run here. It is asked for again when something has changed, and not before.
    pub(super) fn was_not_shown(&mut self, id: &ResourceId, block: u64, now: Now) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        let look = resource.looking.take_if(|look| look.block == block);
        if look.is_none() || resource.to_show(&self.here) != look {
            self.show_later(id, now);
        }
    }

    /// `Show` has ended. What it said counts if nothing has happened meanwhile.
    pub(super) fn was_shown(
        &mut self,
        id: &ResourceId,
        block: u64,
        print: Option<Print>,
        now: Now,
        out: &mut Outbox,
    ) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        let Some(look) = resource.looking.take_if(|look| look.block == block) else {
            return self.show_later(id, now);
        };
        if resource.to_show(&self.here) != Some(look) || self.gate(id) != Gate::Open {
            return self.show_later(id, now);
        }
        let Some(resource) = self.resources.get(id) else { return };
        let Some(op) = resource.shown_last().map(|op| resource.log.op(op).id.clone()) else {
            return;
        };
        let after = self.last_number(id);
        let record = Record::Shown(Arc::new(Shown {
            id: OpId { site: self.here.clone(), number: self.next_number(id) },
            resource: id.clone(),
            op,
            block: look.block,
            print,
        }));
        self.admit(id, &record, None, now, out);
        self.publish(&record, after, out);
    }
}
