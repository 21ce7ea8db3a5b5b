//! Looking at resources. What is not known here is asked of the other sites.

use std::ops::Bound;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{Replica, RunId},
};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

use super::{
    Context, Shared,
    error::{ApiError, ApiResult, Asked, In},
    known_site,
    model::{Operation, Problem, Resource, ResourceQuery, Resources, ResourcesQuery},
    pass, resource_id, view,
};
use crate::run::Output;

/// How many resources are looked at before others get a turn at the replica.
const ROUND: usize = 1_000;

/// The resources of this site, by id, a page at a time.
#[utoipa::path(get, path = "/api/v1/resources", tag = "resources", params(ResourcesQuery),
    responses((status = OK, body = Resources), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(context): State<Shared>,
    Asked(query): Asked<ResourcesQuery>,
) -> ApiResult<axum::Json<Resources>> {
    let limit = query.limit.unwrap_or(500).min(5_000);
    if limit == 0 {
        let site = context.here().to_string();
        return Ok(axum::Json(Resources { site, resources: Vec::new(), next: None }));
    }
    let mut from = match (&query.after, &query.prefix) {
        (Some(after), _) => Bound::Excluded(resource_id(after)?),
        (None, Some(prefix)) if !prefix.is_empty() => Bound::Included(resource_id(prefix)?),
        (None, _) => Bound::Unbounded,
    };
    let mut resources = Vec::new();
    loop {
        let (query, start, room) = (query.clone(), from.clone(), limit - resources.len());
        let look = move |replica: &Replica| round(replica, start, &query, room);
        let (found, next) = context.node.read(look).await?;
        resources.extend(found);
        match next {
            Some(next) if resources.len() < limit => from = Bound::Excluded(next),
            next => {
                let site = context.here().to_string();
                let next = next.map(|id| id.to_string());
                return Ok(axum::Json(Resources { site, resources, next }));
            }
        }
    }
}

/// What is asked for among the next resources, and where to go on.
fn round(
    replica: &Replica,
    from: Bound<ResourceId>,
    query: &ResourcesQuery,
    room: usize,
) -> (Vec<super::model::ResourceSummary>, Option<ResourceId>) {
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let mut found = Vec::new();
    for (looked, resource) in replica.resources_from((from, Bound::Unbounded)).enumerate() {
        if !resource.id().as_str().starts_with(prefix) {
            if resource.id().as_str() > prefix {
                return (found, None);
            }
            continue;
        }
        let summary = view::summary(resource);
        if query.state.is_none_or(|state| state == summary.state) {
            found.push(summary);
        }
        if found.len() == room || looked + 1 == ROUND {
            return (found, Some(resource.id().clone()));
        }
    }
    (found, None)
}

/// A resource: its state, its operations, the block, receipts, and the replies of all sites.
#[utoipa::path(get, path = "/api/v1/resources/{id}", tag = "resources",
    params(("id" = String, Path, description = "The resource"), ResourceQuery),
    responses((status = OK, body = Resource), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(context): State<Shared>,
    In(id): In<String>,
    Asked(query): Asked<ResourceQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let id = resource_id(&id)?;
    let path = format!("/api/v1/resources/{id}");
    if let Some(site) = elsewhere(&context, query.at.as_deref())? {
        return pass::get(&context, &site, &query.without_at(&path)).await;
    }
    let limit = query.limit.unwrap_or(200).min(10_000);
    let before: Option<OpId> = query.before.as_deref().map(str::parse).transpose()?;
    let (here, wanted, printed) = (context.here().clone(), id.clone(), query.printed);
    let look = move |replica: &Replica| {
        let resource = replica.resource(&wanted)?;
        let mut found = view::resource(&here, resource, limit, before.as_ref());
        if let Some(most) = printed {
            view::shorten(&mut found, most);
        }
        Some(found)
    };
    match context.node.read(look).await? {
        Some(found) => Ok(axum::Json(found).into_response()),
        None if query.local || pass::was_passed(&headers) => {
            Err(ApiError::no_resource(id.as_str(), &[]))
        }
        None => {
            let site = pass::find(&context, &id).await?;
            pass::get(&context, &site, &query.without_at(&path)).await
        }
    }
}

/// The site to ask instead of this one, if another is named.
fn elsewhere(context: &Context, at: Option<&str>) -> ApiResult<Option<SiteId>> {
    let site = at.map(|at| known_site(context, at)).transpose()?;
    Ok(site.filter(|site| site != context.here()))
}

/// Where to look for an operation.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationQuery {
    /// Ask no other site.
    #[serde(default)]
    local: bool,
}

/// One operation.
#[utoipa::path(get, path = "/api/v1/resources/{id}/operations/{operation}", tag = "operations",
    params(("id" = String, Path, description = "The resource"),
        ("operation" = String, Path, description = "The operation: SITE:NUMBER"), OperationQuery),
    responses((status = OK, body = Operation), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn operation(
    State(context): State<Shared>,
    In((id, op)): In<(String, String)>,
    Asked(query): Asked<OperationQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let (id, op): (ResourceId, OpId) = (resource_id(&id)?, op.parse()?);
    let (here, wanted, wanted_op) = (context.here().clone(), id.clone(), op.clone());
    let look = move |replica: &Replica| {
        let resource = replica.resource(&wanted)?;
        let Some(ix) = resource.log().find(&wanted_op) else { return Some(None) };
        let place = resource.resolution().block().iter().position(|&kept| kept == ix);
        let account = resource.receipt(&wanted_op).filter(|_| place.is_none());
        let op = resource.log().op(ix);
        Some(Some(view::operation(&here, resource, op, place.map(|n| n + 1), account.as_ref())))
    };
    match context.node.read(look).await? {
        Some(Some(found)) => Ok(axum::Json(found).into_response()),
        Some(None) => Err(ApiError::not_found(
            "unknown-operation",
            format!("resource `{id}` has no operation `{op}` here"),
            format!("see /api/v1/resources/{id} for its operations"),
        )),
        None if query.local || pass::was_passed(&headers) => {
            Err(ApiError::no_resource(id.as_str(), &[]))
        }
        None => {
            let site = pass::find(&context, &id).await?;
            let op = pass::encode(&op.to_string());
            pass::get(&context, &site, &format!("/api/v1/resources/{id}/operations/{op}")).await
        }
    }
}

/// Which run's output to fetch.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputQuery {
    /// The site that ran it; this one without it.
    site: Option<String>,
    /// Which run of it; the last without it.
    attempt: Option<u32>,
}

/// How many bytes of an output were dropped after what is kept.
const DROPPED: HeaderName = HeaderName::from_static("x-cheops-dropped-bytes");

/// All that an operation printed at a site, as far as it is kept there.
#[utoipa::path(get, path = "/api/v1/resources/{id}/operations/{operation}/output", tag = "operations",
    params(("id" = String, Path, description = "The resource"),
        ("operation" = String, Path, description = "The operation: SITE:NUMBER"), OutputQuery),
    responses((status = OK, content_type = "application/octet-stream", body = Vec<u8>,
            headers(("X-Cheops-Dropped-Bytes" = u64,
                description = "How many bytes were printed after these, and dropped; not there if that is not known"))),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn output(
    State(context): State<Shared>,
    In((id, op)): In<(String, String)>,
    Asked(query): Asked<OutputQuery>,
) -> ApiResult<Response> {
    let (resource, op): (ResourceId, OpId) = (resource_id(&id)?, op.parse()?);
    if let Some(site) = elsewhere(&context, query.site.as_deref())? {
        let op = pass::encode(&op.to_string());
        let attempt = query.attempt.map(|n| format!("?attempt={n}")).unwrap_or_default();
        let path = format!("/api/v1/resources/{resource}/operations/{op}/output{attempt}");
        return pass::get(&context, &site, &path).await;
    }
    let (here, wanted, wanted_op) = (context.here().clone(), resource.clone(), op.clone());
    let look = move |replica: &Replica| {
        let reply = replica.resource(&wanted)?.reply(&wanted_op, &here)?;
        Some((reply.attempt, reply.output.to_string()))
    };
    let none = || {
        ApiError::not_found(
            "no-output",
            format!("operation `{op}` of `{resource}` was not run at this site"),
            format!("see /api/v1/resources/{resource} for the runs of each site"),
        )
    };
    let (last, short) = context.node.read(look).await?.ok_or_else(none)?;
    let attempt = query.attempt.unwrap_or(last);
    let run = RunId { resource: resource.clone(), op: op.clone(), attempt };
    let runner = context.runner.clone();
    let kept = tokio::task::spawn_blocking(move || runner.output(&run)).await;
    let kept = kept.ok().and_then(Result::ok).flatten();
    let binary = [(header::CONTENT_TYPE, "application/octet-stream")];
    match kept {
        Some(Output { file, length, dropped }) => {
            // One that still runs may print on: what is there now is the answer.
            let file = tokio::fs::File::from_std(file).take(length);
            let mut response = (binary, Body::from_stream(ReaderStream::new(file))).into_response();
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_LENGTH, length.into());
            headers.extend(dropped.map(|dropped| (DROPPED, HeaderValue::from(dropped))));
            Ok(response)
        }
        None if attempt == last => Ok((binary, Body::from(short)).into_response()),
        None => Err(none()),
    }
}
