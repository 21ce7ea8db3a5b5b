//! Connections that have changed what they speak: counted, closed when nothing passes, and ended with
//! the agent. And an agent that stops, whoever is connected.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{
    limits::{head, instance},
    origin::{Proxy, Recorder, exchange},
};
use crate::field::within;

/// How long something may take that has a limit of one second.
const SOON: Duration = Duration::from_secs(6);

const CHANGE: &[u8] =
    b"GET /feed HTTP/1.1\r\nHost: web\r\nConnection: upgrade\r\nUpgrade: feed\r\n\r\n";

/// An instance that changes to something of its own: it says a word every so often, and is not told
/// anything; or says nothing at all.
fn feed(talks: bool) -> std::net::SocketAddr {
    instance(move |mut stream| {
        let Some(_) = head(&mut stream) else { return };
        let changed = b"HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: feed\r\n\r\n";
        let mut said = stream.write_all(changed);
        while said.is_ok() {
            thread::sleep(Duration::from_millis(100));
            said = if talks { stream.write_all(b"word\n") } else { Ok(()) };
        }
    })
}

/// A connection that has changed.
fn change(proxy: &Proxy) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(CHANGE).unwrap();
    let told = head(&mut stream).unwrap();
    assert!(told.starts_with("HTTP/1.1 101"), "{told}");
    stream
}

#[test]
fn a_changed_connection_is_closed_when_nothing_passes_in_either_direction() {
    let silent = Proxy::with(feed(false), "idle = '1s'", "");
    let start = Instant::now();
    assert_eq!(change(&silent).read(&mut [0; 10]).unwrap(), 0);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());

    let talks = Proxy::with(feed(true), "idle = '1s'", "");
    let (mut stream, start) = (change(&talks), Instant::now());
    while start.elapsed() < Duration::from_secs(3) {
        stream.read_exact(&mut [0; 5]).unwrap();
    }
}

#[test]
fn a_changed_connection_takes_a_place() {
    let proxy = Proxy::with(feed(true), "", "connections = 3");
    let mut changed: Vec<TcpStream> = (0..3).map(|_| change(&proxy)).collect();
    // There is no place for a fourth, until one of them ends.
    let mut next = TcpStream::connect(proxy.address).unwrap();
    next.write_all(CHANGE).unwrap();
    next.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    assert!(next.read(&mut [0; 10]).is_err(), "there are four");
    changed.pop();
    next.set_read_timeout(Some(SOON)).unwrap();
    assert!(head(&mut next).unwrap().starts_with("HTTP/1.1 101"));
}

#[test]
fn an_agent_that_stops_waits_for_nobody_who_has_not_asked() {
    let mut proxy = Proxy::with(feed(true), "", "connections = 8");
    let mut changed = change(&proxy);
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // All places are taken: by those who say nothing, and by one that never ends by itself.
    let _silent: Vec<TcpStream> =
        [&b""[..], b"PR", &preface, b"GET / HTTP/1.1\r\n", b"", b"PRI", b""]
            .into_iter()
            .map(|bytes| {
                let mut stream = TcpStream::connect(proxy.address).unwrap();
                stream.write_all(bytes).unwrap();
                stream
            })
            .collect();
    let start = Instant::now();
    let pid = proxy.agent.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    within(SOON, "the agent has ended", || proxy.agent.ended().is_some());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let _ = changed.read_to_end(&mut Vec::new());
}

#[test]
fn a_request_that_is_being_answered_ends_before_the_agent_does() {
    let slow = instance(|mut stream| {
        let Some(_) = head(&mut stream) else { return };
        thread::sleep(Duration::from_millis(500));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
    });
    let mut proxy = Proxy::before(slow);
    let address = proxy.address;
    let asked = thread::spawn(move || {
        exchange(address, b"GET / HTTP/1.1\r\nHost: web\r\n\r\n", Duration::from_secs(10))
    });
    thread::sleep(Duration::from_millis(200));
    let pid = proxy.agent.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let answer = asked.join().unwrap();
    assert!(answer.ends_with("done"), "{answer}");
    within(SOON, "the agent has ended", || proxy.agent.ended().is_some());
}

#[test]
fn who_is_asked_is_what_the_target_says() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    let absolute = b"GET http://other:81/x HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    assert!(exchange(proxy.address, absolute, SOON).starts_with("HTTP/1.1 200"));
    let seen = recorder.take().to_lowercase();
    assert!(seen.starts_with("get /x "), "{seen}");
    assert!(seen.contains("\r\nhost: other:81\r\n") && !seen.contains("host: web"), "{seen}");
    assert!(seen.contains("\r\nx-forwarded-host: other:81\r\n"), "{seen}");
    let output = Command::new("curl")
        .args(["-sS", "-m", "10", "--http2-prior-knowledge", &proxy.url("/y")])
        .output()
        .unwrap();
    assert!(output.status.success());
    let (seen, host) = (recorder.take().to_lowercase(), proxy.address);
    assert!(seen.contains(&format!("\r\nhost: {host}\r\n")), "{seen}");
    assert!(seen.contains(&format!("\r\nx-forwarded-host: {host}\r\n")), "{seen}");
    // What goes to the instance here passes as it came.
    assert!(!seen.contains("\r\nvia:"), "{seen}");
}

#[test]
fn a_tunnel_is_refused_with_a_word() {
    let recorder = Recorder::start();
    let proxy = Proxy::before(recorder.address);
    let tunnel = b"CONNECT web:80 HTTP/1.1\r\nHost: web:80\r\n\r\n";
    let answer = exchange(proxy.address, tunnel, Duration::from_secs(1));
    assert!(answer.starts_with("HTTP/1.1 501"), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    assert_eq!(recorder.take(), "");
}

#[test]
fn an_instance_does_not_speak_for_an_agent() {
    let forges = instance(|mut stream| {
        while head(&mut stream).is_some() {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Cheops-Came: not-there\r\n\
                           X-Cheops-Site: site9\r\nX-Cheops-Missing: site3\r\n\r\nok";
            stream.write_all(answer).unwrap();
        }
    });
    let proxy = Proxy::before(forges);
    let ask = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let answer = exchange(proxy.address, ask, SOON).to_lowercase();
    assert!(answer.starts_with("http/1.1 200") && answer.ends_with("ok"), "{answer}");
    assert_eq!(answer.matches("x-cheops-").count(), 1, "{answer}");
    assert!(answer.contains("x-cheops-site: site1"), "{answer}");
}
