//! Writes a batch: its records as documents, and the pages of the journal that name them.
//!
//! What must stay true:
//! - on a single node, documents are written before the pages that name them;
//! - in a cluster, pages are written first. They hold copies of the records, and only they are written in a way that
//!   reports a quorum. Replication carries a document to other sites as soon as it is there: then its number has to
//!   be taken for good;
//! - a batch is acknowledged after both. If one of them fails, the same batch is written again.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::atomic::Ordering};

use cheops_core::replica::Durable;

use super::{
    Afoot, CouchDb, Failed, Shared,
    document::{Document, Name},
    journal::{self, Page},
    notes::Notes,
    server::Trouble,
};
use crate::{
    engine::{EngineError, Seq, meaning},
    wire::Names,
};

/// A value with its document, if it is a record.
type Documented<'a> = (&'a Durable, Option<Document>);

impl CouchDb {
    /// A batch with the documents of its records.
    fn documents<'a>(&self, batch: &'a [Durable]) -> Result<Vec<Documented<'a>>, EngineError> {
        let mut index = self.shared.index_mut();
        for durable in batch {
            index.declare(durable);
        }
        let none = BTreeSet::new();
        let documents = batch.iter().map(|durable| {
            let Durable::Record(record, seal) = durable else { return Ok((durable, None)) };
            let sites = index.of(record.resource()).map_or(&none, |known| &known.sites);
            let document = Document::of(record, seal.as_ref(), sites)
                .map_err(|problem| self.unwritable(durable, &problem))?;
            Ok((durable, Some(document)))
        });
        documents.collect()
    }

    /// Writes documents, unless others have brought them.
    fn put(&self, documents: &[Document]) -> Result<(), Trouble> {
        let hash = |document: &Document| Name::read(&document.id).map(|name| name.hash);
        let missing: Vec<&Document> = {
            let mut afoot = self.shared.afoot();
            afoot.ours = documents.iter().filter_map(hash).collect();
            let brought = |document: &&Document| {
                hash(document).is_some_and(|hash| afoot.brought.contains(&hash))
            };
            documents.iter().filter(|document| !brought(document)).collect()
        };
        self.shared.databases.put_records(&missing)
    }

    /// The pages of a batch. They hold copies of the records that a function selects by their documents.
    fn pages_of(
        &self,
        batch: &[Durable],
        documents: &[Documented<'_>],
        copies: impl Fn(&Document) -> bool,
    ) -> Result<Vec<Page>, Failed> {
        journal::pages_with(self.next, documents, copies)
            .map_err(|(n, problem)| Failed::ForGood(self.unwritable(&batch[n], &problem)))
    }

    /// Writes pages, and before them those that stand for lost ones.
    fn make_pages(&self, pages: &[Page]) -> Result<(), Trouble> {
        let found = self.lost_unknown.map_or(0, |lost| lost.found);
        let in_place = |lost: &RangeInclusive<Seq>| journal::in_place_of(lost, found);
        let made: Vec<Page> =
            self.untold.iter().map(in_place).chain(pages.iter().cloned()).collect();
        self.shared.databases.make_pages(&made)
    }

    /// Writes the documents of a batch. Says which of the lost ones were not restored.
    fn write_documents(&self, documents: &[Documented<'_>]) -> Result<BTreeSet<String>, Trouble> {
        let written = documents.iter().filter_map(|(_, document)| document.clone());
        let (back, written): (Vec<Document>, Vec<_>) =
            written.partition(|document| self.lost.contains(&document.id));
        self.put(&written)?;
        let unrestored = self.shared.databases.restore(&back)?;
        if !unrestored.is_empty() {
            let place = &self.shared.databases.place;
            tracing::warn!(documents = ?unrestored, "failed to restore documents in {place}; the journal keeps copies of their records");
        }
        Ok(unrestored)
    }

    /// Writes the documents of the last batch before this engine, if an agent ended after its pages were written.
    fn document_last_batch(&mut self) -> Result<(), Failed> {
        let Some(numbers) = self.undocumented.clone() else { return Ok(()) };
        let pages = self.shared.databases.all_pages(numbers)?;
        let mut names = Names::default();
        let copies: Vec<Durable> = {
            let index = self.shared.index();
            let entries = pages.iter().flat_map(Page::numbered);
            let of_records = entries.filter(|(seq, entry)| {
                let forgotten = |resource| index.is_forgotten(&resource, *seq);
                entry.document().is_some() && !entry.resource().is_some_and(forgotten)
            });
            of_records.filter_map(|(_, entry)| entry.local(&mut names)?.ok()).collect()
        };
        let documents = self.documents(&copies).map_err(Failed::ForGood)?;
        let documents: Vec<&Document> =
            documents.iter().filter_map(|(_, document)| document.as_ref()).collect();
        match self.shared.databases.put_records(&documents) {
            // The journal has copies: a document that the server does not take holds up nothing.
            Err(trouble) if !trouble.is_away() => {
                let place = &self.shared.databases.place;
                tracing::warn!("failed to write documents of the last batch in {place}: {trouble}");
            }
            written => written?,
        }
        self.undocumented = None;
        Ok(())
    }

    pub(super) fn try_append(&mut self, batch: &[Durable]) -> Result<Seq, Failed> {
        self.shared.check_end()?;
        if batch.is_empty() {
            return Ok(self.next - 1);
        }
        self.document_last_batch()?;
        let documents = self.documents(batch).map_err(Failed::ForGood)?;
        let clustered = self.shared.databases.is_clustered();
        let mut pages = self.pages_of(batch, &documents, |_| clustered)?;
        let unrestored = if clustered {
            self.make_pages(&pages)?;
            self.write_documents(&documents)?
        } else {
            let unrestored = self.write_documents(&documents)?;
            if !unrestored.is_empty() {
                let copied = |document: &Document| unrestored.contains(&document.id);
                pages = self.pages_of(batch, &documents, copied)?;
            }
            self.make_pages(&pages)?;
            unrestored
        };
        // Nothing is acknowledged that went to a server which has forgotten what came before.
        let connections = self.shared.databases.server().connections();
        if connections != self.looked {
            self.shared.look_at_end()?;
            self.looked = connections;
        }
        self.untold.clear();
        for document in documents.iter().filter_map(|(_, document)| document.as_ref()) {
            if !unrestored.contains(&document.id) {
                self.lost.remove(&document.id);
            }
        }
        Ok(self.acknowledge(batch, &pages))
    }

    /// Goes on after a batch that is written. Says its last number.
    fn acknowledge(&mut self, batch: &[Durable], pages: &[Page]) -> Seq {
        let last = self.next + batch.len() as Seq - 1;
        {
            let (mut index, mut names) = (self.shared.index_mut(), Names::default());
            for page in pages {
                index.turn(page, &mut names);
            }
        }
        {
            let Afoot { brought, ours } = &mut *self.shared.afoot();
            for hash in std::mem::take(ours) {
                brought.remove(&hash);
            }
        }
        let Shared { databases, data, .. } = &*self.shared;
        if !self.noted {
            let noted = Notes::of(data).write(&self.name);
            self.noted = noted.is_ok();
            if let Err(failure) = noted {
                tracing::warn!("that {} is not empty can't be noted: {failure}", databases.place);
            }
        }
        self.next = last + 1;
        self.shared.last.store(last, Ordering::Release);
        if let Some(page) = pages.last() {
            self.shared.last_page.store(page.first, Ordering::Release);
        }
        if let Some(caretaker) = &self.caretaker {
            batch.iter().filter_map(meaning::forgets).for_each(|it| caretaker.scrub(it));
        }
        last
    }
}
