//! The agent's API, asked in the same process.
//!
//! What must stay true: nothing is known here that the API does not say, and it is asked for whoever asks for
//! the page, so that it allows no more and no less.

use std::convert::Infallible;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::FromRequestParts,
    http::{Extensions, Method, Request, Response, header, request::Parts},
    response::{IntoResponse, Response as AnyResponse},
};
use cheops_agent::api::{model::Problem, who::Who};
use serde::{Serialize, de::DeserializeOwned};
use tower::ServiceExt as _;

/// The longest answer that is read whole, in bytes.
const MOST: usize = 32 << 20;

/// A way to the API, for whoever asks for a page.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    router: Router,
    who: Option<Who>,
}

/// What the API did not do, and why.
#[derive(Debug, Clone)]
pub(crate) struct Refusal(pub(crate) Problem);

pub(crate) type Answer<T> = Result<T, Refusal>;

impl Api {
    pub(crate) fn new(router: Router) -> Self {
        Self { router, who: None }
    }

    /// The same, for whoever has sent this.
    pub(crate) fn for_who(&self, extensions: &Extensions) -> Self {
        Self { router: self.router.clone(), who: extensions.get::<Who>().cloned() }
    }

    /// Who asks.
    pub(crate) fn who(&self) -> Option<&Who> {
        self.who.as_ref()
    }

    /// What there is at a path.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Answer<T> {
        read(self.call(Method::GET, path, Body::empty()).await?).await
    }

    /// Asks for something to be done that has no answer but that it is.
    pub(crate) async fn act(&self, method: Method, path: &str) -> Answer<()> {
        self.call(method, path, Body::empty()).await.map(drop)
    }

    /// Asks for something to be done.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Answer<T> {
        let body = serde_json::to_vec(body).map_err(|error| Refusal::strange(&error))?;
        read(self.call(method, path, body.into()).await?).await
    }

    /// An answer as it comes, if it is a good one.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Answer<Response<Body>> {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        let mut request = request.map_err(|error| Refusal::strange(&error))?;
        if let Some(who) = &self.who {
            request.extensions_mut().insert(who.clone());
        }
        let answer = self.router.clone().oneshot(request).await;
        let answer = answer.unwrap_or_else(|never| match never {});
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let body = to_bytes(answer.into_body(), MOST).await.unwrap_or_default();
        Err(Refusal(serde_json::from_slice(&body).unwrap_or_else(|_| Problem {
            kind: "unknown".to_owned(),
            title: status.canonical_reason().unwrap_or("refused").to_owned(),
            status: status.as_u16(),
            detail: String::from_utf8_lossy(&body).into_owned(),
            hint: "look into the log of the agent".to_owned(),
        })))
    }
}

impl FromRequestParts<Api> for Api {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        Ok(api.for_who(&parts.extensions))
    }
}

async fn read<T: DeserializeOwned>(answer: Response<Body>) -> Answer<T> {
    let body =
        to_bytes(answer.into_body(), MOST).await.map_err(|error| Refusal::strange(&error))?;
    serde_json::from_slice(&body).map_err(|error| Refusal::strange(&error))
}

impl Refusal {
    /// An answer that should not be.
    pub(crate) fn strange(error: &dyn std::fmt::Display) -> Self {
        Self(Problem {
            kind: "strange".to_owned(),
            title: "The agent's answer makes no sense".to_owned(),
            status: 500,
            detail: error.to_string(),
            hint: "look into the log of the agent, and report it".to_owned(),
        })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> AnyResponse {
        crate::refuse::refused(self.0)
    }
}

/// A name, as one segment of a path.
pub(crate) fn segment(name: &str) -> impl std::fmt::Display + '_ {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC)
}
