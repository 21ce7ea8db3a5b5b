//! The way of one request.
//!
//! The scope is taken off; [`decide`](cheops_core::route::decide) says what to try; each attempt is
//! the instance at this site or the agent of another one; the first that works answers. A request
//! without a scope goes to the instance at this site, and depends on nothing else, unless it names
//! something at several sites by an id that Cheops has made.
//!
//! What must stay true:
//! - a request that another agent has forwarded is served here or nowhere, or by sites of what it names
//!   if this is one of them: so that none goes round in circles;
//! - whatever fails, the client gets an answer that says what was tried.

use std::{sync::Arc, time::Instant};

use cheops_core::{
    id::{ServiceName, SiteId},
    route::{self, Access},
    scope,
    trust::people::Grant,
};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    header::{HOST, HeaderValue, UPGRADE},
    http::{request::Parts, uri::PathAndQuery},
};

use super::{
    Head, Service, Shared,
    answer::{Problem, UNSOUND},
    attempt::Came,
    body::Body,
    choice::{self, Chooser, TOKEN, may_choose},
    correlation::Found,
    forward::{Nothing, path},
    headers::{CAME, Client, PLACE, Unsound, forwarded, from_outside, sound},
    pool::Answer,
    read::{Named, Unreadable},
    strangers::{AS_OWN, may_name_a_stranger},
    upgrade::CHANGE,
};
use crate::{
    config::{OtherScopes, Scopes, ScopesFrom},
    peers::{Caller, SERVICE},
    policy::Denial,
    replicants::Replicant,
};

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asks<'a> {
    /// A client of the application.
    Client(&'a Client),
    /// The application itself, while it serves a request.
    Application(&'a Client),
}

impl Shared {
    /// Serves a request for a service.
    pub(super) async fn serve(
        self: &Arc<Self>,
        service: &Arc<Service>,
        asks: Asks<'_>,
        mut parts: Head,
        body: Body,
    ) -> Response<Answer> {
        let answer = match self.admit(asks, &mut parts) {
            Ok(named) => self.serve_named(service, named.as_ref(), parts, body).await,
            Err(problem) => self.refuse(&problem),
        };
        service.counts.answered(answer.status());
        answer
    }

    /// Serves a request by what it names: a resource at several sites, or what its scope says.
    async fn serve_named(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        parts: Head,
        body: Body,
    ) -> Response<Answer> {
        match (self.found(service, &parts), named) {
            // What these may have to remember would be set aside for each request that only passes.
            (None, named) if may_name_a_stranger(service, &parts) => {
                Box::pin(self.serve_strange(service, named, parts, body)).await
            }
            (None, None) => self.pass(service, parts, body).await,
            (None, Some(named)) => self.scoped(service, named, parts, body).await,
            (Some(found), named) => {
                Box::pin(self.serve_found(service, &found, named, parts, body)).await
            }
        }
    }

    /// Serves a request that names a resource at several sites.
    async fn serve_found(
        self: &Arc<Self>,
        service: &Arc<Service>,
        found: &Arc<Replicant>,
        named: Option<&Arc<Named>>,
        mut parts: Head,
        body: Body,
    ) -> Response<Answer> {
        if access(&parts.method) == Access::Write {
            return self.change(service, named, found, parts, body).await;
        }
        if !found.parts.is_empty() {
            return self.gather(service, named, found, parts, body).await;
        }
        let Some(named) = named else { return self.read(service, found, parts, body).await };
        self.normalise(service, &mut parts);
        self.scoped(service, named, parts, body).await
    }

    /// Checks a request, takes its scope off, and says whom it came from to those who come after.
    fn admit(&self, asks: Asks<'_>, parts: &mut Parts) -> Result<Option<Arc<Named>>, Box<Problem>> {
        sound(parts.version, &parts.uri, &parts.headers).map_err(unsound)?;
        if parts.method == Method::CONNECT {
            return Err(tunnel());
        }
        let token = self.token(&parts.headers);
        from_outside(&mut parts.headers);
        if parts.version < Version::HTTP_11 {
            // HTTP/1.0 can't change the protocol of a connection (RFC 9110, 7.8).
            parts.headers.remove(UPGRADE);
        }
        let named = self.reader.take(parts).map_err(|unreadable| in_words(&unreadable))?;
        let (Asks::Client(client) | Asks::Application(client)) = asks;
        let named = match named {
            Some(named) => self.accepted(asks, token, parts, named)?,
            None => self.inherited(asks, parts)?,
        };
        let host = match parts.uri.authority() {
            Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
            None => parts.headers.get(HOST).cloned(),
        };
        match forwarded(&mut parts.headers, client, host.as_ref()) {
            Ok(()) => Ok(named),
            Err(circles) => Err(Problem::new(
                StatusCode::LOOP_DETECTED,
                "circle",
                circles.to_string(),
                "look at `address` of the services: one leads to where an agent listens",
            )),
        }
    }

    /// The scope of a request that does not name one.
    fn inherited(&self, asks: Asks<'_>, parts: &Parts) -> Result<Option<Arc<Named>>, Box<Problem>> {
        match asks {
            Asks::Client(_) => Ok(None),
            Asks::Application(_) => self.belongs(parts),
        }
    }

    /// The scope that a request has, given the one that it names: that one if the client may choose sites.
    fn accepted(
        &self,
        asks: Asks<'_>,
        token: Option<Result<Grant, String>>,
        parts: &Parts,
        named: Arc<Named>,
    ) -> Result<Option<Arc<Named>>, Box<Problem>> {
        let Scopes { from, others } = &self.config.scopes;
        if *from == ScopesFrom::Everyone {
            return Ok(Some(named));
        }
        let (Asks::Client(client) | Asks::Application(client)) = asks;
        let chooser = Chooser { address: client.address, access: choice::access(parts), token };
        let Err(refused) = may_choose(from, &chooser, &named.scope, &self.catalogue()) else {
            return Ok(Some(named));
        };
        let inherited = self.inherited(asks, parts)?;
        // An application that repeats the scope of the request that it serves chooses nothing.
        let repeated = inherited.as_ref().is_some_and(|own| own.scope == named.scope);
        match others {
            OtherScopes::Reject if !repeated => Err(refused.problem(&self.here)),
            OtherScopes::Reject | OtherScopes::Ignore => Ok(inherited),
        }
    }

    /// What the token of a client was given, if it has sent one and that makes a difference.
    fn token(&self, headers: &HeaderMap) -> Option<Result<Grant, String>> {
        if self.config.scopes.from != ScopesFrom::Token {
            return None;
        }
        let mut tokens = headers.get_all(TOKEN).iter();
        let first = tokens.next()?;
        if tokens.next().is_some() {
            return Some(Err("there is more than one".to_owned()));
        }
        let text = first.to_str().unwrap_or_default();
        Some(self.access.grant_of_text(text).map_err(|error| error.0.detail))
    }

    /// Serves a request that another agent has forwarded.
    pub(super) async fn serve_forwarded(
        self: &Arc<Self>,
        request: Request<Body>,
    ) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let mut parts = Box::new(parts);
        if parts.headers.contains_key(HOST) {
            // The authority is that of the link.
            parts.uri = path(&parts.uri);
        }
        let service = parts.headers.remove(SERVICE);
        let service = service.as_ref().and_then(|name| name.to_str().ok()).unwrap_or_default();
        let Some(service) = service.parse().ok().and_then(|name| self.services.get(&name)) else {
            let problem = Problem::new(
                StatusCode::BAD_GATEWAY,
                "unknown-service",
                format!("it has no service `{service}`: add `[[service]]` to its configuration"),
                "add it to the configuration of that site's agent as `[[service]]`",
            );
            return self.came_to_nothing(Came::NotThere, &problem);
        };
        let named = match self.reader.take_forwarded(&mut parts.headers) {
            Ok(named) => named,
            Err(unreadable) => return self.refuse(&in_words(&unreadable)),
        };
        if let Some(place) = parts.headers.remove(PLACE) {
            let created = self.create_forwarded(service, named.as_ref(), &place, parts, body);
            return Box::pin(created).await;
        }
        let as_own = parts.headers.remove(AS_OWN).is_some();
        let writes = access(&parts.method) == Access::Write;
        let found = (as_own || writes).then(|| self.found(service, &parts)).flatten();
        // What is to change at all of its sites is held against the policy of each as an operation.
        let is_operation = writes && found.is_some();
        if let Some(Caller(site)) = parts.extensions.get::<Caller>().filter(|_| !is_operation) {
            let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
            let request = (service.name().as_str(), parts.method.as_str(), target);
            if let Err(denial) = self.gate.forwarded(site, request) {
                return self.refuse(&denied(&self.here, &denial));
            }
        }
        if let Some(found) = found {
            let found = self.serve_found(service, &found, named.as_ref(), parts, body);
            return Box::pin(found).await;
        }
        let answered = match parts.headers.remove(CHANGE) {
            Some(wanted) => {
                let changed = self.local_change(service, named.as_ref(), parts, body, &wanted);
                Box::pin(changed).await
            }
            None => self.local(service, named.as_ref(), parts, body).await,
        };
        match answered {
            Ok(response) => response,
            Err(nothing) => self.came_to_nothing(nothing.came, &no_instance(service, &nothing)),
        }
    }

    /// Creates something here and at other sites, for another agent.
    async fn create_forwarded(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        place: &HeaderValue,
        parts: Head,
        body: Body,
    ) -> Response<Answer> {
        let across = std::str::from_utf8(place.as_bytes()).ok().and_then(|place| {
            let place = scope::parse_place(place).ok()?;
            route::spread(&place, &self.here, &self.catalogue()).ok()
        });
        let created = match across {
            Some(across) if across.iter().any(|sites| sites.contains(&self.here)) => {
                self.create_here(service, named, &across, parts, body).await
            }
            _ => Err(Problem::new(
                StatusCode::BAD_GATEWAY,
                "bad-place",
                format!("`{}` does not know all of the sites, or is none of them", self.here),
                "give all agents the same peers",
            )),
        };
        created.unwrap_or_else(|problem| self.refuse(&problem))
    }

    /// Serves a call of the application. Where its door is not that of one service, the service is the
    /// one whose instance it would have asked without us.
    pub(super) async fn call(
        self: &Arc<Self>,
        service: Option<&Arc<Service>>,
        client: &Client,
        parts: Head,
        body: Body,
    ) -> Response<Answer> {
        match service.map_or_else(|| self.asked(&parts), |service| Ok(service.clone())) {
            Ok(service) => self.serve(&service, Asks::Application(client), parts, body).await,
            Err(problem) => self.refuse(&problem),
        }
    }

    /// The service that a call is for: by its name as a host, or by the address of its instance.
    fn asked(&self, call: &Parts) -> Result<Arc<Service>, Box<Problem>> {
        if call.method == Method::CONNECT {
            return Err(tunnel());
        }
        // What the host is depends on it.
        sound(call.version, &call.uri, &call.headers).map_err(unsound)?;
        let host = call.uri.authority().map(|authority| authority.as_str().to_owned());
        let host = host.or_else(|| {
            let host = call.headers.get(HOST)?;
            Some(host.to_str().ok()?.to_owned())
        });
        let host = host.unwrap_or_default();
        let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
        let by_name = name.parse::<ServiceName>().ok().and_then(|name| self.services.get(&name));
        let by_address = || self.services.values().find(|service| service.is_at(&host));
        by_name.or_else(by_address).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.services.keys().map(ServiceName::as_str).collect();
            Problem::new(
                StatusCode::MISDIRECTED_REQUEST,
                "unknown-service",
                format!("the call to `{host}` is for none of the services here: {}", known.join(", ")),
                "name a service as the host, or the address of its instance; add it to the agent's configuration as `[[service]]`",
            )
        })
    }

    pub(super) fn refuse(&self, problem: &Problem) -> Response<Answer> {
        problem.response(&self.named)
    }

    /// Tells another agent what came of a request that it forwarded.
    fn came_to_nothing(&self, came: Came, problem: &Problem) -> Response<Answer> {
        let mut response = self.refuse(problem);
        let word = came.word().map(|word| (CAME, HeaderValue::from_static(word)));
        response.headers_mut().extend(word);
        response
    }

    /// The scope of the request that a call of the application belongs to.
    fn belongs(&self, call: &Parts) -> Result<Option<Arc<Named>>, Box<Problem>> {
        let Some(correlation) = &self.correlation else { return Ok(None) };
        match correlation.find(&call.headers, Instant::now()) {
            Found::Scope(named) => Ok(Some(named)),
            Found::Nothing => Ok(None),
            Found::Several(header) => Err(Problem::new(
                StatusCode::CONFLICT,
                "several-scopes",
                format!(
                    "the call belongs to one of several requests with different scopes, which all have the same `{header}`"
                ),
                "send requests with a header of their own that the application passes on, like X-Request-Id or traceparent (`mesh.link_by`), or not at the same time",
            )),
        }
    }

    /// Passes a request without a scope to the instance here.
    pub(super) async fn pass(
        self: &Arc<Self>,
        service: &Service,
        parts: Head,
        body: Body,
    ) -> Response<Answer> {
        match self.local(service, None, parts, body).await {
            Ok(response) => response,
            Err(nothing) => self.refuse(&no_instance(service, &nothing)),
        }
    }
}

pub(super) fn access(method: &Method) -> Access {
    if method.is_safe() { Access::Read } else { Access::Write }
}

/// What the policy of this site does not let through.
fn denied(here: &SiteId, denial: &Denial) -> Box<Problem> {
    Problem::new(
        StatusCode::FORBIDDEN,
        "denied",
        format!("`{here}` does not take the request: {denial}"),
        "name another site, or ask who looks after this one",
    )
}

fn in_words(unreadable: &Unreadable) -> Box<Problem> {
    let hint = match unreadable {
        Unreadable::Wrong { error, .. } => error.hint(),
        Unreadable::Malformed { .. } => {
            "write a place for each service, like `image: site1 & site2`".to_owned()
        }
        Unreadable::Two { .. } => "name it once".to_owned(),
    };
    Problem::new(StatusCode::BAD_REQUEST, "bad-scope", unreadable.to_string(), hint)
}

fn unsound(unsound: Unsound) -> Box<Problem> {
    Problem::new(
        unsound.status(),
        UNSOUND,
        format!("the request is not taken: {unsound}"),
        unsound.hint(),
    )
}

fn tunnel() -> Box<Problem> {
    Problem::new(
        StatusCode::NOT_IMPLEMENTED,
        "tunnel",
        "the request asks for a tunnel, in which no scope could be seen",
        "call services by http://, and leave this proxy out for all else (NO_PROXY)",
    )
}

fn no_instance(service: &Service, nothing: &Nothing) -> Box<Problem> {
    let hint = match nothing.came {
        Came::BrokenBody => return broken_body(&nothing.why),
        Came::Silence | Came::Late | Came::Answer(_) => {
            "look at the log of the instance: it may have carried out the request"
        }
        Came::NotThere | Came::Busy => {
            "start it, or correct `address` of the service in the agent's configuration"
        }
    };
    Problem::new(
        nothing.came.status(),
        "no-instance",
        format!("the instance of `{}`: {}", service.name(), nothing.why),
        hint,
    )
}

pub(super) fn broken_body(why: &str) -> Box<Problem> {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "broken-body",
        format!("the body of the request broke off: {why}"),
        "send it again",
    )
}
