//! The files that operations bring: sent here before the operation, and fetched by other sites.

use std::io;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::TryStreamExt;
use tokio_util::io::ReaderStream;

use super::{
    Shared,
    error::{ApiError, ApiResult, In},
    model::{Problem, Stored},
};
use crate::files::{Content, FileError};

/// Takes in a file, for an operation that will name it.
#[utoipa::path(post, path = "/api/v1/files", tag = "operations",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = CREATED, body = Stored), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn store(
    State(context): State<Shared>,
    request: Request,
) -> ApiResult<(StatusCode, axum::Json<Stored>)> {
    let parts = request.into_body().into_data_stream();
    let parts = parts.map_err(|error| io::Error::other(error.to_string()));
    let stored = stored(context.files.put(parts).await?);
    Ok((StatusCode::CREATED, axum::Json(stored)))
}

/// A file that was taken in, in words.
pub(super) fn stored((content, length): (Content, u64)) -> Stored {
    Stored { content: blake3::Hash::from_bytes(content).to_hex().to_string(), length }
}

/// A file by its content, or the rest of it: `Range: bytes=1000-`.
#[utoipa::path(get, path = "/api/v1/files/{content}", tag = "operations",
    params(("content" = String, Path, description = "The BLAKE3 hash of its content")),
    responses((status = OK, content_type = "application/octet-stream", body = Vec<u8>),
        (status = PARTIAL_CONTENT, content_type = "application/octet-stream", body = Vec<u8>),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn content(
    State(context): State<Shared>,
    In(wanted): In<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let none = || {
        let detail = format!("there is no file with the content {wanted} at this site");
        ApiError::not_found("unknown-file", detail, "ask a site of its resource")
    };
    let hash = blake3::Hash::from_hex(&wanted).map_err(|_| none())?;
    let from = headers.get(header::RANGE).map(range).transpose()?.unwrap_or(0);
    let opened = context.files.open_at(hash.as_bytes(), from).await;
    let (file, length) = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => none(),
        _ => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "cannot-read",
            format!("the file {wanted} can't be read: {error}"),
            "look at the disk, or ask another site of its resource",
        ),
    })?;
    let body = Body::from_stream(ReaderStream::with_capacity(file, 64 << 10));
    let octets = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, length.saturating_sub(from).to_string()),
    ];
    if from == 0 {
        return Ok((octets, body).into_response());
    }
    if from >= length {
        let beyond = ApiError::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "bad-range",
            format!("the file has {length} bytes"),
            "ask for a part that is there",
        );
        let whole = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
        return Ok((whole, beyond).into_response());
    }
    let part = format!("bytes {from}-{}/{length}", length - 1);
    Ok((StatusCode::PARTIAL_CONTENT, octets, [(header::CONTENT_RANGE, part)], body).into_response())
}

/// Where a range begins. Only those to the end are served.
fn range(value: &HeaderValue) -> ApiResult<u64> {
    let text = value.to_str().unwrap_or_default();
    let from = text.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
    from.and_then(|from| from.parse().ok()).ok_or_else(|| {
        let detail = format!("`{text}` is not a range that is served");
        ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "bad-range", detail, "ask for bytes=N-")
    })
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        let (status, kind, hint) = match &error {
            FileError::TooLarge { .. } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "send a smaller one, or raise `store.file` in the site's configuration",
            ),
            FileError::Full { .. } | FileError::Disk { .. } => {
                (StatusCode::INSUFFICIENT_STORAGE, "disk-full", "make room, or ask another site")
            }
            FileError::Depot(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unreachable",
                "look at CouchDB, and send it again",
            ),
            FileError::Broken(_) => (StatusCode::BAD_REQUEST, "bad-file", "send it again, whole"),
        };
        Self::new(status, kind, error.to_string(), hint)
    }
}
