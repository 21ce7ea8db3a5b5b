//! What the API says, as JSON: the one vocabulary that agents, the program and scripts share.
//!
//! These are views. They are made from the core's values and never turned back into them, except
//! for [`Submit`], which is a request. What must stay true:
//! - a field that is there today stays; new ones are optional for whoever reads;
//! - times are RFC 3339 in UTC, spans are milliseconds, sites and ids are their names;
//! - what is not known is `null` or left out, never a made-up zero.

mod access;
mod audit;
mod change;
mod federation;
mod grid;
mod hook;
mod mesh;
mod policy;
mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub use self::{
    access::{AccessGrant, AccessList, AccessMade, AccessRequest, Login, Session},
    audit::{AuditPage, AuditQuery, AuditVerdict},
    change::{Change, ChangesQuery, Happened},
    federation::{
        Adopted, Federation, Held, HeldOperation, Join, Member, MemberStanding, SiteKey, TokenMade,
        TokenWanted,
    },
    grid::{Grid, GridCell, GridQuery, GridRow, GridSite},
    hook::{Hook, HookEvent, HookTested, Hooks},
    mesh::{
        Catalogue, CatalogueQuery, Offer, Replica, Replicant, ReplicantQuery, Replicants,
        ReplicantsQuery,
    },
    policy::{PolicyLimits, PolicyPaths, PolicyQuestion, PolicyStep, PolicyVerdict},
};

/// A site, as this one sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Whether it can be reached from here.
    pub state: SiteState,
    /// When its pause ends by itself, if it is paused for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<String>,
    /// Where its agent listens for other agents, if that is known here.
    pub address: Option<String>,
    /// The public key that it is recognised by; empty if it has a certificate, and has not been met yet.
    pub key: String,
    /// Since when it has this key, as far as that is known. A key does not end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_since: Option<String>,
    /// When the certificate ends by which other sites recognise it, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<String>,
    /// When the certificate of its API ends, of the site that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_certificate_expires: Option<String>,
    /// The round trip of late, in milliseconds.
    pub round_trip_ms: Option<f64>,
    /// When it was last heard of.
    pub last_seen: Option<String>,
    /// For how long the two have not been known to agree on all that they share, in milliseconds; 0
    /// if they agree. Not there if they never met.
    pub lag_ms: Option<u64>,
    /// What waits to be sent to it.
    pub queue: Queue,
    /// How many resources it shares with this site.
    pub resources: usize,
    /// How many operations it has not answered, as far as is known here.
    pub unanswered: usize,
    /// By how many milliseconds its clock is ahead of this site's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_ms: Option<i64>,
    /// Why the last attempt to reach it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Whether a site can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SiteState {
    /// It is the one that answers.
    Here,
    /// There is a link to it.
    Reachable,
    /// There is none; it is tried again for ever.
    Unreachable,
    /// The link is paused by an operator.
    Paused,
}

/// What waits to be sent to a site.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// How many messages.
    pub messages: usize,
    /// How many bytes.
    pub bytes: usize,
}

/// All sites that this one knows, itself among them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sites {
    /// The site that answers.
    pub here: String,
    /// By name.
    pub sites: Vec<Site>,
}

/// The answer to a ping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pong {
    /// The site that answered.
    pub site: String,
    /// How long that took, in milliseconds.
    pub round_trip_ms: f64,
}

/// A resource's state at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// All sites have run the block.
    Settled,
    /// Some site has not answered yet.
    Pending,
    /// What was asked for last has failed everywhere.
    Failed,
    /// The policy of a site does not let it run what others have run, or what was asked for last.
    Denied,
    /// It succeeded here and failed there, or a site has run what is not in the block.
    Diverged,
    /// A person must decide at this site: what was run has left the block, and there is no way back.
    NeedsDecision,
}

/// A resource in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourceSummary {
    /// Its id.
    pub id: String,
    /// Its state, as far as is known at the site that answers.
    pub state: State,
    /// It is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// The sites that it exists on.
    pub sites: Vec<String>,
    /// Sites that it existed on and that were removed: nothing waits for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// The sites of each part, the prime one first; empty if it is whole on each site.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Vec<String>>,
    /// How many operations are known.
    pub operation_count: usize,
    /// How many of them are in the block.
    pub block_length: usize,
    /// When the newest of them was received.
    pub updated: Option<String>,
}

/// A page of resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Resources {
    /// The site that answers.
    pub site: String,
    /// By id.
    pub resources: Vec<ResourceSummary>,
    /// Ask again with `after` set to this for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Which resources to list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ResourcesQuery {
    /// At most this many; 500 by default, 5,000 at most.
    pub limit: Option<usize>,
    /// Only ids after this one.
    pub after: Option<String>,
    /// Only ids that begin with this.
    pub prefix: Option<String>,
    /// Only ids that hold this.
    pub contains: Option<String>,
    /// Only those in this state.
    pub state: Option<State>,
    /// Only those that exist at this site.
    pub site: Option<String>,
    /// The resources of this site instead of the one that answers.
    pub at: Option<String>,
}

/// A resource in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Resource {
    /// At a glance.
    #[serde(flatten)]
    pub summary: ResourceSummary,
    /// The site that answers: all is as it sees it.
    pub seen_by: String,
    /// Its configuration, as the operator writes it.
    pub config: serde_json::Value,
    /// The ids of the operations in the block, in order: the last 1,000 of them.
    pub block_ids: Vec<String>,
    /// The operations, oldest first: the last `limit` of them.
    pub operations: Vec<Operation>,
    /// How far the streams of its sites are known here, by site.
    pub version: BTreeMap<String, u64>,
    /// How each site is doing.
    pub by_site: Vec<ResourceAtSite>,
}

/// What is known of a resource at one of its sites.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourceAtSite {
    /// The site.
    pub site: String,
    /// How many operations of the block it has answered with OK.
    pub ok: usize,
    /// How many with KO.
    pub ko: usize,
    /// How many its policy did not let run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denied: usize,
    /// How many it could not say of whether they took effect.
    pub unknown: usize,
    /// How many it has not answered.
    pub waiting: usize,
    /// A digest of what the `Show` command printed there after the block; nothing if it has not been
    /// run since, or failed. Sites that hold the same have the same digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// Which part is there, from 1, if the resource is in parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<usize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Which part of a resource's history to show.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ResourceQuery {
    /// At most this many operations, the newest; 200 by default, 10,000 at most.
    pub limit: Option<usize>,
    /// Only operations that were listed before this one.
    pub before: Option<String>,
    /// Ask no other site, even if the resource is not known here.
    #[serde(default)]
    pub local: bool,
    /// As this site sees it.
    pub at: Option<String>,
    /// At most this many bytes of what each run printed, the last ones; all that its reply has without
    /// it.
    pub printed: Option<usize>,
}

/// An operation, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// The site that received it, and its number there: `site1:7`.
    pub id: String,
    /// What it does, in the words of the matrix.
    pub kind: String,
    /// Who asked for it.
    pub author: String,
    /// When it was received.
    pub at: String,
    /// What its site knew of when it was received: the newest operations.
    pub parents: Vec<String>,
    /// What it does, as text.
    pub command: String,
    /// It is a request of the application, or several: its text is no command for a shell.
    #[serde(default)]
    pub request: bool,
    /// The attached files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
    /// All that it follows is over.
    #[serde(default)]
    pub reset: bool,
    /// It counts even if it fails at the site that received it.
    #[serde(default)]
    pub keep_going: bool,
    /// The idempotency key that it was sent with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What became of it.
    pub fate: Fate,
    /// Its place in the block, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<usize>,
    /// Why it is not in the block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// How it went at each site of the resource, by site.
    pub runs: Vec<Run>,
}

/// A file that an operation brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The name that the command uses: `{name}`.
    pub name: String,
    /// The BLAKE3 hash of its content, in hexadecimal.
    pub content: String,
    /// Its length in bytes.
    pub length: u64,
}

/// What became of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is in the block.
    Kept,
    /// A reset came after it.
    Over,
    /// A concurrent one won over it.
    Fallen,
    /// It failed at the site that received it.
    Void,
}

/// Why an operation is not in the block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    /// The operation that won.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// In words: `set over inc (matrix row 2)`.
    pub why: String,
}

/// An operation at one site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// The site.
    pub site: String,
    /// How it went.
    pub status: RunStatus,
    /// Which run of it that was; a replay counts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How long it took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// What it printed, up to a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// How an operation went at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum RunStatus {
    /// It succeeded.
    #[serde(rename = "OK")]
    Ok,
    /// It failed.
    #[serde(rename = "KO")]
    Ko,
    /// The site's policy does not let it run; the output names the rule.
    #[serde(rename = "DENIED")]
    Denied,
    /// Its supervisor is gone (a power cut, a reboot, or killed), and nobody knows if it took effect.
    #[serde(rename = "UNKNOWN")]
    Unknown,
    /// It is under way.
    #[serde(rename = "RUNNING")]
    Running,
    /// There is no word of it yet.
    #[serde(rename = "WAITING")]
    Waiting,
    /// It is not in the block, and was not run.
    #[serde(rename = "DROPPED")]
    Dropped,
    /// There was no word of it in time; the work goes on.
    #[serde(rename = "TIMEOUT")]
    Timeout,
}

/// A request for an operation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Submit {
    /// The command line, for the shell of each site.
    pub command: String,
    /// What it does, in the words of the matrix. `exec` without it.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "type")]
    pub kind: Option<String>,
    /// Where the resource is to exist: a place of the scope language, `site1 & site2`. Needed to
    /// create it; the sites of one that exists stay as they are. A list of names is each of them.
    /// `site1 % site2` creates it in parts: each site does its own part of each operation.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read::place")]
    #[schema(schema_with = read::place_schema)]
    pub sites: Option<String>,
    /// The resource's configuration, if that is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Value>,
    /// Files that were sent to `/api/v1/files` before.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "read::objects")]
    pub files: Vec<File>,
    /// It resets: the operator declares a repair.
    #[serde(default)]
    pub force: bool,
    /// It counts even if it fails at the site that receives it.
    #[serde(default)]
    pub keep_going: bool,
    /// How long to wait for the replies of all sites: `30s`, the default; `0s` not at all. A number
    /// is seconds.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read::span")]
    #[schema(schema_with = read::span_schema)]
    pub wait: Option<String>,
    /// What who asks calls itself, where nobody has to prove who it is: it stands behind `local:`.
    /// Otherwise the author is the name of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The same key again is the same operation. Also as the header `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only say what it would do.
    #[serde(default)]
    pub dry_run: bool,
}

/// One line of the answer to a [`Submit`] that asks for `application/x-ndjson`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Answer {
    /// The operation is durable, and will reach all sites of the resource.
    Accepted {
        /// The operation.
        operation: String,
        /// The sites whose replies are waited for.
        sites: Vec<String>,
    },
    /// A site has begun to run it.
    Running {
        /// The site.
        site: String,
    },
    /// How it went at one site.
    Reply(Run),
    /// Another operation won over it: it will not run where it has not yet.
    Superseded {
        /// The one that won.
        by: String,
    },
    /// These sites have not answered in time; the work goes on.
    Timeout {
        /// The sites.
        sites: Vec<String>,
    },
    /// Nothing more will come.
    Done,
    /// It went wrong after the answer had begun.
    Error(Problem),
}

/// The answer to a [`Submit`], when all of it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The operation.
    pub operation: String,
    /// What each site replied, by site; `TIMEOUT` for those that did not in time, `WAITING` if nobody
    /// waited for them.
    pub runs: Vec<Run>,
    /// The operation that won over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<String>,
}

/// The answer to a [`Submit`]: what came of it, or what would.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Outcome {
    /// It was carried out.
    Submitted(Submitted),
    /// It was a rehearsal.
    Rehearsed(Rehearsal),
}

/// What an operation would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rehearsal {
    /// The operation that has this key already; nothing new would be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
    /// The id that it would have.
    #[serde(default)]
    pub operation: String,
    /// It would reset: all that it follows would be over.
    pub reset: bool,
    /// The block as it is.
    pub before: Vec<String>,
    /// The block as it would be; the new operation has the id it would get.
    pub after: Vec<String>,
    /// What would leave the block, and why.
    pub dropped: Vec<Dropped>,
    /// What each site would run, as far as is known here.
    pub sites: BTreeMap<String, Vec<PlannedStep>>,
    /// The sites of each part, the prime one first; empty if the resource is whole on each site.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Vec<String>>,
}

/// An operation that would leave the block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Dropped {
    /// The operation.
    pub operation: String,
    /// Why.
    pub receipt: Receipt,
}

/// A step that a site would take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum PlannedStep {
    /// Run an operation.
    Run {
        /// Which one.
        operation: String,
        /// Its kind.
        kind: String,
        /// It replaces the state.
        replaces: bool,
        /// It was run there before.
        again: bool,
    },
    /// Run the `Reset` command.
    Clear,
    /// Nothing: a person must decide.
    Decide,
    /// And so on; too many to list.
    More,
}

/// How to delete a resource.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeleteQuery {
    /// The command that each site runs; `true` without it.
    pub command: Option<String>,
    /// How long to wait for the replies of all sites; `30s` by default.
    pub wait: Option<String>,
    /// Who asks.
    pub author: Option<String>,
    /// The same key again is the same operation.
    pub key: Option<String>,
    /// Also what is made of the application's own requests: it is forgotten, and its copies stay.
    #[serde(default)]
    pub force: bool,
}

/// What to show of a resource, and where.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// The command; the resource's `Show` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// On which sites: a place of the scope language; all of the resource's without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sites: Option<String>,
}

/// What each site shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shown {
    /// The command that was run.
    pub command: String,
    /// What it printed, by site.
    pub sites: BTreeMap<String, ShownAt>,
    /// All sites answered OK and printed the same: those of one part, if the resource is in parts.
    pub agree: bool,
}

/// What one site shows; in the spelling of the original program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownAt {
    /// `OK`, `KO` or `TIMEOUT`.
    #[serde(rename = "Status")]
    pub status: String,
    /// What the command printed, or why there is nothing.
    #[serde(rename = "Output")]
    pub output: String,
    /// Which part of the resource is there, from 1, if it is in parts.
    #[serde(rename = "Part", default, skip_serializing_if = "Option::is_none")]
    pub part: Option<usize>,
}

/// A reply, in the spelling of the original program: one line of the answer to `/exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct OriginalReply {
    /// The sites of the resource.
    pub locations: Vec<String>,
    /// The site that replies.
    pub site: String,
    /// The operation.
    pub request_id: String,
    /// The resource.
    pub resource_id: String,
    /// `OK`, `KO` or `TIMEOUT`.
    pub status: String,
    /// The command.
    pub input: String,
    /// What it printed.
    pub output: String,
    /// How long it took.
    pub execution_time: String,
    /// Always `REPLY`.
    #[serde(rename = "Type")]
    pub what: String,
}

/// Something that needs a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trouble {
    /// How much it matters.
    pub urgency: Urgency,
    /// Where.
    pub site: String,
    /// What it concerns, if it is a resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// What sort of trouble: `needs-decision`, `unknown`, `denied`, `diverged`, `failed`, `damaged`,
    /// `disk`, `stuck`, `landlock`, `clock`, `hook`, `refused`, `unreachable`, `unknown-site`, `paused`.
    pub what: String,
    /// What happened, as a sentence.
    pub text: String,
    /// What to do about it.
    pub next: String,
}

/// How much something matters; the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Urgency {
    /// Work has stopped, or something may be lost.
    High,
    /// Sites differ, or will until someone looks.
    Medium,
    /// Good to know.
    Low,
}

/// Everything that needs a person, anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Troubles {
    /// The most urgent first.
    pub problems: Vec<Trouble>,
    /// The sites that could not be asked.
    pub not_asked: Vec<String>,
}

/// How many things need a person, at each site.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TroubleCount {
    /// By site; those that have none are left out.
    pub sites: BTreeMap<String, usize>,
    /// The sites that could not be asked.
    pub not_asked: Vec<String>,
}

/// A file that was taken in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stored {
    /// The BLAKE3 hash of its content, in hexadecimal.
    pub content: String,
    /// Its length in bytes.
    pub length: u64,
}

/// How to pause a link.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PauseQuery {
    /// Resume by itself after this long: `10m`.
    pub r#for: Option<String>,
}

/// An error, as RFC 9457 has it: `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Which sort of error it is, for programs: `unknown-site`.
    #[serde(rename = "type")]
    pub kind: String,
    /// In a few words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// What to do.
    pub hint: String,
}

/// Whether the agent is ready to accept operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// It is.
    pub ready: bool,
    /// What is missing, if it is not.
    pub because: Vec<String>,
}
