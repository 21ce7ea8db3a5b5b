//! Where an agent is, and what is asked of it: addresses and paths of URLs.
//!
//! What must stay true: a name stands in a path or a query only in its escaped form.

use std::{
    fmt::{self, Display, Write},
    net::IpAddr,
    path::PathBuf,
};

use cheops_agent::config::API_PORT;

/// Where an agent's API listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// At a port of a host.
    Host {
        /// Over TLS.
        secure: bool,
        /// With brackets, if it is an IPv6 address.
        host: String,
        port: u16,
    },
    /// At a Unix socket.
    Socket(PathBuf),
}

impl Address {
    /// Reads `http://host:port`, `https://host:port` or `unix:/path`; `http` and the port may be left out.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err("it is written unix:/PATH/api.sock".to_owned());
            }
            return Ok(Self::Socket(path.into()));
        }
        let (secure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => {
                return Err(format!(
                    "an agent speaks http, https or unix, and `{scheme}` is something else"
                ));
            }
            None => (false, text),
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
        Ok(Self::Host { secure, host: host.to_owned(), port })
    }

    /// A port of this machine.
    pub(crate) fn local(port: u16) -> Self {
        Self::Host { secure: false, host: "127.0.0.1".to_owned(), port }
    }

    /// Whether nobody else can read what is sent there: over TLS, or without leaving this machine.
    pub(crate) fn is_private(&self) -> bool {
        match self {
            Self::Host { secure: false, host, .. } => {
                let address = bare(host).parse::<IpAddr>();
                host.eq_ignore_ascii_case("localhost")
                    || address.is_ok_and(|address| address.to_canonical().is_loopback())
            }
            Self::Host { secure: true, .. } | Self::Socket(_) => true,
        }
    }

    /// As the `Host` header has it.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Host { host, port, .. } => format!("{host}:{port}"),
            Self::Socket(_) => "localhost".to_owned(),
        }
    }
}

/// A host without the brackets of an IPv6 address.
pub(crate) fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { secure, host, port } => {
                write!(f, "http{}://{host}:{port}", if *secure { "s" } else { "" })
            }
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
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
            ("https://site1.example.org:1", "https://site1.example.org:1"),
            ("unix:/run/api.sock", "unix:/run/api.sock"),
            ("unix:///run/api.sock", "unix:/run/api.sock"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), expected, "{text}");
        }
        assert_eq!(bare("[::1]"), "::1");
    }

    #[test]
    fn what_is_no_address() {
        for (text, expected) in [
            ("", "http://HOST:PORT"),
            ("ftp://a", "speaks http"),
            ("unix:", "unix:/PATH"),
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
    fn what_others_can_read_is_told_apart() {
        for (text, private) in [
            ("https://site1.example.org", true),
            ("https://192.0.2.1", true),
            ("unix:/run/api.sock", true),
            ("http://127.0.0.1:8079", true),
            ("127.3.2.1", true),
            ("localhost:1", true),
            ("http://[::1]:1", true),
            ("http://[::ffff:127.0.0.1]:1", true),
            ("http://192.0.2.1", false),
            ("http://0.0.0.0", false),
            ("site1.example.org", false),
            ("localhost.example.org", false),
            ("127.0.0.1.example.org", false),
            ("http://[2001:db8::1]:1", false),
        ] {
            assert_eq!(Address::parse(text).unwrap().is_private(), private, "{text}");
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
