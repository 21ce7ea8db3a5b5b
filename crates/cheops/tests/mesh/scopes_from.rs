//! Which clients may choose sites: `mesh.scopes_from`.

use serde_json::json;

use crate::field::{
    application::{OUTBOUND, Service, Setup, World},
    http::Call,
};

const SCOPE: &str = "compute: site1, image: site2";

fn world(mesh: &str) -> World {
    World::with(2, Setup { mesh: mesh.to_owned(), ..Setup::default() })
}

/// A request for the images of a site, with a scope in each of the ways that there are.
fn scoped(world: &World, site: &str) -> [Call; 3] {
    let get = |path: &str| world.image(0, "GET", path);
    [
        get("/v2/images").scope(&format!("image: {site}")),
        get("/v2/images").header("baggage", &format!("a=1,scope=image:{site}")),
        get(&format!("/~image:{site}/v2/images")),
    ]
}

/// Sends a request with curl from the host of a site. Gives the status and the site that answered.
fn curl(world: &World, n: usize, arguments: &[&str]) -> String {
    let format = "%{http_code} %header{x-cheops-site}";
    let fixed = ["-sS", "-m", "10", "-o", "/dev/null", "-w", format];
    world.field.sites[n].output("curl", &[&fixed, arguments].concat())
}

#[test]
fn with_token_only_clients_that_have_one_choose_sites() {
    let world = world("scopes_from = 'token'");
    let site = &world.field.sites[0];
    let image = world.has_image(1, "debian", "data of site2");
    world.forget();
    let token = |asked: serde_json::Value| {
        let (status, made) = site.post("/api/v1/access", &asked).unwrap();
        assert_eq!(status, 201, "{made}");
        let made: serde_json::Value = serde_json::from_str(&made).unwrap();
        made["token"].as_str().unwrap().to_owned()
    };
    let admin = token(json!({ "name": "ada", "role": "admin" }));
    let viewer = token(json!({ "name": "vera", "role": "viewer" }));
    let other = format!("{}x", &admin[..admin.len() - 1]);
    for call in scoped(&world, "site2") {
        let problem = call.send().problem(403, "scope-not-allowed");
        assert!(problem["detail"].as_str().unwrap().contains("it has no token"), "{problem}");
        assert!(problem["hint"].as_str().unwrap().contains("X-Cheops-Token"), "{problem}");
    }
    for token in ["x", &other] {
        let [call, ..] = scoped(&world, "site2");
        let problem = call.header("X-Cheops-Token", token).send().problem(403, "scope-not-allowed");
        assert!(problem["detail"].as_str().unwrap().contains("does not count"), "{problem}");
    }
    assert!(world.asked(0, Service::Image).is_empty() && world.asked(1, Service::Image).is_empty());
    // Without a scope there is nothing to choose.
    assert_eq!(world.image(0, "GET", "/v2/images").send().expect(200).site(), "site1");
    for token in [&admin, &viewer] {
        for call in scoped(&world, "site2") {
            let answer = call.header("X-Cheops-Token", token).send().expect(200);
            assert_eq!(answer.site(), "site2");
        }
    }
    for entry in world.log(1, Service::Image) {
        assert!(!entry["headers"].to_string().contains("cheops-token"), "{entry}");
    }
    let write = world.image(0, "POST", "/v2/images").json(&json!({ "name": "x" }));
    let write = write.scope("image: site2").header("X-Cheops-Token", &viewer).send();
    write.problem(403, "scope-not-allowed");
    // What goes over a connection that changes its protocol may write.
    let upgrade = world.image(0, "GET", "/v2/images").header("Connection", "Upgrade");
    let upgrade = upgrade.header("Upgrade", "websocket").scope("image: site2");
    let problem =
        upgrade.header("X-Cheops-Token", &viewer).send().problem(403, "scope-not-allowed");
    assert!(problem["detail"].as_str().unwrap().contains("the role viewer"), "{problem}");

    // The application's calls have the scope of the request, and need no token.
    let booted = world.boot(0, &image).scope(SCOPE).header("X-Cheops-Token", &admin).send();
    assert_eq!(booted.expect(202).json()["image"]["site"], "site2");
    let seen = world.log(0, Service::Compute).pop().unwrap();
    assert!(!seen["headers"].to_string().contains("cheops-token"), "{seen}");
    // A call that chooses by itself does.
    let proxy = format!("http://{OUTBOUND}");
    let call = ["-x", &proxy, "http://image/v2/images", "-H", "X-Scope: image: site2"];
    assert_eq!(curl(&world, 0, &call), "403 site1");
    let with_token = format!("X-Cheops-Token: {admin}");
    assert_eq!(curl(&world, 0, &[&call[..], &["-H", &with_token]].concat()), "200 site2");
}

#[test]
fn scopes_of_clients_in_other_networks_are_ignored() {
    let world = world("scopes_from = ['127.0.0.0/8', 'IP']\nscopes_from_others = 'ignore'");
    let image = world.has_image(1, "debian", "data of site2");
    world.forget();
    for call in scoped(&world, "site2") {
        assert_eq!(call.send().expect(200).site(), "site1");
    }
    assert_eq!(world.asked(0, Service::Image), ["GET /v2/images"; 3], "the path has no scope");
    let made = world.image(0, "POST", "/v2/images").json(&json!({ "name": "x" }));
    made.scope("image: site1 & site2").send().expect(201);
    assert!(world.asked(1, Service::Image).is_empty(), "nothing was replicated");
    let unlinked = world.boot(0, &image).scope(SCOPE).send();
    assert_eq!(unlinked.status, 404, "the image is at site2 only: {}", unlinked.text());

    // The same requests from the host of the site itself.
    let images = world.url(0, Service::Image, "/v2/images");
    let by_header = curl(&world, 0, &[&images, "-H", "X-Scope: image: site2"]);
    let by_baggage = curl(&world, 0, &[&images, "-H", "baggage: scope=image:site2"]);
    let by_path = curl(&world, 0, &[&world.url(0, Service::Image, "/~image:site2/v2/images")]);
    assert_eq!([by_header, by_baggage, by_path], ["200 site2"; 3]);
    let scope = format!("X-Scope: {SCOPE}");
    let servers = world.url(0, Service::Compute, "/servers");
    let body = json!({ "name": "vm", "image": image }).to_string();
    let booted = curl(&world, 0, &[&servers, "-H", &scope, "--json", &body]);
    assert_eq!(booted, "202 site1");
    let called = world.log(1, Service::Image).pop().unwrap();
    assert!(called["target"].as_str().unwrap().contains(&image), "{called}");
}
