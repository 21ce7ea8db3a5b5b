//! What the API says of a site's policy.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a site's policy is asked about: an operation that is known there, or what one would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyQuestion {
    /// The resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// An operation of the resource that the site knows: `site1:7`. Nothing else is needed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Who asks; `anonymous` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The site that received it; rules that ask for one do not match without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// What it does; `exec` without it. `@show`, `@reset` and `@check` are commands of the resource itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// A command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The names of files that are attached to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The service that a request is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Its method; `GET` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Its path; `/` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What a site's policy would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyVerdict {
    /// The site.
    pub site: String,
    /// Whether it would run.
    pub allowed: bool,
    /// The rule that decides; `default` if none of those that are written does.
    pub rule: String,
    /// Why not, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How each step that is allowed would run.
    #[serde(default)]
    pub steps: Vec<PolicyStep>,
}

/// How one step of an operation would run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyStep {
    /// The rule that allows it.
    pub rule: String,
    /// `shell`, `program` (without a shell) or `request`.
    pub how: String,
    /// The program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Its arguments; placeholders stand as they were written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// The user that it runs as; the agent's without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The variables of the agent that a command gets; nothing for a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps: Option<Vec<String>>,
    /// The variables that are set for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<String>,
    /// Its limits.
    #[serde(default)]
    pub limits: PolicyLimits,
    /// The paths that it is kept to; it may touch all without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock: Option<PolicyPaths>,
}

/// How much a command may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyLimits {
    /// Seconds of CPU time, for each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    /// Bytes of address space, for each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Processes and threads of its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Bytes of each file that is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size: Option<u64>,
    /// Open files, for each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
}

/// Paths, and all that is below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyPaths {
    /// To read, and to run.
    pub read: Vec<String>,
    /// To read, to run and to write.
    pub write: Vec<String>,
}
