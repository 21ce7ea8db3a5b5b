//! What it costs to write a message of 1,000 operations of 300 bytes, and to read it.
//!
//! Prints a table, with the same twins written as JSON beside it, so that each number has a ratio
//! that anyone can judge. Rounds are interleaved and the median is taken, since machines are noisy.
//! Both ways begin and end with values of the core. `cargo bench -p cheops-agent --bench wire`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and fails by panic")]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

use std::{hint::black_box, sync::Arc, time::Instant};

use cheops_agent::wire::{self, Names, Twin};
use cheops_core::{
    id::OpId,
    operation::{Action, Operation},
    replica::{Message, Record, Sent},
    time::{Millis, Timestamp},
};

const OPERATIONS: u64 = 1_000;
const WEIGHT: usize = 300;
const SITES: u64 = 10;
const ROUNDS: usize = 101;

fn main() {
    let message = batch();
    let bytes = wire::encode_message(&message).unwrap();
    let text = json(&message);
    let (mut names, mut other_names) = (Names::default(), Names::default());
    assert_eq!(wire::decode_message(&bytes, &mut names).unwrap(), message);
    assert_eq!(from_json(&text, &mut other_names), message);

    let mut samples: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        samples[0].push(nanoseconds(|| wire::encode_message(black_box(&message)).unwrap()));
        samples[1].push(nanoseconds(|| json(black_box(&message))));
        samples[2]
            .push(nanoseconds(|| wire::decode_message(black_box(&bytes), &mut names).unwrap()));
        samples[3].push(nanoseconds(|| from_json(black_box(&text), &mut other_names)));
    }
    let [encode, encode_json, decode, decode_json] = samples.map(median);

    println!("{:<28} {:>10} {:>12} {:>10}  ", "what", "bytes/op", "ns/op", "MB/s");
    row("encode", bytes.len(), encode, Some(encode_json));
    row("encode as JSON", text.len(), encode_json, None);
    row("decode", bytes.len(), decode, Some(decode_json));
    row("decode from JSON", text.len(), decode_json, None);
    println!("size of JSON: x{:.2}", text.len() as f64 / bytes.len() as f64);
}

fn row(what: &str, length: usize, nanoseconds: f64, json: Option<f64>) {
    let each = length as f64 / OPERATIONS as f64;
    let rate = length as f64 * 1e3 / nanoseconds;
    let nanoseconds_each = nanoseconds / OPERATIONS as f64;
    let note = json.map(|json| format!("JSON takes x{:.1} as long", json / nanoseconds));
    println!(
        "{what:<28} {each:>10.0} {nanoseconds_each:>12.0} {rate:>10.0}  {}",
        note.unwrap_or_default()
    );
}

/// Nanoseconds of one call. What it returns is dropped after the clock has stopped.
fn nanoseconds<T>(call: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    let result = black_box(call());
    let spent = start.elapsed().as_nanos() as f64;
    drop(result);
    spent
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn json(message: &Message) -> String {
    serde_json::to_string(&wire::Message::of(message).unwrap()).unwrap()
}

fn from_json(text: &str, names: &mut Names) -> Message {
    serde_json::from_str::<wire::Message<'_>>(text).unwrap().read(names).unwrap()
}

/// Operations of ten sites in turn, each after the one before.
fn batch() -> Message {
    let resource: cheops_core::id::ResourceId = "counter-of-visitors".parse().unwrap();
    let id = |n: u64| OpId {
        site: format!("site{:02}", n % SITES).parse().unwrap(),
        number: 10_000 + n / SITES,
    };
    let operation = |n: u64, line: &str| Operation {
        id: id(n),
        resource: resource.clone(),
        kind: "inc".parse().unwrap(),
        author: "operator".parse().unwrap(),
        at: Timestamp::at(Millis(1_800_000_000_000 + n)),
        parents: [id(n - 1)].into(),
        action: Action::command(line),
        reset: false,
        keep_going: false,
        key: None,
        declares: None,
    };
    let line = "x".repeat(WEIGHT - operation(1, "").weight());
    let sent = |n| Sent {
        after: id(n).number - 1,
        record: Record::Operation(Arc::new(operation(n, &line))),
        seal: None,
    };
    Message::Records {
        resource: resource.clone(),
        records: (1..=OPERATIONS).map(sent).collect(),
        more: false,
    }
}
