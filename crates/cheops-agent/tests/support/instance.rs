//! An instance of a service: a small server of HTTP/1.1 that remembers what it was asked.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

/// A request that it got whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// `POST /v2/images`.
    pub line: String,
    /// In lower case: `content-length: 3`.
    pub headers: Vec<String>,
    /// The beginning of the body.
    pub body: Vec<u8>,
    /// How long all of it was.
    pub length: u64,
}

type Answer = dyn Fn(&Seen) -> Option<String> + Send + Sync;

#[derive(Clone)]
pub struct Instance {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Instance {
    /// An instance that answers so; to what it has no answer for, it says nothing.
    pub fn start(answer: impl Fn(&Seen) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// The same, at an address that was kept for it.
    pub fn start_at(
        kept: KeptAddress,
        answer: impl Fn(&Seen) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        // Such a socket listens inside of a runtime only, and none can be made inside of another.
        let listen = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            runtime.unwrap().block_on(async { kept.0.listen(128).unwrap().into_std().unwrap() })
        });
        let listener = listen.join().unwrap();
        listener.set_nonblocking(false).unwrap();
        Self::serve(listener, answer)
    }

    fn serve(
        listener: TcpListener,
        answer: impl Fn(&Seen) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let this = Self { address, seen: Arc::default() };
        let (seen, answer): (_, Arc<Answer>) = (this.seen.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (seen.clone(), answer.clone());
                thread::spawn(move || serve(&stream.unwrap(), &seen, &*answer));
            }
        });
        this
    }

    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.seen).clone()
    }

    /// What it was asked, without the rest.
    pub fn lines(&self) -> Vec<String> {
        lock(&self.seen).iter().map(|seen| seen.line.clone()).collect()
    }
}

/// An address at which nobody listens, nor can anybody else as long as it is kept.
pub struct KeptAddress(tokio::net::TcpSocket);

impl KeptAddress {
    pub fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Serves one connection. One that breaks off before a request is whole is nothing to remember.
fn serve(stream: &TcpStream, seen: &Mutex<Vec<Seen>>, answer: &Answer) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
        let mut headers = Vec::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok().filter(|count| *count > 0)?;
            match header.trim_end() {
                "" => break,
                header => headers.push(header.to_ascii_lowercase()),
            }
        }
        let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
        let length: u64 = length.map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; usize::try_from(length.min(1 << 16)).unwrap()];
        reader.read_exact(&mut body).ok()?;
        let mut left = length - body.len() as u64;
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let most = usize::try_from(left.min(1 << 16)).unwrap();
            let count = reader.read(&mut buffer[..most]).ok().filter(|count| *count > 0)?;
            left -= count as u64;
        }
        let request = Seen { line, headers, body, length };
        lock(seen).push(request.clone());
        let Some(answer) = answer(&request) else {
            // Until the other side has enough of it.
            let _ = reader.read(&mut buffer);
            return None;
        };
        let mut stream = stream;
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// An answer with a body.
pub fn answer(status: &str, headers: &[&str], body: &str) -> String {
    let length = format!("Content-Length: {}", body.len());
    let headers = [headers, &[&length]].concat().join("\r\n");
    format!("HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}")
}
