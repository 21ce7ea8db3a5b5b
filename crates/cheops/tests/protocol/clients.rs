//! Clients and servers as they are out there: curl, h2load, nginx.

use std::{collections::BTreeSet, fs, process::Command, time::Duration};

use serde_json::{Value, json};

use super::origin::{Echo, Proxy, exchange, nginx};
use crate::field::eventually;
use crate::field::ports::unused;

/// What curl prints.
fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "-m", "30"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn curl_is_served_in_each_version_with_each_sort_of_body() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    let file = proxy.directory.path().join("body");
    fs::write(&file, vec![b'y'; 300_000]).unwrap();
    let (url, file) = (proxy.url("/echo?a=b"), file.display().to_string());
    let upload = format!("@{file}");
    let direct = json(&curl(&[&echo.url("/echo?a=b"), "--data-binary", &upload]));
    assert_eq!(direct["size"], 300_000);
    for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge", "--http2"] {
        for (what, arguments) in [
            ("a body with a length", &["--data-binary", upload.as_str()][..]),
            ("100-continue", &["--data-binary", &upload, "-H", "Expect: 100-continue"]),
            ("chunks", &["--data-binary", &upload, "-H", "Transfer-Encoding: chunked"]),
        ] {
            // HTTP/1.0 has no chunks, and HTTP/2 has other ones.
            if what == "chunks" && version != "--http1.1" {
                continue;
            }
            let got = json(&curl(&[&[version, url.as_str()], arguments].concat()));
            for field in ["method", "target", "size", "digest"] {
                assert_eq!(got[field], direct[field], "{version}, {what}");
            }
        }
        let head = curl(&[version, "-I", &proxy.url("/bytes/5000")]);
        let head = head.to_lowercase();
        assert!(head.contains("200") && head.contains("content-length: 5000"), "{version}: {head}");
        assert_eq!(curl(&[version, &proxy.url("/bytes/5000")]).len(), 5_000, "{version}");
    }
    // An unknown length on HTTP/2: the agent has to find a framing of its own.
    let pipe = format!("cat {file} | curl -sS -m 30 --http2-prior-knowledge -T - {url}");
    let output = Command::new("sh").args(["-c", &pipe]).output().unwrap();
    let got = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!((&got["size"], &got["digest"]), (&direct["size"], &direct["digest"]));
    assert_eq!(got["method"], "PUT");
}

#[test]
fn an_expectation_is_met_by_the_instance_before_the_body_is_sent() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    echo.mode(&json!({ "status": 413 }));
    // Refused by the head alone: curl must not send the body.
    let arguments = ["-v", "--http1.1", "-H", "Expect: 100-continue", "--expect100-timeout", "20"];
    let output = Command::new("curl")
        .args(arguments)
        .args(["-m", "30", "-d", &"x".repeat(100_000), &proxy.url("/echo")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("413"), "{told}");
    let seen = &echo.log()[0];
    assert_eq!(seen["headers"]["expect"], "100-continue", "{seen}");
}

#[test]
fn trailers_pass() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    let got = curl(&["--http1.1", "-i", "-H", "TE: trailers", "--raw", &proxy.url("/trailers")]);
    assert!(got.to_lowercase().contains("x-sum: 11"), "{got}");
    let got =
        curl(&["--http2-prior-knowledge", "-i", "-H", "TE: trailers", &proxy.url("/trailers")]);
    assert!(got.contains("hello world") && got.to_lowercase().contains("x-sum: 11"), "{got}");
}

/// A request in chunks whose trailers are about one connection, only for agents, or fine: `X-Sum`.
const TRAILERS: &str = "5\r\nhello\r\n0\r\nConnection: close\r\nKeep-Alive: timeout=5\r\n\
    Proxy-Connection: x\r\nTE: gzip\r\nTransfer-Encoding: chunked\r\nUpgrade: h2c\r\nX-Named: 1\r\n\
    X-Scope: web: site9\r\nBaggage: scope=web:site9,a=1\r\nX-Cheops-Service: other\r\nX-Sum: 11\r\n\r\n";

#[test]
fn trailers_about_one_connection_and_those_of_agents_end_here() {
    let echo = Echo::start();
    let proxy = Proxy::beside_an_unreachable_site(echo.address);
    // A short body is kept where it may have to be sent again.
    for scope in ["", "web: site1", "web: site2; site1", "web: site1; site2"] {
        let scope = if scope.is_empty() { String::new() } else { format!("X-Scope: {scope}\r\n") };
        // The client of the instance sends only the trailers that are announced.
        let request = format!(
            "POST /echo HTTP/1.1\r\nHost: web\r\n{scope}Transfer-Encoding: chunked\r\nConnection: close, x-named\r\n\
             Trailer: Connection, Keep-Alive, Proxy-Connection, TE, Transfer-Encoding, Upgrade, X-Named, X-Scope, \
             Baggage, X-Cheops-Service, X-Sum\r\n\r\n{TRAILERS}"
        );
        let got = exchange(proxy.address, request.as_bytes(), Duration::from_secs(10));
        let got = json(got.split_once("\r\n\r\n").unwrap().1);
        assert_eq!(got["size"], 5);
        let trailers = got["trailers"].as_array().unwrap().iter().map(|t| t.as_str().unwrap());
        let trailers: BTreeSet<&str> = trailers.collect();
        assert_eq!(trailers, BTreeSet::from(["baggage: a=1", "x-sum: 11"]), "{scope:?}: {got}");
    }
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let url = proxy.url("/trailers/connection");
        let got = curl(&[version, "-i", "-H", "TE: trailers", "--raw", &url]).to_lowercase();
        let trailers = got.rsplit_once("world").unwrap().1;
        assert!(trailers.contains("x-sum: 11"), "{version}: {got}");
        assert_eq!(trailers.matches(": ").count(), 1, "{version}: {got}");
    }
}

#[test]
fn a_client_that_goes_away_takes_its_request_along() {
    let echo = Echo::start();
    let proxy = Proxy::before(echo.address);
    echo.mode(&json!({ "hold": true }));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let before = echo.log().len();
        let mut command = Command::new("curl");
        command.args(["-sS", "-m", "60", version, &proxy.url("/echo")]);
        let mut client = super::origin::Running::start(command);
        eventually("the instance has the request", || echo.log().len() == before + 1);
        assert_eq!(echo.log()[before]["gone"], false);
        client.end();
        eventually("the instance sees the connection end", || echo.log()[before]["gone"] == true);
    }
    // In the middle of an upload, too.
    echo.mode(&json!({}));
    let before = echo.log().len();
    let mut command = Command::new("curl");
    command.args([
        "-sS",
        "-m",
        "60",
        "--limit-rate",
        "100k",
        "-T",
        "/dev/zero",
        &proxy.url("/echo"),
    ]);
    let mut client = super::origin::Running::start(command);
    eventually("the instance has the request", || echo.log().len() == before + 1);
    client.end();
    eventually("the instance sees the upload end", || echo.log()[before]["gone"] == true);
    assert_eq!(echo.log()[before]["done"], false);
}

#[test]
fn nginx_as_an_instance_is_served_as_without_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let address = unused();
    let _nginx = nginx(directory.path(), address, 3_000_000);
    let proxy = Proxy::before(address);
    // It closes a connection after seven requests: none of them may be lost by that.
    let urls: Vec<String> = (0..50).map(|_| proxy.url("/small")).collect();
    let mut arguments = vec!["-w", "%{http_code} "];
    for url in &urls {
        arguments.extend(["-o", "/dev/null", url]);
    }
    assert_eq!(curl(&arguments), "200 ".repeat(50));
    for arguments in [
        &["-r", "1000000-1000099"][..],
        &["-H", "If-None-Match: \"x\""],
        &["-H", "Accept-Encoding: gzip", "--compressed"],
        &["-X", "OPTIONS"],
        &["-I"],
    ] {
        let ask = |url: &str| {
            let told =
                [&["-o", "-", "-w", "\n%{http_code} %{content_type} %{size_download}"], arguments];
            let told = curl(&[&told.concat()[..], &[url]].concat());
            // Nobody's business: how names of fields are written, when it was, and about which connection.
            let differs = ["x-cheops-site", "date", "connection"];
            let same = |line: &String| !differs.iter().any(|name| line.starts_with(name));
            told.lines().map(str::to_lowercase).filter(same).collect::<Vec<_>>()
        };
        let (mut through, mut direct) =
            (ask(&proxy.url("/file")), ask(&format!("http://{address}/file")));
        // The order of header fields is nobody's business.
        through.sort();
        direct.sort();
        assert!(through == direct, "{arguments:?}: {:?} {:?}", through.last(), direct.last());
    }
    let missing = curl(&["-w", "%{http_code}", "-o", "/dev/null", &proxy.url("/none")]);
    assert_eq!(missing, "404");
}

#[test]
fn h2load_sees_no_failure_in_either_version() {
    let directory = tempfile::tempdir().unwrap();
    let address = unused();
    let _nginx = nginx(directory.path(), address, 100_000);
    let proxy = Proxy::before(address);
    for (arguments, requests) in [
        (&["--h1", "-n", "3000", "-c", "64"][..], 3_000),
        (&["-n", "3000", "-c", "16", "-m", "32"], 3_000),
        (&["-n", "400", "-c", "4", "-m", "8"], 400),
    ] {
        let path = if requests == 400 { "/file" } else { "/small" };
        let mut command = Command::new("h2load");
        let output = command.args(arguments).arg(proxy.url(path)).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let wanted = format!(
            "requests: {requests} total, {requests} started, {requests} done, {requests} succeeded, 0 failed, 0 errored, 0 timeout"
        );
        assert!(told.contains(&wanted), "{arguments:?}: {told}");
        assert!(told.contains(&format!("status codes: {requests} 2xx")), "{told}");
    }
}
