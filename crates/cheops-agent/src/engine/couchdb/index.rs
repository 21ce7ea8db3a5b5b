//! What the journal says of each resource: where it is, on which pages it stands, what of it is forgotten.
//!
//! In memory, made from the journal at the start. What must stay true: it is as far as the journal, never behind.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{Durable, Record},
};

use super::journal::{Entry, Page};
use crate::{
    engine::{Seq, meaning},
    wire::Names,
};

#[derive(Default)]
pub(super) struct Index {
    resources: BTreeMap<ResourceId, Known>,
}

/// What is known of one resource.
#[derive(Default)]
pub(super) struct Known {
    /// The sites that were declared for it.
    pub(super) sites: BTreeSet<SiteId>,
    /// The numbers with which the pages begin that it stands on.
    pub(super) pages: BTreeSet<Seq>,
    /// The highest number of this site's own stream.
    pub(super) own: u64,
    /// What was written before this number is forgotten.
    pub(super) forgotten: Seq,
}

impl Index {
    pub(super) fn of(&self, resource: &ResourceId) -> Option<&Known> {
        self.resources.get(resource)
    }

    fn known(&mut self, resource: &ResourceId) -> &mut Known {
        if !self.resources.contains_key(resource) {
            self.resources.insert(resource.clone(), Known::default());
        }
        self.resources.entry(resource.clone()).or_default()
    }

    /// Whether what was written under a number is forgotten.
    pub(super) fn is_forgotten(&self, resource: &ResourceId, seq: Seq) -> bool {
        self.of(resource).is_some_and(|known| seq < known.forgotten)
    }

    /// Those of which something is forgotten.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = &ResourceId> {
        self.resources.iter().filter(|(_, known)| known.forgotten > 0).map(|(id, _)| id)
    }

    /// Takes note of what a record declares.
    pub(super) fn declare(&mut self, durable: &Durable) {
        if let Durable::Record(Record::Operation(op), _) = durable
            && let Some(declared) = &op.declares
        {
            let known = self.known(&op.resource);
            known.sites.extend(declared.sites.iter().cloned());
        }
    }

    /// Takes note of a page that was written.
    pub(super) fn turn(&mut self, page: &Page, here: &SiteId, names: &mut Names) {
        for (seq, entry) in page.numbered() {
            let Some(resource) = entry.resource() else { continue };
            let known = self.known(&resource);
            known.pages.insert(page.first);
            match entry {
                Entry::Record(id) => {
                    known.own = known.own.max(own_number(id, here).unwrap_or(0));
                }
                Entry::Local { .. } => {
                    if let Some(Ok(durable)) = entry.local(names)
                        && meaning::forgets(&durable).is_some()
                    {
                        known.forgotten = seq;
                        known.sites.clear();
                    }
                }
                Entry::Gone(()) => {}
            }
        }
    }

    /// Takes note that pages hold nothing of a resource but that it was forgotten.
    pub(super) fn scrubbed(&mut self, resource: &ResourceId) {
        let known = self.known(resource);
        let forgotten = known.forgotten;
        let last = known.pages.range(..=forgotten).next_back().copied();
        known.pages.retain(|page| *page > forgotten || Some(*page) == last);
    }
}

/// The number of a record in the stream of this site, if it is one of its own.
pub(super) fn own_number(id: &str, here: &SiteId) -> Option<u64> {
    let (rest, number) = id.rsplit_once(':')?;
    let (_, site) = rest.rsplit_once(':')?;
    (site == here.as_str()).then(|| number.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::couchdb::journal;

    #[test]
    fn numbers_of_this_site_are_told_from_those_of_others() {
        let here: SiteId = "site 1".parse().unwrap();
        for (id, number) in [
            ("record:counter:site 1:7", Some(7)),
            ("record:counter:site 11:7", None),
            ("record:site 1:x:7", None),
            ("record", None),
        ] {
            assert_eq!(own_number(id, &here), number, "{id}");
        }
    }

    #[test]
    fn a_resource_stands_on_the_pages_that_name_it() {
        let here: SiteId = "here".parse().unwrap();
        let (a, b): (ResourceId, ResourceId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let batches = [
            vec![Durable::Clearing(a.clone()), Durable::Clearing(b.clone())],
            vec![Durable::Clearing(a.clone())],
        ];
        let (mut index, mut first) = (Index::default(), 1);
        for batch in &batches {
            for page in journal::pages(first, batch).unwrap() {
                index.turn(&page, &here, &mut Names::default());
            }
            first += batch.len() as Seq;
        }
        assert_eq!(index.of(&a).unwrap().pages, [1, 3].into());
        assert_eq!(index.of(&b).unwrap().pages, [1].into());
    }
}
