//! The sites, and the links to them.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{extract::State, http::StatusCode};
use cheops_core::{
    duration,
    id::SiteId,
    replica::{Replica, Resource, Shared as InCommon},
    time::Millis,
};

use super::{
    Context, Shared,
    error::{ApiError, ApiResult, Asked, In},
    federation::key_since,
    known_site,
    model::{PauseQuery, Pong, Problem, Queue, Site, SiteState, Sites},
    view::rfc3339,
};
use crate::{peers::State as Reach, trust::Identity};

/// All sites that this one knows: who can be reached, how far away they are, and how far behind.
#[utoipa::path(get, path = "/api/v1/sites", tag = "sites",
    responses((status = OK, body = Sites), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(context): State<Shared>) -> ApiResult<axum::Json<Sites>> {
    let peers = context.peers.view();
    let here = context.here().clone();
    let names = peers.iter().map(|peer| peer.site.clone()).chain([here.clone()]);
    let none: BTreeMap<SiteId, InCommon> = names.map(|site| (site, InCommon::default())).collect();
    // A resource has few sites, however many there are.
    let count = |_: &Replica, resource: &Resource, counts: &mut BTreeMap<SiteId, InCommon>| {
        resource.count(counts);
        true
    };
    let counts = context.node.walk(none, count).await?;
    let of = |site: &SiteId| counts.get(site).copied().unwrap_or_default();
    let own = of(&here);
    let mut sites = vec![Site {
        name: here.to_string(),
        state: SiteState::Here,
        paused_until: None,
        address: None,
        key: context.peers.key().to_string(),
        key_since: Identity::made(&context.config.data).map(time_of_day),
        certificate_expires: context.peers.pki().map(|pki| time_of_day(pki.valid().until)),
        api_certificate_expires: context
            .certificate
            .as_ref()
            .map(|certificate| time_of_day(certificate.expires())),
        round_trip_ms: None,
        last_seen: None,
        lag_ms: Some(0),
        queue: Queue::default(),
        resources: own.resources,
        unanswered: own.unanswered,
        clock_offset_ms: None,
        error: None,
    }];
    sites.extend(peers.into_iter().map(|peer| (of(&peer.site), peer)).map(|(shared, peer)| Site {
        name: peer.site.to_string(),
        state: match peer.state {
            Reach::Reachable => SiteState::Reachable,
            Reach::Unreachable => SiteState::Unreachable,
            Reach::Paused => SiteState::Paused,
        },
        paused_until: peer.paused_until.map(time_of_day),
        address: Some(peer.address),
        key: peer.key.map(|key| key.to_string()).unwrap_or_default(),
        key_since: peer.key.and_then(|key| {
            context.federation.ledger().read(|roster| key_since(roster, &key)).flatten()
        }),
        certificate_expires: peer.certificate.map(time_of_day),
        api_certificate_expires: None,
        round_trip_ms: peer.round_trip.map(millis),
        last_seen: peer.last_seen.map(time_of_day),
        lag_ms: peer.lag.map(whole_millis),
        queue: Queue { messages: peer.queue.messages, bytes: peer.queue.bytes },
        resources: shared.resources,
        unanswered: shared.unanswered,
        clock_offset_ms: peer.clock_offset,
        error: peer.error,
    }));
    sites.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(axum::Json(Sites { here: here.to_string(), sites }))
}

/// Asks a site whether it is there, now.
#[utoipa::path(post, path = "/api/v1/sites/{name}/ping", tag = "sites",
    params(("name" = String, Path, description = "The site")),
    responses((status = OK, body = Pong), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn ping(
    State(context): State<Shared>,
    In(name): In<String>,
) -> ApiResult<axum::Json<Pong>> {
    let site = known_site(&context, &name)?;
    let round_trip =
        if site == *context.here() { Duration::ZERO } else { context.peers.ping(&site).await? };
    Ok(axum::Json(Pong { site: site.to_string(), round_trip_ms: millis(round_trip) }))
}

/// Cuts the links between this site and another, or all links of this site if it is named itself,
/// to rehearse a cut. They are whole again when they are resumed, when `for` has passed, or when
/// the agent starts again.
#[utoipa::path(post, path = "/api/v1/sites/{name}/pause", tag = "sites",
    params(("name" = String, Path, description = "The site"), PauseQuery),
    responses((status = NO_CONTENT), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pause(
    State(context): State<Shared>,
    In(name): In<String>,
    Asked(query): Asked<PauseQuery>,
) -> ApiResult<StatusCode> {
    let site = known_site(&context, &name)?;
    let span = query.r#for.as_deref().map(span).transpose()?;
    context.peers.pause(whose(&context, &site), span)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a pause.
#[utoipa::path(post, path = "/api/v1/sites/{name}/resume", tag = "sites",
    params(("name" = String, Path, description = "The site")),
    responses((status = NO_CONTENT), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn resume(
    State(context): State<Shared>,
    In(name): In<String>,
) -> ApiResult<StatusCode> {
    let site = known_site(&context, &name)?;
    context.peers.resume(whose(&context, &site))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whose links are meant: all, if it is this site.
fn whose<'a>(context: &Context, site: &'a SiteId) -> Option<&'a SiteId> {
    (site != context.here()).then_some(site)
}

/// A length of time, from a parameter.
pub(super) fn span(text: &str) -> Result<Duration, ApiError> {
    duration::parse(text).map_err(|error| {
        ApiError::bad("bad-duration", error.to_string(), "write it like 30s or 10m")
    })
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1_000.0
}

fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn time_of_day(time: SystemTime) -> String {
    rfc3339(Millis(whole_millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())))
}
