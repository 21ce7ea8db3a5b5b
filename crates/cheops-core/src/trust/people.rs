//! What people and programs may ask for: roles, who was given one, and who has lost it.
//!
//! A *grant* gives a name a role, until it expires. It is known by the digest of a secret, its token; the
//! secret itself is nowhere but with whom it was given to. Grants and revocations travel to all sites.
//!
//! What must stay true:
//! - what a role allows depends on nothing but the role and what is asked for;
//! - grants and revocations only ever come to be known: in whatever order a site hears of them, it arrives at
//!   the same, and a digest that was revoked stays revoked;
//! - of two grants for one digest, which no honest site makes, all sites take the same one.

use alloc::{borrow::ToOwned, collections::BTreeMap, format, string::String, vec::Vec};
use core::fmt;

use crate::{
    id::{Author, Kind, NameError, ResourceId, SiteId},
    pattern::Pattern,
    time::Millis,
};

/// What a token is known by.
pub type Digest = [u8; 32];

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look at everything, and change nothing.
    Viewer,
    /// The same, and ask for operations.
    Operator(Reach),
    /// Everything.
    Admin,
}

/// Which operations an operator may ask for. An empty list stands for all there are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Reach {
    /// Only those of these resources.
    pub resources: Vec<Pattern>,
    /// Only those of these kinds.
    pub kinds: Vec<Pattern>,
    /// Only those of resources all of whose sites are among these.
    pub sites: Vec<Pattern>,
}

/// What somebody asks for.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// To look at something.
    Look,
    /// Something that comes before an operation, and does nothing by itself.
    Prepare,
    /// An operation.
    Operation {
        /// Of this resource.
        resource: &'a ResourceId,
        /// Of this kind.
        kind: &'a Kind,
        /// The sites of the resource.
        sites: &'a [SiteId],
    },
    /// To set commands of a resource's configuration.
    Commands {
        /// The fields: `Show` and so on.
        fields: &'a [&'a str],
    },
    /// What concerns the site itself, or who may do what.
    Manage,
}

/// Why somebody may not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Viewers only look.
    #[error("a viewer may look at everything, and change nothing")]
    OnlyViews,
    /// It is for those who look after the sites.
    #[error("this is for the role admin")]
    NotAdmin,
    /// Another resource, kind or site than the role is for.
    #[error("this operator may ask for operations {allowed}, and {asked} is not among them")]
    OutOfReach {
        /// What is allowed.
        allowed: String,
        /// What was asked for.
        asked: String,
    },
    /// A command of a resource can do anything, so it is not for those who may do certain things.
    #[error(
        "this operator may ask for operations of the kinds {kinds}, and may not change {fields} of a resource, whose commands can do anything"
    )]
    SetsCommands {
        /// The kinds that the role is for.
        kinds: String,
        /// The fields that would change.
        fields: String,
    },
}

impl Role {
    /// Its word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator(_) => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether a role allows what is asked for.
pub fn may(role: &Role, asked: &Asked<'_>) -> Result<(), Refused> {
    match (role, asked) {
        (_, Asked::Look) | (Role::Admin, _) | (Role::Operator(_), Asked::Prepare) => Ok(()),
        (Role::Viewer | Role::Operator(_), Asked::Manage) => Err(Refused::NotAdmin),
        (Role::Viewer, _) => Err(Refused::OnlyViews),
        (Role::Operator(reach), Asked::Operation { resource, kind, sites }) => {
            holds("on resources", &reach.resources, resource.as_str(), "the resource")?;
            holds("of the kinds", &reach.kinds, kind.as_str(), "the kind")?;
            for site in *sites {
                holds("at the sites", &reach.sites, site.as_str(), "the site")?;
            }
            Ok(())
        }
        (Role::Operator(reach), Asked::Commands { fields }) => {
            if fields.is_empty() || !reach.is_held_to_kinds() {
                return Ok(());
            }
            let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
            Err(Refused::SetsCommands { kinds: written(&reach.kinds), fields: fields.join(", ") })
        }
    }
}

/// Whether a text is among those that an operator may name.
fn holds(which: &str, patterns: &[Pattern], text: &str, what: &str) -> Result<(), Refused> {
    if patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(text)) {
        return Ok(());
    }
    Err(Refused::OutOfReach {
        allowed: format!("{which} {}", written(patterns)),
        asked: format!("{what} `{text}`"),
    })
}

/// Patterns, as they were written.
fn written(patterns: &[Pattern]) -> String {
    let patterns: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
    patterns.join(", ")
}

impl Reach {
    /// Whether there are kinds that are not allowed.
    pub fn is_held_to_kinds(&self) -> bool {
        let all = |pattern: &Pattern| pattern.as_str() == "*";
        !self.kinds.is_empty() && !self.kinds.iter().any(all)
    }
}

/// The name that a token was made for. It stands as the author of what is asked for with it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Author);

/// Names of authors that no token can have, since others are called so.
const TAKEN: [&str; 4] = ["anonymous", "anyone", "local", "mesh"];

impl Name {
    /// The name as an author.
    pub fn author(&self) -> &Author {
        &self.0
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl core::str::FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = |why| NameError {
            what: "name for a token",
            text: text.chars().take(40).collect(),
            why,
        };
        if text.len() > 64 {
            return Err(wrong("it is at most 64 bytes long"));
        }
        // What has a colon is an author of another sort, like `unix:root`.
        if !text.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@')) {
            return Err(wrong("only letters, digits, `.`, `-`, `_` and `@` are allowed"));
        }
        if TAKEN.contains(&text) {
            return Err(wrong("others are called so"));
        }
        let author = text.parse().map_err(|error: NameError| wrong(error.why))?;
        Ok(Self(author))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Somebody was given a role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// Who.
    pub name: Name,
    /// What the token is known by.
    pub digest: Digest,
    /// What they may do.
    pub role: Role,
    /// Since when.
    pub issued: Millis,
    /// Until when.
    pub expires: Millis,
}

impl Grant {
    /// Whether it counts at this time.
    pub fn holds_at(&self, now: Millis) -> bool {
        now < self.expires
    }

    /// What people call it by, if its name is not enough: the first letters of its digest.
    pub fn id(&self) -> String {
        let byte = |byte: &u8| format!("{byte:02x}");
        self.digest.iter().take(6).map(byte).collect()
    }

    /// Whether somebody means it who says this: its name, or its id.
    pub fn is_called(&self, text: &str) -> bool {
        self.name.as_str() == text || self.id() == text
    }
}

/// Why a token does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// Nobody was given it.
    Unknown,
    /// It was taken back.
    Revoked,
    /// Its time is over.
    Expired,
}

/// Who was given a role, and who has lost it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct People {
    grants: BTreeMap<Digest, Grant>,
    revoked: BTreeMap<Digest, Millis>,
}

impl People {
    /// Takes in a grant; whether it is news.
    pub fn grant(&mut self, grant: Grant) -> bool {
        match self.grants.get_mut(&grant.digest) {
            Some(known) if *known <= grant => false,
            Some(known) => {
                *known = grant;
                true
            }
            None => {
                self.grants.insert(grant.digest, grant);
                true
            }
        }
    }

    /// Takes in a revocation; whether it is news.
    pub fn revoke(&mut self, digest: Digest, at: Millis) -> bool {
        match self.revoked.get_mut(&digest) {
            Some(known) if *known <= at => false,
            Some(known) => {
                *known = at;
                true
            }
            None => {
                self.revoked.insert(digest, at);
                true
            }
        }
    }

    /// Takes in all that another site knows.
    pub fn merge(&mut self, other: &Self) {
        for grant in other.grants.values() {
            self.grant(grant.clone());
        }
        for (digest, at) in &other.revoked {
            self.revoke(*digest, *at);
        }
    }

    /// The grant of a token that counts at this time.
    pub fn find(&self, digest: &Digest, now: Millis) -> Result<&Grant, Invalid> {
        if self.revoked.contains_key(digest) {
            return Err(Invalid::Revoked);
        }
        let grant = self.grants.get(digest).ok_or(Invalid::Unknown)?;
        if grant.holds_at(now) { Ok(grant) } else { Err(Invalid::Expired) }
    }

    /// All grants, and when each was revoked.
    pub fn all(&self) -> impl Iterator<Item = (&Grant, Option<Millis>)> {
        self.grants.values().map(|grant| (grant, self.revoked.get(&grant.digest).copied()))
    }

    /// All revocations.
    pub fn revoked(&self) -> impl Iterator<Item = (&Digest, Millis)> {
        self.revoked.iter().map(|(digest, at)| (digest, *at))
    }

    /// How many grants and revocations are known.
    pub fn len(&self) -> usize {
        self.grants.len() + self.revoked.len()
    }

    /// Whether nobody was ever given anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets what can't count any more: grants that expired before this time, with their revocations. A
    /// site that hears of such a grant again finds that it is over.
    pub fn forget(&mut self, before: Millis) {
        let Self { grants, revoked } = self;
        grants.retain(|digest, grant| {
            let keep = grant.expires >= before;
            if !keep {
                revoked.remove(digest);
            }
            keep
        });
    }
}

/// What an operator may do, in words: `web-*; kinds set, inc; sites edge-*`.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |patterns: &[Pattern]| {
            let patterns: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
            if patterns.is_empty() { "all".to_owned() } else { patterns.join(", ") }
        };
        let words =
            [("resources", &self.resources), ("kinds", &self.kinds), ("sites", &self.sites)]
                .map(|(what, patterns)| format!("{what} {}", list(patterns)));
        f.pad(&words.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString as _, vec};

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::new(*text)).collect()
    }

    fn operator(resources: &[&str], kinds: &[&str], sites: &[&str]) -> Role {
        Role::Operator(Reach {
            resources: patterns(resources),
            kinds: patterns(kinds),
            sites: patterns(sites),
        })
    }

    #[test]
    fn what_each_role_may_do() {
        let (resource, kind) = ("web-1".parse().unwrap(), "set".parse().unwrap());
        let sites = ["edge-1", "edge-2"].map(|site| site.parse().unwrap());
        let op = Asked::Operation { resource: &resource, kind: &kind, sites: &sites };
        let commands = Asked::Commands { fields: &["Show", "Reset"] };
        let viewer = Role::Viewer;
        let any = operator(&[], &[], &[]);
        for (role, asked, expected) in [
            (&viewer, Asked::Look, Ok(())),
            (&viewer, Asked::Prepare, Err("change nothing")),
            (&viewer, op, Err("change nothing")),
            (&viewer, Asked::Manage, Err("admin")),
            (&any, Asked::Look, Ok(())),
            (&any, Asked::Prepare, Ok(())),
            (&any, op, Ok(())),
            (&any, Asked::Manage, Err("admin")),
            (&operator(&["web-*"], &["set", "inc"], &["edge-*"]), op, Ok(())),
            (&operator(&["db-*", "web-1"], &[], &[]), op, Ok(())),
            (&operator(&["db-*"], &[], &[]), op, Err("the resource `web-1`")),
            (&operator(&["web-*"], &["inc"], &[]), op, Err("the kind `set`")),
            (&operator(&[], &[], &["edge-1"]), op, Err("the site `edge-2`")),
            (&viewer, commands, Err("change nothing")),
            (&any, commands, Ok(())),
            (&operator(&["web-*"], &[], &["edge-*"]), commands, Ok(())),
            (&operator(&[], &["*"], &[]), commands, Ok(())),
            (
                &operator(&[], &["set", "s*"], &[]),
                commands,
                Err("set, s*, and may not change `Show`"),
            ),
            (&operator(&[], &["set"], &[]), Asked::Commands { fields: &[] }, Ok(())),
            (&Role::Admin, commands, Ok(())),
            (&Role::Admin, Asked::Look, Ok(())),
            (&Role::Admin, op, Ok(())),
            (&Role::Admin, Asked::Manage, Ok(())),
        ] {
            match (may(role, &asked), expected) {
                (Ok(()), Ok(())) => {}
                (Err(why), Err(expected)) => {
                    assert!(why.to_string().contains(expected), "{role:?} {asked:?}: {why}");
                }
                (got, _) => panic!("{role:?} {asked:?}: {got:?}"),
            }
        }
    }

    #[test]
    fn a_token_is_never_called_like_something_else() {
        for (text, ok) in [
            ("ada", true),
            ("ci-bot.2", true),
            ("ada@example.org", true),
            ("Zoë", true),
            ("", false),
            ("local", false),
            ("mesh", false),
            ("anyone", false),
            ("unix:root", false),
            ("local:ada", false),
            ("a b", false),
            ("a/b", false),
            ("a\n", false),
        ] {
            assert_eq!(text.parse::<Name>().is_ok(), ok, "{text:?}");
        }
        assert!("x".repeat(65).parse::<Name>().is_err());
    }

    fn grant(byte: u8, name: &str, expires: u64) -> Grant {
        Grant {
            name: name.parse().unwrap(),
            digest: [byte; 32],
            role: Role::Viewer,
            issued: Millis(1),
            expires: Millis(expires),
        }
    }

    /// What a site may hear.
    #[derive(Debug, Clone)]
    enum Said {
        Granted(Grant),
        Revoked(Digest, Millis),
    }

    fn heard(said: &[Said]) -> People {
        let mut people = People::default();
        for said in said {
            match said.clone() {
                Said::Granted(grant) => people.grant(grant),
                Said::Revoked(digest, at) => people.revoke(digest, at),
            };
        }
        people
    }

    #[test]
    fn the_order_in_which_a_site_hears_does_not_matter() {
        let said = [
            Said::Granted(grant(1, "ada", 10)),
            Said::Granted(grant(2, "bob", 20)),
            Said::Granted(grant(2, "eve", 99)),
            Said::Revoked([1; 32], Millis(5)),
            Said::Revoked([1; 32], Millis(4)),
            Said::Revoked([3; 32], Millis(4)),
            Said::Granted(grant(3, "carl", 50)),
        ];
        let expected = heard(&said);
        let mut order = said.to_vec();
        for turn in 0..said.len() {
            order.rotate_left(1);
            assert_eq!(heard(&order), expected);
            order.reverse();
            assert_eq!(heard(&order), expected);
            order.reverse();
            // Two sites that have heard parts of it, and then of each other.
            let (one, other) = order.split_at(turn);
            let (mut one, mut other) = (heard(one), heard(other));
            let before = one.clone();
            one.merge(&other);
            other.merge(&before);
            assert_eq!(one, expected);
            assert_eq!(other, expected);
        }
    }

    #[test]
    fn what_is_revoked_stays_so_and_what_expires_is_over() {
        let mut people = heard(&[
            Said::Revoked([3; 32], Millis(1)),
            Said::Granted(grant(1, "ada", 10)),
            Said::Granted(grant(2, "bob", 20)),
            Said::Granted(grant(3, "carl", 50)),
        ]);
        people.revoke([2; 32], Millis(9));
        people.grant(grant(2, "bob", 90));
        for (byte, now, expected) in [
            (1, 9, Ok("ada")),
            (1, 10, Err(Invalid::Expired)),
            (2, 9, Err(Invalid::Revoked)),
            (3, 9, Err(Invalid::Revoked)),
            (4, 9, Err(Invalid::Unknown)),
        ] {
            let found = people.find(&[byte; 32], Millis(now)).map(|grant| grant.name.as_str());
            assert_eq!(found, expected, "{byte} at {now}");
        }
        people.forget(Millis(11));
        let left: Vec<&str> = people.all().map(|(grant, _)| grant.name.as_str()).collect();
        assert_eq!(left, vec!["bob", "carl"]);
    }

    #[test]
    fn a_grant_is_called_by_its_name_or_its_id() {
        let grant = grant(0xab, "ada", 1);
        assert_eq!(grant.id(), "abababababab");
        assert!(grant.is_called("ada") && grant.is_called("abababababab"));
        assert!(!grant.is_called("abab"));
    }
}
