//! Attempts, one after the other, until one works.
//!
//! What must stay true: a request that may have taken effect is not tried elsewhere (`attempt` says
//! when it may); whatever fails, the client gets an answer that says what was tried.

use std::{borrow::Cow, sync::Arc, time::Instant};

use cheops_core::{
    id::{SiteId, Sites},
    route::Leg,
};
use hyper::{Response, StatusCode};

use super::{
    Head, Service, Shared,
    answer::{Problem, Tried, timed},
    attempt::{Came, Rest, may_go_on},
    body::{Body, reason},
    forward::{Attempt, Forwarded, Nothing},
    pool::Answer,
    read::Named,
    serve::{access, broken_body},
};

impl Shared {
    /// Serves a request where its scope says.
    pub(super) async fn scoped(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: &Arc<Named>,
        parts: Head,
        body: Body,
    ) -> Response<Answer> {
        let access = access(&parts.method);
        let (name, catalogue) = (service.name(), self.catalogue());
        let route = self.routes.find(named, name, access, &self.here, &catalogue);
        match route {
            Ok(route) => self.try_legs(service, Some(named), route.attempts(), parts, body).await,
            Err(error) => {
                let (why, hint) = (error.to_string(), error.hint());
                let problem = Problem::new(StatusCode::BAD_REQUEST, "bad-scope", why, hint);
                self.refuse(&problem.about(Some(named)))
            }
        }
    }

    /// Serves a request by the first leg that works.
    pub(super) async fn try_legs(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        legs: &[Leg],
        parts: Head,
        mut body: Body,
    ) -> Response<Answer> {
        if legs.len() > 1 {
            body = match body.keep(self.config.buffer, service.config.limits.idle).await {
                Ok(body) => body,
                Err(error) => return self.refuse(&broken_body(&reason(&*error)).about(named)),
            };
        }
        let (mut tried, mut times, mut last_came) = (Vec::new(), Vec::new(), Came::NotThere);
        let (mut parts, mut body) = (Some(parts), Some(body));
        for (n, leg) in legs.iter().enumerate() {
            let last = n + 1 == legs.len();
            let (Some(sent), Some(head)) = (body.take(), parts.take()) else { break };
            let method = head.method.clone();
            let mut again = None;
            if !last {
                again = sent.again();
                parts = Some(head.clone());
            }
            let (site, begun) = (self.name(leg), Instant::now());
            let came = self.attempt(service, named, leg, head, sent).await;
            let took = begun.elapsed();
            let nothing = match came {
                Ok(mut response) => {
                    let (status, rest) = (response.status(), rest(again.as_ref()));
                    if last || !may_go_on(Came::Answer(status), &method, rest) {
                        times.push((site, took));
                        timed(response.headers_mut(), &times);
                        return response;
                    }
                    let (came, why) = (Came::Answer(status), format!("it answered {status}"));
                    Nothing { came, why, body: None }
                }
                Err(nothing) => nothing,
            };
            body = again.or(nothing.body);
            last_came = nothing.came;
            let goes_on = may_go_on(nothing.came, &method, rest(body.as_ref()));
            tried.push(Tried { site: site.to_string(), why: nothing.why });
            times.push((site, took));
            if !goes_on {
                break;
            }
        }
        let mut response = self.refuse(&no_answer(last_came, tried).about(named));
        timed(response.headers_mut(), &times);
        response
    }

    /// A leg, in words.
    fn name<'a>(&'a self, leg: &'a Leg) -> Cow<'a, str> {
        match leg {
            Leg::Local => self.here.as_str().into(),
            Leg::Forward(site) => site.as_str().into(),
            Leg::Replicate(sites) | Leg::Once(sites) => sites.to_string().into(),
            Leg::Across(parts) => place(parts).into(),
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        leg: &Leg,
        parts: Head,
        body: Body,
    ) -> Attempt {
        // What the others may have to remember would be set aside for each request.
        match leg {
            Leg::Local => self.local(service, named, parts, body).await,
            Leg::Forward(site) => {
                let to = Forwarded { service, named, site, place: None };
                Box::pin(self.forward(to, parts, body)).await
            }
            Leg::Once(sites) => Box::pin(self.once(service, named, sites, parts, body)).await,
            Leg::Replicate(sites) => {
                let across = std::slice::from_ref(sites);
                Box::pin(self.create(service, named, across, parts, body)).await
            }
            Leg::Across(across) if parts.method.is_safe() => {
                Box::pin(self.collect(service, named, across, parts)).await
            }
            Leg::Across(across) => Box::pin(self.create(service, named, across, parts, body)).await,
        }
    }

    /// Sites in the order in which to ask them: this one, then those that can be reached, the nearest
    /// first.
    pub(super) fn nearest<'a>(&self, sites: impl IntoIterator<Item = &'a SiteId>) -> Vec<SiteId> {
        let catalogue = self.catalogue();
        let mut sites: Vec<SiteId> = sites.into_iter().cloned().collect();
        sites.sort_by_cached_key(|site| {
            let far = catalogue.round_trip(&self.here, site).unwrap_or(std::time::Duration::MAX);
            (*site != self.here, !catalogue.is_reachable(site), far)
        });
        sites
    }

    /// The leg to one site.
    pub(super) fn leg(&self, site: SiteId) -> Leg {
        if site == self.here { Leg::Local } else { Leg::Forward(site) }
    }
}

/// Parts, as a place of the scope language.
pub(super) fn place(parts: &[Sites]) -> String {
    let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
    parts.join(" % ")
}

fn rest(body: Option<&Body>) -> Rest {
    if body.is_some() { Rest::Whole } else { Rest::Partial }
}

fn no_answer(came: Came, tried: Vec<Tried>) -> Box<Problem> {
    if let (Came::BrokenBody, Some(Tried { why, .. })) = (came, tried.last()) {
        return broken_body(why);
    }
    let detail = match tried.last() {
        Some(Tried { site, why }) => format!("{site}: {why}"),
        None => "there is nothing to try".to_owned(),
    };
    let hint =
        "look at the links with `cheops get sites`; name another site after `;` to fall back on";
    Problem::new(came.status(), "no-answer", detail, hint).tried(tried)
}
