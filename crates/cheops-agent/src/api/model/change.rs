//! What the API says of what happens: the change feed.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Run;

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Its number at this site; ask with `since` to go on after it. What is not written down, such
    /// as a link that was lost, has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The site that tells.
    pub site: String,
    /// The resource, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// What happened.
    #[serde(flatten)]
    pub what: Happened,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Happened {
    /// The feed begins after this number: its first line.
    Following,
    /// The feed ends: it can't be read on, or the reader took nothing of it.
    Broken {
        /// Why.
        why: String,
    },
    /// An operation is durable here.
    Operation {
        /// Its id.
        id: String,
        /// Its kind.
        kind: String,
        /// Who asked for it.
        author: String,
        /// When it was received.
        at: String,
        /// What it does.
        command: String,
    },
    /// A site has run an operation.
    Reply {
        /// The operation.
        operation: String,
        /// How it went, and at which site.
        run: Run,
    },
    /// A site has run the `Show` command, for comparison.
    Shown {
        /// The site.
        peer: String,
        /// The last operation of the block.
        operation: String,
        /// A digest of what was printed; nothing if the command failed.
        print: Option<String>,
    },
    /// The resource is gone from all of its sites.
    Deleted,
    /// What was run has left the block, and there is no way back.
    NeedsDecision,
    /// The supervisor of a run is gone, and nobody knows if its operation took effect here.
    Unknown {
        /// The operation.
        operation: String,
    },
    /// A site can be reached again.
    SiteReturned {
        /// The site.
        peer: String,
    },
    /// A site can't be reached any more.
    SiteLost {
        /// The site.
        peer: String,
    },
    /// A peer said something that was not taken in.
    Refused {
        /// The peer.
        peer: String,
        /// What was wrong.
        why: String,
    },
}

/// Which changes to follow.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ChangesQuery {
    /// Only those after this number; without it, those from now on.
    pub since: Option<u64>,
    /// Only those of this resource.
    pub resource: Option<String>,
    /// Stop when all that is known was told, instead of waiting for more.
    #[serde(default)]
    pub once: bool,
}
