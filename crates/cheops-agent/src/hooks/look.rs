//! Looks at resources for what hooks tell of. All of it runs where the replica is, while others wait.
//!
//! What must stay true: a look is short, however long the log of the resource is.

use std::collections::BTreeMap;

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{self, State},
    resolve::Fate,
};

use super::{
    event::{id, run},
    seen::{Asked, Seen, SeenOp, Standing, Want, Wanted},
};
use crate::{
    api::model::{Run, RunStatus},
    problems,
};

/// Looks at resources. Runs where the replica is.
pub(crate) fn look(
    here: &SiteId,
    replica: &replica::Replica,
    wanted: &Wanted,
) -> BTreeMap<ResourceId, Seen> {
    let look = |(id, want): (&ResourceId, &Want)| {
        let resource = replica.resource(id)?;
        Some((id.clone(), look_at(here, replica, resource, want)))
    };
    wanted.iter().filter_map(look).collect()
}

fn look_at(
    here: &SiteId,
    replica: &replica::Replica,
    resource: &replica::Resource,
    want: &Want,
) -> Seen {
    let is_lost = |op: &&OpId| {
        let ix = resource.log().find(op);
        ix.is_some_and(|ix| resource.resolution().fate(ix) != Fate::Kept)
    };
    let ops = want.ops.iter().chain(want.lost.iter().filter(is_lost));
    let withheld = replica.is_withheld(resource.id());
    Seen {
        sites: resource.present().cloned().collect(),
        ops: ops.filter_map(|op| Some((op.clone(), look_at_op(resource, op)?))).collect(),
        standing: want.standing.then(|| standing(here, resource, withheld)),
    }
}

fn standing(here: &SiteId, resource: &replica::Resource, withheld: bool) -> Standing {
    let heads: Vec<String> = resource.log().heads().iter().map(ToString::to_string).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let state = resource.state();
    let wrong = (state == State::Diverged || resource.is_stuck())
        .then(|| problems::of(here, resource))
        .flatten()
        .filter(|_| !withheld)
        .map(|trouble| (trouble.text, trouble.next));
    let prints = if state == State::Diverged && resource.shows_differ() {
        let print = |site: &SiteId| {
            let shown = resource.shown(site)?;
            Some(format!("{site} {:?}", shown.print))
        };
        resource.present().filter_map(print).collect::<Vec<_>>().join(" ")
    } else {
        String::new()
    };
    Standing { state, stuck: resource.is_stuck(), heads: id(&heads), prints, wrong }
}

fn look_at_op(resource: &replica::Resource, id: &OpId) -> Option<SeenOp> {
    let ix = resource.log().find(id)?;
    let op = resource.log().op(ix);
    let fate = resource.resolution().fate(ix);
    let account = (fate != Fate::Kept).then(|| resource.receipt(id)).flatten();
    let lost = account.and_then(|account| Some((account.by?.to_string(), account.because)));
    let at = |site: &SiteId| match resource.reply(id, site) {
        Some(reply) => run(reply),
        None => Run {
            site: site.to_string(),
            status: if fate == Fate::Kept { RunStatus::Waiting } else { RunStatus::Dropped },
            attempt: None,
            took_ms: None,
            output: None,
        },
    };
    Some(SeenOp { asked: Asked::of(op), fate, lost, runs: resource.present().map(at).collect() })
}
