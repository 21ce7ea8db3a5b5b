//! Restores documents of records that were removed or edited by hand.
//!
//! What must stay true: a restored document has a revision that ends with the hash of its record, and wins over all
//! that stands under its id; a document that the server does not take holds up no other.

use std::collections::BTreeSet;

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    databases::{Databases, Rows},
    document::Document,
    server::{Trouble, encoded},
};
use crate::wire::Names;

/// What stands under an id.
#[derive(Deserialize)]
struct Stands {
    value: Option<Revision>,
}

#[derive(Deserialize)]
struct Revision {
    rev: String,
}

/// The revisions of a document, from the last one back.
#[derive(Serialize, Deserialize)]
struct History {
    /// The number of the last one.
    start: u64,
    ids: Vec<String>,
}

impl History {
    /// A document as the revision after these.
    fn followed_by(mut self, document: &Document) -> Value {
        let (_, hash) = document.revision.split_once('-').unwrap_or_default();
        self.start += 1;
        self.ids.insert(0, hash.to_owned());
        let mut next = json!(document);
        next["_rev"] = format!("{}-{hash}", self.start).into();
        next["_revisions"] = json!(self);
        next
    }
}

impl Databases {
    /// Writes documents in place of whatever stands under their ids, if only that they were removed, and says which of
    /// them were not written. An ordinary edit would get a revision that CouchDB chooses. A copy
    /// (`new_edits: false`) that follows all revisions there are has the one that belongs to the record, and wins.
    pub(super) fn restore(&self, documents: &[Document]) -> Result<BTreeSet<String>, Trouble> {
        if documents.is_empty() {
            return Ok(BTreeSet::new());
        }
        let ids = |documents: &[&Document]| -> Vec<String> {
            documents.iter().map(|document| document.id.clone()).collect()
        };
        // Some may be back.
        let missing = self.unreadable(ids(&documents.iter().collect::<Vec<_>>()))?;
        let documents: Vec<&Document> =
            documents.iter().filter(|document| missing.contains(&document.id)).collect();
        if documents.is_empty() {
            return Ok(BTreeSet::new());
        }
        let ids = ids(&documents);
        let path = format!("{}/_all_docs", self.records);
        let rows: Rows<Stands> =
            self.client.ask(Method::POST, &path, Some(&json!({"keys": ids})))?;
        let mut copies = Vec::with_capacity(documents.len());
        for (document, Stands { value }) in documents.into_iter().zip(rows.rows) {
            let history = match value {
                Some(Revision { rev }) => self.history(&document.id, &rev)?,
                None => None,
            };
            copies.push(history.map_or_else(|| json!(document), |it| it.followed_by(document)));
        }
        let body = json!({"new_edits": false, "docs": copies});
        match self.bulk(&self.records, &body) {
            // A server that refuses a document may refuse all with it. What it took is read back.
            Err(trouble) if !trouble.is_away() => tracing::warn!(
                "failed to restore {} documents in {}: {trouble}",
                copies.len(),
                self.place
            ),
            written => drop(written?),
        }
        self.unreadable(ids)
    }

    /// Those of some documents that are not there, or that are no records.
    fn unreadable(&self, ids: Vec<String>) -> Result<BTreeSet<String>, Trouble> {
        let (mut whole, mut names) = (BTreeSet::new(), Names::default());
        self.each_document(&ids, |document| {
            if document.read(&mut names).is_ok() {
                whole.insert(document.id);
            }
        })?;
        Ok(ids.into_iter().filter(|id| !whole.contains(id)).collect())
    }

    /// The revision of a document, with all that it follows.
    fn history(&self, id: &str, revision: &str) -> Result<Option<History>, Trouble> {
        #[derive(Deserialize)]
        struct Found {
            #[serde(rename = "_revisions")]
            revisions: History,
        }
        let path = format!("{}/{}?rev={}&revs=true", self.records, encoded(id), encoded(revision));
        Ok(self.client.find::<Found>(&path)?.map(|found| found.revisions))
    }
}
