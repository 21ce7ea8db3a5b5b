//! Scope: what a scope says, where it would go right now, and what is left of it during a cut.
//!
//! What must stay true: it is decided by the same function that decides for requests, with what this site
//! knows at the moment; nothing is sent anywhere.

mod cuts;
mod tree;

use std::time::Duration;

use axum::{Router, extract::Query, routing::get};
use cheops_agent::{
    api::model::{Catalogue, SiteState, Sites},
    shell,
};
use cheops_core::{
    id::{ServiceName, SiteId},
    scope::{Catalogue as Known, Place, ScopeError, evaluate, parse},
};
use maud::{Markup, html};
use serde::Deserialize;

use self::cuts::{Cut, Looked, Told};
use crate::{
    address::address,
    api::{Answer, Api},
    layout::Page,
    live,
    words::badge,
};

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/scope", get(screen))
}

/// What was typed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Typed {
    scope: String,
}

/// This site, and what it knows of all.
pub(crate) async fn known(api: &Api) -> Answer<(SiteId, Known)> {
    let (sites, catalogue) = tokio::try_join!(
        api.get::<Sites>("/api/v1/sites"),
        api.get::<Catalogue>("/api/v1/catalogue"),
    )?;
    let here = sites.here.parse().map_err(|error| crate::api::Refusal::strange(&error))?;
    Ok((here, as_known(&sites, &catalogue)))
}

/// What the API says of the sites, as a scope is evaluated with it.
fn as_known(sites: &Sites, catalogue: &Catalogue) -> Known {
    let site = |name: &str| name.parse::<SiteId>().ok();
    let mut known = Known::new(sites.sites.iter().filter_map(|known| site(&known.name)));
    let mut measure = |from: &str, to: &str, millis: f64| {
        let span = Duration::try_from_secs_f64(millis / 1_000.0).ok();
        if let (Some(from), Some(to), Some(span)) = (site(from), site(to), span) {
            known.measure(from, to, span);
        }
    };
    for offer in &catalogue.sites {
        for (to, millis) in &offer.round_trips_ms {
            measure(&offer.site, to, *millis);
        }
    }
    for other in &sites.sites {
        if let Some(millis) = other.round_trip_ms {
            measure(&sites.here, &other.name, millis);
        }
    }
    for other in &sites.sites {
        let reachable = matches!(other.state, SiteState::Here | SiteState::Reachable);
        if let Some(name) = site(&other.name) {
            known.set_reachable(name, reachable);
        }
    }
    known
}

async fn screen(api: Api, Query(typed): Query<Typed>) -> Answer<Markup> {
    let (here, catalogue) = known(&api).await?;
    let text = typed.scope.trim();
    let names: Vec<&str> = catalogue.sites().take(3).map(SiteId::as_str).collect();
    let shown = if text.is_empty() { "image: site1 & site2" } else { text };
    let page = Page {
        who: api.who(),
        title: "Scope",
        here: here.as_str(),
        at: "/scope",
        command: format!(
            "cheops scope {} --here {}",
            shell::word(shown),
            shell::word(here.as_str())
        ),
        content: html! {
            form.scope action="/scope" method="get" hx-get="/scope" hx-select="#answer" hx-target="#answer"
                hx-swap="outerHTML" hx-select-oob="#command" hx-replace-url="true" hx-sync="this:replace"
                hx-trigger="input changed delay:250ms from:find input, submit" {
                label for="scope" { "Scope: where each service of a request runs" }
                input #scope name="scope" value=(typed.scope) spellcheck="false" autocomplete="off" autocapitalize="off"
                    maxlength="4000" placeholder="image: site1 & site2";
                noscript { button { "Explain" } }
            }
            (answer(text, &names, &here, &catalogue))
        },
    };
    Ok(page.render())
}

/// What there is to say of a scope; it is asked for again when links change.
fn answer(text: &str, names: &[&str], here: &SiteId, catalogue: &Known) -> Markup {
    html! {
        div #answer hx-get=(address("/scope", &[("scope", text)])) hx-select="#answer" hx-swap="outerHTML"
            hx-trigger={ "sse:" (live::CONNECTED) ", sse:" (live::SITES) ", every 5s" } {
            @if text.is_empty() {
                (examples(names))
            } @else {
                @match explain(text, here, catalogue) {
                    Ok(explained) => (explained),
                    Err(error) => div data-say { (caret(text, &error)) },
                }
            }
        }
    }
}

fn explain(text: &str, here: &SiteId, catalogue: &Known) -> Result<Markup, ScopeError> {
    let scope = parse(text)?;
    let mut services = Vec::new();
    for (service, place) in scope.services() {
        let target = evaluate(place, catalogue)?;
        let looked = Looked::new(&scope, service, here, catalogue)?;
        let cuts = cuts::cuts(&scope, service, here, catalogue, &target)?;
        services.push(of_service(service, place, catalogue, &looked, &cuts));
    }
    Ok(html! {
        p { "As it is written everywhere: " code { (scope) } }
        @for service in services { (service) }
        p.why { "Every other service runs where the request is." }
    })
}

fn of_service(
    service: &ServiceName,
    place: &Place,
    catalogue: &Known,
    looked: &Looked,
    cuts: &[Cut],
) -> Markup {
    html! {
        section.service {
            h2 { (service) }
            div.tree { (tree::draw(place, catalogue)) }
            table {
                caption { "Where a request that arrives here goes, now and during a cut" }
                thead { tr { th scope="col" { "When" } th scope="col" { "A read" } th scope="col" { "A write" } } }
                tbody {
                    tr.now { th scope="row" { "Right now" } (told(&looked.read)) (told(&looked.write)) }
                    @for cut in cuts {
                        tr {
                            th scope="row" { (cut.what) }
                            (during(&cut.looked.read, &looked.read)) (during(&cut.looked.write, &looked.write))
                        }
                    }
                }
            }
        }
    }
}

fn told(told: &Told) -> Markup {
    html! { td { (badge(told.fares())) " " (told.text) } }
}

/// During a cut only what is different is said again.
fn during(cut: &Told, now: &Told) -> Markup {
    html! {
        @if cut == now { td { (badge(cut.fares())) " " span.none { "the same" } } } @else { (told(cut)) }
    }
}

/// What is wrong with a text, and where in it. Where it stands sees to it that it is read out.
pub(crate) fn caret(text: &str, error: &ScopeError) -> Markup {
    let range = error.span.range();
    let (before, after) = (text.get(..range.start).unwrap_or(text), text.get(range.end..));
    let marked = text.get(range).unwrap_or_default();
    let line = |text: &str| text.replace(['\n', '\r', '\t'], " ");
    let carets = "^".repeat(marked.chars().count().max(1));
    html! {
        div.problem {
            pre.caret tabindex="0" {
                (line(before)) mark { (line(marked)) } (line(after.unwrap_or_default())) "\n"
                (" ".repeat(before.chars().count())) span.bad { (carets) }
            }
            p { strong { (error) } }
            p.next { (error.hint()) }
        }
    }
}

fn examples(names: &[&str]) -> Markup {
    let at = |n: usize| names.get(n).or(names.last()).copied().unwrap_or("site1");
    let (a, b, c) = (at(0), at(1), at(2));
    let all = [
        (format!("image: {b}"), "on one site, from wherever it is asked for"),
        (format!("image: {a} & {b}"), "a copy on each; they agree again after a cut"),
        (format!("image: {a}; {b}"), "the first that works"),
        (format!("image: {a} % {b}"), "one resource with a part on each"),
        (format!("image: around({a}, 50ms)"), "the nearest that works, within a round trip"),
        (format!("compute: {a}, image: {a} & ({b}; {c})"), "each service by itself"),
    ];
    html! {
        div.notice {
            p { "Type a scope to see what it means, or begin with one of these. Nothing is sent anywhere." }
            ul { @for (scope, means) in &all {
                li { a href=(address("/scope", &[("scope", scope)])) { code { (scope) } } " " (means) }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> SiteId {
        name.parse().unwrap()
    }

    #[test]
    fn the_caret_stands_under_what_is_wrong() {
        for (text, expected) in [
            (
                "image: a & & b",
                "image: a &amp; <mark>&amp;</mark> b\n           <span class=\"bad\">^</span>",
            ),
            ("image: é; zz", "image: é; <mark>zz</mark>\n          <span class=\"bad\">^^</span>"),
            ("image", "<mark>"),
        ] {
            let catalogue = Known::new([site("a"), site("b"), site("é")]);
            let error = explain(text, &site("a"), &catalogue).unwrap_err();
            let drawn = caret(text, &error).into_string();
            assert!(drawn.contains(expected), "{drawn}");
        }
    }

    #[test]
    fn what_the_api_says_is_what_a_scope_is_evaluated_with() {
        let sites = serde_json::from_value(serde_json::json!({"here": "a", "sites": [
            {"name": "a", "state": "here", "address": null, "key": "k", "round_trip_ms": null, "last_seen": null,
             "lag_ms": 0, "queue": {"messages": 0, "bytes": 0}, "resources": 0, "unanswered": 0},
            {"name": "b", "state": "paused", "address": null, "key": "k", "round_trip_ms": 8.0, "last_seen": null,
             "lag_ms": 0, "queue": {"messages": 0, "bytes": 0}, "resources": 0, "unanswered": 0},
        ]}));
        let offer = serde_json::from_value(serde_json::json!({"here": "a", "sites": [
            {"site": "b", "services": [], "round_trips_ms": {"c": 3.0}},
        ]}));
        let known = as_known(&sites.unwrap(), &offer.unwrap());
        assert!(known.knows(&site("b")) && !known.knows(&site("c")));
        assert!(known.is_reachable(&site("a")) && !known.is_reachable(&site("b")));
        assert_eq!(known.round_trip(&site("b"), &site("a")), Some(Duration::from_millis(8)));
    }
}
