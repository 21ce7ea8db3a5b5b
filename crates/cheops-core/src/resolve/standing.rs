//! The kept operations, by lane and kind: who could an operation fall to?
//!
//! The operations of a lane that are concurrent with a given one form one stretch of it, so that
//! the question is answered by two binary searches a lane, however many operations there are.

use alloc::vec::Vec;

use super::concurrent_range;
use crate::{
    few::Few,
    log::{Ix, LaneIx, Log},
    rules::{KindIx, When},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Standing {
    kinds: usize,
    /// For each lane and kind, the places in the lane of the kept operations, ascending.
    places: Vec<Few<u32>>,
}

impl Standing {
    pub(super) fn new(kinds: usize) -> Self {
        Self { kinds, places: Vec::new() }
    }

    pub(super) fn grow(&mut self, lanes: usize) {
        if self.places.len() < lanes * self.kinds {
            if self.places.is_empty() {
                self.places.reserve_exact(lanes * self.kinds);
            }
            self.places.resize(lanes * self.kinds, Few::default());
        }
    }

    fn slot(&self, lane: LaneIx, kind: KindIx) -> usize {
        lane.usize() * self.kinds + kind.usize()
    }

    pub(super) fn insert(&mut self, log: &Log, kind: KindIx, ix: Ix) {
        let (lane, index) = log.place(ix);
        let slot = self.slot(lane, kind);
        let places = &mut self.places[slot];
        if let Err(at) = search_from_end(places, index) {
            places.insert(at, index);
        }
    }

    pub(super) fn remove(&mut self, log: &Log, kind: KindIx, ix: Ix) {
        let (lane, index) = log.place(ix);
        let slot = self.slot(lane, kind);
        let places = &mut self.places[slot];
        if let Ok(at) = search_from_end(places, index) {
            places.remove(at);
        }
    }

    /// The kept operations of a kind in a lane that are concurrent with this one.
    fn concurrent(&self, log: &Log, ix: Ix, lane: LaneIx, kind: KindIx) -> &[u32] {
        let places = &self.places[self.slot(lane, kind)];
        // Most of the time there is none; say so without a search.
        if places.last().is_none_or(|&last| last < log.seen(ix, lane)) {
            return &[];
        }
        let range = concurrent_range(log, ix, lane);
        let from = places.partition_point(|&place| place < range.start);
        let to = places.partition_point(|&place| place < range.end);
        &places[from..to]
    }

    /// One kept operation of a kind that is concurrent with this one and meets the condition.
    pub(super) fn any_concurrent(&self, log: &Log, ix: Ix, kind: KindIx, when: When) -> Option<Ix> {
        log.lanes().find_map(|lane| {
            let at = |&place: &u32| log.lane(lane)[place as usize];
            let places = self.concurrent(log, ix, lane, kind);
            // In a lane time goes forward, so its last operation is later than this one if any is.
            match when {
                _ if !log.in_time() => places.iter().map(at).find(|&y| when.holds(log, y, ix)),
                When::Earlier => places.first().map(at).filter(|&y| when.holds(log, y, ix)),
                When::Later | When::Always => {
                    places.last().map(at).filter(|&y| when.holds(log, y, ix))
                }
            }
        })
    }

    /// All of them.
    pub(super) fn each_concurrent(
        &self,
        log: &Log,
        ix: Ix,
        kind: KindIx,
        when: When,
        mut each: impl FnMut(Ix),
    ) {
        for lane in log.lanes() {
            for &place in self.concurrent(log, ix, lane, kind) {
                let other = log.lane(lane)[place as usize];
                if when.holds(log, other, ix) {
                    each(other);
                }
            }
        }
    }

    /// Of each lane, the last of them, or all of them if the log is not in the order of time. The
    /// latest is among these.
    pub(super) fn last_concurrent(
        &self,
        log: &Log,
        ix: Ix,
        kind: KindIx,
        when: When,
        mut each: impl FnMut(Ix),
    ) {
        if !log.in_time() {
            return self.each_concurrent(log, ix, kind, when, each);
        }
        for lane in log.lanes() {
            let at = |&place: &u32| log.lane(lane)[place as usize];
            let places = self.concurrent(log, ix, lane, kind);
            // In a lane time goes forward: those that are earlier than this one come first.
            let last = match when {
                When::Earlier => {
                    let earlier = places.partition_point(|place| log.earlier(at(place), ix));
                    places[..earlier].last()
                }
                When::Later | When::Always => places.last(),
            };
            last.map(at)
                .filter(|&other| when.holds(log, other, ix))
                .into_iter()
                .for_each(&mut each);
        }
    }

    /// How many kept operations stand at or after a place, for each lane.
    pub(super) fn count_from(&self, from: &[u32]) -> usize {
        let lanes = self.places.chunks(self.kinds).zip(from);
        lanes
            .flat_map(|(kinds, &from)| {
                kinds.iter().map(move |places| places.len() - places.partition_point(|&p| p < from))
            })
            .sum()
    }
}

/// Like `binary_search`, for what is nearly always at the end.
fn search_from_end(places: &[u32], index: u32) -> Result<usize, usize> {
    match places.last() {
        None => Err(0),
        Some(&last) if last < index => Err(places.len()),
        Some(&last) if last == index => Ok(places.len() - 1),
        Some(_) => places.binary_search(&index),
    }
}
