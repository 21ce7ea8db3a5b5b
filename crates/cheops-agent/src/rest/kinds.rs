//! What kind of operation a request is, and how two of them meet, unless the service says otherwise.
//!
//! | request | kind |
//! |---|---|
//! | `POST` on a collection, which makes a resource | `create` |
//! | on the resource's own path: `PUT`, `PATCH`, `DELETE` | `replace`, `merge`, `delete` |
//! | anything else that writes: `POST` on the own path, all below it | `act` |
//!
//! **Made** resources have a meta id, and so exactly one `create`, which all else follows. Nothing is
//! lost: all the others stay, in an order that is the same at all sites. A `PUT` does not replace
//! here: it says nothing about what lies below the resource's path, such as the data of an image, and
//! what is sent there must not be skipped at a site that was late. So `create` alone is what everything
//! begins with; and a site that ran the others in another order sends those once more that have to come
//! later, and the `create` never.
//!
//! **Natural** resources have the same path at all sites, and a path below one is a resource of its
//! own. A `PUT` replaces all that came before it, and of two concurrent ones the later stays. What is
//! concurrent with a `PUT` is applied on top of it. Without a `PUT` there is nothing to start again
//! from, and need not be: requests that are out of order are sent once more, each by itself.
//!
//! To send a request once more is right for a `PATCH` that sets and does not count, as a `PUT` does.
//! A `POST` is never sent twice: those of two sites that did not know of each other stay in the order
//! in which they came to each site.
//!
//! `delete` needs no entries: it replaces what it follows, and wins over what it is concurrent with.
//!
//! What must stay true: `cheops matrix check` has nothing to say about either matrix.

use cheops_core::{
    id::{Kind, NameError},
    matrix::{Config, Matrix},
};
use hyper::Method;

/// What a request is made to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A collection, in which it makes a resource.
    Collection,
    /// The path of a resource itself.
    Own,
    /// A path below that of a resource.
    Below,
}

/// The kind of the operation that a request is. Its names are well formed, so it does not fail.
pub fn kind(method: &Method, place: Place) -> Result<Kind, NameError> {
    let name = match (method, place) {
        (&Method::POST, Place::Collection) => "create",
        (&Method::PUT, Place::Own | Place::Collection) => "replace",
        (&Method::PATCH, Place::Own | Place::Collection) => "merge",
        (&Method::DELETE, Place::Own | Place::Collection) => Kind::DELETE,
        _ => "act",
    };
    name.parse()
}

/// How operations on a resource with a meta id meet.
pub fn made() -> Matrix {
    read(MADE)
}

/// How operations on a resource meet that has the same path at all sites.
pub fn natural() -> Matrix {
    read(NATURAL)
}

/// Of one of the texts below, which a test holds to be right.
fn read(json: &str) -> Matrix {
    Config::from_json(json).map(|config| config.matrix).unwrap_or_default()
}

const MADE: &str = r#"{"ResolutionMatrix": [
    {"Before": "create", "After": "create", "Result": "take-one"},
    {"Before": "create", "After": "replace", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "create", "After": "merge", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "create", "After": "act", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "replace", "After": "create", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "merge", "After": "create", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "act", "After": "create", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "replace", "After": "replace", "Result": "take-both-agreed-order"},
    {"Before": "replace", "After": "merge", "Result": "take-both-agreed-order"},
    {"Before": "replace", "After": "act", "Result": "take-both-agreed-order"},
    {"Before": "merge", "After": "replace", "Result": "take-both-agreed-order"},
    {"Before": "merge", "After": "merge", "Result": "take-both-agreed-order"},
    {"Before": "merge", "After": "act", "Result": "take-both-agreed-order"},
    {"Before": "act", "After": "replace", "Result": "take-both-agreed-order"},
    {"Before": "act", "After": "merge", "Result": "take-both-agreed-order"},
    {"Before": "act", "After": "act", "Result": "take-both-agreed-order"}
]}"#;

const NATURAL: &str = r#"{"ResolutionMatrix": [
    {"Before": "replace", "After": "replace", "Result": "take-one"},
    {"Before": "replace", "After": "merge", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "replace", "After": "act", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "merge", "After": "replace", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "act", "After": "replace", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "merge", "After": "merge", "Result": "take-both-agreed-order"},
    {"Before": "merge", "After": "act", "Result": "take-both-agreed-order"},
    {"Before": "act", "After": "merge", "Result": "take-both-agreed-order"},
    {"Before": "act", "After": "act", "Result": "take-both-agreed-order"}
]}"#;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use cheops_core::{
        history::{Act, History},
        id::SiteId,
        matrix,
    };
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_request_is_of_a_kind() {
        let table = [
            (Method::POST, Place::Collection, "create"),
            (Method::PUT, Place::Own, "replace"),
            (Method::PATCH, Place::Own, "merge"),
            (Method::DELETE, Place::Own, "delete"),
            (Method::POST, Place::Own, "act"),
            (Method::PUT, Place::Below, "act"),
            (Method::DELETE, Place::Below, "act"),
            (Method::from_bytes(b"MKCOL").unwrap(), Place::Own, "act"),
        ];
        for (method, place, expected) in table {
            assert_eq!(kind(&method, place).unwrap().as_str(), expected, "{method} {place:?}");
        }
    }

    #[test]
    fn the_check_has_nothing_to_say_about_the_matrices() {
        for (matrix, kinds) in [(made(), 4), (natural(), 3)] {
            assert_eq!(matrix::check(&matrix), []);
            assert_eq!(matrix.kinds().len(), kinds);
            assert_eq!(matrix.entries().len(), kinds * kinds);
        }
    }

    /// `a merge site1 2 create,b`: an operation, its kind, site, time and parents.
    fn history(matrix: &Matrix, operations: &[&str]) -> History {
        let operation = |text: &&str| {
            let words: Vec<&str> = text.split(' ').collect();
            let parents: Vec<&str> =
                words.get(4).map(|p| p.split(',').collect()).unwrap_or_default();
            json!({"Id": words[0], "Kind": words[1], "Site": words[2],
                "Time": words[3].parse::<i64>().unwrap(), "Parents": parents})
        };
        let mut json = Config { matrix: matrix.clone(), ..Config::default() }.to_json();
        json["Operations"] = operations.iter().map(operation).collect::<Vec<Value>>().into();
        History::from_json(&json.to_string()).unwrap()
    }

    fn block(history: &History) -> String {
        history.block().iter().map(|&ix| history.id(ix)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn concurrent_requests_meet_as_they_should() {
        let made = made();
        let natural = natural();
        let table: [(&str, &Matrix, &[&str], &str); 9] = [
            (
                "two PATCHes: both, in one order",
                &made,
                &["c create s1 1", "b merge s2 3 c", "a merge s1 2 c"],
                "c a b",
            ),
            (
                "two PUTs of a made resource: both, in one order",
                &made,
                &["c create s1 1", "b replace s2 3 c", "a replace s1 2 c"],
                "c a b",
            ),
            (
                "an upload is not lost to a PUT that follows it",
                &made,
                &["c create s1 1", "a act s1 2 c", "b replace s1 3 a"],
                "c a b",
            ),
            (
                "a delete wins over what it did not know",
                &made,
                &["c create s1 1", "d delete s1 2 c", "a merge s2 3 c"],
                "d",
            ),
            (
                "two PUTs of a natural resource: the later",
                &natural,
                &["a replace s1 1", "b replace s2 2"],
                "b",
            ),
            (
                "a PUT and a PATCH: both, the PUT first",
                &natural,
                &["a merge s1 1", "b replace s2 2"],
                "b a",
            ),
            (
                "the same, by the clock the other way",
                &natural,
                &["b replace s2 1", "a merge s1 2"],
                "b a",
            ),
            (
                "a PUT replaces the PATCH that it follows",
                &natural,
                &["a merge s1 1", "b replace s1 2 a"],
                "b",
            ),
            (
                "two PATCHes of a natural resource",
                &natural,
                &["b merge s2 2", "a merge s1 1"],
                "a b",
            ),
        ];
        for (story, matrix, operations, expected) in table {
            assert_eq!(block(&history(matrix, operations)), expected, "{story}");
        }
    }

    /// What the application at a site has in the end: its members, by who wrote them last. To make
    /// the resource once more does nothing, as the application has it already.
    fn ends_with(history: &History, site: &SiteId) -> BTreeMap<usize, String> {
        let mut state = BTreeMap::new();
        let story = history.story(site);
        for act in story.apart.into_iter().chain(story.after) {
            let Act::Run { op, .. } = act else { panic!("{act:?}") };
            let id = history.id(op);
            let field = id.len() % 3;
            match history.log().op(op).kind.as_str() {
                "create" => {}
                "replace" => state = BTreeMap::from([(field, id.to_owned())]),
                "merge" => drop(state.insert(field, id.to_owned())),
                other => unreachable!("{other}"),
            }
        }
        state
    }

    /// Operations at three sites that hear of each other now and then: site, whether it is a PUT,
    /// how far the clock is off, of which sites it has heard, and which member it writes.
    type Event = (usize, bool, i64, [bool; 3], usize);

    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec(
            (0..3_usize, any::<bool>(), 0..6_i64, any::<[bool; 3]>(), 0..3_usize),
            0..12,
        )
    }

    fn played(matrix: &Matrix, events: &[Event]) -> History {
        let mut lines = vec!["c create s0 0".to_owned()];
        let mut newest = [const { (String::new(), 0) }; 3];
        newest.fill(("c".to_owned(), 0));
        for (n, (site, put, skew, heard, field)) in events.iter().enumerate() {
            let known = (0..3).filter(|other| other == site || heard[*other]);
            let parents: BTreeSet<(String, i64)> = known.map(|s| newest[s].clone()).collect();
            let time = parents.iter().map(|(_, time)| time + 1).fold(1 + skew, i64::max);
            let id = format!("o{n:0width$}", width = 3 + field);
            let kind = if *put { "replace" } else { "merge" };
            let names: Vec<&str> = parents.iter().map(|(id, _)| id.as_str()).collect();
            lines.push(format!("{id} {kind} s{site} {time} {}", names.join(",")));
            newest[*site] = (id, time);
        }
        history(matrix, &lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn agree(history: &History) {
        let states: BTreeSet<BTreeMap<usize, String>> =
            ["s0", "s1", "s2"].map(|site| ends_with(history, &site.parse().unwrap())).into();
        assert_eq!(states.len(), 1, "{states:?}");
    }

    proptest! {
        #[test]
        fn all_sites_end_alike_with_a_made_resource(events in events()) {
            let history = played(&made(), &events);
            prop_assert_eq!(history.block().len(), events.len() + 1, "nothing is lost");
            agree(&history);
        }
    }
}
