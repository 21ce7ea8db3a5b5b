//! Resources with a part at each of several sites: creating, reading and changing all of it.
//!
//! What must stay true: nothing is created where a name that may exist only once is there already, as
//! far as sites can be asked; an answer that lacks a part says so.

use std::{sync::Arc, time::Duration};

use axum::body::Body as AnyBody;
use bytes::{Bytes, BytesMut};
use cheops_core::id::{SiteId, Sites};
use futures_util::{future::join_all, stream};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Method, Response, StatusCode, Uri,
    header::{CONTENT_TYPE, EXPECT},
    http::request::Parts,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    Head, Service, Shared,
    across::{Said, Unsaid, document},
    answer::Problem,
    asking::{Asking, MOST},
    body::{Body, reason},
    heard::Told,
    hide::{forget_bytes, format},
    pool::Answer,
    read::Named,
    replicated::{asked, path},
    serve::broken_body,
    write::{DIVISIBLE, Operated},
};
use crate::{
    config::Divide,
    replicants::{Name, Replicant},
    rest::{
        divide, gather,
        rewrite::{Format, canonical, is_own},
    },
    run::answer as kept,
};

/// How long the rest of a body that is refused may take.
const PATIENCE: Duration = Duration::from_secs(2);

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
        let asking = Asking::new(service, named, &self.gathered);
        let asked = there.iter().map(async |(_, sites)| {
            // A resource is one document, whatever it says is next.
            if whole {
                self.first_page(&asking, sites.clone(), parts.clone()).await
            } else {
                self.pages(&asking, sites.clone(), parts.clone()).await
            }
        });
        let answers = join_all(asked).await;
        if let Some(problem) = asking.is_full() {
            return self.refuse(&problem.about(named));
        }
        let (mut said, mut whys) = (Vec::new(), Vec::new());
        for ((part, _), answer) in there.iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    if let Some(why) = &answer.cut {
                        missing.push(part.to_string());
                        whys.push(format!("{}: {why}", answer.site));
                    }
                    said.push(answer);
                }
                Err(Unsaid::Missing(_, why)) => {
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
            return self.merge(&asking, said, &missing).await;
        }
        let sites: Vec<SiteId> = said.iter().map(|said| said.site.clone()).collect();
        let mut said = said.into_iter();
        let Some(first) = said.next() else { return self.refuse(&broken_body("nothing came")) };
        let head = first.head;
        let values = first.values.into_iter().map(|value| (first.site.clone(), value));
        let others = said.filter_map(|said| Some((said.site, said.values.into_iter().next()?)));
        match gather::whole(values.take(1).chain(others).collect(), &service.config.divide) {
            Ok(value) => document(&asking, head, &value, &sites, &missing),
            Err(differs) => self.refuse(&Problem::new(
                StatusCode::CONFLICT,
                "parts-differ",
                differs.to_string(),
                "bring the parts together with an update by the same id",
            )),
        }
    }

    /// Reads the whole body of a request about a divided resource, so that each site can take its part of
    /// it. What is written below the resource may be anything, and passes as it comes.
    pub(super) async fn whole_body(
        &self,
        service: &Service,
        parts: &Parts,
        body: Body,
    ) -> Result<Sent, Box<Problem>> {
        let (headers, divide) = (&parts.headers, &service.config.divide);
        let strict = !divide.is_empty() && self.is_about_own(service, parts);
        let body = body.keep(DIVISIBLE, service.config.limits.idle).await;
        let body = body.map_err(|error| broken_body(&reason(&*error)))?;
        if body.again().is_none() && (strict || format(headers) == Some(Format::Json)) {
            // Who waits to be told to go on has sent nothing.
            if !headers.contains_key(EXPECT) {
                let _ = timeout(PATIENCE, drain(body)).await;
            }
            return Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                format!("a document that is divided among sites can have {DIVISIBLE} bytes"),
                "send less at a time, or name one site",
            ));
        }
        let Body::Whole(bytes, _) = &body else { return Ok(body.into()) };
        let document = serde_json::from_slice::<Value>(bytes).ok();
        let document = if strict { Some(divisible(document, headers, divide)?) } else { document };
        // Below a resource, what is broken is refused by the application, in its own words.
        let Some(value) = document else { return Ok(body.into()) };
        divide::check(&value, divide).map_err(|indivisible| {
            Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "indivisible",
                indivisible.to_string(),
                "send something that can be divided, or name one site",
            )
        })?;
        Ok(Sent { body, document: Some(value) })
    }

    /// Whether a request is about a resource itself, and not about what lies below one that is known.
    fn is_about_own(&self, service: &Service, parts: &Parts) -> bool {
        let target = asked(parts);
        let Some(known) = self.replicants.in_path(service.name(), target) else { return true };
        match &known.name {
            Name::Meta { id, .. } => is_own(
                self.replicants.common(service.name(), target).as_deref().unwrap_or(target),
                id,
            ),
            Name::Path(path) => canonical(target) == **path,
        }
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
        let sent = self.whole_body(service, parts, body).await?;
        let asking = Asking::new(service, named, &self.gathered);
        let taken = if parts.method == Method::POST {
            self.name_taken(&asking, sites, parts, sent.document.as_ref()).await
        } else {
            self.path_taken(&asking, sites, parts).await
        };
        match (taken, asking.is_full()) {
            (None, None) => Ok(sent),
            // What could not be looked at may be there.
            (None, Some(full)) => Err(full),
            (Some((site, what)), _) => Err(Problem::new(
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
        let looked = self.look_at(asking, sites, parts, &target, true).await;
        let taken = |(site, looked): (SiteId, Looked)| {
            let mut pages = looked.ok()?.values.into_iter();
            pages.any(|page| gather::names(&page, at, wanted)).then_some(site)
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
        let looked = self.look_at(asking, sites, parts, target, false).await;
        let taken = |(site, looked): (SiteId, Looked)| is_there(&looked).then_some(site);
        let site = looked.into_iter().find_map(taken)?;
        Some((site, format!("`{target}`")))
    }

    /// What each site has at a target, on all pages or on the first.
    async fn look_at(
        self: &Arc<Self>,
        asking: &Asking<'_>,
        sites: &Sites,
        parts: &Parts,
        target: &str,
        all: bool,
    ) -> Vec<(SiteId, Looked)> {
        let Ok(uri) = target.parse::<Uri>() else { return Vec::new() };
        let mut look = Box::new(parts.clone());
        (look.method, look.uri) = (Method::GET, uri);
        let asked = sites.iter().map(async |site| {
            let (sites, look) = (vec![site.clone()], look.clone());
            let looked = if all {
                self.pages(asking, sites, look).await
            } else {
                self.first_page(asking, sites, look).await
            };
            (site.clone(), looked)
        });
        join_all(asked).await
    }
}

/// What a site said when it was asked for a document.
type Looked = Result<Said, Unsaid>;

/// Whether there is something where a site was asked: a document, or anything else, or a way to it.
fn is_there(looked: &Looked) -> bool {
    match looked {
        Ok(_) => true,
        Err(Unsaid::Other(response)) => {
            response.status().is_success() || response.status().is_redirection()
        }
        Err(Unsaid::Missing(..)) => false,
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
    // What is too long to be read, or breaks off, is passed on as the one part says it.
    let (body, rest) = begun(body).await;
    let answer = match &rest {
        None => serde_json::from_slice::<Value>(&body).ok(),
        Some(_) => None,
    };
    let Some(answer) = answer else {
        let rest = Body::from(rest.unwrap_or_else(AnyBody::empty));
        return Response::from_parts(head, Answer::from(Body::Begun(body, Box::new(rest))));
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

/// The beginning of an answer, and the rest of it if there is more than can be kept, or if it broke off.
async fn begun(mut body: Answer) -> (Bytes, Option<AnyBody>) {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => kept.extend(frame.into_data().ok()),
            Err(error) => {
                let broken = stream::iter([Err::<Bytes, _>(error)]);
                return (kept.freeze(), Some(AnyBody::from_stream(broken)));
            }
        }
        if kept.len() > MOST {
            return (kept.freeze(), Some(body.any()));
        }
    }
    (kept.freeze(), None)
}

/// Reads the rest of a body that is refused, if it is not much: clients look for an answer when they have
/// sent all of it, and may not see one that comes before.
async fn drain(mut body: Body) {
    let mut left = MOST;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(less) = left.checked_sub(length) else { return };
        left = less;
    }
}

/// What a request says about a divided resource, if each site can take its part of it.
fn divisible(
    document: Option<Value>,
    headers: &HeaderMap,
    divide: &[Divide],
) -> Result<Value, Box<Problem>> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let says_patch = kind.ends_with("json-patch+json") || kind.ends_with("-json-patch");
    let unread = |what: &str| {
        Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "no-document",
            format!("what is divided among sites is written to with JSON, and this is {what}"),
            "send a JSON document that is not compressed, or name one site",
        )
    };
    let document = document.ok_or_else(|| unread("none"))?;
    if says_patch && !divide::is_patch(&document) {
        return Err(unread("a JSON Patch that can't be read"));
    }
    match divide::patched(&document, divide) {
        None => Ok(document),
        Some(pointer) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "indivisible",
            format!("a JSON Patch of `{pointer}` can't be divided among sites"),
            "send the new value of all of it in a document, like a JSON Merge Patch",
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::attempt::Came, *};
    use crate::config::{self, Split};

    #[tokio::test]
    async fn an_answer_that_is_too_long_or_breaks_off_loses_nothing() {
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        for (pieces, breaks) in [(3, false), (40, false), (3, true)] {
            let whole = (0..pieces).map(|_| Ok(piece.clone()));
            let end = breaks.then(|| Err(std::io::Error::other("gone")));
            let body = AnyBody::from_stream(stream::iter(whole.chain(end).collect::<Vec<_>>()));
            let (first, rest) = begun(Answer::from(body)).await;
            assert_eq!(rest.is_some(), pieces > 16 || breaks);
            let rest = rest.unwrap_or_else(AnyBody::empty).collect().await;
            assert_eq!(rest.is_err(), breaks);
            let rest = rest.map_or(0, |rest| rest.to_bytes().len());
            assert_eq!(first.len() + rest, pieces << 20);
        }
    }

    #[test]
    fn only_what_each_site_can_take_its_part_of_is_taken() {
        let divide =
            [Divide { pointer: "/n".into(), split: Split::Even, gather: config::Gather::Sum }];
        let patch = |path: &str| json!([{"op": "replace", "path": path, "value": 7}]);
        for (kind, document, refused) in [
            ("application/json", Some(json!({"n": 1})), None),
            ("application/x-www-form-urlencoded", Some(json!({"n": 1})), None),
            ("application/merge-patch+json", Some(json!({"n": 1})), None),
            ("", Some(json!([1])), None),
            ("application/json", None, Some(415)),
            ("application/octet-stream", None, Some(415)),
            ("application/json-patch+json", Some(patch("/x")), None),
            ("application/json-patch+json; charset=utf-8", Some(patch("/n")), Some(422)),
            ("application/openstack-images-v2.1-json-patch", Some(patch("/n")), Some(422)),
            (
                "application/openstack-images-v2.0-json-patch",
                Some(json!([{"add": "/n"}])),
                Some(415),
            ),
            ("application/json", Some(patch("/n")), Some(422)),
            ("application/json-patch+json", Some(json!({"n": 1})), Some(415)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            let taken = divisible(document.clone(), &headers, &divide);
            assert_eq!(taken.err().map(|problem| problem.status), refused, "{kind} {document:?}");
        }
    }

    #[test]
    fn whatever_is_at_a_path_is_there() {
        let other = |status: u16| {
            let mut response = Response::new(Answer::from(Bytes::from_static(b"no document")));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Err(Unsaid::Other(Box::new(response)))
        };
        let (head, ()) = Response::new(()).into_parts();
        let site = "a".parse().unwrap();
        for (looked, expected) in [
            (Ok(Said { site, head, values: vec![Value::Null], cut: None }), true),
            (other(200), true),
            (other(204), true),
            (other(302), true),
            (other(404), false),
            (other(410), false),
            (other(401), false),
            (Err(Unsaid::Missing(Came::Silence, "away".to_owned())), false),
        ] {
            assert_eq!(is_there(&looked), expected);
        }
    }
}
