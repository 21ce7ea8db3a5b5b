//! `cheops matrix play`, as an operator meets it: the program itself, on files.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

fn play(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cheops"));
    command.args(["matrix", "play"]).args(arguments);
    command
}

fn fixture(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "histories", name].iter().collect();
    path.to_str().unwrap().to_owned()
}

/// What the program says about a fixture that it accepts.
fn accepted(name: &str, more: &[&str]) -> String {
    let output = play(&[&fixture(name)]).args(more).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
    assert!(output.status.success(), "{name}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the program does with a text on its standard input.
fn piped(text: &[u8], more: &[&str]) -> Output {
    let mut child = play(&["-"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text).unwrap();
    child.wait_with_output().unwrap()
}

/// One part of the text, by its first line.
fn part(text: &str, title: &str) -> String {
    let mut parts = text.split("\n\n").filter(|part| part.starts_with(title));
    parts.next().unwrap_or_else(|| panic!("there is no part {title} in\n{text}")).to_owned()
}

#[test]
fn what_histories_amount_to() {
    let void = |id: &str, site: &str| json!([id, null, format!("void: failed at {site}")]);
    let set_won = "set over inc (matrix row 2)";
    let replaced = "reset: set replaced what came before (matrix row 4)";
    let forced = "force: add replaced what came before";
    for (name, block, dropped) in [
        (
            "redis.json",
            json!(["init", "set 29"]),
            json!([["inc at 2", "set 29", set_won], ["inc at 3", "set 29", set_won]]),
        ),
        (
            "redis-take-one.json",
            json!(["set 29"]),
            json!([
                ["init", "set 29", replaced],
                ["inc at 2", "set 29", set_won],
                ["inc at 3", "set 29", set_won]
            ]),
        ),
        ("redis-take-both.json", json!(["init", "set 29", "inc at 2", "inc at 3"]), json!([])),
        (
            "take-one.json",
            json!(["y"]),
            json!([
                ["x", "y", "the later of two apply (take-one, matrix row 1)"],
                ["z", "y", "the later of two apply (take-one, matrix row 1)"]
            ]),
        ),
        (
            "circle.json",
            json!(["third"]),
            json!([
                ["first", "third", "c over a (matrix row 3)"],
                [
                    "second",
                    "third",
                    "the later of b and c, whose entries form a circle (matrix row 2)"
                ]
            ]),
        ),
        ("void.json", json!(["good"]), json!([void("bad", "site2"), void("also bad", "site3")])),
        (
            "force.json",
            json!(["repair", "c"]),
            json!([["a", "repair", forced], ["b", "repair", forced]]),
        ),
        ("append.json", json!(["a", "b"]), json!([])),
    ] {
        let dropped: Vec<Value> = dropped
            .as_array()
            .unwrap()
            .iter()
            .map(|row| json!({"Id": row[0], "By": row[1], "Because": row[2]}))
            .collect();
        let said: Value = serde_json::from_str(&accepted(name, &["-o", "json"])).unwrap();
        assert_eq!(said, json!({"Block": block, "Dropped": dropped}), "{name}");
    }
}

#[test]
fn the_fields_stand_in_the_order_in_which_they_are_read() {
    assert_eq!(
        accepted("void.json", &["-o", "json"]),
        r#"{
  "Block": ["good"],
  "Dropped": [
    {"Id": "bad", "By": null, "Because": "void: failed at site2"},
    {"Id": "also bad", "By": null, "Because": "void: failed at site3"}
  ]
}
"#
    );
    assert_eq!(
        accepted("append.json", &["-o", "json"]),
        "{\n  \"Block\": [\"a\",\"b\"],\n  \"Dropped\": []\n}\n"
    );
}

#[test]
fn the_whole_page() {
    assert_eq!(
        accepted("redis-take-both.json", &[]),
        "\
History (● in the block, ○ dropped, × void)
  ●        init      set  site1  1
  ├──╮
  │  ●     inc at 2  inc  site2  2
  ├─────╮
  │     ●  inc at 3  inc  site3  3
  ●        set 29    set  site1  4

Block (4 of 4 operations)
  1.  init      set  site1  1
  2.  set 29    set  site1  4
  3.  inc at 2  inc  site2  2
  4.  inc at 3  inc  site3  3

Dropped
  none

site1 runs
  apart   init      set  replaces the state
          set 29    set  replaces the state
  joined  inc at 2  inc
          inc at 3  inc

site2 runs
  apart   init      set  replaces the state
          inc at 2  inc
  joined  set 29    set  replaces the state
          inc at 2  inc  again
          inc at 3  inc

site3 runs
  apart   init      set  replaces the state
          inc at 3  inc
  joined  set 29    set  replaces the state
          inc at 2  inc
          inc at 3  inc  again
"
    );
}

#[test]
fn the_drawing_forks_joins_and_crosses() {
    assert_eq!(
        part(&accepted("weave.json", &[]), "History"),
        "\
History (● in the block, ○ dropped, × void)
  ●              a  inc  site1  1
  ├─────╮
  │     ●        b  inc  site2  2
  ├─────│──╮
  │     │  ●     c  inc  site3  3
  ├─────│──│──╮
  ●     │  │  │  d  inc  site1  4
  │     ├──┤  │
  │     ●  │  │  e  inc  site2  5
  ├─────│──┤  │
  │     │  ●  │  f  inc  site3  6
  ├─────╯  │  │
  ●        │  │  g  inc  site1  7
  │  ╭─────│──╯
  │  ●     │     h  inc  site1  8
  ╰──┴──┬──╯
        ●        i  inc  site2  9"
    );
    assert_eq!(
        part(&accepted("force.json", &[]), "History"),
        "\
History (● in the block, ○ dropped, × void)
  ○     a       add  site1  1
  │  ○  b       add  site2  2
  ├──┤
  ●  │  repair  add  site1  3  forced: ends what came before
     ●  c       add  site2  4"
    );
}

#[test]
fn what_a_site_runs_has_its_remarks() {
    for (name, site, expected) in [
        (
            "append.json",
            "site2",
            "site2 runs
  apart   b       add
  joined  (stop)       needs a decision: what it ran can't be undone, and there is no Reset command\n",
        ),
        (
            "append-reset.json",
            "site2",
            "site2 runs
  apart   b        add
  joined  (clear)       runs the Reset command
          a        add
          b        add  again\n",
        ),
        (
            "void.json",
            "site2",
            "site2 runs
  apart   good     apply  replaces the state
          bad      apply  fails, and is void everywhere
  joined  nothing",
        ),
    ] {
        assert_eq!(part(&accepted(name, &[]), &format!("{site} runs")), expected, "{name}");
    }
}

#[test]
fn what_is_refused() {
    let at = |path: &str| format!("At $.Operations{path}");
    for (name, cause) in [
        ("bad-parent.json", at("[1].Parents[0]: there is no operation `nobody`")),
        ("bad-self.json", at("[0].Parents[0]: `a` can't be its own parent")),
        (
            "bad-circle.json",
            at("[0].Parents: the parents form a circle: `a` after `c` after `b` after `a`"),
        ),
        (
            "bad-twice.json",
            at("[1]: the id `a` belongs to the operation at $.Operations[0] already"),
        ),
        (
            "bad-time.json",
            at("[0].Time: expected a whole number from -9223372036854775808 to \
                9223372036854775807, found 1.5"),
        ),
        (
            "bad-site.json",
            at("[0].Site: `site1 & site2` is not a site name: only letters, digits, `.`, `-`, `_` \
                and single inner spaces are allowed"),
        ),
        (
            "bad-id.json",
            at("[0].Id: `\\u{7}` is not a name for an operation: control characters are not \
                allowed"),
        ),
        (
            "bad-field.json",
            at("[0].Parent: there is no field `Parent` here; there are `Id`, `Kind`, `Site`, \
                `Time`, `Parents`, `Void` and `Force`"),
        ),
        (
            "bad-word.json",
            "At $.ResolutionMatrix[0].Result: `take-bot` is none of the words that can stand here: \
             `take-one`, `take-both`, `take-both-keep-order`, `take-both-reverse-order` and \
             `take-both-agreed-order`"
                .to_owned(),
        ),
    ] {
        let path = fixture(name);
        for more in [&[][..], &["-o", "json"]] {
            let output = play(&[&path]).args(more).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{name}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{name}");
            let said = String::from_utf8(output.stderr).unwrap();
            let expected = format!("error: Invalid history `{path}`\n  Caused by: {cause}\n");
            assert!(said.starts_with(&expected), "{said}\n{expected}");
        }
    }
}

#[test]
fn a_text_that_is_not_json_is_shown_at_the_place() {
    let comma = std::fs::read_to_string(fixture("bad-json.json")).unwrap();
    for (text, expected) in [
        (
            comma.as_str(),
            "  3 | ]}
      ^
  Caused by: At line 3, column 1: this is not JSON: trailing comma

hint: JSON has double quotes around names and texts, a comma between two items and none after the \
             last, and no comments.
",
        ),
        (
            r#"{"Operations": [], "Operations": []}"#,
            r#"  {"Operations": [], "Operations": []}
                                ^
  Caused by: At line 1, column 31: the field `Operations` is given twice

hint: Delete one of the two.
"#,
        ),
    ] {
        let output = piped(text.as_bytes(), &[]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, format!("error: Invalid history `-`\n{expected}"));
    }
}

#[test]
fn every_refusal_has_a_next_step() {
    let hint = |output: Output| {
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        said.split_once("\nhint: ").unwrap_or_else(|| panic!("no hint in {said}")).1.to_owned()
    };
    for (path, expected) in [
        (fixture("missing.json"), "Check the path; `-` reads standard input\n"),
        (fixture(""), "Give a file in that directory\n"),
        (fixture("bad-parent.json"), "Add that operation, or take it out of the parents.\n"),
        (
            fixture("bad-circle.json"),
            "Parents are what came before. Take one of these out of the parents of another.\n",
        ),
    ] {
        assert_eq!(hint(play(&[&path]).output().unwrap()), expected);
    }
    for (text, expected) in [
        (&b"\xff\xfe"[..], "Save the file as UTF-8"),
        (b" \n", r#"The shortest history is `{"Operations": []}`; is this the right file?"#),
        (b"{}", "Add what happened: \"Operations\": ["),
    ] {
        let said = hint(piped(text, &[]));
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn what_takes_too_long_is_refused() {
    let apart: Vec<Value> = (0..20_001)
        .map(|n| json!({"Id": format!("{n}"), "Kind": "a", "Site": "s", "Time": n}))
        .collect();
    let over = |before: &str, after: &str| json!({"Before": before, "After": after, "Result": "take-both-keep-order"});
    let circle = json!([over("a", "b"), over("b", "c"), over("c", "a")]);
    for (history, cause, hint) in [
        (
            json!({"Operations": apart}),
            "more than 20000 chains that don't know of each other",
            "\nhint: Are parents missing?",
        ),
        (
            json!({"ResolutionMatrix": circle, "Operations": apart[..5001]}),
            "at most 5000 operations; this one has 5001",
            "run `cheops matrix check` on it",
        ),
    ] {
        let output = piped(history.to_string().as_bytes(), &[]);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(cause) && said.contains(hint), "{said}");
    }
}

#[test]
fn nothing_from_the_file_acts_on_the_terminal() {
    let (id, kind) = ("a\u{202e}b\u{200b}c", "k\u{2066}\u{feff}");
    let take_one = json!([{"Before": kind, "After": kind, "Result": "take-one"}]);
    let first = json!({"Id": id, "Kind": kind, "Site": "s", "Time": 1});
    let second = json!({"Id": "second", "Kind": kind, "Site": "t", "Time": 2, "Void": false});
    let history = json!({"ResolutionMatrix": take_one, "Operations": [first, second]}).to_string();
    let text = String::from_utf8(piped(history.as_bytes(), &[]).stdout).unwrap();
    assert!(!text.contains(['\u{202e}', '\u{200b}', '\u{2066}', '\u{feff}']), "{text:?}");
    assert!(text.contains("a\u{fffd}b\u{fffd}c  k\u{fffd}\u{fffd}  s  1"), "{text}");
    // A program gets the id that it can look up.
    let said = piped(history.as_bytes(), &["-o", "json"]).stdout;
    let said: Value = serde_json::from_slice(&said).unwrap();
    assert_eq!(said["Dropped"][0]["Id"], id);
}

#[test]
fn what_cannot_be_read() {
    let missing = play(&[&fixture("missing.json")]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(missing.stdout.is_empty());
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.starts_with("error: Cannot read the history `"), "{said}");
    let deep = "[".repeat(200_000);
    for text in [&b"\xff\xfe"[..], b"", b"[", b"null", b"{}", deep.as_bytes()] {
        let output = piped(text, &[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(output.stderr.starts_with(b"error: "));
    }
}

#[test]
fn standard_input_is_a_file_too() {
    let text = std::fs::read(fixture("redis.json")).unwrap();
    let with_mark = [&b"\xef\xbb\xbf"[..], &text].concat();
    for text in [text, with_mark] {
        let output = piped(&text, &[]);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), accepted("redis.json", &[]));
    }
}

#[test]
fn a_history_without_operations_amounts_to_nothing() {
    let output = piped(br#"{"Operations": []}"#, &[]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "History (● in the block, ○ dropped, × void)\n\nBlock (0 of 0 operations)\n  none\n\n\
         Dropped\n  none\n"
    );
}

#[test]
fn long_histories_are_shortened() {
    let operation = |n: u32| {
        let site = format!("site{n:03}");
        json!({"Id": format!("op{n}"), "Kind": "k", "Site": site, "Time": n})
    };
    let operations: Vec<Value> = (0..100).map(operation).collect();
    let output = piped(json!({"Operations": operations}).to_string().as_bytes(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        part(&text, "History"),
        "History: 100 operations. The drawing is left out, since it is readable for 60 at most."
    );
    assert_eq!(part(&text, "Block (100 of 100 operations)").lines().count(), 1 + 30 + 1 + 10);
    assert!(text.contains("\n\n… 60 more sites …\n\n"), "{text}");

    let operations: Vec<Value> = (0..20_000).map(operation).collect();
    let output = piped(json!({"Operations": operations}).to_string().as_bytes(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("at most 300 can be followed. Are there parents missing?\n"), "{text}");
}
