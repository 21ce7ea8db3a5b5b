//! Requests as clients of the application send them, and the answers.

use std::time::Duration;

use serde_json::Value;
use ureq::http::{Method, Request};

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// A header, all of its values joined; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> String {
        let values = self.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str());
        values.collect::<Vec<_>>().join(", ")
    }

    /// The site that answered.
    pub(crate) fn site(&self) -> String {
        self.header("x-cheops-site")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{} {}: {error}", self.status, self.text()))
    }

    /// The same, if it is an answer with this status.
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{} {:?}", self.text(), self.headers);
        self
    }

    /// The problem that the agent tells of, whose type is the last segment of its `type`.
    pub(crate) fn problem(&self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.text());
        let problem = self.json();
        let named = problem["type"].as_str().unwrap_or_default();
        assert_eq!(named.rsplit('/').next(), Some(kind), "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        for text in ["title", "detail", "hint"] {
            assert!(problem[text].as_str().is_some_and(|t| !t.is_empty()), "{text}: {problem}");
        }
        problem
    }
}

/// A request that is being put together.
#[derive(Clone)]
pub(crate) struct Call {
    method: Method,
    url: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    http: ureq::Agent,
}

/// Clients that keep their connections, as most do.
#[derive(Clone)]
pub(crate) struct Client(ureq::Agent);

impl Client {
    pub(crate) fn new() -> Self {
        Self::patient(Duration::from_mins(1))
    }

    /// One that waits for so long.
    pub(crate) fn patient(span: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(span))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Self(config.into())
    }

    pub(crate) fn call(&self, method: &str, url: &str) -> Call {
        Call {
            method: method.parse().unwrap(),
            url: url.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            http: self.0.clone(),
        }
    }

    pub(crate) fn get(&self, url: &str) -> Call {
        self.call("GET", url)
    }
}

impl Call {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn scope(self, scope: &str) -> Self {
        self.header("X-Scope", scope)
    }

    pub(crate) fn json(self, value: &Value) -> Self {
        self.header("Content-Type", "application/json").body(value.to_string())
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The answer; nothing if there is none.
    pub(crate) fn try_send(self) -> Option<Answer> {
        let mut request = Request::builder().method(self.method.clone()).uri(&self.url);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let takes_body = matches!(self.method, Method::POST | Method::PUT | Method::PATCH);
        let response = if takes_body {
            self.http.run(request.body(self.body).unwrap())
        } else {
            self.http.run(request.body(()).unwrap())
        };
        let mut response = response.ok()?;
        let headers = response.headers().iter().map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        Some(Answer {
            status: response.status().as_u16(),
            headers: headers.collect(),
            body: response.body_mut().with_config().limit(1 << 30).read_to_vec().ok()?,
        })
    }

    pub(crate) fn send(self) -> Answer {
        let told = format!("{} {}", self.method, self.url);
        self.try_send().unwrap_or_else(|| panic!("{told}: no answer"))
    }
}
