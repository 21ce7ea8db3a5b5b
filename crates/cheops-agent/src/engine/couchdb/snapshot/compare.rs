//! Compares a snapshot with the databases that it is a copy of, by what has changed there since it was last compared.
//!
//! What must stay true: a document that the journal names, and that was removed or spoilt, is never hidden by a
//! snapshot. The snapshot is given up then, and the start that reads all documents reports what is lost.

use std::collections::BTreeSet;

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

/// What a changed document means for a snapshot.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing.
    Fine,
    /// It has to be looked at.
    Look,
    /// Something is gone that the snapshot still holds.
    Gone,
}

/// Compares all that has changed since the positions, which go on. Says why the snapshot is not to be used, if it is not.
pub(super) fn compare(
    shared: &Shared,
    covered: Seq,
    lost: &BTreeSet<String>,
    positions: &mut Positions,
) -> Result<Option<String>, Trouble> {
    for which in Which::BOTH {
        loop {
            let (changed, next) = shared.databases.changed(which, positions.at(which))?;
            let mut look = Vec::new();
            for change in &changed {
                let verdict = match which {
                    Which::Local => judge_page(change, covered),
                    Which::Records => judge_record(change, &shared.index(), lost),
                };
                match verdict {
                    Verdict::Fine => {}
                    Verdict::Look => look.push(change.id.clone()),
                    Verdict::Gone => return Ok(Some(format!("`{}` is removed", change.id))),
                }
            }
            let spoilt = match which {
                Which::Local => spoilt_page(shared, &look)?,
                Which::Records => spoilt_record(shared, &look)?,
            };
            if let Some(id) = spoilt {
                return Ok(Some(format!("`{id}` is changed")));
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
fn judge_page(change: &Changed, covered: Seq) -> Verdict {
    let number = change.id.strip_prefix(journal::PREFIX).and_then(|text| text.parse::<Seq>().ok());
    match number {
        Some(first) if first > covered => Verdict::Fine,
        Some(_) if change.deleted => Verdict::Gone,
        // As it was made.
        Some(_) if change.revision.starts_with("1-") => Verdict::Fine,
        Some(_) => Verdict::Look,
        None => Verdict::Fine,
    }
}

/// Only records that the journal names count, and that are not known to be lost.
fn judge_record(change: &Changed, index: &Index, lost: &BTreeSet<String>) -> Verdict {
    let Some(name) = Name::read(&change.id) else { return Verdict::Fine };
    if lost.contains(&change.id) || !is_named(index, &name) {
        return Verdict::Fine;
    }
    if change.deleted {
        Verdict::Gone
    } else if change.revision == document::revision(name.hash) {
        Verdict::Fine
    } else {
        Verdict::Look
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

/// The first of some pages that does not say what the journal says.
fn spoilt_page(shared: &Shared, ids: &[String]) -> Result<Option<String>, Trouble> {
    let pages = shared.databases.pages_named(ids)?;
    let index = shared.index();
    let sound = |id: &&String| pages.iter().any(|page| page.id == **id && agrees(&index, page));
    Ok(ids.iter().find(|id| !sound(id)).cloned())
}

/// Whether a page that was changed says what the journal says, save for what is forgotten.
fn agrees(index: &Index, page: &Page) -> bool {
    let known = |(seq, entry): (Seq, &Entry)| {
        let Some(name) = entry.document().and_then(Name::read) else { return true };
        let forgotten = entry.resource().is_some_and(|it| index.is_forgotten(&it, seq));
        forgotten || is_named(index, &name)
    };
    page.is_sound() && page.lost.is_none() && page.numbered().all(known)
}

/// The first of some documents that is no record.
fn spoilt_record(shared: &Shared, ids: &[String]) -> Result<Option<String>, Trouble> {
    let (documents, mut names) = (shared.databases.documents(ids)?, Names::default());
    let mut sound = |id: &String| documents.get(id).is_some_and(|it| it.read(&mut names).is_ok());
    Ok(ids.iter().find(|id| !sound(id)).cloned())
}

/// Why a snapshot with this mark is not one of the databases as they are, if it is not: they were filled anew, or set
/// back.
pub(super) fn objection(
    shared: &Shared,
    mark: &str,
    trailer: &Trailer,
    positions: &Positions,
) -> Result<Option<String>, Trouble> {
    let databases = &shared.databases;
    for (which, at) in [(Which::Local, &positions.local), (Which::Records, &positions.records)] {
        if databases.mark(which)?.as_deref() != Some(mark) {
            return Ok(Some("it is a copy of databases that were others".to_owned()));
        }
        if !databases.has_reached(which, at)? {
            return Ok(Some("it is newer than the databases".to_owned()));
        }
    }
    let last = databases.page(trailer.last_page)?;
    Ok(match last {
        Some(page) if page.last() == trailer.covered => None,
        _ => Some(format!("`{}` is not what it was", journal::id(trailer.last_page))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(id: &str, revision: &str, deleted: bool) -> Changed {
        Changed { id: id.to_owned(), revision: revision.to_owned(), deleted }
    }

    #[test]
    fn pages_that_a_snapshot_holds_have_to_stay() {
        for (id, revision, deleted, expected) in [
            (journal::id(5), "1-x", false, Verdict::Fine),
            (journal::id(5), "2-x", false, Verdict::Look),
            (journal::id(5), "2-x", true, Verdict::Gone),
            (journal::id(10), "3-x", true, Verdict::Gone),
            (journal::id(11), "2-x", true, Verdict::Fine),
            (journal::id(11), "2-x", false, Verdict::Fine),
            ("lease".to_owned(), "900-x", false, Verdict::Fine),
            ("page:x".to_owned(), "2-x", true, Verdict::Fine),
        ] {
            let change = change(&id, revision, deleted);
            assert_eq!(judge_page(&change, 10), expected, "{change:?}");
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
            ("file:x".to_owned(), "2-y".to_owned(), true, Verdict::Fine),
        ] {
            let change = change(&id, &revision, deleted);
            assert_eq!(judge_record(&change, &index, &lost), expected, "{change:?}");
        }
    }
}
