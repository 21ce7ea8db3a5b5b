//! What each role may do, here and at the site that a request is passed on to.

use std::{fs, net::SocketAddr, process::Command, time::Duration};

use axum::body::Body;
use cheops_agent::{Agent, config::Config, trust::Identity};
use hyper::Request;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{PATIENCE, Site, author, bearer, get, operation, post, send};

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_what_it_is_for_and_nothing_else() {
    let site = Site::strict().await;
    let viewer = site.token(json!({ "name": "vera", "role": "viewer" })).await;
    let reach = json!({ "name": "omar", "role": "operator", "resources": ["web-*"], "kinds": ["set", "delete"] });
    let operator = site.token(reach).await;
    let elsewhere = json!({ "name": "olga", "role": "operator", "sites": ["there"] });
    let elsewhere = site.token(elsewhere).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let hook = json!({ "name": "h", "url": "https://hooks.example/" });
    let show = |command: Value| post("/api/v1/resources/web-1/show", &command);
    let delete = |id: &str| {
        Request::delete(format!("/api/v1/resources/{id}?author=eve&wait=0s"))
            .body(Body::empty())
            .unwrap()
    };
    for (token, request, expected) in [
        (&viewer, get("/api/v1/sites"), (200, "")),
        (&viewer, get("/metrics"), (200, "")),
        (&viewer, operation("web-1", "set", "here"), (403, "not-allowed")),
        (&viewer, post("/api/v1/files", &json!({})), (403, "not-allowed")),
        (&viewer, delete("web-1"), (403, "not-allowed")),
        (&viewer, post("/api/v1/sites/here/pause", &json!({})), (403, "not-allowed")),
        (&viewer, post("/api/v1/access", &json!({})), (403, "not-allowed")),
        (&viewer, get("/api/v1/access"), (403, "not-allowed")),
        (&viewer, get("/nothing"), (404, "unknown-path")),
        (&operator, operation("web-1", "set", "here"), (202, "")),
        (&operator, operation("db-1", "set", "here"), (403, "not-allowed")),
        (&operator, operation("web-1", "inc", "here"), (403, "not-allowed")),
        (&operator, post("/api/v1/hooks", &hook), (403, "not-allowed")),
        (&operator, post("/api/v1/sites/here/pause", &json!({})), (403, "not-allowed")),
        // A command of one's own is an operation of the kind `show`; the resource's own is not.
        (&operator, show(json!({ "command": "id" })), (403, "not-allowed")),
        (&operator, show(json!({})), (400, "no-command")),
        (&viewer, show(json!({})), (400, "no-command")),
        (&viewer, show(json!({ "command": "id" })), (403, "not-allowed")),
        // It is named in the request, or known of the resource.
        (&elsewhere, operation("other", "set", "here"), (403, "not-allowed")),
        (&elsewhere, delete("web-1"), (403, "not-allowed")),
        (&operator, delete("web-1"), (202, "")),
        (&admin, operation("db-1", "inc", "here"), (202, "")),
        (&admin, post("/api/v1/hooks", &hook), (201, "")),
        (&admin, get("/api/v1/access"), (200, "")),
    ] {
        let what = format!("{} {}", request.method(), request.uri());
        let (status, kind) = site.with(token, request).await;
        assert_eq!((status, kind.as_str()), expected, "{what}");
        assert!(site.serves_others().await);
    }
    assert_eq!(author(&site, "db-1").await, "ada");
}

/// A request for an operation of the kind `set` that brings a configuration.
fn configured(id: &str, sites: Option<&str>, config: &Value) -> Request<Body> {
    let body =
        json!({ "command": "true", "kind": "set", "sites": sites, "config": config, "wait": "0s" });
    post(&format!("/api/v1/resources/{id}/operations"), &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_some_kinds_can_not_set_commands_of_a_resource() {
    let site = Site::strict().await;
    let of_kinds =
        |name: &str, kinds: &[&str]| json!({ "name": name, "role": "operator", "kinds": kinds });
    let limited = site.token(of_kinds("omar", &["set", "delete"])).await;
    let all = site.token(of_kinds("olga", &["*"])).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    let show = json!({ "Show": "cat /etc/shadow" });
    let matrix = json!([{ "Before": "set", "After": "set", "Result": "take-one" }]);
    for (token, id, sites, config, expected) in [
        (&limited, "new", Some("here"), show.clone(), 403),
        (&limited, "new", Some("here"), json!({ "Reset": "rm -rf /" }), 403),
        (
            &limited,
            "new",
            Some("here"),
            json!({ "Check": "true", "ResolutionMatrix": matrix }),
            403,
        ),
        (&limited, "new", Some("here"), json!({ "ResolutionMatrix": matrix }), 202),
        (&limited, "new", None, show.clone(), 403),
        (&limited, "new", None, json!({ "Timeout": "3s" }), 202),
        (&all, "new", None, show.clone(), 202),
        (&admin, "old", Some("here"), show.clone(), 202),
        // What is there may stay. It may be neither changed nor removed.
        (&limited, "old", None, json!({ "Show": "cat /etc/shadow", "Timeout": "3s" }), 202),
        (&limited, "old", None, json!({ "Show": "cat /etc/passwd" }), 403),
        (&limited, "old", None, json!({ "Timeout": "3s" }), 403),
        // An empty configuration changes nothing.
        (&limited, "old", None, json!({}), 202),
        (&admin, "old", None, json!({ "Timeout": "3s" }), 202),
    ] {
        let (status, _, body) = site.ask(bearer(configured(id, sites, &config), token)).await;
        assert_eq!(status, expected, "{id} {config}: {body}");
        if expected == 403 {
            assert_eq!(body["type"], "not-allowed", "{body}");
            let detail = body["detail"].as_str().unwrap();
            assert!(detail.contains("of the kinds set, delete"), "{detail}");
        }
    }
    // The same for a rehearsal, and for the API of the original program.
    let mut rehearsal =
        json!({ "command": "true", "kind": "set", "config": show, "dry_run": true });
    rehearsal["sites"] = "here".into();
    let rehearsal = post("/api/v1/resources/third/operations", &rehearsal);
    assert_eq!(site.with(&limited, rehearsal).await, (403, "not-allowed".to_owned()));
    let part = |name: &str, value: &str| {
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let parts =
        [("command", "true"), ("sites", "here"), ("type", "set"), ("config", &show.to_string())];
    let form: String = parts.iter().map(|(name, value)| part(name, value)).collect();
    let exec =
        Request::post("/exec/third").header("content-type", "multipart/form-data; boundary=x");
    let exec = exec.body(Body::from(form + "--x--\r\n")).unwrap();
    assert_eq!(site.with(&limited, exec).await, (403, "not-allowed".to_owned()));
    let (status, _) = site.ask_as_user(get("/api/v1/resources/third")).await;
    assert_eq!(status, 404);
}

/// Both ask at the same time. Whichever comes first, the commands of the other one stay.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_some_kinds_can_not_outrun_the_commands_of_another() {
    let site = Site::strict().await;
    let reach = json!({ "name": "omar", "role": "operator", "kinds": ["set"] });
    let limited = site.token(reach).await;
    let admin = site.token(json!({ "name": "ada", "role": "admin" })).await;
    for round in 0..50 {
        let id = format!("r{round}");
        let ask = |config: Value, token: &str| {
            site.ask(bearer(configured(&id, Some("here"), &config), token))
        };
        let ((status, _, body), (of_admin, ..), _) = tokio::join!(
            ask(json!({ "Timeout": "3s" }), &limited),
            ask(json!({ "Show": "id" }), &admin),
            ask(json!({ "Timeout": "3s" }), &limited),
        );
        assert!(of_admin == 202 && (status == 202 || status == 403), "{of_admin} {status} {body}");
        let (_, resource) = site.ask_as_user(get(&format!("/api/v1/resources/{id}"))).await;
        assert_eq!(resource["config"]["Show"], "id", "round {round}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_author_is_what_the_door_found_out() {
    let site = Site::start(|_| {}).await;
    let operator = site.token(json!({ "name": "omar", "role": "operator" })).await;
    assert_eq!(site.with(&operator, operation("by-token", "set", "here")).await.0, 202);
    assert_eq!(site.ask(operation("by-loopback", "set", "here")).await.0, 202);
    assert_eq!(site.ask_as_user(operation("by-socket", "set", "here")).await.0, 202);
    // Only another site may say for which user it asks.
    let mut forged = operation("forged", "set", "here");
    let told = "eyJhdXRob3IiOiJyb290Iiwicm9sZSI6ImFkbWluIn0=".parse().unwrap();
    forged.headers_mut().insert("x-cheops-asked-by", told);
    assert_eq!(site.ask(forged).await.0, 202);
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    for (id, expected) in [
        ("by-token", "omar".to_owned()),
        ("by-loopback", "local:eve".to_owned()),
        ("by-socket", format!("unix:{}", user.trim())),
        ("forged", "local:eve".to_owned()),
    ] {
        assert_eq!(author(&site, id).await, expected);
    }
}

/// Two agents that know each other and are linked.
async fn linked(directory: &tempfile::TempDir) -> [Agent; 2] {
    let data = |site: &str| {
        let data = directory.path().join(site);
        fs::create_dir_all(&data).unwrap();
        data
    };
    let config = |site: &str, other: &str, address: String| {
        let mut config = Config::new(site.parse().unwrap(), data(site));
        config.api = SocketAddr::from(([127, 0, 0, 1], 0));
        config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
        let key = Identity::open(&data(other)).unwrap().public();
        config.add_site(other.parse().unwrap(), address, key).unwrap();
        config
    };
    let a = Agent::start(config("a", "b", "127.0.0.1:1".to_owned())).await.unwrap();
    let b = Agent::start(config("b", "a", a.peers().to_string())).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    for agent in [&a, &b] {
        loop {
            let tcp = TcpStream::connect(agent.api()).await.unwrap();
            let (_, _, sites) = send(tcp, get("/api/v1/sites")).await;
            if sites.to_string().contains("\"reachable\"") {
                break;
            }
            assert!(Instant::now() < deadline, "no link");
            sleep(Duration::from_millis(10)).await;
        }
    }
    [a, b]
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asked_is_the_author_at_the_site_that_it_is_passed_on_to_and_may_no_more_there() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = linked(&directory).await;
    let [a, b] = [a, b].map(|agent| Site { agent, directory: tempfile::tempdir().unwrap() });
    let on_b = json!({ "name": "omar", "role": "operator", "sites": ["b"] });
    let on_b = a.token(on_b).await;
    let on_a = a.token(json!({ "name": "olga", "role": "operator", "sites": ["a"] })).await;
    assert_eq!(a.with(&on_b, operation("x", "set", "b")).await.0, 202);
    assert_eq!(author(&b, "x").await, "omar");
    // The site that is asked first does not know where the resource is; the other does.
    let again = || {
        let body = json!({ "command": "true", "kind": "set", "wait": "0s" });
        post("/api/v1/resources/x/operations", &body)
    };
    assert_eq!(a.with(&on_b, again()).await.0, 202);
    let (status, kind) = a.with(&on_a, again()).await;
    assert_eq!((status, kind.as_str()), (403, "not-allowed"));
    // An operator held to kinds may not set commands at the other site either.
    let of_kind = a.token(json!({ "name": "kim", "role": "operator", "kinds": ["set"] })).await;
    for (config, status) in [(json!({ "Show": "id" }), 403), (json!({ "Timeout": "3s" }), 202)] {
        assert_eq!(a.with(&of_kind, configured("x", None, &config)).await.0, status, "{config}");
    }
    let admin = a.token(json!({ "name": "ada", "role": "admin" })).await;
    assert_eq!(a.with(&admin, configured("x", None, &json!({ "Show": "id" }))).await.0, 202);
    let (status, kind) = a.with(&of_kind, configured("x", None, &json!({ "Timeout": "4s" }))).await;
    assert_eq!(
        (status, kind.as_str()),
        (403, "not-allowed"),
        "only the other site knows of `Show`"
    );
    let show = || post("/api/v1/resources/x/show", &json!({ "command": "echo hello" }));
    let (status, kind) = a.with(&on_a, show()).await;
    assert_eq!((status, kind.as_str()), (403, "not-allowed"));
    assert_eq!(a.with(&on_b, show()).await.0, 200);
}

/// The commands of a resource that a site knows, or nothing if it does not know it.
async fn commands(site: &Site, id: &str) -> Option<Value> {
    let (status, resource) = site.ask_as_user(get(&format!("/api/v1/resources/{id}"))).await;
    let field = |name: &str| resource["config"][name].clone();
    (status == 200).then(|| json!([field("Show"), field("Reset"), field("Check")]))
}

/// Waits until both sites know a resource with these commands.
async fn agree_on(sites: [&Site; 2], id: &str, expected: &Value) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let [a, b] = [commands(sites[0], id).await, commands(sites[1], id).await];
        if a.as_ref() == Some(expected) && b.as_ref() == Some(expected) {
            return;
        }
        assert!(Instant::now() < deadline, "{id}: {a:?} and {b:?}, and not {expected}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// On the other side of a cut, a resource may have commands that are not known here: the later
/// configuration counts at both sites, and would remove them.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_some_kinds_can_not_remove_commands_across_a_cut() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b] = linked(&directory).await;
    let [a, b] = [a, b].map(|agent| Site { agent, directory: tempfile::tempdir().unwrap() });
    let limited = a.token(json!({ "name": "kim", "role": "operator", "kinds": ["set"] })).await;
    let matrix =
        json!({ "ResolutionMatrix": [{ "Before": "set", "After": "set", "Result": "take-one" }] });
    let all = json!({ "Show": "id", "Reset": "true", "Check": "false" });
    let expected = json!(["id", "true", "false"]);
    // While the sites are linked, what the other one knows is asked for.
    let both = Some("a & b");
    assert_eq!(a.with(&limited, configured("free", both, &matrix)).await.0, 202);
    assert_eq!(b.ask_as_user(configured("known", both, &json!({ "Timeout": "3s" }))).await.0, 202);
    let nothing = json!([null, null, null]);
    agree_on([&a, &b], "known", &nothing).await;

    let (status, _) = a.ask_as_user(post("/api/v1/sites/b/pause", &json!({}))).await;
    assert_eq!(status, 204);
    wait_until_apart(&b).await;
    for id in ["known", "unknown"] {
        let (status, body) = b.ask_as_user(configured(id, both, &all)).await;
        assert_eq!(status, 202, "{body}");
        let (status, _, body) = a.ask(bearer(configured(id, both, &matrix), &limited)).await;
        assert_eq!((status, &body["type"]), (502, &json!("unreachable")), "{id}: {body}");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains("`Reset`") && detail.contains('b'), "{detail}");
        // Without a configuration, nothing is taken away.
        let (status, _) = a.with(&limited, configured(id, both, &json!({}))).await;
        assert_eq!(status, 202);
    }
    let (status, _) = a.ask_as_user(post("/api/v1/sites/b/resume", &json!({}))).await;
    assert_eq!(status, 204);
    for id in ["known", "unknown"] {
        agree_on([&a, &b], id, &expected).await;
    }
}

/// Waits until a site can't reach the other one.
async fn wait_until_apart(site: &Site) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, sites) = site.ask_as_user(get("/api/v1/sites")).await;
        if !sites.to_string().contains("\"reachable\"") {
            return;
        }
        assert!(Instant::now() < deadline, "still linked: {sites}");
        sleep(Duration::from_millis(10)).await;
    }
}
