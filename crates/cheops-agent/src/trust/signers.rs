//! Whose signature counts for what.
//!
//! What must stay true: a key vouches for records of the site that it belongs to, and for no others; a
//! site whose key is not known here has none.

use cheops_core::{
    id::{ResourceId, SiteId},
    trust::PublicKey,
};

/// Who knows which keys belong to which site.
pub trait Signers: Send + Sync + 'static {
    /// Whether a record of a site counts if it was signed with this key.
    fn counts(&self, key: &PublicKey, site: &SiteId, resource: &ResourceId, number: u64) -> bool;

    /// The keys that a site has or has had, the last one first. Few.
    fn keys(&self, site: &SiteId) -> Vec<PublicKey>;
}
