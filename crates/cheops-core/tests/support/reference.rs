//! The block of a set of operations, computed from nothing, word by word as `docs/merge.md` has it.
//!
//! This is the second opinion on `cheops_core::resolve`: it shares no code with it, keeps nothing
//! between calls, looks at all pairs, and is as slow as that sounds.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::OpId,
    matrix::{Concurrent, Entry, Matrix, Take},
    operation::Operation,
};

/// What a set of operations amounts to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amounts {
    pub block: Vec<OpId>,
    /// Not in the block, with those that each may have lost to: resets, or winners.
    pub dropped: BTreeMap<OpId, BTreeSet<OpId>>,
}

/// All that precedes each operation.
pub fn pasts(ops: &[Operation]) -> BTreeMap<OpId, BTreeSet<OpId>> {
    let mut pasts: BTreeMap<OpId, BTreeSet<OpId>> = BTreeMap::new();
    while pasts.len() < ops.len() {
        for op in ops {
            if op.parents.iter().all(|parent| pasts.contains_key(parent)) {
                let mut past: BTreeSet<OpId> = op.parents.iter().cloned().collect();
                for parent in &op.parents {
                    past.extend(pasts[parent].iter().cloned());
                }
                pasts.insert(op.id.clone(), past);
            }
        }
    }
    pasts
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    Both,
    BothInOrder(bool),
    First(bool),
}

/// What becomes of two concurrent operations: the answer is about the first of them.
fn meet(matrix: &Matrix, a: &Operation, b: &Operation) -> Stay {
    let (earlier, later) = if a.key() < b.key() { (a, b) } else { (b, a) };
    let own = matrix.entry(&earlier.kind, &later.kind).map(|(_, entry)| entry);
    let mirror = matrix.entry(&later.kind, &earlier.kind).map(|(_, entry)| entry);
    if own.is_none() && mirror.is_none() {
        return match (a.kind.is_delete(), b.kind.is_delete()) {
            (true, true) => Stay::First(a.key() > b.key()),
            (true, false) => Stay::First(true),
            (false, true) => Stay::First(false),
            (false, false) => Stay::Both,
        };
    }
    // An entry, and whether its `Before` is the earlier operation.
    let candidates = [(own, true), (mirror, false)];
    let spoken = candidates.iter().find(|(e, _)| e.is_some_and(|e| e.concurrent.is_some()));
    let found = spoken.or_else(|| candidates.iter().find(|(e, _)| e.is_some()));
    let Some(&(Some(Entry { result, concurrent, .. }), before_is_earlier)) = found else {
        return Stay::Both;
    };
    let before_is_a = before_is_earlier == (a.key() < b.key());
    let a_is_later = a.key() > b.key();
    match (concurrent, result) {
        (Some(Concurrent::Both), Take::BothKeepOrder) => Stay::BothInOrder(before_is_a),
        (Some(Concurrent::Both), Take::BothReverseOrder) => Stay::BothInOrder(!before_is_a),
        (Some(Concurrent::Both), _) | (None, Take::Both | Take::BothAgreedOrder) => Stay::Both,
        (Some(Concurrent::One), _) | (None, Take::One) => Stay::First(a_is_later),
        (Some(Concurrent::Before), _) | (None, Take::BothKeepOrder) => Stay::First(before_is_a),
        (Some(Concurrent::After), _) | (None, Take::BothReverseOrder) => Stay::First(!before_is_a),
    }
}

/// The block of these operations, of which some failed where they were received.
pub fn amounts(matrix: &Matrix, ops: &[Operation], void: &BTreeSet<OpId>) -> Amounts {
    let pasts = pasts(ops);
    let precedes = |a: &Operation, b: &Operation| pasts[&b.id].contains(&a.id);
    let concurrent =
        |a: &Operation, b: &Operation| a.id != b.id && !precedes(a, b) && !precedes(b, a);
    let mut dropped: BTreeMap<OpId, BTreeSet<OpId>> = BTreeMap::new();

    let valid: Vec<&Operation> = ops.iter().filter(|op| !void.contains(&op.id)).collect();
    for id in void {
        dropped.insert(id.clone(), BTreeSet::new());
    }

    let mut live = Vec::new();
    for &op in &valid {
        let ended_by: BTreeSet<OpId> =
            valid.iter().filter(|r| r.reset && precedes(op, r)).map(|r| r.id.clone()).collect();
        if ended_by.is_empty() {
            live.push(op);
        } else {
            dropped.insert(op.id.clone(), ended_by);
        }
    }

    // Who fells whom, with pairs on a circle decided by the later timestamp.
    let n = live.len();
    let says = |a: usize, b: usize| {
        concurrent(live[a], live[b]) && meet(matrix, live[a], live[b]) == Stay::First(true)
    };
    let mut reaches: Vec<Vec<bool>> =
        (0..n).map(|a| (0..n).map(|b| says(a, b)).collect()).collect();
    for via in 0..n {
        for a in 0..n {
            for b in 0..n {
                reaches[a][b] |= reaches[a][via] && reaches[via][b];
            }
        }
    }
    let fells = |a: usize, b: usize| {
        let on_a_circle = reaches[a][b] && reaches[b][a];
        if on_a_circle {
            (says(a, b) || says(b, a)) && live[a].key() > live[b].key()
        } else {
            says(a, b)
        }
    };
    let mut fate: Vec<Option<bool>> = vec![None; n];
    while fate.contains(&None) {
        for x in 0..n {
            let foes: Vec<usize> = (0..n).filter(|&y| fells(y, x)).collect();
            if foes.iter().any(|&y| fate[y] == Some(true)) {
                fate[x] = Some(false);
            } else if foes.iter().all(|&y| fate[y] == Some(false)) {
                fate[x] = Some(true);
            }
        }
    }
    for x in 0..n {
        if fate[x] == Some(false) {
            let winners = (0..n)
                .filter(|&y| fate[y] == Some(true) && fells(y, x))
                .map(|y| live[y].id.clone());
            dropped.insert(live[x].id.clone(), winners.collect());
        }
    }

    let mut left: Vec<&Operation> =
        (0..n).filter(|&x| fate[x] == Some(true)).map(|x| live[x]).collect();
    let mut block = Vec::new();
    while !left.is_empty() {
        let ready: Vec<&Operation> =
            left.iter().copied().filter(|x| !left.iter().any(|y| precedes(y, x))).collect();
        let free: Vec<&Operation> = ready
            .iter()
            .copied()
            .filter(|x| {
                !left
                    .iter()
                    .any(|y| concurrent(x, y) && meet(matrix, y, x) == Stay::BothInOrder(true))
            })
            .collect();
        let from = if free.is_empty() { ready } else { free };
        let next = from.into_iter().min_by_key(|op| op.key()).unwrap();
        block.push(next.id.clone());
        left.retain(|op| op.id != next.id);
    }
    Amounts { block, dropped }
}

/// The append rule: whether a new operation of this kind resets, after these.
pub fn resets(matrix: &Matrix, ops: &[Operation], void: &BTreeSet<OpId>, new: &Operation) -> bool {
    let amounts = amounts(matrix, ops, void);
    let Some(last) = amounts.block.last() else { return false };
    let last = ops.iter().find(|op| op.id == *last).unwrap();
    match matrix.entry(&last.kind, &new.kind) {
        Some((_, entry)) => matches!(entry.result, Take::One | Take::BothReverseOrder),
        None => new.kind.is_delete() && matrix.entry(&new.kind, &last.kind).is_none(),
    }
}
