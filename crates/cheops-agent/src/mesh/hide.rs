//! Which ids a client sees: the ones that Cheops made, not those of the instance at this site.
//!
//! What must stay true: an answer in which nothing is known passes as it came; one that is rewritten
//! does not say the length that it had.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{
        CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, HeaderName, HeaderValue,
        LINK, LOCATION,
    },
};

use super::{Service, Shared, pool::Answer};
use crate::rest::rewrite::{Context, Format, Rewriter, canonical, header};

/// What stands in place of an id, if it is known.
pub(super) type Lookup = Arc<dyn Fn(&str) -> Option<Arc<str>> + Send + Sync>;
type OwnLookup = Box<dyn Fn(&str) -> Option<Arc<str>> + Send + Sync>;

/// Headers that hold links.
const LINKS: [HeaderName; 3] = [LOCATION, CONTENT_LOCATION, LINK];

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
    // A part of a body is no document.
    if response.status() == StatusCode::PARTIAL_CONTENT {
        return;
    }
    if let Some(format) = format(response.headers()) {
        response.headers_mut().remove(CONTENT_LENGTH);
        response.body_mut().rewrite(Rewriting::new(lookup.clone(), context, format));
    }
}

fn replace_links(headers: &mut HeaderMap, lookup: &Lookup, context: &Arc<Context>) {
    for name in &LINKS {
        let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        let replaced = header(value, |id: &str| lookup(id), context);
        if let Some(value) = replaced.and_then(|value| HeaderValue::from_str(&value).ok()) {
            headers.insert(name, value);
        }
    }
}

/// How a body can be read, if it can.
pub(super) fn format(headers: &HeaderMap) -> Option<Format> {
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return None;
    }
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.ends_with("json") {
        Some(Format::Json)
    } else if kind.starts_with("text/") || kind.ends_with("xml") {
        Some(Format::Text)
    } else {
        None
    }
}
