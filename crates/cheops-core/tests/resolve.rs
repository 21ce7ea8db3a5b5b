//! Properties of the block: it is a function of the set of operations, and of nothing else.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    Rules,
    id::OpId,
    log::{Ix, Log, NotInserted},
    matrix::Matrix,
    operation::Operation,
    resolve::{Receipt, Resolution},
};
use proptest::prelude::*;
use support::{
    cases,
    history::{self, events, matrices},
    reference::{self, Amounts},
};

/// What the incremental resolution says, after each operation was added and each void was told, in
/// the order given.
fn incremental(
    matrix: &Matrix,
    order: &[std::sync::Arc<Operation>],
    void: &BTreeSet<OpId>,
    void_late: bool,
) -> (Log, Resolution) {
    let mut log = Log::default();
    let mut resolution = Resolution::new(Rules::new(matrix));
    for op in order {
        let ix = log.insert(op.clone()).unwrap();
        resolution.add(&log, ix);
        assert_eq!(
            log.insert(op.clone()),
            Err(NotInserted::Known(ix)),
            "duplicates change nothing"
        );
        if void.contains(&op.id) && !void_late {
            resolution.void(&log, ix);
        }
    }
    if void_late {
        for id in void {
            let ix = log.find(id).unwrap();
            resolution.void(&log, ix);
            assert_eq!(resolution.void(&log, ix).from, resolution.block().len());
        }
    }
    (log, resolution)
}

/// The same, of a log that has more operations than the resolution knows of.
fn behind(matrix: &Matrix, log: &Log, void: &BTreeSet<OpId>) -> Resolution {
    let mut resolution = Resolution::new(Rules::new(matrix));
    for (ix, op) in log.iter() {
        resolution.add(log, ix);
        if void.contains(&op.id) {
            resolution.void(log, ix);
        }
    }
    resolution
}

fn ids(log: &Log, ops: &[Ix]) -> Vec<OpId> {
    ops.iter().map(|&ix| log.op(ix).id.clone()).collect()
}

fn receipts(log: &Log, resolution: &Resolution) -> BTreeMap<OpId, Option<OpId>> {
    log.iter()
        .filter_map(|(ix, op)| {
            let by = match resolution.receipt(log, ix)? {
                Receipt::Void => None,
                Receipt::Over { by } | Receipt::Fallen { by, .. } => Some(log.op(by).id.clone()),
            };
            Some((op.id.clone(), by))
        })
        .collect()
}

fn check(matrix: &Matrix, ops: &[Operation], void: &BTreeSet<OpId>, picks: &[usize], late: bool) {
    let Amounts { block, dropped } = reference::amounts(matrix, ops, void);
    let order = history::shuffled(ops, picks);
    let (log, resolution) = incremental(matrix, &order, void, late);
    assert_eq!(ids(&log, resolution.block()), block, "the block");

    let receipts = receipts(&log, &resolution);
    assert_eq!(receipts.keys().collect::<Vec<_>>(), dropped.keys().collect::<Vec<_>>());
    for (id, by) in &receipts {
        match by {
            None => assert!(void.contains(id), "{id} is void"),
            Some(by) => assert!(dropped[id].contains(by), "{id} was not lost to {by}"),
        }
    }

    let whole = Resolution::of(Rules::new(matrix), &log, |ix| void.contains(&log.op(ix).id));
    assert_eq!(whole.block(), resolution.block(), "at once or one by one");
    assert_eq!(whole.last_replacing(), resolution.last_replacing());
    assert_eq!(behind(matrix, &log, void).block(), resolution.block(), "behind the log");
    let one_by_one: BTreeMap<Ix, Receipt> =
        log.iter().filter_map(|(ix, _)| Some((ix, resolution.receipt(&log, ix)?))).collect();
    assert_eq!(whole.receipts(&log), one_by_one, "receipts at once or one by one");
}

/// A matrix as a person writes them: kinds that replace, kinds that add up, with mirrors.
fn sane() -> Matrix {
    let json = r#"{"ResolutionMatrix": [
        {"Before": "a", "After": "b", "Result": "take-both-keep-order"},
        {"Before": "b", "After": "a", "Result": "take-both-reverse-order"},
        {"Before": "a", "After": "a", "Result": "take-one"},
        {"Before": "b", "After": "b", "Result": "take-both"},
        {"Before": "c", "After": "c", "Result": "take-both-agreed-order"}]}"#;
    cheops_core::matrix::Config::from_json(json).unwrap().matrix
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(3000), ..ProptestConfig::default() })]

    #[test]
    fn the_incremental_block_is_the_reference_block(
        matrix in matrices(),
        events in events(28),
        picks in prop::collection::vec(0..64_usize, 1..24),
        late in any::<bool>(),
    ) {
        let (ops, void) = history::play(&matrix, &events);
        check(&matrix, &ops, &void, &picks, late);
    }

    #[test]
    fn also_for_a_sane_matrix_and_longer_histories(
        events in events(60),
        picks in prop::collection::vec(0..64_usize, 1..24),
        late in any::<bool>(),
    ) {
        let (ops, void) = history::play(&sane(), &events);
        check(&sane(), &ops, &void, &picks, late);
    }

    #[test]
    fn also_for_histories_that_make_no_sense(
        matrix in matrices(),
        rows in history::wild_rows(),
        picks in prop::collection::vec(0..64_usize, 1..24),
    ) {
        let (ops, void) = history::wild(&rows, |_, _, _| false);
        check(&matrix, &ops, &void, &picks, false);
    }

    #[test]
    fn causality_is_respected(
        matrix in matrices(),
        events in events(30),
    ) {
        let (ops, void) = history::play(&matrix, &events);
        let order = history::shuffled(&ops, &[0]);
        let (log, resolution) = incremental(&matrix, &order, &void, false);
        let block = resolution.block();
        for (n, &later) in block.iter().enumerate() {
            prop_assert!(block[..n].iter().all(|&earlier| !log.precedes(later, earlier)));
        }
    }
}
