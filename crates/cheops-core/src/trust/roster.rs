//! Who belongs to a federation: what its sites have said about that, and what it amounts to at one of them.
//!
//! Sites make *statements*: they admit a site, or remove one, or say what a person may do. A statement is
//! never changed and never taken back, and each site passes on to all others what it has heard. The
//! federation begins with one site, and is known by that site's key.
//!
//! A site may be removed because somebody has stolen its key. Whoever has heard of that listens to the key
//! no more, also not to what others pass on; but another site may not have heard of it yet, and listen. So
//! a removal says how far the remover knows what the removed one has said and recorded, which is its
//! *fence*. Each site that hears of the removal says how far it knew, too, and the furthest counts: what
//! anybody had taken in before is not lost, and what nobody had is never taken in.
//!
//! A site that renews its key has several, one after the other. Only the last one speaks; but a site is
//! removed with all that it has and had, or it would come back with another.
//!
//! A site that is let in again has a new key, and goes on from there. So whoever lets it in, after all have
//! said how far they knew it, *closes* the fences of its old keys first: they move no more, and should
//! somebody turn up who had taken in more of its records than that, it takes them out again. Otherwise what
//! it records from then on could not be told from what it had before.
//!
//! What must stay true:
//! - of what a removed key says, nothing counts beyond its fence, and no word of its own site moves that;
//! - all who belong come to know the same, in whatever order they hear of it; but of two that remove each
//!   other, each site listens to the one that it has heard first, until a person decides;
//! - a key that was removed does not come back: a site that is let in again has a new one;
//! - a name that a site has here is not given to another by what somebody says later, whatever time that
//!   has on it.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::iter::successors;

use super::{
    PublicKey,
    people::{Digest, Grant, People},
};
use crate::{
    id::{ResourceId, SiteId},
    time::{Millis, Timestamp},
};

/// How many statements that do not count are kept, in case that they will.
const MOST_HELD: usize = 4_096;
/// How often a site may have renewed its key beyond its fence, and is still taken for the one that was removed.
const MOST_RENEWALS: usize = 16;

/// What a site has said about who belongs. It was signed with the key that it is `by`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Statement {
    /// Who says it.
    pub by: PublicKey,
    /// The first of a key is 1, and there are no gaps.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// What.
    pub claim: Claim,
}

/// What a statement says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// A site belongs.
    Admit {
        /// Its name.
        site: SiteId,
        /// What it is recognised by.
        key: PublicKey,
        /// Where its agent listens for others.
        address: Box<str>,
    },
    /// The site that says this is recognised by another key from now on.
    Renew {
        /// The new one.
        key: PublicKey,
    },
    /// The agent of the site that says this listens elsewhere from now on.
    Move {
        /// Where.
        address: Box<str>,
    },
    /// A site does not belong any more.
    Remove {
        /// Its key.
        key: PublicKey,
        /// What the one who says this knows of it.
        fence: Fence,
    },
    /// The one who says this knew so much of a site when it heard that it was removed.
    Vouch {
        /// The site's key.
        key: PublicKey,
        /// What it knew.
        fence: Fence,
    },
    /// How far the records of a removed site count, for good: it is about to be let in again.
    Close {
        /// The site's key.
        key: PublicKey,
        /// How far.
        fence: Fence,
    },
    /// Somebody may do something, at all sites.
    Grant(Box<Grant>),
    /// Nobody may do anything with a token any more.
    Revoke {
        /// What the token is known by.
        digest: Digest,
        /// Since when.
        at: Millis,
    },
}

/// How far a key's words were known: what lies beyond does not count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fence {
    /// The number of its last statement.
    pub statements: u64,
    /// The number of its site's last record of each resource.
    pub records: BTreeMap<ResourceId, u64>,
}

impl Fence {
    /// Whether it lets in all that another does.
    pub fn covers(&self, other: &Self) -> bool {
        let known = |resource| self.records.get(resource).copied().unwrap_or(0);
        self.statements >= other.statements
            && other.records.iter().all(|(resource, &number)| known(resource) >= number)
    }

    /// What it lets in that another does not.
    #[must_use]
    pub fn beyond(mut self, other: &Self) -> Self {
        self.records.retain(|resource, number| !other.lets_in(resource, *number));
        self
    }

    /// Whether a record lies within it.
    fn lets_in(&self, resource: &ResourceId, number: u64) -> bool {
        self.records.get(resource).is_some_and(|&last| number <= last)
    }

    /// Lets in what either lets in.
    fn widen(&mut self, other: &Self) {
        self.statements = self.statements.max(other.statements);
        for (resource, &number) in &other.records {
            let known = self.records.entry(resource.clone()).or_default();
            *known = number.max(*known);
        }
    }
}

/// A site that belongs, or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub site: SiteId,
    /// Where its agent listens for others.
    pub address: Box<str>,
    /// Since when it belongs.
    pub since: Timestamp,
    /// Whether it still does.
    pub standing: Standing,
}

/// Whether a key is still that of a site that belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Belongs,
    /// Its site has another one now. What was signed with it still counts.
    Renewed {
        /// The other.
        to: PublicKey,
    },
    /// Its site was removed.
    Removed {
        /// By whom first.
        by: PublicKey,
        /// When.
        at: Timestamp,
        /// What of its words still counts.
        fence: Fence,
        /// When it was said how far its records count for good, and by whom, if it was.
        closed: Option<(Timestamp, PublicKey)>,
    },
}

/// What was said, as one site has heard it, and what it amounts to there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    root: PublicKey,
    members: BTreeMap<PublicKey, Member>,
    /// Which of those of one name is the site of that name.
    names: BTreeMap<SiteId, PublicKey>,
    /// The key that comes after each that was renewed, and the one that comes before.
    next: BTreeMap<PublicKey, PublicKey>,
    previous: BTreeMap<PublicKey, PublicKey>,
    /// Who has removed a key, and when: the first of all, also of one that nobody has let in yet.
    removals: BTreeMap<PublicKey, (Timestamp, PublicKey)>,
    /// How far a removed key was known, and by whom.
    fences: BTreeMap<PublicKey, BTreeMap<PublicKey, Fence>>,
    /// Who has said how far one counts for good, and when.
    closings: BTreeMap<PublicKey, BTreeMap<(Timestamp, PublicKey), Fence>>,
    people: People,
    /// What counts, in the order in which it was heard.
    heard: Vec<Statement>,
    /// How far each key was heard.
    known: BTreeMap<PublicKey, u64>,
    /// What does not count, or not yet: it comes before what it follows, or lies beyond a fence.
    held: BTreeMap<(PublicKey, u64), Statement>,
}

impl Roster {
    /// The roster of a federation that one site has begun.
    pub fn new(root: PublicKey, site: SiteId, address: Box<str>) -> Self {
        let (since, standing) = (Timestamp::default(), Standing::Belongs);
        Self {
            root,
            names: [(site.clone(), root)].into(),
            members: [(root, Member { site, address, since, standing })].into(),
            next: BTreeMap::new(),
            previous: BTreeMap::new(),
            removals: BTreeMap::new(),
            fences: BTreeMap::new(),
            closings: BTreeMap::new(),
            people: People::default(),
            heard: Vec::new(),
            known: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// The key of the site that it began with: what the federation is known by.
    pub fn root(&self) -> &PublicKey {
        &self.root
    }

    /// Hears a statement. Gives what counts from now on, in the order in which it does: often just that
    /// one; nothing if it was known, or does not count.
    pub fn hear(&mut self, statement: Statement) -> Vec<Statement> {
        let before = self.heard.len();
        let place = (statement.by, statement.number);
        // What counts at once has a place however much waits.
        let new = statement.number > self.heard_of(&statement.by);
        if new && (self.held.len() < MOST_HELD || self.listens_to(&place)) {
            self.held.entry(place).or_insert(statement);
        }
        while let Some(place) = self.held.keys().find(|place| self.listens_to(place)).copied() {
            if let Some(statement) = self.held.remove(&place) {
                self.known.insert(place.0, place.1);
                self.count(&statement);
                self.heard.push(statement);
            }
        }
        self.heard[before..].to_vec()
    }

    /// What counts, in the order in which it was heard: what to pass on, and to hear again in this order.
    pub fn heard(&self) -> &[Statement] {
        &self.heard
    }

    /// The number of the last statement of a key that counts; 0 if there is none.
    pub fn heard_of(&self, key: &PublicKey) -> u64 {
        self.known.get(key).copied().unwrap_or(0)
    }

    /// Who may do what, at all sites.
    pub fn people(&self) -> &People {
        &self.people
    }

    /// All that ever belonged, by their keys.
    pub fn members(&self) -> &BTreeMap<PublicKey, Member> {
        &self.members
    }

    /// Those that belong now. Two that were let in under one name at two sites that could not hear each
    /// other are not both sites of that name: the one that was heard of first is, until a person removes one of
    /// them.
    pub fn sites(&self) -> impl Iterator<Item = (&PublicKey, &Member)> {
        self.members.iter().filter(|(key, member)| self.holds_its_name(key, member))
    }

    fn holds_its_name(&self, key: &PublicKey, member: &Member) -> bool {
        member.standing == Standing::Belongs && self.names.get(&member.site) == Some(key)
    }

    /// The names of sites that were removed and have not come back.
    pub fn removed(&self) -> BTreeSet<SiteId> {
        let gone = self.members.values().filter(|member| member.standing.fence().is_some());
        let gone: BTreeSet<SiteId> = gone.map(|member| member.site.clone()).collect();
        let there: BTreeSet<&SiteId> = self.sites().map(|(_, member)| &member.site).collect();
        gone.into_iter().filter(|site| !there.contains(site)).collect()
    }

    /// The site that was removed with a key, or that says so itself: it may have renewed the key since, which
    /// lies beyond its fence and does not count, so that the new one is nobody's here.
    pub fn removed_with(&self, key: &PublicKey) -> Option<&SiteId> {
        let mut followed = BTreeSet::from([*key]);
        let mut ends = followed.clone();
        for _ in 0..=MOST_RENEWALS {
            let members = ends.iter().filter_map(|key| self.members.get(key));
            let gone = members.filter(|member| member.standing.fence().is_some());
            if let Some(member) = gone.min_by_key(|member| &member.site) {
                return Some(&member.site);
            }
            ends.retain(|key| !self.members.contains_key(key));
            let before = self.held.values().filter_map(|said| match &said.claim {
                Claim::Renew { key } if ends.contains(key) => Some(said.by),
                _ => None,
            });
            ends = before.filter(|by| followed.insert(*by)).collect();
        }
        None
    }

    /// Whether what a key says next would count.
    pub fn listens(&self, key: &PublicKey) -> bool {
        self.listens_to(&(*key, self.heard_of(key) + 1))
    }

    /// How far the records that were made with each removed key count, where that is said for good.
    pub fn closed(&self) -> BTreeMap<PublicKey, (&SiteId, &BTreeMap<ResourceId, u64>)> {
        let closed = self.members.iter().filter_map(|(key, member)| match &member.standing {
            Standing::Removed { fence, closed: Some(_), .. } => {
                Some((*key, (&member.site, &fence.records)))
            }
            _ => None,
        });
        closed.collect()
    }

    /// The keys of a site that were removed, and how far each counts, where that may still change.
    pub fn open_fences(&self, site: &SiteId) -> Vec<(PublicKey, Fence)> {
        let open = self.members.iter().filter_map(|(key, member)| match &member.standing {
            Standing::Removed { fence, closed: None, .. } if member.site == *site => {
                Some((*key, fence.clone()))
            }
            _ => None,
        });
        open.collect()
    }

    /// The sites that belong and have yet to say how far they knew one that was removed: before that, nobody
    /// knows where to draw the line.
    pub fn awaited_about(&self, site: &SiteId) -> BTreeSet<SiteId> {
        let open: Vec<PublicKey> = self.open_fences(site).into_iter().map(|(key, _)| key).collect();
        let has_said = |of: &SiteId, about: &PublicKey| {
            self.heard.iter().any(|said| {
                let is_its = self.members.get(&said.by).is_some_and(|by| by.site == *of);
                is_its
                    && matches!(&said.claim, Claim::Remove { key, .. } | Claim::Vouch { key, .. }
                        if key == about)
            })
        };
        let there = self.sites().map(|(_, member)| &member.site);
        let silent = |of: &&SiteId| !open.iter().all(|about| has_said(of, about));
        there.filter(silent).cloned().collect()
    }

    /// Whether a record of a site counts, if it was signed with this key.
    pub fn counts(
        &self,
        key: &PublicKey,
        site: &SiteId,
        resource: &ResourceId,
        number: u64,
    ) -> bool {
        let Some(member) = self.members.get(key).filter(|member| member.site == *site) else {
            return false;
        };
        match &member.standing {
            Standing::Belongs => self.holds_its_name(key, member),
            Standing::Renewed { .. } => true,
            Standing::Removed { fence, .. } => fence.lets_in(resource, number),
        }
    }

    /// Whether the statement with this number of a key is the next that counts.
    fn listens_to(&self, (key, number): &(PublicKey, u64)) -> bool {
        let Some(member) = self.members.get(key) else { return false };
        let fence = member.standing.fence();
        *number == self.heard_of(key) + 1
            && !self.next.contains_key(key)
            && fence.is_none_or(|fence| *number <= fence.statements)
    }

    /// Lets a statement count.
    fn count(&mut self, statement: &Statement) {
        let Some(by) = self.members.get(&statement.by).cloned() else { return };
        let at = statement.at;
        match &statement.claim {
            Claim::Admit { site, key, address } => {
                let (site, address) = (site.clone(), address.clone());
                self.admit(*key, Member { site, address, since: at, standing: Standing::Belongs });
            }
            // A key that is one of a site already does not become that of another.
            Claim::Renew { key } if self.members.contains_key(key) => {}
            Claim::Renew { key } => {
                self.next.insert(statement.by, *key);
                self.previous.insert(*key, statement.by);
                self.admit(*key, Member { standing: Standing::Belongs, ..by });
            }
            Claim::Move { address } => {
                if let Some(moved) = self.members.get_mut(&statement.by) {
                    moved.address.clone_from(address);
                }
            }
            Claim::Remove { key, fence } => {
                let removal = self.removals.entry(*key).or_insert((at, statement.by));
                *removal = (at, statement.by).min(*removal);
                self.widen(key, statement.by, fence);
            }
            Claim::Vouch { key, fence } => self.widen(key, statement.by, fence),
            Claim::Close { key, fence } => {
                let closings = self.closings.entry(*key).or_default();
                closings.insert((at, statement.by), fence.clone());
                self.settle(key);
            }
            Claim::Grant(grant) => {
                self.people.grant((**grant).clone());
            }
            Claim::Revoke { digest, at } => {
                self.people.revoke(*digest, *at);
            }
        }
    }

    /// Who was admitted first stays what it was.
    fn admit(&mut self, key: PublicKey, member: Member) {
        self.members.entry(key).or_insert(member);
        self.settle(&key);
    }

    fn widen(&mut self, key: &PublicKey, by: PublicKey, fence: &Fence) {
        self.fences.entry(*key).or_default().entry(by).or_default().widen(fence);
        self.settle(key);
    }

    /// All keys of the site that has one, from the first to the last.
    fn keys_of(&self, key: &PublicKey) -> Vec<PublicKey> {
        let first = successors(Some(*key), |key| self.previous.get(key).copied()).last();
        successors(first, |key| self.next.get(key).copied()).collect()
    }

    /// Finds out where a site stands, with all of its keys.
    fn settle(&mut self, key: &PublicKey) {
        let keys = self.keys_of(key);
        let Some(site) = self.members.get(key).map(|member| member.site.clone()) else { return };
        // What a site knows of itself is no news.
        let other = |by: &PublicKey| {
            !keys.contains(by) && self.members.get(by).is_none_or(|member| member.site != site)
        };
        let said = |key: &PublicKey| {
            let said = self.fences.get(key).into_iter().flatten();
            said.filter(|(by, _)| other(by)).map(|(_, fence)| fence)
        };
        let closed = |key: &PublicKey| {
            let said = self.closings.get(key).into_iter().flatten();
            said.filter(|((_, by), _)| other(by))
        };
        // Records are the site's, whichever of its keys they are signed with. Of two that close a fence, the
        // one counts that came first, wherever it was heard first.
        let closing = keys.iter().flat_map(closed).min_by_key(|(first, _)| *first);
        let all = || {
            let mut all = Fence::default();
            keys.iter().flat_map(said).for_each(|fence| all.widen(fence));
            all.records
        };
        let records = closing.map_or_else(all, |(_, fence)| fence.records.clone());
        // Who closes a fence removes: the statement that says so may be yet to come.
        let removals = keys.iter().filter_map(|key| self.removals.get(key));
        let removed = removals.chain(closing.map(|(first, _)| first)).min().copied();
        let closing = closing.map(|(first, _)| *first);
        let standings: Vec<Standing> = keys
            .iter()
            .map(|key| match (removed, self.next.get(key)) {
                (Some((at, by)), _) => {
                    // What was said about who belongs can't be taken out again.
                    let said = said(key).chain(closed(key).map(|(_, fence)| fence));
                    let statements = said.map(|fence| fence.statements).max().unwrap_or(0);
                    let fence = Fence { statements, records: records.clone() };
                    Standing::Removed { by, at, fence, closed: closing }
                }
                (None, Some(to)) => Standing::Renewed { to: *to },
                (None, None) => Standing::Belongs,
            })
            .collect();
        for (key, standing) in keys.iter().zip(standings) {
            if let Some(member) = self.members.get_mut(key) {
                member.standing = standing;
            }
        }
        self.name(site);
    }

    /// Finds out whose a name is: whoever had it keeps it while it belongs.
    fn name(&mut self, site: SiteId) {
        let belongs = |key: &PublicKey| {
            let member = self.members.get(key);
            member.is_some_and(|member| member.standing == Standing::Belongs)
        };
        let last = self.names.get(&site).and_then(|key| self.keys_of(key).pop());
        let others =
            self.members.iter().filter(|(key, member)| member.site == site && belongs(key));
        let first =
            || others.min_by_key(|(key, member)| (member.since, **key)).map(|(key, _)| *key);
        match last.filter(belongs).or_else(first) {
            Some(key) => self.names.insert(site, key),
            None => self.names.remove(&site),
        };
    }
}

impl Standing {
    /// What still counts, if not all does.
    fn fence(&self) -> Option<&Fence> {
        match self {
            Self::Removed { fence, .. } => Some(fence),
            Self::Belongs | Self::Renewed { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
