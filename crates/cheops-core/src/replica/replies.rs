//! The replies that stand, by operation and site.
//!
//! What must stay true: for an operation and a site there is at most one; the replies to an
//! operation are in the order of their sites.

use alloc::sync::Arc;

use super::message::Reply;
use crate::{few::Few, id::SiteId, log::Ix};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Replies(Few<Few<Arc<Reply>>>);

impl Replies {
    /// Makes room for the operations of a log.
    pub(super) fn grow(&mut self, operations: usize) {
        while self.0.len() < operations {
            self.0.push(Few::default());
        }
    }

    /// The reply of a site to an operation.
    pub(super) fn get(&self, op: Ix, site: &SiteId) -> Option<&Arc<Reply>> {
        let replies = self.0.get(op.usize())?;
        let at = search(replies, site).ok()?;
        Some(&replies[at])
    }

    /// All replies to an operation.
    pub(super) fn to(&self, op: Ix) -> &[Arc<Reply>] {
        self.0.get(op.usize()).map_or(&[][..], |replies| replies)
    }

    /// Puts a reply in the place of the one of its site, if there is one.
    pub(super) fn insert(&mut self, op: Ix, reply: Arc<Reply>) {
        self.grow(op.usize() + 1);
        let replies = &mut self.0[op.usize()];
        match search(replies, &reply.id.site) {
            Ok(at) => replies[at] = reply,
            Err(at) => replies.insert(at, reply),
        }
    }
}

fn search(replies: &[Arc<Reply>], site: &SiteId) -> Result<usize, usize> {
    replies.binary_search_by(|reply| reply.id.site.cmp(site))
}
