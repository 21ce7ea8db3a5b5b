//! The operations of a resource side by side, as each of its sites sees them. Pure.
//!
//! Every site lists operations in the same order, the oldest first, but not every site knows all of them.
//! What must stay true: an operation stands in one row, whoever knows it; one that a site does not know is
//! told from one that it has forgotten, and from one that nobody could ask about.

use std::collections::{BTreeMap, BTreeSet};

use cheops_agent::api::model::{Operation, Resource, Run, RunStatus};

use super::words::{number_of, site_of};

/// What a site says of a resource.
#[derive(Debug)]
pub(super) struct View {
    pub(super) site: String,
    pub(super) told: Told,
}

/// What came of asking a site.
#[derive(Debug)]
pub(super) enum Told {
    /// It knows this.
    Knows(Box<Resource>),
    /// It has not heard of the resource.
    Unheard,
    /// It could not be asked.
    Silent {
        why: String,
        /// When it was last heard of.
        since: Option<String>,
    },
}

/// An operation, and what each site says of it.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// As the first that knows it sees it.
    pub(super) operation: &'a Operation,
    /// By column.
    pub(super) cells: Vec<Cell<'a>>,
}

/// What a site says of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cell<'a> {
    /// It knows the operation; how its own run of it went.
    Knows(&'a Operation, Option<&'a Run>),
    /// It has not heard of it.
    Missing,
    /// It has heard of it, and keeps it no longer.
    Past,
    /// It could not be asked; what it has said of its run before.
    Heard(&'a Run),
    /// It could not be asked, and has said nothing of it.
    Unknown,
}

/// Lays out what the sites say. `base` is what the page is about, and comes first where sites differ.
pub(super) fn align<'a>(base: &'a Resource, views: &'a [View]) -> Vec<Row<'a>> {
    let known = views.iter().filter_map(|view| match &view.told {
        Told::Knows(resource) => Some(&**resource),
        Told::Unheard | Told::Silent { .. } => None,
    });
    let all: Vec<&Resource> = std::iter::once(base).chain(known).collect();
    let mut first: BTreeMap<&str, &Operation> = BTreeMap::new();
    for operation in all.iter().flat_map(|resource| &resource.operations) {
        first.entry(&operation.id).or_insert(operation);
    }
    let lists: Vec<Vec<&str>> = all
        .iter()
        .map(|resource| resource.operations.iter().map(|op| op.id.as_str()).collect())
        .collect();
    let order = merge(&lists, |id| first.get(id).map_or("", |op| op.at.as_str()));
    // Where a list begins in the middle of its site's history, rows before it can't be compared.
    let is_cut =
        |resource: &&&Resource| resource.operations.len() < resource.summary.operation_count;
    let starts = all.iter().filter(is_cut).filter_map(|resource| resource.operations.first());
    let start = starts.filter_map(|op| order.iter().position(|id| *id == op.id)).max();
    let rows = order[start.unwrap_or_default()..].iter().filter_map(|id| first.get(id).copied());
    rows.map(|operation| Row {
        operation,
        cells: views.iter().map(|view| cell(view, operation)).collect(),
    })
    .collect()
}

fn cell<'a>(view: &'a View, operation: &'a Operation) -> Cell<'a> {
    let run_of = |operation: &'a Operation| operation.runs.iter().find(|run| run.site == view.site);
    match &view.told {
        Told::Unheard => Cell::Missing,
        Told::Silent { .. } => match run_of(operation) {
            Some(run) if is_word(run.status) => Cell::Heard(run),
            _ => Cell::Unknown,
        },
        Told::Knows(resource) => {
            match resource.operations.iter().find(|own| own.id == operation.id) {
                Some(own) => Cell::Knows(own, run_of(own)),
                None if has_heard(resource, &operation.id) => Cell::Past,
                None => Cell::Missing,
            }
        }
    }
}

/// Whether a status is a site's own word, and not the lack of one.
fn is_word(status: RunStatus) -> bool {
    matches!(status, RunStatus::Ok | RunStatus::Ko | RunStatus::Denied | RunStatus::Unknown)
}

/// Whether what a site knows of the stream of another goes as far as an operation.
fn has_heard(resource: &Resource, operation: &str) -> bool {
    let until = resource.version.get(site_of(operation));
    until.zip(number_of(operation)).is_some_and(|(until, number)| *until >= number)
}

/// Merges lists that are parts of one order. Where they don't say what comes first, `at` does.
fn merge<'a, K: Ord>(lists: &[Vec<&'a str>], at: impl Fn(&str) -> K) -> Vec<&'a str> {
    let mut heads = vec![0; lists.len()];
    // In how many lists an id is still to come.
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for id in lists.iter().flatten() {
        *left.entry(id).or_default() += 1;
    }
    let mut done = BTreeSet::new();
    let mut order = Vec::new();
    loop {
        let mut first: BTreeMap<&'a str, usize> = BTreeMap::new();
        for (list, head) in lists.iter().zip(&mut heads) {
            while list.get(*head).is_some_and(|id| done.contains(id)) {
                *head += 1;
            }
            if let Some(&id) = list.get(*head) {
                *first.entry(id).or_default() += 1;
            }
        }
        // One that stands behind another elsewhere waits; lists that contradict each other don't stop it.
        let is_free = |(id, count): (&&'a str, &usize)| left.get(*id) == Some(count);
        let rank = |id: &&'a str| (at(id), *id);
        let free = first.iter().filter(|&entry| is_free(entry)).map(|(id, _)| *id).min_by_key(rank);
        let Some(next) = free.or_else(|| first.keys().copied().min_by_key(rank)) else {
            return order;
        };
        done.insert(next);
        order.push(next);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a site sees: `a:1=OK` is an operation and the site's run of it.
    fn sees(site: &str, operations: &str, version: &[(&str, u64)], all: usize) -> Resource {
        let operations: Vec<serde_json::Value> = operations
            .split_whitespace()
            .map(|word| {
                let (id, status) = word.split_once('=').unwrap_or((word, "WAITING"));
                let at = format!("2026-01-01T00:00:0{}Z", number_of(id).unwrap());
                json!({
                    "id": id, "kind": "set", "author": "x", "at": at, "parents": [], "command": "c",
                    "fate": "kept", "runs": [{ "site": site, "status": status }, { "site": "z", "status": "OK" }],
                })
            })
            .collect();
        let version: BTreeMap<&str, u64> = version.iter().copied().collect();
        let all = all.max(operations.len());
        serde_json::from_value(json!({
            "id": "web", "state": "pending", "sites": ["a", "b"], "operation_count": all,
            "block_length": 0, "updated": null, "seen_by": site, "config": {}, "block_ids": [],
            "operations": operations, "version": version, "by_site": [],
        }))
        .unwrap()
    }

    fn view(resource: Resource) -> View {
        View { site: resource.seen_by.clone(), told: Told::Knows(Box::new(resource)) }
    }

    fn told(rows: &[Row<'_>]) -> Vec<String> {
        let word = |cell: &Cell<'_>| match cell {
            Cell::Knows(_, run) => format!("{:?}", run.unwrap().status),
            Cell::Missing => "missing".to_owned(),
            Cell::Past => "past".to_owned(),
            Cell::Heard(run) => format!("heard {:?}", run.status),
            Cell::Unknown => "?".to_owned(),
        };
        rows.iter()
            .map(|row| {
                let cells: Vec<String> = row.cells.iter().map(word).collect();
                format!("{}: {}", row.operation.id, cells.join(", "))
            })
            .collect()
    }

    #[test]
    fn an_operation_that_has_not_arrived_is_marked_in_its_row() {
        let here = sees("a", "a:1=OK a:3=OK", &[("a", 3), ("b", 1)], 0);
        let there = sees("b", "a:1=OK b:2=KO", &[("a", 1), ("b", 2)], 0);
        let views = [view(here.clone()), view(there)];
        assert_eq!(
            told(&align(&here, &views)),
            ["a:1: Ok, Ok", "b:2: missing, Ko", "a:3: Ok, missing"]
        );
    }

    #[test]
    fn what_a_site_keeps_no_longer_is_not_missing() {
        let here = sees("a", "a:1=OK a:3=OK", &[("a", 3)], 0);
        let there = sees("b", "a:3=OK", &[("a", 3)], 0);
        let views = [view(here.clone()), view(there)];
        assert_eq!(told(&align(&here, &views)), ["a:1: Ok, past", "a:3: Ok, Ok"]);
    }

    #[test]
    fn what_is_older_than_a_list_is_not_compared() {
        // Each lists its newest two; `a` has one that `b` lacks, so the list of `b` goes further back.
        let here = sees("a", "a:2 a:3", &[("a", 3)], 3);
        let there = sees("b", "a:1 a:2", &[("a", 2)], 2);
        let views = [view(here.clone()), view(there)];
        assert_eq!(told(&align(&here, &views)), ["a:2: Waiting, Waiting", "a:3: Waiting, missing"]);
    }

    #[test]
    fn of_a_silent_site_stands_what_it_has_said_before() {
        let here = sees("a", "a:1=OK", &[("a", 1)], 0);
        let silent = |site: &str| View {
            site: site.to_owned(),
            told: Told::Silent { why: "no link".to_owned(), since: None },
        };
        let unheard = View { site: "c".to_owned(), told: Told::Unheard };
        let views = [view(here.clone()), silent("z"), silent("b"), unheard];
        assert_eq!(told(&align(&here, &views)), ["a:1: Ok, heard Ok, ?, missing"]);
    }

    #[test]
    fn lists_are_merged_in_the_order_that_they_agree_on() {
        for (lists, expected) in [
            (vec![], ""),
            (vec!["a b c"], "a b c"),
            (vec!["a c", "b c"], "a b c"),
            // The order of the lists counts, not that of the times, which are the letters here.
            (vec!["c a", "a b"], "c a b"),
            (vec!["b x", "a x", "b a"], "b a x"),
            // Lists that contradict each other still make one.
            (vec!["a b", "b a"], "a b"),
        ] {
            let lists: Vec<Vec<&str>> =
                lists.iter().map(|list| list.split(' ').collect()).collect();
            let lists: Vec<Vec<&str>> = lists.into_iter().filter(|list| list != &[""]).collect();
            assert_eq!(merge(&lists, str::to_owned).join(" "), expected);
        }
    }
}
