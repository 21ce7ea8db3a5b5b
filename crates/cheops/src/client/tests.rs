//! The client against listeners that misbehave: slow readers, silence, connections that close.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    fs::File,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::{Access, Address, Client};
use crate::report::Exit;

/// A client, and what it has connected to.
fn client() -> (Client, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (Client::at(Address::parse(&address).unwrap()).unwrap(), listener)
}

fn file(length: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    File::create(file.path()).unwrap().set_len(length).unwrap();
    file
}

/// Reads a request to the end of its head.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn a_file_may_take_longer_than_patience_while_it_moves() {
    const LENGTH: usize = 24 << 20;
    const PATIENCE: Duration = Duration::from_secs(1);
    let (client, listener) = client();
    let agent = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(head(&mut stream).starts_with("POST /api/v1/files "));
        let mut part = vec![0; LENGTH / 100];
        for _ in 0..LENGTH / part.len() {
            stream.read_exact(&mut part).unwrap();
            thread::sleep(PATIENCE / 50);
        }
        stream.read_exact(&mut vec![0; LENGTH % part.len()]).unwrap();
        let answer = r#"{"content": "ab", "length": 7}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len())
            .unwrap();
    });
    let start = Instant::now();
    let stored = client.upload_within(file(LENGTH as u64).path(), PATIENCE).unwrap();
    assert!(start.elapsed() > PATIENCE, "{:?} shows nothing", start.elapsed());
    assert_eq!((stored.content.as_str(), stored.length), ("ab", 7));
    agent.join().unwrap();
}

#[test]
fn a_file_that_does_not_move_is_given_up() {
    // More than the buffers of a connection take; and little, which they do.
    for length in [64 << 20, 10] {
        let (client, _listener) = client();
        let start = Instant::now();
        let failure = client.upload_within(file(length).path(), Duration::from_millis(200));
        assert_eq!(failure.unwrap_err().exit(), Exit::Silent);
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }
}

#[test]
fn a_document_may_take_longer_than_patience_while_it_moves_and_not_if_it_stops() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let length = 30;
    for sent in [length, 3] {
        let (client, listener) = client();
        let agent = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            head(&mut stream);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").unwrap();
            for _ in 0..sent {
                stream.write_all(b"1").unwrap();
                thread::sleep(PATIENCE / 20);
            }
            // Open until the other side has had enough.
            let _ = stream.read(&mut [0]);
        });
        let begun = Instant::now();
        let read = client.get_within::<f64>(&super::Path::api("x"), PATIENCE);
        assert!(begun.elapsed() > PATIENCE, "{:?} shows nothing", begun.elapsed());
        match read {
            Ok(_) => assert_eq!(sent, length),
            Err(failure) => assert_eq!((sent, failure.exit()), (3, Exit::Silent)),
        }
        drop(client);
        agent.join().unwrap();
    }
}

#[test]
fn a_kept_connection_that_was_closed_is_replaced_once() {
    let (client, listener) = client();
    let (close, closed) = mpsc::channel();
    thread::spawn(move || {
        // The first two connections serve one request, and all are closed without a word.
        for (n, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            if n < 2 {
                assert!(head(&mut stream).starts_with("GET /api/v1/x "));
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1").unwrap();
            }
            drop(stream);
            close.send(()).unwrap();
        }
    });
    let path = super::Path::api("x");
    for _ in 0..2 {
        assert_eq!(client.get::<u32>(&path).unwrap(), 1);
        closed.recv_timeout(Duration::from_secs(30)).unwrap();
    }
    let failure = client.get::<u32>(&path).unwrap_err();
    assert_eq!(failure.exit(), Exit::Unreachable);
    closed.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(closed.try_recv().is_err(), "it asked once more");
}

#[test]
fn a_token_leaves_the_machine_over_tls_only() {
    let token = cheops_agent::trust::people::Token::make().unwrap().reveal();
    let with = Access::of(&token);
    for (agent, sent) in [
        ("http://192.0.2.2:8079", false),
        ("site1.example.org", false),
        ("https://192.0.2.2:8079", true),
        ("http://127.0.0.1:8079", true),
        ("unix:/run/api.sock", true),
    ] {
        let client = Client::new(Some(agent), &with);
        assert_eq!(client.is_ok(), sent, "{agent}");
        if let Err(refused) = client {
            let text = format!("{refused:?}");
            assert!(text.contains("not sent") && !text.contains(&token), "{text}");
        }
    }
}
