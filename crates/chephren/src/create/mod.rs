//! The form that creates a resource.
//!
//! What must stay true: a form that is refused stays as it was typed, since only the answer beside it is
//! replaced; what is typed is looked at while it is, and changes nothing; and nothing is kept here of a
//! file on its way to the agent but the piece that is being passed on.

mod matrix;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Form},
    http::Method,
    routing::post,
};
use cheops_agent::{
    api::{
        form::Parts,
        model::{Problem, Resource, Sites, Submit, Submitted},
    },
    shell,
};
use cheops_core::{
    id::{SiteId, Sites as Names},
    route,
    scope::{Catalogue as Known, ScopeError, parse_place},
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    api::{Answer, Api, Refusal, segment},
    form::{self, Filled},
    layout::{command, problem},
    resource::run_word,
    scope::{caret, known},
    words::badge,
};

/// How long to wait for what the sites reply.
const WAIT: &str = "5s";

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/create", post(create).layer(DefaultBodyLimit::disable()))
        .route("/create/place", post(place))
        .route("/create/matrix", post(matrix::look))
}

/// The form, for somebody who looks at a site.
pub(crate) fn form(site: &str, sites: &Sites) -> Markup {
    let names: Vec<&str> = sites.sites.iter().map(|site| site.name.as_str()).collect();
    let example = names.iter().take(3).copied().collect::<Vec<_>>().join(" & ");
    html! {
        section #create aria-labelledby="create-title" {
            h2 #create-title { "Create a resource" }
            form.create hx-post="/create" hx-encoding="multipart/form-data" hx-target="#created"
                hx-disabled-elt="find .go" hx-disinherit="hx-disabled-elt" autocomplete="off" {
                p {
                    label for="id" { "Name" }
                    input #id name="id" required maxlength="255" pattern="[A-Za-z0-9._~\\-]+" aria-describedby="id-help";
                    small #id-help { "Letters, digits, - . _ ~" }
                }
                p {
                    label for="place" { "Sites" }
                    input #place name="sites" required value=(site) aria-describedby="place-help place-said"
                        hx-post="/create/place" hx-params="sites" hx-encoding="application/x-www-form-urlencoded" hx-sync="this:replace"
                        hx-target="#place-said" hx-trigger="input changed delay:250ms, load";
                    small #place-help { "Where it is to exist: " code { (example) } " has a copy on each, "
                        code { "*" } " is every site" }
                }
                div #place-said aria-live="polite" {}
                p {
                    label for="line" { "Command" }
                    textarea #line name="command" required rows="2" aria-describedby="line-help" {}
                    small #line-help { "Each site runs it in its shell; " code { "{id}" } " is the name, "
                        code { "{file}" } " a file that you add below" }
                }
                p {
                    label for="kind" { "Kind" }
                    input #kind name="kind" placeholder="exec" aria-describedby="kind-help";
                    small #kind-help { "What the command does, in the words of the matrix: " code { "set" } ", " code { "inc" } }
                }
                p { (form::files("create")) }
                p {
                    label for="config" { "Configuration" }
                    textarea #config name="config" rows="6" spellcheck="false" aria-describedby="config-help config-said"
                        hx-post="/create/matrix" hx-params="config" hx-encoding="application/x-www-form-urlencoded" hx-sync="this:replace"
                        hx-target="#config-said" hx-trigger="input changed delay:300ms, load" {}
                    small #config-help { "JSON: which operations win over which, and how to show and reset. It can stay empty" }
                }
                div #config-said aria-live="polite" {}
                p {
                    label for="author" { "Your name, for the log" }
                    input #author name="author" autocomplete="nickname" maxlength="200";
                }
                p { button.go { "Create" } }
                div #created aria-live="polite" {}
            }
            (command(&format!("cheops exec --id NAME --sites {} --type KIND --config FILE --command COMMAND", shell::word(site))))
        }
    }
}

/// What was typed as a place.
#[derive(Debug, Deserialize)]
struct Typed {
    sites: String,
}

/// Says where a resource would exist, while it is typed.
async fn place(api: Api, Form(typed): Form<Typed>) -> Answer<Markup> {
    if typed.sites.trim().is_empty() {
        return Ok(html! {});
    }
    let (here, catalogue) = known(&api).await?;
    Ok(match parts(&typed.sites, &here, &catalogue) {
        Ok(parts) => html! { p.said { (exists(&parts, &catalogue, &here)) } },
        Err(error) => caret(&typed.sites, &error),
    })
}

fn parts(text: &str, here: &SiteId, catalogue: &Known) -> Result<Vec<Names>, ScopeError> {
    route::spread(&parse_place(text)?, here, catalogue)
}

/// Where it will exist, and who of them will get it later.
fn exists(parts: &[Names], catalogue: &Known, here: &SiteId) -> Markup {
    let away = |site: &&SiteId| **site != *here && !catalogue.is_reachable(site);
    let names = |sites: &Names| sites.iter().map(SiteId::as_str).collect::<Vec<_>>().join(", ");
    let later: Vec<&str> =
        parts.iter().flat_map(Names::iter).filter(away).map(SiteId::as_str).collect();
    html! {
        @match parts {
            [sites] if sites.len() == 1 => { "It will exist on " (names(sites)) "." },
            [sites] => { "A copy on each of " (names(sites)) "." },
            parts => {
                "In " (parts.len()) " parts: "
                (parts.iter().map(names).collect::<Vec<_>>().join("; ")) "."
            }
        }
        @if !later.is_empty() {
            span.warn { " Not in reach now, will get it later: " (later.join(", ")) "." }
        }
    }
}

/// What is asked for: the name of the resource, and its first operation.
fn wanted(filled: Filled) -> Answer<(String, Submit)> {
    let id = filled.text("id").ok_or_else(|| {
        let hint = "give it one: letters, digits, - . _ ~";
        form::wrong("no name", "the resource has no name", hint)
    })?;
    let config = filled.text("config").map(|text| {
        cheops_core::json::parse(&text).map_err(|error| {
            form::wrong("bad configuration", &error.to_string(), "see what is said below it")
        })
    });
    let submit = Submit {
        command: filled.lines("command"),
        kind: filled.text("kind"),
        sites: filled.text("sites"),
        config: config.transpose()?,
        wait: Some(WAIT.to_owned()),
        author: filled.text("author"),
        files: filled.files,
        ..Submit::default()
    };
    Ok((id, submit))
}

/// Creates it.
async fn create(api: Api, form: Parts) -> Answer<Markup> {
    let (id, submit) = wanted(form::read(&api, form).await?)?;
    let path = format!("/api/v1/resources/{}", segment(&id));
    // Somebody else's resource is not to be changed by who means to create one.
    match api.get::<Resource>(&format!("{path}?limit=1")).await {
        Ok(found) => return Err(Refusal(exists_already(&id, &found))),
        Err(refusal) if refusal.0.status == 404 => {}
        Err(refusal) => return Err(refusal),
    }
    match api.send::<Submitted>(Method::POST, &format!("{path}/operations"), &submit).await {
        Ok(submitted) => Ok(created(&id, &submit, &submitted)),
        Err(refusal) => Ok(refused(&api, &submit, &refusal.0).await?),
    }
}

fn exists_already(id: &str, found: &Resource) -> Problem {
    Problem {
        kind: "exists".to_owned(),
        title: "The resource exists already".to_owned(),
        status: 409,
        detail: format!("`{id}` is on {}", found.summary.sites.join(", ")),
        hint: format!("take another name, or run an operation on the page of `{id}`"),
    }
}

/// What was refused, with the place in the text if it is the sites.
async fn refused(api: &Api, submit: &Submit, why: &Problem) -> Answer<Markup> {
    let (here, catalogue) = known(api).await?;
    let place = submit.sites.as_deref().unwrap_or_default();
    let wrong = parts(place, &here, &catalogue).err().filter(|_| why.kind == "bad-sites");
    Ok(html! {
        @match wrong {
            Some(error) => (caret(place, &error)),
            None => (problem(why)),
        }
    })
}

fn created(id: &str, submit: &Submit, submitted: &Submitted) -> Markup {
    html! {
        div.notice role="status" {
            p {
                a href={ "/resources/" (segment(id)) } { (id) } " is created, as operation "
                code { (submitted.operation) } "."
            }
            ul {
                @for run in &submitted.runs {
                    li {
                        (run.site) ": " (badge(run_word(run.status)))
                        @if let Some(output) = run.output.as_deref().filter(|output| !output.is_empty()) {
                            pre { (output.chars().take(2_000).collect::<String>()) }
                        }
                    }
                }
            }
            @if let Some(by) = &submitted.superseded_by { p { "Another operation won over it: " code { (by) } } }
            (command(&form::line(id, submit)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_has_the_words_of_the_matrix() {
        let sites = Sites { here: "a".to_owned(), sites: Vec::new() };
        let form = form("a", &sites).into_string();
        assert!(form.contains("<label for=\"kind\">Kind</label>"), "{form}");
    }

    #[test]
    fn what_is_typed_becomes_a_request() {
        let typed = [("id", " web "), ("sites", "a & b "), ("command", "a\r\nb"), ("other", "x")];
        let (id, submit) = wanted(Filled::with(&typed)).unwrap();
        assert_eq!((id.as_str(), submit.command.as_str()), ("web", "a\nb"));
        assert_eq!(
            (submit.sites.as_deref(), submit.kind, submit.config),
            (Some("a & b"), None, None)
        );
        for (typed, expected) in [(("id", " "), "no name"), (("config", "{"), "bad configuration")]
        {
            let refusal = wanted(Filled::with(&[("id", "web"), typed])).unwrap_err();
            assert_eq!(refusal.0.title, expected);
        }
    }
}
