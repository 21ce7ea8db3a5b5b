//! Tells other sites which keys sites have that the configuration names without one, where certificates vouch for them.
//!
//! Two sites that have met know each other's keys. A record comes by way of a third, too: who has not met its site gets to
//! know its key from whoever brings the record. What must stay true: what is told is believed for the certificate that
//! vouches for it, not for who tells it; a site that can't be told delays no other.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use cheops_core::id::SiteId;
use futures_util::future::join_all;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Federation, door::unreadable};
use crate::{api::ApiError, node::Stopping, trust::Voucher};

/// Where sites tell each other what they know.
pub(super) const INTRODUCTIONS: &str = "/peer/v1/introductions";

/// How often to ask though nothing has happened.
const NOW_AND_THEN: Duration = Duration::from_secs(10);
/// How long one site may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest that is said at a time, and how many are looked at.
const LONGEST: usize = 4 << 20;
const MOST: usize = 1_024;

/// What a site knows, and what the other lacks.
#[derive(Serialize, Deserialize)]
struct Introductions {
    heard: Vec<(String, [u8; 32])>,
    vouchers: Vec<Voucher>,
}

/// Tells the others what was learned, and hears what they know, for ever.
pub(super) async fn run(federation: &Federation) {
    let members = &federation.shared.members;
    let peers = &federation.shared.peers;
    if peers.pki().is_none() || !members.has_introduced() {
        return std::future::pending().await;
    }
    let (mut learned, mut links) = (members.introductions(), peers.links());
    let mut ticks = interval(NOW_AND_THEN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Both hear and tell, so that for a link one of its two ends is enough; not for news.
        let sites = tokio::select! {
            changed = learned.changed() => if changed.is_err() { return } else { peers.reachable() },
            linked = links.changed() => if linked.is_err() { return } else { peers.dialled() },
            _ = ticks.tick() => peers.dialled(),
        };
        join_all(sites.iter().map(|site| exchange(federation, site))).await;
    }
}

async fn exchange(federation: &Federation, site: &SiteId) {
    match timeout(PATIENCE, converse(federation, site)).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::debug!(%site, "no keys of sites exchanged: {why}"),
        Err(_) => tracing::debug!(%site, "no keys of sites exchanged in time"),
    }
}

/// Hears what this site lacks, then tells what the other does.
async fn converse(federation: &Federation, site: &SiteId) -> Result<(), String> {
    let members = &federation.shared.members;
    let mut vouchers = Vec::new();
    loop {
        let last = !vouchers.is_empty();
        let said = Introductions { heard: members.introduced(), vouchers };
        let body = postcard::to_allocvec(&said).map_err(|error| error.to_string())?;
        let request = Request::post(INTRODUCTIONS).body(Body::from(body));
        let request = request.map_err(|error| error.to_string())?;
        let answer = federation.shared.peers.call(site, request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status() != StatusCode::OK {
            return Err(format!("it answers {}", answer.status()));
        }
        let body = to_bytes(answer.into_body(), LONGEST).await;
        let body = body.map_err(|error| error.to_string())?;
        let heard: Introductions =
            postcard::from_bytes(&body).map_err(|error| error.to_string())?;
        federation.meet(heard.vouchers).await.map_err(|error| error.to_string())?;
        vouchers = members.vouchers(&heard.heard);
        if last || vouchers.is_empty() {
            return Ok(());
        }
    }
}

impl Federation {
    /// Hears what a site knows, and tells it what it lacks.
    pub(super) async fn introductions(&self, body: Body) -> Result<Vec<u8>, ApiError> {
        let body = to_bytes(body, LONGEST).await.map_err(unreadable)?;
        let said: Introductions = postcard::from_bytes(&body).map_err(unreadable)?;
        self.meet(said.vouchers).await?;
        let members = &self.shared.members;
        let (heard, vouchers) = (members.introduced(), members.vouchers(&said.heard));
        postcard::to_allocvec(&Introductions { heard, vouchers }).map_err(unreadable)
    }

    /// Takes note of keys that certificates vouch for, beside everything else: it waits for the disk.
    async fn meet(&self, vouchers: Vec<Voucher>) -> Result<(), Stopping> {
        let Some(pki) = self.shared.peers.pki().cloned() else { return Ok(()) };
        let members = self.shared.members.clone();
        let meeting = tokio::task::spawn_blocking(move || {
            for voucher in vouchers.iter().take(MOST).filter(|voucher| members.lacks(voucher)) {
                match pki.check(voucher) {
                    Ok((site, key)) => members.hear_of(&site, &key, voucher),
                    Err(refusal) => {
                        let why = refusal.says("a site that was told of");
                        tracing::debug!("the key of a site was not taken in: {why}");
                    }
                }
            }
        });
        meeting.await.map_err(|_| Stopping)
    }
}
