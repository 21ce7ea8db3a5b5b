//! Readers that take text or bytes from outside, fed with nonsense.
//!
//! Nonsense gets furthest if it is nearly right. So the bytes that the fuzzer makes up are read as a
//! script: take one of the valid inputs, then flip, cut, repeat and splice it. A script that begins
//! with zero is taken as it is instead.
//!
//! `cargo test` runs each target at random for a moment. `make fuzz` runs each for as long as you
//! like, and then no input may take long either; and once more, guided by coverage, if
//! `cargo bolero` is there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod databases;
#[path = "../crates/cheops-agent/tests/golden/mod.rs"]
mod golden;
mod outside;

use std::{
    env, fs,
    panic::RefUnwindSafe,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cheops_agent::{
    config::{Divide, Gather, Service, Split},
    rest::{
        divide::{self, Part},
        gather, ids,
        rewrite::{self, Context, Format, Rewriter},
    },
    wire::{self, Names},
};
use cheops_core::{
    history::History,
    matrix::{self, Config, Share, Take},
    scope::{self, MAX_LENGTH, ScopeError},
};
use hyper::header::{HeaderMap, HeaderValue, LOCATION};
use serde_json::Value;

/// The longest input, in bytes.
const LONGEST: usize = 64 * 1024;

/// The longest that an input of that length may take in an optimised build. What comes nearest is a
/// history of 500 operations at one site that don't know of each other: its story takes over a
/// second, which is the cube of their number at work.
const SLOWEST: Duration = Duration::from_secs(3);

/// As in `cheops matrix play`: more chains are not followed, and more sites are not shown.
const FOLLOWED: usize = 500;
const SHOWN: usize = 40;

/// A target of one line: its name, valid inputs, words to splice in, and the reader.
macro_rules! target {
    ($name:ident, $seeds:expr, $words:expr, $read:expr) => {
        #[test]
        fn $name() {
            let target = Target::new($seeds, $words, $read);
            bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
        }
    };
}

target!(keys, outside::keys(), &["a", "2", "-", "1", "é", " "], as_text(outside::key_reads));
target!(
    join_tokens,
    outside::join_tokens(),
    &["a", "cheops-join-", "_"],
    as_text(outside::join_token_reads)
);
target!(
    federations,
    outside::federations(),
    &["a", "\n", " ", "="],
    as_text(outside::federation_reads)
);
target!(seals, outside::seals(), &["\u{0}", "\u{1}", "\u{7f}"], outside::seal_reads);
target!(private_keys, outside::private_keys(), &PEM_WORDS, outside::private_key_reads);
target!(frames, outside::frames(), &["\u{0}", "\u{1}", "\u{7f}"], outside::frames_read);
target!(requests, outside::REQUESTS, &JSON_WORDS, as_text(outside::request_reads));
target!(forms, outside::FORMS, &FORM_WORDS, outside::form_reads);
target!(databases, databases::seeds(), &PAGE_WORDS, as_text(databases::site_reads));
target!(settings, outside::SETTINGS, &TOML_WORDS, as_text(outside::settings_read));
target!(audit_lines, outside::audit_lines(), &JSON_WORDS, outside::audit_reads);
target!(scoped_requests, outside::SCOPED, &SCOPE_WORDS, as_text(outside::scoped_request_reads));
target!(
    replies,
    outside::REPLIES,
    &["\n", "HTTP/1.1 ", ": ", "\n\n"],
    as_text(outside::reply_reads)
);
target!(
    durations,
    ["1h30m", "1.5s", "10ms"],
    &["9", ".", "h", "µs"],
    as_text(outside::duration_reads)
);
target!(tokens, outside::tokens(), &["-", "_", "=", " ", "é"], as_text(outside::token_reads));
target!(
    patterns,
    ["web-*\nweb-1", "*a*b*c*\naaabbbccc"],
    &["*", "a", "\n"],
    as_text(outside::pattern_matches)
);

const PEM_WORDS: [&str; 4] = ["-----BEGIN PRIVATE KEY-----\n", "-----END", "=", "\n"];
const PAGE_WORDS: [&str; 15] = [
    "18446744073709551615",
    "9223372036854775807",
    "-1",
    "\"First\": ",
    "\"Batch\": [",
    "\"Upto\": ",
    "\"Bytes\": ",
    "\"Lost\": 1",
    "page:00000000000000000001",
    "record:a:site1:18446744073709551615:ff",
    "null",
    "\"",
    ",",
    "AA==",
    "\n",
];
const FORM_WORDS: [&str; 8] =
    ["--X\r\n", "--X--", "\r\n", "\r\n\r\n", "name=\"", "filename=\"", ";", "\""];
const TOML_WORDS: [&str; 12] =
    ["[", "[[", "]", "= ", "'", "\"\"\"", "\n", "-1", "9223372036854775808", "{ ", ".", "true"];
const SCOPE_WORDS: [&str; 10] =
    ["/~", "%26", "&", ":", "\nx-scope: ", "\nbaggage: scope=", ";", ",", "%", "{\""];

#[test]
fn scopes() {
    let seeds = [
        "compute: dc1, image: dc1 & dc2",
        "{image: DC 1 & (dc2; dc3) % around(dc4, 1.5ms), volume: *}",
        "a: ((b & c) % d); e + f",
        "a: none(b & c); eventual(d & e)",
    ];
    let words = [
        "around(",
        "none(",
        "eventual(",
        "10ms",
        ": ",
        ",",
        " & ",
        "%",
        "+",
        ";",
        "(",
        ")",
        "((((((((",
        "{",
        "}",
        "*",
        "é",
        "\u{a0}",
        "1e9s",
    ];
    let target = Target::new(seeds.map(String::from), &words, as_text(scope_reads));
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

#[test]
fn configurations() {
    let target = Target::new(files("cheops/tests/matrices"), &JSON_WORDS, as_text(config_reads));
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

#[test]
fn histories() {
    let target = Target::new(files("cheops/tests/histories"), &JSON_WORDS, as_text(history_plays));
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

/// Histories that are right, as long as an input may be: the script says who did what, and when.
#[test]
fn long_histories() {
    let timed = seconds().is_some();
    let run = |script: &[u8]| {
        within_time(timed, made_up(&mut Script(script)).as_bytes(), &as_text(history_plays));
    };
    bolero::check!().with_test_time(time()).with_max_len(16 << 10).for_each(run);
}

#[test]
fn encodings() {
    let seeds = files("cheops-agent/tests/golden").map(|hex| golden::bytes(&hex));
    let words = ["\u{1}", "\u{0}", "\u{7f}", "\u{4}site", "\u{2}\u{1}"];
    let target = Target::new(seeds, &words, encoding_reads);
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

/// Bodies in which ids are replaced, in two ways of cutting them up.
#[test]
fn bodies() {
    let target = Target::new(BODIES, &ID_WORDS, body_passes);
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

#[test]
fn targets() {
    let seeds = [
        format!("/v2/images/{LOCAL}/file?id={LOCAL}&limit=42"),
        "http://host:9292/v2/images/42?marker=%34%32#42".to_owned(),
        "//a/%2e%2e/b;c=d/?x=&=y&z".to_owned(),
    ];
    let words =
        ["/", "?", "&", "=", "%", "%34%32", "%ff", "+", "#", "://", LOCAL, "42", "é", "_id="];
    let target = Target::new(seeds, &words, as_text(target_reads));
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

/// Answers to a creation: a `Location` on the first line, then the body.
#[test]
fn creations() {
    let seeds = [
        format!("http://host/v2/images/{LOCAL}?x\n{{\"image\": {{\"id\": \"{LOCAL}\"}}}}"),
        "/a/%2e%2e\n{\"id\": -42, \"uuid\": \"\", \"metadata\": {\"name\": \"x\"}}".to_owned(),
    ];
    let target = Target::new(seeds, &ID_WORDS, as_text(creation_reads));
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

#[test]
fn divisions() {
    let seeds = [
        r#"{"replicas": 10, "weighed": 10, "list": [1, 2, 3], "stretches": ["a", "b", "c"]}"#,
        r#"{"replicas": -18446744073709551615, "weighed": 18446744073709551615, "list": []}"#,
        r#"{"replicas": 0.5, "weighed": null, "list": {"a": []}, "stretches": [[[]]]}"#,
    ];
    let words = [
        "\"replicas\":",
        "\"list\":",
        "\"stretches\":",
        "\"weighed\":",
        "[",
        "]",
        ",",
        "9223372036854775807",
        "-1",
    ];
    let target = Target::new(seeds, &words, as_text(division_reads));
    bolero::check!().with_test_time(time()).for_each(|script: &[u8]| target.run(script));
}

const LOCAL: &str = "0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f";
const META: &str = "5c1de9a0-ce05-8123-8abc-0123456789ab";

const BODIES: [&str; 3] = [
    r#"{"images": [{"id": "0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f", "size": 42, "id": 42}]}"#,
    r#"{"self": "http:\/\/h\/images\/42?x=0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f", "\u0069d": "42"}"#,
    "<a href='/0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f'>0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f.</a>",
];

const ID_WORDS: [&str; 20] = [
    "{",
    "}",
    "[",
    "[[[[[[[[",
    "]",
    "\"",
    "\\",
    "\\u0034",
    "\\ud83d\\ude00",
    ",",
    ":",
    "/",
    "\"id\":",
    "42",
    "\"42\"",
    LOCAL,
    "\"/images/42\"",
    "%2e",
    ".",
    "\n",
];

const JSON_WORDS: [&str; 24] = [
    "{",
    "}",
    "[",
    "[[[[[[[[",
    "]",
    "\"",
    "\\ud800",
    "\\u0000",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "9223372036854775808",
    "1e999",
    "\"Before\":",
    "\"Parents\": [\"a\"]",
    "\"Timeout\": \"1ms\",",
    "\"take-both-keep-order\"",
    "\"take-one\"",
    "\"Concurrent\": \"take-before\",",
    "{\"Id\": \"z\", \"Kind\": \"set\", \"Site\": \"s\", \"Time\": 3, \"Parents\": [\"a\"]},",
    "{\"Before\": \"x\", \"After\": \"y\", \"Result\": \"take-one\"},",
    "\"Force\": true,",
];

fn scope_reads(text: &str) {
    let well_placed = |error: ScopeError| {
        let span = error.span;
        assert!(text.get(span.start..span.end).is_some(), "{span:?} in {text:?}");
        assert!(!error.to_string().is_empty());
    };
    match scope::parse(text) {
        Ok(scope) => {
            let printed = scope.to_string();
            assert!(printed.len() > MAX_LENGTH || scope::parse(&printed) == Ok(scope));
        }
        Err(error) => well_placed(error),
    }
    match scope::parse_place(text) {
        Ok(place) => {
            let printed = place.to_string();
            assert!(printed.len() > MAX_LENGTH || scope::parse_place(&printed) == Ok(place));
        }
        Err(error) => well_placed(error),
    }
}

fn config_reads(text: &str) {
    if let Ok(config) = Config::from_json(text) {
        for finding in matrix::check(&config.matrix) {
            assert!(!finding.explain().title.is_empty());
        }
        assert_eq!(Config::from_json(&config.to_json().to_string()), Ok(config));
    }
}

fn history_plays(text: &str) {
    let Ok(history) = History::from_json(text) else { return };
    assert_eq!(history.block().len() + history.dropped().len(), history.log().len());
    if history.chains() <= FOLLOWED {
        for site in history.sites().into_iter().take(SHOWN) {
            history.story(site);
        }
    }
}

/// What can be read can be written, and is read as the same again.
fn encoding_reads(bytes: &[u8]) {
    let mut names = Names::default();
    if let Ok(message) = wire::decode_message(bytes, &mut names) {
        let again = wire::encode_message(&message).unwrap();
        assert_eq!(wire::decode_message(&again, &mut names), Ok(message));
    }
    if let Ok(durable) = wire::decode_durable(bytes, &mut names) {
        let again = wire::encode_durable(&durable).unwrap();
        assert_eq!(wire::decode_durable(&again, &mut names), Ok(durable));
    }
}

/// However a body is cut, the same comes out; without known ids, the body itself; and JSON stays JSON.
fn body_passes(bytes: &[u8]) {
    let size = 1 + bytes.len() % 41;
    for format in [Format::Json, Format::Text] {
        let whole = rewritten(bytes, bytes.len().max(1), format, lookup);
        assert_eq!(rewritten(bytes, size, format, lookup), whole, "in chunks of {size}");
        assert_eq!(rewritten(bytes, size, format, |_| None), bytes);
        let is_json = |bytes| serde_json::from_slice::<Value>(bytes).is_ok();
        assert!(format == Format::Text || !is_json(bytes) || is_json(&whole));
    }
}

fn rewritten(
    bytes: &[u8],
    size: usize,
    format: Format,
    lookup: impl Fn(&str) -> Option<&'static str>,
) -> Vec<u8> {
    let context = Context { fields: vec!["id".into()], collections: vec!["images".into()] };
    let mut rewriter = Rewriter::new(lookup, &context.into(), format);
    let mut result = Vec::new();
    for chunk in bytes.chunks(size) {
        result.extend_from_slice(&rewriter.push(&Bytes::copy_from_slice(chunk)));
    }
    result.extend_from_slice(&rewriter.finish());
    result
}

fn lookup(id: &str) -> Option<&'static str> {
    match id {
        LOCAL => Some(META),
        "42" => Some("a \"b\""),
        _ => None,
    }
}

/// Where an id is named, and only there, it is replaced.
fn target_reads(text: &str) {
    for (id, new) in [(LOCAL, META), ("42", "a/b?")] {
        let named = rewrite::segments(text).any(|segment| segment == id);
        let after = rewrite::target(text, id, new);
        assert_eq!(after == text, !named, "{after}");
        assert!(!named || rewrite::segments(&after).any(|segment| segment == new), "{after}");
        if let Some((own, rest)) = rewrite::own_path(text, id) {
            assert!(named && text.starts_with(&format!("{own}{rest}")));
        }
    }
    let service = "s".parse().unwrap();
    assert!(ids::natural_resource(&service, text).is_ok());
    let context = Context { fields: Vec::new(), collections: vec!["images".into()] };
    rewrite::header(text, lookup, &context.into());
}

/// What an answer names can stand in a path, as one segment.
fn creation_reads(text: &str) {
    let (location, body) = text.split_once('\n').unwrap_or((text, ""));
    let mut headers = HeaderMap::new();
    if let Ok(location) = HeaderValue::from_str(location) {
        headers.insert(LOCATION, location);
    }
    let service = Service::new("s".parse().unwrap(), "127.0.0.1:1".parse().unwrap(), None);
    let Some(id) = ids::made(&service.ids, 201, &headers, body.as_bytes()) else { return };
    let target = rewrite::target(&format!("/{META}/x"), META, &id);
    assert!(target.ends_with("/x") && target.split('/').count() == 3, "{target}");
    assert_eq!(rewrite::own_path(&target, &id).map(|(_, rest)| rest), Some("/x"));
}

/// The parts of what can be divided are the whole again; of what is dealt out, in another order.
fn division_reads(text: &str) {
    let Ok(body) = serde_json::from_str::<Value>(text) else { return };
    let rule = |pointer: &str, split, gather| Divide { pointer: pointer.into(), split, gather };
    let weights = Split::Weights(vec![3, 0, 2]);
    let rules = [
        rule("/replicas", Split::Even, Gather::Sum),
        rule("/weighed", weights.clone(), Gather::Sum),
        rule("/stretches", weights, Gather::Concat),
        rule("/rest", Split::Each, Gather::Same),
        rule("/list", Split::Even, Gather::Concat),
    ];
    let fits = |pointer: &str, fits: fn(&Value) -> bool| body.pointer(pointer).is_none_or(fits);
    let divisible = divide::check(&body, &rules).is_ok()
        && fits("/replicas", Value::is_number)
        && fits("/weighed", Value::is_number)
        && fits("/stretches", Value::is_array)
        && fits("/list", Value::is_array);
    let parts = 1 + text.len() % 5;
    let part = |part| match divide::part(&body, &rules, Share { part, parts }) {
        Part::Divided(value) => value,
        Part::Whole => body.clone(),
    };
    let got = (0..parts).map(|n| (format!("site{n}").parse().unwrap(), part(n))).collect();
    let gathered = gather::whole(got, &rules);
    if !divisible || part(0) == body {
        return;
    }
    let (mut whole, mut body) = (gathered.unwrap(), body.clone());
    for value in [&mut whole, &mut body] {
        if let Some(list) = value.pointer_mut("/list").and_then(Value::as_array_mut) {
            list.sort_by_key(Value::to_string);
        }
    }
    assert_eq!(whole, body);
}

/// A reader of text takes the bytes as far as they are one.
fn as_text(read: impl Fn(&str) + RefUnwindSafe) -> impl Fn(&[u8]) + RefUnwindSafe {
    move |bytes| read(&String::from_utf8_lossy(bytes))
}

/// How long a target runs here: `FUZZ_SECONDS`, or a moment.
fn time() -> Duration {
    seconds().map_or(Duration::from_millis(700), Duration::from_secs)
}

fn seconds() -> Option<u64> {
    env::var("FUZZ_SECONDS").ok()?.parse().ok()
}

/// The files of a folder among the crates.
fn files(folder: &str) -> impl Iterator<Item = String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(folder);
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_none_or(|extension| extension != "rs"));
    paths.sort();
    paths.into_iter().map(|path| fs::read_to_string(path).unwrap())
}

/// A reader, and what its nonsense is made from.
struct Target<'a, R> {
    seeds: Vec<Vec<u8>>,
    words: &'a [&'a str],
    read: R,
    /// Whether time counts.
    timed: bool,
}

impl<'a, R: Fn(&[u8])> Target<'a, R> {
    /// A target whose valid inputs have been read once.
    fn new(
        seeds: impl IntoIterator<Item = impl Into<Vec<u8>>>,
        words: &'a [&'a str],
        read: R,
    ) -> Self {
        let seeds: Vec<Vec<u8>> = seeds.into_iter().map(Into::into).collect();
        assert!(!seeds.is_empty());
        for seed in &seeds {
            read(seed);
        }
        Self { seeds, words, read, timed: seconds().is_some() }
    }

    fn run(&self, script: &[u8]) {
        within_time(self.timed, &self.input(script), &self.read);
    }

    /// What a script amounts to.
    fn input(&self, script: &[u8]) -> Vec<u8> {
        let mut script = Script(script);
        let first = script.byte();
        if first == 0 {
            return script.0.to_vec();
        }
        let mut input = self.seeds[usize::from(first) % self.seeds.len()].clone();
        // A few at most: what is changed everywhere gets nowhere.
        for _ in 0..script.byte() % 12 {
            let how = script.byte() % 8;
            let at = script.place(input.len());
            let end = (at + script.length()).min(input.len());
            match how {
                0 if at < input.len() => input[at] ^= 1 << (script.byte() % 8),
                1 if at < input.len() => input[at] = script.byte(),
                2 => input.truncate(at),
                3 => drop(input.drain(at..end)),
                // More of the same, sometimes a great deal more.
                4 => {
                    let times = 1 << (script.byte() % 13);
                    let piece = input[at..end].repeat(times);
                    input.splice(at..at, piece);
                }
                5 => {
                    let word = self.words[usize::from(script.byte()) % self.words.len()];
                    input.splice(at..at, word.bytes());
                }
                // A piece of a valid input, in place of one.
                _ => {
                    let other = &self.seeds[usize::from(script.byte()) % self.seeds.len()];
                    let from = script.place(other.len());
                    let to = (from + script.length()).min(other.len());
                    input.splice(at..end, other[from..to].iter().copied());
                }
            }
            input.truncate(LONGEST);
        }
        input
    }
}

/// Reads an input; if time counts, in good time.
fn within_time(timed: bool, input: &[u8], read: &impl Fn(&[u8])) {
    let spent = || {
        let start = Instant::now();
        read(input);
        start.elapsed()
    };
    // Others use the machine too: what is slow must be slow three times.
    let slow = spent() >= SLOWEST && timed && spent() >= SLOWEST && spent() >= SLOWEST;
    assert!(!slow, "slow: {}", String::from_utf8_lossy(input));
}

/// A history of few or many kinds, sites and chains, with any matrix.
fn made_up(script: &mut Script<'_>) -> String {
    let kinds = 1 + usize::from(script.byte()) % 40;
    let sites = 1 + usize::from(script.byte()) % 40;
    let operations = 1 + script.number() % 700;
    // One of so many operations knows of no other.
    let apart = 1 + usize::from(script.byte());
    let results = Take::WORDS.map(|(word, _)| word);
    let mut entries = Vec::new();
    for _ in 0..script.number() % 200 {
        let (before, after) = (usize::from(script.byte()) % kinds, script.number() % kinds);
        let result = results[usize::from(script.byte()) % results.len()];
        entries.push(format!(r#"{{"Before":"k{before}","After":"k{after}","Result":"{result}"}}"#));
    }
    let mut length = entries.iter().map(String::len).sum::<usize>() + 100;
    let mut items = Vec::new();
    for n in 0..operations {
        let (kind, site) = (script.number() % kinds, usize::from(script.byte()) % sites);
        let time = script.number() % 1000;
        let parents: Vec<String> = (0..script.number() % 3)
            .filter(|_| n > 0 && n % apart != 0)
            .map(|_| format!("\"{}\"", n - 1 - script.number() % n.min(sites)))
            .collect();
        let parents = parents.join(",");
        let item = format!(
            r#"{{"Id":"{n}","Kind":"k{kind}","Site":"s{site}","Time":{time},"Parents":[{parents}],"Void":{}}}"#,
            script.byte() == 1
        );
        length += item.len() + 1;
        if length > LONGEST {
            break;
        }
        items.push(item);
    }
    let (entries, items) = (entries.join(","), items.join(","));
    format!(r#"{{"ResolutionMatrix":[{entries}],"Reset":"x","Operations":[{items}]}}"#)
}

/// Bytes that say what to do; zeros, when they are used up.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> usize {
        (usize::from(self.byte()) << 8) | usize::from(self.byte())
    }

    /// A place up to the end.
    fn place(&mut self, end: usize) -> usize {
        (self.number() * (end + 1)) >> 16
    }

    /// A length, more often a short one.
    fn length(&mut self) -> usize {
        let bits = self.byte() % 10;
        self.number() & ((1 << bits) - 1)
    }
}
