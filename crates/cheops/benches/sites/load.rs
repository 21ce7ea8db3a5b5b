//! Many clients on kept-alive connections, each asking again as soon as it is answered. Threads and
//! plain sockets: what they cost is little, and the same for everyone who is measured.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A request in full.
pub(crate) fn request(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// How many requests are answered in a second.
pub(crate) fn run(
    address: SocketAddr,
    clients: usize,
    span: Duration,
    request: &(impl Fn(usize) -> String + Sync),
) -> f64 {
    let stop = AtomicBool::new(false);
    let count = AtomicUsize::new(0);
    let start = Instant::now();
    thread::scope(|scope| {
        for client in 0..clients {
            let (stop, count) = (&stop, &count);
            let request = request(client);
            scope.spawn(move || {
                let mut connection = Connection::open(address);
                while !stop.load(Ordering::Relaxed) {
                    connection.ask(request.as_bytes());
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(span);
        stop.store(true, Ordering::Relaxed);
    });
    count.into_inner() as f64 / start.elapsed().as_secs_f64()
}

/// Asks so many times in all.
pub(crate) fn exactly(
    address: SocketAddr,
    clients: usize,
    times: usize,
    request: &(impl Fn(usize) -> String + Sync),
) {
    thread::scope(|scope| {
        for client in 0..clients {
            let request = request(client);
            scope.spawn(move || {
                let mut connection = Connection::open(address);
                for _ in 0..times / clients {
                    connection.ask(request.as_bytes());
                }
            });
        }
    });
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: vec![0; 64 << 10] }
    }

    /// One request, and its answer to the last byte.
    fn ask(&mut self, request: &[u8]) {
        self.stream.write_all(request).unwrap();
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).unwrap();
            assert!(read > 0, "the server hung up");
            filled += read;
            if is_whole(&self.buffer[..filled]) {
                let status = &self.buffer[9..12];
                assert!(
                    status.starts_with(b"2"),
                    "{}",
                    String::from_utf8_lossy(&self.buffer[..filled])
                );
                return;
            }
        }
    }
}

/// Whether an answer has come to its end.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let body = &answer[end + 4..];
    match head.split("content-length: ").nth(1) {
        Some(rest) => {
            let length: usize = rest.split("\r\n").next().unwrap().trim().parse().unwrap();
            body.len() >= length
        }
        None => body.ends_with(b"0\r\n\r\n"),
    }
}
