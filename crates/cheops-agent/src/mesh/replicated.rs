//! Resources at several sites: creating them, and finding them again by any of their names.
//!
//! What must stay true:
//! - only a site of a resource takes operations on it down; another forwards the request to one;
//! - what is read here was written here before, if this site has accepted it.

use std::{collections::BTreeSet, sync::Arc};

use cheops_core::{
    id::{SiteId, Sites},
    matrix,
    route::Leg,
    scope::{Target, evaluate},
};
use hyper::{Method, Response, StatusCode, http::request::Parts};

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
    strangers,
    write::Wanted,
};
use crate::{
    replicants::{Name, Replicant},
    rest::rewrite::canonical,
};

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
        let known = self.replicants.in_path(service.name(), asked(&parts));
        if let Some(known) = &known
            && let Name::Meta { .. } = known.name
        {
            return self.change_here(service, named, known, parts, body).await;
        }
        if let Some(meta) = strangers::named(service, &parts) {
            return Err(unknown_id(&meta));
        }
        if parts.method != Method::POST {
            let path = canonical(asked(&parts));
            if let Some(known) = &known
                && let Name::Path(above) = &known.name
            {
                if known.sites != sites {
                    return Err(other_sites(above, &known.sites, &place(across)));
                }
                if path == **above {
                    return self.change_here(service, named, known, parts, body).await;
                }
            }
            if let Some(elsewhere) = self.elsewhere(service, &path, &sites).await {
                return Err(other_sites(&path, &elsewhere, &place(across)));
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
}

fn other_sites(path: &str, sites: &Sites, said: &str) -> Box<Problem> {
    Problem::new(
        StatusCode::CONFLICT,
        "other-sites",
        format!("`{path}` is at {sites}, and the scope says {said}"),
        "leave the scope out to change it there, or delete it first to have it elsewhere",
    )
}

fn unknown_id(meta: &str) -> Box<Problem> {
    Problem::new(
        StatusCode::NOT_FOUND,
        "unknown-id",
        format!(
            "Cheops has made the id `{meta}`, and no site that can be reached knows it any more"
        ),
        "see `cheops get replicants` at the site where it was created; wait for the link to it",
    )
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
