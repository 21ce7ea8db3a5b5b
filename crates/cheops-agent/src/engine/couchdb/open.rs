//! Opens the databases of a site: to work on them, or to fill them.
//!
//! What must stay true, before anything else is written:
//! - what was not finished is cut off, and what waits in the local journal is there;
//! - no number is given that was given before, whatever is left of the databases.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::RangeInclusive,
    path::Path,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use cheops_core::{id::SiteId, replica::Durable};
use serde_json::json;

use super::{
    CouchDb, Shared,
    caretaker::Caretaker,
    databases::Databases,
    error,
    index::Index,
    journal::Page,
    local_journal::{Batch, LocalJournal},
    notes::Notes,
    owner::Owner,
    place,
    server::Trouble,
    snapshot,
};
use crate::{
    config,
    engine::{Engine as _, EngineError, HALF_FILLED, Reader as _, Seq},
    wire::Names,
};

/// How many pages are read at once.
const PAGES: usize = 1_000;

impl CouchDb {
    /// Opens the databases of a site, and makes them if there are none. Its data directory is where the rest
    /// is that it keeps.
    pub fn open(config: &config::CouchDb, here: SiteId, data: &Path) -> Result<Self, EngineError> {
        let (mut this, filling) = Self::open_any(config, &Owner::with(here, data), data)?;
        if filling {
            return Err(error(&this.shared.databases.place, HALF_FILLED));
        }
        let notes = Notes::of(data);
        if this.next > 1 && notes.is_empty() {
            let (last, place) = (this.next - 1, &this.shared.databases.place);
            tracing::warn!(
                "{place} holds {last} values of a site of this name, and {} knows nothing of them: is `data` right? Another agent, with another key, may have written them",
                data.display()
            );
        }
        notes.start();
        let least = notes.least();
        if this.next <= least {
            this.next = least + 1;
            this.shared.last.store(least, Ordering::Release);
        }
        Ok(this)
    }

    /// Opens the databases of a site to fill them: empty ones, or some that are half filled.
    pub fn fill(config: &config::CouchDb, here: SiteId, data: &Path) -> Result<Self, EngineError> {
        let (mut this, filling) = Self::open_any(config, &Owner::any(here), data)?;
        let Shared { databases, .. } = &*this.shared;
        let fail = |trouble: Trouble| this.shared.fail(&trouble);
        if !filling {
            // One that was filled from here, and whose copy broke off just then, is looked through once more.
            let filled = Notes::of(data).is_copied(&this.name);
            if !filled && (this.next > 1 || databases.has_records().map_err(fail)?) {
                let problem = format!("it is not empty: {}", databases.how_to_begin_again());
                return Err(error(&databases.place, problem));
            }
            databases.mark_filling().map_err(fail)?;
        }
        if !this.noted {
            Notes::of(data).clear();
        }
        // What a snapshot holds of them may be something else from now on.
        this.caretaker.take().iter().for_each(|caretaker| caretaker.stop());
        snapshot::remove(data);
        this.snapshot = None;
        Ok(this)
    }

    /// Opens the databases, and says whether they are being filled.
    fn open_any(
        config: &config::CouchDb,
        owner: &Owner,
        data: &Path,
    ) -> Result<(Self, bool), EngineError> {
        let url = config.url.to_string();
        let databases = Databases::open(config).map_err(|problem| error(&url, problem))?;
        let here = owner.site.clone();
        let name = databases.claim(owner).map_err(|problem| error(&databases.place, problem))?;
        let fail = |trouble: Trouble| error(&databases.place, trouble.to_string());
        if let Some(why) = databases.try_purge().map_err(fail)? {
            tracing::warn!(
                "`couchdb.user` may not purge documents in {} ({why}): the records of deleted resources stay there until the agent starts as a server admin; see docs/couchdb.md",
                databases.place
            );
        }
        let filling = databases.is_filling().map_err(fail)?;
        let End { last, last_page, batch } = end_of_journal(&databases).map_err(fail)?;
        let undocumented = batch.filter(|_| databases.is_clustered());
        let (mut snapshot, index) = match snapshot::load(data, &name).filter(|_| !filling) {
            Some((loaded, index)) => (Some(loaded), index),
            None => (None, Index::default()),
        };
        let shared = Arc::new(Shared {
            databases,
            index: RwLock::new(index),
            afoot: Mutex::default(),
            last: AtomicU64::new(last),
            last_page: AtomicU64::new(last_page),
            set_back: AtomicBool::new(false),
            unfollowed: AtomicBool::new(false),
            data: data.to_owned(),
        });
        let worded = |trouble: Trouble| shared.fail(&trouble);
        if let Some(loaded) = &mut snapshot
            && let Some(objection) = loaded.objection(&shared, last).map_err(worded)?
        {
            tracing::warn!("removing the snapshot, reading all documents: {objection}");
            // The databases may grow until it seems to fit again, while it holds something else.
            snapshot::remove(data);
            (snapshot, *shared.index_mut()) = (None, Index::default());
        }
        let covered = snapshot.as_ref().map_or(0, snapshot::Loaded::covered);
        read_index(&shared, covered + 1, last).map_err(worded)?;
        let mut this = Self {
            shared,
            here,
            next: last + 1,
            damage: Vec::new(),
            lost_unknown: None,
            untold: Vec::new(),
            lost: BTreeSet::new(),
            noted: Notes::of(data).written().as_ref() == Some(&name),
            name,
            reached: 0,
            looked: 0,
            undocumented,
            snapshot: snapshot.as_ref().map(snapshot::Loaded::stretch),
            caretaker: None,
        };
        if !filling {
            let (shared, name) = (this.shared.clone(), this.name.clone());
            let failed = |failure: io::Error| {
                let problem = format!("a thread can't be started: {failure}");
                error(&this.shared.databases.place, problem)
            };
            this.caretaker = Some(Caretaker::start(shared, name, snapshot).map_err(failed)?);
        }
        let beside = place(data);
        if LocalJournal::is_in(&beside) {
            let (mut journal, batches) = LocalJournal::open(&beside)?;
            if !batches.is_empty() {
                let count: usize = batches.iter().map(|batch| batch.values.len()).sum();
                tracing::info!(
                    "{count} values that wait in the local journal are brought to CouchDB"
                );
            }
            for batch in &batches {
                this.take_in(batch, &journal)?;
            }
            journal.clear()?;
        }
        Ok((this, filling))
    }

    /// Writes a batch that has waited for the server, unless it is there: the numbers say so.
    fn take_in(&mut self, batch: &Batch, journal: &LocalJournal) -> Result<(), EngineError> {
        let (first, last) = (batch.first, batch.last());
        if first == self.next {
            return self.append(&batch.values).map(drop);
        }
        let place = &self.shared.databases.place;
        if last >= self.next {
            let problem = format!(
                "it holds the numbers {first} to {last}, and what {place} holds ends at {}",
                self.next - 1
            );
            return Err(journal.contradiction(&problem));
        }
        let there = self.shared.after(first - 1, batch.values.len())?;
        let waited: BTreeMap<Seq, &Durable> = batch.numbered().collect();
        // What is forgotten is not there any more.
        let other = there.iter().find(|(n, there)| waited.get(n).is_some_and(|it| *it != there));
        match other {
            None => Ok(()),
            Some((number, _)) => {
                let problem = format!("number {number} is something else in {place}");
                Err(journal.contradiction(&problem))
            }
        }
    }
}

/// Where the journal ends.
#[derive(Default)]
struct End {
    /// The last number that counts.
    last: Seq,
    /// The first number of the last page; 0 if there is none.
    last_page: Seq,
    /// The numbers of the last batch.
    batch: Option<RangeInclusive<Seq>>,
}

/// Finds the end of the journal. Pages after it are removed. In a cluster, a quorum of the nodes has the last batch
/// from then on: the agent that wrote it may have acknowledged it.
fn end_of_journal(databases: &Databases) -> Result<End, Trouble> {
    // Every number before a batch was given to a value, even if its page is gone.
    let mut given = 0;
    loop {
        let Some(last) = databases.last_page()? else {
            return Ok(End { last: given, ..End::default() });
        };
        let (first, end) = last.batch;
        let beginning = if last.first == first { None } else { databases.page(first)? };
        let surplus = match judge(&last, beginning.as_ref()) {
            LastPage::Counts => {
                if databases.is_clustered() {
                    databases.confirm(&batch_of(databases, &last)?)?;
                }
                let (last, last_page) = (end.max(given), last.first);
                return Ok(End { last, last_page, batch: Some(first..=end) });
            }
            LastPage::LeftOver => vec![last],
            LastPage::Unfinished => batch_of(databases, &last)?,
        };
        given = given.max(first - 1);
        let removed =
            |page: &Page| json!({"_id": page.id, "_rev": page.revision, "_deleted": true});
        let removed: Vec<_> = surplus.iter().rev().map(removed).collect();
        databases.change_pages(&removed)?;
    }
}

/// The pages of the batch that a page is the last one of.
fn batch_of(databases: &Databases, last: &Page) -> Result<Vec<Page>, Trouble> {
    let pages = databases.all_pages(last.batch.0..=last.last())?;
    Ok(pages.into_iter().filter(|page| page.batch == last.batch).collect())
}

/// What the last page of the journal is.
#[derive(Debug, PartialEq, Eq)]
enum LastPage {
    /// The end of a batch that counts.
    Counts,
    /// A part of a batch whose last page was never written.
    Unfinished,
    /// A part of a batch that never counted: another batch has taken its numbers.
    LeftOver,
}

/// Tells what the last page is, by the page that its batch begins with, if that is another one and is there. If it is
/// gone, it is reported as lost, and the rest of the batch counts.
fn judge(last: &Page, beginning: Option<&Page>) -> LastPage {
    if beginning.is_some_and(|beginning| beginning.batch != last.batch) {
        LastPage::LeftOver
    } else if last.last() < last.batch.1 {
        LastPage::Unfinished
    } else {
        LastPage::Counts
    }
}

/// Takes note of what the pages of a range say.
fn read_index(shared: &Shared, mut from: Seq, upto: Seq) -> Result<(), Trouble> {
    let mut names = Names::default();
    loop {
        let pages = shared.databases.pages(from..=upto, PAGES)?;
        let Some(last) = pages.last() else { return Ok(()) };
        from = last.last() + 1;
        let mut index = shared.index_mut();
        for page in &pages {
            index.turn(page, &mut names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::couchdb::journal::{self, Entry};

    #[test]
    fn a_last_page_counts_if_its_batch_is_whole_and_has_its_numbers() {
        let page = |first: Seq, last: Seq, batch: (Seq, Seq)| {
            let entries = (first..=last).map(|_| Entry::Gone(())).collect();
            let (id, revision, bytes, lost, upto) = (journal::id(first), None, 0, None, None);
            Page { id, revision, first, batch, entries, bytes, lost, upto }
        };
        for (last, beginning, expected) in [
            (page(4, 6, (4, 6)), None, LastPage::Counts),
            (page(4, 5, (4, 6)), None, LastPage::Unfinished),
            (page(6, 8, (4, 8)), Some(page(4, 5, (4, 8))), LastPage::Counts),
            (page(6, 7, (4, 8)), Some(page(4, 5, (4, 8))), LastPage::Unfinished),
            (page(6, 8, (4, 8)), Some(page(4, 5, (4, 5))), LastPage::LeftOver),
            (page(6, 7, (4, 8)), Some(page(4, 5, (4, 5))), LastPage::LeftOver),
            (page(6, 8, (4, 8)), None, LastPage::Counts),
        ] {
            assert_eq!(judge(&last, beginning.as_ref()), expected, "{last:?}");
        }
    }
}
