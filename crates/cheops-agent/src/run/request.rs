//! From a request of an operation to what is sent to the instance at this site.
//!
//! Pure. What must stay true: what differs from site to site is the instance, its ids for all that the
//! request names (the target of an operation holds meta ids, and each site knows its own for them), its part of what divides, and the headers that its configuration sets; all else is
//! sent as it came. What can't be sent is refused before anything is.

use std::collections::BTreeMap;

use cheops_core::{
    id::{ResourceId, ServiceName},
    matrix::Share,
    operation::{Action, HttpBody, HttpRequest, Names},
};
use hyper::{
    HeaderMap, Method, Uri,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, TE, TRAILER},
};

use super::job::Request;
use crate::{
    config::Service,
    hop::{OURS, end_hop},
    rest::{divide, ids, rewrite},
};

/// What we decide ourselves. The body is there whole, so nobody needs to be asked before it is sent, and
/// nothing comes after it.
const NOT_SENT: [HeaderName; 4] = [TE, TRAILER, CONTENT_LENGTH, EXPECT];

/// What requests need to know of this site.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local<'a> {
    /// The services with their instances.
    pub(super) services: &'a BTreeMap<ServiceName, Service>,
    /// What the application here calls what was made.
    pub(super) made: Option<&'a str>,
    /// What it calls other things that are mentioned: meta ids, and its own.
    pub(super) others: &'a [(Box<str>, Box<str>)],
    /// What of the resource is here, if it is in parts.
    pub(super) share: Option<Share>,
}

/// The resources that the requests of an action mention by meta ids, and those ids.
pub(super) fn mentioned(action: &Action) -> Vec<(ResourceId, Box<str>)> {
    match action {
        Action::Command { .. } => Vec::new(),
        Action::Steps(steps) => steps.iter().flat_map(mentioned).collect(),
        Action::Http(request) => {
            let resource = |id: std::borrow::Cow<'_, str>| {
                let resource = ids::resource_id(&request.service, &id).ok()?;
                ids::parse_resource(&resource)?;
                Some((resource, id.into()))
            };
            rewrite::segments(&request.target).filter_map(resource).collect()
        }
    }
}

/// A request that is ready for the instance at this site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ready {
    /// It is to be sent, with this body.
    Send(Box<Request>, HttpBody),
    /// There is nothing to do here, for this reason.
    Needless(String),
}

/// Makes a request ready. `deletes`: what it names is to be gone.
pub(super) fn ready(
    request: &HttpRequest,
    local: Local<'_>,
    deletes: bool,
) -> Result<Ready, String> {
    let name = &request.service;
    let Some(service) = local.services.get(name) else {
        return Err(format!(
            "the service `{name}` is not known at this site; add a [[service]] with this name to its configuration"
        ));
    };
    let Some(address) = service.address else {
        return Err(format!(
            "the service `{name}` has no instance at this site; set its `address` in the configuration"
        ));
    };
    let method = &*request.method;
    if Method::from_bytes(method.as_bytes()).is_err() || method == "CONNECT" {
        return Err(format!("`{method}` can't be the method of a request"));
    }
    let target = match (&request.names, local.made) {
        (Names::Nothing | Names::Makes(_), _) => request.target.to_string(),
        (Names::Uses(meta), Some(made)) => rewrite::target(&request.target, meta, made),
        (Names::Uses(meta), None) if local.share.is_some() => {
            return Ok(Ready::Needless(format!("no part of `{meta}` is at this site")));
        }
        (Names::Uses(meta), None) if deletes => {
            return Ok(Ready::Needless(format!(
                "nothing was made at this site for `{meta}`, as far as is known here: there is nothing to delete"
            )));
        }
        (Names::Uses(meta), None) => {
            return Err(format!(
                "nothing was made at this site for `{meta}`, or its answer named no id: there is nothing to send the request to"
            ));
        }
    };
    let target =
        local.others.iter().fold(target, |target, (meta, own)| rewrite::target(&target, meta, own));
    if !target.starts_with('/') || target.parse::<Uri>().is_err() {
        return Err(format!("`{target}` can't be the target of a request"));
    }
    let Some(body) = own_part(request, service, local.share) else {
        return Ok(Ready::Needless("it does not divide: the first site has all of it".to_owned()));
    };
    let ready = Request {
        service: name.to_string(),
        address,
        http2: service.http2,
        connect: service.limits.connect,
        method: method.to_owned(),
        target,
        headers: headers(request, &body, service)?,
        body: None,
        makes: matches!(request.names, Names::Makes(_)),
        deletes,
    };
    Ok(Ready::Send(Box::new(ready), body))
}

/// What this site sends of a body. What does not divide is the first part's alone, unless the request is
/// about what each part has made already.
fn own_part(request: &HttpRequest, service: &Service, share: Option<Share>) -> Option<HttpBody> {
    let Some(share) = share else { return Some(request.body.clone()) };
    if let HttpBody::Inline(bytes) = &request.body
        && let Ok(whole) = serde_json::from_slice(bytes)
        && let divide::Part::Divided(part) = divide::part(&whole, &service.divide, share)
    {
        return Some(HttpBody::Inline(part.to_string().into_bytes().into()));
    }
    let for_all = match request.names {
        Names::Uses(_) => true,
        Names::Makes(_) => false,
        Names::Nothing => request.body == HttpBody::None,
    };
    (for_all || share.part == 0).then(|| request.body.clone())
}

fn headers(
    request: &HttpRequest,
    body: &HttpBody,
    service: &Service,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut headers = HeaderMap::new();
    let sent = request.headers.iter().filter(|(name, _)| !name.starts_with(OURS));
    for (name, value) in sent {
        let wrong = || format!("`{name}` can't be sent as a header");
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        headers.append(header, HeaderValue::from_bytes(value.as_bytes()).map_err(|_| wrong())?);
    }
    end_hop(&mut headers);
    for name in &NOT_SENT {
        headers.remove(name);
    }
    // An answer in an encoding could not be read.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for (name, value) in &service.headers {
        headers.insert(name, value.clone());
    }
    let length = match body {
        HttpBody::Inline(bytes) => Some(bytes.len() as u64),
        HttpBody::File(file) => Some(file.length),
        // Some instances refuse what usually has a body and says nothing of it.
        HttpBody::None => matches!(&*request.method, "POST" | "PUT" | "PATCH").then_some(0),
    };
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    let pair = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), value.as_bytes().to_vec())
    };
    Ok(headers.iter().map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Divide, Gather, Split};

    fn services() -> BTreeMap<ServiceName, Service> {
        let service = |name: &str, address: Option<&str>| {
            let address = address.map(|address| address.parse().unwrap());
            Service::new(name.parse().unwrap(), "127.0.0.1:1".parse().unwrap(), address)
        };
        let mut image = service("image", Some("127.0.0.1:9292"));
        image.headers = vec![(HeaderName::from_static("x-auth-token"), "local".parse().unwrap())];
        [image, service("away", None)].map(|service| (service.name.clone(), service)).into()
    }

    fn request(method: &str, target: &str, names: Names) -> HttpRequest {
        HttpRequest {
            service: "image".parse().unwrap(),
            method: method.into(),
            target: target.into(),
            headers: [].into(),
            body: HttpBody::None,
            names,
        }
    }

    fn sent(request: &HttpRequest, made: Option<&str>) -> Result<Request, String> {
        match ready(
            request,
            Local { services: &services(), made, others: &[], share: None },
            false,
        )? {
            Ready::Send(request, _) => Ok(*request),
            Ready::Needless(why) => panic!("{why}"),
        }
    }

    #[test]
    fn a_sites_own_id_stands_in_the_target() {
        let uses = || Names::Uses("m1".into());
        for (target, names, made, expected) in [
            ("/v2/images/m1", uses(), "7", "/v2/images/7"),
            (
                "/v2/images/m1/file?id=m1&ids=m12",
                uses(),
                "a/b",
                "/v2/images/a%2Fb/file?id=a%2Fb&ids=m12",
            ),
            ("/v2/m1", Names::Nothing, "7", "/v2/m1"),
            ("/v2/images?owner=m1", Names::Makes("m1".into()), "7", "/v2/images?owner=m1"),
        ] {
            let sent = sent(&request("PUT", target, names), Some(made)).unwrap();
            assert_eq!(sent.target, expected);
        }
    }

    #[test]
    fn other_ids_that_are_mentioned_are_the_sites_own_too() {
        let (one, other) =
            ("0a1b2c3d-ce05-8123-9abc-0123456789ab", "1a1b2c3d-ce05-8123-9abc-0123456789ab");
        let target =
            format!("/v2/images/{one}?from={other}&to=4503599627370497&x=4503599627370495");
        for (names, made, expected) in [
            (Names::Uses(one.into()), Some("7"), "/v2/images/7?from=local&to=4503599627370497&x="),
            (Names::Nothing, None, &format!("/v2/images/{one}?from=local&to=4503599627370497&x=")),
        ] {
            let request = request("PATCH", &target, names);
            let ids: Vec<String> = mentioned(&Action::Http(Box::new(request.clone())))
                .into_iter()
                .map(|(resource, id)| {
                    assert_eq!(resource.as_str(), format!("image~{id}"));
                    id.into()
                })
                .collect();
            assert_eq!(ids, [one, other, "4503599627370497"]);
            // What this site has nothing of stays as it is.
            let others = [(other.into(), "local".into())];
            let local = Local { services: &services(), made, others: &others, share: None };
            let Ok(Ready::Send(sent, _)) = ready(&request, local, false) else {
                panic!("it is sent")
            };
            assert_eq!(sent.target, format!("{expected}4503599627370495"));
        }
    }

    #[test]
    fn what_can_not_be_sent_is_refused_with_a_reason() {
        let uses = Names::Uses("m1".into());
        let nothing = || Names::Nothing;
        let away =
            HttpRequest { service: "away".parse().unwrap(), ..request("GET", "/", nothing()) };
        let other = HttpRequest { service: "x".parse().unwrap(), ..request("GET", "/", nothing()) };
        let header = HttpRequest {
            headers: [("a b".into(), "c".into())].into(),
            ..request("GET", "/", nothing())
        };
        let value = HttpRequest {
            headers: [("a".into(), "b\r\nc: d".into())].into(),
            ..request("GET", "/", nothing())
        };
        for (request, why) in [
            (other, "the service `x` is not known at this site"),
            (away, "the service `away` has no instance at this site"),
            (request("PUT", "/m1", uses), "nothing was made at this site for `m1`"),
            (request("GET it", "/", nothing()), "`GET it` can't be the method of a request"),
            (request("CONNECT", "/", nothing()), "`CONNECT` can't be the method of a request"),
            (request("GET", "x", nothing()), "`x` can't be the target of a request"),
            (request("GET", "/ HTTP/1.1\r\nx: y", nothing()), "`/ HTTP/1.1"),
            (header, "`a b` can't be sent as a header"),
            (value, "`a` can't be sent as a header"),
        ] {
            let refused = sent(&request, None).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }

    #[test]
    fn a_delete_of_what_was_never_made_has_nothing_to_do() {
        let delete = request("DELETE", "/v2/images/m1", Names::Uses("m1".into()));
        let local = Local { services: &services(), made: None, others: &[], share: None };
        assert!(matches!(ready(&delete, local, true), Ok(Ready::Needless(_))));
        let local = Local { made: Some("7"), ..local };
        let Ok(Ready::Send(sent, _)) = ready(&delete, local, true) else { panic!("it is sent") };
        assert_eq!((sent.target.as_str(), sent.deletes), ("/v2/images/7", true));
    }

    #[test]
    fn each_part_is_sent_its_own_and_what_does_not_divide_goes_to_the_first() {
        let mut services = services();
        let image = services.get_mut(&"image".parse::<ServiceName>().unwrap()).unwrap();
        image.divide =
            vec![Divide { pointer: "/replicas".into(), split: Split::Even, gather: Gather::Sum }];
        let (makes, uses) = (Names::Makes("m1".into()), Names::Uses("m1".into()));
        let divided = r#"{"replicas":10}"#;
        // names, body, made here: what parts 0 and 2 of 3 send
        for (names, body, made, expected) in [
            (&makes, divided, None, [Some(r#"{"replicas":4}"#), Some(r#"{"replicas":3}"#)]),
            (&makes, r#"{"x":1}"#, None, [Some(r#"{"x":1}"#), None]),
            (&makes, "no json", None, [Some("no json"), None]),
            (&uses, divided, Some("7"), [Some(r#"{"replicas":4}"#), Some(r#"{"replicas":3}"#)]),
            (&uses, r#"{"x":1}"#, Some("7"), [Some(r#"{"x":1}"#), Some(r#"{"x":1}"#)]),
            (&uses, r#"{"x":1}"#, None, [None, None]),
            (&Names::Nothing, "no json", None, [Some("no json"), None]),
        ] {
            let mut request = request("PUT", "/v2/m1", names.clone());
            request.body = HttpBody::Inline(body.as_bytes().into());
            for (part, expected) in [0, 2].into_iter().zip(expected) {
                let share = Some(Share { part, parts: 3 });
                let local = Local { services: &services, made, others: &[], share };
                let sent = match ready(&request, local, false).unwrap() {
                    Ready::Send(sent, HttpBody::Inline(body)) => {
                        let length = body.len().to_string().into_bytes();
                        assert!(sent.headers.contains(&("content-length".into(), length)));
                        Some(String::from_utf8(body.into()).unwrap())
                    }
                    Ready::Send(..) => panic!("it has a body"),
                    Ready::Needless(_) => None,
                };
                assert_eq!(sent.as_deref(), expected, "{names:?} {body} {part}");
            }
        }
    }

    #[test]
    fn only_what_belongs_to_one_connection_is_left_out_of_the_headers() {
        let headers = [
            ("X-Request-Id", "r1"),
            ("X-Name", "Zoë"),
            ("x-twice", "a"),
            ("x-twice", "b"),
            ("Connection", "close, X-Hop"),
            ("X-Hop", "1"),
            ("Expect", "100-continue"),
            ("Content-Length", "99"),
            ("Transfer-Encoding", "chunked"),
            ("Host", "elsewhere"),
            ("Accept-Encoding", "gzip"),
            ("x-cheops-scope", "image: a & b"),
            ("X-Auth-Token", "of another site"),
        ];
        let mut request = request("POST", "/v2/images", Names::Nothing);
        request.headers = headers.map(|(name, value)| (name.into(), value.into())).into();
        for (body, length) in [
            (HttpBody::None, "0"),
            (HttpBody::Inline([1, 2, 3].into()), "3"),
            (
                HttpBody::File(cheops_core::operation::Attachment {
                    name: "x".into(),
                    content: [0; 32],
                    length: 1 << 40,
                }),
                "1099511627776",
            ),
        ] {
            request.body = body;
            let sent = sent(&request, None).unwrap().headers;
            let mut sent: Vec<(&str, &str)> = sent
                .iter()
                .map(|(name, value)| (name.as_str(), std::str::from_utf8(value).unwrap()))
                .collect();
            sent.sort_unstable();
            let expected = [
                ("accept-encoding", "identity"),
                ("content-length", length),
                ("host", "elsewhere"),
                ("x-auth-token", "local"),
                ("x-name", "Zoë"),
                ("x-request-id", "r1"),
                ("x-twice", "a"),
                ("x-twice", "b"),
            ];
            assert_eq!(sent, expected);
        }
    }
}
