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

#[path = "../crates/cheops-agent/tests/golden/mod.rs"]
mod golden;

use std::{
    env, fs,
    panic::RefUnwindSafe,
    path::Path,
    time::{Duration, Instant},
};

use cheops_agent::wire::{self, Names};
use cheops_core::{
    history::History,
    matrix::{self, Config, Take},
    scope::{self, MAX_LENGTH, ScopeError},
};

/// The longest input, in bytes.
const LONGEST: usize = 64 * 1024;

/// The longest that an input of that length may take in an optimised build. What comes nearest is a
/// history of 500 operations at one site that don't know of each other: its story takes over a
/// second, which is the cube of their number at work.
const SLOWEST: Duration = Duration::from_secs(3);

/// As in `cheops matrix play`: more chains are not followed, and more sites are not shown.
const FOLLOWED: usize = 500;
const SHOWN: usize = 40;

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
