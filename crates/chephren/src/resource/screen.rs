//! The screen of a resource, and its part that is fetched again when something happens.

use axum::{
    extract::{Path, Query},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use cheops_agent::{
    api::model::{Problem, Replicant, Resource},
    shell,
};
use maud::{Markup, html};

use super::{
    actions, columns, operations,
    seen::{COLUMNS, Part, Seen},
};
use crate::{
    address::anchor,
    api::{Answer, Api, segment},
    graph,
    layout::Page,
    live,
    words::{DELETING, badge, count, state, time},
};

/// What there is on the page.
const PLACES: [(&str, &str); 6] = [
    ("operations", "Operations"),
    ("graph", "Who knew of what"),
    ("block", "The block"),
    ("dropped", "Dropped"),
    ("show", "What each site holds"),
    ("do", "Do something"),
];

/// The status that ends the asking of a part that is asked for again and again, as htmx has it.
const STOP: u16 = 286;

/// The most operations that a drawing is readable for.
const DRAWN: usize = 120;

pub(super) async fn screen(
    api: Api,
    Path(id): Path<String>,
    Query(part): Query<Part>,
) -> Answer<Markup> {
    let seen = Seen::look(&api, &id, part).await?;
    // Of what is not at this site its change feed says nothing.
    let every = if seen.is_here() { "15s" } else { "3s" };
    let page = Page {
        who: api.who(),
        title: &id,
        here: &seen.here,
        at: "/resources/",
        command: format!("cheops describe {}", shell::last(&id)),
        content: html! {
            nav.within aria-label="On this page" {
                @for (place, name) in PLACES { a href={ "#" (place) } { (name) } }
            }
            div #seen hx-get={ "/part/resources/" (segment(&id)) (part.query()) } hx-swap="innerHTML"
                hx-trigger={
                    "sse:" (live::CONNECTED) ", sse:" (live::SITES) ", sse:"
                    (live::resource(&id)) ", every " (every)
                } {
                (content(&seen))
            }
            (actions::forms(&seen))
        },
    };
    Ok(page.render())
}

pub(super) async fn part(
    api: Api,
    Path(id): Path<String>,
    Query(part): Query<Part>,
) -> Answer<Response> {
    match Seen::look(&api, &id, part).await {
        Ok(seen) => Ok(content(&seen).into_response()),
        Err(refusal) if refusal.0.kind == "unknown-resource" => Ok(gone(&id, &refusal.0)),
        Err(refusal) => Err(refusal),
    }
}

/// What stands where a resource was. It is asked for no more until an event tells of it.
fn gone(id: &str, why: &Problem) -> Response {
    let gone = html! {
        p.notice.warn data-say {
            strong { (id) } " is gone: " (why.detail) ". " a href="/resources" { "All resources" }
        }
    };
    (StatusCode::from_u16(STOP).unwrap_or(StatusCode::OK), gone).into_response()
}

fn content(seen: &Seen) -> Markup {
    let rows = columns::align(&seen.resource, &seen.views);
    let all: Vec<_> = rows.iter().map(|row| row.operation).collect();
    let newest = &all[all.len().saturating_sub(DRAWN)..];
    html! {
        (summary(seen))
        @if let Some(replicant) = &seen.replicant { (requests(replicant)) }
        section aria-labelledby="operations" {
            h2 #operations { "Operations, as each site sees them" }
            (pages(seen))
            (operations::table(seen, &rows))
            (older(seen, rows.len()))
        }
        section aria-labelledby="graph" {
            h2 #graph { "Who knew of what" }
            p.why {
                "Time goes to the right. A number is a place in the block; – is over, ↓ fallen, × void."
                @if newest.len() < all.len() { " Only the newest " (DRAWN) " are drawn." }
            }
            @if newest.is_empty() {
                p.none { "No operations yet." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Drawing of the operations" { (graph::draw(newest)) }
            }
        }
        (operations::block(seen))
        (operations::dropped(seen, &rows))
        (config(&seen.resource))
    }
}

fn summary(seen: &Seen) -> Markup {
    let about = &seen.resource.summary;
    html! {
        p.summary {
            (badge(state(about.state)))
            @if about.deleting { " " (badge(DELETING)) }
            " on " (count(about.sites.len(), "site")) ": "
            @for (n, site) in about.sites.iter().enumerate() {
                @if n > 0 { ", " }
                a href={ "/sites/" (segment(site)) } { (site) }
            }
            "; " (count(about.operation_count, "operation")) ", " (about.block_length) " in the block; last update "
            (time(about.updated.as_deref()))
        }
        @if !about.parts.is_empty() {
            p {
                "In " (count(about.parts.len(), "part")) ": "
                @for (n, sites) in about.parts.iter().enumerate() {
                    @if n > 0 { "; " }
                    "part " (n + 1) " at " (sites.join(", "))
                }
                "."
            }
        }
        @if !seen.is_here() {
            p.notice {
                (seen.here) " has no copy of it. What stands here is as " strong { (seen.resource.seen_by) }
                " sees it, asked every few seconds."
            }
        }
        @for (site, why, since) in seen.silent() {
            p.notice.warn data-say {
                strong { (site) } " can’t be asked now: " (why) ". Its last word came " (time(since))
                "; its column is what " (seen.resource.seen_by) " knew then."
            }
        }
    }
}

/// A REST resource: where clients find it, and what each site calls its own.
fn requests(replicant: &Replicant) -> Markup {
    html! {
        section aria-labelledby="replicas" {
            h2 #replicas { "A REST resource of " (replicant.service) }
            p { "Clients find it at " code { (replicant.path) } ". It is made of the application’s own requests." }
            div.scroll tabindex="0" role="region" aria-label="What each site calls its own" { table {
                caption { "What each site calls its own" }
                thead { tr {
                    th scope="col" { "Site" } th scope="col" { "Its id" } th scope="col" { "Created" }
                    th scope="col" { "To do" }
                } }
                tbody { @for replica in &replicant.replicas { tr {
                    th scope="row" {
                        (replica.site)
                        @if let Some(part) = replica.part { " (part " (part) ")" }
                    }
                    td { @if let Some(id) = &replica.id { code { (id) } } @else { span.none { "not known" } } }
                    td {
                        @match (&replica.failed, replica.created) {
                            (Some(failed), _) => (badge((failed, "bad"))),
                            (None, true) => (badge(("yes", "good"))),
                            (None, false) => (badge(("not yet", "busy"))),
                        }
                    }
                    td { @if replica.pending > 0 { (count(replica.pending, "operation")) } @else { "–" } }
                } } }
            } }
        }
    }
}

/// The way to the other sites, where there are more than fit beside each other.
fn pages(seen: &Seen) -> Markup {
    let (count, from) = (seen.resource.summary.sites.len(), seen.part.from());
    if count <= COLUMNS {
        return html! {};
    }
    let until = (from + COLUMNS).min(count);
    html! {
        nav aria-label="Sites beside each other" {
            @if from > 0 { a href=(seen.part.sites(from.saturating_sub(COLUMNS))) { "Sites before" } }
            span { "Sites " (from + 1) " to " (until) " of " (count) }
            @if until < count { a href=(seen.part.sites(until)) { "Sites after" } }
        }
    }
}

/// The way to older operations.
fn older(seen: &Seen, shown: usize) -> Markup {
    let all = seen.resource.summary.operation_count;
    if shown >= all {
        return html! {};
    }
    html! {
        p {
            (all - shown) " older are not shown. " (further(seen, "operations"))
        }
    }
}

/// The way to more operations, at a place of the page; where that shows no more, the command that does.
pub(super) fn further(seen: &Seen, place: &str) -> Markup {
    let about = &seen.resource.summary;
    html! {
        @if seen.part.limit() < super::seen::MOST {
            a href={ (seen.part.more()) "#" (place) } { "Show more" }
        } @else {
            "All of them: " code { "cheops log --limit " (about.operation_count) " " (shell::last(&about.id)) }
        }
    }
}

/// The configuration, folded.
fn config(resource: &Resource) -> Markup {
    let text = serde_json::to_string_pretty(&resource.config).unwrap_or_default();
    // What the reader has opened stays as it is until the configuration itself changes.
    let id = anchor("config", &[&text]);
    html! {
        details.fold id=(id) hx-preserve {
            summary { "Configuration" }
            pre tabindex="0" { (text) }
        }
    }
}
