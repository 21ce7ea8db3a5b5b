//! Propagation: the calls that the application makes while it serves a request go where that
//! request's scope says, by the headers that the application passes on anyhow.

use std::{sync::Mutex, thread};

use serde_json::{Value, json};

use crate::field::{
    application::{Service, Setup, World, text},
    eventually,
    http::{Call, Client},
};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OPENSTACK: &str = "req-3dccb8c4-08fe-4706-a91d-e843b8fe9ed2";
const SCOPE: &str = "compute: site1, image: site2";

#[test]
fn each_header_that_an_application_passes_on_links_its_calls() {
    let world = World::new(2);
    let image = world.has_image(1, "debian", "data of site2");
    for (name, value) in [
        // These count only as long as the application has never passed on an id.
        ("tracestate", "vendor=00f067aa0ba902b7"),
        ("x-auth-token", "gAAAA-secret"),
        ("authorization", "Bearer secret"),
        ("traceparent", TRACE),
        ("baggage", "user=ada,session=17"),
        ("x-request-id", "17"),
        ("x-openstack-request-id", OPENSTACK),
    ] {
        world.mode(0, Service::Compute, &json!({ "passes": [name] }));
        let linked = world.boot(0, &image).scope(SCOPE).header(name, value).send();
        assert_eq!(linked.status, 202, "{name}: {}", linked.text());
        assert_eq!(linked.json()["image"]["site"], "site2", "{name}");
        // The application got it as it was, and the call has it still.
        let seen = world.log(0, Service::Compute).pop().unwrap();
        assert!(text(&seen["headers"][name]).starts_with(value), "{seen}");
        let called = world.log(1, Service::Image).pop().unwrap();
        let passed = text(&called["headers"][name]);
        let begins = value.len().min(8);
        assert_eq!(passed[..begins], value[..begins], "{name}");
        // Another value is another request: it has no scope.
        let other = value.replace("17", "18").replace("secret", "other").replace('0', "1");
        if name == "x-auth-token" || name == "authorization" {
            let unlinked = world.boot(0, &image).header(name, &other).send();
            assert_eq!(unlinked.status, 404, "{name}: {}", unlinked.text());
        }
    }
    // From now on a token is not enough.
    world.mode(0, Service::Compute, &json!({ "passes": ["x-auth-token"] }));
    let unlinked = world.boot(0, &image).scope(SCOPE).header("X-Auth-Token", "t").send();
    assert_eq!(unlinked.status, 404, "{}", unlinked.text());
    // An application that passes nothing on has its calls served where it is.
    world.mode(0, Service::Compute, &json!({ "passes": [] }));
    let unlinked = world.boot(0, &image).scope(SCOPE).header("X-Request-Id", "20").send();
    assert_eq!(unlinked.status, 404, "{}", unlinked.text());
    assert!(unlinked.text().contains("of site1"), "{}", unlinked.text());
}

/// `OpenStack` passes on its own request id, if it looks like one, and makes one otherwise.
#[test]
fn a_request_that_names_nothing_gets_an_id_that_openstack_passes_on() {
    let world = World::new(2);
    let image = world.has_image(1, "debian", "data of site2");
    let passes = json!({ "passes": ["x-openstack-request-id", "x-auth-token"] });
    world.mode(0, Service::Compute, &passes);
    for _ in 0..2 {
        let booted = world.boot(0, &image).scope(SCOPE).header("X-Auth-Token", "t").send();
        assert_eq!(booted.expect(202).json()["image"]["site"], "site2");
    }
    let ids: Vec<String> = world
        .log(0, Service::Compute)
        .iter()
        .map(|entry| text(&entry["headers"]["x-openstack-request-id"]))
        .collect();
    assert!(ids[0].starts_with("req-") && ids[0].len() == OPENSTACK.len(), "{ids:?}");
    assert_ne!(ids[0], ids[1]);
    // One without a scope gets one, too, and what the client has sent stays.
    let here = world.has_image(0, "debian", "x");
    let last = |boot: Call| {
        boot.send().expect(202);
        let seen = world.log(0, Service::Compute).pop().unwrap();
        text(&seen["headers"]["x-openstack-request-id"])
    };
    let given = last(world.boot(0, &here));
    assert!(given.starts_with("req-") && given.len() == OPENSTACK.len(), "{given}");
    assert_eq!(given, given.to_lowercase());
    assert!(!ids.contains(&given), "{given} {ids:?}");
    assert_eq!(last(world.boot(0, &here).header("X-OpenStack-Request-ID", OPENSTACK)), OPENSTACK);
    let sent = last(world.boot(0, &here).scope("image: site1").header("X-Request-Id", "mine"));
    assert!(sent.starts_with("req-"), "{sent}");
}

#[test]
fn two_requests_that_share_only_a_token_and_differ_in_scope_are_not_guessed_at() {
    let world = World::new(2);
    let images = [world.has_image(0, "debian", "one"), world.has_image(1, "debian", "two")];
    let token = json!({ "hold": true, "passes": ["x-auth-token"] });
    let boot = |image: usize| {
        let scope = format!("compute: site1, image: site{}", image + 1);
        let boot = world.boot(0, &images[image]).scope(&scope);
        boot.header("X-Auth-Token", "shared")
    };
    let held = |count: usize| {
        eventually("all requests are being served", || {
            world.log(0, Service::Compute).iter().filter(|e| e["method"] == "POST").count() == count
        });
    };
    // Both are in the application's hands before either makes a call.
    world.mode(0, Service::Compute, &token);
    let answers = thread::scope(|threads| {
        let both = [0, 1].map(|n| threads.spawn(move || boot(n).send()));
        held(2);
        world.mode(0, Service::Compute, &json!({ "passes": ["x-auth-token"] }));
        both.map(|thread| thread.join().unwrap())
    });
    // The one that is asked last may find itself alone; the first can't.
    let refused: Vec<&str> = answers
        .iter()
        .filter(|answer| answer.status == 409)
        .map(|answer| answer.header("content-type"))
        .map(|kind| if kind == "application/json" { "by the application" } else { "by the agent" })
        .collect();
    assert!(!refused.is_empty(), "{answers:?}");
    for (n, answer) in answers.iter().enumerate() {
        match answer.status {
            409 => {
                let told = answer.text();
                assert!(told.contains("several-scopes") && told.contains("x-auth-token"), "{told}");
            }
            202 => assert_eq!(answer.json()["image"]["site"], format!("site{}", n + 1)),
            status => panic!("{status} {}", answer.text()),
        }
    }

    // What tells them apart decides.
    world.forget();
    let exact: Value = json!({ "hold": true, "passes": ["x-auth-token", "x-request-id"] });
    world.mode(0, Service::Compute, &exact);
    let answers = thread::scope(|threads| {
        let both = [0, 1].map(|n| {
            let boot = boot(n).header("X-Request-Id", &format!("boot-{n}"));
            threads.spawn(move || boot.send())
        });
        held(2);
        world.mode(0, Service::Compute, &json!({ "passes": ["x-auth-token", "x-request-id"] }));
        both.map(|thread| thread.join().unwrap())
    });
    for (n, answer) in answers.into_iter().enumerate() {
        let server = answer.expect(202).json();
        assert_eq!(server["image"]["site"], format!("site{}", n + 1), "{server}");
    }

    // A token stands for a scope only while a request with it is served.
    let after = world.boot(0, &images[0]).header("X-Auth-Token", "shared").send().expect(202);
    assert_eq!(after.json()["image"]["site"], "site1");
}

/// Requests with and without a scope, at the same time and with one token, through an application that
/// passes ids on as OpenStack does and makes calls before and after it answers.
#[test]
fn of_a_thousand_mixed_requests_no_call_is_misrouted_or_rejected() {
    const CLIENTS: usize = 20;
    const EACH: usize = 50;
    let world = World::with(2, Setup { answer: "30s", ..Setup::default() });
    let images = [0, 1].map(|n| world.has_image(n, "debian", "x"));
    let passes = json!({ "passes": ["x-openstack-request-id", "x-auth-token"] });
    for n in [0, 1] {
        world.mode(n, Service::Compute, &passes);
    }
    let wrong = Mutex::new(Vec::new());
    thread::scope(|threads| {
        for client in 0..CLIENTS {
            let (world, images, wrong) = (&world, &images, &wrong);
            threads.spawn(move || {
                let http = Client::new();
                for n in 0..EACH {
                    // Where it is asked, its scope, and where its calls have to go.
                    let (asked, scope, expected) = match (client + n) % 5 {
                        0 | 1 => (0, None, 0),
                        2 => (0, Some(SCOPE), 1),
                        3 => (1, Some("compute: site1, image: site2"), 1),
                        _ => (1, None, 1),
                    };
                    let wanted = json!({
                        "name": format!("site{}", expected + 1),
                        "image": images[expected],
                        "late": fastrand::f64() / 2.0,
                    });
                    let url = world.url(asked, Service::Compute, "/servers");
                    let mut call = http.call("POST", &url).json(&wanted);
                    call = call.header("X-Auth-Token", "everybody's");
                    if let Some(scope) = scope {
                        call = call.scope(scope);
                    }
                    if n % 3 == 0 {
                        // Some clients bring an id of their own.
                        let id = format!("req-3dccb8c4-08fe-4706-a91d-{client:06x}{n:06x}");
                        call = call.header("X-OpenStack-Request-ID", &id);
                    }
                    let answer = call.send();
                    if answer.status != 202 {
                        wrong.lock().unwrap().push(format!("{} {}", answer.status, answer.text()));
                    }
                }
            });
        }
    });
    let servers = || -> Vec<Value> {
        let of = |n| world.has(n, Service::Compute, "/servers").json()["servers"].take();
        [0, 1].map(of).iter().flat_map(|of| of.as_array().unwrap().clone()).collect()
    };
    eventually("all late calls were made", || {
        servers().iter().all(|server| server["late"].is_string())
    });
    let servers = servers();
    let mut wrong = wrong.into_inner().unwrap();
    for server in &servers {
        if server["image"]["site"] != server["name"] || server["late"] != server["name"] {
            wrong.push(server.to_string());
        }
    }
    let first: Vec<&String> = wrong.iter().take(5).collect();
    assert!(wrong.is_empty(), "{} went wrong: {first:#?}", wrong.len());
    assert_eq!(servers.len(), CLIENTS * EACH);
}

/// Such an application has only a token to tell requests by. What it says is taken only if no request
/// without a scope may have made the call.
#[test]
fn a_token_of_a_request_without_a_scope_leads_nowhere_else() {
    let world = World::with(2, Setup { answer: "30s", ..Setup::default() });
    let images = [0, 1].map(|n| world.has_image(n, "debian", "x"));
    let hold = |times: usize| {
        let mode = json!({ "hold": true, "times": times, "passes": ["x-auth-token"] });
        world.mode(0, Service::Compute, &mode);
    };
    let arrived = |count: usize| {
        eventually("it is being served", || world.log(0, Service::Compute).len() == count);
    };
    let scoped = |token: &str| world.boot(0, &images[1]).scope(SCOPE).header("X-Auth-Token", token);
    let unscoped = |token: &str| world.boot(0, &images[0]).header("X-Auth-Token", token);

    hold(0);
    let alone = scoped("a").send().expect(202).json();
    assert_eq!(alone["image"]["site"], "site2");

    // Both are being served: the calls of neither leave the site.
    world.forget();
    hold(2);
    let answers = thread::scope(|threads| {
        let both = [scoped("b"), unscoped("b")].map(|call| threads.spawn(move || call.send()));
        arrived(2);
        hold(0);
        both.map(|thread| thread.join().unwrap())
    });
    let [lost, served] = answers;
    assert_eq!(served.expect(202).json()["image"]["site"], "site1");
    assert!(lost.status == 404 && lost.text().contains("of site1"), "{}", lost.text());

    // The one without a scope was answered, and makes its call while the other is being served.
    world.forget();
    let wanted = json!({ "name": "late", "image": images[0], "late": 0, "late_at": 2 });
    let late = world.compute(0, "POST", "/servers").header("X-Auth-Token", "c").json(&wanted);
    late.send().expect(202);
    hold(1);
    thread::scope(|threads| {
        let other = threads.spawn(|| scoped("c").send());
        arrived(2);
        let mut called = Value::Null;
        eventually("the late call was made", || {
            let servers = world.has(0, Service::Compute, "/servers").json();
            let servers = servers["servers"].as_array().unwrap();
            called = servers.iter().map(|one| one["late"].clone()).find(Value::is_string).into();
            called.is_string()
        });
        assert_eq!(called, "site1");
        hold(0);
        assert_eq!(other.join().unwrap().status, 404);
    });
}

#[test]
fn calls_for_a_replicated_request_have_its_scope_at_each_site() {
    let world = World::new(3);
    let image = world.has_image(1, "debian", "data of site2");
    world.forget();
    let booted = world.boot(0, &image).scope("compute: site1 & site3, image: site2").send();
    assert_eq!(booted.expect(202).json()["image"]["site"], "site2");
    eventually("both sites have booted it", || {
        [0, 2].iter().all(|&n| {
            let log = world.log(n, Service::Compute);
            log.iter().any(|entry| entry["method"] == "POST" && entry["done"] == true)
        })
    });
    let called = world.asked(1, Service::Image);
    assert!(called.len() >= 2 && called.iter().all(|call| call.contains(&image)), "{called:?}");
    for n in [0, 2] {
        assert!(world.asked(n, Service::Image).is_empty(), "site{} was asked", n + 1);
        let servers = world.has(n, Service::Compute, "/servers").expect(200).text();
        assert!(servers.contains("site2"), "{servers}");
    }
}
