//! The fates of operations whose kinds fell each other in a circle.
//!
//! Where the entries of concurrent operations form a circle (a over b, b over c, c over a), no
//! choice honours them all. The pairs on such a circle are decided by the later timestamp instead,
//! and all others as their entries say. [`matrix check`](crate::matrix) reports such matrices.
//!
//! This is the slow path: it decides a whole group of operations that are connected by who fells
//! whom anew, in a time that grows with the square of the group. So it also takes note of what each
//! one fell to, and a receipt costs nothing later.

use alloc::{collections::BTreeSet, vec, vec::Vec};

use super::{Fate, Resolution, Work, concurrent_range};
use crate::log::{Ix, Log};

/// Decides what is due, and all that it may have an influence on.
pub(super) fn decide(this: &mut Resolution, log: &Log, work: &mut Work) {
    let mut seeds: Vec<Ix> = work.due.iter().map(|&(_, _, ix)| ix).collect();
    seeds.extend(&work.touched);
    if let Some(winners) = this.winners.filled_mut() {
        for ix in &seeds {
            winners.remove(ix);
        }
    }
    let contest = Contest::around(this, log, seeds);
    let kept = contest.kept();
    for (n, &ix) in contest.group.iter().enumerate() {
        match (this.fate(ix) == Fate::Kept, kept[n]) {
            (false, true) => this.keep(log, ix, work),
            (true, false) => this.retire(log, ix, Fate::Fallen, work),
            _ => {}
        }
        let falls_to = |&winner: &usize| kept[winner] && contest.wins(winner, n);
        let winner = if kept[n] { None } else { (0..kept.len()).rev().find(falls_to) };
        match winner {
            Some(winner) => drop(this.winners.make().insert(ix, contest.group[winner])),
            None => drop(this.winners.filled_mut().and_then(|winners| winners.remove(&ix))),
        }
    }
    work.due.clear();
}

/// Operations that are connected by who fells whom, and what their entries say of each two.
struct Contest {
    /// In order of time.
    group: Vec<Ix>,
    /// For each of the group, those whom it fells by the entries.
    losers: Vec<Vec<usize>>,
    /// For each of the group, the number of the circle that it is on; who is alone has its own.
    circles: Vec<usize>,
}

impl Contest {
    fn around(this: &Resolution, log: &Log, seeds: Vec<Ix>) -> Self {
        let group = group(this, log, seeds);
        let fells = |&a: &usize, &b: &usize| {
            log.concurrent(group[a], group[b]) && this.fells(log, group[a], group[b])
        };
        let all = 0..group.len();
        let losers: Vec<Vec<usize>> =
            all.clone().map(|a| all.clone().filter(|b| fells(&a, b)).collect()).collect();
        let circles = circles(&losers);
        Self { group, losers, circles }
    }

    /// Whether, of two that the entries don't let stay together, the first is to stay.
    fn wins(&self, a: usize, b: usize) -> bool {
        let fells = |a: usize, b: usize| self.losers[a].binary_search(&b).is_ok();
        if self.circles[a] == self.circles[b] {
            a > b && (fells(a, b) || fells(b, a))
        } else {
            fells(a, b)
        }
    }

    /// Which of the group are kept.
    fn kept(&self) -> Vec<bool> {
        // Whoever wins over another is on a stronger circle, or on the same one and later.
        let mut order: Vec<usize> = (0..self.group.len()).collect();
        order.sort_unstable_by_key(|&n| core::cmp::Reverse((self.circles[n], n)));
        let mut kept = vec![false; self.group.len()];
        for (decided, &n) in order.iter().enumerate() {
            kept[n] = !order[..decided].iter().any(|&other| kept[other] && self.wins(other, n));
        }
        kept
    }
}

/// The live operations that are connected to some of these by who fells whom, in order of time.
fn group(this: &Resolution, log: &Log, seeds: Vec<Ix>) -> Vec<Ix> {
    let live = |ix: Ix| matches!(this.fate(ix), Fate::Kept | Fate::Fallen);
    let mut seen: BTreeSet<Ix> = seeds.iter().copied().collect();
    let mut open = seeds;
    while let Some(ix) = open.pop() {
        for lane in log.lanes() {
            for place in concurrent_range(log, ix, lane) {
                let other = log.lane(lane)[place as usize];
                // The log may have operations that are not taken in yet.
                if other.usize() >= this.len() {
                    continue;
                }
                let opposed = this.fells(log, ix, other) || this.fells(log, other, ix);
                if opposed && live(other) && seen.insert(other) {
                    open.push(other);
                }
            }
        }
    }
    let mut group: Vec<Ix> = seen.into_iter().filter(|&ix| live(ix)).collect();
    group.sort_unstable_by(|&a, &b| log.op(a).key().cmp(&log.op(b).key()));
    group
}

/// The strongly connected components of a graph, by Tarjan's method without recursion. A component
/// that reaches another has the greater number.
fn circles(edges: &[Vec<usize>]) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    let n = edges.len();
    let (mut index, mut low, mut circle) = (vec![NONE; n], vec![0; n], vec![NONE; n]);
    let (mut stack, mut path) = (Vec::new(), Vec::new());
    let (mut counter, mut found) = (0, 0);
    for root in 0..n {
        if index[root] != NONE {
            continue;
        }
        path.push((root, 0));
        while let Some((node, next)) = path.pop() {
            if next == 0 {
                index[node] = counter;
                low[node] = counter;
                counter += 1;
                stack.push(node);
            }
            if let Some(&to) = edges[node].get(next) {
                path.push((node, next + 1));
                if index[to] == NONE {
                    path.push((to, 0));
                } else if circle[to] == NONE {
                    low[node] = low[node].min(index[to]);
                }
                continue;
            }
            if low[node] == index[node] {
                while let Some(member) = stack.pop() {
                    circle[member] = found;
                    if member == node {
                        break;
                    }
                }
                found += 1;
            }
            if let Some(&(parent, _)) = path.last() {
                low[parent] = low[parent].min(low[node]);
            }
        }
    }
    circle
}
