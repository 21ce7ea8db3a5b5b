//! The documents of records: what CouchDB stores and carries, one for each.
//!
//! What must stay true:
//! - a record has one document, whose id ends with a hash of the record and its seal, and which is there in one
//!   revision. Whoever writes it, it is the same: CouchDB never has a conflict to show, and nobody can put
//!   something else in its place;
//! - `Record` and `Seal` are all that counts. The other fields are for people, for tools of the original, and for
//!   the selectors of replication; nothing is ever read back from them;
//! - what is no such document, or one under another id than its record's, is none.

use std::fmt::{self, Write as _};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    operation::{Action, Operation},
    plan::Outcome,
    replica::{Durable, Record},
    trust::Seal,
};
use serde::{Deserialize, Serialize};

use crate::wire::{self, Names, WireError};

/// What the ids of these documents begin with.
pub(super) const PREFIX: &str = "record:";
/// How much of a command or an output people are shown. All of it is in `Record`.
const SHOWN: usize = 1_000;

/// The document of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Read")]
pub(crate) struct Document {
    #[serde(rename = "_id")]
    pub(crate) id: String,
    #[serde(rename = "_rev")]
    pub(crate) revision: String,
    #[serde(rename = "Record")]
    record: String,
    #[serde(rename = "Seal", skip_serializing_if = "Option::is_none")]
    seal: Option<String>,
    #[serde(flatten)]
    words: Words,
}

/// What is read of a document.
#[derive(Deserialize)]
struct Read {
    #[serde(rename = "_id")]
    id: String,
    #[serde(rename = "_rev")]
    revision: String,
    #[serde(rename = "Record")]
    record: String,
    #[serde(rename = "Seal", default)]
    seal: Option<String>,
}

impl From<Read> for Document {
    fn from(Read { id, revision, record, seal }: Read) -> Self {
        Self { id, revision, record, seal, words: Words::default() }
    }
}

/// What is said of a record beside it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Words {
    r#type: &'static str,
    locations: Vec<String>,
    resource_id: String,
    site: String,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Command>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_time: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Command {
    command: String,
}

/// The id of a document, in its parts. Names of resources and sites have no colon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    pub(crate) resource: &'a str,
    pub(crate) site: &'a str,
    pub(crate) number: u64,
    pub(crate) hash: u128,
}

impl<'a> Name<'a> {
    /// The name of the document of a record of which the hash is known.
    pub(crate) fn of(resource: &'a ResourceId, record: &'a OpId, hash: u128) -> Self {
        let (resource, site) = (resource.as_str(), record.site.as_str());
        Self { resource, site, number: record.number, hash }
    }

    pub(crate) fn read(id: &'a str) -> Option<Self> {
        let mut parts = id.strip_prefix(PREFIX)?.splitn(4, ':');
        let (resource, site) = (parts.next()?, parts.next()?);
        let number = parts.next()?.parse().ok()?;
        let hash = u128::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { resource, site, number, hash })
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, site, number, hash } = self;
        write!(f, "{PREFIX}{resource}:{site}:{number}:{hash:032x}")
    }
}

/// The revision of the document of a record with this hash.
pub(super) fn revision(hash: u128) -> String {
    format!("1-{hash:032x}")
}

/// What a record and its seal are known by.
fn hash(record: &[u8], seal: Option<&Seal>) -> u128 {
    let mut hash = blake3::Hasher::new();
    hash.update(record);
    hash.update(seal.map_or(&[], |seal| seal.as_bytes()));
    let mut first = [0; 16];
    hash.finalize_xof().fill(&mut first);
    u128::from_be_bytes(first)
}

impl Document {
    /// The document of a record of a resource that is at these sites.
    pub(crate) fn of<'a>(
        record: &Record,
        seal: Option<&Seal>,
        sites: impl IntoIterator<Item = &'a SiteId>,
    ) -> Result<Self, WireError> {
        let bytes = wire::encode_record(record)?;
        let hash = hash(&bytes, seal);
        Ok(Self {
            id: Name::of(record.resource(), record.id(), hash).to_string(),
            revision: revision(hash),
            record: BASE64_STANDARD.encode(&bytes),
            seal: seal.map(|seal| BASE64_STANDARD.encode(seal.as_bytes())),
            words: Words {
                locations: sites.into_iter().map(ToString::to_string).collect(),
                resource_id: record.resource().to_string(),
                site: record.id().site.to_string(),
                ..words(record)
            },
        })
    }

    /// About how many bytes it has as JSON.
    pub(crate) fn weight(&self) -> u64 {
        let fields = self.id.len() + self.record.len() + self.seal.as_ref().map_or(0, String::len);
        (fields + SHOWN) as u64
    }

    /// The record that it is of, with its seal.
    pub(crate) fn read(&self, names: &mut Names) -> Result<Durable, String> {
        let bytes = |text: &str| BASE64_STANDARD.decode(text).map_err(|error| error.to_string());
        let written = bytes(&self.record)?;
        let record = wire::decode_record(&written, names).map_err(|error| error.to_string())?;
        let seal = self.seal.as_deref().map(bytes).transpose()?;
        let seal = seal.map(|seal| Seal::new(&seal).ok_or("its seal is too long")).transpose()?;
        let hash = hash(&written, seal.as_ref());
        if Name::of(record.resource(), record.id(), hash).to_string() != self.id {
            return Err("it was changed, or is not what it is called".to_owned());
        }
        Ok(Durable::Record(record, seal))
    }
}

fn words(record: &Record) -> Words {
    match record {
        Record::Operation(op) => Words {
            r#type: "OPERATION",
            request_id: op.id.to_string(),
            kind: Some(op.kind.to_string()),
            author: Some(op.author.to_string()),
            time: Some(op.at.wall().0),
            command: Some(Command { command: short(&told(op)) }),
            ..Words::default()
        },
        Record::Reply(reply) => Words {
            r#type: "REPLY",
            request_id: reply.op.to_string(),
            status: Some(match reply.outcome {
                Outcome::Ok => "OK",
                _ => "KO",
            }),
            output: Some(short(&reply.output)),
            execution_time: Some(format!("{}ms", reply.took.0)),
            ..Words::default()
        },
        Record::Shown(shown) => {
            Words { r#type: "SHOWN", request_id: shown.id.to_string(), ..Words::default() }
        }
    }
}

/// What an operation does, for people.
fn told(op: &Operation) -> String {
    fn tell(action: &Action, text: &mut String) {
        if !text.is_empty() {
            text.push_str("; ");
        }
        match action {
            Action::Command { line, .. } => text.push_str(line),
            Action::Http(request) => {
                let _ = write!(text, "{} {}", request.method, request.target);
            }
            Action::Steps(steps) => steps.iter().for_each(|step| tell(step, text)),
        }
    }
    let mut text = String::new();
    tell(&op.action, &mut text);
    text
}

fn short(text: &str) -> String {
    text[..text.floor_char_boundary(SHOWN)].to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cheops_core::{replica::Reply, time::Millis};

    use super::*;

    fn reply(output: &str) -> Record {
        Record::Reply(Arc::new(Reply {
            id: OpId { site: "site 1".parse().unwrap(), number: 7 },
            resource: "counter".parse().unwrap(),
            op: OpId { site: "site2".parse().unwrap(), number: 3 },
            attempt: 1,
            outcome: Outcome::Ko,
            era: 0,
            took: Millis(12),
            output: output.into(),
            made: None,
        }))
    }

    #[test]
    fn a_document_has_words_for_people_and_is_read_by_its_record_alone() {
        let (record, seal) = (reply("no"), Seal::new(b"sealed"));
        let sites: [SiteId; 2] = ["site 1", "site2"].map(|site| site.parse().unwrap());
        let document = Document::of(&record, seal.as_ref(), &sites).unwrap();
        let mut json = serde_json::to_value(&document).unwrap();
        for (field, expected) in [
            ("Type", "REPLY".into()),
            ("Locations", ["site 1", "site2"].into()),
            ("ResourceId", "counter".into()),
            ("Site", "site 1".into()),
            ("RequestId", "site2:3".into()),
            ("Status", "KO".into()),
            ("Output", "no".into()),
            ("ExecutionTime", "12ms".into()),
            ("Command", serde_json::Value::Null),
        ] {
            assert_eq!(json[field], expected, "{field}");
        }
        json["Output"] = "yes".into();
        json["Locations"] = serde_json::Value::Null;
        let read: Document = serde_json::from_value(json).unwrap();
        assert_eq!(read.read(&mut Names::default()), Ok(Durable::Record(record, seal)));
    }

    #[test]
    fn what_was_changed_or_has_another_name_is_no_record() {
        let document = Document::of(&reply("no"), None, []).unwrap();
        let other = Document::of(&reply("yes"), None, []).unwrap();
        assert_ne!(document.id, other.id);
        let mut names = Names::default();
        for wrong in [
            Document { record: other.record.clone(), ..document.clone() },
            Document { id: other.id, ..document.clone() },
            Document { seal: Some(BASE64_STANDARD.encode("made up")), ..document.clone() },
            Document { record: "?".into(), ..document.clone() },
            Document { record: String::new(), ..document.clone() },
            Document { id: "record:x".into(), ..document.clone() },
        ] {
            assert!(wrong.read(&mut names).is_err(), "{wrong:?}");
        }
        assert!(document.read(&mut names).is_ok());
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = Name { resource: "a~b.c", site: "site 1", number: 7, hash: 0xff };
        let id = name.to_string();
        assert_eq!(id, "record:a~b.c:site 1:7:000000000000000000000000000000ff");
        assert_eq!(Name::read(&id), Some(name));
        for odd in ["", "record:", "record:a:b", "record:a:b:7", "record:a:b:x:ff", "page:a:b:7:ff"]
        {
            assert_eq!(Name::read(odd), None, "{odd}");
        }
    }

    #[test]
    fn people_are_shown_the_beginning() {
        let document = Document::of(&reply(&"é".repeat(SHOWN)), None, []).unwrap();
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["Output"].as_str().unwrap().len(), SHOWN);
    }
}
