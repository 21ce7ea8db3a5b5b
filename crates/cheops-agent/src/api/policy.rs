//! What this site's policy would do with an operation, and that it is asked before one is accepted.

use axum::extract::State;
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    operation::SharedOperation,
    replica::{Replica, Submission},
};

use super::{
    Context, Shared,
    error::{ApiError, ApiResult, Json},
    model::{PolicyQuestion, PolicyVerdict, Problem},
    resource_id,
};
use crate::{
    node,
    policy::{Asked, Denial, Gate, Kind, Step, question},
};

/// Says what this site would do with an operation: whether it would run, by which rule, and how. Nothing
/// is run.
#[utoipa::path(post, path = "/api/v1/policy/test", tag = "policy", request_body = PolicyQuestion,
    responses((status = OK, body = PolicyVerdict), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn test(
    State(context): State<Shared>,
    Json(question): Json<PolicyQuestion>,
) -> ApiResult<axum::Json<PolicyVerdict>> {
    let decide = |asked: &Asked<'_>| context.gate.decide(asked);
    let verdict = match &question.operation {
        None => question::answer(&question, context.gate.environment(), decide).map_err(bad)?,
        Some(id) => {
            let op = known(&context, question.resource.as_deref(), id).await?;
            question::answer_operation(&op, context.gate.environment(), decide)
        }
    };
    Ok(axum::Json(PolicyVerdict { site: context.here().to_string(), ..verdict }))
}

fn bad(why: String) -> ApiError {
    ApiError::bad("bad-question", why, "name a resource, and a command, a service or an operation")
}

async fn known(context: &Context, resource: Option<&str>, id: &str) -> ApiResult<SharedOperation> {
    let resource = resource.ok_or_else(|| bad("an operation is one of a resource".to_owned()))?;
    let resource: ResourceId = resource_id(resource)?;
    let op: OpId = id.parse()?;
    let missing = format!("no operation {op} of `{resource}` is known at this site");
    let look = move |replica: &Replica| {
        let log = replica.resource(&resource)?.log();
        log.find(&op).map(|ix| log.op(ix).clone())
    };
    let found = context.node.read(look).await?;
    found.ok_or_else(|| {
        ApiError::not_found("unknown-operation", missing, "look: cheops get operations RESOURCE")
    })
}

/// Refuses what this site itself would deny, if it is one of the sites that are to run it.
pub(super) async fn let_in(context: &Context, submission: &Submission) -> ApiResult<()> {
    admit(&context.gate, &context.node, context.here(), submission).await
}

/// The same, for whoever has no context.
pub(crate) async fn admit(
    gate: &Gate,
    node: &node::Handle,
    site: &SiteId,
    submission: &Submission,
) -> ApiResult<()> {
    let asked = Asked {
        author: Some(submission.author.as_str()),
        origin: Some(site.as_str()),
        kind: Kind::Operation(submission.kind.as_str()),
        resource: submission.resource.as_str(),
        share: None,
        step: Step::Command { line: "true", files: &[] },
    };
    let Err(denial) = gate.action(asked, &submission.action) else { return Ok(()) };
    let (id, here) = (submission.resource.clone(), site.clone());
    let home = move |replica: &Replica| {
        replica.resource(&id).map(|resource| resource.sites().contains(&here))
    };
    let named = || submission.sites.as_ref().is_some_and(|sites| sites.contains(site));
    if node.read(home).await?.unwrap_or_else(named) { Err(refused(&denial)) } else { Ok(()) }
}

fn refused(denial: &Denial) -> ApiError {
    ApiError::new(
        axum::http::StatusCode::FORBIDDEN,
        "denied",
        denial.to_string(),
        "ask at a site that allows it, or change the policy of this one; `cheops policy test` says what it does",
    )
}
