//! Purges what is forgotten of a resource: documents of its records, and what pages of the journal hold of it.
//!
//! What must stay true:
//! - the work is done in parts of bounded size, and can be broken off after each of them;
//! - pages are changed last: a start after a crash finds in them what is left to purge;
//! - only what the tombstone covers is purged. The resource may live again, and be forgotten again, meanwhile.

use cheops_core::id::ResourceId;
use serde_json::json;

use super::{
    Shared,
    databases::IdAndRevision,
    document::Name,
    journal::{self, Entry},
    server::Trouble,
};
use crate::engine::Seq;

/// How many pages are changed at once, at most.
const PAGES: usize = 50;
/// How many documents are looked up at once.
const DOCUMENTS: usize = 500;

/// The purge of one resource.
#[derive(Debug)]
pub(super) struct Purge {
    pub(super) resource: ResourceId,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Looks through all documents of the resource, after this id: replication brings some that no page names.
    Documents { after: Option<String> },
    /// Looks through pages, and purges the documents that they name.
    Pages,
}

/// How far a purge is after a part of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    /// Nothing is left of what was forgotten under this number, or before it.
    Done(Seq),
}

impl Purge {
    pub(super) fn of(resource: ResourceId) -> Self {
        Self { resource, stage: Stage::Documents { after: None } }
    }

    /// Does the next part of it.
    pub(super) fn step(&mut self, shared: &Shared) -> Result<Progress, Trouble> {
        match &self.stage {
            Stage::Documents { after } => {
                let after = after.as_deref();
                let next = shared.purge_documents(&self.resource, after)?;
                self.stage = match next {
                    Some(last) => Stage::Documents { after: Some(last) },
                    None => Stage::Pages,
                };
                Ok(Progress::More)
            }
            Stage::Pages => shared.purge_pages(&self.resource),
        }
    }
}

impl Shared {
    /// Purges some documents of a resource that its tombstone covers, after an id. Says the last id that it has looked
    /// at; nothing if there are no more.
    fn purge_documents(
        &self,
        resource: &ResourceId,
        after: Option<&str>,
    ) -> Result<Option<String>, Trouble> {
        let found = self.databases.revisions_of(resource, after, DOCUMENTS)?;
        let covered: Vec<IdAndRevision> = {
            let index = self.index();
            let is_covered = |id: &str| {
                Name::read(id).is_some_and(|name| {
                    let (known, site) = (index.of(resource), name.site.parse());
                    known
                        .zip(site.ok())
                        .is_some_and(|(known, site)| known.is_over(&site, name.number))
                })
            };
            found.iter().filter(|(id, _)| is_covered(id)).cloned().collect()
        };
        self.databases.purge(&covered)?;
        let last = found.into_iter().next_back().map(|(id, _)| id);
        Ok(last.filter(|last| after != Some(last)))
    }

    /// Removes what some pages hold of a resource from before it was forgotten, with the documents that they name.
    fn purge_pages(&self, resource: &ResourceId) -> Result<Progress, Trouble> {
        let Self { databases, .. } = self;
        let (mut firsts, forgotten) = match self.index().of(resource) {
            None => return Ok(Progress::Done(0)),
            Some(known) => (known.unscrubbed().take(PAGES).collect::<Vec<_>>(), known.forgotten),
        };
        let ids: Vec<String> = firsts.iter().copied().map(journal::id).collect();
        let (mut changed, mut named) = (Vec::new(), Vec::new());
        let (pages, looked_at) = databases.some_pages_named(&ids)?;
        firsts.truncate(looked_at);
        for mut page in pages {
            let first = page.first;
            let mut touched = false;
            for (seq, entry) in (first..).zip(&mut page.entries) {
                if seq < forgotten && entry.resource().as_ref() == Some(resource) {
                    named.extend(entry.document().map(ToOwned::to_owned));
                    *entry = Entry::Gone(());
                    touched = true;
                }
            }
            if touched {
                changed.push(json!(page));
            }
        }
        for some in named.chunks(DOCUMENTS) {
            databases.purge(&databases.revisions(some)?)?;
        }
        databases.change_pages(&changed)?;
        let done = self.index_mut().scrub(resource, &firsts, forgotten);
        Ok(if done { Progress::Done(forgotten) } else { Progress::More })
    }
}
