//! Requests for operations: how they may be written, and a site that takes one and falls silent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{Router, body::Body, response::IntoResponse as _, routing::post};
use bytes::Bytes;
use cheops_agent::{
    Agent,
    config::Config,
    node::{self, Clock},
    peers::{Peers, State},
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
    config
}

async fn ask(agent: &Agent, id: &str, body: String) -> (u16, Value) {
    let tcp = TokioIo::new(TcpStream::connect(agent.api()).await.unwrap());
    let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("/api/v1/resources/{id}/operations"))
        .header("host", "here")
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap();
    let answer = timeout(PATIENCE, requests.send_request(request)).await.unwrap().unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
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
        config.add_site("there".parse().unwrap(), "127.0.0.1:1".into()).unwrap();
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
        config.add_site("there".parse().unwrap(), "127.0.0.1:1".into()).unwrap();
        config.serve.accept = Duration::from_millis(800);
        config
    });
    let here = here.await.unwrap();
    let mut other = config("there", &directory);
    other.add_site("here".parse().unwrap(), here.peers().to_string()).unwrap();
    let (handle, _inbox) = node::channel(Clock::default());
    let there = Peers::bind(&other, handle).await.unwrap();
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
