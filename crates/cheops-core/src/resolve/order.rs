//! The order of the block: causality first, then the order that entries ask for between concurrent
//! operations, then timestamp, site, number.
//!
//! Put as a procedure: of the operations whose predecessors are all placed, take those that no
//! unplaced operation is to stand before; if there is none, because entries and causality form a
//! circle, take all; place the earliest of them; repeat.
//!
//! Where no entry asks for an order, this is the order of time, and an operation is put in its
//! place. Where some do, a new operation that none has to stand behind is put in its place, too: it
//! moves no other. Otherwise the end of the block is arranged anew, from the first operation on
//! that does not precede all that has changed: what precedes them all can't be moved by them. An
//! operation that leaves may set free others that had to stand behind it; these have changed, too.

use alloc::{vec, vec::Vec};

use super::{Change, Fate, Resolution};
use crate::{
    few::Few,
    log::{Ix, LaneIx, Log},
    rules::{KindIx, When},
};

/// Brings the block up to date after the fates of some operations have changed.
pub(super) fn arrange(this: &mut Resolution, log: &Log, touched: &[Ix]) -> Change {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    for &ix in touched {
        let state = &mut this.states[ix.usize()];
        let kept = state.fate == Fate::Kept;
        if kept != state.listed {
            state.listed = kept;
            state.place = 0;
            if kept { &mut added } else { &mut removed }.push(ix);
        }
    }
    let moved: Vec<Ix> = added.iter().chain(&removed).copied().collect();
    if moved.is_empty() {
        return Change { from: this.block.len(), moved };
    }
    let by_time = log.in_time() && !this.rules.orders();
    let from = if by_time {
        place_by_time(this, log, &added, &removed)
    } else if let ([new], []) = (&*added, &*removed)
        && let Some(place) = place_of_new(this, log, *new)
    {
        this.block.insert(place, *new);
        mark(this, log, place, &[]);
        return Change { from: place, moved };
    } else {
        end_of_common_past(this, log, &added, &removed)
    };

    let tail = this.block.split_off(from);
    let listed = tail.into_iter().filter(|ix| this.states[ix.usize()].listed);
    if by_time {
        added.sort_unstable_by(|&a, &b| compare(log, a, b));
        merge(&mut this.block, listed, &added, |a, b| log.earlier(a, b));
        mark(this, log, from, &[]);
    } else {
        let tail: Vec<Ix> = listed.chain(added).collect();
        let (ordered, forced) = topological(this, log, tail);
        this.block.extend(ordered);
        mark(this, log, from, &forced);
    }
    Change { from, moved }
}

/// Notes what stands where, from a place on; `forced` are places counted from there.
fn mark(this: &mut Resolution, log: &Log, from: usize, forced: &[usize]) {
    if !this.forced.is_empty() || !forced.is_empty() {
        let known = this.forced.make();
        known.truncate(known.partition_point(|&place| place < from));
        known.extend(forced.iter().map(|&place| from + place));
    }
    this.replacing.truncate(this.replacing.partition_point(|&place| place < from));
    for place in from..this.block.len() {
        let op = this.block[place];
        this.states[op.usize()].place = u32::try_from(place).unwrap_or(u32::MAX);
        if this.replaces(log, op) {
            this.replacing.push(place);
        }
    }
}

/// The place of a new operation among the others, if it moves none of them: it stands behind what
/// precedes it and what must stand before it, and before the first of the rest that is later.
fn place_of_new(this: &Resolution, log: &Log, new: Ix) -> Option<usize> {
    let kind = this.kind(new);
    let is_newest = new.usize() + 1 == log.len();
    let moves = |kind| this.standing.any_concurrent(log, new, kind, When::Always).is_some();
    if !is_newest || this.rules.behind(kind).any(moves) {
        return None;
    }
    let must_stand_before = |other: Ix| {
        let other_kind = this.kind(other);
        let ahead = this.rules.ahead(kind).iter();
        ahead.clone().any(|&(k, when)| k == other_kind && when.holds(log, other, new))
    };
    let block = this.block();
    let (mut place, mut behind_one) = (block.len(), false);
    let mut ready = block.len();
    while let Some(before) = ready.checked_sub(1) {
        let other = block[before];
        if log.precedes(other, new) {
            break;
        }
        behind_one |= must_stand_before(other);
        if !behind_one && log.earlier(new, other) {
            place = before;
        }
        ready = before;
    }
    // Where an order was forced, the new one would have been free to go first.
    let forced = this.forced.last().is_some_and(|&forced| forced >= ready);
    (!forced).then_some(place)
}

fn compare(log: &Log, a: Ix, b: Ix) -> core::cmp::Ordering {
    log.op(a).key().cmp(&log.op(b).key())
}

/// The place in a block that is in the order of time where the first change falls.
fn place_by_time(this: &Resolution, log: &Log, added: &[Ix], removed: &[Ix]) -> usize {
    let changed = added.iter().chain(removed).copied();
    let Some(first) = changed.reduce(|a, b| if log.earlier(b, a) { b } else { a }) else {
        return this.block.len();
    };
    // Changes fall near the end; step back from there in strides that double.
    let block = this.block();
    let (mut to, mut stride) = (block.len(), 1);
    while to > 0 {
        let from = to.saturating_sub(stride);
        if log.earlier(block[from], first) {
            return from + block[from..to].partition_point(|&ix| log.earlier(ix, first));
        }
        to = from;
        stride *= 2;
    }
    0
}

/// The first place in the block whose operation does not precede all that changed.
fn end_of_common_past(this: &Resolution, log: &Log, added: &[Ix], removed: &[Ix]) -> usize {
    let mut common = vec![u32::MAX; log.lanes().count()];
    let mut narrow = |ix: Ix| {
        for lane in log.lanes() {
            let seen = &mut common[lane.usize()];
            *seen = log.seen(ix, lane).min(*seen);
        }
    };
    added.iter().chain(removed).copied().for_each(&mut narrow);
    for &ix in removed {
        for kind in this.rules.behind(this.kind(ix)) {
            this.standing.each_concurrent(log, ix, kind, When::Always, &mut narrow);
        }
    }
    let precedes_all = |ix: Ix| {
        let (lane, index) = log.place(ix);
        index < common[lane.usize()]
    };
    // What changed does not precede itself, so it is among those that we count.
    let mut left = this.standing.count_from(&common) - added.len() + removed.len();
    let block = this.block();
    let mut from = block.len();
    while left > 0 && from > 0 {
        from -= 1;
        left -= usize::from(!precedes_all(block[from]));
    }
    from
}

/// Appends two ordered runs as one.
fn merge(
    into: &mut Few<Ix>,
    a: impl Iterator<Item = Ix>,
    b: &[Ix],
    earlier: impl Fn(Ix, Ix) -> bool,
) {
    let mut b = b.iter().copied().peekable();
    for x in a {
        while let Some(y) = b.next_if(|&y| earlier(y, x)) {
            into.push(y);
        }
        into.push(x);
    }
    into.extend(b);
}

/// The operations of one lane that are not placed yet.
struct Queue {
    lane: LaneIx,
    ops: Vec<Ix>,
    next: usize,
    /// For each kind that may have to stand before others: the places in `ops` of its operations.
    by_kind: Vec<(KindIx, Vec<usize>)>,
}

impl Queue {
    fn unplaced(&self) -> &[Ix] {
        &self.ops[self.next..]
    }

    fn unplaced_of(&self, kind: KindIx) -> impl Iterator<Item = Ix> {
        let places = self.by_kind.iter().find(|(k, _)| *k == kind).map_or(&[][..], |(_, p)| p);
        let from = places.partition_point(|&place| place < self.next);
        places[from..].iter().map(|&place| self.ops[place])
    }
}

/// Orders operations by the procedure above. Also the places that were given to an operation that
/// another should have stood before, because there was no way out of a circle.
fn topological(this: &Resolution, log: &Log, ops: Vec<Ix>) -> (Vec<Ix>, Vec<usize>) {
    let mut queues = queues(this, log, ops);
    let total: usize = queues.iter().map(|queue| queue.ops.len()).sum();
    let mut placed = Vec::with_capacity(total);
    let mut forced = Vec::new();
    while placed.len() < total {
        let ready = |q: &usize| {
            let head = queues[*q].unplaced().first();
            head.is_some_and(|&head| is_ready(log, &queues, head))
        };
        let ready: Vec<usize> = (0..queues.len()).filter(ready).collect();
        let head = |q: usize| queues[q].ops[queues[q].next];
        let earliest = |among: &mut dyn Iterator<Item = usize>| {
            among.reduce(|a, b| if log.earlier(head(b), head(a)) { b } else { a })
        };
        let free = |q: &usize| !is_held(this, log, &queues, head(*q));
        let next = earliest(&mut ready.iter().copied().filter(free)).or_else(|| {
            forced.push(placed.len());
            earliest(&mut ready.iter().copied())
        });
        // Causality has no circles, so something is always ready.
        let Some(q) = next else { break };
        placed.push(head(q));
        queues[q].next += 1;
    }
    (placed, forced)
}

fn queues(this: &Resolution, log: &Log, ops: Vec<Ix>) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    let mut of_lane = vec![usize::MAX; log.lanes().count()];
    for ix in ops {
        let lane = log.place(ix).0;
        let q = &mut of_lane[lane.usize()];
        if *q == usize::MAX {
            *q = queues.len();
            queues.push(Queue { lane, ops: Vec::new(), next: 0, by_kind: Vec::new() });
        }
        queues[*q].ops.push(ix);
    }
    for queue in &mut queues {
        queue.ops.sort_unstable_by_key(|&ix| log.place(ix).1);
        for (place, &ix) in queue.ops.iter().enumerate() {
            let kind = this.kind(ix);
            match queue.by_kind.iter_mut().find(|(k, _)| *k == kind) {
                Some((_, places)) => places.push(place),
                None => queue.by_kind.push((kind, vec![place])),
            }
        }
    }
    queues
}

/// Whether all that causally precedes an operation is placed.
fn is_ready(log: &Log, queues: &[Queue], ix: Ix) -> bool {
    queues.iter().all(|queue| {
        queue.unplaced().first().is_none_or(|&first| log.place(first).1 >= log.seen(ix, queue.lane))
    })
}

/// Whether an unplaced concurrent operation is to stand before a ready one.
fn is_held(this: &Resolution, log: &Log, queues: &[Queue], ix: Ix) -> bool {
    this.rules.ahead(this.kind(ix)).iter().any(|&(kind, when)| {
        queues.iter().any(|queue| {
            // Nothing unplaced precedes a ready operation; what follows it comes last in a lane.
            queue
                .unplaced_of(kind)
                .take_while(|&other| log.concurrent(ix, other))
                .any(|other| when.holds(log, other, ix))
        })
    })
}
