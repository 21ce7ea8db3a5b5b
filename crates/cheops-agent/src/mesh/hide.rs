//! Which ids a client sees: the ones that Cheops made, not those of the instance at this site.
//!
//! Links in headers and documents are rewritten: JSON, XML and HTML. All else is content, and so is a
//! document that is sent as a file (`Content-Disposition`), or in part.
//!
//! What must stay true: content passes byte for byte; a document that is rewritten says neither the length
//! nor the digest that it had. Its `ETag` stays: it names the state of the instance, which has to know it
//! again in `If-Match`.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{
        CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE,
        HeaderName, HeaderValue, LINK, LOCATION,
    },
};

use super::{Service, Shared, pool::Answer};
use crate::rest::rewrite::{Context, Format, Rewriter, canonical, header};

/// What stands in place of an id, if it is known.
pub(super) type Lookup = Arc<dyn Fn(&str) -> Option<Arc<str>> + Send + Sync>;
type OwnLookup = Box<dyn Fn(&str) -> Option<Arc<str>> + Send + Sync>;

/// Headers that hold links.
const LINKS: [HeaderName; 3] = [LOCATION, CONTENT_LOCATION, LINK];

/// Headers that are about the bytes of a body.
const OF_BYTES: [HeaderName; 5] = [
    CONTENT_LENGTH,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];

/// A body whose ids are replaced as it passes.
pub(super) struct Rewriting(Rewriter<OwnLookup>);

impl Rewriting {
    fn new(lookup: Lookup, context: &Arc<Context>, format: Format) -> Self {
        let lookup: OwnLookup = Box::new(move |id| lookup(id));
        Self(Rewriter::new(lookup, context, format))
    }

    /// What can be passed on, now that this has come.
    pub(super) fn push(&mut self, data: &Bytes) -> Bytes {
        self.0.push(data)
    }

    /// What was held back.
    pub(super) fn finish(self) -> Bytes {
        self.0.finish()
    }
}

impl Shared {
    /// Whether answers of a service may hold ids that are not to be seen.
    pub(super) fn hides(&self, service: &Service) -> bool {
        service.config.ids.hide && self.replicants.has(service.name())
    }

    /// Puts the ids that Cheops made in place of those of this site, in an answer about a path.
    pub(super) fn hide(&self, service: &Service, path: &str, response: &mut Response<Answer>) {
        let (replicants, name) = (self.replicants.clone(), service.name().clone());
        let about: Arc<str> = path.into();
        let lookup = {
            let about = about.clone();
            move |id: &str| replicants.meta_of(&name, &about, id)
        };
        let context = context(service, &about);
        replace(response, &(Arc::new(lookup) as Lookup), &context);
    }
}

/// What announces an id in an answer about a target: the names of its collection.
pub(super) fn context(service: &Service, target: &str) -> Arc<Context> {
    let path = canonical(target);
    let collections = path.rsplit('/').take(2).filter(|segment| !segment.is_empty());
    Arc::new(Context::new(&service.config.ids, collections))
}

/// Replaces ids in an answer.
pub(super) fn replace(response: &mut Response<Answer>, lookup: &Lookup, context: &Arc<Context>) {
    replace_links(response.headers_mut(), lookup, context);
    let is_file = response.headers().contains_key(CONTENT_DISPOSITION);
    if is_file || response.status() == StatusCode::PARTIAL_CONTENT {
        return;
    }
    if let Some(format) = format(response.headers()) {
        forget_bytes(response.headers_mut());
        response.body_mut().rewrite(Rewriting::new(lookup.clone(), context, format));
    }
}

fn replace_links(headers: &mut HeaderMap, lookup: &Lookup, context: &Arc<Context>) {
    let replaced = |value: &HeaderValue| {
        let replaced = header(value.to_str().ok()?, |id: &str| lookup(id), context)?;
        HeaderValue::from_str(&replaced).ok()
    };
    for name in &LINKS {
        // A field may have several lines.
        let hyper::header::Entry::Occupied(mut lines) = headers.entry(name) else { continue };
        for line in lines.iter_mut() {
            if let Some(value) = replaced(line) {
                *line = value;
            }
        }
    }
}

/// Forgets what was said about the bytes of a body, which is another now.
pub(super) fn forget_bytes(headers: &mut HeaderMap) {
    for name in &OF_BYTES {
        headers.remove(name);
    }
}

/// How a document can be read. Nothing, if the body is none.
pub(super) fn format(headers: &HeaderMap) -> Option<Format> {
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return None;
    }
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.ends_with("json") {
        Some(Format::Json)
    } else if kind == "text/html" || (kind.ends_with("xml") && !kind.starts_with("image/")) {
        Some(Format::Text)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const LOCAL: &str = "0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f";

    #[test]
    fn every_line_of_a_header_stays_and_has_its_ids_hidden() {
        let lookup: Lookup = Arc::new(|id| (id == LOCAL).then(|| "meta".into()));
        let mut headers = HeaderMap::new();
        for line in ["<https://other/help>; rel=help", "</i/ID>; rel=self", "</i>; rel=up, </i/ID>"]
        {
            headers.append(LINK, line.replace("ID", LOCAL).parse().unwrap());
        }
        replace_links(&mut headers, &lookup, &Arc::new(Context::default()));
        let lines: Vec<_> = headers.get_all(LINK).iter().collect();
        let expected =
            ["<https://other/help>; rel=help", "</i/meta>; rel=self", "</i>; rel=up, </i/meta>"];
        assert_eq!(lines, expected);
        assert_eq!(headers.len(), 3);
    }

    #[tokio::test]
    async fn ids_are_hidden_in_documents_and_content_passes_as_it_is() {
        let lookup: Lookup = Arc::new(|id| (id == LOCAL).then(|| "meta".into()));
        let context = Arc::new(Context::default());
        for (status, kind, more, hidden) in [
            (200, "application/json", None, true),
            (201, "application/vnd.api+json; charset=utf-8", None, true),
            (200, "application/xml", None, true),
            (200, "text/html", None, true),
            (200, "text/plain", None, false),
            (200, "text/csv", None, false),
            (200, "image/svg+xml", None, false),
            (200, "application/octet-stream", None, false),
            (206, "application/json", None, false),
            (200, "application/json", Some((CONTENT_DISPOSITION, "attachment")), false),
            (200, "application/json", Some((CONTENT_ENCODING, "gzip")), false),
        ] {
            let body = format!(r#"{{"id": "{LOCAL}"}}"#);
            let mut response = Response::new(Answer::from(Bytes::from(body.clone())));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            let headers = [
                ("content-type", kind),
                ("content-length", "46"),
                ("content-md5", "x"),
                ("repr-digest", "x"),
                ("etag", "\"x\""),
                ("location", &format!("/v2/images/{LOCAL}")),
            ];
            for (name, value) in headers {
                let name: HeaderName = name.parse().unwrap();
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            let more = more.map(|(name, value)| (name, HeaderValue::from_static(value)));
            response.headers_mut().extend(more);
            replace(&mut response, &lookup, &context);
            let headers = response.headers();
            let is = |name: &str| headers.contains_key(name);
            let about_bytes = [is("content-length"), is("content-md5"), is("repr-digest")];
            assert_eq!(about_bytes, [!hidden; 3], "{kind}");
            assert!(is("etag") && headers["location"] == "/v2/images/meta", "{kind}");
            let seen = response.into_body().collect().await.unwrap().to_bytes();
            let expected = if hidden { body.replace(LOCAL, "meta") } else { body };
            assert_eq!(seen, expected.as_bytes(), "{kind}");
        }
    }
}
