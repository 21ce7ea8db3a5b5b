//! The little HTTP that the strict stand-in needs: requests of clients, and requests to `pouchdb-server`.
//!
//! Requests to `pouchdb-server` use HTTP/1.0 and one connection each, so that a body ends where the connection does.

use std::{
    io::{self, BufRead, BufReader, Read, Write as _},
    net::{SocketAddr, TcpStream},
};

use serde_json::{Value, json};

/// A request of a client.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    pub(super) method: String,
    /// The path as it was sent, without the query.
    pub(super) path: String,
    pub(super) query: String,
    pub(super) authorization: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// The next request of a connection; nothing if the client has closed it.
    pub(super) fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let mut request = Self { method: next(&mut words)?, ..Self::default() };
        let target = next(&mut words)?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        (request.path, request.query) = (path.to_owned(), query.to_owned());
        let (mut length, mut chunked, mut waits) = (0, false, false);
        for (name, value) in head(from)? {
            match name.as_str() {
                "authorization" => request.authorization = Some(value),
                "content-type" => request.content_type = Some(value),
                "content-length" => length = value.parse().map_err(io::Error::other)?,
                "transfer-encoding" => chunked = true,
                "expect" => waits = true,
                _ => {}
            }
        }
        if waits {
            from.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        if chunked {
            request.body = chunks(from)?;
        } else {
            request.body.resize(length, 0);
            from.read_exact(&mut request.body)?;
        }
        Ok(Some(request))
    }

    /// The path with its query.
    pub(super) fn target(&self) -> String {
        match self.query.as_str() {
            "" => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }

    /// The body as JSON; `null` if it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The value of a parameter, decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| decoded(value))
    }
}

fn next<'a>(words: &mut impl Iterator<Item = &'a str>) -> io::Result<String> {
    words.next().map(ToOwned::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The fields of a head, with their names in lower case.
fn head(from: &mut impl BufRead) -> io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(fields) };
        fields.push((name.to_lowercase(), value.trim().to_owned()));
    }
}

fn chunks(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; length + 2];
        from.read_exact(&mut chunk)?;
        body.extend_from_slice(&chunk[..length]);
        if length == 0 {
            return Ok(body);
        }
    }
}

/// A part of an address without its percent signs.
pub(super) fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, others @ ..] = rest {
        let pair = others.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &others[2..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A response.
#[derive(Debug, Clone)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn json(status: u16, body: &Value) -> Self {
        let body = body.to_string().into_bytes();
        Self { status, content_type: "application/json".to_owned(), body }
    }

    /// A refusal in the form that CouchDB gives it.
    pub(super) fn refusal(status: u16, error: &str, reason: &str) -> Self {
        Self::json(status, &json!({"error": error, "reason": reason}))
    }

    pub(super) fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) fn write(&self, to: &mut TcpStream, with_body: bool) -> io::Result<()> {
        let Self { status, content_type, body } = self;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
        );
        let body = if with_body { &body[..] } else { &[] };
        to.write_all(&[head.as_bytes(), body].concat())
    }
}

/// `pouchdb-server`, which does not know that it stands behind something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backend(pub(super) SocketAddr);

impl Backend {
    /// Sends a request, and reads the response whole.
    pub(super) fn ask(self, request: &Request) -> io::Result<Response> {
        let (status, content_type, mut rest) = self.open(request)?;
        let mut body = Vec::new();
        if request.method != "HEAD" {
            rest.read_to_end(&mut body)?;
        }
        Ok(Response { status, content_type, body })
    }

    /// Sends JSON to a path.
    pub(super) fn post(self, path: &str, body: &Value) -> io::Result<Value> {
        let content_type = Some("application/json".to_owned());
        let (method, path, body) = ("POST".to_owned(), path.to_owned(), body.to_string().into());
        let request = Request { method, path, content_type, body, ..Request::default() };
        Ok(self.ask(&request)?.value())
    }

    /// Sends a request, and leaves the body of the response to the caller.
    pub(super) fn open(self, request: &Request) -> io::Result<(u16, String, BufReader<TcpStream>)> {
        let mut stream = TcpStream::connect(self.0)?;
        let (method, target, length) = (&request.method, request.target(), request.body.len());
        let mut lines = format!("{method} {target} HTTP/1.0\r\nHost: {}\r\n", self.0);
        if let Some(content_type) = &request.content_type {
            lines = format!("{lines}Content-Type: {content_type}\r\n");
        }
        lines = format!("{lines}Accept: application/json\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(&[lines.as_bytes(), &request.body].concat())?;
        let mut from = BufReader::new(stream);
        let mut line = String::new();
        from.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let fields = head(&mut from)?;
        let content_type = fields.into_iter().find(|(name, _)| name == "content-type");
        Ok((status, content_type.map_or_else(String::new, |(_, value)| value), from))
    }
}
