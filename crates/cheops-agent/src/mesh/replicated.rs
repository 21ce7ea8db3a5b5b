//! Resources at several sites: creating them, and finding them again by any of their names.
//!
//! What must stay true:
//! - only a site of a resource takes operations on it down; another forwards the request to one;
//! - what is read here was written here before, if this site has accepted it.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use axum::body::Body as AnyBody;
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix,
    route::Leg,
};
use futures_util::future::join_all;
use hyper::{Request, Response, StatusCode, http::request::Parts};
use tokio::time::timeout;

use super::{
    Service, Shared,
    answer::Problem,
    attempt::Came,
    body::Body,
    divided::undivided,
    forward::{Attempt, Forwarded, Nothing},
    legs::place,
    pool::Answer,
    read::Named,
    write::Wanted,
};
use crate::{
    replicants::{Found, Name, path},
    rest::{
        ids::{GROUP, is_meta, resource_id},
        rewrite::{segments, target},
    },
};

/// How long other sites may take to say whether they know a resource.
const PATIENCE: Duration = Duration::from_secs(1);
/// For how long it is remembered where one is, and of how many.
const REMEMBERED: Duration = Duration::from_mins(1);
const MOST_REMEMBERED: usize = 10_000;

impl Shared {
    /// The replicant that a request names, if this site is one of its own.
    pub(super) fn found(&self, service: &Service, request: &Parts) -> Option<Found> {
        if !self.replicants.has(service.name()) {
            return None;
        }
        self.replicants.find(service.name(), asked(request))
    }

    /// Creates something at several sites, divided or not: here, if this is one of them, or by one that
    /// is.
    pub(super) async fn create(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        across: &[Sites],
        parts: Parts,
        body: Body,
    ) -> Attempt {
        if across.iter().any(|sites| sites.contains(&self.here)) {
            let created = self.create_here(service, named, across, parts, body).await;
            return Ok(created.unwrap_or_else(|problem| self.refuse(&problem.about(named))));
        }
        let text = place(across);
        let (mut body, mut whys) = (body, Vec::new());
        for site in self.nearest(across.iter().flat_map(Sites::iter)) {
            let attempt = self
                .forward(
                    Forwarded { service, named, site: &site, place: Some(&text) },
                    parts.clone(),
                    body,
                )
                .await;
            match attempt {
                Err(Nothing { came: Came::NotThere | Came::Busy, why, body: Some(unsent) }) => {
                    whys.push(format!("{site}: {why}"));
                    body = unsent;
                }
                other => return other,
            }
        }
        Err(Nothing { came: Came::NotThere, why: whys.join("; "), body: Some(body) })
    }

    /// Creates something at this site and others.
    pub(super) async fn create_here(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        across: &[Sites],
        parts: Parts,
        mut body: Body,
    ) -> Result<Response<Answer>, Box<Problem>> {
        let sites = Sites::new(across.iter().flat_map(Sites::iter).cloned()).map_err(|_| {
            let hint = "name a site";
            Problem::new(StatusCode::BAD_REQUEST, "bad-scope", "the scope names no site", hint)
        })?;
        let divided = if across.len() > 1 { across.to_vec() } else { Vec::new() };
        matrix::check_parts(&divided).map_err(|error| {
            let hint = "name each site in one part only";
            Problem::new(StatusCode::BAD_REQUEST, "bad-scope", error.to_string(), hint)
        })?;
        let mut whole = None;
        if !divided.is_empty() {
            body = self.divisible(service, named, &sites, &parts, body, &mut whole).await?;
        }
        let wanted = Wanted::creation(service, &parts, sites, divided)?;
        self.carry_out(service, named, wanted, parts, body, whole).await
    }

    /// Changes what is known.
    pub(super) async fn change(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        found: &Found,
        parts: Parts,
        mut body: Body,
    ) -> Response<Answer> {
        let replicant = &found.replicant;
        if let Name::Path(own) = &replicant.name
            && path(asked(&parts)) != &**own
        {
            // It is a resource of its own: to replace the one above says nothing about it.
            let sites = std::slice::from_ref(&replicant.sites);
            let across = if replicant.parts.is_empty() { sites } else { &replicant.parts };
            let created = self.create_here(service, named, across, parts, body).await;
            return created.unwrap_or_else(|problem| self.refuse(&problem));
        }
        let mut whole = None;
        if !replicant.parts.is_empty() {
            body = match self.whole_body(service, &parts.headers, body, &mut whole).await {
                Ok(body) => body,
                Err(problem) => return self.refuse(&problem),
            };
        }
        let changed = match Wanted::change(found, &parts) {
            Ok(wanted) => self.carry_out(service, named, wanted, parts, body, whole).await,
            Err(problem) => Err(problem),
        };
        changed.unwrap_or_else(|problem| self.refuse(&problem))
    }

    /// Takes an operation down, and tells the client what came of it.
    async fn carry_out(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        wanted: Wanted,
        parts: Parts,
        body: Body,
        whole: Option<serde_json::Value>,
    ) -> Result<Response<Answer>, Box<Problem>> {
        let (target, meta) = (asked(&parts).to_owned(), wanted.meta().map(str::to_owned));
        let divided = wanted.parts.clone();
        let operated =
            self.operate(service, named.map(|named| &**named), wanted, parts, body).await?;
        let response = self.tell(service, &operated, &target, meta.as_deref()).await;
        if divided.is_empty() {
            return Ok(response);
        }
        Ok(undivided(service, &divided, whole.as_ref(), &operated, response).await)
    }

    /// Reads what is known and not divided: here, if there is a copy here, or at the nearest site that
    /// has one.
    pub(super) async fn read(
        self: &Arc<Self>,
        service: &Arc<Service>,
        found: &Found,
        mut parts: Parts,
        body: Body,
    ) -> Response<Answer> {
        let replicant = &found.replicant;
        // What was deleted here is gone here, whoever has yet to hear of it.
        if replicant.deleting && !replicant.is_at(&self.here) {
            return self.try_legs(service, None, &[Leg::Local], parts, body).await;
        }
        let has_it = replicant.sites.iter().filter(|site| replicant.is_at(site));
        let mut legs: Vec<Leg> =
            self.nearest(has_it).into_iter().map(|site| self.leg(site)).collect();
        if legs.is_empty() {
            legs.push(Leg::Local);
        }
        if legs.first() != Some(&Leg::Local) {
            normalise(found, &mut parts);
        }
        self.try_legs(service, None, &legs, parts, body).await
    }

    /// The sites of a resource that this site has no part in, if a request names one by an id that
    /// Cheops made: those that know it, the nearest first.
    pub(super) async fn strangers(&self, service: &Service, request: &Parts) -> Vec<SiteId> {
        let meta = segments(asked(request)).filter(|id| is_meta(id)).last();
        let Some(meta) = meta else { return Vec::new() };
        let Ok(resource) = resource_id(service.name(), &meta) else { return Vec::new() };
        if let Some(sites) = self.remembered(&resource) {
            return self.nearest(&sites);
        }
        let catalogue = self.catalogue();
        let others = catalogue.sites().filter(|site| **site != self.here);
        let reachable: Vec<&SiteId> = others.filter(|site| catalogue.is_reachable(site)).collect();
        let asked = reachable.iter().map(async |site| {
            let knows = timeout(PATIENCE, self.knows(site, &resource)).await;
            knows.unwrap_or(false).then(|| (*site).clone())
        });
        let sites: Vec<SiteId> = join_all(asked).await.into_iter().flatten().collect();
        if !sites.is_empty() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() >= MOST_REMEMBERED {
                seen.clear();
            }
            seen.insert(resource, (Instant::now(), sites.clone()));
        }
        self.nearest(&sites)
    }

    fn remembered(&self, resource: &ResourceId) -> Option<Vec<SiteId>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, sites) = seen.get(resource)?;
        (when.elapsed() < REMEMBERED).then(|| sites.clone())
    }

    async fn knows(&self, site: &SiteId, resource: &ResourceId) -> bool {
        let path = format!("/api/v1/replicants/{resource}?local=true");
        let Ok(request) = Request::get(path).body(AnyBody::empty()) else { return false };
        self.peers.call(site, request).await.is_ok_and(|answer| answer.status().is_success())
    }
}

/// Whether a request may name something by an id that Cheops made. Nearly none does, so it should be
/// seen soon.
pub(super) fn may_name_a_stranger(request: &Parts) -> bool {
    asked(request).contains(GROUP)
}

/// The target of a request.
pub(super) fn asked(request: &Parts) -> &str {
    request.uri.path_and_query().map_or("/", |target| target.as_str())
}

/// Puts the id that all sites know in place of the one that a request has.
pub(super) fn normalise(found: &Found, request: &mut Parts) {
    if let (Some(meta), Some(id)) = (found.replicant.meta(), &found.id) {
        retarget(request, id, meta);
    }
}

/// Puts one id in place of another in the target of a request.
pub(super) fn retarget(request: &mut Parts, from: &str, to: &str) {
    let changed = target(asked(request), from, to);
    if let Ok(changed) = changed.parse() {
        let mut uri = std::mem::take(&mut request.uri).into_parts();
        uri.path_and_query = Some(changed);
        // All that was there before is still there.
        request.uri = hyper::Uri::from_parts(uri).unwrap_or_default();
    }
}
