//! A way to a server that answers as a cluster may: asked for a range of documents, by a node that lacks some of them;
//! asked for one by its id, by all nodes. And one that answers as if documents were very long.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::Value;

/// How this way differs from another.
#[derive(Clone, Copy)]
pub(crate) enum Manner {
    /// Documents are hidden of which a function says so by their ids.
    Hides(fn(&str) -> bool),
    /// More than so many documents at once are more than anybody can take.
    Long(usize),
}

/// What is more than anybody can take, in bytes.
const LONG: usize = 257 << 20;

/// The way, for as long as the test runs.
pub(crate) struct Lagging {
    pub(crate) port: u16,
    /// How many documents were hidden, or how many answers were too long.
    hidden: Arc<AtomicUsize>,
}

impl Lagging {
    pub(crate) fn before((host, port): (&str, u16), manner: Manner) -> Self {
        let (listener, host) = (TcpListener::bind("127.0.0.1:0").unwrap(), host.to_owned());
        let here = listener.local_addr().unwrap().port();
        let hidden = Arc::new(AtomicUsize::new(0));
        let count = hidden.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (server, count) = (TcpStream::connect((host.as_str(), port)), count.clone());
                thread::spawn(move || {
                    if let Ok(server) = server {
                        while pass(&client, &server, manner, &count).is_some() {}
                    }
                });
            }
        });
        Self { port: here, hidden }
    }

    pub(crate) fn hidden(&self) -> usize {
        self.hidden.load(Ordering::Relaxed)
    }
}

/// Passes on one request and its answer.
fn pass(
    mut client: &TcpStream,
    mut server: &TcpStream,
    manner: Manner,
    count: &AtomicUsize,
) -> Option<()> {
    let (head, body) = message(client)?;
    if let Manner::Long(most) = manner
        && head.starts_with("POST ")
        && head.contains("/_all_docs?")
        && serde_json::from_slice::<Value>(&body).ok()?["keys"].as_array()?.len() > most
    {
        count.fetch_add(1, Ordering::Relaxed);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
        client.write_all(head.as_bytes()).ok()?;
        let part = vec![b' '; 1 << 20];
        (0..LONG / part.len()).try_for_each(|_| client.write_all(&part)).ok()?;
        return None;
    }
    server.write_all(&[head.as_bytes(), &body].concat()).ok()?;
    let is_range = head.starts_with("GET ") && head.contains("/_all_docs?");
    let (mut head, mut body) = message(server)?;
    if let Manner::Hides(hides) = manner
        && is_range
    {
        let mut found: Value = serde_json::from_slice(&body).ok()?;
        let rows = found["rows"].as_array_mut()?;
        let before = rows.len();
        rows.retain(|row| !hides(row["id"].as_str().unwrap_or_default()));
        count.fetch_add(before - rows.len(), Ordering::Relaxed);
        body = found.to_string().into_bytes();
        head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
    }
    client.write_all(&[head.as_bytes(), &body].concat()).ok()
}

/// The next request or answer: its head, and its body as one.
fn message(from: &TcpStream) -> Option<(String, Vec<u8>)> {
    // Byte by byte, so that nothing of the next one is read.
    let mut from = BufReader::with_capacity(1, from);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let field = |name: &str| {
        let line = head.lines().find(|line| line.to_lowercase().starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let mut body = Vec::new();
    if let Some(length) = field("content-length:") {
        body.resize(length.parse().ok()?, 0);
        from.read_exact(&mut body).ok()?;
    } else if field("transfer-encoding:").is_some() {
        loop {
            let mut line = String::new();
            from.read_line(&mut line).ok()?;
            let length = usize::from_str_radix(line.trim(), 16).ok()?;
            let mut part = vec![0; length + 2];
            from.read_exact(&mut part).ok()?;
            body.extend_from_slice(&part[..length]);
            if length == 0 {
                break;
            }
        }
        let length = format!("Content-Length: {}", body.len());
        let lines = head.lines().map(|line| {
            let chunked = line.to_lowercase().starts_with("transfer-encoding:");
            if chunked { length.as_str() } else { line }
        });
        head = lines.collect::<Vec<_>>().join("\r\n") + "\r\n";
    }
    Some((head, body))
}
