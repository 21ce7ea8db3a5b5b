//! From a reply to the answer that a client gets.
//!
//! A reply holds the beginning of what a site's instance answered; all of it is kept in a file at that
//! site. What must stay true: a client sees the ids that Cheops made, whichever site has answered; a
//! site that is gone meanwhile costs the end of a long answer, and never the answer; an answer whose end
//! is missing breaks off, and does not end as if it were whole.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use axum::body::Body as AnyBody;
use bytes::{Bytes, BytesMut};
use cheops_core::replica::{Reply, RunId};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, HeaderName, HeaderValue},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::timeout,
};
use tokio_util::io::{ReaderStream, StreamReader};

use super::{
    Service, Shared,
    answer::{self, Problem},
    headers::{SITE, end_hop, from_outside},
    heard::Told,
    hide::{Lookup, context, replace},
    pool::Answer,
    write::Operated,
};
use crate::run::answer as kept;

/// The operation that a request became.
const OPERATION: HeaderName = HeaderName::from_static("x-cheops-operation");
/// The longest head of an answer.
const HEAD: usize = 64 << 10;
/// How long another site may take to begin with its answer.
const PATIENCE: Duration = Duration::from_secs(3);

type Reader = Pin<Box<dyn AsyncRead + Send>>;

impl Shared {
    /// What a client is told about its operation. `target` is what it asked for, `meta` the id that
    /// Cheops made.
    pub(super) async fn tell(
        &self,
        service: &Service,
        operated: &Operated,
        target: &str,
        meta: Option<&str>,
    ) -> Response<Answer> {
        let mut response = match &operated.outcome {
            Told::Nothing => {
                let mut response = operated.accepted(meta);
                response.headers_mut().insert(SITE, self.named.clone());
                response
            }
            Told::Superseded(by) => self.refuse(&Problem::new(
                StatusCode::CONFLICT,
                "superseded",
                format!("{by} won over it, and it is not carried out"),
                "look at what there is now, and send it again if it still makes sense",
            )),
            Told::Reply(reply) => self.answer_of(service, reply, target, meta).await,
        };
        if let Ok(op) = HeaderValue::from_bytes(operated.op.to_string().as_bytes()) {
            response.headers_mut().insert(OPERATION, op);
        }
        response
    }

    async fn answer_of(
        &self,
        service: &Service,
        reply: &Reply,
        target: &str,
        meta: Option<&str>,
    ) -> Response<Answer> {
        let site = &reply.id.site;
        let begun = kept::Answer::of_reply(&reply.output);
        let lost = begun.as_ref().is_some_and(|begun| begun.lost);
        let whole = match self.whole(reply).await {
            Some(reader) => read(reader, lost).await,
            None => None,
        };
        let short = || {
            let kept = begun?;
            let body = Bytes::copy_from_slice(kept.body);
            let body =
                if kept.whole { AnyBody::from(body) } else { broken_off(body, stream::empty()) };
            Some((StatusCode::from_u16(kept.status).ok()?, kept.headers, body))
        };
        let Some((status, mut headers, body)) = whole.or_else(short) else {
            // It was not an answer of the instance that made it fail.
            return self.refuse(&Problem::new(
                StatusCode::BAD_GATEWAY,
                "no-instance",
                format!("{site}: {}", reply.output),
                "see what became of it at each site: cheops describe",
            ));
        };
        end_hop(&mut headers);
        from_outside(&mut headers);
        headers.remove(CONTENT_LENGTH);
        headers.insert(SITE, answer::name(site));
        let mut response = Response::new(Answer::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if let Some(lookup) = self.known_to(service, reply, target, meta) {
            replace(&mut response, &lookup, &context(service, target));
        }
        response
    }

    /// What stands in place of the ids that the site of a reply has: of what the reply is about, and of
    /// all else that it may mention. Nothing, if there is nothing to replace.
    fn known_to(
        &self,
        service: &Service,
        reply: &Reply,
        target: &str,
        meta: Option<&str>,
    ) -> Option<Lookup> {
        let site = reply.id.site.clone();
        let called = || self.replicants.get(&reply.resource)?.locals.get(&site).cloned();
        // What was made just now may not be known yet.
        let own = meta.and_then(|meta| {
            let local = reply.made.clone().or_else(called)?;
            Some((local, Arc::<str>::from(meta)))
        });
        let others = self.hides(service).then(|| (self.replicants.clone(), service.name().clone()));
        if own.is_none() && others.is_none() {
            return None;
        }
        let about: Box<str> = target.into();
        Some(Arc::new(move |id| match (&own, &others) {
            (Some((local, meta)), _) if **local == *id => Some(meta.clone()),
            (_, Some((replicants, name))) => replicants.meta_at(name, &site, &about, id),
            (_, None) => None,
        }))
    }

    /// All that a site's instance answered, if it can be had.
    async fn whole(&self, reply: &Reply) -> Option<Reader> {
        let run = RunId {
            resource: reply.resource.clone(),
            op: reply.op.clone(),
            attempt: reply.attempt,
        };
        if reply.id.site == self.here {
            let runner = self.runner.clone();
            let output = tokio::task::spawn_blocking(move || runner.output(&run)).await;
            let output = output.ok()?.ok()??;
            let file = tokio::fs::File::from_std(output.file).take(output.length);
            return Some(Box::pin(file));
        }
        if kept::Answer::of_reply(&reply.output).is_none_or(|answer| answer.whole) {
            return None;
        }
        let op = utf8_percent_encode(&run.op.to_string(), NON_ALPHANUMERIC).to_string();
        let path = format!(
            "/api/v1/resources/{}/operations/{op}/output?attempt={}",
            run.resource, run.attempt
        );
        let request = Request::get(path).body(AnyBody::empty()).ok()?;
        let response = timeout(PATIENCE, self.peers.call(&reply.id.site, request)).await;
        let response = response.ok()?.ok().filter(|response| response.status().is_success())?;
        let parts = response.into_body().into_data_stream().map_err(io::Error::other);
        Some(Box::pin(StreamReader::new(parts)))
    }
}

/// The head of a kept answer, and its body as it is read. `lost`: there was more of it than was kept.
async fn read(mut reader: Reader, lost: bool) -> Option<(StatusCode, HeaderMap, AnyBody)> {
    let mut begun = BytesMut::with_capacity(8 << 10);
    loop {
        if let Some(kept::Answer { status, headers, body, .. }) = kept::Answer::read(&begun) {
            let status = StatusCode::from_u16(status).ok()?;
            let first = Bytes::copy_from_slice(body);
            let rest = ReaderStream::with_capacity(reader, 64 << 10);
            let body = if lost {
                broken_off(first, rest)
            } else {
                AnyBody::from_stream(stream::iter([Ok(first)]).chain(rest))
            };
            return Some((status, headers, body));
        }
        if begun.len() > HEAD || reader.read_buf(&mut begun).await.ok()? == 0 {
            return None;
        }
    }
}

/// A body whose end is not to be had.
fn broken_off(
    first: Bytes,
    rest: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> AnyBody {
    let end = io::Error::other("the end of the answer was not kept");
    AnyBody::from_stream(stream::iter([Ok(first)]).chain(rest).chain(stream::iter([Err(end)])))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_whose_end_was_dropped_breaks_off() {
        for lost in [false, true] {
            let kept: &[u8] = b"HTTP/1.1 200 OK\nx-a: b\n\nall that was kept";
            let (status, headers, mut body) = read(Box::pin(kept), lost).await.unwrap();
            assert_eq!((status.as_u16(), &headers["x-a"]), (200, &HeaderValue::from_static("b")));
            let (mut seen, mut broke) = (Vec::new(), false);
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => seen.extend_from_slice(&frame.into_data().unwrap()),
                    Err(_) => broke = true,
                }
            }
            assert_eq!((seen.as_slice(), broke), (&b"all that was kept"[..], lost));
        }
    }
}
