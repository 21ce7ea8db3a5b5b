//! Names of files that lead somewhere else: none is written, and none is read.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::json;

use super::field::agent::Agent;

const EVIL: [&str; 12] = [
    "../evil",
    "../../evil",
    "/tmp/cheops-evil",
    "..",
    ".",
    "a/b",
    "a/../../evil",
    "",
    "a\0b",
    "{evil}",
    "..\u{2f}evil",
    "sub/",
];

/// Sends a request as it is, and gives its status.
fn status(site: &Agent, request: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(site.url.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].parse().unwrap()
}

#[test]
fn a_file_that_an_operation_brings_stays_where_it_belongs() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let stored = site.post("/api/v1/files", &"content").unwrap();
    assert_eq!(stored.0, 201);
    let mut file: serde_json::Value = serde_json::from_str(&stored.1).unwrap();
    for name in EVIL {
        file["name"] = json!(name);
        let asked = json!({"sites": "site1", "command": "cat", "files": [file]});
        let (found, text) = site.post("/api/v1/resources/web/operations", &asked).unwrap();
        assert_eq!(found, 400, "{name:?}: {text}");
        assert!(text.contains("bad-file-name"), "{name:?}: {text}");
    }
    for name in EVIL.into_iter().filter(|name| !name.contains(['\0'])) {
        let body = format!(
            "--X\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\ntrue\r\n\
             --X\r\nContent-Disposition: form-data; name=\"sites\"\r\n\r\nsite1\r\n\
             --X\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\r\nevil\r\n--X--\r\n"
        );
        let head = format!(
            "POST /exec/web HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=X\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let found = status(&site, (head + &body).as_bytes());
        assert_eq!(found, 400, "{name:?}");
    }
    assert!(site.resource("web").is_none());
    assert!(!fs::exists("/tmp/cheops-evil").unwrap());
    let found = walk(directory.path());
    assert!(!found.iter().any(|name| name.contains("evil")), "{found:?}");
}

#[test]
fn nothing_is_read_from_outside_of_where_it_belongs() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let key = fs::read_to_string(directory.path().join("data/site.key")).unwrap();
    let secret = key.lines().nth(1).unwrap();
    for path in [
        "/api/v1/files/../../site.key",
        "/api/v1/files/..%2f..%2fsite.key",
        "/api/v1/files/%2e%2e/site.key",
        "/api/v1/resources/..%2f..%2fsite.key/operations/site1:1/output",
        "/api/v1/resources/web/operations/..%2f..%2fsite.key/output",
        "/../data/site.key",
        "/assets/../../../data/site.key",
        "/assets/..%2f..%2f..%2fdata%2fsite.key",
        "//etc/passwd",
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut stream = TcpStream::connect(site.url.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 4"), "{path}: {answer}");
        assert!(!answer.contains(secret) && !answer.contains("root:"), "{path}: {answer}");
    }
}

/// The names of all that is in a directory.
fn walk(directory: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        found.push(entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        }
    }
    found
}
