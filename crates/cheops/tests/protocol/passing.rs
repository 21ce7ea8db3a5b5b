//! What passes without being kept: large bodies, and connections that change what they speak.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use super::origin::{Echo, Proxy};

/// A frame of a client: masked, as they have to be.
fn frame(kind: u8, text: &[u8]) -> Vec<u8> {
    let mask = [7, 77, 177, 200];
    let mut frame = vec![0x80 | kind];
    match u8::try_from(text.len()) {
        Ok(short @ 0..=125) => frame.push(0x80 | short),
        _ => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        }
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

/// A WebSocket through an agent, opened with these headers.
fn open(proxy: &Proxy, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.address).unwrap();
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

#[test]
fn a_websocket_passes_both_ways_until_it_is_closed() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    for headers in ["", "X-Scope: web: site1\r\n"] {
        let mut stream = open(&proxy, headers);
        for text in ["hello", "", &"x".repeat(125), &"y".repeat(60_000)] {
            stream.write_all(&frame(1, text.as_bytes())).unwrap();
            assert_eq!(String::from_utf8(unframed(&mut stream)).unwrap(), text);
        }
        stream.write_all(&frame(8, b"\x03\xe8")).unwrap();
        assert_eq!(unframed(&mut stream), b"\x03\xe8");
        assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0, "it is still open");
    }
    // An instance that does not want to is heard.
    let refused = Command::new("curl")
        .args(["-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}"])
        .args(["-H", "Connection: Upgrade", "-H", "Upgrade: other", &proxy.url("/ws")])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&refused.stdout), "426");
}

/// How many bytes the large bodies have.
const LARGE: u64 = 300 << 20;
/// How much memory an agent may have at most while they pass, in kB.
const MEMORY: u64 = 60 << 10;

#[test]
fn large_bodies_pass_in_little_memory() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let upload = format!(
            "head -c {LARGE} /dev/zero | curl -sS -m 120 {version} -T - {}",
            proxy.url("/echo")
        );
        let output = Command::new("sh").args(["-c", &upload]).output().unwrap();
        let got = String::from_utf8_lossy(&output.stdout);
        assert!(got.contains(&format!(r#""size": {LARGE},"#)), "{version}: {got}");
        let download = Command::new("curl")
            .args(["-sS", "-m", "120", version, "-o", "/dev/null", "-w", "%{size_download}"])
            .arg(proxy.url(&format!("/bytes/{LARGE}")))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&download.stdout), LARGE.to_string(), "{version}");
        let most = proxy.memory("VmHWM");
        assert!(most < MEMORY, "{version}: {most} kB");
    }
}

#[test]
fn a_reader_that_is_slow_holds_its_writer_back() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    let before = proxy.memory("VmRSS");
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    stream.write_all(b"GET /bytes/2000000000 HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // It begins, and nobody reads on; others are served meanwhile.
    stream.read_exact(&mut [0; 1_000]).unwrap();
    for _ in 0..200 {
        let small = super::origin::exchange(
            proxy.address,
            b"GET /bytes/10 HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n",
            Duration::from_secs(10),
        );
        assert!(small.starts_with("HTTP/1.1 200"), "{small}");
    }
    let grown = proxy.memory("VmRSS").saturating_sub(before);
    assert!(grown < 20 << 10, "it took {grown} kB");
    assert_eq!(echo.log()[0]["done"], false, "all of it was read");
}
