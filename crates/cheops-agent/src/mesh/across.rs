//! Collections of several sites, asked at once, and one answer made of theirs.
//!
//! What must stay true: a site that does not answer is named, and keeps nothing from the others; no more
//! of an answer is kept than the limit.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use cheops_core::id::{SiteId, Sites};
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Response, StatusCode, Uri,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, ETAG, HeaderName, HeaderValue},
    http::{request::Parts, response},
};
use serde_json::Value;

use super::{
    Service, Shared,
    attempt::Came,
    body::Body,
    forward::{Attempt, Forwarded, Nothing},
    headers::SITE,
    hide::format,
    pool::Answer,
    read::Named,
};
use crate::rest::{
    gather::{lists, next_page},
    rewrite::Format,
};

/// The most bytes of one answer that are kept.
pub(super) const MOST: usize = 16 << 20;
/// How many pages of one site are followed.
const PAGES: usize = 1_000;

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
        parts: Parts,
    ) -> Attempt {
        let asked = across.iter().map(|sites| {
            let sites = self.nearest(sites.iter());
            self.pages(service, named, sites, parts.clone())
        });
        let answers = join_all(asked).await;
        let (mut said, mut missing, mut other) = (Vec::new(), Vec::new(), None);
        let mut whys = Vec::new();
        for (sites, answer) in across.iter().zip(answers) {
            match answer {
                Ok(answer) => said.push(answer),
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
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        sites: Vec<SiteId>,
        parts: Parts,
    ) -> Result<Said, Unsaid> {
        let mut whys = Vec::new();
        for site in sites {
            match self.ask(service, named, &site, parts.clone()).await {
                Err(Unsaid::Missing(why)) => whys.push(why),
                Err(other) => return Err(other),
                Ok((head, value)) => {
                    let mut said = Said { site, head, values: vec![value] };
                    self.follow(service, named, &parts, &mut said).await?;
                    return Ok(said);
                }
            }
        }
        Err(Unsaid::Missing(whys.join("; ")))
    }

    /// Fetches the pages after the first.
    async fn follow(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        first: &Parts,
        said: &mut Said,
    ) -> Result<(), Unsaid> {
        let mut seen = BTreeSet::new();
        while let Some(next) = said.values.last().and_then(|v| next_page(v, &service.config.cross))
        {
            let target = next.parse::<Uri>().ok().and_then(|uri| uri.path_and_query().cloned());
            let Some(target) = target.filter(|_| seen.len() < PAGES) else { break };
            // A link that leads back would never end.
            if !seen.insert(target.to_string()) {
                break;
            }
            let mut parts = first.clone();
            parts.uri = target.into();
            let (_, value) = self.ask(service, named, &said.site, parts).await?;
            said.values.push(value);
        }
        Ok(())
    }

    /// Asks one site for a document.
    pub(super) async fn ask(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        site: &SiteId,
        mut parts: Parts,
    ) -> Result<(response::Parts, Value), Unsaid> {
        parts.headers.remove(ACCEPT_ENCODING);
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
        let body = Limited::new(body, MOST).collect().await;
        let body = body.map_err(|error| Unsaid::Missing(format!("{site}: {error}")))?.to_bytes();
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
    // They were about another document.
    for name in [CONTENT_LENGTH, ETAG] {
        head.headers.remove(name);
    }
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

fn put(response: &mut Response<Answer>, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
        response.headers_mut().insert(name, value);
    }
}
