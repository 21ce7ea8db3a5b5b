//! Whom this site takes for whom: the sites in its configuration, and those of its federation.
//!
//! What must stay true: what the federation says of a key counts more than the configuration, so that a
//! site that was removed does not stay because somebody had once written it down.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use cheops_core::{
    id::{ResourceId, SiteId},
    trust::{PublicKey, Roster, Standing},
};

use super::{Identity, Known, Ledger, Signers};
use crate::config::{Config, Peer};

/// The key pair of this site, as it is whenever somebody asks: it may be renewed.
pub type Own = Arc<dyn Fn() -> Arc<Identity> + Send + Sync>;

/// The sites that are known here. All clones are the same.
#[derive(Clone)]
pub struct Members {
    shared: Arc<Shared>,
}

struct Shared {
    here: SiteId,
    identity: RwLock<Arc<Identity>>,
    named: BTreeMap<SiteId, Peer>,
    ledger: Ledger,
}

impl Members {
    /// Those in a configuration, and in a ledger, for the site with this key pair.
    pub fn new(config: &Config, identity: Identity, ledger: Ledger) -> Self {
        let (here, named) = (config.site.clone(), config.sites.clone());
        let identity = RwLock::new(Arc::new(identity));
        Self { shared: Arc::new(Shared { here, identity, named, ledger }) }
    }

    /// The name of this site.
    pub fn here(&self) -> &SiteId {
        &self.shared.here
    }

    /// The key pair of this site, as it is now.
    pub fn identity(&self) -> Arc<Identity> {
        self.shared.identity.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, for those who ask again each time.
    pub fn own(&self) -> Own {
        let members = self.clone();
        Arc::new(move || members.identity())
    }

    /// Uses another key pair from now on.
    pub fn renew(&self, identity: Arc<Identity>) {
        let mut own = self.shared.identity.write().unwrap_or_else(PoisonError::into_inner);
        *own = identity;
    }

    /// What was said about who belongs.
    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Whether there are others, or were: this site is not by itself.
    pub fn has_others(&self) -> bool {
        let joined = self.shared.ledger.read(|roster| roster.members().len() > 1);
        !self.shared.named.is_empty() || joined == Some(true)
    }

    /// The sites that were removed from the federation, and that are not known here in another way.
    pub fn removed(&self) -> BTreeSet<SiteId> {
        let removed = self.shared.ledger.read(Roster::removed).unwrap_or_default();
        let there = self.others();
        let gone = removed.into_iter().filter(|site| !there.contains_key(site));
        gone.filter(|site| *site != self.shared.here).collect()
    }

    /// The other sites: where they are, and by which key they are known.
    pub fn others(&self) -> BTreeMap<SiteId, Peer> {
        let Shared { here, named, ledger, .. } = &*self.shared;
        let mut others = named.clone();
        let _ = ledger.read(|roster| {
            others.retain(|_, peer| !is_out(roster, &peer.key));
            for (key, member) in roster.sites().filter(|(_, member)| member.site != *here) {
                let address = member.address.to_string();
                others.insert(member.site.clone(), Peer { address, key: *key });
            }
        });
        others
    }
}

impl Signers for Members {
    fn keys(&self, site: &SiteId) -> Vec<PublicKey> {
        let Shared { here, named, ledger, .. } = &*self.shared;
        let keys = ledger.read(|roster| {
            let its = roster.members().iter().filter(|(_, member)| member.site == *site);
            let mut its: Vec<_> = its.map(|(key, member)| (&member.standing, *key)).collect();
            its.sort_by_key(|(standing, _)| **standing != Standing::Belongs);
            its.into_iter().map(|(_, key)| key).collect::<Vec<_>>()
        });
        let mut keys = keys.unwrap_or_default();
        let own = (site == here).then(|| self.identity().public());
        let also = named.get(site).map(|peer| peer.key).into_iter().chain(own);
        keys.extend(also.filter(|key| !keys.contains(key)).collect::<Vec<_>>());
        keys
    }

    fn counts(&self, key: &PublicKey, site: &SiteId, resource: &ResourceId, number: u64) -> bool {
        let Shared { here, named, ledger, .. } = &*self.shared;
        let said = ledger.read(|roster| {
            roster.members().contains_key(key).then(|| roster.counts(key, site, resource, number))
        });
        said.flatten().unwrap_or_else(|| {
            named.get(site).is_some_and(|peer| peer.key == *key)
                || site == here && *key == self.identity().public()
        })
    }
}

impl Known for Members {
    fn site_of(&self, key: &PublicKey) -> Option<SiteId> {
        let Shared { named, ledger, .. } = &*self.shared;
        let said = ledger.read(|roster| {
            let known = roster.members().contains_key(key);
            let belongs = roster.sites().find(|(one, _)| *one == key);
            known.then(|| belongs.map(|(_, member)| member.site.clone()))
        });
        said.flatten().unwrap_or_else(|| {
            named.iter().find(|(_, peer)| peer.key == *key).map(|(site, _)| site.clone())
        })
    }
}

/// Whether a key was one of the federation, and is not any more.
fn is_out(roster: &Roster, key: &PublicKey) -> bool {
    roster.members().get(key).is_some_and(|member| member.standing != Standing::Belongs)
}
