//! One site: how it is reached, and its resources as it sees them.
//!
//! What must stay true: if the site can't be asked, or does not answer soon, what this site knows of it is
//! shown instead, and said to be that.

use std::time::Duration;

use axum::{
    Router,
    extract::{Path, Query},
    response::Response,
    routing::get,
};
use cheops_agent::{
    api::model::{
        Catalogue, Problem, ResourceSummary, Resources, Site, SiteState, Sites, TroubleCount,
    },
    shell,
};
use maud::{Markup, html};
use tokio::time::timeout;

use crate::{
    address::address,
    api::{Answer, Api, Refusal, segment},
    create,
    find::{self, Sought},
    fresh::{Before, Beside, List},
    hooks,
    layout::Page,
    sites::{lasting, page_of, rehearsed, until},
    words::{self, badge, bytes, site_state, span, time},
};

/// How long a site may take to say what it has, besides the round trip to it: people wait for the page.
const PATIENCE: Duration = Duration::from_secs(1);

/// What there is on the page.
const PLACES: [(&str, &str); 3] =
    [("resources", "Resources"), ("create", "Create a resource"), ("hooks", "Hooks")];

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/sites/{name}", get(screen)).route("/part/sites/{name}", get(part))
}

/// All that the page shows.
struct Seen {
    sites: Sites,
    /// Which of them it is about.
    site: Site,
    resources: Resources,
    /// Why the site itself could not be asked.
    refused: Option<Problem>,
    /// How many problems it has, if it could be asked.
    problems: Option<usize>,
    /// Where its own page is, if that is known and another one.
    page: Option<String>,
}

impl Seen {
    async fn look(api: &Api, name: &str, sought: &Sought) -> Answer<Self> {
        let asked = sought.ask("/api/v1/resources", &[("at", name)]);
        let problems = address("/api/v1/problems/count", &[("at", name)]);
        let (sites, catalogue) = tokio::try_join!(
            api.get::<Sites>("/api/v1/sites"),
            api.get::<Catalogue>("/api/v1/catalogue"),
        )?;
        let known = sites.sites.iter().find(|site| site.name == name).cloned();
        let site = known.ok_or_else(|| Refusal(unknown(name, &sites.here)))?;
        let (resources, troubles) = tokio::join!(
            soon(&site, api.get::<Resources>(&asked)),
            soon(&site, api.get::<TroubleCount>(&problems)),
        );
        let (resources, refused) = match resources {
            Ok(resources) => (resources, None),
            // It is the question that is wrong, not the way to the site.
            Err(refusal) if refusal.0.status == 400 => return Err(refusal),
            Err(refusal) => {
                let hearsay = Sought { site: name.to_owned(), ..sought.clone() };
                (api.get(&hearsay.ask("/api/v1/resources", &[])).await?, Some(refusal.0))
            }
        };
        let problems = troubles.ok().map(|troubles| troubles.sites.values().sum());
        let page = page_of(&catalogue, name).map(str::to_owned);
        Ok(Self { sites, site, resources, refused, problems, page })
    }
}

/// What a site says, if it does so soon. This one takes as long as it takes: there is nobody else to ask.
async fn soon<T>(site: &Site, asked: impl Future<Output = Answer<T>>) -> Answer<T> {
    if site.state == SiteState::Here {
        return asked.await;
    }
    let round_trip = site.round_trip_ms.map(|millis| Duration::try_from_secs_f64(millis / 1e3));
    let round_trip = round_trip.and_then(Result::ok).unwrap_or_default();
    match timeout(PATIENCE + round_trip, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(Refusal(silent(&site.name))),
    }
}

fn silent(name: &str) -> Problem {
    Problem {
        kind: "no-answer".to_owned(),
        title: "no answer".to_owned(),
        status: 504,
        detail: format!("it has a link, and did not answer within {} s", PATIENCE.as_secs()),
        hint: format!("look at the agent of `{name}`: it may hang, or have too much to do"),
    }
}

fn unknown(name: &str, here: &str) -> Problem {
    Problem {
        kind: "unknown-site".to_owned(),
        title: "unknown site".to_owned(),
        status: 404,
        detail: format!("no site `{name}` is known at `{here}`"),
        hint: format!(
            "add it to the configuration of `{here}` as a [[peer]], and restart the agent"
        ),
    }
}

async fn screen(
    api: Api,
    Path(name): Path<String>,
    Query(sought): Query<Sought>,
) -> Answer<Markup> {
    let path = format!("/sites/{}", segment(&name));
    let seen = Seen::look(&api, &name, &sought).await?;
    let hooks = match seen.site.state {
        SiteState::Here => hooks::section(&api).await?,
        _ => hooks::elsewhere(&name, seen.page.as_deref()),
    };
    let page = Page {
        who: api.who(),
        title: &format!("Site {name}"),
        here: &seen.sites.here,
        at: "/sites/",
        command: command(&name, &sought),
        content: html! {
            nav.within aria-label="On this page" {
                @for (place, name) in PLACES { a href={ "#" (place) } { (name) } }
            }
            (reach(&seen, false))
            div.actions { (actions(&seen.site, &path, false)) (lasting()) }
            div #done .answer role="status" {}
            h2 #resources { "Resources" }
            (sought.form(&path, None))
            (list(&seen, &sought).render())
            (create::form(&name, &seen.sites))
            (hooks)
        },
    };
    Ok(page.render())
}

/// The command that shows the same.
fn command(name: &str, sought: &Sought) -> String {
    let text = Some(sought.find.trim()).filter(|text| !text.is_empty()).map(shell::last);
    let grep = text.map(|text| format!(" | grep {text}")).unwrap_or_default();
    format!("cheops get resources {}{}{grep}", shell::option("--at", name), sought.options())
}

async fn part(
    api: Api,
    Path(name): Path<String>,
    Query(sought): Query<Sought>,
    Query(before): Query<Before>,
) -> Answer<Response> {
    let path = format!("/sites/{}", segment(&name));
    let seen = Seen::look(&api, &name, &sought).await?;
    let beside = Beside {
        always: Some(reach(&seen, true)),
        changed: Some(actions(&seen.site, &path, true)),
    };
    Ok(list(&seen, &sought).again(&before, &beside))
}

fn list(seen: &Seen, sought: &Sought) -> List {
    let path = format!("/sites/{}", segment(&seen.site.name));
    List {
        path: sought.at(&format!("/part{path}")),
        trigger: find::trigger(),
        content: html! {
            @if seen.site.state == SiteState::Here { (rehearsed(&seen.sites)) }
            @if seen.site.state == SiteState::Paused {
                p.notice.warn data-say {
                    "A cut is being rehearsed: the link between " (seen.sites.here) " and " (seen.site.name)
                    " is paused, " (until(seen.site.paused_until.as_deref()))
                    ". What is accepted meanwhile is sent then."
                }
            }
            @if let Some(why) = &seen.refused {
                div.notice.warn data-say {
                    p {
                        strong { (seen.site.name) " can't be asked: " } (why.detail) ". These are the resources that it shares with "
                        (seen.resources.site) ", as " (seen.resources.site) " sees them; it was last heard of "
                        (time(seen.site.last_seen.as_deref())) "."
                    }
                }
            }
            @if seen.resources.resources.is_empty() {
                (nothing(seen, sought, &path))
            } @else {
                (table(seen))
            }
            (sought.pages(&path, seen.resources.next.as_deref()))
        },
    }
}

/// How the site is reached. It changes all the time, so there is nothing in it to be clicked in a hurry.
fn reach(seen: &Seen, again: bool) -> Markup {
    let site = &seen.site;
    html! {
        dl #reach .facts hx-swap-oob=[again.then_some("true")] {
            div { dt { "State" } dd { (badge(site_state(site.state))) @if let Some(error) = &site.error { p.why { (error) } } } }
            @if site.state != SiteState::Here {
                div { dt { "Round trip" } dd { (site.round_trip_ms.map_or_else(|| "–".to_owned(), span)) } }
                div { dt { "Last seen" } dd { (time(site.last_seen.as_deref())) } }
                div { dt { "Waiting for it" } dd { (site.queue.messages) " (" (bytes(site.queue.bytes)) ")" } }
            }
            (ends(site))
            div { dt { "Not answered" } dd { (words::count(site.unanswered, "operation")) } }
            div { dt { "Problems" } dd {
                @match seen.problems {
                    Some(0) => "none",
                    Some(count) => a #troubles href={ "/problems?site=" (segment(&site.name)) } { (count) },
                    None => "not known: it can't be asked",
                }
            } }
            @if let Some(page) = &seen.page {
                div { dt { "Its own page" } dd { a #own href=(page) { (page) } } }
            }
        }
    }
}

/// What of it ends by itself, and since when it has what does not.
fn ends(site: &Site) -> Markup {
    html! {
        @if let Some(end) = &site.certificate_expires {
            div { dt { "Certificate ends" } dd #certificate { (time(Some(end))) } }
        }
        @if let Some(end) = &site.api_certificate_expires {
            div { dt { "Certificate of the API ends" } dd #api-certificate { (time(Some(end))) } }
        }
        @if let Some(since) = &site.key_since {
            div { dt { "Its key" } dd #key { "since " (time(Some(since))) } }
        }
    }
}

/// What can be done about how it is reached.
fn actions(site: &Site, path: &str, again: bool) -> Markup {
    let here = site.state == SiteState::Here;
    html! {
        div #actions .do hx-swap-oob=[again.then_some("true")] {
            @if !here { button #ping hx-post={ (path) "/ping" } hx-target="#done" { "Ping" } }
            // Whoever has pressed one is at the other then.
            @if site.state == SiteState::Paused {
                button #link hx-post={ (path) "/resume" } hx-target="#done" { "Resume" }
            } @else if here {
                button #cut .warn hx-post={ (path) "/pause" } hx-include="#lasting" hx-target="#done" { "Cut this site off" }
                button #resume-all hx-post={ (path) "/resume" } hx-target="#done" { "Resume all links" }
            } @else {
                button #link .warn hx-post={ (path) "/pause" } hx-include="#lasting" hx-target="#done" { "Pause" }
            }
        }
    }
}

fn nothing(seen: &Seen, sought: &Sought, path: &str) -> Markup {
    html! {
        @if sought.is_all() {
            p.notice {
                "No resource exists at " (seen.site.name) " yet. "
                a href="#create" { "Create one" } " below: it exists on the sites that you name, and each of them runs its commands."
            }
        } @else {
            p.notice { "No resource of " (seen.site.name) " is like that. " a href=(path) { "Show all" } }
        }
    }
}

fn table(seen: &Seen) -> Markup {
    html! {
        table {
            caption { "Resources of " (seen.site.name) ", as " (seen.resources.site) " sees them" }
            thead { tr {
                th scope="col" { "Name" } th scope="col" { "State" } th scope="col" { "Last update" }
                th scope="col" { "Operations" } th scope="col" { "Sites" }
            } }
            tbody { @for resource in &seen.resources.resources { (row(resource)) } }
        }
    }
}

fn row(resource: &ResourceSummary) -> Markup {
    let parted = !resource.parts.is_empty();
    html! {
        tr {
            th scope="row" { a id={ "row-" (resource.id) } href={ "/resources/" (segment(&resource.id)) } { (resource.id) } }
            td {
                (badge(words::state(resource.state)))
                @if resource.deleting { " " (badge(words::DELETING)) }
            }
            td { (time(resource.updated.as_deref())) }
            td { (resource.operation_count) }
            td.names {
                @for (n, site) in resource.sites.iter().take(8).enumerate() {
                    @if n > 0 { (if parted { ", " } else { " & " }) }
                    a href={ "/sites/" (segment(site)) } { (site) }
                }
                @if resource.sites.len() > 8 { " and " (resource.sites.len() - 8) " more" }
                @if parted { " in " (resource.parts.len()) " parts" }
            }
        }
    }
}
