//! Writes that become operations: creations at several sites, and changes of what was created so.
//!
//! A site of the resource takes the request down as an operation, whose action is the request. The
//! client gets the answer of the instance here; or that of another site, if the instance here can't be
//! reached; or the word that the operation is accepted, if nobody has answered in time.
//!
//! What must stay true:
//! - what a client is told about was accepted, and is durable here;
//! - a client that was answered by this site reads what it wrote at this site.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use cheops_core::{
    id::{Author, Key, Kind, OpId, ResourceId, SiteId, Sites},
    matrix,
    operation::{Action, Attachment, HttpBody, HttpRequest, Names},
    plan::Outcome,
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
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Service, Shared,
    answer::Problem,
    body::{Body, Timed},
    headers::{FOR, end_hop},
    hide::format,
    linked::give_ids,
    pool::{Answer, Upstream},
    read::Named,
};
use crate::{
    api::ApiError,
    node::{Busy, Health, Stopping},
    replicants::{Name, Replicant},
    rest::{
        ids, kinds,
        rewrite::{Format, canonical, is_own},
    },
    run,
};

/// How many bytes of a body go into the operation itself. More is a file, which each site fetches.
const INLINE: usize = 32 << 10;
/// How many of a document that is divided: each site takes its part of what the operation holds.
pub(super) const DIVISIBLE: usize = 1 << 20;
/// How long the other sites may take to succeed where this one has failed.
const GRACE: Duration = Duration::from_secs(1);
/// Who asks, in the operation.
const AUTHOR: &str = "mesh";
/// How long the disk may take to write an operation down.
const ACCEPT: Duration = Duration::from_secs(10);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Headers that are about the way of a request, or about a body that is passed on in another form.
const ON_THE_WAY: [HeaderName; 6] = [
    header::ACCEPT_ENCODING,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::FORWARDED,
    header::RANGE,
    IDEMPOTENCY_KEY,
];

/// What an operation is to do.
pub(super) struct Wanted {
    resource: ResourceId,
    /// Where to create it, and how; none if it exists.
    creates: Option<(Sites, matrix::Config)>,
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

/// What is known of an operation when the client is answered.
pub(super) enum Told {
    /// How it went at a site.
    Reply(Box<Reply>),
    /// Another operation won over it.
    Superseded(OpId),
    /// Nobody has said.
    Nothing,
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
            let meta = ids::meta(&service.config.ids, random(service, &request.headers));
            let resource = ids::resource_id(service.name(), &meta);
            (resource, Names::Makes(meta.into()))
        } else {
            (ids::natural_resource(service.name(), &target), Names::Nothing)
        };
        let resource = resource.map_err(|error| refused(&ApiError::from(error)))?;
        let (place, matrix, reset) = if makes {
            (kinds::Place::Collection, kinds::made(), None)
        } else {
            (kinds::Place::Own, kinds::natural(), Some(kinds::NATURAL_RESET.to_owned()))
        };
        let matrix = service.config.matrix.clone().unwrap_or(matrix);
        let config =
            matrix::Config { matrix, reset, parts: parts.clone(), ..matrix::Config::default() };
        Ok(Self {
            resource,
            creates: Some((sites, config)),
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

fn kind(method: &Method, place: kinds::Place) -> Result<Kind, Box<Problem>> {
    kinds::kind(method, place).map_err(|error| refused(&ApiError::from(error)))
}

/// What a new id is made of: chance, or what the client calls its request, so that the same request
/// again is the same resource.
fn random(service: &Service, headers: &HeaderMap) -> u128 {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return fastrand::u128(..) };
    let mut hash = blake3::Hasher::new_derive_key("cheops meta id of a request with a key");
    hash.update(service.name().as_str().as_bytes()).update(&[0]).update(key.as_bytes());
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
        mut request: Parts,
        body: Body,
    ) -> Result<Operated, Box<Problem>> {
        let limits = service.config.limits;
        let key = key(&request.headers)?;
        end_hop(&mut request.headers);
        if let Some(named) = named {
            self.link_runs(&mut request.headers, named);
        }
        let divided = !wanted.parts.is_empty();
        let inline = if divided { divisible(&request.headers) } else { INLINE };
        let (body, headers) =
            (self.stored(body, inline, limits.idle).await?, kept(&request.headers));
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
        let creates = sites.is_some();
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
        let mut answers =
            self.node.submit(submission).await.map_err(|busy| refused(&busy.into()))?;
        let accepted = tokio::time::timeout(limits.answer + ACCEPT, answers.recv()).await;
        let (op, sites) = match accepted {
            Ok(Some(replica::Answer::Accepted(op, sites))) => (op, sites),
            Ok(Some(replica::Answer::Refused(refusal))) => return Err(unwilling(refusal)),
            Ok(Some(_) | None) => {
                return Err(refused(&match self.node.health() {
                    Health::Stalled { why } => Busy::Stalled(why).into(),
                    Health::Well | Health::Full { .. } => Stopping.into(),
                }));
            }
            Err(_) => {
                return Err(Problem::new(
                    StatusCode::INSUFFICIENT_STORAGE,
                    "not-confirmed",
                    "the agent could not write the request down in time; it may still, when the disk lets it",
                    "send it again with the same Idempotency-Key, and it is not carried out twice",
                ));
            }
        };
        let catalogue = self.catalogue();
        let parts = wanted.parts.iter().flat_map(Sites::iter);
        let waiting = Waiting {
            here: &self.here,
            instance: service.instance.as_ref(),
            until: Instant::now() + limits.answer,
            all: parts.filter(|site| catalogue.is_reachable(site)).cloned().collect(),
        };
        let heard = waiting.hear(&mut answers).await;
        if creates && heard.all_failed() {
            self.give_up_later(resource.clone(), sites.len(), heard.replies.len(), answers);
        }
        // Nobody is told of a name that can't be found here yet.
        let _ = self.replicants.look(&self.node, &resource).await;
        let (outcome, others) = heard.told();
        Ok(Operated { resource, op, outcome, others })
    }

    /// Has calls that the application makes while it carries out the request linked to its scope, at
    /// each site.
    fn link_runs(&self, headers: &mut HeaderMap, named: &Named) {
        let scope = HeaderValue::from_bytes(named.scope.to_string().as_bytes());
        headers.extend(scope.ok().map(|scope| (FOR, scope)));
        give_ids(&self.config.link_by, headers, fastrand::u128(..));
    }

    /// Forgets a resource if none of its sites could create it: there is nothing of it.
    fn give_up_later(
        &self,
        resource: ResourceId,
        sites: usize,
        mut failed: usize,
        mut answers: UnboundedReceiver<replica::Answer>,
    ) {
        let node = self.node.clone();
        let (Ok(kind), Ok(author)) = (Kind::DELETE.parse(), AUTHOR.parse()) else { return };
        let submission = Submission {
            ticket: Ticket(0),
            resource,
            sites: None,
            config: None,
            kind,
            author,
            action: Action::Steps([].into()),
            force: false,
            keep_going: true,
            key: None,
            wait: Millis(0),
        };
        self.tasks.spawn(async move {
            while failed < sites {
                match answers.recv().await {
                    Some(replica::Answer::Reply(reply)) if reply.outcome == Outcome::Ko => {
                        failed += 1;
                    }
                    _ => return,
                }
            }
            // If this is lost, the resource is shown as failed, and can be deleted.
            let _ = node.submit(submission).await;
        });
    }

    /// A body as an operation holds it.
    async fn stored(
        &self,
        body: Body,
        inline: usize,
        idle: Duration,
    ) -> Result<HttpBody, Box<Problem>> {
        let broken = |why: String| super::serve::broken_body(&why);
        let body = body.keep(inline, idle).await.map_err(|error| broken(error.to_string()))?;
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
                let (content, length) = stored.map_err(|error| refused(&ApiError::from(error)))?;
                Ok(HttpBody::File(Attachment { name: "body".into(), content, length }))
            }
        }
    }
}

/// How many bytes of a body that is divided the operation holds.
pub(super) fn divisible(headers: &HeaderMap) -> usize {
    if format(headers) == Some(Format::Json) { DIVISIBLE } else { INLINE }
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

/// The headers that each site's instance gets.
fn kept(headers: &HeaderMap) -> Box<[(Box<str>, Box<str>)]> {
    let is_kept = |name: &&HeaderName| {
        !ON_THE_WAY.contains(name) && !name.as_str().starts_with("x-forwarded-")
    };
    let names = headers.keys().filter(is_kept);
    let fields = names.flat_map(|name| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.map(|value| (name.as_str().into(), value.into()))
    });
    fields.collect()
}

/// An error of the agent, in the words of the mesh.
pub(super) fn refused(error: &ApiError) -> Box<Problem> {
    let problem = &*error.0;
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
    Problem::new(status, problem.kind.clone(), problem.detail.clone(), problem.hint.clone())
}

fn unwilling(refusal: Refusal) -> Box<Problem> {
    refused(&refusal.into())
}

/// Who waits for what.
struct Waiting<'a> {
    here: &'a SiteId,
    instance: Option<&'a Upstream>,
    until: Instant,
    /// Sites that each have a part of the answer.
    all: BTreeSet<SiteId>,
}

/// What was heard of an operation.
#[derive(Default)]
struct Heard {
    replies: Vec<Reply>,
    /// The one to tell of, if it is known already.
    good: Option<usize>,
    superseded: Option<OpId>,
}

impl Heard {
    /// Takes note of a reply. What this site says comes first.
    fn add(&mut self, reply: Reply, here: &SiteId) {
        let ours = reply.id.site == *here;
        // A site that has no part in it has nothing to say.
        let is_answer = run::answer::Answer::of_reply(&reply.output).is_some();
        let is_good = reply.outcome == Outcome::Ok && is_answer;
        let place = if ours { 0 } else { self.replies.len() };
        self.replies.insert(place, reply);
        if ours {
            self.good = self.good.map(|good| good + 1);
        }
        if is_good && (ours || self.good.is_none()) {
            self.good = Some(place);
        }
    }

    fn has(&self, site: &SiteId) -> bool {
        self.replies.iter().any(|reply| reply.id.site == *site)
    }

    fn all_failed(&self) -> bool {
        self.replies.iter().all(|reply| reply.outcome == Outcome::Ko)
    }

    /// The reply that a client is told of, the good one or the first, and the others.
    fn told(mut self) -> (Told, Vec<Reply>) {
        let first = (!self.replies.is_empty()).then_some(0);
        let told = match (self.good.or(first), self.superseded.take()) {
            (Some(n), _) => Told::Reply(Box::new(self.replies.swap_remove(n))),
            (None, Some(by)) => Told::Superseded(by),
            (None, None) => Told::Nothing,
        };
        (told, self.replies)
    }
}

impl Waiting<'_> {
    /// Hears until there is something to tell: that it went well here; that it went well elsewhere, and
    /// the instance here has failed or can't be reached; or that nothing came in time.
    async fn hear(&self, answers: &mut UnboundedReceiver<replica::Answer>) -> Heard {
        let mut heard = Heard::default();
        let mut until = self.until;
        let mut expected = self.instance.is_some();
        loop {
            let answer = tokio::select! {
                answer = answers.recv() => answer,
                () = self.gone(), if expected && heard.good.is_some() => None,
                () = sleep_until(until) => None,
            };
            match answer {
                Some(replica::Answer::Reply(reply)) => {
                    if reply.id.site == *self.here {
                        expected = false;
                        if reply.outcome != Outcome::Ok {
                            until = until.min(Instant::now() + GRACE);
                        }
                    }
                    heard.add(*reply, self.here);
                    let complete = self.all.iter().all(|site| heard.has(site));
                    if heard.good.is_some() && !expected && complete {
                        return heard;
                    }
                }
                Some(replica::Answer::Superseded { by }) => heard.superseded = Some(by),
                Some(replica::Answer::Accepted(..)) => {}
                Some(
                    replica::Answer::Silent(_)
                    | replica::Answer::Done
                    | replica::Answer::Refused(_),
                )
                | None => return heard,
            }
        }
    }

    /// Returns when the instance here can't be reached.
    async fn gone(&self) {
        let Some(instance) = self.instance else { return };
        while instance.is_there().await {
            sleep(GRACE).await;
        }
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
