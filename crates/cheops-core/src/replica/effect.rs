//! What goes into a replica, and what comes out.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec::Vec,
};

use super::{
    message::{Durable, Message, Reply},
    shown::Print,
    withhold::Lost,
};
use crate::{
    id::{Author, Key, Kind, OpId, ResourceId, SiteId, Sites},
    matrix::{Config, Share},
    operation::{Action, SharedOperation},
    plan::Outcome,
    time::Millis,
};

/// The shell's name for a request that waits for answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Input {
    /// The site starts: it goes on with what was under way when it stopped.
    Started,
    /// Someone asks for an operation.
    Submit(Box<Submission>),
    /// A message arrived.
    Received {
        /// From this site.
        from: SiteId,
        /// What it says.
        message: Message,
    },
    /// A run ended. Also the answer to [`Effect::Recall`] if a result was found.
    Ran {
        /// The run.
        run: RunId,
        /// How it went.
        report: Report,
    },
    /// The answer to [`Effect::Recall`] if the command certainly never started: the agent died
    /// between writing down the intent and starting it.
    NotStarted(RunId),
    /// The answer to [`Effect::Recall`] if nobody can tell: a power cut came between the intent and
    /// the result.
    Lost(RunId),
    /// The answer to [`Effect::Check`]: whether the operation had taken effect.
    Checked {
        /// The run in doubt.
        run: RunId,
        /// What the `Check` command found.
        happened: bool,
    },
    /// The `Reset` command of a resource ended. Also the answer to [`Effect::RecallClear`] if the
    /// command was still under way.
    Cleared {
        /// The resource.
        resource: ResourceId,
        /// Whether it succeeded.
        ok: bool,
    },
    /// The answer to [`Effect::RecallClear`] if no `Reset` command of the resource is under way:
    /// it never started, or it ended while nobody watched.
    NotClearing(ResourceId),
    /// The answer to [`Effect::Show`].
    Shown {
        /// The resource.
        resource: ResourceId,
        /// The block that it was asked about.
        block: u64,
        /// A digest of what the `Show` command printed; nothing if it failed.
        print: Option<Print>,
    },
    /// The answer to [`Effect::Show`] where the site's policy does not let the command run: it says
    /// nothing of the resource.
    NotShown {
        /// The resource.
        resource: ResourceId,
        /// The block that it was asked about.
        block: u64,
    },
    /// These sites do not belong any more, and no others: nothing waits for them.
    Removed(BTreeSet<SiteId>),
    /// A site that was removed is let back in: of what it had recorded until then, that counts which
    /// the others knew when they drew the line, and nothing else. It may be this site.
    Fenced {
        /// The site.
        site: SiteId,
        /// The number of its last record of each resource that counts.
        known: BTreeMap<ResourceId, u64>,
    },
    /// A person has decided about an operation that is [held](super::Held) here.
    Decided {
        /// The resource.
        resource: ResourceId,
        /// The operation.
        op: OpId,
        /// The operation that it was submitted as again; nothing if it was discarded.
        adopted: Option<OpId>,
    },
    /// A site can be reached.
    PeerUp(SiteId),
    /// A site can't be reached any more.
    PeerDown(SiteId),
    /// Time has passed; see [`Replica::wake`](super::Replica::wake).
    Tick,
}

/// A request for an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Submission {
    /// Whom to answer.
    pub ticket: Ticket,
    /// The resource. It need not exist yet.
    pub resource: ResourceId,
    /// Where it is to exist. Needed to create it; the sites of one that exists stay as they are.
    pub sites: Option<Sites>,
    /// How its operations meet, if that is new.
    pub config: Option<Config>,
    /// What the operation does, in the words of the matrix.
    pub kind: Kind,
    /// Who asks.
    pub author: Author,
    /// What to do.
    pub action: Action,
    /// It resets: the operator declares a repair.
    pub force: bool,
    /// It counts even if it fails here.
    pub keep_going: bool,
    /// The requester's name for this request, if it may be repeated. While the resource exists, the
    /// same request with the same key leads to the operation that there is.
    pub key: Option<Key>,
    /// How long to wait for the replies of all sites.
    pub wait: Millis,
}

/// One run of an operation at this site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId {
    /// The resource.
    pub resource: ResourceId,
    /// The operation.
    pub op: OpId,
    /// 1 for the first; a replay counts on.
    pub attempt: u32,
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Report {
    /// Success or failure.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Millis,
    /// What it printed.
    pub output: Box<str>,
    /// What the application calls what was made, if something was.
    pub made: Option<Box<str>>,
}

/// Something to do, in this order: what follows a [`Persist`](Self::Persist) must wait until that
/// is on disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Write it down. All that one input persists is written as one batch: after a crash either all of
    /// it is there or nothing is.
    Persist(Durable),
    /// Send a message. It may get lost; nothing depends on its arrival but time.
    Send {
        /// To this site.
        to: SiteId,
        /// What to say.
        message: Message,
    },
    /// Run an operation, under a supervisor that keeps its result if we die.
    Run {
        /// Which attempt this is.
        run: RunId,
        /// What to do.
        op: SharedOperation,
        /// How long it may take, if the resource's configuration says so.
        timeout: Option<Millis>,
        /// This site's last reply to the same operation, if what it tells of is still there. What is
        /// not [repeatable](Action::is_repeatable), and did not fail, is answered with it again.
        before: Option<Arc<Reply>>,
        /// What of the operation is to be done here, if the resource is in parts.
        share: Option<Share>,
    },
    /// Find the result of a run that was under way when the site stopped, or wait for it.
    Recall(RunId),
    /// Find out with the resource's `Check` command whether a run took effect.
    Check {
        /// The run in doubt.
        run: RunId,
        /// The command.
        command: String,
        /// How long it may take.
        timeout: Option<Millis>,
    },
    /// Run the resource's `Reset` command, under a supervisor like any run.
    Clear {
        /// The resource.
        resource: ResourceId,
        /// The command.
        command: String,
        /// How long it may take.
        timeout: Option<Millis>,
    },
    /// Wait for the end of a `Reset` command that was under way when the site stopped. Its process may
    /// have survived, and nothing else of the resource may run beside it.
    RecallClear(ResourceId),
    /// Run the resource's `Show` command, and say what it printed. It changes nothing, so it needs no
    /// supervisor, and is asked for again if we die.
    Show {
        /// The resource.
        resource: ResourceId,
        /// The command.
        command: String,
        /// How long it may take.
        timeout: Option<Millis>,
        /// The block that it is about.
        block: u64,
    },
    /// Tell a requester something.
    Answer {
        /// Whom.
        ticket: Ticket,
        /// What.
        answer: Answer,
    },
    /// Tell whoever watches.
    Tell(Event),
}

/// What a requester is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The operation is durable here and will reach all sites of the resource, which are these.
    Accepted(OpId, Sites),
    /// The operation was not accepted; nothing was recorded.
    Refused(Refusal),
    /// How it went at one site.
    Reply(Box<Reply>),
    /// Another operation won over it: it will not run where it has not yet.
    Superseded {
        /// The one that won.
        by: OpId,
    },
    /// These sites have not answered in time; the work goes on.
    Silent(Vec<SiteId>),
    /// Nothing more will come.
    Done,
}

/// Why an operation was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The resource does not exist, and the request does not say where to create it.
    #[error("resource `{0}` does not exist here, and no sites are named to create it on")]
    NoSites(ResourceId),
    /// This is not one of the resource's sites.
    #[error("this site is not one of `{resource}`'s sites ({sites}); ask one of them")]
    Elsewhere {
        /// The resource.
        resource: ResourceId,
        /// Its sites.
        sites: Sites,
    },
    /// The request names parts, and the resource has none.
    #[error(
        "`{resource}` exists whole on each of its sites ({sites}), and can't be divided any more"
    )]
    Whole {
        /// The resource.
        resource: ResourceId,
        /// Its sites.
        sites: Sites,
    },
    /// Something of the resource is lost at this site.
    #[error("{0}")]
    Withheld(Lost),
    /// The key stands for another request.
    #[error("key `{key}` was used for another request, which became {op}; use a new key")]
    KeyReused {
        /// The key.
        key: Key,
        /// The operation that it stands for.
        op: OpId,
    },
}

/// What watchers are told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Something new is durable here.
    Recorded {
        /// The resource.
        resource: ResourceId,
        /// The record.
        id: OpId,
    },
    /// Something that was run has left the block, and there is no way back: a person must decide,
    /// and send an operation with `force`.
    NeedsDecision(ResourceId),
    /// A resource was deleted at all of its sites, and nothing is left of it here.
    Forgotten(ResourceId),
    /// A power cut left it unknown whether an operation took effect here.
    Unknown(RunId),
    /// A message was not taken in, whole or in part.
    Refused {
        /// Who sent it.
        from: SiteId,
        /// The resource that it was about.
        resource: ResourceId,
        /// What was wrong with it.
        why: &'static str,
    },
}
