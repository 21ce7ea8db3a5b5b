//! What waits on a link when it is declared dead: each of these fails at once, or goes on without the
//! other site. Instances may take 20 seconds, so that only the end of the link can be the reason.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::{RunStatus, Submit};
use serde_json::json;

use crate::field::{
    application::{Service, Setup, World},
    eventually,
    http::Answer,
};

/// How long after the end of a link the last of what waited on it may fail, on a busy machine.
const SOON_AFTER: Duration = Duration::from_secs(3);

fn slow(image: &str) -> World {
    World::with(2, Setup { answer: "20s", image: image.to_owned(), ..Setup::default() })
}

/// Waits until an instance holds so many requests of this method.
fn holds(world: &World, n: usize, method: &str, count: usize) {
    eventually("the instance holds them", || {
        let log = world.log(n, Service::Image);
        let held = |entry: &&serde_json::Value| entry["method"] == method && entry["done"] == false;
        log.iter().filter(held).count() == count
    });
}

/// Cuts the sites apart while something waits at each of these, and checks that all of it ends soon
/// after both agents have declared the link dead. Of two agents one has dialled the other, so that
/// both directions are worth a try.
#[track_caller]
fn cut_ends<T: Send>(
    world: &World,
    at: &[usize],
    ready: impl FnOnce(),
    wait: &(dyn Fn(usize) -> T + Sync),
) -> Vec<T> {
    let ended = thread::scope(|threads| {
        let waits = |&n: &usize| threads.spawn(move || (wait(n), Instant::now()));
        let waiting: Vec<_> = at.iter().map(waits).collect();
        ready();
        world.field.net.cut_all();
        world.field.wait_until_apart();
        let dead = Instant::now();
        let end = |(result, at): (T, Instant)| (result, at.saturating_duration_since(dead));
        waiting.into_iter().map(|thread| end(thread.join().unwrap())).collect::<Vec<_>>()
    });
    for (_, after) in &ended {
        assert!(*after < SOON_AFTER, "{after:?} after the link was declared dead");
    }
    world.field.heal();
    ended.into_iter().map(|(result, _)| result).collect()
}

#[test]
fn a_request_that_waits_for_an_answer_falls_back_or_fails() {
    let world = slow("");
    let hold = json!({ "hold": true, "times": 1 });
    let send = |method: &str, n: usize| -> Answer {
        let (here, there) = (n + 1, 2 - n);
        let call = world.image(n, method, "/v2/images");
        call.scope(&format!("image: site{there}; site{here}")).json(&json!({ "name": "x" })).send()
    };
    for method in ["GET", "POST"] {
        world.forget();
        for n in [0, 1] {
            world.mode(n, Service::Image, &hold);
        }
        let ready = || [0, 1].iter().for_each(|&n| holds(&world, n, method, 1));
        let answers = cut_ends(&world, &[0, 1], ready, &|n| send(method, n));
        for (n, answer) in answers.into_iter().enumerate() {
            if method == "GET" {
                assert_eq!(answer.expect(200).site(), format!("site{}", n + 1));
            } else {
                // It may have arrived.
                let problem = answer.problem(502, "no-answer");
                assert_eq!(problem["tried"].as_array().unwrap().len(), 1, "{problem}");
                assert_eq!(problem["tried"][0]["site"], format!("site{}", 2 - n));
            }
        }
    }
}

fn open(world: &World, n: usize, head: &str) -> TcpStream {
    let client = TcpStream::connect((world.field.net.ip(n), Service::Image.port())).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(18))).unwrap();
    client.set_write_timeout(Some(Duration::from_secs(18))).unwrap();
    let there = 2 - n;
    let head = format!("{head}\r\nHost: image\r\nX-Scope: image: site{there}\r\n");
    (&client).write_all(head.as_bytes()).unwrap();
    client
}

#[test]
fn an_upload_fails_whether_its_client_or_the_other_site_is_slow() {
    let world = slow("");
    let ids = [0, 1].map(|n| world.has_image(n, "debian", "x"));
    for stalls in ["the client", "the other site"] {
        world.forget();
        if stalls == "the other site" {
            let hold = json!({ "hold": true, "times": 1 });
            for n in [0, 1] {
                world.mode(n, Service::Image, &hold);
            }
        }
        let upload = |n: usize| {
            let head = format!("PUT /v2/images/{}/file HTTP/1.1", ids[1 - n]);
            let mut client = open(&world, n, &head);
            client.write_all(b"Content-Length: 1000000000\r\n\r\nbegins").unwrap();
            let mut writer = client.try_clone().unwrap();
            let floods = stalls == "the other site";
            let flood = thread::spawn(move || {
                // All windows and buffers on the way are full long before the end.
                let piece = vec![b'x'; 1 << 20];
                while floods && writer.write_all(&piece).is_ok() {}
            });
            let mut told = Vec::new();
            // Whoever is still sending may not hear the end of the answer.
            let _ = client.read_to_end(&mut told);
            drop(client);
            flood.join().unwrap();
            String::from_utf8_lossy(&told).into_owned()
        };
        let ready = || [0, 1].iter().for_each(|&n| holds(&world, n, "PUT", 1));
        for told in cut_ends(&world, &[0, 1], ready, &upload) {
            assert!(told.starts_with("HTTP/1.1 502") && told.contains("no-answer"), "{told}");
        }
    }
}

#[test]
fn an_answer_that_has_begun_breaks_off() {
    const SIZE: usize = 64 << 20;
    let world = slow("");
    let data = "x".repeat(SIZE);
    let ids = [0, 1].map(|n| world.has_image(n, "debian", &data));
    let begun = std::sync::Barrier::new(3);
    let download = |n: usize| {
        let mut client = open(&world, n, &format!("GET /v2/images/{}/file HTTP/1.1", ids[1 - n]));
        client.write_all(b"\r\n").unwrap();
        let mut first = [0; 4_096];
        client.read_exact(&mut first).unwrap();
        assert!(first.starts_with(b"HTTP/1.1 200"));
        begun.wait();
        // The client takes the rest only when the link is gone.
        world.field.wait_until_apart();
        let mut rest = Vec::new();
        let ended = client.read_to_end(&mut rest);
        let timed_out = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        (timed_out, rest.len())
    };
    let ready = || {
        begun.wait();
    };
    for (timed_out, read) in cut_ends(&world, &[0, 1], ready, &download) {
        assert!(!timed_out && read < SIZE, "{read} bytes, timed out: {timed_out}");
    }
}

#[test]
fn places_for_requests_to_a_site_are_free_again() {
    // As many as an agent forwards to another at the same time.
    const MOST: usize = 192;
    let world = slow("");
    world.mode(1, Service::Image, &json!({ "hold": true }));
    let scope = "image: site2";
    let send = || world.image(0, "GET", "/v2/images").scope(scope).send();
    thread::scope(|threads| {
        let held: Vec<_> = (0..MOST).map(|_| threads.spawn(send)).collect();
        holds(&world, 1, "GET", MOST);
        send().problem(503, "no-answer");
        world.field.cut();
        for answer in held {
            answer.join().unwrap().problem(502, "no-answer");
        }
    });
    world.mode(1, Service::Image, &json!({}));
    world.field.heal();
    assert_eq!(send().expect(200).site(), "site2");
}

#[test]
fn a_divided_write_goes_on_without_the_part_of_the_other_site() {
    let world = slow("[[service.divide]]\npointer = '/replicas'\ngather = 'sum'\n");
    for n in [0, 1] {
        world.forget();
        world.mode(1 - n, Service::Image, &json!({ "hold": true, "times": 1 }));
        let create = |n: usize| {
            let call = world.image(n, "POST", "/v2/images").scope("image: site1 % site2");
            call.json(&json!({ "name": "x", "replicas": 10 })).send()
        };
        let ready = || holds(&world, 1 - n, "POST", 1);
        let answer = cut_ends(&world, &[n], ready, &create).remove(0);
        assert!(answer.status < 300, "{} {}", answer.status, answer.text());
        assert_eq!(answer.json()["site"], format!("site{}", n + 1), "{}", answer.text());
    }
}

/// Neither the instance here nor the other site can answer: the operation is accepted, and the client is
/// told so at once.
#[test]
fn a_replicated_write_without_an_instance_here_does_not_wait_for_the_other_site() {
    let mut world = slow("");
    for n in [0, 1] {
        world.forget();
        world.mode(1 - n, Service::Image, &json!({ "hold": true, "times": 1 }));
        world.stop(n, Service::Image);
        let create = |n: usize| {
            let call = world.image(n, "POST", "/v2/images").scope("image: site1 & site2");
            call.json(&json!({ "name": "x" })).send()
        };
        let ready = || holds(&world, 1 - n, "POST", 1);
        let answer = cut_ends(&world, &[n], ready, &create).remove(0);
        assert_eq!(answer.status, 202, "{}", answer.text());
        world.start(n, Service::Image);
        world.wait_until_up(n, Service::Image);
    }
}

#[test]
fn an_api_call_that_another_site_answers_fails() {
    let world = slow("");
    let sites = &world.field.sites;
    let exec = |n: usize| {
        let there = format!("site{}", 2 - n);
        let asked = Submit {
            command: "sleep 50".into(),
            sites: Some(there.clone()),
            wait: Some("50s".into()),
            ..Submit::default()
        };
        sites[n].try_exec(&format!("at-{there}"), &asked)
    };
    let runs = |n: usize| {
        let known = sites[n].resource(&format!("at-site{}", n + 1));
        let runs = known.iter().flat_map(|known| &known.operations).flat_map(|op| &op.runs);
        runs.filter(|run| run.status == RunStatus::Running).count()
    };
    let ready = || eventually("both commands run", || runs(0) == 1 && runs(1) == 1);
    for ended in cut_ends(&world, &[0, 1], ready, &exec) {
        assert_eq!(ended.unwrap_err().kind, "broke-off");
    }
}
