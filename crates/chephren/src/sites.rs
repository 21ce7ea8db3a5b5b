//! The first page: all sites, as this one sees them, and the links between them.
//!
//! What must stay true: it stays readable, and cheap to make anew every few seconds, with a hundred sites.

use axum::{
    Router,
    extract::{Form, Path},
    http::Method,
    routing::{get, post},
};
use cheops_agent::{
    api::model::{Catalogue, Pong, Site, SiteState, Sites, TroubleCount},
    config::is_web_address,
    shell,
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    address::{address, anchor},
    api::{Answer, Api, segment},
    drawing::drawing,
    layout::{self, Page},
    live,
    words::{badge, bytes, count, site_state, span, time},
};

/// How long a pause can be told to last: for the API, and for people.
const LASTING: [(&str, &str); 4] =
    [("", "until resumed"), ("1m", "1 minute"), ("10m", "10 minutes"), ("1h", "1 hour")];

/// How many sites are named where they are only mentioned.
const NAMED: usize = 10;

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/", get(screen))
        .route("/part/sites", get(part))
        .route("/ping", post(ping_all))
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
}

/// Where another site's own page is. It says so itself, and might say anything.
pub(crate) fn page_of<'a>(catalogue: &'a Catalogue, site: &str) -> Option<&'a str> {
    let others = catalogue.sites.iter().filter(|offer| offer.site != catalogue.here);
    let page = others.filter(|offer| offer.site == site).find_map(|offer| offer.page.as_deref());
    page.filter(|page| is_web_address(page))
}

async fn screen(api: Api) -> Answer<Markup> {
    let seen = Seen::look(&api).await?;
    let page = Page {
        who: api.who(),
        title: "Sites",
        here: &seen.sites.here,
        at: "/",
        command: "cheops get sites".to_owned(),
        content: html! {
            (actions(&seen.sites.here))
            div #sites hx-get="/part/sites" hx-swap="innerHTML"
                hx-trigger={ "sse:" (live::CONNECTED) ", sse:" (live::SITES) ", every 2s" } {
                (content(&seen))
            }
        },
    };
    Ok(page.render())
}

async fn part(api: Api) -> Answer<Markup> {
    Ok(content(&Seen::look(&api).await?))
}

fn content(seen: &Seen) -> Markup {
    let alone = seen.sites.sites.len() == 1;
    html! {
        (rehearsed(&seen.sites))
        @if !seen.problems.not_asked.is_empty() {
            p.notice.warn data-say {
                "No word from " (names(&seen.problems.not_asked)) ": what is said of them is what was known here when they were last seen."
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

/// That a cut is being rehearsed here, and until when.
pub(crate) fn rehearsed(sites: &Sites) -> Markup {
    let paused: Vec<&Site> =
        sites.sites.iter().filter(|site| site.state == SiteState::Paused).collect();
    // Without an end of its own, one of them outlasts all that have one.
    let ends: Option<Vec<&str>> = paused.iter().map(|site| site.paused_until.as_deref()).collect();
    let last = ends.and_then(|ends| ends.into_iter().max());
    html! {
        @if !paused.is_empty() {
            p.notice.warn data-say {
                "A cut is being rehearsed: " (paused.len()) " of the " (sites.sites.len().saturating_sub(1)) " links from here "
                (if paused.len() == 1 { "is" } else { "are" }) " paused, " (until(last))
                ". What is accepted meanwhile is sent then."
            }
        }
    }
}

/// Until when a pause lasts.
pub(crate) fn until(end: Option<&str>) -> Markup {
    html! { "until " @match end { Some(end) => (time(Some(end))), None => "resumed" } }
}

/// What can be done with all sites, and what came of what was done last. It is not made anew with the
/// rest, so that it can be read.
fn actions(here: &str) -> Markup {
    let path = format!("/sites/{}", segment(here));
    html! {
        div.actions {
            button #ping-all hx-post="/ping" hx-target="#done" { "Ping all" }
            button #cut .warn hx-post={ (path) "/pause" } hx-include="#lasting" hx-target="#done" { "Cut this site off" }
            button #resume-all hx-post={ (path) "/resume" } hx-target="#done" { "Resume all links" }
            (lasting())
        }
        div #done .answer role="status" {}
    }
}

/// How long a pause is to last. It stands beside what is made anew, so that what was chosen stays.
pub(crate) fn lasting() -> Markup {
    html! {
        label.lasting { "A pause lasts "
            select #lasting name="span" {
                @for (span, text) in LASTING { option value=(span) { (text) } }
            }
        }
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
        tr id=(anchor("site", &[&site.name])) data-site=(site.name) {
            th scope="row" {
                a href=(path) { (site.name) }
                @if let Some(page) = page_of(&seen.catalogue, &site.name) {
                    " " a.elsewhere href=(page) { "its page" span.hidden { " (" (site.name) ")" } }
                }
            }
            td {
                (badge(site_state(site.state)))
                @if site.state == SiteState::Paused { p.why { (until(site.paused_until.as_deref())) } }
                @if let Some(error) = &site.error { p.why { (error) } }
            }
            td { (site.round_trip_ms.map_or_else(|| "–".to_owned(), span)) }
            td { @if site.state == SiteState::Here { "now" } @else { (time(site.last_seen.as_deref())) } }
            td { (behind(site)) }
            td { @if site.queue.messages > 0 { (site.queue.messages) " (" (bytes(site.queue.bytes)) ")" } @else { "–" } }
            td { (site.resources) }
            td { @if seen.problems.not_asked.contains(&site.name) { span.none { "not known" } } @else if problems > 0 { a href={ "/problems?site=" (segment(&site.name)) } { (badge((&problems.to_string(), "bad"))) } } @else { "–" } }
            td { @if site.state != SiteState::Here { (buttons(site, &path)) } }
        }
    }
}

/// What can be done about a link, and what came of it. Both stay as they are while all else is made anew, or
/// a click could get lost and an answer be missed.
fn buttons(site: &Site, path: &str) -> Markup {
    let name = [site.name.as_str()];
    let said = anchor("said", &name);
    let (target, turn) = (format!("#{said}"), anchor("link", &name));
    html! {
        div.do id=(anchor("do", &[&site.name, site_state(site.state).0])) hx-preserve {
            button id=(anchor("ping", &name)) hx-post={ (path) "/ping" } hx-target=(target)
                aria-label={ "Ping " (site.name) } { "Ping" }
            // Whoever has pressed one is at the other then.
            @if site.state == SiteState::Paused {
                button id=(turn) hx-post={ (path) "/resume" } hx-target=(target)
                    aria-label={ "Resume " (site.name) } { "Resume" }
            } @else {
                button.warn id=(turn) hx-post={ (path) "/pause" } hx-include="#lasting" hx-target=(target)
                    aria-label={ "Pause " (site.name) } { "Pause" }
            }
        }
        div.answer id=(said) role="status" hx-preserve {}
    }
}

/// How far a site is behind, as far as is known.
fn behind(site: &Site) -> String {
    match (site.unanswered, site.lag_ms) {
        (0, Some(0)) => "–".to_owned(),
        (0, None) => "never met".to_owned(),
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        (0, Some(lag)) => span(lag as f64),
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        (waiting, Some(lag)) => format!("{}, {}", count(waiting, "operation"), span(lag as f64)),
        (waiting, None) => count(waiting, "operation"),
    }
}

/// Some names, and how many there are besides.
fn names(all: &[String]) -> String {
    let (named, more) = all.split_at(all.len().min(NAMED));
    let named = named.join(", ");
    if more.is_empty() { named } else { format!("{named} and {} more", more.len()) }
}

/// Asks all sites whether they are there.
async fn ping_all(api: Api) -> Answer<Markup> {
    let Sites { here, sites } = api.get("/api/v1/sites").await?;
    let others: Vec<String> =
        sites.into_iter().map(|site| site.name).filter(|name| *name != here).collect();
    let answers = futures_util::future::join_all(others.iter().map(|name| pong(&api, name))).await;
    Ok(html! {
        @if others.is_empty() { p { "There is no other site." } }
        @for (name, answer) in others.iter().zip(&answers) { p { (pinged(name, answer)) } }
        (layout::command("cheops site ping"))
    })
}

/// Asks a site whether it is there.
async fn ping(api: Api, Path(name): Path<String>) -> Answer<Markup> {
    let answer = pong(&api, &name).await;
    let line = format!("cheops site ping {}", shell::last(&name));
    Ok(html! { p { (pinged(&name, &answer)) } (layout::command(&line)) })
}

async fn pong(api: &Api, name: &str) -> Answer<Pong> {
    api.send(Method::POST, &format!("/api/v1/sites/{}/ping", segment(name)), &()).await
}

fn pinged(name: &str, answer: &Answer<Pong>) -> Markup {
    html! {
        @match answer {
            Ok(pong) => span.said { (name) " answered after " (span(pong.round_trip_ms)) "." },
            Err(refusal) => span.said.bad { (name) " did not answer: " (refusal.0.detail) "." },
        }
    }
}

/// For how long.
#[derive(Debug, Default, Deserialize)]
struct Pause {
    #[serde(default)]
    span: String,
}

/// Cuts the link to a site, or all of this one, to rehearse a cut.
async fn pause(api: Api, Path(name): Path<String>, Form(pause): Form<Pause>) -> Answer<Markup> {
    let path = format!("/api/v1/sites/{}/pause", segment(&name));
    api.act(Method::POST, &address(&path, &[("for", &pause.span)])).await?;
    let sites: Sites = api.get("/api/v1/sites").await?;
    let paused = sites
        .sites
        .iter()
        .find(|site| site.state == SiteState::Paused && (site.name == name || sites.here == name));
    let end = paused.and_then(|site| site.paused_until.as_deref());
    let option = Some(shell::option("--for", &pause.span) + " ").filter(|_| !pause.span.is_empty());
    let line = format!("cheops site pause {}{}", option.unwrap_or_default(), shell::last(&name));
    Ok(html! {
        p { (which(&name, &sites.here)) " paused " (until(end)) "." }
        (layout::command(&line))
    })
}

/// Ends a pause.
async fn resume(api: Api, Path(name): Path<String>) -> Answer<Markup> {
    api.act(Method::POST, &format!("/api/v1/sites/{}/resume", segment(&name))).await?;
    let sites: Sites = api.get("/api/v1/sites").await?;
    Ok(html! {
        p { (which(&name, &sites.here)) " being made again." }
        (layout::command(&format!("cheops site resume {}", shell::last(&name))))
    })
}

/// What is paused with a site: all links, if it is this one.
fn which(name: &str, here: &str) -> String {
    if name == here { format!("All links of {name} are") } else { format!("The link to {name} is") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused(until: Option<&str>) -> serde_json::Value {
        let until = until.map(str::to_owned);
        serde_json::json!({
            "name": "b", "state": "paused", "paused_until": until, "address": null, "key": "k", "round_trip_ms": null,
            "last_seen": null, "lag_ms": null, "queue": { "messages": 0, "bytes": 0 }, "resources": 0,
            "unanswered": 0,
        })
    }

    #[test]
    fn a_row_can_be_looked_for_whatever_its_site_is_called() {
        let mut site = paused(None);
        site["name"] = "DC 2".into();
        let sites = serde_json::json!({ "here": "a", "sites": [site] });
        let catalogue = Catalogue { here: "a".to_owned(), sites: Vec::new() };
        let seen =
            Seen::new(serde_json::from_value(sites).unwrap(), catalogue, TroubleCount::default());
        let row = row(&seen.sites.sites[0], &seen).into_string();
        assert!(row.contains("data-site=\"DC 2\""), "{row}");
        let ids = row.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        assert!(ids.clone().count() > 1 && ids.clone().all(|id| !id.contains(' ')), "{row}");
    }

    #[test]
    fn a_rehearsal_lasts_until_its_last_link_is_back() {
        let (early, late) = (Some("2026-01-01T00:00:00Z"), Some("2026-01-01T00:10:00Z"));
        for (links, expected) in [
            (vec![], ""),
            (vec![late, early], "until 2026-01-01T00:10:00Z"),
            (vec![late, None], "until resumed"),
        ] {
            let links: Vec<_> = links.into_iter().map(paused).collect();
            let sites = serde_json::json!({ "here": "a", "sites": links });
            let text = rehearsed(&serde_json::from_value(sites).unwrap()).into_string();
            // What is between tags is what is read.
            let read: String =
                text.split('<').filter_map(|tag| tag.split_once('>')).map(|(_, t)| t).collect();
            assert_eq!(read.is_empty(), expected.is_empty(), "{read}");
            assert!(read.contains(expected), "{read}");
        }
    }
}
