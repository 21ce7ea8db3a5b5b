//! Resources at several sites: creating them, and finding them again by any of their names.
//!
//! What must stay true:
//! - only a site of a resource takes operations on it down; another forwards the request to one;
//! - what is read here was written here before, if this site has accepted it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::body::Body as AnyBody;
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix,
    route::Leg,
    scope::{Target, evaluate},
};
use futures_util::future::join_all;
use hyper::{Method, Request, Response, StatusCode, http::request::Parts};
use tokio::time::timeout;

use super::{
    Head, Service, Shared,
    answer::Problem,
    attempt::Came,
    body::Body,
    divided::{Sent, undivided},
    forward::{Attempt, Forwarded, Nothing},
    legs::place,
    pool::Answer,
    read::Named,
    write::Wanted,
};
use crate::{
    replicants::{Name, Replicant},
    rest::{
        ids::{is_meta, may_hold_meta, resource_id},
        rewrite::{canonical, segments},
    },
};

/// How long other sites may take to say whether they know a resource.
const PATIENCE: Duration = Duration::from_secs(1);

impl Shared {
    /// The replicant that a request is about, if this site is one of its own: the one that its path
    /// names; for a read, that may also be one that its query names. What the query of a write names is
    /// mentioned, and not written to.
    pub(super) fn found(&self, service: &Service, request: &Parts) -> Option<Arc<Replicant>> {
        let (known, name, target) = (&self.replicants, service.name(), asked(request));
        if !known.has(name) {
            return None;
        }
        let mentioned = || known.in_query(name, target).filter(|_| request.method.is_safe());
        known.in_path(name, target).or_else(mentioned)
    }

    /// Puts the ids that all sites know in place of those that a request has.
    pub(super) fn normalise(&self, service: &Service, request: &mut Parts) {
        if let Some(common) = self.replicants.common(service.name(), asked(request)) {
            retarget(request, &common);
        }
    }

    /// The target of a request with the ids that all sites know.
    fn common(&self, service: &Service, request: &Parts) -> String {
        let common = self.replicants.common(service.name(), asked(request));
        common.unwrap_or_else(|| asked(request).to_owned())
    }

    /// Creates something at several sites, divided or not: here, if this is one of them, or by one that
    /// is.
    pub(super) async fn create(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        across: &[Sites],
        parts: Head,
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
        parts: Head,
        body: Body,
    ) -> Result<Response<Answer>, Box<Problem>> {
        let sites = Sites::new(across.iter().flat_map(Sites::iter).cloned()).map_err(|_| {
            let hint = "name a site";
            Problem::new(StatusCode::BAD_REQUEST, "bad-scope", "the scope names no site", hint)
        })?;
        if parts.method != Method::POST
            && let Some(known) = self.replicants.in_path(service.name(), asked(&parts))
            && let Name::Path(path) = &known.name
        {
            if !same(&known.sites, &sites) {
                return Err(other_sites(path, &known.sites, &place(across)));
            }
            if canonical(asked(&parts)) == **path {
                return self.change_here(service, named, &known, parts, body).await;
            }
        }
        let divided = if across.len() > 1 { across.to_vec() } else { Vec::new() };
        matrix::check_parts(&divided).map_err(|error| {
            let hint = "name each site in one part only";
            Problem::new(StatusCode::BAD_REQUEST, "bad-scope", error.to_string(), hint)
        })?;
        let body = if divided.is_empty() {
            Sent::from(body)
        } else {
            self.divisible(service, named, &sites, &parts, body).await?
        };
        let target = self.common(service, &parts);
        let wanted = Wanted::creation(service, &parts, target, sites, divided)?;
        self.carry_out(service, named, wanted, parts, body).await
    }

    /// Changes what is known.
    pub(super) async fn change(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        replicant: &Replicant,
        parts: Head,
        body: Body,
    ) -> Response<Answer> {
        if let Err(problem) = self.agrees(service, named, replicant) {
            return self.refuse(&problem.about(named));
        }
        if let Name::Path(own) = &replicant.name
            && canonical(asked(&parts)) != **own
        {
            // It is a resource of its own: to replace the one above says nothing about it.
            let sites = std::slice::from_ref(&replicant.sites);
            let across = if replicant.parts.is_empty() { sites } else { &replicant.parts };
            let created = self.create_here(service, named, across, parts, body).await;
            return created.unwrap_or_else(|problem| self.refuse(&problem));
        }
        let changed = self.change_here(service, named, replicant, parts, body).await;
        changed.unwrap_or_else(|problem| self.refuse(&problem))
    }

    async fn change_here(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        replicant: &Replicant,
        parts: Head,
        body: Body,
    ) -> Result<Response<Answer>, Box<Problem>> {
        let body = if replicant.parts.is_empty() {
            Sent::from(body)
        } else {
            self.whole_body(service, &parts, body).await?
        };
        let wanted = Wanted::change(replicant, &parts.method, self.common(service, &parts))?;
        self.carry_out(service, named, wanted, parts, body).await
    }

    /// Makes sure that a scope on a path that is known names the sites where it is. The same path may
    /// mean another thing elsewhere. An id that Cheops made means one thing, wherever it is named, so
    /// that a change of it goes to all of its sites, whatever the scope says.
    fn agrees(
        &self,
        service: &Service,
        named: Option<&Arc<Named>>,
        replicant: &Replicant,
    ) -> Result<(), Box<Problem>> {
        let Name::Path(path) = &replicant.name else { return Ok(()) };
        let Some(place) = named.and_then(|named| named.scope.place(service.name())) else {
            return Ok(());
        };
        let target = evaluate(place, &self.catalogue()).map_err(|error| {
            Problem::new(StatusCode::BAD_REQUEST, "bad-scope", error.to_string(), error.hint())
        })?;
        if may_mean(&target, &replicant.sites) {
            return Ok(());
        }
        Err(other_sites(path, &replicant.sites, &place.to_string()))
    }

    /// Takes an operation down, and tells the client what came of it.
    async fn carry_out(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        wanted: Wanted,
        parts: Head,
        body: Sent,
    ) -> Result<Response<Answer>, Box<Problem>> {
        let (target, meta) = (asked(&parts).to_owned(), wanted.meta().map(str::to_owned));
        let divided = wanted.parts.clone();
        let Sent { body, document } = body;
        let operated =
            self.operate(service, named.map(|named| &**named), wanted, parts, body).await?;
        let response = self.tell(service, &operated, &target, meta.as_deref()).await;
        if divided.is_empty() {
            return Ok(response);
        }
        Ok(undivided(service, &divided, document.as_ref(), &operated, response).await)
    }

    /// Reads what is known and not divided: here, if there is a copy here, or at the nearest site that
    /// has one.
    pub(super) async fn read(
        self: &Arc<Self>,
        service: &Arc<Service>,
        replicant: &Replicant,
        mut parts: Head,
        body: Body,
    ) -> Response<Answer> {
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
        self.normalise(service, &mut parts);
        self.try_legs(service, None, &legs, parts, body).await
    }

    /// The sites of a resource that this site has no part in, if a request names one by an id that
    /// Cheops made: those that know it, the nearest first.
    pub(super) async fn strangers(&self, service: &Service, request: &Parts) -> Vec<SiteId> {
        let target = asked(request);
        // What the query of a write names is mentioned, and not written to.
        let path = target.split('?').next().unwrap_or_default();
        let in_path = segments(path).filter(|id| is_meta(id)).last();
        let mentioned = || segments(target).filter(|id| is_meta(id)).last();
        let meta = if request.method.is_safe() { in_path.or_else(mentioned) } else { in_path };
        let Some(meta) = meta else { return Vec::new() };
        let Ok(resource) = resource_id(service.name(), &meta) else { return Vec::new() };
        let sites = self.strangers.of(resource.clone(), self.ask_all(&resource)).await;
        self.nearest(&sites)
    }

    /// Asks all sites that can be reached which of them know a resource.
    async fn ask_all(&self, resource: &ResourceId) -> Vec<SiteId> {
        let catalogue = self.catalogue();
        let others = catalogue.sites().filter(|site| **site != self.here);
        let asked = others.filter(|site| catalogue.is_reachable(site)).map(async |site| {
            let knows = timeout(PATIENCE, self.knows(site, resource)).await;
            knows.unwrap_or(false).then(|| site.clone())
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn knows(&self, site: &SiteId, resource: &ResourceId) -> bool {
        let path = format!("/api/v1/replicants/{resource}?local=true");
        let Ok(request) = Request::get(path).body(AnyBody::empty()) else { return false };
        self.peers.call(site, request).await.is_ok_and(|answer| answer.status().is_success())
    }
}

fn other_sites(path: &str, sites: &Sites, said: &str) -> Box<Problem> {
    Problem::new(
        StatusCode::CONFLICT,
        "other-sites",
        format!("`{path}` is at {sites}, and the scope says {said}"),
        "leave the scope out to change it there, or delete it first to have it elsewhere",
    )
}

/// Whether both are the same sites, in any order.
fn same(one: &Sites, other: &Sites) -> bool {
    one.iter().collect::<BTreeSet<_>>() == other.iter().collect::<BTreeSet<_>>()
}

/// Whether a place, or one of its alternatives, can mean these sites and no others.
fn may_mean(target: &Target, sites: &Sites) -> bool {
    if let Target::First(alternatives) = target {
        return alternatives.iter().any(|target| may_mean(target, sites));
    }
    let (mut always, mut at_most) = (BTreeSet::new(), BTreeSet::new());
    collect(target, true, &mut always, &mut at_most);
    let sites: BTreeSet<&SiteId> = sites.iter().collect();
    always.is_subset(&sites) && sites.is_subset(&at_most)
}

/// The sites that a place means whatever is tried, and those that it can mean.
fn collect<'t>(
    target: &'t Target,
    fixed: bool,
    always: &mut BTreeSet<&'t SiteId>,
    at_most: &mut BTreeSet<&'t SiteId>,
) {
    match target {
        Target::One(site) => {
            always.extend(fixed.then_some(site));
            at_most.insert(site);
        }
        Target::Once(target) => collect(target, fixed, always, at_most),
        Target::All(targets) | Target::Across(targets) => {
            for target in targets {
                collect(target, fixed, always, at_most);
            }
        }
        Target::First(targets) => {
            for target in targets {
                collect(target, false, always, at_most);
            }
        }
    }
}

/// Whether a request may name something by an id that Cheops made.
pub(super) fn may_name_a_stranger(request: &Parts) -> bool {
    may_hold_meta(asked(request))
}

/// The target of a request.
pub(super) fn asked(request: &Parts) -> &str {
    request.uri.path_and_query().map_or("/", |target| target.as_str())
}

/// The path of its target, as it came.
pub(super) fn path(request: &Parts) -> &str {
    request.uri.path()
}

/// Gives a request another target.
pub(super) fn retarget(request: &mut Parts, target: &str) {
    if let Ok(target) = target.parse() {
        let mut uri = std::mem::take(&mut request.uri).into_parts();
        uri.path_and_query = Some(target);
        // All that was there before is still there.
        request.uri = hyper::Uri::from_parts(uri).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use cheops_core::scope::{Catalogue, parse_place};

    use super::*;

    #[test]
    fn a_place_means_the_sites_of_a_resource_or_others() {
        let site = |name: &str| name.parse::<SiteId>().unwrap();
        let catalogue = Catalogue::new(["a", "b", "c"].map(site));
        let sites = Sites::new(["a", "b"].map(site)).unwrap();
        for (place, expected) in [
            ("a & b", true),
            ("b & a", true),
            ("none(a & b)", true),
            ("a % b", true),
            ("c; a & b", true),
            ("a & (b; c)", true),
            ("a", false),
            ("c", false),
            ("a & c", false),
            ("a & b & c", false),
            ("a; b", false),
            ("c & (a; b)", false),
        ] {
            let target = evaluate(&parse_place(place).unwrap(), &catalogue).unwrap();
            assert_eq!(may_mean(&target, &sites), expected, "{place}");
        }
    }
}
