//! What a client is told about the way of its request, and what the agent says when there is no
//! answer.

use std::{borrow::Cow, fmt::Write as _, sync::Arc, time::Duration};

use bytes::Bytes;
use cheops_core::id::SiteId;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER},
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;

use super::{headers::SITE, pool::Answer, read::Named};

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The kind of problem of a request that can be read in two ways.
pub(super) const UNSOUND: &str = "unsound-request";

/// The kind of problem of a request for which there is no room now, and soon may be.
pub(super) const NO_ROOM: &str = "no-room";

/// The kind of problem of a connection that is one too many of its address.
pub(super) const TOO_MANY: &str = "too-many-connections";

/// What must not stand in a header as it is.
const UNSAFE: &AsciiSet = &CONTROLS.add(b'"').add(b'\\');

/// A request that was not carried out, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    pub(super) kind: Cow<'static, str>,
    pub(super) title: String,
    pub(super) status: u16,
    pub(super) detail: String,
    pub(super) hint: String,
    /// The scope of the request, in its canonical text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scope: Option<String>,
    /// What was tried, in order, and what came of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tried: Vec<Tried>,
}

/// An attempt that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Tried {
    pub(super) site: String,
    pub(super) why: String,
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        kind: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) -> Box<Self> {
        let kind = kind.into();
        Box::new(Self {
            title: kind.replace('-', " "),
            kind,
            status: status.as_u16(),
            detail: detail.into(),
            hint: hint.into(),
            scope: None,
            tried: Vec::new(),
        })
    }

    /// Says which scope the request had.
    pub(super) fn about(mut self: Box<Self>, named: Option<&Arc<Named>>) -> Box<Self> {
        self.scope = named.map(|named| named.scope.to_string());
        self
    }

    /// Says what was tried.
    pub(super) fn tried(mut self: Box<Self>, tried: Vec<Tried>) -> Box<Self> {
        self.tried = tried;
        self
    }

    pub(super) fn response(&self, here: &HeaderValue) -> Response<Answer> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut response = Response::new(Answer::from(Bytes::from(text)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(SITE, here.clone());
        // Nobody can tell where the next request would begin (RFC 9112, 6.3).
        if self.kind == UNSOUND {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.kind == NO_ROOM || self.kind == TOO_MANY {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// The name of a site, for the header that says who has answered.
pub(super) fn name(site: &SiteId) -> HeaderValue {
    let name = utf8_percent_encode(site.as_str(), UNSAFE).to_string();
    HeaderValue::from_str(&name).unwrap_or_else(|_| HeaderValue::from_static("?"))
}

/// Says how long each attempt took, after what the application says of itself.
pub(super) fn timed(headers: &mut HeaderMap, legs: &[(Cow<'_, str>, Duration)]) {
    let mut text = String::with_capacity(64);
    for (n, (name, took)) in legs.iter().enumerate() {
        let name = utf8_percent_encode(name, UNSAFE);
        let comma = if n == 0 { "" } else { ", " };
        let (millis, rest) = (took.as_millis(), took.subsec_micros() % 1_000 / 10);
        let _ = write!(text, "{comma}cheops;desc=\"{name}\";dur={millis}.{rest:02}");
    }
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.append(SERVER_TIMING, value);
    }
}
