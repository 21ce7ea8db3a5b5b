//! Propagation: the calls that the application makes while it serves a request go where that
//! request's scope says, by the headers that the application passes on anyhow.

use std::thread;

use serde_json::{Value, json};

use crate::field::{
    application::{Service, World, text},
    eventually,
};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OPENSTACK: &str = "req-3dccb8c4-08fe-4706-a91d-e843b8fe9ed2";
const SCOPE: &str = "compute: site1, image: site2";

#[test]
fn each_header_that_an_application_passes_on_links_its_calls() {
    let world = World::new(2);
    let image = world.has_image(1, "debian", "data of site2");
    for (name, value) in [
        ("traceparent", TRACE),
        ("tracestate", "vendor=00f067aa0ba902b7"),
        ("baggage", "user=ada,session=17"),
        ("x-request-id", "17"),
        ("x-openstack-request-id", OPENSTACK),
        ("x-auth-token", "gAAAA-secret"),
        ("authorization", "Bearer secret"),
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
    // One without a scope is none of our business.
    world.boot(0, &world.has_image(0, "debian", "x")).send().expect(202);
    let last = world.log(0, Service::Compute).pop().unwrap();
    assert!(last["headers"]["x-openstack-request-id"].is_null(), "{last}");
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
