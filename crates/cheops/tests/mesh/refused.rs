//! What the agent refuses, and how it says so.

use serde_json::json;

use crate::field::{
    Field,
    application::{OUTBOUND, Service, World},
    http::Client,
};

#[test]
fn each_error_says_what_happened_and_what_to_do() {
    let mut world = World::new(2);
    for (path, headers, detail) in [
        ("/v2/images", &[("X-Scope", "image: site1 &")][..], "no site is named"),
        ("/v2/images", &[("X-Scope", "image: nowhere")], "nowhere"),
        ("/v2/images", &[("X-Scope", r#"{"image": 7}"#)], "X-Scope"),
        (
            "/v2/images",
            &[("X-Scope", "image: site1"), ("baggage", "scope=image:site2")],
            "two scopes",
        ),
        ("/~image:site2/v2/images", &[("X-Scope", "image: site1")], "two scopes"),
        ("/v2/images", &[("X-Scope", "image: site1"), ("X-Scope", "image: site2")], "two scopes"),
        ("/%7Eimage:site2/v2/images", &[("X-Scope", "image: site1")], "two scopes"),
        ("/~image:%FF/v2/images", &[], "UTF-8"),
        ("/v2/images", &[("baggage", "scope=image%3A")], "baggage"),
    ] {
        let call = world.image(0, "GET", path);
        let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
        let answer = call.send();
        let problem = answer.problem(400, "bad-scope");
        let told = problem["detail"].as_str().unwrap();
        assert!(told.to_lowercase().contains(&detail.to_lowercase()), "{detail}: {problem}");
        assert_eq!(answer.site(), "site1");
    }
    assert!(world.asked(0, Service::Image).is_empty(), "nothing of this reaches the application");

    // No instance, here and there.
    world.stop(1, Service::Image);
    let problem = world.image(1, "GET", "/v2/images").send().problem(502, "no-instance");
    assert!(problem["detail"].as_str().unwrap().contains("127.0.0.1:19292"), "{problem}");
    let scoped = world.image(0, "GET", "/v2/images").scope("image: site2").send();
    let problem = scoped.problem(502, "no-answer");
    assert_eq!(problem["scope"], "image: site2");
    assert_eq!(problem["tried"][0]["site"], "site2");

    // An instance that does not answer in time.
    world.mode(0, Service::Image, &json!({ "hold": true }));
    world.image(0, "GET", "/v2/images").send().problem(504, "no-instance");
    world.mode(0, Service::Image, &json!({}));

    // No link.
    world.field.cut();
    let far = world.image(0, "GET", "/v2/images").scope("image: site2").send();
    let problem = far.problem(502, "no-answer");
    assert_eq!(problem["scope"], "image: site2");
    assert_eq!(problem["tried"].as_array().unwrap().len(), 1, "{problem}");
    assert!(far.header("server-timing").contains("site2"), "{}", far.header("server-timing"));
}

#[test]
fn what_agents_say_to_each_other_can_not_come_from_outside() {
    let world = World::new(2);
    world.has_image(1, "debian", "two");
    world.forget();
    let forged = world.image(0, "GET", "/v2/images");
    let forged = forged.header("X-Cheops-Service", "compute").header("X-Cheops-Site", "site2");
    let forged = forged.header("X-Cheops-Anything", "x").header("X-Cheops-Not-There", "1");
    let answer = forged.send().expect(200);
    assert_eq!((answer.site(), &answer.json()["total"]), ("site1".to_owned(), &json!(0)));
    let seen = world.log(0, Service::Image).pop().unwrap();
    assert!(!seen["headers"].to_string().contains("x-cheops"), "{seen}");
    // The doors between agents want to know who asks; and the agents' API is no way to a service.
    let client = Client::new();
    let url = format!("http://{}:8079/v2/images", world.field.net.ip(0));
    let aside = client.get(&url).header("X-Cheops-Service", "image").send();
    assert_eq!(aside.status, 404, "{}", aside.text());
    assert_eq!(world.asked(0, Service::Image), ["GET /v2/images"]);
}

#[test]
fn the_way_out_leads_to_services_only_and_never_in_circles() {
    let world = World::new(2);
    world.has_image(0, "debian", "one");
    world.forget();
    let site = &world.field.sites[0];
    let ip = world.field.net.ip(0);
    let call = |to: &str, more: &[&str]| {
        let proxy = format!("http://{OUTBOUND}");
        let arguments =
            ["-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", "-x", &proxy, to];
        site.output("curl", &[&arguments[..], more].concat())
    };
    // By name, by the instance's address, and by where the agent itself listens for it.
    for host in ["image", "image:80", "127.0.0.1:19292", &format!("{ip}:9292")] {
        assert_eq!(call(&format!("http://{host}/v2/images"), &[]), "200", "{host}");
    }
    assert_eq!(world.asked(0, Service::Image), ["GET /v2/images"; 4]);
    // It is no open proxy.
    for host in
        ["example.org", "127.0.0.1:8079", OUTBOUND, &format!("{}:19292", world.field.net.ip(1))]
    {
        assert_eq!(call(&format!("http://{host}/v2/images"), &[]), "421", "{host}");
    }
    let scoped = call("http://image/v2/images", &["-H", "X-Scope: image: site2"]);
    assert_eq!(scoped, "200");
    assert_eq!(world.asked(1, Service::Image), ["GET /v2/images"]);
    assert!(world.asked(1, Service::Compute).is_empty());
}

/// An agent knows its own listeners, and not those of others.
#[test]
fn a_request_that_two_agents_give_to_each_other_comes_to_an_end() {
    let field = Field::with_each(2, |n, ip| {
        let other = ip.rsplit_once('.').map(|(net, _)| net.to_owned()).unwrap();
        let mine: u8 = ip.rsplit_once('.').unwrap().1.parse().unwrap();
        let other = format!("{other}.{}", if n == 0 { mine + 1 } else { mine - 1 });
        format!("[[service]]\nname = 'web'\nlisten = '{ip}:8000'\naddress = '{other}:8000'\n")
    });
    let url = format!("http://{}:8000/round", field.net.ip(0));
    let problem = Client::new().get(&url).send().problem(508, "circle");
    assert!(problem["detail"].as_str().unwrap().contains("circles"), "{problem}");
}
