//! Who looks at the pages: a token is typed once, and a cookie says who it is from then on.
//!
//! What must stay true: whoever has to say who it is sees nothing but this page; a token is sent in the body of
//! a form, stands in no address, and is shown nowhere; where somebody is led after is a page of this agent.

use axum::{
    Form, Router,
    body::Body,
    extract::{Query, Request},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use cheops_agent::api::{
    model::{Login, Problem},
    who::Who,
};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;

use crate::{
    address::address,
    api::{Answer, Api, Refusal},
    assets, layout,
};

/// Where it is.
const HERE: &str = "/login";

pub(crate) fn routes() -> Router<Api> {
    Router::new().route(HERE, get(screen).post(enter)).route("/logout", post(leave))
}

#[derive(Debug, Default, Deserialize)]
struct Asked {
    /// Where to go after.
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
struct Typed {
    #[serde(default)]
    token: String,
    #[serde(default)]
    next: String,
}

async fn screen(Query(asked): Query<Asked>) -> Markup {
    page(&asked.next, None)
}

/// Begins a session.
async fn enter(api: Api, Form(typed): Form<Typed>) -> Response {
    let login = Login { token: typed.token };
    let body = serde_json::to_vec(&login).unwrap_or_default();
    match api.call(Method::POST, "/api/v1/session", Body::from(body)).await {
        Ok(answer) => lead(&answer, own(&typed.next)),
        Err(Refusal(why)) => {
            let status = StatusCode::from_u16(why.status).unwrap_or(StatusCode::UNAUTHORIZED);
            (status, page(&typed.next, Some(&why))).into_response()
        }
    }
}

/// Ends it.
async fn leave(api: Api) -> Answer<Response> {
    let answer = api.call(Method::DELETE, "/api/v1/session", Body::empty()).await?;
    Ok(lead(&answer, HERE))
}

/// Leads on, with the cookie that the agent has set.
fn lead(answer: &Response, to: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(header::LOCATION, to);
    for cookie in answer.headers().get_all(header::SET_COOKIE) {
        response.headers_mut().append(header::SET_COOKIE, cookie.clone());
    }
    response
}

/// A page of this agent: what is asked for, or the first.
fn own(next: &str) -> &str {
    let foreign = next.starts_with("//") || next.contains(['\\', '\r', '\n', '\t']);
    if next.starts_with('/') && !foreign && !next.starts_with(HERE) { next } else { "/" }
}

fn page(next: &str, why: Option<&Problem>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Log in · Cheops" }
                link rel="icon" href=(assets::address("mark.svg")) type="image/svg+xml";
                link rel="stylesheet" href=(assets::address("page.css"));
            }
            body {
                header { a.mark href="/" { img src=(assets::address("mark.svg")) alt="" width="24" height="24"; "Cheops" } }
                main #content {
                    h1 { "Log in" }
                    @if let Some(why) = why { (layout::problem(why)) }
                    section {
                        form method="post" action=(HERE) {
                            input type="hidden" name="next" value=(own(next));
                            label for="token" { "Your token" }
                            input #token type="password" name="token" required autocomplete="current-password"
                                spellcheck="false" aria-describedby="token-help";
                            small #token-help { "It begins with cheops_. Whoever looks after this site makes one for you:" }
                            p { button.go { "Log in" } }
                        }
                        (layout::command("cheops access create NAME --role viewer"))
                    }
                }
            }
        }
    }
}

/// Whether this is where somebody logs in.
pub(crate) fn is_at(path: &str) -> bool {
    path == HERE
}

/// Whether somebody has to say first who it is, to see this.
pub(crate) fn is_needed(request: &Request) -> bool {
    let path = request.uri().path();
    let open = is_at(path) || path == "/logout" || path.starts_with("/assets/");
    let who = request.extensions().get::<Who>();
    !open && who.is_some_and(|who| who.role.is_none())
}

/// Leads somebody here, and back after.
pub(crate) fn ask(method: &Method, path: &str, headers: &HeaderMap) -> Response {
    let next = if *method == Method::GET { path } else { "/" };
    let to = address(HERE, &[("next", next)]);
    let to = HeaderValue::from_str(&to).unwrap_or(HeaderValue::from_static(HERE));
    if headers.contains_key("hx-request") || !matches!(*method, Method::GET) {
        // A page that was open when the session ended.
        let to = HeaderValue::from_static(HERE);
        return (StatusCode::UNAUTHORIZED, [("hx-redirect", to)]).into_response();
    }
    (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response()
}

/// Who is logged in, for the head of each page.
pub(crate) fn shown(who: Option<&Who>) -> Markup {
    let known = who.and_then(|who| Some((who, who.role.as_ref()?)));
    html! {
        @if let Some((who, role)) = known && who.token().is_some() {
            form.who method="post" action="/logout" {
                span { "You are " strong { (who.author) } ", " (role) }
                " " button #logout { "Log out" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_led_to_a_page_of_somebody_else() {
        for (next, expected) in [
            ("/resources?a=b", "/resources?a=b"),
            ("", "/"),
            ("https://evil.example", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("/\tx", "/"),
            ("/login", "/"),
            ("javascript:alert(1)", "/"),
        ] {
            assert_eq!(own(next), expected, "{next:?}");
        }
    }

    #[test]
    fn a_page_is_come_back_to_and_a_part_of_one_leads_to_the_login() {
        let mut headers = HeaderMap::new();
        let answer = ask(&Method::GET, "/resources/a?b=c&d", &headers);
        assert_eq!(answer.status(), StatusCode::SEE_OTHER);
        let to = answer.headers().get(header::LOCATION).unwrap().to_str().unwrap();
        assert_eq!(to, "/login?next=%2Fresources%2Fa%3Fb%3Dc%26d");
        headers.insert("hx-request", HeaderValue::from_static("true"));
        let answer = ask(&Method::GET, "/part/sites", &headers);
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(answer.headers().get("hx-redirect").unwrap(), "/login");
    }
}
