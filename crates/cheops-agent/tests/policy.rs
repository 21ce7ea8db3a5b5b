//! What a site's policy lets run, with real processes: programs without a shell, users, variables,
//! limits and paths.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use cheops_agent::{config::Config, policy::Asker};
use cheops_core::{
    operation::{Action, Attachment},
    plan::Outcome,
    replica::Reply,
};
use site::{Plan, Site};
use tempfile::TempDir;

#[path = "support/site.rs"]
mod site;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheops-test-runner");
/// A user that nobody else is.
const USER: u32 = 54_321;

/// A site with this policy. `WORK` in it is where commands run.
fn site(policy: &str) -> (TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    let work = directory.path().join("work");
    fs::create_dir(&work).unwrap();
    fs::set_permissions(&work, fs::Permissions::from_mode(0o777)).unwrap();
    let policy = policy.replace("WORK", work.to_str().unwrap());
    let mut plan = Plan::new(directory.path(), PROGRAM);
    let text = format!("site = 'site1'\n{policy}");
    plan.config.policy = Config::from_toml(&text, directory.path()).unwrap().policy;
    (directory, plan.start())
}

/// A site that lets any shell command run on these terms.
fn on_terms(terms: &str) -> (TempDir, Site) {
    site(&format!(
        "[[policy.rule]]\nname = 'terms'\ndecision = 'allow'\nallow_any_shell_command = true\n{terms}"
    ))
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can become another user");
    }
    root
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

async fn exec(site: &Site, id: &str, line: &str) -> Reply {
    site.exec(id, line, None).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_shell_its_signs_are_denied_or_mean_nothing() {
    let (directory, site) = site(
        "[[policy.rule]]\nname = 'echo alone'\ndecision = 'allow'\ncommands = [{ program = '/bin/echo', arguments = ['...'] }]",
    );
    for (n, (line, outcome, output)) in [
        ("echo a b", Outcome::Ok, "a b\n"),
        ("echo 'a; touch x' \"b | c\" \\$HOME", Outcome::Ok, "a; touch x b | c $HOME\n"),
        ("echo {id}", Outcome::Ok, "r2\n"),
        ("echo a; touch WORK/x", Outcome::Denied, "`;` at column 7"),
        ("echo a && touch WORK/x", Outcome::Denied, "`&` at column 8"),
        ("echo a | tee WORK/x", Outcome::Denied, "`|` at column 8"),
        ("echo a > WORK/x", Outcome::Denied, "`>` at column 8"),
        ("echo $(touch WORK/x)", Outcome::Denied, "`$` at column 6"),
        ("echo `touch WORK/x`", Outcome::Denied, "``` at column 6"),
        ("echo a\ntouch WORK/x", Outcome::Denied, "`\\n` at column 7"),
        ("touch WORK/x", Outcome::Denied, "no rule of the policy of `site1`"),
        ("sh -c 'touch WORK/x'", Outcome::Denied, "no rule of the policy of `site1`"),
    ]
    .into_iter()
    .enumerate()
    {
        let line = line.replace("WORK", site.config.work.to_str().unwrap());
        let reply = exec(&site, &format!("r{n}"), &line).await;
        assert_eq!(reply.outcome, outcome, "{line}: {}", reply.output);
        if outcome == Outcome::Ok {
            assert_eq!(&*reply.output, output, "{line}");
        } else {
            assert!(reply.output.starts_with("denied by rule `default`: "), "{}", reply.output);
            assert!(reply.output.contains(output), "{line}: {}", reply.output);
        }
        assert_eq!(reply.attempt, 1);
    }
    assert_eq!(names(&site.config.work), [""; 0], "nothing was made");
    assert!(directory.path().join("work").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_one_argument_and_stays_in_its_directory_whatever_its_name() {
    let (_directory, site) = site(
        "[[policy.rule]]\nname = 'cat files'\ndecision = 'allow'\ncommands = [{ program = '/bin/cat', arguments = ['{file}'] }]",
    );
    let secret = site.config.work.join("secret");
    fs::write(&secret, "secret").unwrap();
    let content = futures_util::stream::iter([Ok::<_, String>("content".into())]);
    let (content, length) = site.files.put(content).await.unwrap();
    for (n, (name, line, outcome, output)) in [
        ("a", "cat {a}", Outcome::Ok, "content"),
        ("my file; rm *", "cat '{my file; rm *}'", Outcome::Ok, "content"),
        ("my file; rm *", "cat {my file; rm *}", Outcome::Ok, "content"),
        ("-n", "cat {-n}", Outcome::Ok, "content"),
        ("../../x", "cat {../../x}", Outcome::Ko, "can't be the name of an attached file"),
        ("..", "cat {..}", Outcome::Ko, "can't be the name of an attached file"),
        ("/etc/x", "cat {/etc/x}", Outcome::Ko, "can't be the name of an attached file"),
        ("a", "cat {a}/../../../work/secret", Outcome::Denied, "denied by rule"),
        ("a", "cat secret", Outcome::Denied, "denied by rule"),
        ("a", "cat {a} secret", Outcome::Denied, "denied by rule"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = Attachment { name: name.into(), content, length };
        let action = Action::Command { line: line.into(), files: [file].into() };
        let reply = site.submit(site.request(&format!("r{n}"), action, &[])).await;
        assert_eq!(reply.outcome, outcome, "{line}: {}", reply.output);
        assert!(reply.output.contains(output), "{line}: {}", reply.output);
        assert!(!reply.output.contains("secret"), "{line}: {}", reply.output);
    }
    assert_eq!(names(&site.config.work), ["secret"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_a_resource_itself_is_asked_about_as_well() {
    let (_directory, site) = site(
        "[[policy.rule]]\nname = 'operations'\ndecision = 'allow'\nauthors = ['test']\nallow_any_shell_command = true\n\
         [[policy.rule]]\nname = 'looking'\ndecision = 'allow'\nkinds = ['@show']\ncommands = [{ program = 'echo', arguments = ['{id}'] }]",
    );
    assert_eq!(exec(&site, "r", "echo a; echo b").await.outcome, Outcome::Ok);
    let shown = async |line: &str, asker: Option<Asker>| {
        let limit = Duration::from_secs(10);
        let report = site.runner.show(&"r".parse().unwrap(), line, asker, limit).await;
        (report.outcome, report.output.to_string())
    };
    let show = async |line: &str| shown(line, None).await;
    assert_eq!(show("echo {id}").await, (Outcome::Ok, "r\n".to_owned()));
    let (outcome, output) = show("echo {id}; touch x").await;
    assert_eq!(outcome, Outcome::Denied, "{output}");
    assert_eq!(show("touch x").await.0, Outcome::Denied);
    assert_eq!(names(&site.config.work), [""; 0]);
    // Whoever asks for another command puts his name to it.
    for (author, expected) in [("eve", Outcome::Denied), ("test", Outcome::Ok)] {
        let asker = Asker { author: Some(author.parse().unwrap()), origin: None };
        assert_eq!(shown("touch x; true", Some(asker)).await.0, expected, "{author}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_a_failure_that_says_so() {
    for terms in ["", "limits = { open_files = 100 }"] {
        let (_directory, site) = site(&format!(
            "[[policy.rule]]\nname = 'r'\ndecision = 'allow'\ncommands = [{{ program = '/no/such' }}]\n{terms}"
        ));
        let reply = exec(&site, "r", "such").await;
        assert_eq!(reply.outcome, Outcome::Ko);
        assert!(reply.output.contains("/no/such"), "{}", reply.output);
        assert!(reply.output.contains("No such file"), "{}", reply.output);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_the_variables_of_its_rule_and_no_others() {
    let (_directory, site) = site(
        "[[policy.rule]]\nname = 'r'\ndecision = 'allow'\ncommands = [{ program = '/usr/bin/env' }]\nenvironment = { keep = ['PATH'], set = { LANG = 'C' } }",
    );
    let reply = exec(&site, "r", "env").await;
    let mut seen: Vec<&str> =
        reply.output.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        ["CHEOPS_ID", "CHEOPS_OPERATION", "CHEOPS_SITE", "CHEOPS_TYPE", "LANG", "PATH"],
        "{}",
        reply.output
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_as_the_user_of_its_rule_and_can_not_go_back() {
    if !is_root() {
        return;
    }
    let (_directory, site) = on_terms(&format!("user = '{USER}:{USER}'"));
    let reply = exec(&site, "r", "id -u; id -G; echo x > made; cat /etc/shadow 2>&1; true").await;
    assert_eq!(reply.outcome, Outcome::Ok, "{}", reply.output);
    assert!(reply.output.starts_with(&format!("{USER}\n{USER}\n")), "{}", reply.output);
    assert!(reply.output.contains("ermission denied"), "{}", reply.output);
    let reply = exec(&site, "s", "grep NoNewPrivs /proc/self/status").await;
    assert_eq!(&*reply.output, "NoNewPrivs:\t1\n");
    // It can still be ended when its time is over.
    let reply = site.exec("t", "trap '' TERM; sleep 71", Some(Duration::from_millis(200))).await;
    assert!(reply.output.ends_with("timed out after 200ms"), "{}", reply.output);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_really_limit() {
    // The limit, what breaks it, what is heard of that, and what stays within it.
    for (limits, line, expected, within) in [
        ("cpu = '1s'", "while :; do :; done", "ended by signal 24", "true"),
        (
            "memory = 100000000",
            "dd if=/dev/zero of=/dev/null bs=300M count=1",
            "exit code 1",
            "dd if=/dev/zero of=/dev/null bs=1M count=1",
        ),
        (
            "file_size = 10000",
            "dd if=/dev/zero of=big bs=1000 count=100",
            "exit code 153",
            "dd if=/dev/zero of=small bs=1000 count=10",
        ),
        (
            "open_files = 16",
            "ulimit -n 1000 && echo raised",
            "exit code 2",
            "ulimit -n | grep -x 16",
        ),
    ] {
        let (_directory, site) = on_terms(&format!("limits = {{ {limits} }}"));
        let reply = exec(&site, "over", line).await;
        assert_eq!(reply.outcome, Outcome::Ko, "{limits}: {}", reply.output);
        assert!(reply.output.ends_with(expected), "{limits}: {}", reply.output);
        let reply = exec(&site, "within", within).await;
        assert_eq!(reply.outcome, Outcome::Ok, "{limits}: {}", reply.output);
        let sizes: Vec<u64> = names(&site.config.work)
            .iter()
            .map(|name| fs::metadata(site.config.work.join(name)).unwrap().len())
            .collect();
        assert!(sizes.iter().all(|size| *size <= 10_000), "{limits}: {sizes:?}");
        // The same without limits does not break.
        if !limits.starts_with("cpu") && !limits.starts_with("open") {
            let (_directory, site) = on_terms("");
            let reply = exec(&site, "free", line).await;
            assert_eq!(reply.outcome, Outcome::Ok, "{limits}: {}", reply.output);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_no_more_processes_than_its_rule_allows() {
    if !is_root() {
        return;
    }
    let user = USER + 1;
    let (_directory, site) =
        on_terms(&format!("user = '{user}:{user}'\nlimits = {{ processes = 4 }}"));
    let many = "for i in 1 2 3 4 5 6 7 8; do sleep 0.5 & done; wait";
    let reply = exec(&site, "over", many).await;
    assert_eq!(reply.outcome, Outcome::Ko, "{}", reply.output);
    assert!(reply.output.contains("fork"), "{}", reply.output);
    let (_directory, free) = on_terms(&format!("user = '{}:{}'", user + 1, user + 1));
    assert_eq!(exec(&free, "free", many).await.outcome, Outcome::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_touches_the_paths_of_its_rule_and_no_others() {
    let lsm = fs::read_to_string("/sys/kernel/security/lsm").ok();
    if lsm.is_some_and(|lsm| !lsm.contains("landlock")) {
        eprintln!("skipped: the kernel has no Landlock (/sys/kernel/security/lsm)");
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::write(outside.path().join("shown"), "shown").unwrap();
    let out = outside.path().display();
    let (_directory, site) = on_terms(&format!(
        "landlock = {{ read = ['/usr', '/bin', '/lib', '/lib64', '{out}/shown'], write = ['WORK'] }}"
    ));
    for (n, (line, is_ok)) in [
        ("echo x > a && cat a".to_owned(), true),
        ("mkdir d && mv a d/b && rm -r d".to_owned(), true),
        ("echo x > /dev/null".to_owned(), true),
        (format!("cat {out}/shown"), true),
        (format!("echo x >> {out}/shown"), false),
        (format!("cat {out}/secret"), false),
        (format!("ls {out}"), false),
        (format!("echo x > {out}/made"), false),
        (format!("rm {out}/secret"), false),
        (format!("ln -s {out}/secret link && cat link"), false),
        (format!("sh -c 'sh -c \"cat {out}/secret\"'"), false),
        ("cat /etc/passwd".to_owned(), false),
        ("cat /proc/self/status".to_owned(), false),
        ("touch /usr/made".to_owned(), false),
    ]
    .into_iter()
    .enumerate()
    {
        let reply = exec(&site, &format!("r{n}"), &line).await;
        assert_eq!(reply.outcome == Outcome::Ok, is_ok, "{line}: {}", reply.output);
        assert!(!reply.output.contains("secret\n"), "{line}: {}", reply.output);
        if !is_ok {
            assert!(reply.output.contains("ermission denied"), "{line}: {}", reply.output);
        }
    }
    assert_eq!(names(outside.path()), ["secret", "shown"]);
    assert_eq!(fs::read_to_string(outside.path().join("shown")).unwrap(), "shown");
    // Files that came with an operation can be read, and the agent's own can't.
    let content = futures_util::stream::iter([Ok::<_, String>("content".into())]);
    let (content, length) = site.files.put(content).await.unwrap();
    let file = Attachment { name: "my file".into(), content, length };
    let line = "cat {my file} && ! cat $CHEOPS_FILES/../job 2> /dev/null";
    let action = Action::Command { line: line.into(), files: [file].into() };
    let reply = site.submit(site.request("files", action, &[])).await;
    assert_eq!((reply.outcome, &*reply.output), (Outcome::Ok, "content"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_of_several_steps_runs_whole_or_not_at_all() {
    let (_directory, site) = site(
        "[[policy.rule]]\nname = 'touch'\ndecision = 'allow'\ncommands = [{ program = 'touch', arguments = ['*'] }]",
    );
    let steps = |lines: &[&str]| Action::Steps(lines.iter().map(|l| Action::command(*l)).collect());
    let reply = site.submit(site.request("a", steps(&["touch a", "rm a"]), &[])).await;
    assert_eq!(reply.outcome, Outcome::Denied);
    assert_eq!(names(&site.config.work), [""; 0], "the first step was not run either");
    let reply = site.submit(site.request("b", steps(&["touch a", "touch b"]), &[])).await;
    assert_eq!(reply.outcome, Outcome::Ok, "{}", reply.output);
    assert_eq!(names(&site.config.work), ["a", "b"]);
}
