//! Tokens: which count, what ends with them, and what happens to clients that guess them.

use std::{fs, net::SocketAddr};

use axum::body::Body;
use cheops_agent::{
    Agent,
    config::Config,
    trust::{
        kept::Kept,
        people::{Grants as _, Token, now},
    },
};
use cheops_core::{
    time::Millis,
    trust::people::{Grant, Role},
};
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::{net::TcpStream, time::timeout};

use crate::{PATIENCE, Site, bearer, get, post};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_does_not_count_says_why() {
    let site = Site::strict().await;
    assert_eq!(site.ask(get("/api/v1/sites")).await.0, 401);
    assert_eq!(site.ask(get("/readyz")).await.0, 200);
    let made = json!({ "name": "ada", "role": "viewer" });
    let token = site.token(made.clone()).await;
    let (status, refused) = site.ask_as_user(post("/api/v1/access", &made)).await;
    assert_eq!((status, &refused["type"]), (409, &json!("known-token")));
    // What is misspelt is no limit, and no token either.
    let misspelt = json!({ "name": "eve", "role": "operator", "resource": ["web-*"] });
    let (status, refused) = site.ask_as_user(post("/api/v1/access", &misspelt)).await;
    assert_eq!(status, 400, "{refused}");
    let short = site.token(json!({ "name": "bob", "role": "viewer", "ttl": "1ms" })).await;
    let unknown = Token::make().unwrap().reveal();
    let revoke = Request::delete("/api/v1/access/ada").body(Body::empty()).unwrap();
    assert_eq!(site.with(&token, get("/api/v1/sites")).await.0, 200);
    let (status, revoked) = site.ask_as_user(revoke).await;
    assert_eq!((status, &revoked["tokens"][0]["state"]), (200, &json!("revoked")));
    for (token, expected) in [
        (&*token, "revoked-token"),
        (&short, "expired-token"),
        (&unknown, "unknown-token"),
        (&unknown[..40], "bad-token"),
        ("nonsense", "bad-token"),
    ] {
        let (status, kind) = site.with(token, get("/api/v1/sites")).await;
        assert_eq!((status, kind.as_str()), (401, expected));
    }
    // Nothing of them is shown anywhere, and what is kept does not help who steals it.
    let (_, listed) = site.ask_as_user(get("/api/v1/access")).await;
    let kept = fs::read_to_string(site.directory.path().join("data/access")).unwrap();
    for text in [listed.to_string(), kept] {
        assert!(!text.contains(&token["cheops_".len()..][..16]), "{text}");
    }
    // The list is there after a start.
    let Site { agent, directory } = site;
    agent.stop().await;
    let kept = Kept::open(&directory.path().join("data"), now()).unwrap();
    assert_eq!(kept.all().len(), 2);
    assert!(kept.find(&token.parse::<Token>().unwrap().digest(), now()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_flows_to_somebody_ends_with_the_token() {
    let site = Site::strict().await;
    let token = site.token(json!({ "name": "ada", "role": "viewer" })).await;
    let tcp = TokioIo::new(TcpStream::connect(site.agent.api()).await.unwrap());
    let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
    tokio::spawn(connection);
    let mut request = bearer(get("/api/v1/changes"), &token);
    request.headers_mut().insert("host", "localhost".parse().unwrap());
    let mut feed = requests.send_request(request).await.unwrap().into_body();
    assert!(timeout(PATIENCE, feed.frame()).await.unwrap().is_some());
    let revoke = Request::delete("/api/v1/access/ada").body(Body::empty()).unwrap();
    assert_eq!(site.ask_as_user(revoke).await.0, 200);
    let over = async { while feed.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    timeout(PATIENCE, over).await.unwrap();
}

#[tokio::test]
async fn a_list_of_tokens_that_can_not_be_read_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let kept = Kept::open(&data, now()).unwrap();
    let digest = [7; 32];
    let grant = Grant {
        name: "ada".parse().unwrap(),
        digest,
        role: Role::Admin,
        issued: Millis(0),
        expires: Millis(u64::MAX),
    };
    kept.grant(grant).await.unwrap();
    let text = fs::read_to_string(data.join("access")).unwrap().replace("admin", "admim");
    fs::write(data.join("access"), text).unwrap();
    let mut config = Config::new("here".parse().unwrap(), &data);
    config.api = SocketAddr::from(([127, 0, 0, 1], 0));
    config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
    let Err(error) = Agent::start(config).await else { panic!("it started") };
    assert!(error.to_string().contains("line 1 of the list of tokens"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_tries_tokens_is_told_to_stop_and_whoever_has_one_is_not() {
    let site = Site::start(|config| {
        config.entry.tokens_required = true;
        (config.rates.rate, config.rates.burst) = (1, 5);
    })
    .await;
    let good = site.token(json!({ "name": "ada", "role": "viewer" })).await;
    let mut told = Vec::new();
    for n in 0..20 {
        let tried = if n % 2 == 0 { Token::make().unwrap().reveal() } else { "x".to_owned() };
        told.push(site.with(&tried, get("/api/v1/sites")).await.0);
    }
    assert_eq!(told[..5], [401; 5], "{told:?}");
    let refused = told.iter().filter(|status| **status == 429).count();
    assert!(refused >= 10, "{told:?}");
    assert_eq!(site.with(&good, get("/api/v1/sites")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_all_places_of_the_change_feed() {
    let site = Site::start(|config| {
        config.entry.tokens_required = true;
        config.serve.feeds = 16;
    })
    .await;
    let viewer = site.token(json!({ "name": "vera", "role": "viewer" })).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let mut held = Vec::new();
    let mut follow = async |token: &str| {
        let tcp = TokioIo::new(TcpStream::connect(site.agent.api()).await.unwrap());
        let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
        tokio::spawn(connection);
        let mut request = bearer(get("/api/v1/changes"), token);
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        let answer = timeout(PATIENCE, requests.send_request(request)).await.unwrap().unwrap();
        let status = answer.status().as_u16();
        held.push((requests, answer));
        status
    };
    for _ in 0..4 {
        assert_eq!(follow(&viewer).await, 200);
    }
    assert_eq!(follow(&viewer).await, 503);
    assert_eq!(follow(&admin).await, 200);
}
