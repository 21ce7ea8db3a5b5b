//! Properties of the scope language: they hold for every tree and for every text.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::{collections::BTreeMap, time::Duration};

use cheops_core::{
    duration,
    id::{ServiceName, SiteId, Sites},
    route::{Access, Leg, decide},
    scope::{Catalogue, Operator, Place, Scope, ScopeError, Target, evaluate, parse, parse_place},
};
use proptest::{collection, prelude::*, sample};

fn site() -> impl Strategy<Value = SiteId> {
    prop_oneof![
        "[a-f]".prop_map(|name| name.parse().unwrap()),
        sample::select(vec!["around", "none", "eventual"]).prop_map(|name| name.parse().unwrap()),
        "[a-zA-Z0-9é._-]{1,8}( [a-z0-9.-]{1,4}){0,2}".prop_map(|name| name.parse().unwrap()),
    ]
}

fn service() -> impl Strategy<Value = ServiceName> {
    "[a-z][a-z0-9._-]{0,8}( [a-z]{1,3})?".prop_map(|name| name.parse().unwrap())
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        any::<Duration>(),
        any::<u64>().prop_map(Duration::from_nanos),
        (0..100_000_u64).prop_map(Duration::from_millis),
    ]
}

fn operator() -> impl Strategy<Value = Operator> {
    sample::select(vec![Operator::All, Operator::Across, Operator::First])
}

fn place() -> impl Strategy<Value = Place> {
    let leaf = prop_oneof![
        4 => site().prop_map(Place::site),
        1 => Just(Place::everywhere()),
        1 => (site(), duration()).prop_map(|(centre, radius)| Place::around(centre, radius)),
    ];
    leaf.prop_recursive(6, 40, 4, |inner| {
        prop_oneof![
            5 => (operator(), inner.clone(), collection::vec(inner.clone(), 1..4))
                .prop_map(|(operator, first, others)| first.join(operator, others)),
            1 => inner.prop_map(Place::once),
        ]
    })
}

fn scope() -> impl Strategy<Value = Scope> {
    collection::btree_map(service(), place(), 1..5).prop_map(|s| Scope::new(s).unwrap())
}

/// Texts that come near the language, so that the parser gets further than the first character.
fn nearly_a_scope() -> impl Strategy<Value = String> {
    let pieces = [
        "image",
        "compute",
        "a",
        "b",
        "DC 1",
        "around",
        "around(",
        "none(",
        "eventual(",
        "é",
        "10ms",
        "1.",
        "→",
        "\t",
        "\u{a0}",
        ":",
        ": ",
        ",",
        "&",
        "%",
        "+",
        ";",
        "(",
        ")",
        "{",
        "}",
        "*",
        " ",
        "  ",
        "\"",
    ];
    collection::vec(sample::select(pieces.to_vec()), 0..30).prop_map(|pieces| pieces.concat())
}

fn catalogue() -> impl Strategy<Value = Catalogue> {
    let trips = collection::vec((site(), site(), 0..100_u64), 0..12);
    (collection::btree_set(site(), 0..6), trips, collection::vec(site(), 0..3)).prop_map(
        |(sites, trips, unreachable)| {
            let mut catalogue = Catalogue::new(sites);
            for (from, to, ms) in trips {
                catalogue.measure(from, to, Duration::from_millis(ms));
            }
            for site in unreachable {
                catalogue.set_reachable(site, false);
            }
            catalogue
        },
    )
}

fn sites_of(target: &Target) -> Vec<&SiteId> {
    match target {
        Target::One(site) => vec![site],
        Target::Once(target) => sites_of(target),
        Target::All(targets) | Target::Across(targets) | Target::First(targets) => {
            targets.iter().flat_map(sites_of).collect()
        }
    }
}

fn lies_within(text: &str, error: &ScopeError) -> bool {
    let readable = !error.to_string().is_empty() && !error.hint().is_empty();
    text.get(error.span.range()).is_some() && readable
}

proptest! {
    #[test]
    fn a_printed_scope_reads_as_itself(scope in scope()) {
        let text = scope.to_string();
        prop_assert_eq!(parse(&text), Ok(scope.clone()), "{}", text);
        let braced = format!("{{{text}}}");
        prop_assert_eq!(parse(&braced), Ok(scope), "{}", braced);
    }

    #[test]
    fn a_printed_place_reads_as_itself(place in place()) {
        let text = place.to_string();
        prop_assert_eq!(parse_place(&text), Ok(place), "{}", text);
    }

    #[test]
    fn a_printed_duration_reads_as_itself(duration in duration()) {
        let text = duration::print(duration).to_string();
        prop_assert_eq!(duration::parse(&text), Ok(duration), "{}", text);
    }

    #[test]
    fn errors_lie_within_the_text(text in prop_oneof![any::<String>(), nearly_a_scope()]) {
        if let Err(error) = parse(&text) {
            prop_assert!(lies_within(&text, &error), "{:?}: {:?}", text, error);
        }
        if let Err(error) = parse_place(&text) {
            prop_assert!(lies_within(&text, &error), "{:?}: {:?}", text, error);
        }
        if let Err(error) = duration::parse(&text) {
            prop_assert!(text.get(error.at.clone()).is_some(), "{:?}: {:?}", text, error);
        }
    }

    #[test]
    fn what_was_read_prints_as_it_reads(text in nearly_a_scope()) {
        if let Ok(scope) = parse(&text) {
            prop_assert_eq!(parse(&scope.to_string()), Ok(scope), "{}", text);
        }
    }

    #[test]
    fn evaluation_names_known_sites_only(place in place(), catalogue in catalogue()) {
        let text = place.to_string();
        match evaluate(&parse_place(&text).unwrap(), &catalogue) {
            Ok(target) => {
                for site in sites_of(&target) {
                    prop_assert!(catalogue.knows(site), "{}: {}", text, site);
                }
            }
            Err(error) => prop_assert!(lies_within(&text, &error), "{}: {:?}", text, error),
        }
    }

    #[test]
    fn a_route_goes_to_known_sites_and_never_forwards_home(
        place in place(),
        catalogue in catalogue(),
        here in site(),
        write in any::<bool>(),
    ) {
        let service: ServiceName = "image".parse().unwrap();
        let scope = Scope::new(BTreeMap::from([(service.clone(), place)])).unwrap();
        let access = if write { Access::Write } else { Access::Read };
        if let Ok(route) = decide(&scope, &service, access, &here, &catalogue) {
            prop_assert!(!route.attempts().is_empty());
            for leg in route.attempts() {
                match leg {
                    Leg::Local => prop_assert!(catalogue.knows(&here)),
                    Leg::Forward(site) => prop_assert!(*site != here && catalogue.knows(site)),
                    Leg::Replicate(sites) | Leg::Once(sites) => {
                        prop_assert!(write && sites.len() > 1);
                        prop_assert!(sites.iter().all(|site| catalogue.knows(site)));
                    }
                    Leg::Across(parts) => {
                        prop_assert!(parts.len() > 1);
                        prop_assert!(parts.iter().flat_map(Sites::iter).all(|s| catalogue.knows(s)));
                    }
                }
            }
        }
    }
}
