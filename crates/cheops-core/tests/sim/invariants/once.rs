//! An operation takes effect at most once at a site, except as part of a replay.
//!
//! Precisely: between two commands of one operation that succeed at a site, the state was emptied
//! by `Reset`, or a run that replaces it succeeded, perhaps the second one itself. That holds with
//! agents that die and with power that is cut. And a single run, which is one attempt, is
//! carried out twice only if it replaces the state and the power was cut.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    plan::Outcome,
    replica::{Durable, Effect, RunId},
};

use crate::support::world::Seen;

/// What has been run of one resource at one site.
#[derive(Default)]
struct Runs {
    /// Grows each time that the state starts afresh.
    restarts: u32,
    /// For each operation that took effect, the count at that time.
    effects: BTreeMap<OpId, u32>,
    /// For each run, whether it replaces.
    intents: BTreeMap<(OpId, u32), bool>,
    /// The runs that took effect.
    attempts: BTreeSet<(OpId, u32)>,
}

#[derive(Default)]
pub struct Once {
    runs: BTreeMap<(SiteId, ResourceId), Runs>,
    /// Sites that were without power at some time.
    dark: BTreeSet<SiteId>,
}

impl Once {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        match seen {
            Seen::Done(Effect::Persist(Durable::Intent { resource, op, attempt, fresh })) => {
                self.runs(site, resource).intents.insert((op.clone(), *attempt), *fresh);
            }
            Seen::Emptied(resource) => self.runs(site, resource).restarts += 1,
            Seen::Crashed { power: true } => {
                self.dark.insert(site.clone());
            }
            Seen::Took { run, outcome } => {
                let dark = self.dark.contains(site);
                self.runs(site, &run.resource).took(site, dark, run, outcome);
            }
            _ => {}
        }
    }

    fn runs(&mut self, site: &SiteId, resource: &ResourceId) -> &mut Runs {
        self.runs.entry((site.clone(), resource.clone())).or_default()
    }
}

impl Runs {
    fn took(&mut self, site: &SiteId, dark: bool, run: &RunId, outcome: Outcome) {
        let attempt = (run.op.clone(), run.attempt);
        let fresh = self.intents[&attempt];
        if outcome != Outcome::Ok {
            return;
        }
        self.restarts += u32::from(fresh);
        let first = self.attempts.insert(attempt);
        assert!(first || fresh && dark, "{site} carries out {run:?} a second time");
        let before = self.effects.insert(run.op.clone(), self.restarts);
        assert!(
            before.is_none_or(|before| before < self.restarts),
            "{run:?} takes effect a second time at {site}, and nothing started afresh in between"
        );
    }
}
