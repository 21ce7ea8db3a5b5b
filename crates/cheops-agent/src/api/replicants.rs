//! Replicants: which REST resources exist at several sites, what each site calls its own, and what is
//! still to be done.

use std::ops::Bound;

use axum::{
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use cheops_core::{
    id::{ResourceId, SiteId},
    plan::Outcome,
    replica::{self, Replica},
};

use super::{
    Shared,
    error::{ApiError, ApiResult, Asked, In},
    model::{Problem, Replica as Copy, Replicant, ReplicantQuery, Replicants, ReplicantsQuery},
    pass, resource_id, view,
};
use crate::{problems::answered, replicants, rest::ids::parse_resource};

/// How many resources are looked at before others get a turn at the replica.
const ROUND: usize = 1_000;

/// The REST resources that this site has a copy or a part of, a page at a time.
#[utoipa::path(get, path = "/api/v1/replicants", tag = "resources", params(ReplicantsQuery),
    responses((status = OK, body = Replicants), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(context): State<Shared>,
    Asked(query): Asked<ReplicantsQuery>,
) -> ApiResult<axum::Json<Replicants>> {
    let limit = query.limit.unwrap_or(500).min(5_000);
    let site = context.here().to_string();
    let mut from = match &query.after {
        Some(after) => Bound::Excluded(resource_id(after)?),
        None => Bound::Unbounded,
    };
    let mut found = Vec::new();
    while found.len() < limit {
        let (query, start, room) = (query.clone(), from, limit - found.len());
        let look = move |replica: &Replica| round(replica, start, &query, room);
        let (more, next) = context.node.read(look).await?;
        found.extend(more);
        let Some(next) = next else {
            return Ok(axum::Json(Replicants { site, replicants: found, next: None }));
        };
        if found.len() == limit {
            let next = Some(next.to_string());
            return Ok(axum::Json(Replicants { site, replicants: found, next }));
        }
        from = Bound::Excluded(next);
    }
    Ok(axum::Json(Replicants { site, replicants: found, next: None }))
}

/// What is asked for among the next resources, and where to go on.
fn round(
    replica: &Replica,
    from: Bound<ResourceId>,
    query: &ReplicantsQuery,
    room: usize,
) -> (Vec<Replicant>, Option<ResourceId>) {
    let mut found = Vec::new();
    for (looked, resource) in replica.resources_from((from, Bound::Unbounded)).enumerate() {
        let replicant = replicants::Replicant::of(resource);
        let wanted = |replicant: &replicants::Replicant| {
            query.service.as_deref().is_none_or(|service| service == replicant.service.as_str())
        };
        found.extend(replicant.filter(wanted).map(|replicant| view_of(resource, &replicant)));
        if found.len() == room || looked + 1 == ROUND {
            return (found, Some(resource.id().clone()));
        }
    }
    (found, None)
}

/// One of them, by the id that Cheops made, by any site's own id, or by its resource. If it is not known
/// here, other sites are asked.
#[utoipa::path(get, path = "/api/v1/replicants/{id}", tag = "resources",
    params(("id" = String, Path, description = "Its id, that of a site, or that of its resource"), ReplicantQuery),
    responses((status = OK, body = Replicant), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(context): State<Shared>,
    In(id): In<String>,
    Asked(query): Asked<ReplicantQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let by_name = || {
        let mut all = context.replicants.all().into_iter();
        all.find(|replicant| replicant.is_called(&id)).map(|known| known.resource.clone())
    };
    // What was written a moment ago is found by its resource; so it is asked for by other agents.
    let resource = id.parse().ok().filter(|id| parse_resource(id).is_some()).or_else(by_name);
    if let Some(resource) = resource {
        let look = move |replica: &Replica| {
            let resource = replica.resource(&resource)?;
            Some(view_of(resource, &replicants::Replicant::of(resource)?))
        };
        if let Some(found) = context.node.read(look).await? {
            return Ok(axum::Json(found).into_response());
        }
    }
    let unknown = || {
        ApiError::not_found(
            "unknown-replicant",
            format!("no REST resource `{id}` is known at several sites"),
            "see /api/v1/replicants for those that are known here",
        )
    };
    if query.local || pass::was_passed(&headers) {
        return Err(unknown());
    }
    let peers = context.peers.sites();
    let path = format!("/api/v1/replicants/{}?local=true", pass::encode(&id));
    for site in context.reachable(&peers) {
        if let Ok(found) = pass::ask::<Replicant>(&context, &site, &path).await {
            return Ok(axum::Json(found).into_response());
        }
    }
    Err(unknown())
}

fn view_of(resource: &replica::Resource, replicant: &replicants::Replicant) -> Replicant {
    let first = resource.log().iter().next().map(|(_, op)| op.id.clone());
    let part = |site: &SiteId| replicant.parts.iter().position(|part| part.contains(site));
    let copy = |site: &SiteId| {
        let reply = first.as_ref().and_then(|first| resource.reply(first, site));
        let id = replicant.locals.get(site);
        Copy {
            site: site.to_string(),
            id: id.map(ToString::to_string),
            part: part(site).map(|part| part + 1),
            created: reply.is_some_and(|reply| reply.outcome == Outcome::Ok),
            failed: reply.filter(|_| id.is_none()).and_then(failure),
            pending: resource.unanswered(site),
        }
    };
    Replicant {
        service: replicant.service.to_string(),
        id: replicant.meta().map(ToOwned::to_owned),
        path: replicant.path().into(),
        resource: replicant.resource.to_string(),
        state: view::state(resource),
        deleting: resource.is_deleting(),
        replicas: replicant.sites.iter().map(copy).collect(),
    }
}

/// Why a creation failed at a site, in a few words.
fn failure(reply: &replica::Reply) -> Option<String> {
    let words = || match answered(reply) {
        Some(status) => format!("answered {status}"),
        None => "did not answer".to_owned(),
    };
    match reply.outcome {
        Outcome::Denied => Some("denied by its policy".to_owned()),
        Outcome::Ko => Some(words()),
        Outcome::Ok | Outcome::Unknown => None,
    }
}
