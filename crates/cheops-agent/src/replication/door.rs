//! The door: what the agent of another site may ask of the database here, on behalf of its server.
//!
//! What must stay true: who asks learns which records are not here, and nothing else; what is added is a record that
//! its own site has sealed, of a resource that is not known to be elsewhere only, and nothing more is said beside it
//! than follows from it. A record that the tombstone of its resource covers was purged here: it is not missing, and
//! not added, whatever its document says.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{Durable, Replica, Resource, Sent},
};
use http_body_util::{BodyExt as _, Limited};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Shared, answer, problem};
use crate::{
    engine::couchdb::{Document, Name},
    trust::{Doubt, Inspector},
    wire::Names,
};

/// Where an agent is asked for another's server.
pub(super) const PLACE: &str = "/peer/v1/couchdb";
/// The longest request, in bytes: a batch of documents of some size each.
pub(super) const LONGEST: usize = 64 << 20;
/// The longest note of a replicator.
const LONGEST_NOTE: usize = 1 << 20;
/// How long a request may take to come whole: others wait for its place.
const PATIENCE: Duration = Duration::from_mins(1);
/// What is told of the server's start. A replicator looks whether it is the same all the time, and what was added is
/// on the disk whenever the server has started.
const START: &str = "0";

/// Whether a request of another agent is one of these.
pub(crate) fn is_for<T>(request: &Request<T>) -> bool {
    request.uri().path().starts_with(PLACE)
}

/// What a replicator asks of a database that it copies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// Whether it is there.
    About,
    /// Which of some documents it lacks.
    Missing,
    /// To add documents.
    Add,
    /// What the replicator has noted under a name.
    Note(String),
    /// To note something under a name.
    Keep(String),
    /// To write to the disk what was added. It always is.
    Flush,
}

impl Asked {
    /// What a path asks that comes after the database; nothing if it is not for replication.
    pub(super) fn read(method: &Method, path: &str) -> Option<Self> {
        let note = |path: &str| {
            let name = path.strip_prefix("_local/")?;
            let name = percent_encoding::percent_decode_str(name).decode_utf8().ok()?;
            let plain = |c: char| c.is_ascii_alphanumeric() || "+/=_-.".contains(c);
            let fits = !name.is_empty() && name.len() <= 200 && name.chars().all(plain);
            fits.then(|| name.into_owned())
        };
        match (method.as_str(), path) {
            ("GET" | "HEAD", "") => Some(Self::About),
            ("POST", "_revs_diff") => Some(Self::Missing),
            ("POST", "_bulk_docs") => Some(Self::Add),
            ("POST", "_ensure_full_commit") => Some(Self::Flush),
            ("GET", path) => note(path).map(Self::Note),
            ("PUT", path) => note(path).map(Self::Keep),
            _ => None,
        }
    }
}

/// A document of a record that its site has sealed, as it is written here.
#[derive(Debug)]
struct Checked {
    resource: ResourceId,
    record: OpId,
    /// Where the resource is, as it says.
    sites: Vec<SiteId>,
    document: Document,
}

/// What is to be added.
#[derive(Deserialize)]
struct Batch {
    docs: Vec<Value>,
    new_edits: Option<bool>,
}

impl Shared {
    /// Answers the server of another site.
    pub(super) async fn admit(&self, from: &SiteId, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().strip_prefix(PLACE).unwrap_or_default();
        let asked = Asked::read(request.method(), path.trim_start_matches('/'));
        let longest = match asked {
            Some(Asked::Missing | Asked::Add) => LONGEST,
            _ => LONGEST_NOTE,
        };
        // What is in memory is bounded, whoever asks.
        let Ok(_room) = self.room.acquire().await else {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the agent is stopping");
        };
        let body = Limited::new(request.into_body(), longest).collect();
        let Ok(body) = timeout(PATIENCE, body).await else {
            return problem(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "send it faster, or less of it",
            );
        };
        let Ok(body) = body else {
            return problem(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "send less at once");
        };
        let (body, database) = (body.to_bytes(), format!("/{}", self.config.database));
        match asked {
            None => problem(StatusCode::FORBIDDEN, "forbidden", "other sites may not ask that"),
            Some(Asked::Flush) => {
                let done = json!({"ok": true, "instance_start_time": START});
                answer(StatusCode::CREATED, done.to_string())
            }
            Some(Asked::About) => {
                let about =
                    self.server.ask::<BTreeMap<String, Value>>(&Method::GET, &database, body);
                about.await.map_or_else(
                    |trouble| unavailable(&trouble.to_string()),
                    |about| answer(StatusCode::OK, said_of(&self.config.database, &about)),
                )
            }
            Some(Asked::Missing) => self.find_missing(&database, &body).await,
            Some(Asked::Add) => self.add(from, &database, &body).await,
            Some(Asked::Note(name)) => self.noted(&Method::GET, from, &name, Bytes::new()).await,
            Some(Asked::Keep(name)) => {
                let Ok(Value::Object(mut kept)) = serde_json::from_slice(&body) else {
                    return problem(StatusCode::BAD_REQUEST, "bad_request", "that is no note");
                };
                kept.remove("_id");
                self.noted(&Method::PUT, from, &name, json!(kept).to_string().into()).await
            }
        }
    }

    /// Asks the server, and gives its answer as it is.
    async fn pass(&self, method: &Method, path: &str, body: Bytes) -> Response<Body> {
        match self.server.answer(method, path, body).await {
            Ok((status, bytes)) => answer(status, bytes),
            Err(trouble) => unavailable(&trouble.to_string()),
        }
    }

    /// Asks for a note, which is called something else here, or writes it.
    async fn noted(
        &self,
        method: &Method,
        from: &SiteId,
        name: &str,
        body: Bytes,
    ) -> Response<Body> {
        let path = format!("/{}/_local/{}", self.config.database, note(from, name));
        match self.server.answer(method, &path, body).await {
            Ok((status, bytes)) => answer(status, renamed(name, bytes)),
            Err(trouble) => unavailable(&trouble.to_string()),
        }
    }

    /// Says which documents are not here, of those that could be added.
    async fn find_missing(&self, database: &str, body: &[u8]) -> Response<Body> {
        let Ok(mut asked) = serde_json::from_slice::<BTreeMap<String, Value>>(body) else {
            return problem(StatusCode::BAD_REQUEST, "bad_request", "these are no revisions");
        };
        let wanted = self.node.read(move |replica| {
            asked.retain(|name, _| match Name::read(name) {
                None => false,
                Some(Name { resource, site, number, .. }) => match (resource.parse(), site.parse())
                {
                    (Ok(resource), Ok(site)) => {
                        !is_forgotten(replica, &resource, &OpId { site, number })
                    }
                    _ => false,
                },
            });
            asked
        });
        let Ok(asked) = wanted.await else { return unavailable("it is stopping") };
        self.offered.fetch_add(asked.len() as u64, Ordering::Relaxed);
        if asked.is_empty() {
            return answer(StatusCode::OK, "{}");
        }
        let path = format!("{database}/_revs_diff");
        self.pass(&Method::POST, &path, json!(asked).to_string().into()).await
    }

    /// Adds what may be added, and says what may not.
    async fn add(&self, from: &SiteId, database: &str, body: &[u8]) -> Response<Body> {
        let Ok(Batch { docs, new_edits: Some(false) }) = serde_json::from_slice(body) else {
            return problem(StatusCode::BAD_REQUEST, "bad_request", "these are no copies");
        };
        let (mut records, mut refused) = (Vec::new(), Vec::new());
        {
            let mut inspector =
                self.inspector.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for document in docs {
                match checked(&document, &mut inspector) {
                    Ok(checked) => records.push(checked),
                    Err(why) => refused.push(refusal(&document["_id"], why)),
                }
            }
        }
        let site = from.clone();
        let sorted = self.node.read(move |replica| {
            let forgotten = |it: &Checked| is_forgotten(replica, &it.resource, &it.record);
            let (over, records): (Vec<_>, Vec<_>) = records.into_iter().partition(forgotten);
            let may = |record: &Checked| may_add(replica, &site, record);
            (over, records.into_iter().partition::<Vec<_>, _>(may))
        });
        let Ok((over, (records, strange))) = sorted.await else {
            return unavailable("it is stopping");
        };
        let elsewhere = "its resource is not at both sites";
        let strange = strange.iter().map(|checked| &checked.document.id);
        refused.extend(strange.map(|id| refusal(&json!(id), elsewhere)));
        if !refused.is_empty() {
            let count = refused.len();
            tracing::warn!(%from, "{count} documents were not taken in: {}", refused[0]);
            self.refused.fetch_add(count as u64, Ordering::Relaxed);
            self.peers.refused(from);
        }
        // Nobody has done anything wrong: the other site has not purged them yet.
        let deleted = "its resource is deleted";
        refused.extend(over.iter().map(|it| refusal(&json!(it.document.id), deleted)));
        if !records.is_empty() {
            let documents: Vec<&Document> =
                records.iter().map(|checked| &checked.document).collect();
            let body = json!({"new_edits": false, "docs": documents}).to_string();
            let path = format!("{database}/_bulk_docs");
            match self.server.ask::<Vec<Value>>(&Method::POST, &path, body).await {
                Ok(written) => {
                    self.purge_forgotten(database, &records).await;
                    self.taken.fetch_add(documents.len() as u64, Ordering::Relaxed);
                    refused.extend(written.into_iter().filter(|one| one.get("error").is_some()));
                }
                Err(trouble) => return unavailable(&trouble.to_string()),
            }
        }
        answer(StatusCode::CREATED, json!(refused).to_string())
    }
}

impl Shared {
    /// Purges what was added a moment too late: its resource was forgotten, and purged, meanwhile.
    async fn purge_forgotten(&self, database: &str, added: &[Checked]) {
        let ids = added.iter().map(|it| (it.resource.clone(), it.record.clone()));
        let ids: Vec<_> = ids.collect();
        let late = self.node.read(move |replica| {
            let late = |(resource, record): &(_, _)| is_forgotten(replica, resource, record);
            ids.iter().map(late).collect::<Vec<bool>>()
        });
        let Ok(late) = late.await else { return };
        let late = added.iter().zip(late).filter(|(_, late)| *late).map(|(it, _)| &it.document);
        let late: BTreeMap<_, _> = late.map(|it| (&it.id, [&it.revision])).collect();
        if late.is_empty() || !self.dialect.purges() {
            return;
        }
        let path = format!("{database}/_purge");
        if let Err(trouble) =
            self.server.ask::<Value>(&Method::POST, &path, json!(late).to_string()).await
        {
            tracing::warn!(
                documents = late.len(),
                "failed to purge records of deleted resources: {trouble}"
            );
        }
    }
}

fn unavailable(why: &str) -> Response<Body> {
    problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why)
}

fn refusal(id: &Value, why: &str) -> Value {
    json!({"id": id, "error": "forbidden", "reason": why})
}

/// Where a note of another site's replicator is: each has its own.
fn note(from: &SiteId, name: &str) -> String {
    let both = blake3::hash(format!("{from}:{name}").as_bytes());
    format!("cheops-{}", both.to_hex())
}

/// What the server says of a note, by the name that the replicator knows.
fn renamed(name: &str, said: Bytes) -> Bytes {
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(&said) else { return said };
    for id in ["_id", "id"] {
        if let Some(id) = fields.get_mut(id) {
            *id = format!("_local/{name}").into();
        }
    }
    json!(fields).to_string().into()
}

/// What is said of the database: nothing of what is in it.
fn said_of(database: &str, about: &BTreeMap<String, Value>) -> String {
    let reached = about.get("update_seq");
    json!({"db_name": database, "update_seq": reached, "instance_start_time": START}).to_string()
}

/// A document as it is written here, if it is that of a record that its site has sealed.
fn checked(document: &Value, inspector: &mut Inspector) -> Result<Checked, &'static str> {
    let read: Document = Document::deserialize(document).map_err(|_| "it is no record")?;
    let durable = read.read(&mut Names::default()).map_err(|_| "it is not what it is called")?;
    let Durable::Record(record, seal) = durable else { return Err("it is no record") };
    let named = document["Locations"].as_array().ok_or("it does not say where it is")?;
    let sites = named.iter().map(|site| site.as_str()?.parse::<SiteId>().ok());
    let sites: Option<Vec<SiteId>> = sites.collect();
    let sites = sites.ok_or("it does not say where it is")?;
    let ours = Document::of(&record, seal.as_ref(), &sites).map_err(|_| "it is no record")?;
    let same = json!(ours);
    let holds = |(name, value): (&String, &Value)| match name.as_str() {
        // One that was removed by hand and restored has a later number: what is written here has the first.
        "_rev" => {
            document[name].as_str().and_then(hash) == ours.revision.split_once('-').map(|it| it.1)
        }
        _ => document.get(name) == Some(value),
    };
    if !same.as_object().is_some_and(|fields| fields.iter().all(holds)) {
        return Err("it says something else of its record than what that is");
    }
    let sent = Sent { after: 0, record, seal };
    inspector.inspect(&sent).map_err(Doubt::word)?;
    let (resource, record) = (sent.record.resource().clone(), sent.record.id().clone());
    Ok(Checked { resource, record, sites, document: ours })
}

/// What follows the number of a revision.
fn hash(revision: &str) -> Option<&str> {
    let (number, hash) = revision.split_once('-')?;
    number.parse::<u64>().is_ok().then_some(hash)
}

/// Whether the tombstone of a resource covers a record: that of one that is deleted, or of an earlier life of one that
/// was made again.
fn is_forgotten(replica: &Replica, resource: &ResourceId, record: &OpId) -> bool {
    let earlier = replica.resource(resource).map(Resource::forgotten);
    let line = earlier.or_else(|| replica.forgotten(resource));
    line.and_then(|line| line.get(&record.site)).is_some_and(|last| record.number <= *last)
}

/// Whether a site may add a record: both have to be among the sites of its resource, as far as that is known here,
/// and otherwise as it says itself.
fn may_add(replica: &Replica, from: &SiteId, checked: &Checked) -> bool {
    let both = [from, replica.here()];
    match replica.resource(&checked.resource) {
        Some(resource) => both.iter().all(|site| resource.sites().contains(site)),
        None => both.iter().all(|site| checked.sites.contains(site)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cheops_core::{
        replica::{Record, Settings, Shown},
        trust::PublicKey,
    };

    use super::*;
    use crate::trust::{Identity, Sealer, Signers};

    #[test]
    fn other_sites_may_ask_what_replication_needs() {
        let note = |name: &str| name.to_owned();
        for (method, path, expected) in [
            ("GET", "", Some(Asked::About)),
            ("HEAD", "", Some(Asked::About)),
            ("POST", "_revs_diff", Some(Asked::Missing)),
            ("POST", "_bulk_docs", Some(Asked::Add)),
            ("POST", "_ensure_full_commit", Some(Asked::Flush)),
            ("GET", "_local/a%2Bb%3D%3D", Some(Asked::Note(note("a+b==")))),
            ("PUT", "_local/mA0Z", Some(Asked::Keep(note("mA0Z")))),
            ("GET", "_local/", None),
            ("GET", "_local/a%3Fb", None),
            ("DELETE", "_local/a", None),
            ("GET", "_all_docs", None),
            ("GET", "_changes", None),
            ("POST", "_bulk_get", None),
            ("GET", "record:a:b:1:ff", None),
            ("PUT", "record:a:b:1:ff", None),
            ("PUT", "_security", None),
            ("PUT", "", None),
            ("DELETE", "", None),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(Asked::read(&method, path), expected, "{method} {path}");
        }
    }

    struct Known(PublicKey);

    impl Signers for Known {
        fn counts(&self, _: &PublicKey, _: &SiteId, _: &ResourceId, _: u64) -> bool {
            true
        }

        fn keys(&self, site: &SiteId) -> Vec<PublicKey> {
            if site.as_str() == "there" { vec![self.0] } else { Vec::new() }
        }
    }

    #[test]
    fn only_records_that_their_sites_have_sealed_get_in() {
        let identity = Arc::new(Identity::from_seed(&[1; 32]).unwrap());
        let mut inspector = Inspector::new(Arc::new(Known(identity.public())));
        let document = |site: &str, seal: bool| {
            let record = Record::Shown(Arc::new(Shown {
                id: format!("{site}:1").parse().unwrap(),
                resource: "web".parse().unwrap(),
                op: "there:1".parse().unwrap(),
                block: 7,
                print: None,
            }));
            let mut batch = [Durable::Record(record, None)];
            if seal {
                Sealer::new(identity.clone(), site.parse().unwrap()).seal(&mut batch);
            }
            let [Durable::Record(record, seal)] = &batch else { panic!("not a record") };
            let sites: [SiteId; 2] = ["here".parse().unwrap(), "there".parse().unwrap()];
            json!(Document::of(record, seal.as_ref(), &sites).unwrap())
        };
        let with = |name: &str, value: Value| {
            let mut changed = document("there", true);
            changed[name] = value;
            changed
        };
        let restored = document("there", true)["_rev"].as_str().unwrap().replacen("1-", "3-", 1);
        let restored = json!(restored);
        for (story, document, expected) in [
            ("a record", document("there", true), true),
            ("its history beside it", with("_revisions", json!({"start": 1})), true),
            ("other sites", with("Locations", json!(["here"])), true),
            ("no seal", document("there", false), false),
            ("a site that is not known", document("else", true), false),
            ("no sites", with("Locations", Value::Null), false),
            ("sites that are none", with("Locations", json!([7])), false),
            ("another type", with("Type", json!("OPERATION")), false),
            ("another resource", with("ResourceId", json!("db")), false),
            ("another name", with("_id", json!("record:web:there:2:ff")), false),
            ("another revision", with("_rev", json!("2-ff")), false),
            ("no revision", with("_rev", json!("x")), false),
            ("restored", with("_rev", restored), true),
            ("another record", with("Record", json!("AAAA")), false),
            ("a design", json!({"_id": "_design/x", "_rev": "1-x"}), false),
            ("nothing", Value::Null, false),
        ] {
            let found = checked(&document, &mut inspector).map(|checked| json!(checked.document));
            assert_eq!(found.is_ok(), expected, "{story}: {found:?}");
            // What is written is what follows from the record, and nothing that came beside it.
            assert!(found.is_err() || found.is_ok_and(|ours| ours.get("_revisions").is_none()));
        }
    }

    #[test]
    fn a_record_of_an_unknown_resource_has_to_be_for_both_sites() {
        let replica = Replica::new("here".parse().unwrap(), Settings::default());
        let record = Record::Shown(Arc::new(Shown {
            id: "there:1".parse().unwrap(),
            resource: "web".parse().unwrap(),
            op: "there:1".parse().unwrap(),
            block: 7,
            print: None,
        }));
        for (sites, expected) in
            [(vec!["here", "there"], true), (vec!["here"], false), (vec!["there", "else"], false)]
        {
            let sites: Vec<SiteId> = sites.iter().map(|site| site.parse().unwrap()).collect();
            let document = Document::of(&record, None, &sites).unwrap();
            let (resource, record) = ("web".parse().unwrap(), "there:1".parse().unwrap());
            let checked = Checked { resource, record, sites, document };
            let from = "there".parse().unwrap();
            assert_eq!(may_add(&replica, &from, &checked), expected, "{checked:?}");
        }
    }

    #[test]
    fn a_record_that_the_tombstone_of_its_resource_covers_is_forgotten() {
        let by: OpId = "there:4".parse().unwrap();
        let forgotten = Durable::Forgotten {
            resource: "web".parse().unwrap(),
            version: [("here".parse().unwrap(), 2), ("there".parse().unwrap(), 4)].into(),
            by,
            at: cheops_core::time::Timestamp::at(cheops_core::time::Millis(1)),
        };
        let replica = Replica::restore("here".parse().unwrap(), Settings::default(), [forgotten]);
        for (resource, record, expected) in [
            ("web", "there:4", true),
            ("web", "there:1", true),
            ("web", "here:2", true),
            ("web", "there:5", false),
            ("web", "here:3", false),
            ("web", "else:1", false),
            ("db", "there:1", false),
        ] {
            let (resource_id, record_id) = (resource.parse().unwrap(), record.parse().unwrap());
            let found = is_forgotten(&replica, &resource_id, &record_id);
            assert_eq!(found, expected, "{resource} {record}");
        }
    }

    #[test]
    fn of_the_database_only_what_is_needed_is_said() {
        let about = [("update_seq", json!(5)), ("doc_count", json!(7)), ("sizes", json!({}))];
        let about = about.map(|(name, value)| (name.to_owned(), value)).into();
        let said: Value = serde_json::from_str(&said_of("records", &about)).unwrap();
        let expected = json!({"db_name": "records", "update_seq": 5, "instance_start_time": "0"});
        assert_eq!(said, expected);
    }

    #[test]
    fn replicators_of_different_sites_have_their_own_notes() {
        let [a, b]: [SiteId; 2] = ["a", "b"].map(|site| site.parse().unwrap());
        assert_ne!(note(&a, "x"), note(&b, "x"));
        assert_eq!(note(&a, "x"), note(&a, "x"));
        let said = format!(r#"{{"_id":"_local/{}","_rev":"0-1"}}"#, note(&a, "x"));
        assert_eq!(renamed("x", said.into()), r#"{"_id":"_local/x","_rev":"0-1"}"#);
        assert_eq!(renamed("x", "no".into()), "no");
    }
}
