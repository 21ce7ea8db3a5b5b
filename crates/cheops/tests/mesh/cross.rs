//! Cross: one collection read at all sites, and one resource with a part at each.

use serde_json::{Value, json};

use crate::field::{
    application::{Service, Setup, World, text},
    eventually,
    http::Answer,
};

const ALL: &str = "image: site1 % site2 % site3";

/// What of a group divides, and how answers become one.
fn world(more: &str) -> World {
    let image = format!(
        "[service.cross]\ncounters = ['/total']\nmark = 'at'\nunique = '/name'\n{more}\n\
         [[service.divide]]\npointer = '/replicas'\ngather = 'sum'\n\
         [[service.divide]]\npointer = '/members'\ngather = 'concat'\n"
    );
    World::with(3, Setup { image, ..Setup::default() })
}

fn texts(list: &Value, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| text(&item[field])).collect()
}

/// What an instance has of the group of a name.
fn part(world: &World, n: usize, name: &str) -> Option<Value> {
    let list = world.has(n, Service::Image, &format!("/v2/groups?name={name}")).expect(200).json();
    let groups = list["groups"].as_array().unwrap();
    assert!(groups.len() <= 1, "it was created twice: {groups:?}");
    groups.first().cloned()
}

#[test]
fn a_collection_is_read_at_all_sites_as_one() {
    let world = world("");
    for n in 0..3 {
        for image in 0..=n {
            world.has_image(n, &format!("image{n}{image}"), "x");
        }
    }
    let read = |asked: usize, path: &str| world.image(asked, "GET", path).scope(ALL).send();
    for asked in 0..3 {
        let answer = read(asked, "/v2/images").expect(200);
        let list = answer.json();
        assert_eq!(
            texts(&list["images"], "name"),
            ["image00", "image10", "image11", "image20", "image21", "image22"]
        );
        assert_eq!(
            texts(&list["images"], "at"),
            ["site1", "site2", "site2", "site3", "site3", "site3"]
        );
        assert_eq!(list["total"], 6, "counters are summed");
        assert_eq!(list["first"], "/v2/images");
        for n in 1..=3 {
            assert!(answer.site().contains(&format!("site{n}")), "{}", answer.site());
        }
    }
    // Pages are followed, and the link to the next one is left out.
    let paged = read(0, "/v2/images?limit=1").expect(200).json();
    assert_eq!(paged["images"].as_array().unwrap().len(), 6, "{paged}");
    assert!(paged["next"].is_null(), "{paged}");
    assert_eq!(paged["total"], 6);
    // The order of the scope is that of the answer.
    let two = world.image(0, "GET", "/v2/images").scope("image: site3 % site1").send().expect(200);
    assert_eq!(texts(&two.json()["images"], "at"), ["site3", "site3", "site3", "site1"]);

    // A site that does not answer is named, and keeps nothing from the others.
    world.isolate(1);
    let answer = read(0, "/v2/images").expect(203);
    assert_eq!(texts(&answer.json()["images"], "at"), ["site1", "site3", "site3", "site3"]);
    assert_eq!(answer.header("x-cheops-missing"), "site2");
    world.field.heal();
    let healed = read(0, "/v2/images").expect(200);
    assert_eq!(healed.header("x-cheops-missing"), "");
    assert_eq!(healed.json()["total"], 6);
}

#[test]
fn pages_are_followed_to_their_end_or_said_to_be_missing() {
    let world = world("");
    for n in 0..3 {
        for image in 0..3 {
            world.has_image(n, &format!("image{n}{image}"), "x");
        }
    }
    let read = || world.image(0, "GET", "/v2/images?limit=1").scope(ALL);
    world.mode(1, Service::Image, &json!({ "next": "relative" }));
    let answer = read().send().expect(200);
    assert_eq!(answer.json()["images"].as_array().unwrap().len(), 9, "{}", answer.text());
    world.mode(2, Service::Image, &json!({ "next": "header" }));
    let answer = read().send().expect(200);
    assert_eq!(answer.json()["images"].as_array().unwrap().len(), 9, "{}", answer.text());
    assert_eq!(answer.header("link"), "", "it is about one site's page");
    for wrong in ["elsewhere", "same"] {
        world.mode(2, Service::Image, &json!({ "next": wrong }));
        let answer = read().send().expect(203);
        assert_eq!(answer.json()["images"].as_array().unwrap().len(), 7, "{}", answer.text());
        assert_eq!(answer.header("x-cheops-missing"), "site3", "{wrong}");
    }
    // What the client has already is not what each site has.
    world.forget();
    let old = read().header("If-Modified-Since", "x").header("If-None-Match", "*");
    old.header("Range", "bytes=0-1").send().expect(203);
    for n in 0..3 {
        for entry in world.log(n, Service::Image) {
            let has = |name: &str| !entry["headers"][name].is_null();
            assert!(!has("if-modified-since") && !has("if-none-match") && !has("range"), "{entry}");
            assert_eq!(entry["headers"]["accept-encoding"], "identity", "{entry}");
        }
    }
}

#[test]
fn a_strict_service_would_rather_have_no_answer_than_half_of_one() {
    let world = world("strict = true");
    world.has_image(0, "debian", "x");
    world.isolate(1);
    let answer = world.image(0, "GET", "/v2/images").scope(ALL).send();
    assert!(answer.status >= 502, "{} {}", answer.status, answer.text());
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert!(answer.text().contains("site2"), "{}", answer.text());
}

fn create(world: &World, asked: usize, name: &str) -> Answer {
    let members: Vec<String> = (1..=7).map(|n| format!("m{n}")).collect();
    let group = json!({ "name": name, "replicas": 10, "members": members, "kind": "web" });
    world.image(asked, "POST", "/v2/groups").scope(ALL).json(&group).send()
}

fn replicas(world: &World, name: &str) -> Vec<Value> {
    (0..3)
        .map(|n| part(world, n, name).map_or(Value::Null, |part| part["replicas"].clone()))
        .collect()
}

#[test]
fn a_creation_is_divided_and_read_changed_and_deleted_as_a_whole() {
    let world = world("");
    let made = create(&world, 0, "web").expect(201);
    let group = made.json();
    let meta = text(&group["id"]);
    assert_eq!((&group["replicas"], &group["kind"]), (&json!(10), &json!("web")), "{group}");
    assert_eq!(group["members"].as_array().unwrap().len(), 7);
    assert_eq!(made.header("location"), format!("/v2/groups/{meta}"));
    eventually("each has its part", || replicas(&world, "web") == [4, 3, 3]);
    let members: Vec<Value> =
        (0..3).map(|n| part(&world, n, "web").unwrap()["members"].clone()).collect();
    assert_eq!(members, [json!(["m1", "m4", "m7"]), json!(["m2", "m5"]), json!(["m3", "m6"])]);
    let path = format!("/v2/groups/{meta}");
    for n in 0..3 {
        assert_ne!(part(&world, n, "web").unwrap()["id"], meta.as_str());
        let mut whole = Value::Null;
        eventually("it is read as a whole", || {
            let answer = world.image(n, "GET", &path).send();
            whole = answer.json();
            answer.status == 200 && whole["replicas"] == 10
        });
        assert_eq!((&whole["id"], &whole["name"]), (&json!(meta), &json!("web")), "{whole}");
        let mut all: Vec<String> = serde_json::from_value(whole["members"].clone()).unwrap();
        all.sort();
        assert_eq!(all, ["m1", "m2", "m3", "m4", "m5", "m6", "m7"]);
    }
    // Changed as a whole: what divides is divided, what does not is the same everywhere.
    let change = json!({ "replicas": 5, "kind": "batch" });
    let changed = world.image(1, "PATCH", &path).json(&change).send().expect(200).json();
    assert_eq!((&changed["replicas"], &changed["id"]), (&json!(5), &json!(meta)), "{changed}");
    eventually("each has its new part", || replicas(&world, "web") == [2, 2, 1]);
    for n in 0..3 {
        assert_eq!(part(&world, n, "web").unwrap()["kind"], "batch");
    }
    let whole = world.image(2, "GET", &path).send().expect(200).json();
    assert_eq!((&whole["replicas"], &whole["kind"]), (&json!(5), &json!("batch")));
    world.image(2, "DELETE", &path).send().expect(204);
    eventually("all parts are gone", || (0..3).all(|n| part(&world, n, "web").is_none()));
    for n in 0..3 {
        eventually("nobody knows it", || world.image(n, "GET", &path).send().status == 404);
    }
}

#[test]
fn a_name_that_exists_is_refused_before_anything_is_created() {
    let world = world("");
    let url = world.instance(2, Service::Image, "/v2/groups");
    world
        .client
        .call("POST", &url)
        .json(&json!({ "name": "taken", "replicas": 1 }))
        .send()
        .expect(201);
    world.forget();
    let refused = create(&world, 0, "taken");
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert!(
        refused.text().contains("taken") && refused.text().contains("site3"),
        "{}",
        refused.text()
    );
    for n in 0..3 {
        assert!(world.asked(n, Service::Image).iter().all(|line| !line.starts_with("POST")));
    }
    create(&world, 0, "free").expect(201);
    // Also where it is on a later page.
    for n in 1..=3 {
        let group = json!({ "name": format!("more{n}") });
        world.client.call("POST", &url).json(&group).send().expect(201);
    }
    world.mode(2, Service::Image, &json!({ "filter": false, "page": 1 }));
    create(&world, 0, "more3").problem(409, "name-taken");
    world.mode(2, Service::Image, &json!({}));
    // The same for a path that exists.
    let at_third = world.instance(2, Service::Image, "/kv/here");
    world.client.call("PUT", &at_third).json(&json!({})).send().expect(201);
    let refused =
        world.image(0, "PUT", "/kv/here").scope(ALL).json(&json!({ "replicas": 3 })).send();
    refused.problem(409, "name-taken");
}

#[test]
fn a_part_whose_site_is_away_is_missing_and_comes_later() {
    let world = world("");
    let meta = text(&create(&world, 0, "web").expect(201).json()["id"]);
    eventually("each has its part", || replicas(&world, "web") == [4, 3, 3]);
    let path = format!("/v2/groups/{meta}");
    for n in 0..3 {
        eventually("all know the parts", || {
            let answer = world.image(n, "GET", &path).send();
            answer.status == 200 && answer.json()["replicas"] == 10
        });
    }
    world.isolate(2);
    let answer = world.image(0, "GET", &path).send().expect(203);
    assert_eq!(answer.json()["replicas"], 7, "{}", answer.text());
    assert_eq!(answer.header("x-cheops-missing"), "site3");
    // A change of its part waits for it.
    let changed = world.image(0, "PATCH", &path).json(&json!({ "replicas": 20 })).send();
    assert_eq!(changed.expect(200).json()["replicas"], 20);
    eventually("the others have theirs", || replicas(&world, "web") == [7, 7, 3]);
    world.field.heal();
    eventually("so has the third", || replicas(&world, "web") == [7, 7, 6]);
    eventually("it is whole again", || {
        let answer = world.image(2, "GET", &path).send();
        answer.header("x-cheops-missing").is_empty() && answer.json()["replicas"] == 20
    });
}

#[test]
fn what_does_not_divide_is_at_the_prime_site_and_known_at_all() {
    let world = world("");
    let made = world.image(1, "POST", "/v2/images").scope("image: site2 % site1");
    let made = made.json(&json!({ "name": "whole" })).send().expect(201).json();
    let meta = text(&made["id"]);
    let path = format!("/v2/images/{meta}");
    let count = |n: usize| world.has(n, Service::Image, "/v2/images").json()["total"].clone();
    eventually("the prime site has it", || count(1) == 1);
    for n in [0, 1] {
        let mut site = String::new();
        eventually("it is read under its id", || {
            let answer = world.image(n, "GET", &path).send();
            site = answer.site();
            answer.status == 200 && answer.json()["id"] == meta.as_str()
        });
        assert_eq!(site, "site2");
    }
    let changed = world.image(0, "PATCH", &path).json(&json!({ "tag": "x" })).send();
    assert_eq!(changed.expect(200).json()["tag"], "x");
    assert_eq!((count(0), count(1)), (json!(0), json!(1)));
    world.image(0, "DELETE", &path).send().expect(204);
    eventually("it is gone", || count(1) == 0);
}

#[test]
fn what_divides_does_so_whatever_its_type_and_its_length() {
    let world = world("");
    let pad = "x".repeat(40_000);
    let group = json!({ "name": "web", "replicas": 10, "pad": pad }).to_string();
    let call = |method: &str, path: &str| world.image(0, method, path).scope(ALL);
    // As `curl -d` sends it.
    let form = "application/x-www-form-urlencoded";
    let post = || call("POST", "/v2/groups").header("Content-Type", form);
    let made = post().body(group.clone()).send().expect(201).json();
    assert_eq!(made["replicas"], 10, "{}", made["replicas"]);
    eventually("each has its part", || replicas(&world, "web") == [4, 3, 3]);
    post().body(group).send().problem(409, "name-taken");
    let path = format!("/v2/groups/{}", text(&made["id"]));
    let change = json!({ "replicas": 7, "pad": pad }).to_string();
    let change_it = || call("PATCH", &path).header("Content-Type", form);
    assert_eq!(change_it().body(change).send().expect(200).json()["replicas"], 7);
    eventually("each has its new part", || replicas(&world, "web") == [3, 2, 2]);

    // What can't be divided is refused, and changes nothing.
    let long = json!({ "replicas": 7, "pad": "x".repeat(1 << 20) }).to_string();
    change_it().body(long).send().problem(413, "too-large");
    change_it().body("replicas=7").send().problem(415, "no-document");
    post().body("name=new").send().problem(415, "no-document");
    let operations = json!([{ "op": "replace", "path": "/replicas", "value": 9 }]).to_string();
    let json_patch = call("PATCH", &path).header("Content-Type", "application/json-patch+json");
    json_patch.body(operations).send().problem(422, "indivisible");
    assert_eq!(replicas(&world, "web"), [3, 2, 2]);
    // What lies below it may be anything.
    let action = format!("{path}/actions/start");
    call("POST", &action).header("Content-Type", form).body("a=b").send().expect(202);
}

#[test]
fn what_is_one_resource_is_one_item_of_a_list() {
    let world = world("");
    let copies = world.image(0, "POST", "/v2/groups").scope("image: site1 & site2");
    let copies = copies.json(&json!({ "name": "copies", "replicas": 5 })).send().expect(201);
    let copies = text(&copies.json()["id"]);
    let parts = world.image(0, "POST", "/v2/groups").scope("image: site1 % site2");
    let parts = parts.json(&json!({ "name": "parts", "replicas": 7, "members": ["a", "b"] }));
    let parts = text(&parts.send().expect(201).json()["id"]);
    let url = world.instance(1, Service::Image, "/v2/groups");
    world.client.call("POST", &url).json(&json!({ "name": "alone" })).send().expect(201);
    let own = |n: usize, name: &str| part(&world, n, name).is_some();
    eventually("both have both", || [0, 1].iter().all(|&n| own(n, "copies") && own(n, "parts")));
    // The third has no part in any of it.
    for asked in 0..3 {
        let read = || world.image(asked, "GET", "/v2/groups").scope("image: site1 % site2").send();
        eventually("all know what is whose", || read().json()["total"] == 3);
        let answer = read().expect(200);
        let list = answer.json();
        let item = |n: usize| {
            let item = &list["groups"][n];
            (text(&item["id"]), text(&item["name"]), text(&item["at"]), text(&item["replicas"]))
        };
        let owned =
            |of: [&str; 4]| -> (String, String, String, String) { of.map(str::to_owned).into() };
        assert_eq!(item(0), owned([&copies, "copies", "site1 & site2", "5"]), "{list}");
        assert_eq!(item(1), owned([&parts, "parts", "site1 % site2", "7"]), "{list}");
        assert_eq!(list["groups"][1]["members"], json!(["a", "b"]));
        assert_eq!((item(2).1.as_str(), item(2).2.as_str()), ("alone", "site2"));
        assert_eq!(list["groups"].as_array().unwrap().len(), 3, "{list}");
        assert_eq!(answer.header("x-cheops-items"), "groups: site1=2 site2=1");
    }
    // A list without a scope is this site's.
    let here = world.image(0, "GET", "/v2/groups").send().expect(200).json();
    assert_eq!(here["groups"][1]["replicas"], 4, "{here}");
}

#[test]
fn what_one_site_has_is_read_there_and_what_is_no_document_is_said_to_be_of_one() {
    let world = world("");
    let id = world.has_image(1, "debian", "bytes");
    let read = |method: &str, path: &str| world.image(0, method, path).scope(ALL).send();
    let found = read("GET", &format!("/v2/images/{id}")).expect(200);
    assert_eq!((text(&found.json()["name"]), found.site()), ("debian".into(), "site2".into()));
    assert_eq!(found.header("x-cheops-missing"), "");
    let file = read("GET", &format!("/v2/images/{id}/file")).expect(200);
    assert_eq!((file.text(), file.site()), ("bytes".into(), "site2".into()));
    read("GET", "/v2/images/none").expect(404);
    // Heads of several answers do not become one.
    let head = read("HEAD", "/v2/images").expect(203);
    assert_eq!(
        (head.site(), head.header("x-cheops-missing")),
        ("site1".into(), "site2, site3".into())
    );
    // Nobody knows if a site has it that does not answer.
    world.isolate(1);
    let gone = read("GET", &format!("/v2/images/{id}")).expect(404);
    assert_eq!(gone.header("x-cheops-missing"), "site2");
}
