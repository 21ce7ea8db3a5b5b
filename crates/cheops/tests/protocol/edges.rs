//! Edge cases of HTTP where the agent must not guess: broken request bodies, responses that can be read in two ways,
//! and request targets with credentials in them.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::Duration,
};

use super::{
    limits::{head, instance},
    origin::{Echo, Proxy, Recorder, exchange},
};

/// How long an answer may take.
const SOON: Duration = Duration::from_secs(10);

/// An instance that reads for as long as the agent sends, and answers nothing.
fn reads_only() -> std::net::SocketAddr {
    instance(|mut stream| while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {})
}

/// Sends a request, says that nothing more comes, and gives the answer.
fn send_and_close(proxy: &Proxy, request: &str) -> String {
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_broken_request_body_is_the_clients_fault_with_and_without_a_scope() {
    let proxy = Proxy::before(reads_only());
    for scope in ["", "X-Scope: web: site1\r\n", "X-Scope: web: site1; site1\r\n"] {
        for (what, framing, body) in [
            ("a chunk size in words", "Transfer-Encoding: chunked", "5\r\nhello\r\nfive\r\n"),
            ("a chunk without its end", "Transfer-Encoding: chunked", "5\r\nhello0\r\n\r\n"),
            ("chunks that stop", "Transfer-Encoding: chunked", "5\r\nhello\r\n"),
            ("a body that is too short", "Content-Length: 10", "hello"),
            ("no body at all", "Content-Length: 10", ""),
        ] {
            let request =
                format!("POST /x HTTP/1.1\r\nHost: web\r\n{scope}{framing}\r\n\r\n{body}");
            let answer = send_and_close(&proxy, &request);
            assert!(answer.starts_with("HTTP/1.1 400"), "{what}, {scope:?}: {answer:?}");
            assert!(answer.contains("\"broken-body\""), "{what}, {scope:?}: {answer:?}");
        }
    }
}

#[test]
fn a_request_body_that_stops_without_a_scope_is_the_clients_fault() {
    let proxy = Proxy::with(reads_only(), "idle = '1s'", "");
    let request = b"POST /x HTTP/1.1\r\nHost: web\r\nContent-Length: 10\r\n\r\nhello";
    let answer = exchange(proxy.address, request, SOON);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer:?}");
    assert!(answer.contains("\"broken-body\""), "{answer:?}");
}

/// An instance that gives each request the same answer, and closes.
fn answers(answer: &'static str) -> Proxy {
    Proxy::beside_an_unreachable_site(instance(move |mut stream| {
        if head(&mut stream).is_some() {
            let _ = stream.write_all(answer.as_bytes());
            // The agent closes the connection when it has read enough.
            let _ = stream.read(&mut [0; 10]);
        }
    }))
}

#[test]
fn a_response_that_can_be_read_in_two_ways_is_a_bad_gateway() {
    for (what, answer) in [
        (
            "a length and chunks",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "chunks and a length",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ),
        (
            "a compressed transfer that the agent did not ask for",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ),
        (
            "a switch that nobody asked for",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: feed\r\n\r\nwords",
        ),
    ] {
        let proxy = answers(answer);
        for request in [
            "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nX-Scope: web: site1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nX-Scope: web: site1 % site2\r\n\r\n",
            // A header field alone does not ask for anything (RFC 9110, 7.8).
            "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nUpgrade: feed\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: web\r\nConnection: upgrade\r\nUpgrade: feed\r\n\r\n",
        ] {
            let got = exchange(proxy.address, request.as_bytes(), SOON);
            assert!(got.contains(" 502 "), "{what}, {request:?}: {got:?}");
            assert!(got.contains("application/problem+json"), "{what}, {request:?}: {got:?}");
            assert!(!got.contains("hello") && !got.contains("words"), "{what}: {got:?}");
        }
    }
}

#[test]
fn the_rest_of_an_unsound_response_never_answers_another_request() {
    // The rest would be the answer to the next request, if the length counted.
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n\
                  0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
    let proxy = answers(answer);
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let ask = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
                let got = exchange(proxy.address, ask, SOON);
                assert!(got.starts_with("HTTP/1.1 502") && !got.contains("forged"), "{got:?}");
            });
        }
    });
}

#[test]
fn a_switch_that_the_client_asked_for_still_passes() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    crate::field::websocket::converse(crate::field::websocket::open(
        &proxy.address.to_string(),
        "",
    ));
}

#[test]
fn credentials_in_a_request_target_are_rejected() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    for (target, host) in [
        ("http://ada:secret@web/x", "web"),
        ("http://ada@web:80/x", "web"),
        ("http://@web/x", "web"),
        ("/x", "ada:secret@web"),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = exchange(proxy.address, request.as_bytes(), SOON);
        assert!(answer.starts_with("HTTP/1.1 400"), "{target} {host}: {answer:?}");
        assert!(answer.contains("unsound-request"), "{target} {host}: {answer:?}");
        assert!(!answer.contains("secret"), "the answer repeats the password: {answer:?}");
    }
    assert_eq!(recorder.take(), "");
    let fine = b"GET http://web/a@b?c@d HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    assert!(exchange(proxy.address, fine, SOON).starts_with("HTTP/1.1 200"));
}
