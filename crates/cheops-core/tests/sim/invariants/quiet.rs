//! Sites that know the same have nothing to say but one digest now and then, and nothing to do. Where
//! something was lost for ever, what waits for it may still be asked for, and the answer brings what is
//! known around it.

use std::collections::BTreeMap;

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{Effect, Message},
};

use crate::support::world::Seen;

#[derive(Default)]
pub struct Quiet {
    /// From here on nothing may happen.
    pub expected: bool,
    /// Something was lost.
    lost: bool,
    /// How many commands each site has been asked to run for each resource.
    pub started: BTreeMap<(SiteId, ResourceId), u64>,
}

impl Quiet {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        self.lost |= matches!(seen, Seen::Withheld { .. });
        let Seen::Done(effect) = seen else { return };
        if self.expected {
            let quiet = match effect {
                Effect::Send { message: Message::Compare(stretches), .. } => stretches.len() == 1,
                Effect::Answer { .. } => true,
                Effect::Send { message: Message::Want(_) | Message::Records { .. }, .. } => {
                    self.lost
                }
                _ => false,
            };
            assert!(quiet, "{site} does {effect:?}, and nothing has happened");
        }
        let started = match effect {
            Effect::Run { run, .. } | Effect::Check { run, .. } => &run.resource,
            Effect::Clear { resource, .. } => resource,
            _ => return,
        };
        *self.started.entry((site.clone(), started.clone())).or_default() += 1;
    }
}
