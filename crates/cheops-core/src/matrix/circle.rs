//! Circles of kinds: a wins over b, b over c, and c over a.
//!
//! Of concurrent operations the stronger one stays, so who is stronger had better be an order. A
//! matrix can say otherwise without any two entries being at odds, and nobody sees that by reading
//! it. "The later one wins" is an order by itself, and so is a fixed ranking of kinds; mixed, they
//! can bite their own tail as well.
//!
//! What must stay true: where no circle is found, the operations of any log can be put in an order
//! in which each falls only to one before it. One circle is told for each knot of kinds, the
//! shortest; after it is cut, the next shows.

use alloc::{
    collections::{BTreeSet, VecDeque},
    vec,
    vec::Vec,
};

use super::{Concurrent, Entry, Take};
use crate::id::Kind;

/// When an operation of one kind wins over a concurrent one of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wins {
    /// Whatever the time.
    Always,
    /// If it is the later one.
    Later,
    /// If it is the earlier one.
    Earlier,
}

/// One kind wins over another, by an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The kind that stays.
    pub over: Kind,
    /// The kind that falls.
    pub under: Kind,
    /// When it does.
    pub wins: Wins,
    /// The entry that says so.
    pub entry: Entry,
    /// The entry's row, counted from 1.
    pub row: usize,
}

/// Steps that lead from a kind back to itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle {
    pub(super) first: Step,
    pub(super) rest: Vec<Step>,
}

impl Circle {
    /// The steps, each from the kind that the one before it leads to.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        core::iter::once(&self.first).chain(&self.rest)
    }

    /// Whether the circle is one of kinds alone, so that it closes whatever the time.
    pub fn is_of_kinds(&self) -> bool {
        self.steps().all(|step| step.wins == Wins::Always)
    }

    /// The step that closes the circle.
    pub(super) fn last(&self) -> &Step {
        self.rest.last().unwrap_or(&self.first)
    }
}

/// Who wins over whom by an entry, when the two are concurrent.
pub(super) fn steps(row: usize, entry: &Entry) -> Vec<Step> {
    let same = entry.before == entry.after;
    let step = |over: &Kind, under: &Kind, wins| Step {
        over: over.clone(),
        under: under.clone(),
        wins,
        entry: entry.clone(),
        row,
    };
    let (before, after) = (&entry.before, &entry.after);
    match (entry.concurrent, entry.result) {
        (Some(Concurrent::Both), _) | (None, Take::Both | Take::BothAgreedOrder) => Vec::new(),
        // Two operations of one kind are told apart by their time: the earlier one is "before".
        (Some(Concurrent::Before), _) | (None, Take::BothKeepOrder) => {
            vec![step(before, after, if same { Wins::Earlier } else { Wins::Always })]
        }
        (Some(Concurrent::After), _) | (None, Take::BothReverseOrder) => {
            vec![step(after, before, if same { Wins::Later } else { Wins::Always })]
        }
        (Some(Concurrent::One), _) | (None, Take::One) => {
            let mut both = vec![step(before, after, Wins::Later)];
            if !same {
                both.push(step(after, before, Wins::Later));
            }
            both
        }
    }
}

/// The shortest circle of each knot, those of kinds alone first.
pub(super) fn find(steps: &[Step]) -> Vec<Circle> {
    let graph = Graph::new(steps);
    let of_kinds = graph.reach(|step| step.wins == Wins::Always);
    let of_any = graph.reach(|_| true);
    let mut told = vec![false; graph.kinds.len()];
    let mut circles = Vec::new();

    // A circle needs a step that time alone does not explain. Those that close without any help
    // from time are the worst, so they are looked for first.
    let fixed = |wins| steps.iter().filter(move |step| step.wins == wins);
    let candidates = fixed(Wins::Always)
        .map(|step| (step, true))
        .chain(fixed(Wins::Always).map(|step| (step, false)))
        .chain(fixed(Wins::Earlier).map(|step| (step, false)));
    for (step, only_kinds) in candidates {
        let (over, under) = (graph.number(&step.over), graph.number(&step.under));
        let reach = if only_kinds { &of_kinds } else { &of_any };
        if told[over] || !reach[under][over] {
            continue;
        }
        let allowed = |other: &Step| !only_kinds || other.wins == Wins::Always;
        let rest = if over == under {
            graph.first_step_in_knot(over, &of_any)
        } else {
            graph.way(under, over, allowed)
        };
        if rest.is_empty() {
            continue;
        }
        for (kind, told) in told.iter_mut().enumerate() {
            *told |= kind == over || (of_any[kind][over] && of_any[over][kind]);
        }
        circles.push(Circle { first: step.clone(), rest: rest.into_iter().cloned().collect() });
    }
    circles
}

/// The steps as a graph over numbered kinds.
struct Graph<'s> {
    kinds: Vec<&'s Kind>,
    /// For each kind, the steps that start there and the kinds where they end.
    out: Vec<Vec<(usize, &'s Step)>>,
}

impl<'s> Graph<'s> {
    fn new(steps: &'s [Step]) -> Self {
        let kinds: BTreeSet<&Kind> = steps.iter().flat_map(|s| [&s.over, &s.under]).collect();
        let mut graph =
            Self { out: vec![Vec::new(); kinds.len()], kinds: kinds.into_iter().collect() };
        for step in steps {
            let (over, under) = (graph.number(&step.over), graph.number(&step.under));
            graph.out[over].push((under, step));
        }
        graph
    }

    /// The number of a kind that a step names.
    fn number(&self, kind: &Kind) -> usize {
        self.kinds.partition_point(|other| *other < kind)
    }

    /// For each kind, which kinds can be reached from it in one step or more.
    fn reach(&self, allowed: impl Fn(&Step) -> bool) -> Vec<Vec<bool>> {
        let n = self.kinds.len();
        let mut reach = vec![vec![false; n]; n];
        for (from, out) in self.out.iter().enumerate() {
            for (to, _) in out.iter().filter(|(_, step)| allowed(step)) {
                reach[from][*to] = true;
            }
        }
        for via in 0..n {
            let onward = reach[via].clone();
            for row in reach.iter_mut().filter(|row| row[via]) {
                row.iter_mut().zip(&onward).for_each(|(reached, next)| *reached |= next);
            }
        }
        reach
    }

    /// The shortest way from one kind to another; empty if there is none.
    fn way(&self, from: usize, to: usize, allowed: impl Fn(&Step) -> bool) -> Vec<&'s Step> {
        let mut came: Vec<Option<(usize, &Step)>> = vec![None; self.kinds.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for &(next, step) in self.out[at].iter().filter(|(_, step)| allowed(step)) {
                if next != from && came[next].is_none() {
                    came[next] = Some((at, step));
                    queue.push_back(next);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = to;
        while let Some((before, step)) = came[at] {
            way.push(step);
            at = before;
        }
        way.reverse();
        way
    }

    /// A step from a kind to another one of its knot, for circles that start with the kind itself;
    /// such a step is undone by time, so it is half of a circle there and back.
    fn first_step_in_knot(&self, kind: usize, reach: &[Vec<bool>]) -> Vec<&'s Step> {
        let inside = |to: usize| to != kind && reach[to][kind];
        self.out[kind]
            .iter()
            .find(|(to, _)| inside(*to))
            .map(|(_, step)| *step)
            .into_iter()
            .collect()
    }
}
