//! What has changed in the databases since a position, without the documents; and the mark that a snapshot has there.
//!
//! What must stay true: a position that is handed out is not further than what was handed out with it.

use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    databases::{Databases, position, text},
    server::{Trouble, refused},
};

/// How many changes are asked for at once.
const AT_ONCE: usize = 2_000;

/// One of the two databases of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The journal.
    Local,
    Records,
}

impl Which {
    pub(super) const BOTH: [Self; 2] = [Self::Local, Self::Records];
}

/// A document that has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) id: String,
    pub(super) revision: String,
    pub(super) deleted: bool,
}

#[derive(Deserialize)]
struct Page {
    results: Vec<Row>,
    last_seq: Value,
}

#[derive(Deserialize)]
struct Row {
    id: String,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    changes: Vec<Revision>,
}

#[derive(Deserialize)]
struct Revision {
    rev: String,
}

impl Databases {
    fn path(&self, which: Which) -> &str {
        match which {
            Which::Local => &self.local,
            Which::Records => &self.records,
        }
    }

    /// Some changes since a position, and the position after them. None are left once there are none.
    pub(super) fn changed(
        &self,
        which: Which,
        since: &Value,
    ) -> Result<(Vec<Changed>, Value), Trouble> {
        let (database, since) = (self.path(which), text(since));
        let path = format!("{database}/_changes?limit={AT_ONCE}&since={since}");
        let Page { results, last_seq } = self.client.ask(Method::GET, &path, None::<&()>)?;
        let changed = results.into_iter().map(|Row { id, deleted, changes }| {
            let revision = changes.into_iter().next().map(|it| it.rev).unwrap_or_default();
            Changed { id, revision, deleted }
        });
        Ok((changed.collect(), last_seq))
    }

    /// Where the changes of a database end.
    pub(super) fn end_of_changes(&self, which: Which) -> Result<Value, Trouble> {
        let mut info: Value = self.client.ask(Method::GET, self.path(which), None::<&()>)?;
        Ok(info["update_seq"].take())
    }

    /// Whether a database is as far as a position, as far as that can be told.
    pub(super) fn has_reached(&self, which: Which, at: &Value) -> Result<bool, Trouble> {
        let end = self.end_of_changes(which)?;
        Ok(position(at).is_some() && position(&end) >= position(at))
    }

    /// The mark of a database. It is in a document that replication does not carry: a database that was filled anew
    /// from a copy has none.
    pub(super) fn mark(&self, which: Which) -> Result<Option<String>, Trouble> {
        let found: Option<Value> = self.client.find(&self.mark_path(which))?;
        Ok(found.and_then(|found| found["Name"].as_str().map(ToOwned::to_owned)))
    }

    /// Marks both databases.
    pub(super) fn set_mark(&self, mark: &str) -> Result<(), Trouble> {
        for which in Which::BOTH {
            let path = self.mark_path(which);
            let mut document = json!({"Name": mark});
            if let Some(found) = self.client.find::<Value>(&path)? {
                document["_rev"] = found["_rev"].clone();
            }
            match self.client.answer(Method::PUT, &path, Some(&document))? {
                (StatusCode::CREATED | StatusCode::OK, _) => {}
                (status, bytes) => return Err(refused(status, &bytes)),
            }
        }
        Ok(())
    }

    fn mark_path(&self, which: Which) -> String {
        format!("{}/_local/snapshot", self.path(which))
    }
}
