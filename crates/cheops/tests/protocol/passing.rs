//! What passes without being kept: large bodies, and connections that change what they speak.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use super::origin::{Echo, Proxy};
use crate::field::websocket::{converse, open};

#[test]
fn a_websocket_passes_both_ways_until_it_is_closed() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    for headers in ["", "X-Scope: web: site1\r\n"] {
        converse(open(&proxy.address.to_string(), headers));
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
/// How much more memory than at rest an agent may take while they pass, in kB.
const MEMORY: u64 = 20 << 10;

#[test]
fn large_bodies_pass_in_little_memory() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    let before = proxy.agent.memory("VmRSS");
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
        let grown = proxy.agent.memory("VmHWM").saturating_sub(before);
        assert!(grown < MEMORY, "{version}: it took {grown} kB");
    }
}

#[test]
fn a_reader_that_is_slow_holds_its_writer_back() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    let before = proxy.agent.memory("VmRSS");
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
    let grown = proxy.agent.memory("VmRSS").saturating_sub(before);
    assert!(grown < 20 << 10, "it took {grown} kB");
    assert_eq!(echo.log()[0]["done"], false, "all of it was read");
}
