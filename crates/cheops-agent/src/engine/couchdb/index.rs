//! What the journal says of each resource: where it is, on which pages it stands, what of it is forgotten.
//!
//! In memory, made from the journal at the start. What must stay true: it is as far as the journal, never behind;
//! the numbers of this site's own records are known even after they are forgotten.

use std::collections::{BTreeMap, BTreeSet, HashMap};

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
    /// By the names of resources, which are looked up a million times at a start.
    resources: HashMap<Box<str>, Known>,
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
    /// The hashes of those of them that can't be read.
    lost: BTreeSet<u128>,
    /// The last numbers of each site that are forgotten.
    over: BTreeMap<SiteId, u64>,
    /// What was written before this number is forgotten.
    pub(super) forgotten: Seq,
    /// Whether pages hold copies of some of its records.
    pub(super) copied: bool,
    /// What was written before this number was looked at on the page that says so, and is not there any more.
    scrubbed: Seq,
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

    /// The pages that may hold something from before it was forgotten, in their order.
    pub(super) fn unscrubbed(&self) -> impl Iterator<Item = Seq> {
        let last = self.pages.range(..=self.forgotten).next_back().copied();
        let left = self.pages.range(..=self.forgotten).copied();
        left.filter(move |page| Some(*page) != last || self.scrubbed < self.forgotten)
    }

    /// Whether there is such a page.
    pub(super) fn is_unscrubbed(&self) -> bool {
        self.unscrubbed().next().is_some()
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
        self.lost.remove(&name.hash);
    }

    fn forget(&mut self, page: Seq, seq: Seq, durable: &Durable) {
        // A page that holds nothing else of it needs no second look.
        self.scrubbed = if self.pages.insert(page) { seq } else { 0 };
        self.forgotten = seq;
        self.sites.clear();
        self.records.clear();
        self.lost.clear();
        if let Durable::Forgotten { version, .. } = durable {
            self.over.clone_from(version);
        }
    }
}

impl Index {
    pub(super) fn of(&self, resource: &ResourceId) -> Option<&Known> {
        self.resources.get(resource.as_str())
    }

    /// What is known of a resource, from now on; nothing if no resource can have this name.
    fn enter(&mut self, resource: &str) -> Option<&mut Known> {
        if !self.resources.contains_key(resource) {
            resource.parse::<ResourceId>().ok()?;
            self.resources.insert(resource.into(), Known::default());
        }
        self.resources.get_mut(resource)
    }

    /// Whether what was written under a number is forgotten.
    pub(super) fn is_forgotten(&self, resource: &ResourceId, seq: Seq) -> bool {
        self.of(resource).is_some_and(|known| seq < known.forgotten)
    }

    /// Those of which something is forgotten.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = (&str, &Known)> {
        let known = self.resources.iter().map(|(resource, known)| (&**resource, known));
        known.filter(|(_, known)| known.forgotten > 0)
    }

    /// Whether something declares a resource: few do, and only those are taken note of.
    pub(super) fn is_declared_by(durable: &Durable) -> bool {
        matches!(durable, Durable::Record(Record::Operation(op), _) if op.declares.is_some())
    }

    /// Takes note of what a record declares.
    pub(super) fn declare(&mut self, durable: &Durable) {
        if let Durable::Record(Record::Operation(op), _) = durable
            && let Some(declared) = &op.declares
            && let Some(known) = self.enter(op.resource.as_str())
        {
            known.sites.extend(declared.sites.iter().cloned());
        }
    }

    /// Takes note of the document of a record that a page names.
    pub(super) fn enter_record(&mut self, page: Seq, name: &Name<'_>, copied: bool) {
        let Some(known) = self.enter(name.resource) else { return };
        known.pages.insert(page);
        known.copied |= copied;
        known.note(name);
    }

    /// Takes note that the document of a record can't be read.
    pub(super) fn lose(&mut self, name: &Name<'_>) {
        if let Some(known) = self.resources.get_mut(name.resource) {
            known.lost.insert(name.hash);
        }
    }

    /// Whether the document of a record could not be read, and was not written since.
    pub(super) fn lacks(&self, name: &Name<'_>) -> bool {
        let known = self.resources.get(name.resource);
        known.is_some_and(|known| known.lost.contains(&name.hash))
    }

    /// Takes note that a page holds something else of a resource.
    pub(super) fn enter_local(&mut self, page: Seq, resource: &str) {
        if let Some(known) = self.enter(resource) {
            known.pages.insert(page);
        }
    }

    /// Takes note that a page says, under a number, that a resource is forgotten.
    pub(super) fn forget(&mut self, page: Seq, seq: Seq, durable: &Durable) {
        if let Some(resource) = meaning::forgets(durable)
            && let Some(known) = self.enter(resource.as_str())
        {
            known.forget(page, seq, durable);
        }
    }

    /// Takes note of a page that was written.
    pub(super) fn turn(&mut self, page: &Page, names: &mut Names) {
        for (seq, entry) in page.numbered() {
            let resource = entry.resource_name();
            let Some(known) = resource.and_then(|it| self.enter(it)) else { continue };
            if matches!(entry, Entry::Local { .. })
                && let Some(Ok(durable)) = entry.local(names)
                && meaning::forgets(&durable).is_some()
            {
                known.forget(page.first, seq, &durable);
                continue;
            }
            known.pages.insert(page.first);
            known.copied |= matches!(entry, Entry::Copy { .. });
            if let Some(name) = entry.document().and_then(Name::read) {
                known.note(&name);
            }
        }
    }

    /// Takes note that pages hold nothing of a resource but that it was forgotten under a number. Nothing is noted if
    /// it was forgotten again since.
    pub(super) fn scrubbed(&mut self, resource: &ResourceId, forgotten: Seq) {
        if let Some(known) = self.resources.get_mut(resource.as_str())
            && known.forgotten == forgotten
        {
            let last = known.pages.range(..=forgotten).next_back().copied();
            known.pages.retain(|page| *page > forgotten || Some(*page) == last);
            known.scrubbed = forgotten;
        }
    }

    /// Takes note that these pages hold nothing of a resource from before it was forgotten under a number. Whether no
    /// others do. Nothing is noted if it was forgotten again since: these pages may hold what was written in between.
    pub(super) fn scrub(&mut self, resource: &ResourceId, pages: &[Seq], forgotten: Seq) -> bool {
        let Some(known) = self.resources.get_mut(resource.as_str()) else { return true };
        if known.forgotten != forgotten {
            return false;
        }
        // The last of them holds what says so.
        let last = known.pages.range(..=known.forgotten).next_back().copied();
        for page in pages {
            if Some(*page) == last {
                known.scrubbed = known.forgotten;
            } else {
                known.pages.remove(page);
            }
        }
        !known.is_unscrubbed()
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
            bytes: 0,
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
        assert!(index.of(&a).unwrap().is_unscrubbed());
        // It was forgotten under another number when the purge began.
        assert!(!index.scrub(&a, &[1], 1) && index.of(&a).unwrap().is_unscrubbed());
        index.scrubbed(&a, 1);
        assert!(index.of(&a).unwrap().is_unscrubbed());
        assert!(index.scrub(&a, &[1], 2) && !index.of(&a).unwrap().is_unscrubbed());
        let known = index.of(&a).unwrap();
        assert_eq!((known.forgotten, known.last_of(&here)), (2, 4));
        assert_eq!(known.hash(&OpId { site: here, number: 4 }), None);
        assert!(index.is_forgotten(&a, 1) && !index.is_forgotten(&a, 2));
    }
}
