//! Requests for resources that exist at several sites, at a site that is none of them.

use serde_json::json;

use crate::{
    field::{
        application::{Service, Setup, World, text},
        eventually,
        http::Call,
    },
    replicants::{BOTH, create, local, settled},
};

/// How many resources a site knows.
fn known(world: &World, n: usize) -> usize {
    let all: serde_json::Value = world.field.sites[n].try_get("/api/v1/replicants").unwrap();
    all["replicants"].as_array().unwrap().len()
}

#[test]
fn an_id_means_one_thing_whatever_the_scope_says_and_wherever_it_is_named() {
    let world = World::new(3);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let path = format!("/v2/images/{meta}");
    for (n, scope) in [
        BOTH,
        "image: site1",
        "image: site3; site1",
        "image: site1 % site2",
        "image: site2 & site3",
    ]
    .into_iter()
    .enumerate()
    {
        let change = world.image(2, "PATCH", &path).scope(scope).json(&json!({ "tag": n }));
        let changed = change.send().expect(200).json();
        assert_eq!((&changed["id"], &changed["tag"]), (&json!(meta), &json!(n)), "{scope}");
        settled(&world, &[0, 1], "debian", |image| image["tag"] == n);
    }
    // What is done is done once, at each.
    let act = world.image(2, "POST", &format!("{path}/actions/ring"));
    let acted = act.scope("image: none(site1 & site2)").send().expect(202).json();
    assert_eq!(acted["id"], meta.as_str());
    settled(&world, &[0, 1], "debian", |image| image["actions"] == json!(["ring"]));
    assert_eq!([0, 1, 2].map(|n| known(&world, n)), [1, 1, 0]);
    world.image(2, "DELETE", &path).scope(BOTH).send().expect(204);
    eventually("it is gone", || (0..2).all(|n| local(&world, n, "debian").is_none()));
    eventually("nobody knows it any more", || (0..2).all(|n| known(&world, n) == 0));
    // And what nobody knows any more is not made again under its name.
    let late = world.image(0, "PATCH", &path).scope(BOTH).json(&json!({ "tag": 9 })).send();
    late.problem(404, "unknown-id");
    assert_eq!(known(&world, 0), 0);
}

#[test]
fn what_is_divided_is_read_whole_from_outside() {
    let divide = "[[service.divide]]\npointer = '/replicas'\ngather = 'sum'\n".to_owned();
    let world = World::with(3, Setup { image: divide, ..Setup::default() });
    let made = world.image(0, "POST", "/v2/groups").scope("image: site1 % site3");
    let made = made.json(&json!({ "name": "web", "replicas": 9 })).send().expect(201).json();
    let path = format!("/v2/groups/{}", text(&made["id"]));
    for scope in [None, Some("image: site1 % site3")] {
        let read = world.image(1, "GET", &path);
        let read = scope.into_iter().fold(read, Call::scope);
        assert_eq!(read.send().expect(200).json()["replicas"], 9, "{scope:?}");
    }
    world.image(1, "PATCH", &path).json(&json!({ "replicas": 4 })).send().expect(200);
    assert_eq!(world.image(1, "GET", &path).send().expect(200).json()["replicas"], 4);
}

#[test]
fn what_is_read_for_another_site_is_held_against_the_policy_too() {
    let rule = "[[policy.rule]]\nname = 'not to be read'\ndecision = 'deny'\nservices = ['image']\nmethods = ['GET']\n";
    let world = World::with(3, Setup { sections: rule.to_owned(), ..Setup::default() });
    let path = format!("/v2/images/{}", create(&world, 0, "debian"));
    settled(&world, &[0, 1], "debian", |_| true);
    world.image(0, "GET", &path).send().expect(200);
    world.image(2, "GET", &path).send().problem(403, "denied");
}

#[test]
fn what_one_site_failed_to_make_is_read_from_the_other() {
    let world = World::new(3);
    world.mode(1, Service::Image, &json!({ "status": 500, "times": 1 }));
    let meta = create(&world, 0, "debian");
    let path = format!("/v2/images/{meta}");
    eventually("both have answered", || {
        let all: serde_json::Value = world.field.sites[1].try_get("/api/v1/replicants").unwrap();
        let replicas = all["replicants"][0]["replicas"].as_array().cloned().unwrap_or_default();
        replicas.len() == 2 && replicas.iter().all(|replica| replica["pending"] == 0)
    });
    for _ in 0..4 {
        assert_eq!(world.image(2, "GET", &path).send().expect(200).site(), "site1");
    }
}

#[test]
fn a_site_that_was_away_is_asked_when_the_others_are() {
    let mut world = World::new(3);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let path = format!("/v2/images/{meta}");
    let reads = |world: &World, site: &str| {
        eventually("it can be read", || {
            let read = world.image(2, "GET", &path).send();
            read.status == 200 && read.site() == site
        });
    };
    world.field.sites[1].kill();
    reads(&world, "site1");
    world.field.sites[1].start();
    world.field.sites[1].wait_until_ready();
    world.field.sites[0].kill();
    reads(&world, "site2");
}

#[test]
fn numbers_are_found_as_well() {
    let image = "[service.ids]\nmeta = 'number'\n".to_owned();
    let world = World::with(3, Setup { image, numbers: true, ..Setup::default() });
    let meta = create(&world, 0, "debian");
    assert_eq!(meta.len(), 16, "{meta}");
    let path = format!("/v2/images/{meta}");
    let read = world.image(2, "GET", &path).send().expect(200);
    assert_eq!(text(&read.json()["id"]), meta);
    world.image(2, "DELETE", &path).send().expect(204);
    eventually("it is gone", || (0..2).all(|n| local(&world, n, "debian").is_none()));
}

#[test]
fn a_path_is_not_spread_to_other_sites_by_one_that_does_not_know_it() {
    let world = World::new(3);
    let put =
        |n: usize, scope: &str| world.image(n, "PUT", "/kv/two").scope(scope).json(&json!({}));
    put(0, BOTH).send().expect(201);
    put(2, "image: site2 & site3").send().problem(409, "other-sites");
    assert_eq!(world.has(2, Service::Image, "/kv/two").status, 404);
    put(2, BOTH).send().expect(200);
}
