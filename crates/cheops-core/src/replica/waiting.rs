//! Records that came before what they depend on.
//!
//! What must stay true: each record waits for one thing at a time, so that what is remembered is
//! bounded by the number of records that wait; and none waits for ever. What is given up is found
//! missing when two sites compare. When no more may wait, a record that others wait for takes the place of
//! one that none waits for: only the former tells what else must be asked for.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::message::Sent;
use crate::id::{OpId, SiteId};

/// How often what is missing is asked for before the records that wait for it are given up.
const PATIENCE: u32 = 6;

/// Nothing, most of the time: then it takes next to no memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Waiting(Option<Box<Kept>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Kept {
    /// The records, by their ids, with the id of what each waits for.
    records: BTreeMap<OpId, (Sent, OpId)>,
    /// For what is missing, which records wait for it.
    blocked: BTreeMap<OpId, BTreeSet<OpId>>,
    /// How often the missing was asked for since something last came.
    asked: u32,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |kept| kept.records.len())
    }

    /// The records that others wait for.
    pub(super) fn missing(&self) -> impl Iterator<Item = &OpId> {
        self.0.iter().flat_map(|kept| kept.blocked.keys())
    }

    /// Keeps a record until what it depends on has come, or drops it if as many wait as may.
    pub(super) fn keep(&mut self, sent: Sent, missing: OpId, most: usize) {
        let kept = self.0.get_or_insert_default();
        if kept.records.len() < most || kept.make_room(sent.record.id()) {
            kept.keep(sent, missing);
        }
    }

    /// All that waits, which then waits no longer.
    pub(super) fn drain(&mut self) -> Vec<Sent> {
        let records = self.0.take().map(|kept| kept.records).unwrap_or_default();
        records.into_values().map(|(sent, _)| sent).collect()
    }

    /// Gives up what waits of a site's stream.
    pub(super) fn give_up(&mut self, site: &SiteId) {
        self.with(|kept| kept.give_up(site));
    }

    /// What may be taken in now that a record has been.
    pub(super) fn wake(&mut self, id: &OpId) -> Vec<Sent> {
        self.with(|kept| kept.wake(id)).unwrap_or_default()
    }

    /// Takes note that the missing is asked for, and says how often that was done before. Nothing
    /// if no record waits, or no longer, because it was in vain too often.
    pub(super) fn ask(&mut self) -> Option<u32> {
        self.with(Kept::ask).flatten()
    }

    fn with<T>(&mut self, change: impl FnOnce(&mut Kept) -> T) -> Option<T> {
        let kept = self.0.as_mut()?;
        let changed = change(kept);
        // How often was asked counts as long as something waits.
        self.0.take_if(|kept| kept.records.is_empty());
        Some(changed)
    }
}

impl Kept {
    /// Keeps a record until what it depends on has come.
    fn keep(&mut self, sent: Sent, missing: OpId) {
        let id = sent.record.id().clone();
        self.remove(&id);
        self.blocked.entry(missing.clone()).or_default().insert(id.clone());
        self.records.insert(id, (sent, missing));
    }

    /// Gives up a record that no other waits for, if others wait for the one that is to come. Whether there is
    /// room for that one.
    fn make_room(&mut self, id: &OpId) -> bool {
        if self.records.contains_key(id) {
            return true;
        }
        let Some(waiting) = self.blocked.get(id) else { return false };
        let lasts = || self.records.keys().rev().filter(|known| !self.blocked.contains_key(known));
        // One that waits for it is dropped only if there is no other.
        let dropped = lasts().find(|known| !waiting.contains(known)).or_else(|| lasts().next());
        let dropped = dropped.cloned();
        dropped.is_some_and(|dropped| self.remove(&dropped).is_some())
    }

    /// Gives up what waits of a site's stream.
    fn give_up(&mut self, site: &SiteId) {
        let first = OpId { site: site.clone(), number: 0 };
        let last = OpId { site: site.clone(), number: u64::MAX };
        let given_up: Vec<OpId> =
            self.records.range(first..=last).map(|(id, _)| id.clone()).collect();
        for id in given_up {
            self.remove(&id);
        }
    }

    fn remove(&mut self, id: &OpId) -> Option<Sent> {
        let (sent, missing) = self.records.remove(id)?;
        if let Some(waiting) = self.blocked.get_mut(&missing) {
            waiting.remove(id);
            if waiting.is_empty() {
                self.blocked.remove(&missing);
            }
        }
        Some(sent)
    }

    /// What may be taken in now that a record has been.
    fn wake(&mut self, id: &OpId) -> Vec<Sent> {
        self.asked = 0;
        let start = OpId { site: id.site.clone(), number: 0 };
        // What waited for a number that was left out waits no longer; nor does what came again by
        // another way.
        let blocked = self.blocked.range(&start..=id);
        let mut woken: BTreeSet<OpId> = blocked.flat_map(|(_, waiting)| waiting).cloned().collect();
        woken.extend(self.records.range(&start..=id).map(|(passed, _)| passed.clone()));
        // The next of the stream may have been waiting for a number that was left out.
        let next = OpId { site: id.site.clone(), number: id.number.saturating_add(1) };
        let next = self.records.range(next..).next().map(|(next, _)| next.clone());
        woken.extend(next.filter(|next| next.site == id.site));
        woken.iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes note that the missing is asked for, and says how often that was done before. Nothing
    /// if no record waits, or no longer, because it was in vain too often.
    fn ask(&mut self) -> Option<u32> {
        if self.asked == PATIENCE {
            *self = Self::default();
        }
        let asked = self.asked;
        self.asked += 1;
        (!self.records.is_empty()).then_some(asked)
    }
}
