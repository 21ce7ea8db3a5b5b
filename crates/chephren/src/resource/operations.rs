//! How operations are written: side by side, the block, and what was dropped.

use axum::{
    body::Body,
    extract::{Path, Query, State},
    http::Method,
};
use cheops_agent::api::model::{Fate, Operation, Resource, Run, RunStatus};
use futures_util::StreamExt as _;
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    columns::{Cell, Row, Told},
    seen::Seen,
    words::{end, fate, run as run_word, site_of, why},
};
use crate::{
    address::anchor,
    api::{Answer, Api, segment},
    words::{badge, bytes, count, span, time},
};

/// How much of a command stands in a table.
const SHORT: usize = 160;
/// How much of an output is shown, in bytes.
const PRINTED: usize = 64 << 10;

/// The operations, a column for each site.
pub(super) fn table(seen: &Seen, rows: &[Row<'_>]) -> Markup {
    if rows.is_empty() {
        return html! { p.none { "No operations yet. Run one below." } };
    }
    let id = &seen.resource.summary.id;
    html! {
        div.scroll tabindex="0" role="region" aria-label="Operations of each site" {
            table.beside {
                caption { "Oldest first; a missing one has not arrived at that site" }
                thead { tr {
                    th scope="col" { "Operation" }
                    @for view in &seen.views { th scope="col" {
                        (view.site)
                        @match &view.told {
                            Told::Knows(_) => {}
                            Told::Unheard => { " " (badge(("has not heard of it", "warn"))) }
                            Told::Silent { .. } => { " " (badge(("can’t be asked", "warn"))) }
                        }
                    } }
                } }
                tbody {
                    @for row in rows {
                        tr id=(anchor("op", &[&row.operation.id])) class=[is_dropped(row.operation).then_some("dropped")] {
                            th scope="row" { (about(id, row.operation)) }
                            @for (view, cell) in seen.views.iter().zip(&row.cells) {
                                (said(id, &view.site, &row.operation.id, *cell))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn is_dropped(operation: &Operation) -> bool {
    operation.fate != Fate::Kept
}

/// What an operation is.
fn about(id: &str, operation: &Operation) -> Markup {
    html! {
        span.name { (operation.id) } " " span.kind { (operation.kind) }
        @if operation.reset { " " (badge(("ends what came before", "warn"))) }
        @if operation.keep_going { " " (badge(("counts even if it fails", "quiet"))) }
        (command(id, operation))
        p.why {
            (time(Some(&operation.at))) " by " (operation.author)
            @if !operation.parents.is_empty() { "; knew of " (operation.parents.join(", ")) }
            @if !operation.files.is_empty() {
                "; brings "
                @for (n, file) in operation.files.iter().enumerate() {
                    @if n > 0 { ", " }
                    (file.name) " (" (bytes(usize::try_from(file.length).unwrap_or(usize::MAX))) ")"
                }
            }
        }
    }
}

/// A command; of a long one its start, and all of it on demand.
fn command(id: &str, operation: &Operation) -> Markup {
    let short: String = operation.command.chars().take(SHORT).collect();
    html! {
        @if short.len() == operation.command.len() {
            pre.line { (short) }
        } @else {
            details.fold id=(anchor("command", &[id, &operation.id])) hx-preserve {
                summary { code { (short) "…" } }
                pre.line { (operation.command) }
            }
        }
    }
}

/// What a site says of an operation.
fn said(id: &str, site: &str, operation: &str, cell: Cell<'_>) -> Markup {
    html! {
        @match cell {
            Cell::Missing => td.missing data-site=(site) {
                (badge(("missing", "bad"))) p.why { "has not arrived" }
            },
            Cell::Past => td data-site=(site) { span.none { "no longer kept" } },
            Cell::Unknown => td.missing data-site=(site) {
                (badge(("no word", "warn"))) p.why { "may be missing there" }
            },
            Cell::Heard(run) => td.heard data-site=(site) {
                (went(run)) p.why { "as it said before" }
                @if let Some(output) = run.output.as_ref().filter(|output| !output.is_empty()) {
                    details.fold id=(anchor("heard", &[id, operation, site, &attempt(run)])) hx-preserve {
                        summary { "The end of its output" }
                        pre.printed { (output) }
                    }
                }
            },
            Cell::Knows(own, run) => td data-site=(site) {
                @if let Some(run) = run { (went(run)) }
                p.why {
                    @match own.place {
                        Some(place) => { "place " (place) }
                        None => { (fate(own.fate).0) }
                    }
                }
                @if let Some(run) = run { (printed(id, operation, run)) }
            },
        }
    }
}

/// How a run went.
fn went(run: &Run) -> Markup {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let took = run.took_ms.map(|took| span(took as f64));
    html! {
        (badge(run_word(run.status)))
        @if let Some(took) = took { span.why { " " (took) } }
        @if let Some(attempt) = run.attempt.filter(|attempt| *attempt > 1) {
            span.why { ", run " (attempt) }
        }
        @if run.status == RunStatus::Ko {
            p.why { (end(run.output.as_deref().unwrap_or_default())) }
        }
    }
}

fn attempt(run: &Run) -> String {
    run.attempt.unwrap_or_default().to_string()
}

/// The way to what a run printed.
fn printed(id: &str, operation: &str, run: &Run) -> Markup {
    if run.attempt.is_none() {
        return html! {};
    }
    if run.output.as_deref().is_some_and(str::is_empty) {
        return html! { p.why { "printed nothing" } };
    }
    let attempt = attempt(run);
    let path = format!(
        "/part/resources/{}/operations/{}/output?site={}&attempt={attempt}",
        segment(id),
        segment(operation),
        segment(&run.site)
    );
    html! {
        details.fold id=(anchor("output", &[id, operation, &run.site, &attempt])) hx-preserve
            hx-get=(path) hx-trigger="toggle once" hx-target="find .printed" {
            summary { "Output" }
            div.printed { "…" }
        }
    }
}

/// Which output.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    site: String,
    attempt: u32,
}

/// What a run printed, as much of it as a page takes.
pub(super) async fn output(
    State(api): State<Api>,
    Path((id, operation)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
) -> Answer<Markup> {
    let path = format!(
        "/api/v1/resources/{}/operations/{}/output?site={}&attempt={}",
        segment(&id),
        segment(&operation),
        segment(&wanted.site),
        wanted.attempt
    );
    let answer = api.call(Method::GET, &path, Body::empty()).await?;
    let mut pieces = answer.into_body().into_data_stream();
    let mut text = Vec::new();
    let mut is_whole = true;
    while let Some(piece) = pieces.next().await {
        let Ok(piece) = piece else {
            is_whole = false;
            break;
        };
        text.extend_from_slice(&piece);
        if text.len() > PRINTED {
            text.truncate(PRINTED);
            is_whole = false;
            break;
        }
    }
    Ok(html! {
        pre { (String::from_utf8_lossy(&text)) }
        @if text.is_empty() { p.why { "It printed nothing." } }
        @if !is_whole { p.why { "Only its start. " a href=(path) download { "All of it" } } }
    })
}

/// The block: what counts, in order.
pub(super) fn block(seen: &Seen) -> Markup {
    let resource = &seen.resource;
    let mut kept: Vec<&Operation> =
        resource.operations.iter().filter(|operation| operation.place.is_some()).collect();
    kept.sort_by_key(|operation| operation.place);
    let older = resource.summary.block_length.saturating_sub(kept.len());
    let others = other_blocks(seen);
    html! {
        section aria-labelledby="block" {
            h2 #block { "The block" }
            p.why { "What counts, in the order in which each site runs it, as " (resource.seen_by) " sees it." }
            @if !others.is_empty() {
                p.notice.warn data-say {
                    (others.join(", ")) (if others.len() == 1 { " has" } else { " have" })
                    " another block at the moment."
                }
            }
            @if kept.is_empty() && older == 0 {
                p.none { "Nothing is in the block." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="The block" { table {
                    caption { (count(resource.summary.block_length, "operation")) }
                    thead { tr {
                        th scope="col" { "Place" } th scope="col" { "Operation" } th scope="col" { "Kind" }
                        th scope="col" { "Command" } th scope="col" { "From" }
                    } }
                    tbody {
                        @if older > 0 { tr { td colspan="5" { (older) " of older operations" } } }
                        @for operation in kept { tr {
                            th scope="row" { (operation.place.unwrap_or_default()) }
                            td { a href={ "#" (anchor("op", &[&operation.id])) } { (operation.id) } }
                            td { (operation.kind) }
                            td { code { (first(&operation.command)) } }
                            td { (site_of(&operation.id)) ", " (operation.author) }
                        } }
                    }
                } }
            }
        }
    }
}

/// The sites whose block is another one.
fn other_blocks(seen: &Seen) -> Vec<&str> {
    let differs = |resource: &Resource| resource.block_ids != seen.resource.block_ids;
    let views = seen.views.iter().filter(|view| match &view.told {
        Told::Knows(resource) => differs(resource),
        Told::Unheard => !seen.resource.block_ids.is_empty(),
        Told::Silent { .. } => false,
    });
    views.map(|view| view.site.as_str()).collect()
}

/// What is not in the block, why, and the way to send it again.
pub(super) fn dropped(seen: &Seen, rows: &[Row<'_>]) -> Markup {
    let id = &seen.resource.summary.id;
    let dropped: Vec<&Operation> =
        rows.iter().map(|row| row.operation).filter(|operation| is_dropped(operation)).collect();
    html! {
        section aria-labelledby="dropped" {
            h2 #dropped { "Dropped" }
            @if dropped.is_empty() {
                p.none { "Nothing was dropped. When operations conflict, those that lose stand here with the reason." }
            } @else {
                ul.dropped { @for operation in &dropped { li {
                    p {
                        a href={ "#" (anchor("op", &[&operation.id])) } { (operation.id) } " "
                        span.kind { (operation.kind) } " " (badge(fate(operation.fate))) " "
                        span.receipt { (why(operation)) }
                    }
                    pre.line { (first(&operation.command)) }
                    (again(id, operation))
                } } }
            }
        }
    }
}

fn again(id: &str, operation: &Operation) -> Markup {
    let answer = anchor("again", &[id, &operation.id]);
    html! {
        @if operation.request {
            p.why { "It is a request of the application: send it to its service again." }
        } @else {
            button hx-post={ "/resources/" (segment(id)) "/operations/" (segment(&operation.id)) "/again" }
                hx-target={ "#" (answer) } hx-include="#author" hx-disabled-elt="this"
                aria-label={ "Send again: " (operation.id) } { "Send again" }
            div.answer id=(answer) role="status" hx-preserve {}
        }
    }
}

/// The first line of a command, as far as it stands in a list.
fn first(command: &str) -> String {
    let line = command.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(SHORT).collect();
    if short.len() < command.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_command_the_start_is_shown() {
        let long = "x".repeat(200);
        for (command, expected) in [
            ("", String::new()),
            ("a b", "a b".to_owned()),
            ("a\nb", "a…".to_owned()),
            (&long, "x".repeat(160) + "…"),
        ] {
            assert_eq!(first(command), expected);
        }
    }

    #[test]
    fn what_was_typed_is_shown_and_not_run() {
        let operation: Operation = serde_json::from_value(serde_json::json!({
            "id": "a:1", "kind": "<b>", "author": "<script>x</script>", "at": "2026-01-01T00:00:00Z",
            "parents": [], "command": "<img src=x onerror=y>", "fate": "fallen",
            "receipt": { "by": "b:2", "why": "<i>" }, "runs": [],
        }))
        .unwrap();
        let html = about("<u>", &operation).into_string() + &again("<u>", &operation).into_string();
        for sign in ["<b>", "<script", "<img", "<i>", "<u>"] {
            assert!(!html.contains(sign), "{sign} in {html}");
        }
    }
}
