//! What an operation would do, without doing it.
//!
//! What must stay true: a rehearsal changes nothing, and is refused where the request itself would be.

use axum::response::{IntoResponse, Response};
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{self, Refusal, Replica},
    resolve::Account,
};

use super::{
    Context,
    error::{ApiError, ApiResult},
    model::{Dropped, PlannedStep, Rehearsal, Submit},
    pass,
    reading::submission,
    submit::{hear_first, known_elsewhere, may_submit, spare_copies},
    view,
    who::Who,
};
use crate::node::Stopping;

/// What an operation would do.
pub(super) async fn rehearse(
    context: &Context,
    who: &Who,
    id: &ResourceId,
    asked: &Submit,
    passed: bool,
) -> ApiResult<Response> {
    let submission = submission(context, who, id, asked)?;
    may_submit(context, who, &submission).await?;
    let path = format!("/api/v1/resources/{id}/operations");
    if !passed && let Some(site) = known_elsewhere(context, &submission).await?.first() {
        return give(context, who, site, &path, asked).await;
    }
    hear_first(context, &submission).await?;
    spare_copies(context, &submission).await?;
    super::policy::let_in(context, &submission).await?;
    let now = context.node.now();
    // One copy of a resource at a time is in memory, also if the client goes away meanwhile.
    let turn = context.rehearsals.clone().acquire_owned().await.map_err(|_| Stopping)?;
    let draft = move |replica: &Replica| replica.draft(&submission, now);
    let drafted = context.node.read(draft).await?;
    let refusal = match drafted {
        Ok(draft) => {
            let rehearsing = move || {
                let rehearsed = worded(&draft.rehearse());
                drop(turn);
                rehearsed
            };
            let rehearsal = tokio::task::spawn_blocking(rehearsing).await;
            let rehearsal = rehearsal.map_err(|_| Stopping)?;
            return Ok(axum::Json(rehearsal).into_response());
        }
        Err(refusal) => refusal,
    };
    drop(turn);
    let site = match refusal {
        Refusal::Elsewhere { sites, .. } if !passed => {
            let reachable = context.reachable(sites.iter());
            let gone = || ApiError::unreachable(format!("none of {sites} can be reached"));
            reachable.first().cloned().ok_or_else(gone)?
        }
        Refusal::NoSites(_) if !passed => pass::find(context, id).await?,
        refusal => return Err(refusal.into()),
    };
    give(context, who, &site, &path, asked).await
}

/// Passes it on to a site that knows the resource.
async fn give(
    context: &Context,
    who: &Who,
    site: &SiteId,
    path: &str,
    asked: &Submit,
) -> ApiResult<Response> {
    pass::post(context, Some(who), site, path, "application/json", asked, pass::ANSWER).await
}

fn worded(rehearsal: &replica::Rehearsal) -> Rehearsal {
    let step = |planned: &replica::Planned| match planned {
        replica::Planned::Run { op, kind, fresh, again } => PlannedStep::Run {
            operation: op.to_string(),
            kind: kind.to_string(),
            replaces: *fresh,
            again: *again,
        },
        replica::Planned::Clear => PlannedStep::Clear,
        replica::Planned::Decide => PlannedStep::Decide,
        replica::Planned::More => PlannedStep::More,
    };
    let ids = |ids: &[OpId]| ids.iter().map(ToString::to_string).collect();
    Rehearsal {
        known: rehearsal.known.as_ref().map(ToString::to_string),
        operation: rehearsal.op.id.to_string(),
        reset: rehearsal.op.reset,
        before: ids(&rehearsal.before),
        after: ids(&rehearsal.after),
        dropped: rehearsal.dropped.iter().map(dropped).collect(),
        sites: rehearsal
            .sites
            .iter()
            .map(|(site, steps)| (site.to_string(), steps.iter().map(&step).collect()))
            .collect(),
        parts: view::parts(&rehearsal.parts),
    }
}

fn dropped((op, account): &(OpId, Account)) -> Dropped {
    Dropped { operation: op.to_string(), receipt: view::receipt(account) }
}
