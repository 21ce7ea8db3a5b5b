//! The documents of records: what CouchDB stores and carries, one for each.
//!
//! What must stay true:
//! - a record has one document, under an id that follows from the record, and in one revision, which follows
//!   from the record and its seal. Whoever writes it, it is the same: CouchDB never has a conflict to show;
//! - `Record` and `Seal` are all that counts. The other fields are for people, for tools of the original, and for
//!   the selectors of replication; nothing is ever read back from them;
//! - what is no such document, or one under another id than its record's, is none.

use std::fmt::Write as _;

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
pub(super) struct Document {
    #[serde(rename = "_id")]
    pub(super) id: String,
    #[serde(rename = "_rev")]
    pub(super) revision: String,
    #[serde(rename = "Record")]
    record: String,
    #[serde(rename = "Seal", default, skip_serializing_if = "Option::is_none")]
    seal: Option<String>,
    #[serde(flatten, skip_deserializing)]
    words: Words,
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

/// The id of the document of a record. The names of a resource and of a site have no colon.
pub(super) fn id(resource: &ResourceId, record: &OpId) -> String {
    format!("{PREFIX}{resource}:{}:{}", record.site, record.number)
}

/// The resource of which a document of this id would be.
pub(super) fn resource_in(id: &str) -> Option<ResourceId> {
    id.strip_prefix(PREFIX)?.split_once(':')?.0.parse().ok()
}

impl Document {
    /// The document of a record of a resource that is at these sites.
    pub(super) fn of<'a>(
        record: &Record,
        seal: Option<&Seal>,
        sites: impl IntoIterator<Item = &'a SiteId>,
    ) -> Result<Self, WireError> {
        let bytes = wire::encode_record(record)?;
        let mut hash = blake3::Hasher::new();
        hash.update(&bytes);
        hash.update(seal.map_or(&[], |seal| seal.as_bytes()));
        let hash = hash.finalize().to_hex();
        Ok(Self {
            id: id(record.resource(), record.id()),
            revision: format!("1-{}", &hash[..32]),
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

    /// The record that it is of, with its seal.
    pub(super) fn read(&self, names: &mut Names) -> Result<Durable, String> {
        let bytes = |text: &str| BASE64_STANDARD.decode(text).map_err(|error| error.to_string());
        let record = wire::decode_record(&bytes(&self.record)?, names);
        let record = record.map_err(|error| error.to_string())?;
        if id(record.resource(), record.id()) != self.id {
            return Err(format!("it holds the record {} of {}", record.id(), record.resource()));
        }
        let seal = self.seal.as_deref().map(bytes).transpose()?;
        let seal = seal.map(|seal| Seal::new(&seal).ok_or("its seal is too long")).transpose()?;
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
