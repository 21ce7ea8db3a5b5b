//! What each route of the API needs: one table.
//!
//! What must stay true: a route that is not in the table is refused to everyone, and a test fails if there is
//! one. Where it depends on what is in the request what somebody may do (an operator's resources, kinds and
//! sites), the table says the least that is needed, and the handler asks again.

use axum::{
    extract::{MatchedPath, Request},
    http::{Method, StatusCode},
};
use cheops_core::trust::people::Asked;

use super::{
    audited,
    error::{ApiError, ApiResult},
    who::{Who, token_required},
};

/// What a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// Nothing: whoever reaches the agent may.
    Open,
    /// To look.
    Look,
    /// To ask for operations. The handler knows for which.
    Operate,
    /// To look after the site.
    Manage,
}

use Right::{Look, Manage, Open, Operate};

const ROUTES: &[(&str, &str, Right)] = &[
    ("GET", "/api/v1/access", Manage),
    ("POST", "/api/v1/access", Manage),
    ("DELETE", "/api/v1/access/{name}", Manage),
    ("GET", "/api/v1/audit", Manage),
    ("GET", "/api/v1/audit/verify", Manage),
    ("GET", "/api/v1/catalogue", Look),
    ("GET", "/api/v1/changes", Look),
    ("GET", "/api/v1/federation", Look),
    ("GET", "/api/v1/federation/held", Look),
    ("DELETE", "/api/v1/federation/held/{id}/{operation}", Operate),
    ("POST", "/api/v1/federation/held/{id}/{operation}/adopt", Operate),
    ("POST", "/api/v1/federation/join", Manage),
    ("POST", "/api/v1/federation/key", Manage),
    ("POST", "/api/v1/federation/tokens", Manage),
    ("POST", "/api/v1/files", Operate),
    ("GET", "/api/v1/files/{content}", Look),
    ("GET", "/api/v1/grid", Look),
    ("GET", "/api/v1/hooks", Look),
    ("POST", "/api/v1/hooks", Manage),
    ("DELETE", "/api/v1/hooks/{name}", Manage),
    ("POST", "/api/v1/hooks/{name}/test", Manage),
    ("POST", "/api/v1/policy/test", Look),
    ("GET", "/api/v1/problems", Look),
    ("GET", "/api/v1/problems/count", Look),
    ("GET", "/api/v1/replicants", Look),
    ("GET", "/api/v1/replicants/{id}", Look),
    ("GET", "/api/v1/resources", Look),
    ("GET", "/api/v1/resources/{id}", Look),
    ("DELETE", "/api/v1/resources/{id}", Operate),
    ("POST", "/api/v1/resources/{id}/operations", Operate),
    ("GET", "/api/v1/resources/{id}/operations/{operation}", Look),
    ("GET", "/api/v1/resources/{id}/operations/{operation}/output", Look),
    // A command of one's own needs more, and the handler asks for it.
    ("POST", "/api/v1/resources/{id}/show", Look),
    ("GET", "/api/v1/session", Open),
    ("POST", "/api/v1/session", Open),
    ("DELETE", "/api/v1/session", Open),
    ("GET", "/api/v1/sites", Look),
    ("DELETE", "/api/v1/sites/{name}", Manage),
    ("POST", "/api/v1/sites/{name}/pause", Manage),
    ("POST", "/api/v1/sites/{name}/ping", Look),
    ("POST", "/api/v1/sites/{name}/resume", Manage),
    ("POST", "/exec/{id}", Operate),
    ("GET", "/healthz", Open),
    ("GET", "/metrics", Look),
    ("GET", "/openapi.json", Look),
    ("GET", "/readyz", Open),
    ("POST", "/show/{id}", Operate),
    ("POST", "/show_local/{id}", Operate),
];

/// What a route needs, if it is one.
pub(super) fn right(method: &Method, path: &str) -> Option<Right> {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let routes = ROUTES.iter();
    routes.filter(|route| (route.0, route.1) == (method, path)).map(|route| route.2).next()
}

/// Whether whoever sends a request has a right to it.
pub(super) fn judge(request: &Request) -> ApiResult<()> {
    let who = request.extensions().get::<Who>().ok_or_else(token_required)?;
    let Some(path) = request.extensions().get::<MatchedPath>() else {
        // There is nothing there, which is not for everyone to know.
        return who.may(&Asked::Look);
    };
    let right = right(request.method(), path.as_str());
    if matches!(right, Some(Operate | Manage)) {
        audited::acts();
    }
    let asked = match right {
        Some(Open) => return Ok(()),
        Some(Look) => Asked::Look,
        Some(Operate) => Asked::Prepare,
        Some(Manage) => Asked::Manage,
        None if is_served(path.as_str()) => return who.may(&Asked::Look),
        None => {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "not-allowed",
                "nobody has said who may do this",
                "report it: this is a fault of the agent",
            ));
        }
    };
    who.may(&asked)
}

/// Whether there is something at this path, with another method: who asks is told so.
fn is_served(path: &str) -> bool {
    ROUTES.iter().any(|route| route.1 == path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_in_the_table_and_nothing_else_is() {
        let document = serde_json::to_value(super::super::routes().split_for_parts().1).unwrap();
        let mut served = BTreeSet::from([("GET".to_owned(), "/openapi.json".to_owned())]);
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                if ["get", "post", "delete", "put", "patch"].contains(&method.as_str()) {
                    served.insert((method.to_uppercase(), path.clone()));
                }
            }
        }
        let table: BTreeSet<(String, String)> =
            ROUTES.iter().map(|(m, p, _)| ((*m).to_owned(), (*p).to_owned())).collect();
        assert_eq!(table.len(), ROUTES.len(), "a route is there twice");
        assert_eq!(table, served);
    }

    #[test]
    fn what_changes_something_is_not_for_those_who_look() {
        // What they may ask for with another method than GET, and why.
        let harmless = [
            "/api/v1/policy/test",
            "/api/v1/sites/{name}/ping",
            "/api/v1/resources/{id}/show",
            "/api/v1/session",
        ];
        // What is about people is not for everyone who looks.
        let private = ["/api/v1/access", "/api/v1/audit", "/api/v1/audit/verify"];
        for (method, path, right) in ROUTES {
            if *method == "GET" {
                assert!(matches!(right, Open | Look) || private.contains(path), "{path}");
            } else if !harmless.contains(path) {
                assert!(matches!(right, Operate | Manage), "{method} {path}");
            }
        }
    }
}
