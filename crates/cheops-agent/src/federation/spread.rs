//! Tells the other sites what is new about who belongs, and hears it from them.
//!
//! Two sites exchange what each lacks when they are linked and now and then, which is up to the one that
//! has dialled, and when one of them has heard something. A site whose key is not known at another, because
//! it has a new one, brings the news itself, as a guest. What must stay true: a site that can't be told
//! delays no other.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use cheops_core::id::SiteId;
use futures_util::future::join_all;
use hyper::{Request, StatusCode};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{
    Federation, STATEMENTS,
    door::{LONGEST_OF_GUESTS, News, listed},
};
use crate::peers::State;

/// How often to ask though nothing has happened.
const NOW_AND_THEN: Duration = Duration::from_secs(10);
/// How long one site may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often two sites may go to and fro at a time.
const ROUNDS: usize = 1_000;
/// The longest answer.
const LONGEST: usize = 32 << 20;

/// Why to speak with others.
#[derive(PartialEq, Eq)]
enum Occasion {
    /// Something was heard here.
    News,
    /// There is a new link.
    Link,
    /// Nothing has happened for some time.
    Tick,
}

pub(super) async fn run(federation: &Federation) {
    let mut ledger = federation.ledger().changes();
    let mut links = federation.shared.peers.links();
    let mut ticks = interval(NOW_AND_THEN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut removed = None;
    loop {
        let why = tokio::select! {
            changed = ledger.changed() => if changed.is_err() { return } else { Occasion::News },
            linked = links.changed() => if linked.is_err() { return } else { Occasion::Link },
            _ = ticks.tick() => Occasion::Tick,
        };
        if federation.ledger().root().is_none() {
            continue;
        }
        if federation.tell_removed(&mut removed).await.is_err() {
            return;
        }
        if let Err(error) = federation.share_people().await {
            tracing::warn!("who may do what could not be shared: {error}");
        }
        if let Err(error) = federation.vouch().await {
            tracing::warn!("what is known of a removed site could not be said: {error}");
        }
        let peers = &federation.shared.peers;
        let sites = if why == Occasion::News { peers.reachable() } else { peers.dialled() };
        join_all(sites.iter().map(|site| exchange(federation, site))).await;
        if why == Occasion::Tick {
            let strange = peers
                .view()
                .into_iter()
                .filter(|peer| peer.state == State::Unreachable && peers.is_strange(&peer.site));
            join_all(strange.map(|peer| bring(federation, peer))).await;
        }
    }
}

/// Tells a site what it lacks, and hears what this one lacks.
async fn exchange(federation: &Federation, site: &SiteId) {
    match timeout(PATIENCE, converse(federation, site)).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::debug!(%site, "no news exchanged: {why}"),
        Err(_) => tracing::debug!(%site, "no news exchanged in time"),
    }
}

async fn converse(federation: &Federation, site: &SiteId) -> Result<(), String> {
    let ledger = federation.ledger();
    let mut words = Vec::new();
    for _ in 0..ROUNDS {
        let Some(root) = ledger.root() else { return Ok(()) };
        let news = News { root: *root.as_bytes(), heard: listed(&ledger.heard()), words };
        let body = postcard::to_allocvec(&news).map_err(|error| error.to_string())?;
        let request = Request::post(STATEMENTS).body(Body::from(body));
        let request = request.map_err(|error| error.to_string())?;
        let answer = federation.shared.peers.call(site, request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status() != StatusCode::OK {
            return Err(format!("it answers {}", answer.status()));
        }
        let body =
            to_bytes(answer.into_body(), LONGEST).await.map_err(|error| error.to_string())?;
        let news: News = postcard::from_bytes(&body).map_err(|error| error.to_string())?;
        words = ledger.beyond(&news.heard());
        let ended = words.is_empty() && news.words.is_empty();
        federation.hear(news.words).await.map_err(|error| error.to_string())?;
        if ended {
            return Ok(());
        }
    }
    Ok(())
}

/// Brings news to a site that does not know the key of this one.
async fn bring(federation: &Federation, peer: crate::peers::Peer) {
    let ledger = federation.ledger();
    let Some(root) = ledger.root() else { return };
    // It can't be asked how far it has heard: a guest is told nothing. But it lacks what this site has said
    // last, or it would know its key.
    let words = ledger.last_of(federation.shared.members.here(), LONGEST_OF_GUESTS / 2);
    let news = News { root: *root.as_bytes(), heard: Vec::new(), words };
    let Ok(body) = postcard::to_allocvec(&news) else { return };
    let peers = &federation.shared.peers;
    let Some(key) = peer.key else { return };
    match peers.visit(&peer.address, key, STATEMENTS, body).await {
        Ok((StatusCode::OK, _)) => {
            federation.told_out(None);
            peers.redial(&peer.site);
        }
        Ok((StatusCode::FORBIDDEN, _)) => {
            let here = federation.shared.members.here();
            let why = format!(
                "`{here}` was removed from the federation, says `{}`: it goes on alone, and nobody takes what it records; if it should come back, run `cheops token create` at `{}` and `cheops join TOKEN` here",
                peer.site, peer.site
            );
            peers.note(&peer.site, why);
            federation.told_out(Some(peer.site));
        }
        Ok((status, _)) => tracing::debug!(site = %peer.site, "news were refused: {status}"),
        Err(error) => tracing::debug!(site = %peer.site, "news could not be brought: {error}"),
    }
}
