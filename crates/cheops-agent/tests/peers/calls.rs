//! Requests from agent to agent over the link.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Extension, Router, body::Body, routing::post};
use bytes::Bytes;
use cheops_agent::peers::{CallError, Caller};
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::Request;
use tokio::time::timeout;

use super::{
    fake::connect,
    proxy::Line,
    site::{Plan, Site, address, linked, name, pair, until},
};

/// How many calls have come that are never answered.
static NEVER: AtomicU64 = AtomicU64::new(0);

fn router() -> Router {
    let whoami = |Extension(Caller(site)): Extension<Caller>, body: String| async move {
        format!("{site} says {body}")
    };
    let echo = |body: Body| async move { body };
    let never = || async {
        NEVER.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<String>().await
    };
    Router::new()
        .route("/whoami", post(whoami))
        .route("/echo", post(echo))
        .route("/never", post(never))
}

async fn two() -> (Site, Site) {
    let [mut one, mut two] = pair();
    (one.calls, two.calls) = (router(), router());
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    (one, two)
}

fn request(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).body(body.into()).unwrap()
}

/// The first bytes of a body, in however many frames they come.
async fn beginning(body: &mut Body, length: usize) -> Vec<u8> {
    let mut begun = Vec::new();
    while begun.len() < length {
        begun.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    begun
}

#[tokio::test(flavor = "multi_thread")]
async fn each_end_can_ask_and_knows_who_asks() {
    let (one, two) = two().await;
    for (from, to) in [(&one, &two), (&two, &one)] {
        let response = from.peers.call(to.name(), request("/whoami?x=1", "hello")).await.unwrap();
        assert_eq!(response.status(), 200);
        let text = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, format!("{} says hello", from.name()));
        let response = from.peers.call(to.name(), request("/nothing", "")).await.unwrap();
        assert_eq!(response.status(), 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_pass_both_ways_without_being_kept() {
    const CHUNK: usize = 16 << 10;
    const CHUNKS: u64 = 8 << 10;
    // All windows and buffers on the way there and back.
    const MOST: u64 = 16 << 20;
    let (one, two) = two().await;
    for (from, to) in [(&one, &two), (&two, &one)] {
        let made = Arc::new(AtomicU64::new(0));
        let chunks = {
            let made = made.clone();
            stream::iter(0..CHUNKS).map(move |n| {
                made.fetch_add(CHUNK as u64, Ordering::Relaxed);
                let byte = u8::try_from(n % 251).unwrap();
                Ok::<_, std::io::Error>(Bytes::from(vec![byte; CHUNK]))
            })
        };
        let call = request("/echo", Body::from_stream(chunks));
        let mut body = from.peers.call(to.name(), call).await.unwrap().into_body();
        // Nobody reads: the body stops where the windows end. What is sent meanwhile over the same link
        // arrives; with room in the windows, more of the body would be made.
        until("the body stops", async || {
            let before = made.load(Ordering::Relaxed);
            for _ in 0..100 {
                from.peers.ping(to.name()).await.unwrap();
            }
            before > 0 && made.load(Ordering::Relaxed) == before
        })
        .await;
        assert!(made.load(Ordering::Relaxed) < MOST, "{made:?} bytes are kept");
        // Others are not disturbed by that.
        from.peers.ping(to.name()).await.unwrap();
        to.peers.call(from.name(), request("/whoami", "")).await.unwrap();
        from.peers.call(to.name(), request("/whoami", "")).await.unwrap();

        let mut read = 0;
        while let Some(piece) = body.frame().await {
            let piece = piece.unwrap().into_data().unwrap();
            for (n, byte) in piece.iter().enumerate().step_by(1_000) {
                let at = (read + n as u64) / CHUNK as u64;
                assert_eq!(u64::from(*byte), at % 251);
            }
            read += piece.len() as u64;
            assert!(made.load(Ordering::Relaxed) - read < MOST);
        }
        assert_eq!(read, CHUNKS * CHUNK as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_can_not_be_made_says_why_at_once() {
    let one = Plan::new("site1").start().await;
    let nobody = name("nobody");
    let error = one.peers.call(&nobody, request("/", "")).await.unwrap_err();
    assert_eq!(error, CallError::Unknown(nobody));

    let (one, two) = self::two().await;
    one.peers.pause(None, None).unwrap();
    let error = one.peers.call(two.name(), request("/", "")).await.unwrap_err();
    assert_eq!(error, CallError::Paused(two.name().clone()));
    until("the other end notices", || async { !two.reaches("site1") }).await;
    // A link that is just being made may end before the other end has said why.
    until("the other end knows why", || async {
        let error = two.peers.call(one.name(), request("/", "")).await.unwrap_err();
        assert!(matches!(error, CallError::NotConnected { .. }), "{error}");
        error.to_string().contains("`site1` has paused its link with `site2`")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_under_way_breaks_with_the_link() {
    for from_one in [true, false] {
        let (one, two) = two().await;
        let (from, to) = if from_one { (one, two) } else { (two, one) };
        let there = to.name().clone();
        let before = NEVER.load(Ordering::Relaxed);
        let waiting = {
            let (peers, there) = (from.peers.clone(), there.clone());
            tokio::spawn(async move { peers.call(&there, request("/never", "")).await })
        };
        // A second one, whose answer has begun.
        let open = stream::pending::<Result<Bytes, std::io::Error>>();
        let open = stream::iter([Ok(Bytes::from("begun"))]).chain(open);
        let echo = request("/echo", Body::from_stream(open));
        let mut body = from.peers.call(&there, echo).await.unwrap().into_body();
        assert_eq!(beginning(&mut body, "begun".len()).await, b"begun");
        until("the first has come", || async { NEVER.load(Ordering::Relaxed) > before }).await;
        to.stop().await;
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Broke { .. }), "{error}");
        assert!(body.frame().await.unwrap().is_err());
    }
}

/// Nothing comes from the connection any more, not even its end: only the link says that it is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_under_way_fails_when_its_link_is_declared_dead() {
    const SILENCE: Duration = Duration::from_secs(1);
    for from_one in [true, false] {
        let [mut one, mut two] = pair();
        (one.calls, two.calls) = (router(), router());
        // Only the first dials: no second connection takes the place of the first.
        let line = Line::to(two.config.peers).await;
        one.finds("site2", line.address);
        two.finds("site1", address());
        (one.config.links.silence, two.config.links.silence) = (SILENCE, SILENCE);
        let (one, two) = (one.start().await, two.start().await);
        linked(&[&one, &two]).await;
        let (from, to) = if from_one { (&one, &two) } else { (&two, &one) };
        let there = to.name().clone();

        let before = NEVER.load(Ordering::Relaxed);
        let ask = |body: Body| {
            let (peers, there) = (from.peers.clone(), there.clone());
            tokio::spawn(async move { peers.call(&there, request("/never", body)).await })
        };
        // One waits for its answer. The body of another is longer than all windows on the way.
        let piece: Arc<[u8]> = Arc::from([0; 16 << 10]);
        let endless = {
            let piece = piece.clone();
            let next = move || Ok::<_, std::io::Error>(Bytes::from_owner(piece.clone()));
            stream::repeat_with(next)
        };
        let waiting = [ask(Body::empty()), ask(Body::from_stream(endless))];
        // The answer to a third has begun.
        let open = stream::pending::<Result<Bytes, std::io::Error>>();
        let open = stream::iter([Ok(Bytes::from("begun"))]).chain(open);
        let echo = request("/echo", Body::from_stream(open));
        let mut body = from.peers.call(&there, echo).await.unwrap().into_body();
        assert_eq!(beginning(&mut body, "begun".len()).await, b"begun");
        until("the others have come", || async { NEVER.load(Ordering::Relaxed) == before + 2 })
            .await;

        line.there.hold();
        line.back.hold();
        until("the link is declared dead", || async { !from.reaches(there.as_str()) }).await;
        let dead = Instant::now();
        for call in waiting {
            let error = timeout(SILENCE, call).await.unwrap().unwrap().unwrap_err();
            assert!(matches!(error, CallError::Broke { .. }), "{error}");
            assert!(error.to_string().contains("heard nothing for 1s"), "{error}");
        }
        assert!(timeout(SILENCE, body.frame()).await.unwrap().unwrap().is_err());
        assert!(dead.elapsed() < SILENCE, "{:?}", dead.elapsed());
        // And what they took up is free again.
        until("the body is dropped", || async { Arc::strong_count(&piece) == 1 }).await;
        assert!(dead.elapsed() < SILENCE * 4, "{:?}", dead.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_fit_wait_for_their_turn() {
    let (one, two) = two().await;
    for (from, to) in [(&one, &two), (&two, &one)] {
        let calls = (0..500).map(|n| {
            let (peers, to) = (from.peers.clone(), to.name().clone());
            tokio::spawn(async move {
                let call = request("/whoami", format!("call {n}"));
                let body = peers.call(&to, call).await.unwrap().into_body();
                body.collect().await.unwrap().to_bytes()
            })
        });
        for (n, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), format!("{} says call {n}", from.name()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_greeting_is_refused() {
    let mut one = Plan::new("site1");
    one.config.links.silence = Duration::from_millis(200);
    one.calls = router();
    one.knows(&name("site2"), address());
    let one = one.start().await;
    let io = connect(&one, "site2").await;
    let (mut requests, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(io),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let call = Request::post("http://peer/whoami").body(Body::from("hello")).unwrap();
    let answer = requests.send_request(call).await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() == 403));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_measures_a_round_trip() {
    let (one, two) = two().await;
    let took = one.peers.ping(two.name()).await.unwrap();
    assert!(took > Duration::ZERO && took < Duration::from_secs(4), "{took:?}");
    two.peers.ping(one.name()).await.unwrap();
}
