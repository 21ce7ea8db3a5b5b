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
mod tests {
    use alloc::{
        format,
        string::{String, ToString},
        vec,
    };

    use proptest::prelude::*;

    use super::*;

    fn key(letter: char) -> PublicKey {
        PublicKey::from_bytes([u8::try_from(letter).unwrap_or_default(); 32])
    }

    /// A statement in short: `a1@5 admits b`, `b1@7 removes a up to 2`, `c1@9 vouches for a up to 3`.
    fn statement(text: &str) -> Statement {
        let words: Vec<&str> = text.split(' ').collect();
        let (who, at) = words[0].split_once('@').unwrap();
        let (by, number) = who.split_at(1);
        let named = |at: usize| key(words[at].chars().next().unwrap());
        let up_to = |at: usize| {
            let statements = words.get(at + 2).map_or(0, |last| last.parse().unwrap());
            Fence { statements, ..Fence::default() }
        };
        let claim = match words[1] {
            "admits" => {
                let site = format!("site-{}", words[2]).parse().unwrap();
                Claim::Admit { site, key: named(2), address: words[2].into() }
            }
            "renews" => Claim::Renew { key: named(2) },
            "moves" => Claim::Move { address: words[2].into() },
            "removes" => Claim::Remove { key: named(2), fence: up_to(3) },
            "vouches" => Claim::Vouch { key: named(3), fence: up_to(4) },
            "closes" => Claim::Close { key: named(2), fence: up_to(3) },
            other => panic!("{other}"),
        };
        Statement {
            by: key(by.chars().next().unwrap()),
            number: number.parse().unwrap(),
            at: Timestamp::at(Millis(at.parse().unwrap())),
            claim,
        }
    }

    fn roster<'a>(statements: impl IntoIterator<Item = &'a Statement>) -> Roster {
        let mut roster = Roster::new(key('a'), "site-a".parse().unwrap(), "a".into());
        for statement in statements {
            roster.hear(statement.clone());
        }
        roster
    }

    /// The first letters of the keys that belong.
    fn belong(roster: &Roster) -> String {
        roster.sites().map(|(key, _)| char::from(key.as_bytes()[0])).collect()
    }

    #[test]
    fn who_belongs() {
        for (story, statements, expected) in [
            ("a site alone", vec![], "a"),
            ("one joins, and lets another in", vec!["a1@1 admits b", "b1@2 admits c"], "abc"),
            ("nobody lets itself in", vec!["b1@1 admits b"], "a"),
            ("strangers let nobody in", vec!["x1@1 admits y"], "a"),
            ("what came before is awaited", vec!["a2@2 admits c"], "a"),
            ("it comes", vec!["a2@2 admits c", "b1@1 admits d", "a1@1 admits b"], "abcd"),
            ("one is removed", vec!["a1@1 admits b", "a2@2 removes b up to 0"], "a"),
            ("the first one, too", vec!["a1@1 admits b", "b1@2 removes a up to 1"], "b"),
            (
                "whom the removed one had let in stays",
                vec!["a1@1 admits b", "b1@2 admits c", "a2@3 removes b up to 1"],
                "ac",
            ),
            (
                "also if only somebody else had heard of it",
                vec!["a1@1 admits b", "b1@2 admits c", "a2@3 removes b up to 0"],
                "ac",
            ),
            (
                "whom it lets in after does not get in",
                vec!["a1@1 admits b", "a2@3 removes b up to 0", "b1@2 admits c"],
                "a",
            ),
            (
                "nor can it remove who has removed it",
                vec!["a1@1 admits b", "a2@3 removes b up to 0", "b1@0 removes a up to 0"],
                "a",
            ),
            (
                "unless somebody who belongs had heard of it",
                vec![
                    "a1@1 admits b",
                    "a2@2 admits d",
                    "a3@4 removes b up to 0",
                    "b1@3 admits c",
                    "d1@5 vouches for b up to 1",
                ],
                "acd",
            ),
            (
                "an accomplice of the removed one vouches in vain",
                vec![
                    "a1@1 admits b",
                    "a2@4 removes b up to 0",
                    "b1@3 admits c",
                    "c1@3 vouches for b up to 1",
                    "b2@4 vouches for b up to 9",
                ],
                "a",
            ),
            (
                "a removed key does not come back",
                vec!["a1@1 admits b", "a2@2 removes b up to 0", "a3@3 admits b"],
                "a",
            ),
            (
                "with another key it does",
                vec!["a1@1 admits b", "a2@2 removes b up to 0", "a3@3 admits B"],
                "Ba",
            ),
            (
                "who closes a fence removes",
                vec!["a1@1 admits b", "a2@2 closes b up to 0", "b1@3 admits c"],
                "a",
            ),
        ] {
            tell(story, &statements, expected);
        }
    }

    #[test]
    fn keys_that_are_renewed_belong_together() {
        for (story, statements, expected) in [
            ("a key is renewed", vec!["a1@1 admits b", "b1@2 renews B"], "Ba"),
            (
                "whoever has the old key can do nothing any more",
                vec!["a1@1 renews A", "a2@3 removes A up to 0", "a3@4 admits b"],
                "A",
            ),
            (
                "a key is renewed once",
                vec!["a1@1 admits b", "b1@2 renews B", "b2@3 renews C", "b3@4 renews D"],
                "Ba",
            ),
            (
                "keys that were made in advance are of no use",
                vec![
                    "a1@1 admits b",
                    "b1@2 renews c",
                    "c1@2 renews d",
                    "a2@3 removes d up to 0",
                    "d1@4 renews e",
                    "c2@4 renews f",
                    "b2@4 renews g",
                ],
                "a",
            ),
            (
                "also if the remover had not heard of them",
                vec![
                    "a1@1 admits b",
                    "a2@1 admits z",
                    "b1@2 renews c",
                    "c1@2 renews d",
                    "a3@3 removes b up to 0",
                ],
                "az",
            ),
            (
                "or others hear of them after",
                vec![
                    "a1@1 admits b",
                    "a2@1 admits z",
                    "a3@3 removes b up to 0",
                    "z1@4 vouches for b up to 1",
                    "b1@2 renews c",
                    "c1@2 admits d",
                ],
                "az",
            ),
            (
                "a removal that is heard before what let the site in is not forgotten",
                vec!["a1@1 admits b", "a2@3 removes c up to 0", "b1@2 admits c"],
                "ab",
            ),
            (
                "nobody vouches for itself, with whatever key",
                vec![
                    "a1@1 admits b",
                    "b1@2 vouches for b up to 9",
                    "b2@2 vouches for c up to 9",
                    "b3@2 renews c",
                    "c1@2 vouches for c up to 9",
                    "a2@3 removes c up to 1",
                    "c2@4 admits d",
                ],
                "a",
            ),
            (
                "nobody takes another with it",
                vec!["a1@1 admits b", "a2@1 admits c", "b1@2 renews c", "a3@3 removes b up to 1"],
                "ac",
            ),
        ] {
            tell(story, &statements, expected);
        }
    }

    /// Hears statements, in this order and again, and says who belongs.
    fn tell(story: &str, statements: &[&str], expected: &str) {
        let statements: Vec<Statement> = statements.iter().copied().map(statement).collect();
        let heard = roster(&statements);
        assert_eq!(belong(&heard), expected, "{story}");
        assert_eq!(roster(heard.heard()).members, heard.members, "{story}, heard again");
    }

    #[test]
    fn of_two_with_one_name_the_first_that_was_heard_of_has_it_until_it_is_removed() {
        let admits = |text: &str| {
            let mut said = statement(text);
            if let Claim::Admit { site, .. } = &mut said.claim {
                *site = "twin".parse().unwrap();
            }
            said
        };
        let said = [
            statement("a1@1 admits b"),
            admits("a2@3 admits d"),
            // Whatever time it has on it.
            admits("b1@0 admits e"),
            statement("d1@4 renews f"),
            statement("a3@5 removes f up to 0"),
        ];
        let (twin, web) = ("twin".parse().unwrap(), "web".parse().unwrap());
        for (heard, expected, holder) in [(3, "abd", 'd'), (4, "abf", 'f'), (5, "abe", 'e')] {
            let roster = roster(&said[..heard]);
            assert_eq!(belong(&roster), expected);
            for letter in ['e', 'f'] {
                let counts = roster.counts(&key(letter), &twin, &web, 1);
                assert_eq!(counts, letter == holder, "{letter} of {expected}");
            }
        }
    }

    #[test]
    fn records_count_up_to_the_fence() {
        let [web, other]: [ResourceId; 2] = ["web", "db"].map(|id| id.parse().unwrap());
        let site: SiteId = "site-b".parse().unwrap();
        let fence = |number| Fence { statements: 0, records: [(web.clone(), number)].into() };
        let says = |by, number, claim| Statement {
            by: key(by),
            number,
            at: Timestamp::at(Millis(number)),
            claim,
        };
        let mut roster = roster(&[statement("a1@1 admits b"), statement("a2@2 admits c")]);
        let counts = |roster: &Roster, resource: &ResourceId, number| {
            roster.counts(&key('b'), &site, resource, number)
        };
        assert!(counts(&roster, &web, 9) && !roster.counts(&key('c'), &site, &web, 1));
        roster.hear(says('a', 3, Claim::Remove { key: key('b'), fence: fence(4) }));
        assert!(counts(&roster, &web, 4) && !counts(&roster, &web, 5));
        assert!(!counts(&roster, &other, 1));
        roster.hear(says('c', 1, Claim::Vouch { key: key('b'), fence: fence(6) }));
        assert!(counts(&roster, &web, 6) && !counts(&roster, &web, 7));
        // What it says of itself after that changes nothing.
        roster.hear(says('b', 1, Claim::Vouch { key: key('b'), fence: fence(100) }));
        assert!(!counts(&roster, &web, 7));
    }

    #[test]
    fn what_does_not_count_keeps_out_nothing_that_does() {
        let mut roster = roster(&[statement("a1@1 admits b"), statement("a2@2 removes b up to 0")]);
        for number in 1..=MOST_HELD as u64 + 1 {
            roster.hear(Statement { number, ..statement("b1@3 moves away") });
        }
        assert_eq!(roster.hear(statement("a3@4 admits c")).len(), 1);
        assert_eq!(belong(&roster), "ac");
    }

    #[test]
    fn a_fence_that_is_closed_moves_no_more() {
        let web: ResourceId = "web".parse().unwrap();
        let site: SiteId = "site-b".parse().unwrap();
        let fence = |number| Fence { statements: 0, records: [(web.clone(), number)].into() };
        let says = |by, number, at, claim| Statement {
            by: key(by),
            number,
            at: Timestamp::at(Millis(at)),
            claim,
        };
        let begin = ["a1@1 admits b", "a2@1 admits c"].map(statement);
        let said = [
            says('a', 3, 2, Claim::Remove { key: key('b'), fence: fence(4) }),
            says('a', 4, 5, Claim::Close { key: key('b'), fence: fence(4) }),
            says('a', 5, 6, Claim::Admit { site: site.clone(), key: key('B'), address: "".into() }),
            says('c', 1, 7, Claim::Vouch { key: key('b'), fence: fence(6) }),
            says('c', 2, 8, Claim::Close { key: key('b'), fence: fence(9) }),
            says('B', 1, 9, Claim::Vouch { key: key('b'), fence: fence(12) }),
        ];
        // In whatever order the words of different sites are heard.
        for order in [[0, 1, 2, 3, 4, 5], [3, 4, 0, 1, 2, 5], [0, 3, 1, 4, 2, 5]] {
            let mut roster = roster(&begin);
            for n in order {
                roster.hear(said[n].clone());
            }
            let counts = |number| roster.counts(&key('b'), &site, &web, number);
            assert!(counts(4) && !counts(5), "{order:?}");
            assert!(roster.counts(&key('B'), &site, &web, 100));
            assert_eq!(roster.removed(), BTreeSet::new(), "it is back");
            assert_eq!(roster.closed()[&key('b')].1[&web], 4);
            assert_eq!(roster.open_fences(&site), vec![]);
        }
    }

    #[test]
    fn the_line_is_drawn_when_all_that_belong_have_said_how_far_they_knew_the_site() {
        let site: SiteId = "site-x".parse().unwrap();
        let names = |roster: &Roster| -> Vec<String> {
            roster.awaited_about(&site).iter().map(ToString::to_string).collect()
        };
        let begin = ["a1@1 admits b", "a2@1 admits c", "a3@1 admits x", "b1@1 renews B"];
        let mut heard = roster(&begin.map(statement));
        assert!(names(&heard).is_empty(), "it was not removed");
        for (said, waits) in [
            ("a4@2 removes x up to 0", vec!["site-b", "site-c"]),
            ("B1@3 vouches for x up to 0", vec!["site-c"]),
            ("a5@4 admits d", vec!["site-c", "site-d"]),
            ("d1@5 vouches for x up to 0", vec!["site-c"]),
            // One that is gone, too, is not waited for.
            ("a6@6 removes c up to 0", vec![]),
        ] {
            heard.hear(statement(said));
            assert_eq!(names(&heard), waits, "{said}");
        }
    }

    #[test]
    fn no_earlier_key_of_a_removed_site_counts_beyond_its_fence() {
        let web: ResourceId = "web".parse().unwrap();
        let site: SiteId = "site-b".parse().unwrap();
        let mut roster = roster(&["a1@1 admits b", "b1@2 renews B"].map(statement));
        assert!(roster.counts(&key('b'), &site, &web, 9));
        let fence = Fence { statements: 0, records: [(web.clone(), 4)].into() };
        let removes = Claim::Remove { key: key('B'), fence };
        roster.hear(Statement { claim: removes, ..statement("a2@3 admits x") });
        assert_eq!(roster.removed(), [site.clone()].into());
        for letter in ['b', 'B'] {
            assert!(roster.counts(&key(letter), &site, &web, 4));
            assert!(!roster.counts(&key(letter), &site, &web, 5));
        }
    }

    fn letter() -> impl Strategy<Value = char> {
        prop_oneof![Just('a'), Just('b'), Just('c'), Just('d'), Just('e')]
    }

    fn anything() -> impl Strategy<Value = Statement> {
        let claim = (letter(), 0..4_u64, 0..5_u8).prop_map(|(other, last, sort)| {
            let (key, fence) = (key(other), Fence { statements: last, ..Fence::default() });
            let site = format!("site-{other}").parse().unwrap();
            match sort {
                0 | 1 => Claim::Admit { site, key, address: "".into() },
                2 => Claim::Remove { key, fence },
                3 => Claim::Vouch { key, fence },
                _ => Claim::Renew { key },
            }
        });
        (letter(), 1..4_u64, 0..20_u64, claim).prop_map(|(by, number, at, claim)| Statement {
            by: key(by),
            number,
            at: Timestamp::at(Millis(at)),
            claim,
        })
    }

    /// A thief's words: beyond what anybody has heard of its key.
    fn lies(roster: &Roster, thief: PublicKey, lies: &[Statement]) -> Vec<Statement> {
        let fence = roster.members()[&thief].standing.fence().unwrap().statements;
        let from = fence.max(roster.heard_of(&thief)) + 1;
        let said =
            |(number, said): (u64, &Statement)| Statement { by: thief, number, ..said.clone() };
        (from..).zip(lies).map(said).collect()
    }

    proptest! {
        #[test]
        fn what_counts_can_be_heard_again(all in prop::collection::vec(anything(), 0..16)) {
            let heard = roster(&all);
            let again = roster(heard.heard());
            prop_assert_eq!(again.members(), heard.members());
            prop_assert_eq!(again.heard(), heard.heard());
        }

        #[test]
        fn nothing_that_a_removed_key_says_beyond_its_fence_counts(
            statements in prop::collection::vec(anything(), 0..16),
            more in prop::collection::vec(anything(), 1..6),
        ) {
            let mut before = roster(&statements);
            // What may still come of what was said before is another matter.
            before.held.clear();
            for (thief, member) in before.members() {
                if member.standing.fence().is_none() {
                    continue;
                }
                let mut after = before.clone();
                for lie in lies(&before, *thief, &more) {
                    prop_assert_eq!(after.hear(lie), vec![]);
                }
                prop_assert_eq!(before.members(), after.members());
            }
        }

        /// Three sites that have heard a removal at different times tell each other all that they know.
        #[test]
        fn sites_that_heard_of_a_removal_at_different_times_come_to_know_the_same(
            said in 0..4_usize, heard in prop::array::uniform3(0..4_usize), seed: u64
        ) {
            let begin = ["a1@1 admits b", "a2@1 admits c", "a3@1 admits x"].map(statement);
            let words = ["x1@2 admits y", "x2@3 admits z", "x3@4 moves elsewhere"].map(statement);
            let removes = Statement {
                claim: Claim::Remove {
                    key: key('x'),
                    fence: Fence { statements: heard[0].min(said) as u64, ..Fence::default() },
                },
                ..statement("a4@5 removes x up to 0")
            };
            let mut sites: Vec<Roster> = heard
                .iter()
                .map(|&heard| roster(begin.iter().chain(&words[..heard.min(said)])))
                .collect();
            let names = ['a', 'b', 'c'];
            for (site, name) in sites.iter_mut().zip(names) {
                let known = site.heard_of(&key('x'));
                site.hear(removes.clone());
                if name != 'a' {
                    let fence = Fence { statements: known, ..Fence::default() };
                    let number = site.heard_of(&key(name)) + 1;
                    let claim = Claim::Vouch { key: key('x'), fence };
                    site.hear(Statement { by: key(name), number, claim, ..removes.clone() });
                }
            }
            let mut random = seed;
            let mut all: Vec<Statement> = sites.iter().flat_map(|site| site.heard().to_vec()).collect();
            for site in &mut sites {
                for n in (1..all.len()).rev() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    all.swap(n, usize::try_from(random >> 33).unwrap() % (n + 1));
                }
                for statement in &all {
                    site.hear(statement.clone());
                }
                // The thief goes on, and nobody listens.
                site.hear(Statement { number: 9, ..words[0].clone() });
            }
            prop_assert_eq!(sites[0].members(), sites[1].members());
            prop_assert_eq!(sites[1].members(), sites[2].members());
            let furthest = *heard.iter().max().unwrap();
            prop_assert_eq!(sites[0].heard_of(&key('x')), furthest.min(said) as u64);
        }
    }
}
