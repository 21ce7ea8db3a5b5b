//! What all pages have in common: the frame, the way to the other pages, and the rules for the browser.
//!
//! What must stay true: no page runs a script or takes a style that is not one of our files, sends
//! anything elsewhere, or is shown inside of another page. What is read out when it changes stands outside
//! of the parts that are fetched again, or it would be read out each time: notices in these have
//! `data-say`, and the page says them once (`page.js`).

use axum::{
    http::{HeaderName, HeaderValue, header},
    response::Response,
};
use cheops_agent::api::{model::Problem, who::Who};
use cheops_core::trust::people::Role;
use maud::{DOCTYPE, Markup, html};

use crate::{assets::address, login};

/// What the browser may do for a page.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// htmx does without all that the policy forbids.
const HTMX: &str = r#"{"includeIndicatorStyles": false, "allowEval": false, "allowScriptTags": false, "selfRequestsOnly": true, "historyCacheSize": 0}"#;

/// A page.
pub(crate) struct Page<'a> {
    /// Who looks at it.
    pub(crate) who: Option<&'a Who>,
    pub(crate) title: &'a str,
    /// The site that answers.
    pub(crate) here: &'a str,
    /// Which entry of the navigation it is, or which it belongs to.
    pub(crate) at: &'static str,
    /// The command that shows the same.
    pub(crate) command: String,
    pub(crate) content: Markup,
}

/// The main pages: where, what, and where those are that belong to them.
const PLACES: [(&str, &str, &str); 4] = [
    ("/", "Sites", "/sites/"),
    ("/resources", "Resources", "/resources/"),
    ("/problems", "Problems", "/problems/"),
    ("/scope", "Scope", "/scope/"),
];

impl Page<'_> {
    pub(crate) fn render(&self) -> Markup {
        // What somebody may not do is not offered (`page.css`); that it is refused is the API's business.
        let role = self.who.and_then(|who| who.role.as_ref()).map(Role::as_str);
        let named = self.who.is_some_and(|who| who.token().is_some());
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="htmx-config" content=(HTMX);
                    title { (self.title) " · " (self.here) " · Cheops" }
                    link rel="icon" href=(address("mark.svg")) type="image/svg+xml";
                    link rel="stylesheet" href=(address("page.css"));
                    script src=(address("htmx.js")) defer {}
                    script src=(address("sse.js")) defer {}
                    script src=(address("page.js")) defer {}
                }
                body hx-ext="sse" sse-connect="/live" data-role=[role] data-named[named] {
                    a.skip href="#content" { "Skip to the content" }
                    header {
                        a.mark href="/" { img src=(address("mark.svg")) alt="" width="24" height="24"; "Cheops" }
                        nav aria-label="Pages" {
                            @for (path, name, below) in PLACES {
                                @let current = match self.at {
                                    at if at == path => Some("page"),
                                    at if at == below => Some("true"),
                                    _ => None,
                                };
                                a href=(path) aria-current=[current] { (name) }
                            }
                        }
                        p.here { "Seen from " strong { (self.here) } " " span #live role="status" { "connecting" } " " span #as-of {} }
                        (login::shown(self.who))
                    }
                    main #content tabindex="-1" {
                        h1 { (self.title) }
                        div #refused {}
                        (self.content)
                    }
                    footer #command { (command(&self.command)) }
                    div #said .hidden role="status" {}
                }
            }
        }
    }
}

/// The command that does the same, to copy.
pub(crate) fn command(line: &str) -> Markup {
    html! {
        div.command {
            code { (line) }
            button type="button" data-copy=(line) { "Copy" }
        }
    }
}

/// What was refused, where it was asked for.
pub(crate) fn problem(problem: &Problem) -> Markup {
    html! {
        div.problem role="alert" {
            p { strong { (problem.title) } }
            p { (problem.detail) }
            p.next { (problem.hint) }
        }
    }
}

/// Tells the browser the rules.
pub(crate) async fn protect(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With less, a browser does not say of a form where it comes from, and the agent refuses it.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
