//! How the agent is doing, for those who look after it.

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use cheops_core::replica::{Replica, Resource};

use super::{
    Shared,
    error::ApiResult,
    model::{Problem, Ready},
};
use crate::node::Health;

/// The agent runs.
#[utoipa::path(get, path = "/healthz", tag = "agent",
    responses((status = OK, body = String),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the agent accepts operations.
#[utoipa::path(get, path = "/readyz", tag = "agent",
    responses((status = OK, body = Ready), (status = SERVICE_UNAVAILABLE, body = Ready),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn readyz(State(context): State<Shared>) -> Response {
    let because = match context.node.health() {
        Health::Well => Vec::new(),
        Health::Full { free } => vec![format!("the disk is full: {free} bytes are free")],
        Health::Stalled { why, .. } => vec![format!("the agent can't write: {why}")],
    };
    let ready = because.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(Ready { ready, because })).into_response()
}

/// Counters and gauges, in the text form of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "agent",
    responses((status = OK, body = String, content_type = "application/openmetrics-text"),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn metrics(State(context): State<Shared>) -> ApiResult<Response> {
    let count = |_: &Replica, resource: &Resource, counts: &mut (usize, usize)| {
        counts.0 += 1;
        counts.1 += resource.log().len();
        true
    };
    let (resources, operations) = context.node.walk((0, 0), count).await?;
    let text = context.metrics.text(&context, resources, operations);
    let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, openmetrics)], text).into_response())
}
