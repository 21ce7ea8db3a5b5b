//! What goes wrong in a request, as `application/problem+json`, and the extractors that say so.
//!
//! What must stay true: every error has a status, a sort for programs, what happened, and what to
//! do; whatever a handler refuses, no operation was made. A file that was sent with it may stay for
//! a while, and goes when nothing names it.

use axum::{
    body::{Body, Bytes},
    extract::{
        FromRequest, FromRequestParts, Path, Query, Request,
        rejection::{JsonRejection, PathRejection, QueryRejection},
    },
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use cheops_core::{id::NameError, json::JsonError, replica::Refusal, scope::ScopeError};
use serde::de::DeserializeOwned;

use super::{audited, model::Problem};
use crate::{
    node::{Busy, Stopping},
    peers::CallError,
};

/// After how many seconds it may be worth asking again an agent that serves as many as it may.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// What to do about a request that another site may have carried out. Whoever words it may not know what was asked for.
const MAYBE_ACCEPTED: &str = "read again what was to be read; an operation may have been accepted: look first, or send it again with the same idempotency key";

/// A request that was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError(pub Box<Problem>);

/// What a handler gives.
pub(super) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// An error of a sort.
    pub fn new(
        status: StatusCode,
        kind: &str,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let title = kind.replace('-', " ");
        Self(Box::new(Problem {
            kind: kind.to_owned(),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            hint: hint.into(),
        }))
    }

    /// The request itself is wrong.
    pub fn bad(kind: &str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, kind, detail, hint)
    }

    /// There is no such thing.
    pub fn not_found(kind: &str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, kind, detail, hint)
    }

    /// No resource has this id, as far as can be seen.
    pub fn no_resource(id: &str, not_asked: &[String]) -> Self {
        let unseen = match not_asked {
            [] => String::new(),
            sites => format!("; {} could not be asked", sites.join(", ")),
        };
        Self::not_found(
            "unknown-resource",
            format!("no resource `{id}` is known{unseen}"),
            "create it by naming its sites: cheops exec --id … --sites 'site1 & site2' --command …",
        )
    }

    /// The site that is needed can't be reached.
    pub fn unreachable(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "unreachable",
            detail,
            "try again when the link is back, or ask an agent at one of its sites",
        )
    }

    /// Another site broke off. Unlike with one that can't be reached, what it was asked for may have
    /// been carried out.
    pub fn broke_off(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "broke-off", detail, MAYBE_ACCEPTED)
    }

    /// Another site is there and does not answer. What it was asked for may have been carried out.
    pub fn late(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "no-answer", detail, MAYBE_ACCEPTED)
    }

    /// This agent serves as many as it may.
    pub fn too_many(kind: &str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, detail, hint)
    }

    /// Whether what was asked for can't have reached the site that it was for.
    pub fn is_unreachable(&self) -> bool {
        self.0.kind == "unreachable"
    }

    /// Whether another site is at fault for that there is no answer.
    pub fn is_silence(&self) -> bool {
        matches!(self.status(), StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT)
    }

    /// The status, which is always one that exists.
    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        audited::refused(&self.0.kind);
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if self.status() == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        }
        if self.0.kind.starts_with("too-many-") {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        let kind = format!("bad-{}", error.what.replace(' ', "-"));
        Self::bad(&kind, error.to_string(), "use a name that keeps to this rule")
    }
}

impl From<JsonError> for ApiError {
    fn from(error: JsonError) -> Self {
        let hint = error.hint.clone().unwrap_or_else(|| "see docs/merge.md".to_owned());
        Self::bad("bad-configuration", error.to_string(), hint)
    }
}

impl From<ScopeError> for ApiError {
    fn from(error: ScopeError) -> Self {
        Self::bad("bad-sites", error.to_string(), error.hint())
    }
}

impl From<Stopping> for ApiError {
    fn from(error: Stopping) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            error.to_string(),
            "ask another site, or this one when it is back",
        )
    }
}

impl From<Busy> for ApiError {
    fn from(busy: Busy) -> Self {
        let (status, kind, hint) = match &busy {
            Busy::Full(_) => (
                StatusCode::INSUFFICIENT_STORAGE,
                "disk-full",
                "make room; operations are accepted again by themselves. Or ask another site",
            ),
            Busy::Stalled(_) => (
                StatusCode::INSUFFICIENT_STORAGE,
                "cannot-write",
                "look at the disk; it is tried again every second. Or ask another site",
            ),
            Busy::Away(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unreachable",
                "see to it that CouchDB runs and takes what the agent writes; it is tried again every second. Or ask another site",
            ),
            Busy::Stopping => return Stopping.into(),
        };
        Self::new(status, kind, busy.to_string(), hint)
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        match &error {
            CallError::Broke { .. } => Self::broke_off(error.to_string()),
            CallError::Unknown(_) | CallError::NotConnected { .. } | CallError::Paused(_) => {
                Self::unreachable(error.to_string())
            }
        }
    }
}

/// A refusal that is the requester's to mend. That the resource is elsewhere is dealt with before.
impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match &refusal {
            Refusal::NoSites(id) => Self::no_resource(id.as_str(), &[]),
            Refusal::Elsewhere { .. } => Self::new(
                StatusCode::MISDIRECTED_REQUEST,
                "elsewhere",
                refusal.to_string(),
                "ask one of its sites",
            ),
            Refusal::Whole { .. } => Self::new(
                StatusCode::CONFLICT,
                "not-in-parts",
                refusal.to_string(),
                "leave the sites and parts out, or create another resource in parts",
            ),
            Refusal::Withheld(lost) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "damaged",
                refusal.to_string(),
                if lost.unheard.is_empty() {
                    "ask another of its sites, or declare its state: cheops exec --force …"
                } else {
                    "see to it that these sites can be reached, or ask one of them"
                },
            ),
            Refusal::KeyReused { .. } => Self::new(
                StatusCode::CONFLICT,
                "key-reused",
                refusal.to_string(),
                "give each new request a key of its own",
            ),
        }
    }
}

/// A JSON body: an object, whatever else could be read as one.
pub(super) struct Json<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = Bytes::from_request(Request::from_parts(parts.clone(), body), state).await;
        let bytes = bytes.map_err(|rejection| bad_json(&rejection.into()))?;
        // Values without names would be taken for the fields in their order.
        let begins = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        let is_object = begins.is_none_or(|byte| *byte == b'{');
        let request = Request::from_parts(parts, Body::from(bytes));
        match axum::Json::<T>::from_request(request, state).await {
            Ok(_) | Err(JsonRejection::JsonDataError(_)) if !is_object => Err(no_object()),
            Ok(axum::Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(bad_json(&rejection)),
        }
    }
}

fn no_object() -> ApiError {
    ApiError::bad(
        "bad-request",
        "the body is JSON, but no object",
        "send one object with named fields, like {\"command\": \"…\"}; see /openapi.json",
    )
}

fn bad_json(rejection: &JsonRejection) -> ApiError {
    let detail = rejection.body_text();
    match rejection {
        JsonRejection::MissingJsonContentType(_) => ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "wrong-content-type",
            detail,
            "send JSON, with the header Content-Type: application/json",
        ),
        JsonRejection::BytesRejection(_) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            too_large(super::MAX_BODY)
        }
        JsonRejection::BytesRejection(_) => ApiError::bad(
            "broken-body",
            "the body is malformed, or shorter than announced",
            "nothing was accepted: send the request again, with as many bytes as Content-Length says",
        ),
        _ => ApiError::bad("bad-request", detail, "see /openapi.json for what is expected"),
    }
}

/// A body that is over the limit.
pub(super) fn too_large(limit: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too-large",
        format!("the body is longer than {limit} bytes"),
        "attach what is large as a file: POST /api/v1/files, or a file part of /exec",
    )
}

/// The parts of a path.
pub(super) struct In<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for In<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let rejected = |rejection: PathRejection| {
            ApiError::bad("bad-path", rejection.body_text(), "see /openapi.json for the paths")
        };
        let Path(value) = Path::from_request_parts(parts, state).await.map_err(rejected)?;
        Ok(Self(value))
    }
}

/// The parameters after the `?`.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let rejected = |rejection: QueryRejection| {
            let hint = "see /openapi.json for the parameters";
            ApiError::bad("bad-parameter", rejection.body_text(), hint)
        };
        let Query(value) = Query::from_request_parts(parts, state).await.map_err(rejected)?;
        Ok(Self(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what can't have arrived may be sent to another site: anything else could be run twice.
    #[test]
    fn a_call_that_broke_off_may_have_been_carried_out() {
        let site: cheops_core::id::SiteId = "site2".parse().unwrap();
        for (error, expected) in [
            (CallError::Unknown(site.clone()), true),
            (CallError::NotConnected { site: site.clone(), why: "no link".into() }, true),
            (CallError::Paused(site.clone()), true),
            (CallError::Broke { site, why: "the link broke".into() }, false),
        ] {
            let words = error.to_string();
            assert_eq!(ApiError::from(error).is_unreachable(), expected, "{words}");
        }
    }
}
