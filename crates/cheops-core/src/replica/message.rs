//! What sites tell each other, and what they write down.
//!
//! A site records three things about a resource: operations that it received, replies of its own
//! runs, and what its `Show` command printed after them. Its records are numbered from 1 without gaps;
//! they form its *stream*. So what a site knows of a resource is one number for each site: its
//! *version*, and two sites that have the same version know the same.
//!
//! What was forgotten with an earlier life of a resource counts as known, so numbers go on where
//! they were.

use alloc::{boxed::Box, collections::BTreeMap, format, sync::Arc, vec::Vec};

use super::{effect::Report, shown::Shown};
use crate::{
    id::{OpId, ResourceId, SiteId},
    operation::SharedOperation,
    plan::Outcome,
    time::{Millis, Timestamp},
    trust::Seal,
};

/// One thing that a site has recorded about a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// An operation that it received.
    Operation(SharedOperation),
    /// How an operation went there.
    Reply(Arc<Reply>),
    /// What the resource's `Show` command printed there.
    Shown(Arc<Shown>),
}

impl Record {
    /// The site that recorded it, and its number in that site's stream.
    pub fn id(&self) -> &OpId {
        match self {
            Self::Operation(op) => &op.id,
            Self::Reply(reply) => &reply.id,
            Self::Shown(shown) => &shown.id,
        }
    }

    /// The operation that it is, or is about.
    pub fn about(&self) -> &OpId {
        match self {
            Self::Operation(op) => &op.id,
            Self::Reply(reply) => &reply.op,
            Self::Shown(shown) => &shown.op,
        }
    }

    /// The resource that it is about.
    pub fn resource(&self) -> &ResourceId {
        match self {
            Self::Operation(op) => &op.resource,
            Self::Reply(reply) => &reply.resource,
            Self::Shown(shown) => &shown.resource,
        }
    }

    /// About how many bytes it takes on the wire.
    pub fn weight(&self) -> usize {
        match self {
            Self::Operation(op) => op.weight(),
            Self::Reply(reply) => {
                reply.id.site.as_str().len()
                    + reply.op.site.as_str().len()
                    + reply.output.len()
                    + reply.made.as_ref().map_or(0, |made| made.len() + 1)
                    + 24
            }
            Self::Shown(shown) => shown.id.site.as_str().len() + shown.op.site.as_str().len() + 40,
        }
    }
}

/// How an operation went at one site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reply {
    /// The site, and the number of this record in its stream.
    pub id: OpId,
    /// The resource.
    pub resource: ResourceId,
    /// The operation that was run.
    pub op: OpId,
    /// 1 for its first run there; a replay counts on. A reply stands for all earlier ones.
    pub attempt: u32,
    /// How it went.
    pub outcome: Outcome,
    /// How often the site had made its state anew by then, this run included. What was run in an
    /// earlier era has left no trace there.
    pub era: u32,
    /// How long it took.
    pub took: Millis,
    /// What it printed, as far as the shell around us kept it.
    pub output: Box<str>,
    /// What the application at this site calls what was made, if something was.
    pub made: Option<Box<str>>,
}

impl Reply {
    /// What it says about the run, as a report.
    pub fn report(&self) -> Report {
        Report {
            outcome: self.outcome,
            took: self.took,
            output: self.output.clone(),
            made: self.made.clone(),
        }
    }
}

/// How far the streams of a resource are known.
pub type Version = BTreeMap<SiteId, u64>;

/// A record on its way to another site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sent<R = Record> {
    /// The number of the record before it in the stream. What lies between the two no longer
    /// matters: what a later record stands for.
    pub after: u64,
    /// The record.
    pub record: R,
    /// What proves it; none for one of the sender's own that is about to be sealed, or that is read again
    /// from where it was written down with its seal.
    pub seal: Option<Seal>,
}

impl Sent {
    /// About how many bytes it takes on the wire.
    fn weight(&self) -> usize {
        let seal = self.seal.as_ref().map_or(0, |seal| seal.as_bytes().len());
        self.record.weight() + seal + 3
    }
}

/// A stretch of resource ids: from the first to before the last; open where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Stretch {
    /// Where it begins.
    pub from: Option<ResourceId>,
    /// What it ends before.
    pub to: Option<ResourceId>,
}

impl Stretch {
    /// The stretch of one id, or a little more if no id comes right after it.
    pub fn of(id: &ResourceId) -> Self {
        // The first of the letters that ids are made of.
        let next = format!("{id}-").parse().ok();
        Self { from: Some(id.clone()), to: next }
    }

    /// Whether an id lies in it.
    pub fn contains(&self, id: &ResourceId) -> bool {
        self.from.as_ref().is_none_or(|from| from <= id)
            && self.to.as_ref().is_none_or(|to| id < to)
    }

    fn weight(&self) -> usize {
        [&self.from, &self.to].into_iter().flatten().map(|id| id.as_str().len() + 1).sum::<usize>()
            + 2
    }
}

/// What one site tells another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// Digests of what the two share, by stretches of ids. Where they differ, the other answers
    /// with digests of shorter stretches, or with what it has.
    Compare(Vec<(Stretch, u64)>),
    /// All that the sender has in a stretch, and the digest of that. The other sends what the sender
    /// lacks, and asks for what it lacks itself.
    Have(Stretch, Vec<(ResourceId, Version)>, u64),
    /// The sender's version of some resources: it asks for what is missing there.
    Want(Vec<(ResourceId, Version)>),
    /// Records of one resource, each after what it depends on. `more`: ask again for the rest.
    Records {
        /// The resource.
        resource: ResourceId,
        /// The records.
        records: Vec<Sent>,
        /// The sender stopped at its limit.
        more: bool,
    },
    /// Resources that were deleted, and up to where the sender has forgotten their records: all
    /// sites have run the delete. The other forgets the same.
    Forgotten(Vec<(ResourceId, Version)>),
    /// Two different records of a resource have the same number.
    Contradicted {
        /// The resource.
        resource: ResourceId,
        /// The number.
        number: OpId,
    },
}

impl Message {
    /// About how many bytes it takes on the wire.
    pub fn weight(&self) -> usize {
        let version = |(id, version): &(ResourceId, Version)| {
            id.as_str().len()
                + 2
                + version.keys().map(|site| site.as_str().len() + 4).sum::<usize>()
        };
        2 + match self {
            Self::Compare(stretches) => {
                stretches.iter().map(|(stretch, _)| stretch.weight() + 8).sum::<usize>()
            }
            Self::Have(stretch, versions, _) => {
                stretch.weight() + versions.iter().map(version).sum::<usize>() + 8
            }
            Self::Want(versions) | Self::Forgotten(versions) => versions.iter().map(version).sum(),
            Self::Contradicted { resource, number } => {
                resource.as_str().len() + number.site.as_str().len() + 4
            }
            Self::Records { resource, records, .. } => {
                resource.as_str().len() + records.iter().map(Sent::weight).sum::<usize>()
            }
        }
    }
}

/// What a site writes down before anything of it can be seen, and reads when it starts again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Durable {
    /// A record, its own or another site's, with what proves it if that came with it.
    Record(Record, Option<Seal>),
    /// A run is about to start.
    Intent {
        /// The resource.
        resource: ResourceId,
        /// The operation.
        op: OpId,
        /// Which run of it this is, here.
        attempt: u32,
        /// It replaces the state: what was run before it counts no more.
        fresh: bool,
    },
    /// The resource's `Reset` command is about to start.
    Clearing(ResourceId),
    /// It has run: the state is empty.
    Cleared(ResourceId),
    /// The resource was deleted at all of its sites and is forgotten. All that was written about it
    /// before counts no more and may be dropped; this may not.
    Forgotten {
        /// The resource.
        resource: ResourceId,
        /// Up to where its records are forgotten.
        version: Version,
        /// The operation that deleted it.
        by: OpId,
        /// When that was.
        at: Timestamp,
    },
    /// The resource was deleted at all of its sites, and lives again: its records up to these numbers
    /// are forgotten. What was written about it before is still needed.
    Trimmed {
        /// The resource.
        resource: ResourceId,
        /// Up to where its records are forgotten.
        version: Version,
    },
    /// Something that was written about the resource is lost. Nothing of it is run here until its
    /// state was made anew, after an operation that resets.
    Withheld {
        /// The resource.
        resource: ResourceId,
        /// The last number that this site may have used for a record of it.
        floor: u64,
    },
    /// A site was removed and is let back in: of its records, those count up to a number. What this
    /// site has received itself and is taken out with the rest is held.
    Held {
        /// The resource.
        resource: ResourceId,
        /// The site.
        site: SiteId,
        /// The last number of its records that counts.
        known: u64,
        /// The last number that this site has used for a record.
        floor: u64,
        /// What is beyond was taken out; otherwise that has to wait for a run.
        done: bool,
    },
    /// Two different records of the resource have the same number: its sites do not come to agree.
    Contradicted {
        /// The resource.
        resource: ResourceId,
        /// The number.
        number: OpId,
    },
    /// A record of this site that is held, of a resource of which all else is forgotten.
    Aside(Record),
    /// Operations of the resource that are held have run here, and the resource is gone: what they did may
    /// still be in the application.
    Leftover(ResourceId),
    /// A person has decided about an operation that is held.
    Decided {
        /// The resource.
        resource: ResourceId,
        /// The operation.
        op: OpId,
        /// The operation that it was submitted as again; nothing if it was discarded.
        adopted: Option<OpId>,
    },
}

impl Durable {
    /// The resource that it is about.
    pub fn resource(&self) -> &ResourceId {
        match self {
            Self::Record(record, _) | Self::Aside(record) => record.resource(),
            Self::Intent { resource, .. }
            | Self::Clearing(resource)
            | Self::Cleared(resource)
            | Self::Leftover(resource)
            | Self::Contradicted { resource, .. }
            | Self::Forgotten { resource, .. }
            | Self::Trimmed { resource, .. }
            | Self::Withheld { resource, .. }
            | Self::Held { resource, .. }
            | Self::Decided { resource, .. } => resource,
        }
    }
}
