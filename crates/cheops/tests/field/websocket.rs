//! WebSocket, as far as it takes to say something and hear it again.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

/// A frame of a client: masked, as they have to be.
fn frame(kind: u8, text: &[u8]) -> Vec<u8> {
    let mask = [7, 77, 177, 200];
    let mut frame = vec![0x80 | kind];
    if let Ok(short @ 0..=125) = u8::try_from(text.len()) {
        frame.push(0x80 | short);
    } else {
        frame.push(0xfe);
        frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
    }
    frame.extend(mask);
    frame.extend(text.iter().enumerate().map(|(n, byte)| byte ^ mask[n % 4]));
    frame
}

/// The text of the frame that a server sends.
fn unframed(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let mut size = usize::from(head[1]);
    if size == 126 {
        let mut long = [0; 2];
        stream.read_exact(&mut long).unwrap();
        size = usize::from(u16::from_be_bytes(long));
    }
    let mut text = vec![0; size];
    stream.read_exact(&mut text).unwrap();
    text
}

/// A WebSocket at an address, opened with these headers.
pub(crate) fn open(address: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: web\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    assert!(head.contains("upgrade: websocket"), "{head}");
    stream
}

/// Says something to a service that says it again, and hears it.
pub(crate) fn say(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(&frame(1, text.as_bytes())).unwrap();
    String::from_utf8(unframed(stream)).unwrap()
}

/// Says things of all sizes to a service that says them again, and ends the conversation.
pub(crate) fn converse(mut stream: TcpStream) {
    for text in ["hello", "", &"x".repeat(125), &"y".repeat(60_000)] {
        assert_eq!(say(&mut stream, text), text);
    }
    stream.write_all(&frame(8, b"\x03\xe8")).unwrap();
    assert_eq!(unframed(&mut stream), b"\x03\xe8");
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0, "it is still open");
}
