//! The two databases of a site, and what is asked of them.
//!
//! One holds records, a document each, and is what replication carries. The other is of this site alone: the
//! journal, and what the database is. What must stay true:
//! - a document of a record is written with its revision, so that writing it again changes nothing;
//! - a page is only ever made, never changed by making it again: who finds it there is told.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cheops_core::id::ResourceId;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    client::Client,
    dialect::Dialect,
    document::{self, Document},
    fetch::Pace,
    journal::Page,
    lease,
    owner::{About, Owner},
    quorum::generation,
    server::{Server, Trouble, encoded, is_clustered, lasting, read, refused, said},
};
use crate::config::CouchDb;

/// What the ids of documents of one sort end before.
const END: char = '\u{fff0}';
/// How many documents CouchDB purges at once.
const PURGED: usize = 100;

pub(super) struct Databases {
    pub(super) client: Client,
    pub(super) records: String,
    pub(super) local: String,
    /// Where they are, for people.
    pub(super) place: String,
    dialect: Dialect,
    /// Whether a document is lasting only once several nodes have stored it. Known once they are claimed.
    clustered: AtomicBool,
    /// How often the databases were claimed. Of two pages with one id, the one of the later term counts.
    pub(super) term: AtomicU64,
    /// Whether documents can be purged, as far as that is known.
    purges: AtomicBool,
    pub(super) pace: Pace,
}

/// Up to where the changes of the database of records are dealt with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    #[serde(rename = "_rev", default, skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    /// As the server says it: a number, or a text that begins with one.
    #[serde(rename = "Since")]
    pub(super) since: Value,
}

impl Checkpoint {
    /// The same, at another position.
    pub(super) fn at(&self, since: Value) -> Self {
        Self { since, revision: self.revision.clone() }
    }
}

#[derive(Deserialize)]
pub(super) struct Rows<R> {
    pub(super) rows: Vec<R>,
}

/// The id of a document, and a revision of it.
pub(super) type IdAndRevision = (String, String);

/// A row without its document.
#[derive(Deserialize)]
struct Standing {
    id: Option<String>,
    value: Option<Revision>,
}

#[derive(Deserialize)]
struct Revision {
    rev: String,
    #[serde(default)]
    deleted: bool,
}

/// A document was written.
#[derive(Deserialize)]
struct Put {
    rev: String,
}

/// What became of one document of many.
#[derive(Deserialize)]
pub(super) struct Written {
    #[serde(default)]
    id: String,
    pub(super) error: Option<String>,
    #[serde(default)]
    reason: Option<String>,
}

impl Databases {
    /// The databases that a configuration names, whether they are there or not.
    pub(super) fn open(config: &CouchDb) -> Result<Self, String> {
        let client = Client::new(config)?;
        let worded = |trouble: Trouble| trouble.to_string();
        let welcome: Option<Value> = client.find("/").map_err(worded)?;
        let welcome = welcome.ok_or(
            "there is no CouchDB at this path: correct `couchdb.url`, which names the server alone",
        )?;
        let dialect = Dialect::of(welcome)?;
        let (records, local) = (format!("/{}", config.database), format!("/{}", config.local()));
        let url = config.url.to_string();
        let place = format!("{}{records}", url.trim_end_matches('/'));
        let (clustered, purges) = (AtomicBool::new(false), AtomicBool::new(true));
        let term = AtomicU64::new(0);
        Ok(Self {
            client,
            records,
            local,
            place,
            dialect,
            clustered,
            term,
            purges,
            pace: Pace::default(),
        })
    }

    /// Makes a database, unless it is there.
    fn make(&self, database: &str) -> Result<(), Trouble> {
        if self.client.find::<Value>(database)?.is_some() {
            return Ok(());
        }
        match self.client.answer(Method::PUT, database, None::<&()>)? {
            (status, _) if status.is_success() => Ok(()),
            // Somebody else was faster.
            (StatusCode::PRECONDITION_FAILED, _) => Ok(()),
            // CouchDB answers the former to whoever is no admin of the server, known or not.
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, bytes) => {
                let database = database.trim_start_matches('/').to_owned();
                Err(Trouble::NotMade { database, why: said(&bytes) })
            }
            (status, bytes) => Err(refused(status, &bytes)),
        }
    }

    /// Whether they can be asked something.
    pub(super) fn look(&self) -> Result<(), Trouble> {
        for database in [&self.records, &self.local] {
            let _: Value = self.client.ask(Method::GET, database, None::<&()>)?;
        }
        Ok(())
    }

    /// Makes sure that they are of this agent, and says their name; made, if they are not there and never were. That is
    /// written at each start: whoever may only read learns it now, and not from the first operation.
    pub(super) fn claim(&self, owner: &Owner) -> Result<String, String> {
        let worded = |trouble: Trouble| trouble.to_string();
        let path = format!("{}/about", self.local);
        let found: Option<About> = self.client.find(&path).map_err(worded)?;
        if let Some(objection) = owner.objection(found.as_ref()) {
            return Err(objection);
        }
        for database in [&self.records, &self.local] {
            self.make(database).map_err(worded)?;
        }
        let info: Value = self.client.ask(Method::GET, &self.local, None::<&()>).map_err(worded)?;
        self.clustered.store(is_clustered(&info), Ordering::Release);
        let about = found.unwrap_or_else(|| owner.about());
        let about = self.put_about(&path, about).map_err(worded)?;
        owner.objection(Some(&about)).map_or(Ok(about.name), Err)
    }

    fn put_about(&self, path: &str, about: About) -> Result<About, Trouble> {
        match self.client.answer(Method::PUT, path, Some(&about))? {
            // Another start was faster.
            (StatusCode::CONFLICT, _) => {
                let found: Value = self.client.ask(Method::GET, path, None::<&()>)?;
                let revision = found["_rev"].as_str().unwrap_or_default();
                self.term.store(generation(revision), Ordering::Release);
                serde_json::from_value(found).map_err(|error| Trouble::Odd(error.to_string()))
            }
            answer => {
                let Put { rev } = lasting(answer)?;
                self.term.store(generation(&rev), Ordering::Release);
                Ok(about)
            }
        }
    }

    /// Whether a document is lasting only once several nodes have stored it.
    pub(super) fn is_clustered(&self) -> bool {
        self.clustered.load(Ordering::Acquire)
    }

    /// Who is at work on the databases.
    pub(super) fn lease(&self) -> Result<Option<lease::Written>, Trouble> {
        let found: Option<Value> = self.client.find(&format!("{}/lease", self.local))?;
        let odd = |error: serde_json::Error| {
            Trouble::Odd(format!("the document `lease`: {error}; stop all agents, and delete it"))
        };
        found.map(serde_json::from_value).transpose().map_err(odd)
    }

    /// Writes who is, and says its new revision; nothing if it has changed meanwhile.
    pub(super) fn put_lease(&self, lease: &lease::Written) -> Result<Option<String>, Trouble> {
        let path = format!("{}/lease", self.local);
        match self.client.answer(Method::PUT, &path, Some(lease))? {
            (StatusCode::CONFLICT, _) => Ok(None),
            answer => lasting(answer).map(|Put { rev }| Some(rev)),
        }
    }

    /// Whether they are being filled with what another engine holds, and not whole.
    pub(super) fn is_filling(&self) -> Result<bool, Trouble> {
        Ok(self.client.find::<Value>(&self.filling_path())?.is_some())
    }

    /// Marks them as databases that are being filled.
    pub(super) fn mark_filling(&self) -> Result<(), Trouble> {
        let mark = json!({"By": "cheops engine copy"});
        let answer = self.client.answer(Method::PUT, &self.filling_path(), Some(&mark))?;
        lasting::<Value>(answer).map(drop)
    }

    /// Takes the mark away.
    pub(super) fn unmark_filling(&self) -> Result<(), Trouble> {
        let path = self.filling_path();
        let Some(mark) = self.client.find::<Value>(&path)? else { return Ok(()) };
        let path = format!("{path}?rev={}", mark["_rev"].as_str().unwrap_or_default());
        lasting::<Value>(self.client.answer(Method::DELETE, &path, None::<&()>)?).map(drop)
    }

    /// What to do to have empty ones.
    pub(super) fn how_to_begin_again(&self) -> String {
        let [records, local] =
            [&self.records, &self.local].map(|path| path.trim_start_matches('/'));
        format!(
            "name another `couchdb.database`, or delete the databases `{records}` and `{local}` if nobody needs them"
        )
    }

    fn filling_path(&self) -> String {
        format!("{}/filling", self.local)
    }

    /// Whether there is any document of a record.
    pub(super) fn has_records(&self) -> Result<bool, Trouble> {
        let (first, end) = (document::PREFIX, format!("{}{END}", document::PREFIX));
        let keys = [("startkey", first), ("endkey", end.as_str())];
        Ok(!self.rows(&self.records, &keys, 1, false)?.is_empty())
    }

    /// Writes the documents of records. A cluster does not report how many nodes have stored them, and no read does.
    pub(super) fn put_records(&self, documents: &[&Document]) -> Result<(), Trouble> {
        if documents.is_empty() {
            return Ok(());
        }
        let body = json!({"new_edits": false, "docs": documents});
        let written = self.bulk(&self.records, &body)?;
        written.iter().try_for_each(Written::check)
    }

    /// Writes documents, on as many nodes of a cluster as make it last.
    pub(super) fn bulk(&self, database: &str, body: &Value) -> Result<Vec<Written>, Trouble> {
        let path = format!("{database}/_bulk_docs");
        lasting(self.client.answer(Method::POST, &path, Some(body))?)
    }

    /// Up to where changes are dealt with; from the start, if that is not known or further than there are any,
    /// as in a database that was put back from a backup.
    pub(super) fn checkpoint(&self) -> Result<Checkpoint, Trouble> {
        let kept: Option<Checkpoint> = self.client.find(&self.checkpoint_path())?;
        let Some(kept) = kept else { return Ok(Checkpoint { since: 0.into(), revision: None }) };
        let info: Value = self.client.ask(Method::GET, &self.records, None::<&()>)?;
        let reached = position(&info["update_seq"]) >= position(&kept.since);
        Ok(if reached && position(&kept.since).is_some() {
            kept
        } else {
            Checkpoint { since: 0.into(), ..kept }
        })
    }

    /// Takes note of up to where they are, and says what is noted from now on: something else if an agent that was at
    /// work before has come in between.
    pub(super) fn keep(&self, checkpoint: Checkpoint) -> Result<Checkpoint, Trouble> {
        let path = self.checkpoint_path();
        match self.client.answer(Method::PUT, &path, Some(&checkpoint))? {
            (StatusCode::CONFLICT, _) => self.checkpoint(),
            (status, bytes) => {
                let Put { rev } = read(status, &bytes)?;
                Ok(Checkpoint { revision: Some(rev), ..checkpoint })
            }
        }
    }

    /// What names all changes since a position, as they come.
    pub(super) fn feed(&self, since: &Value, heartbeat: Duration) -> String {
        let (since, heartbeat) = (text(since), heartbeat.as_millis());
        format!("{}/_changes?feed=continuous&heartbeat={heartbeat}&since={since}", self.records)
    }

    /// The server, for those who do not wait.
    pub(super) fn server(&self) -> &Arc<Server> {
        self.client.server()
    }

    fn checkpoint_path(&self) -> String {
        format!("{}/_local/checkpoint", self.local)
    }

    /// Finds out whether the user may purge, by purging nothing, and says why not.
    pub(super) fn try_purge(&self) -> Result<Option<String>, Trouble> {
        if !self.dialect.purges() {
            return Ok(None);
        }
        let path = format!("{}/_purge", self.records);
        let why = match self.client.ask::<Value>(Method::POST, &path, Some(&json!({}))) {
            Err(
                Trouble::NotAdmin(why)
                | Trouble::Refused { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, why },
            ) => why,
            Err(trouble) if trouble.is_away() => return Err(trouble),
            // What else may be wrong is found when something is purged.
            _ => return Ok(None),
        };
        self.purges.store(false, Ordering::Release);
        Ok(Some(why))
    }

    /// Whether documents can be purged, or need not be.
    pub(super) fn may_purge(&self) -> bool {
        self.purges.load(Ordering::Acquire)
    }

    /// Purges revisions of documents of records, where the server can: without a trace, so that replication carries no
    /// removal.
    pub(super) fn purge(&self, revisions: &[IdAndRevision]) -> Result<(), Trouble> {
        if !self.dialect.purges() {
            return Ok(());
        }
        let path = format!("{}/_purge", self.records);
        for some in revisions.chunks(PURGED) {
            let some: BTreeMap<_, _> = some.iter().map(|(id, revision)| (id, [revision])).collect();
            self.client.ask::<Value>(Method::POST, &path, Some(&some))?;
        }
        Ok(())
    }

    /// The revisions of documents of records by their ids, of those that are there.
    pub(super) fn revisions(&self, ids: &[String]) -> Result<Vec<IdAndRevision>, Trouble> {
        let path = format!("{}/_all_docs", self.records);
        let rows = self.client.ask(Method::POST, &path, Some(&json!({"keys": ids})))?;
        Ok(revisions_in(rows))
    }

    /// The revisions of some documents of a resource's records, in the order of their ids, from an id on.
    pub(super) fn revisions_of(
        &self,
        resource: &ResourceId,
        from: Option<&str>,
        most: usize,
    ) -> Result<Vec<IdAndRevision>, Trouble> {
        let first = format!("{}{resource}:", document::PREFIX);
        let end = format!("{first}{END}");
        let [first, end] =
            [from.unwrap_or(&first), &end].map(|key| encoded(&Value::from(key).to_string()));
        let path = format!("{}/_all_docs?limit={most}&startkey={first}&endkey={end}", self.records);
        Ok(revisions_in(self.client.ask(Method::GET, &path, None::<&()>)?))
    }
}

/// The rows of an answer that name a document which is there.
fn revisions_in(Rows { rows }: Rows<Standing>) -> Vec<IdAndRevision> {
    let there = rows.into_iter().filter_map(|row| row.id.zip(row.value));
    there.filter(|(_, value)| !value.deleted).map(|(id, value)| (id, value.rev)).collect()
}

/// A position in the changes, as a part of an address.
pub(super) fn text(since: &Value) -> String {
    match since {
        Value::String(text) => encoded(text),
        other => other.to_string(),
    }
}

/// The page that a document is, if it is one that makes sense.
pub(super) fn sound(document: Option<Value>) -> Option<Page> {
    serde_json::from_value(document?).ok().filter(Page::is_sound)
}

/// How far a position in the changes is, as far as that can be told.
pub(super) fn position(since: &Value) -> Option<u64> {
    match since {
        Value::String(text) => text.split('-').next()?.parse().ok(),
        other => other.as_u64(),
    }
}

impl Written {
    pub(super) fn check(&self) -> Result<(), Trouble> {
        match &self.error {
            None => Ok(()),
            Some(error) => {
                let reason = self.reason.as_deref().unwrap_or("without a reason");
                let status = match error.as_str() {
                    "unauthorized" => StatusCode::UNAUTHORIZED,
                    "forbidden" => StatusCode::FORBIDDEN,
                    "too_large" | "document_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
                    "conflict" => StatusCode::CONFLICT,
                    _ => StatusCode::INTERNAL_SERVER_ERROR,
                };
                Err(Trouble::Refused { status, why: format!("{}: {error}: {reason}", self.id) })
            }
        }
    }
}
