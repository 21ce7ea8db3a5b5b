//! The catalogue: which services each site has, and how far the sites are from each other.
//!
//! Each agent measures its own links. Two that are linked tell each other what they have measured when
//! the link is made and then now and then, in one call, which is up to the one that has dialled. What
//! must stay true: of a site that can't be asked, what it last said stays; a round trip over a link that is
//! cut is kept, since scopes by distance go by it, and is told from one of now; nothing that others say
//! makes a site known, or reachable.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use axum::{
    body::{Body, to_bytes},
    extract::State,
    http::{Request, StatusCode},
    response::{IntoResponse as _, Response},
};
use cheops_core::id::SiteId;
use futures_util::future::join_all;
use tokio::{sync::broadcast::error::RecvError, time::sleep};

use super::{
    Context, Shared,
    error::Asked,
    model::{Catalogue, CatalogueQuery, Offer, Problem},
    pass,
};
use crate::{
    config::is_web_address,
    node::Told,
    peers::{Caller, Learned, Peer, State as Reach},
};

/// How often sites tell each other.
const EVERY: Duration = Duration::from_secs(30);
/// Where an agent is told what another has.
const OFFERS: &str = "/peer/v1/offers";
/// The longest offer, in bytes: of a site that knows some 50,000 others.
const LONGEST: usize = 4 << 20;

/// Which services each site has, and its round trips: as far as this one knows.
#[utoipa::path(get, path = "/api/v1/catalogue", tag = "sites", params(CatalogueQuery),
    responses((status = OK, body = Catalogue), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(context): State<Shared>,
    Asked(query): Asked<CatalogueQuery>,
) -> axum::Json<Catalogue> {
    let mut sites = vec![own(&context)];
    if !query.local {
        sites.extend(context.peers.learned().into_iter().map(|(site, learned)| Offer {
            site: site.to_string(),
            services: learned.services.into_iter().collect(),
            round_trips_ms: learned.round_trips.into_iter().map(said).collect(),
            cut: learned.cut.iter().map(ToString::to_string).collect(),
            page: learned.page,
            replicates: learned.replicates,
        }));
        sites.sort_by(|a, b| a.site.cmp(&b.site));
    }
    axum::Json(Catalogue { here: context.here().to_string(), sites })
}

/// What this site has and has measured itself.
fn own(context: &Context) -> Offer {
    let services = context.config.mesh.services.values();
    let services = services.filter(|service| service.address.is_some());
    let peers = context.peers.view();
    Offer {
        site: context.here().to_string(),
        services: services.map(|service| service.name.to_string()).collect(),
        cut: cut(&peers),
        round_trips_ms: peers
            .into_iter()
            .filter_map(|peer| Some(said((peer.site, peer.round_trip?))))
            .collect(),
        page: context.config.page(),
        replicates: context.replication.is_some(),
    }
}

/// The sites that there is no link to.
fn cut(peers: &[Peer]) -> BTreeSet<String> {
    let cut = peers.iter().filter(|peer| peer.state != Reach::Reachable);
    cut.map(|peer| peer.site.to_string()).collect()
}

fn said((site, round_trip): (SiteId, Duration)) -> (String, f64) {
    (site.to_string(), round_trip.as_secs_f64() * 1_000.0)
}

/// Exchanges parts of the catalogue with the other sites, for ever.
pub(crate) async fn learn(context: Shared) {
    let mut feed = context.node.feed().follow();
    loop {
        // Who is linked by now is asked now: many links at once are one reason to ask.
        feed = feed.resubscribe();
        let asked = context.peers.dialled();
        join_all(asked.iter().map(|site| exchange(&context, site))).await;
        let linked = async {
            loop {
                match feed.recv().await {
                    Ok(Told::Link { up: true, .. }) | Err(RecvError::Lagged(_)) => return true,
                    Ok(_) => {}
                    Err(RecvError::Closed) => return false,
                }
            }
        };
        tokio::select! {
            () = sleep(EVERY) => {}
            goes_on = linked => if !goes_on { return },
        }
    }
}

/// Tells a site what this one has, and hears what it has.
async fn exchange(context: &Context, site: &SiteId) {
    if let Ok(offer) = pass::exchange(context, site, OFFERS, &own(context)).await {
        take(context, site, offer);
    }
}

/// Whether a request of another agent is one of these.
pub(crate) fn is_offer<T>(request: &Request<T>) -> bool {
    request.uri().path() == OFFERS
}

/// Hears what a site has, and answers what this one has.
pub(crate) async fn answer_offer(context: Shared, request: Request<Body>) -> Response {
    let caller = request.extensions().get::<Caller>().map(|Caller(site)| site.clone());
    let offer = to_bytes(request.into_body(), LONGEST).await.ok();
    let offer = offer.and_then(|offer| serde_json::from_slice(&offer).ok());
    let (Some(site), Some(offer)) = (caller, offer) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    take(&context, &site, offer);
    axum::Json(own(&context)).into_response()
}

/// Takes note of what a site says of itself.
fn take(context: &Context, site: &SiteId, offer: Offer) {
    let round_trip = |(to, ms): (String, f64)| {
        let span = Duration::try_from_secs_f64(ms / 1_000.0).ok()?;
        Some((to.parse::<SiteId>().ok()?, span))
    };
    let round_trips: BTreeMap<SiteId, Duration> =
        offer.round_trips_ms.into_iter().filter_map(round_trip).collect();
    let cut = offer.cut.iter().filter_map(|site| site.parse().ok()).collect();
    let services: BTreeSet<String> = offer.services.into_iter().collect();
    // A browser is sent there: nothing else that an address can be is taken from another site.
    let page = offer.page.filter(|page| is_web_address(page));
    let replicates = offer.replicates;
    context.peers.learn(site, Learned { round_trips, cut, services, page, replicates });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{Queued, Traffic};

    #[test]
    fn a_link_is_cut_whatever_was_measured_before() {
        let peer = |name: &str, state, round_trip| Peer {
            site: name.parse().unwrap(),
            address: String::new(),
            key: None,
            certificate: None,
            state,
            paused_until: None,
            round_trip,
            last_seen: None,
            lag: None,
            clock_offset: None,
            queue: Queued::default(),
            is_doubled: false,
            error: None,
            dropped: 0,
            refused: 0,
            faults: 0,
            sent: Traffic::default(),
            received: Traffic::default(),
        };
        let measured = Some(Duration::from_millis(3));
        let peers = [
            peer("near", Reach::Reachable, measured),
            peer("new", Reach::Reachable, None),
            peer("lost", Reach::Unreachable, measured),
            peer("never", Reach::Unreachable, None),
            peer("paused", Reach::Paused, measured),
        ];
        let cut: Vec<String> = cut(&peers).into_iter().collect();
        assert_eq!(cut, ["lost", "never", "paused"]);
    }
}
