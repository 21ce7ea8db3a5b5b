//! Refusals, where they belong: a page that can't be shown is a page that says why and leads on; an action
//! that was refused says so where it was made; and a part that is fetched again and is refused stays as it
//! was, with the reason above it.
//!
//! What must stay true: every refusal of a page, also one of a form or an address that can't be read, has
//! its status, what happened and what to do; and programs get the API's own answers.

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use cheops_agent::api::model::{Problem, Sites};
use maud::html;

use crate::{
    api::Api,
    layout::{self, Page},
    login,
};

/// How much of a reason is read, in bytes.
const REASON: usize = 64 << 10;

/// Who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    /// Somebody who opens a page.
    Reader,
    /// A page that fetches one of its parts, which has a name.
    Part,
    /// Somebody who has asked for something on a page.
    Actor,
}

impl Listener {
    fn of(method: &Method, headers: &HeaderMap) -> Self {
        // A page that is gone back to is fetched by htmx, as a whole.
        if !headers.contains_key("hx-request") || headers.contains_key("hx-history-restore-request")
        {
            Self::Reader
        } else if *method == Method::GET && headers.contains_key("hx-target") {
            Self::Part
        } else {
            Self::Actor
        }
    }
}

/// A refusal, for whoever shows it.
pub(crate) fn refused(why: Problem) -> Response {
    let mut answer = status(&why).into_response();
    answer.extensions_mut().insert(why);
    answer
}

/// Shows what the pages refuse.
pub(crate) async fn show(State(api): State<Api>, request: Request, next: Next) -> Response {
    let listener = Listener::of(request.method(), request.headers());
    let path = request.uri().path().to_owned();
    if login::is_needed(&request) {
        let whole = request.uri().path_and_query().map_or("/", |whole| whole.as_str());
        return login::ask(request.method(), whole, request.headers());
    }
    let api = api.for_who(request.extensions());
    // It says itself what is wrong with a token, where it is typed again.
    let is_login = login::is_at(&path);
    let answer = next.run(request).await;
    if is_login {
        return answer;
    }
    if !answer.status().is_client_error() && !answer.status().is_server_error() {
        return answer;
    }
    let why = reason(answer).await;
    match listener {
        Listener::Reader => page(&api, &path, &why).await,
        Listener::Actor => (status(&why), layout::problem(&why)).into_response(),
        Listener::Part => {
            let aside = [
                ("hx-retarget", "#refused"),
                ("hx-reswap", "innerHTML"),
                ("hx-reselect", ".problem"),
            ];
            (status(&why), aside, layout::problem(&why)).into_response()
        }
    }
}

/// Shows somebody who has lost the way where the pages are. All else that the API answers stays as it is.
pub(crate) async fn lost(State(api): State<Api>, request: Request, next: Next) -> Response {
    let browses = *request.method() == Method::GET && wants_page(request.headers());
    let path = request.uri().path().to_owned();
    if browses && !is_of_programs(&path) && login::is_needed(&request) {
        return login::ask(request.method(), &path, request.headers());
    }
    let api = api.for_who(request.extensions());
    let answer = next.run(request).await;
    if !browses || answer.status() != StatusCode::NOT_FOUND {
        return answer;
    }
    let (head, body) = answer.into_parts();
    let Ok(body) = to_bytes(body, REASON).await else {
        return head.status.into_response();
    };
    match serde_json::from_slice::<Problem>(&body) {
        Ok(why) if why.kind == "unknown-path" => {
            let why = Problem {
                title: "There is no such page".to_owned(),
                hint: "take one of the pages above; /openapi.json has the paths of the API"
                    .to_owned(),
                ..why
            };
            page(&api, &path, &why).await
        }
        _ => Response::from_parts(head, Body::from(body)),
    }
}

/// Whether a path is one of the API.
fn is_of_programs(path: &str) -> bool {
    ["/api/", "/healthz", "/readyz", "/metrics", "/openapi.json"]
        .iter()
        .any(|of_programs| path.starts_with(of_programs))
}

/// Whether a browser asks that is to show a page.
fn wants_page(headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT).map(HeaderValue::as_bytes).unwrap_or_default();
    let mut kinds = accepts.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    kinds.any(|kind| kind.starts_with(b"text/html"))
}

/// Why something was refused: as the API said it, or as well as can be told.
async fn reason(answer: Response) -> Problem {
    let (mut head, body) = answer.into_parts();
    if let Some(why) = head.extensions.remove::<Problem>() {
        return why;
    }
    let said = to_bytes(body, REASON).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    let (detail, hint) = match head.status {
        StatusCode::METHOD_NOT_ALLOWED => (
            "this is done by a button on a page, and is nothing to look at".to_owned(),
            "go back to the page",
        ),
        _ if said.is_empty() => ("there is nothing here".to_owned(), "take one of the pages above"),
        _ => (said, "look at the address, or at what was filled in, and try again"),
    };
    Problem {
        kind: "bad-request".to_owned(),
        title: head.status.canonical_reason().unwrap_or("Refused").to_owned(),
        status: head.status.as_u16(),
        detail,
        hint: hint.to_owned(),
    }
}

fn status(why: &Problem) -> StatusCode {
    StatusCode::from_u16(why.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A page that says why another can't be shown.
async fn page(api: &Api, path: &str, why: &Problem) -> Response {
    let sites = api.get::<Sites>("/api/v1/sites").await;
    let (at, command, back, name) = around(path);
    let page = Page {
        who: api.who(),
        title: &capital(&why.title),
        here: sites.as_ref().map_or("this agent", |sites| &sites.here),
        at,
        command: command.to_owned(),
        content: html! {
            div.problem role="alert" {
                p { (why.detail) }
                p.next { strong { "Next: " } (why.hint) }
            }
            p { a href=(back) { (name) } }
        },
    };
    (status(why), page.render()).into_response()
}

/// Where a path is among the pages, a command that shows more, and the way back: where, and its name.
fn around(path: &str) -> (&'static str, &'static str, &'static str, &'static str) {
    let mut segments = path.split('/').skip(1).filter(|segment| !segment.is_empty());
    match (segments.next(), segments.next()) {
        (Some("resources"), None) => {
            ("/resources", "cheops get grid", "/resources", "All resources")
        }
        (Some("resources"), Some(_)) => {
            ("/resources/", "cheops get resources", "/resources", "All resources")
        }
        (Some("sites"), _) => ("/sites/", "cheops get sites", "/", "All sites"),
        (Some("problems"), _) => ("/problems", "cheops get problems", "/problems", "All problems"),
        (Some("scope"), _) => ("/scope", "cheops scope --help", "/scope", "Another scope"),
        _ => ("", "cheops get sites", "/", "All sites"),
    }
}

/// With a capital letter at its start.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use axum::{Json, Router, routing::get};
    use serde_json::json;
    use tower::ServiceExt as _;

    use super::*;

    /// An agent that knows no resources.
    fn agent() -> Router {
        let sites = || async { Json(json!({ "here": "<site1>", "sites": [] })) };
        let problem = |kind: &'static str| {
            let detail = "there is nothing at <b>";
            let why = json!({ "type": kind, "title": kind, "status": 404, "detail": detail, "hint": "look" });
            async move { (StatusCode::NOT_FOUND, Json(why)) }
        };
        let api = Router::new()
            .route("/api/v1/sites", get(sites))
            .route("/api/v1/resources/{id}", get(move || problem("unknown-resource")))
            .fallback(move || problem("unknown-path"));
        crate::page(api)
    }

    async fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap, String) {
        let mut request = axum::http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = agent().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (head.status.as_u16(), head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_refusal_is_a_page_a_part_of_one_or_the_apis_own() {
        let browser = ("accept", "text/html,*/*;q=0.8");
        let page_asks = ("hx-request", "true");
        let target = ("hx-target", "list");
        let back = ("hx-history-restore-request", "true");
        let (page, part, own) = ("<header>", "class=\"problem\"", "\"type\"");
        for (method, path, headers, status, shows) in [
            ("GET", "/resources/x", &[browser][..], 404, page),
            ("GET", "/resources/x", &[], 404, page),
            ("GET", "/sites/x", &[browser], 404, page),
            ("GET", "/resources/x?limit=many", &[browser], 400, page),
            ("GET", "/resources/x/run", &[browser], 405, page),
            ("GET", "/resources/x", &[browser, page_asks, back], 404, page),
            ("GET", "/part/sites/x", &[page_asks, target], 404, part),
            ("GET", "/problems?from=x", &[page_asks, target], 400, part),
            ("POST", "/sites/x/resume", &[page_asks, target], 404, part),
            ("POST", "/resources/x/delete", &[page_asks], 415, part),
            ("GET", "/nothing", &[browser], 404, page),
            ("GET", "/nothing", &[("accept", "application/json")], 404, own),
            ("GET", "/nothing", &[], 404, own),
            ("POST", "/nothing", &[browser], 404, own),
            ("GET", "/api/v1/resources/x", &[browser], 404, own),
        ] {
            let (answered, headers, body) = ask(method, path, headers).await;
            assert_eq!(answered, status, "{method} {path}: {body}");
            for kind in [page, part, own] {
                let expected = kind == shows || (kind == part && shows == page);
                assert_eq!(body.contains(kind), expected, "{method} {path} {kind}: {body}");
            }
            assert!(!body.contains("<b>") || shows == own, "{body}");
            assert!(!body.contains("<site1>"), "{body}");
            assert!(headers.contains_key("content-security-policy"), "{path}");
        }
    }

    #[tokio::test]
    async fn a_part_that_is_refused_leaves_what_was_there() {
        let fetches = [("hx-request", "true"), ("hx-target", "list")];
        let (_, headers, _) = ask("GET", "/part/sites/x", &fetches).await;
        assert_eq!(headers.get("hx-retarget").unwrap(), "#refused");
        let (_, headers, _) = ask("POST", "/sites/x/resume", &fetches).await;
        assert!(!headers.contains_key("hx-retarget"));
    }

    #[test]
    fn titles_begin_with_a_capital() {
        for (text, expected) in [("", ""), ("unknown site", "Unknown site"), ("été", "Été")] {
            assert_eq!(capital(text), expected);
        }
    }
}
