//! Requests for operations: how they may be written, and a site that takes one and falls silent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, response::IntoResponse as _, routing::post};
use bytes::Bytes;
use cheops_agent::{
    Agent,
    config::Config,
    node::{self, Clock},
    peers::{Peers, State},
    problems::Noted,
    trust::{Identity, Ledger, Members},
};
use cheops_core::{
    id::{OpId, ResourceId, Sites},
    matrix::Config as MatrixConfig,
    operation::{Action, Declaration, Operation},
    replica::{Message, Record, Sent, Version},
    time::{Millis, Timestamp},
    trust::Seal,
};
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_mins(1);

fn config(site: &str, directory: &tempfile::TempDir) -> Config {
    let mut config = Config::new(site.parse().unwrap(), directory.path().join(site));
    config.api = SocketAddr::from(([127, 0, 0, 1], 0));
    config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
    config.policy.any_shell = Some(true);
    config
}

async fn ask(agent: &Agent, id: &str, body: String) -> (u16, Value) {
    let request = Request::post(format!("/api/v1/resources/{id}/operations"))
        .header("content-type", "application/json")
        .body(Body::from(body));
    let (status, body) = send(agent, request.unwrap()).await;
    (status, serde_json::from_slice(&body).unwrap())
}

async fn open(agent: &Agent, mut request: Request<Body>) -> hyper::Response<hyper::body::Incoming> {
    let tcp = TokioIo::new(TcpStream::connect(agent.api()).await.unwrap());
    let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
    tokio::spawn(connection);
    request.headers_mut().insert("host", "localhost".parse().unwrap());
    timeout(PATIENCE, requests.send_request(request)).await.unwrap().unwrap()
}

async fn send(agent: &Agent, request: Request<Body>) -> (u16, Bytes) {
    let answer = open(agent, request).await;
    let status = answer.status().as_u16();
    (status, answer.into_body().collect().await.unwrap().to_bytes())
}

async fn get(agent: &Agent, path: &str) -> (u16, Value) {
    let (status, body) = send(agent, Request::get(path).body(Body::empty()).unwrap()).await;
    (status, serde_json::from_slice(&body).unwrap())
}

/// The key pair of a site, which is made if there is none.
fn identity(site: &str, directory: &tempfile::TempDir) -> Identity {
    let data = directory.path().join(site);
    std::fs::create_dir_all(&data).unwrap();
    Identity::open(&data).unwrap()
}

/// Lets a site know another.
fn add(config: &mut Config, site: &str, address: String, directory: &tempfile::TempDir) {
    let key = identity(site, directory).public();
    config.add_site(site.parse().unwrap(), address, key).unwrap();
}

/// Agents that all know each other and are linked. Those that come later dial.
async fn linked(names: &[&str], directory: &tempfile::TempDir) -> Vec<Agent> {
    let mut agents: Vec<Agent> = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let mut config = config(name, directory);
        for (m, other) in names.iter().enumerate().filter(|&(m, _)| m != n) {
            let address = agents.get(m).map_or("127.0.0.1:1".into(), |a| a.peers().to_string());
            add(&mut config, other, address, directory);
        }
        agents.push(Agent::start(config).await.unwrap());
    }
    let deadline = Instant::now() + PATIENCE;
    for agent in &agents {
        while reached(agent).await < names.len() - 1 {
            assert!(Instant::now() < deadline, "no link");
            sleep(Duration::from_millis(10)).await;
        }
    }
    agents
}

/// How many sites an agent reaches.
async fn reached(agent: &Agent) -> usize {
    let (_, sites) = get(agent, "/api/v1/sites").await;
    let sites = sites["sites"].as_array().unwrap();
    sites.iter().filter(|site| site["state"] == "reachable").count()
}

/// An operation that a site says another has asked for.
fn made_up(origin: &str, sites: [&str; 2]) -> Message {
    let resource: ResourceId = "x".parse().unwrap();
    let op = Operation {
        id: OpId { site: origin.parse().unwrap(), number: 1 },
        resource: resource.clone(),
        kind: "inc".parse().unwrap(),
        author: "ana".parse().unwrap(),
        at: Timestamp::at(Millis(1_800_000_000_000)),
        parents: [].into(),
        action: Action::command("touch /tmp/never"),
        reset: false,
        keep_going: false,
        key: None,
        declares: Some(Box::new(Declaration {
            sites: Sites::new(sites.map(|site| site.parse().unwrap())).unwrap(),
            config: MatrixConfig::default().into(),
            base: Version::new(),
        })),
    };
    let record = Record::Operation(Arc::new(op));
    let records = vec![Sent { after: 0, record, seal: Seal::new(&[7; 65]) }];
    Message::Records { resource, records, more: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_site_makes_up_is_counted_and_shown_where_it_was_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut here = config("here", &directory);
    for other in ["there", "third"] {
        add(&mut here, other, "127.0.0.1:1".into(), &directory);
    }
    let here = Agent::start(here).await.unwrap();
    let mut other = config("there", &directory);
    add(&mut other, "here", here.peers().to_string(), &directory);
    let (handle, _inbox) = node::channel(Clock::default());
    let ledger = Ledger::open(&other.data).unwrap();
    let members = Members::new(&other, identity("there", &directory), ledger);
    let there = Peers::bind(&other, members, None, Noted::default(), handle).await.unwrap();
    there.serve(Router::new());
    let deadline = Instant::now() + PATIENCE;
    let shown = loop {
        // Until there is a link, it is dropped.
        there.send(&"here".parse().unwrap(), made_up("third", ["here", "third"]));
        let (_, problems) = get(&here, "/api/v1/problems").await;
        let problems = problems.to_string();
        if problems.contains("a record of `third` that `third` has not signed") {
            break problems;
        }
        assert!(Instant::now() < deadline, "{problems}");
        sleep(Duration::from_millis(10)).await;
    };
    for word in ["what `there` said of `x` was not taken in", "treat `there` as taken over"] {
        assert!(shown.contains(word), "{shown}");
    }
    let metrics = Request::get("/metrics").body(Body::empty()).unwrap();
    let (_, metrics) = send(&here, metrics).await;
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    let counted =
        metrics.lines().find(|line| line.starts_with("cheops_site_refused{site=\"there\"} "));
    assert!(counted.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
    assert_eq!(get(&here, "/api/v1/resources/x?local=true").await.0, 404);
    let body = json!({ "command": "true", "sites": "here", "wait": "0s" }).to_string();
    assert_eq!(ask(&here, "y", body).await.0, 202, "others are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exists_elsewhere_is_not_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let agents = linked(&["a", "b", "c"], &directory).await;
    let [a, _, c] = &agents[..] else { panic!("three agents") };
    let on = |sites: &str| json!({ "command": "true", "sites": sites, "wait": "0s" });
    let (status, answer) = ask(a, "x", on("a & b").to_string()).await;
    assert_eq!((status, &answer["operation"]), (202, &json!("a:1")), "{answer}");

    // Sites that overlap, sites that don't, and sites that the one who is asked is not among.
    for sites in ["b & c", "c", "a"] {
        let (status, answer) = ask(c, "x", on(sites).to_string()).await;
        assert_eq!(status, 202, "{sites}: {answer}");
        let operation = answer["operation"].as_str().unwrap();
        assert!(!operation.starts_with("c:"), "{sites}: {answer}");
        assert_eq!(answer["runs"].as_array().unwrap().len(), 2, "{sites}: {answer}");
    }
    let form = "--b\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\ntrue\r\n--b\r\nContent-Disposition: form-data; name=\"sites\"\r\n\r\nc\r\n--b--\r\n";
    let request = Request::post("/exec/x")
        .header("content-type", "multipart/form-data; boundary=b")
        .body(Body::from(form));
    // It would be 30 s until all is told.
    assert_eq!(open(c, request.unwrap()).await.status(), 200);
    let deadline = Instant::now() + PATIENCE;
    while get(a, "/api/v1/resources/x?local=true").await.1["operation_count"] != 5 {
        assert!(Instant::now() < deadline, "not all became operations of the one resource");
        sleep(Duration::from_millis(10)).await;
    }
    let mut rehearsal = on("c");
    rehearsal["dry_run"] = json!(true);
    let (status, answer) = ask(c, "x", rehearsal.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer["sites"].get("a").is_some(), "{answer}");
    let (_, known) = get(c, "/api/v1/resources").await;
    assert_eq!(known["resources"], json!([]), "nothing was made where it was asked for");

    // What nobody has is created, also if its name begins as another does.
    for id in ["y", "x-2"] {
        let (status, answer) = ask(c, id, on("c").to_string()).await;
        assert_eq!((status, &answer["operation"]), (202, &json!("c:1")), "{id}: {answer}");
    }
    // Who can't be reached is not waited for.
    let request = Request::post("/api/v1/sites/c/pause").body(Body::empty()).unwrap();
    assert_eq!(send(c, request).await.0, 204);
    let (status, answer) = ask(c, "x", on("c").to_string()).await;
    assert_eq!((status, &answer["operation"]), (202, &json!("c:1")), "{answer}");
    for agent in agents {
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_body_that_is_no_object_is_refused_whatever_could_be_made_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::start(config("here", &directory)).await.unwrap();
    let fields = json!(["true", null, "here", null, [], false, false, "0s", null, null, false]);
    for body in [fields, json!([]), json!("x"), json!(3), json!(null)] {
        let (status, answer) = ask(&agent, "r", body.to_string()).await;
        assert_eq!((status, &answer["type"]), (400, &json!("bad-request")), "{body}: {answer}");
        assert!(answer["hint"].as_str().unwrap().contains("send one object"), "{answer}");
    }
    for (body, expected) in [
        (json!({ "command": "x", "wait": 1.5 }), "wait: invalid type"),
        (json!({ "command": "x", "sites": {} }), "a text like \"site1 & site2\""),
    ] {
        let (status, answer) = ask(&agent, "r", body.to_string()).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(expected), "{answer}");
    }
    let listed = json!({ "command": "true", "sites": ["here"], "wait": 0 });
    let (status, answer) = ask(&agent, "r", listed.to_string()).await;
    assert_eq!((status, &answer["operation"]), (202, &json!("here:1")), "{answer}");
    agent.stop().await;
}

#[tokio::test]
async fn a_site_that_lost_nobody_knows_what_hears_others_before_it_creates_a_resource() {
    let directory = tempfile::tempdir().unwrap();
    let plan = || {
        let mut config = config("here", &directory);
        add(&mut config, "there", "127.0.0.1:1".into(), &directory);
        config
    };
    let shared = json!({ "command": "true", "sites": "here & there", "wait": "0s" }).to_string();
    let alone = json!({ "command": "true", "sites": "here", "wait": "0s" }).to_string();
    let rehearsed =
        json!({ "command": "true", "sites": "here & there", "dry_run": true }).to_string();
    let agent = Agent::start(plan()).await.unwrap();
    assert_eq!(ask(&agent, "lost", shared.clone()).await.0, 202);
    agent.stop().await;
    // The number of the last record is known, and nothing else.
    let store = directory.path().join("here/store");
    for entry in std::fs::read_dir(store.join("db")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    for start in ["the first", "a later"] {
        let agent = Agent::start(plan()).await.unwrap();
        for asked in [&shared, &rehearsed] {
            let (status, answer) = ask(&agent, "lost", asked.clone()).await;
            assert_eq!((status, &answer["type"]), (503, &json!("damaged")), "{start}: {answer}");
            assert!(answer["detail"].as_str().unwrap().ends_with("of it: there"), "{answer}");
        }
        assert_eq!(ask(&agent, "alone", alone.clone()).await.0, 202, "{start}");
        agent.stop().await;
    }
}

/// The agents of a site that says nothing more: when it is asked, or after it has accepted.
fn silent() -> Router {
    let never = async || -> String { std::future::pending().await };
    let accepts = async || {
        let accepted = json!({ "event": "accepted", "operation": "there:7", "sites": ["there"] });
        let line = Ok::<_, Infallible>(Bytes::from(format!("{accepted}\n")));
        let parts = stream::iter([line]).chain(stream::pending());
        Body::from_stream(parts).into_response()
    };
    Router::new()
        .route("/api/v1/resources/never/operations", post(never))
        .route("/api/v1/resources/half/operations", post(accepts))
}

#[tokio::test]
async fn a_site_that_takes_a_request_and_falls_silent_is_not_waited_for_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let here = Agent::start({
        let mut config = config("here", &directory);
        // It is the other that dials.
        add(&mut config, "there", "127.0.0.1:1".into(), &directory);
        config.serve.accept = Duration::from_millis(800);
        config
    });
    let here = here.await.unwrap();
    let mut other = config("there", &directory);
    add(&mut other, "here", here.peers().to_string(), &directory);
    let (handle, _inbox) = node::channel(Clock::default());
    let ledger = Ledger::open(&other.data).unwrap();
    let members = Members::new(&other, identity("there", &directory), ledger);
    let there = Peers::bind(&other, members, None, Noted::default(), handle).await.unwrap();
    there.serve(silent());
    let deadline = Instant::now() + PATIENCE;
    while there.view().iter().all(|peer| peer.state != State::Reachable) {
        assert!(Instant::now() < deadline, "no link");
        sleep(Duration::from_millis(10)).await;
    }
    let body = json!({ "command": "true", "sites": "there", "wait": "0s" }).to_string();
    let (never, half) =
        tokio::join!(ask(&here, "never", body.clone()), ask(&here, "half", body.clone()));
    for ((status, answer), expected) in
        [(never, "did not answer within 1.2s"), (half, "there:7 is accepted, but")]
    {
        assert_eq!((status, &answer["type"]), (504, &json!("no-answer")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(expected), "{answer}");
        assert!(answer["hint"].as_str().unwrap().contains("idempotency key"), "{answer}");
    }
    there.stop().await;
    here.stop().await;
}
