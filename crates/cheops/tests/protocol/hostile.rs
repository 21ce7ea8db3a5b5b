//! Those that mean harm: two readings of one request, heads that never end, heads without measure.

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use super::origin::{Proxy, Recorder, exchange};

const SOON: Duration = Duration::from_secs(2);

/// The status of the first answer; 0 if the connection was closed without one.
fn status(answer: &str) -> u16 {
    answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0)
}

/// How many requests an instance took these bytes for.
fn requests(seen: &str) -> usize {
    seen.matches(" HTTP/1.1\r\n").count()
}

/// A request of so many bytes that follows another one's head, if that is read in the wrong way.
fn smuggled(n: usize) -> String {
    format!("GET /smuggled{n} HTTP/1.1\r\nHost: web\r\n\r\n")
}

#[test]
fn a_request_that_can_be_read_in_two_ways_is_refused_and_never_becomes_two() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    let cases = [
        ("two lengths", "Content-Length: 0\r\nContent-Length: 40\r\n", ""),
        ("two lengths in one", "Content-Length: 0, 40\r\n", ""),
        ("a length with a sign", "Content-Length: +0\r\n", ""),
        ("a negative length", "Content-Length: -1\r\n", ""),
        ("a length in hex", "Content-Length: 0x0\r\n", ""),
        ("a length beyond measure", "Content-Length: 99999999999999999999999\r\n", ""),
        ("an encoding that nobody knows", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
        ("chunked is not the last", "Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
        (
            "chunked twice",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        (
            "identity and chunked",
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        ("a vertical tab before it", "Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"),
        ("a blank before the colon", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ("a blank before the length's colon", "Content-Length : 0\r\n", ""),
        ("a line that is continued", "X-Folded: a\r\n Transfer-Encoding: chunked\r\n", ""),
        ("a continued encoding", "Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"),
        ("a name with a blank", "Content Length: 0\r\n", ""),
        ("no colon", "Content-Length\r\n", ""),
        ("a bare CR in a value", "X-Bare: a\rContent-Length: 5\r\n", ""),
        ("a zero byte", "X-Zero: a\0b\r\n", ""),
        ("two hosts", "Host: other\r\n", ""),
    ];
    for (n, (what, head, body)) in cases.into_iter().enumerate() {
        let post = format!("POST /outer{n} HTTP/1.1\r\nHost: web\r\n{head}\r\n{body}");
        let answer = exchange(proxy.address, (post + &smuggled(n)).as_bytes(), SOON);
        assert!(matches!(status(&answer), 0 | 400 | 501), "{what}: {answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{what}: {answer}");
    }
    // What is sent now comes after all that could have gone through.
    let last = b"GET /last HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    assert_eq!(status(&exchange(proxy.address, last, SOON)), 200);
    let seen = recorder.take();
    assert!(requests(&seen) == 1 && seen.starts_with("GET /last "), "{seen}");
}

/// RFC 9112, 6.3: the encoding counts, the length does not go on, and the connection is closed.
#[test]
fn of_two_framings_the_encoding_counts_and_nothing_comes_after() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    for (n, head) in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 45\r\nTransfer-Encoding: chunked\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let post = format!("POST /outer{n} HTTP/1.1\r\nHost: web\r\n{head}\r\n0\r\n\r\n");
        let answer = exchange(proxy.address, (post + &smuggled(n)).as_bytes(), SOON);
        let seen = recorder.take();
        // One before it may have come only now.
        let outer = seen.matches(&format!("/outer{n} ")).count();
        assert!(outer <= 1 && !seen.contains("smuggled"), "{head}: {seen}");
        assert!(!seen.to_lowercase().contains("content-length"), "{head}: {seen}");
        assert!(matches!(status(&answer), 200 | 400), "{head}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head}: {answer}");
        assert!(answer.to_lowercase().contains("connection: close"), "{head}: {answer}");
    }
}

#[test]
fn chunks_that_are_not_well_made_end_the_connection() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    let post = |n: usize, body: &str| {
        let head = "Host: web\r\nTransfer-Encoding: chunked\r\n";
        format!("POST /outer{n} HTTP/1.1\r\n{head}\r\n{body}")
    };
    let cases = [
        ("a size in words", "five\r\nhello\r\n0\r\n\r\n"),
        ("a size with a sign", "+5\r\nhello\r\n0\r\n\r\n"),
        ("a negative size", "-5\r\nhello\r\n0\r\n\r\n"),
        ("a size with 0x", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("a size beyond measure", "fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("too short a chunk", "8\r\nhello\r\n0\r\n\r\n"),
        ("too long a chunk", "3\r\nhello\r\n0\r\n\r\n"),
        ("a bare LF after the size", "5\nhello\r\n0\r\n\r\n"),
        ("no CRLF after the chunk", "5\r\nhello0\r\n\r\n"),
        ("an extension with a bare LF", "5;a\nb\r\nhello\r\n0\r\n\r\n"),
    ];
    for (n, (what, body)) in cases.into_iter().enumerate() {
        let answer = exchange(proxy.address, (post(n, body) + &smuggled(n)).as_bytes(), SOON);
        // What is wrong may show only after the head went on. The instance may have answered that,
        // but what follows is never taken for a request.
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{what}: {answer}");
    }
    // Odd, but sound: an extension, leading zeros, capital letters.
    let body = "00A;name=\"v\"\r\n0123456789\r\n0\r\n\r\n";
    let answer = exchange(proxy.address, post(99, body).as_bytes(), SOON);
    assert_eq!(status(&answer), 200, "{answer}");
    let seen = recorder.take();
    assert!(seen.contains("0123456789") && !seen.contains("name="), "{seen}");
    for (n, (what, _)) in cases.into_iter().enumerate() {
        assert!(!seen.contains(&format!("GET /smuggled{n} ")), "{what}: {seen}");
        assert!(seen.matches(&format!("POST /outer{n} ")).count() <= 1, "{what}: {seen}");
    }
}

#[test]
fn lines_that_end_in_lf_alone_are_read_the_same_by_all_or_refused() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    let bytes = "GET /lf HTTP/1.1\nHost: web\nX-A: 1\n\n";
    let answer = exchange(proxy.address, bytes.as_bytes(), SOON);
    let seen = recorder.take();
    // RFC 9112, 2.2, allows either; what goes on is clean.
    assert!(matches!(status(&answer), 200 | 400 | 0), "{answer}");
    assert!(requests(&seen) <= 1, "{seen}");
    assert!(!seen.replace("\r\n", "").contains('\n'), "{seen:?}");
}

#[test]
fn requests_in_one_go_are_answered_in_order() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    let mut bytes = String::new();
    for n in 0..20 {
        let close = if n == 19 { "Connection: close\r\n" } else { "" };
        let _ = write!(bytes, "GET /{n} HTTP/1.1\r\nHost: web\r\n{close}\r\n");
    }
    let answer = exchange(proxy.address, bytes.as_bytes(), Duration::from_secs(10));
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 20, "{answer}");
    let seen = recorder.take();
    let order: Vec<usize> = (0..20).map(|n| seen.find(&format!("GET /{n} ")).unwrap()).collect();
    assert!(order.is_sorted(), "{seen}");
}

#[test]
fn a_head_without_measure_is_refused_and_costs_little() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    let before = proxy.agent.memory("VmRSS");
    let many = "X-Many: 1\r\n".repeat(20_000);
    let long = format!("X-Long: {}\r\n", "x".repeat(10 << 20));
    let target = "/".repeat(10 << 20);
    for (what, bytes) in [
        ("many fields", format!("GET / HTTP/1.1\r\nHost: web\r\n{many}\r\n")),
        ("a long field", format!("GET / HTTP/1.1\r\nHost: web\r\n{long}\r\n")),
        ("a long target", format!("GET {target} HTTP/1.1\r\nHost: web\r\n\r\n")),
        ("a long method", format!("{} / HTTP/1.1\r\nHost: web\r\n\r\n", "X".repeat(10 << 20))),
        ("nothing that is a head", "\0".repeat(10 << 20)),
    ] {
        for _ in 0..5 {
            let answer = exchange(proxy.address, bytes.as_bytes(), SOON);
            assert!(matches!(status(&answer), 0 | 400 | 414 | 431), "{what}: {answer}");
        }
        assert_eq!(recorder.take(), "", "{what}");
    }
    let grown = proxy.agent.memory("VmHWM").saturating_sub(before);
    assert!(grown < 30 << 10, "it took {grown} kB");
    let fine =
        exchange(proxy.address, b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n", SOON);
    assert_eq!(status(&fine), 200, "{fine}");
}

#[test]
fn heads_that_never_end_are_cut_off_and_keep_nobody_out() {
    let recorder = Recorder::start();
    let proxy = Proxy::with(recorder.address, "", "head = '1s'\nconnections = 40");
    let mut slow: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(proxy.address).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    // All places are taken; a client that comes now is served as soon as the first is free.
    let start = Instant::now();
    let fine = exchange(
        proxy.address,
        b"GET /fine HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
        Duration::from_secs(20),
    );
    assert_eq!(status(&fine), 200, "{fine}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for stream in &mut slow {
        // Each sends a little now and then; that does not help.
        let _ = stream.write_all(b"X-More: 1\r\n");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let rest = String::from_utf8_lossy(&rest);
        assert!(matches!(status(&rest), 0 | 408), "{rest}");
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert_eq!(requests(&recorder.take()), 1);
}

#[test]
fn an_instance_that_answers_nonsense_is_a_bad_gateway() {
    for (what, answer) in [
        ("no HTTP", "hello\r\n\r\n"),
        ("nothing", ""),
        ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
        ("a status that is none", "HTTP/1.1 9x9 OK\r\n\r\n"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::before(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.read(&mut [0; 4_096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let got = exchange(
            proxy.address,
            b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
            Duration::from_secs(10),
        );
        assert_eq!(status(&got), 502, "{what}: {got}");
        assert!(got.contains("application/problem+json"), "{what}: {got}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_not_taken_for_a_whole_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::before(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4_096]);
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel");
        }
    });
    let got =
        exchange(proxy.address, b"GET / HTTP/1.1\r\nHost: web\r\n\r\n", Duration::from_secs(10));
    // The head may not have been on its way yet when it broke off.
    assert!(got.is_empty() || got.starts_with("HTTP/1.1 200"), "{got}");
    assert!(!got.contains("0\r\n\r\n"), "it looks whole: {got}");
}
