//! Which operations are made good: a later request, which went well at all sites, says all about what
//! they wrote to.
//!
//! A request *covers* those before it to the same target ([`Action::stands_for`]) that it causally
//! follows. In each lane these are the first few, so that all that the covering requests of a group
//! cover is told by one number for each lane, its *reach*. And of the covering requests of one lane
//! the last has seen what the others have, so that it alone counts.
//!
//! What must stay true: `reach` is what the last covering request of each lane has seen at most.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};

use crate::{
    id::ServiceName,
    log::{Ix, Log},
    operation::Action,
};

/// The number of a target that requests are sent to.
pub(super) type Target = u32;

#[derive(Debug, Clone, Default)]
pub(super) struct MadeGood {
    targets: BTreeMap<(ServiceName, Box<str>), Target>,
    /// By the first operation of a part of the block that has influence on the state together, and the
    /// target.
    groups: BTreeMap<(Ix, Target), Group>,
}

#[derive(Debug, Clone, Default)]
struct Group {
    lanes: Vec<Lane>,
}

#[derive(Debug, Clone, Default)]
struct Lane {
    /// The places in the lane of the requests of the group.
    members: BTreeSet<u32>,
    /// Those of them that went well at all sites, and say all about the target.
    covers: BTreeSet<u32>,
    /// How many operations of the lane are covered.
    reach: u32,
}

impl MadeGood {
    /// The target of a request that another one can cover.
    pub(super) fn target(&mut self, action: &Action) -> Option<Target> {
        let Action::Http(request) = action else { return None };
        if !action.is_repeatable() {
            return None;
        }
        let next = Target::try_from(self.targets.len()).unwrap_or(Target::MAX);
        let key = (request.service.clone(), request.target.clone());
        Some(*self.targets.entry(key).or_insert(next))
    }

    /// Takes in an operation. Whether it is made good.
    pub(super) fn insert(&mut self, log: &Log, base: Ix, target: Target, op: Ix) -> bool {
        let (lane, index) = log.place(op);
        let group = self.groups.entry((base, target)).or_default();
        if group.lanes.len() < log.lane_count() {
            group.lanes.resize_with(log.lane_count(), Lane::default);
            group.renew(log);
        }
        let lane = &mut group.lanes[lane.usize()];
        lane.members.insert(index);
        index < lane.reach
    }

    /// Takes out an operation. Gives the others of which it may have changed whether they are made good.
    pub(super) fn remove(&mut self, log: &Log, base: Ix, target: Target, op: Ix) -> Vec<Ix> {
        let changed = self.cover(log, base, target, op, false);
        let (lane, index) = log.place(op);
        if let Some(group) = self.groups.get_mut(&(base, target)) {
            group.lanes[lane.usize()].members.remove(&index);
            if group.lanes.iter().all(|lane| lane.members.is_empty()) {
                self.groups.remove(&(base, target));
            }
        }
        changed
    }

    /// Takes note whether an operation covers others. Gives those of which it has changed whether they
    /// are made good.
    pub(super) fn cover(
        &mut self,
        log: &Log,
        base: Ix,
        target: Target,
        op: Ix,
        covers: bool,
    ) -> Vec<Ix> {
        let Some(group) = self.groups.get_mut(&(base, target)) else { return Vec::new() };
        let (lane, index) = log.place(op);
        let last = group.lanes[lane.usize()].covers.last().copied();
        let all = &mut group.lanes[lane.usize()].covers;
        let changed = if covers { all.insert(index) } else { all.remove(&index) };
        if changed && last.max(Some(index)) == Some(index) { group.renew(log) } else { Vec::new() }
    }

    /// Whether an operation is made good.
    pub(super) fn is_good(&self, log: &Log, base: Ix, target: Target, op: Ix) -> bool {
        let (lane, index) = log.place(op);
        let group = self.groups.get(&(base, target));
        group.and_then(|group| group.lanes.get(lane.usize())).is_some_and(|l| index < l.reach)
    }
}

impl Group {
    /// Brings `reach` up to date. Gives the operations that are covered now and were not, or were.
    fn renew(&mut self, log: &Log) -> Vec<Ix> {
        let last = log.lanes().zip(&self.lanes);
        let last = last.filter_map(|(lane, known)| Some((lane, *known.covers.last()?)));
        let last: Vec<Ix> = last.map(|(lane, index)| log.lane(lane)[index as usize]).collect();
        let mut changed = vec![];
        for (lane, known) in log.lanes().zip(&mut self.lanes) {
            let reach = last.iter().map(|&cover| log.seen(cover, lane)).max().unwrap_or(0);
            let (from, to) = (reach.min(known.reach), reach.max(known.reach));
            let members = known.members.range(from..to);
            changed.extend(members.map(|&index| log.lane(lane)[index as usize]));
            known.reach = reach;
        }
        changed
    }
}

/// Whether a request says all about its target.
pub(super) fn is_whole(action: &Action) -> bool {
    let Action::Http(request) = action else { return false };
    let is = |method: &str| request.method.eq_ignore_ascii_case(method);
    is("PUT") || is("DELETE")
}
