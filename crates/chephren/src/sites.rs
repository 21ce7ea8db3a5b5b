//! The first page: all sites, as this one sees them, and the links between them.

use std::{collections::BTreeMap, f64::consts::TAU};

use axum::{
    Router,
    extract::{Form, Path, State},
    http::Method,
    routing::{get, post},
};
use cheops_agent::{
    api::model::{Catalogue, Pong, Site, SiteState, Sites, Troubles},
    config::is_web_address,
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    address::anchor,
    api::{Answer, Api, segment},
    layout::Page,
    live,
    words::{badge, bytes, site_state, span, time},
};

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(screen))
        .route("/part/sites", get(part))
        .route("/sites/{name}/ping", post(ping))
        .route("/sites/{name}/pause", post(pause))
        .route("/sites/{name}/resume", post(resume))
}

/// All that the page shows.
struct Seen {
    sites: Sites,
    catalogue: Catalogue,
    /// By site.
    problems: BTreeMap<String, usize>,
    not_asked: Vec<String>,
}

impl Seen {
    async fn look(api: &Api) -> Answer<Self> {
        let (sites, catalogue, troubles) = tokio::try_join!(
            api.get::<Sites>("/api/v1/sites"),
            api.get::<Catalogue>("/api/v1/catalogue"),
            api.get::<Troubles>("/api/v1/problems"),
        )?;
        let mut problems = BTreeMap::new();
        for trouble in troubles.problems {
            *problems.entry(trouble.site).or_default() += 1;
        }
        Ok(Self { sites, catalogue, problems, not_asked: troubles.not_asked })
    }

    /// Where another site's own page is.
    fn page_of(&self, site: &str) -> Option<&str> {
        let offer = self.catalogue.sites.iter().find(|offer| offer.site == site)?;
        offer.page.as_deref().filter(|page| site != self.sites.here && is_web_address(page))
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
            p.notice.warn data-say {
                "A cut is being rehearsed: " (paused) " of the links from here are paused. What is "
                "accepted meanwhile is sent when they are resumed."
            }
        }
        @if !seen.not_asked.is_empty() {
            p.notice.warn data-say {
                "No word from " (seen.not_asked.join(", ")) ": what is said of their problems is what is known here."
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
    let problems = seen.problems.get(&site.name).copied().unwrap_or_default();
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
            td { div.do id=(anchor("do", &[&site.name, site_state(site.state).0])) hx-preserve {
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

/// The sites on a circle, with the links that are known between them.
fn drawing(seen: &Seen) -> Markup {
    let names: Vec<&str> = seen.sites.sites.iter().map(|site| site.name.as_str()).collect();
    // More would be a tangle; the table has them all.
    if names.len() < 2 || names.len() > 40 {
        return html! {};
    }
    let places = places(names.len());
    let links = links(seen, &names);
    let label = format!("{} sites, {} links", names.len(), links.len());
    html! {
        svg.drawing viewBox="0 0 600 320" role="img" aria-label=(label) {
            @for link in &links {
                @let ((x1, y1), (x2, y2)) = (places[link.from], places[link.to]);
                line class=(link.colour) x1=(x1) y1=(y1) x2=(x2) y2=(y2) {
                    title { (names[link.from]) " – " (names[link.to]) ": " (link.text) }
                }
            }
            @for (site, (x, y)) in seen.sites.sites.iter().zip(&places) {
                circle class=(site_state(site.state).1) cx=(x) cy=(y) r="11" {}
                text x=(x) y=(y + 28.0) text-anchor="middle" { title { (site.name) } (short(&site.name)) }
            }
        }
    }
}

/// A name as far as there is room for it in the drawing; the table has all of it.
fn short(name: &str) -> String {
    const ROOM: usize = 16;
    let mut short: String = name.chars().take(ROOM).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

struct Link {
    from: usize,
    to: usize,
    colour: &'static str,
    text: String,
}

/// The links: those of this site as they are, and those between others as these have told.
fn links(seen: &Seen, names: &[&str]) -> Vec<Link> {
    let place = |name: &str| names.iter().position(|other| *other == name);
    let mut links = Vec::new();
    let Some(here) = place(&seen.sites.here) else { return links };
    for (n, site) in seen.sites.sites.iter().enumerate().filter(|(n, _)| *n != here) {
        let (word, colour) = site_state(site.state);
        let text = site.round_trip_ms.map_or_else(|| word.to_owned(), span);
        links.push(Link { from: here, to: n, colour, text });
    }
    for offer in &seen.catalogue.sites {
        let Some(from) = place(&offer.site).filter(|from| *from != here) else { continue };
        for (other, millis) in &offer.round_trips_ms {
            if let Some(to) = place(other).filter(|to| *to != here && from < *to) {
                links.push(Link { from, to, colour: "good", text: span(*millis) });
            }
        }
    }
    links
}

/// Places on an ellipse, the first at its top.
#[expect(clippy::cast_precision_loss, reason = "there are few")]
fn places(count: usize) -> Vec<(f64, f64)> {
    let round = |n: f64| (n * 10.0).round() / 10.0;
    // Two stand beside each other.
    let first = if count == 2 { TAU / 2.0 } else { -TAU / 4.0 };
    let angle = |n: usize| TAU * n as f64 / count as f64 + first;
    (0..count)
        .map(|n| (round(300.0 + 240.0 * angle(n).cos()), round(150.0 + 115.0 * angle(n).sin())))
        .collect()
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
