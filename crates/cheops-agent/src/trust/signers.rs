//! Whose signature counts for what.
//!
//! What must stay true: a key vouches for records of the site that it belongs to, and for no others; a
//! site whose key is not known here has none.

use std::collections::BTreeMap;

use cheops_core::{
    id::{ResourceId, SiteId},
    trust::PublicKey,
};

use crate::config::Config;

/// Who knows which keys belong to which site.
pub trait Signers: Send + Sync + 'static {
    /// Whether a record of a site counts if it was signed with this key.
    fn counts(&self, key: &PublicKey, site: &SiteId, resource: &ResourceId, number: u64) -> bool;

    /// The keys that a site has or has had, the last one first. Few.
    fn keys(&self, site: &SiteId) -> Vec<PublicKey>;
}

/// The keys that the configuration names, and this site's own.
#[derive(Debug)]
pub struct Configured(BTreeMap<SiteId, PublicKey>);

impl Configured {
    /// The keys of a configuration, of a site with this key.
    pub fn new(config: &Config, own: PublicKey) -> Self {
        let peers = config.sites.iter().map(|(site, peer)| (site.clone(), peer.key));
        Self(peers.chain([(config.site.clone(), own)]).collect())
    }
}

impl Signers for Configured {
    fn counts(&self, key: &PublicKey, site: &SiteId, _: &ResourceId, _: u64) -> bool {
        self.0.get(site) == Some(key)
    }

    fn keys(&self, site: &SiteId) -> Vec<PublicKey> {
        self.0.get(site).copied().into_iter().collect()
    }
}
