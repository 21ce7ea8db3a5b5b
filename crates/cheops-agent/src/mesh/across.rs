//! Several sites asked at once, and one answer made of theirs.
//!
//! What must stay true:
//! - a site that does not answer is named, and keeps nothing from the others;
//! - nothing is created where a name that may exist only once is there already;
//! - no more of an answer is kept than the limit.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use cheops_core::id::{SiteId, Sites};
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    Method, Response, StatusCode, Uri,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, ETAG, HeaderName, HeaderValue},
    http::{request::Parts, response},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{
    Service, Shared,
    answer::Problem,
    attempt::Came,
    body::Body,
    forward::{Attempt, Nothing},
    headers::SITE,
    hide::format,
    pool::Answer,
    read::Named,
    replicated::{asked, normalise},
    serve::broken_body,
};
use crate::{
    replicants::{Found, path},
    rest::{
        divide,
        gather::{self, lists, next_page},
        rewrite::{Format, own_path},
    },
};

/// The most bytes of one answer that are kept.
const MOST: usize = 16 << 20;
/// How many pages of one site are followed.
const PAGES: usize = 1_000;

/// Sites that did not answer.
const MISSING: HeaderName = HeaderName::from_static("x-cheops-missing");
/// How many items each site gave, by the name of each list.
const ITEMS: HeaderName = HeaderName::from_static("x-cheops-items");

/// What a site answered.
struct Said {
    site: SiteId,
    head: response::Parts,
    /// Its pages.
    values: Vec<Value>,
}

/// Why there is nothing to merge of a site.
enum Unsaid {
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
    async fn pages(
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
    async fn ask(
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
            self.forward(service, named, site, None, parts, Body::Empty).await
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

    /// Reads a divided resource: all of it, from all of its parts.
    pub(super) async fn gather(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        found: &Found,
        mut parts: Parts,
        body: Body,
    ) -> Response<Answer> {
        normalise(found, &mut parts);
        let replicant = &found.replicant;
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        for part in &replicant.parts {
            let sites: Vec<SiteId> = part.iter().filter(|s| replicant.is_at(s)).cloned().collect();
            if !sites.is_empty() {
                there.push((part, self.nearest(&sites)));
            } else if !part.iter().any(|site| replicant.replied.contains(site)) {
                missing.push(part.to_string());
            }
        }
        // What did not divide is at the prime site, whatever it is.
        if let ([(_, sites)], []) = (there.as_slice(), missing.as_slice()) {
            let legs: Vec<_> = sites.iter().map(|site| self.leg(site.clone())).collect();
            return self.try_legs(service, named, &legs, parts, body).await;
        }
        let asked_for = asked(&parts).to_owned();
        let whole = replicant
            .meta()
            .is_none_or(|meta| own_path(&asked_for, meta).is_some_and(|(_, rest)| rest.is_empty()));
        let asked =
            there.iter().map(|(_, sites)| self.pages(service, named, sites.clone(), parts.clone()));
        let (mut said, mut whys) = (Vec::new(), Vec::new());
        for ((part, _), answer) in there.iter().zip(join_all(asked).await) {
            match answer {
                Ok(answer) => said.push(answer),
                Err(Unsaid::Missing(why)) => {
                    missing.push(part.to_string());
                    whys.push(why);
                }
                Err(Unsaid::Other(response)) => return *response,
            }
        }
        if said.is_empty() || (service.config.cross.strict && !missing.is_empty()) {
            return self.refuse(&Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "parts-missing",
                format!("parts of it can't be had: {}; {}", missing.join(", "), whys.join("; ")),
                "look at the links with `cheops get sites`",
            ));
        }
        if !whole {
            return merged(service, said, &missing);
        }
        let sites: Vec<SiteId> = said.iter().map(|said| said.site.clone()).collect();
        let mut said = said.into_iter();
        let Some(first) = said.next() else { return self.refuse(&broken_body("nothing came")) };
        let head = first.head;
        let values = first.values.into_iter().map(|value| (first.site.clone(), value));
        let others = said.filter_map(|said| Some((said.site, said.values.into_iter().next()?)));
        match gather::whole(values.take(1).chain(others).collect(), &service.config.divide) {
            Ok(value) => document(head, &value, &sites, &missing),
            Err(differs) => self.refuse(&Problem::new(
                StatusCode::CONFLICT,
                "parts-differ",
                differs.to_string(),
                "bring the parts together with an update by the same id",
            )),
        }
    }

    /// Reads the whole body of a request, so that it can be divided.
    pub(super) async fn whole_body(
        &self,
        service: &Service,
        body: Body,
        whole: &mut Option<Value>,
    ) -> Result<Body, Box<Problem>> {
        let body = body.keep(MOST).await.map_err(|error| broken_body(&error.to_string()))?;
        if let Body::Whole(bytes, _) = &body
            && let Ok(value) = serde_json::from_slice::<Value>(bytes)
        {
            divide::check(&value, &service.config.divide).map_err(|indivisible| {
                Problem::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "indivisible",
                    indivisible.to_string(),
                    "send something that can be divided, or name one site",
                )
            })?;
            *whole = Some(value);
        }
        Ok(body)
    }

    /// Makes sure that what is to be created can be: that it divides, and that its name is free at all
    /// sites that can be asked.
    pub(super) async fn divisible(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        sites: &Sites,
        parts: &Parts,
        body: Body,
        whole: &mut Option<Value>,
    ) -> Result<Body, Box<Problem>> {
        let body = self.whole_body(service, body, whole).await?;
        let taken = if parts.method == Method::POST {
            self.name_taken(service, named, sites, parts, whole.as_ref()).await
        } else {
            self.path_taken(service, named, sites, parts).await
        };
        match taken {
            None => Ok(body),
            Some((site, what)) => Err(Problem::new(
                StatusCode::CONFLICT,
                "name-taken",
                format!("{what} exists at `{site}` already; nothing was created"),
                "choose another name, or delete that one first",
            )),
        }
    }

    /// A site that has something with the name that may be there only once.
    async fn name_taken(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        sites: &Sites,
        parts: &Parts,
        whole: Option<&Value>,
    ) -> Option<(SiteId, String)> {
        let at = service.config.cross.unique.as_deref()?;
        let wanted = whole?.pointer(at).filter(|value| !value.is_null())?;
        let text = wanted.as_str().map_or_else(|| wanted.to_string(), str::to_owned);
        let field = at.rsplit('/').next().unwrap_or_default();
        let query = utf8_percent_encode(&text, NON_ALPHANUMERIC);
        let target = format!("{}?{field}={query}", path(asked(parts)));
        let looked = self.look_at(service, named, sites, parts, &target).await;
        let taken = |(site, value): (SiteId, Option<Value>)| {
            gather::names(&value?, at, wanted).then_some(site)
        };
        let site = looked.into_iter().find_map(taken)?;
        Some((site, format!("`{text}`")))
    }

    /// A site that has something at the path already.
    async fn path_taken(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        sites: &Sites,
        parts: &Parts,
    ) -> Option<(SiteId, String)> {
        let target = path(asked(parts)).to_owned();
        let looked = self.look_at(service, named, sites, parts, &target).await;
        let site = looked.into_iter().find_map(|(site, value)| value.map(|_| site))?;
        Some((site, format!("`{target}`")))
    }

    /// What each site has at a target, if it answers with a document.
    async fn look_at(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        sites: &Sites,
        parts: &Parts,
        target: &str,
    ) -> Vec<(SiteId, Option<Value>)> {
        let Ok(uri) = target.parse::<Uri>() else { return Vec::new() };
        let mut look = parts.clone();
        (look.method, look.uri) = (Method::GET, uri);
        look.headers.remove(CONTENT_LENGTH);
        let asked = sites.iter().map(async |site| {
            let answer = self.ask(service, named, site, look.clone()).await;
            (site.clone(), answer.ok().map(|(_, value)| value))
        });
        join_all(asked).await
    }

    /// Sends a write to several sites, once, and gives the first good answer: nothing is recorded.
    pub(super) async fn once(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        sites: &Sites,
        parts: Parts,
        body: Body,
    ) -> Attempt {
        let kept = body.keep(self.config.buffer).await;
        let body = match kept {
            Ok(body) if body.again().is_some() => body,
            Ok(_) => {
                return Ok(self.refuse(&Problem::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "too-large",
                    format!(
                        "a body for several sites that is sent once can have {} bytes",
                        self.config.buffer
                    ),
                    "raise `mesh.buffer`, or leave `none(…)` out: then it is stored",
                )));
            }
            Err(error) => return Ok(self.refuse(&broken_body(&error.to_string()))),
        };
        let (to_answers, mut answers) = tokio::sync::mpsc::channel(sites.len().max(1));
        for site in self.nearest(sites.iter()) {
            let Some(body) = body.again() else { continue };
            let (shared, service, named) = (self.clone(), service.clone(), named.cloned());
            let (parts, to_answers) = (parts.clone(), to_answers.clone());
            // The others get it whether or not anybody waits for them.
            self.tasks.spawn(async move {
                let answer = if site == shared.here {
                    shared.local(&service, named.as_ref(), parts, body).await
                } else {
                    shared.forward(&service, named.as_ref(), &site, None, parts, body).await
                };
                let _ = to_answers.send((site, answer)).await;
            });
        }
        drop(to_answers);
        let (mut worse, mut whys) = (None, Vec::new());
        while let Some((site, answer)) = answers.recv().await {
            match answer {
                Ok(response) if response.status().as_u16() < 400 => return Ok(response),
                Ok(response) => worse = worse.or(Some(response)),
                Err(nothing) => whys.push(format!("{site}: {}", nothing.why)),
            }
        }
        let nothing = Nothing { came: Came::Silence, why: whys.join("; "), body: None };
        worse.ok_or(nothing)
    }
}

/// One answer of those of several sites.
fn merged(service: &Service, said: Vec<Said>, missing: &[String]) -> Response<Answer> {
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
fn document(
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

/// An answer of one part, with what was asked for in place of that part's share of it.
pub(super) async fn undivided(
    service: &Service,
    whole: &Value,
    response: Response<Answer>,
) -> Response<Answer> {
    if !response.status().is_success() || format(response.headers()) != Some(Format::Json) {
        return response;
    }
    let (head, body) = response.into_parts();
    let Ok(body) = Limited::new(body, MOST).collect().await else {
        return Response::from_parts(head, Answer::from(Bytes::new()));
    };
    let body = body.to_bytes();
    let body = match serde_json::from_slice(&body) {
        Ok(answer) => {
            let answer: Value = divide::restore(answer, whole, &service.config.divide);
            Bytes::from(answer.to_string())
        }
        Err(_) => body,
    };
    Response::from_parts(head, Answer::from(body))
}
