//! Reads pages and documents, in answers of bounded length.
//!
//! What must stay true: an answer with several documents has [`PART`] bytes at most, and what callers do not need at
//! once is handed to them document by document. One document alone may be longer.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    ops::RangeInclusive,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    databases::{Databases, Rows},
    document::Document,
    journal::{self, Page},
    server::{LONGEST, Trouble, encoded, read},
};
use crate::engine::Seq;

/// How many documents are asked for by their ids at once, at most: fewer if they are long.
const AT_ONCE: usize = 1_000;
/// How long an answer with several documents may be, in bytes.
const PART: usize = 32 << 20;

/// A row of an answer, with its document.
#[derive(Deserialize)]
pub(super) struct Row<T> {
    #[serde(default)]
    pub(super) id: String,
    /// None where there is nothing of that name, or nothing any more.
    pub(super) doc: Option<T>,
}

/// How many pages are asked for at once. Fewer after an answer was too long, and then a few more each time.
#[derive(Debug)]
pub(super) struct Pace(AtomicUsize);

impl Default for Pace {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Pace {
    /// How many of so many that are wanted.
    fn of(&self, wanted: usize) -> usize {
        self.0.load(Ordering::Relaxed).min(wanted)
    }

    /// So many were too long.
    fn slow_down(&self, asked: usize) {
        self.0.store((asked / 2).max(1), Ordering::Relaxed);
    }

    /// So many were not.
    fn speed_up(&self, asked: usize) {
        if asked >= self.0.load(Ordering::Relaxed) {
            self.0.store(asked.saturating_add(asked / 4 + 1), Ordering::Relaxed);
        }
    }
}

/// How long an answer with so many documents may be.
fn longest(documents: usize) -> usize {
    if documents > 1 { PART } else { LONGEST }
}

impl Databases {
    /// The pages of a range, from the one that begins it on, so many at most, or fewer if they are long. Of a cluster one
    /// node answers for each part of them, which may lack some: those are asked for by their ids, for which as many
    /// answer as make a page last.
    pub(super) fn pages(
        &self,
        range: RangeInclusive<Seq>,
        most: usize,
    ) -> Result<Vec<Page>, Trouble> {
        let (from, upto) = range.into_inner();
        if from > upto {
            return Ok(Vec::new());
        }
        let (first, end) = (journal::id(from), journal::id(upto));
        let (found, most) = loop {
            let some = self.pace.of(most);
            match self.range(&[("startkey", &first), ("endkey", &end)], some, false) {
                Err(Trouble::Long) if some > 1 => self.pace.slow_down(some),
                found => {
                    self.pace.speed_up(some);
                    break (found?, some);
                }
            }
        };
        let (mut pages, mut expected) = (Vec::<Page>::with_capacity(found.len() + 1), from);
        for page in found {
            while page.first > expected
                && let Some(missing) = self.page(expected)?
            {
                expected = missing.last() + 1;
                pages.push(missing);
            }
            if pages.last().is_some_and(|before| page.is_left_over_beside(before)) {
                continue;
            }
            expected = page.last() + 1;
            pages.push(page);
        }
        if pages.len() < most && expected <= upto {
            pages.extend(self.page(expected)?);
        }
        Ok(pages)
    }

    /// All pages of a range.
    pub(super) fn all_pages(&self, range: RangeInclusive<Seq>) -> Result<Vec<Page>, Trouble> {
        let (mut from, upto) = range.into_inner();
        let mut all = Vec::new();
        loop {
            let pages = self.pages(from..=upto, AT_ONCE)?;
            let Some(last) = pages.last() else { return Ok(all) };
            from = last.last() + 1;
            all.extend(pages);
        }
    }

    /// The page that begins with a number.
    pub(super) fn page(&self, first: Seq) -> Result<Option<Page>, Trouble> {
        let path = format!("{}/{}?conflicts=true", self.local, journal::id(first));
        self.counting(self.client.find(&path)?)
    }

    /// The last page that begins with a number or before it.
    pub(super) fn page_before(&self, upto: Seq) -> Result<Option<Page>, Trouble> {
        let (first, end) = (journal::id(upto), journal::PREFIX);
        let pages = self.range(&[("startkey", &first), ("endkey", end)], 1, true)?;
        Ok(pages.into_iter().next())
    }

    /// The last page. One that makes no sense is a failure: it alone says where the journal ends.
    pub(super) fn last_page(&self) -> Result<Option<Page>, Trouble> {
        let (first, end) = (journal::id(Seq::MAX), journal::PREFIX);
        let rows = self.rows(&self.local, &[("startkey", &first), ("endkey", end)], 1, true)?;
        let mut last = match rows.into_iter().next() {
            None => None,
            Some(row) => Some(self.counting(row.doc)?.ok_or(Trouble::Spoilt(row.id))?),
        };
        // There may be more that the node lacks which has answered.
        while let Some(next) = self.page(last.as_ref().map_or(1, |last| last.last() + 1))? {
            last = Some(next);
        }
        Ok(last)
    }

    fn range(
        &self,
        keys: &[(&str, &str)],
        most: usize,
        descending: bool,
    ) -> Result<Vec<Page>, Trouble> {
        let rows = self.rows(&self.local, keys, most, descending)?;
        // One that makes no sense is as good as none: what it held is found to be missing.
        let pages = rows.into_iter().map(|row| self.counting(row.doc));
        pages.filter_map(Result::transpose).collect()
    }

    pub(super) fn rows(
        &self,
        database: &str,
        keys: &[(&str, &str)],
        most: usize,
        descending: bool,
    ) -> Result<Vec<Row<Value>>, Trouble> {
        let mut path = format!(
            "{database}/_all_docs?include_docs=true&conflicts=true&limit={most}&descending={descending}"
        );
        for (name, key) in keys {
            let key = encoded(&Value::from(*key).to_string());
            let _ = write!(path, "&{name}={key}");
        }
        let (status, bytes) =
            self.client.answer_within(Method::GET, &path, None::<&()>, longest(most))?;
        let rows: Rows<Row<Value>> = read(status, &bytes)?;
        Ok(rows.rows)
    }

    /// Hands out pages by their ids, in their order, those that are there.
    pub(super) fn each_page_named(
        &self,
        ids: &[String],
        mut each: impl FnMut(Page),
    ) -> Result<(), Trouble> {
        self.each_named(&self.local, ids, |page| {
            self.counting(page)?.into_iter().for_each(&mut each);
            Ok(())
        })
    }

    /// Some pages by their ids, as many of them as fit into one answer, and how many ids these are.
    pub(super) fn some_pages_named(&self, ids: &[String]) -> Result<(Vec<Page>, usize), Trouble> {
        let mut some = ids;
        loop {
            match self.some_named::<Value>(&self.local, some) {
                Err(Trouble::Long) if some.len() > 1 => some = &some[..some.len() / 2],
                found => {
                    let pages = found?.into_iter().map(|page| self.counting(page));
                    let pages: Result<Vec<Page>, Trouble> =
                        pages.filter_map(Result::transpose).collect();
                    return Ok((pages?, some.len()));
                }
            }
        }
    }

    /// Hands out documents of records by their ids, in their order, those that are there.
    pub(super) fn each_document(
        &self,
        ids: &[String],
        mut each: impl FnMut(Document),
    ) -> Result<(), Trouble> {
        self.each_named(&self.records, ids, |document: Option<Document>| {
            document.into_iter().for_each(&mut each);
            Ok(())
        })
    }

    /// The documents of records by their ids, those that are there.
    pub(super) fn documents(&self, ids: &[String]) -> Result<BTreeMap<String, Document>, Trouble> {
        let mut found = BTreeMap::new();
        self.each_document(ids, |document| drop(found.insert(document.id.clone(), document)))?;
        Ok(found)
    }

    fn each_named<T: DeserializeOwned>(
        &self,
        database: &str,
        ids: &[String],
        mut each: impl FnMut(Option<T>) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let mut parts: VecDeque<&[String]> = ids.chunks(AT_ONCE).collect();
        while let Some(ids) = parts.pop_front() {
            match self.some_named(database, ids) {
                Err(Trouble::Long) if ids.len() > 1 => {
                    let (some, others) = ids.split_at(ids.len() / 2);
                    parts.push_front(others);
                    parts.push_front(some);
                }
                found => found?.into_iter().try_for_each(&mut each)?,
            }
        }
        Ok(())
    }

    /// Documents by their ids, with one request.
    fn some_named<T: DeserializeOwned>(
        &self,
        database: &str,
        ids: &[String],
    ) -> Result<Vec<Option<T>>, Trouble> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let path = format!("{database}/_all_docs?include_docs=true&conflicts=true");
        let (keys, most) = (json!({"keys": ids}), longest(ids.len()));
        documents_in(&self.client.answer_within(Method::POST, &path, Some(&keys), most)?)
    }
}

/// The documents of an answer, in its order. One that makes no sense is as good as none: it says nothing that could be
/// used.
fn documents_in<T: DeserializeOwned>(
    (status, bytes): &(StatusCode, Bytes),
) -> Result<Vec<Option<T>>, Trouble> {
    // Nearly always all of them make sense: then none is read twice.
    if status.is_success()
        && let Ok(Rows { rows }) = serde_json::from_slice::<Rows<Row<T>>>(bytes)
    {
        return Ok(rows.into_iter().map(|row| row.doc).collect());
    }
    let Rows { rows }: Rows<Row<Value>> = read(*status, bytes)?;
    let read = |row: Row<Value>| serde_json::from_value(row.doc?).ok();
    Ok(rows.into_iter().map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_pages_are_asked_for_after_an_answer_that_was_too_long() {
        let pace = Pace::default();
        assert_eq!((pace.of(1_000), pace.of(50)), (1_000, 50));
        pace.speed_up(50);
        assert_eq!(pace.of(1_000), 1_000, "what a caller wants says nothing");
        pace.slow_down(1_000);
        pace.slow_down(500);
        assert_eq!((pace.of(1_000), pace.of(50)), (250, 50));
        pace.speed_up(250);
        assert_eq!(pace.of(1_000), 313);
        (0..20).for_each(|_| pace.slow_down(1));
        assert_eq!(pace.of(1_000), 1, "one can always be asked for");
    }
}
