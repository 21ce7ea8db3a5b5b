//! The API of one agent: what it answers to requests, good and bad. Whatever is refused is refused
//! with a reason and a next step, and leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    process::Command,
};

use cheops_agent::api::model::{Answer, Change, Happened, OriginalReply, Problem, Stored, Submit};
use field::{agent::Agent, submit};

/// A request in full, and what is answered: the status and the body.
fn raw(site: &Agent, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(site.url.trim_start_matches("http://")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    answered(stream)
}

/// Sends what there is of a request, and nothing after it.
fn cut_off(site: &Agent, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(site.url.trim_start_matches("http://")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    answered(stream)
}

/// The status and the body of an answer.
fn answered(mut stream: TcpStream) -> (u16, String) {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (status, body)
}

fn post(site: &Agent, path: &str, content_type: &str, body: &str) -> (u16, String) {
    let length = body.len();
    raw(
        site,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

fn get(site: &Agent, path: &str) -> (u16, String) {
    raw(site, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

/// A part of a form, with the boundary `b`.
fn part(name: &str, value: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn assert_empty(site: &Agent) {
    let (_, resources) = get(site, "/api/v1/resources");
    assert!(resources.contains(r#""resources":[]"#), "{resources}");
}

#[test]
fn two_files_with_one_name_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let form = "multipart/form-data; boundary=b";
    let twice_in_a_form = format!(
        "{}{}{}{}--b--\r\n",
        part("command", "cat {f}"),
        part("sites", "site1"),
        part("f", "one"),
        part("f", "two")
    );
    let (status, one) = post(&site, "/api/v1/files", "application/octet-stream", "one");
    assert_eq!(status, 201, "{one}");
    let one: Stored = serde_json::from_str(&one).unwrap();
    let file = format!(r#"{{"name": "f", "content": "{}", "length": 3}}"#, one.content);
    let twice =
        format!(r#"{{"command": "cat {{f}}", "sites": "site1", "files": [{file}, {file}]}}"#);
    for (path, content_type, body) in [
        ("/api/v1/resources/x/operations", "application/json", &twice),
        ("/exec/x", form, &twice_in_a_form),
    ] {
        let (status, body) = post(&site, path, content_type, body);
        assert_eq!(status, 400, "{path}: {body}");
        assert!(body.contains("bad-file-name"), "{path}: {body}");
    }
    assert_empty(&site);
}

#[test]
fn a_last_event_that_is_no_number_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    for id in ["abc", "-1", ""] {
        let request = format!(
            "GET /api/v1/changes?once=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLast-Event-ID: {id}\r\n\r\n"
        );
        let (answered, body) = raw(&site, &request);
        assert_eq!(answered, 400, "{id}: {body}");
        assert!(body.contains("bad-parameter"), "{body}");
    }
}

#[test]
fn pages_of_others_are_kept_out() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let form = "multipart/form-data; boundary=b";
    for (header, sort) in [
        ("Host: evil.example", "foreign-host"),
        ("Host: localhost\r\nOrigin: http://evil.example", "foreign-origin"),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site", "foreign-origin"),
    ] {
        let body = format!("{}{}--b--\r\n", part("command", "true"), part("sites", "site1"));
        let request = format!(
            "POST /exec/x HTTP/1.1\r\n{header}\r\nConnection: close\r\nContent-Type: {form}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (answered, body) = raw(&site, &request);
        assert_eq!(answered, 403, "{header}: {body}");
        assert!(body.contains(sort), "{header}: {body}");
    }
    assert_empty(&site);
}

#[test]
fn a_body_that_ends_early_is_broken_and_stores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let head = "POST /api/v1/resources/x/operations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    for (framing, body) in [
        ("Content-Length: 40", r#"{"command": "true"#),
        ("Transfer-Encoding: chunked", "five\r\n{\"co"),
        ("Transfer-Encoding: chunked", "5\r\n{\"com\r\n"),
    ] {
        let (status, told) = cut_off(&site, &format!("{head}{framing}\r\n\r\n{body}"));
        assert_eq!(status, 400, "{framing}: {told}");
        let problem: Problem = serde_json::from_str(&told).unwrap();
        assert_eq!(problem.kind, "broken-body", "{framing}: {problem:?}");
    }
    assert_empty(&site);
}

#[test]
fn bad_requests_are_refused_with_a_reason_and_store_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let operations = "/api/v1/resources/x/operations";
    let json = "application/json";
    let huge = format!(r#"{{"command": "{}"}}"#, "x".repeat(3 << 20));
    let form = "multipart/form-data; boundary=b";
    let no_command = format!("{}--b--\r\n", part("sites", "site1"));
    let no_sites = format!("{}--b--\r\n", part("command", "true"));
    let bad_config = format!(
        "{}{}{}--b--\r\n",
        part("command", "true"),
        part("sites", "site1"),
        part("config", "{")
    );
    for (path, content_type, body, status, sort) in [
        (
            "/api/v1/resources/a%20b/operations",
            json,
            "{\"command\": \"true\"}",
            400,
            "bad-resource-id",
        ),
        (operations, json, "{", 400, "bad-request"),
        (operations, json, "{}", 400, "bad-request"),
        (operations, json, r#"{"command": " "}"#, 400, "no-command"),
        (
            operations,
            json,
            r#"{"command": "true", "sites": "site1", "comand": 1}"#,
            400,
            "bad-request",
        ),
        (operations, json, r#"{"command": "true"}"#, 404, "unknown-resource"),
        (operations, json, r#"{"command": "true", "sites": "sitee1"}"#, 400, "bad-sites"),
        (operations, json, r#"{"command": "true", "sites": "site1 &"}"#, 400, "bad-sites"),
        (
            operations,
            json,
            r#"{"command": "true", "sites": "site1", "wait": "soon"}"#,
            400,
            "bad-duration",
        ),
        (
            operations,
            json,
            r#"{"command": "true", "sites": "site1", "wait": "61m"}"#,
            400,
            "bad-duration",
        ),
        (operations, json, r#"{"command": "a\u0000b", "sites": "site1"}"#, 400, "bad-command"),
        (operations, json, r#"{"command": "true", "sites": "site1", "kind": ""}"#, 400, "bad-kind"),
        (
            operations,
            json,
            r#"{"command": "true", "sites": "site1", "config": {"Matrix": []}}"#,
            400,
            "bad-configuration",
        ),
        (
            operations,
            json,
            r#"{"command": "cat {f}", "sites": "site1", "files": [{"name": "f", "content": "00", "length": 1}]}"#,
            400,
            "bad-file",
        ),
        (operations, json, &huge, 413, "too-large"),
        (operations, "text/plain", r#"{"command": "true"}"#, 415, "wrong-content-type"),
        ("/exec/x", json, "{}", 415, "wrong-content-type"),
        ("/exec/x", form, &no_command, 400, "no-command"),
        ("/exec/x", form, &no_sites, 404, "unknown-resource"),
        ("/exec/x", form, &bad_config, 400, "bad-configuration"),
        ("/exec/x", form, "--b\r\nrubbish", 400, "bad-form"),
        ("/show_local/x", form, &no_command, 400, "no-command"),
        ("/api/v1/sites/nowhere/ping", json, "", 404, "unknown-site"),
        ("/api/v1/sites/site1/pause?for=ever", json, "", 400, "bad-duration"),
        ("/api/v1/sites/site1/pause?fro=1s", json, "", 400, "bad-parameter"),
        ("/nothing", json, "", 404, "unknown-path"),
        ("/api/v1/sites", json, "", 405, "wrong-method"),
    ] {
        let (answered, body) = post(&site, path, content_type, body);
        let problem: Problem = serde_json::from_str(&body)
            .unwrap_or_else(|error| panic!("{path} {answered}: {error}: {body}"));
        assert_eq!((answered, problem.kind.as_str()), (status, sort), "{path}: {problem:?}");
        assert_eq!(problem.status, status);
        assert!(!problem.detail.is_empty() && !problem.hint.is_empty(), "{problem:?}");
    }
    for (path, status) in [
        ("/api/v1/resources/x", 404),
        ("/api/v1/resources?limit=many", 400),
        ("/api/v1/resources?after=a%20b", 400),
        ("/api/v1/resources/x/operations/site1", 400),
        ("/api/v1/changes?since=-1", 400),
        ("/api/v1/files/xyz", 404),
        ("/exec/x", 405),
    ] {
        let (answered, body) = get(&site, path);
        assert_eq!(answered, status, "{path}: {body}");
        serde_json::from_str::<Problem>(&body).unwrap();
    }
    assert_empty(&site);
}

#[test]
fn the_doors_of_the_original_program_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let file = directory.path().join("greeting");
    // Larger than what a form may hold otherwise.
    let greeting = "hello\n".repeat(500_000);
    std::fs::write(&file, &greeting).unwrap();
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl").arg("-sS").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let attached = format!("greeting=@{}", file.display());
    let printed = curl(&[
        // Not -F, for which a semicolon has a meaning.
        "--form-string",
        "command=head -n 1 {greeting} > __ID__; wc -c < {greeting}",
        "-F",
        "sites=site1",
        "-F",
        "type=set",
        "-F",
        r#"config={"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]}"#,
        "-F",
        &attached,
        &format!("{}/exec/filename", site.url),
    ]);
    let reply: OriginalReply = serde_json::from_str(printed.trim()).unwrap();
    assert_eq!((reply.site.as_str(), reply.status.as_str()), ("site1", "OK"));
    assert_eq!((reply.output.trim(), reply.what.as_str()), ("3000000", "REPLY"));
    assert_eq!(reply.locations, ["site1"]);
    assert_eq!(reply.resource_id, "filename");

    let shown = curl(&[
        "-F",
        "command=cat __ID__",
        "-F",
        "sites=site1",
        &format!("{}/show/filename", site.url),
    ]);
    assert_eq!(shown.trim(), r#"{"site1":{"Status":"OK","Output":"hello\n"}}"#);
    let shown = curl(&["-F", "command=false", &format!("{}/show_local/filename", site.url)]);
    assert_eq!(shown.trim(), r#"{"Status":"KO","Output":"exit code 1"}"#);
}

#[test]
fn the_same_key_is_the_same_operation_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Agent::alone(directory.path());
    let request = Submit {
        sites: Some("site1".into()),
        key: Some("once".into()),
        ..submit("echo x >> {id}", "add")
    };
    let first = site.exec("log", &request);
    let again = site.exec("log", &request);
    assert_eq!(first, again);
    site.restart();
    assert_eq!(site.exec("log", &request).operation, first.operation);
    assert_eq!(std::fs::read_to_string(directory.path().join("data/work/log")).unwrap(), "x\n");
    let other = Submit { command: "echo y >> {id}".into(), ..request };
    let problem = site.try_exec("log", &other).unwrap_err();
    assert_eq!((problem.status, problem.kind.as_str()), (409, "key-reused"));
}

#[test]
fn the_change_feed_goes_on_where_a_reader_left_off() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Agent::alone(directory.path());
    for n in 0..5 {
        let request = Submit { sites: Some("site1".into()), ..submit("echo hello", "add") };
        site.exec(&format!("r{}", n % 2), &request);
    }
    let changes = |site: &Agent, query: &str| -> Vec<Change> {
        let (_, text) = site.ask(&format!("/api/v1/changes?once=true{query}")).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty());
        let mut changes: Vec<Change> =
            lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(changes.remove(0).what, Happened::Following);
        changes
    };
    let all = changes(&site, "&since=0");
    let operations = all.iter().filter(|c| matches!(c.what, Happened::Operation { .. })).count();
    let replies = all.iter().filter(|c| matches!(c.what, Happened::Reply { .. })).count();
    assert_eq!((operations, replies), (5, 5));
    assert!(all.is_sorted_by_key(|change| change.seq));
    site.restart();
    let middle = all[4].seq.unwrap();
    assert_eq!(changes(&site, &format!("&since={middle}")), all[5..]);
    let of_one = changes(&site, "&since=0&resource=r1");
    assert!(of_one.len() == 4 && of_one.iter().all(|c| c.resource.as_deref() == Some("r1")));

    // Live, as server-sent events.
    let mut stream = TcpStream::connect(site.url.trim_start_matches("http://")).unwrap();
    let last = all.last().unwrap().seq.unwrap();
    write!(stream, "GET /api/v1/changes HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nLast-Event-ID: {last}\r\n\r\n").unwrap();
    site.exec("r1", &submit("echo again", "add"));
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut next = || -> Change {
        let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
        serde_json::from_str(&data).unwrap()
    };
    assert_eq!(next().seq, Some(last));
    let change = next();
    assert!(matches!(&change.what, Happened::Operation { command, .. } if command == "echo again"));
    assert!(change.seq.unwrap() > last);
    let (status, _) = site.ask("/api/v1/changes?since=1000000").unwrap();
    assert_eq!(status, 410, "a number that was never given");
}

#[test]
fn answers_come_line_by_line_as_they_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let body = serde_json::to_string(&Submit {
        sites: Some("site1".into()),
        ..submit("sleep 1.5; echo done", "set")
    })
    .unwrap();
    let mut stream = TcpStream::connect(site.url.trim_start_matches("http://")).unwrap();
    write!(stream, "POST /api/v1/resources/x/operations HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut heard = Vec::new();
    for line in lines.filter(|line| line.starts_with('{')) {
        let answer: Answer = serde_json::from_str(&line).unwrap();
        let last = answer == Answer::Done;
        heard.push(answer);
        if last {
            break;
        }
    }
    let [Answer::Accepted { .. }, Answer::Running { site }, Answer::Reply(run), Answer::Done] =
        &heard[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!((site.as_str(), run.output.as_deref()), ("site1", Some("done\n")));
}

#[test]
fn a_file_is_stored_by_its_content() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let (status, body) = post(&site, "/api/v1/files", "application/octet-stream", "hello");
    assert_eq!(status, 201, "{body}");
    let stored: Stored = serde_json::from_str(&body).unwrap();
    assert_eq!(stored.length, 5);
    let (status, body) = get(&site, &format!("/api/v1/files/{}", stored.content));
    assert_eq!((status, body.as_str()), (200, "hello"));
    let request = format!(
        "GET /api/v1/files/{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nRange: bytes=2-\r\n\r\n",
        stored.content
    );
    let (status, body) = raw(&site, &request);
    assert_eq!((status, body.as_str()), (206, "llo"));
    // Beyond the end, beyond what a disk can have, beyond 64 bits, and nonsense.
    for from in [
        "5",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "-1",
        "x",
    ] {
        let request = request.replace("bytes=2-", &format!("bytes={from}-"));
        let (status, body) = raw(&site, &request);
        assert_eq!(status, 416, "{from}: {body}");
        let problem: Problem = serde_json::from_str(&body).unwrap();
        assert_eq!(problem.kind, "bad-range", "{from}: {body}");
    }
}

#[test]
fn every_endpoint_rejects_unknown_query_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    site.exec("x", &Submit { sites: Some("site1".into()), ..submit("true", "set") });
    let document: serde_json::Value = serde_json::from_str(&get(&site, "/openapi.json").1).unwrap();
    let mut asked = 0;
    let mut rejected = |method: &str, path: &str, known: &[&str]| {
        // Even beside one that is known.
        let beside = known.first().map(|name| format!("{name}=1&")).unwrap_or_default();
        let request = format!(
            "{} {path}?{beside}ord%65r=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            method.to_uppercase()
        );
        let (status, body) = raw(&site, &request);
        assert_eq!(status, 400, "{method} {path}: {body}");
        let problem: Problem = serde_json::from_str(&body).unwrap();
        assert_eq!(problem.kind, "bad-parameter", "{method} {path}: {body}");
        let told = format!("{} {}", problem.detail, problem.hint);
        assert!(told.contains("`order`"), "{method} {path}: {body}");
        assert!(known.iter().all(|name| told.contains(name)), "{method} {path}: {body}");
        asked += 1;
    };
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
            let names = parameters.iter().filter(|parameter| parameter["in"] == "query");
            let names: Vec<&str> = names.filter_map(|query| query["name"].as_str()).collect();
            let path = path.replace("{id}", "x").replace("{operation}", "site1:1");
            let path = path.replace("{name}", "site1").replace("{content}", &"0".repeat(64));
            rejected(method, &path, &names);
        }
    }
    rejected("get", "/openapi.json", &[]);
    assert!(asked > 40, "only {asked} endpoints");
    // The session of `DELETE /api/v1/resources/x` and all else has changed nothing.
    assert_eq!(get(&site, "/api/v1/resources/x").0, 200);
}

#[test]
fn health_readiness_metrics_and_the_document_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    assert_eq!(get(&site, "/healthz"), (200, "ok\n".into()));
    assert_eq!(get(&site, "/readyz").0, 200);
    let request = Submit { sites: Some("site1".into()), ..submit("true", "set") };
    site.exec("x", &request);
    let (status, metrics) = get(&site, "/metrics");
    assert_eq!(status, 200);
    for name in
        ["cheops_operations 1", "cheops_resources 1", "cheops_can_write 1", "cheops_requests_total"]
    {
        assert!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
    let document: serde_json::Value = serde_json::from_str(&get(&site, "/openapi.json").1).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/api/v1/resources/{id}/operations"]["post"].is_object());
}

#[test]
fn credentials_in_a_request_target_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    for head in [
        "GET http://ada:secret@localhost/healthz HTTP/1.1\r\nHost: localhost",
        "GET /healthz HTTP/1.1\r\nHost: ada:secret@localhost",
    ] {
        let (status, body) = raw(&site, &format!("{head}\r\nConnection: close\r\n\r\n"));
        assert_eq!(status, 400, "{head}: {body}");
        assert!(body.contains("bad-request") && !body.contains("secret"), "{head}: {body}");
    }
}
