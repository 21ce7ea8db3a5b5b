//! From a place to sites: what `around`, `*` and the names mean with what is known now.
//!
//! What must stay true: a target names known sites only. `around` and `*` leave no trace in it:
//! they are ways to write `;` and `&`.

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};

use super::{Catalogue, Node, Operator, Place, Problem, ScopeError, Span};
use crate::id::SiteId;

/// A place with every site named. As in a [`Place`], the same operator is never nested; nor does
/// an operand stand twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// One site.
    One(SiteId),
    /// `&`: a copy on each.
    All(Vec<Target>),
    /// `%`: a part on each, the prime one first.
    Across(Vec<Target>),
    /// `;`: the first that works.
    First(Vec<Target>),
    /// `none(…)`: once, without a record, to each of several sites. It stands alone or as an
    /// alternative, and is neither in parts nor made of alternatives.
    Once(Box<Target>),
}

impl Target {
    /// The same, sent once. To one site a request is sent once anyway; of alternatives, each is.
    fn once(self) -> Self {
        match self {
            Self::One(_) | Self::Once(_) => self,
            Self::First(targets) => Self::First(targets.into_iter().map(Self::once).collect()),
            group => Self::Once(Box::new(group)),
        }
    }

    /// Targets joined by an operator; none if there are none.
    fn join(operator: Operator, targets: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut seen = BTreeSet::new();
        let mut joined: Vec<Self> = Vec::new();
        for target in targets {
            let inner = match (operator, target) {
                (Operator::All, Self::All(inner))
                | (Operator::Across, Self::Across(inner))
                | (Operator::First, Self::First(inner)) => inner,
                (_, other) => Vec::from([other]),
            };
            joined.extend(inner.into_iter().filter(|target| seen.insert(target.clone())));
        }
        if joined.len() < 2 {
            return joined.pop();
        }
        Some(match operator {
            Operator::All => Self::All(joined),
            Operator::Across => Self::Across(joined),
            Operator::First => Self::First(joined),
        })
    }
}

/// The sites that a place means.
///
/// A place without a meaning ([`check`]), a site that is not known, and `*` where none is are errors.
pub fn evaluate(place: &Place, catalogue: &Catalogue) -> Result<Target, ScopeError> {
    check(place)?;
    resolve(place, catalogue)
}

/// The most `*` and `around` in one place. Each may mean a thousand sites, so that a short text with
/// many of them would cost seconds and gigabytes.
pub const MAX_GROUPS: usize = 64;

/// Whether a place has a meaning, whichever sites there are: a copy cannot itself be spread, what is
/// sent once is neither in parts nor part of a group, and there are at most [`MAX_GROUPS`] of `*` and
/// `around`.
///
/// `a & (b % c)` would need an answer to which part of the copy a change goes to, and the parts of
/// the other copy know nothing of them. `(a & b) % c` is what can be had: parts that have copies.
/// Parts are those of one resource, which has to be remembered, and so do all copies of a thing if
/// one does; so `none(…)` is a whole alternative or nothing.
pub fn check(place: &Place) -> Result<(), ScopeError> {
    /// What a place stands in.
    #[derive(Clone, Copy, PartialEq)]
    enum Within {
        Nothing,
        Parts,
        Copy,
        Once,
    }
    fn walk(place: &Place, within: Within, groups: &mut usize) -> Result<(), ScopeError> {
        match place.node() {
            Node::Site(_) => Ok(()),
            Node::Around(_) | Node::Everywhere => {
                *groups += 1;
                if *groups > MAX_GROUPS {
                    return Err(place.span().error(Problem::TooManyGroups));
                }
                Ok(())
            }
            Node::Once(inner) => match within {
                Within::Nothing => walk(inner, Within::Once, groups),
                Within::Once => walk(inner, within, groups),
                Within::Parts | Within::Copy => Err(place.span().error(Problem::OnceInGroup)),
            },
            Node::Several(operator, places) => {
                let within = match (operator, within) {
                    (Operator::Across, Within::Copy) => {
                        return Err(place.span().error(Problem::SpreadCopy));
                    }
                    (Operator::Across, Within::Once) => {
                        return Err(place.span().error(Problem::SpreadOnce));
                    }
                    (Operator::Across, _) => Within::Parts,
                    (Operator::All, Within::Nothing | Within::Parts) => Within::Copy,
                    (Operator::All | Operator::First, within) => within,
                };
                places.iter().try_for_each(|place| walk(place, within, groups))
            }
        }
    }
    walk(place, Within::Nothing, &mut 0)
}

fn resolve(place: &Place, catalogue: &Catalogue) -> Result<Target, ScopeError> {
    let target = match place.node() {
        Node::Site(site) => {
            known(site, place.span(), catalogue)?;
            Some(Target::One(site.clone()))
        }
        Node::Around(around) => {
            known(around.centre(), around.centre_span(), catalogue)?;
            let near = catalogue.around(around.centre(), around.radius());
            Target::join(Operator::First, near.into_iter().map(|(_, s)| Target::One(s.clone())))
        }
        Node::Everywhere => {
            Target::join(Operator::All, catalogue.sites().cloned().map(Target::One))
        }
        Node::Once(place) => Some(resolve(place, catalogue)?.once()),
        Node::Several(operator, places) => {
            let targets: Result<Vec<_>, _> =
                places.iter().map(|place| resolve(place, catalogue)).collect();
            Target::join(*operator, targets?)
        }
    };
    target.ok_or_else(|| place.span().error(Problem::Nowhere))
}

fn known(site: &SiteId, span: Span, catalogue: &Catalogue) -> Result<(), ScopeError> {
    if catalogue.knows(site) {
        return Ok(());
    }
    let hint = catalogue.suggest(site.as_str());
    Err(span.error(Problem::UnknownSite { site: site.clone(), hint }))
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::String};
    use core::time::Duration;

    use super::*;
    use crate::scope::parse_place;

    fn catalogue() -> Catalogue {
        let site = |name: &str| name.parse::<SiteId>().unwrap();
        let mut catalogue = Catalogue::new(["a", "b", "c", "d"].map(site));
        catalogue.measure(site("a"), site("b"), Duration::from_millis(8));
        catalogue.measure(site("a"), site("c"), Duration::from_millis(3));
        catalogue
    }

    /// A target as a short text: `First(a, All(b, c))`.
    fn show(target: &Target) -> String {
        let (name, targets) = match target {
            Target::One(site) => return format!("{site}"),
            Target::Once(target) => return format!("Once({})", show(target)),
            Target::All(targets) => ("All", targets),
            Target::Across(targets) => ("Across", targets),
            Target::First(targets) => ("First", targets),
        };
        let inner: Vec<_> = targets.iter().map(show).collect();
        format!("{name}({})", inner.join(", "))
    }

    #[test]
    fn places_mean_sites() {
        for (text, expected) in [
            ("a", "a"),
            ("a & b", "All(a, b)"),
            ("a & a", "a"),
            ("a & (b; c)", "All(a, First(b, c))"),
            ("(a & b) % c", "Across(All(a, b), c)"),
            ("*", "All(a, b, c, d)"),
            ("* & a", "All(a, b, c, d)"),
            ("d; *", "First(d, All(a, b, c, d))"),
            ("around(a, 10ms)", "First(a, c, b)"),
            ("around(a, 5ms)", "First(a, c)"),
            ("around(d, 1h)", "d"),
            ("b; around(a, 10ms); d", "First(b, a, c, d)"),
            ("d & around(a, 5ms)", "All(d, First(a, c))"),
            ("none(a & b)", "Once(All(a, b))"),
            ("none(a)", "a"),
            ("none(a; b & c)", "First(a, Once(All(b, c)))"),
            ("none(a & b); c", "First(Once(All(a, b)), c)"),
            ("none(a; b); c", "First(a, b, c)"),
            ("none(a & (b; c))", "Once(All(a, First(b, c)))"),
            ("none(*)", "Once(All(a, b, c, d))"),
            ("eventual(a & b)", "All(a, b)"),
        ] {
            let place = parse_place(text).unwrap();
            assert_eq!(show(&evaluate(&place, &catalogue()).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn errors_point_at_the_text() {
        for (text, pointed, message, hint) in [
            ("a & bb", "bb", "unknown site `bb`", "did you mean `b`?"),
            ("around(aa, 10ms)", "aa", "unknown site `aa`", "did you mean `a`?"),
            (
                "a & b & x1y2",
                "x1y2",
                "unknown site `x1y2`",
                "the known sites are `a`, `b`, `c`, `d`",
            ),
            (
                "a & (b % c; d)",
                "b % c",
                "a copy cannot itself be spread over several sites",
                "spread first, then copy each part: `(site1 & site2) % site3`",
            ),
            (
                "none(a % b)",
                "a % b",
                "what is sent once cannot be in parts",
                "a resource in parts is always recorded: `site1 % site2`; \
                 what is sent once goes whole to each site: `none(site1 & site2)`",
            ),
            (
                "none(c; (a & (b % d)))",
                "b % d",
                "what is sent once cannot be in parts",
                "a resource in parts is always recorded: `site1 % site2`; \
                 what is sent once goes whole to each site: `none(site1 & site2)`",
            ),
            (
                "a & none(b & c)",
                "none(b & c)",
                "what is sent once cannot be part of a group",
                "put the whole group in it: `none(site1 & site2)`; \
                 it can be an alternative: `none(site1 & site2); site3`",
            ),
            (
                "a % (b; none(c & d))",
                "none(c & d)",
                "what is sent once cannot be part of a group",
                "put the whole group in it: `none(site1 & site2)`; \
                 it can be an alternative: `none(site1 & site2); site3`",
            ),
            ("none(a & bb)", "bb", "unknown site `bb`", "did you mean `b`?"),
        ] {
            let error = evaluate(&parse_place(text).unwrap(), &catalogue()).unwrap_err();
            assert_eq!(&text[error.span.range()], pointed, "{text}");
            assert_eq!(format!("{error}"), message);
            assert_eq!(error.hint(), hint);
        }
        let many = alloc::vec!["*"; MAX_GROUPS + 1].join(" & ");
        let error = check(&parse_place(&many).unwrap()).unwrap_err();
        assert_eq!((error.span.start, error.problem), (many.len() - 1, Problem::TooManyGroups));
        let nowhere = evaluate(&parse_place("*").unwrap(), &Catalogue::default()).unwrap_err();
        assert_eq!(nowhere.problem, Problem::Nowhere);
    }
}
