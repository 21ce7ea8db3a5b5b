//! Problems: everything that needs a person, anywhere, the most urgent first, each with the next step.
//!
//! What must stay true: a site that could not be asked is named, so that no news is not taken for good
//! news.

use axum::{
    Router,
    extract::{Query, State as From},
    response::Response,
    routing::get,
};
use cheops_agent::{
    api::model::{Sites, Trouble, Troubles, Urgency},
    shell,
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    address::address,
    api::{Answer, Api, segment},
    fresh::{Before, Beside, List},
    layout::{self, Page},
    live,
    words::{self, badge, time, urgency},
};

/// How many are on a page.
const PAGE: usize = 100;

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

async fn look(api: &Api) -> Answer<(Sites, Troubles)> {
    tokio::try_join!(api.get("/api/v1/sites"), api.get("/api/v1/problems"))
}

async fn screen(From(api): From<Api>, Query(sought): Query<Sought>) -> Answer<Markup> {
    let (sites, troubles) = look(&api).await?;
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
            (list(&sought, &sites, &troubles).render())
        },
    };
    Ok(page.render())
}

async fn part(
    From(api): From<Api>,
    Query(sought): Query<Sought>,
    Query(before): Query<Before>,
) -> Answer<Response> {
    let (sites, troubles) = look(&api).await?;
    Ok(list(&sought, &sites, &troubles).again(&before, &Beside::default()))
}

fn list(sought: &Sought, sites: &Sites, troubles: &Troubles) -> List {
    let (connected, linked, calmly) = (live::CONNECTED, live::SITES, live::LISTS);
    let trigger = format!("sse:{connected}, sse:{linked}, sse:{calmly}, every 5s");
    let wanted = |trouble: &&Trouble| sought.site.is_empty() || trouble.site == sought.site;
    let found: Vec<&Trouble> = troubles.problems.iter().filter(wanted).collect();
    let from = sought.from.min(found.len());
    let shown = &found[from..found.len().min(from + PAGE)];
    let unasked = |name: &&String| sought.site.is_empty() || **name == sought.site;
    let unasked: Vec<&String> = troubles.not_asked.iter().filter(unasked).collect();
    List {
        path: sought.at("/part/problems", sought.from),
        trigger,
        content: html! {
            @if !unasked.is_empty() { (silent(&unasked, sites)) }
            @if found.is_empty() { (nothing(sought, unasked.is_empty())) } @else { (table(shown, &found)) }
            nav.pages aria-label="Pages of the list" {
                @if from > 0 { (page(&sought.at("/problems", from.saturating_sub(PAGE)), "More urgent")) }
                @if from + shown.len() < found.len() {
                    (page(&sought.at("/problems", from + PAGE), "Less urgent"))
                }
            }
        },
    }
}

fn page(to: &str, text: &str) -> Markup {
    html! {
        a href=(to) hx-get=(to) hx-select="#list" hx-target="#list" hx-swap="outerHTML show:#list:top"
            hx-push-url="true" { (text) }
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

fn table(shown: &[&Trouble], found: &[&Trouble]) -> Markup {
    let count = |wanted: Urgency| found.iter().filter(|trouble| trouble.urgency == wanted).count();
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
            tbody { @for trouble in shown { (row(trouble)) } }
        }
    }
}

fn row(trouble: &Trouble) -> Markup {
    html! {
        tr {
            td { (badge(urgency(trouble.urgency))) }
            td { a href={ "/sites/" (segment(&trouble.site)) } { (trouble.site) } }
            td {
                @match &trouble.resource {
                    Some(id) => a href={ "/resources/" (segment(id)) } { (id) },
                    None => span.none { "–" },
                }
            }
            td.what {
                p { (trouble.text) }
                p.next { strong { "Next: " } (trouble.next) }
                @if let Some(step) = Step::of(trouble) {
                    div.step { a href=(step.path) { (step.text) } (layout::command(&step.command)) }
                }
            }
        }
    }
}

/// The way to the next step: on a page, and as a command.
struct Step {
    path: String,
    text: &'static str,
    command: String,
}

impl Step {
    fn of(trouble: &Trouble) -> Option<Self> {
        let of_site = |text, place, command: &str| Self {
            path: format!("/sites/{}{place}", segment(&trouble.site)),
            text,
            command: command.to_owned(),
        };
        match (trouble.what.as_str(), &trouble.resource) {
            ("hook", _) => {
                Some(of_site("See the hook, and send a sample", "#hooks", "cheops hooks list"))
            }
            ("paused", _) => Some(of_site("See its links", "", "cheops get sites")),
            ("failed" | "diverged" | "needs-decision" | "unknown" | "damaged", Some(id)) => {
                let verb = if trouble.what == "diverged" { "diff" } else { "describe" };
                // One that is made of requests has no form to run something.
                let (place, text) = match trouble.what.as_str() {
                    _ if id.contains('~') => ("do", "See what became of it"),
                    "failed" => ("run", "Run a better one"),
                    _ => ("repair", "Force a repair"),
                };
                let path = format!("/resources/{}#{place}", segment(id));
                Some(Self { path, text, command: format!("cheops {verb} {}", shell::last(id)) })
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

    #[test]
    fn a_problem_leads_to_where_it_is_seen_to() {
        let of = |what: &str, resource: Option<&str>| {
            let (what, resource) = (what.to_owned(), resource.map(str::to_owned));
            Step::of(&Trouble { what, resource, ..trouble("DC 1", 1) })
                .map(|step| (step.path, step.command))
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
        let sites = Sites { here: "a".to_owned(), sites: Vec::new() };
        let problems = (0..250).map(|n| trouble(if n % 5 == 0 { "b" } else { "a" }, n)).collect();
        let troubles = Troubles { problems, not_asked: vec!["c".to_owned()] };
        for (site, from, rows, silent, more) in [
            ("", 0, PAGE, true, true),
            ("", 200, 50, true, false),
            ("", 9_000, 0, true, false),
            ("b", 0, 50, false, false),
            ("c", 0, 0, true, false),
        ] {
            let sought = Sought { site: site.to_owned(), from };
            let page = list(&sought, &sites, &troubles).render().into_string();
            assert_eq!(page.matches("it failed").count(), rows, "{site} {from}");
            assert_eq!(page.contains("could not be asked"), silent, "{site} {from}");
            assert_eq!(page.contains("Less urgent"), more, "{site} {from}");
            assert!(!page.contains("<b>"));
        }
    }
}
