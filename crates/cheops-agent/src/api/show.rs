//! Showing a resource on several sites: a command that changes nothing and leaves no trace.

use std::{collections::BTreeMap, time::Duration};

use axum::{extract::State, http::HeaderMap};
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    plan::Outcome,
    replica::Replica,
};
use futures_util::future::join_all;
use tokio::time;

use super::{
    Context, Shared,
    error::{ApiError, ApiResult, In, Json},
    model::{Problem, Show, Shown, ShownAt},
    pass, resource_id,
    submit::{expect_ok, home},
};

/// How long the command may take at each site.
const LONGEST: Duration = Duration::from_secs(30);
/// How much longer its answer may take to get here.
const GRACE: Duration = Duration::from_secs(3);

/// Shows a resource on all of its sites, or on some.
#[utoipa::path(post, path = "/api/v1/resources/{id}/show", tag = "resources",
    params(("id" = String, Path, description = "The resource")),
    request_body = Show,
    responses((status = OK, body = Shown), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(context): State<Shared>,
    In(id): In<String>,
    headers: HeaderMap,
    Json(asked): Json<Show>,
) -> ApiResult<axum::Json<Shown>> {
    let passed = pass::was_passed(&headers);
    Ok(axum::Json(anywhere(&context, &resource_id(&id)?, &asked, passed).await?))
}

/// Shows a resource, at a site that knows it if this one does not and would have to.
pub(super) async fn anywhere(
    context: &Context,
    id: &ResourceId,
    asked: &Show,
    passed: bool,
) -> ApiResult<Shown> {
    let known = known(context, id).await?;
    let needs_to_be_known = asked.command.is_none() || asked.sites.is_none();
    if known.is_some() || !needs_to_be_known || passed {
        return on(context, known, id, asked).await;
    }
    let site = pass::find(context, id).await?;
    ask(context, &site, id, asked).await
}

/// The sites of a resource and its `Show` command, if it is known here.
async fn known(context: &Context, id: &ResourceId) -> ApiResult<Option<(Sites, Option<String>)>> {
    let id = id.clone();
    let look = move |replica: &Replica| {
        replica.resource(&id).map(|r| (r.sites().clone(), r.config().show.clone()))
    };
    Ok(context.node.read(look).await?)
}

pub(super) fn no_command() -> ApiError {
    ApiError::bad(
        "no-command",
        "there is no command to show it with",
        "name one, or put \"Show\" into the resource's configuration",
    )
}

/// Runs a command on sites: the resource's own `Show` and all of its sites, if nothing else is said.
async fn on(
    context: &Context,
    known: Option<(Sites, Option<String>)>,
    id: &ResourceId,
    asked: &Show,
) -> ApiResult<Shown> {
    let (sites, show) = known.map_or((None, None), |(sites, show)| (Some(sites), show));
    let command = asked.command.clone().or(show).filter(|command| !command.trim().is_empty());
    let command = command.ok_or_else(no_command)?;
    let sites = match asked.sites.as_deref() {
        Some(place) => home(context, place)?,
        None => sites.ok_or_else(|| ApiError::no_resource(id.as_str(), &[]))?,
    };
    let asked = sites.iter().map(async |site| {
        let shown = time::timeout(LONGEST + GRACE, at(context, site, id, &command)).await;
        let shown =
            shown.unwrap_or_else(|_| timeout(format!("no answer within {} s", LONGEST.as_secs())));
        (site.to_string(), shown)
    });
    let sites: BTreeMap<String, ShownAt> = join_all(asked).await.into_iter().collect();
    let mut printed = sites.values();
    let first = printed.next();
    let agree = first.is_some_and(|first| first.status == "OK" && printed.all(|at| at == first));
    Ok(Shown { command, sites, agree })
}

async fn at(context: &Context, site: &SiteId, id: &ResourceId, command: &str) -> ShownAt {
    if site == context.here() {
        return here(context, id, command).await;
    }
    let asked = Show { command: Some(command.to_owned()), sites: Some(site.to_string()) };
    let shown = ask(context, site, id, &asked).await;
    match shown.map(|mut shown| shown.sites.remove(site.as_str())) {
        Ok(Some(shown)) => shown,
        Ok(None) => timeout(format!("`{site}` gave no answer that makes sense")),
        Err(error) if error.is_silence() => timeout(error.0.detail),
        Err(error) => ShownAt { status: "KO".to_owned(), output: error.0.detail },
    }
}

fn timeout(output: String) -> ShownAt {
    ShownAt { status: "TIMEOUT".to_owned(), output }
}

/// Asks another agent to show a resource.
async fn ask(context: &Context, site: &SiteId, id: &ResourceId, asked: &Show) -> ApiResult<Shown> {
    let path = format!("/api/v1/resources/{id}/show");
    // The other site may have to wait for others itself.
    let limit = LONGEST + 2 * GRACE;
    let response = pass::post(context, site, &path, "application/json", asked, limit).await?;
    let response = expect_ok(response).await?;
    let body = axum::body::to_bytes(response.into_body(), super::MAX_BODY * 4).await;
    let shown = body.ok().and_then(|body| serde_json::from_slice::<Shown>(&body).ok());
    shown.ok_or_else(|| ApiError::unreachable(format!("`{site}` gave no answer that makes sense")))
}

/// Runs a command at this site.
pub(super) async fn here(context: &Context, id: &ResourceId, command: &str) -> ShownAt {
    let report = context.runner.show(id, command, LONGEST).await;
    let status = if report.outcome == Outcome::Ok { "OK" } else { "KO" };
    ShownAt { status: status.to_owned(), output: report.output.to_string() }
}
