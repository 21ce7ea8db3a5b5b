//! Collections of several sites, asked at once, and one answer made of theirs.
//!
//! What must stay true: a site that does not answer, or not to the end, is named, and keeps nothing from
//! the others; what the answer says is about all of it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use cheops_core::id::{ResourceId, SiteId, Sites};
use futures_util::{
    StreamExt as _,
    future::{self, join_all},
    stream,
};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_LOCATION,
        CONTENT_TYPE, ETAG, EXPECT, HOST, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE,
        IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, LINK, RANGE,
    },
    http::{
        request::Parts,
        response,
        uri::{Authority, PathAndQuery},
    },
};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    Head, Service, Shared,
    asking::Asking,
    attempt::Came,
    body::Body,
    forward::{Attempt, Forwarded, Nothing},
    headers::SITE,
    hide::{forget_bytes, format},
    pool::Answer,
    read::Named,
    replicated::{asked, retarget},
};
use crate::{
    api::model,
    rest::{
        gather::{lists, next_page},
        ids::resource_id,
        link,
        rewrite::Format,
        same::{Held, Known, repeated},
    },
};

/// How many pages of one site are followed.
const PAGES: usize = 1_000;
/// Of how many resources other sites are asked what they have of them, and of how many at once.
const MOST_ASKED: usize = 200;
const ASKED_AT_ONCE: usize = 16;
/// How long they may take, and how much they may say.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_TOLD: usize = 64 << 10;

/// What a site is not asked: what the client has already is not what this site has, and there is no body.
const NOT_ASKED: [HeaderName; 10] = [
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
];

/// What an answer says about itself that is not so of one made of several.
const OF_ONE: [HeaderName; 6] = [
    ACCEPT_RANGES,
    CONTENT_LOCATION,
    ETAG,
    LAST_MODIFIED,
    LINK,
    HeaderName::from_static("x-total-count"),
];

/// Sites that did not answer.
const MISSING: HeaderName = HeaderName::from_static("x-cheops-missing");
/// How many items each site gave, by the name of each list.
const ITEMS: HeaderName = HeaderName::from_static("x-cheops-items");

/// What a site answered.
pub(super) struct Said {
    pub(super) site: SiteId,
    pub(super) head: response::Parts,
    /// Its pages.
    pub(super) values: Vec<Value>,
    /// Why these are not all of its pages, if they are not.
    pub(super) cut: Option<String>,
}

/// Why there is nothing to merge of a site.
pub(super) enum Unsaid {
    /// It did not answer: what came instead, and why.
    Missing(Came, String),
    /// It answered, and not with a document.
    Other(Box<Response<Answer>>),
}

impl Shared {
    /// Reads a collection at all sites of a scope, and answers with all of it.
    pub(super) async fn collect(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        across: &[Sites],
        parts: Head,
    ) -> Attempt {
        let asking = Asking::new(service, named, &self.gathered);
        let asked = across
            .iter()
            .map(|sites| self.pages(&asking, self.nearest(sites.iter()), parts.clone()));
        let answers = join_all(asked).await;
        if let Some(problem) = asking.is_full() {
            return Ok(self.refuse(&problem.about(named)));
        }
        let (mut said, mut missing, mut whys) = (Vec::new(), Vec::new(), Vec::new());
        let mut came = Came::Silence;
        // What can't be merged: that something was refused, that there is nothing, or other content.
        let (mut refusal, mut nothing, mut contents) = (None, None, VecDeque::new());
        for (sites, answer) in across.iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    if let Some(why) = &answer.cut {
                        missing.push(sites.to_string());
                        whys.push(format!("{}: {why}", answer.site));
                    }
                    said.push(answer);
                }
                Err(Unsaid::Missing(instead, why)) => {
                    missing.push(sites.to_string());
                    whys.push(why);
                    // A client that hears of a site that was late may wait longer next time.
                    came = if came == Came::Late { came } else { instead };
                }
                Err(Unsaid::Other(response)) => match response.status() {
                    StatusCode::NOT_FOUND | StatusCode::GONE => {
                        nothing = nothing.or(Some(response));
                    }
                    status if status.is_success() => contents.push_back((sites, response)),
                    _ => refusal = refusal.or(Some(response)),
                },
            }
        }
        // What one site refuses is the answer: the request itself is wrong.
        if let Some(response) = refusal {
            return Ok(*response);
        }
        // Content is told of one site, and not to have something of those only that don't have it.
        let one = if said.is_empty() {
            contents.pop_front().map(|(_, response)| response).or(nothing)
        } else {
            None
        };
        for (sites, response) in contents {
            missing.push(sites.to_string());
            whys.push(format!("{sites}: it answered {}, and not in JSON", response.status()));
        }
        let strict = service.config.cross.strict && !missing.is_empty();
        match one {
            Some(response) if !strict => Ok(of_one(*response, &missing)),
            None if !strict && !said.is_empty() => Ok(self.merge(&asking, said, &missing).await),
            _ => Err(Nothing { came, why: whys.join("; "), body: None }),
        }
    }

    /// All pages of a collection at the first of these sites that answers.
    pub(super) async fn pages(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        sites: Vec<SiteId>,
        parts: Head,
    ) -> Result<Said, Unsaid> {
        let mut said = self.first_page(asking, sites, parts.clone()).await?;
        said.cut = self.follow(asking, parts, &mut said).await.err();
        Ok(said)
    }

    /// A document of the first of these sites that answers.
    pub(super) async fn first_page(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        sites: Vec<SiteId>,
        parts: Head,
    ) -> Result<Said, Unsaid> {
        let (mut last, mut whys) = (Came::NotThere, Vec::new());
        for site in sites {
            match self.ask(asking, &site, parts.clone()).await {
                Err(Unsaid::Missing(came, why)) => {
                    last = came;
                    whys.push(why);
                }
                Err(other) => return Err(other),
                Ok((head, value)) => {
                    return Ok(Said { site, head, values: vec![value], cut: None });
                }
            }
        }
        Err(Unsaid::Missing(last, whys.join("; ")))
    }

    /// Fetches the pages after the first. The error says why not all of them.
    async fn follow(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        mut parts: Head,
        said: &mut Said,
    ) -> Result<(), String> {
        let service = asking.service;
        let next = |head: &response::Parts, value: Option<&Value>, parts: &Parts| {
            let told = value.and_then(|value| next_page(value, &service.config.cross));
            told.map_or_else(|| in_header(service, &head.headers, parts), |link| Ok(Some(link)))
        };
        let mut seen = BTreeSet::from([asked(&parts).to_owned()]);
        let mut link = next(&said.head, said.values.first(), &parts)?;
        while let Some(to) = link {
            let target = link::resolve(asked(&parts), &to);
            let Some(target) = target.filter(|target| target.parse::<PathAndQuery>().is_ok())
            else {
                return Err(format!("the link to its next page, `{to}`, leads nowhere"));
            };
            // A link that leads back would never end.
            if seen.len() >= PAGES || !seen.insert(target.clone()) {
                return Err(format!("its pages have no end: `{to}` after {}", seen.len()));
            }
            retarget(&mut parts, &target);
            match self.ask(asking, &said.site, parts.clone()).await {
                Ok((head, value)) => {
                    link = next(&head, Some(&value), &parts)?;
                    said.values.push(value);
                }
                Err(Unsaid::Missing(_, why)) => return Err(why),
                Err(Unsaid::Other(response)) => {
                    return Err(format!("`{to}` was answered with {}", response.status()));
                }
            }
        }
        Ok(())
    }

    /// One answer of those of several sites.
    pub(super) async fn merge(
        &self,
        asking: &Asking<'_>,
        said: Vec<Said>,
        missing: &[String],
    ) -> Response<Answer> {
        let sites: Vec<SiteId> = said.iter().map(|said| said.site.clone()).collect();
        let mut head = None;
        let mut answers = Vec::new();
        for said in said {
            head.get_or_insert(said.head);
            answers.extend(said.values.into_iter().map(|value| (said.site.clone(), value)));
        }
        let head = head.unwrap_or_else(|| Response::new(()).into_parts().0);
        let config = &asking.service.config;
        let known = self.known(asking.service, &answers).await;
        let merged = lists(answers, &config.cross, &known);
        let mut missing = missing.to_vec();
        missing.extend(merged.misfits.iter().map(ToString::to_string));
        let mut response = document(asking, head, &merged.value, &sites, &missing);
        let items = merged.items.iter().map(|(name, counts)| {
            let counts: Vec<String> =
                counts.iter().map(|(site, n)| format!("{site}={n}")).collect();
            format!("{name}: {}", counts.join(" "))
        });
        put(&mut response, ITEMS, &items.collect::<Vec<_>>().join(", "));
        response
    }

    /// What is held of the resources that more than one item is of, as far as it can be known.
    async fn known<'s>(&self, service: &'s Service, answers: &[(SiteId, Value)]) -> Known<'s> {
        let (pointers, divide) = (&service.config.ids.pointers, &service.config.divide);
        let repeated = repeated(answers, pointers);
        // Where nothing divides, nobody needs to be asked.
        if divide.is_empty() {
            let held = repeated.into_keys().map(|meta| (meta, Held::Copies)).collect();
            return Known { pointers, divide, held };
        }
        let known = repeated.into_iter().enumerate().map(async |(n, (meta, sites))| {
            let resource = resource_id(service.name(), &meta).ok()?;
            let held = match self.replicants.get(&resource) {
                Some(replicant) => of_parts(&replicant.parts),
                None if n < MOST_ASKED => self.held_elsewhere(&sites, &resource).await?,
                None => return None,
            };
            Some((meta, held))
        });
        let known = stream::iter(known).buffered(ASKED_AT_ONCE).filter_map(future::ready);
        Known { pointers, divide, held: known.collect().await }
    }

    /// The same of a resource that this site has no part in, asked of one that has.
    async fn held_elsewhere(
        &self,
        sites: &BTreeSet<SiteId>,
        resource: &ResourceId,
    ) -> Option<Held> {
        let site = self.nearest(sites).into_iter().find(|site| *site != self.here)?;
        let path = format!("/api/v1/replicants/{resource}?local=true");
        let request = Request::get(path).body(AnyBody::empty()).ok()?;
        let answer = timeout(PATIENCE, self.peers.call(&site, request)).await.ok()?.ok()?;
        let body = axum::body::to_bytes(answer.into_body(), MOST_TOLD);
        let body = timeout(PATIENCE, body).await.ok()?.ok()?;
        let replicant: model::Replicant = serde_json::from_slice(&body).ok()?;
        let part = |at: &model::Replica| Some((at.site.parse().ok()?, at.part?));
        let parts: BTreeMap<SiteId, usize> = replicant.replicas.iter().filter_map(part).collect();
        Some(if parts.is_empty() { Held::Copies } else { Held::Parts(parts) })
    }

    /// Asks one site for a document.
    pub(super) async fn ask(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        site: &SiteId,
        mut parts: Head,
    ) -> Result<(response::Parts, Value), Unsaid> {
        for name in &NOT_ASKED {
            parts.headers.remove(name);
        }
        // What is compressed can't be merged.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let (service, named) = (asking.service, asking.named);
        let answer = if *site == self.here {
            self.local(service, named, parts, Body::Empty).await
        } else {
            self.forward(Forwarded { service, named, site, place: None }, parts, Body::Empty).await
        };
        let response = answer
            .map_err(|nothing| Unsaid::Missing(nothing.came, format!("{site}: {}", nothing.why)))?;
        let status = response.status();
        if super::attempt::is_no_answer(status) {
            return Err(Unsaid::Missing(
                Came::Answer(status),
                format!("{site}: it answered {status}"),
            ));
        }
        if !status.is_success() || format(response.headers()) != Some(Format::Json) {
            return Err(Unsaid::Other(Box::new(response)));
        }
        let (head, body) = response.into_parts();
        let body = asking.keep(body).await;
        let body = body.map_err(|why| Unsaid::Missing(Came::Silence, format!("{site}: {why}")))?;
        if let Ok(value) = serde_json::from_slice(&body) {
            return Ok((head, value));
        }
        Err(Unsaid::Other(Box::new(Response::from_parts(head, Answer::from(body)))))
    }
}

/// The link to the next page that the header of an answer has. One that leads to somebody else is not
/// followed.
fn in_header(
    service: &Service,
    headers: &HeaderMap,
    asked: &Parts,
) -> Result<Option<String>, String> {
    let lines = headers.get_all(LINK).iter().filter_map(|line| line.to_str().ok());
    let Some(link) = link::next(lines) else { return Ok(None) };
    let host = asked.uri.authority().map(Authority::as_str);
    let host = host.or_else(|| asked.headers.get(HOST)?.to_str().ok());
    let is_ours = host.is_some_and(|host| link::is_at(link, host))
        || link::authority(link).is_none_or(|named| service.is_at(named));
    if is_ours {
        return Ok(Some(link.to_owned()));
    }
    Err(format!("the link to its next page, `{link}`, leads to another host"))
}

/// The answer of one site, where those of several can't be one.
fn of_one(mut response: Response<Answer>, missing: &[String]) -> Response<Answer> {
    if !missing.is_empty() {
        put(&mut response, MISSING, &missing.join(", "));
        if response.status() == StatusCode::OK {
            *response.status_mut() = StatusCode::NON_AUTHORITATIVE_INFORMATION;
        }
    }
    response
}

/// What the sites of a resource with these parts have of it.
fn of_parts(parts: &[Sites]) -> Held {
    if parts.is_empty() {
        return Held::Copies;
    }
    let part =
        |(n, sites): (usize, &Sites)| sites.iter().map(|s| (s.clone(), n)).collect::<Vec<_>>();
    Held::Parts(parts.iter().enumerate().flat_map(part).collect())
}

/// A document that was made here, of what these sites have said. One that is not whole says so. It
/// takes up what was kept for it until it was read.
pub(super) fn document(
    asking: &Asking<'_>,
    mut head: response::Parts,
    value: &Value,
    sites: &[SiteId],
    missing: &[String],
) -> Response<Answer> {
    forget_one(&mut head.headers);
    if !missing.is_empty() {
        head.status = StatusCode::NON_AUTHORITATIVE_INFORMATION;
    }
    let mut response = Response::from_parts(head, Answer::from(Bytes::from(value.to_string())));
    let sites: Vec<String> = sites.iter().map(ToString::to_string).collect();
    put(&mut response, SITE, &sites.join(", "));
    if !missing.is_empty() {
        put(&mut response, MISSING, &missing.join(", "));
    }
    asking.hand_over(response.body_mut());
    response
}

/// Forgets what was said about another document.
fn forget_one(headers: &mut HeaderMap) {
    forget_bytes(headers);
    for name in &OF_ONE {
        headers.remove(name);
    }
}

fn put(response: &mut Response<Answer>, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
        response.headers_mut().insert(name, value);
    }
}
