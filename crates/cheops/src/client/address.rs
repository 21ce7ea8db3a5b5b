//! Where an agent is, and what is asked of it: addresses and paths of URLs.
//!
//! What must stay true: a name stands in a path or a query only in its escaped form.

use std::fmt::{self, Display, Write};

use cheops_agent::config::API_PORT;

/// Where an agent's API listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Reads `http://host:port`; the scheme and the port may be left out.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(format!("an agent speaks http, and `{scheme}` is something else"));
            }
            None => text,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.is_empty() || rest.contains(['/', '?', '#', '@', ' ']) {
            return Err("it is written http://HOST:PORT, without a path".to_owned());
        }
        let bracket = rest.rfind(']').unwrap_or(0);
        let (host, port) = match rest.rfind(':').filter(|&colon| colon > bracket) {
            Some(colon) => (&rest[..colon], &rest[colon + 1..]),
            None => (rest, ""),
        };
        let port =
            match port {
                "" => API_PORT,
                port => port.parse().ok().filter(|&port| port > 0).ok_or_else(|| {
                    format!("`{port}` is not a port; a port is a number up to 65535")
                })?,
            };
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (host.contains(':') && !is_v6) {
            return Err("an IPv6 address stands in brackets: http://[::1]:8079".to_owned());
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// A port of this machine.
    pub(crate) fn local(port: u16) -> Self {
        Self { host: "127.0.0.1".to_owned(), port }
    }

    /// As a socket wants it.
    pub(crate) fn socket(&self) -> (&str, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']'), self.port)
    }

    /// As the `Host` header has it.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// A path of the API, and a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    text: String,
    has_query: bool,
}

impl Path {
    /// A part of the API: `resources`.
    pub(crate) fn api(part: &str) -> Self {
        Self { text: format!("/api/v1/{part}"), has_query: false }
    }

    /// A name, or a word, after a slash.
    pub(crate) fn then(mut self, segment: &str) -> Self {
        self.text.push('/');
        escape(segment, &mut self.text);
        self
    }

    /// A parameter of the query, if there is a value for it.
    pub(crate) fn query(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            self.text.push(if self.has_query { '&' } else { '?' });
            self.has_query = true;
            escape(name, &mut self.text);
            self.text.push('=');
            escape(&value.to_string(), &mut self.text);
        }
        self
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// Everything but the letters and signs that mean themselves anywhere in a URL.
fn escape(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            into.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_an_address() {
        for (text, expected) in [
            ("http://127.0.0.1:8079", "http://127.0.0.1:8079"),
            ("http://site1.example.org/", "http://site1.example.org:8079"),
            ("site1:80", "http://site1:80"),
            ("http://[::1]:1", "http://[::1]:1"),
            ("[::1]", "http://[::1]:8079"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), expected, "{text}");
        }
        assert_eq!(Address::parse("[::1]:7").unwrap().socket(), ("::1", 7));
    }

    #[test]
    fn what_is_no_address() {
        for (text, expected) in [
            ("", "http://HOST:PORT"),
            ("https://a", "speaks http"),
            ("http://a/b", "without a path"),
            ("a:b", "is not a port"),
            ("a:0", "is not a port"),
            ("a:99999", "is not a port"),
            ("::1", "in brackets"),
            (":1", "in brackets"),
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let path = Path::api("sites").then("DC 1/ü").then("pause").query("for", Some("1m&x=y"));
        assert_eq!(path.as_str(), "/api/v1/sites/DC%201%2F%C3%BC/pause?for=1m%26x%3Dy");
        let path = Path::api("changes").query("since", None::<u64>).query("once", Some(true));
        assert_eq!(path.query("a", Some(1)).as_str(), "/api/v1/changes?once=true&a=1");
    }
}
