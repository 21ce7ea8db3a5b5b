//! Replication of REST resources: one resource at several sites, under one id that Cheops has made.

use serde_json::{Value, json};

use crate::{
    field::{
        application::{Service, Setup, World, text},
        eventually,
        http::Answer,
    },
    sharing::sha256,
};

pub(crate) const BOTH: &str = "image: site1 & site2";

/// Creates an image at two sites, asked of one. Gives the id that Cheops has made.
pub(crate) fn create(world: &World, asked: usize, name: &str) -> String {
    let made = world.image(asked, "POST", "/v2/images").scope(BOTH);
    let made = made.json(&json!({ "name": name })).send().expect(201);
    text(&made.json()["id"])
}

/// What an instance calls the one image that it has of a name.
pub(crate) fn local(world: &World, n: usize, name: &str) -> Option<Value> {
    let path = format!("/v2/images?name={name}");
    let list = world.has(n, Service::Image, &path).expect(200).json();
    let images = list["images"].as_array().unwrap();
    assert!(images.len() <= 1, "it was created twice: {images:?}");
    images.first().cloned()
}

/// Waits until these instances have an image of a name that is as it should be.
pub(crate) fn settled(world: &World, sites: &[usize], name: &str, is: impl Fn(&Value) -> bool) {
    for &n in sites {
        let mut last = None;
        let what = format!("`{name}` is as it should be at site{}", n + 1);
        let start = std::time::Instant::now();
        while !last.as_ref().is_some_and(&is) {
            assert!(start.elapsed() < crate::field::SOON, "{what}: {last:?}");
            last = local(world, n, name);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_creation_at_two_sites_is_one_resource_with_one_id() {
    let world = World::new(3);
    let made = world.image(0, "POST", "/v2/images").scope(BOTH);
    let made = made.json(&json!({ "name": "debian", "tag": "x" })).send().expect(201);
    let (site, image) = (made.site(), made.json());
    assert_eq!(site, "site1");
    let meta = text(&image["id"]);
    assert_eq!(meta.len(), 36, "{meta}");
    // Wherever the id stands in the answer, it is ours.
    assert_eq!(made.header("location"), format!("/v2/images/{meta}"));
    assert_eq!(image["self"], format!("/v2/images/{meta}"));
    assert_eq!(image["file"], format!("/v2/images/{meta}/file"));
    assert_eq!((&image["name"], &image["tag"]), (&json!("debian"), &json!("x")));

    settled(&world, &[0, 1], "debian", |_| true);
    let own = [0, 1].map(|n| text(&local(&world, n, "debian").unwrap()["id"]));
    assert!(own[0] != own[1] && !own.contains(&meta), "{own:?} {meta}");
    assert!(local(&world, 2, "debian").is_none(), "nobody said site3");

    // Read by its id at both; each has its own.
    for n in [0, 1] {
        let path = format!("/v2/images/{meta}");
        eventually("it can be read", || world.image(n, "GET", &path).send().status == 200);
        let read = world.image(n, "GET", &path).send().expect(200);
        let image = read.json();
        assert_eq!(
            (text(&image["id"]), text(&image["site"])),
            (meta.clone(), format!("site{}", n + 1))
        );
        assert_eq!(image["self"], path);
        // Local ids are hidden in lists.
        let list = world.image(n, "GET", "/v2/images").send().expect(200);
        assert_eq!(list.json()["images"][0]["id"], meta.as_str());
        assert!(!list.text().contains(&own[n]), "{}", list.text());
        // A local id is as good as ours, at the site that it is of and at the other.
        for own in &own {
            let read = world.image(n, "GET", &format!("/v2/images/{own}")).send().expect(200);
            assert_eq!(read.json()["id"], meta.as_str());
        }
        let page = world.image(n, "GET", &format!("/v2/images?limit=1&marker={meta}")).send();
        assert_eq!(page.expect(200).json()["images"], json!([]), "an id in a query is rewritten");
    }
    // A third site reads it from one that has it.
    let read = world.image(2, "GET", &format!("/v2/images/{meta}")).send().expect(200);
    assert!(["site1", "site2"].contains(&read.site().as_str()), "{}", read.site());
    assert_eq!(read.json()["id"], meta.as_str());
    // What Cheops does not know passes as it is.
    let unknown = "/v2/images/00000000-0000-4000-8000-000000000000";
    for n in 0..3 {
        let answer = world.image(n, "GET", unknown).send();
        assert_eq!(answer.text(), world.has(n, Service::Image, unknown).text());
        assert_eq!(answer.status, 404);
    }
}

#[test]
fn answers_to_writes_hide_the_ids_of_all_that_they_mention() {
    let mut world = World::new(2);
    let [one, other] = ["one", "other"].map(|name| {
        let meta = create(&world, 0, name);
        settled(&world, &[0, 1], name, |_| true);
        meta
    });
    let own = |n: usize, name: &str| text(&local(&world, n, name).unwrap()["id"]);
    // The application at each site says what belongs to what, by ids of its own.
    for n in [0, 1] {
        let image = format!("/v2/images/{}", own(n, "one"));
        let call = world.client.call("PATCH", &world.instance(n, Service::Image, &image));
        call.json(&json!({ "parent": own(n, "other") })).send().expect(200);
    }
    let path = format!("/v2/images/{one}");
    eventually("both sites know both", || {
        let read = |n: usize| world.image(n, "GET", &path).send();
        [0, 1].iter().all(|&n| read(n).json()["parent"] == other.as_str())
    });
    // What is compressed could not be read, and what is not asked for may come.
    world.forget();
    world.image(0, "GET", &path).header("Accept-Encoding", "gzip").send().expect(200);
    assert_eq!(world.log(0, Service::Image)[0]["headers"]["accept-encoding"], "identity");
    let change = |world: &World| {
        world.image(0, "PATCH", &path).json(&json!({ "tag": "x" })).send().expect(200)
    };
    for site in ["site1", "site2"] {
        let answer = change(&world);
        assert_eq!(answer.site(), site);
        assert_eq!(answer.json()["parent"], other.as_str(), "{}", answer.text());
        // The other site's answer is told if there is none here.
        world.stop(0, Service::Image);
    }
}

#[test]
fn an_answer_whose_end_was_dropped_does_not_end_as_if_it_were_whole() {
    let sections = "[runs]\noutput_file = 300000\n".to_owned();
    let world = World::with(2, Setup { sections, ..Setup::default() });
    let path = format!("/v2/images/{}", create(&world, 0, "debian"));
    for (length, whole) in [(200_000, true), (400_000, false)] {
        let change = json!({ "pad": "x".repeat(length) });
        let answer = world.image(0, "PATCH", &path).json(&change).try_send();
        // What breaks off is no answer to the client, however much of it came.
        let length = answer.map(|answer| answer.body.len());
        assert_eq!(length.is_some(), whole, "{length:?}");
    }
}

#[test]
fn the_mapping_can_be_looked_up_at_its_sites() {
    let world = World::with(3, Setup { numbers: true, ..Setup::default() });
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    for n in [0, 1] {
        let site = &world.field.sites[n];
        let mut mapping = Value::Null;
        eventually("the mapping is complete", || {
            let all: Value = site.try_get("/api/v1/replicants").unwrap();
            let replicant = &all["replicants"][0];
            let own = |replica: &Value| {
                (text(&replica["site"]), text(&replica["id"]), text(&replica["pending"]))
            };
            let replicas: Vec<_> =
                replicant["replicas"].as_array().unwrap().iter().map(own).collect();
            mapping = replicant.clone();
            let wanted = [("site1", "42", "0"), ("site2", "6", "0")];
            replicas == wanted.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()))
        });
        assert!(mapping.to_string().contains(&meta), "{mapping}");
        let one: Value = site.try_get(&format!("/api/v1/replicants/{meta}")).unwrap();
        assert_eq!(one["replicas"], mapping["replicas"]);
    }
    let told = world.field.sites[0].output(
        env!("CARGO_BIN_EXE_cheops"),
        &["--agent", &world.field.sites[0].url, "get", "replicants"],
    );
    assert!(told.contains(&meta) && told.contains("site2"), "{told}");
}

#[test]
fn numbers_are_hidden_too_and_nothing_else_that_looks_like_them() {
    let image = "[service.ids]\nmeta = 'number'".to_owned();
    let world = World::with(2, Setup { numbers: true, image, ..Setup::default() });
    let made = world.image(0, "POST", "/v2/images").scope(BOTH);
    let made = made.json(&json!({ "name": "debian", "min_disk": 42, "ram": 6 })).send().expect(201);
    let image = made.json();
    let meta = image["id"].as_u64().unwrap_or_else(|| panic!("no number: {image}"));
    assert_eq!((&image["min_disk"], &image["ram"]), (&json!(42), &json!(6)));
    settled(&world, &[0, 1], "debian", |_| true);
    assert_eq!(local(&world, 0, "debian").unwrap()["id"], 42);
    assert_eq!(local(&world, 1, "debian").unwrap()["id"], 6);
    for n in [0, 1] {
        let path = format!("/v2/images/{meta}");
        eventually("it can be read", || world.image(n, "GET", &path).send().status == 200);
        let image = world.image(n, "GET", &path).send().json();
        assert_eq!(
            (&image["id"], &image["min_disk"], &image["ram"]),
            (&json!(meta), &json!(42), &json!(6))
        );
    }
}

/// The digest and the size of what an image holds.
fn holds(image: &Value) -> (Value, Value) {
    (image["checksum"].clone(), image["size"].clone())
}

#[test]
fn updates_uploads_and_deletions_reach_all_copies_by_any_name() {
    let world = World::new(3);
    let meta = create(&world, 0, "debian");
    settled(&world, &[0, 1], "debian", |_| true);
    let own = [0, 1].map(|n| text(&local(&world, n, "debian").unwrap()["id"]));
    let patch = |asked: usize, id: &str, what: Value| -> Answer {
        let call = world.image(asked, "PATCH", &format!("/v2/images/{id}"));
        call.json(&what).send().expect(200)
    };
    // By our id at each site, one that has no copy among them; by local ids, too.
    eventually("site2 knows it", || {
        world.image(1, "GET", &format!("/v2/images/{meta}")).send().status == 200
    });
    for (n, (asked, id)) in
        [(0, &meta), (1, &meta), (2, &meta), (0, &own[0]), (1, &own[1]), (0, &own[1])]
            .into_iter()
            .enumerate()
    {
        let field = format!("field{n}");
        let changed = patch(asked, id, json!({ &field: n }));
        assert_eq!(changed.json()["id"], meta.as_str(), "{}", changed.text());
        assert_eq!(changed.json()[&field], n);
        // Whoever has written reads it at once where it was written.
        if asked < 2 {
            let read = world.image(asked, "GET", &format!("/v2/images/{meta}")).send().expect(200);
            assert_eq!(read.json()[&field], n, "{}", read.text());
        }
        settled(&world, &[0, 1], "debian", |image| image[&field] == n);
    }
    // Data, small and large: what is large travels as a file.
    for data in ["small".to_owned(), "0123456789abcdef".repeat(100_000)] {
        let upload = world.image(1, "PUT", &format!("/v2/images/{meta}/file")).body(data.clone());
        upload.header("Content-Type", "application/octet-stream").send().expect(204);
        let wanted = (json!(sha256(&data)), json!(data.len()));
        settled(&world, &[0, 1], "debian", |image| holds(image) == wanted);
        for n in 0..3 {
            let file = world.image(n, "GET", &format!("/v2/images/{meta}/file")).send();
            assert!(file.expect(200).body == data.as_bytes(), "site{}", n + 1);
        }
    }
    // Each was carried out once.
    for n in [0, 1] {
        let asked = world.asked(n, Service::Image);
        let count = |what: &str| asked.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!((count("POST"), count("PATCH"), count("PUT")), (1, 6, 2), "{asked:?}");
        assert!(!asked.join(" ").contains(&meta), "the application was asked for our id");
    }
    // Boot from it, at either site, with no scope at all.
    for n in [0, 1] {
        let server = world.boot(n, &meta).send().expect(202).json();
        assert_eq!(server["image"]["site"], format!("site{}", n + 1), "{server}");
    }
    // Gone everywhere.
    world.image(2, "DELETE", &format!("/v2/images/{meta}")).send().expect(204);
    eventually("both copies are gone", || (0..2).all(|n| local(&world, n, "debian").is_none()));
    for n in 0..3 {
        eventually("nobody knows it any more", || {
            world.image(n, "GET", &format!("/v2/images/{meta}")).send().status == 404
        });
    }
}

#[test]
fn all_ids_of_a_request_are_those_of_the_site_that_gets_it() {
    let world = World::new(3);
    let (a, b) = (create(&world, 0, "a"), create(&world, 0, "b"));
    let own = |n: usize, name: &str| text(&local(&world, n, name).unwrap()["id"]);
    for name in ["a", "b"] {
        settled(&world, &[0, 1], name, |_| true);
    }
    for (n, id) in [(0, &a), (0, &b), (1, &a), (1, &b)] {
        eventually("it can be read", || {
            world.image(n, "GET", &format!("/v2/images/{id}")).send().status == 200
        });
    }
    world.forget();
    world.image(1, "GET", &format!("/v2/images/{a}?with={b}")).send().expect(200);
    let asked = world.asked(1, Service::Image);
    let expected = format!("GET /v2/images/{}?with={}", own(1, "a"), own(1, "b"));
    assert!(asked.contains(&expected), "{asked:?}");
    // It is a write of what its path names; each site has its own ids for all that is named.
    let path = format!("/v2/images/{a}?from={}", own(0, "b"));
    world.image(0, "PATCH", &path).json(&json!({ "tag": "x" })).send().expect(200);
    settled(&world, &[0, 1], "a", |image| image["tag"] == "x");
    for n in [0, 1] {
        let asked = world.asked(n, Service::Image);
        let expected = format!("PATCH /v2/images/{}?from={}", own(n, "a"), own(n, "b"));
        assert!(asked.contains(&expected), "{asked:?}");
    }
    // What only the query names is not what is written to.
    let plain = world.has_image(0, "plain", "x");
    world.forget();
    world.image(0, "DELETE", &format!("/v2/images/{plain}?like={b}")).send().expect(204);
    assert!(local(&world, 0, "plain").is_none());
    let expected = format!("DELETE /v2/images/{plain}?like={}", own(0, "b"));
    assert!(world.asked(0, Service::Image).contains(&expected));
    assert!(world.asked(1, Service::Image).iter().all(|line| !line.starts_with("DELETE")));
    for n in [0, 1] {
        assert!(local(&world, n, "b").is_some());
    }
}

#[test]
fn a_path_is_the_same_however_it_is_spelled_and_is_where_it_was_put() {
    let world = World::new(3);
    let put = |asked: usize, path: &str, value: u64| {
        world.image(asked, "PUT", path).json(&json!({ "value": value }))
    };
    let both = |value: u64| {
        eventually("both have it", || {
            (0..2).all(|n| {
                let answer = world.has(n, Service::Image, "/kv/a-b");
                answer.status == 200 && answer.json()["value"] == value
            })
        });
    };
    put(0, "/kv/a-b", 1).scope(BOTH).send().expect(201);
    both(1);
    for (value, spelling) in (2..).zip(["/kv/a%2Db", "/kv/a-b/", "/k%76/a%2db"]) {
        put(0, spelling, value).send().expect(200);
        both(value);
    }
    // A site that has no part in it names them; what they all refuse takes nothing away.
    put(2, "/kv/a-b", 5).scope(BOTH).send().expect(200);
    both(5);
    world.image(2, "PUT", "/kv/a-b").scope(BOTH).body("no JSON").send().expect(400);
    // Its own sites may be named; others are refused, and get nothing.
    put(0, "/kv/a-b", 6).scope("image: site2 & site1").send().expect(200);
    both(6);
    put(1, "/kv/a-b", 9).send().expect(200);
    both(9);
    for scope in ["image: site3", "image: site1", "image: site1 & site3"] {
        let refused = put(0, "/kv/a-b", 7).scope(scope).send();
        let problem = refused.problem(409, "other-sites");
        let detail = text(&problem["detail"]);
        let named = scope.trim_start_matches("image: ");
        assert!(detail.contains("site1 & site2") && detail.contains(named), "{detail}");
    }
    // What the scope says of other services is another matter.
    put(0, "/kv/a-b", 8).scope("compute: site3").send().expect(200);
    both(8);
    assert_eq!(world.has(2, Service::Image, "/kv/a-b").status, 404);
}

#[test]
fn names_that_clients_choose_need_no_ids() {
    let world = World::new(3);
    let put = |asked: usize, name: &str, value: &Value| {
        world.image(asked, "PUT", &format!("/kv/{name}")).scope(BOTH).json(value).send()
    };
    let made = put(0, "color", &json!({ "value": "red" }));
    assert_eq!((made.status, &made.json()["name"]), (201, &json!("color")));
    let at = |n: usize, path: &str| world.has(n, Service::Image, path);
    eventually("both have it", || (0..2).all(|n| at(n, "/kv/color").status == 200));
    // From now on no scope is needed.
    let changed = world.image(1, "PATCH", "/kv/color").json(&json!({ "more": 1 })).send();
    assert_eq!(changed.expect(200).json()["more"], 1);
    eventually("both have more", || {
        (0..2).all(|n| {
            let value = at(n, "/kv/color").json();
            value["value"] == "red" && value["more"] == 1
        })
    });
    assert_eq!(at(2, "/kv/color").status, 404);
    // What is at one site only stays there.
    world.image(1, "PUT", "/kv/other").json(&json!({ "value": "blue" })).send().expect(201);
    assert_eq!(at(0, "/kv/other").status, 404);
    world.image(0, "DELETE", "/kv/color").send().expect(204);
    eventually("both are gone", || (0..2).all(|n| at(n, "/kv/color").status == 404));
}

#[test]
fn a_creation_that_every_site_refuses_is_refused_and_leaves_nothing() {
    let world = World::new(2);
    let wrong = world.image(0, "POST", "/v2/images").scope(BOTH).body("no JSON").send();
    assert_eq!(wrong.status, 400, "{}", wrong.text());
    assert!(wrong.text().contains("no JSON"), "the answer is the application's: {}", wrong.text());
    let wrong = world.image(0, "POST", "/v2/nothing").scope(BOTH).body("{}").send();
    assert_eq!(wrong.status, 404, "{}", wrong.text());
    let list = world.image(0, "GET", "/v2/images").send().expect(200).json();
    assert_eq!(list["total"], 0);
}
