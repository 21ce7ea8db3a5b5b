//! `cheops scope` as an operator meets it: the real program, its two streams and its exit status.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

/// Exit status, standard output, standard error.
fn scope(arguments: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_cheops")).arg("scope").args(arguments).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn says(arguments: &[&str]) -> String {
    let (exit, stdout, stderr) = scope(arguments);
    assert_eq!((exit, stderr.as_str()), (0, ""), "{arguments:?}");
    stdout
}

fn complains(arguments: &[&str]) -> String {
    let (exit, stdout, stderr) = scope(arguments);
    assert_eq!((exit, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
    stderr
}

/// A file of this test, with this text.
fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn explains_a_scope() {
    assert_eq!(
        says(&["{image:site1&(site2;site3),compute:site1}"]),
        "\
compute: site1, image: site1 & (site2; site3)

compute
└─ site1

image
└─ &  a copy on each
   ├─ site1
   └─ ;  the first that works
      ├─ site2
      └─ site3

compute: runs on site1
image: written on site1 and on site2, or on site3 if site2 can't be reached; read from the nearest of them
Every other service runs where the request is.
"
    );
}

#[test]
fn shows_the_sites_that_are_meant_now() {
    let sites = file("meant.txt", "site1 # the first\nsite2\nsite3\nsite1 <-> site2: 8ms\n");
    assert_eq!(
        says(&["image: around(site1, 10ms), log: *", "--sites", &sites, "--here", "site2"]),
        "\
image: around(site1, 10ms), log: *

image
└─ around(site1, 10ms)  the nearest that works
   ├─ site1  0s
   └─ site2  8ms

log
└─ *  every known site
   ├─ site1
   ├─ site2
   └─ site3

image: runs on the site nearest to site1 that can be reached, within 10ms (now site1 at 0s and site2 at 8ms)
  a read at site2: to site1, otherwise here
  a write at site2: to site1, otherwise here
log: written on every known site (now site1, site2 and site3); read from the nearest of them
  a read at site2: here, otherwise to site1, otherwise to site3
  a write at site2: copies on site1, site2 and site3
Every other service runs where the request is.
"
    );
}

#[test]
fn without_a_list_of_sites_it_says_what_that_leaves_open() {
    let said = says(&["a: site1; site2, b: *", "--here", "site2"]);
    let end = "\
a: runs on site1, or on site2 if site1 can't be reached
  a read at site2: to site1, otherwise here
  a write at site2: to site1, otherwise here
b: written on every known site; read from the nearest of them
  a read at site2: depends on the list of sites; give it with --sites
  a write at site2: depends on the list of sites; give it with --sites
Every other service runs where the request is.
";
    assert!(said.ends_with(end), "{said}");
}

#[test]
fn writes_json() {
    let sites =
        file("json.json", r#"{"Sites": ["a", "b", "c"], "RoundTrips": {"a": {"b": "8ms"}}}"#);
    let said =
        says(&["-o", "json", "x: (a & b) % c; around(a, 9ms)", "--sites", &sites, "--here", "c"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        said,
        json!({
            "Scope": "x: a & b % c; around(a, 9ms)",
            "Services": [{
                "Service": "x",
                "Place": "a & b % c; around(a, 9ms)",
                "Tree": {"First": [
                    {"Across": [{"All": [{"Site": "a"}, {"Site": "b"}]}, {"Site": "c"}]},
                    {"Around": {"Site": "a", "Within": "9ms", "Now": [
                        {"Site": "a", "RoundTrip": "0s"},
                        {"Site": "b", "RoundTrip": "8ms"},
                    ]}},
                ]},
                "Words": "runs in parts (the prime one on a and on b; another on c), or on the site nearest \
                          to a that can be reached, within 9ms (now a at 0s and b at 8ms) if one of these \
                          can't be reached",
                "Here": "c",
                "Read": [{"Across": [["a", "b"], ["c"]]}, {"Forward": "a"}, {"Forward": "b"}],
                "Write": [{"Across": [["a", "b"], ["c"]]}, {"Forward": "a"}, {"Forward": "b"}],
            }],
        })
    );
}

#[test]
fn explains_what_is_sent_once() {
    assert_eq!(
        says(&["image: none( a&b ), log: eventual(a & b)", "--here", "b"]),
        "\
image: none(a & b), log: a & b

image
└─ none  sent once, not recorded
   └─ &  a copy on each
      ├─ a
      └─ b

log
└─ &  a copy on each
   ├─ a
   └─ b

image: written once on a and on b, without a record; read from the nearest of them
  a read at b: here, otherwise to a
  a write at b: once to a and b
log: written on a and on b; read from the nearest of them
  a read at b: here, otherwise to a
  a write at b: copies on a and b
Every other service runs where the request is.
"
    );
    let said = says(&["-o", "json", "x: none(a & b)", "--here", "b"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let service = &said["Services"][0];
    assert_eq!(service["Tree"], json!({"Once": {"All": [{"Site": "a"}, {"Site": "b"}]}}));
    assert_eq!(service["Write"], json!([{"Once": ["a", "b"]}]));
}

#[test]
fn points_at_an_unknown_site() {
    let sites = file("unknown.json", r#"["site1", "site2"]"#);
    assert_eq!(
        complains(&["image: site1 & sitee2", "--sites", &sites]),
        "\
error: Invalid scope
  image: site1 & sitee2
                 ^^^^^^
  Caused by: Unknown site `sitee2`

hint: Did you mean `site2`?
"
    );
    assert_eq!(
        complains(&["image: site1", "--sites", &sites, "--here", "site"]),
        "\
error: Invalid site for `--here`
  site
  ^^^^
  Caused by: Unknown site `site`

hint: Did you mean `site1`?
"
    );
}

#[test]
fn points_at_bad_text() {
    assert_eq!(
        complains(&["image: (site1; site2"]),
        "\
error: Invalid scope
  image: (site1; site2
         ^
  Caused by: This `(` is never closed

hint: Add a `)` after the last site of the group
"
    );
    assert_eq!(
        complains(&["image: site1,\ncompute: around(site1, 10mss)"]),
        "\
error: Invalid scope
  2 | compute: around(site1, 10mss)
                               ^^^
  Caused by: Unknown unit `mss`

hint: A duration is a number and a unit (d, h, m, s, ms, us, ns): `10ms`, `1.5s`, `2m`, `1h30m`
"
    );
    assert_eq!(
        complains(&["image: a & (b % c)"]),
        "\
error: Invalid scope
  image: a & (b % c)
              ^^^^^
  Caused by: A copy cannot itself be spread over several sites

hint: Spread first, then copy each part: `(site1 & site2) % site3`
"
    );
    assert_eq!(
        complains(&["image: none(a % b)"]),
        "\
error: Invalid scope
  image: none(a % b)
              ^^^^^
  Caused by: What is sent once cannot be in parts

hint: A resource in parts is always recorded: `site1 % site2`; what is sent once goes whole to each \
         site: `none(site1 & site2)`
"
    );
}

#[test]
fn points_at_a_bad_list_of_sites() {
    let sites = file("bad.txt", "# ours\nsite1\nsite2\nsite1 <-> sitte2: 8ms\n");
    let expected = "
  4 | site1 <-> sitte2: 8ms
                ^^^^^^
  Caused by: The site `sitte2` is not in the list

hint: Did you mean `site2`?
";
    let complaint = complains(&["image: site1", "--sites", &sites]);
    assert!(complaint.ends_with(expected), "{complaint}");

    let sites = file("bad.json", r#"{"Sites": ["a"], "RoundTripz": {}}"#);
    let complaint = complains(&["image: a", "--sites", &sites]);
    assert!(complaint.contains("  Caused by: At $.RoundTripz: "), "{complaint}");
}

#[test]
fn a_file_that_cannot_be_read_is_bad_input() {
    let latin1 = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("latin1.txt");
    fs::write(&latin1, b"\xc9vry\n").unwrap();
    for (file, hint) in [
        ("/no/such/file", "Check the path; `-` reads standard input"),
        ("/", "Give a file in that directory"),
        (latin1.to_str().unwrap(), "Save the file as UTF-8"),
    ] {
        let complaint = complains(&["image: a", "--sites", file]);
        let start = format!("error: Cannot read the list of sites `{file}`\n  Caused by: ");
        assert!(complaint.starts_with(&start), "{complaint}");
        assert!(complaint.contains(&format!("\n\nhint: {hint}")), "{complaint}");
    }
}

#[test]
fn a_list_of_sites_can_come_from_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["scope", "image: *", "--sites", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\xef\xbb\xbfsite1\nsite2\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("(now site1 and site2)"), "{said}");
}

#[test]
fn two_round_trips_for_one_pair_are_one_too_many() {
    let sites = file("two.txt", "a\nb\na <-> b: 8ms\nb <-> a: 9ms\n");
    let complaint = complains(&["image: a", "--sites", &sites]);
    let expected = "
  4 | b <-> a: 9ms
      ^^^^^^^^^^^^
  Caused by: `b <-> a: 9ms` and `a <-> b: 8ms` in line 3 differ about one pair of sites

hint: Delete one of the two lines
";
    assert!(complaint.ends_with(expected), "{complaint}");
}

#[test]
fn odd_input_is_never_a_panic() {
    let deep = "(".repeat(60_000);
    let long = "a".repeat(100_000);
    for text in ["", " ", "{", "}", ":", "\u{1b}[2J: a", "a: \u{202e}b", &deep, &long] {
        let complaint = complains(&[text]);
        assert!(complaint.starts_with("error: Invalid scope\n"), "{complaint}");
        assert!(!complaint.contains('\u{1b}') && !complaint.contains('\u{202e}'), "{complaint:?}");
    }
    let (exit, _, _) = scope(&[]);
    assert_eq!(exit, 2);
}

#[test]
fn a_reader_that_goes_away_is_not_a_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["scope", "image: a"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
