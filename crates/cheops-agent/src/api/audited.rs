//! What is done with each request before the API sees it: who comes in, and how often, and what goes into the
//! audit.
//!
//! What must stay true:
//! - a request that changes something, or is refused, has a line, whatever door it came by, and also if
//!   whoever asked does not wait for the answer; one that only looks has one if the configuration says so;
//! - nothing of a query, of a header or of a body goes into a line: only what was made of it, and the command
//!   of one who has a resource shown with one of his own, which is in no operation;
//! - what whoever looks may do is told apart, so that its lines can be limited.

use std::{
    borrow::Cow,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use percent_encoding::percent_decode_str;

use super::{
    ApiError, Context, Place, Shared, door,
    serve::Connected,
    who::{Door, Who},
};
use crate::{
    audit::{Audit, Event, What},
    limits::network,
    peers::Caller,
};

/// From where a request came to the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct From(pub(super) SocketAddr);

/// What paths of the API and of the page begin with before a resource is named.
const OF_RESOURCES: [&str; 6] = [
    "/api/v1/resources/",
    "/api/v1/federation/held/",
    "/exec/",
    "/show/",
    "/show_local/",
    "/resources/",
];

/// What is found out about a request while it is carried out.
#[derive(Debug, Clone, Default)]
struct Learned {
    author: Option<String>,
    role: Option<String>,
    door: Option<String>,
    operation: Option<String>,
    subject: Option<String>,
    why: Option<String>,
    /// It needs more than that somebody may look.
    acts: bool,
}

tokio::task_local! {
    static LEARNED: Arc<Mutex<Learned>>;
}

fn learn(with: impl FnOnce(&mut Learned)) {
    // Whoever asks from inside the agent has no line.
    let _ = LEARNED
        .try_with(|learned| with(&mut learned.lock().unwrap_or_else(PoisonError::into_inner)));
}

/// Notes the operation that is made of the request that this task carries out, and whose it is.
pub(super) fn made(author: &str, operation: &str) {
    learn(|learned| {
        learned.author = Some(author.to_owned());
        learned.operation = Some(operation.to_owned());
    });
}

/// Notes what is made or asked for by the request that this task carries out, where its path does not say it.
pub(super) fn about(subject: impl Into<String>) {
    learn(|learned| learned.subject = Some(subject.into()));
}

/// Notes who asks, if that is found out while the request is carried out.
pub(super) fn is(author: &str) {
    learn(|learned| learned.author = Some(author.to_owned()));
}

/// Notes that the request that this task carries out is for those who may do more than look.
pub(super) fn acts() {
    learn(|learned| learned.acts = true);
}

/// Notes why the request that this task carries out is refused.
pub(super) fn refused(kind: &str) {
    learn(|learned| learned.why = Some(kind.to_owned()));
}

/// The same requests, of those who may come in by a place, or over a link if none is named; each with its line,
/// and no more of one who asks than the limit. All of it is one layer: each costs as much as most handlers.
pub(crate) fn attended(router: Router, place: Option<Place>, context: &Shared) -> Router {
    let attended = Attended { place, context: context.clone() };
    router.layer(middleware::from_fn_with_state(attended, audit))
}

/// Where requests come from, and to what.
#[derive(Clone)]
struct Attended {
    place: Option<Place>,
    context: Shared,
}

async fn audit(
    State(Attended { place, context }): State<Attended>,
    request: Request,
    next: Next,
) -> Response {
    let learned = Arc::new(Mutex::default());
    let line = Line {
        audit: context.audit.clone(),
        changes: changes(request.method()),
        event: Some(event(&request)),
        learned: learned.clone(),
    };
    let response = LEARNED.scope(learned, admit(&context, place, request, next)).await;
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        context.metrics.refused("size");
    }
    line.answered(response.status()).await;
    response
}

/// The line of a request that is under way. If it is dropped, whoever asked is gone.
struct Line {
    audit: Audit,
    changes: bool,
    event: Option<Event>,
    learned: Arc<Mutex<Learned>>,
}

impl Line {
    fn complete(&mut self, status: Option<StatusCode>) -> Option<Event> {
        let wanted = self.changes || self.audit.reads() || status.is_some_and(is_refusal);
        let mut event = self.event.take().filter(|_| wanted)?;
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Learned { author, role, door, operation, subject, why, acts } = learned;
        event.status = status.map(|status| status.as_u16());
        event.why = why.filter(|_| status.is_none_or(|status| status.as_u16() >= 400));
        // Who wants lines of those that read gets them all.
        event.looks = self.changes && !acts;
        Some(Event { author, role, door: door.or(event.door), operation, subject, ..event })
    }

    async fn answered(mut self, status: StatusCode) {
        if let Some(event) = self.complete(Some(status)) {
            self.audit.record(event).await;
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(event) = self.complete(None) {
            self.audit.note(event);
        }
    }
}

fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether one who only looks was refused, rather than that there was nothing to see.
fn is_refusal(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::TOO_MANY_REQUESTS
    )
}

/// What can be said of a request before it is carried out.
fn event(request: &Request) -> Event {
    let (caller, from) = (caller(request), address(request));
    Event {
        door: caller.as_ref().map(|_| "link".to_owned()),
        from: caller.or_else(|| user(request)).or_else(|| from.map(|from| from.to_string())),
        method: Some(request.method().to_string()),
        path: Some(request.uri().path().to_owned()),
        resource: resource(request.uri().path()),
        ..Event::of(What::Request)
    }
}

fn caller(request: &Request) -> Option<String> {
    request.extensions().get().map(|Caller(site)| site.to_string())
}

fn user(request: &Request) -> Option<String> {
    request.extensions().get().map(|Connected { uid }| format!("user {uid}"))
}

pub(super) fn address(request: &Request) -> Option<SocketAddr> {
    request.extensions().get().map(|From(address)| *address)
}

/// The resource that a path names.
fn resource(path: &str) -> Option<String> {
    let rest = OF_RESOURCES.iter().find_map(|of| path.strip_prefix(of))?;
    let id = rest.split('/').next().filter(|id| !id.is_empty())?;
    percent_decode_str(id).decode_utf8().ok().map(Cow::into_owned)
}

/// Lets in who may, as often as it may.
async fn admit(
    context: &Shared,
    place: Option<Place>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(place) = place else { return limit(context, request, next).await };
    match door::enter(context, place, &mut request).await {
        Ok(proof) => {
            let answer = limit(context, request, next).await;
            door::while_counts(answer, &context.access, proof)
        }
        Err(refusal) => refusal,
    }
}

async fn limit(context: &Context, request: Request, next: Next) -> Response {
    let who = request.extensions().get::<Who>();
    learn(|learned| {
        learned.author = who.map(|who| who.author.to_string());
        learned.role = who.and_then(|who| Some(who.role.as_ref()?.as_str().to_owned()));
        learned.door = who.map(|who| named(&who.door).to_owned());
    });
    let key = bucket(who, address(&request));
    match over_rate(context, &key) {
        None => next.run(request).await,
        Some(refusal) => refusal,
    }
}

/// The answer to one who asks too often, if that is so.
fn over_rate(context: &Context, key: &str) -> Option<Response> {
    let now = context.started.elapsed();
    let taken = {
        let mut rates = context.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.take(key, now)
    };
    taken.err().map(|wait| {
        context.metrics.refused("rate");
        too_many(context, wait)
    })
}

/// The answer to one who is not let in. Whoever tries that too often is told so instead: nobody knows who it
/// is, so that it is counted by where it comes from.
pub(super) fn not_let_in(
    context: &Context,
    door: Door,
    from: Option<SocketAddr>,
    refusal: ApiError,
) -> Response {
    let key = bucket(Some(&Who::nobody(door)), from);
    over_rate(context, &key).unwrap_or_else(|| refusal.into_response())
}

/// By which door somebody came, in a word.
fn named(door: &Door) -> &'static str {
    match door {
        Door::Loopback => "loopback",
        Door::Socket { .. } => "socket",
        Door::Wide { .. } => "wide",
        Door::Link(_) => "link",
    }
}

/// Who shares a bucket: all that is asked for with one token; without one, by one site, user or machine.
pub(super) fn bucket(who: Option<&Who>, address: Option<SocketAddr>) -> String {
    let door = who.map(|who| &who.door);
    match (who.and_then(Who::token), door, address) {
        (Some(token), ..) => format!("token {token:?}"),
        (None, Some(Door::Link(site)), _) => format!("site {site}"),
        (None, Some(Door::Socket { uid }), _) => format!("user {uid}"),
        (None, _, Some(address)) => format!("address {}", network(address.ip())),
        (None, _, None) => "unknown".to_owned(),
    }
}

fn too_many(context: &Context, wait: Duration) -> Response {
    let rate = context.config.rates.rate;
    let seconds = wait.as_secs() + 1;
    let error = ApiError::new(
        StatusCode::TOO_MANY_REQUESTS,
        "too-many-requests",
        format!("you ask more than {rate} times a second, which is the limit here"),
        format!(
            "try again in {seconds} s, less often; `limits.rate` in its configuration is the limit"
        ),
    );
    let mut response = error.into_response();
    if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_resource_or_none() {
        for (path, expected) in [
            ("/api/v1/resources/web/operations", Some("web")),
            ("/api/v1/resources/web", Some("web")),
            ("/api/v1/resources/a%2Fb/show", Some("a/b")),
            ("/api/v1/resources/%ff", None),
            ("/api/v1/resources/", None),
            ("/api/v1/resources", None),
            ("/api/v1/federation/held/web/site3%3A7/adopt", Some("web")),
            ("/exec/web", Some("web")),
            ("/resources/web/run", Some("web")),
            ("/api/v1/sites/site2/pause", None),
        ] {
            assert_eq!(resource(path).as_deref(), expected, "{path}");
        }
    }
}
