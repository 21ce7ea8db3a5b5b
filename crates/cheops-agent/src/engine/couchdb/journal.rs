//! The journal: in which order a site has written what, page by page.
//!
//! A page is a document in the site's own database. It names records by their documents, which are in
//! the other database, and holds all else itself. Where the server does not report how many nodes have stored a
//! document, the page holds a copy of the record, too: a page is written in a way that reports it. What must stay
//! true:
//! - a page has the number of its first entry in its id, so that pages are read in their order, and two that
//!   begin alike can't both be written;
//! - the pages of a batch count once all of them are there: the last one of a batch says that it is.

use std::ops::RangeInclusive;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use cheops_core::{id::ResourceId, replica::Durable};
use serde::{Deserialize, Serialize};

use super::document::{Document, Name};
use crate::{
    engine::Seq,
    wire::{self, Names, WireError},
};

/// What the ids of pages begin with.
pub(super) const PREFIX: &str = "page:";
/// How much a page holds: entries, and about how many bytes. CouchDB takes documents of 8 MB.
const MOST: usize = 1_000;
const MOST_BYTES: usize = 1 << 20;
/// The highest number that is believed: no site ever comes near it, and what follows it still has a number.
pub(super) const HIGHEST: u64 = u64::MAX / 2;

/// A part of a batch, or all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Page {
    #[serde(rename = "_id")]
    pub(super) id: String,
    #[serde(rename = "_rev", default, skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<String>,
    #[serde(rename = "First")]
    pub(super) first: Seq,
    /// The first number of the batch, and its last.
    #[serde(rename = "Batch")]
    pub(super) batch: (Seq, Seq),
    #[serde(rename = "Entries")]
    pub(super) entries: Vec<Entry>,
    /// About how many bytes the documents have that it names, and of which it holds no copies. Pages of earlier versions
    /// do not say.
    #[serde(rename = "Bytes", default, skip_serializing_if = "is_zero")]
    pub(super) bytes: u64,
    /// It stands for pages that were lost, which was found at this time: milliseconds since 1970.
    #[serde(rename = "Lost", default, skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<u64>,
    /// The last number of the lost ones: there can be any number of them.
    #[serde(rename = "Upto", default, skip_serializing_if = "Option::is_none")]
    pub(super) upto: Option<Seq>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// One thing that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Entry {
    /// A record, which has a document of this id.
    Record(String),
    /// Something of this site alone.
    Local {
        #[serde(rename = "Resource")]
        resource: String,
        #[serde(rename = "Local")]
        bytes: String,
    },
    /// A record, which has a document of this id, and a copy of it that counts if the document is lost.
    Copy {
        #[serde(rename = "Record")]
        id: String,
        #[serde(rename = "Copy")]
        bytes: String,
    },
    /// What was here is forgotten.
    Gone(()),
}

impl Entry {
    /// What stands in the journal for something, which has a document if it is a record.
    fn of(durable: &Durable, document: Option<&Document>, copy: bool) -> Result<Self, WireError> {
        if let Some(document) = document
            && !copy
        {
            return Ok(Self::Record(document.id.clone()));
        }
        let bytes = BASE64_STANDARD.encode(wire::encode_durable(durable)?);
        Ok(match document {
            Some(document) => Self::Copy { id: document.id.clone(), bytes },
            None => Self::Local { resource: durable.resource().to_string(), bytes },
        })
    }

    /// The id of the document that it names.
    pub(super) fn document(&self) -> Option<&str> {
        match self {
            Self::Record(id) | Self::Copy { id, .. } => Some(id),
            Self::Local { .. } | Self::Gone(()) => None,
        }
    }

    fn weight(&self) -> usize {
        match self {
            Self::Record(id) => id.len(),
            Self::Local { resource: id, bytes } | Self::Copy { id, bytes } => {
                id.len() + bytes.len()
            }
            Self::Gone(()) => 0,
        }
    }

    /// The resource that it is about.
    pub(super) fn resource(&self) -> Option<ResourceId> {
        self.resource_name()?.parse().ok()
    }

    /// The name of the resource that it is about.
    pub(super) fn resource_name(&self) -> Option<&str> {
        match self {
            Self::Record(id) | Self::Copy { id, .. } => Name::read(id).map(|name| name.resource),
            Self::Local { resource, .. } => Some(resource),
            Self::Gone(()) => None,
        }
    }

    /// What it holds, if it holds it itself.
    pub(super) fn local(&self, names: &mut Names) -> Option<Result<Durable, String>> {
        let (Self::Local { bytes, .. } | Self::Copy { bytes, .. }) = self else { return None };
        let bytes = BASE64_STANDARD.decode(bytes).map_err(|error| error.to_string());
        let read =
            |bytes: Vec<u8>| wire::decode_durable(&bytes, names).map_err(|error| error.to_string());
        Some(bytes.and_then(read))
    }
}

/// The id of the page that begins with a number.
pub(super) fn id(first: Seq) -> String {
    format!("{PREFIX}{first:020}")
}

/// The pages of a batch that begins with a number, of which the records have documents.
#[cfg(test)]
pub(super) fn pages(
    first: Seq,
    batch: &[(&Durable, Option<Document>)],
) -> Result<Vec<Page>, (usize, WireError)> {
    pages_with(first, batch, |_| false)
}

/// The same, with copies of the records of which a function says so by their documents.
pub(super) fn pages_with(
    first: Seq,
    batch: &[(&Durable, Option<Document>)],
    copies: impl Fn(&Document) -> bool,
) -> Result<Vec<Page>, (usize, WireError)> {
    let last = first + batch.len() as Seq - 1;
    let mut pages: Vec<Page> = Vec::new();
    let mut bytes = 0;
    for (n, (durable, document)) in batch.iter().enumerate() {
        let copy = document.as_ref().is_some_and(&copies);
        let entry = Entry::of(durable, document.as_ref(), copy).map_err(|error| (n, error))?;
        let fetched = document.as_ref().filter(|_| !copy).map_or(0, Document::weight);
        bytes += entry.weight();
        let fits = |page: &Page| page.entries.len() < MOST && bytes <= MOST_BYTES;
        if let Some(page) = pages.last_mut().filter(|page| fits(page)) {
            page.entries.push(entry);
            page.bytes += fetched;
            continue;
        }
        bytes = entry.weight();
        let first_of_page = first + n as Seq;
        pages.push(Page {
            id: id(first_of_page),
            revision: None,
            first: first_of_page,
            batch: (first, last),
            entries: vec![entry],
            bytes: fetched,
            lost: None,
            upto: None,
        });
    }
    Ok(pages)
}

/// About how many bytes the documents have, at most, that pages name which are dealt with at once. One page can have
/// more.
const PART_BYTES: u64 = 8 << 20;

/// Pages in parts that are dealt with at once, in their order. A part has so many entries at most, and few bytes of
/// documents; or it is one page.
pub(super) fn parts(pages: Vec<Page>, most: usize) -> Vec<Vec<Page>> {
    let (mut parts, mut entries, mut bytes) = (Vec::<Vec<Page>>::new(), 0, 0_u64);
    for page in pages {
        entries += page.entries.len();
        // Anybody may have written any number there.
        bytes = bytes.saturating_add(page.bytes);
        match parts.last_mut() {
            Some(part) if entries <= most && bytes <= PART_BYTES => part.push(page),
            _ => {
                (entries, bytes) = (page.entries.len(), page.bytes);
                parts.push(vec![page]);
            }
        }
    }
    parts
}

/// The page that stands for lost ones, of these numbers.
pub(super) fn in_place_of(numbers: &RangeInclusive<Seq>, found: u64) -> Page {
    let (first, last) = (*numbers.start(), *numbers.end());
    Page {
        id: id(first),
        revision: None,
        first,
        batch: (first, last),
        entries: Vec::new(),
        bytes: 0,
        lost: Some(found),
        upto: Some(last),
    }
}

impl Page {
    /// The number of its last entry.
    pub(super) fn last(&self) -> Seq {
        let last = self.first.saturating_add(self.entries.len() as Seq).saturating_sub(1);
        self.upto.unwrap_or(last)
    }

    /// About how many bytes it has itself.
    pub(super) fn weight(&self) -> u64 {
        self.entries.iter().map(Entry::weight).sum::<usize>() as u64
    }

    /// Its entries with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (Seq, &Entry)> {
        (self.first..).zip(&self.entries)
    }

    /// Whether it is left over from a batch that never counted: an earlier page of another batch has its numbers.
    pub(super) fn is_left_over_beside(&self, before: &Self) -> bool {
        self.first <= before.last() && self.batch != before.batch
    }

    /// Whether it says what a page says that has this id.
    pub(super) fn is_sound(&self) -> bool {
        let (first, last) = self.batch;
        let stands_for_lost_ones = self.upto.is_some() && self.lost.is_some();
        self.id == id(self.first)
            && self.entries.is_empty() == stands_for_lost_ones
            && self.upto.is_some() == stands_for_lost_ones
            && (1..=self.first).contains(&first)
            && (self.first..=last).contains(&self.last())
            && last <= HIGHEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clearing(name: &str) -> Durable {
        Durable::Clearing(name.parse().unwrap())
    }

    #[test]
    fn a_batch_is_as_many_pages_as_it_takes() {
        for (count, expected) in [(1, vec![1]), (MOST, vec![MOST]), (MOST + 1, vec![MOST, 1])] {
            let clearing = clearing("r");
            let pages = pages(5, &vec![(&clearing, None); count]).unwrap();
            let lengths: Vec<_> = pages.iter().map(|page| page.entries.len()).collect();
            assert_eq!(lengths, expected);
            assert!(pages.iter().all(Page::is_sound));
            assert!(pages.iter().all(|page| page.batch == (5, 4 + count as Seq)));
            assert_eq!(pages[0].first, 5);
            assert_eq!(pages.last().unwrap().last(), 4 + count as Seq);
        }
    }

    #[test]
    fn pages_are_dealt_with_in_parts_of_few_entries_and_few_bytes() {
        let page = |entries: usize, bytes: u64| {
            let clearing = clearing("r");
            let pages = pages(1, &vec![(&clearing, None); entries]).unwrap();
            Page { bytes, ..pages[0].clone() }
        };
        for (sizes, expected) in [
            (vec![], vec![]),
            (vec![(1, 0), (1, 0)], vec![2]),
            (vec![(500, 0), (1, 0)], vec![1, 1]),
            (vec![(499, 0), (1, 0), (1, 0)], vec![2, 1]),
            (vec![(1, PART_BYTES), (1, 1), (1, 1)], vec![1, 2]),
            (vec![(1, 3 * PART_BYTES), (1, 3 * PART_BYTES)], vec![1, 1]),
            (vec![(1, u64::MAX), (1, u64::MAX)], vec![1, 1]),
        ] {
            let pages = sizes.iter().map(|(entries, bytes)| page(*entries, *bytes)).collect();
            let parts: Vec<usize> = parts(pages, 500).iter().map(Vec::len).collect();
            assert_eq!(parts, expected, "{sizes:?}");
        }
    }

    #[test]
    fn entries_come_back_as_they_were_written() {
        let batch = [clearing("a"), clearing("b")];
        let both = [(&batch[0], None), (&batch[1], None)];
        let [page] = &pages(1, &both).unwrap()[..] else { panic!("one page") };
        let text = serde_json::to_string(page).unwrap();
        let read: Page = serde_json::from_str(&text).unwrap();
        assert_eq!(&read, page);
        let mut names = Names::default();
        let locals: Vec<_> = read.entries.iter().filter_map(|e| e.local(&mut names)).collect();
        assert_eq!(locals, batch.map(Ok));
        let gone: Entry = serde_json::from_str("null").unwrap();
        assert_eq!((gone.clone(), gone.resource()), (Entry::Gone(()), None));
        let record: Entry = serde_json::from_str(r#""record:counter:site1:7:ff""#).unwrap();
        assert_eq!(record.resource(), "counter".parse().ok());
    }

    #[test]
    fn lost_pages_have_one_in_their_place_however_many_they_are() {
        let page = in_place_of(&(3..=HIGHEST), 9);
        assert!(page.is_sound());
        assert_eq!((page.first, page.last(), page.lost), (3, HIGHEST, Some(9)));
        let read: Page = serde_json::from_value(serde_json::json!(page)).unwrap();
        assert_eq!((read.numbered().count(), &read), (0, &page));
    }

    #[test]
    fn a_page_of_numbers_that_make_no_sense_is_none() {
        let clearing = clearing("r");
        let [page] = &pages(5, &[(&clearing, None), (&clearing, None)]).unwrap()[..] else {
            panic!("one page")
        };
        let at = |first: Seq| Page { id: id(first), first, ..page.clone() };
        for wrong in [
            Page { batch: (0, 6), ..page.clone() },
            Page { batch: (6, 6), ..page.clone() },
            Page { batch: (5, 5), ..page.clone() },
            Page { batch: (5, Seq::MAX), ..page.clone() },
            Page { batch: (Seq::MAX, 0), ..page.clone() },
            Page { batch: (0, 1), ..at(0) },
            Page { batch: (1, Seq::MAX), ..at(Seq::MAX) },
            Page { batch: (1, Seq::MAX), ..at(Seq::MAX - 1) },
            Page { entries: Vec::new(), ..page.clone() },
            Page { upto: Some(6), ..page.clone() },
            Page { upto: Some(6), lost: Some(1), ..page.clone() },
            Page { entries: Vec::new(), upto: Some(4), lost: Some(1), ..page.clone() },
            Page { first: 4, ..page.clone() },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
        assert!(page.is_sound());
    }

    #[test]
    fn pages_stand_in_the_order_of_their_numbers() {
        let numbers = [1, 9, 10, 99, 1_000_000, Seq::MAX];
        assert!(numbers.map(id).is_sorted());
    }
}
