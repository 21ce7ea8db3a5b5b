//! The twin of what one site tells another.

use cheops_core::{
    id::{ResourceId, SiteId},
    replica, trust,
};
use serde::{Deserialize, Serialize};

use super::{
    Names, Problem, Twin, WireError,
    error::At,
    list::List,
    names::Text,
    record::{OpId, Record},
};

/// What one site tells another, as it is written.
#[derive(Serialize, Deserialize)]
pub struct Message<'a>(#[serde(borrow)] Kind<'a>);

/// The order is that of the format: new ones come last.
#[derive(Serialize, Deserialize)]
enum Kind<'a> {
    #[serde(borrow)]
    Compare(List<(Stretch<'a>, u64)>),
    Have(#[serde(borrow)] Stretch<'a>, #[serde(borrow)] List<Versioned<'a>>, u64),
    #[serde(borrow)]
    Want(List<Versioned<'a>>),
    Records {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        records: List<Sent<'a>>,
        more: bool,
    },
    #[serde(borrow)]
    Forgotten(List<Versioned<'a>>),
    /// Records with what proves them.
    Sealed {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        records: List<(Sent<'a>, Option<Seal<'a>>)>,
        more: bool,
    },
    Contradicted {
        #[serde(borrow)]
        resource: Text<'a, ResourceId>,
        #[serde(borrow)]
        number: OpId<'a>,
    },
}

/// A resource, and how far it is known.
type Versioned<'a> = (Text<'a, ResourceId>, Version<'a>);

impl<'a> Twin<'a> for Message<'a> {
    type Value = replica::Message;

    fn of(value: &'a replica::Message) -> Result<Self, WireError> {
        Ok(Self(match value {
            replica::Message::Compare(stretches) => {
                Kind::Compare(List::of(stretches).at("compare")?)
            }
            replica::Message::Have(stretch, versions, digest) => Kind::Have(
                Stretch::of(stretch).at("stretch")?,
                List::of(versions).at("have")?,
                *digest,
            ),
            replica::Message::Want(versions) => Kind::Want(List::of(versions).at("want")?),
            replica::Message::Records { resource, records, more } => {
                let (resource, more) = (Text::of(resource)?, *more);
                if records.iter().all(|sent| sent.seal.is_none()) {
                    let records = List::of(records).at("records")?;
                    Kind::Records { resource, records, more }
                } else {
                    let twin = |(n, sent): (usize, &'a replica::Sent)| {
                        let seal = sent.seal.as_ref().map(Seal::of).transpose();
                        Ok((Sent::of(sent).at_item(n)?, seal.at_item(n)?))
                    };
                    let records = records.iter().enumerate().map(twin);
                    let records = records.collect::<Result<_, WireError>>().at("records")?;
                    Kind::Sealed { resource, records: List::new(records).at("records")?, more }
                }
            }
            replica::Message::Forgotten(versions) => {
                Kind::Forgotten(List::of(versions).at("forgotten")?)
            }
            replica::Message::Contradicted { resource, number } => Kind::Contradicted {
                resource: Text::of(resource)?,
                number: OpId::of(number).at("number")?,
            },
        }))
    }

    fn read(self, names: &mut Names) -> Result<replica::Message, WireError> {
        Ok(match self.0 {
            Kind::Compare(stretches) => {
                replica::Message::Compare(stretches.read(names).at("compare")?)
            }
            Kind::Have(stretch, versions, digest) => replica::Message::Have(
                stretch.read(names).at("stretch")?,
                versions.read(names).at("have")?,
                digest,
            ),
            Kind::Want(versions) => replica::Message::Want(versions.read(names).at("want")?),
            Kind::Records { resource, records, more } => replica::Message::Records {
                resource: resource.read(names).at("resource")?,
                records: records.read(names).at("records")?,
                more,
            },
            Kind::Forgotten(versions) => {
                replica::Message::Forgotten(versions.read(names).at("forgotten")?)
            }
            Kind::Contradicted { resource, number } => replica::Message::Contradicted {
                resource: resource.read(names).at("resource")?,
                number: number.read(names).at("number")?,
            },
            Kind::Sealed { resource, records, more } => {
                let resource = resource.read(names).at("resource")?;
                let twins = records.items().at("records")?.into_iter().enumerate();
                let read = |(n, (sent, seal)): (usize, (Sent<'a>, Option<Seal<'a>>))| {
                    let sent = sent.read(names).at_item(n)?;
                    let seal = seal.read(names).at("seal").at_item(n)?;
                    Ok(replica::Sent { seal, ..sent })
                };
                let records = twins.map(read).collect::<Result<_, WireError>>().at("records")?;
                replica::Message::Records { resource, records, more }
            }
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Stretch<'a> {
    #[serde(borrow)]
    from: Option<Text<'a, ResourceId>>,
    #[serde(borrow)]
    to: Option<Text<'a, ResourceId>>,
}

impl<'a> Twin<'a> for Stretch<'a> {
    type Value = replica::Stretch;

    fn of(value: &'a replica::Stretch) -> Result<Self, WireError> {
        Ok(Self { from: Twin::of(&value.from)?, to: Twin::of(&value.to)? })
    }

    fn read(self, names: &mut Names) -> Result<replica::Stretch, WireError> {
        Ok(replica::Stretch {
            from: self.from.read(names).at("from")?,
            to: self.to.read(names).at("to")?,
        })
    }
}

/// How far the stream of each site is known, in the order of their names.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Version<'a>(#[serde(borrow)] List<(Text<'a, SiteId>, u64)>);

impl<'a> Twin<'a> for Version<'a> {
    type Value = replica::Version;

    fn of(value: &'a replica::Version) -> Result<Self, WireError> {
        let twin = |(site, &number)| Ok((Text::of(site)?, number));
        let streams = value.iter().map(twin).collect::<Result<_, WireError>>()?;
        Ok(Self(List::new(streams)?))
    }

    fn read(self, names: &mut Names) -> Result<replica::Version, WireError> {
        self.0.read_ascending(names, |(site, _)| site.clone())
    }
}

/// A record on its way, but for what proves it.
#[derive(Serialize, Deserialize)]
struct Sent<'a> {
    after: u64,
    #[serde(borrow)]
    record: Record<'a>,
}

impl<'a> Twin<'a> for Sent<'a> {
    type Value = replica::Sent;

    fn of(value: &'a replica::Sent) -> Result<Self, WireError> {
        Ok(Self { after: value.after, record: Record::of(&value.record)? })
    }

    fn read(self, names: &mut Names) -> Result<replica::Sent, WireError> {
        Ok(replica::Sent { after: self.after, record: self.record.read(names)?, seal: None })
    }
}

/// What proves a record.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Seal<'a>(&'a [u8]);

impl<'a> Twin<'a> for Seal<'a> {
    type Value = trust::Seal;

    fn of(value: &'a trust::Seal) -> Result<Self, WireError> {
        Ok(Self(value.as_bytes()))
    }

    fn read(self, _: &mut Names) -> Result<trust::Seal, WireError> {
        Ok(trust::Seal::new(self.0).ok_or(Problem::SealTooLong(self.0.len()))?)
    }
}
