//! Each stage has a limit: whoever stops in the middle, on either side of the agent, holds nothing for
//! long, and keeps nobody out meanwhile.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use super::origin::{Echo, Proxy, Recorder, exchange};
use crate::field::within;

/// How long something may take that has a limit of one second.
const SOON: Duration = Duration::from_secs(6);

const FINE: &[u8] = b"GET /fine HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";

/// An instance that does with each connection what it is told to.
pub(crate) fn instance(each: impl Fn(TcpStream) + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let each = each.clone();
            thread::spawn(move || each(stream));
        }
    });
    address
}

/// The next head that comes over a connection; none if it ends.
pub(crate) fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// Reads what comes until the other side closes, which has to be before long.
fn rest(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut got, mut buffer) = (Vec::new(), [0; 16 << 10]);
    let start = Instant::now();
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => got.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let told = String::from_utf8_lossy(&got);
                assert!(start.elapsed() < SOON, "it is still open: {told}");
            }
            Ok(0) | Err(_) => return String::from_utf8_lossy(&got).into_owned(),
        }
    }
}

#[test]
fn an_instance_that_does_not_read_a_body_is_given_up() {
    // It keeps the connection for as long as the test lasts.
    let deaf = instance(|stream| {
        thread::sleep(Duration::from_mins(2));
        drop(stream);
    });
    let proxy = Proxy::with(deaf, "idle = '1s'\nanswer = '1s'", "");
    let start = Instant::now();
    let mut client = TcpStream::connect(proxy.address).unwrap();
    let mut writer = client.try_clone().unwrap();
    thread::spawn(move || {
        let head =
            format!("PUT /large HTTP/1.1\r\nHost: web\r\nContent-Length: {}\r\n\r\n", 1 << 30);
        let piece = [0; 64 << 10];
        let mut sent = writer.write_all(head.as_bytes());
        while sent.is_ok() {
            sent = writer.write_all(&piece);
        }
    });
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let told = head(&mut client).unwrap_or_default();
    assert!(told.starts_with("HTTP/1.1 504"), "{told}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn whoever_says_nothing_is_sent_away_and_keeps_nobody_out() {
    let recorder = Recorder::start();
    let proxy = Proxy::with(recorder.address, "", "head = '1s'\nconnections = 12");
    // Nothing, the beginning of a preface, and HTTP/2 on which no request comes.
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let sorts = [&b""[..], b"PR", &preface];
    let mut silent: Vec<TcpStream> = (0..12)
        .map(|n| {
            let mut stream = TcpStream::connect(proxy.address).unwrap();
            stream.write_all(sorts[n % 3]).unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    let fine = exchange(proxy.address, FINE, SOON);
    assert!(fine.starts_with("HTTP/1.1 200"), "{fine}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    silent.iter_mut().for_each(|stream| drop(rest(stream)));
}

#[test]
fn a_client_that_does_not_take_its_answer_is_cut_off() {
    let echo = Echo::start();
    let proxy = Proxy::with(echo.address, "idle = '1s'", "");
    let mut client = TcpStream::connect(proxy.address).unwrap();
    client.write_all(b"GET /bytes/2000000000 HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
    within(SOON, "the instance has the request", || echo.log().len() == 1);
    // Nothing is ever read of it.
    within(SOON, "the instance is let go", || echo.log()[0]["gone"] == true);
    drop(client);
}

#[test]
fn nobody_waits_for_the_body_of_another() {
    let recorder = Recorder::start();
    let proxy = Proxy::with(recorder.address, "", "");
    // The instance answers before it has the body, which goes on for ever.
    let mut slow = TcpStream::connect(proxy.address).unwrap();
    slow.write_all(b"POST /slow HTTP/1.1\r\nHost: web\r\nContent-Length: 1000\r\n\r\nbegins")
        .unwrap();
    assert!(head(&mut slow).unwrap().starts_with("HTTP/1.1 200"));
    slow.read_exact(&mut [0; 2]).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let fine = exchange(proxy.address, FINE, SOON);
        assert!(fine.starts_with("HTTP/1.1 200"), "{fine}");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    // It is still being sent.
    slow.write_all(b"more").unwrap();
    within(SOON, "the rest arrives", || recorder.take().contains("more"));
}

#[test]
fn a_request_that_may_have_been_carried_out_is_sent_at_most_once_more() {
    const IDLE: usize = 6;
    let deleted = Arc::new(Mutex::new(0));
    let (count, together) = (deleted.clone(), Arc::new(Barrier::new(IDLE)));
    let closes = instance(move |mut stream| {
        while let Some(head) = head(&mut stream) {
            if head.starts_with("DELETE") {
                *count.lock().unwrap() += 1;
                return;
            }
            // All of them at the same time, so that each has a connection of its own.
            together.wait();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer).unwrap();
        }
    });
    let proxy = Proxy::before(closes);
    thread::scope(|threads| {
        let all: Vec<_> =
            (0..IDLE).map(|_| threads.spawn(|| exchange(proxy.address, FINE, SOON))).collect();
        for answer in all {
            let answer = answer.join().unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    });
    let delete = b"DELETE /it HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let answer = exchange(proxy.address, delete, SOON);
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    let times = *deleted.lock().unwrap();
    assert!((1..=2).contains(&times), "it came {times} times");
}
