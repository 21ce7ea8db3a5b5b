//! `cheops matrix check`, as an operator meets it: the program itself, on files.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

/// Runs the program on a fixture: exit status, standard output, standard error.
fn run(fixture: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "matrices", fixture].iter().collect();
    let output = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["matrix", "check"])
        .arg(path)
        .args(more)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Runs the program on a matrix of these rows.
fn checked(name: &str, rows: &[String], more: &[&str]) -> (Option<i32>, String, String) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json"));
    std::fs::write(&path, format!(r#"{{"ResolutionMatrix": [{}]}}"#, rows.join(","))).unwrap();
    run(path.to_str().unwrap(), more)
}

/// A row of a matrix.
fn row(before: &str, after: &str, result: &str) -> String {
    serde_json::json!({"Before": before, "After": after, "Result": result}).to_string()
}

/// The lines at the margin: one for each finding, and the counts.
fn outline(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect()
}

#[test]
fn findings_and_exit_status() {
    for (fixture, status, expected) in [
        ("table4.json", 0, vec!["No findings: its one kind has its entry."]),
        ("table5.json", 0, vec!["warning: (`set`, `set`): no entry for two `set`", "1 warning"]),
        ("table6.json", 0, vec!["warning: (`add`, `add`): no entry for two `add`", "1 warning"]),
        (
            "no-mirror.json",
            0,
            vec![
                "warning: (`set`, `inc`), row 1: `set` then `inc` has an entry, `inc` then `set` \
                 has none",
                "1 warning",
            ],
        ),
        (
            "contradiction.json",
            1,
            vec![
                "problem: (`set`, `inc`), rows 1 and 2: row 1 says `take-both-keep-order` and row \
                 2, its mirror, says `take-both-keep-order`",
                "1 problem",
            ],
        ),
        (
            "concurrent.json",
            1,
            vec![
                "problem: (`set`, `inc`), rows 1 and 2: row 1 and row 2, its mirror, differ in \
                 \"Concurrent\"",
                "1 problem",
            ],
        ),
        (
            "twice.json",
            1,
            vec![
                "problem: (`apply`, `apply`), rows 1 and 2: the same pair has entries that differ",
                "1 problem",
            ],
        ),
        (
            "circle.json",
            1,
            vec![
                "problem: (`paper`, `rock`), rows 1, 2 and 3: kinds win over each other in a circle",
                "1 problem",
            ],
        ),
    ] {
        let (code, out, err) = run(fixture, &[]);
        assert_eq!(outline(&out), expected, "{fixture}");
        assert_eq!((code, err.as_str()), (Some(status), ""), "{fixture}");
    }
}

#[test]
fn a_finding_in_full() {
    let (_, out, _) = run("table6.json", &[]);
    assert_eq!(
        out,
        r#"warning: (`add`, `add`): no entry for two `add`
    When two sites each receive `add` before they hear of each other, both stay and each site
    may run them in another order: if the order matters, the sites end up different. `add` after
    `add` at one site is simply added.
    If both must run, in the same order at every site:
      {"Before": "add", "After": "add", "Result": "take-both-agreed-order"}
    If the later one makes the earlier one pointless:
      {"Before": "add", "After": "add", "Result": "take-one"}
    If the order makes no difference:
      {"Before": "add", "After": "add", "Result": "take-both"}

1 warning
"#
    );
}

#[test]
fn for_programs() {
    let (code, out, _) = run("contradiction.json", &["-o", "json"]);
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(1));
    assert_eq!(value["Problems"], 1);
    assert_eq!(value["Findings"][0]["What"], "contradiction");
    assert_eq!(value["Findings"][0]["Rows"], serde_json::json!([1, 2]));
    assert_eq!(
        value["Findings"][0]["Advice"][0]["Entries"][0]["Result"],
        "take-both-reverse-order"
    );
}

#[test]
fn bad_input_is_told_where_it_is() {
    for (fixture, expected) in [
        ("unknown-word.json", vec!["$.ResolutionMatrix[1].Result", "`take-both-reverse-order`?"]),
        ("not-json.json", vec!["line 4, column 3", "trailing comma"]),
        ("is-not-there.json", vec!["annot read the configuration", "is-not-there.json"]),
    ] {
        let (code, out, err) = run(fixture, &[]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{fixture}");
        for part in expected {
            assert!(err.contains(part), "{fixture}: {part:?} is not in {err}");
        }
    }
}

#[test]
fn standard_input_is_a_file_too() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["matrix", "check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"{}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "No findings, and no entries: all operations stay, in any order.\n"
    );
}

#[test]
fn many_pairs_without_an_entry_are_named_and_not_all_explained() {
    let rows = ["a", "b", "c", "d"].map(|kind| row(kind, kind, "take-one"));
    let (code, out, _) = checked("many", &rows, &[]);
    assert_eq!(code, Some(0));
    let outline = outline(&out);
    assert_eq!(outline.len(), 5, "{out}");
    assert_eq!(outline[3], "warning: no entry for 3 more pairs; the same holds there");
    assert_eq!(outline[4], "6 warnings");
    assert!(out.contains("    `b` and `c`, `b` and `d`, `c` and `d`\n"), "{out}");
}

#[test]
fn what_is_said_about_a_large_matrix_stays_readable() {
    let kinds: Vec<String> = (0..100).map(|n| format!("kind{n:02}")).collect();
    let alone: Vec<String> = kinds.iter().map(|kind| row(kind, kind, "take-one")).collect();
    let (code, out, _) = checked("pairs", &alone, &[]);
    assert_eq!(code, Some(0));
    assert!(out.lines().count() < 60, "{out}");
    assert!(out.contains("warning: no entry for 4947 more pairs; the same holds there\n"), "{out}");
    assert!(out.contains(" 4937 more\n\n4950 warnings\n"), "{out}");

    let same = vec![row("a", "a", "take-one"); 100_000];
    let (code, out, _) = checked("same", &same, &[]);
    assert_eq!(code, Some(0));
    assert!(out.len() < 2_000, "{} bytes", out.len());
    assert!(
        out.starts_with(
            "warning: (`a`, `a`), rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 99990 more: the same"
        ),
        "{out}"
    );
    assert!(out.contains("delete rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, and 99989 more"), "{out}");
    let (_, out, _) = checked("same", &same, &["-o", "json"]);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(said["Findings"][0]["RowCount"], 100_000);
    assert_eq!(said["Findings"][0]["Rows"].as_array().unwrap().len(), 1000);

    let mut one_way = alone;
    for (n, before) in kinds.iter().enumerate() {
        one_way.extend(kinds[n + 1..].iter().map(|after| row(before, after, "take-both")));
    }
    let (_, out, _) = checked("one-way", &one_way, &[]);
    assert!(out.lines().count() < 100, "{out}");
    assert!(out.contains("\n4940 notes more of the sorts above; correct those first"), "{out}");
    assert!(out.ends_with("\n4950 notes\n"), "{out}");
}

#[test]
fn nothing_from_the_file_acts_on_the_terminal() {
    let kind = "a\u{202e}\u{e0001}b";
    let (_, out, _) = checked("signs", &[row(kind, "c", "take-one")], &[]);
    assert!(!out.contains(['\u{202e}', '\u{e0001}']), "{out:?}");
    assert!(out.contains("`a\u{fffd}\u{fffd}b` then `c` has an entry"), "{out}");
    // What is proposed is the same kind, and not one that only looks alike.
    let escaped = r#"{"Before": "c", "After": "a\u202e\udb40\udc01b", "Result": "take-one"}"#;
    assert!(out.contains(escaped), "{out}");
    let entry: serde_json::Value = serde_json::from_str(escaped).unwrap();
    assert_eq!(entry["After"], kind);
}

#[test]
fn a_repeated_field_is_refused() {
    let twice = r#"{"Before": "a", "After": "a", "Result": "take-one", "Result": "take-both"}"#;
    let cased = r#"{"Before": "a", "After": "a", "Result": "take-one", "result": "take-both"}"#;
    for (name, row, cause) in [
        ("repeated", twice, "line 1, column 82: the field `Result` is given twice\n"),
        ("cased", cased, "the field `Result` is given twice, in two spellings\n"),
    ] {
        let (code, out, err) = checked(name, &[row.to_owned()], &[]);
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(err.contains(cause), "{err}");
        assert!(err.ends_with("\nhint: Delete one of the two.\n"), "{err}");
    }
}
