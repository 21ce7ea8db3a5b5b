//! How this site tells people what happened, and whether that works.
//!
//! What must stay true: what came of a sample stands where it was asked for, and stays there while the rest
//! is fetched again.

use axum::{
    Router,
    extract::{Path, Query},
    http::{Method, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use cheops_agent::api::model::{Hook, HookTested, Hooks};
use maud::{Markup, html};

use crate::{
    address::anchor,
    api::{Answer, Api, segment},
    fresh::{Before, List},
    layout, live,
    words::{badge, span, time},
};

/// What a first hook could be.
const EXAMPLE: &str = r#"[[hook]]
name = "oncall"
on = ["operation.failed", "resource.diverged", "needs.decision", "site.*"]
url = "https://example.org/hooks/cheops""#;

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/part/hooks", get(part)).route("/hooks/{name}/test", post(test))
}

/// The part of a site's page about the hooks of the site that answers.
pub(crate) async fn section(api: &Api) -> Answer<Markup> {
    let hooks: Hooks = api.get("/api/v1/hooks").await?;
    Ok(around(&html! {
        (list(&hooks).render_as("told"))
        (layout::command("cheops hooks list"))
    }))
}

/// The same, for a site that is not the one that answers.
pub(crate) fn elsewhere(site: &str, page: Option<&str>) -> Markup {
    around(&html! {
        p {
            "Each site tells by hooks of its own, and shows them on its own page"
            @match page {
                Some(page) => { ": " a href={ (page.trim_end_matches('/')) "/sites/" (segment(site)) "#hooks" } { "the hooks of " (site) } "." }
                None => "."
            }
        }
    })
}

fn around(content: &Markup) -> Markup {
    html! {
        section aria-labelledby="hooks" {
            h2 #hooks { "Hooks: who is told" }
            (content)
        }
    }
}

async fn part(api: Api, Query(before): Query<Before>) -> Answer<Response> {
    let hooks: Hooks = api.get("/api/v1/hooks").await?;
    let list = list(&hooks);
    if list.is_as(&before) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(list.render_as("told").into_response())
}

fn list(hooks: &Hooks) -> List {
    let (connected, linked, calmly) = (live::CONNECTED, live::SITES, live::LISTS);
    List {
        path: "/part/hooks".to_owned(),
        // How a hook is doing is not told by itself, but something must have happened for it to tell.
        trigger: format!("sse:{connected}, sse:{linked}, sse:{calmly}, every 5s"),
        content: html! {
            @if hooks.hooks.is_empty() { (nothing(hooks)) } @else { (table(hooks)) }
            @if hooks.unfollowed > 0 {
                p.notice.warn {
                    (hooks.unfollowed) " operations were not followed to their end: too many were open at once. Nobody was told how they ended."
                }
            }
        },
    }
}

fn nothing(hooks: &Hooks) -> Markup {
    html! {
        div.notice {
            p {
                (hooks.site) " tells nobody yet when something happens. A hook does: by a web request, a command, an e-mail or "
                "a line in IRC. Add one to the configuration of " (hooks.site) ", and start the agent again:"
            }
            pre { (EXAMPLE) }
        }
    }
}

fn table(hooks: &Hooks) -> Markup {
    html! {
        table {
            caption { "Hooks of " (hooks.site) }
            thead { tr {
                th scope="col" { "Name" } th scope="col" { "Way" } th scope="col" { "Mode" }
                th scope="col" { "State" } th scope="col" { "Waiting" } th scope="col" { "Dropped" }
                th scope="col" { "Last" } th scope="col" { "Do" }
            } }
            tbody { @for hook in &hooks.hooks { (row(hook)) } }
        }
    }
}

fn row(hook: &Hook) -> Markup {
    let tried = anchor("tried", &[&hook.name]);
    html! {
        tr id={ "hook-" (hook.name) } {
            th scope="row" { (hook.name) }
            td { (hook.way) p.why { (hook.to) } }
            td { (hook.mode) @for event in &hook.on { p.why { (event) } } }
            td.names {
                @match &hook.failing_since {
                    None if hook.last_delivery.is_none() => (badge(("nothing told yet", "quiet"))),
                    None => (badge(("works", "good"))),
                    Some(since) => {
                        (badge(("fails", "bad"))) p.why { "since " (time(Some(since))) }
                        @if let Some(error) = &hook.last_error { p.why { (error) } }
                    }
                }
            }
            td { (hook.waiting) }
            td { (hook.dropped) }
            td { (time(hook.last_delivery.as_deref())) }
            // Both stay as they are while all else is made anew, or an answer would be missed.
            td {
                div.do id=(anchor("try", &[&hook.name])) hx-preserve {
                    button id=(anchor("sample", &[&hook.name])) hx-post={ "/hooks/" (segment(&hook.name)) "/test" }
                        hx-target={ "#" (tried) } hx-swap="innerHTML" hx-disabled-elt="this"
                        hx-indicator="closest .do" aria-label={ "Send a sample to " (hook.name) } { "Send a sample" }
                    span.htmx-indicator { "sending…" }
                }
                div.answer id=(tried) role="status" hx-preserve {}
            }
        }
    }
}

/// Sends a sample, and says what came of it.
async fn test(api: Api, Path(name): Path<String>) -> Answer<Markup> {
    let path = format!("/api/v1/hooks/{}/test", segment(&name));
    let tested: HookTested = api.send(Method::POST, &path, &()).await?;
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let took = span(tested.took_ms as f64);
    Ok(html! {
        @match &tested.error {
            None => p.good { "A sample was delivered, in " (took) "." },
            Some(error) => p.bad { "No sample was delivered (" (took) "): " (error) },
        }
        (layout::command(&format!("cheops hooks test {name}")))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hooks(hooks: &serde_json::Value) -> Hooks {
        serde_json::from_value(json!({ "site": "<a>", "hooks": hooks, "unfollowed": 2 })).unwrap()
    }

    #[test]
    fn a_hook_that_fails_says_since_when_and_why() {
        let hook = |more: &[(&str, &str)]| {
            let mut hook = json!({
                "name": "ops", "on": ["site.*"], "mode": "each", "way": "command", "to": "<b>",
                "added": false, "waiting": 3, "delivered": 0, "dropped": 0,
            });
            for (name, value) in more {
                hook[*name] = json!(value);
            }
            hook
        };
        let when = "2026-01-01T00:00:00Z";
        let fails = [("failing_since", when), ("last_error", "<i>no room")];
        for (all, expected) in [
            (json!([]), "[[hook]]"),
            (json!([hook(&[])]), "nothing told yet"),
            (json!([hook(&[("last_delivery", when)])]), "works"),
            (json!([hook(&fails)]), "&lt;i&gt;no room"),
        ] {
            let text = list(&hooks(&all)).render_as("told").into_string();
            assert!(text.contains(expected), "{expected}: {text}");
            assert!(text.contains("2 operations were not followed"), "{text}");
            assert!(["<a>", "<b>", "<i>"].iter().all(|tag| !text.contains(tag)), "{text}");
        }
    }

    #[test]
    fn the_hooks_of_another_site_are_on_its_page() {
        let text = elsewhere("DC 2", Some("http://dc2:8079/")).into_string();
        assert!(text.contains("http://dc2:8079/sites/DC%202#hooks"), "{text}");
        assert!(!elsewhere("DC 2", None).into_string().contains("<a "));
    }
}
