//! What a place will do, in a sentence for somebody who was woken up.

use cheops_core::{
    duration,
    id::Sites,
    route::{Leg, Route},
    scope::{Catalogue, Node, Operator, Place},
};

/// How many sites a sentence names before it says how many more there are.
const NAMED: usize = 6;

/// Says what places do; which sites `around` and `*` mean, if it knows them.
pub(super) struct Words<'a> {
    pub(super) catalogue: Option<&'a Catalogue>,
}

impl Words<'_> {
    /// What a service with this place does.
    pub(super) fn service(&self, place: &Place) -> String {
        let on = self.on(place);
        match place.node() {
            _ if uses(place, Operator::Across) || !uses(place, Operator::All) => {
                format!("runs {on}")
            }
            Node::Several(Operator::First, _) => {
                format!("written {on}; read in the same order, from the nearest of a group")
            }
            _ => format!("written {on}; read from the nearest of them"),
        }
    }

    /// Where: `on site1 and on site2, or on site3 if site2 can't be reached`.
    fn on(&self, place: &Place) -> String {
        match place.node() {
            Node::Site(site) => format!("on {site}"),
            Node::Around(around) => format!(
                "on the site nearest to {} that can be reached, within {}{}",
                around.centre(),
                duration::print(around.radius()),
                self.now(place)
            ),
            Node::Everywhere => format!("on every known site{}", self.now(place)),
            Node::Once(place) => format!("once {}, without a record", self.on(place)),
            Node::Several(Operator::All, places) => {
                list(places.iter().map(|place| self.on(place)).collect())
            }
            Node::Several(Operator::Across, places) => {
                let part = |(n, place): (usize, &Place)| {
                    let which = if n == 0 { "the prime one" } else { "another" };
                    format!("{which} {}", self.on(place))
                };
                let parts: Vec<_> = places.iter().enumerate().map(part).collect();
                format!("in parts ({})", parts.join("; "))
            }
            Node::Several(Operator::First, places) => self.otherwise(places),
        }
    }

    fn otherwise(&self, places: &[Place]) -> String {
        let alternative = |(n, place): (usize, &Place)| {
            let previous = n.checked_sub(1).and_then(|previous| places.get(previous));
            let condition = previous.map(|previous| format!(" if {}", lost(previous)));
            let too = if n > 1 { " either" } else { "" };
            format!("{}{}{too}", self.on(place), condition.unwrap_or_default())
        };
        places.iter().enumerate().map(alternative).collect::<Vec<_>>().join(", or ")
    }

    /// The sites that `around` or `*` means, in parentheses.
    fn now(&self, place: &Place) -> String {
        let Some(catalogue) = self.catalogue else { return String::new() };
        let sites: Vec<String> = match place.node() {
            Node::Around(around) => catalogue
                .around(around.centre(), around.radius())
                .into_iter()
                .map(|(trip, site)| format!("{site} at {}", duration::print(trip)))
                .collect(),
            _ => catalogue.sites().map(ToString::to_string).collect(),
        };
        let more = sites.len().saturating_sub(NAMED);
        let mut named: Vec<_> = sites.into_iter().take(NAMED).collect();
        if more > 0 {
            named.push(format!("{more} more"));
        }
        format!(" (now {})", list(named))
    }
}

/// Whether an operator stands anywhere in a place; `*` is an `&`.
fn uses(place: &Place, operator: Operator) -> bool {
    match place.node() {
        Node::Site(_) | Node::Around(_) => false,
        Node::Everywhere => operator == Operator::All,
        Node::Once(place) => uses(place, operator),
        Node::Several(this, places) => {
            *this == operator || places.iter().any(|place| uses(place, operator))
        }
    }
}

/// When the next alternative is taken: `site2 can't be reached`.
fn lost(place: &Place) -> String {
    let one_of_these = || "one of these can't be reached".to_owned();
    match place.node() {
        Node::Site(site) => format!("{site} can't be reached"),
        Node::Around(_) => "none of these can be reached".to_owned(),
        Node::Everywhere => one_of_these(),
        Node::Once(place) => lost(place),
        Node::Several(_, places) => {
            let names: Option<Vec<&str>> = places
                .iter()
                .map(|place| match place.node() {
                    Node::Site(site) => Some(site.as_str()),
                    _ => None,
                })
                .collect();
            match names.as_deref() {
                Some([names @ .., last]) if !names.is_empty() => {
                    format!("{} or {last} can't be reached", names.join(", "))
                }
                _ => one_of_these(),
            }
        }
    }
}

/// `a, b and c`; with a comma before the "and" where what stands before it has commas of its own.
fn list(mut items: Vec<String>) -> String {
    let Some(last) = items.pop() else { return String::new() };
    if items.is_empty() {
        return last;
    }
    let and = if items.iter().any(|item| item.contains(',')) { ", and " } else { " and " };
    format!("{}{and}{last}", items.join(", "))
}

/// The attempts of a route: `here, then site2`.
pub(super) fn route(route: &Route) -> String {
    let names = |sites: &Sites| list(sites.iter().map(ToString::to_string).collect());
    let legs = route.attempts().iter().map(|leg| match leg {
        Leg::Local => "here".to_owned(),
        Leg::Forward(site) => format!("to {site}"),
        Leg::Replicate(sites) => format!("copies on {}", names(sites)),
        Leg::Once(sites) => format!("once to {}", names(sites)),
        Leg::Across(parts) => {
            let parts: Vec<_> = parts.iter().map(|sites| format!("on {}", names(sites))).collect();
            format!("in parts ({})", parts.join("; "))
        }
    });
    legs.collect::<Vec<_>>().join(", otherwise ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cheops_core::{id::SiteId, scope::parse_place};

    use super::*;

    #[test]
    fn sentences() {
        for (place, words) in [
            ("site1", "runs on site1"),
            ("site1; site2", "runs on site1, or on site2 if site1 can't be reached"),
            (
                "a; b; c",
                "runs on a, or on b if a can't be reached, or on c if b can't be reached either",
            ),
            ("a & b", "written on a and on b; read from the nearest of them"),
            ("a & b & c", "written on a, on b and on c; read from the nearest of them"),
            (
                "site1 & (site2; site3)",
                "written on site1 and on site2, or on site3 if site2 can't be reached; \
                 read from the nearest of them",
            ),
            (
                "(a; b) & c",
                "written on a, or on b if a can't be reached, and on c; \
                 read from the nearest of them",
            ),
            (
                "a & b; c",
                "written on a and on b, or on c if a or b can't be reached; \
                 read in the same order, from the nearest of a group",
            ),
            ("a % b", "runs in parts (the prime one on a; another on b)"),
            ("(a & b) % c", "runs in parts (the prime one on a and on b; another on c)"),
            (
                "a % b; c",
                "runs in parts (the prime one on a; another on b), or on c if a or b can't be reached",
            ),
            (
                "none(a & b)",
                "written once on a and on b, without a record; read from the nearest of them",
            ),
            (
                "none(a & b); c",
                "written once on a and on b, without a record, or on c if a or b can't be reached; \
                 read in the same order, from the nearest of a group",
            ),
            ("eventual(a & b)", "written on a and on b; read from the nearest of them"),
            ("*", "written on every known site; read from the nearest of them"),
            ("around(a, 10ms)", "runs on the site nearest to a that can be reached, within 10ms"),
            (
                "around(a, 10ms); b",
                "runs on the site nearest to a that can be reached, within 10ms, \
                 or on b if none of these can be reached",
            ),
        ] {
            let place = parse_place(place).unwrap();
            assert_eq!(Words { catalogue: None }.service(&place), words);
        }
    }

    #[test]
    fn with_a_catalogue_the_sites_are_named() {
        let site = |name: String| name.parse::<SiteId>().unwrap();
        let mut catalogue = Catalogue::new((1..=8).map(|n| site(format!("s{n}"))));
        catalogue.measure(site("s1".into()), site("s5".into()), Duration::from_millis(8));
        let words = Words { catalogue: Some(&catalogue) };
        assert_eq!(
            words.service(&parse_place("around(s1, 10ms)").unwrap()),
            "runs on the site nearest to s1 that can be reached, within 10ms (now s1 at 0s and s5 at 8ms)"
        );
        assert_eq!(
            words.service(&parse_place("*").unwrap()),
            "written on every known site (now s1, s2, s3, s4, s5, s6 and 2 more); \
             read from the nearest of them"
        );
    }
}
