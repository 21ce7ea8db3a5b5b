//! What the API says of tokens, and of who asks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::trust::people::Rights;

/// A token to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
// A list that is misspelt would be no limit at all.
#[serde(deny_unknown_fields)]
pub struct AccessRequest {
    /// Whom it is for. It stands as the author of what is asked for with it.
    pub name: String,
    /// `viewer`, `operator` or `admin`.
    pub role: String,
    /// An operator's resources: patterns in which `*` stands for any text. All, if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// The kinds of an operator's operations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// An operator's sites: all sites of a resource have to be among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<String>,
    /// For how long it is good: `30d`, the default, and at most 366 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
}

/// A token that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessMade {
    /// The token. It is nowhere else.
    pub token: String,
    /// What is known of it.
    #[serde(flatten)]
    pub about: AccessGrant,
}

/// What is known of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessGrant {
    /// What it can be called besides its name.
    pub id: String,
    /// Whom it was made for.
    pub name: String,
    /// What it allows.
    #[serde(flatten)]
    pub rights: Rights,
    /// When it was made.
    pub issued: String,
    /// When it ends by itself.
    pub expires: String,
    /// When it was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<String>,
    /// `valid`, `expired` or `revoked`.
    pub state: String,
}

/// Tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessList {
    /// By name.
    pub tokens: Vec<AccessGrant>,
}

/// A token, to begin a session with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The token.
    pub token: String,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// As what it stands in the log.
    pub author: String,
    /// What it may do; nothing if it has to say first who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Rights>,
    /// By what it is known: `door`, `token`, `session` or `site`.
    pub by: String,
}
