//! The relay: what the server at this site asks of that of another passes here, on its way to the link.
//!
//! `http://RELAY/SITE` is to the server's replicator the database of a site. What must stay true: only the server gets
//! through, which knows the token; what it wants to know of documents of a resource that is not at the other site stays
//! unasked, and so unsent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::State};
use cheops_core::{
    id::{ResourceId, SiteId},
    replica::Replica,
};
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
    http::request::Parts,
};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    Shared, answer,
    door::{Asked, LONGEST, PLACE},
    problem,
};
use crate::engine::couchdb::Name;

/// How long the other site may take to answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// What is said to those who ask what is here.
const WELCOME: &str = r#"{"couchdb":"Welcome","version":"3.0.0","vendor":{"name":"Cheops"}}"#;

/// What serves the server at this site.
pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().fallback(pass).with_state(shared)
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response<Body> {
    match request.uri().path() {
        "/" => return answer(StatusCode::OK, WELCOME),
        // So CouchDB learns that there are no cookies, and shows the token each time.
        "/_session" => return problem(StatusCode::NOT_FOUND, "not_found", "there are no sessions"),
        _ => {}
    }
    if !shared.knows(&request) {
        return problem(StatusCode::UNAUTHORIZED, "unauthorized", "the token is not right");
    }
    let (parts, body) = request.into_parts();
    let Some((site, rest)) = aim(parts.uri.path()) else {
        return problem(StatusCode::NOT_FOUND, "not_found", "there is no such site");
    };
    let (asked, rest) = (Asked::read(&parts.method, &rest), rest.clone());
    let response = match asked {
        None => problem(StatusCode::FORBIDDEN, "forbidden", "replication has no need of that"),
        Some(Asked::Missing) => shared.ask_missing(&site, parts, body).await,
        Some(_) => shared.forward(&site, parts, &rest, body).await,
    };
    if response.status().is_server_error() {
        shared.failed(&site);
    }
    response
}

/// The site that a path names, and what is asked of it.
fn aim(path: &str) -> Option<(SiteId, String)> {
    let path = path.strip_prefix('/')?;
    let (site, rest) = path.split_once('/').unwrap_or((path, ""));
    let site = percent_encoding::percent_decode_str(site).decode_utf8().ok()?;
    Some((site.parse().ok()?, rest.to_owned()))
}

impl Shared {
    /// Whether a request has the token. Compared by hashes: how long that takes tells nothing.
    fn knows(&self, request: &Request<Body>) -> bool {
        let said = request.headers().get(AUTHORIZATION).map_or(&[][..], |said| said.as_bytes());
        blake3::hash(said) == blake3::hash(self.entry.as_bytes())
    }

    /// Asks which documents a site lacks, of those that it may have.
    async fn ask_missing(&self, site: &SiteId, parts: Parts, body: Body) -> Response<Body> {
        let Ok(body) = Limited::new(body, LONGEST).collect().await else {
            return problem(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "that are too many");
        };
        let Ok(asked) = serde_json::from_slice::<BTreeMap<String, Value>>(&body.to_bytes()) else {
            return problem(StatusCode::BAD_REQUEST, "bad_request", "these are no revisions");
        };
        let to = site.clone();
        let may = self.node.read(move |replica| allowed(replica, &to, asked)).await;
        let Ok(may) = may else {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the agent is stopping");
        };
        if may.is_empty() {
            return answer(StatusCode::OK, "{}");
        }
        let body = serde_json::to_vec(&may).unwrap_or_default();
        self.forward(site, parts, "_revs_diff", Body::from(body)).await
    }

    /// Asks the agent of a site, and gives its answer as it is.
    async fn forward(&self, site: &SiteId, parts: Parts, rest: &str, body: Body) -> Response<Body> {
        let request = Request::builder()
            .method(parts.method)
            .uri(format!("{PLACE}/{rest}"))
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let unavailable = |why: &str| problem(StatusCode::SERVICE_UNAVAILABLE, "unreachable", why);
        let request = match request {
            Ok(request) => request,
            Err(error) => return unavailable(&error.to_string()),
        };
        match timeout(PATIENCE, self.peers.call(site, request)).await {
            Ok(Ok(response)) => answer(response.status(), response.into_body()),
            Ok(Err(error)) => unavailable(&error.to_string()),
            Err(_) => unavailable("the other site does not answer"),
        }
    }
}

/// The documents among these that a site may have: records of resources that it has in common with this one.
fn allowed(
    replica: &Replica,
    site: &SiteId,
    asked: BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    let may = |name: &str| {
        let resource = Name::read(name).and_then(|name| name.resource.parse::<ResourceId>().ok());
        let resource = resource.and_then(|resource| replica.resource(&resource));
        resource.is_some_and(|resource| resource.sites().contains(site))
    };
    asked.into_iter().filter(|(name, _)| may(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_site() {
        for (path, expected) in [
            ("/site2", Some(("site2", ""))),
            ("/site2/", Some(("site2", ""))),
            ("/site%202/_local/a%3D", Some(("site 2", "_local/a%3D"))),
            ("/", None),
            ("/%ff/", None),
            ("/a:b/", None),
        ] {
            let found = aim(path);
            let found = found.as_ref().map(|(site, rest)| (site.as_str(), rest.as_str()));
            assert_eq!(found, expected, "{path}");
        }
    }
}
