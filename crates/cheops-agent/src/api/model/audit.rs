//! What the API says of the audit of a site.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which lines of the audit are wanted.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Only those after the line with this number, the oldest of them; the newest without it.
    pub after: Option<u64>,
    /// Only those from this moment on: `2026-01-31T12:00:00Z`.
    pub since: Option<String>,
    /// Only those of this author.
    pub author: Option<String>,
    /// Only those about this resource.
    pub resource: Option<String>,
    /// At most so many: 100 by default, and no more than 1000.
    pub limit: Option<usize>,
}

/// Lines of the audit of a site, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The site.
    pub site: String,
    /// The lines.
    pub entries: Vec<crate::audit::Entry>,
    /// What to ask for next, as `after`; none if there are no lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Whether the audit of a site is as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditVerdict {
    /// Nothing is wrong.
    pub whole: bool,
    /// How many lines are in order.
    pub lines: u64,
    /// The number of the first line that is kept.
    pub first: u64,
    /// The number of the last line that is in order.
    pub last: u64,
    /// Its hash: kept elsewhere, it proves later what was there.
    pub hash: String,
    /// How many lines came after the site has last signed where it ends.
    pub unsigned: u64,
    /// Whether the site has signed where it ends. If not, nobody can tell whether the end is there.
    pub headed: bool,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// The file where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in that file, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}
