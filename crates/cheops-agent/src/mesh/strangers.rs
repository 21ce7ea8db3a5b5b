//! Resources that this site has no part in, but a request names by an id that Cheops made.
//!
//! One of the resource's own sites serves such a request, since it knows what each site has: it is told
//! so by [`AS_OWN`]. Where they are is remembered.
//!
//! What must stay true:
//! - about one resource, one question is under way at a time; that nobody knows one is remembered too,
//!   for a short time, so that a client that goes on asking costs other sites nothing; no more is
//!   remembered than the limit;
//! - an id that Cheops made means one thing: what is asked of it is never taken for a path that only
//!   looks like it.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::body::{Body as AnyBody, to_bytes};
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    route::Leg,
};
use futures_util::future::join_all;
use hyper::{
    Request, Response,
    header::{HeaderName, HeaderValue},
    http::request::Parts,
};
use tokio::{sync::Mutex as Turn, time::timeout};

use super::{Head, Service, Shared, body::Body, pool::Answer, read::Named, replicated::asked};
use crate::{
    api::model::Replicant,
    rest::{
        ids::{is_meta_of, may_hold_meta, natural_resource, resource_id},
        rewrite::segments,
    },
};

/// Asks another agent to serve a request as one of the sites of what it names.
pub(super) const AS_OWN: HeaderName = HeaderName::from_static("x-cheops-as-own");

/// How long other sites may take to say whether they know a resource.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many bytes they may say about one.
const MOST_SAID: usize = 256 << 10;

/// For how long it is remembered where one is.
const KNOWN: Duration = Duration::from_mins(1);
/// And that nobody knows it: it may be created at any time.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Of how many.
const MOST: usize = 10_000;

impl Shared {
    /// Serves a request that may name a resource which this site has no part in.
    pub(super) async fn serve_strange(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        mut parts: Head,
        body: Body,
    ) -> Response<Answer> {
        let stranger = self.stranger(service, &parts).await;
        match (stranger, named) {
            (None, None) => self.pass(service, parts, body).await,
            (None, Some(named)) => self.scoped(service, named, parts, body).await,
            // Each of its sites has all of it: whoever wants to read it at one of them can.
            (Some(Stranger { divided: false, .. }), Some(named)) if parts.method.is_safe() => {
                self.scoped(service, named, parts, body).await
            }
            (Some(stranger), named) => {
                parts.headers.insert(AS_OWN, HeaderValue::from_static("yes"));
                let sites = self.nearest(stranger.sites.iter());
                let legs: Vec<Leg> = sites.into_iter().map(Leg::Forward).collect();
                self.try_legs(service, named, &legs, parts, body).await
            }
        }
    }

    /// The resource that this site has no part in, and that a request names by an id that Cheops made.
    async fn stranger(&self, service: &Service, request: &Parts) -> Option<Stranger> {
        let meta = named(service, request)?;
        let resource = resource_id(service.name(), &meta).ok()?;
        self.strangers.of(resource.clone(), self.ask_all(&resource)).await
    }

    /// Asks all sites that can be reached where a resource is.
    async fn ask_all(&self, resource: &ResourceId) -> Option<Stranger> {
        let catalogue = self.catalogue();
        let others = catalogue.sites().filter(|site| **site != self.here);
        let asked = others.filter(|site| catalogue.is_reachable(site));
        join_all(asked.map(|site| self.ask_about(resource, site)))
            .await
            .into_iter()
            .flatten()
            .next()
    }

    /// Where a path is at several sites, as these say, if that is not at the same ones.
    pub(super) async fn elsewhere(
        &self,
        service: &Service,
        target: &str,
        sites: &Sites,
    ) -> Option<Sites> {
        let resource = natural_resource(service.name(), target).ok()?;
        let catalogue = self.catalogue();
        let others = sites.iter().filter(|site| **site != self.here);
        let asked = others.filter(|site| catalogue.is_reachable(site));
        let said = join_all(asked.map(|site| self.ask_about(&resource, site))).await;
        said.into_iter().flatten().map(|stranger| stranger.sites).find(|known| known != sites)
    }

    async fn ask_about(&self, resource: &ResourceId, site: &SiteId) -> Option<Stranger> {
        let path = format!("/api/v1/replicants/{resource}?local=true");
        let request = Request::get(path).body(AnyBody::empty()).ok()?;
        let asked = async {
            let answer = self.peers.call(site, request).await.ok()?;
            let said = answer.status().is_success().then(|| answer.into_body())?;
            let said = to_bytes(said, MOST_SAID).await.ok()?;
            Stranger::of(&serde_json::from_slice(&said).ok()?)
        };
        timeout(PATIENCE, asked).await.ok()?
    }
}

/// Whether a request may name something by an id that Cheops made.
pub(super) fn may_name_a_stranger(service: &Service, request: &Parts) -> bool {
    may_hold_meta(&service.config.ids, asked(request))
}

/// The id that Cheops made, by which a request names what it is about.
pub(super) fn named(service: &Service, request: &Parts) -> Option<String> {
    let (ids, target) = (&service.config.ids, asked(request));
    let last = |text| segments(text).filter(|id| is_meta_of(ids, id)).last();
    // What the query of a write names is mentioned, and not written to.
    let path = target.split('?').next().unwrap_or_default();
    let mentioned = || last(target).filter(|_| request.method.is_safe());
    last(path).or_else(mentioned).map(Into::into)
}

/// A resource elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stranger {
    sites: Sites,
    /// No site has all of it.
    divided: bool,
}

impl Stranger {
    fn of(replicant: &Replicant) -> Option<Self> {
        let sites = replicant.replicas.iter().map(|replica| replica.site.parse::<SiteId>());
        let sites = Sites::new(sites.collect::<Result<Vec<_>, _>>().ok()?).ok()?;
        Some(Self {
            sites,
            divided: replicant.replicas.iter().any(|replica| replica.part.is_some()),
        })
    }
}

/// What other sites have said.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<HashMap<ResourceId, Arc<Turn<Option<Said>>>>>);

/// Where a resource is, if anybody knows, and when that was said.
#[derive(Debug)]
struct Said {
    at: Instant,
    stranger: Option<Stranger>,
}

impl Said {
    fn counts(&self, now: Instant) -> bool {
        let span = if self.stranger.is_none() { UNKNOWN } else { KNOWN };
        now.saturating_duration_since(self.at) < span
    }
}

impl Strangers {
    /// Where a resource is: as is remembered, or as they say now.
    async fn of(
        &self,
        resource: ResourceId,
        ask: impl Future<Output = Option<Stranger>>,
    ) -> Option<Stranger> {
        let said = self.place(resource, Instant::now());
        let mut said = said.lock().await;
        if let Some(said) = said.as_ref().filter(|said| said.counts(Instant::now())) {
            return said.stranger.clone();
        }
        let stranger = ask.await;
        *said = Some(Said { at: Instant::now(), stranger: stranger.clone() });
        stranger
    }

    fn place(&self, resource: ResourceId, now: Instant) -> Arc<Turn<Option<Said>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST && !all.contains_key(&resource) {
            all.retain(|_, said| {
                said.try_lock().map_or(true, |said| said.as_ref().is_some_and(|s| s.counts(now)))
            });
            // Who waits for an answer still gets it.
            if all.len() >= MOST {
                all.clear();
            }
        }
        all.entry(resource).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn id(n: usize) -> ResourceId {
        format!("image~{n}").parse().unwrap()
    }

    fn at_site2() -> Stranger {
        Stranger { sites: Sites::new(["site2".parse().unwrap()]).unwrap(), divided: false }
    }

    #[tokio::test]
    async fn many_that_ask_at_once_are_one_question_also_if_nobody_knows() {
        for known in [None, Some(at_site2())] {
            let (strangers, questions) = (Strangers::default(), AtomicUsize::new(0));
            let ask = || {
                strangers.of(id(1), async {
                    questions.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    known.clone()
                })
            };
            let answers = futures_util::future::join_all((0..10).map(|_| ask())).await;
            assert!(answers.iter().all(|answer| *answer == known), "{answers:?}");
            assert_eq!(ask().await, known);
            assert_eq!(questions.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn that_nobody_knows_it_counts_for_a_short_time() {
        let at = Instant::now();
        let unknown = Said { at, stranger: None };
        let known = Said { at, stranger: Some(at_site2()) };
        for (span, expected) in
            [(Duration::ZERO, (true, true)), (UNKNOWN, (false, true)), (KNOWN, (false, false))]
        {
            assert_eq!((unknown.counts(at + span), known.counts(at + span)), expected, "{span:?}");
        }
    }

    #[tokio::test]
    async fn no_more_is_remembered_than_the_limit() {
        let strangers = Strangers::default();
        for n in 0..=MOST {
            strangers.of(id(n), async { None }).await;
        }
        assert!(strangers.0.lock().unwrap().len() <= MOST);
    }
}
