//! Which header fields and trailers go on, and which end here.
//!
//! What must stay true:
//! - fields that are about one connection do not go on to the next (see `hop`);
//! - a body has one length that all agree on: a request that gives two is refused (RFC 9112, 6.3);
//! - a target and a `Host` name a host and nothing else: credentials in them are refused (RFC 9110, 4.2.4);
//! - what agents say to each other can't come from outside;
//! - a request that goes round in circles comes to an end: those who pass it on are counted.

use std::{fmt::Write as _, net::IpAddr};

use hyper::{
    HeaderMap, StatusCode, Uri, Version,
    header::{CONTENT_LENGTH, FORWARDED, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, VIA},
};

use super::read::drop_scopes;
use crate::hop::{OURS, end_hop_of_trailers};
pub(super) use crate::hop::{end_hop, named_by_connection};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Where what another agent's request creates is to be: a place of the scope language.
pub(super) const PLACE: HeaderName = HeaderName::from_static("x-cheops-place");
/// The scope of a request that became an operation, for the calls that are made on behalf of it.
pub(super) const FOR: HeaderName = HeaderName::from_static("x-cheops-scope");
/// The site that served a request.
pub(super) const SITE: HeaderName = HeaderName::from_static("x-cheops-site");
/// In the answer of an agent that got none from its instance: what came of it (see `attempt`).
pub(super) const CAME: HeaderName = HeaderName::from_static("x-cheops-came");
/// How many proxies may have passed a request on before it is taken to go round in circles.
const MOST_HOPS: usize = 32;
/// How many bytes the header fields of a request may have.
const MOST: usize = 64 << 10;

/// Why a request can't go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unsound {
    #[error("it has both a Content-Length and a Transfer-Encoding")]
    TwoFramings,
    #[error("it has more than one Content-Length")]
    TwoLengths,
    #[error("its Transfer-Encoding is not `chunked`")]
    Encoding,
    #[error("it has more than one Host")]
    TwoHosts,
    #[error("it has no Host")]
    NoHost,
    #[error("there is a user name before the host, in its target or its Host")]
    UserInfo,
    #[error("its header fields have more than {MOST} bytes")]
    TooLarge,
}

impl Unsound {
    /// What the client is told.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TwoFramings
            | Self::TwoLengths
            | Self::Encoding
            | Self::TwoHosts
            | Self::NoHost
            | Self::UserInfo => StatusCode::BAD_REQUEST,
        }
    }

    /// What the client can do about it.
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::UserInfo => "send credentials in a header field, like Authorization",
            Self::TooLarge => "send fewer or shorter header fields",
            Self::TwoFramings
            | Self::TwoLengths
            | Self::Encoding
            | Self::TwoHosts
            | Self::NoHost => "send a request that RFC 9112 allows",
        }
    }
}

/// Whether a request means the same to everybody who reads it, and is not too much to read.
pub(super) fn sound(version: Version, target: &Uri, headers: &HeaderMap) -> Result<(), Unsound> {
    let (mut lengths, mut hosts, mut encodings, mut bytes) = (0, 0, 0, 0);
    let mut chunked = true;
    let mut user = target.authority().is_some_and(|authority| authority.as_str().contains('@'));
    // Once over all of them is quicker than to look each up.
    for (name, value) in headers {
        bytes += name.as_str().len() + value.len();
        if name == CONTENT_LENGTH {
            lengths += 1;
        } else if name == HOST {
            hosts += 1;
            user |= value.as_bytes().contains(&b'@');
        } else if name == TRANSFER_ENCODING {
            encodings += 1;
            chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
        }
    }
    match (lengths, encodings) {
        (2.., _) => Err(Unsound::TwoLengths),
        (1, 1..) => Err(Unsound::TwoFramings),
        (_, 2..) => Err(Unsound::Encoding),
        _ if !chunked => Err(Unsound::Encoding),
        _ if hosts > 1 => Err(Unsound::TwoHosts),
        _ if user => Err(Unsound::UserInfo),
        _ if hosts == 0 && version == Version::HTTP_11 => Err(Unsound::NoHost),
        _ if bytes > MOST => Err(Unsound::TooLarge),
        _ => Ok(()),
    }
}

/// Takes off what only agents say.
pub(super) fn from_outside(headers: &mut HeaderMap) {
    let ours = |name: &&HeaderName| name.as_str().starts_with(OURS);
    let names: Vec<HeaderName> = headers.keys().filter(ours).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Takes off the trailers that do not go on, by the rules for header fields: those about one connection, what only agents
/// say, and scopes, which are read from the head alone. `named`: what `Connection` named in the head.
pub(super) fn clean_trailers(trailers: &mut HeaderMap, named: &[HeaderName]) {
    end_hop_of_trailers(trailers, named);
    from_outside(trailers);
    drop_scopes(trailers);
}

/// Whom requests come from, written down once for all requests of a connection.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) address: IpAddr,
    text: HeaderValue,
}

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        // An address holds nothing that a header can't.
        let text = HeaderValue::from_str(&address.to_string());
        Self { address, text: text.unwrap_or(HeaderValue::from_static("unknown")) }
    }
}

/// A request goes round in circles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {MOST_HOPS} proxies have passed the request on: it goes round in circles")]
pub(super) struct Circles;

/// Says whom a request came from, by which name and how, to those who come after.
pub(super) fn forwarded(
    headers: &mut HeaderMap,
    client: &Client,
    host: Option<&HeaderValue>,
) -> Result<(), Circles> {
    match joined(headers, &X_FORWARDED_FOR) {
        None => drop(headers.insert(X_FORWARDED_FOR, client.text.clone())),
        Some(earlier) if earlier.split(',').count() >= MOST_HOPS => return Err(Circles),
        Some(earlier) => {
            set(headers, X_FORWARDED_FOR, &format!("{earlier}, {}", client.address));
        }
    }
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
    }
    // Whoever speaks the newer language is answered in it.
    if let Some(earlier) = joined(headers, &FORWARDED) {
        let mut text = format!("{earlier}, for=");
        let _ = match client.address {
            IpAddr::V4(address) => write!(text, "{address}"),
            IpAddr::V6(address) => write!(text, "\"[{address}]\""),
        };
        set(headers, FORWARDED, &text);
    }
    Ok(())
}

/// Says that a message was passed on that came in a version of HTTP (RFC 9110, 7.6.3). Which site did so
/// is nothing that an application needs to know.
pub(super) fn via(headers: &mut HeaderMap, version: Version) {
    let by = match version {
        Version::HTTP_10 => "1.0 cheops",
        Version::HTTP_2 => "2 cheops",
        _ => "1.1 cheops",
    };
    headers.append(VIA, HeaderValue::from_static(by));
}

fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let first = values.next()?.to_owned();
    Some(values.fold(first, |all, value| format!("{all}, {value}")))
}

fn set(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::tests::{headers, lines};

    #[test]
    fn a_request_means_the_same_to_everybody() {
        for (given, expected) in [
            ("host: a\ncontent-length: 3", Ok(())),
            ("host: a\ntransfer-encoding: chunked", Ok(())),
            ("host: a\ntransfer-encoding: CHUNKED", Ok(())),
            ("accept: x", Err(Unsound::NoHost)),
            ("transfer-encoding: chunked\ncontent-length: 3", Err(Unsound::TwoFramings)),
            ("content-length: 3\ncontent-length: 3", Err(Unsound::TwoLengths)),
            ("transfer-encoding: gzip, chunked", Err(Unsound::Encoding)),
            ("transfer-encoding: chunked\ntransfer-encoding: chunked", Err(Unsound::Encoding)),
            ("transfer-encoding: xchunked", Err(Unsound::Encoding)),
            ("host: a\nhost: b", Err(Unsound::TwoHosts)),
            ("host: ada@a", Err(Unsound::UserInfo)),
            (&format!("host: a\nx: {}", "y".repeat(MOST)), Err(Unsound::TooLarge)),
        ] {
            let target = Uri::from_static("/x@y");
            assert_eq!(sound(Version::HTTP_11, &target, &headers(given)), expected, "{given}");
        }
        for (target, expected) in [
            ("http://web/a@b?c@d", Ok(())),
            ("http://ada@web/", Err(Unsound::UserInfo)),
            ("http://ada:secret@web:80/", Err(Unsound::UserInfo)),
            ("http://@web/", Err(Unsound::UserInfo)),
        ] {
            let found = sound(Version::HTTP_11, &target.parse().unwrap(), &headers("host: web"));
            assert_eq!(found, expected, "{target}");
        }
        // These name it otherwise, or not at all.
        for version in [Version::HTTP_10, Version::HTTP_2] {
            assert_eq!(sound(version, &Uri::from_static("/"), &headers("accept: x")), Ok(()));
        }
    }

    #[test]
    fn nobody_speaks_for_an_agent() {
        let mut headers = headers("x-cheops-service: image\nx-cheops-site: a\naccept: x");
        from_outside(&mut headers);
        assert_eq!(lines(&headers), "accept: x");
    }

    #[test]
    fn trailers_carry_no_scope_and_nothing_of_agents() {
        let mut trailers = headers(
            "x-sum: 1\nkeep-alive: x\nx-scope: image: site1\nbaggage: scope=image:site1,a=1\nx-cheops-site: a\nx-a: 1",
        );
        clean_trailers(&mut trailers, &["x-a".parse().unwrap()]);
        assert_eq!(lines(&trailers), "baggage: a=1\nx-sum: 1");
    }

    #[test]
    fn those_who_come_after_know_whom_it_came_from() {
        let host: HeaderValue = "app:80".parse().unwrap();
        for (client, given, expected) in [
            (
                "10.0.0.1",
                "",
                "x-forwarded-for: 10.0.0.1\nx-forwarded-host: app:80\nx-forwarded-proto: http",
            ),
            (
                "::1",
                "forwarded: for=a\nx-forwarded-for: 1.2.3.4\nx-forwarded-proto: https\nx-forwarded-host: h",
                "forwarded: for=a, for=\"[::1]\"\nx-forwarded-for: 1.2.3.4, ::1\nx-forwarded-host: h\nx-forwarded-proto: https",
            ),
        ] {
            let mut headers = headers(given);
            let client = Client::from(client.parse::<IpAddr>().unwrap());
            forwarded(&mut headers, &client, Some(&host)).unwrap();
            assert_eq!(lines(&headers), expected);
        }
    }

    #[test]
    fn a_request_that_goes_round_in_circles_comes_to_an_end() {
        let client = Client::from("10.0.0.1".parse::<IpAddr>().unwrap());
        let mut passed = headers("accept: x");
        for _ in 0..MOST_HOPS {
            forwarded(&mut passed, &client, None).unwrap();
        }
        assert_eq!(forwarded(&mut passed, &client, None), Err(Circles));
    }
}
