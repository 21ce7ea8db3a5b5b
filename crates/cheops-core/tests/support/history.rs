//! Random histories: what sites receive, and when they hear of each other.

use std::{collections::BTreeSet, sync::Arc};

use cheops_core::{
    id::{OpId, SiteId},
    matrix::{Concurrent, Entry, Matrix, Take},
    operation::{Action, Operation},
    time::{Millis, Timestamp},
};
use proptest::prelude::*;

use super::reference;

pub const SITES: usize = 4;
pub const KINDS: [&str; 5] = ["a", "b", "c", "delete", "d"];

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Event {
    /// A site receives an operation.
    Receive { site: usize, kind: usize, skew: u64, force: bool, void: bool },
    /// A site hears all that another knows.
    Hear { from: usize, to: usize },
}

pub fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    let receive = (0..SITES, 0..KINDS.len(), 0..8_u64, 0..12_u8, 0..8_u8).prop_map(
        |(site, kind, skew, force, void)| Event::Receive {
            site,
            kind,
            skew,
            force: force == 0,
            void: void == 0,
        },
    );
    let hear = (0..SITES, 0..SITES).prop_map(|(from, to)| Event::Hear { from, to });
    prop::collection::vec(prop_oneof![3 => receive, 2 => hear], 0..most)
}

pub fn matrices() -> impl Strategy<Value = Matrix> {
    // Kind `d` is never named.
    let take = prop_oneof![
        Just(Take::One),
        Just(Take::Both),
        Just(Take::BothKeepOrder),
        Just(Take::BothReverseOrder),
        Just(Take::BothAgreedOrder),
    ];
    let concurrent = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Concurrent::Both)),
        1 => Just(Some(Concurrent::Before)),
        1 => Just(Some(Concurrent::After)),
        1 => Just(Some(Concurrent::One)),
    ];
    let entry = (0..4_usize, 0..4_usize, take, concurrent).prop_map(
        |(before, after, result, concurrent)| Entry {
            before: KINDS[before].parse().unwrap(),
            after: KINDS[after].parse().unwrap(),
            result,
            concurrent,
        },
    );
    prop::collection::vec(entry, 0..8).prop_map(|entries| Matrix::new(entries).unwrap())
}

pub fn site(n: usize) -> SiteId {
    format!("site{n}").parse().unwrap()
}

pub fn operation(id: OpId, kind: &str, at: Timestamp, parents: Vec<OpId>) -> Operation {
    Operation {
        id,
        resource: "r".parse().unwrap(),
        kind: kind.parse().unwrap(),
        author: "test".parse().unwrap(),
        at,
        parents: parents.into(),
        action: Action::command("true"),
        reset: false,
        keep_going: false,
        key: None,
        declares: None,
    }
}

/// The history as operations, each after its parents, and those that failed where received.
///
/// `resets` is decided by the reference, from the view of the site that receives.
pub fn play(matrix: &Matrix, events: &[Event]) -> (Vec<Operation>, BTreeSet<OpId>) {
    let mut ops: Vec<Operation> = Vec::new();
    let mut voids = BTreeSet::new();
    let mut views: Vec<BTreeSet<OpId>> = vec![BTreeSet::new(); SITES];
    for event in events {
        match *event {
            Event::Hear { from, to } => {
                let heard = views[from].clone();
                views[to].extend(heard);
            }
            Event::Receive { site: at_site, kind, skew, force, void } => {
                let view: Vec<Operation> =
                    ops.iter().filter(|op| views[at_site].contains(&op.id)).cloned().collect();
                let id = OpId { site: site(at_site), number: ops.len() as u64 + 1 };
                // Clocks are off by some milliseconds; but nobody is before what it has seen.
                let wall = Timestamp::at(Millis(ops.len() as u64 + skew));
                let seen = view.iter().map(|op| op.at.to_bits() + 1).max().unwrap_or(0);
                let at = wall.max(Timestamp::from_bits(seen));
                let mut op = operation(id.clone(), KINDS[kind], at, heads(&view));
                op.reset = force || reference::resets(matrix, &view, &voids, &op);
                views[at_site].insert(id.clone());
                if void {
                    voids.insert(id);
                }
                ops.push(op);
            }
        }
    }
    (ops, voids)
}

fn heads(view: &[Operation]) -> Vec<OpId> {
    let parents: BTreeSet<&OpId> = view.iter().flat_map(|op| op.parents.iter()).collect();
    let mut heads: Vec<OpId> =
        view.iter().map(|op| &op.id).filter(|id| !parents.contains(id)).cloned().collect();
    heads.sort();
    heads
}

/// A row of a history that no site could produce, but a person may write down: site, kind, time,
/// parents as bits, and a number of which 0 means `force` and 1 that it failed where received.
pub type WildRow = (usize, usize, u64, u16, u8);

pub fn wild_rows() -> impl Strategy<Value = Vec<WildRow>> {
    prop::collection::vec((0..3_usize, 0..KINDS.len(), 0..6_u64, any::<u16>(), 0..6_u8), 0..16)
}

/// Times that contradict causality, ties, and operations of one site that know nothing of each
/// other. `resets` is asked about each operation that is not forced.
pub fn wild(
    rows: &[WildRow],
    resets: impl Fn(&[Operation], &BTreeSet<OpId>, &Operation) -> bool,
) -> (Vec<Operation>, BTreeSet<OpId>) {
    let mut ops: Vec<Operation> = Vec::new();
    let mut void = BTreeSet::new();
    for (n, &(at_site, kind, time, parents, flags)) in rows.iter().enumerate() {
        let id = OpId { site: site(at_site), number: n as u64 + 1 };
        let named = ops.iter().enumerate().filter(|(n, _)| parents >> n & 1 == 1);
        let parents = named.map(|(_, op)| op.id.clone()).collect();
        let mut op = operation(id.clone(), KINDS[kind], Timestamp::from_bits(time), parents);
        op.reset = flags == 0 || resets(&ops, &void, &op);
        if flags == 1 {
            void.insert(id);
        }
        ops.push(op);
    }
    (ops, void)
}

/// The same operations in another order in which each comes after its parents.
pub fn shuffled(ops: &[Operation], picks: &[usize]) -> Vec<Arc<Operation>> {
    let mut left: Vec<&Operation> = ops.iter().collect();
    let mut done: BTreeSet<&OpId> = BTreeSet::new();
    let mut order = Vec::new();
    while !left.is_empty() {
        let ready: Vec<usize> = (0..left.len())
            .filter(|&n| left[n].parents.iter().all(|parent| done.contains(parent)))
            .collect();
        let pick = picks.get(order.len() % picks.len().max(1)).copied().unwrap_or(0);
        let op = left.remove(ready[pick % ready.len()]);
        done.insert(&op.id);
        order.push(Arc::new(op.clone()));
    }
    order
}
