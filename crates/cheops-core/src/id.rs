//! Names: sites, services, resources, kinds, authors, keys and operations.
//!
//! Each name has one door, its [`FromStr`]: a value of one of these types is well formed, however
//! it came in. Names are shared text (`Arc<str>`), so that a clone costs a counter and not a copy.

use alloc::{borrow::ToOwned, collections::BTreeSet, string::String, sync::Arc};
use core::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
};

use crate::few::Few;

/// A text that is not a well-formed name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {article} {what}: {why}", article = article(what))]
pub struct NameError {
    /// What the text was meant to be: "site name", "resource id"…
    pub what: &'static str,
    /// The text as it came in, shortened to what fits on a line.
    pub text: String,
    /// The rule that it breaks, as a sentence without its full stop.
    pub why: &'static str,
}

fn article(what: &str) -> &'static str {
    if what.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// Declares a name: a newtype over shared text whose only constructor is `FromStr`.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:path) => {
        $(#[$doc])*
        #[derive(Clone, Eq)]
        pub struct $name(Arc<str>);

        // Most names that are compared share their text, which then need not be read.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                match $rule(text) {
                    Ok(()) => Ok(Self(text.into())),
                    Err(why) => Err(NameError { what: $what, text: shorten(text), why }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

name! {
    /// The name of a site: `site1`, `DC 1`, `edge-7.example.org`.
    SiteId, "site name", word
}
name! {
    /// The name of a service of the application: `image`, `compute`.
    ServiceName, "service name", word
}
name! {
    /// The id of a resource. It is safe in the path of a URL as it is.
    ResourceId, "resource id", url_safe
}
name! {
    /// The operator's name for what an operation does: `set`, `inc`, `apply`.
    Kind, "kind", label
}
impl Kind {
    /// The kind of the operations that delete their resource.
    pub const DELETE: &'static str = "delete";

    /// Whether an operation of this kind deletes its resource.
    pub fn is_delete(&self) -> bool {
        self.as_str() == Self::DELETE
    }
}

name! {
    /// Who asked for an operation.
    Author, "author", label
}
impl Author {
    /// Somebody who has not said who it is.
    pub fn anonymous() -> Self {
        Self("anonymous".into())
    }
}

name! {
    /// A requester's own name for a request, so that asking twice makes one operation.
    Key, "idempotency key", label
}

/// Names of sites and services: they stand in scopes, so they hold none of its signs.
fn word(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("a name needs at least one character");
    }
    if text.len() > 253 {
        return Err("a name is at most 253 bytes long");
    }
    if text.starts_with(' ') || text.ends_with(' ') || text.contains("  ") {
        return Err("spaces stand alone, between other characters");
    }
    if !text.chars().all(|c| c == ' ' || is_word_char(c)) {
        return Err("only letters, digits, `.`, `-`, `_` and single inner spaces are allowed");
    }
    Ok(())
}

/// Whether a character may stand in the name of a site or a service (inner spaces aside).
pub(crate) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-' | '_')
}

fn url_safe(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("an id needs at least one character");
    }
    if text.len() > 255 {
        return Err("an id is at most 255 bytes long");
    }
    if matches!(text, "." | "..") {
        return Err("`.` and `..` have a meaning of their own in a URL");
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')) {
        return Err(
            "only the letters a to z and A to Z, digits, `-`, `.`, `_` and `~` are allowed",
        );
    }
    Ok(())
}

fn label(text: &str) -> Result<(), &'static str> {
    if text.trim().is_empty() {
        return Err("it needs at least one character that is not a space");
    }
    if text.len() > 255 {
        return Err("it is at most 255 bytes long");
    }
    if text.chars().any(char::is_control) {
        return Err("control characters are not allowed");
    }
    Ok(())
}

/// At most 40 characters of a text, for a message on one line.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        None => text.to_owned(),
        Some((end, _)) => {
            let mut short = text[..end].to_owned();
            short.push('…');
            short
        }
    }
}

/// The id of an operation: the site that received it, and its number there.
///
/// Numbers are given for each resource and site, ascending from 1; a number is never used twice.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    /// The site that received the operation: its origin.
    pub site: SiteId,
    /// Its number among what that site has recorded of the resource.
    pub number: u64,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.site, self.number)
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for OpId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let malformed = || NameError {
            what: "operation id",
            text: shorten(text),
            why: "it is written SITE:NUMBER, with a number from 1 on",
        };
        let (site, number) = text.rsplit_once(':').ok_or_else(malformed)?;
        let number = number.parse().ok().filter(|&n| n > 0).ok_or_else(malformed)?;
        Ok(Self { site: site.parse()?, number })
    }
}

/// A set of sites that is never empty. A clone shares it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sites(Arc<[SiteId]>);

/// A set of sites was to be made from nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no site is named; a resource has at least one")]
pub struct NoSite;

impl Sites {
    /// The set of these sites; an error if there is none.
    pub fn new(sites: impl IntoIterator<Item = SiteId>) -> Result<Self, NoSite> {
        let sites: BTreeSet<_> = sites.into_iter().collect();
        if sites.is_empty() { Err(NoSite) } else { Ok(Self(sites.into_iter().collect())) }
    }

    /// Whether the site is one of them.
    pub fn contains(&self, site: &SiteId) -> bool {
        self.0.binary_search(site).is_ok()
    }

    /// The sites, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &SiteId> {
        self.0.iter()
    }

    /// How many there are: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a set of sites is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The sites of either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let covers = |all: &Self, some: &Self| some.iter().all(|site| all.contains(site));
        if covers(self, other) {
            self.clone()
        } else if covers(other, self) {
            other.clone()
        } else {
            let both: BTreeSet<&SiteId> = self.iter().chain(other.iter()).collect();
            Self(both.into_iter().cloned().collect())
        }
    }
}

impl From<SiteId> for Sites {
    fn from(site: SiteId) -> Self {
        Self([site].into())
    }
}

impl fmt::Debug for Sites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As a `place` of the scope language: `site1 & site2`.
impl fmt::Display for Sites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, site) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str(" & ")?;
            }
            write!(f, "{site}")?;
        }
        Ok(())
    }
}

/// Something for each of a few sites, in the order of their names. It takes no more memory than they
/// need.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BySite<T>(Few<(SiteId, T)>);

impl<T> Default for BySite<T> {
    fn default() -> Self {
        Self(Few::default())
    }
}

impl<T: Default> BySite<T> {
    pub(crate) fn get(&self, site: &SiteId) -> Option<&T> {
        self.place(site).ok().map(|at| &self.0[at].1)
    }

    /// What there is for a site; something new if there is nothing.
    pub(crate) fn entry(&mut self, site: &SiteId) -> &mut T {
        let at = self.place(site).unwrap_or_else(|at| {
            self.0.insert(at, (site.clone(), T::default()));
            at
        });
        &mut self.0[at].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SiteId, &T)> {
        self.0.iter().map(|(site, value)| (site, value))
    }

    fn place(&self, site: &SiteId) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(site))
    }
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::ToString};

    use super::*;

    #[test]
    fn names_have_one_door() {
        let long = "x".repeat(300);
        for (text, ok) in [
            ("site1", true),
            ("DC 1", true),
            ("edge-7.example_org", true),
            ("Évry", true),
            ("", false),
            (" a", false),
            ("a ", false),
            ("a  b", false),
            ("a&b", false),
            ("a:b", false),
            ("a\nb", false),
            (long.as_str(), false),
        ] {
            assert_eq!(text.parse::<SiteId>().is_ok(), ok, "{text:?}");
        }
        for (text, ok) in [
            ("resource-id", true),
            ("a.b_c~d", true),
            ("..", false),
            ("a/b", false),
            ("a b", false),
            ("é", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<ResourceId>().is_ok(), ok, "{text:?}");
        }
        for (text, ok) in [("set", true), ("right shift", true), (" ", false), ("a\tb", false)] {
            assert_eq!(text.parse::<Kind>().is_ok(), ok, "{text:?}");
        }
    }

    #[test]
    fn an_operation_id_prints_as_it_parses() {
        for text in ["site2:7", "DC 1:12"] {
            assert_eq!(text.parse::<OpId>().unwrap().to_string(), text);
        }
        for text in ["site2", "site2:", "site2:0", "site2:-1", ":3", "site2:x"] {
            assert!(text.parse::<OpId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_set_of_sites_is_never_empty() {
        assert_eq!(Sites::new([]), Err(NoSite));
        let (a, b): (SiteId, SiteId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let sites = Sites::from(b).union(&Sites::from(a));
        assert_eq!(format!("{sites}"), "a & b");
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let error = "a/b".parse::<ResourceId>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`a/b` is not a resource id: only the letters a to z and A to Z, digits, `-`, `.`, `_` and `~` are allowed"
        );
    }
}
