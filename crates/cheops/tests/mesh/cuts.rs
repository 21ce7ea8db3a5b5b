//! Replication of REST resources during cuts: each side goes on, and both agree when it is over.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    field::{
        application::{Service, World, text},
        eventually,
    },
    replicants::{BOTH, create, local, settled},
    sharing::sha256,
};

/// What an instance has, without what says where it is.
fn bare(mut image: Value) -> Value {
    for field in ["id", "site", "self", "file"] {
        image.as_object_mut().unwrap().remove(field);
    }
    image
}

#[track_caller]
fn same(world: &World, name: &str) -> Value {
    let [one, two] = [0, 1].map(|n| bare(local(world, n, name).unwrap()));
    assert_eq!(one, two);
    one
}

#[test]
fn both_sides_of_a_cut_write_and_agree_after_it() {
    let world = World::new(2);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let path = format!("/v2/images/{meta}");
    eventually("site2 knows it", || world.image(1, "GET", &path).send().status == 200);
    world.field.cut();
    let change = |n: usize, what: Value| {
        let start = Instant::now();
        let answer = world.image(n, "PATCH", &path).json(&what).send().expect(200);
        assert!(start.elapsed() < Duration::from_secs(5), "a cut must not hold anybody up");
        answer.json()
    };
    // Different fields: nothing is lost. The same field: one of the two, the same everywhere.
    assert_eq!(change(0, json!({ "one": 1, "shared": "site1" }))["one"], 1);
    assert_eq!(change(1, json!({ "two": 2, "shared": "site2" }))["two"], 2);
    for n in 0..3 {
        change(0, json!({ "count1": n }));
        change(1, json!({ "count2": n }));
    }
    // Each side reads its own.
    for (n, own, other) in [(0, "one", "two"), (1, "two", "one")] {
        let image = world.image(n, "GET", &path).send().expect(200).json();
        assert!(image[own].is_number() && image[other].is_null(), "{image}");
        assert_eq!(image["shared"], format!("site{}", n + 1));
        assert_eq!(image["id"], meta.as_str());
    }
    let upload = world.image(0, "PUT", &format!("{path}/file")).body("data of the cut");
    upload.send().expect(204);
    world.field.heal();
    let digest = sha256("data of the cut");
    settled(&world, &[0, 1], "debian", |image| {
        image["one"] == 1
            && image["two"] == 2
            && image["count1"] == 2
            && image["count2"] == 2
            && image["checksum"] == digest.as_str()
    });
    let shared = |n: usize| local(&world, n, "debian").unwrap()["shared"].clone();
    eventually("they agree", || shared(0) == shared(1));
    same(&world, "debian");
    // And it goes on.
    change(1, json!({ "after": true }));
    settled(&world, &[0, 1], "debian", |image| image["after"] == true);
    same(&world, "debian");
}

/// An upload that went well may be refused the second time, and may be large.
#[test]
fn what_was_agreed_on_before_a_conflict_is_not_sent_again() {
    let world = World::new(2);
    let meta = create(&world, 0, "debian");
    let path = format!("/v2/images/{meta}");
    world.image(0, "PUT", &format!("{path}/file")).body("data").send().expect(204);
    settled(&world, &[0, 1], "debian", |image| image["status"] == "active");
    eventually("site2 knows it", || world.image(1, "GET", &path).send().status == 200);
    world.field.cut();
    for n in [0, 1] {
        let value = json!({ "shared": n, format!("own{n}"): n });
        world.image(n, "PATCH", &path).json(&value).send().expect(200);
    }
    world.field.heal();
    settled(&world, &[0, 1], "debian", |image| image["own0"] == 0 && image["own1"] == 1);
    let shared = |n: usize| local(&world, n, "debian").unwrap()["shared"].clone();
    eventually("they agree", || shared(0) == shared(1));
    for (n, site) in world.field.sites.iter().enumerate() {
        let one = || site.try_get::<Value>(&format!("/api/v1/replicants/{meta}")).unwrap();
        eventually("nothing is left to do", || one()["state"] == "settled");
        let asked = world.asked(n, Service::Image);
        let count = |what: &str| asked.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!((count("POST"), count("PUT")), (1, 1), "{asked:?}");
    }
}

#[test]
fn what_is_created_during_a_cut_is_at_both_sites_after_it() {
    let world = World::new(2);
    world.field.cut();
    let made = world.image(0, "POST", "/v2/images").scope(BOTH).json(&json!({ "name": "cut" }));
    let made = made.send().expect(201);
    let meta = text(&made.json()["id"]);
    let path = format!("/v2/images/{meta}");
    let change = world.image(0, "PATCH", &path).json(&json!({ "more": 1 })).send();
    assert_eq!(change.expect(200).json()["more"], 1);
    world.image(0, "PUT", &format!("{path}/file")).body("data").send().expect(204);
    let read = world.image(0, "GET", &path).send().expect(200).json();
    assert_eq!((&read["id"], &read["checksum"]), (&json!(meta), &json!(sha256("data"))));
    assert_eq!(world.image(1, "GET", &path).send().status, 404);
    assert!(local(&world, 1, "cut").is_none());
    let pending: Value =
        world.field.sites[0].try_get(&format!("/api/v1/replicants/{meta}")).unwrap();
    assert_eq!(pending["replicas"][1]["pending"], 3, "{pending}");
    // The same name on the other side is another image.
    let other = world.image(1, "POST", "/v2/images").scope(BOTH).json(&json!({ "name": "other" }));
    let other = text(&other.send().expect(201).json()["id"]);
    assert_ne!(other, meta);
    world.field.heal();
    settled(&world, &[0, 1], "cut", |image| image["more"] == 1 && image["status"] == "active");
    settled(&world, &[0, 1], "other", |_| true);
    same(&world, "cut");
    for n in [0, 1] {
        for id in [&meta, &other] {
            let path = format!("/v2/images/{id}");
            eventually("both ids are known", || world.image(n, "GET", &path).send().status == 200);
            assert_eq!(world.image(n, "GET", &path).send().json()["id"], id.as_str());
        }
        let posts =
            world.asked(n, Service::Image).into_iter().filter(|line| line.starts_with("POST"));
        assert_eq!(posts.count(), 2, "each was created once");
    }
}

#[test]
fn a_deletion_during_a_cut_holds_on_both_sides_after_it() {
    let world = World::new(2);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let path = format!("/v2/images/{meta}");
    eventually("site2 knows it", || world.image(1, "GET", &path).send().status == 200);
    world.field.cut();
    world.image(0, "DELETE", &path).send().expect(204);
    assert_eq!(world.image(0, "GET", &path).send().status, 404);
    let change = world.image(1, "PATCH", &path).json(&json!({ "late": 1 })).send();
    assert_eq!(change.expect(200).json()["late"], 1);
    world.field.heal();
    eventually("both copies are gone", || (0..2).all(|n| local(&world, n, "debian").is_none()));
    for n in 0..2 {
        eventually("nobody knows it any more", || {
            world.image(n, "GET", &path).send().status == 404
        });
    }
}

#[test]
fn a_name_that_both_sides_set_during_a_cut_has_one_value_after_it() {
    let world = World::new(2);
    let put = |n: usize, value: &str| {
        let call = world.image(n, "PUT", "/kv/color").scope(BOTH);
        call.json(&json!({ "value": value })).send()
    };
    put(0, "red").expect(201);
    let value = |n: usize| world.has(n, Service::Image, "/kv/color").json()["value"].clone();
    eventually("both have it", || value(1) == "red");
    world.field.cut();
    put(0, "green").expect(200);
    put(1, "blue").expect(200);
    assert_eq!((value(0), value(1)), (json!("green"), json!("blue")));
    world.field.heal();
    eventually("both have the same", || value(0) == value(1));
    assert!(value(0) == "green" || value(0) == "blue", "{}", value(0));
    // A name that both sides create while they are apart, too.
    world.field.cut();
    let create = |n: usize, value: &str| {
        let call = world.image(n, "PUT", "/kv/shape").scope(BOTH);
        call.json(&json!({ "value": value })).send().expect(201)
    };
    create(0, "round");
    create(1, "square");
    world.field.heal();
    let value = |n: usize| world.has(n, Service::Image, "/kv/shape").json()["value"].clone();
    eventually("both have the same", || value(0) == value(1));
}

#[test]
fn an_agent_that_is_killed_in_between_sends_nothing_twice() {
    let mut world = World::new(2);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    // Its instance has the request in its hands when the agent goes.
    world.mode(1, Service::Image, &json!({ "delay": 1.0, "times": 1 }));
    let made = world.image(0, "POST", "/v2/images").scope(BOTH).json(&json!({ "name": "second" }));
    made.send().expect(201);
    eventually("site2's instance was asked", || {
        world.asked(1, Service::Image).iter().filter(|line| line.starts_with("POST")).count() == 2
    });
    world.field.sites[1].restart();
    world.field.wait_until_linked();
    settled(&world, &[0, 1], "second", |_| true);
    let path = format!("/v2/images/{meta}");
    let change = world.image(1, "PATCH", &path).json(&json!({ "after": 1 })).send();
    assert_eq!(change.expect(200).json()["after"], 1);
    settled(&world, &[0, 1], "debian", |image| image["after"] == 1);
    let posts = world.asked(1, Service::Image).into_iter().filter(|line| line.starts_with("POST"));
    assert_eq!(posts.count(), 2);
    // What was hidden before is hidden still.
    let list = world.image(1, "GET", "/v2/images").send().expect(200);
    assert!(list.text().contains(&meta), "{}", list.text());
}

#[test]
fn an_instance_that_is_away_catches_up_when_it_is_back() {
    let world = World::new(2);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let path = format!("/v2/images/{meta}");
    world.field.net.refuse(1, Service::Image.instance());
    let change = world.image(0, "PATCH", &path).json(&json!({ "meanwhile": 1 })).send();
    assert_eq!(change.expect(200).json()["meanwhile"], 1);
    // At its own site, a change is accepted all the same: another site has carried it out.
    let change = world.image(1, "PATCH", &path).json(&json!({ "there": 1 })).send();
    assert!(change.status < 300, "{} {}", change.status, change.text());
    settled(&world, &[0], "debian", |image| image["meanwhile"] == 1 && image["there"] == 1);
    assert!(local(&world, 1, "debian").unwrap()["meanwhile"].is_null());
    world.field.net.heal();
    settled(&world, &[1], "debian", |image| image["there"] == 1);
    settled(&world, &[0, 1], "debian", |image| image["meanwhile"] == 1);
}

#[test]
fn none_sends_once_and_forgets() {
    let world = World::new(3);
    let post = |name: &str| {
        let call = world.image(0, "POST", "/v2/images").scope("image: none(site1 & site2)");
        call.json(&json!({ "name": name })).send()
    };
    assert_eq!(post("loose").expect(201).json()["name"], "loose");
    settled(&world, &[0, 1], "loose", |_| true);
    // Nothing is known of it: each site has its own, under its own id.
    let own = [0, 1].map(|n| text(&local(&world, n, "loose").unwrap()["id"]));
    for n in [0, 1] {
        let list = world.image(n, "GET", "/v2/images").send().expect(200).json();
        assert_eq!(list["images"][0]["id"], own[n].as_str());
        assert_eq!(world.image(n, "GET", &format!("/v2/images/{}", own[1 - n])).send().status, 404);
        let all: Value = world.field.sites[n].try_get("/api/v1/replicants").unwrap();
        assert_eq!(all["replicants"], json!([]));
    }
    // A site that is away misses it for good.
    world.isolate(1);
    assert_eq!(post("missed").expect(201).json()["name"], "missed");
    world.field.heal();
    post("last").expect(201);
    settled(&world, &[0, 1], "last", |_| true);
    assert!(local(&world, 0, "missed").is_some() && local(&world, 1, "missed").is_none());
    // The default, by its name.
    let call = world.image(0, "POST", "/v2/images").scope("image: eventual(site1 & site2)");
    let meta = text(&call.json(&json!({ "name": "kept" })).send().expect(201).json()["id"]);
    settled(&world, &[0, 1], "kept", |_| true);
    eventually("it is known by its id", || {
        world.image(1, "GET", &format!("/v2/images/{meta}")).send().status == 200
    });
}
