//! Who belongs to a federation: what its sites have said about that, and what it amounts to.
//!
//! Sites make *statements*: they admit a site, or remove one. A statement is never changed and never
//! taken back; all sites come to have all of them, in whatever order, and each works out for itself who
//! belongs. The federation begins with one site, and is known by that site's key.
//!
//! A site may be removed because somebody has stolen its key. Whatever is said with that key from then on
//! must not count, though a site that has not heard of the removal may still listen to it. So a removal
//! says how far the remover knows what the removed one has said and recorded, which is its *fence*. Others
//! that know more when they hear of the removal say so, too, and the furthest counts: what anybody had
//! taken in before is not lost, and what nobody had is never taken in.
//!
//! What must stay true:
//! - who belongs depends on the set of statements alone, not on the order in which they came;
//! - of what a removed key says, nothing counts beyond its fence;
//! - a key that was removed does not come back: a site that is let in again has a new one;
//! - of two that remove each other, the one counts that has belonged for longer, so that one stays.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::PublicKey;
use crate::{
    id::{ResourceId, SiteId},
    time::Timestamp,
};

/// How often all are heard, at the most. It takes one time more for each removal that concerns an earlier
/// one; only sites that remove each other all round could take more, and then all still stop at the same.
const ROUNDS: usize = 16;

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
    },
}

/// All that was said, and what it amounts to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    root: PublicKey,
    statements: BTreeMap<(PublicKey, u64), Statement>,
    members: BTreeMap<PublicKey, Member>,
}

impl Roster {
    /// The roster of a federation that one site has begun.
    pub fn new(root: PublicKey, site: SiteId, address: Box<str>) -> Self {
        let first = Member {
            site,
            address,
            since: Timestamp::default(),
            standing: Standing::Belongs,
        };
        Self { root, statements: BTreeMap::new(), members: [(root, first)].into() }
    }

    /// The key of the site that it began with: what the federation is known by.
    pub fn root(&self) -> &PublicKey {
        &self.root
    }

    /// Takes in a statement. Whether it was new.
    ///
    /// Of two with one number, which an honest site never makes, the smaller is kept, so that all sites
    /// keep the same.
    pub fn take(&mut self, statement: Statement) -> bool {
        let place = (statement.by, statement.number);
        if self.statements.get(&place).is_some_and(|known| *known <= statement) {
            return false;
        }
        self.statements.insert(place, statement);
        self.members = self.worked_out();
        true
    }

    /// All that was said.
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.statements.values()
    }

    /// The number of the next statement of a key.
    pub fn next_number(&self, key: &PublicKey) -> u64 {
        self.said(key).count() as u64 + 1
    }

    /// All that ever belonged, by their keys.
    pub fn members(&self) -> &BTreeMap<PublicKey, Member> {
        &self.members
    }

    /// Those that belong now.
    pub fn sites(&self) -> impl Iterator<Item = (&PublicKey, &Member)> {
        self.members.iter().filter(|(_, member)| member.standing == Standing::Belongs)
    }

    /// Whether a record of a site counts, if it was signed with this key.
    pub fn counts(&self, key: &PublicKey, site: &SiteId, resource: &ResourceId, number: u64) -> bool {
        let Some(member) = self.members.get(key).filter(|member| member.site == *site) else {
            return false;
        };
        match &member.standing {
            Standing::Belongs | Standing::Renewed { .. } => true,
            Standing::Removed { fence, .. } => {
                fence.records.get(resource).is_some_and(|&last| number <= last)
            }
        }
    }

    /// What a key has said, without gaps.
    fn said(&self, key: &PublicKey) -> impl Iterator<Item = &Statement> {
        let all = self.statements.range((*key, 0)..=(*key, u64::MAX)).map(|(_, said)| said);
        (1..).zip(all).take_while(|(number, said)| *number == said.number).map(|(_, said)| said)
    }

    /// Who belongs. Those who have belonged for longer are heard first; since a removal concerns also what
    /// was heard before it, all are heard again with the fences that were found, until nothing changes.
    fn worked_out(&self) -> BTreeMap<PublicKey, Member> {
        let mut fences = BTreeMap::new();
        let mut members = BTreeMap::new();
        for _ in 0..ROUNDS {
            members = self.heard(&fences);
            let found = self.fences(&members);
            if found == fences {
                break;
            }
            fences = found;
        }
        for (key, fence) in fences {
            if let Some(Standing::Removed { fence: known, .. }) =
                members.get_mut(&key).map(|member| &mut member.standing)
            {
                *known = fence;
            }
        }
        members
    }

    /// What comes of hearing all, once.
    fn heard(&self, fences: &BTreeMap<PublicKey, Fence>) -> BTreeMap<PublicKey, Member> {
        let mut heard = Heard { fences, members: BTreeMap::new(), waiting: BTreeSet::new() };
        if let Some(first) = self.members.get(&self.root) {
            let first = Member { standing: Standing::Belongs, ..first.clone() };
            heard.admit(self.root, first);
        }
        while let Some((_, key)) = heard.waiting.pop_first() {
            for statement in self.said(&key) {
                if !heard.listens_to(statement) {
                    break;
                }
                heard.hear(statement);
            }
        }
        heard.members
    }

    /// The fences of those that are removed: what the removers knew, and those who vouch and belong.
    fn fences(&self, members: &BTreeMap<PublicKey, Member>) -> BTreeMap<PublicKey, Fence> {
        let removed = |key: &PublicKey| match members.get(key).map(|member| &member.standing) {
            Some(Standing::Removed { fence, .. }) => Some(fence),
            _ => None,
        };
        let mut fences: BTreeMap<PublicKey, Fence> =
            members.keys().filter_map(|key| Some((*key, removed(key)?.clone()))).collect();
        let vouchers = members.keys().filter(|key| removed(key).is_none());
        for statement in vouchers.flat_map(|key| self.said(key)) {
            if let Claim::Vouch { key, fence } = &statement.claim
                && let Some(known) = fences.get_mut(key)
            {
                known.widen(fence);
            }
        }
        fences
    }
}

/// What was heard so far.
struct Heard<'a> {
    /// What is known of removals from hearing all before.
    fences: &'a BTreeMap<PublicKey, Fence>,
    members: BTreeMap<PublicKey, Member>,
    /// Who is still to be heard, the one that has belonged for longest first.
    waiting: BTreeSet<(Timestamp, PublicKey)>,
}

impl Heard<'_> {
    fn listens_to(&self, statement: &Statement) -> bool {
        let removed = match self.members.get(&statement.by).map(|member| &member.standing) {
            Some(Standing::Removed { fence, .. }) => Some(fence),
            _ => None,
        };
        let fences = [removed, self.fences.get(&statement.by)];
        let furthest = fences.into_iter().flatten().map(|fence| fence.statements).max();
        furthest.is_none_or(|last| statement.number <= last)
    }

    fn admit(&mut self, key: PublicKey, member: Member) {
        // Who was admitted first stays what it was.
        if !self.members.contains_key(&key) {
            self.waiting.insert((member.since, key));
            self.members.insert(key, member);
        }
    }

    fn hear(&mut self, statement: &Statement) {
        let Some(by) = self.members.get(&statement.by).cloned() else { return };
        // Nobody has belonged for longer than who has let it in.
        let since = statement.at.max(by.since);
        match &statement.claim {
            Claim::Admit { site, key, address } => {
                let (site, address) = (site.clone(), address.clone());
                self.admit(*key, Member { site, address, since, standing: Standing::Belongs });
            }
            Claim::Renew { key } => {
                self.admit(*key, Member { standing: Standing::Belongs, since, ..by });
                if let Some(old) = self.members.get_mut(&statement.by)
                    && old.standing == Standing::Belongs
                {
                    old.standing = Standing::Renewed { to: *key };
                }
            }
            Claim::Move { address } => {
                if let Some(moved) = self.members.get_mut(&statement.by) {
                    moved.address.clone_from(address);
                }
            }
            Claim::Remove { key, fence } => {
                let Some(member) = self.members.get_mut(key) else { return };
                if let Standing::Removed { fence: known, .. } = &mut member.standing {
                    known.widen(fence);
                } else {
                    let (by, at, fence) = (statement.by, statement.at, fence.clone());
                    member.standing = Standing::Removed { by, at, fence };
                }
            }
            // They count when it is clear who belongs.
            Claim::Vouch { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::String, vec};

    use proptest::prelude::*;

    use super::*;
    use crate::time::Millis;

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
            other => panic!("{other}"),
        };
        Statement {
            by: key(by.chars().next().unwrap()),
            number: number.parse().unwrap(),
            at: Timestamp::at(Millis(at.parse().unwrap())),
            claim,
        }
    }

    fn roster(statements: &[Statement]) -> Roster {
        let mut roster = Roster::new(key('a'), "site-a".parse().unwrap(), "a".into());
        for statement in statements {
            roster.take(statement.clone());
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
            ("one is removed", vec!["a1@1 admits b", "a2@2 removes b up to 0"], "a"),
            (
                "the first one, too",
                vec!["a1@1 admits b", "b1@2 removes a up to 1"],
                "b",
            ),
            (
                "whom the removed one had let in stays",
                vec!["a1@1 admits b", "b1@2 admits c", "a2@3 removes b up to 1"],
                "ac",
            ),
            (
                "whom it lets in after does not get in",
                vec!["a1@1 admits b", "a2@3 removes b up to 0", "b1@2 admits c"],
                "a",
            ),
            (
                "nor does it help to say that it was long ago",
                vec!["a1@5 admits b", "a2@6 removes b up to 0", "b1@0 admits c", "c1@0 removes a up to 0"],
                "a",
            ),
            (
                "unless somebody had heard of it",
                vec!["a1@1 admits b", "a2@2 admits d", "a3@4 removes b up to 0", "b1@3 admits c", "d1@5 vouches for b up to 1"],
                "acd",
            ),
            (
                "an accomplice of the removed one vouches in vain",
                vec!["a1@1 admits b", "a2@4 removes b up to 0", "b1@3 admits c", "c1@3 vouches for b up to 1"],
                "a",
            ),
            (
                "of two that remove each other one stays: that which came first",
                vec!["a1@1 admits b", "b1@2 admits c", "b2@9 removes c up to 0", "c1@4 removes b up to 1"],
                "ab",
            ),
            (
                "what a removed one had decided without anybody's knowledge does not count",
                vec!["a1@1 admits b", "b1@2 admits c", "b2@3 removes a up to 1", "a2@3 removes c up to 0"],
                "bc",
            ),
            ("a removed key does not come back", vec!["a1@1 admits b", "a2@2 removes b up to 0", "a3@3 admits b"], "a"),
            ("with another key it does", vec!["a1@1 admits b", "a2@2 removes b up to 0", "a3@3 admits B"], "Ba"),
            ("a key is renewed", vec!["a1@1 admits b", "b1@2 renews B"], "Ba"),
        ] {
            let statements: Vec<Statement> = statements.into_iter().map(statement).collect();
            assert_eq!(belong(&roster(&statements)), expected, "{story}");
            let backwards: Vec<Statement> = statements.into_iter().rev().collect();
            assert_eq!(belong(&roster(&backwards)), expected, "{story}, backwards");
        }
    }

    #[test]
    fn records_count_up_to_the_fence() {
        let (web, other): (ResourceId, ResourceId) = ("web".parse().unwrap(), "db".parse().unwrap());
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
        roster.take(says('a', 3, Claim::Remove { key: key('b'), fence: fence(4) }));
        assert!(counts(&roster, &web, 4) && !counts(&roster, &web, 5) && !counts(&roster, &other, 1));
        roster.take(says('c', 1, Claim::Vouch { key: key('b'), fence: fence(6) }));
        assert!(counts(&roster, &web, 6) && !counts(&roster, &web, 7));
        // What it says of itself after that changes nothing.
        roster.take(says('b', 1, Claim::Vouch { key: key('b'), fence: fence(100) }));
        assert!(!counts(&roster, &web, 7));
    }

    #[test]
    fn of_two_statements_with_one_number_all_keep_the_same() {
        let two = [statement("a1@1 admits b"), statement("a1@1 admits c")];
        let other = [two[1].clone(), two[0].clone()];
        assert_eq!(roster(&two), roster(&other));
        let mut roster = roster(&two);
        assert!(!roster.take(two[0].clone()), "nothing new");
        assert_eq!(roster.next_number(&key('a')), 2);
    }

    fn anything() -> impl Strategy<Value = Statement> {
        let letter = prop_oneof![Just('a'), Just('b'), Just('c'), Just('d'), Just('e')];
        let claim = (letter.clone(), 0..4_u64, 0..5_u8).prop_map(|(other, last, sort)| {
            let (key, fence) = (key(other), Fence { statements: last, ..Fence::default() });
            let site = format!("site-{other}").parse().unwrap();
            match sort {
                0 | 1 => Claim::Admit { site, key, address: "".into() },
                2 => Claim::Remove { key, fence },
                3 => Claim::Vouch { key, fence },
                _ => Claim::Renew { key },
            }
        });
        (letter, 1..4_u64, 0..20_u64, claim).prop_map(|(by, number, at, claim)| Statement {
            by: key(by),
            number,
            at: Timestamp::at(Millis(at)),
            claim,
        })
    }

    proptest! {
        #[test]
        fn the_order_makes_no_difference(
            (statements, shuffled) in prop::collection::vec(anything(), 0..16)
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle()))
        ) {
            prop_assert_eq!(roster(&statements), roster(&shuffled));
        }

        #[test]
        fn nothing_that_a_removed_key_says_beyond_its_fence_counts(
            statements in prop::collection::vec(anything(), 0..16),
            more in prop::collection::vec(anything(), 1..6),
        ) {
            let before = roster(&statements);
            for (key, member) in before.members() {
                let Standing::Removed { fence, .. } = &member.standing else { continue };
                let from = fence.statements.max(before.next_number(key) - 1);
                let mut after = before.clone();
                for (number, said) in (from + 1..).zip(&more) {
                    after.take(Statement { by: *key, number, ..said.clone() });
                }
                prop_assert_eq!(before.members(), after.members());
            }
        }
    }
}
