//! What is known at one place while others know other things, and what follows from that: which
//! operations reset.
//!
//! What must stay true: a view holds whole pasts, so it is known by the operations that it was
//! last asked for; and whether an operation resets depends on its past and on nothing else.

use alloc::{sync::Arc, vec, vec::Vec};

use crate::{
    id::Kind,
    log::{Ix, Log},
    operation::SharedOperation,
    resolve::{Reset, Resolution},
    rules::Rules,
};

/// A history's shape: which operation directly follows which. Places are those of its log.
#[derive(Debug, Clone)]
pub(super) struct Graph {
    pub(super) log: Log,
    /// For each operation, its parents.
    pub(super) parents: Vec<Vec<Ix>>,
}

/// Some operations of a history, with their pasts, and what they amount to.
///
/// A view has a log of its own. `members` leads from places in that log to places in the history's.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) log: Log,
    pub(super) resolution: Resolution,
    pub(super) members: Vec<Ix>,
    known: Vec<bool>,
}

impl View {
    pub(super) fn new(rules: Rules, graph: &Graph) -> Self {
        Self {
            log: Log::default(),
            resolution: Resolution::new(rules),
            members: Vec::new(),
            known: vec![false; graph.parents.len()],
        }
    }

    /// What the view lacks of these operations and their pasts, each after its parents. It counts
    /// as known from now on.
    pub(super) fn lacks(&mut self, graph: &Graph, ops: &[Ix]) -> Vec<Ix> {
        let mut open = ops.to_vec();
        let mut found = Vec::new();
        while let Some(ix) = open.pop() {
            if !core::mem::replace(&mut self.known[ix.usize()], true) {
                found.push(ix);
                open.extend(&graph.parents[ix.usize()]);
            }
        }
        // An operation enters a log after its parents.
        found.sort_unstable();
        found
    }

    /// Takes in what was lacking. Returns the first place of the block that may have changed.
    pub(super) fn take(
        &mut self,
        batch: &[Ix],
        op: impl Fn(Ix) -> SharedOperation,
        void: impl Fn(Ix) -> bool,
    ) -> usize {
        let anew = batch.len() > 1 && batch.len() > self.log.len() / 8;
        let mut from = self.resolution.block().len();
        for &ix in batch {
            // What was lacking comes once, and after its parents, so it is let in.
            let Ok(here) = self.log.insert(op(ix)) else { continue };
            self.members.push(ix);
            if !anew {
                from = from.min(self.resolution.add(&self.log, here).from);
                if void(ix) {
                    from = from.min(self.resolution.void(&self.log, here).from);
                }
            }
        }
        if !anew {
            return from;
        }
        let rules = self.resolution.rules().clone();
        let void = |here: Ix| void(self.members[here.usize()]);
        self.resolution = Resolution::of(rules, &self.log, void);
        0
    }
}

/// How many views are kept at the same time: enough for the sites of one resource, and few enough
/// for the memory of a long history.
const VIEWS: usize = 32;

/// Decides for each operation whether it resets, from the block of its own past.
///
/// Building each past from nothing would take the square of the history. But pasts grow: the view
/// that was good for an operation is, with a little more in it, good for one that follows. So some
/// views are kept, and a past begins with the largest that is part of it.
pub(super) fn resets(
    rules: &Rules,
    graph: &Graph,
    ops: &mut [SharedOperation],
    forced: impl Fn(Ix) -> bool,
    void: impl Fn(Ix) -> bool,
) -> Vec<Option<Reset>> {
    let mut resets = vec![None; ops.len()];
    // The last used comes last. With each view, the operations that it was last asked for.
    let mut views: Vec<(View, Vec<Ix>)> = Vec::new();
    for ix in by_depth(graph) {
        let kind = ops[ix.usize()].kind.clone();
        if forced(ix) {
            resets[ix.usize()] = Some(Reset::Forced);
        } else if rules.replaces(rules.kind(&kind)) {
            let parents = &graph.parents[ix.usize()];
            let (mut view, _) = largest_within(graph, &mut views, parents).unwrap_or_else(|| {
                if views.len() >= VIEWS {
                    views.remove(0);
                }
                (View::new(rules.clone(), graph), Vec::new())
            });
            let batch = view.lacks(graph, parents);
            view.take(&batch, |ix| ops[ix.usize()].clone(), &void);
            resets[ix.usize()] = appended(&view, &kind);
            views.push((view, parents.clone()));
        }
        if resets[ix.usize()].is_some() {
            Arc::make_mut(&mut ops[ix.usize()]).reset = true;
        }
    }
    resets
}

/// Why an operation of this kind, after what a view amounts to, resets; nothing if it is simply
/// appended.
fn appended(view: &View, kind: &Kind) -> Option<Reset> {
    let last = *view.resolution.block().last().filter(|_| view.resolution.resets(kind))?;
    let entry = view.resolution.rules().matrix().entry(&view.log.op(last).kind, kind);
    Some(entry.map_or(Reset::Delete, |(row, _)| Reset::Appended { row }))
}

/// Takes out the largest view that lies within the past of an operation with these parents.
fn largest_within(
    graph: &Graph,
    views: &mut Vec<(View, Vec<Ix>)>,
    parents: &[Ix],
) -> Option<(View, Vec<Ix>)> {
    let in_past =
        |&ix: &Ix| parents.iter().any(|&parent| ix == parent || graph.log.precedes(ix, parent));
    let within = |n: &usize| views[*n].1.iter().all(in_past);
    let best = (0..views.len()).filter(within).max_by_key(|&n| views[n].0.members.len())?;
    Some(views.remove(best))
}

/// The operations, those with the longest chains before them last. So of several that branch off
/// one chain those with the shorter past come first, whatever the clocks say, and views can grow.
fn by_depth(graph: &Graph) -> Vec<Ix> {
    let mut depths = vec![0_u32; graph.parents.len()];
    let mut order: Vec<Ix> = graph.log.iter().map(|(ix, _)| ix).collect();
    for &ix in &order {
        let before = graph.parents[ix.usize()].iter().map(|parent| depths[parent.usize()] + 1);
        depths[ix.usize()] = before.max().unwrap_or(0);
    }
    order.sort_by_key(|ix| depths[ix.usize()]);
    order
}
