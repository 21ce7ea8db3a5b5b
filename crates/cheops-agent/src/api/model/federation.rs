//! What the API says of who belongs to a federation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::RunStatus;

/// What a token for a site that joins is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenWanted {
    /// For how long it is good: `10m` without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// Where the newcomer reaches the agent of this site, as HOST:PORT; where it listens without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// A token by which one site can join, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenMade {
    /// The site that lets the newcomer in.
    pub site: String,
    /// The token. It is a secret.
    pub token: String,
    /// When it ends.
    pub expires: String,
    /// Where the newcomer will ask.
    pub address: String,
}

/// How a site joins.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// A token that a site of the federation has made.
    pub token: String,
    /// Where the others reach the agent of this site, as HOST:PORT; where it asks from without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Who belongs to the federation of a site, and who did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Federation {
    /// The site that answers.
    pub site: String,
    /// What the federation is known by; none if the site belongs to none.
    pub federation: Option<String>,
    /// By name, and by when they came.
    pub members: Vec<Member>,
}

/// A site that belongs, or did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Its name.
    pub site: String,
    /// The public key that it is recognised by, or was.
    pub key: String,
    /// Where its agent listens for others.
    pub address: String,
    /// Since when it belongs; none for the site that has begun the federation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Since when it has this key; none for the first one of the site that has begun the federation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_since: Option<String>,
    /// When the certificate ends that it has shown on its link, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<String>,
    /// Whether it does.
    pub standing: MemberStanding,
    /// When it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<String>,
    /// Who has removed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_by: Option<String>,
}

/// Whether a key is that of a site that belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberStanding {
    /// It is.
    Belongs,
    /// Its site has another key now.
    Renewed,
    /// Its site was removed.
    Removed,
}

/// The key of this site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SiteKey {
    /// The site.
    pub site: String,
    /// Its public key.
    pub key: String,
}

/// What a site had received while it was removed, and the others do not take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Held {
    /// The site.
    pub site: String,
    /// The operations about which nobody has decided, the oldest first; the first of them, if there are many.
    pub held: Vec<HeldOperation>,
    /// How many there are.
    pub count: usize,
}

/// An operation that is held at a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldOperation {
    /// The resource.
    pub resource: String,
    /// The operation.
    pub operation: String,
    /// What it does, in the words of the matrix.
    pub kind: String,
    /// Who had asked for it.
    pub author: String,
    /// When it was received.
    pub at: String,
    /// What it does.
    pub command: String,
    /// How it went at this site, before it was taken out there.
    pub status: RunStatus,
    /// What it printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// An operation that was held, and was submitted again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Adopted {
    /// The resource.
    pub resource: String,
    /// The operation that was held.
    pub operation: String,
    /// The new one.
    pub adopted: String,
}
