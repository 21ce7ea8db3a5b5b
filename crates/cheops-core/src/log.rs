//! The log of a resource: the set of its operations known at a site, and which caused which.
//!
//! What must stay true:
//! - the log only grows, and merging two logs is union: the same set has the same content,
//!   whatever the order in which it was put together;
//! - an operation enters after its parents (causal delivery), so the past of one that is in the
//!   log is in the log, whole; save for what was forgotten with an earlier life of the resource,
//!   which nothing in the log is concurrent with;
//! - whether one operation precedes another is answered in constant time.
//!
//! # Lanes
//!
//! The operations that one site receives for a resource follow each other: they form a chain. A
//! *lane* is such a chain, and the past of an operation is a prefix of every lane, that is, one
//! number a lane. A site that behaves has one lane. One that was restored from an old backup and
//! continues from there forks its chain and gets a second lane; nothing else changes.

use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec, vec::Vec};

use crate::{
    few::{Few, OnDemand, push},
    id::{BySite, OpId, SiteId},
    operation::SharedOperation,
    time::Timestamp,
};

/// An operation's place in its log's memory. It says nothing about order, and is not the same at
/// two sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ix(u32);

impl Ix {
    pub(crate) fn new(place: usize) -> Self {
        Self(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// How many operations came before it.
    pub fn usize(self) -> usize {
        self.0 as usize
    }
}

/// A lane's place in its log's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LaneIx(u32);

impl LaneIx {
    pub(crate) fn usize(self) -> usize {
        self.0 as usize
    }
}

/// Why an operation did not enter the log. The log is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotInserted {
    /// It is in the log already, here.
    Known(Ix),
    /// One of its parents is not in the log yet.
    Missing(OpId),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    op: SharedOperation,
    /// The operation's own timestamp, here because comparisons ask for it all the time.
    at: Timestamp,
    lane: LaneIx,
    /// How many operations of its lane precede it.
    index: u32,
    /// For every other lane, how many of its operations precede it; nothing if none does. Chains of one
    /// site share it.
    past: Option<Arc<[u32]>>,
}

/// What the log knows about one site.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Origin {
    lanes: Few<LaneIx>,
    /// The operations received there, by number.
    numbers: Few<(u64, Ix)>,
}

/// The set of operations of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Log {
    nodes: Vec<Node>,
    lanes: Few<Few<Ix>>,
    origins: BySite<Origin>,
    /// The operations that none follows, in no order of meaning.
    heads: Few<Ix>,
    in_time: bool,
    /// The operations that delete the resource.
    deletes: OnDemand<Vec<Ix>>,
    /// What was forgotten with an earlier life of the resource: up to these numbers, of each site.
    forgotten: OnDemand<BTreeMap<SiteId, u64>>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            lanes: Few::default(),
            origins: BySite::default(),
            heads: Few::default(),
            in_time: true,
            deletes: OnDemand::default(),
            forgotten: OnDemand::default(),
        }
    }
}

impl Log {
    /// Adds an operation whose parents are in the log.
    pub fn insert(&mut self, op: SharedOperation) -> Result<Ix, NotInserted> {
        if let Some(ix) = self.find(&op.id) {
            return Err(NotInserted::Known(ix));
        }
        let parents = op
            .parents
            .iter()
            .filter(|id| self.find(id).is_some() || !self.is_forgotten(id))
            .map(|id| self.find(id).ok_or_else(|| NotInserted::Missing(id.clone())))
            .collect::<Result<Vec<_>, _>>()?;

        let ix = Ix(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.in_time &= parents.iter().all(|&parent| self.op(parent).key() < op.key());
        let past = self.join(&parents);
        let lane = self.lane_for(&op.id.site, &past);
        let index = u32::try_from(self.lanes[lane.usize()].len()).unwrap_or(u32::MAX);
        let past = self.share(past, lane, &parents);

        self.lanes[lane.usize()].push(ix);
        let origin = self.origins.entry(&op.id.site);
        let at = place(&origin.numbers, op.id.number).unwrap_or_else(|at| at);
        origin.numbers.insert(at, (op.id.number, ix));
        self.heads.retain(|head| !parents.contains(head));
        self.heads.push(ix);
        if op.kind.is_delete() {
            self.deletes.make().push(ix);
        }
        push(&mut self.nodes, Node { at: op.at, op, lane, index, past });
        Ok(ix)
    }

    /// How many operations of each lane are among these or before one of them.
    fn join(&self, parents: &[Ix]) -> Vec<u32> {
        let mut past = vec![0; self.lanes.len()];
        for &parent in parents {
            let node = &self.nodes[parent.usize()];
            let before = node.past.iter().flat_map(|past| past.iter());
            past.iter_mut().zip(before).for_each(|(seen, &n)| *seen = n.max(*seen));
            let own = &mut past[node.lane.usize()];
            *own = (node.index + 1).max(*own);
        }
        past
    }

    /// The lane of the site that the operation continues, or a new one.
    fn lane_for(&mut self, site: &SiteId, past: &[u32]) -> LaneIx {
        let continued = self.origins.get(site).and_then(|origin| {
            let is_last =
                |lane: &&LaneIx| past[lane.usize()] as usize == self.lanes[lane.usize()].len();
            origin.lanes.iter().find(is_last)
        });
        if let Some(&lane) = continued {
            return lane;
        }
        let lane = LaneIx(u32::try_from(self.lanes.len()).unwrap_or(u32::MAX));
        self.lanes.push(Few::default());
        self.origins.entry(site).lanes.push(lane);
        lane
    }

    /// The past without the operation's own lane, shared with its predecessor where it is the same.
    fn share(&self, mut past: Vec<u32>, lane: LaneIx, parents: &[Ix]) -> Option<Arc<[u32]>> {
        if let [parent] = parents
            && self.nodes[parent.usize()].lane == lane
        {
            return self.nodes[parent.usize()].past.clone();
        }
        if let Some(own) = past.get_mut(lane.usize()) {
            *own = 0;
        }
        while past.last() == Some(&0) {
            past.pop();
        }
        (!past.is_empty()).then(|| past.into())
    }

    /// Takes note of what is forgotten: it counts as known, and to follow it is to follow nothing.
    pub(crate) fn forget(&mut self, version: &BTreeMap<SiteId, u64>) {
        for (site, &number) in version {
            let known = self.forgotten.make().entry(site.clone()).or_default();
            *known = number.max(*known);
        }
    }

    /// What is forgotten.
    pub(crate) fn forgotten(&self) -> &BTreeMap<SiteId, u64> {
        static NOTHING: BTreeMap<SiteId, u64> = BTreeMap::new();
        self.forgotten.filled().unwrap_or(&NOTHING)
    }

    /// Whether a record is forgotten.
    pub(crate) fn is_forgotten(&self, id: &OpId) -> bool {
        self.forgotten().get(&id.site).is_some_and(|&number| id.number <= number)
    }

    /// Whether an operation follows this one.
    pub(crate) fn is_followed(&self, ix: Ix) -> bool {
        self.heads.iter().any(|&head| self.precedes(ix, head))
    }

    /// The operations that delete the resource.
    pub(crate) fn deletes(&self) -> impl Iterator<Item = Ix> {
        self.deletes.iter().copied()
    }

    /// Whether one of the operations that none follows deletes the resource.
    pub(crate) fn ends_with_a_delete(&self) -> bool {
        self.heads.iter().any(|&head| self.op(head).kind.is_delete())
    }

    /// Where an operation is, if it is in the log.
    pub fn find(&self, id: &OpId) -> Option<Ix> {
        let numbers = &self.origins.get(&id.site)?.numbers;
        let at = place(numbers, id.number).ok()?;
        Some(numbers[at].1)
    }

    /// An operation of the log.
    pub fn op(&self, ix: Ix) -> &SharedOperation {
        &self.nodes[ix.usize()].op
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All operations, each after its parents.
    pub fn iter(&self) -> impl Iterator<Item = (Ix, &SharedOperation)> {
        (0..).map(Ix).zip(self.nodes.iter().map(|node| &node.op))
    }

    /// The latest operations, at most so many, or those before one, in the order that ties are broken
    /// by. It does not walk over the others, as long as every operation is later than its parents.
    pub fn latest(&self, most: usize, before: Option<&OpId>) -> Vec<Ix> {
        let end = before.and_then(|id| self.find(id)).map(|ix| self.op(ix).key());
        let in_range = |ix: Ix| end.is_none_or(|end| self.op(ix).key() < end);
        let mut found: Vec<Ix> = Vec::new();
        if self.in_time {
            // In a lane time goes forward: its latest are the last of those in range.
            let mut last: Vec<&[Ix]> = self
                .lanes
                .iter()
                .map(|lane| &lane[..lane.partition_point(|&ix| in_range(ix))])
                .collect();
            while found.len() < most {
                let later = |a: &&mut &[Ix], b: &&mut &[Ix]| {
                    let key = |lane: &[Ix]| lane.last().map(|&ix| self.op(ix).key());
                    key(a).cmp(&key(b))
                };
                let Some(lane) = last.iter_mut().max_by(later) else { break };
                let Some((&ix, rest)) = lane.split_last() else { break };
                found.push(ix);
                *lane = rest;
            }
            found.reverse();
        } else {
            found.extend(self.iter().map(|(ix, _)| ix).filter(|&ix| in_range(ix)));
            found.sort_unstable_by(|&a, &b| self.op(a).key().cmp(&self.op(b).key()));
            found.drain(..found.len().saturating_sub(most));
        }
        found
    }

    /// The operations that none follows: the parents of the next one, in order.
    pub fn heads(&self) -> Box<[OpId]> {
        let mut heads: Vec<_> = self.heads.iter().map(|&ix| self.op(ix).id.clone()).collect();
        heads.sort();
        heads.into()
    }

    /// The greatest timestamp of a head; the least there is, if there are no heads.
    pub fn newest(&self) -> Timestamp {
        self.heads.iter().map(|&head| self.timestamp(head)).max().unwrap_or_default()
    }

    /// Whether `a` causally precedes `b`.
    pub fn precedes(&self, a: Ix, b: Ix) -> bool {
        let node = &self.nodes[a.usize()];
        node.index < self.seen(b, node.lane)
    }

    /// Whether two operations were received without knowledge of each other.
    pub fn concurrent(&self, a: Ix, b: Ix) -> bool {
        a != b && !self.precedes(a, b) && !self.precedes(b, a)
    }

    /// Whether `a` comes before `b` in the order that ties are broken by.
    pub(crate) fn earlier(&self, a: Ix, b: Ix) -> bool {
        let (x, y) = (&self.nodes[a.usize()], &self.nodes[b.usize()]);
        x.at < y.at || x.at == y.at && x.op.key() < y.op.key()
    }

    /// Whether every operation is later than its parents by that order too. Always so among sites
    /// that behave; a history that a person wrote may hold anything.
    pub(crate) fn in_time(&self) -> bool {
        self.in_time
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = LaneIx> + use<> {
        (0..u32::try_from(self.lanes.len()).unwrap_or(u32::MAX)).map(LaneIx)
    }

    /// How many lanes there are.
    pub(crate) fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// The operations of a lane, in causal order.
    pub(crate) fn lane(&self, lane: LaneIx) -> &[Ix] {
        &self.lanes[lane.usize()]
    }

    /// The lane of an operation, and how many of that lane precede it.
    pub(crate) fn place(&self, ix: Ix) -> (LaneIx, u32) {
        let node = &self.nodes[ix.usize()];
        (node.lane, node.index)
    }

    /// How many operations of a lane precede this one.
    pub(crate) fn seen(&self, ix: Ix, lane: LaneIx) -> u32 {
        let node = &self.nodes[ix.usize()];
        if node.lane == lane {
            node.index
        } else {
            let past = node.past.as_ref().and_then(|past| past.get(lane.usize()));
            past.copied().unwrap_or(0)
        }
    }

    /// The first operation of a lane that follows this one, counted from the lane's start.
    pub(crate) fn seen_from(&self, ix: Ix, lane: LaneIx) -> u32 {
        let (own, index) = self.place(ix);
        if own == lane {
            return index + 1;
        }
        let follows = |&other: &Ix| self.seen(other, own) <= index;
        u32::try_from(self.lane(lane).partition_point(follows)).unwrap_or(u32::MAX)
    }

    pub(crate) fn timestamp(&self, ix: Ix) -> Timestamp {
        self.nodes[ix.usize()].at
    }
}

/// Where the operation with a number is, or where it would be. Nearly always that is the end: a search through a long
/// list would wait for memory at each step.
fn place(numbers: &[(u64, Ix)], number: u64) -> Result<usize, usize> {
    match numbers.last() {
        Some(&(last, _)) if last < number => Err(numbers.len()),
        Some(&(last, _)) if last == number => Ok(numbers.len() - 1),
        _ => numbers.binary_search_by_key(&number, |&(number, _)| number),
    }
}
