//! No site of a storm was restored from an old backup, so none is said to be: an operator who reads
//! that goes and looks for one.

use cheops_core::{
    id::SiteId,
    replica::{Effect, Event},
};

use crate::support::world::Seen;

pub fn see(site: &SiteId, seen: Seen<'_>) {
    if let Seen::Done(Effect::Tell(Event::Refused { from, resource, why })) = seen {
        // Sites that created a resource apart refuse each other until they know all of its sites.
        let is_alarm = why.contains("backup");
        assert!(!is_alarm, "{site} refuses what {from} says of {resource}: {why}");
    }
}
