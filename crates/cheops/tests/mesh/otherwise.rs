//! Otherwise and around: what is tried next when a site does not answer, and what is not.

use std::time::{Duration, Instant};

use cheops_agent::api::model::Sites;
use serde_json::json;

use crate::field::{
    application::{Service, World},
    eventually,
    http::Answer,
};

const SCOPE: &str = "image: site2; site1";

fn read(world: &World) -> Answer {
    world.image(0, "GET", "/v2/images").scope(SCOPE).send()
}

fn write(world: &World, name: &str) -> Answer {
    world.image(0, "POST", "/v2/images").scope(SCOPE).json(&json!({ "name": name })).send()
}

#[test]
fn the_first_that_works_answers_and_the_legs_are_named() {
    let mut world = World::new(2);
    let first = read(&world).expect(200);
    assert_eq!(first.site(), "site2");
    assert!(!first.header("server-timing").contains("site1"), "{}", first.header("server-timing"));

    // Nothing listens there: the request can't have arrived, so that anything may go on.
    world.stop(1, Service::Image);
    let next = read(&world).expect(200);
    assert_eq!(next.site(), "site1");
    let timing = next.header("server-timing");
    let legs = [timing.find(r#"desc="site2""#), timing.find(r#"desc="site1""#)];
    assert!(legs[0].is_some() && legs[0] < legs[1], "{timing}");
    assert_eq!(write(&world, "refused").expect(201).site(), "site1");

    // Known to be out of reach: it is not even tried.
    world.field.cut();
    let alone = read(&world).expect(200);
    assert_eq!(alone.site(), "site1");
    assert!(!alone.header("server-timing").contains("site2"), "{}", alone.header("server-timing"));
    assert_eq!(write(&world, "cut").expect(201).site(), "site1");

    // As soon as it is back, it is the first again.
    world.field.heal();
    world.start(1, Service::Image);
    world.wait_until_up(1, Service::Image);
    eventually("site2 answers again", || read(&world).site() == "site2");
}

#[test]
fn a_cut_that_nobody_has_noticed_yet_is_survived_too() {
    let world = World::new(2);
    world.field.net.cut_all();
    let start = Instant::now();
    let answer = read(&world).expect(200);
    assert_eq!(answer.site(), "site1");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn what_may_have_been_done_is_not_done_again() {
    let world = World::new(2);
    let image = world.has_image(1, "debian", "x");
    for status in [502, 503, 504] {
        let fails = json!({ "status": status });
        world.mode(1, Service::Image, &fails);
        world.forget();
        assert_eq!(read(&world).expect(200).site(), "site1", "{status}");
        let failed = write(&world, "twice");
        assert_eq!((failed.status, failed.site()), (status, "site2".to_owned()));
        assert_eq!(failed.json()["error"], "told to fail", "the answer is the application's own");
        assert_eq!(world.asked(0, Service::Image), ["GET /v2/images"]);
        assert_eq!(world.asked(1, Service::Image), ["GET /v2/images", "POST /v2/images"]);
    }
    // A body that was kept goes along; one that was too long to be kept does not.
    let named = |n: usize| world.has(n, Service::Image, "/kv/a");
    let put = |size: usize| {
        let value = json!({ "value": "x".repeat(size) });
        world.image(0, "PUT", "/kv/a").scope(SCOPE).json(&value).send()
    };
    assert_eq!(put(1_000).expect(201).site(), "site1");
    assert_eq!(named(0).expect(200).json()["value"].as_str().unwrap().len(), 1_000);
    let long = put(1_000_000);
    assert_eq!((long.status, long.site()), (504, "site2".to_owned()));
    assert_eq!(named(0).expect(200).json()["value"].as_str().unwrap().len(), 1_000);
    // Other errors are answers.
    world.mode(1, Service::Image, &json!({ "status": 500 }));
    assert_eq!(read(&world).expect(500).site(), "site2");
    world.mode(1, Service::Image, &json!({}));
    let path = format!("/v2/images/{image}");
    assert_eq!(world.image(0, "GET", &path).scope(SCOPE).send().expect(200).site(), "site2");
    assert_eq!(
        world.image(0, "GET", "/v2/images/none").scope(SCOPE).send().expect(404).site(),
        "site2"
    );
}

#[test]
fn a_site_that_hangs_is_left_for_the_next_only_by_what_may_be_repeated() {
    let world = World::new(2);
    world.mode(1, Service::Image, &json!({ "hold": true }));
    let start = Instant::now();
    assert_eq!(read(&world).expect(200).site(), "site1");
    assert!(start.elapsed() >= Duration::from_millis(1_900), "it did not wait");
    world.forget();
    let problem = write(&world, "hangs").problem(504, "no-answer");
    assert_eq!(problem["scope"], SCOPE);
    let tried = problem["tried"].as_array().unwrap();
    assert_eq!(tried.len(), 1, "{problem}");
    assert_eq!(tried[0]["site"], "site2");
    assert!(world.asked(0, Service::Image).is_empty());
    // Whoever hangs is told that nobody waits any more.
    eventually("both requests were given up", || {
        world.log(1, Service::Image).iter().all(|entry| entry["gone"] == true)
    });
}

#[test]
fn around_takes_the_nearest_that_works() {
    let mut world = World::new(3);
    let asked = |world: &World| {
        let call = world.image(1, "GET", "/v2/images").scope("image: around(site2, 10s)");
        call.send().expect(200).site()
    };
    eventually("round trips are known", || {
        let sites: Sites = world.field.sites[1].try_get("/api/v1/sites").unwrap();
        sites.sites.iter().filter(|site| site.round_trip_ms.is_some()).count() == 2
    });
    assert_eq!(asked(&world), "site2");
    world.stop(1, Service::Image);
    let next = asked(&world);
    assert!(next == "site1" || next == "site3", "{next}");
    world.stop(if next == "site1" { 0 } else { 2 }, Service::Image);
    let last = asked(&world);
    assert!(last != next && last != "site2", "{last} after {next}");
    // Nobody but the site itself is as near as that.
    let near = world.image(1, "GET", "/v2/images").scope("image: around(site2, 1ns)").send();
    near.problem(502, "no-answer");
}

#[test]
fn what_is_sent_once_and_arrives_nowhere_is_tried_elsewhere() {
    let mut world = World::new(3);
    world.stop(1, Service::Image);
    world.stop(2, Service::Image);
    let call = world.image(0, "POST", "/v2/images").scope("image: none(site2 & site3); site1");
    assert_eq!(call.json(&json!({ "name": "x" })).send().expect(201).site(), "site1");
}
