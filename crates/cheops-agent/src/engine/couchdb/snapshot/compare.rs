//! Compares a snapshot with the databases that it is a copy of, by what has changed there since it was last compared.
//!
//! What must stay true: a document that the journal names, and that was removed or spoilt, is never hidden by a
//! snapshot. The snapshot is given up then, and the start that reads all documents reports what is lost.

use std::{collections::BTreeSet, fmt};

use cheops_core::id::{OpId, ResourceId};
use serde_json::Value;

use super::{
    super::{
        Shared,
        document::{self, Name},
        feed::{Changed, Which},
        index::Index,
        journal::{self, Entry, Page},
        server::Trouble,
    },
    format::Trailer,
};
use crate::{engine::Seq, wire::Names};

/// Up to where the changes of the databases were compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Positions {
    pub(super) local: Value,
    pub(super) records: Value,
}

impl Positions {
    /// Those that a trailer names.
    pub(super) fn of(trailer: &Trailer) -> Option<Self> {
        let read = |text: &str| serde_json::from_str(text).ok();
        Some(Self { local: read(&trailer.local)?, records: read(&trailer.records)? })
    }

    fn at(&mut self, which: Which) -> &mut Value {
        match which {
            Which::Local => &mut self.local,
            Which::Records => &mut self.records,
        }
    }
}

/// What a snapshot holds, for the comparison.
pub(super) struct Held<'a> {
    /// Pages after this number were just read for it.
    pub(super) fresh: Seq,
    /// Its last number.
    pub(super) covered: Seq,
    /// Documents that it says are lost.
    pub(super) lost: &'a BTreeSet<String>,
    /// Pages that it says stand for lost ones, by their first numbers.
    pub(super) lost_pages: &'a BTreeSet<Seq>,
}

/// Why a snapshot is not to be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Objection {
    /// A document that it holds was removed.
    Removed(String),
    /// A document that it holds says something else.
    Changed(String),
    /// A document that it says is lost can be read.
    Back(String),
    /// It is not of these databases as they are.
    Other(String),
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed(id) => write!(f, "`{id}` is removed"),
            Self::Changed(id) => write!(f, "`{id}` is changed"),
            Self::Back(id) => write!(f, "`{id}` was lost, and is there again"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

/// What a changed document means for a snapshot.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing.
    Fine,
    /// It has to be looked at.
    Look,
    /// It was lost, and has to be looked at.
    LookIfBack,
    /// Something is gone that the snapshot still holds.
    Gone,
}

/// Compares all that has changed since the positions, which go on. Says why the snapshot is not to be used, if it is not.
pub(super) fn compare(
    shared: &Shared,
    held: &Held<'_>,
    positions: &mut Positions,
) -> Result<Option<Objection>, Trouble> {
    for which in Which::BOTH {
        loop {
            let (changed, next) = shared.databases.changed(which, positions.at(which))?;
            let (mut look, mut back) = (Vec::new(), Vec::new());
            for change in &changed {
                let verdict = match which {
                    Which::Local => judge_page(change, held),
                    Which::Records => judge_record(change, &shared.index(), held.lost),
                };
                match verdict {
                    Verdict::Fine => {}
                    Verdict::Look => look.push(change.id.clone()),
                    Verdict::LookIfBack => back.push(change.id.clone()),
                    Verdict::Gone => return Ok(Some(Objection::Removed(change.id.clone()))),
                }
            }
            let spoilt = match which {
                Which::Local => spoilt_page(shared, held, &look)?,
                Which::Records => {
                    if let Some(id) = readable(shared, &back)?.into_iter().next() {
                        return Ok(Some(Objection::Back(id)));
                    }
                    let sound = readable(shared, &look)?;
                    look.into_iter().find(|id| !sound.contains(id))
                }
            };
            if let Some(id) = spoilt {
                return Ok(Some(Objection::Changed(id)));
            }
            *positions.at(which) = next;
            if changed.is_empty() {
                break;
            }
        }
    }
    Ok(None)
}

/// Only pages that the snapshot holds count: the others are read anyway.
fn judge_page(change: &Changed, held: &Held<'_>) -> Verdict {
    let number = change.id.strip_prefix(journal::PREFIX).and_then(|text| text.parse::<Seq>().ok());
    match number {
        Some(first) if first > held.covered => Verdict::Fine,
        Some(_) if change.deleted => Verdict::Gone,
        // As it was made, and just read.
        Some(first) if first > held.fresh && change.revision.starts_with("1-") => Verdict::Fine,
        Some(_) => Verdict::Look,
        None => Verdict::Fine,
    }
}

/// Only records that the journal names count.
fn judge_record(change: &Changed, index: &Index, lost: &BTreeSet<String>) -> Verdict {
    let Some(name) = Name::read(&change.id) else { return Verdict::Fine };
    if !is_named(index, &name) {
        return Verdict::Fine;
    }
    match (lost.contains(&change.id), change.deleted) {
        (true, true) => Verdict::Fine,
        (true, false) => Verdict::LookIfBack,
        (false, true) => Verdict::Gone,
        (false, false) if change.revision == document::revision(name.hash) => Verdict::Fine,
        (false, false) => Verdict::Look,
    }
}

/// Whether the journal names a document.
fn is_named(index: &Index, name: &Name<'_>) -> bool {
    let (Ok(resource), Ok(site)) = (name.resource.parse::<ResourceId>(), name.site.parse()) else {
        return false;
    };
    let id = OpId { site, number: name.number };
    index.of(&resource).is_some_and(|known| known.hash(&id) == Some(name.hash))
}

/// The first of some pages that does not say what the snapshot says.
fn spoilt_page(
    shared: &Shared,
    held: &Held<'_>,
    ids: &[String],
) -> Result<Option<String>, Trouble> {
    let mut sound = BTreeSet::new();
    shared.databases.each_page_named(ids, |page| {
        if agrees(&shared.index(), held, &page) {
            sound.insert(page.id);
        }
    })?;
    Ok(ids.iter().find(|id| !sound.contains(*id)).cloned())
}

/// Whether a page that was changed says what the snapshot says, save for what is forgotten.
fn agrees(index: &Index, held: &Held<'_>, page: &Page) -> bool {
    let known = |(seq, entry): (Seq, &Entry)| {
        let Some(name) = entry.document().and_then(Name::read) else { return true };
        let forgotten = entry.resource().is_some_and(|it| index.is_forgotten(&it, seq));
        forgotten || is_named(index, &name)
    };
    page.is_sound() && held.agrees_on_loss(page) && page.numbered().all(known)
}

impl Held<'_> {
    /// Whether a page stands for lost ones, and the snapshot says so; or neither.
    fn agrees_on_loss(&self, page: &Page) -> bool {
        page.lost.is_some() == self.lost_pages.contains(&page.first)
    }
}

/// Those of some documents that are records.
fn readable(shared: &Shared, ids: &[String]) -> Result<BTreeSet<String>, Trouble> {
    let (mut readable, mut names) = (BTreeSet::new(), Names::default());
    shared.databases.each_document(ids, |document| {
        if document.read(&mut names).is_ok() {
            readable.insert(document.id);
        }
    })?;
    Ok(readable)
}

/// Why a snapshot with this mark is not one of the databases as they are, if it is not: they were filled anew, or set
/// back.
pub(super) fn objection(
    shared: &Shared,
    mark: &str,
    last_page: Seq,
    held: &Held<'_>,
    positions: &Positions,
) -> Result<Option<Objection>, Trouble> {
    let databases = &shared.databases;
    for (which, at) in [(Which::Local, &positions.local), (Which::Records, &positions.records)] {
        if databases.mark(which)?.as_deref() != Some(mark) {
            let why = "it is a copy of databases that were others";
            return Ok(Some(Objection::Other(why.to_owned())));
        }
        if !databases.has_reached(which, at)? {
            return Ok(Some(Objection::Other("it is newer than the databases".to_owned())));
        }
    }
    let last = databases.page(last_page)?;
    let same = |page: &Page| page.last() == held.covered && held.agrees_on_loss(page);
    Ok((!last.as_ref().is_some_and(same)).then(|| Objection::Changed(journal::id(last_page))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(id: &str, revision: &str, deleted: bool) -> Changed {
        Changed { id: id.to_owned(), revision: revision.to_owned(), deleted }
    }

    #[test]
    fn pages_that_a_snapshot_holds_have_to_stay() {
        let (lost, lost_pages) = (BTreeSet::new(), BTreeSet::new());
        let held = Held { fresh: 7, covered: 10, lost: &lost, lost_pages: &lost_pages };
        for (id, revision, deleted, expected) in [
            (journal::id(8), "1-x", false, Verdict::Fine),
            (journal::id(8), "2-x", false, Verdict::Look),
            (journal::id(5), "1-x", false, Verdict::Look),
            (journal::id(5), "2-x", false, Verdict::Look),
            (journal::id(5), "2-x", true, Verdict::Gone),
            (journal::id(10), "3-x", true, Verdict::Gone),
            (journal::id(11), "2-x", true, Verdict::Fine),
            (journal::id(11), "2-x", false, Verdict::Fine),
            ("lease".to_owned(), "900-x", false, Verdict::Fine),
            ("page:x".to_owned(), "2-x", true, Verdict::Fine),
        ] {
            let change = change(&id, revision, deleted);
            assert_eq!(judge_page(&change, &held), expected, "{change:?}");
        }
    }

    #[test]
    fn records_that_the_journal_names_have_to_stay() {
        let name = |number| Name { resource: "r", site: "here", number, hash: 7 }.to_string();
        let mut index = Index::default();
        index.enter_record(1, &Name::read(&name(1)).unwrap(), false);
        index.enter_record(1, &Name::read(&name(3)).unwrap(), false);
        let lost = BTreeSet::from([name(3)]);
        for (id, revision, deleted, expected) in [
            (name(1), document::revision(7), false, Verdict::Fine),
            (name(1), "2-y".to_owned(), false, Verdict::Look),
            (name(1), "2-y".to_owned(), true, Verdict::Gone),
            (name(2), "2-y".to_owned(), true, Verdict::Fine),
            (name(3), "2-y".to_owned(), true, Verdict::Fine),
            (name(3), "3-y".to_owned(), false, Verdict::LookIfBack),
            ("file:x".to_owned(), "2-y".to_owned(), true, Verdict::Fine),
        ] {
            let change = change(&id, &revision, deleted);
            assert_eq!(judge_record(&change, &index, &lost), expected, "{change:?}");
        }
    }
}
