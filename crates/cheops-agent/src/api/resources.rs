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
    replica::{self, Replica, RunId},
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

/// The resources of a site, by id, a page at a time.
#[utoipa::path(get, path = "/api/v1/resources", tag = "resources", params(ResourcesQuery),
    responses((status = OK, body = Resources), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(context): State<Shared>,
    Asked(query): Asked<ResourcesQuery>,
) -> ApiResult<Response> {
    if let Some(site) = elsewhere(&context, query.at.as_deref())? {
        return pass::get(&context, &site, &query.without_at("/api/v1/resources")).await;
    }
    let limit = query.limit.unwrap_or(500).min(5_000);
    let wanted = Wanted {
        prefix: query.prefix.unwrap_or_default(),
        contains: query.contains.unwrap_or_default(),
        state: query.state,
        site: query.site.as_deref().map(str::parse).transpose()?,
        until: None,
    };
    let found = wanted.page(&context, query.after.as_deref(), limit, view::summary).await?;
    let (resources, next) = found;
    let (site, next) = (context.here().to_string(), next.map(|id| id.to_string()));
    Ok(axum::Json(Resources { site, resources, next }).into_response())
}

/// Which resources to look for.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) prefix: String,
    pub(super) contains: String,
    pub(super) state: Option<super::model::State>,
    pub(super) site: Option<SiteId>,
    /// The last id.
    pub(super) until: Option<ResourceId>,
}

impl Wanted {
    /// The first of them after an id, up to so many, and where to go on.
    pub(super) async fn page<T: Send + 'static>(
        &self,
        context: &Context,
        after: Option<&str>,
        limit: usize,
        show: impl Fn(&replica::Resource) -> T + Clone + Send + 'static,
    ) -> ApiResult<(Vec<T>, Option<ResourceId>)> {
        let mut from = match after {
            Some(after) => Bound::Excluded(resource_id(after)?),
            None if !self.prefix.is_empty() => Bound::Included(resource_id(&self.prefix)?),
            None => Bound::Unbounded,
        };
        let mut all = Vec::new();
        if limit == 0 {
            return Ok((all, None));
        }
        loop {
            let (wanted, show) = (self.clone(), show.clone());
            let (start, room) = (from, limit - all.len());
            let look = move |replica: &Replica| wanted.round(replica, start, room, show);
            let (found, next) = context.node.read(look).await?;
            all.extend(found);
            match next {
                Some(next) if all.len() < limit => from = Bound::Excluded(next),
                next => return Ok((all, next)),
            }
        }
    }

    /// Those among the next resources, and where to go on.
    fn round<T>(
        &self,
        replica: &Replica,
        from: Bound<ResourceId>,
        room: usize,
        show: impl Fn(&replica::Resource) -> T,
    ) -> (Vec<T>, Option<ResourceId>) {
        let mut found = Vec::new();
        for (looked, resource) in replica.resources_from((from, Bound::Unbounded)).enumerate() {
            let id = resource.id().as_str();
            let past = self.until.as_ref().is_some_and(|until| resource.id() > until);
            if past || !id.starts_with(&self.prefix) && *id > *self.prefix {
                return (found, None);
            }
            // What is kept for removed sites alone is nobody else's business.
            if self.takes(resource) && !resource.is_gone(replica.here()) {
                found.push(show(resource));
            }
            if found.len() == room || looked + 1 == ROUND {
                return (found, Some(resource.id().clone()));
            }
        }
        (found, None)
    }

    fn takes(&self, resource: &replica::Resource) -> bool {
        let id = resource.id().as_str();
        id.starts_with(&self.prefix)
            && id.contains(&self.contains)
            && self.site.as_ref().is_none_or(|site| resource.sites().contains(site))
            && self.state.is_none_or(|state| state == view::state(resource))
    }
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
        Some(view::Snapshot::of(&here, resource, limit, before.as_ref()))
    };
    match context.node.read(look).await? {
        Some(found) => {
            let mut found = found.resource(context.here());
            if let Some(most) = printed {
                view::shorten(&mut found, most);
            }
            Ok(axum::Json(found).into_response())
        }
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
pub(super) fn elsewhere(context: &Context, at: Option<&str>) -> ApiResult<Option<SiteId>> {
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
        Some(Some(view::Snapped::of(&here, resource, ix)))
    };
    match context.node.read(look).await? {
        Some(Some(found)) => Ok(axum::Json(found.operation()).into_response()),
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
