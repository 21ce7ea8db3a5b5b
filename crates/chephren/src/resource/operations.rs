//! How operations are written: side by side, the block, and what was dropped.
//!
//! What must stay true: the page of a resource has of each command and each output only as much as is read at
//! a glance, since it is made anew whenever something happens; the rest comes when it is asked for. What is not
//! loaded is not said not to be.

use std::collections::BTreeSet;

use axum::{
    body::Body,
    extract::{Path, Query},
    http::Method,
};
use cheops_agent::api::model::{Fate, Operation, Resource, Run, RunStatus};
use futures_util::StreamExt as _;
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    columns::{Cell, Row, Told},
    screen::further,
    seen::{MOST, Seen},
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
                            th scope="row" { (about(id, row.operation, knower(seen, row))) }
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

/// A site that knows the operation of a row.
fn knower<'a>(seen: &'a Seen, row: &Row<'_>) -> &'a str {
    let mut cells = seen.views.iter().zip(&row.cells);
    let knows = cells.find(|(_, cell)| matches!(cell, Cell::Knows(..)));
    knows.map_or(seen.resource.seen_by.as_str(), |(view, _)| view.site.as_str())
}

/// What an operation is. `site` is one that knows it.
fn about(id: &str, operation: &Operation, site: &str) -> Markup {
    html! {
        span.name { (operation.id) } " " span.kind { (operation.kind) }
        @if operation.reset { " " (badge(("ends what came before", "warn"))) }
        @if operation.keep_going { " " (badge(("counts even if it fails", "quiet"))) }
        (command(id, operation, site))
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
fn command(id: &str, operation: &Operation, site: &str) -> Markup {
    let short: String = operation.command.chars().take(SHORT).collect();
    let (name, number) = (segment(id), segment(&operation.id));
    let path = format!("/part/resources/{name}/operations/{number}/command?site={}", segment(site));
    html! {
        @if short.len() == operation.command.len() {
            pre.line { (short) }
        } @else {
            details.fold id=(anchor("command", &[id, &operation.id])) hx-preserve
                hx-get=(path) hx-trigger="toggle once" hx-target="find .printed" {
                summary { code { (short) "…" } }
                div.printed { "…" }
            }
        }
    }
}

/// A site that knows an operation.
#[derive(Debug, Deserialize)]
pub(super) struct Knower {
    site: String,
}

/// All of a long command, as much of it as a page takes.
pub(super) async fn whole(
    api: Api,
    Path((id, operation)): Path<(String, String)>,
    Query(Knower { site }): Query<Knower>,
) -> Answer<Markup> {
    let resource = format!("/api/v1/resources/{}", segment(&id));
    let path = format!("{resource}/operations/{}", segment(&operation));
    match api.get::<Operation>(&path).await {
        Ok(found) => Ok(in_full(&found.command, &path)),
        // It has not arrived here.
        Err(refusal) if refusal.0.kind == "unknown-operation" => {
            let path = format!("{resource}?limit={MOST}&local=true&at={}", segment(&site));
            let there: Resource = api.get(&path).await?;
            let found = there.operations.iter().find(|known| known.id == operation);
            Ok(in_full(&found.ok_or(refusal)?.command, &path))
        }
        Err(refusal) => Err(refusal),
    }
}

/// A command as far as a page takes it. `path` has all of it.
fn in_full(command: &str, path: &str) -> Markup {
    let most = (0..=PRINTED.min(command.len())).rev();
    let end = most.into_iter().find(|&end| command.is_char_boundary(end)).unwrap_or_default();
    html! {
        pre { (command[..end]) }
        @if end < command.len() { p.why { "Only its start. " a href=(path) download { "All of it, as JSON" } } }
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
        @if matches!(run.status, RunStatus::Ko | RunStatus::Denied) {
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
    api: Api,
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
    let older = older_dropped(&seen.resource, &dropped);
    html! {
        section aria-labelledby="dropped" {
            h2 #dropped { "Dropped" }
            @if dropped.is_empty() && older > 0 {
                p.none { "None of the newest " (rows.len()) " was dropped." }
            } @else if dropped.is_empty() {
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
            @if older > 0 {
                p { (count(older, "older operation")) " that " (if older == 1 { "was" } else { "were" })
                    " dropped " (if older == 1 { "is" } else { "are" }) " not shown here. " (further(seen, "dropped")) }
            }
        }
    }
}

/// How many operations are not in the block of the site that answers, besides those that are shown.
fn older_dropped(resource: &Resource, shown: &[&Operation]) -> usize {
    let known = resource.operations.iter().filter(|operation| is_dropped(operation));
    let known: BTreeSet<&str> = known.map(|operation| operation.id.as_str()).collect();
    let shown = shown.iter().filter(|operation| known.contains(operation.id.as_str())).count();
    let about = &resource.summary;
    about.operation_count.saturating_sub(about.block_length).saturating_sub(shown)
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
pub(crate) fn first(command: &str) -> String {
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

    /// What `a` says of a resource with so many operations, so many in the block, of which it tells some:
    /// their commands, and whether they were dropped.
    fn seen(all: usize, block: usize, told: &[(&str, bool)]) -> Seen {
        let operation = |(n, (command, dropped)): (usize, &(&str, bool))| {
            serde_json::json!({
                "id": format!("a:{n}"), "kind": "set", "author": "x", "at": "2026-01-01T00:00:00Z",
                "parents": [], "command": command, "fate": if *dropped { "fallen" } else { "kept" }, "runs": [],
            })
        };
        let operations: Vec<_> = told.iter().enumerate().map(operation).collect();
        let resource: Resource = serde_json::from_value(serde_json::json!({
            "id": "web", "state": "settled", "sites": ["a"], "operation_count": all, "block_length": block,
            "updated": null, "seen_by": "a", "config": {}, "block_ids": [], "operations": operations,
            "version": { "a": 9 }, "by_site": [],
        }))
        .unwrap();
        let told = Told::Knows(Box::new(resource.clone()));
        let views = vec![super::super::columns::View { site: "a".to_owned(), told }];
        let part = super::super::seen::Part::default();
        Seen { here: "a".to_owned(), resource, views, replicant: None, part }
    }

    #[test]
    fn what_was_dropped_before_what_is_shown_is_counted() {
        for (all, block, told, expected, not) in [
            (1, 1, &[("c", false)][..], "Nothing was dropped", "not shown"),
            (2, 1, &[("c", true), ("c", false)], "Send again", "not shown"),
            (9, 9, &[("c", false)], "Nothing was dropped", "not shown"),
            (9, 8, &[("c", false)], "1 older operation that was dropped is", "Nothing was"),
            (9, 6, &[("c", true)], "2 older operations that were dropped are", "None of"),
        ] {
            let seen = seen(all, block, told);
            let rows = super::super::columns::align(&seen.resource, &seen.views);
            let page = dropped(&seen, &rows).into_string();
            assert!(page.contains(expected) && !page.contains(not), "{all} {block}: {page}");
        }
    }

    #[test]
    fn long_commands_are_not_sent_until_they_are_asked_for() {
        let long = "é".repeat(50_000);
        let seen = seen(2, 1, &[(&long, false), (&long, true)]);
        let rows = super::super::columns::align(&seen.resource, &seen.views);
        let all: Vec<&Operation> = rows.iter().map(|row| row.operation).collect();
        let page = [table(&seen, &rows), crate::graph::draw(&all), dropped(&seen, &rows)];
        let page: String = page.into_iter().map(Markup::into_string).collect();
        assert!(page.len() < 10_000, "{} bytes", page.len());
        assert!(page.contains("/part/resources/web/operations/a%3A0/command?site=a"), "{page}");
        let asked = in_full(&long, "/x").into_string();
        assert!(asked.contains("Only its start") && asked.len() < PRINTED + 200);
        assert!(!in_full("é", "/x").into_string().contains("Only"));
    }

    #[test]
    fn what_was_typed_is_shown_and_not_run() {
        let operation: Operation = serde_json::from_value(serde_json::json!({
            "id": "a:1", "kind": "<b>", "author": "<script>x</script>", "at": "2026-01-01T00:00:00Z",
            "parents": [], "command": "<img src=x onerror=y>", "fate": "fallen",
            "receipt": { "by": "b:2", "why": "<i>" }, "runs": [],
        }))
        .unwrap();
        let html =
            about("<u>", &operation, "<u>").into_string() + &again("<u>", &operation).into_string();
        for sign in ["<b>", "<script", "<img", "<i>", "<u>"] {
            assert!(!html.contains(sign), "{sign} in {html}");
        }
    }
}
