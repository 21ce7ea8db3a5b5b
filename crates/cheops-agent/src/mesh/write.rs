//! Writes that become operations: creations at several sites, and changes of what was created so.
//!
//! A site of the resource takes the request down as an operation, whose action is the request. The
//! client gets the answer of the instance here; or that of another site, if the instance here can't be
//! reached; or the word that the operation is accepted, if nobody has answered in time.
//!
//! What must stay true:
//! - what a client is told about was accepted, and is durable here;
//! - a client that was answered by this site reads what it wrote at this site.

use std::time::Duration;

use bytes::Bytes;
use cheops_core::{
    id::{Author, Key, Kind, OpId, ResourceId, Sites},
    matrix::{self, Matrix},
    operation::{Action, Attachment, HttpBody, HttpRequest, Names},
    replica::{self, Refusal, Reply, Submission, Ticket},
    time::Millis,
};
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
};
use tokio::{sync::mpsc::UnboundedReceiver, time::Instant};

use super::{
    Head, Service, Shared,
    answer::Problem,
    body::{Body, Timed, reason},
    headers::{FOR, end_hop},
    heard::{Told, Waiting},
    pool::Answer,
    read::Named,
    request_id,
};
use crate::{
    api::{self, ApiError},
    files::FileError,
    node::Stopping,
    policy::MESH,
    replicants::{Name, Replicant},
    rest::{
        ids, kinds,
        rewrite::{canonical, is_own},
    },
};

/// How many bytes of a body go into the operation itself. More is a file, which each site fetches.
const INLINE: usize = 32 << 10;
/// How many of a document that is divided: each site takes its part of what the operation holds.
pub(super) const DIVISIBLE: usize = 1 << 20;
/// Who asks, in the operation.
pub(super) const AUTHOR: &str = MESH;
/// How long the disk may take to write an operation down.
const ACCEPT: Duration = Duration::from_secs(10);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Headers that say who asks.
const CREDENTIALS: [HeaderName; 2] =
    [header::AUTHORIZATION, HeaderName::from_static("x-auth-token")];

/// Headers that are about the way of a request, or about a body that is passed on in another form.
const ON_THE_WAY: [HeaderName; 6] = [
    header::ACCEPT_ENCODING,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::FORWARDED,
    header::RANGE,
    IDEMPOTENCY_KEY,
];

/// A header field, as an operation holds it.
type Field = (Box<str>, Box<str>);

/// An operation that was taken down, and what is heard of it.
type Accepted = (OpId, Sites, UnboundedReceiver<replica::Answer>);

/// What an operation is to do.
pub(super) struct Wanted {
    resource: ResourceId,
    /// Where to create it, and how; none if it exists.
    creates: Option<(Sites, matrix::Config)>,
    /// Where it exists, if it has the same path at all sites: a delete may be over, and it may be
    /// forgotten, before anything is written down.
    natural: Option<Sites>,
    /// How it is divided, if it is.
    pub(super) parts: Vec<Sites>,
    kind: Kind,
    names: Names,
    target: String,
}

/// An operation that was accepted, and what came of it.
pub(super) struct Operated {
    pub(super) resource: ResourceId,
    pub(super) op: OpId,
    /// What is told to the client.
    pub(super) outcome: Told,
    /// What else was heard by then.
    pub(super) others: Vec<Reply>,
}

impl Wanted {
    /// A request that creates at several sites: something new, or what its path names. `target` is its
    /// target with the ids that all sites know; `parts` are how it is divided, if it is.
    pub(super) fn creation(
        service: &Service,
        request: &Parts,
        target: String,
        sites: Sites,
        parts: Vec<Sites>,
    ) -> Result<Self, Box<Problem>> {
        let makes = request.method == Method::POST;
        let (resource, names) = if makes {
            let meta = ids::meta(&service.config.ids, random(service, request, &target));
            let resource = ids::resource_id(service.name(), &meta);
            (resource, Names::Makes(meta.into()))
        } else {
            (ids::natural_resource(service.name(), &target), Names::Nothing)
        };
        let resource = resource.map_err(|error| refused(&ApiError::from(error)))?;
        let (place, matrix) = if makes {
            (kinds::Place::Collection, kinds::made())
        } else {
            (kinds::Place::Own, kinds::natural())
        };
        Ok(Self {
            resource,
            creates: Some((sites, configured(service, matrix, parts.clone()))),
            natural: None,
            parts,
            kind: kind(&request.method, place)?,
            names,
            target,
        })
    }

    /// A request that changes what is known. `target` is its target with the ids that all sites know.
    pub(super) fn change(
        replicant: &Replicant,
        method: &Method,
        target: String,
    ) -> Result<Self, Box<Problem>> {
        let (names, own) = match &replicant.name {
            Name::Meta { id, .. } => (Names::Uses(id.clone()), is_own(&target, id)),
            Name::Path(own) => (Names::Nothing, canonical(&target) == **own),
        };
        let place = if own { kinds::Place::Own } else { kinds::Place::Below };
        Ok(Self {
            resource: replicant.resource.clone(),
            creates: None,
            natural: (names == Names::Nothing && *method != Method::POST)
                .then(|| replicant.sites.clone()),
            parts: replicant.parts.clone(),
            kind: kind(method, place)?,
            names,
            target,
        })
    }

    /// The id that stands for it, if Cheops has made one.
    pub(super) fn meta(&self) -> Option<&str> {
        match &self.names {
            Names::Makes(meta) | Names::Uses(meta) => Some(meta),
            Names::Nothing => None,
        }
    }
}

/// How operations on what a service has meet, and how it is divided.
fn configured(service: &Service, matrix: Matrix, parts: Vec<Sites>) -> matrix::Config {
    let matrix = service.config.matrix.clone().unwrap_or(matrix);
    matrix::Config { matrix, parts, ..matrix::Config::default() }
}

fn kind(method: &Method, place: kinds::Place) -> Result<Kind, Box<Problem>> {
    kinds::kind(method, place).map_err(|error| refused(&ApiError::from(error)))
}

/// What a new id is made of: chance, or what the client calls its request, so that the same request
/// again is the same resource. Clients don't know of each other's keys: who it is that asks, and what
/// for, takes part as well.
fn random(service: &Service, request: &Parts, target: &str) -> u128 {
    let headers = &request.headers;
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return fastrand::u128(..) };
    let mut hash = blake3::Hasher::new_derive_key("cheops meta id of a request with a key");
    let mut add = |part: &[u8]| {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part);
    };
    add(service.name().as_str().as_bytes());
    add(key.as_bytes());
    add(request.method.as_str().as_bytes());
    add(target.as_bytes());
    for name in &CREDENTIALS {
        add(headers.get(name).map_or(&[], HeaderValue::as_bytes));
    }
    let mut random = [0; 16];
    hash.finalize_xof().fill(&mut random);
    u128::from_le_bytes(random)
}

impl Shared {
    /// Takes a request down as an operation of a resource of this site, and waits for what the client
    /// is to be told.
    pub(super) async fn operate(
        &self,
        service: &Service,
        named: Option<&Named>,
        wanted: Wanted,
        mut request: Head,
        body: Body,
    ) -> Result<Operated, Box<Problem>> {
        let limits = service.config.limits;
        let key = key(&request.headers)?;
        end_hop(&mut request.headers);
        self.give_id(&mut request.headers, named);
        let divided = !wanted.parts.is_empty();
        let inline = if divided && is_document(&body) { DIVISIBLE } else { INLINE };
        let headers = kept(&request.headers)?;
        let body = self.stored(body, inline, limits.idle).await?;
        let action = Action::Http(Box::new(HttpRequest {
            service: service.name().clone(),
            method: request.method.as_str().into(),
            target: wanted.target.into(),
            headers,
            body,
            names: wanted.names,
        }));
        let author: Author = AUTHOR.parse().map_err(|error| refused(&ApiError::from(error)))?;
        let (sites, config) = wanted.creates.unzip();
        let resource = wanted.resource;
        let submission = Submission {
            ticket: Ticket(0),
            resource: resource.clone(),
            sites,
            config,
            kind: wanted.kind,
            author,
            action,
            force: false,
            // What the instance here can't do, those of other sites may.
            keep_going: true,
            key,
            wait: Millis::from(limits.answer),
        };
        let anew = wanted.natural.map(|sites| Submission {
            sites: Some(sites),
            config: Some(configured(service, kinds::natural(), wanted.parts.clone())),
            ..submission.clone()
        });
        let limit = limits.answer + ACCEPT;
        let (op, sites, mut answers) = match (self.accept(submission, limit).await?, anew) {
            (Err(Refusal::NoSites(_)), Some(anew)) => {
                self.accept(anew, limit).await?.map_err(unwilling)?
            }
            (accepted, _) => accepted.map_err(unwilling)?,
        };
        let catalogue = self.catalogue();
        let parts = wanted.parts.iter().flat_map(Sites::iter);
        let waiting = Waiting {
            here: &self.here,
            instance: service.instance.as_ref(),
            until: Instant::now() + limits.answer,
            peers: &self.peers,
            all: parts.filter(|site| catalogue.is_reachable(site)).cloned().collect(),
            others: sites.iter().filter(|site| **site != self.here).cloned().collect(),
            cut: false,
        };
        let heard = waiting.hear(&mut answers).await;
        // Nobody is told of a name that can't be found here yet.
        let _ = self.replicants.look(&self.node, &resource).await;
        let (outcome, others) = heard.told();
        Ok(Operated { resource, op, outcome, others })
    }

    /// Has an operation taken down, if the core does not refuse it.
    async fn accept(
        &self,
        submission: Submission,
        limit: Duration,
    ) -> Result<Result<Accepted, Refusal>, Box<Problem>> {
        let admitted = api::admit(&self.gate, &self.node, &self.here, &submission).await;
        admitted.map_err(|error| refused(&error))?;
        let mut answers =
            self.node.submit(submission).await.map_err(|busy| refused(&busy.into()))?;
        match tokio::time::timeout(limit, answers.recv()).await {
            Ok(Some(replica::Answer::Accepted(op, sites))) => Ok(Ok((op, sites, answers))),
            Ok(Some(replica::Answer::Refused(refusal))) => Ok(Err(refusal)),
            Ok(Some(_) | None) => {
                let stalled = self.node.health().stalled();
                Err(refused(&stalled.map_or_else(|| Stopping.into(), ApiError::from)))
            }
            Err(_) => Err(Problem::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "not-confirmed",
                "the agent could not write the request down in time; it may still, when the store takes it",
                "send it again with the same Idempotency-Key, and it is not carried out twice",
            )),
        }
    }

    /// Gives an operation's request an id, and says its scope, so that calls that the application makes
    /// for it can be attributed to it at each site.
    fn give_id(&self, headers: &mut HeaderMap, named: Option<&Named>) {
        if let Some(named) = named {
            let scope = HeaderValue::from_bytes(named.scope.to_string().as_bytes());
            headers.extend(scope.ok().map(|scope| (FOR, scope)));
        }
        match (&self.correlation, named) {
            (Some(correlation), named) => {
                correlation.give_id(headers, named.is_some());
            }
            // This site takes no calls, but others may.
            (None, Some(_)) => {
                request_id::give(&self.config.link_by, headers, request_id::random());
            }
            (None, None) => {}
        }
    }

    /// A body as an operation holds it.
    async fn stored(
        &self,
        body: Body,
        inline: usize,
        idle: Duration,
    ) -> Result<HttpBody, Box<Problem>> {
        let broken = |why: String| super::serve::broken_body(&why);
        let body = body.keep(inline, idle).await.map_err(|error| broken(reason(&*error)))?;
        match body {
            Body::Empty => Ok(HttpBody::None),
            Body::Whole(bytes, _) if bytes.len() <= inline => {
                Ok(HttpBody::Inline(bytes.to_vec().into()))
            }
            body => {
                let data = Timed::new(body, idle).into_data_stream();
                let content = stream::unfold(data, async |mut data| {
                    data.next().await.map(|part: Result<Bytes, _>| (part, data))
                });
                let stored = self.files.put(content).await;
                let (content, length) = stored.map_err(|error| match error {
                    FileError::Broken(why) => broken(why),
                    error => refused(&ApiError::from(error)),
                })?;
                Ok(HttpBody::File(Attachment { name: "body".into(), content, length }))
            }
        }
    }
}

/// Whether a body is JSON, whatever it is said to be, and can be divided.
fn is_document(body: &Body) -> bool {
    let Body::Whole(bytes, _) = body else { return false };
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

/// What the client calls its request.
fn key(headers: &HeaderMap) -> Result<Option<Key>, Box<Problem>> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = key.to_str().ok().and_then(|key| key.parse().ok());
    key.map(Some).ok_or_else(|| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "bad-idempotency-key",
            "the Idempotency-Key is not plain text",
            "name one, of letters and digits",
        )
    })
}

/// The headers that each site's instance gets. An operation holds text: what is none is refused, as to
/// leave it out would change the request.
fn kept(headers: &HeaderMap) -> Result<Box<[Field]>, Box<Problem>> {
    let is_kept = |name: &HeaderName| {
        !ON_THE_WAY.contains(name) && !name.as_str().starts_with("x-forwarded-")
    };
    let field = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = std::str::from_utf8(value.as_bytes()).map_err(|_| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "bad-header",
                format!(
                    "the value of `{name}` is not text in UTF-8, and can't be kept for each site"
                ),
                "send it in UTF-8, or encoded, or leave the header out",
            )
        })?;
        Ok((name.as_str().into(), value.into()))
    };
    headers.iter().filter(|(name, _)| is_kept(name)).map(field).collect()
}

/// An error of the agent, in the words of the mesh.
pub(super) fn refused(error: &ApiError) -> Box<Problem> {
    let problem = &*error.0;
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
    Problem::new(status, problem.kind.clone(), problem.detail.clone(), problem.hint.clone())
}

fn unwilling(refusal: Refusal) -> Box<Problem> {
    match refusal {
        Refusal::NoSites(id) => Problem::new(
            StatusCode::NOT_FOUND,
            "unknown-resource",
            format!("`{id}` was deleted, and is forgotten at this site"),
            "look at what there is now, and create it again if it is still wanted",
        ),
        other => refused(&other.into()),
    }
}

impl Operated {
    /// What a client is told that nobody has answered yet.
    pub(super) fn accepted(&self, meta: Option<&str>) -> Response<Answer> {
        let value = serde_json::json!({
            "operation": self.op.to_string(),
            "resource": self.resource.as_str(),
            "id": meta,
            "detail": "accepted: each site carries it out as soon as its instance can be reached",
        });
        let mut response = Response::new(Answer::from(Bytes::from(value.to_string())));
        *response.status_mut() = StatusCode::ACCEPTED;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use crate::{config, metrics::Metrics};

    fn service() -> Service {
        let config =
            config::Service::new("image".parse().unwrap(), "127.0.0.1:1".parse().unwrap(), None);
        let counts = Metrics::default().service(&config.name);
        Service { config, instance: None, counts }
    }

    fn made(method: &str, target: &str, headers: &[(&str, &str)]) -> u128 {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (request, ()) = request.body(()).unwrap().into_parts();
        random(&service(), &request, target)
    }

    #[test]
    fn a_request_with_a_key_has_the_same_id_again_and_that_of_another_client_has_another() {
        let key = ("idempotency-key", "1");
        let (one, other) = (("x-auth-token", "one"), ("x-auth-token", "other"));
        let first = made("POST", "/v2/images", &[key, one]);
        assert_eq!(made("POST", "/v2/images", &[key, one, ("x-request-id", "r2")]), first);
        for (method, target, headers) in [
            ("POST", "/v2/images", &[key, other][..]),
            ("POST", "/v2/images", &[key]),
            ("POST", "/v2/images", &[key, ("authorization", "one")]),
            ("POST", "/v2/groups", &[key, one]),
            ("PUT", "/v2/images", &[key, one]),
            ("POST", "/v2/images", &[("idempotency-key", "2"), one]),
            ("POST", "/v2/images", &[one]),
        ] {
            assert_ne!(made(method, target, headers), first, "{method} {target} {headers:?}");
        }
    }

    #[test]
    fn a_client_is_told_what_a_client_can_do() {
        let id: ResourceId = "image~m".parse().unwrap();
        let op: OpId = "site1:7".parse().unwrap();
        for (refusal, status, kind) in [
            (Refusal::NoSites(id), 404, "unknown-resource"),
            (Refusal::KeyReused { key: "k".parse().unwrap(), op }, 409, "key-reused"),
        ] {
            let problem = unwilling(refusal);
            assert_eq!((problem.status, &*problem.kind), (status, kind));
            assert!(!problem.hint.contains("cheops exec"), "{problem:?}");
        }
    }

    #[test]
    fn headers_are_kept_as_they_are_or_refused() {
        let mut headers = HeaderMap::new();
        headers.insert("x-name", HeaderValue::from_bytes("Zoë".as_bytes()).unwrap());
        headers.append("x-name", HeaderValue::from_static("plain"));
        headers.insert("x-forwarded-for", HeaderValue::from_static("1.2.3.4"));
        headers.insert("expect", HeaderValue::from_static("100-continue"));
        let fields = kept(&headers).unwrap();
        let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(fields, [("x-name", "Zoë"), ("x-name", "plain")]);
        headers.insert("x-latin", HeaderValue::from_bytes(b"Zo\xeb").unwrap());
        let refused = kept(&headers).unwrap_err();
        assert!(refused.detail.contains("x-latin"), "{refused:?}");
    }
}
