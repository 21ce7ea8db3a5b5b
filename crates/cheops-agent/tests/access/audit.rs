//! What the audit has of requests that were let in.

use serde_json::{Value, json};

use crate::{Site, lines, post};

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_what_was_made() {
    let site = Site::strict().await;
    let operator =
        json!({ "name": "omar", "role": "operator", "resources": ["web-*"], "ttl": "2h" });
    let token = site.token(operator).await;
    let hook = json!({ "name": "news", "url": "https://hooks.example/secret" });
    let (status, body) = site.ask_as_user(post("/api/v1/hooks", &hook)).await;
    assert_eq!(status, 201, "{body}");
    let (status, body) =
        site.ask_as_user(post("/api/v1/federation/tokens", &json!({ "ttl": "5m" }))).await;
    assert_eq!(status, 201, "{body}");
    let show = json!({ "command": "echo shown", "sites": "here" });
    let (status, _) = site.with(&token, post("/api/v1/resources/web-1/show", &show)).await;
    assert_eq!(status, 200);
    let (_, kind) = site.with(&token, post("/api/v1/resources/db-1/show", &show)).await;
    assert_eq!(kind, "not-allowed");
    site.login(&token, None).await;
    let made: Vec<(Value, Value)> = lines(&site.agent, "request")
        .await
        .iter()
        .map(|line| (line["path"].clone(), line["subject"].clone()))
        .collect();
    let expected = [
        ("/api/v1/access", Some("omar: operator (resources web-*; kinds all; sites all), for 2h")),
        ("/api/v1/hooks", Some("news")),
        ("/api/v1/federation/tokens", Some("for 5m")),
        ("/api/v1/resources/web-1/show", Some("echo shown")),
        ("/api/v1/resources/db-1/show", Some("echo shown")),
        ("/api/v1/session", None),
    ];
    assert_eq!(made, expected.map(|(path, subject)| (json!(path), json!(subject))));
    let login = lines(&site.agent, "request").await.pop().unwrap();
    assert_eq!(login["author"], "omar");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_site_that_is_asked_has_a_line_of_each_who_wants_to_join() {
    let named = |name: &'static str| Site::start(move |config| config.site = name.parse().unwrap());
    let (first, second, third) = (named("a").await, named("b").await, named("c").await);
    let (status, made) = first.ask_as_user(post("/api/v1/federation/tokens", &json!({}))).await;
    assert_eq!(status, 201, "{made}");
    let join = post("/api/v1/federation/join", &json!({ "token": made["token"] }));
    assert_eq!(second.ask_as_user(join).await.0, 200);
    let join = post("/api/v1/federation/join", &json!({ "token": made["token"] }));
    assert_eq!(third.ask_as_user(join).await.0, 403);
    let lines = lines(&first.agent, "join").await;
    let [joined, refused] = &lines[..] else { panic!("{lines:?}") };
    for (line, site, status, why) in
        [(joined, "b ", 200, Value::Null), (refused, "c ", 403, json!("token-used"))]
    {
        assert!(line["subject"].as_str().unwrap().starts_with(site), "{line}");
        assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert_eq!((&line["status"], &line["why"]), (&json!(status), &why));
    }
}
