//! A listener that is full of connections without a request still serves those who ask.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use super::{
    limits::{head, instance},
    origin::{Proxy, Recorder, exchange},
};
use crate::field::within;

/// How long an answer may take when the listener is full.
const SOON: Duration = Duration::from_secs(6);
/// How many connections the listener has.
const MOST: usize = 40;

const FINE: &[u8] = b"GET /fine HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";

/// A connection on which these bytes were sent.
fn connect(proxy: &Proxy, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// How many of these connections the agent has closed.
fn closed(streams: &[TcpStream]) -> usize {
    let is_closed = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        match stream.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    streams.iter().filter(is_closed).count()
}

#[test]
fn idle_connections_without_a_request_are_closed_when_the_listener_is_full() {
    let recorder = Recorder::start();
    let proxy = Proxy::with(recorder.address, "", &format!("connections = {MOST}"));
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let sorts = [&b""[..], b"PR", b"GET / HTTP/1.1\r\nHost: web\r\n", &preface];
    // More than fit: whoever has said nothing for longest makes room for the next.
    let idle: Vec<TcpStream> =
        (0..2 * MOST).map(|n| connect(&proxy, sorts[n % sorts.len()])).collect();
    for _ in 0..5 {
        let start = Instant::now();
        let fine = exchange(proxy.address, FINE, SOON);
        assert!(fine.starts_with("HTTP/1.1 200"), "{fine:?}");
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    // The others may stay.
    assert!(closed(&idle[..MOST]) > 0 && closed(&idle) < 2 * MOST, "{}", closed(&idle));
}

#[test]
fn connections_that_wait_for_their_next_request_make_room_after_those_without_any() {
    let recorder = Recorder::start();
    let proxy = Proxy::with(recorder.address, "", "connections = 4");
    let ask = b"GET /first HTTP/1.1\r\nHost: web\r\n\r\n";
    let answered = |_| {
        let mut stream = connect(&proxy, ask);
        assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
        stream.read_exact(&mut [0; 2]).unwrap();
        stream
    };
    let kept: Vec<TcpStream> = (0..3).map(answered).collect();
    let silent = [connect(&proxy, b"")];
    assert!(exchange(proxy.address, FINE, SOON).starts_with("HTTP/1.1 200"));
    assert_eq!((closed(&silent), closed(&kept)), (1, 0));
    // A fourth that waits takes the place that is free; the next needs one of theirs.
    let _fourth = answered(3);
    assert!(exchange(proxy.address, FINE, SOON).starts_with("HTTP/1.1 200"));
    within(SOON, "one of those that wait makes room", || closed(&kept) == 1);
    // It is the one that has waited for longest.
    assert_eq!(closed(&kept[..1]), 1);
}

#[test]
fn a_connection_with_a_request_is_never_closed_for_another() {
    let slow = instance(|mut stream| {
        let Some(_) = head(&mut stream) else { return };
        thread::sleep(Duration::from_secs(3));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
    });
    let proxy = Proxy::with(slow, "", "connections = 4");
    let ask = b"GET /slow HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let mut busy: Vec<TcpStream> = (0..4).map(|_| connect(&proxy, ask)).collect();
    // One more waits for its turn, and is served then.
    let late = exchange(proxy.address, ask, Duration::from_secs(20));
    assert!(late.ends_with("done"), "{late:?}");
    for stream in &mut busy {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("done"), "{answer:?}");
    }
}
