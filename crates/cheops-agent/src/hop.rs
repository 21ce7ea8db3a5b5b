//! Header fields that are about one connection.
//!
//! What must stay true: they do not go on to the next connection (RFC 9110, 7.6.1), and nobody can have
//! other fields taken off by it that the next one relies on.

use hyper::{
    HeaderMap,
    header::{
        CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
    },
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that are about one connection.
static OF_HOP: [HeaderName; 8] = [
    CONNECTION,
    UPGRADE,
    TRANSFER_ENCODING,
    TE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
];

/// Takes off what is about the connection that the message came over. What the other side wants to
/// change to is the answer, if it asks for that.
pub(crate) fn end_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    // Most have none of them, and to see that is quicker than to look each up.
    let found: Vec<&HeaderName> =
        headers.keys().filter_map(|name| OF_HOP.iter().find(|of_hop| *of_hop == name)).collect();
    if found.is_empty() {
        return None;
    }
    let upgrade = take_connection(headers).then(|| headers.remove(UPGRADE)).flatten();
    for name in found {
        let value = headers.remove(name);
        if name == TE
            && let Some(Ok(te)) = value.as_ref().map(HeaderValue::to_str)
            && te.split(',').any(|t| t.trim().eq_ignore_ascii_case("trailers"))
        {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
    upgrade
}

/// Takes off `Connection` and what it names. Whether it names `Upgrade`.
fn take_connection(headers: &mut HeaderMap) -> bool {
    let mut values = headers.get_all(CONNECTION).iter().cloned();
    let Some(first) = values.next() else { return false };
    let others: Vec<HeaderValue> = values.collect();
    headers.remove(CONNECTION);
    let values = std::iter::once(&first).chain(&others);
    let mut upgrades = false;
    for name in values.filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')) {
        let name = name.trim();
        if name.eq_ignore_ascii_case("upgrade") {
            upgrades = true;
        } else if !["keep-alive", "close", "te"].iter().any(|of_hop| name.eq_ignore_ascii_case(of_hop))
            && let Ok(name) = name.parse::<HeaderName>()
            // Nobody can have these taken off: others rely on them.
            && name != HOST
            && name != CONTENT_LENGTH
        {
            headers.remove(name);
        }
    }
    upgrades
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
