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
    let rows: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .map(|kind| format!(r#"{{"Before": "{kind}", "After": "{kind}", "Result": "take-one"}}"#))
        .collect();
    let path = std::env::temp_dir().join(format!("cheops-many-{}.json", std::process::id()));
    std::fs::write(&path, format!(r#"{{"ResolutionMatrix": [{}]}}"#, rows.join(","))).unwrap();
    let (code, out, _) = run(path.to_str().unwrap(), &[]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(code, Some(0));
    let outline = outline(&out);
    assert_eq!(outline.len(), 5, "{out}");
    assert_eq!(outline[3], "warning: no entry for 3 more pairs; the same holds there");
    assert_eq!(outline[4], "6 warnings");
    assert!(out.contains("    `b` and `c`, `b` and `d`, `c` and `d`\n"), "{out}");
}
