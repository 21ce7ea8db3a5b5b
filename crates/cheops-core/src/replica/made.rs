//! What the application at each site calls what was made there.
//!
//! A request that makes something has an answer that names it, and each site has an answer of its own.
//! Its reply brings the id to all sites, so that each knows what the others call the same thing.
//!
//! What must stay true:
//! - what a site made is told by the replies of that site that stand, and by nothing else: it does not
//!   depend on the order in which they came;
//! - an id ends with a delete that went well at its site after it: one of an earlier life is never
//!   taken for one of this life.

use alloc::{boxed::Box, sync::Arc};

use super::{message::Reply, resource::Resource};
use crate::{id::SiteId, log::Ix, plan::Outcome};

/// What a site's replies tell about what it made.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Made {
    /// The last reply that names something, by its number, and what it names.
    named: Option<(u64, Box<str>)>,
    /// The last reply that tells of a delete that went well, by its number; 0 if there is none.
    deleted: u64,
}

impl Made {
    fn id(&self) -> Option<&str> {
        let (number, id) = self.named.as_ref()?;
        (*number > self.deleted).then_some(&**id)
    }

    /// Takes note of a reply that stands.
    fn note(&mut self, reply: &Reply, deletes: bool) {
        let number = reply.id.number;
        if let Some(id) = &reply.made
            && self.named.as_ref().is_none_or(|(last, _)| *last < number)
        {
            self.named = Some((number, id.clone()));
        }
        if deletes && reply.outcome == Outcome::Ok {
            self.deleted = self.deleted.max(number);
        }
    }

    /// Whether it rests on a reply.
    fn rests_on(&self, reply: &Reply) -> bool {
        let number = reply.id.number;
        self.deleted == number || self.named.as_ref().is_some_and(|(last, _)| *last == number)
    }
}

impl Resource {
    /// What the application at a site calls what was made there, as far as is known here.
    pub fn made(&self, site: &SiteId) -> Option<&str> {
        self.made.get(site)?.id()
    }

    /// The same for all sites where something was made.
    pub fn mades(&self) -> impl Iterator<Item = (&SiteId, &str)> {
        self.made.iter().filter_map(|(site, made)| Some((site, made.id()?)))
    }

    /// This site's last reply to an operation, unless what it tells of is gone since: by a delete that
    /// went well here, or by the `Reset` command.
    pub(super) fn before(&self, op: Ix, here: &SiteId) -> Option<&Arc<Reply>> {
        let reply = self.shared_reply(op, here)?;
        let deleted = self.made.get(here).is_some_and(|made| made.deleted > reply.id.number);
        (!deleted && !self.journal.was_cleared(op)).then_some(reply)
    }

    /// Takes note of a reply that stands from now on, in the place of another or of none.
    pub(super) fn note_made(&mut self, op: Ix, reply: &Reply, stood: Option<&Reply>) {
        let site = &reply.id.site;
        let deletes = |op: Ix| self.log.op(op).kind.is_delete();
        let mut made = self.made.remove(site).unwrap_or_default();
        if stood.is_some_and(|stood| made.rests_on(stood)) {
            made = Made::default();
            for (number, op) in self.streams().replied(site) {
                if let Some(reply) = self.reply_to(op, site).filter(|r| r.id.number == number) {
                    made.note(reply, deletes(op));
                }
            }
        }
        made.note(reply, deletes(op));
        if made != Made::default() {
            self.made.insert(site.clone(), made);
        }
    }
}
