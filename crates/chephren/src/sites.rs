//! The first page: all sites, as this one sees them, and the links between them.
//!
//! What must stay true: it stays readable, and cheap to make anew every few seconds, with a hundred sites.

use axum::{
    Router,
    extract::{Form, Path, State},
    http::Method,
    routing::{get, post},
};
use cheops_agent::api::model::{Catalogue, Pong, Site, SiteState, Sites, TroubleCount};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    api::{Answer, Api, segment},
    drawing::drawing,
    layout::Page,
    live,
    words::{badge, bytes, site_state, span, time},
};

/// How many sites are named where they are only mentioned.
const NAMED: usize = 10;

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(screen))
        .route("/part/sites", get(part))
        .route("/sites/{name}/ping", post(ping))
        .route("/sites/{name}/pause", post(pause))
        .route("/sites/{name}/resume", post(resume))
}

/// All that the page shows.
pub(crate) struct Seen {
    pub(crate) sites: Sites,
    pub(crate) catalogue: Catalogue,
    problems: TroubleCount,
}

impl Seen {
    pub(crate) fn new(sites: Sites, catalogue: Catalogue, problems: TroubleCount) -> Self {
        Self { sites, catalogue, problems }
    }

    async fn look(api: &Api) -> Answer<Self> {
        let (sites, catalogue, problems) = tokio::try_join!(
            api.get::<Sites>("/api/v1/sites"),
            api.get::<Catalogue>("/api/v1/catalogue"),
            api.get::<TroubleCount>("/api/v1/problems/count"),
        )?;
        Ok(Self::new(sites, catalogue, problems))
    }

    /// How many problems a site has, as far as is known.
    pub(crate) fn problems(&self, site: &str) -> usize {
        self.problems.sites.get(site).copied().unwrap_or_default()
    }

    /// Where another site's own page is.
    fn page_of(&self, site: &str) -> Option<&str> {
        let offer = self.catalogue.sites.iter().find(|offer| offer.site == site)?;
        offer.page.as_deref().filter(|_| site != self.sites.here)
    }
}

async fn screen(State(api): State<Api>) -> Answer<Markup> {
    let seen = Seen::look(&api).await?;
    let page = Page {
        title: "Sites",
        here: &seen.sites.here,
        at: "/",
        command: "cheops get sites".to_owned(),
        content: html! {
            div #sites hx-get="/part/sites" hx-swap="innerHTML"
                hx-trigger={ "sse:" (live::CONNECTED) ", sse:" (live::SITES) ", every 2s" } {
                (content(&seen))
            }
            (actions(&seen.sites.here))
        },
    };
    Ok(page.render())
}

async fn part(State(api): State<Api>) -> Answer<Markup> {
    Ok(content(&Seen::look(&api).await?))
}

fn content(seen: &Seen) -> Markup {
    let paused = seen.sites.sites.iter().filter(|site| site.state == SiteState::Paused).count();
    let alone = seen.sites.sites.len() == 1;
    html! {
        @if paused > 0 {
            p.notice.warn role="status" {
                "A cut is being rehearsed: " (paused) " of the links from here are paused. What is "
                "accepted meanwhile is sent when they are resumed."
            }
        }
        @if !seen.problems.not_asked.is_empty() {
            p.notice.warn role="status" {
                "No word from " (names(&seen.problems.not_asked)) ": what is said of their problems is what is known here."
            }
        }
        @if alone {
            p.notice {
                "There is no other site yet. Name them in the configuration as " code { "[[peer]]" }
                " with a name and an address, and start the agent again."
            }
        }
        (drawing(seen))
        (table(seen))
    }
}

/// What can be done with all sites, and what came of what was done last. It is not made anew with the
/// rest, so that it can be read.
fn actions(here: &str) -> Markup {
    let path = format!("/sites/{}", segment(here));
    html! {
        div.actions {
            button hx-post="/sites/all/ping" hx-target="#pinged" { "Ping all" }
            button.warn hx-post={ (path) "/pause" } hx-target="#pinged" { "Cut this site off" }
            button hx-post={ (path) "/resume" } hx-target="#pinged" { "Resume all links" }
        }
        p #pinged role="status" {}
    }
}

fn table(seen: &Seen) -> Markup {
    html! {
        table {
            caption { "Sites, as " (seen.sites.here) " sees them" }
            thead { tr {
                th scope="col" { "Site" } th scope="col" { "State" } th scope="col" { "Round trip" }
                th scope="col" { "Last seen" } th scope="col" { "Behind" } th scope="col" { "Waiting for it" }
                th scope="col" { "Resources" } th scope="col" { "Problems" } th scope="col" { "Do" }
            } }
            tbody { @for site in &seen.sites.sites { (row(site, seen)) } }
        }
    }
}

fn row(site: &Site, seen: &Seen) -> Markup {
    let problems = seen.problems(&site.name);
    let path = format!("/sites/{}", segment(&site.name));
    html! {
        tr id={ "site-" (site.name) } {
            th scope="row" {
                a href=(path) { (site.name) }
                @if let Some(page) = seen.page_of(&site.name) {
                    " " a.elsewhere href=(page) { "its page" span.hidden { " (" (site.name) ")" } }
                }
            }
            td {
                (badge(site_state(site.state)))
                @if let Some(error) = &site.error { p.why { (error) } }
            }
            td { (site.round_trip_ms.map_or_else(|| "–".to_owned(), span)) }
            td { @if site.state == SiteState::Here { "now" } @else { (time(site.last_seen.as_deref())) } }
            td { (behind(site)) }
            td { @if site.queue.messages > 0 { (site.queue.messages) " (" (bytes(site.queue.bytes)) ")" } @else { "–" } }
            td { (site.resources) }
            td { @if problems > 0 { a href={ "/problems?site=" (segment(&site.name)) } { (badge((&problems.to_string(), "bad"))) } } @else { "–" } }
            // They stay as they are while all else is made anew, or a click could get lost.
            td { div.do id={ "do-" (site.name) "-" (site_state(site.state).0) } hx-preserve {
                @if site.state != SiteState::Here {
                    button hx-post={ (path) "/ping" } hx-target="#pinged" { "Ping" }
                    @if site.state == SiteState::Paused {
                        button hx-post={ (path) "/resume" } hx-target="#pinged" { "Resume" }
                    } @else {
                        button.warn hx-post={ (path) "/pause" } hx-target="#pinged" { "Pause" }
                    }
                }
            } }
        }
    }
}

/// How far a site is behind, as far as is known.
fn behind(site: &Site) -> String {
    match (site.unanswered, site.lag_ms) {
        (0, Some(0)) => "–".to_owned(),
        (0, None) => "never met".to_owned(),
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        (waiting, Some(lag)) => format!("{waiting} operations, {}", span(lag as f64)),
        (waiting, None) => format!("{waiting} operations"),
    }
}

/// Some names, and how many there are besides.
fn names(all: &[String]) -> String {
    let (named, more) = all.split_at(all.len().min(NAMED));
    let named = named.join(", ");
    if more.is_empty() { named } else { format!("{named} and {} more", more.len()) }
}

/// Asks one site, or all, whether it is there.
async fn ping(State(api): State<Api>, Path(name): Path<String>) -> Answer<Markup> {
    let names = if name == "all" {
        let sites: Sites = api.get("/api/v1/sites").await?;
        sites.sites.into_iter().map(|site| site.name).filter(|name| *name != sites.here).collect()
    } else {
        vec![name]
    };
    let pings = names.iter().map(async |name| {
        let path = format!("/api/v1/sites/{}/ping", segment(name));
        (name, api.send::<Pong>(Method::POST, &path, &()).await)
    });
    let answers = futures_util::future::join_all(pings).await;
    Ok(html! {
        @for (name, answer) in answers {
            @match answer {
                Ok(pong) => { span.said { (name) " answered after " (span(pong.round_trip_ms)) ". " } }
                Err(refusal) => { span.said.bad { (name) ": " (refusal.0.detail) ". " } }
            }
        }
    })
}

/// For how long.
#[derive(Debug, Deserialize)]
struct Pause {
    #[serde(default)]
    span: Option<String>,
}

/// Cuts the links to a site, or all of this one, to rehearse a cut.
async fn pause(
    State(api): State<Api>,
    Path(name): Path<String>,
    Form(pause): Form<Pause>,
) -> Answer<Markup> {
    let span = pause.span.filter(|span| !span.is_empty());
    let query = span.map(|span| format!("?for={}", segment(&span))).unwrap_or_default();
    api.act(Method::POST, &format!("/api/v1/sites/{}/pause{query}", segment(&name))).await?;
    Ok(
        html! { span.said { "The links to " (name) " are paused. " code { "cheops site resume " (name) } " ends that." } },
    )
}

/// Ends a pause.
async fn resume(State(api): State<Api>, Path(name): Path<String>) -> Answer<Markup> {
    api.act(Method::POST, &format!("/api/v1/sites/{}/resume", segment(&name))).await?;
    Ok(html! { span.said { "The links to " (name) " are being made again." } })
}
