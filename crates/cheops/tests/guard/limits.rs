//! Whoever asks for too much is told so early, takes no memory for it, and keeps nobody out.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    field::{agent::Agent, eventually},
    here,
};

/// A gigabyte.
const GIGABYTE: u64 = 1 << 30;
/// By how many kB an agent may grow that is sent one.
const GROWTH: u64 = 48 << 10;

/// Sends a head, and then the same piece again and again until a gigabyte is sent or nobody takes it;
/// what was answered, and how much was sent.
fn flood(site: &Agent, head: &str, piece: &[u8]) -> (String, u64) {
    let mut stream = TcpStream::connect(site.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let mut sent = 0;
            while sent < GIGABYTE && writer.write_all(piece).is_ok() {
                sent += piece.len() as u64;
            }
            sent
        });
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        // Up to the end of the problem: whoever sends may go on for a while.
        while !answer.ends_with(b"}") {
            match stream.read(&mut buffer) {
                Ok(count) if count > 0 => answer.extend_from_slice(&buffer[..count]),
                _ => break,
            }
        }
        let sent = sending.join().unwrap();
        (String::from_utf8_lossy(&answer).into_owned(), sent)
    })
}

fn post(path: &str, more: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
}

#[test]
fn a_gigabyte_is_refused_early_and_others_are_served_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone_with(directory.path(), "[store]\nfile = 1000000");
    site.exec("web", &here("true"));
    let length = format!("Content-Length: {GIGABYTE}\r\n");
    let json = format!("Content-Type: application/json\r\n{length}");
    let form = format!("Content-Type: multipart/form-data; boundary=X\r\n{length}");
    let chunked = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n";
    let string = post("/api/v1/resources/web/operations", &json) + "{\"command\": \"";
    let nested = post("/api/v1/resources/web/operations", &json) + "{\"config\": ";
    let field = "--X\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\n";
    let sites =
        b"--X\r\nContent-Disposition: form-data; name=\"sites\"\r\n\r\nsite1\r\n".repeat(1000);
    let file = "--X\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n";
    let chunk = [b"10000\r\n".to_vec(), vec![b'a'; 1 << 16], b"\r\n".to_vec()].concat();
    let piece = vec![b'a'; 1 << 16];
    let brackets = vec![b'['; 1 << 16];
    let cases: [(&str, String, &[u8], &str, &str); 9] = [
        ("a string", string, &piece, "413", "2097152 bytes"),
        ("brackets", nested, &brackets, "413", "2097152 bytes"),
        (
            "chunks",
            post("/api/v1/resources/web/operations", chunked),
            &chunk,
            "413",
            "2097152 bytes",
        ),
        ("a text of a form", post("/exec/web", &form) + field, &piece, "413", "2097152 bytes"),
        ("many texts of a form", post("/exec/web", &form), &sites, "413", "2097152 bytes"),
        (
            "the head of a part",
            post("/exec/web", &form) + "--X\r\nX: ",
            &piece,
            "413",
            "1048576 bytes",
        ),
        ("a file of a form", post("/exec/web", &form) + file, &piece, "413", "1000000 bytes"),
        ("a file", post("/api/v1/files", &length), &piece, "413", "1000000 bytes"),
        ("a form of the page", post("/resources/web/run", &form) + "--X\r\nX: ", &piece, "400", ""),
    ];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let (client, mut slowest, mut served) = (site.again(), Duration::ZERO, 0);
            while !stop.load(Relaxed) {
                let start = Instant::now();
                client.exec("other", &here("true"));
                (slowest, served) = (slowest.max(start.elapsed()), served + 1);
            }
            (slowest, served)
        });
        let floods = cases.map(|(what, head, piece, status, limit)| {
            let before = site.memory("VmHWM");
            let (answer, sent) = flood(&site, &head, piece);
            let grown = site.memory("VmHWM").saturating_sub(before);
            (what, status, limit, answer, sent, grown)
        });
        stop.store(true, Relaxed);
        let (slowest, served) = others.join().unwrap();
        for (what, status, limit, answer, sent, grown) in floods {
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
            assert!(answer.contains(limit), "{what}: {answer}");
            assert!(sent < 64 << 20, "{what}: {sent} bytes were taken");
            assert!(grown < GROWTH, "{what}: the agent has grown by {grown} kB");
        }
        assert!(served > 5 && slowest < Duration::from_secs(10), "{served} in {slowest:?}");
    });
}

#[test]
fn json_that_is_too_deep_is_no_json() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(200_000), close.repeat(200_000));
        let body = format!("{{\"sites\": \"site1\", \"command\": \"true\", \"config\": {deep}}}");
        let head = format!(
            "Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        let request = post("/api/v1/resources/web/operations", &head) + &body;
        let mut stream = TcpStream::connect(site.url.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(site.ask("/healthz").unwrap().0, 200);
}

#[test]
fn whoever_asks_too_often_is_told_when_to_ask_again() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone_with(directory.path(), "[limits]\nrate = 10\nburst = 50");
    let mut refused = None;
    for _ in 0..200 {
        let (status, text) = site.ask("/api/v1/sites").unwrap();
        if status == 429 {
            refused = Some(text);
            break;
        }
        assert_eq!(status, 200, "{text}");
    }
    let refused = refused.unwrap();
    assert!(refused.contains("10 times a second"), "{refused}");
    let address = site.url.strip_prefix("http://").unwrap().to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    let ask = "GET /api/v1/sites HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(ask.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\r\nretry-after: "), "{answer}");
    // Whoever waits is served again, and that it was refused is counted and written down.
    eventually("it is served again", || site.ask("/api/v1/sites").unwrap().0 == 200);
    eventually("it is counted", || {
        let (status, text) = site.ask("/metrics").unwrap();
        status == 200 && text.contains("cheops_refused_total{limit=\"rate\"}")
    });
    let mut audit = String::new();
    eventually("it is written down", || {
        let (status, text) = site.ask("/api/v1/audit").unwrap();
        audit = text;
        status == 200
    });
    assert!(audit.contains("too-many-requests"), "{audit}");
}

#[test]
fn a_body_that_only_trickles_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone_with(directory.path(), "[api]\nstall = '1s'");
    let json = "Content-Type: application/json\r\nContent-Length: 1000000\r\n";
    let head = post("/api/v1/resources/web/operations", json);
    let mut stream = TcpStream::connect(site.url.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let start = Instant::now();
    let mut reader = stream.try_clone().unwrap();
    let answered = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Never so long that it would be taken for one that has stopped.
            while !answered.load(Relaxed) && stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(200));
            }
        });
        let mut answer = [0; 12];
        reader.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let read = reader.read_exact(&mut answer);
        answered.store(true, Relaxed);
        read.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 400");
    });
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(site.post("/api/v1/resources/web/operations", &json!({})).unwrap().0, 400);
}
