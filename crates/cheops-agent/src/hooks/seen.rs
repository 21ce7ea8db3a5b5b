//! What hooks ask of the replica, and what a look at it finds.
//!
//! What must stay true: these are facts, copied out of the replica while others wait for it, so there is
//! no more of them than what is needed to tell; what they mean is said elsewhere, except for how an
//! operation has ended, which they alone decide.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{Author, Kind, OpId, ResourceId, SiteId},
    operation::Operation,
    replica::State,
    resolve::Fate,
};

use super::event::cut;
use crate::api::{
    model::{Run, RunStatus},
    view,
};

/// What to look at.
pub(crate) type Wanted = BTreeMap<ResourceId, Want>;

/// What to look at of a resource.
#[derive(Debug, Clone, Default)]
pub(crate) struct Want {
    /// These operations.
    pub(crate) ops: BTreeSet<OpId>,
    /// These, if they have left the block.
    pub(crate) lost: Vec<OpId>,
    /// How it stands.
    pub(crate) standing: bool,
}

/// What a look at a resource finds.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) sites: Vec<SiteId>,
    /// The operations that were asked about.
    pub(crate) ops: BTreeMap<OpId, SeenOp>,
    /// How it stands, if that was asked for.
    pub(crate) standing: Option<Standing>,
}

/// How a resource stands.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) state: State,
    /// A person must decide here.
    pub(crate) stuck: bool,
    /// Which operations are the newest.
    pub(crate) heads: String,
    /// What the sites show, if that differs.
    pub(crate) prints: String,
    /// What is wrong, and what to do.
    pub(crate) wrong: Option<(String, String)>,
}

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    pub(crate) author: Author,
    /// As text, up to a limit.
    pub(crate) command: String,
}

impl Asked {
    pub(super) fn of(op: &Operation) -> Self {
        let command = cut(&view::command(&op.action));
        Self { kind: op.kind.clone(), author: op.author.clone(), command }
    }
}

/// What a look at an operation finds.
#[derive(Debug, Clone)]
pub(crate) struct SeenOp {
    pub(crate) asked: Asked,
    pub(crate) fate: Fate,
    /// The operation that won over it, and why.
    pub(crate) lost: Option<(String, String)>,
    /// How it went at each site of the resource.
    pub(crate) runs: Vec<Run>,
}

/// How an operation ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// All sites have run it, and it went well.
    Settled,
    /// All sites have run it, and it failed at some.
    Failed,
    /// It failed at the site that received it, so that others need not run it.
    Void,
    /// Another won over it before all had run it.
    Superseded {
        /// The one that won.
        by: String,
        /// In which way.
        because: String,
    },
}

impl SeenOp {
    /// How it has ended, if nothing more will come.
    pub(super) fn end(&self) -> Option<End> {
        let ran = |run: &Run| !matches!(run.status, RunStatus::Waiting | RunStatus::Dropped);
        if self.runs.iter().all(ran) {
            let well = self.runs.iter().all(|run| run.status == RunStatus::Ok);
            return Some(if well { End::Settled } else { End::Failed });
        }
        match (self.fate, &self.lost) {
            (Fate::Kept, _) => None,
            (Fate::Void, _) | (_, None) => Some(End::Void),
            (Fate::Over | Fate::Fallen, Some((by, because))) => {
                Some(End::Superseded { by: by.clone(), because: because.clone() })
            }
        }
    }
}
