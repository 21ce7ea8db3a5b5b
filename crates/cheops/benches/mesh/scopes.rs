//! What it costs to read a scope.

use std::{hint::black_box, time::Instant};

use cheops_agent::mesh::read::Reader;
use hyper::{Request, http::request::Parts};

/// How often it is read.
const TIMES: u32 = 200_000;

/// How long it takes to find and read the scope in a header, in microseconds.
pub(crate) fn reading(header: Option<&str>) -> f64 {
    let (name, value) = header.unwrap().split_once(": ").unwrap();
    let request = Request::get("/v2/images").header("host", "image").header("user-agent", "wrk");
    let parts = request.header(name, value).body(()).unwrap().into_parts().0;
    let reader = Reader::default();
    let timed = |each: &dyn Fn(Parts)| {
        let start = Instant::now();
        for _ in 0..TIMES {
            each(black_box(parts.clone()));
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES)
    };
    // It is taken off, so that each needs a copy of its own, which does not count.
    let copied = timed(&drop);
    timed(&|mut parts| drop(reader.take(&mut parts).unwrap())) - copied
}
