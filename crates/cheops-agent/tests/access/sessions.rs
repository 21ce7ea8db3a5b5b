//! Sessions of the page: logging in, and what ends a session.

use axum::body::Body;
use cheops_agent::trust::people::Token;
use http_body_util::BodyExt as _;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;

use crate::{Site, get, post};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_can_be_neither_fixed_nor_forged_and_ends_with_its_token() {
    let site = Site::strict().await;
    let token = site.token(json!({ "name": "ada", "role": "admin" })).await;
    // An attacker has put a cookie of its own into the browser before.
    let (name, _) = site
        .login(&token, None)
        .await
        .0
        .split_once('=')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let fixed = format!("{name}={}", Token::make().unwrap().reveal());
    let (cookie, set) = site.login(&token, Some(&fixed)).await;
    assert_ne!(cookie, fixed);
    for flag in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(flag), "{set}");
    }
    assert!(!set.contains("Secure"), "{set}");
    let with = |mut request: Request<Body>, cookie: &str, more: &[(&'static str, &str)]| {
        request.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
        for (name, value) in more {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        request
    };
    assert_eq!(site.ask(with(get("/api/v1/sites"), &fixed, &[])).await.0, 401);
    assert_eq!(site.ask(with(get("/api/v1/sites"), &cookie, &[])).await.0, 200);
    let (_, _, who) = site.ask(with(get("/api/v1/session"), &cookie, &[])).await;
    assert_eq!((&who["author"], &who["by"]), (&json!("ada"), &json!("session")));
    // What a page of somebody else can have the browser send, with the cookie.
    let pause = || post("/api/v1/sites/here/pause", &json!({}));
    let own = format!("http://localhost:{}", site.agent.api().port());
    for (more, expected) in [
        (&[][..], 403),
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("sec-fetch-site", "same-site")], 403),
        (&[("sec-fetch-site", "none")], 403),
        (&[("origin", "https://evil.example")], 403),
        (&[("origin", "null")], 403),
        (&[("origin", own.as_str())], 403),
        (&[("sec-fetch-site", "same-origin")], 204),
        (&[("origin", "http://localhost")], 204),
    ] {
        let (status, _, body) = site.ask(with(pause(), &cookie, more)).await;
        assert_eq!(status, expected, "{more:?}: {body}");
    }
    // Another login ends the session before it; a logout ends the one that it comes from.
    let (second, _) = site.login(&token, Some(&cookie)).await;
    assert_eq!(site.ask(with(get("/api/v1/sites"), &cookie, &[])).await.0, 401);
    let logout = Request::delete("/api/v1/session").body(Body::empty()).unwrap();
    let same = [("sec-fetch-site", "same-origin")];
    assert_eq!(site.ask(with(logout, &second, &same)).await.0, 204);
    assert_eq!(site.ask(with(get("/api/v1/sites"), &second, &[])).await.0, 401);
    let (third, _) = site.login(&token, None).await;
    let revoke = Request::delete("/api/v1/access/ada").body(Body::empty()).unwrap();
    assert_eq!(site.ask_as_user(revoke).await.0, 200);
    assert_eq!(site.ask(with(get("/api/v1/sites"), &third, &[])).await.0, 401);
    let (status, kind) =
        site.with(&token, post("/api/v1/session", &json!({ "token": token }))).await;
    assert_eq!((status, kind.as_str()), (401, "revoked-token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_logs_in_again_and_again_ends_nobody_elses_session_and_does_not_fill_the_audit() {
    const LOGINS: usize = 1_200;
    let site = Site::strict().await;
    let viewer = site.token(json!({ "name": "vera", "role": "viewer" })).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let (cookie, _) = site.login(&admin, None).await;
    let tcp = TokioIo::new(TcpStream::connect(site.agent.api()).await.unwrap());
    let (mut requests, connection) = hyper::client::conn::http1::handshake(tcp).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..LOGINS {
        let mut request = post("/api/v1/session", &json!({ "token": viewer }));
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        requests.ready().await.unwrap();
        let answer = requests.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 204);
        answer.into_body().collect().await.unwrap();
    }
    let mut who = get("/api/v1/session");
    who.headers_mut().insert(header::COOKIE, cookie.parse().unwrap());
    assert_eq!(site.ask(who).await.2["author"], "ada");
    let (_, page) = site.ask_as_user(get("/api/v1/audit?limit=1000")).await;
    let (_, older) = site.ask_as_user(get("/api/v1/audit?after=0&limit=1000")).await;
    // What was done besides is still there.
    assert!(older.to_string().contains("vera: viewer"), "{older}");
    let last = page["entries"].as_array().unwrap().last().unwrap()["n"].as_u64().unwrap();
    assert!((1_000..LOGINS as u64).contains(&last), "{last}");
}
