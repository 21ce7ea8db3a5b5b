//! What is to be done when its time has come. Each thing is due at most once at a time.

use alloc::collections::{BTreeMap, BTreeSet};

use super::Ticket;
use crate::{
    id::{ResourceId, SiteId},
    time::Millis,
};

/// Something to do later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Alarm {
    /// Compare with a site.
    Compare(SiteId),
    /// Ask a site for what records of a resource wait for.
    Ask(ResourceId, SiteId),
    /// A requester has waited long enough.
    Deadline(Ticket),
    /// Have a resource shown.
    Show(ResourceId),
    /// Try again to delete what others have forgotten.
    Bury(ResourceId),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Alarms {
    due: BTreeSet<(Millis, Alarm)>,
    set: BTreeMap<Alarm, Millis>,
}

impl Alarms {
    /// Sets an alarm. Of one that is set already, the earlier time counts.
    pub(super) fn set(&mut self, at: Millis, alarm: Alarm) {
        if self.set.get(&alarm).is_none_or(|&set| at < set) {
            self.cancel(&alarm);
            self.set.insert(alarm.clone(), at);
            self.due.insert((at, alarm));
        }
    }

    pub(super) fn is_set(&self, alarm: &Alarm) -> bool {
        self.set.contains_key(alarm)
    }

    pub(super) fn cancel(&mut self, alarm: &Alarm) {
        if let Some((alarm, at)) = self.set.remove_entry(alarm) {
            self.due.remove(&(at, alarm));
        }
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Millis> {
        self.due.first().map(|(at, _)| *at)
    }

    /// One that is due by now, which is then no longer set.
    pub(super) fn pop(&mut self, now: Millis) -> Option<Alarm> {
        if self.next()? > now {
            return None;
        }
        let (_, alarm) = self.due.pop_first()?;
        self.set.remove(&alarm);
        Some(alarm)
    }
}
