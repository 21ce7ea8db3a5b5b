//! The engine on CouchDB: what a site writes down is in two databases of a server.
//!
//! A record is one document, which is never changed (`document`). In which order the site has written what
//! stands in its journal (`journal`), in a database of its own. `docs/couchdb.md` says what is in them and
//! what an operator does with that. What must stay true, beside what every engine promises:
//! - documents are there before the page that names them: a page that counts can be read;
//! - what is there of a batch that failed is the same when it is written again, so it is never there twice;
//! - a batch whose last page is missing was never acknowledged, and does not count.

mod client;
mod databases;
mod document;
mod index;
mod journal;
mod read;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::Durable,
    trust::Seal,
};
use serde_json::json;

use self::{
    client::Trouble,
    databases::{About, Checkpoint, Databases},
    document::{Document, Name},
    index::Index,
    journal::{Entry, Page},
};
use super::{
    Damage, Engine, EngineError, LostUnknown, Opened, Reader, Seq, Sort,
    embedded::entry::Entry as What, free,
};
use crate::{config, wire::Names};

/// How the databases are written.
const FORMAT: u32 = 1;
/// How many pages are read at once.
const PAGES: usize = 20;

/// The engine on CouchDB.
pub struct CouchDb {
    shared: Arc<Shared>,
    here: SiteId,
    /// The number of the next value.
    next: Seq,
    damage: Vec<Damage>,
    lost_unknown: Option<LostUnknown>,
    /// Pages that are gone: others take their place with the next batch.
    untold: Vec<RangeInclusive<Seq>>,
    /// Documents that the journal names, and that somebody has removed or changed.
    lost: BTreeSet<String>,
    /// Up to where strays were looked for: noted with the first batch, since those among them that are this
    /// site's own are in it.
    reached: Option<Checkpoint>,
}

/// What the engine and its readers share.
struct Shared {
    databases: Databases,
    index: RwLock<Index>,
    /// The number of the last value that is durable.
    last: AtomicU64,
    data: PathBuf,
}

impl Shared {
    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, trouble: &Trouble) -> EngineError {
        error(&self.databases.place, trouble.to_string())
    }
}

fn error(place: &str, problem: impl Into<String>) -> EngineError {
    EngineError { place: place.to_owned(), problem: problem.into(), sort: Sort::Server }
}

impl CouchDb {
    /// Opens the databases of a site, and makes them if there are none. Its data directory is where the rest
    /// is that it keeps.
    pub fn open(config: &config::CouchDb, here: SiteId, data: &Path) -> Result<Self, EngineError> {
        let place = config.url.to_string();
        let databases = Databases::open(config).map_err(|problem| error(&place, problem))?;
        let ours = About { format: FORMAT, site: here.to_string() };
        let fail = |trouble: Trouble| error(&databases.place, trouble.to_string());
        let about = databases.about(&ours).map_err(fail)?;
        if about.site != ours.site {
            let problem = format!(
                "it belongs to site `{}`, and this agent is `{here}`: name another `couchdb.database`",
                about.site
            );
            return Err(error(&databases.place, problem));
        }
        if about.format != FORMAT {
            let advice = if about.format > FORMAT {
                "upgrade the program"
            } else {
                "use the program that wrote it"
            };
            let problem = format!(
                "it is written with format {}; this program reads {FORMAT}: {advice}",
                about.format
            );
            return Err(error(&databases.place, problem));
        }
        let last = cut_off(&databases).map_err(fail)?;
        let index = read_index(&databases).map_err(fail)?;
        let shared = Arc::new(Shared {
            databases,
            index: RwLock::new(index),
            last: AtomicU64::new(last),
            data: data.to_owned(),
        });
        let this = Self {
            shared,
            here,
            next: last + 1,
            damage: Vec::new(),
            lost_unknown: None,
            untold: Vec::new(),
            lost: BTreeSet::new(),
            reached: None,
        };
        // What a forgotten resource has left behind because the agent was stopped.
        let forgotten: Vec<_> = this.shared.index().forgotten().cloned().collect();
        for resource in forgotten {
            this.scrub(&resource);
        }
        Ok(this)
    }

    /// A batch with the documents of its records.
    fn documents<'a>(
        &self,
        batch: &'a [Durable],
    ) -> Result<Vec<(&'a Durable, Option<Document>)>, EngineError> {
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

    fn unwritable(&self, durable: &Durable, problem: &dyn std::fmt::Display) -> EngineError {
        let (what, resource) = (What::of(durable), durable.resource());
        let problem = format!("{what} of resource {resource} can't be written: {problem}");
        EngineError { sort: Sort::Permanent, ..error(&self.shared.databases.place, problem) }
    }

    /// Removes what was written of a resource before it was forgotten. What can't be removed now is when the
    /// agent starts again: nobody is shown it meanwhile.
    fn scrub(&self, resource: &ResourceId) {
        if let Err(trouble) = self.try_scrub(resource) {
            let place = &self.shared.databases.place;
            tracing::warn!(
                "what {place} holds of `{resource}`, which is forgotten, stays: {trouble}"
            );
        }
    }

    fn try_scrub(&self, resource: &ResourceId) -> Result<(), Trouble> {
        let Shared { databases, .. } = &*self.shared;
        let (ids, forgotten) = match self.shared.index().of(resource) {
            None => return Ok(()),
            Some(known) => {
                let before = known.pages.iter().filter(|page| **page <= known.forgotten);
                (before.copied().map(journal::id).collect::<Vec<_>>(), known.forgotten)
            }
        };
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        for mut page in databases.pages_named(&ids)? {
            let first = page.first;
            let mut touched = false;
            for (seq, entry) in (first..).zip(&mut page.entries) {
                if seq < forgotten && entry.resource().as_ref() == Some(resource) {
                    if let Entry::Record(id) = entry {
                        gone.push(std::mem::take(id));
                    }
                    *entry = Entry::Gone(());
                    touched = true;
                }
            }
            if touched {
                changed.push(json!(page));
            }
        }
        // Documents go last: while a page names them, they can be found.
        let documents = databases.documents(&gone)?;
        databases.change_pages(&changed)?;
        databases.purge(&documents)?;
        self.shared.index_mut().scrubbed(resource);
        Ok(())
    }
}

/// Cuts off a batch of which the last page is missing, and says the last number that counts.
fn cut_off(databases: &Databases) -> Result<Seq, Trouble> {
    let Some(last) = databases.page_before(Seq::MAX)? else { return Ok(0) };
    let (first, end) = last.batch;
    if last.last() == end {
        return Ok(end);
    }
    let pages = databases.pages(first, usize::from(u16::MAX))?;
    // Only its own: a last page that makes no sense takes no other with it.
    let (own, others): (Vec<Page>, Vec<_>) =
        pages.into_iter().partition(|page| page.batch == last.batch);
    let removed = |page: &Page| json!({"_id": page.id, "_rev": page.revision, "_deleted": true});
    let removed: Vec<_> = own.iter().rev().map(removed).collect();
    databases.change_pages(&removed)?;
    Ok(others.iter().map(Page::last).fold(first - 1, Seq::max))
}

fn read_index(databases: &Databases) -> Result<Index, Trouble> {
    let (mut index, mut names, mut from) = (Index::default(), Names::default(), 1);
    loop {
        let pages = databases.pages(from, PAGES)?;
        let Some(last) = pages.last() else { return Ok(index) };
        from = last.last() + 1;
        for page in &pages {
            index.turn(page, &mut names);
        }
    }
}

impl Engine for CouchDb {
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        if batch.is_empty() {
            return Ok(self.next - 1);
        }
        let documents = self.documents(batch)?;
        let pages = journal::pages(self.next, &documents)
            .map_err(|(n, problem)| self.unwritable(&batch[n], &problem))?;
        let documents = documents.into_iter().filter_map(|(_, document)| document);
        let (back, documents): (Vec<Document>, Vec<_>) =
            documents.partition(|document| self.lost.contains(&document.id));
        let Shared { databases, .. } = &*self.shared;
        let fail = |trouble: Trouble| self.shared.fail(&trouble);
        databases.put_records(&documents).map_err(fail)?;
        databases.put_back(&back).map_err(fail)?;
        let found = self.lost_unknown.map_or(0, |lost| lost.found);
        let in_place = |lost: &RangeInclusive<Seq>| journal::in_place_of(lost, found);
        let made: Vec<Page> =
            self.untold.iter().map(in_place).chain(pages.iter().cloned()).collect();
        databases.make_pages(&made).map_err(fail)?;
        self.untold.clear();
        self.lost.retain(|id| back.iter().all(|document| document.id != *id));
        let last = self.next + batch.len() as Seq - 1;
        {
            let (mut index, mut names) = (self.shared.index_mut(), Names::default());
            for page in &pages {
                index.turn(page, &mut names);
            }
        }
        if let Some(reached) = self.reached.take()
            && let Err(trouble) = databases.keep(&reached)
        {
            tracing::debug!("changes are looked through again at the next start: {trouble}");
        }
        self.next = last + 1;
        self.shared.last.store(last, Ordering::Release);
        for resource in batch.iter().filter_map(super::meaning::forgets) {
            self.scrub(resource);
        }
        Ok(last)
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        self.shared.databases.look().map_err(|trouble| self.shared.fail(&trouble))
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.shared.clone()
    }
}

impl Opened for CouchDb {
    fn written(&mut self) -> Box<dyn Iterator<Item = Result<Durable, EngineError>> + '_> {
        Box::new(read::Written::new(self))
    }

    fn strays(&mut self) -> Result<Vec<Durable>, EngineError> {
        let fail = |trouble: Trouble| self.shared.fail(&trouble);
        let Shared { databases, .. } = &*self.shared;
        let mut checkpoint = databases.checkpoint().map_err(fail)?;
        let (mut strays, mut names) = (BTreeMap::new(), Names::default());
        while let Some(documents) = databases.changes(&mut checkpoint).map_err(fail)? {
            let index = self.shared.index();
            for document in documents {
                let Ok(durable) = document.read(&mut names) else { continue };
                let Durable::Record(record, _) = &durable else { continue };
                let (resource, id) = (record.resource().clone(), record.id().clone());
                let known = index.of(&resource).map_or(0, |known| known.last_of(&self.here));
                if id.site == self.here && id.number > known {
                    strays.insert((resource, id.number, document.id), durable);
                }
            }
        }
        self.reached = Some(checkpoint);
        Ok(strays.into_values().collect())
    }

    fn damage(&self) -> &[Damage] {
        &self.damage
    }

    fn lost_unknown(&self) -> Option<LostUnknown> {
        self.lost_unknown
    }
}

impl Reader for Shared {
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        self.read_after(seq, most).map_err(|trouble| self.fail(&trouble))
    }

    fn seals(
        &self,
        resource: &ResourceId,
        records: &BTreeSet<OpId>,
    ) -> Result<BTreeMap<OpId, Seal>, EngineError> {
        let ids: Vec<String> = match self.index().of(resource) {
            None => return Ok(BTreeMap::new()),
            Some(known) => {
                let name =
                    |record| Some(Name::of(resource, record, known.hash(record)?).to_string());
                records.iter().filter_map(name).collect()
            }
        };
        let found = self.databases.documents(&ids).map_err(|trouble| self.fail(&trouble))?;
        let mut names = Names::default();
        let sealed = found.values().filter_map(|document| match document.read(&mut names) {
            Ok(Durable::Record(record, Some(seal))) => Some((record.id().clone(), seal)),
            _ => None,
        });
        Ok(sealed.collect())
    }

    fn last(&self) -> Seq {
        self.last.load(Ordering::Acquire)
    }

    fn free(&self) -> io::Result<u64> {
        free(&self.data)
    }
}
