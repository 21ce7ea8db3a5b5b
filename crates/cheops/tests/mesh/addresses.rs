//! How many connections of a service's listener one address can have.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::field::{
    Field,
    application::{end, program, quiet},
    eventually, within,
};

/// How long an answer may take.
const SOON: Duration = Duration::from_secs(6);
/// How many connections the listener has, and how many of them one address may have.
const MOST: usize = 16;
const SHARE: usize = 8;

#[test]
fn one_address_has_half_of_the_connections_and_others_are_served() {
    let field = Field::with_each(2, |_, ip| {
        format!(
            "[mesh]\nconnections = {MOST}\n[[service]]\nname = 'web'\nlisten = '{ip}:8000'\naddress = '127.0.0.1:18000'\n"
        )
    });
    let mut command = field.sites[0].command("python3");
    command.arg(program()).args(["echo", "18000"]);
    let mut echo = quiet(command);
    let address = (field.net.ip(0), 8000);
    let ask = |target: &str| {
        let mut stream = TcpStream::connect(address.clone()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let answer = |mut stream: TcpStream| {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    // Another address: that of the other site's host.
    let from_elsewhere = || {
        let mut curl = field.sites[1].command("curl");
        curl.args(["-sS", "-m", "6", "-o", "/dev/null", "-w", "%{http_code}"]);
        let output =
            curl.arg(format!("http://{}:8000/bytes/10", field.net.ip(0))).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("the service answers", || from_elsewhere() == "200");

    // Idle ones: no more than the share stay open, and this address is still served.
    let idle: Vec<TcpStream> =
        (0..MOST * 2).map(|_| TcpStream::connect(address.clone()).unwrap()).collect();
    let is_open = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.peek(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    within(SOON, "no more than the share are open", || {
        idle.iter().filter(is_open).count() <= SHARE
    });
    assert_eq!(from_elsewhere(), "200");
    within(SOON, "this address is served", || answer(ask("/bytes/10")).starts_with("HTTP/1.1 200"));
    drop(idle);

    // Those with a request stay: one more is told so, and others are served.
    let mut busy: Vec<TcpStream> = Vec::new();
    within(SOON, "so many requests are under way", || {
        let mut stream = ask("/bytes/2000000000");
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        if &begin == b"HTTP/1.1 200" {
            busy.push(stream);
        }
        busy.len() == SHARE
    });
    let refused = answer(ask("/bytes/10"));
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused:?}");
    assert!(refused.contains("\"too-many-connections\""), "{refused:?}");
    assert!(refused.to_lowercase().contains("\r\nretry-after: "), "{refused:?}");
    assert_eq!(from_elsewhere(), "200");
    let (_, metrics) = field.sites[0].ask("/metrics").unwrap();
    assert!(metrics.contains("cheops_refused_total{limit=\"connections\"}"), "{metrics}");
    busy.pop();
    within(SOON, "there is room again", || answer(ask("/bytes/10")).starts_with("HTTP/1.1 200"));
    end(&mut echo);
}
