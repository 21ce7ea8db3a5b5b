//! What is left of requests that made nothing, failed somewhere, or delete what Cheops knows in part.

use serde_json::{Value, json};

use crate::{
    field::{
        application::{Service, World, text},
        eventually,
    },
    replicants::{BOTH, create, local, settled},
};

/// What a site lists of replicants.
fn listed(world: &World, n: usize) -> Vec<Value> {
    let all: Value = world.field.sites[n].try_get("/api/v1/replicants").unwrap();
    all["replicants"].as_array().unwrap().clone()
}

/// The state of the one replicant that there is, at a site.
fn state(world: &World, n: usize) -> String {
    let [replicant] = &listed(world, n)[..] else { return "none".to_owned() };
    text(&replicant["state"])
}

/// What the problems of a resource say is to be done.
fn next_steps(world: &World, resource: &str) -> Vec<String> {
    let all: Value = world.field.sites[0].try_get("/api/v1/problems").unwrap();
    let of = all["problems"].as_array().unwrap().iter();
    let of = of.filter(|problem| problem["resource"] == resource);
    of.map(|problem| format!("{}: {}", text(&problem["what"]), text(&problem["next"]))).collect()
}

#[test]
fn a_post_that_makes_nothing_leaves_nothing() {
    let world = World::new(2);
    for n in [0, 1, 0] {
        let post = world.image(n, "POST", "/kv/pre").scope(BOTH).body("{}").send().expect(200);
        assert_eq!(post.json(), json!({ "touched": "pre" }));
    }
    for n in [0, 1] {
        eventually("nothing is left", || listed(&world, n).is_empty());
        let posts = world.asked(n, Service::Image);
        assert_eq!(posts.iter().filter(|line| line.starts_with("POST")).count(), 3, "{posts:?}");
    }
    // A site that is away carries it out when it is back, and it is forgotten then.
    world.field.cut();
    world.image(0, "POST", "/kv/pre").scope(BOTH).body("{}").send().expect(200);
    assert_eq!(listed(&world, 0).len(), 1);
    world.field.heal();
    for n in [0, 1] {
        eventually("nothing is left", || {
            let posts = world.asked(n, Service::Image);
            posts.iter().filter(|line| line.starts_with("POST")).count() == 4
                && listed(&world, n).is_empty()
        });
    }
}

#[test]
fn a_delete_reaches_what_both_sites_have_and_nobody_has_told_of() {
    let world = World::new(2);
    let has = |n: usize| world.has(n, Service::Image, "/kv/x").status == 200;
    for n in [0, 1] {
        world.image(n, "PUT", "/kv/x").json(&json!({ "value": n })).send().expect(201);
        assert!(has(n) && listed(&world, n).is_empty());
    }
    world.image(0, "DELETE", "/kv/x").scope(BOTH).send().expect(204);
    eventually("both are gone", || !has(0) && !has(1));
    for n in [0, 1] {
        eventually("and so is what was known of it", || listed(&world, n).is_empty());
    }
    // There is nothing to delete any more, and what comes later works.
    world.image(1, "DELETE", "/kv/x").scope(BOTH).send().expect(404);
    world.image(1, "PUT", "/kv/x").scope(BOTH).json(&json!({ "value": 3 })).send().expect(201);
    eventually("both have it", || has(0) && has(1));
    world.image(0, "DELETE", "/kv/x").send().expect(204);
    eventually("both are gone", || !has(0) && !has(1));
}

#[test]
fn a_failure_counts_until_it_is_made_good() {
    let world = World::new(2);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let resource = format!("image~{meta}");
    let send = |method: &str, body: &Value| {
        world.image(0, method, &format!("/v2/images/{meta}")).json(body).send()
    };
    let is = |wanted: &str| {
        for n in [0, 1] {
            eventually(wanted, || state(&world, n) == wanted);
        }
    };
    is("settled");
    world.image(0, "PATCH", &format!("/v2/images/{meta}")).body("no JSON").send().expect(400);
    is("failed");
    send("PATCH", &json!({ "tag": "x" })).expect(200);
    is("settled");
    assert_eq!(next_steps(&world, &resource), [""; 0]);
    // At one site only.
    world.mode(1, Service::Image, &json!({ "status": 500, "times": 1 }));
    send("PATCH", &json!({ "tag": "y" })).expect(200);
    is("diverged");
    let next = next_steps(&world, &resource).join(" ");
    assert!(next.contains("diverged") && next.contains("PUT of the whole document"), "{next}");
    send("PUT", &json!({ "name": "debian", "tag": "z" })).expect(200);
    is("settled");
    settled(&world, &[0, 1], "debian", |image| image["tag"] == "z");
    assert_eq!(next_steps(&world, &resource), [""; 0]);
}

#[test]
fn a_creation_that_failed_at_a_site_is_shown_with_what_to_do() {
    let world = World::new(2);
    world.mode(1, Service::Image, &json!({ "status": 503, "times": 1 }));
    let meta = create(&world, 0, "debian");
    let mut listed_there = Value::Null;
    eventually("the failure is known", || {
        listed_there = listed(&world, 0).pop().unwrap_or_default();
        listed_there["replicas"][1]["failed"] == "answered 503"
    });
    assert_eq!(listed_there["state"], "diverged");
    assert_eq!(listed_there["replicas"][0]["failed"], Value::Null);
    let cheops = env!("CARGO_BIN_EXE_cheops");
    let site = &world.field.sites[0];
    let told = site.output(cheops, &["--agent", &site.url, "get", "replicants"]);
    assert!(told.contains("site2 (failed: answered 503)"), "{told}");
    let next = next_steps(&world, &format!("image~{meta}")).join(" ");
    assert!(next.contains(&format!("DELETE /v2/images/{meta}")), "{next}");
    // That is what helps.
    world.image(0, "DELETE", &format!("/v2/images/{meta}")).send().expect(204);
    eventually("it is forgotten", || listed(&world, 0).is_empty());
    create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
}

#[test]
fn what_is_made_of_requests_is_deleted_by_a_request() {
    let world = World::new(3);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let id = format!("image~{meta}");
    // Also where nobody has a part in it.
    for n in [0, 2] {
        let site = &world.field.sites[n];
        let mut delete = site.command(env!("CARGO_BIN_EXE_cheops"));
        let refused = delete.args(["--agent", &site.url, "delete", &id]).output().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{told}");
        assert!(told.contains(&format!("DELETE /v2/images/{meta} to the service")), "{told}");
        assert!(told.contains("--force"), "{told}");
    }
    assert_eq!(listed(&world, 0).len(), 1);
    // By force it is forgotten, and nothing else.
    let site = &world.field.sites[0];
    let forced = ["--agent", &site.url, "delete", &id, "--force"];
    site.output(env!("CARGO_BIN_EXE_cheops"), &forced);
    for n in [0, 1] {
        eventually("it is forgotten", || listed(&world, n).is_empty());
        assert!(local(&world, n, "debian").is_some());
    }
}
