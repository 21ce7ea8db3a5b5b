//! Resources with a part at each of several sites: creating, reading and changing all of it.
//!
//! What must stay true: nothing is created where a name that may exist only once is there already, as
//! far as sites can be asked; an answer that lacks a part says so.

use std::sync::Arc;

use bytes::Bytes;
use cheops_core::id::{SiteId, Sites};
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    HeaderMap, Method, Response, StatusCode, Uri,
    http::{request::Parts, response},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{
    Head, Service, Shared,
    across::{Asking, MOST, Unsaid, document, merged},
    answer::Problem,
    body::Body,
    heard::Told,
    hide::{forget_bytes, format},
    pool::Answer,
    read::Named,
    replicated::{asked, path},
    serve::broken_body,
    write::{DIVISIBLE, Operated, divisible},
};
use crate::{
    replicants::Replicant,
    rest::{
        divide, gather,
        rewrite::{Format, is_own},
    },
    run::answer as kept,
};

impl Shared {
    /// Reads a divided resource: all of it, from all of its parts.
    pub(super) async fn gather(
        self: &Arc<Self>,
        service: &Arc<Service>,
        named: Option<&Arc<Named>>,
        replicant: &Replicant,
        mut parts: Head,
        body: Body,
    ) -> Response<Answer> {
        self.normalise(service, &mut parts);
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
        let whole = replicant.meta().is_none_or(|meta| is_own(&asked_for, meta));
        let asking = Asking::new(service, named);
        let asked =
            there.iter().map(|(_, sites)| self.pages(&asking, sites.clone(), parts.clone()));
        let (mut said, mut whys) = (Vec::new(), Vec::new());
        for ((part, _), answer) in there.iter().zip(join_all(asked).await) {
            match answer {
                Ok(answer) => {
                    if let Some(why) = &answer.cut {
                        missing.push(part.to_string());
                        whys.push(format!("{}: {why}", answer.site));
                    }
                    said.push(answer);
                }
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

    /// Reads the whole body of a request, so that it can be divided, if it is a document. What is none
    /// passes as it comes.
    pub(super) async fn whole_body(
        &self,
        service: &Service,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Sent, Box<Problem>> {
        let body = body.keep(divisible(headers), service.config.limits.idle).await;
        let body = body.map_err(|error| broken_body(&error.to_string()))?;
        if body.again().is_none() && format(headers) == Some(Format::Json) {
            return Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                format!("a document that is divided among sites can have {DIVISIBLE} bytes"),
                "send less at a time, or name one site",
            ));
        }
        let Body::Whole(bytes, _) = &body else { return Ok(body.into()) };
        // What is broken is refused by the application, in its own words.
        let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return Ok(body.into()) };
        divide::check(&value, &service.config.divide).map_err(|indivisible| {
            Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "indivisible",
                indivisible.to_string(),
                "send something that can be divided, or name one site",
            )
        })?;
        Ok(Sent { body, document: Some(value) })
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
    ) -> Result<Sent, Box<Problem>> {
        let sent = self.whole_body(service, &parts.headers, body).await?;
        let asking = Asking::new(service, named);
        let taken = if parts.method == Method::POST {
            self.name_taken(&asking, sites, parts, sent.document.as_ref()).await
        } else {
            self.path_taken(&asking, sites, parts).await
        };
        match taken {
            None => Ok(sent),
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
        asking: &Asking<'_>,
        sites: &Sites,
        parts: &Parts,
        document: Option<&Value>,
    ) -> Option<(SiteId, String)> {
        let (at, wanted) = gather::unique(document?, &asking.service.config.cross)?;
        let text = wanted.as_str().map_or_else(|| wanted.to_string(), str::to_owned);
        let field = at.rsplit('/').next().unwrap_or_default();
        let query = utf8_percent_encode(&text, NON_ALPHANUMERIC);
        let target = format!("{}?{field}={query}", path(parts));
        let looked = self.look_at(asking, sites, parts, &target).await;
        let taken = |(site, looked): (SiteId, Looked)| {
            let (_, value) = looked.ok()?;
            gather::names(&value, at, wanted).then_some(site)
        };
        let site = looked.into_iter().find_map(taken)?;
        Some((site, format!("`{text}`")))
    }

    /// A site that has something at the path already, whatever it is.
    async fn path_taken(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        sites: &Sites,
        parts: &Parts,
    ) -> Option<(SiteId, String)> {
        let target = path(parts);
        let looked = self.look_at(asking, sites, parts, target).await;
        let taken = |(site, looked): (SiteId, Looked)| is_there(&looked).then_some(site);
        let site = looked.into_iter().find_map(taken)?;
        Some((site, format!("`{target}`")))
    }

    /// What each site has at a target.
    async fn look_at(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        sites: &Sites,
        parts: &Parts,
        target: &str,
    ) -> Vec<(SiteId, Looked)> {
        let Ok(uri) = target.parse::<Uri>() else { return Vec::new() };
        let mut look = Box::new(parts.clone());
        (look.method, look.uri) = (Method::GET, uri);
        let asked = sites
            .iter()
            .map(async |site| (site.clone(), self.ask(asking, site, look.clone()).await));
        join_all(asked).await
    }
}

/// What a site said when it was asked for a document.
type Looked = Result<(response::Parts, Value), Unsaid>;

/// Whether there is something where a site was asked: a document, or anything else, or a way to it.
fn is_there(looked: &Looked) -> bool {
    match looked {
        Ok(_) => true,
        Err(Unsaid::Other(response)) => {
            response.status().is_success() || response.status().is_redirection()
        }
        Err(Unsaid::Missing(_)) => false,
    }
}

/// The body of a request, and what it says, if it is a document that is divided.
pub(super) struct Sent {
    pub(super) body: Body,
    pub(super) document: Option<Value>,
}

impl From<Body> for Sent {
    fn from(body: Body) -> Self {
        Self { body, document: None }
    }
}

/// The answer of one part as that of the whole: made of those of all parts, or, where one has not
/// answered, with what was asked for in place of this part's share of it.
pub(super) async fn undivided(
    service: &Service,
    parts: &[Sites],
    asked: Option<&Value>,
    operated: &Operated,
    response: Response<Answer>,
) -> Response<Answer> {
    let Told::Reply(told) = &operated.outcome else { return response };
    if !response.status().is_success() || format(response.headers()) != Some(Format::Json) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(body) = Limited::new(body, MOST).collect().await else {
        return Response::from_parts(head, Answer::from(Bytes::new()));
    };
    let body = body.to_bytes();
    let Ok(answer) = serde_json::from_slice::<Value>(&body) else {
        return Response::from_parts(head, Answer::from(body));
    };
    forget_bytes(&mut head.headers);
    let divide = &service.config.divide;
    // What each part says, as far as it has said anything; a part that has nothing says nothing.
    let mut said = Vec::new();
    let mut complete = true;
    for part in parts {
        if part.contains(&told.id.site) {
            said.push((told.id.site.clone(), answer.clone()));
            continue;
        }
        let reply = operated.others.iter().find(|reply| part.contains(&reply.id.site));
        complete &= reply.is_some();
        let value = reply.and_then(|reply| {
            let answer = kept::Answer::of_reply(&reply.output)?;
            Some((reply.id.site.clone(), serde_json::from_slice(answer.body).ok()?))
        });
        said.extend(value);
    }
    let whole = match gather::whole(said, divide) {
        Ok(gathered) if complete => divide::restore(answer, &gathered, divide),
        _ => asked.map_or(answer.clone(), |asked| divide::restore(answer, asked, divide)),
    };
    Response::from_parts(head, Answer::from(Bytes::from(whole.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_at_a_path_is_there() {
        let other = |status: u16| {
            let mut response = Response::new(Answer::from(Bytes::from_static(b"no document")));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Err(Unsaid::Other(Box::new(response)))
        };
        let (head, ()) = Response::new(()).into_parts();
        for (looked, expected) in [
            (Ok((head, Value::Null)), true),
            (other(200), true),
            (other(204), true),
            (other(302), true),
            (other(404), false),
            (other(410), false),
            (other(401), false),
            (Err(Unsaid::Missing("away".to_owned())), false),
        ] {
            assert_eq!(is_there(&looked), expected);
        }
    }
}
