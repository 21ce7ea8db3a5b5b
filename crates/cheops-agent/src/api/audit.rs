//! The audit of this site, for those who may read it.

use axum::{extract::State, http::StatusCode};
use jiff::Timestamp;

use super::{
    Shared,
    error::{ApiError, ApiResult, Asked},
    model::{AuditPage, AuditQuery, AuditVerdict, Problem},
};
use crate::audit::{Verdict, Wanted};

/// How many lines are given if the request does not say, and at most.
const LINES: usize = 100;
const MOST_LINES: usize = 1_000;

/// Who asked for what at this site, from where, with which result: the newest lines, or those after one.
#[utoipa::path(get, path = "/api/v1/audit", tag = "agent", params(AuditQuery),
    responses((status = OK, body = AuditPage), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(context): State<Shared>,
    Asked(query): Asked<AuditQuery>,
) -> ApiResult<axum::Json<AuditPage>> {
    let since = query.since.as_deref().map(moment).transpose()?;
    let AuditQuery { after, author, resource, limit, .. } = query;
    let limit = limit.unwrap_or(LINES).clamp(1, MOST_LINES);
    let wanted = Wanted { after, since, author, resource, limit };
    let entries = context.audit.entries(wanted).await.map_err(|error| unreadable(&error))?;
    let site = context.here().to_string();
    Ok(axum::Json(AuditPage { site, next: entries.last().map(|entry| entry.n), entries }))
}

/// Whether the whole record is as it was written.
#[utoipa::path(get, path = "/api/v1/audit/verify", tag = "agent",
    responses((status = OK, body = AuditVerdict), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn verify(State(context): State<Shared>) -> ApiResult<axum::Json<AuditVerdict>> {
    let verdict = context.audit.verify().await.map_err(|error| unreadable(&error))?;
    Ok(axum::Json(verdict.into()))
}

impl From<Verdict> for AuditVerdict {
    fn from(verdict: Verdict) -> Self {
        let Verdict { first, last, lines, unsigned, headed, broken } = verdict;
        let place = broken.as_ref().map(|(_, place)| place);
        Self {
            whole: broken.is_none() && headed,
            lines,
            first,
            last: last.n,
            hash: last.hash.to_hex().to_string(),
            unsigned,
            headed,
            file: place.map(|place| place.file.display().to_string()),
            line: place.map(|place| place.line),
            broken: broken.map(|(broken, _)| broken.to_string()),
        }
    }
}

fn moment(text: &str) -> ApiResult<Timestamp> {
    text.parse().map_err(|_| {
        let detail = format!("`since` is `{text}`, which is not a moment");
        ApiError::bad("bad-parameter", detail, "write it like 2026-01-31T12:00:00Z")
    })
}

fn unreadable(error: &std::io::Error) -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "cannot-read",
        format!("the audit can't be read: {error}"),
        "look at the disk, and at `audit` in the data directory",
    )
}
