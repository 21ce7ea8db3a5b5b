//! The twin of what a site writes down.

use cheops_core::{
    id::{ResourceId, SiteId},
    replica,
    time::Timestamp,
    trust,
};
use serde::{Deserialize, Serialize};

use super::{
    Names, Twin, WireError,
    error::At,
    message::{Seal, Version},
    names::Text,
    record::{OpId, Record, attempt},
};

/// What a site writes down, as it is written.
#[derive(Serialize, Deserialize)]
pub struct Durable<'a>(#[serde(borrow)] Kind<'a>);

/// The order is that of the format: new ones come last.
#[derive(Serialize, Deserialize)]
enum Kind<'a> {
    #[serde(borrow)]
    Record(Record<'a>),
    Intent {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        op: OpId<'a>,
        attempt: u32,
        fresh: bool,
    },
    #[serde(borrow)]
    Clearing(Text<'a, ResourceId>),
    #[serde(borrow)]
    Cleared(Text<'a, ResourceId>),
    Forgotten {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        version: Version<'a>,
        #[serde(borrow)]
        by: OpId<'a>,
        at: u64,
    },
    Trimmed {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        version: Version<'a>,
    },
    Withheld {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        floor: u64,
    },
    /// A record with what proves it.
    Sealed(#[serde(borrow)] Record<'a>, #[serde(borrow)] Seal<'a>),
    Held {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        site: Text<'a, SiteId>,
        known: u64,
        floor: u64,
        done: bool,
    },
    Aside(#[serde(borrow)] Record<'a>),
    Decided {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        op: OpId<'a>,
        #[serde(borrow)]
        adopted: Option<OpId<'a>>,
    },
    Contradicted {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        number: OpId<'a>,
    },
    #[serde(borrow)]
    Leftover(Text<'a, ResourceId>),
}

impl Durable<'_> {
    /// What proves a record, if this is one and was written with that.
    pub(super) fn seal(self, names: &mut Names) -> Result<Option<trust::Seal>, WireError> {
        match self.0 {
            Kind::Sealed(_, seal) => seal.read(names).at("seal").map(Some),
            _ => Ok(None),
        }
    }
}

impl<'a> Twin<'a> for Durable<'a> {
    type Value = replica::Durable;

    fn of(value: &'a replica::Durable) -> Result<Self, WireError> {
        Ok(Self(match value {
            replica::Durable::Record(record, seal) => {
                let record = Record::of(record).at("record")?;
                match seal {
                    None => Kind::Record(record),
                    Some(seal) => Kind::Sealed(record, Seal::of(seal)?),
                }
            }
            replica::Durable::Intent { resource, op, attempt: n, fresh } => Kind::Intent {
                resource: Text::of(resource)?,
                op: OpId::of(op).at("op")?,
                attempt: attempt(*n).at("attempt")?,
                fresh: *fresh,
            },
            replica::Durable::Clearing(resource) => Kind::Clearing(Text::of(resource)?),
            replica::Durable::Cleared(resource) => Kind::Cleared(Text::of(resource)?),
            replica::Durable::Forgotten { resource, version, by, at } => Kind::Forgotten {
                resource: Text::of(resource)?,
                version: Version::of(version).at("version")?,
                by: OpId::of(by).at("by")?,
                at: at.to_bits(),
            },
            replica::Durable::Trimmed { resource, version } => Kind::Trimmed {
                resource: Text::of(resource)?,
                version: Version::of(version).at("version")?,
            },
            replica::Durable::Withheld { resource, floor } => {
                Kind::Withheld { resource: Text::of(resource)?, floor: *floor }
            }
            replica::Durable::Held { resource, site, known, floor, done } => Kind::Held {
                resource: Text::of(resource)?,
                site: Text::of(site)?,
                known: *known,
                floor: *floor,
                done: *done,
            },
            replica::Durable::Contradicted { resource, number } => Kind::Contradicted {
                resource: Text::of(resource)?,
                number: OpId::of(number).at("number")?,
            },
            replica::Durable::Leftover(resource) => Kind::Leftover(Text::of(resource)?),
            replica::Durable::Aside(record) => Kind::Aside(Record::of(record).at("record")?),
            replica::Durable::Decided { resource, op, adopted } => Kind::Decided {
                resource: Text::of(resource)?,
                op: OpId::of(op).at("op")?,
                adopted: adopted.as_ref().map(OpId::of).transpose().at("adopted")?,
            },
        }))
    }

    fn read(self, names: &mut Names) -> Result<replica::Durable, WireError> {
        Ok(match self.0 {
            Kind::Record(record) => {
                replica::Durable::Record(record.read(names).at("record")?, None)
            }
            Kind::Sealed(record, seal) => {
                let seal = seal.read(names).at("seal")?;
                replica::Durable::Record(record.read(names).at("record")?, Some(seal))
            }
            Kind::Intent { resource, op, attempt: n, fresh } => replica::Durable::Intent {
                resource: resource.read(names).at("resource")?,
                op: op.read(names).at("op")?,
                attempt: attempt(n).at("attempt")?,
                fresh,
            },
            Kind::Clearing(resource) => {
                replica::Durable::Clearing(resource.read(names).at("resource")?)
            }
            Kind::Cleared(resource) => {
                replica::Durable::Cleared(resource.read(names).at("resource")?)
            }
            Kind::Forgotten { resource, version, by, at } => replica::Durable::Forgotten {
                resource: resource.read(names).at("resource")?,
                version: version.read(names).at("version")?,
                by: by.read(names).at("by")?,
                at: Timestamp::from_bits(at),
            },
            Kind::Trimmed { resource, version } => replica::Durable::Trimmed {
                resource: resource.read(names).at("resource")?,
                version: version.read(names).at("version")?,
            },
            Kind::Withheld { resource, floor } => {
                replica::Durable::Withheld { resource: resource.read(names).at("resource")?, floor }
            }
            Kind::Held { resource, site, known, floor, done } => replica::Durable::Held {
                resource: resource.read(names).at("resource")?,
                site: site.read(names).at("site")?,
                known,
                floor,
                done,
            },
            Kind::Contradicted { resource, number } => replica::Durable::Contradicted {
                resource: resource.read(names).at("resource")?,
                number: number.read(names).at("number")?,
            },
            Kind::Leftover(resource) => {
                replica::Durable::Leftover(resource.read(names).at("resource")?)
            }
            Kind::Aside(record) => replica::Durable::Aside(record.read(names).at("record")?),
            Kind::Decided { resource, op, adopted } => replica::Durable::Decided {
                resource: resource.read(names).at("resource")?,
                op: op.read(names).at("op")?,
                adopted: adopted.map(|op| op.read(names)).transpose().at("adopted")?,
            },
        })
    }
}
