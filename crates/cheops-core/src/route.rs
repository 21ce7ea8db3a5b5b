//! From a scope to what happens with one request of one service, at one site, now.
//!
//! [`decide`] is the only place where that is decided: sharing, replication, cross, otherwise,
//! around and local all end in a [`Route`]. It looks at nothing but its arguments.
//!
//! What must stay true:
//! - A route has at least one attempt, and no attempt twice.
//! - What is known to be out of reach is tried later or not at all only while something else is
//!   left: knowledge may be stale, so it never makes a request fail by itself.
//! - A write ends at a fixed set of sites: `;` inside `&` or `%` is decided here, at once, because
//!   the sites of a resource are fixed when it is created.

use alloc::{collections::BTreeSet, vec, vec::Vec};
use core::time::Duration;

use crate::{
    id::{ServiceName, SiteId, Sites},
    matrix::{PartsError, check_parts},
    scope::{Catalogue, Place, Problem, Scope, ScopeError, Target, evaluate},
};

/// What a request does with the application's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It only looks.
    Read,
    /// It may change something.
    Write,
}

/// What to try, in order, until one attempt works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route(Vec<Leg>);

/// One attempt to serve a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leg {
    /// By the application's instance at this site.
    Local,
    /// By the agent of another site.
    Forward(SiteId),
    /// As an operation, with a copy at each of the sites.
    Replicate(Sites),
    /// As one resource in parts, each on a set of sites of its own. The first part is the prime one.
    Across(Vec<Sites>),
    /// To each of the sites once; nothing of it is remembered.
    Once(Sites),
}

impl Route {
    /// The attempts in order; with none, the request runs where it is.
    fn new(legs: impl IntoIterator<Item = Leg>) -> Self {
        let mut attempts = distinct(legs);
        if attempts.is_empty() {
            attempts.push(Leg::Local);
        }
        Self(attempts)
    }

    /// What to try, in order: at least one attempt.
    pub fn attempts(&self) -> &[Leg] {
        &self.0
    }
}

/// Decides what a request does.
///
/// The error is that of the scope: an unknown site, or a place without a meaning.
pub fn decide(
    scope: &Scope,
    service: &ServiceName,
    request: Access,
    here: &SiteId,
    catalogue: &Catalogue,
) -> Result<Route, ScopeError> {
    let Some(place) = scope.place(service) else { return Ok(Route::new([Leg::Local])) };
    let view = View { here, catalogue };
    let alternatives = match evaluate(place, catalogue)? {
        Target::First(targets) => targets,
        target => vec![target],
    };
    let working = alternatives.iter().filter(|target| view.works(target));
    let mut legs: Vec<Leg> = working.flat_map(|target| view.legs(target, request)).collect();
    if legs.is_empty() {
        legs = alternatives.iter().flat_map(|target| view.legs(target, request)).collect();
    }
    Ok(Route::new(legs))
}

/// The parts of a resource, for a place that someone names to create it: one set of sites, or one for
/// each part if the place spreads it, the prime one first. Of alternatives, the first that works.
///
/// It is an error if one site would hold two parts, and if anything in the place is sent once: what is
/// not remembered is no resource.
pub fn spread(
    place: &Place,
    here: &SiteId,
    catalogue: &Catalogue,
) -> Result<Vec<Sites>, ScopeError> {
    let target = evaluate(place, catalogue)?;
    if let Some(span) = place.sent_once() {
        return Err(span.error(Problem::NotRecorded));
    }
    let parts = View { here, catalogue }.parts(&target);
    if let Err(PartsError::Twice(site)) = check_parts(&parts) {
        return Err(place.span().error(Problem::PartsMeet(site)));
    }
    Ok(parts)
}

/// How the sites look from here.
struct View<'a> {
    here: &'a SiteId,
    catalogue: &'a Catalogue,
}

impl View<'_> {
    fn reaches(&self, site: &SiteId) -> bool {
        site == self.here || self.catalogue.is_reachable(site)
    }

    /// Whether a target can be served as far as is known: a group, if all of its members can.
    fn works(&self, target: &Target) -> bool {
        match target {
            Target::One(site) => self.reaches(site),
            Target::All(targets) | Target::Across(targets) => {
                targets.iter().all(|target| self.works(target))
            }
            Target::First(targets) => targets.iter().any(|target| self.works(target)),
            Target::Once(target) => self.works(target),
        }
    }

    /// The sets of sites that hold the parts of a target; one set, unless it is spread.
    fn parts(&self, target: &Target) -> Vec<Sites> {
        match target {
            Target::One(site) => vec![Sites::from(site.clone())],
            Target::All(targets) => {
                let sites: Vec<Sites> = targets.iter().flat_map(|t| self.parts(t)).collect();
                Sites::new(sites.iter().flat_map(Sites::iter).cloned()).into_iter().collect()
            }
            Target::Across(targets) => distinct(targets.iter().flat_map(|t| self.parts(t))),
            Target::First(targets) => {
                let chosen = targets.iter().find(|t| self.works(t)).or(targets.first());
                chosen.map_or_else(Vec::new, |target| self.parts(target))
            }
            Target::Once(target) => self.parts(target),
        }
    }

    fn legs(&self, target: &Target, request: Access) -> Vec<Leg> {
        let parts = self.parts(target);
        match (parts.as_slice(), request) {
            ([sites], Access::Write) if sites.len() > 1 => vec![match target {
                Target::Once(_) => Leg::Once(sites.clone()),
                _ => Leg::Replicate(sites.clone()),
            }],
            ([sites], _) => self.nearest_first(sites).into_iter().map(|s| self.go(s)).collect(),
            ([], _) => Vec::new(),
            (_, _) => vec![Leg::Across(parts)],
        }
    }

    fn go(&self, site: &SiteId) -> Leg {
        if site == self.here { Leg::Local } else { Leg::Forward(site.clone()) }
    }

    /// The sites in the order in which to ask them: this one, then the nearest that can be reached,
    /// those at an unknown distance, and at last those that are known to be out of reach.
    fn nearest_first<'s>(&self, sites: &'s Sites) -> Vec<&'s SiteId> {
        let mut sites: Vec<_> = sites.iter().collect();
        sites.sort_by_key(|&site| {
            let round_trip = self.catalogue.round_trip(self.here, site);
            (site != self.here, !self.reaches(site), round_trip.unwrap_or(Duration::MAX), site)
        });
        sites
    }
}

/// The items in their order, each once.
fn distinct<T: Ord + Clone>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    items.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

#[cfg(test)]
mod tests {
    use alloc::{
        format,
        string::{String, ToString},
    };

    use super::*;
    use crate::scope::parse;

    /// Sites `a` to `e`; seen from `a`, the nearest are `c`, `b` and `d`, and `e` was never measured.
    fn catalogue(unreachable: &str) -> Catalogue {
        let site = |name: &str| name.parse::<SiteId>().unwrap();
        let mut catalogue = Catalogue::new(["a", "b", "c", "d", "e"].map(site));
        for (to, ms) in [("b", 8), ("c", 3), ("d", 90)] {
            catalogue.measure(site("a"), site(to), Duration::from_millis(ms));
        }
        for name in unreachable.split_whitespace() {
            catalogue.set_reachable(site(name), false);
        }
        catalogue
    }

    /// A route as a short text: attempts are separated by `|`, parts by `%`, and `.` is here.
    fn show(route: &Route) -> String {
        let shown = route.attempts().iter().map(|leg| match leg {
            Leg::Local => ".".to_string(),
            Leg::Forward(site) => site.to_string(),
            Leg::Replicate(sites) => format!("<{sites}>"),
            Leg::Once(sites) => format!("once <{sites}>"),
            Leg::Across(parts) => {
                let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
                format!("<{}>", parts.join(" % "))
            }
        });
        shown.collect::<Vec<_>>().join(" | ")
    }

    fn route(place: &str, service: &str, request: Access, unreachable: &str) -> String {
        let scope = parse(&format!("image: {place}")).unwrap();
        let (service, here) = (service.parse().unwrap(), "a".parse().unwrap());
        show(&decide(&scope, &service, request, &here, &catalogue(unreachable)).unwrap())
    }

    #[test]
    fn at_site_a() {
        // place, unreachable sites, write, read
        for (place, unreachable, write, read) in [
            // one site
            ("a", "", ".", "."),
            ("b", "", "b", "b"),
            ("b", "b", "b", "b"),
            // otherwise
            ("a; b", "", ". | b", ". | b"),
            ("b; a", "b", ".", "."),
            ("b; c; d", "c", "b | d", "b | d"),
            ("b; c", "b c", "b | c", "b | c"),
            ("b; c", "a", "b | c", "b | c"),
            ("b & c; d", "c", "d", "d"),
            ("b & c; d", "c d", "<b & c> | d", "b | c | d"),
            ("b; c & d", "b", "<c & d>", "c | d"),
            ("b; b & c", "", "b | <b & c>", "b | c"),
            // replication
            ("a & b", "", "<a & b>", ". | b"),
            ("b & c & d & e", "", "<b & c & d & e>", "c | b | d | e"),
            ("a & b & c", "c", "<a & b & c>", ". | b | c"),
            ("b & b", "", "b", "b"),
            ("*", "", "<a & b & c & d & e>", ". | c | b | d | e"),
            // otherwise inside a group is decided at once
            ("a & (b; c)", "", "<a & b>", ". | b"),
            ("a & (b; c)", "b", "<a & c>", ". | c"),
            ("a & (b; c)", "b c", "<a & b>", ". | b"),
            ("a & (a; b)", "", ".", "."),
            ("d & (b & c; e)", "b", "<d & e>", "d | e"),
            // around
            ("around(a, 10ms)", "", ". | c | b", ". | c | b"),
            ("around(a, 10ms)", "c", ". | b", ". | b"),
            ("d & around(a, 10ms)", "", "<a & d>", ". | d"),
            ("around(e, 10ms)", "", "e", "e"),
            // sent once
            ("none(a & b)", "", "once <a & b>", ". | b"),
            ("none(b & c)", "b", "once <b & c>", "c | b"),
            ("eventual(b & c)", "", "<b & c>", "c | b"),
            ("none(b)", "", "b", "b"),
            ("none(b; c)", "b", "c", "c"),
            ("none(a & (b; c))", "b", "once <a & c>", ". | c"),
            ("none(a & (a; b))", "", ".", "."),
            ("none(b & c); d", "c", "d", "d"),
            ("none(b & c); d", "", "once <b & c> | d", "c | b | d"),
            ("none(*)", "", "once <a & b & c & d & e>", ". | c | b | d | e"),
            // cross
            ("b % a", "", "<b % a>", "<b % a>"),
            ("(a & b) % c", "", "<a & b % c>", "<a & b % c>"),
            ("a % (b; c)", "b", "<a % c>", "<a % c>"),
            ("(b; c) % c", "b", "c", "c"),
            ("b % c; d", "c", "d", "d"),
            ("b % (c % d; e)", "", "<b % c % d>", "<b % c % d>"),
        ] {
            assert_eq!(route(place, "image", Access::Write, unreachable), write, "write {place}");
            assert_eq!(route(place, "image", Access::Read, unreachable), read, "read {place}");
        }
    }

    #[test]
    fn a_service_that_is_not_named_stays_here() {
        assert_eq!(route("b", "compute", Access::Write, ""), ".");
    }

    #[test]
    fn a_resource_exists_where_its_place_says() {
        for (text, unreachable, expected) in [
            ("b", "", "b"),
            ("a & c", "", "a & c"),
            ("a & (b; c)", "b", "a & c"),
            ("b; c & d", "b", "c & d"),
            ("*", "", "a & b & c & d & e"),
            ("eventual(a & c)", "", "a & c"),
            ("b % a", "", "b % a"),
            ("c % a & b % d", "", "c % a & b % d"),
            ("a % (b; c)", "b", "a % c"),
            ("a % b; c", "b", "c"),
            ("(b; c) % c", "b", "c"),
            ("a % (a & b)", "", "two parts would be on one site, `a`, at 0..10"),
            (
                "a; none(b & c)",
                "",
                "a resource is always recorded, and with `none` nothing is, at 3..14",
            ),
            ("none(b)", "", "a resource is always recorded, and with `none` nothing is, at 0..7"),
        ] {
            let place = crate::scope::parse_place(text).unwrap();
            let told = match spread(&place, &"a".parse().unwrap(), &catalogue(unreachable)) {
                Ok(parts) => {
                    let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
                    parts.join(" % ")
                }
                Err(error) => format!("{error}, at {:?}", error.span.range()),
            };
            assert_eq!(told, expected, "{text}");
        }
    }

    #[test]
    fn a_copy_cannot_be_spread() {
        let text = "image: a & (b % c)";
        let (service, here) = ("image".parse().unwrap(), "a".parse().unwrap());
        let scope = parse(text).unwrap();
        let error = decide(&scope, &service, Access::Read, &here, &catalogue("")).unwrap_err();
        assert_eq!(&text[error.span.range()], "b % c");
    }
}
