//! Reading or rehearsing a long resource does not delay operations on another.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cheops_agent::{
    Agent,
    config::Config,
    engine::{
        Engine as _, Opened as _,
        embedded::{Embedded, Options},
    },
};
use cheops_core::{
    id::{OpId, SiteId, Sites},
    operation::{Action, Declaration, HttpBody, HttpRequest, Names, Operation},
    replica::{Durable, Record, Version},
    time::{Millis, Timestamp},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// How many operations of the long resource no site has answered.
const OPERATIONS: u64 = 40_000;
/// How many operations are asked for on the other resource, without readers and with them.
const ASKED: usize = 20;
/// By how much readers may delay one: a walk over the long resource for each of its operations takes
/// several times as long.
const DELAY: Duration = Duration::from_secs(1);
/// How long any answer may take. Where reads stall the site, the test ends by this.
const ANSWER: Duration = Duration::from_secs(20);

/// An operation of a site that can't be reached. The first one runs here, and does not come to an end;
/// the others wait for it. They are requests to the same target: each might make good those before it.
fn operation(number: u64) -> Durable {
    let away: SiteId = "away".parse().unwrap();
    let first = number == 1;
    let request = HttpRequest {
        service: "image".parse().unwrap(),
        method: "PUT".into(),
        target: "/m".into(),
        headers: Box::default(),
        body: HttpBody::None,
        names: Names::Nothing,
    };
    let declaration = || Declaration {
        sites: Sites::new(["here", "away"].map(|name| name.parse().unwrap())).unwrap(),
        config: Arc::default(),
        base: Version::new(),
    };
    let parents = (!first).then(|| OpId { site: away.clone(), number: number - 1 });
    let operation = Operation {
        id: OpId { site: away.clone(), number },
        resource: "long".parse().unwrap(),
        kind: "write".parse().unwrap(),
        author: "operator".parse().unwrap(),
        at: Timestamp::at(Millis(1_700_000_000_000 + number)),
        parents: parents.into_iter().collect(),
        action: if first {
            Action::command("exec sleep 600")
        } else {
            Action::Http(Box::new(request))
        },
        reset: false,
        keep_going: false,
        key: None,
        declares: first.then(|| Box::new(declaration())),
    };
    Durable::Record(Record::Operation(Arc::new(operation)), None)
}

fn fill(store: &Path) {
    let mut engine = Embedded::open(store, Options::of("here".parse().unwrap())).unwrap();
    assert_eq!(engine.written().count(), 0);
    let records: Vec<Durable> = (1..=OPERATIONS).map(operation).collect();
    for batch in records.chunks(5_000) {
        engine.append(batch).unwrap();
    }
}

async fn ask(to: SocketAddr, head: &str, body: &str) -> String {
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut answer = Vec::new();
    let exchange = async {
        let mut tcp = TcpStream::connect(to).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        tcp.read_to_end(&mut answer).await.unwrap();
    };
    let answered = timeout(ANSWER, exchange).await;
    assert!(answered.is_ok(), "{head}: no answer within {ANSWER:?}");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Asks for operations on another resource, one after the other. How long the slowest took to be
/// accepted.
async fn slowest(to: SocketAddr) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..ASKED {
        let body = json!({ "command": "true", "sites": "here", "wait": "0s" }).to_string();
        let asked = Instant::now();
        let answer = ask(to, "POST /api/v1/resources/other/operations", &body).await;
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
        slowest = slowest.max(asked.elapsed());
    }
    slowest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_of_a_long_resource_delay_no_operation_on_another() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new("here".parse().unwrap(), directory.path());
    config.api = SocketAddr::from(([127, 0, 0, 1], 0));
    config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
    fill(&directory.path().join("store"));
    let agent = Agent::start_with(config, chephren::page).await.unwrap();
    let to = agent.api();

    let alone = slowest(to).await;
    let stop = Arc::new(AtomicBool::new(false));
    let rehearsal = r#"{ "command": "true", "dry_run": true }"#;
    let looks = [
        ("GET /api/v1/resources", "", r#""operation_count":40000"#),
        ("GET /api/v1/resources/long", "", r#""waiting":40000"#),
        ("GET /api/v1/resources/long/operations/away:7", "", r#""place":7"#),
        ("GET /api/v1/problems", "", r#""problems""#),
        ("GET /api/v1/sites", "", r#""unanswered":400"#),
        ("GET /api/v1/grid", "", r#""long""#),
        ("POST /api/v1/resources/long/operations", rehearsal, r#""before""#),
        ("GET /resources", "", "long"),
        ("GET /resources/long", "", "<title>long"),
        ("GET /problems", "", "Problems"),
    ];
    let readers: Vec<_> = looks
        .into_iter()
        .map(|(head, body, expected)| {
            let (stop, looked) = (stop.clone(), Arc::new(AtomicUsize::new(0)));
            let count = looked.clone();
            let reader = tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let answer = ask(to, head, body).await;
                    assert!(answer.starts_with("HTTP/1.1 200"), "{head}: {answer}");
                    let body = answer.split_once("\r\n\r\n").unwrap().1;
                    assert!(body.contains(expected), "{head}: {}", &body[..body.len().min(2_000)]);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            (head, looked, reader)
        })
        .collect();
    let watched = slowest(to).await;
    // Each of them has looked while operations were asked for.
    let deadline = Instant::now() + Duration::from_mins(1);
    while readers
        .iter()
        .any(|(_, looked, reader)| looked.load(Ordering::Relaxed) == 0 && !reader.is_finished())
    {
        assert!(Instant::now() < deadline, "a reader got no answer");
        slowest(to).await;
    }
    stop.store(true, Ordering::Relaxed);
    for (head, looked, reader) in readers {
        reader.await.unwrap();
        assert!(looked.load(Ordering::Relaxed) > 0, "{head} was never answered");
    }
    agent.stop().await;
    assert!(watched < alone + DELAY, "{watched:?} with readers, {alone:?} without");
}
