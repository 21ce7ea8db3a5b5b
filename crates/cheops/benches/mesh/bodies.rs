//! Large bodies: an upstream that makes and swallows them, and a client that does the opposite.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const PIECE: usize = 256 << 10;

/// Which way a body goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Down,
    Up,
}

/// Listens for requests: the body of `GET /N` has N bytes, and any other request's is read.
pub(crate) fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::with_capacity(PIECE, stream);
    while let Some(head) = head(&mut reader) {
        let answered = if let Some(target) = head.strip_prefix("GET /") {
            let length = target.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            let stream = reader.get_mut();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).and_then(|()| pour(stream, length))
        } else {
            let length = length(&head);
            if swallow(&mut reader, length) < length {
                return;
            }
            reader.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        };
        if answered.is_err() {
            return;
        }
    }
}

/// How long it takes a body of so many bytes to pass.
pub(crate) fn pass(address: SocketAddr, header: Option<&str>, way: Way, length: u64) -> Duration {
    let mut stream = TcpStream::connect(address).unwrap();
    let extra = header.map(|header| format!("{header}\r\n")).unwrap_or_default();
    let start = Instant::now();
    let first = match way {
        Way::Down => format!("GET /{length} HTTP/1.1\r\n"),
        Way::Up => format!("PUT /sink HTTP/1.1\r\nContent-Length: {length}\r\n"),
    };
    stream.write_all(format!("{first}Host: store\r\n{extra}\r\n").as_bytes()).unwrap();
    if way == Way::Up {
        pour(&mut stream, length).unwrap();
    }
    let mut reader = BufReader::with_capacity(PIECE, stream);
    let head = head(&mut reader).unwrap();
    assert!(head.starts_with("HTTP/1.1 20"), "{head}");
    if way == Way::Down {
        assert_eq!(swallow(&mut reader, length), length);
    }
    start.elapsed()
}

fn head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

fn length(head: &str) -> u64 {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    length.and_then(|(_, length)| length.parse().ok()).unwrap_or(0)
}

fn pour(stream: &mut TcpStream, mut length: u64) -> std::io::Result<()> {
    let piece = vec![b'x'; PIECE];
    while length > 0 {
        let now = length.min(PIECE as u64);
        stream.write_all(&piece[..usize::try_from(now).unwrap_or(PIECE)])?;
        length -= now;
    }
    Ok(())
}

/// Reads so many bytes, and says how many came.
fn swallow(reader: &mut impl BufRead, length: u64) -> u64 {
    let mut left = length;
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        match reader.read(&mut piece[..most]) {
            Ok(0) | Err(_) => break,
            Ok(count) => left -= count as u64,
        }
    }
    length - left
}
