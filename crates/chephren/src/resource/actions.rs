//! What can be done about a resource: run an operation, rehearse it, declare a repair, send a dropped
//! operation again, delete.
//!
//! What must stay true: what is asked for is answered where it was asked, a refusal with its reason; a
//! button that is pressed twice sends a dropped operation once.

use std::collections::BTreeSet;

use axum::{
    extract::{Form, Path},
    http::Method,
};
use cheops_agent::{
    api::{
        form::Parts,
        model::{Operation, PlannedStep, Problem, Rehearsal, Run, Submit, Submitted},
    },
    shell,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    seen::Seen,
    words::{end, receipt, run as run_word},
};
use crate::{
    api::{Answer, Api, Refusal, segment},
    form::{self, Filled, line},
    layout,
    words::{badge, count},
};

/// How long an answer waits for the replies of all sites; the page shows what comes later.
const WAIT: &str = "3s";
/// How much of a block is shown.
const BLOCK: usize = 20;

/// What is asked for where there are no files.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    command: String,
    #[serde(default)]
    author: String,
    /// A box that is ticked is there.
    force: Option<String>,
    sure: Option<String>,
}

/// The operation that a form asks for.
fn wanted(filled: Filled) -> Submit {
    Submit {
        command: filled.lines("command"),
        kind: filled.text("kind"),
        force: filled.is_ticked("force"),
        keep_going: filled.is_ticked("keep_going"),
        author: filled.text("author"),
        wait: Some(WAIT.to_owned()),
        files: filled.files,
        ..Submit::default()
    }
}

/// A field that is not left empty.
fn filled(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn operations(id: &str) -> String {
    format!("/api/v1/resources/{}/operations", segment(id))
}

/// Runs an operation on all sites.
pub(super) async fn run(api: Api, Path(id): Path<String>, form: Parts) -> Answer<Markup> {
    let submit = wanted(form::read(&api, form).await?);
    let submitted: Submitted = api.send(Method::POST, &operations(&id), &submit).await?;
    Ok(html! { (answered(&submitted)) (layout::command(&line(&id, &submit))) })
}

/// Says what an operation would do.
pub(super) async fn rehearse(api: Api, Path(id): Path<String>, form: Parts) -> Answer<Markup> {
    let submit = Submit { dry_run: true, ..wanted(form::read(&api, form).await?) };
    let rehearsal: Rehearsal = api.send(Method::POST, &operations(&id), &submit).await?;
    Ok(html! { (would(&rehearsal)) (layout::command(&line(&id, &submit))) })
}

/// Sends a dropped operation again, as a new one.
pub(super) async fn again(
    api: Api,
    Path((id, operation)): Path<(String, String)>,
    Form(wanted): Form<Wanted>,
) -> Answer<Markup> {
    let path = format!("{}/{}", operations(&id), segment(&operation));
    let dropped: Operation = api.get(&path).await?;
    if dropped.request {
        return Err(Refusal(Problem {
            kind: "made-of-requests".to_owned(),
            title: "A request is not sent from here".to_owned(),
            status: 409,
            detail: format!("{operation} is a request of the application: {}", dropped.command),
            hint: "send it to its service again, with its scope".to_owned(),
        }));
    }
    let submit = Submit {
        // Asked for twice, it is sent once.
        key: Some(format!("again {operation}")),
        command: dropped.command,
        kind: Some(dropped.kind),
        files: dropped.files,
        force: dropped.reset,
        keep_going: dropped.keep_going,
        author: filled(&wanted.author),
        wait: Some(WAIT.to_owned()),
        ..Submit::default()
    };
    let submitted: Submitted = api.send(Method::POST, &operations(&id), &submit).await?;
    Ok(html! {
        p { "It is sent again as " strong { (submitted.operation) } "." }
        (answered(&submitted))
        (layout::command(&line(&id, &submit)))
    })
}

/// Deletes the resource.
pub(super) async fn delete(
    api: Api,
    Path(id): Path<String>,
    Form(wanted): Form<Wanted>,
) -> Answer<Markup> {
    if wanted.sure.is_none() {
        return Err(Refusal(Problem {
            kind: "not-sure".to_owned(),
            title: "Nothing was deleted".to_owned(),
            status: 422,
            detail: format!("to delete {id} on all of its sites can’t be undone"),
            hint: "tick the box if you mean it".to_owned(),
        }));
    }
    let line = removal_line(&id, &wanted);
    let options = [
        filled(&wanted.command).map(|command| format!("&command={}", segment(&command))),
        filled(&wanted.author).map(|author| format!("&author={}", segment(&author))),
        wanted.force.map(|_| "&force=true".to_owned()),
    ];
    let options: String = options.into_iter().flatten().collect();
    let path = format!("/api/v1/resources/{}?wait={WAIT}{options}", segment(&id));
    let submitted: Submitted = api.send(Method::DELETE, &path, &()).await?;
    Ok(html! {
        p { "It is being deleted on all of its sites, and is forgotten once all have said so. " a href="/resources" { "All resources" } }
        (answered(&submitted))
        (layout::command(&line))
    })
}

/// The command that deletes it in the same way.
fn removal_line(id: &str, wanted: &Wanted) -> String {
    let command = filled(&wanted.command).map(|command| shell::option("--command", &command) + " ");
    let force = wanted.force.as_ref().map(|_| "--force ").unwrap_or_default();
    format!("cheops delete {}{force}{}", command.unwrap_or_default(), shell::last(id))
}

/// What came of an operation so far.
fn answered(submitted: &Submitted) -> Markup {
    html! {
        p { strong { (submitted.operation) } " is accepted, and reaches all sites of the resource." }
        @if let Some(by) = &submitted.superseded_by {
            p.warn { "Another has won over it: " (by) ". See under “Dropped” why." }
        }
        ul.runs { @for run in &submitted.runs { (reply(run)) } }
    }
}

fn reply(run: &Run) -> Markup {
    let said = end(run.output.as_deref().unwrap_or_default());
    html! {
        li { (run.site) " " (badge(run_word(run.status))) @if !said.is_empty() { " " code { (said) } } }
    }
}

/// What an operation would do.
fn would(rehearsal: &Rehearsal) -> Markup {
    if let Some(known) = &rehearsal.known {
        return html! { p { "The key belongs to " (known) " already: nothing new would be made." } };
    }
    html! {
        p { "Nothing was done. This is what " strong { (rehearsal.operation) } " would do, as far as is known here." }
        @if rehearsal.reset { p.warn { "It would reset: all that it follows would be over." } }
        dl {
            dt { "Block before" } dd { (block(&rehearsal.before)) }
            dt { "Block after" } dd { (block(&rehearsal.after)) }
            @if !rehearsal.dropped.is_empty() {
                dt { "Would leave the block" }
                @for dropped in &rehearsal.dropped { dd { (dropped.operation) ": " (receipt(&dropped.receipt)) } }
            }
            @for (site, steps) in &rehearsal.sites {
                dt { (site) " would run" }
                @if steps.is_empty() { dd { "nothing" } }
                @for step in steps { dd { (planned(step)) } }
            }
        }
    }
}

fn block(ids: &[String]) -> String {
    let skipped = ids.len().saturating_sub(BLOCK);
    let shown = ids[skipped..].join(", ");
    match (ids.len(), skipped) {
        (0, _) => "nothing".to_owned(),
        (_, 0) => shown,
        _ => format!("{} before, then {shown}", count(skipped, "operation")),
    }
}

fn planned(step: &PlannedStep) -> String {
    match step {
        PlannedStep::Run { operation, kind, replaces, again } => {
            let replaces = if *replaces { ", replaces the state" } else { "" };
            let again = if *again { ", again" } else { "" };
            format!("{operation} ({kind}){replaces}{again}")
        }
        PlannedStep::Clear => "the Reset command".to_owned(),
        PlannedStep::Decide => "nothing: a person must decide".to_owned(),
        PlannedStep::More => "and so on".to_owned(),
    }
}

/// The forms. They stand beside what is fetched again, so that what is typed stays.
pub(super) fn forms(seen: &Seen) -> Markup {
    let id = &seen.resource.summary.id;
    let path = format!("/resources/{}", segment(id));
    html! {
        section aria-labelledby="show" {
            h2 #show { "What each site holds" }
            (show(seen, &path))
        }
        section aria-labelledby="do" {
            h2 #do { "Do something" }
            p {
                label for="author" { "Your name, for the log " }
                input #author name="author" autocomplete="nickname" maxlength="200";
            }
            @if let Some(replicant) = &seen.replicant {
                p.notice {
                    "It is made of requests: change, repair or delete it by requests to " (replicant.path)
                    " of " (replicant.service) ", with its scope."
                }
            } @else {
                (kinds(seen))
                (new(&path))
                (repair(&path))
            }
            (removal(seen, &path))
        }
    }
}

/// Fields for a command and its kind. `name` tells forms apart.
fn fields(name: &str) -> Markup {
    html! {
        label for={ (name) "-command" } { "Command, for the shell of each site; " code { "{id}" } " is the resource" }
        textarea id={ (name) "-command" } name="command" rows="2" spellcheck="false" {}
        label for={ (name) "-kind" } { "Kind, in the words of the matrix; empty is " code { "exec" } }
        input id={ (name) "-kind" } name="kind" list="kinds" autocomplete="off" spellcheck="false";
        (form::files(name))
    }
}

fn tick(name: &str, field: &str, text: &str) -> Markup {
    html! {
        label.tick { input type="checkbox" id={ (name) "-" (field) } name=(field); " " (text) }
    }
}

/// The buttons of a form, and where its answers go.
fn buttons(path: &str, name: &str, run: &str) -> Markup {
    html! {
        div.do {
            button type="submit" { (run) }
            button type="button" hx-post={ (path) "/rehearse" } hx-target={ "#" (name) "-answer" } hx-disabled-elt="this" {
                "What would it do?"
            }
        }
        div.answer id={ (name) "-answer" } role="status" {}
    }
}

fn new(path: &str) -> Markup {
    html! {
        details.fold #run {
            summary { "Run a new operation" }
            form hx-post={ (path) "/run" } hx-encoding="multipart/form-data" hx-target="#new-answer" hx-include="#author"
                hx-disabled-elt="find button" {
                (fields("new"))
                (tick("new", "force", "Force: all that came before is over"))
                (tick("new", "keep_going", "Keep going: it counts even if it fails at the site that receives it"))
                (buttons(path, "new", "Run on all sites"))
            }
        }
    }
}

fn repair(path: &str) -> Markup {
    html! {
        details.fold #repair {
            summary { "Force a repair" }
            form hx-post={ (path) "/run" } hx-encoding="multipart/form-data" hx-target="#repair-answer" hx-include="#author"
                hx-disabled-elt="find button" {
                p {
                    "For sites that differ, or that wait for a decision: a command that makes the whole state, "
                    "whatever was there. All that came before is over, and every site runs it."
                }
                input type="hidden" name="force" value="on";
                (fields("repair"))
                (buttons(path, "repair", "Repair all sites"))
            }
        }
    }
}

fn removal(seen: &Seen, path: &str) -> Markup {
    let sites = &seen.resource.summary.sites;
    html! {
        details.fold #delete {
            summary { "Delete" }
            form hx-post={ (path) "/delete" } hx-target="#delete-answer" hx-include="#author" hx-disabled-elt="find button" {
                @if seen.replicant.is_some() {
                    p { "From here it is only forgotten: the copies stay at all sites, and nobody knows that they are one." }
                    input type="hidden" name="force" value="on";
                } @else {
                    label for="delete-command" { "Command that removes it from the application, at each site; empty does nothing there" }
                    textarea #delete-command name="command" rows="2" spellcheck="false" {}
                }
                label.tick {
                    input #delete-sure type="checkbox" name="sure";
                    " I mean it: " strong { (seen.resource.summary.id) } " goes away on " (sites.join(", "))
                }
                div.do { button.bad type="submit" { "Delete on all sites" } }
                div #delete-answer .answer role="status" {}
            }
            (layout::command(&format!("cheops delete {}", shell::last(&seen.resource.summary.id))))
        }
    }
}

fn show(seen: &Seen, path: &str) -> Markup {
    let own = seen.resource.config.as_object().into_iter().flatten();
    let own =
        own.filter(|(name, _)| name.eq_ignore_ascii_case("Show")).find_map(|(_, v)| v.as_str());
    html! {
        form hx-post={ (path) "/show" } hx-target="#show-answer" hx-disabled-elt="find button" {
            label for="show-command" {
                @match own {
                    Some(own) => { "Another command than " code { (own) } ", that changes nothing" }
                    None => { "A command that changes nothing. The configuration has no " code { "Show" } "; with one, this may stay empty" }
                }
            }
            input #show-command name="command" autocomplete="off" spellcheck="false" placeholder=(own.unwrap_or("cat {id}"));
            div.do { button type="submit" { "Show on all sites" } span.htmx-indicator { "asking all sites…" } }
        }
        div #show-answer .answer role="status" {}
    }
}

/// The kinds that the matrix and the operations have.
fn kinds(seen: &Seen) -> Markup {
    let config = seen.resource.config.as_object().into_iter().flatten();
    let matrix = config.filter(|(name, _)| name.eq_ignore_ascii_case("ResolutionMatrix"));
    let entries = matrix.flat_map(|(_, entries)| entries.as_array().into_iter().flatten());
    let named = entries.flat_map(|entry| ["Before", "After"].map(|side| entry.get(side)));
    let named = named.filter_map(|kind| kind.and_then(serde_json::Value::as_str));
    let used = seen.resource.operations.iter().map(|operation| operation.kind.as_str());
    let kinds: BTreeSet<&str> = named.chain(used).collect();
    html! { datalist #kinds { @for kind in kinds { option value=(kind) {} } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_asks_for_what_is_filled_in() {
        for (filled, kind, force) in [
            (&[("command", "a\r\nb")][..], None, false),
            (&[("command", "a\r\nb"), ("kind", "  ")], None, false),
            (&[("command", "a\r\nb"), ("kind", " set "), ("force", "on")], Some("set"), true),
        ] {
            let submit = wanted(Filled::with(filled));
            assert_eq!(submit.command, "a\nb");
            assert_eq!((submit.kind.as_deref(), submit.force), (kind, force));
        }
    }

    #[test]
    fn the_command_to_copy_deletes_in_the_same_way() {
        let wanted = Wanted { command: " rm {id} ".to_owned(), ..Wanted::default() };
        assert_eq!(removal_line("-x", &wanted), "cheops delete --command 'rm {id}' -- -x");
    }

    #[test]
    fn of_a_long_block_the_end_is_shown() {
        let ids = |count: usize| (1..=count).map(|n| n.to_string()).collect::<Vec<_>>();
        for (count, expected) in [(0, "nothing"), (2, "1, 2")] {
            assert_eq!(block(&ids(count)), expected);
        }
        assert!(block(&ids(23)).starts_with("3 operations before, then 4, 5"));
    }
}
