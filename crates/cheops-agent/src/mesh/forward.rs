//! One attempt: the instance at this site, or the agent of another one.
//!
//! What must stay true:
//! - nothing is sent straight to an instance at another site;
//! - an attempt that came to nothing says whether the request can have arrived, and gives the body
//!   back if none of it was sent;
//! - an instance can't say what only agents say;
//! - requests to one site leave room on its link for what agents have to tell each other; over that
//!   they are not sent, and do not wait.

use std::{sync::Arc, time::Duration};

use axum::body::Body as AnyBody;
use cheops_core::id::SiteId;
use hyper::{
    Request, Response, StatusCode, Uri,
    header::{ACCEPT_ENCODING, HOST, HeaderValue},
    http::request::Parts,
};
use tokio::time::timeout;

use super::{
    Head, Service, Shared,
    attempt::Came,
    body::{Body, Timed},
    headers::{CAME, PLACE, SITE, end_hop, from_outside, via},
    pool::{Answer, Unanswered},
    read::{Named, SCOPE},
    replicated::{asked, retarget},
    upgrade,
};
use crate::{
    config::Limits,
    peers::{CallError, MOST_FORWARDED, SERVICE},
};

/// By how much longer than its instance another agent may take.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// How many bytes of another agent's explanation are read.
const MOST_TOLD: usize = 64 << 10;

/// A request for another site.
#[derive(Clone, Copy)]
pub(super) struct Forwarded<'a> {
    pub(super) service: &'a Service,
    pub(super) named: Option<&'a Arc<Named>>,
    pub(super) site: &'a SiteId,
    /// It is to create something there and at other sites.
    pub(super) place: Option<&'a str>,
}

/// What became of an attempt.
pub(super) type Attempt = Result<Response<Answer>, Nothing>;

/// An attempt that came to nothing.
pub(super) struct Nothing {
    pub(super) came: Came,
    pub(super) why: String,
    /// The body, if none of it was sent.
    pub(super) body: Option<Body>,
}

impl Nothing {
    fn not_there(why: impl Into<String>, body: Body) -> Self {
        Self { came: Came::NotThere, why: why.into(), body: Some(body) }
    }
}

impl From<Unanswered> for Nothing {
    fn from(unanswered: Unanswered) -> Self {
        let Unanswered { failed, body } = unanswered;
        Self { came: failed.came(), why: failed.to_string(), body }
    }
}

impl Shared {
    /// Sends a request to the instance here.
    pub(super) async fn local(
        self: &Arc<Self>,
        service: &Service,
        named: Option<&Arc<Named>>,
        mut parts: Head,
        body: Body,
    ) -> Attempt {
        let Some(instance) = &service.instance else {
            return Err(Nothing::not_there("there is no instance at this site", body));
        };
        let wanted = end_hop(&mut parts.headers);
        ask_by_path(&mut parts);
        parts.version = hyper::Version::HTTP_11;
        let hidden = self.localise(service, &mut parts);
        let serving = self.serving(&mut parts.headers, named);
        let client = wanted.is_some().then(|| upgrade::of(&mut parts)).flatten();
        let mut request = Request::from_parts(*parts, body);
        if let Some(wanted) = &wanted {
            upgrade::ask(request.headers_mut(), wanted);
        }
        let mut response = instance.send(request).await?;
        let headers = response.headers_mut();
        from_outside(headers);
        headers.insert(SITE, self.named.clone());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.join_local(client, serving, service.config.limits.idle, &mut response);
            return Ok(response);
        }
        end_hop(response.headers_mut());
        if let Some(path) = hidden {
            self.hide(service, &path, &mut response);
        }
        if let Some(serving) = serving {
            response.body_mut().hold(serving);
        }
        Ok(response)
    }

    /// Puts this site's own ids in place of all that are known of a request. If the answer may hold ids
    /// that are not to be seen, this is the path that it is about.
    fn localise(&self, service: &Service, parts: &mut Parts) -> Option<String> {
        if let Some(own) = self.replicants.own(service.name(), asked(parts)) {
            retarget(parts, &own);
        }
        self.hides(service).then(|| {
            // What is compressed can't be read. Where nothing is asked for, anything may come (RFC 9110, 12.5.3).
            parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            asked(parts).to_owned()
        })
    }

    /// Sends a request that another agent has forwarded, and that asks to change what is spoken, to the
    /// instance here.
    pub(super) async fn local_change(
        self: &Arc<Self>,
        service: &Service,
        named: Option<&Arc<Named>>,
        mut parts: Head,
        body: Body,
        wanted: &HeaderValue,
    ) -> Attempt {
        upgrade::ask(&mut parts.headers, wanted);
        let mut response = self.local(service, named, parts, Body::Empty).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.join_forwarded(body.any(), service.config.limits.idle, &mut response);
        }
        Ok(response)
    }

    /// Forwards a request to the agent of another site.
    pub(super) async fn forward(
        &self,
        Forwarded { service, named, site, place }: Forwarded<'_>,
        mut parts: Head,
        body: Body,
    ) -> Attempt {
        if let Err(error) = self.peers.linked(site) {
            return Err(Nothing::not_there(error.to_string(), body));
        }
        if self.peers.lacks(site, service.name().as_str()) {
            return Err(Nothing::not_there("it has no instance of the service", body));
        }
        let Ok(stream) = self.room(site).try_acquire_owned() else {
            let why = format!("{MOST_FORWARDED} requests to it are under way, and more can't be");
            return Err(Nothing { came: Came::Busy, why, body: Some(body) });
        };
        let stream = Arc::new(stream);
        let scope = named.map(|named| named.scope.to_string());
        let said =
            [(SERVICE, Some(service.name().as_str())), (PLACE, place), (SCOPE, scope.as_deref())];
        let wanted = end_hop(&mut parts.headers);
        ask_by_path(&mut parts);
        via(&mut parts.headers, parts.version);
        for (name, text) in said {
            // Names hold no control characters, so this can't fail.
            let value = text.and_then(|text| HeaderValue::from_bytes(text.as_bytes()).ok());
            parts.headers.extend(value.map(|value| (name, value)));
        }
        let client = wanted.is_some().then(|| upgrade::of(&mut parts)).flatten();
        let limits = service.config.limits;
        let limit = limits.answer + ON_THE_WAY;
        let nothing = |came, why: String| Err(Nothing { came, why, body: None });
        let (answered, changing) = if let (Some(client), Some(wanted)) = (client, wanted) {
            parts.headers.insert(upgrade::CHANGE, wanted);
            let (body, way) = upgrade::Way::open();
            // What it has to remember is not set aside for each request that asks for no change.
            let called = Box::pin(self.peers.call(site, Request::from_parts(*parts, body)));
            (timeout(limit, called).await.ok(), Some((client, way)))
        } else {
            let mut body = Timed::new(body, limits.idle);
            body.hold(stream.clone());
            let (longer, waiting) = (Limits { answer: limit, ..limits }, body.waiting());
            let called = self.peers.call(site, Request::from_parts(*parts, body.any()));
            let answered = waiting.within(longer, called).await;
            if !matches!(answered, Some(Ok(_)))
                && let Some(why) = waiting.broken(answered.is_none(), limits.idle)
            {
                return nothing(Came::BrokenBody, why);
            }
            (answered, None)
        };
        let mut response = match answered {
            None => return nothing(Came::Late, format!("it did not answer within {limit:?}")),
            Some(Err(error @ CallError::Broke { .. })) => {
                return nothing(Came::Silence, error.to_string());
            }
            Some(Err(error)) => return nothing(Came::NotThere, error.to_string()),
            Some(Ok(response)) => response,
        };
        let came = response.headers().get(CAME).and_then(|word| word.to_str().ok());
        if let Some(came) = came.and_then(Came::read) {
            return nothing(came, told(response).await);
        }
        let version = response.version();
        via(response.headers_mut(), version);
        if let Some(changing) = changing {
            self.join_far(changing, stream.clone(), limits.idle, &mut response);
        }
        let mut response = response.map(Answer::from);
        response.body_mut().take_up(stream);
        Ok(response)
    }
}

/// An instance is asked by path; who is asked stands in `Host`, whatever stood there before (RFC 9112,
/// 3.2.2).
fn ask_by_path(parts: &mut Parts) {
    let Some(authority) = parts.uri.authority() else { return };
    if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
        parts.headers.insert(HOST, host);
    }
    parts.uri = path(&parts.uri);
}

/// A target without those who are asked.
pub(super) fn path(target: &Uri) -> Uri {
    target.path_and_query().cloned().map_or(Uri::from_static("/"), Uri::from)
}

/// Why another agent has no answer, in its own words.
async fn told(response: Response<AnyBody>) -> String {
    let body = axum::body::to_bytes(response.into_body(), MOST_TOLD).await.unwrap_or_default();
    let problem: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let detail = problem.as_ref().and_then(|problem| problem.get("detail")?.as_str());
    detail.unwrap_or("its instance gave no answer").to_owned()
}
