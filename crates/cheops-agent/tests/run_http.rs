//! Requests to the application, sent under the real supervisor by a real node to a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cheops_agent::{
    config::Service,
    run::{Workload, answer::Answer},
};
use cheops_core::{
    matrix::{self, Config},
    operation::{Action, Attachment, HttpBody, HttpRequest, Names, Operation},
    plan::Outcome,
    replica::{Input, Message, Record, Replica, Reply, Sent, Submission},
    time::Timestamp,
};
use http_body_util::{BodyExt, Full};
use instance::{Instance, KeptAddress, Seen, answer};
use site::{Disk, Plan, Site, eventually};
use tempfile::TempDir;

#[path = "support/instance.rs"]
mod instance;
#[path = "support/site.rs"]
mod site;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheops-test-runner");

const MATRIX: &str = r#"{"ResolutionMatrix": [
    {"Before": "create", "After": "create", "Result": "take-one"},
    {"Before": "create", "After": "act", "Result": "take-both-keep-order"},
    {"Before": "act", "After": "act", "Result": "take-both-agreed-order"}]}"#;

fn plan(directory: &Path, address: SocketAddr, change: impl FnOnce(&mut Service)) -> Plan {
    let mut plan = Plan::new(directory, PROGRAM);
    let mut image = Service::new("image".parse().unwrap(), address, Some(address));
    change(&mut image);
    plan.config.mesh.services = [(image.name.clone(), image)].into();
    plan
}

fn site(address: SocketAddr) -> (TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path(), address, |_| {});
    (directory, plan.start())
}

fn request(method: &str, target: &str, body: &str, names: Names) -> Action {
    let body = match body {
        "" => HttpBody::None,
        text => HttpBody::Inline(text.as_bytes().into()),
    };
    let headers = [("X-Request-Id".into(), "r1".into()), ("Expect".into(), "100-continue".into())];
    Action::Http(Box::new(HttpRequest {
        service: "image".parse().unwrap(),
        method: method.into(),
        target: target.into(),
        headers: headers.into(),
        body,
        names,
    }))
}

fn makes() -> Names {
    Names::Makes("m1".into())
}

fn uses() -> Names {
    Names::Uses("m1".into())
}

/// An operation of a kind, with a time limit.
fn operation(site: &Site, id: &str, kind: &str, action: Action, limit: Duration) -> Submission {
    let mut submission = site.request(id, action, &[]);
    submission.kind = kind.parse().unwrap();
    let config = Config::from_json(MATRIX).unwrap();
    submission.config = Some(matrix::Config { timeout: Some(limit), ..config });
    submission
}

const LONG: Duration = Duration::from_mins(1);

async fn made(site: &Site, id: &str) -> Option<String> {
    let (id, here) = (id.parse().unwrap(), site.config.site.clone());
    let look = move |replica: &Replica| replica.resource(&id)?.made(&here).map(str::to_owned);
    site.node.read(look).await.unwrap()
}

/// Says something once it is told to.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

/// Some images: what is made gets the number 7, and `gone` and `taken` are what they say.
fn images(seen: &Seen) -> String {
    match &*seen.line {
        "POST /v2/images" => answer("201 Created", &["X-A: b"], r#"{"id": 7, "name": "x"}"#),
        "POST /located" => answer("201 Created", &["Location: http://a/v2/images/7"], "made"),
        "POST /nameless" => answer("201 Created", &[], "made"),
        "POST /taken" => answer("409 Conflict", &[], "it is taken"),
        "DELETE /gone" | "PUT /gone" => answer("404 Not Found", &[], ""),
        "DELETE /v2/images/7" => answer("204 No Content", &[], ""),
        line if line.contains("/7") => answer("200 OK", &[], "done"),
        _ => answer("500 Internal Server Error", &[], "what?"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_holds_the_answer_and_the_id_of_what_was_made() {
    let instance = Instance::start(|seen| Some(images(seen)));
    let (_directory, site) = site(instance.address);
    let create = request("POST", "/v2/images", "{}", makes());
    let reply = site.submit(operation(&site, "r", "create", create, LONG)).await;
    assert_eq!(reply.outcome, Outcome::Ok);
    assert_eq!(
        &*reply.output,
        "HTTP/1.1 201 Created\nx-a: b\ncontent-length: 22\n\n{\"id\": 7, \"name\": \"x\"}"
    );
    assert_eq!(reply.made.as_deref(), Some("7"));
    assert_eq!(made(&site, "r").await.as_deref(), Some("7"));
    let read = Answer::of_reply(&reply.output).unwrap();
    assert_eq!((read.status, read.body), (201, &br#"{"id": 7, "name": "x"}"#[..]));

    let target = "/v2/images/m1/file?image_id=m1&of=m12";
    let update = operation(&site, "r", "act", request("PUT", target, "abc", uses()), LONG);
    let reply = site.submit(update).await;
    assert_eq!((reply.outcome, reply.made), (Outcome::Ok, None));
    let seen = instance.seen();
    assert_eq!(seen[1].line, "PUT /v2/images/7/file?image_id=7&of=m12");
    assert_eq!(seen[1].body, b"abc");
    let mut headers = seen[1].headers.clone();
    headers.sort_unstable();
    let host = format!("host: {}", instance.address);
    let expected = ["accept-encoding: identity", "content-length: 3", &host, "x-request-id: r1"];
    assert_eq!(headers, expected);

    // There is no other site, so it is forgotten once it is deleted.
    let delete = request("DELETE", "/v2/images/m1", "", uses());
    let reply = site.submit(operation(&site, "r", "delete", delete, LONG)).await;
    assert_eq!(reply.outcome, Outcome::Ok);
    assert_eq!(instance.lines()[2], "DELETE /v2/images/7");
    assert_eq!(made(&site, "r").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_decides_how_it_went() {
    let instance = Instance::start(|seen| Some(images(seen)));
    let (_directory, site) = site(instance.address);
    let nothing = || Names::Nothing;
    for (id, kind, action, outcome, made, end) in [
        ("a", "create", request("POST", "/located", "{}", makes()), Outcome::Ok, Some("7"), "made"),
        ("b", "create", request("POST", "/nameless", "{}", makes()), Outcome::Ok, None, "made"),
        (
            "c",
            "create",
            request("POST", "/taken", "{}", makes()),
            Outcome::Ko,
            None,
            "it is taken\nanswered with 409 Conflict",
        ),
        (
            "d",
            "act",
            request("PUT", "/gone", "", nothing()),
            Outcome::Ko,
            None,
            "\n\nanswered with 404 Not Found",
        ),
        (
            "e",
            "delete",
            request("DELETE", "/gone", "", nothing()),
            Outcome::Ok,
            None,
            "\n\nanswered with 404 Not Found",
        ),
        (
            "f",
            "delete",
            request("DELETE", "/v2/images/m1", "", uses()),
            Outcome::Ok,
            None,
            "there is nothing to delete",
        ),
        (
            "g",
            "act",
            request("PUT", "/v2/images/m1", "", uses()),
            Outcome::Ko,
            None,
            "there is nothing to send the request to",
        ),
    ] {
        if kind == "delete" {
            site.exec(id, "true", None).await;
        }
        let reply = site.submit(operation(&site, id, kind, action, LONG)).await;
        assert_eq!((reply.outcome, reply.made.as_deref()), (outcome, made), "{id}");
        assert!(reply.output.ends_with(end), "{id}: {}", reply.output);
    }
    assert_eq!(instance.seen().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_mix_commands_and_requests_and_end_with_the_first_that_fails() {
    let instance = Instance::start(|seen| Some(images(seen)));
    let (_directory, site) = site(instance.address);
    let post = |target| request("POST", target, "{}", makes());
    let steps = [Action::command("echo one"), post("/v2/images"), Action::command("echo three")];
    let reply = site.submit(site.request("all", Action::Steps(steps.into()), &[])).await;
    assert_eq!((reply.outcome, reply.made.as_deref()), (Outcome::Ok, Some("7")));
    assert!(reply.output.starts_with("one\nHTTP/1.1 201 Created\n"), "{}", reply.output);
    assert!(reply.output.ends_with("}three\n"), "{}", reply.output);
    let steps = [post("/taken"), Action::command("touch ran")];
    let reply = site.submit(site.request("some", Action::Steps(steps.into()), &[])).await;
    assert_eq!(reply.outcome, Outcome::Ko);
    assert!(!site.config.work.join("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_headers_of_a_site_take_the_place_of_those_that_came() {
    let instance = Instance::start(|seen| Some(images(seen)));
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path(), instance.address, |image| {
        let pair = |name: &str, value: &str| (name.parse().unwrap(), value.parse().unwrap());
        image.headers = vec![pair("x-request-id", "mine"), pair("x-auth-token", "t")];
    });
    let site = plan.start();
    let create = request("POST", "/v2/images", "", makes());
    site.submit(operation(&site, "r", "create", create, LONG)).await;
    let headers = instance.seen().remove(0).headers;
    for header in
        ["x-request-id: mine", "x-auth-token: t", "content-length: 0", "accept-encoding: identity"]
    {
        assert!(headers.iter().any(|found| found == header), "{headers:?}");
    }
    assert_eq!(headers.len(), 5, "{headers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_comes_up_late_gets_the_request_once() {
    let kept = KeptAddress::new();
    let (_directory, site) = site(kept.address());
    // A site that was never there before takes nothing for certain.
    let note = site.config.data.join("runs/@boot");
    eventually(async || note.exists().then_some(())).await;
    let create = request("POST", "/v2/images", "{}", makes());
    // The limit is that of the request, and begins when it is sent.
    let limit = Duration::from_millis(500);
    let begun = Instant::now();
    let asked = site.submit(operation(&site, "r", "create", create, limit));
    let late = async {
        let waits = async || (site.runner.workload().stuck == 1).then_some(());
        eventually(waits).await;
        eventually(async || (begun.elapsed() > 2 * limit).then_some(())).await;
        waits().await.expect("it waits for as long as it takes");
        Instance::start_at(kept, |seen| Some(images(seen)))
    };
    let (reply, instance) = tokio::join!(asked, late);
    assert_eq!((reply.outcome, reply.made.as_deref()), (Outcome::Ok, Some("7")));
    assert_eq!(instance.seen().len(), 1);
}

/// The supervisors at work for a site.
fn supervisors(site: &Site) -> Vec<u32> {
    let runs = site.config.data.join("runs");
    let runs = runs.to_str().unwrap();
    let mine = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("supervise") && line.contains(runs)
    };
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(mine);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_never_answers_is_asked_once_and_given_up() {
    let instance = Instance::start(|_| None);
    let (_directory, site) = site(instance.address);
    let create = request("POST", "/v2/images", "{}", makes());
    let limit = Duration::from_millis(500);
    let reply = site.submit(operation(&site, "r", "create", create, limit)).await;
    assert_eq!((reply.outcome, &*reply.output), (Outcome::Ko, "timed out after 500ms"));
    assert_eq!(instance.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_hangs_up_is_asked_once() {
    let hangs_up = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hangs_up.local_addr().unwrap();
    let calls = thread::spawn(move || {
        let (stream, _) = hangs_up.accept().unwrap();
        drop(stream);
        hangs_up.set_nonblocking(true).unwrap();
        hangs_up
    });
    let (_directory, site) = site(address);
    let create = request("POST", "/v2/images", "{}", makes());
    let reply = site.submit(operation(&site, "r", "create", create, LONG)).await;
    assert_eq!(reply.outcome, Outcome::Ko);
    let expected =
        format!("the instance of `image` at {address} got the request and gave no answer");
    assert!(reply.output.starts_with(&expected), "{}", reply.output);
    assert!(calls.join().unwrap().accept().is_err(), "nobody else has called");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_can_be_read_in_two_ways_is_a_failure() {
    for (unsound, why) in [
        (
            "HTTP/1.1 201 Created\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            "both a Content-Length and a Transfer-Encoding",
        ),
        ("HTTP/1.1 101 OK\r\nConnection: upgrade\r\nUpgrade: feed\r\n\r\n", "(101)"),
    ] {
        let instance = Instance::start(move |_| Some(unsound.to_owned()));
        let (_directory, site) = site(instance.address);
        let create = request("POST", "/v2/images", "{}", makes());
        let reply = site.submit(operation(&site, "r", "create", create, LONG)).await;
        assert_eq!(reply.outcome, Outcome::Ko, "{}", reply.output);
        assert!(reply.output.contains(why), "{}", reply.output);
        assert_eq!(instance.seen().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stops_meanwhile_finds_the_answer_and_what_was_made() {
    let gate = Gate::default();
    let held = gate.clone();
    let instance = Instance::start(move |seen| {
        held.wait();
        Some(images(seen))
    });
    let directory = tempfile::tempdir().unwrap();
    let log = Disk::default();
    let start = || {
        let mut plan = plan(directory.path(), instance.address, |_| {});
        plan.log = log.clone();
        plan.start()
    };
    let first = start();
    let create = request("POST", "/v2/images", "{}", makes());
    let submission = operation(&first, "r", "create", create, LONG);
    let _answers = first.node.submit(submission).await.unwrap();
    eventually(async || (instance.seen().len() == 1).then_some(())).await;
    first.stop().await;
    let second = start();
    gate.open();
    let reply = second.reply("r", 1).await;
    assert_eq!((reply.outcome, reply.made.as_deref()), (Outcome::Ok, Some("7")));
    assert!(reply.output.starts_with("HTTP/1.1 201 Created\n"), "{}", reply.output);
    assert_eq!(made(&second, "r").await.as_deref(), Some("7"));
    assert_eq!(instance.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_that_went_well_is_not_sent_again_in_a_replay() {
    let instance = Instance::start(|seen| Some(images(seen)));
    let (_directory, site) = site(instance.address);
    let with_other = |mut submission: Submission| {
        submission.sites = site.request("r", Action::command(""), &["site2"]).sites;
        submission
    };
    let create = request("POST", "/v2/images", "{}", makes());
    let first = site.submit(with_other(operation(&site, "r", "create", create, LONG))).await;
    // What is not made of requests alone is replayed from the creation on.
    let act = |n: u32| {
        let request = request("PUT", &format!("/v2/images/m1/{n}"), "", uses());
        Action::Steps([Action::command("true"), request].into())
    };
    site.submit(with_other(operation(&site, "r", "act", act(2), LONG))).await;
    // Another site was asked before that, and could not say so.
    let id = first.op.clone();
    let look = move |replica: &Replica| {
        let log = replica.resource(&"r".parse().unwrap()).unwrap().log();
        let op = log.iter().map(|(_, op)| op).find(|op| op.id == id).unwrap();
        (**op).clone()
    };
    let created: Operation = site.node.read(look).await.unwrap();
    let other = Operation {
        id: "site2:1".parse().unwrap(),
        kind: "act".parse().unwrap(),
        at: Timestamp::from_bits(created.at.to_bits() + 1),
        parents: [created.id.clone()].into(),
        action: act(1),
        declares: None,
        ..created.clone()
    };
    let record = Record::Operation(Arc::new(other));
    let records = vec![Sent { after: 0, record, seal: None }];
    let resource = "r".parse().unwrap();
    let message = Message::Records { resource, records, more: false };
    let from = "site2".parse().unwrap();
    site.node.tell(Input::Received { from, message }).await.unwrap();
    eventually(async || (instance.seen().len() == 4).then_some(())).await;
    let expected =
        ["POST /v2/images", "PUT /v2/images/7/2", "PUT /v2/images/7/1", "PUT /v2/images/7/2"];
    assert_eq!(instance.lines(), expected);
    let again: Reply = site.reply("r", 1).await;
    assert_eq!(again.attempt, 2);
    assert_eq!(
        (again.outcome, &again.output, &again.made),
        (Outcome::Ok, &first.output, &first.made)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_passes_through_a_buffer() {
    const LENGTH: u64 = 200 << 20;
    let gate = Gate::default();
    let held = gate.clone();
    let instance = Instance::start(move |_| {
        held.wait();
        Some(answer("204 No Content", &[], ""))
    });
    let (_directory, site) = site(instance.address);
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    let pieces = (0..LENGTH >> 20).map(|_| Ok::<_, String>(piece.clone()));
    let (content, length) = site.files.put(futures_util::stream::iter(pieces)).await.unwrap();
    let Action::Http(mut put) = request("PUT", "/v2/images/x/file", "", Names::Nothing) else {
        panic!("a request")
    };
    put.body = HttpBody::File(Attachment { name: "x".into(), content, length });
    let asked = site.submit(operation(&site, "r", "act", Action::Http(put), LONG));
    let watched = async {
        // All of it was sent by then, and the supervisor waits for the answer.
        eventually(async || (instance.seen().len() == 1).then_some(())).await;
        let id = supervisors(&site)[0];
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        gate.open();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let (reply, peak) = tokio::join!(asked, watched);
    assert_eq!(reply.outcome, Outcome::Ok, "{}", reply.output);
    assert_eq!(instance.seen()[0].length, LENGTH);
    println!("the supervisor took {peak} kB at most");
    assert!(peak < 40 << 10, "{peak} kB");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_speaks_http_2_is_asked_in_it() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async |request: hyper::Request<hyper::body::Incoming>| {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let seen = format!(
            "{:?} {} {} {}",
            parts.version,
            parts.method,
            parts.uri,
            String::from_utf8_lossy(&body)
        );
        let answer = format!(r#"{{"id": "8c2f", "seen": "{seen}"}}"#);
        Ok::<_, hyper::Error>(hyper::Response::new(Full::new(Bytes::from(answer))))
    };
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let executor = hyper_util::rt::TokioExecutor::new();
        let server = hyper::server::conn::http2::Builder::new(executor);
        let stream = hyper_util::rt::TokioIo::new(stream);
        server.serve_connection(stream, hyper::service::service_fn(serve)).await.unwrap();
    });
    let directory = tempfile::tempdir().unwrap();
    let site = plan(directory.path(), address, |image| image.http2 = true).start();
    let create = request("POST", "/v2/images?a=b", "body", makes());
    let reply = site.submit(operation(&site, "r", "create", create, LONG)).await;
    assert_eq!((reply.outcome, reply.made.as_deref()), (Outcome::Ok, Some("8c2f")));
    assert!(reply.output.starts_with("HTTP/2 200 OK\n"), "{}", reply.output);
    let seen = format!("HTTP/2.0 POST http://{address}/v2/images?a=b body");
    assert!(reply.output.contains(&seen), "{}", reply.output);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_is_down_does_not_hold_up_commands() {
    let kept = KeptAddress::new();
    let (_directory, site) = site(kept.address());
    for n in 0..2 * site.config.runs.parallel {
        let create = request("POST", "/v2/images", "{}", makes());
        let limit = Duration::from_secs(20);
        let submission = operation(&site, &format!("r{n}"), "create", create, limit);
        let _answers = site.node.submit(submission).await.unwrap();
    }
    let parallel = site.config.runs.parallel;
    eventually(async || (site.runner.workload().running >= parallel).then_some(())).await;
    let start = Instant::now();
    assert_eq!(site.exec("command", "echo hello", None).await.outcome, Outcome::Ok);
    assert!(start.elapsed() < Duration::from_secs(15), "it waited for the application");
    assert_ne!(site.runner.workload(), Workload::default());
    for id in supervisors(&site) {
        let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
    }
}

const RESOURCES: usize = 3;
const OPERATIONS: usize = 60;

fn agent(directory: &Path, address: SocketAddr) -> Child {
    Command::new(PROGRAM)
        .arg("requests")
        .args([directory.to_str().unwrap(), &address.to_string()])
        .args([RESOURCES.to_string(), OPERATIONS.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// Whether an agent has noted which boot this is, to the end of the line.
fn is_noted(directory: &Path) -> bool {
    fs::read_to_string(directory.join("runs/@boot")).is_ok_and(|note| note.ends_with('\n'))
}

#[test]
fn each_request_is_sent_exactly_once_whenever_the_agent_is_killed() {
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let directory = tempfile::tempdir().unwrap();
    let kept = KeptAddress::new();
    let (address, mut kept, mut instance, mut kills) = (kept.address(), Some(kept), None, 0);
    let mut at_work = 0;
    let begin = Instant::now();
    'lives: loop {
        assert!(begin.elapsed() < Duration::from_mins(3), "{kills} kills, and no end");
        let mut agent = agent(directory.path(), address);
        // A site that was never there before takes nothing for certain.
        while !is_noted(directory.path()) {
            thread::sleep(Duration::from_millis(1));
        }
        let longest = random.choice([5_000, 100_000]).unwrap();
        let life = Duration::from_micros(random.u64(0..longest));
        let born = Instant::now();
        while born.elapsed() < life {
            if let Some(status) = agent.try_wait().unwrap() {
                assert!(status.success(), "the agent ended with {status}");
                break 'lives;
            }
            thread::sleep(Duration::from_millis(1));
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
        kills += 1;
        at_work += usize::from(instance.is_some());
        // At first there is no instance, and the supervisors wait for it.
        if kills >= 10
            && let Some(kept) = kept.take()
        {
            instance = Some(Instance::start_at(kept, |seen| {
                let number: u64 = String::from_utf8_lossy(&seen.body).parse().unwrap();
                thread::sleep(Duration::from_millis(if number.is_multiple_of(4) { 30 } else { 0 }));
                let id = seen.line.rsplit('/').next().unwrap();
                Some(answer("201 Created", &[], &format!(r#"{{"id": "{id}-{number}"}}"#)))
            }));
        }
    }
    println!("killed {kills} times, {at_work} of them with the instance at work");
    assert!(at_work >= 5, "{at_work} of {kills}");
    let seen = instance.unwrap().seen();
    let expected: Vec<String> = (0..OPERATIONS).map(|n| n.to_string()).collect();
    for n in 0..RESOURCES {
        let line = format!("POST /r{n}");
        let numbers = seen.iter().filter(|seen| seen.line == line);
        let numbers: Vec<String> =
            numbers.map(|seen| String::from_utf8(seen.body.clone()).unwrap()).collect();
        assert_eq!(numbers, expected, "{line}");
    }
}
