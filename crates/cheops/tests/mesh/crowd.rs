//! Many clients at once, each with a scope of its own.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use serde_json::json;

use crate::{
    field::{
        application::{Service, World, text},
        http::Client,
    },
    sharing::sha256,
};

const CLIENTS: usize = 32;
const BOOTS: usize = 12;

#[test]
fn nobody_in_a_crowd_gets_what_is_meant_for_another() {
    let world = World::new(3);
    let data = |site: usize| format!("data of site{}", site + 1);
    let images: Vec<String> = (0..3).map(|n| world.has_image(n, "debian", &data(n))).collect();
    let digests: Vec<String> = (0..3).map(|n| sha256(&data(n))).collect();
    world.forget();
    let wrong = AtomicUsize::new(0);
    thread::scope(|threads| {
        for client in 0..CLIENTS {
            let (world, images, digests, wrong) = (&world, &images, &digests, &wrong);
            threads.spawn(move || {
                let http = Client::new();
                for boot in 0..BOOTS {
                    let asked = client % 3;
                    let compute = (client / 3 + boot) % 3;
                    let image = (client / 9 + boot / 3) % 3;
                    let name = format!("vm-{client}-{boot}");
                    let wanted = json!({ "name": name, "image": images[image] });
                    let url = world.url(asked, Service::Compute, "/servers");
                    // Half of them have an id of their own, the others only what the agent gives
                    // them; the token is the same for all.
                    let scope = format!("compute: site{}, image: site{}", compute + 1, image + 1);
                    let mut call = http.call("POST", &url).json(&wanted).scope(&scope);
                    call = call.header("X-Auth-Token", "everybody's");
                    if client % 2 == 0 {
                        call = call.header("X-Request-Id", &name);
                    }
                    let answer = call.send();
                    let fits = answer.status == 202 && {
                        let server = answer.json();
                        server["name"] == name.as_str()
                            && server["site"] == format!("site{}", compute + 1)
                            && server["image"]["site"] == format!("site{}", image + 1)
                            && server["checksum"] == digests[image].as_str()
                            && answer.site() == text(&server["site"])
                    };
                    if !fits && wrong.fetch_add(1, Ordering::Relaxed) < 5 {
                        #[allow(clippy::print_stderr, reason = "the first few say what is wrong")]
                        {
                            eprintln!("{scope}: {} {}", answer.status, answer.text());
                        }
                    }
                }
            });
        }
    });
    assert_eq!(wrong.into_inner(), 0, "answers that were not what was asked for");
    let count = |service| (0..3).map(|n| world.asked(n, service).len()).sum::<usize>();
    assert_eq!(count(Service::Compute), CLIENTS * BOOTS);
    assert_eq!(count(Service::Image), 2 * CLIENTS * BOOTS);
}
