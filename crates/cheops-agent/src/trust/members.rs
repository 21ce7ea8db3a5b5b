//! Whom this site takes for whom: the sites in its configuration, and those of its federation.
//!
//! What must stay true: what the federation says of a key or a name counts more than the configuration, so that a
//! site that was removed does not stay because somebody had once written it down, nor come back because somebody
//! writes it down with another key; a site that is named without a key has those that its certificate has vouched
//! for, and gets no new ones once the federation has said anything of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use cheops_core::{
    id::{ResourceId, SiteId},
    trust::{PublicKey, Roster, Standing},
};
use tokio::sync::watch;

use super::{Identity, Known, Ledger, Signers, Voucher, introduced::Introduced};
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
    introduced: Introduced,
}

impl Members {
    /// Those in a configuration, and in a ledger, for the site with this key pair.
    pub fn new(config: &Config, identity: Identity, ledger: Ledger) -> Self {
        let (here, named) = (config.site.clone(), config.sites.clone());
        let identity = RwLock::new(Arc::new(identity));
        let introduced = Introduced::open(&config.data);
        Self { shared: Arc::new(Shared { here, identity, named, ledger, introduced }) }
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

    /// The sites in the configuration that were removed from the federation: they have to join to come back.
    pub fn shut_out(&self) -> BTreeSet<SiteId> {
        let removed = self.removed();
        self.shared.named.keys().filter(|site| removed.contains(*site)).cloned().collect()
    }

    /// Whether a site belongs to the federation by what was said there, or did.
    pub fn has_joined(&self, site: &SiteId) -> bool {
        self.shared.ledger.read(|roster| is_told_of(roster, site)).unwrap_or(false)
    }

    /// The site that was removed with a key, or that one with this key says it is.
    pub fn removed_with(&self, key: &PublicKey, said: Option<&SiteId>) -> Option<SiteId> {
        let named = self.shared.named.iter().find(|(_, peer)| peer.key == Some(*key));
        let look = |roster: &Roster| {
            let said = said.into_iter().chain(named.map(|(site, _)| site));
            let mut out = said.filter(|site| is_out_by_name(roster, site));
            roster.removed_with(key).or_else(|| out.next()).cloned()
        };
        self.shared.ledger.read(look).flatten()
    }

    /// The other sites: where they are, and by which key they are known.
    pub fn others(&self) -> BTreeMap<SiteId, Peer> {
        let Shared { here, named, ledger, introduced, .. } = &*self.shared;
        let mut others = named.clone();
        for (site, peer) in &mut others {
            peer.key = peer.key.or_else(|| introduced.keys(site).first().copied());
        }
        let _ = ledger.read(|roster| {
            others.retain(|site, peer| {
                !is_out_by_name(roster, site) && !peer.key.is_some_and(|key| is_out(roster, &key))
            });
            for (key, member) in roster.sites().filter(|(_, member)| member.site != *here) {
                let address = member.address.to_string();
                others.insert(member.site.clone(), Peer { address, key: Some(*key) });
            }
        });
        others
    }

    /// The key that a site has to show. None where its certificate is enough.
    pub fn expected(&self, site: &SiteId) -> Option<PublicKey> {
        let free = self.may_introduce(site);
        self.others().get(site).and_then(|peer| peer.key).filter(|_| !free)
    }

    /// Whether some sites are known by what they have said of their keys.
    pub fn has_introduced(&self) -> bool {
        self.shared.named.values().any(|peer| peer.key.is_none())
    }

    /// Which keys of which sites were learned.
    pub fn introduced(&self) -> Vec<(String, [u8; 32])> {
        self.shared.introduced.heard()
    }

    /// What vouches for the keys that one lacks who knows these.
    pub fn vouchers(&self, heard: &[(String, [u8; 32])]) -> Vec<Voucher> {
        self.shared.introduced.beyond(heard)
    }

    /// Counts what was learned, so that one can wait for more.
    pub fn introductions(&self) -> watch::Receiver<u64> {
        self.shared.introduced.changes()
    }

    /// Whether the key that is vouched for is one that could be learned.
    pub fn lacks(&self, voucher: &Voucher) -> bool {
        let learnable = |(site, key): &(SiteId, PublicKey)| {
            self.may_introduce(site)
                && self.is_free(key, site)
                && !self.shared.introduced.keys(site).contains(key)
        };
        voucher.claimed().as_ref().is_ok_and(learnable)
    }

    /// Takes note of the key of a site that somebody else has met. It was checked.
    pub fn hear_of(&self, site: &SiteId, key: &PublicKey, voucher: &Voucher) {
        if self.may_introduce(site) && self.is_free(key, site) {
            self.learn(site, key, voucher, false);
        }
    }

    fn learn(&self, site: &SiteId, key: &PublicKey, voucher: &Voucher, met: bool) {
        if let Err(error) = self.shared.introduced.learn(site, *key, voucher, met) {
            tracing::warn!(%site, "its key can't be written down: {error}");
        }
    }

    /// Whether a key is nobody's but this site's, as far as is known.
    fn is_free(&self, key: &PublicKey, site: &SiteId) -> bool {
        let Shared { named, ledger, introduced, .. } = &*self.shared;
        let told = ledger.read(|roster| roster.members().contains_key(key)).unwrap_or(false);
        let taken = named.values().any(|peer| peer.key == Some(*key))
            || introduced.sites(key).iter().any(|other| other != site);
        !told && !taken && *key != self.identity().public()
    }

    /// Whether a record of a site that was removed lies before its fence, by whichever key: also if the site is
    /// back, with a key that is said. Of others, all do.
    fn is_within(&self, site: &SiteId, resource: &ResourceId, number: u64) -> bool {
        let within = |roster: &Roster| {
            let its = roster.members().iter().filter(|(_, member)| member.site == *site);
            let mut removed = its
                .filter(|(_, member)| matches!(member.standing, Standing::Removed { .. }))
                .peekable();
            removed.peek().is_none()
                || removed.any(|(key, _)| roster.counts(key, site, resource, number))
        };
        self.shared.ledger.read(within).unwrap_or(true)
    }

    /// Whether a site may say itself which key it has.
    fn may_introduce(&self, site: &SiteId) -> bool {
        let named = self.shared.named.get(site);
        named.is_some_and(|peer| peer.key.is_none()) && !self.has_joined(site)
    }
}

impl Signers for Members {
    fn keys(&self, site: &SiteId) -> Vec<PublicKey> {
        let Shared { here, named, ledger, introduced, .. } = &*self.shared;
        let keys = ledger.read(|roster| {
            let its = roster.members().iter().filter(|(_, member)| member.site == *site);
            let mut its: Vec<_> = its.map(|(key, member)| (&member.standing, *key)).collect();
            its.sort_by_key(|(standing, _)| **standing != Standing::Belongs);
            its.into_iter().map(|(_, key)| key).collect::<Vec<_>>()
        });
        let mut keys = keys.unwrap_or_default();
        let own = (site == here).then(|| self.identity().public());
        let also = named.get(site).and_then(|peer| peer.key).into_iter().chain(own);
        let learns = named.get(site).is_some_and(|peer| peer.key.is_none());
        let learned = learns.then(|| introduced.keys(site)).into_iter().flatten();
        let also = also.chain(learned);
        keys.extend(also.filter(|key| !keys.contains(key)).collect::<Vec<_>>());
        keys
    }

    fn counts(&self, key: &PublicKey, site: &SiteId, resource: &ResourceId, number: u64) -> bool {
        let Shared { here, named, ledger, introduced, .. } = &*self.shared;
        let said = ledger.read(|roster| {
            roster.members().contains_key(key).then(|| roster.counts(key, site, resource, number))
        });
        said.flatten().unwrap_or_else(|| {
            let known = named.get(site).is_some_and(|peer| match peer.key {
                Some(named) => named == *key,
                None => introduced.keys(site).contains(key),
            });
            known && self.is_within(site, resource, number)
                || site == here && *key == self.identity().public()
        })
    }
}

impl Known for Members {
    fn site_of(&self, key: &PublicKey) -> Option<SiteId> {
        let Shared { named, ledger, introduced, .. } = &*self.shared;
        let said = ledger.read(|roster| {
            let known = roster.members().contains_key(key);
            let belongs = roster.sites().find(|(one, _)| *one == key);
            known.then(|| belongs.map(|(_, member)| member.site.clone()))
        });
        said.flatten().unwrap_or_else(|| {
            let by_name =
                named.iter().find(|(site, peer)| peer.key == Some(*key) && !self.has_joined(site));
            let learned =
                || introduced.sites(key).into_iter().find(|site| self.may_introduce(site));
            by_name.map(|(site, _)| site.clone()).or_else(learned)
        })
    }

    fn recognises(&self, site: &SiteId, key: &PublicKey, voucher: &Voucher) -> bool {
        let introduced = &self.shared.introduced;
        if !self.may_introduce(site) || !self.is_free(key, site) {
            return self.site_of(key).as_ref() == Some(site);
        }
        self.learn(site, key, voucher, true);
        introduced.keys(site).contains(key)
    }
}

/// Whether a name is that of a site of the federation, or was.
fn is_told_of(roster: &Roster, site: &SiteId) -> bool {
    roster.members().values().any(|member| member.site == *site)
}

/// Whether a name was that of a site of the federation, and is not any more.
fn is_out_by_name(roster: &Roster, site: &SiteId) -> bool {
    let mut its = roster.members().values().filter(|member| member.site == *site).peekable();
    its.peek().is_some() && its.all(|member| member.standing != Standing::Belongs)
}

/// Whether a key was one of the federation, and is not any more.
fn is_out(roster: &Roster, key: &PublicKey) -> bool {
    roster.members().get(key).is_some_and(|member| member.standing != Standing::Belongs)
}

#[cfg(test)]
mod tests {
    use cheops_core::{
        time::Millis,
        trust::{Claim, Fence},
    };

    use super::*;

    fn key(seed: u8) -> PublicKey {
        identity(seed).public()
    }

    fn identity(seed: u8) -> Identity {
        Identity::from_seed(&[seed; 32]).unwrap()
    }

    /// A site that names site2 without a key, and has begun a federation.
    fn members(data: &std::path::Path) -> (Members, SiteId, Voucher) {
        let mut config = Config::new("site1".parse().unwrap(), data);
        let site: SiteId = "site2".parse().unwrap();
        config.sites.insert(site.clone(), Peer { address: "h:1".to_owned(), key: None });
        let ledger = Ledger::open(data).unwrap();
        ledger.found(&identity(1), &config.site, "h:0").unwrap();
        let stamp = postcard::from_bytes(&[0, 0, 0]).unwrap();
        let voucher = Voucher::new(&site, &key(2), &[], stamp);
        (Members::new(&config, identity(1), ledger), site, voucher)
    }

    #[test]
    fn a_site_that_is_named_without_a_key_has_those_that_it_says() {
        let data = tempfile::tempdir().unwrap();
        let (members, site, voucher) = members(data.path());
        let resource: ResourceId = "x".parse().unwrap();
        assert_eq!((members.expected(&site), members.others()[&site].key), (None, None));
        assert!(!members.counts(&key(2), &site, &resource, 1));
        assert!(members.lacks(&voucher));
        assert!(members.recognises(&site, &key(2), &voucher));
        assert!(!members.lacks(&voucher));
        // Nobody else has that key, nor this site's, nor a name that is not known.
        let [three, nobody] = ["site3", "site4"].map(|name| name.parse::<SiteId>().unwrap());
        assert!(!members.recognises(&three, &key(2), &voucher));
        assert!(!members.recognises(&nobody, &key(4), &voucher));
        assert!(!members.recognises(&site, &key(1), &voucher));
        // It was set up again: what it has signed before still counts.
        assert!(members.recognises(&site, &key(3), &voucher));
        for known in [key(2), key(3)] {
            assert_eq!(members.site_of(&known), Some(site.clone()));
            assert!(members.counts(&known, &site, &resource, 1));
        }
        assert_eq!(members.keys(&site), [key(3), key(2)]);
    }

    #[test]
    fn what_the_federation_says_of_a_site_counts_more_than_what_it_says_itself() {
        let data = tempfile::tempdir().unwrap();
        let (members, site, voucher) = members(data.path());
        let resource: ResourceId = "x".parse().unwrap();
        assert!(members.recognises(&site, &key(2), &voucher));
        let say = |claim| members.ledger().say(&identity(1), Millis(1), claim).unwrap();
        say(Claim::Admit { site: site.clone(), key: key(5), address: "h:2".into() });
        assert_eq!(members.expected(&site), Some(key(5)));
        assert!(members.recognises(&site, &key(5), &voucher));
        assert!(!members.recognises(&site, &key(2), &voucher), "it has another key now");
        assert!(!members.recognises(&site, &key(6), &voucher), "and can't say a new one");
        assert!(members.counts(&key(2), &site, &resource, 9));
        let fence = Fence { statements: 0, records: [(resource.clone(), 7)].into() };
        say(Claim::Remove { key: key(5), fence });
        assert_eq!(members.others().get(&site), None);
        for old in [key(2), key(5)] {
            assert!(!members.recognises(&site, &old, &voucher));
            assert!(members.counts(&old, &site, &resource, 7));
            assert!(!members.counts(&old, &site, &resource, 8), "no key leads past the fence");
        }
    }

    #[test]
    fn a_site_that_was_removed_does_not_come_back_by_the_configuration_with_whatever_key() {
        let data = tempfile::tempdir().unwrap();
        let mut config = Config::new("site1".parse().unwrap(), data.path());
        let [two, three] = ["site2", "site3"].map(|name| name.parse::<SiteId>().unwrap());
        let named = |seed| Peer { address: "h:2".to_owned(), key: Some(key(seed)) };
        config.sites.extend([(two.clone(), named(5)), (three.clone(), named(6))]);
        let ledger = Ledger::open(data.path()).unwrap();
        ledger.found(&identity(1), &config.site, "h:0").unwrap();
        let members = Members::new(&config, identity(1), ledger);
        let resource: ResourceId = "x".parse().unwrap();
        assert_eq!(members.site_of(&key(5)), Some(two.clone()));
        let say = |claim| members.ledger().say(&identity(1), Millis(1), claim).unwrap();
        let fence = || Fence { statements: 0, records: [(resource.clone(), 7)].into() };
        say(Claim::Admit { site: two.clone(), key: key(2), address: "h:2".into() });
        say(Claim::Remove { key: key(2), fence: fence() });
        let is_out = || {
            assert_eq!(members.site_of(&key(5)), None);
            assert!(members.counts(&key(5), &two, &resource, 7));
            assert!(!members.counts(&key(5), &two, &resource, 8), "no key leads past the fence");
        };
        is_out();
        assert_eq!(members.others().keys().collect::<Vec<_>>(), [&three]);
        assert_eq!(members.shut_out(), [two.clone()].into());
        assert_eq!(members.removed_with(&key(2), None), Some(two.clone()));
        assert_eq!(members.removed_with(&key(5), None), Some(two.clone()));
        assert_eq!(members.removed_with(&key(9), Some(&two)), Some(two.clone()));
        assert_eq!(members.removed_with(&key(9), Some(&three)), None);
        assert_eq!(members.removed_with(&key(6), None), None);
        // It has joined again: the key in the configuration is still not one of its keys.
        say(Claim::Close { key: key(2), fence: fence() });
        say(Claim::Admit { site: two.clone(), key: key(3), address: "h:2".into() });
        is_out();
        assert_eq!(members.others()[&two].key, Some(key(3)));
        assert!(members.shut_out().is_empty());
    }
}
