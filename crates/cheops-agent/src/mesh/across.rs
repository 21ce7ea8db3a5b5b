//! Collections of several sites, asked at once, and one answer made of theirs.
//!
//! What must stay true: a site that does not answer, or not to the end, is named, and keeps nothing from
//! the others; what the answer says is about all of it; no more is kept for one request than the limit.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use cheops_core::id::{SiteId, Sites};
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_LOCATION,
        CONTENT_TYPE, ETAG, EXPECT, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE,
        IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, LINK, RANGE,
    },
    http::{response, uri::PathAndQuery},
};
use serde_json::Value;

use super::{
    Head, Service, Shared,
    attempt::Came,
    body::Body,
    forward::{Attempt, Forwarded, Nothing},
    headers::SITE,
    hide::{forget_bytes, format},
    pool::Answer,
    read::Named,
    replicated::asked,
};
use crate::rest::{
    gather::{lists, next_page},
    link,
    rewrite::Format,
};

/// The most bytes of answers that are kept for one request.
pub(super) const MOST: usize = 16 << 20;
/// How many pages of one site are followed.
const PAGES: usize = 1_000;

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

/// A request for which several sites are asked.
pub(super) struct Asking<'a> {
    pub(super) service: &'a Arc<Service>,
    pub(super) named: Option<&'a Arc<Named>>,
    /// How many bytes of answers may still be kept.
    left: AtomicUsize,
}

impl<'a> Asking<'a> {
    pub(super) fn new(service: &'a Arc<Service>, named: Option<&'a Arc<Named>>) -> Self {
        Self { service, named, left: AtomicUsize::new(MOST) }
    }

    /// All of a body, if there is room for it.
    async fn keep(&self, mut body: Answer) -> Result<Bytes, String> {
        let mut kept = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let Some(data) = frame.data_ref() else { continue };
            let take = |left: usize| left.checked_sub(data.len());
            if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                return Err(format!("the answers of all sites have more than {MOST} bytes"));
            }
            kept.extend_from_slice(data);
        }
        Ok(kept.freeze())
    }
}

/// Why there is nothing to merge of a site.
pub(super) enum Unsaid {
    /// It did not answer.
    Missing(String),
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
        let asking = Asking::new(service, named);
        let asked = across
            .iter()
            .map(|sites| self.pages(&asking, self.nearest(sites.iter()), parts.clone()));
        let answers = join_all(asked).await;
        let (mut said, mut missing, mut other) = (Vec::new(), Vec::new(), None);
        let mut whys = Vec::new();
        for (sites, answer) in across.iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    if let Some(why) = &answer.cut {
                        missing.push(sites.to_string());
                        whys.push(format!("{}: {why}", answer.site));
                    }
                    said.push(answer);
                }
                Err(Unsaid::Missing(why)) => {
                    missing.push(sites.to_string());
                    whys.push(why);
                }
                Err(Unsaid::Other(response)) => other = other.or(Some(*response)),
            }
        }
        // What one site refuses, or what can't be merged, is the answer: the request itself is wrong.
        if let Some(response) = other {
            return Ok(response);
        }
        if said.is_empty() || (service.config.cross.strict && !missing.is_empty()) {
            let (came, why) = (Came::Late, whys.join("; "));
            return Err(Nothing { came, why, body: None });
        }
        Ok(merged(service, said, &missing))
    }

    /// All pages of a collection at the first of these sites that answers.
    pub(super) async fn pages(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        sites: Vec<SiteId>,
        parts: Head,
    ) -> Result<Said, Unsaid> {
        let mut whys = Vec::new();
        for site in sites {
            match self.ask(asking, &site, parts.clone()).await {
                Err(Unsaid::Missing(why)) => whys.push(why),
                Err(other) => return Err(other),
                Ok((head, value)) => {
                    let mut said = Said { site, head, values: vec![value], cut: None };
                    said.cut = self.follow(asking, parts, &mut said).await.err();
                    return Ok(said);
                }
            }
        }
        Err(Unsaid::Missing(whys.join("; ")))
    }

    /// Fetches the pages after the first. The error says why not all of them.
    async fn follow(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        mut parts: Head,
        said: &mut Said,
    ) -> Result<(), String> {
        let next = |said: &Said| next_page(said.values.last()?, &asking.service.config.cross);
        let mut seen = BTreeSet::from([asked(&parts).to_owned()]);
        while let Some(link) = next(said) {
            let target = link::resolve(asked(&parts), &link);
            let target = target.and_then(|target| target.parse::<PathAndQuery>().ok());
            let Some(target) = target else {
                return Err(format!("the link to its next page, `{link}`, leads nowhere"));
            };
            // A link that leads back would never end.
            if seen.len() >= PAGES || !seen.insert(target.to_string()) {
                return Err(format!("its pages have no end: `{link}` after {}", seen.len()));
            }
            parts.uri = target.into();
            match self.ask(asking, &said.site, parts.clone()).await {
                Ok((_, value)) => said.values.push(value),
                Err(Unsaid::Missing(why)) => return Err(why),
                Err(Unsaid::Other(response)) => {
                    return Err(format!("`{link}` was answered with {}", response.status()));
                }
            }
        }
        Ok(())
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
        let response =
            answer.map_err(|nothing| Unsaid::Missing(format!("{site}: {}", nothing.why)))?;
        let status = response.status();
        if super::attempt::is_no_answer(status) {
            return Err(Unsaid::Missing(format!("{site}: it answered {status}")));
        }
        if !status.is_success() || format(response.headers()) != Some(Format::Json) {
            return Err(Unsaid::Other(Box::new(response)));
        }
        let (head, body) = response.into_parts();
        let body = asking.keep(body).await;
        let body = body.map_err(|why| Unsaid::Missing(format!("{site}: {why}")))?;
        if let Ok(value) = serde_json::from_slice(&body) {
            return Ok((head, value));
        }
        Err(Unsaid::Other(Box::new(Response::from_parts(head, Answer::from(body)))))
    }
}

/// One answer of those of several sites.
pub(super) fn merged(service: &Service, said: Vec<Said>, missing: &[String]) -> Response<Answer> {
    let sites: Vec<SiteId> = said.iter().map(|said| said.site.clone()).collect();
    let mut head = None;
    let mut answers = Vec::new();
    for said in said {
        head.get_or_insert(said.head);
        answers.extend(said.values.into_iter().map(|value| (said.site.clone(), value)));
    }
    let head = head.unwrap_or_else(|| Response::new(()).into_parts().0);
    let merged = lists(answers, &service.config.cross);
    let mut missing = missing.to_vec();
    missing.extend(merged.misfits.iter().map(ToString::to_string));
    let mut response = document(head, &merged.value, &sites, &missing);
    let items = merged.items.iter().map(|(name, counts)| {
        let counts: Vec<String> = counts.iter().map(|(site, n)| format!("{site}={n}")).collect();
        format!("{name}: {}", counts.join(" "))
    });
    put(&mut response, ITEMS, &items.collect::<Vec<_>>().join(", "));
    response
}

/// A document that was made here, of what these sites have said. One that is not whole says so.
pub(super) fn document(
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
