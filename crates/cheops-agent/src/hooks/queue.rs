//! What waits to be told by one hook.
//!
//! What must stay true: an event that was added is told or counted as dropped, and never added twice as
//! long as its id is remembered; the queue is bounded in number and in bytes, and it is the oldest that
//! goes; replaying the [entries](Entry) that a queue was changed by gives the same queue.

use std::collections::{HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::api::model::HookEvent;

/// How much they may be together, in bytes, about.
const ROOM: usize = 16 << 20;
/// What an event takes beside its long texts, in bytes, about.
const BARE: usize = 512;
/// How many ids of events that wait no more are remembered.
const REMEMBERED: usize = 2_000;

/// One change of a queue, as it is written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Entry {
    /// What a queue begins with.
    Counts {
        /// How many were delivered before.
        delivered: u64,
        /// How many were dropped before.
        dropped: u64,
    },
    /// An event is to be told.
    Add {
        /// The event.
        event: Box<HookEvent>,
        /// Since when it waits, in milliseconds since 1970.
        since: u64,
    },
    /// It was delivered.
    Done(String),
    /// It was given up.
    Drop(String),
    /// It was told or dropped long ago, and is not to be added again.
    Known(String),
}

/// An event that waits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    pub(crate) event: HookEvent,
    /// Since when, in milliseconds since 1970.
    pub(crate) since: u64,
    weight: usize,
}

/// What waits, in order.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    waiting: VecDeque<Item>,
    /// Those that wait no more, the oldest first.
    past: VecDeque<String>,
    /// All ids of both.
    known: HashSet<String>,
    /// How many may wait.
    most: usize,
    /// How much may wait, in bytes.
    room: usize,
    /// How much waits.
    weight: usize,
    pub(crate) delivered: u64,
    pub(crate) dropped: u64,
}

impl Queue {
    pub(crate) fn with_room_for(most: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            past: VecDeque::new(),
            known: HashSet::new(),
            most: most.max(1),
            room: ROOM,
            weight: 0,
            delivered: 0,
            dropped: 0,
        }
    }

    /// Adds an event, and says what changed by it: nothing, if it was there before.
    pub(crate) fn add(&mut self, event: HookEvent, since: u64) -> Vec<Entry> {
        if self.known.contains(&event.id) {
            return Vec::new();
        }
        let weight = self.weight.saturating_add(weigh(&event));
        let (mut over, mut left, mut entries) = (weight, self.waiting.len(), Vec::new());
        for oldest in &self.waiting {
            if left < self.most && over <= self.room {
                break;
            }
            entries.push(Entry::Drop(oldest.event.id.clone()));
            (over, left) = (over.saturating_sub(oldest.weight), left - 1);
        }
        entries.push(Entry::Add { event: Box::new(event), since });
        for entry in &entries {
            self.apply(entry.clone());
        }
        entries
    }

    /// Makes a change.
    pub(crate) fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Counts { delivered, dropped } => {
                self.delivered = delivered;
                self.dropped = dropped;
            }
            Entry::Add { event, since } => {
                if self.known.insert(event.id.clone()) {
                    let weight = weigh(&event);
                    self.weight += weight;
                    self.waiting.push_back(Item { event: *event, since, weight });
                }
            }
            Entry::Done(id) => {
                if self.remove(&id) {
                    self.delivered += 1;
                }
            }
            Entry::Drop(id) => {
                if self.remove(&id) {
                    self.dropped += 1;
                }
            }
            Entry::Known(id) => {
                if self.known.insert(id.clone()) {
                    self.remember(id);
                }
            }
        }
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some(at) = self.waiting.iter().position(|item| item.event.id == id) else {
            return false;
        };
        if let Some(item) = self.waiting.remove(at) {
            self.weight -= item.weight;
        }
        self.remember(id.to_owned());
        true
    }

    fn remember(&mut self, id: String) {
        self.past.push_back(id);
        if self.past.len() > REMEMBERED
            && let Some(oldest) = self.past.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// The first that wait, at most so many.
    pub(crate) fn first(&self, most: usize) -> Vec<Item> {
        self.waiting.iter().take(most).cloned().collect()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many [entries](Self::entries) it has.
    pub(crate) fn entries_count(&self) -> usize {
        1 + self.past.len() + self.waiting.len()
    }

    /// The fewest entries that lead to this queue.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let counts = Entry::Counts { delivered: self.delivered, dropped: self.dropped };
        let past = self.past.iter().map(|id| Entry::Known(id.clone()));
        let waiting = self
            .waiting
            .iter()
            .map(|item| Entry::Add { event: Box::new(item.event.clone()), since: item.since });
        [counts].into_iter().chain(past).chain(waiting).collect()
    }
}

/// How much an event takes, about: what can be long in it.
fn weigh(event: &HookEvent) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let runs: usize = event.runs.iter().map(|run| BARE / 4 + length(&run.output)).sum();
    BARE + event.text.len() + length(&event.command) + length(&event.next) + runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hooks::tests::sample;

    /// More than the tests below put into it, where they don't say otherwise.
    const PLENTY: usize = 10_000;

    fn ids(queue: &Queue) -> Vec<String> {
        queue.first(usize::MAX).into_iter().map(|item| item.event.id).collect()
    }

    #[test]
    fn what_was_told_is_not_added_again() {
        let mut queue = Queue::with_room_for(PLENTY);
        assert_eq!(queue.add(sample("a"), 1).len(), 1);
        assert!(queue.add(sample("a"), 2).is_empty(), "it waits");
        queue.apply(Entry::Done("a".into()));
        assert!(queue.add(sample("a"), 3).is_empty(), "it was told");
        assert_eq!((queue.len(), queue.delivered, queue.dropped), (0, 1, 0));
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room_and_is_counted() {
        let mut queue = Queue::with_room_for(2);
        for id in ["a", "b", "c"] {
            queue.add(sample(id), 0);
        }
        assert_eq!(ids(&queue), ["b", "c"]);
        assert_eq!(queue.dropped, 1);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_as_well() {
        let mut queue = Queue::with_room_for(PLENTY);
        queue.room = 100_000;
        let long = |id: &str, bytes: usize| HookEvent { text: "x".repeat(bytes), ..sample(id) };
        for n in 0..50 {
            queue.add(long(&n.to_string(), 9_000), 0);
            assert!(queue.weight <= queue.room);
        }
        assert_eq!((queue.len(), queue.dropped), (10, 40));
        queue.add(long("huge", 1_000_000), 0);
        assert_eq!(ids(&queue), ["huge"], "one is always kept");
        queue.apply(Entry::Done("huge".into()));
        assert_eq!(queue.weight, 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut queue = Queue::with_room_for(PLENTY);
        for n in 0..3 * REMEMBERED {
            queue.add(sample(&n.to_string()), 0);
            queue.apply(Entry::Done(n.to_string()));
        }
        assert_eq!(queue.known.len(), REMEMBERED);
        assert_eq!(queue.delivered, 3 * REMEMBERED as u64);
    }

    proptest! {
        /// Whatever happens to a queue: what is in its entries is all of it, nothing is in it twice,
        /// and all that was added is told, dropped, or waits.
        #[test]
        fn a_queue_is_its_entries(steps in proptest::collection::vec((0..4_u8, 0..30_u32), 0..200)) {
            let mut queue = Queue::with_room_for(5);
            let (mut written, mut added) = (Vec::new(), 0);
            for (step, n) in steps {
                let entries = match step {
                    0 | 1 => queue.add(sample(&n.to_string()), 0),
                    2 => vec![Entry::Done(n.to_string())],
                    _ => vec![Entry::Drop(n.to_string())],
                };
                added += entries.iter().filter(|e| matches!(e, Entry::Add { .. })).count();
                if step > 1 {
                    for entry in &entries {
                        queue.apply(entry.clone());
                    }
                }
                written.extend(entries);
            }
            prop_assert!(queue.len() <= 5);
            let ended = queue.delivered + queue.dropped;
            prop_assert_eq!(added as u64, ended + queue.len() as u64);
            for entries in [written, queue.entries()] {
                let mut again = Queue::with_room_for(5);
                for entry in entries {
                    again.apply(entry);
                }
                prop_assert_eq!(ids(&again), ids(&queue));
                prop_assert_eq!(&again.past, &queue.past);
                prop_assert_eq!((again.delivered, again.dropped), (queue.delivered, queue.dropped));
            }
        }
    }
}
