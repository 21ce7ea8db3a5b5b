//! Header fields and trailers that are about one connection.
//!
//! What must stay true: they do not go on to the next connection (RFC 9110, 7.6.1), and nobody can have
//! other fields taken off by it that the next one relies on.

use hyper::{
    HeaderMap,
    header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TE, TRAILER, UPGRADE},
};

/// What agents say to each other begins with this.
pub(crate) const OURS: &str = "x-cheops-";

/// Whether a field is about one connection.
fn is_of_hop(name: &HeaderName) -> bool {
    // As text, since this is asked of every field of every message, and quicker than eight comparisons.
    matches!(
        name.as_str(),
        "connection"
            | "upgrade"
            | "transfer-encoding"
            | "te"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "keep-alive"
            | "proxy-connection"
    )
}

/// Takes off what is about the connection that the message came over. What the other side wants to
/// change to is the answer, if it asks for that.
pub(crate) fn end_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let mut ending: Vec<HeaderName> = headers.keys().filter(|n| is_of_hop(n)).cloned().collect();
    if ending.is_empty() {
        return None;
    }
    let named = named_by_connection(headers);
    let upgrade = named.contains(&UPGRADE).then(|| headers.remove(UPGRADE)).flatten();
    let takes_trailers = headers.get(TE).is_some_and(names_trailers);
    // Nobody can have these taken off: others rely on them.
    ending.extend(named.into_iter().filter(|name| name != HOST && name != CONTENT_LENGTH));
    for name in ending {
        headers.remove(name);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    upgrade
}

/// Takes off the trailers that are about the connection that a message came over. `named`: the fields that `Connection`
/// named in its head. What frames a message or says where it goes is no trailer either (RFC 9110, 6.5.1).
pub(crate) fn end_hop_of_trailers(trailers: &mut HeaderMap, named: &[HeaderName]) {
    end_hop(trailers);
    for name in [TE, CONTENT_LENGTH, HOST, TRAILER].iter().chain(named) {
        trailers.remove(name);
    }
}

/// The fields that `Connection` names.
pub(crate) fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).map(str::trim);
    // Nearly all that ever stands there, and the name of no field or of one that goes anyway.
    let usual = |name: &&str| ["keep-alive", "close"].iter().any(|u| name.eq_ignore_ascii_case(u));
    names.filter(|name| !usual(name)).filter_map(|name| name.parse().ok()).collect()
}

fn names_trailers(te: &HeaderValue) -> bool {
    let te = te.to_str().unwrap_or_default();
    te.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Header fields, one a line.
    pub(crate) fn headers(lines: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines.lines().filter_map(|line| line.trim().split_once(": ")) {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    /// The same as text, in the order of the alphabet.
    pub(crate) fn lines(headers: &HeaderMap) -> String {
        let mut lines: Vec<String> =
            headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        lines.sort();
        lines.join("\n")
    }

    #[test]
    fn trailers_are_held_to_the_rules_of_headers() {
        for (given, named, left) in [
            ("x-sum: 1", "", "x-sum: 1"),
            ("connection: close\nkeep-alive: timeout=5\nupgrade: h2c\nx-sum: 1", "", "x-sum: 1"),
            ("connection: x-a\nx-a: 1\nx-b: 2", "", "x-b: 2"),
            ("x-a: 1\nx-b: 2", "x-a", "x-b: 2"),
            ("te: trailers\ntransfer-encoding: chunked\nproxy-connection: x", "", ""),
            ("content-length: 3\nhost: h\ntrailer: x-sum", "", ""),
            ("content-length: 3", "content-length", ""),
            ("x-sum: 1\nx-sum: 2", "", "x-sum: 1\nx-sum: 2"),
        ] {
            let mut trailers = headers(given);
            let named = named_by_connection(&headers(&format!("connection: {named}")));
            end_hop_of_trailers(&mut trailers, &named);
            assert_eq!(lines(&trailers), left, "{given}");
        }
    }

    #[test]
    fn what_is_about_one_connection_ends_with_it() {
        for (given, left, upgrade) in [
            ("accept: x\nkeep-alive: timeout=5", "accept: x", None),
            ("connection: close, X-Secret\nx-secret: 1\nx-other: 2", "x-other: 2", None),
            (
                "connection: content-length, host\nhost: h\ncontent-length: 2",
                "content-length: 2\nhost: h",
                None,
            ),
            ("connection: keep-alive\nconnection: x-a\nx-a: 1", "", None),
            ("connection: Upgrade\nupgrade: websocket", "", Some("websocket")),
            ("upgrade: h2c", "", None),
            ("te: trailers, deflate\nconnection: te", "te: trailers", None),
            ("te: deflate", "", None),
            ("transfer-encoding: chunked\nproxy-connection: x\nproxy-authorization: y", "", None),
            ("trailer: digest", "trailer: digest", None),
        ] {
            let mut headers = headers(given);
            let found = end_hop(&mut headers);
            assert_eq!(lines(&headers), left, "{given}");
            assert_eq!(found.as_ref().map(|v| v.to_str().unwrap()), upgrade, "{given}");
        }
    }
}
