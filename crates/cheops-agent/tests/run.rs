//! Commands, run under the real supervisor by a real node.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_agent::run::{
    Workload,
    left_out::{Kept, LeftOut},
};
use cheops_core::{
    id::OpId,
    matrix,
    operation::{Action, HttpBody, HttpRequest, Names},
    plan::Outcome,
    replica::{Durable, RunId},
};
use site::{Disk, Plan, Site, eventually};
use tempfile::TempDir;

#[path = "support/site.rs"]
mod site;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cheops-test-runner");

fn site() -> (TempDir, Site) {
    site_with(|_| {})
}

fn site_with(change: impl FnOnce(&mut Plan)) -> (TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    let mut plan = Plan::new(directory.path(), PROGRAM);
    change(&mut plan);
    (directory, plan.start())
}

fn run_id(id: &str, number: u64) -> RunId {
    let op = OpId { site: "site1".parse().unwrap(), number };
    RunId { resource: id.parse().unwrap(), op, attempt: 1 }
}

/// The processes whose command line holds this text.
fn processes(text: &str) -> usize {
    let cmdline = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(Result::ok)
        .filter_map(cmdline)
        .filter(|line| String::from_utf8_lossy(line).contains(text))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_says_what_was_printed_and_how_it_ended() {
    let (_directory, site) = site();
    for (n, (line, outcome, output)) in [
        ("echo hello", Outcome::Ok, "hello\n"),
        ("echo out; echo err >&2; echo out", Outcome::Ok, "out\nerr\nout\n"),
        ("true", Outcome::Ok, ""),
        ("echo no; exit 3", Outcome::Ko, "no\nexit code 3"),
        ("kill -9 $$", Outcome::Ko, "ended by signal 9"),
        ("nosuchprogram 2> /dev/null", Outcome::Ko, "exit code 127"),
        ("printf 'a\\377b'", Outcome::Ok, "a\u{fffd}b"),
        ("exec >&- 2>&-; sleep 0.01; true", Outcome::Ok, ""),
        ("cat; echo end of file", Outcome::Ok, "end of file\n"),
        ("read x || echo nothing to read", Outcome::Ok, "nothing to read\n"),
        ("x=1; echo ${x} {}", Outcome::Ok, "1 {}\n"),
        ("echo {id} __ID__", Outcome::Ok, "r10 r10\n"),
        ("echo it\u{2019}s é", Outcome::Ok, "it\u{2019}s é\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let n = if line.contains("{id}") { 10 } else { 100 + n };
        let reply = site.exec(&format!("r{n}"), line, None).await;
        assert_eq!((reply.outcome, &*reply.output), (outcome, output), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_knows_where_and_why_it_runs() {
    let (_directory, site) = site_with(|plan| {
        let name: cheops_core::id::SiteId = "Évry 1".parse().unwrap();
        plan.config = cheops_agent::config::Config::new(name, plan.config.data.clone());
    });
    let line =
        "pwd; echo $CHEOPS_ID,$CHEOPS_SITE,$CHEOPS_OPERATION,$CHEOPS_TYPE,${CHEOPS_FILES-none}";
    let reply = site.exec("a~b", line, None).await;
    let work = fs::canonicalize(&site.config.work).unwrap();
    let expected = format!("{}\na~b,Évry 1,Évry 1:1,do,none\n", work.display());
    assert_eq!(&*reply.output, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_takes_too_long_is_asked_to_end_and_then_made_to() {
    let (directory, site) = site();
    let mark = directory.path().display();
    // One that ends when it is asked, one that does not, and one whose child does not.
    for (id, line, least, most) in [
        ("gentle", format!("echo begun; sleep 71; : {mark}"), 0.3, 2.0),
        (
            "orderly",
            "trap 'sleep 0.2; echo tidied; exit 0' TERM; echo begun; sleep 71 & wait".to_owned(),
            0.5,
            2.0,
        ),
        (
            "stubborn",
            format!("trap '' TERM; echo begun; while :; do sleep 0.1; done; : {mark}"),
            2.3,
            5.0,
        ),
        (
            "child",
            "sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & echo begun; wait".to_owned(),
            2.3,
            5.0,
        ),
    ] {
        let start = Instant::now();
        let reply = site.exec(id, &line, Some(Duration::from_millis(300))).await;
        let took = start.elapsed().as_secs_f64();
        assert_eq!(reply.outcome, Outcome::Ko, "{id}");
        assert!(reply.output.starts_with("begun\n"), "{id}: {}", reply.output);
        assert!(reply.output.ends_with("\ntimed out after 300ms"), "{id}: {}", reply.output);
        assert_eq!(reply.output.contains("tidied"), id == "orderly", "{}", reply.output);
        assert!((least..most).contains(&took), "{id} took {took}");
    }
    assert_eq!(processes(&mark.to_string()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_limit_of_the_site_holds_where_the_resource_has_none() {
    let (_directory, site) =
        site_with(|plan| plan.config.runs.timeout = Duration::from_millis(100));
    let reply = site.exec("r", "sleep 71", None).await;
    assert_eq!(&*reply.output, "timed out after 100ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_the_limit_of_open_files_that_the_agent_was_started_with() {
    let (_directory, site) = site_with(|plan| plan.config.runs.open_files = Some(77));
    let reply = site.exec("r", "ulimit -Sn; echo ${CHEOPS_OPEN_FILES-none}", None).await;
    assert_eq!((reply.outcome, &*reply.output), (Outcome::Ok, "77\nnone\n"));
    let raised = site.exec("r", "ulimit -Sn 78 && ulimit -Sn", None).await;
    assert_eq!(&*raised.output, "78\n", "it may raise it by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gigabyte_of_output_takes_neither_memory_nor_disk() {
    let (_directory, site) = site_with(|plan| {
        plan.config.runs.output = 1_000;
        plan.config.runs.output_file = 1 << 20;
    });
    let start = Instant::now();
    let reply = site.exec("r", "yes | head -c 1G", None).await;
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(reply.outcome, Outcome::Ok);
    let kept = Kept::First { kept: 1 << 20, dropped: (1 << 30) - (1 << 20) };
    let left_out = LeftOut { more: (1 << 30) - 1_000, kept };
    let expected = format!("{}{left_out}", "y\n".repeat(500));
    assert_eq!(&*reply.output, expected);
    let dropped = Some((1 << 30) - (1 << 20));
    let kept = |run: &RunId| site.runner.output(run).unwrap().map(|o| (o.length, o.dropped));
    assert_eq!(kept(&run_id("r", 1)), Some((1 << 20, dropped)));
    let places = || fs::read_dir(site.config.data.join("runs/r")).unwrap().count();

    // The next operation makes the place of this one go; its output stays. What the next prints is
    // in its reply, and goes with its place.
    let next = site.exec("r", "echo short", None).await;
    eventually(async || (places() == 1).then_some(())).await;
    assert_eq!(kept(&run_id("r", 1)), Some((1 << 20, dropped)));
    let short = run_id("r", next.op.number);
    assert_eq!(kept(&short), Some((6, Some(0))));
    site.exec("r", "true", None).await;
    eventually(async || (places() == 1).then_some(())).await;
    assert_eq!(kept(&short), None);

    site.runner.forget(&"r".parse().unwrap());
    eventually(async || kept(&run_id("r", 1)).is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_leaves_behind_does_not_delay_its_reply() {
    let (_directory, site) = site();
    for line in [
        "sleep 72 & echo $! >> left; echo begun",
        "setsid sh -c 'echo $$ >> left; exec sleep 72' & echo begun; \
         until test $(wc -l < left) = 2; do sleep 0.01; done",
        "(trap '' PIPE; echo noise; touch noisy; while :; do echo noise; done) & \
         echo $! >> left; echo begun; until test -e noisy; do sleep 0.01; done",
    ] {
        let start = Instant::now();
        let reply = site.exec("r", line, None).await;
        assert!(start.elapsed() < Duration::from_secs(10), "{line}");
        assert_eq!(reply.outcome, Outcome::Ok, "{line}");
        assert!(reply.output.contains("begun\n"), "{line}: {:.100}", reply.output);
    }
    let left = fs::read_to_string(site.config.work.join("left")).unwrap();
    assert_eq!(left.lines().count(), 3);
    for process in left.lines() {
        let killed = std::process::Command::new("kill").arg("-9").arg(process).status();
        assert!(killed.unwrap().success(), "{process} was still there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_run_in_a_row_until_one_fails() {
    let (_directory, site) = site();
    let steps =
        |lines: &[&str]| Action::Steps(lines.iter().map(|line| Action::command(*line)).collect());
    for (id, action, outcome, output) in [
        ("all", steps(&["echo 1", "echo 2 >&2", "echo 3"]), Outcome::Ok, "1\n2\n3\n"),
        ("some", steps(&["echo 1", "exit 4", "echo 3"]), Outcome::Ko, "1\nexit code 4"),
        ("none", steps(&[]), Outcome::Ok, ""),
    ] {
        let reply = site.submit(site.request(id, action, &[])).await;
        assert_eq!((reply.outcome, &*reply.output), (outcome, output), "{id}");
    }
    let http = Action::Http(Box::new(HttpRequest {
        service: "image".parse().unwrap(),
        method: "PUT".into(),
        target: "/".into(),
        headers: [].into(),
        body: HttpBody::None,
        names: Names::Nothing,
    }));
    let mixed = Action::Steps([Action::command("touch ran"), http].into());
    let reply = site.submit(site.request("http", mixed, &[])).await;
    assert_eq!(reply.outcome, Outcome::Ko);
    assert!(reply.output.starts_with("the service `image` is not known at this site"));
    assert!(!site.config.work.join("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_that_is_not_there_is_a_failure_that_names_it() {
    let (_directory, site) = site_with(|plan| plan.config.runs.shell = "/no/such/shell".into());
    let reply = site.exec("r", "true", None).await;
    assert_eq!(reply.outcome, Outcome::Ko);
    assert!(reply.output.starts_with("/no/such/shell can't be started in "), "{}", reply.output);
    let (_directory, site) = self::site();
    let reply = site.exec("r", &format!(": {}", "x".repeat(200_000)), None).await;
    assert_eq!(reply.outcome, Outcome::Ko);
    assert!(reply.output.contains("Argument list too long"), "{}", reply.output);
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_run_side_by_side_up_to_the_limit_and_each_in_order() {
    let (_directory, site) = site_with(|plan| plan.config.runs.parallel = 3);
    let site = Arc::new(site);
    let mut tasks = Vec::new();
    for n in 0..12 {
        let site = site.clone();
        tasks.push(tokio::spawn(async move {
            let line = "touch on-{id}; until test -e go; do sleep 0.01; done; \
                        ls -d on-* | wc -l >> seen; rm on-{id}; \
                        echo $CHEOPS_OPERATION >> order-{id}";
            let id = format!("r{}", n % 6);
            site.exec(&id, line, None).await.outcome
        }));
    }
    let begun = |name: &fs::DirEntry| name.file_name().as_encoded_bytes().starts_with(b"on-");
    let work = || fs::read_dir(&site.config.work).into_iter().flatten().filter_map(Result::ok);
    eventually(async || (work().filter(begun).count() == 3).then_some(())).await;
    assert_eq!((site.runner.workload().running, site.runner.workload().waiting > 0), (3, true));
    fs::write(site.config.work.join("go"), "").unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Outcome::Ok);
    }
    let seen = fs::read_to_string(site.config.work.join("seen")).unwrap();
    let counts: Vec<u32> = seen.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().max()), (12, Some(&3)));
    let order = fs::read_to_string(site.config.work.join("order-r0")).unwrap();
    let numbers: Vec<u64> =
        order.lines().map(|line| line.parse::<OpId>().unwrap().number).collect();
    assert!(numbers.is_sorted() && numbers.len() == 2, "{numbers:?}");
    eventually(async || (site.runner.workload() == Workload::default()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn show_runs_at_once_and_ends_with_whoever_waits_for_it() {
    let (directory, site) = site_with(|plan| plan.config.runs.output = 100);
    let id = "r".parse().unwrap();
    let second = Duration::from_secs(1);
    let report =
        site.runner.show(&id, "echo {id} in $CHEOPS_SITE; cat; exit 2", None, second).await;
    assert_eq!((report.outcome, &*report.output), (Outcome::Ko, "r in site1\nexit code 2"));
    let report = site.runner.show(&id, "yes | head -c 100M", None, second * 20).await;
    assert_eq!(report.outcome, Outcome::Ok);
    assert!(report.output.ends_with("[104857500 more bytes were printed]"), "{}", report.output);
    let mark = directory.path().display().to_string();
    let line = format!("(sleep 73; : {mark}) & echo shown");
    let report = site.runner.show(&id, &line, None, second * 20).await;
    assert_eq!((report.outcome, &*report.output), (Outcome::Ok, "shown\n"));
    eventually(async || (processes(&mark) == 0).then_some(())).await;

    let line = format!("echo begun; (sleep 73; : {mark}); : {mark}");
    let report = site.runner.show(&id, &line, None, Duration::from_millis(200)).await;
    assert_eq!(&*report.output, "begun\ntimed out after 200ms");
    eventually(async || (processes(&mark) == 0).then_some(())).await;

    {
        let shown = site.runner.show(&id, &line, None, Duration::from_mins(1));
        let running = eventually(async || (processes(&mark) > 0).then_some(()));
        tokio::select! { _ = shown => panic!("it lasts longer"), () = running => {} }
    }
    eventually(async || (processes(&mark) == 0).then_some(())).await;
    assert_eq!(fs::read_dir(site.config.data.join("runs/r")).into_iter().flatten().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_written_down_is_tried_again_until_it_can() {
    let (_directory, site) = site();
    // A file in the way of the place: as good as a full disk.
    let way = site.config.data.join("runs/r");
    fs::write(&way, "").unwrap();
    let exec = site.exec("r", "echo 1 >> ran", None);
    let free = async {
        eventually(async || (site.runner.workload().stuck == 1).then_some(())).await;
        fs::remove_file(&way).unwrap();
    };
    let (reply, ()) = tokio::join!(exec, free);
    assert_eq!(reply.outcome, Outcome::Ok);
    assert_eq!(fs::read_to_string(site.config.work.join("ran")).unwrap(), "1\n");
}

/// A supervisor that is killed, with SIGKILL, while its command runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_supervisor_was_killed_is_ended_and_its_run_is_unknown() {
    let (directory, site) = site();
    let mark = directory.path().display().to_string();
    let line = format!("echo $PPID > supervisor; while :; do sleep 0.1; done; : {mark}");
    let exec = site.exec("r", &line, None);
    let kill = async {
        let process = eventually(async || {
            let text = fs::read_to_string(site.config.work.join("supervisor")).ok()?;
            text.strip_suffix('\n').map(str::to_owned)
        })
        .await;
        std::process::Command::new("kill").arg("-9").arg(process).status().unwrap();
    };
    let (reply, ()) = tokio::join!(exec, kill);
    assert_eq!(reply.outcome, Outcome::Unknown);
    assert_eq!(processes(&mark), 0);
}

/// What a site has written that was stopped just after it wrote down the intent to run this.
async fn intended(line: &str, config: matrix::Config) -> Vec<Durable> {
    let (_directory, site) = site();
    let mut submission = site.request("r", Action::command(line), &[]);
    submission.config = Some(config);
    site.submit(submission).await;
    let mut written = site.stop().await.written();
    let intent =
        written.iter().position(|durable| matches!(durable, Durable::Intent { .. })).unwrap();
    written.truncate(intent + 1);
    written
}

fn boots(directory: &Path, id: &str) -> std::path::PathBuf {
    let source = directory.join("boot_id");
    fs::write(&source, id).unwrap();
    source
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_did_not_start_is_started_and_one_in_doubt_is_not() {
    let written = intended("echo 1 >> ran", matrix::Config::default()).await;
    for (before, now, outcome, ran) in [
        (Some("one\n"), "one", Outcome::Ok, true),
        (Some("one\n"), "two", Outcome::Unknown, false),
        (None, "one", Outcome::Unknown, false),
    ] {
        let (_directory, site) = site_with(|plan| {
            plan.log = Disk::of(written.clone());
            fs::create_dir_all(plan.config.data.join("runs")).unwrap();
            if let Some(before) = before {
                fs::write(plan.config.data.join("runs/@boot"), before).unwrap();
            }
            plan.boot_id = Some(boots(&plan.config.data, now));
        });
        assert_eq!(site.reply("r", 1).await.outcome, outcome, "{before:?} {now}");
        assert_eq!(site.config.work.join("ran").exists(), ran, "{before:?} {now}");
        let note = site.config.data.join("runs/@boot");
        let noted =
            eventually(async || fs::read_to_string(&note).ok().filter(|id| id.starts_with(now)));
        noted.await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_decides_about_a_run_in_doubt_and_one_that_can_not_does_not() {
    for (check, outcome, ran) in [
        ("test $CHEOPS_OPERATION = site1:1", Outcome::Ok, false),
        ("test $CHEOPS_OPERATION = site2:7", Outcome::Ok, true),
        ("echo >> asked; nosuchprogram", Outcome::Unknown, false),
    ] {
        let config = matrix::Config { check: Some(check.to_owned()), ..matrix::Config::default() };
        let written = intended("echo 1 >> ran", config).await;
        let (_directory, site) = site_with(|plan| plan.log = Disk::of(written));
        let reply = site.reply("r", 1).await;
        assert_eq!(reply.outcome, outcome, "{check}: {}", reply.output);
        assert_eq!(site.config.work.join("ran").exists(), ran, "{check}");
        if outcome == Outcome::Unknown {
            assert!(reply.output.contains("could not tell (exit code 127)"), "{}", reply.output);
            let asked = fs::read_to_string(site.config.work.join("asked")).unwrap();
            assert_eq!(asked.lines().count(), 3);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clearing_never_overlaps_an_earlier_one() {
    // An operation that falls to a reset at another site makes the site clear and run again; here
    // the log says that the clearing had begun.
    let reset = "mkdir busy || echo overlap >> wrong; echo >> cleared; \
                 until test -e go; do sleep 0.01; done; rmdir busy";
    let config = matrix::Config { reset: Some(reset.to_owned()), ..matrix::Config::default() };
    let mut written = intended("echo 1 >> ran", config).await;
    written.pop();
    written.push(Durable::Clearing("r".parse().unwrap()));
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let mut plan = Plan::new(directory.path(), PROGRAM);
        plan.log = Disk::of(written.clone());
        plan.start()
    };
    let first = start();
    let cleared = first.config.work.join("cleared");
    eventually(async || cleared.exists().then_some(())).await;
    first.stop().await;
    let second = start();
    eventually(async || (second.runner.workload() != Workload::default()).then_some(())).await;
    fs::write(second.config.work.join("go"), "").unwrap();
    assert_eq!(second.reply("r", 1).await.outcome, Outcome::Ok);
    assert_eq!(fs::read_to_string(&cleared).unwrap().lines().count(), 1, "it was waited for");
    assert!(!second.config.work.join("wrong").exists());
    assert_eq!(fs::read_to_string(second.config.work.join("ran")).unwrap(), "1\n");
    let written = second.stop().await.written();
    assert!(written.iter().any(|durable| matches!(durable, Durable::Cleared(_))));
}
