//! Those who stop in the middle, and paths that look like the agents' own, where several sites are
//! concerned.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::field::application::{Service, Setup, World};

#[test]
fn a_body_that_is_kept_and_stops_in_the_middle_ends_its_request() {
    let setup = Setup { image: "idle = '1s'".to_owned(), ..Setup::default() };
    let world = World::with(2, setup);
    for scope in ["site1; site2", "site1 & site2", "none(site1 & site2)", "site1 % site2", "site2"]
    {
        let mut client =
            TcpStream::connect((world.field.net.ip(0), Service::Image.port())).unwrap();
        let head = format!(
            "POST /v2/images HTTP/1.1\r\nHost: image\r\nX-Scope: image: {scope}\r\n\
             Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{{\"n"
        );
        client.write_all(head.as_bytes()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let start = Instant::now();
        let mut told = Vec::new();
        let closed = client.read_to_end(&mut told);
        let told = String::from_utf8_lossy(&told);
        assert!(start.elapsed() < Duration::from_secs(6), "{scope}: {closed:?} {told}");
        assert!(told.starts_with("HTTP/1.1 400"), "{scope}: {told}");
        assert!(
            told.contains("problem+json") && told.contains("\"broken-body\""),
            "{scope}: {told}"
        );
    }
    for n in 0..2 {
        assert_eq!(world.has(n, Service::Image, "/v2/images").json()["total"], 0, "site{}", n + 1);
    }
}

/// Links have paths of their own; an application may use the same.
#[test]
fn no_path_of_the_application_touches_a_link() {
    let world = World::new(2);
    let broken = |n: usize| {
        let log = fs::read_to_string(world.field.directory(n).join("log")).unwrap();
        log.lines().filter(|line| line.contains("not linked any more")).count()
    };
    let before = [broken(0), broken(1)];
    // One of the two has dialled the other: both ways are asked.
    for (from, to) in [(0, 1), (1, 0)] {
        for path in ["/peer/v1/link", "/peer/v1/records", "/peer/v1/calls"] {
            for method in ["GET", "POST"] {
                let site = format!("site{}", to + 1);
                let call = world.image(from, method, path).scope(&format!("image: {site}"));
                let answer = call.body("x").send();
                assert_eq!(
                    (answer.status, answer.site()),
                    (404, site),
                    "{path}: {}",
                    answer.text()
                );
                assert!(answer.json()["error"].is_string(), "{path}: {}", answer.text());
                let asked = world.asked(to, Service::Image).pop().unwrap();
                assert_eq!(asked, format!("{method} {path}"));
            }
        }
    }
    assert_eq!([broken(0), broken(1)], before, "a link broke");
}
