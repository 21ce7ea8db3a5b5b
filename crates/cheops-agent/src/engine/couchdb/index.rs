//! What the journal says of each resource: where it is, on which pages it stands, what of it is forgotten.
//!
//! In memory, made from the journal at the start. What must stay true: it is as far as the journal, never behind;
//! the numbers of this site's own records are known even after they are forgotten.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{Durable, Record},
};

use super::{
    document::Name,
    journal::{Entry, HIGHEST, Page},
};
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
    /// The hashes of the documents of its records, by site and number.
    records: BTreeMap<Box<str>, BTreeMap<u64, u128>>,
    /// The last numbers of each site that are forgotten.
    over: BTreeMap<SiteId, u64>,
    /// What was written before this number is forgotten.
    pub(super) forgotten: Seq,
    /// Whether pages hold copies of some of its records.
    pub(super) copied: bool,
}

impl Known {
    /// The highest number that a site has given to a record of the resource.
    pub(super) fn last_of(&self, site: &SiteId) -> u64 {
        let last = self.records.get(site.as_str()).and_then(BTreeMap::last_key_value);
        let over = self.over.get(site).copied().unwrap_or(0);
        last.map_or(over, |(number, _)| over.max(*number))
    }

    /// The hash of the document of a record.
    pub(super) fn hash(&self, record: &OpId) -> Option<u128> {
        self.records.get(record.site.as_str())?.get(&record.number).copied()
    }

    /// Whether a record is one of those that are forgotten.
    pub(super) fn is_over(&self, site: &SiteId, number: u64) -> bool {
        self.over.get(site).is_some_and(|over| number <= *over)
    }

    /// A number that no site can have given says nothing.
    fn note(&mut self, name: &Name<'_>) {
        if name.number > HIGHEST {
            return;
        }
        if !self.records.contains_key(name.site) {
            self.records.insert(name.site.into(), BTreeMap::new());
        }
        if let Some(records) = self.records.get_mut(name.site) {
            records.insert(name.number, name.hash);
        }
    }

    fn forget(&mut self, seq: Seq, durable: &Durable) {
        self.forgotten = seq;
        self.sites.clear();
        self.records.clear();
        if let Durable::Forgotten { version, .. } = durable {
            self.over.clone_from(version);
        }
    }
}

impl Index {
    pub(super) fn of(&self, resource: &ResourceId) -> Option<&Known> {
        self.resources.get(resource)
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
            let known = self.resources.entry(op.resource.clone()).or_default();
            known.sites.extend(declared.sites.iter().cloned());
        }
    }

    /// Takes note of a page that was written.
    pub(super) fn turn(&mut self, page: &Page, names: &mut Names) {
        for (seq, entry) in page.numbered() {
            let Some(resource) = entry.resource() else { continue };
            let known = self.resources.entry(resource).or_default();
            known.pages.insert(page.first);
            match entry {
                Entry::Record(id) | Entry::Copy { id, .. } => {
                    known.copied |= matches!(entry, Entry::Copy { .. });
                    if let Some(name) = Name::read(id) {
                        known.note(&name);
                    }
                }
                Entry::Local { .. } => {
                    if let Some(Ok(durable)) = entry.local(names)
                        && meaning::forgets(&durable).is_some()
                    {
                        known.forget(seq, &durable);
                    }
                }
                Entry::Gone(()) => {}
            }
        }
    }

    /// Takes note that pages hold nothing of a resource but that it was forgotten.
    pub(super) fn scrubbed(&mut self, resource: &ResourceId) {
        if let Some(known) = self.resources.get_mut(resource) {
            let forgotten = known.forgotten;
            let last = known.pages.range(..=forgotten).next_back().copied();
            known.pages.retain(|page| *page > forgotten || Some(*page) == last);
        }
    }
}

#[cfg(test)]
mod tests {
    use cheops_core::time::{Millis, Timestamp};

    use super::*;
    use crate::engine::couchdb::journal;

    fn resource(name: &str) -> ResourceId {
        name.parse().unwrap()
    }

    fn page(first: Seq, entries: Vec<Entry>) -> Page {
        let batch = (first, first + entries.len() as Seq - 1);
        Page {
            id: journal::id(first),
            revision: None,
            first,
            batch,
            entries,
            lost: None,
            upto: None,
        }
    }

    fn record(name: &str, site: &str, number: u64) -> Entry {
        Entry::Record(Name { resource: name, site, number, hash: u128::from(number) }.to_string())
    }

    #[test]
    fn a_resource_stands_on_the_pages_that_name_it() {
        let mut index = Index::default();
        let pages = [
            page(1, vec![record("a", "here", 1), record("b", "here", 1)]),
            page(3, vec![record("a", "there", 5)]),
        ];
        for page in &pages {
            index.turn(page, &mut Names::default());
        }
        let (a, b) = (index.of(&resource("a")).unwrap(), index.of(&resource("b")).unwrap());
        assert_eq!((&a.pages, &b.pages), (&[1, 3].into(), &[1].into()));
        let (here, there): (SiteId, SiteId) = ("here".parse().unwrap(), "there".parse().unwrap());
        assert_eq!((a.last_of(&here), a.last_of(&there), b.last_of(&there)), (1, 5, 0));
        assert_eq!(a.hash(&OpId { site: there.clone(), number: 5 }), Some(5));
        assert_eq!(a.hash(&OpId { site: there, number: 6 }), None);
    }

    #[test]
    fn numbers_that_are_forgotten_stay_taken() {
        let (here, a): (SiteId, _) = ("here".parse().unwrap(), resource("a"));
        let by = OpId { site: here.clone(), number: 4 };
        let version = [(here.clone(), 4)].into();
        let at = Timestamp::at(Millis(1));
        let forgotten = Durable::Forgotten { resource: a.clone(), version, by, at };
        let pages = journal::pages(2, &[(&forgotten, None)]).unwrap();
        let mut index = Index::default();
        for page in [page(1, vec![record("a", "here", 4)])].iter().chain(&pages) {
            index.turn(page, &mut Names::default());
        }
        let known = index.of(&a).unwrap();
        assert_eq!((known.forgotten, known.last_of(&here)), (2, 4));
        assert_eq!(known.hash(&OpId { site: here, number: 4 }), None);
        assert!(index.is_forgotten(&a, 1) && !index.is_forgotten(&a, 2));
    }
}
