//! Where a request goes, and what is left of that when a link is cut. Pure: it looks at nothing but its
//! arguments.

use cheops_core::{
    id::{ServiceName, SiteId, Sites},
    route::{Access, Leg, Route, decide},
    scope::{Catalogue, Scope, ScopeError, Target},
};

use crate::words::span;

/// How many sites are named before it is said how many more there are.
const NAMED: usize = 6;
/// How many cuts are looked at.
const CUTS: usize = 100;

/// How a request fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fare {
    Whole,
    /// It is served, but not by all or not yet.
    Partly,
    Fails,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    fare: Fare,
    pub(super) text: String,
}

impl Told {
    /// In a word, with its colour.
    pub(super) fn fares(&self) -> (&'static str, &'static str) {
        match self.fare {
            Fare::Whole => ("works", "good"),
            Fare::Partly => ("partly", "warn"),
            Fare::Fails => ("fails", "bad"),
        }
    }
}

/// What happens to a read and to a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) read: Told,
    pub(super) write: Told,
}

impl Looked {
    pub(super) fn new(
        scope: &Scope,
        service: &ServiceName,
        here: &SiteId,
        catalogue: &Catalogue,
    ) -> Result<Self, ScopeError> {
        let view = View { here, catalogue };
        let look = |access| {
            let route = decide(scope, service, access, here, catalogue)?;
            Ok(view.tell(&route, access))
        };
        Ok(Self { read: look(Access::Read)?, write: look(Access::Write)? })
    }
}

/// A cut, and what happens to requests during it.
pub(super) struct Cut {
    pub(super) what: String,
    pub(super) looked: Looked,
}

/// What happens if the link to each of the sites that matter is cut, and if all links of this one are.
pub(super) fn cuts(
    scope: &Scope,
    service: &ServiceName,
    here: &SiteId,
    catalogue: &Catalogue,
    target: &Target,
) -> Result<Vec<Cut>, ScopeError> {
    let mut meant = Vec::new();
    sites(target, &mut meant);
    meant.sort();
    meant.dedup();
    meant.retain(|site| *site != here);
    let without = |lost: &mut dyn Iterator<Item = &SiteId>, what: String| {
        let mut catalogue = catalogue.clone();
        for site in lost {
            catalogue.set_reachable(site.clone(), false);
        }
        Ok(Cut { what, looked: Looked::new(scope, service, here, &catalogue)? })
    };
    let mut cuts = Vec::new();
    for site in meant.iter().take(CUTS) {
        let already = if catalogue.is_reachable(site) { "" } else { " (as it is now)" };
        let what = format!("The link to {site} is cut{already}");
        cuts.push(without(&mut std::iter::once(*site), what)?);
    }
    if meant.len() > 1 {
        let mut others = catalogue.sites().filter(|site| *site != here);
        cuts.push(without(&mut others, format!("{here} is cut off from all"))?);
    }
    Ok(cuts)
}

/// All sites of a target.
fn sites<'a>(target: &'a Target, found: &mut Vec<&'a SiteId>) {
    match target {
        Target::One(site) => found.push(site),
        Target::All(targets) | Target::Across(targets) | Target::First(targets) => {
            for target in targets {
                sites(target, found);
            }
        }
        Target::Once(target) => sites(target, found),
    }
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

    /// The first attempt that works, if any does.
    fn tell(&self, route: &Route, access: Access) -> Told {
        let works = |leg: &&Leg| match leg {
            Leg::Local => true,
            Leg::Forward(site) => self.reaches(site),
            Leg::Replicate(sites) | Leg::Once(sites) => sites.iter().any(|s| self.reaches(s)),
            Leg::Across(parts) => parts.iter().flat_map(Sites::iter).any(|s| self.reaches(s)),
        };
        if let Some(leg) = route.attempts().iter().find(works) {
            return self.attempt(leg, access);
        }
        let away = |leg: &Leg| match leg {
            Leg::Local => String::new(),
            Leg::Forward(site) => site.to_string(),
            Leg::Replicate(sites) | Leg::Once(sites) => named(sites.iter()),
            Leg::Across(parts) => named(parts.iter().flat_map(Sites::iter)),
        };
        let away = listed(route.attempts().iter().map(away), route.attempts().len());
        Told { fare: Fare::Fails, text: format!("out of reach: {away}") }
    }

    fn attempt(&self, leg: &Leg, access: Access) -> Told {
        let missing = |sites: &Sites| {
            let lost: Vec<&SiteId> = sites.iter().filter(|site| !self.reaches(site)).collect();
            (!lost.is_empty()).then(|| named(lost.into_iter()))
        };
        let (what, lost, then) = match leg {
            Leg::Local => return Told { fare: Fare::Whole, text: "here".to_owned() },
            Leg::Forward(site) => {
                return Told { fare: Fare::Whole, text: format!("at {}", self.far(site)) };
            }
            Leg::Replicate(sites) => {
                (format!("a copy on {}", self.each(sites)), missing(sites), "after the cut")
            }
            Leg::Once(sites) => {
                (format!("once to {}", self.each(sites)), missing(sites), "lost for")
            }
            Leg::Across(parts) => {
                let all: Vec<String> = parts.iter().map(|part| self.each(part)).collect();
                let gone = |part: &&Sites| match access {
                    // Of copies of a part one is enough to read it.
                    Access::Read => !part.iter().any(|site| self.reaches(site)),
                    Access::Write => part.iter().any(|site| !self.reaches(site)),
                };
                let lost: Vec<&SiteId> = (parts.iter().filter(gone).flat_map(Sites::iter))
                    .filter(|site| !self.reaches(site))
                    .collect();
                let lost = (!lost.is_empty()).then(|| named(lost.into_iter()));
                let then = match access {
                    Access::Read => "without",
                    Access::Write => "after the cut",
                };
                (format!("in parts on {}", all.join("; ")), lost, then)
            }
        };
        match lost {
            None => Told { fare: Fare::Whole, text: what },
            Some(lost) => Told { fare: Fare::Partly, text: format!("{what}; {then}: {lost}") },
        }
    }

    /// A site and how far it is.
    fn far(&self, site: &SiteId) -> String {
        if site == self.here {
            return format!("{site} (here)");
        }
        match self.catalogue.round_trip(self.here, site) {
            _ if !self.reaches(site) => format!("{site} (out of reach)"),
            Some(trip) => format!("{site} ({})", span(trip.as_secs_f64() * 1_000.0)),
            None => format!("{site} (never measured)"),
        }
    }

    fn each(&self, sites: &Sites) -> String {
        listed(sites.iter().map(|site| self.far(site)), sites.iter().count())
    }
}

fn named<'a>(sites: impl Iterator<Item = &'a SiteId>) -> String {
    let names: Vec<String> = sites.map(ToString::to_string).collect();
    let count = names.len();
    listed(names.into_iter(), count)
}

/// The first of many, and how many more there are.
fn listed(names: impl Iterator<Item = String>, count: usize) -> String {
    let mut shown: Vec<String> = names.take(NAMED).collect();
    if count > NAMED {
        shown.push(format!("{} more", count - NAMED));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cheops_core::scope::{evaluate, parse};

    use super::*;

    fn site(name: &str) -> SiteId {
        name.parse().unwrap()
    }

    /// Sites `a`, where it is asked, `b` and `c`.
    fn catalogue(unreachable: &str) -> Catalogue {
        let mut catalogue = Catalogue::new(["a", "b", "c"].map(site));
        catalogue.measure(site("a"), site("b"), Duration::from_millis(8));
        catalogue.measure(site("a"), site("c"), Duration::from_millis(30));
        for name in unreachable.split_whitespace() {
            catalogue.set_reachable(site(name), false);
        }
        catalogue
    }

    fn looked(place: &str, unreachable: &str) -> [String; 2] {
        let scope = parse(&format!("image: {place}")).unwrap();
        let service = "image".parse().unwrap();
        let looked = Looked::new(&scope, &service, &site("a"), &catalogue(unreachable)).unwrap();
        [looked.read, looked.write].map(|told| format!("{}: {}", told.fares().0, told.text))
    }

    #[test]
    fn where_requests_go() {
        for (place, unreachable, read, write) in [
            ("a", "b c", "works: here", "works: here"),
            ("b", "", "works: at b (8.0 ms)", "works: at b (8.0 ms)"),
            ("b", "b", "fails: out of reach: b", "fails: out of reach: b"),
            ("b; c", "b", "works: at c (30 ms)", "works: at c (30 ms)"),
            ("b; c", "b c", "fails: out of reach: b, c", "fails: out of reach: b, c"),
            ("a & b", "", "works: here", "works: a copy on a (here), b (8.0 ms)"),
            (
                "a & b",
                "b",
                "works: here",
                "partly: a copy on a (here), b (out of reach); after the cut: b",
            ),
            (
                "b & c",
                "b",
                "works: at c (30 ms)",
                "partly: a copy on b (out of reach), c (30 ms); after the cut: b",
            ),
            ("b & c", "b c", "fails: out of reach: b, c", "fails: out of reach: b, c"),
            (
                "none(a & b)",
                "b",
                "works: here",
                "partly: once to a (here), b (out of reach); lost for: b",
            ),
            (
                "a % b",
                "b",
                "partly: in parts on a (here); b (out of reach); without: b",
                "partly: in parts on a (here); b (out of reach); after the cut: b",
            ),
            (
                "a % (b & c)",
                "b",
                "works: in parts on a (here); b (out of reach), c (30 ms)",
                "partly: in parts on a (here); b (out of reach), c (30 ms); after the cut: b",
            ),
        ] {
            assert_eq!(looked(place, unreachable), [read, write], "{place} without {unreachable}");
        }
    }

    #[test]
    fn each_link_that_matters_is_cut_once() {
        for (place, expected) in [
            ("a", vec![]),
            ("b", vec!["The link to b is cut"]),
            (
                "a & (b; c)",
                vec!["The link to b is cut", "The link to c is cut", "a is cut off from all"],
            ),
            (
                "none(*)",
                vec!["The link to b is cut", "The link to c is cut", "a is cut off from all"],
            ),
        ] {
            let scope = parse(&format!("image: {place}")).unwrap();
            let service = "image".parse().unwrap();
            let catalogue = catalogue("");
            let target = evaluate(scope.place(&service).unwrap(), &catalogue).unwrap();
            let cuts = cuts(&scope, &service, &site("a"), &catalogue, &target).unwrap();
            let whats: Vec<&str> = cuts.iter().map(|cut| cut.what.as_str()).collect();
            assert_eq!(whats, expected, "{place}");
        }
    }
}
