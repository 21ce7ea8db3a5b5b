//! The twins of what sites record: operations and replies.

use std::sync::Arc;

use cheops_core::{
    id::{self, Author, Key, Kind, ResourceId, SiteId},
    operation, plan, replica,
    time::{Millis, Timestamp},
};
use serde::{Deserialize, Serialize};

use super::{
    Names, Problem, Twin, WireError, action::Action, config::Declaration, error::At, list::List,
    names::Text,
};

/// The last number that a record can have. No site gets that far by counting, and whoever counts on
/// from what another one claims is still far from an overflow.
pub const LAST_NUMBER: u64 = u64::MAX >> 1;

/// The last number that a run of an operation can have, for the same reason.
pub const LAST_ATTEMPT: u32 = u32::MAX >> 1;

#[derive(Serialize, Deserialize)]
pub(super) struct OpId<'a> {
    #[serde(borrow)]
    site: Text<'a, SiteId>,
    number: u64,
}

impl<'a> Twin<'a> for OpId<'a> {
    type Value = id::OpId;

    fn of(value: &'a id::OpId) -> Result<Self, WireError> {
        let number = number(value.number).at("number")?;
        Ok(Self { site: Text::of(&value.site)?, number })
    }

    fn read(self, names: &mut Names) -> Result<id::OpId, WireError> {
        let number = number(self.number).at("number")?;
        Ok(id::OpId { site: self.site.read(names).at("site")?, number })
    }
}

fn number(number: u64) -> Result<u64, Problem> {
    if (1..=LAST_NUMBER).contains(&number) { Ok(number) } else { Err(Problem::Number(number)) }
}

/// The number of a run, either way.
pub(super) fn attempt(attempt: u32) -> Result<u32, Problem> {
    if (1..=LAST_ATTEMPT).contains(&attempt) { Ok(attempt) } else { Err(Problem::Attempt(attempt)) }
}

/// The order is that of the format: new ones come last.
#[derive(Serialize, Deserialize)]
pub(super) enum Record<'a> {
    #[serde(borrow)]
    Operation(Operation<'a>),
    #[serde(borrow)]
    Reply(Reply<'a>),
    #[serde(borrow)]
    Shown(Shown<'a>),
    /// A reply that says what was made.
    Made(#[serde(borrow)] Reply<'a>, &'a str),
}

impl<'a> Twin<'a> for Record<'a> {
    type Value = replica::Record;

    fn of(value: &'a replica::Record) -> Result<Self, WireError> {
        Ok(match value {
            replica::Record::Operation(op) => Self::Operation(Operation::of(op)?),
            replica::Record::Reply(reply) => match &reply.made {
                None => Self::Reply(Reply::of(reply)?),
                Some(made) => Self::Made(Reply::of(reply)?, made),
            },
            replica::Record::Shown(shown) => Self::Shown(Shown::of(shown)?),
        })
    }

    fn read(self, names: &mut Names) -> Result<replica::Record, WireError> {
        Ok(match self {
            Self::Operation(op) => replica::Record::Operation(Arc::new(op.read(names)?)),
            Self::Reply(reply) => replica::Record::Reply(Arc::new(reply.read(names)?)),
            Self::Made(reply, made) => {
                let reply = replica::Reply { made: Some(made.into()), ..reply.read(names)? };
                replica::Record::Reply(Arc::new(reply))
            }
            Self::Shown(shown) => replica::Record::Shown(Arc::new(shown.read(names)?)),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Operation<'a> {
    #[serde(borrow)]
    id: OpId<'a>,
    #[serde(borrow)]
    resource: Text<'a, ResourceId>,
    #[serde(borrow)]
    kind: Text<'a, Kind>,
    #[serde(borrow)]
    author: Text<'a, Author>,
    at: u64,
    #[serde(borrow)]
    parents: List<OpId<'a>>,
    #[serde(borrow)]
    action: Action<'a>,
    reset: bool,
    keep_going: bool,
    #[serde(borrow)]
    key: Option<Text<'a, Key>>,
    #[serde(borrow)]
    declares: Option<Box<Declaration<'a>>>,
}

impl<'a> Twin<'a> for Operation<'a> {
    type Value = operation::Operation;

    fn of(value: &'a operation::Operation) -> Result<Self, WireError> {
        let declares = value.declares.as_deref().map(Declaration::of).transpose();
        Ok(Self {
            id: OpId::of(&value.id).at("id")?,
            resource: Text::of(&value.resource)?,
            kind: Text::of(&value.kind)?,
            author: Text::of(&value.author)?,
            at: value.at.to_bits(),
            parents: List::of(&value.parents).at("parents")?,
            action: Action::of(&value.action).at("action")?,
            reset: value.reset,
            keep_going: value.keep_going,
            key: Twin::of(&value.key)?,
            declares: declares.at("declares")?.map(Box::new),
        })
    }

    fn read(self, names: &mut Names) -> Result<operation::Operation, WireError> {
        let declares = self.declares.map(|declared| declared.read(names)).transpose();
        Ok(operation::Operation {
            id: self.id.read(names).at("id")?,
            resource: self.resource.read(names).at("resource")?,
            kind: self.kind.read(names).at("kind")?,
            author: self.author.read(names).at("author")?,
            at: Timestamp::from_bits(self.at),
            parents: self.parents.read(names).at("parents")?,
            action: self.action.read(names).at("action")?,
            reset: self.reset,
            keep_going: self.keep_going,
            key: self.key.read(names).at("key")?,
            declares: declares.at("declares")?.map(Box::new),
        })
    }
}

/// A reply, but for what was made.
#[derive(Serialize, Deserialize)]
pub(super) struct Reply<'a> {
    #[serde(borrow)]
    id: OpId<'a>,
    #[serde(borrow)]
    resource: Text<'a, ResourceId>,
    #[serde(borrow)]
    op: OpId<'a>,
    attempt: u32,
    outcome: Outcome,
    era: u32,
    took: u64,
    output: &'a str,
}

/// How a run ended. The order is that of the format: new ones come last.
#[derive(Serialize, Deserialize)]
enum Outcome {
    Unknown,
    Ko,
    Ok,
    Denied,
}

impl<'a> Twin<'a> for Reply<'a> {
    type Value = replica::Reply;

    fn of(value: &'a replica::Reply) -> Result<Self, WireError> {
        Ok(Self {
            id: OpId::of(&value.id).at("id")?,
            resource: Text::of(&value.resource)?,
            op: OpId::of(&value.op).at("op")?,
            attempt: attempt(value.attempt).at("attempt")?,
            outcome: match value.outcome {
                plan::Outcome::Unknown => Outcome::Unknown,
                plan::Outcome::Ko => Outcome::Ko,
                plan::Outcome::Ok => Outcome::Ok,
                plan::Outcome::Denied => Outcome::Denied,
            },
            era: value.era,
            took: value.took.0,
            output: &value.output,
        })
    }

    fn read(self, names: &mut Names) -> Result<replica::Reply, WireError> {
        Ok(replica::Reply {
            id: self.id.read(names).at("id")?,
            resource: self.resource.read(names).at("resource")?,
            op: self.op.read(names).at("op")?,
            attempt: attempt(self.attempt).at("attempt")?,
            outcome: match self.outcome {
                Outcome::Unknown => plan::Outcome::Unknown,
                Outcome::Ko => plan::Outcome::Ko,
                Outcome::Ok => plan::Outcome::Ok,
                Outcome::Denied => plan::Outcome::Denied,
            },
            era: self.era,
            took: Millis(self.took),
            output: self.output.into(),
            made: None,
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Shown<'a> {
    #[serde(borrow)]
    id: OpId<'a>,
    #[serde(borrow)]
    resource: Text<'a, ResourceId>,
    #[serde(borrow)]
    op: OpId<'a>,
    block: u64,
    print: Option<replica::Print>,
}

impl<'a> Twin<'a> for Shown<'a> {
    type Value = replica::Shown;

    fn of(value: &'a replica::Shown) -> Result<Self, WireError> {
        Ok(Self {
            id: OpId::of(&value.id).at("id")?,
            resource: Text::of(&value.resource)?,
            op: OpId::of(&value.op).at("op")?,
            block: value.block,
            print: value.print,
        })
    }

    fn read(self, names: &mut Names) -> Result<replica::Shown, WireError> {
        Ok(replica::Shown {
            id: self.id.read(names).at("id")?,
            resource: self.resource.read(names).at("resource")?,
            op: self.op.read(names).at("op")?,
            block: self.block,
            print: self.print,
        })
    }
}
