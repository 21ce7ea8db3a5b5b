//! Writes pages of the journal so that a quorum of a cluster's nodes has them, and tells which of two pages counts.
//!
//! What must stay true: a page counts once a write has reported that a quorum has stored it; a page that never reached
//! one takes the place of no other. `docs/couchdb.md` has the reasons, under *Clusters*.

use std::{sync::atomic::Ordering, thread, time::Duration};

use serde_json::{Value, json};

use super::{
    databases::{Databases, Written, sound},
    journal::Page,
    server::{Trouble, encoded, few_nodes},
};

/// How often it is tried to have a quorum store pages at a start, and how long to wait in between.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Where a page says in which term it was written.
const TERM: &str = "Term";

impl Databases {
    /// Makes pages. Those that are there already have to say the same. The last one is written after the others: where
    /// it is, they are.
    pub(super) fn make_pages(&self, pages: &[Page]) -> Result<(), Trouble> {
        let Some((last, others)) = pages.split_last() else { return Ok(()) };
        if !others.is_empty() {
            self.make_some(others)?;
        }
        self.make_some(std::slice::from_ref(last))
    }

    /// Makes pages with one request. In a cluster a page may be there because a write reached too few nodes, and that
    /// it is there proves nothing: it is confirmed.
    fn make_some(&self, pages: &[Page]) -> Result<(), Trouble> {
        let documents: Vec<Value> = pages.iter().map(|page| self.in_term(json!(page))).collect();
        let written = self.bulk(&self.local, &json!({"docs": documents}))?;
        let mut doubtful = Vec::new();
        for (page, written) in pages.iter().zip(&written) {
            if written.error.as_deref() != Some("conflict") {
                written.check()?;
                continue;
            }
            match self.page(page.first)? {
                Some(there) if (Page { revision: None, ..there.clone() }) == *page => {
                    doubtful.push(there);
                }
                _ => return Err(Trouble::Taken(page.id.clone())),
            }
        }
        if doubtful.is_empty() || !self.is_clustered() {
            return Ok(());
        }
        self.rewrite(&doubtful)
    }

    /// Has a quorum of the nodes store pages that are there. A few times: a node that lacked a page may get it a moment
    /// after it was read.
    pub(super) fn confirm(&self, pages: &[Page]) -> Result<(), Trouble> {
        let mut attempts = 1;
        loop {
            // To read a page by its id also copies it to the nodes that lack it.
            let there: Result<Vec<Option<Page>>, Trouble> =
                pages.iter().map(|page| self.page(page.first)).collect();
            let there: Vec<Page> = there?.into_iter().flatten().collect();
            match self.rewrite(&there) {
                Err(trouble) if trouble.is_away() && attempts < ATTEMPTS => {
                    attempts += 1;
                    thread::sleep(PAUSE);
                }
                confirmed => return confirmed,
            }
        }
    }

    /// Writes pages over themselves, which reports how many nodes have stored them.
    fn rewrite(&self, pages: &[Page]) -> Result<(), Trouble> {
        let documents: Vec<Value> = pages.iter().map(|page| self.in_term(json!(page))).collect();
        let written = self.bulk(&self.local, &json!({"docs": documents}))?;
        // A conflict is of nodes that lack what it follows.
        if written.iter().any(|one| one.error.as_deref() == Some("conflict")) {
            return Err(few_nodes());
        }
        written.iter().try_for_each(Written::check)
    }

    /// Changes or removes pages, of which each says which revision it was.
    pub(super) fn change_pages(&self, pages: &[Value]) -> Result<(), Trouble> {
        if pages.is_empty() {
            return Ok(());
        }
        let pages: Vec<Value> = pages.iter().map(|page| self.in_term(page.clone())).collect();
        let written = self.bulk(&self.local, &json!({"docs": pages}))?;
        written.iter().try_for_each(Written::check)
    }

    /// A page as it is written in a cluster, with the term. A node that is away may have a page that was never
    /// acknowledged, and bring it back later beside the one that was written in its place.
    fn in_term(&self, mut page: Value) -> Value {
        if self.is_clustered() {
            page[TERM] = self.term.load(Ordering::Acquire).into();
        }
        page
    }

    /// The page that counts, of a document that may stand there in several revisions at once.
    pub(super) fn counting(&self, document: Option<Value>) -> Result<Option<Page>, Trouble> {
        let Some(mut best) = document else { return Ok(None) };
        let others: Vec<String> = best
            .get("_conflicts")
            .cloned()
            .and_then(|it| serde_json::from_value(it).ok())
            .unwrap_or_default();
        for revision in others {
            let id = best["_id"].as_str().unwrap_or_default();
            let path = format!("{}/{id}?rev={}", self.local, encoded(&revision));
            let Some(other) = self.client.find::<Value>(&path)? else { continue };
            if other[TERM].as_u64() > best[TERM].as_u64() {
                best = other;
            }
        }
        Ok(sound(Some(best)))
    }
}

/// The number that a revision begins with.
pub(super) fn generation(revision: &str) -> u64 {
    revision.split('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
