//! The scope of a request, taken off it.
//!
//! A client names a scope in one of three ways, so that each sort of client finds one that it can use:
//! the header `X-Scope`, a member `scope` of W3C `baggage`, or a first segment of the path that begins
//! with `~`. The text is scope-lang, or a JSON object with a place for each service.
//!
//! What must stay true:
//! - the application sees nothing of the scope: neither header nor member nor segment;
//! - whatever else stands in the request stays as it was, byte for byte;
//! - two that say different things are an error, never a guess, whether in two ways or in one;
//! - what another agent has forwarded has the scope that this agent says, and none of its own.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use cheops_core::scope::{MAX_LENGTH, Scope, ScopeError, parse, parse_place};
use hyper::{
    HeaderMap, Uri,
    header::{HeaderName, HeaderValue},
    http::{request::Parts, uri::PathAndQuery},
};
use percent_encoding::percent_decode_str;
use serde::{
    Deserialize,
    de::{Deserializer, Error as _, MapAccess, Visitor},
};

/// The header that names the scope.
pub(super) const SCOPE: HeaderName = HeaderName::from_static("x-scope");
const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
/// The headers that may.
static CARRIERS: [HeaderName; 2] = [SCOPE, BAGGAGE];
/// The member of `baggage` that does.
const MEMBER: &str = "scope";
/// What the segment of the path begins with; a `~` may be encoded, and means the same (RFC 3986, 2.3).
const MARKS: [&str; 3] = ["/~", "/%7E", "/%7e"];

const BY_PATH: &str = "the path";
const BY_HEADER: &str = "the header X-Scope";
const BY_BAGGAGE: &str = "the header baggage";

/// How many texts are kept parsed.
const KEPT: usize = 1_024;

/// A scope, and the text that a client wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct Named {
    /// What it means.
    pub scope: Scope,
    /// As it was written.
    pub text: Box<str>,
}

/// Why a request's scope can't be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum Unreadable {
    /// It is no sentence of the scope language.
    #[error("the scope in {way} can't be read: {error}")]
    Wrong { way: &'static str, text: Box<str>, error: ScopeError },
    /// It is not even text of the form that it has to have.
    #[error("the scope in {way} can't be read: {why}")]
    Malformed { way: &'static str, why: String },
    /// There are two that differ.
    #[error("the request names two scopes: `{one}` in {first} and `{other}` in {second}")]
    Two { first: &'static str, one: Box<str>, second: &'static str, other: Box<str> },
}

/// Scopes that were read before, by their texts: clients repeat themselves.
#[derive(Debug, Default)]
pub struct Reader {
    known: RwLock<HashMap<Box<str>, Arc<Named>>>,
}

impl Reader {
    /// Takes the scope off a request, if it has one.
    pub fn take(&self, request: &mut Parts) -> Result<Option<Arc<Named>>, Unreadable> {
        let by_path = take_segment(&mut request.uri)?;
        // To go over them once is quicker than to look two up.
        if by_path.is_none() && !request.headers.keys().any(|name| CARRIERS.contains(name)) {
            return Ok(None);
        }
        let by_header = take_headers(&mut request.headers)?;
        let by_member = take_members(&mut request.headers)?;
        let by_path = by_path.map(|text| (BY_PATH, text));
        let by_header = by_header.into_iter().map(|text| (BY_HEADER, text));
        let by_member = by_member.into_iter().map(|text| (BY_BAGGAGE, text));
        self.one(by_path.into_iter().chain(by_header).chain(by_member))
    }

    /// Takes off the scope that another agent says a request has.
    pub(super) fn take_forwarded(
        &self,
        headers: &mut HeaderMap,
    ) -> Result<Option<Arc<Named>>, Unreadable> {
        self.one(take_headers(headers)?.into_iter().map(|text| (BY_HEADER, text)))
    }

    /// The one scope that all of these texts name.
    fn one(
        &self,
        texts: impl Iterator<Item = (&'static str, String)>,
    ) -> Result<Option<Arc<Named>>, Unreadable> {
        let mut found: Option<(&'static str, Arc<Named>)> = None;
        for (way, text) in texts {
            let named = self.named(way, &text)?;
            match &found {
                Some((first, before)) if before.scope != named.scope => {
                    return Err(Unreadable::Two {
                        first,
                        one: before.text.clone(),
                        second: way,
                        other: named.text.clone(),
                    });
                }
                Some(_) => {}
                None => found = Some((way, named)),
            }
        }
        Ok(found.map(|(_, named)| named))
    }

    /// A scope that was read before, here or at another site.
    pub(super) fn known(&self, text: &str) -> Option<Arc<Named>> {
        self.named("an operation", text).ok()
    }

    fn named(&self, way: &'static str, text: &str) -> Result<Arc<Named>, Unreadable> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(named) = known.get(text) {
            return Ok(named.clone());
        }
        drop(known);
        let named = Arc::new(Named { scope: read(way, text)?, text: text.into() });
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Whoever sends a new text each time gains nothing from the others' being kept.
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(text.into(), named.clone());
        Ok(named)
    }
}

/// A scope from scope-lang or from JSON.
fn read(way: &'static str, text: &str) -> Result<Scope, Unreadable> {
    let malformed = |why: String| Unreadable::Malformed { way, why };
    if text.len() > MAX_LENGTH {
        return Err(malformed(format!("it is longer than {MAX_LENGTH} bytes")));
    }
    let is_json =
        text.trim_start().strip_prefix('{').is_some_and(|t| t.trim_start().starts_with('"'));
    if !is_json {
        let wrong = |error| Unreadable::Wrong { way, text: text.into(), error };
        return parse(text).map_err(wrong);
    }
    let Places(places) = serde_json::from_str(text).map_err(|error| {
        malformed(format!("{error}; it is an object with a text for each service"))
    })?;
    let mut services = BTreeMap::new();
    for (service, place) in places {
        let name = service.parse().map_err(|error| malformed(format!("{error}")))?;
        let wrong = |error| Unreadable::Wrong { way, text: place.as_str().into(), error };
        services.insert(name, parse_place(&place).map_err(wrong)?);
    }
    Scope::new(services).ok_or_else(|| malformed("it names no service".to_owned()))
}

/// An object with a place for each service. One that names a service twice could mean either.
struct Places(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EachOnce)
    }
}

struct EachOnce;

impl<'de> Visitor<'de> for EachOnce {
    type Value = Places;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Places, A::Error> {
        let mut places = BTreeMap::new();
        while let Some((service, place)) = members.next_entry::<String, String>()? {
            if places.contains_key(&service) {
                return Err(A::Error::custom(format!("`{service}` is named twice")));
            }
            places.insert(service, place);
        }
        Ok(Places(places))
    }
}

fn decoded(way: &'static str, text: &str) -> Result<String, Unreadable> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(Cow::into_owned(text)),
        Err(_) => Err(Unreadable::Malformed { way, why: "it is not UTF-8".to_owned() }),
    }
}

fn take_headers(headers: &mut HeaderMap) -> Result<Vec<String>, Unreadable> {
    let mut texts = Vec::new();
    for value in headers.get_all(SCOPE) {
        let malformed =
            |_| Unreadable::Malformed { way: BY_HEADER, why: "it is not UTF-8".to_owned() };
        let text = std::str::from_utf8(value.as_bytes()).map_err(malformed)?.trim();
        if !text.is_empty() {
            texts.push(text.to_owned());
        }
    }
    headers.remove(SCOPE);
    Ok(texts)
}

/// Takes off all scopes, unread.
pub(super) fn drop_scopes(fields: &mut HeaderMap) {
    fields.remove(SCOPE);
    // What can't be decoded was taken off, too.
    let _ = take_members(fields);
}

/// Takes the members off, and leaves the others as they are.
fn take_members(headers: &mut HeaderMap) -> Result<Vec<String>, Unreadable> {
    let is_ours =
        |member: &str| member.split_once('=').is_some_and(|(name, _)| name.trim() == MEMBER);
    let holds = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.split(',').any(is_ours));
    let mut found = Vec::new();
    if !headers.get_all(BAGGAGE).iter().any(holds) {
        return Ok(found);
    }
    let all: Vec<HeaderValue> = headers.get_all(BAGGAGE).iter().cloned().collect();
    headers.remove(BAGGAGE);
    for value in all {
        let Ok(text) = value.to_str() else {
            headers.append(BAGGAGE, value);
            continue;
        };
        let (ours, others): (Vec<&str>, Vec<&str>) = text.split(',').partition(|m| is_ours(m));
        if ours.is_empty() {
            headers.append(BAGGAGE, value.clone());
        } else if let Ok(rest) = HeaderValue::from_str(&others.join(","))
            && !others.is_empty()
        {
            headers.append(BAGGAGE, rest);
        }
        for (_, text) in ours.iter().filter_map(|member| member.split_once('=')) {
            // What follows a `;` says something about the member, and nothing that we know of.
            let text = text.split(';').next().unwrap_or_default().trim();
            found.push(decoded(BY_BAGGAGE, text)?);
        }
    }
    Ok(found)
}

/// Takes the first segment of the path off, if it names a scope.
fn take_segment(uri: &mut Uri) -> Result<Option<String>, Unreadable> {
    let path = uri.path();
    let Some(rest) = MARKS.iter().find_map(|mark| path.strip_prefix(mark)) else {
        return Ok(None);
    };
    let way = BY_PATH;
    let (segment, path) = rest.split_once('/').unwrap_or((rest, ""));
    let text = decoded(way, segment)?;
    // `~user` is a path of its own: only what names a service is a scope.
    if !text.contains(':') {
        return Ok(None);
    }
    let target = match uri.query() {
        Some(query) => format!("/{path}?{query}"),
        None => format!("/{path}"),
    };
    let malformed = |error: hyper::http::uri::InvalidUri| Unreadable::Malformed {
        way,
        why: format!("what follows it is no path: {error}"),
    };
    let target: PathAndQuery = target.parse().map_err(malformed)?;
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(target);
    *uri = Uri::from_parts(parts)
        .map_err(|error| Unreadable::Malformed { way, why: error.to_string() })?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    /// The scope of a request, and what is left of its target and its `baggage`.
    fn taken(target: &str, headers: &[(&str, &str)]) -> Result<(String, String, String), String> {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        let named = Reader::default().take(&mut parts).map_err(|error| error.to_string())?;
        assert!(!parts.headers.contains_key(SCOPE));
        let scope = named.map(|named| named.scope.to_string()).unwrap_or_default();
        let baggage = parts.headers.get_all(BAGGAGE).iter().map(|v| v.to_str().unwrap());
        let baggage = baggage.collect::<Vec<_>>().join(" + ");
        Ok((scope, parts.uri.to_string(), baggage))
    }

    #[test]
    fn a_scope_is_taken_off() {
        let scoped = "image: site1 & site2";
        for (target, headers, scope, left, baggage) in [
            ("/v2/images?limit=2", &[][..], "", "/v2/images?limit=2", ""),
            ("/v2", &[("x-scope", "image:site1&site2")], scoped, "/v2", ""),
            ("/v2", &[("x-scope", "{ image: site1 & site2 }")], scoped, "/v2", ""),
            ("/v2", &[("x-scope", r#"{"image": "site1 & site2"}"#)], scoped, "/v2", ""),
            ("/v2", &[("x-scope", "")], "", "/v2", ""),
            ("/v2", &[("baggage", "scope=image%3Asite1%26site2")], scoped, "/v2", ""),
            (
                "/v2",
                &[("baggage", "a=1, scope=image:site1&site2;x=y ,b=2")],
                scoped,
                "/v2",
                "a=1,b=2",
            ),
            (
                "/v2",
                &[("baggage", "a=1"), ("baggage", "scope=image:site2")],
                "image: site2",
                "/v2",
                "a=1",
            ),
            ("/v2", &[("baggage", "scoped=1,b = 2")], "", "/v2", "scoped=1,b = 2"),
            ("/~image:site1&site2/v2/a%2Fb?x=%20", &[], scoped, "/v2/a%2Fb?x=%20", ""),
            ("/~image%3Asite1%20%26%20site2/v2", &[], scoped, "/v2", ""),
            ("/%7Eimage:site1&site2/v2", &[], scoped, "/v2", ""),
            ("/%7eimage%3Asite1%26site2/v2", &[], scoped, "/v2", ""),
            ("/%7Eada/notes", &[], "", "/%7Eada/notes", ""),
            (
                "/v2",
                &[("x-scope", "image: site1 & site2"), ("x-scope", "image:site1&site2")],
                scoped,
                "/v2",
                "",
            ),
            ("/~image:site1&site2", &[], scoped, "/", ""),
            ("/~image:site1&site2?q", &[], scoped, "/?q", ""),
            ("http://host:80/~image:site1&site2/v2", &[], scoped, "http://host:80/v2", ""),
            ("/~ada/notes", &[], "", "/~ada/notes", ""),
            ("/~image:site1&site2/v2", &[("x-scope", "image: site1 & site2")], scoped, "/v2", ""),
        ] {
            let expected = (scope.to_owned(), left.to_owned(), baggage.to_owned());
            assert_eq!(taken(target, headers), Ok(expected), "{target} {headers:?}");
        }
    }

    #[test]
    fn what_can_not_be_read_is_said() {
        for (target, headers, expected) in [
            ("/", &[("x-scope", "image site1")][..], "the header X-Scope can't be read"),
            ("/", &[("x-scope", r#"{"image": 3}"#)], "an object with a text for each service"),
            ("/", &[("x-scope", r#"{"a&b": "site1"}"#)], "the header X-Scope"),
            (
                "/",
                &[("x-scope", r#"{"image": "site1", "im\u0061ge": "site2"}"#)],
                "`image` is named twice",
            ),
            ("/", &[("x-scope", r#"{"image": "site1 &"}"#)], "the header X-Scope can't be read"),
            ("/", &[("baggage", "scope=%ff")], "the header baggage can't be read: it is not UTF-8"),
            ("/~image:/v2", &[], "the path can't be read"),
            (
                "/~image:site1/v2",
                &[("x-scope", "image: site2")],
                "two scopes: `image:site1` in the path and `image: site2` in the header X-Scope",
            ),
            ("/", &[("x-scope", "image: site1"), ("x-scope", "image: site2")], "two scopes"),
            ("/", &[("baggage", "scope=image:site1,scope=image:site2")], "two scopes"),
            (
                "/",
                &[("baggage", "scope=image:site1"), ("baggage", "scope=image:site2")],
                "two scopes",
            ),
        ] {
            let error = taken(target, headers).unwrap_err();
            assert!(error.contains(expected), "{target} {headers:?}: {error}");
        }
        let long = "a".repeat(MAX_LENGTH + 1);
        assert!(taken("/", &[("x-scope", &long)]).unwrap_err().contains("longer than"));
    }

    #[test]
    fn what_another_agent_forwards_has_the_scope_that_it_says_and_no_other() {
        let request = Request::builder().uri("/~image:site3/v2").header("baggage", "scope=a:b");
        let mut parts = request.header("x-scope", "image: site2").body(()).unwrap().into_parts().0;
        let reader = Reader::default();
        let named = reader.take_forwarded(&mut parts.headers).unwrap().unwrap();
        assert_eq!(named.scope.to_string(), "image: site2");
        assert_eq!(
            (parts.uri.path(), &parts.headers["baggage"]),
            ("/~image:site3/v2", &"scope=a:b".parse().unwrap())
        );
        assert!(!parts.headers.contains_key(SCOPE));
        assert_eq!(reader.take_forwarded(&mut parts.headers), Ok(None));
    }

    #[test]
    fn a_client_that_repeats_itself_costs_one_reading_and_a_flood_no_memory() {
        let reader = Reader::default();
        let first = reader.named("the path", "image: site1").unwrap();
        assert!(Arc::ptr_eq(&first, &reader.named("the path", "image: site1").unwrap()));
        for n in 0..3 * KEPT {
            reader.named("the path", &format!("image: site{n}")).unwrap();
            assert!(reader.known.read().unwrap().len() <= KEPT);
        }
    }
}
