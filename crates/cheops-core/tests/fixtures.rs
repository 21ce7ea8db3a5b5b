//! Stories that an operator can read, and what must come of them: one text file a case, in
//! `tests/fixtures`. Its README explains the format.
//!
//! A story is played by real replicas on virtual sites. At each `expect`, what the sites know and
//! what their applications have seen is written in the words of the file, and compared with it.
//! Whatever the file says, sites that know the same must say the same, and while no link is cut
//! they must all know the same.
//!
//! `FIXTURE=name` plays the files whose names contain that. `UPDATE=1` writes what came out into
//! the files that fail, so that a person reviews the difference.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

#[path = "fixtures/runner/format.rs"]
mod format;
#[path = "fixtures/runner/stage.rs"]
mod stage;
mod support;
#[path = "fixtures/runner/value.rs"]
mod value;
#[path = "fixtures/runner/view.rs"]
mod view;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use format::{Act, Aspect, Problem, plain, read};
use stage::Stage;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn stories() -> Vec<PathBuf> {
    let wanted = std::env::var("FIXTURE").unwrap_or_default();
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| {
            path.extension().is_some_and(|ext| ext == "txt") && name(path).contains(&wanted)
        })
        .collect();
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Plays a story. Nothing if all went as expected; else what did not, and the text as it would
/// be right.
fn play(path: &Path, text: &str) -> Option<(String, Option<String>)> {
    let problem = |Problem { line, what }| format!("{}:{line}: {what}\n", name(path));
    let fixture = match read(text) {
        Ok(fixture) => fixture,
        Err(found) => return Some((problem(found), None)),
    };
    let found = match Stage::new(&fixture).play() {
        Ok(found) => found,
        Err(found) => return Some((problem(found), None)),
    };
    let mut raw: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut report = String::new();
    let expects = fixture.steps.iter().filter_map(|step| match &step.act {
        Act::Expect(expect) => Some((step.line, expect)),
        _ => None,
    });
    // From the last on, so that the places of those before stay right.
    for ((line, expect), found) in expects.zip(&found).collect::<Vec<_>>().into_iter().rev() {
        if expect.lines != *found {
            let differs = difference(&expect.lines, found);
            report =
                format!("{}:{line}: expected (-) and found (+)\n{differs}{report}", name(path));
            let written = written(&raw[expect.body.clone()], found);
            raw.splice(expect.body.clone(), written);
        }
    }
    (!report.is_empty()).then(|| (report, Some(raw.join("\n") + "\n")))
}

fn difference(expected: &[String], found: &[String]) -> String {
    let gone = expected.iter().filter(|line| !found.contains(line)).map(|line| ('-', line));
    let here = found.iter().map(|line| (if expected.contains(line) { ' ' } else { '+' }, line));
    let mut text = String::new();
    for (mark, line) in gone.chain(here) {
        let _ = writeln!(text, "  {mark} {line}");
    }
    if expected.len() == found.len() && found.iter().all(|line| expected.contains(line)) {
        text += "  (the same lines, in another order)\n";
    }
    text
}

/// What was found as lines of a file. Lines that were right stay as they are, with their comments.
fn written(before: &[String], found: &[String]) -> Vec<String> {
    let comments = before.iter().filter(|line| line.trim_start().starts_with('#')).cloned();
    let parts = found.iter().map(|line| {
        let aspect = Aspect::of(line).map_or("", Aspect::as_str);
        let (who, text) = line.split_once(aspect).unwrap_or(("", line));
        (format!("{who}{aspect}"), text.trim_start())
    });
    let parts: Vec<(String, &str)> = parts.collect();
    let width = parts.iter().map(|(head, _)| head.len()).max().unwrap_or(0);
    let lines = found.iter().zip(parts).map(|(line, (head, text))| {
        let same = before.iter().find(|old| plain(old) == *line);
        same.cloned().unwrap_or_else(|| format!("  {head:<width$}  {text}"))
    });
    comments.chain(lines).collect()
}

#[test]
fn every_story_ends_as_its_file_says() {
    let update = std::env::var("UPDATE").is_ok_and(|value| value == "1");
    let files = stories();
    assert!(!files.is_empty(), "no fixture has that name");
    let mut failed = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        if let Some((report, right)) = play(path, &text) {
            if let Some(right) = right.filter(|_| update) {
                fs::write(path, right).unwrap();
            }
            failed.push(report);
        }
    }
    let count = failed.len();
    let hint =
        if update { "They were rewritten where they could be." } else { "UPDATE=1 rewrites them." };
    assert!(
        failed.is_empty(),
        "{count} of {} failed. {hint}\n\n{}",
        files.len(),
        failed.join("\n")
    );
}

#[test]
fn the_readme_lists_every_story_once() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    for path in stories() {
        let name = name(&path);
        let count = readme.matches(&format!("({name})")).count();
        assert_eq!(count, 1, "{name} in README.md");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let start = "sites a b\nmatrix\n  set then set: take-one\n";
    for (text, line, part) in [
        ("", 1, "there is no `sites` line"),
        ("sites a\na set 1 as x\n", 2, "nothing is expected"),
        ("sites a\nmatrix\n  set, set: take-one\n", 3, "an entry reads"),
        ("sites a\nmatrix\n  set then set: take-two\n", 3, "take-both-agreed-order"),
        ("sites a\nc set 1 as x\n", 2, "`c` is neither a site (a)"),
        ("sites a\na set 1\n", 2, "a command has a name"),
        ("sites a\na put 1 as x\n", 2, "a command is one of set"),
        ("sites a\na set 1 as x, hard\n", 2, "`hard` is none of"),
        ("sites a\na set 1 as x\n  block x\n", 3, "`a` has no indented lines"),
        ("sites a\nexpect\n  nothing at all\n", 3, "has one of these words"),
        ("sites a\nclock a 2h\n", 2, "begins with + or -"),
        ("sites a\nwait long\n", 2, "a duration is a number and a unit"),
        ("sites a\ncut a\n", 2, "`cut all`"),
        ("sites block\n", 1, "has a meaning of its own"),
    ] {
        let problem = read(text).unwrap_err();
        assert_eq!(problem.line, line, "{text}{problem:?}");
        assert!(problem.what.contains(part), "{text}{problem:?}");
    }
    let story = format!("{start}a set 1 as x\na set 2 as x\nexpect\n  block x\n");
    let fixture = read(&story).unwrap();
    let problem = Stage::new(&fixture).play().unwrap_err();
    assert_eq!(problem, Problem { line: 5, what: "there is a `x` already".to_owned() });
}
