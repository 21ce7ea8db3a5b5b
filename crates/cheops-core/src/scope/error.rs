//! What is wrong with a scope: where, why, and what would be right.
//!
//! Core only says it; the edge draws the caret. Every span lies within the text that was read and
//! on the boundaries of its characters, so the edge may cut the text there.

use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
};
use core::ops::Range;

use super::{MAX_DEPTH, MAX_GROUPS, MAX_LENGTH};
use crate::{
    duration,
    id::{NameError, ServiceName, SiteId},
};

/// A stretch of a text, in bytes. An empty one stands between two characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Span {
    /// The same stretch as a range, to slice with.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// A scope, or a place, that cannot be read or has no meaning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ScopeError {
    /// Where in the text.
    pub span: Span,
    /// What is wrong there.
    pub problem: Problem,
}

/// What can be wrong with a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is longer than [`MAX_LENGTH`].
    #[error("the text is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// There are more than [`MAX_DEPTH`] parentheses in each other.
    #[error("there are more than {MAX_DEPTH} parentheses in each other")]
    TooDeep,
    /// No service stands where one has to be.
    #[error("no service is named{}", beside(*.after, None))]
    NoService {
        /// The sign before it, if there is one.
        after: Option<char>,
    },
    /// A service has no colon after it.
    #[error("there is no `:` after the service `{name}`")]
    NoColon {
        /// What stands there as a service.
        name: String,
        /// Whether a comma stands before it.
        after_comma: bool,
    },
    /// A service stands in the scope for the second time.
    #[error("the service `{0}` is named twice")]
    Twice(ServiceName),
    /// No site or group stands where one has to be.
    #[error("no site is named{}", beside(*.after, *.found))]
    NoPlace {
        /// The sign before it, if there is one.
        after: Option<char>,
        /// The sign that stands there instead; none at the end of the text.
        found: Option<char>,
    },
    /// A bracket is opened and never closed.
    #[error("this `{0}` is never closed")]
    Unclosed(char),
    /// A bracket is closed that was never opened.
    #[error("this `{0}` was never opened")]
    Unopened(char),
    /// `around(site)` without its second part.
    #[error("`around` has no radius")]
    NoRadius,
    /// A character that has no place here.
    #[error("`{}` cannot stand here", visible(*.0))]
    Unexpected(char),
    /// A name that is not well formed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A radius that is not a duration.
    #[error(transparent)]
    Radius(#[from] duration::DurationProblem),
    /// A site that the catalogue does not have.
    #[error("unknown site `{site}`")]
    UnknownSite {
        /// The site that was named.
        site: SiteId,
        /// What would be right, if anything comes near.
        hint: Option<String>,
    },
    /// `*` where no site is known.
    #[error("no site is known, so `*` is nowhere")]
    Nowhere,
    /// There are more than [`MAX_GROUPS`] `*` and `around` in one place.
    #[error("there are more than {MAX_GROUPS} `*` and `around` in one place")]
    TooManyGroups,
    /// `a & (b % c)`.
    #[error("a copy cannot itself be spread over several sites")]
    SpreadCopy,
    /// `none(a % b)`.
    #[error("what is sent once cannot be in parts")]
    SpreadOnce,
    /// `a & none(b & c)`.
    #[error("what is sent once cannot be part of a group")]
    OnceInGroup,
    /// `none(eventual(a & b))`.
    #[error("`{inner}` cannot stand inside `{outer}`")]
    TwoConsistencies {
        /// The word outside.
        outer: &'static str,
        /// The word inside.
        inner: &'static str,
    },
    /// `none(a & b)` for a resource.
    #[error("a resource is always recorded, and with `none` nothing is")]
    NotRecorded,
    /// Two parts of a resource on one site.
    #[error("two parts would be on one site, `{0}`")]
    PartsMeet(SiteId),
}

/// Where a thing is missing: after the sign before it, or before the one that comes first.
fn beside(before: Option<char>, found: Option<char>) -> String {
    match (before, found) {
        (Some(sign), _) => format!(" after `{sign}`"),
        (None, Some(sign)) => format!(" before `{sign}`"),
        (None, None) => String::new(),
    }
}

/// A character as it is, unless a terminal would not show it.
fn visible(c: char) -> String {
    if c.is_control() { c.escape_default().collect() } else { c.into() }
}

impl ScopeError {
    /// What would be right, as a sentence without its full stop.
    pub fn hint(&self) -> String {
        const EXAMPLE: &str = "a scope is written `image: site1 & site2, compute: site1`";
        const SEVERAL: &str = "several sites are joined with `&` (a copy on each), \
                               `%` (a part on each) or `;` (otherwise)";
        match &self.problem {
            Problem::TooLong => "name fewer sites; `*` is every known site".to_owned(),
            Problem::TooDeep => "leave out the parentheses that change nothing".to_owned(),
            Problem::NoService { after: Some(',') } => {
                "remove the comma, or name another service and its place after it".to_owned()
            }
            Problem::NoService { .. } => EXAMPLE.to_owned(),
            Problem::NoColon { after_comma: true, .. } => {
                format!("after a comma comes another service; {SEVERAL}")
            }
            Problem::NoColon { name, .. } => match name.split_once(' ') {
                Some((service, place)) => format!("did you mean `{service}: {place}`?"),
                None => EXAMPLE.to_owned(),
            },
            Problem::Twice(_) => format!("name each service once; {SEVERAL}"),
            Problem::NoPlace { after: Some(sign), found: Some(found) } if sign == found => {
                format!("write `{sign}` once")
            }
            Problem::NoPlace { after: Some(sign @ ('&' | '%' | '+' | ';')), .. } => {
                format!("name a site after the `{sign}`, or remove it")
            }
            Problem::NoPlace { .. } => {
                "a place is a site, a group such as `(site1; site2)`, `around(site1, 10ms)` or `*`"
                    .to_owned()
            }
            Problem::Unclosed('{') => "add a `}` at the end, or remove the `{`".to_owned(),
            Problem::Unclosed(_) => "add a `)` after the last site of the group".to_owned(),
            Problem::Unopened('}') => "put a `{` before the scope, or remove the `}`".to_owned(),
            Problem::Unopened(_) => {
                "put a `(` before the first site of the group, or remove the `)`".to_owned()
            }
            Problem::NoRadius => "it is written `around(site1, 10ms)`".to_owned(),
            Problem::Unexpected('"' | '\'' | '`') => "names are written without quotes".to_owned(),
            Problem::Unexpected('|') => "\"otherwise\" is written `;`".to_owned(),
            Problem::Unexpected(':') => {
                "services are separated with a comma: `image: site1, compute: site2`; \
                 a place alone names none"
                    .to_owned()
            }
            Problem::Name(_) | Problem::Unexpected(',') => SEVERAL.to_owned(),
            Problem::Unexpected(_) => {
                format!(
                    "names hold letters, digits, `.`, `-`, `_` and single inner spaces; {SEVERAL}"
                )
            }
            Problem::Radius(_) => duration::HINT.to_owned(),
            Problem::UnknownSite { hint, .. } => {
                hint.clone().unwrap_or_else(|| "add it to the list of sites".to_string())
            }
            Problem::TooManyGroups => "`*` is every known site, and once is enough".to_owned(),
            Problem::Nowhere => "name the sites, or add them to the list of sites".to_owned(),
            Problem::SpreadCopy => {
                "spread first, then copy each part: `(site1 & site2) % site3`".to_owned()
            }
            Problem::SpreadOnce => "a resource in parts is always recorded: `site1 % site2`; \
                 what is sent once goes whole to each site: `none(site1 & site2)`"
                .to_owned(),
            Problem::OnceInGroup => "put the whole group in it: `none(site1 & site2)`; \
                 it can be an alternative: `none(site1 & site2); site3`"
                .to_owned(),
            Problem::TwoConsistencies { outer, inner } if outer == inner => {
                format!("write `{outer}` once")
            }
            Problem::TwoConsistencies { .. } => {
                "a place has one consistency: `none(site1 & site2)` sends once and forgets, \
                 `eventual(site1 & site2)` is the same as `site1 & site2`"
                    .to_owned()
            }
            Problem::NotRecorded => "name the sites without it: `site1 & site2`".to_owned(),
            Problem::PartsMeet(_) => "name each site in one part: `site1 % site2`".to_owned(),
        }
    }
}
