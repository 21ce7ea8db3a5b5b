//! Sharing: a workflow whose steps run at different sites, and one that stays where it is.

use serde_json::{Value, json};

use crate::field::{
    application::{Service, World, text},
    http::Answer,
};

/// The digest of what `has_image` was given, as the services tell it.
pub(crate) fn sha256(data: &str) -> String {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };
    let mut command = Command::new("sha256sum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(data.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap().stdout;
    String::from_utf8(output).unwrap().split(' ').next().unwrap().to_owned()
}

/// Asserts that something was booted at one site with an image of another.
#[track_caller]
fn booted(answer: &Answer, at: &str, image_of: &str, data: &str) {
    assert_eq!(answer.status, 202, "{}", answer.text());
    let server = answer.json();
    assert_eq!(server["site"], at, "{server}");
    assert_eq!(server["image"]["site"], image_of, "{server}");
    assert_eq!(server["checksum"], sha256(data), "{server}");
    assert_eq!(answer.site(), at);
}

/// Whether a request that an instance got says anything of Cheops.
fn tells_of_cheops(entry: &Value) -> bool {
    let told = entry["headers"].to_string();
    let all = format!("{told}{}", entry["target"]);
    all.contains("scope") || all.contains("x-cheops") || all.contains("site2") || all.contains('~')
}

#[test]
fn a_boot_at_one_site_takes_the_image_of_another_however_its_scope_is_said() {
    let world = World::new(3);
    let image = world.has_image(1, "debian", "data of site2");
    world.forget();
    let wanted = json!({ "name": "vm", "image": image });
    let ways: [(&str, &[(&str, &str)]); 8] = [
        ("/servers", &[("X-Scope", "compute: site1, image: site2")]),
        ("/servers", &[("X-Scope", "{ image: site2, compute: site1 }")]),
        ("/servers", &[("X-Scope", r#"{"compute": "site1", "image": "site2"}"#)]),
        ("/servers", &[("baggage", "user=ada,scope=compute%3Asite1%2Cimage%3Asite2")]),
        ("/servers", &[("baggage", "scope=image:site2;meta=1, user=ada")]),
        ("/~compute:site1,image:site2/servers", &[]),
        ("/~compute%3Asite1%2C%20image%3Asite2/servers", &[]),
        ("/~image:site2/servers", &[("X-Scope", "image: site2")]),
    ];
    for (n, (path, headers)) in ways.into_iter().enumerate() {
        let id = format!("boot-{n}");
        let call = world.compute(0, "POST", path).json(&wanted).header("X-Request-Id", &id);
        let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
        let answer = call.send();
        booted(&answer, "site1", "site2", "data of site2");
        let timing = answer.header("server-timing");
        assert!(timing.contains(r#"desc="site1";dur="#), "{path}: {timing:?}");
        assert_eq!(answer.json()["image"]["id"], image.as_str());
    }
    assert_eq!(world.asked(0, Service::Compute), vec!["POST /servers"; ways.len()]);
    let at_image = [format!("GET /v2/images/{image}"), format!("GET /v2/images/{image}/file")];
    assert_eq!(world.asked(1, Service::Image), vec![at_image; ways.len()].concat());
    for n in [0, 2] {
        assert!(world.asked(n, Service::Image).is_empty(), "site{}", n + 1);
    }
    // The application knows of nothing, and is asked by its own agent alone.
    for entry in [world.log(0, Service::Compute), world.log(1, Service::Image)].concat() {
        assert!(!tells_of_cheops(&entry), "{entry}");
        assert_eq!(entry["from"], "127.0.0.1");
    }
    let baggage: Vec<String> = world.log(0, Service::Compute)[3..5]
        .iter()
        .map(|entry| text(&entry["headers"]["baggage"]))
        .collect();
    // Of the rest, nothing is lost. What is added is an id by which calls are known.
    for baggage in baggage {
        let others = baggage.split(',').filter(|member| !member.starts_with("cheops="));
        assert_eq!(others.map(str::trim).collect::<Vec<_>>(), ["user=ada"], "{baggage}");
    }
}

#[test]
fn each_step_of_a_workflow_runs_where_the_scope_says_wherever_it_was_asked() {
    let world = World::new(3);
    let images: Vec<String> =
        (0..3).map(|n| world.has_image(n, "debian", &format!("data of site{}", n + 1))).collect();
    for asked in 0..3 {
        for compute in 1..=3 {
            for image in 1..=3 {
                let id = format!("{asked}-{compute}-{image}");
                let scope = format!("compute: site{compute}, image: site{image}");
                let boot = world.boot(asked, &images[image - 1]).scope(&scope);
                let answer = boot.header("X-Request-Id", &id).send();
                let (compute, image) = (format!("site{compute}"), format!("site{image}"));
                booted(&answer, &compute, &image, &format!("data of {image}"));
            }
        }
    }
    for n in 0..3 {
        let entries = [world.log(n, Service::Compute), world.log(n, Service::Image)].concat();
        // Three ways to ask for each of nine boots, three of which are here; the images were made
        // and filled past the agents.
        let mine = entries.iter().filter(|entry| entry["from"] == "127.0.0.1").count();
        assert_eq!(mine, 9 + 2 * 9, "a request came twice, or straight from elsewhere");
        assert!(entries.iter().all(|entry| !tells_of_cheops(entry)));
    }
}

#[test]
fn a_site_on_its_own_serves_what_it_has_with_and_without_a_scope() {
    let world = World::new(3);
    let images: Vec<String> =
        (0..3).map(|n| world.has_image(n, "debian", &format!("data of site{}", n + 1))).collect();
    world.field.cut();
    for (n, image) in images.iter().enumerate() {
        let (name, data) = (format!("site{}", n + 1), format!("data of site{}", n + 1));
        booted(&world.boot(n, image).send(), &name, &name, &data);
        let scope = format!("compute: {name}, image: {name}");
        booted(&world.boot(n, image).scope(&scope).send(), &name, &name, &data);
        // A service that the scope does not name runs where the request is.
        let answer = world.boot(n, image).scope(&format!("network: {name}")).send();
        booted(&answer, &name, &name, &data);
    }
    let away =
        world.boot(0, &images[1]).scope("image: site2").header("X-Request-Id", "away").send();
    assert_eq!(away.status, 502, "{}", away.text());
    assert!(away.text().contains("no-answer"), "{}", away.text());
}

#[test]
fn a_request_without_a_scope_and_its_answer_pass_unchanged() {
    let world = World::new(2);
    let body = r#"{ "name":"spaces  and order stay" , "z":1,"a":2 }"#;
    let target = "/v2/images?x=%2F&y=a+b&&z";
    let call = world.image(0, "POST", target).header("X-Custom", "a, b").header("Via", "1.0 old");
    let call = call.header("Forwarded", "for=192.0.2.1");
    let call = call.header("Content-Type", "text/odd").header("Connection", "X-Hop");
    let answer = call.header("X-Hop", "ends here").body(body).send().expect(201);
    let id = text(&answer.json()["id"]);
    assert_eq!(answer.header("location"), format!("/v2/images/{id}"));
    assert_eq!(answer.site(), "site1");
    let seen = world.log(0, Service::Image).pop().unwrap();
    assert_eq!(seen["target"], target);
    let headers = &seen["headers"];
    for (name, value) in [
        ("x-custom", "a, b"),
        ("content-type", "text/odd"),
        ("host", &format!("{}:9292", world.field.net.ip(0))),
        ("content-length", &body.len().to_string()),
    ] {
        assert_eq!(headers[name], value, "{headers}");
    }
    assert!(text(&headers["via"]).starts_with("1.0 old"), "{headers}");
    assert!(headers["x-hop"].is_null() && headers["transfer-encoding"].is_null(), "{headers}");
    let client = text(&headers["x-forwarded-for"]);
    assert!(client.ends_with(".254"), "the client is not named: {headers}");
    assert_eq!(headers["forwarded"], format!("for=192.0.2.1, for={client}"));
    // What it answers by itself, byte for byte.
    let path = format!("/v2/images/{id}");
    let direct = world.has(0, Service::Image, &path);
    let through = world.image(0, "GET", &path).send();
    assert_eq!((through.status, &through.body), (direct.status, &direct.body));
    for name in ["content-type", "content-length", "server"] {
        assert_eq!(through.header(name), direct.header(name));
    }
    let missing = world.image(0, "GET", "/v2/images/none").send();
    assert_eq!(missing.text(), world.has(0, Service::Image, "/v2/images/none").text());
    assert_eq!(missing.status, 404);
}

#[test]
fn files_pass_between_sites_whole() {
    let world = World::new(2);
    let data = (0..400_000).map(|n: u32| n.to_string()).collect::<Vec<_>>().join(" ");
    let made = world.image(0, "POST", "/v2/images").json(&json!({ "name": "big" }));
    let id = text(&made.scope("image: site2").send().expect(201).json()["id"]);
    let file = format!("/v2/images/{id}/file");
    let upload = world.image(0, "PUT", &file).scope("image: site2").body(data.clone());
    let uploaded = upload.send().expect(204);
    assert_eq!(uploaded.site(), "site2");
    let there = world.has(1, Service::Image, &format!("/v2/images/{id}")).json();
    assert_eq!((&there["size"], &there["checksum"]), (&json!(data.len()), &json!(sha256(&data))));
    let back = world.image(0, "GET", &file).scope("image: site2").send().expect(200);
    assert!(back.text() == data, "it came back otherwise");
    assert_eq!(back.header("content-length"), data.len().to_string());
    assert!(world.asked(0, Service::Image).is_empty());
    let head = world.image(0, "HEAD", &file).scope("image: site2").send().expect(200);
    assert_eq!((head.header("content-length"), head.body.len()), (data.len().to_string(), 0));
}
