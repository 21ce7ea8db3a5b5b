//! Hooks that come and go, on disks that fail; a sample for other tests.

use serde_json::json;

use super::*;

/// An event with this id.
pub(crate) fn sample(id: &str) -> HookEvent {
    HookEvent {
        id: id.into(),
        event: "operation.ran".into(),
        at: "2026-11-15T08:33:03.033Z".into(),
        site: "site1".into(),
        told_by: "site1".into(),
        text: "web: operation site1:1 ran at site1".into(),
        summary: false,
        resource: Some("web".into()),
        operation: Some("site1:1".into()),
        kind: Some("set".into()),
        author: Some("ada".into()),
        command: None,
        runs: Vec::new(),
        by: None,
        peer: None,
        next: None,
    }
}

fn open(data: &Path) -> Hooks {
    Hooks::open(&Config::new("site1".parse().unwrap(), data)).unwrap()
}

fn section(name: &str) -> HookSection {
    serde_json::from_value(json!({"name": name, "command": "true"})).unwrap()
}

fn names(hooks: &Hooks) -> Vec<String> {
    hooks.list().into_iter().map(|hook| hook.name).collect()
}

/// A directory where the draft of a file would be: the disk does not take it.
fn block(directory: &Path, file: &str) -> PathBuf {
    let place = directory.join(file);
    fs::create_dir(&place).unwrap();
    place
}

#[tokio::test]
async fn a_disk_that_fails_leaves_a_hook_as_it_was() {
    let data = tempfile::tempdir().unwrap();
    let hooks = open(data.path());
    let directory = data.path().join("hooks");
    hooks.add(section("one")).unwrap();
    hooks.tell(vec![sample("a")]).await;
    let blocked = block(&directory, "added.json.new");
    assert!(matches!(hooks.add(section("two")), Err(HookError::Disk { .. })));
    assert!(matches!(hooks.remove("one"), Err(HookError::Disk { .. })));
    assert_eq!(names(&hooks), ["one"]);
    assert!(hooks.list()[0].added);
    assert!(!directory.join("two.log").exists());
    // It is at work, and is there after a start.
    hooks.tell(vec![sample("b")]).await;
    let told = || hooks.list()[0].delivered + hooks.list()[0].waiting as u64;
    assert_eq!(told(), 2);
    assert_eq!(names(&open(data.path())), ["one"]);
    fs::remove_dir(blocked).unwrap();
    hooks.add(section("two")).unwrap();
    hooks.remove("one").unwrap();
    assert_eq!(names(&hooks), ["two"]);
    assert_eq!(names(&open(data.path())), ["two"]);
    assert!(matches!(hooks.remove("one"), Err(HookError::Unknown(_))));
}

#[tokio::test]
async fn a_hook_with_the_name_of_one_that_is_gone_begins_with_nothing() {
    let data = tempfile::tempdir().unwrap();
    let place = data.path().join("hooks/one.log");
    let hooks = open(data.path());
    let failing = json!({"name": "one", "command": "false"});
    let failing = || serde_json::from_value(failing.clone()).unwrap();
    hooks.add(failing()).unwrap();
    hooks.tell(vec![sample("a")]).await;
    assert_eq!(hooks.list()[0].waiting, 1);
    let left = fs::read(&place).unwrap();
    hooks.remove("one").unwrap();
    assert!(!place.exists());
    // A crash between the two would have left it.
    fs::write(&place, &left).unwrap();
    hooks.add(failing()).unwrap();
    assert_eq!(hooks.list()[0].waiting, 0);
    hooks.remove("one").unwrap();
    fs::write(&place, &left).unwrap();
    drop(open(data.path()));
    assert!(!place.exists());
}

#[tokio::test]
async fn a_hook_that_this_version_cannot_read_is_kept_and_can_be_removed() {
    let data = tempfile::tempdir().unwrap();
    fs::create_dir(data.path().join("hooks")).unwrap();
    let file = data.path().join("hooks/added.json");
    fs::write(&file, r#"{"new": {"name": "new", "on": ["moon.landed"], "command": "true"}}"#)
        .unwrap();
    let hooks = open(data.path());
    assert!(names(&hooks).is_empty());
    hooks.add(section("one")).unwrap();
    assert!(fs::read_to_string(&file).unwrap().contains("moon.landed"));
    assert!(matches!(hooks.add(section("new")), Err(HookError::Known(_))));
    hooks.remove("new").unwrap();
    assert!(!fs::read_to_string(&file).unwrap().contains("moon.landed"));
}

#[tokio::test]
async fn a_problem_says_for_how_long_a_hook_has_told_nothing() {
    let data = tempfile::tempdir().unwrap();
    let hooks = open(data.path());
    let failing = json!({"name": "one", "command": "echo no >&2; false"});
    hooks.add(serde_json::from_value(failing).unwrap()).unwrap();
    let mut hook = hooks.list().remove(0);
    let here = "site1".parse().unwrap();
    let minute = Duration::from_mins(1);
    assert!(trouble(&here, "one", &hook, minute).is_none(), "it is well");
    hook.last_error = Some("no".to_owned());
    hook.waiting = 2;
    for (span, expected) in [
        (Duration::from_millis(59_999), "less than a minute"),
        (minute, "1m"),
        (minute * 119, "119m"),
        (minute * 120, "2h"),
        (minute * 60 * 47, "47h"),
        (minute * 60 * 48, "2d"),
    ] {
        let found = trouble(&here, "one", &hook, span).unwrap();
        let expected = format!("the hook `one` has told nothing for {expected}: no; 2 events wait");
        assert_eq!(found.text, expected);
    }
    hooks.tell(vec![sample("a")]).await;
    let deadline = Instant::now() + minute;
    let text = loop {
        if let Some(found) = hooks.troubles().pop() {
            break found.text;
        }
        assert!(Instant::now() < deadline, "it does not fail");
        tokio::task::yield_now().await;
    };
    assert!(text.contains("has told nothing for less than a minute: "), "{text}");
}
