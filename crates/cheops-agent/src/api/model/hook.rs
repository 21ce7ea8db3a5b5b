//! What the API says of hooks, and what hooks say to others.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Run;

/// Something that happened, as hooks tell it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HookEvent {
    /// The same event has the same id, however often and wherever it is sent from: drop what you
    /// have seen.
    pub id: String,
    /// What happened: `operation.failed`, `site.lost`.
    pub event: String,
    /// When it was noticed.
    pub at: String,
    /// Where it happened.
    pub site: String,
    /// The site that tells.
    pub told_by: String,
    /// In one sentence.
    pub text: String,
    /// It is about all sites together, and told once.
    #[serde(default)]
    pub summary: bool,
    /// The resource, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The operation, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The kind of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Who asked for the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// What the operation does, up to a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// How it went: at the site that ran it, or at each site of the resource. Outputs are cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    /// The operation that won over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The site that was lost, or is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A hook of the site that answers, and how it is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// Which events it tells of.
    pub on: Vec<String>,
    /// `each` or `summary`.
    pub mode: String,
    /// `web`, `command`, `mail` or `irc`.
    pub way: String,
    /// Where it tells, without anything secret.
    pub to: String,
    /// Only of resources that match one of these, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Only of operations of these kinds, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Only of what happened at these sites; at the site that answers, if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<String>,
    /// It was added by the API, and can be removed by it.
    pub added: bool,
    /// How many events wait.
    pub waiting: usize,
    /// How many were delivered.
    pub delivered: u64,
    /// How many were given up, because too many waited, or they waited for too long, or they were
    /// refused.
    pub dropped: u64,
    /// When an event was last delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery: Option<String>,
    /// Since when nothing could be delivered, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<String>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// The hooks of a site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Hooks {
    /// The site that answers.
    pub site: String,
    /// By name.
    pub hooks: Vec<Hook>,
    /// How many operations were not followed to their end, because too many were open: nobody was told
    /// how they ended.
    #[serde(default)]
    pub unfollowed: u64,
}

/// What came of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HookTested {
    /// The hook.
    pub hook: String,
    /// Whether it was delivered.
    pub delivered: bool,
    /// How long that took, in milliseconds.
    pub took_ms: u64,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
