//! What this site had recorded while it was removed, and what people decide about it.
//!
//! What must stay true: whoever decides may ask for such an operation; a decision is durable before it is
//! answered, and the same decision again changes nothing.

use axum::{extract::State, http::StatusCode};
use cheops_core::{
    id::{Key, OpId, ResourceId},
    replica::{self, Answer, Input, Replica, Submission, Ticket},
    time::Millis,
};
use tokio::sync::oneshot;

use super::{
    Context, Shared, audited,
    error::{ApiError, ApiResult, In},
    model::{Adopted, Held, HeldOperation, Problem, RunStatus},
    policy, resource_id,
    submit::may_submit,
    view,
    who::Who,
};
use crate::node::Stopping;

/// How many are listed.
const MAX_LISTED: usize = 1_000;

/// Operations that this site has received while it was removed, and that the others do not take, as long
/// as nobody has decided about them.
#[utoipa::path(get, path = "/api/v1/federation/held", tag = "sites",
    responses((status = OK, body = Held), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(context): State<Shared>) -> ApiResult<axum::Json<Held>> {
    let site = context.here().to_string();
    let look = |replica: &Replica| {
        let mut held: Vec<HeldOperation> = replica.held().take(MAX_LISTED).map(of).collect();
        held.sort_by(|a, b| {
            (&a.at, &a.resource, &a.operation).cmp(&(&b.at, &b.resource, &b.operation))
        });
        (held, replica.held().count())
    };
    let (held, count) = context.node.read(look).await?;
    Ok(axum::Json(Held { site, held, count }))
}

fn of(held: &replica::Held) -> HeldOperation {
    let op = &held.op;
    let run = held.reply.as_ref().map(|reply| view::run(reply));
    let (status, output) = run.map_or((RunStatus::Waiting, None), |run| (run.status, run.output));
    HeldOperation {
        resource: op.resource.to_string(),
        operation: op.id.to_string(),
        kind: op.kind.to_string(),
        author: op.author.to_string(),
        at: view::rfc3339(op.at.wall()),
        command: view::command(&op.action),
        status,
        output,
    }
}

/// Submits an operation that is held once more, as a new one.
#[utoipa::path(post, path = "/api/v1/federation/held/{id}/{operation}/adopt", tag = "sites",
    params(("id" = String, Path, description = "The resource"),
        ("operation" = String, Path, description = "The operation")),
    responses((status = OK, body = Adopted), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn adopt(
    State(context): State<Shared>,
    In((id, op)): In<(String, String)>,
    who: Who,
) -> ApiResult<axum::Json<Adopted>> {
    let (id, op): (ResourceId, OpId) = (resource_id(&id)?, op.parse()?);
    let adopted = match find(&context, &id, &op).await? {
        Found::Adopted(adopted) => adopted,
        Found::Discarded => return Err(decided(&op, "discarded")),
        Found::Unknown => return Err(unknown(&op, &id)),
        Found::Held { held, exists } => {
            let submission = submission(&who, &held, exists)?;
            may_submit(&context, &who, &submission).await?;
            policy::let_in(&context, &submission).await?;
            // To its end, even if whoever asked is gone: it is submitted by then.
            let (context, id, op) = (context.clone(), id.clone(), op.clone());
            let adopting = tokio::spawn(async move {
                let mut answers = context.node.submit(submission).await?;
                match answers.recv().await {
                    Some(Answer::Accepted(adopted, _)) => {
                        decide(&context, &id, &op, Some(adopted.clone())).await?;
                        Ok(adopted)
                    }
                    Some(Answer::Refused(refusal)) => Err(ApiError::from(refusal)),
                    Some(_) | None => Err(Stopping.into()),
                }
            });
            adopting.await.map_err(|_| Stopping)??
        }
    };
    audited::made(who.author_of(None)?.as_str(), &adopted.to_string());
    let (resource, operation) = (id.to_string(), op.to_string());
    Ok(axum::Json(Adopted { resource, operation, adopted: adopted.to_string() }))
}

/// Discards an operation that is held: it is not listed any more, and nothing comes of it.
#[utoipa::path(delete, path = "/api/v1/federation/held/{id}/{operation}", tag = "sites",
    params(("id" = String, Path, description = "The resource"),
        ("operation" = String, Path, description = "The operation")),
    responses((status = NO_CONTENT), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn discard(
    State(context): State<Shared>,
    In((id, op)): In<(String, String)>,
    who: Who,
) -> ApiResult<StatusCode> {
    let (id, op): (ResourceId, OpId) = (resource_id(&id)?, op.parse()?);
    match find(&context, &id, &op).await? {
        Found::Discarded => {}
        Found::Adopted(adopted) => {
            return Err(decided(&op, &format!("submitted again, as {adopted}")));
        }
        Found::Unknown => return Err(unknown(&op, &id)),
        Found::Held { held, exists } => {
            may_submit(&context, &who, &submission(&who, &held, exists)?).await?;
            decide(&context, &id, &op, None).await?;
        }
    }
    audited::made(who.author_of(None)?.as_str(), &op.to_string());
    Ok(StatusCode::NO_CONTENT)
}

enum Found {
    /// Nobody has decided yet. Whether the resource exists here.
    Held {
        held: replica::Held,
        exists: bool,
    },
    Adopted(OpId),
    Discarded,
    Unknown,
}

async fn find(context: &Context, id: &ResourceId, op: &OpId) -> Result<Found, Stopping> {
    let (id, op) = (id.clone(), op.clone());
    let look = move |replica: &Replica| {
        if let Some(held) = replica.held_operation(&id, &op) {
            return Found::Held { held: held.clone(), exists: replica.resource(&id).is_some() };
        }
        match replica.decision(&id, &op) {
            Some(Some(adopted)) => Found::Adopted(adopted.clone()),
            Some(None) => Found::Discarded,
            None => Found::Unknown,
        }
    };
    context.node.read(look).await
}

/// Takes a decision down. Ends when it is durable.
async fn decide(
    context: &Context,
    id: &ResourceId,
    op: &OpId,
    adopted: Option<OpId>,
) -> Result<(), Stopping> {
    let (resource, op) = (id.clone(), op.clone());
    context.node.tell(Input::Decided { resource, op, adopted }).await?;
    durable(context).await
}

/// Waits until what was told is durable.
async fn durable(context: &Context) -> Result<(), Stopping> {
    let (reached, ends) = oneshot::channel();
    context.node.tell_then(reached).await?;
    ends.await.map_err(|_| Stopping)
}

/// An operation that is held, as somebody asks for it now. If that is done twice, the key says that it is
/// the same.
fn submission(who: &Who, held: &replica::Held, exists: bool) -> ApiResult<Submission> {
    let op = &held.op;
    let declared = op.declares.as_ref().filter(|_| !exists);
    let key: Key = format!("adopts {}", op.id).parse()?;
    Ok(Submission {
        ticket: Ticket(0),
        resource: op.resource.clone(),
        sites: declared.map(|declared| declared.sites.clone()),
        config: declared.map(|declared| (*declared.config).clone()),
        kind: op.kind.clone(),
        author: who.author_of(None)?,
        action: op.action.clone(),
        force: false,
        keep_going: op.keep_going,
        key: Some(key),
        wait: Millis(0),
    })
}

fn unknown(op: &OpId, id: &ResourceId) -> ApiError {
    ApiError::not_found(
        "not-held",
        format!("no operation {op} of `{id}` is held at this site"),
        "see what is: cheops site held",
    )
}

fn decided(op: &OpId, how: &str) -> ApiError {
    ApiError::new(
        StatusCode::CONFLICT,
        "decided",
        format!("{op} was {how} already"),
        "see what is still to be decided: cheops site held",
    )
}
