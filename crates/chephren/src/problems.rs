//! Problems: everything that needs a person, anywhere, the most urgent first, each with the next step.
//!
//! What must stay true: a site that could not be asked is named, so that no news is not taken for good
//! news; what several sites say in the same words stands once; and a next step is one that can be taken where
//! it leads, or says where it has to be.

use std::collections::BTreeMap;

use axum::{
    Router,
    extract::{Query, State as From},
    response::Response,
    routing::get,
};
use cheops_agent::{
    api::model::{Catalogue, Sites, Trouble, Troubles, Urgency},
    shell,
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    address::address,
    api::{Answer, Api, segment},
    fresh::{Before, Beside, List, page},
    layout::{self, Page},
    live,
    sites::page_of,
    words::{self, badge, time, urgency},
};

/// How many are on a page.
const PAGE: usize = 100;
/// How many sites are named in a row.
const NAMED: usize = 10;

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/problems", get(screen)).route("/part/problems", get(part))
}

/// Which to show.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Sought {
    site: String,
    /// How many come before the page.
    from: usize,
}

impl Sought {
    fn at(&self, path: &str, from: usize) -> String {
        let from = if from == 0 { String::new() } else { from.to_string() };
        address(path, &[("site", &self.site), ("from", &from)])
    }
}

/// All that the page shows.
struct Seen {
    sites: Sites,
    catalogue: Catalogue,
    troubles: Troubles,
}

async fn look(api: &Api) -> Answer<Seen> {
    let (sites, catalogue, troubles) = tokio::try_join!(
        api.get("/api/v1/sites"),
        api.get("/api/v1/catalogue"),
        api.get("/api/v1/problems")
    )?;
    Ok(Seen { sites, catalogue, troubles })
}

/// A problem, and the sites that tell of it in the same words.
struct Shared<'a> {
    trouble: &'a Trouble,
    sites: Vec<&'a str>,
}

/// Puts together what several sites say in the same words; the order stays.
fn together(troubles: &[Trouble]) -> Vec<Shared<'_>> {
    let mut all: Vec<Shared<'_>> = Vec::new();
    let mut places = BTreeMap::new();
    for trouble in troubles {
        let Trouble { urgency, resource, what, text, next, site } = trouble;
        let place = *places.entry((urgency, resource, what, text, next)).or_insert(all.len());
        match all.get_mut(place) {
            Some(shared) => shared.sites.push(site),
            None => all.push(Shared { trouble, sites: vec![site] }),
        }
    }
    all
}

async fn screen(From(api): From<Api>, Query(sought): Query<Sought>) -> Answer<Markup> {
    let seen = look(&api).await?;
    let sites = &seen.sites;
    let grep = Some(&sought.site).filter(|site| !site.is_empty());
    let grep = grep.map(|site| format!(" | grep -w {}", shell::word(site))).unwrap_or_default();
    let page = Page {
        title: "Problems",
        here: &sites.here,
        at: "/problems",
        command: format!("cheops get problems{grep}"),
        content: html! {
            form.find action="/problems" method="get" hx-get="/problems" hx-select="#list" hx-target="#list"
                hx-swap="outerHTML" hx-select-oob="#command" hx-replace-url="true" hx-trigger="change from:find select, submit" {
                label { "Site "
                    select name="site" {
                        option value="" { "any" }
                        @for site in &sites.sites {
                            option value=(site.name) selected[site.name == sought.site] { (site.name) }
                        }
                    }
                }
                noscript { button { "Show" } }
            }
            (list(&sought, &seen).render())
        },
    };
    Ok(page.render())
}

async fn part(
    From(api): From<Api>,
    Query(sought): Query<Sought>,
    Query(before): Query<Before>,
) -> Answer<Response> {
    Ok(list(&sought, &look(&api).await?).again(&before, &Beside::default()))
}

fn list(sought: &Sought, seen: &Seen) -> List {
    let Seen { sites, troubles, .. } = seen;
    let (connected, linked, calmly) = (live::CONNECTED, live::SITES, live::LISTS);
    let trigger = format!("sse:{connected}, sse:{linked}, sse:{calmly}, every 5s");
    let wanted = |shared: &Shared<'_>| {
        sought.site.is_empty() || shared.sites.contains(&sought.site.as_str())
    };
    let found: Vec<Shared<'_>> = together(&troubles.problems).into_iter().filter(wanted).collect();
    let from = sought.from.min(found.len());
    let shown = &found[from..found.len().min(from + PAGE)];
    let unasked = |name: &&String| sought.site.is_empty() || **name == sought.site;
    let unasked: Vec<&String> = troubles.not_asked.iter().filter(unasked).collect();
    List {
        path: sought.at("/part/problems", sought.from),
        trigger,
        content: html! {
            @if !unasked.is_empty() { (silent(&unasked, sites)) }
            @if found.is_empty() { (nothing(sought, unasked.is_empty())) } @else { (table(shown, &found, seen)) }
            nav.pages aria-label="Pages of the list" {
                @if from > 0 { (page(&sought.at("/problems", from.saturating_sub(PAGE)), "More urgent")) }
                @if from + shown.len() < found.len() {
                    (page(&sought.at("/problems", from + PAGE), "Less urgent"))
                }
            }
        },
    }
}

fn silent(unasked: &[&String], sites: &Sites) -> Markup {
    let seen = |name: &str| {
        let site = sites.sites.iter().find(|site| site.name == name);
        site.and_then(|site| site.last_seen.as_deref())
    };
    html! {
        div.notice.warn data-say {
            p { "These sites could not be asked. They may have problems that are not shown:" }
            ul {
                @for name in unasked.iter().take(20) {
                    li { a href={ "/sites/" (segment(name)) } { (name) } ", last heard of " (time(seen(name))) }
                }
                @if unasked.len() > 20 { li { "and " (unasked.len() - 20) " more" } }
            }
        }
    }
}

fn nothing(sought: &Sought, all_asked: bool) -> Markup {
    html! {
        div.notice {
            p {
                strong { "Nothing needs a person" }
                @if !sought.site.is_empty() { " at " (sought.site) }
                @if !all_asked { ", as far as could be asked" }
                "."
            }
            p {
                "Here you would find operations that have run at one site and failed at another, resources for which "
                "somebody must decide, sites that can't be reached, full disks and clocks that differ."
            }
            @if !sought.site.is_empty() { p { a href="/problems" { "Show all sites" } } }
        }
    }
}

fn table(shown: &[Shared<'_>], found: &[Shared<'_>], seen: &Seen) -> Markup {
    let count =
        |wanted: Urgency| found.iter().filter(|shared| shared.trouble.urgency == wanted).count();
    html! {
        table {
            caption {
                (words::count(found.len(), "problem")) ", the most urgent first: " (count(Urgency::High)) " high, "
                (count(Urgency::Medium)) " medium, " (count(Urgency::Low)) " low"
            }
            thead { tr {
                th scope="col" { "Urgency" } th scope="col" { "Site" } th scope="col" { "Resource" }
                th scope="col" { "What happened, and what to do" }
            } }
            tbody { @for shared in shown { (row(shared, seen)) } }
        }
    }
}

fn row(shared: &Shared<'_>, seen: &Seen) -> Markup {
    let trouble = shared.trouble;
    let step = Step::of(shared, seen);
    let at = step.as_ref().and_then(|step| step.at.as_deref());
    html! {
        tr {
            td { (badge(urgency(trouble.urgency))) }
            td {
                @for (n, site) in shared.sites.iter().take(NAMED).enumerate() {
                    @if n > 0 { ", " }
                    a href={ "/sites/" (segment(site)) } { (site) }
                }
                @if shared.sites.len() > NAMED { " and " (shared.sites.len() - NAMED) " more" }
            }
            td {
                @match &trouble.resource {
                    Some(id) => a href={ "/resources/" (segment(id)) } { (id) },
                    None => span.none { "–" },
                }
            }
            td.what {
                p { (trouble.text) }
                p.next {
                    strong { "Next" @if let Some(site) = at { ", at " (site) } ": " }
                    (trouble.next)
                }
                @if let Some(step) = &step {
                    div.step {
                        @if let Some(path) = &step.path { a href=(path) { (step.text) } }
                        @if let Some(site) = at { span.why { "At " (site) ":" } }
                        (layout::command(&step.command))
                    }
                }
            }
        }
    }
}

/// The way to the next step: on a page, and as a command.
struct Step {
    /// None if it is on the page of a site, and nobody knows where that is.
    path: Option<String>,
    text: &'static str,
    command: String,
    /// The other site at which it has to be taken.
    at: Option<String>,
}

impl Step {
    fn of(shared: &Shared<'_>, seen: &Seen) -> Option<Self> {
        let trouble = shared.trouble;
        let here = seen.sites.here.as_str();
        let site = if shared.sites.contains(&here) { here } else { trouble.site.as_str() };
        let of_site = |text, place, command: &str| {
            let path = format!("/sites/{}{place}", segment(site));
            let page = page_of(&seen.catalogue, site);
            let there = page.map(|page| format!("{}{path}", page.trim_end_matches('/')));
            let (path, at) =
                if site == here { (Some(path), None) } else { (there, Some(site.to_owned())) };
            Self { path, text, command: command.to_owned(), at }
        };
        match (trouble.what.as_str(), &trouble.resource) {
            ("hook", _) => {
                Some(of_site("See the hook, and send a sample", "#hooks", "cheops hooks list"))
            }
            ("paused", _) => Some(of_site("See its links", "", "cheops get sites")),
            (
                "failed" | "denied" | "diverged" | "needs-decision" | "unknown" | "damaged",
                Some(id),
            ) => {
                let verb = if trouble.what == "diverged" { "diff" } else { "describe" };
                // One that is made of requests has no form to run something.
                let (place, text) = match trouble.what.as_str() {
                    _ if id.contains('~') => ("do", "See what became of it"),
                    "failed" => ("run", "Run a better one"),
                    _ => ("repair", "Force a repair"),
                };
                let path = format!("/resources/{}#{place}", segment(id));
                let command = format!("cheops {verb} {}", shell::last(id));
                Some(Self { path: Some(path), text, command, at: None })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(site: &str, n: usize) -> Trouble {
        Trouble {
            urgency: Urgency::Medium,
            site: site.to_owned(),
            resource: Some(format!("r{n}")),
            what: "failed".to_owned(),
            text: "<b>it failed</b>".to_owned(),
            next: "look".to_owned(),
        }
    }

    /// What `here` sees; the page of `there` is known.
    fn seen(here: &str, problems: Vec<Trouble>) -> Seen {
        let catalogue = serde_json::json!({ "here": here, "sites": [
            { "site": "there", "services": [], "round_trips_ms": {}, "page": "http://there:8080/" },
        ] });
        Seen {
            sites: Sites { here: here.to_owned(), sites: Vec::new() },
            catalogue: serde_json::from_value(catalogue).unwrap(),
            troubles: Troubles { problems, not_asked: vec!["c".to_owned()] },
        }
    }

    #[test]
    fn a_step_at_another_site_leads_there_or_says_where() {
        for (site, path, at) in [
            ("a b", Some("/sites/a%20b#hooks"), None),
            ("there", Some("http://there:8080/sites/there#hooks"), Some("there")),
            ("DC 2", None, Some("DC 2")),
        ] {
            let trouble = Trouble { what: "hook".to_owned(), ..trouble(site, 1) };
            let shared = Shared { trouble: &trouble, sites: vec![site] };
            let seen = seen("a b", Vec::new());
            let step = Step::of(&shared, &seen).unwrap();
            assert_eq!((step.path.as_deref(), step.at.as_deref()), (path, at));
            let row = row(&shared, &seen).into_string();
            let said = at.map_or("Next: ".to_owned(), |at| format!("Next, at {at}: "));
            assert!(row.contains(&said), "{row}");
        }
    }

    #[test]
    fn what_several_sites_say_stands_once() {
        let problems = vec![trouble("a", 1), trouble("a", 2), trouble("b", 1), trouble("c", 1)];
        let seen = seen("a", problems);
        for (site, rows) in [("", 2), ("a", 2), ("b", 1), ("c", 1), ("d", 0)] {
            let sought = Sought { site: site.to_owned(), from: 0 };
            let page = list(&sought, &seen).render().into_string();
            assert_eq!(page.matches("it failed").count(), rows, "{site}: {page}");
        }
        let shared = together(&seen.troubles.problems);
        assert_eq!(shared[0].sites, ["a", "b", "c"]);
        let many: Vec<Trouble> = (0..NAMED + 3).map(|n| trouble(&format!("s{n}"), 1)).collect();
        let page = row(&together(&many)[0], &seen).into_string();
        assert!(page.contains("s9</a> and 3 more"), "{page}");
    }

    #[test]
    fn a_problem_leads_to_where_it_is_seen_to() {
        let of = |what: &str, resource: Option<&str>| {
            let (what, resource) = (what.to_owned(), resource.map(str::to_owned));
            let trouble = Trouble { what, resource, ..trouble("DC 1", 1) };
            let shared = Shared { trouble: &trouble, sites: vec!["DC 1"] };
            let step = Step::of(&shared, &seen("DC 1", Vec::new()))?;
            Some((step.path.unwrap(), step.command))
        };
        for (what, resource, path, command) in [
            ("diverged", Some("web"), "/resources/web#repair", "cheops diff web"),
            ("failed", Some("a b"), "/resources/a%20b#run", "cheops describe 'a b'"),
            ("diverged", Some("image~1"), "/resources/image%7E1#do", "cheops diff 'image~1'"),
            ("hook", None, "/sites/DC%201#hooks", "cheops hooks list"),
            ("paused", None, "/sites/DC%201", "cheops get sites"),
        ] {
            assert_eq!(of(what, resource), Some((path.to_owned(), command.to_owned())), "{what}");
        }
        assert_eq!(of("disk", None), None);
    }

    #[test]
    fn a_page_is_bounded_and_says_who_was_not_asked() {
        let problems = (0..250).map(|n| trouble(if n % 5 == 0 { "b" } else { "a" }, n)).collect();
        let seen = seen("a", problems);
        for (site, from, rows, silent, more) in [
            ("", 0, PAGE, true, true),
            ("", 200, 50, true, false),
            ("", 9_000, 0, true, false),
            ("b", 0, 50, false, false),
            ("c", 0, 0, true, false),
        ] {
            let sought = Sought { site: site.to_owned(), from };
            let page = list(&sought, &seen).render().into_string();
            assert_eq!(page.matches("it failed").count(), rows, "{site} {from}");
            assert_eq!(page.contains("could not be asked"), silent, "{site} {from}");
            assert_eq!(page.contains("Less urgent"), more, "{site} {from}");
            assert!(!page.contains("<b>"));
            // The command goes with the page.
            let pages = page.matches("hx-push-url").count();
            assert_eq!(page.matches("hx-select-oob=\"#command\"").count(), pages, "{page}");
            assert_eq!(pages > 0, more || from > 0, "{page}");
        }
    }
}
