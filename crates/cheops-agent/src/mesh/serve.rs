//! The way of one request.
//!
//! The scope is taken off; [`decide`](cheops_core::route::decide) says what to try; each attempt is
//! the instance at this site or the agent of another one; the first that works answers. A request
//! without a scope goes to the instance at this site, and depends on nothing else.
//!
//! What must stay true:
//! - a request that another agent has forwarded is served here or nowhere, so that none goes round in
//!   circles;
//! - nothing is sent straight to an instance at another site;
//! - whatever fails, the client gets an answer that says what was tried.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
    time::Instant,
};

use cheops_core::{
    id::{ServiceName, SiteId},
    route::{Access, Leg, decide},
};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    header::{HOST, HeaderValue},
    http::request::Parts,
};
use tokio::time::timeout;

use super::{
    Service, Shared,
    answer::{Problem, Tried, timed},
    attempt::{Came, may_go_on},
    body::Body,
    headers::{NOT_THERE, SERVICE, SITE, end_hop, forwarded, from_outside, sound},
    linked::Found,
    pool::Answer,
    read::{Named, SCOPE, Unreadable},
    upgrade,
};
use crate::peers::CallError;

/// How many bytes of a body are kept so that it can be sent elsewhere.
const KEPT: usize = 64 << 10;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// A client of the application.
    Client(IpAddr),
    /// The application itself, while it serves a request.
    Application(IpAddr),
}

/// What became of an attempt.
type Attempt = Result<Response<Answer>, (Came, String)>;

impl Shared {
    /// Serves a request for a service.
    pub(super) async fn serve(
        self: &Arc<Self>,
        service: &Service,
        from: From,
        request: Request<Body>,
    ) -> Response<Answer> {
        let (mut parts, body) = request.into_parts();
        if let Err(unsound) = sound(&parts.headers) {
            return self.refuse(Problem::new(
                StatusCode::BAD_REQUEST,
                "unsound-request",
                format!("the request can be read in two ways: {unsound}"),
                "send a request that RFC 9112 allows",
            ));
        }
        from_outside(&mut parts.headers);
        let named = match self.reader.take(&mut parts) {
            Ok(named) => named,
            Err(unreadable) => return self.refuse(in_words(&unreadable)),
        };
        let (named, client) = match (named, from) {
            (Some(named), From::Client(client) | From::Application(client)) => {
                (Some(named), client)
            }
            (None, From::Client(client)) => (None, client),
            (None, From::Application(client)) => match self.belongs(&parts) {
                Ok(named) => (named, client),
                Err(problem) => return self.refuse(problem),
            },
        };
        let host = parts.headers.get(HOST).cloned();
        forwarded(&mut parts.headers, client, host.as_ref());
        match named {
            None => self.pass(service, parts, body).await,
            Some(named) => self.scoped(service, &named, parts, body).await,
        }
    }

    /// Serves a request that another agent has forwarded.
    pub(super) async fn serve_forwarded(
        self: &Arc<Self>,
        service: &Service,
        request: Request<Body>,
    ) -> Response<Answer> {
        let (mut parts, body) = request.into_parts();
        parts.headers.remove(SERVICE);
        let named = match self.reader.take(&mut parts) {
            Ok(named) => named,
            Err(unreadable) => return self.refuse(in_words(&unreadable)),
        };
        match self.local(service, named.as_ref(), parts, body).await {
            Ok(response) => response,
            Err((came, why)) => {
                let mut response = self.refuse(no_instance(service, why));
                if came == Came::NotThere {
                    response.headers_mut().insert(NOT_THERE, HeaderValue::from_static("1"));
                }
                response
            }
        }
    }

    /// Serves a call of the application. The service is the one whose instance it would have asked
    /// without us.
    pub(super) async fn outbound(
        self: &Arc<Self>,
        client: IpAddr,
        request: Request<Body>,
    ) -> Response<Answer> {
        match self.asked(&request) {
            Ok(service) => self.serve(&service, From::Application(client), request).await,
            Err(problem) => self.refuse(problem),
        }
    }

    /// The service that a call is for: by its name as a host, or by the address of its instance.
    fn asked(&self, call: &Request<Body>) -> Result<Arc<Service>, Problem> {
        let host = call.uri().authority().map(|authority| authority.as_str().to_owned());
        let host = host.or_else(|| {
            let host = call.headers().get(HOST)?;
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

    fn refuse(&self, problem: Problem) -> Response<Answer> {
        problem.into_response(&self.named)
    }

    /// The scope of the request that a call of the application belongs to.
    fn belongs(&self, call: &Parts) -> Result<Option<Arc<Named>>, Problem> {
        let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        match linked.find(&call.headers, Instant::now()) {
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
    async fn pass(
        self: &Arc<Self>,
        service: &Service,
        parts: Parts,
        body: Body,
    ) -> Response<Answer> {
        match self.local(service, None, parts, body).await {
            Ok(response) => response,
            Err((_, why)) => self.refuse(no_instance(service, why)),
        }
    }

    /// Serves a request where its scope says.
    async fn scoped(
        self: &Arc<Self>,
        service: &Service,
        named: &Arc<Named>,
        parts: Parts,
        body: Body,
    ) -> Response<Answer> {
        let catalogue = self.catalogue();
        let access = access(&parts.method);
        let route = match decide(&named.scope, &service.name, access, &self.here, &catalogue) {
            Ok(route) => route,
            Err(error) => {
                return self.refuse(Problem {
                    scope: Some(named.scope.to_string()),
                    ..Problem::new(
                        StatusCode::BAD_REQUEST,
                        "bad-scope",
                        error.to_string(),
                        error.hint(),
                    )
                });
            }
        };
        let (mut tried, mut legs) = (Vec::new(), Vec::new());
        let attempts = route.attempts();
        let mut body = body;
        if attempts.len() > 1 {
            body = match body.keep(KEPT).await {
                Ok(body) => body,
                Err(error) => return self.refuse(broken_body(&error.to_string())),
            };
        }
        for (n, leg) in attempts.iter().enumerate() {
            let last = n + 1 == attempts.len();
            let (rest, again) = (body.rest(), if last { None } else { body.again() });
            let sent = std::mem::replace(&mut body, again.unwrap_or_default());
            let (site, begun) = (self.name(leg), Instant::now());
            let came = self.attempt(service, named, leg, parts.clone(), sent).await;
            legs.push((site.clone(), begun.elapsed()));
            let (came, why) = match came {
                Ok(mut response) => {
                    let status = response.status();
                    let came = Came::Answer(status);
                    if last || !may_go_on(came, &parts.method, rest) {
                        timed(response.headers_mut(), &legs);
                        return response;
                    }
                    (came, format!("it answered {status}"))
                }
                Err(nothing) => nothing,
            };
            tried.push(Tried { site, why });
            if !may_go_on(came, &parts.method, rest) {
                break;
            }
        }
        let detail = match tried.last() {
            Some(Tried { site, why }) => format!("{site}: {why}"),
            None => "there is nothing to try".to_owned(),
        };
        let mut response = self.refuse(Problem {
            scope: Some(named.scope.to_string()),
            tried,
            ..Problem::new(
                StatusCode::BAD_GATEWAY,
                "no-answer",
                detail,
                "look at the links with `cheops get sites`; name another site after `;` to fall back on",
            )
        });
        timed(response.headers_mut(), &legs);
        response
    }

    fn name(&self, leg: &Leg) -> String {
        match leg {
            Leg::Local => self.here.to_string(),
            Leg::Forward(site) => site.to_string(),
            Leg::Replicate(sites) => sites.to_string(),
            Leg::Once(sites) => format!("none({sites})"),
            Leg::Across(parts) => {
                let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
                parts.join(" % ")
            }
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        service: &Service,
        named: &Arc<Named>,
        leg: &Leg,
        parts: Parts,
        body: Body,
    ) -> Attempt {
        match leg {
            Leg::Local => self.local(service, Some(named), parts, body).await,
            Leg::Forward(site) => self.forward(service, named, site, parts, body).await,
            Leg::Replicate(_) | Leg::Across(_) | Leg::Once(_) => {
                Err((Came::NotThere, "this is not there yet".to_owned()))
            }
        }
    }

    /// Sends a request to the instance here.
    async fn local(
        self: &Arc<Self>,
        service: &Service,
        named: Option<&Arc<Named>>,
        mut parts: Parts,
        body: Body,
    ) -> Attempt {
        let Some(instance) = &service.instance else {
            return Err((Came::NotThere, "there is no instance at this site".to_owned()));
        };
        let wanted = end_hop(&mut parts.headers);
        // An origin is asked by path; who it is stands in Host.
        if parts.uri.authority().is_some() {
            if let Some(authority) = parts.uri.authority()
                && let Ok(host) = HeaderValue::from_str(authority.as_str())
            {
                parts.headers.entry(HOST).or_insert(host);
            }
            parts.uri = path_only(&parts.uri);
        }
        parts.version = hyper::Version::HTTP_11;
        let serving = named.map(|named| self.serving(&parts, named));
        let client = wanted.is_some().then(|| upgrade::of(&mut parts)).flatten();
        let mut request = Request::from_parts(parts, body);
        if let Some(wanted) = &wanted {
            upgrade::ask(request.headers_mut(), wanted);
        }
        let mut response = match instance.send(request).await {
            Ok(response) => response,
            Err(failed) => return Err((failed.came(), failed.to_string())),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            upgrade::join(client, &mut response);
        } else {
            end_hop(response.headers_mut());
        }
        response.headers_mut().insert(SITE, self.named.clone());
        if let Some(serving) = serving {
            response.body_mut().hold(serving);
        }
        Ok(response)
    }

    /// Forwards a request to the agent of another site.
    async fn forward(
        self: &Arc<Self>,
        service: &Service,
        named: &Named,
        site: &SiteId,
        mut parts: Parts,
        body: Body,
    ) -> Attempt {
        end_hop(&mut parts.headers);
        if let Some(authority) = parts.uri.authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            parts.headers.entry(HOST).or_insert(host);
        }
        parts.uri = path_only(&parts.uri);
        let text =
            |text: &str| HeaderValue::from_str(text).map_err(|e| (Came::NotThere, e.to_string()));
        parts.headers.insert(SERVICE, text(service.name.as_str())?);
        parts.headers.insert(SCOPE, text(&named.scope.to_string())?);
        let limit = service.limits.head;
        let call = self.peers.call(site, Request::from_parts(parts, body.any()));
        match timeout(limit, call).await {
            Ok(Ok(response)) if response.headers().contains_key(NOT_THERE) => {
                Err((Came::NotThere, "its instance can't be reached".to_owned()))
            }
            Ok(Ok(response)) => Ok(response.map(Answer::from)),
            Ok(Err(error @ CallError::Broke { .. })) => Err((Came::Silence, error.to_string())),
            Ok(Err(error)) => Err((Came::NotThere, error.to_string())),
            Err(_) => Err((Came::Silence, format!("it did not answer within {limit:?}"))),
        }
    }
}

fn access(method: &Method) -> Access {
    if method.is_safe() { Access::Read } else { Access::Write }
}

fn path_only(uri: &Uri) -> Uri {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().unwrap_or_default()
}

fn in_words(unreadable: &Unreadable) -> Problem {
    let hint = match unreadable {
        Unreadable::Wrong { error, .. } => error.hint(),
        Unreadable::Malformed { .. } => {
            "write a place for each service, like `image: site1 & site2`".to_owned()
        }
        Unreadable::Two { .. } => "name it once".to_owned(),
    };
    Problem::new(StatusCode::BAD_REQUEST, "bad-scope", unreadable.to_string(), hint)
}

fn no_instance(service: &Service, why: String) -> Problem {
    Problem::new(
        StatusCode::BAD_GATEWAY,
        "no-instance",
        format!("the instance of `{}` at this site: {why}", service.name),
        "start it, or correct `address` of the service in the agent's configuration",
    )
}

fn broken_body(why: &str) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "broken-body",
        format!("the body of the request broke off: {why}"),
        "send it again",
    )
}
