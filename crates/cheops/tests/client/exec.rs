//! `exec`, its original spelling, `--dry-run`, and `delete`.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use cheops_agent::{
    api::model::{
        Answer, Dropped, PlannedStep, Receipt, Rehearsal, RunStatus, Stored, Submit, Submitted,
    },
    run::left_out::{Kept, LeftOut},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    samples::{counter, run},
    support::{Agent, Reply, Said, json, lines, problem},
};

/// Much less than the time that a site has to say what it runs.
const AT_ONCE: Duration = Duration::from_secs(2);

fn accepted() -> Answer {
    Answer::Accepted { operation: "site1:7".into(), sites: vec!["site1".into(), "DC 2".into()] }
}

fn all_ok() -> Vec<Answer> {
    vec![
        accepted(),
        Answer::Running { site: "DC 2".into() },
        Answer::Reply(run("site1", RunStatus::Ok, "done\n")),
        Answer::Reply(run("DC 2", RunStatus::Ok, "a\nb\nc\n")),
        Answer::Done,
    ]
}

fn agent(answers: Vec<Answer>) -> Agent {
    Agent::start(move |seen| match seen.path.as_str() {
        "/api/v1/files" => {
            json(&Stored { content: "ab".repeat(32), length: seen.body.len() as u64 })
        }
        _ => lines(&answers),
    })
}

const EXEC: [&str; 7] =
    ["exec", "--id", "web", "--sites", "site1 & DC 2", "--command", "echo hi > {id}"];

#[test]
fn a_command_that_goes_well_everywhere() {
    let agent = agent(all_ok());
    let said = agent.cheops(&EXEC).fine();
    assert_eq!(
        said,
        "site1  OK  12ms  done\n\
         DC 2   OK  12ms  a … 2 lines more\n\
         web: site1:7 is OK on DC 2 and site1\n"
    );
    let seen = agent.last();
    assert_eq!(seen.line(), "POST /api/v1/resources/web/operations");
    assert!(seen.accept.starts_with("application/x-ndjson"), "{}", seen.accept);
    let submit: Submit = serde_json::from_slice(&seen.body).unwrap();
    let expected = Submit {
        command: "echo hi > {id}".into(),
        sites: Some("site1 & DC 2".into()),
        wait: Some("30s".into()),
        ..Submit::default()
    };
    assert_eq!(submit, expected);
}

#[test]
fn wide_output_shows_all_that_was_printed() {
    let said = agent(all_ok()).cheops(&[&EXEC[..], &["-o", "wide"]].concat()).fine();
    assert!(said.contains("DC 2   OK  12ms\n    a\n    b\n    c\n"), "{said}");
}

#[test]
fn how_a_command_failed_and_what_is_left_out_is_told() {
    let left_out = LeftOut { more: 4096, kept: Kept::All };
    let cut = &format!("a\nb\n{left_out}\nexit code 2");
    let answers = vec![
        accepted(),
        Answer::Reply(run("site1", RunStatus::Ok, "")),
        Answer::Reply(run("DC 2", RunStatus::Ko, cut)),
        Answer::Done,
    ];
    let said = agent(answers.clone()).cheops(&EXEC);
    let fetch = "cheops output --site 'DC 2' web site1:7";
    let expected = format!("DC 2   KO (exit 2)  12ms  a … 4KiB more: {fetch}\n");
    assert!(said.out.contains(&expected), "{}", said.out);
    let said = agent(answers).cheops(&[&EXEC[..], &["-o", "wide"]].concat());
    let expected = format!("DC 2   KO (exit 2)  12ms\n    a\n    b\n    … 4KiB more: {fetch}\n");
    assert!(said.out.contains(&expected), "{}", said.out);
}

#[test]
fn the_spelling_of_the_original_program() {
    let agent = agent(all_ok());
    let line = ["--id", "web", "--sites", "site1&DC 2", "--command", "true", "--type", "set"];
    assert_eq!(agent.cheops(&line).code, Some(0));
    assert_eq!(agent.last().line(), "POST /api/v1/resources/web/operations");
    assert_eq!(agent.last().json()["kind"], "set");
    assert_eq!(agent.last().json()["sites"], "site1&DC 2");
}

#[test]
fn every_option_reaches_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("app.yml"), "kind: Pod").unwrap();
    fs::write(directory.path().join("matrix.json"), r#"{"Show": "cat {id}"}"#).unwrap();
    let agent = agent(all_ok());
    let line = [
        "exec",
        "--id",
        "web",
        "--command",
        "apply {app.yml} {conf}",
        "--type",
        "apply",
        "--config",
        "matrix.json",
        "--file",
        "conf=app.yml",
        "--force",
        "--keep-going",
        "--wait",
        "1m",
        "--key",
        "k1",
        "--author",
        "ada",
    ];
    let output = agent.command(&line).current_dir(&directory).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let files = [
        json!({"name": "conf", "content": "ab".repeat(32), "length": 9}),
        json!({"name": "app.yml", "content": "ab".repeat(32), "length": 9}),
    ];
    assert_eq!(
        agent.last().json(),
        json!({
            "command": "apply {app.yml} {conf}", "kind": "apply", "config": {"Show": "cat {id}"},
            "files": files, "force": true, "keep_going": true, "wait": "1m", "key": "k1",
            "author": "ada", "dry_run": false,
        })
    );
    let uploads = agent.asked().into_iter().filter(|line| line == "POST /api/v1/files").count();
    assert_eq!(uploads, 2);
}

#[test]
fn the_author_is_the_user_if_nobody_says_otherwise() {
    let agent = agent(all_ok());
    agent.command(&EXEC).env("USER", "grace").output().unwrap();
    assert_eq!(agent.last().json()["author"], "grace");
    agent.command(&EXEC).env("USER", "grace").env("CHEOPS_AUTHOR", "ada").output().unwrap();
    assert_eq!(agent.last().json()["author"], "ada");
}

#[test]
fn what_is_not_ok_is_told_with_the_next_step_and_an_exit_status() {
    let ko = Answer::Reply(run("DC 2", RunStatus::Ko, "\u{1b}[2Jno such thing\n"));
    let ok = Answer::Reply(run("site1", RunStatus::Ok, ""));
    for (answers, code, expected) in [
        (
            vec![accepted(), ok.clone(), ko, Answer::Done],
            1,
            "site1  OK  12ms\nDC 2   KO  12ms  \u{fffd}[2Jno such thing\n\
             web: site1:7 is OK on 1 of 2 sites\nDC 2 failed; look with: cheops describe web\n",
        ),
        (
            vec![
                accepted(),
                ok.clone(),
                Answer::Timeout { sites: vec!["DC 2".into()] },
                Answer::Done,
            ],
            3,
            "site1  OK  12ms\nDC 2   TIMEOUT\nweb: site1:7 is OK on 1 of 2 sites\n\
             DC 2 did not answer within 30s; the work goes on: cheops describe web\n",
        ),
        (
            vec![accepted(), Answer::Superseded { by: "site2:7".into() }, Answer::Done],
            1,
            "web: site1:7 is set aside: site2:7 won\nwhy: cheops describe web\n",
        ),
        (
            vec![
                accepted(),
                Answer::Reply(run("site1", RunStatus::Ko, "exit code 3")),
                Answer::Done,
            ],
            1,
            "site1  KO (exit 3)  12ms\nDC 2   VOID\nweb: site1:7 is void: it failed at site1, which \
             received it, so it takes no part anywhere\ncorrect the command and send it again\n",
        ),
        // The agent goes away after it has accepted the operation: that is kept.
        (
            vec![accepted(), ok],
            3,
            "site1  OK  12ms\nDC 2   TIMEOUT\nweb: site1:7 is OK on 1 of 2 sites\n\
             the agent broke off, so nothing was heard of DC 2; what was accepted is kept: \
             cheops describe web\n",
        ),
    ] {
        let said = agent(answers).cheops(&EXEC);
        assert_eq!((said.out.as_str(), said.err.as_str()), (expected, ""));
        assert_eq!(said.code, Some(code), "{expected}");
    }
}

#[test]
fn an_answer_that_is_torn_before_the_operation_was_accepted_is_a_failure() {
    let agent = Agent::start(|_| Reply::Torn(Vec::new()));
    let said = agent.cheops(&EXEC);
    assert_eq!((said.code, said.out.as_str()), (Some(4), ""), "{}", said.err);
    let agent = Agent::start(|_| Reply::Torn(vec![serde_json::to_value(accepted()).unwrap()]));
    let said = agent.cheops(&EXEC);
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(said.out.contains("what was accepted is kept"), "{}", said.out);
}

#[test]
fn who_does_not_wait_is_content_with_an_accepted_operation() {
    let answers = vec![
        accepted(),
        Answer::Timeout { sites: vec!["site1".into(), "DC 2".into()] },
        Answer::Done,
    ];
    let agent = agent(answers);
    let said = agent.cheops(&[&EXEC[..], &["--wait", "0s"]].concat()).fine();
    assert_eq!(said, "web: site1:7 is accepted; follow it with: cheops watch web\n");
    assert_eq!(agent.last().json()["wait"], "0s");
}

#[test]
fn a_command_to_copy_is_quoted_where_the_shell_needs_it() {
    for (id, expected) in [("~web", "cheops watch '~web'\n"), ("-web", "cheops watch -- -web\n")] {
        let id = format!("--id={id}");
        let line = ["exec", &id, "--sites", "site1 & DC 2", "--command", "true", "--wait", "0s"];
        let said = agent(vec![accepted(), Answer::Done]).cheops(&line).fine();
        assert!(said.ends_with(expected), "{said}");
    }
}

#[test]
fn sites_that_are_not_those_asked_for_are_told() {
    for more in [&[][..], &["-o", "json"]] {
        let line = ["exec", "--id", "web", "--sites", "site1 & site3", "--command", "true"];
        let said = agent(all_ok()).cheops(&[&line[..], more].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        assert_eq!(said.err, "web exists on DC 2 and site1; --sites does not change that\n");
    }
}

#[test]
fn a_result_that_can_not_be_written_is_not_one_that_was_refused() {
    for more in [&[][..], &["-o", "json"]] {
        let agent = agent(all_ok());
        let mut command = agent.command(&[&EXEC[..], more].concat());
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let said: Said = command.stdout(full).output().unwrap().into();
        assert_eq!(said.code, Some(1), "{}", said.err);
        assert!(said.err.contains("Cannot write the result"), "{}", said.err);
        let expected = "hint: It was accepted as site1:7 and goes on: cheops describe web\n";
        assert!(said.err.ends_with(expected), "{}", said.err);
    }
}

#[test]
fn what_an_agent_can_not_do_is_an_exit_status_that_says_whether_it_was_done() {
    for (status, title, code) in [
        (502, "unreachable", 2),
        (503, "too many connections", 2),
        (507, "disk full", 2),
        (502, "broke off", 3),
        (504, "no answer", 3),
        (503, "stopping", 3),
        (507, "not confirmed", 3),
        (500, "broken", 1),
    ] {
        let agent = Agent::start(move |_| problem(status, title, "", "wait"));
        assert_eq!(agent.cheops(&EXEC).code, Some(code), "{title}");
        let told = problem(status, title, "", "wait");
        let Reply::Problem(told) = told else { panic!("no problem") };
        let said = self::agent(vec![Answer::Error(told.clone())]).cheops(&EXEC);
        assert_eq!(said.code, Some(code), "{title}, told in a line");
        let said = self::agent(vec![accepted(), Answer::Error(told)]).cheops(&EXEC);
        assert_eq!(said.code, Some(if code == 3 { 3 } else { 1 }), "{title}, once accepted");
        assert!(said.err.contains("was accepted as site1:7 and goes on"), "{}", said.err);
    }
}

#[test]
fn programs_get_one_document() {
    let agent = agent(all_ok());
    let said = agent.cheops(&[&EXEC[..], &["-o", "json"]].concat()).fine();
    let submitted: Submitted = serde_json::from_str(&said).unwrap();
    assert_eq!(submitted.operation, "site1:7");
    let sites: Vec<&str> = submitted.runs.iter().map(|run| run.site.as_str()).collect();
    assert_eq!(sites, ["DC 2", "site1"]);
    assert_eq!(agent.cheops(&[&EXEC[..], &["-o", "name"]].concat()).fine(), "operation/site1:7\n");
    let said = agent.cheops(&[&EXEC[..], &["-o", "yaml"]].concat()).fine();
    assert!(
        said.starts_with("operation: \"site1:7\"\n") || said.starts_with("operation: site1:7\n"),
        "{said}"
    );
}

#[test]
fn bad_input_is_refused_before_an_agent_is_asked() {
    let agent = agent(all_ok());
    for (line, expected) in [
        (&["exec", "--id", "a/b", "--command", "true"][..], "Invalid id of a resource"),
        (&["exec", "--id", "a", "--sites", "b &", "--command", "true"], "Invalid sites"),
        (
            &["exec", "--id", "a", "--command", "true", "--wait", "soon"],
            "Invalid duration for `--wait`",
        ),
        (
            &["exec", "--id", "a", "--command", "true", "--config", "{\"Shw\": 1}"],
            "Invalid configuration of `--config`",
        ),
        (
            &["exec", "--id", "a", "--command", "true", "--config", "is-not-there.json"],
            "annot read the configuration",
        ),
        (&["exec", "--id", "a", "--command", "true", "--file", "id=x"], "Invalid name of a file"),
        (&["exec", "--id", "a", "--command", "true", "--key", " "], "Invalid key"),
        (&["exec", "--id", "a", "--command", "true", "--author", " "], "Invalid author"),
        (&["exec", "--id", "a", "--command", "true", "--type", ""], "Invalid kind"),
        (&["exec", "--id", "a"], "--command"),
    ] {
        let said = agent.cheops(line);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{line:?}");
        assert!(said.err.contains(expected), "{line:?}: {}", said.err);
    }
    assert!(agent.asked().is_empty());
    let said = agent.cheops(&["exec", "--id", "a", "--command", "true", "--file", "is-not-there"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("Cannot read the file `is-not-there`"), "{}", said.err);
}

#[test]
fn what_the_agent_refuses_is_told_in_its_words() {
    let agent = Agent::start(|_| {
        problem(404, "unknown site", "`site9` is not known here", "did you mean `site2`?")
    });
    let said = agent.cheops(&EXEC);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
    assert_eq!(
        said.err,
        "error: Unknown site\n  Caused by: `site9` is not known here\n\nhint: Did you mean `site2`?\n"
    );
}

#[test]
fn a_rehearsal_says_what_each_site_would_do() {
    let rehearsal = Rehearsal {
        known: None,
        operation: "site1:4".into(),
        reset: true,
        before: vec!["site1:1".into(), "site2:3".into()],
        after: vec!["site1:4".into()],
        dropped: vec![Dropped {
            operation: "site2:3".into(),
            receipt: Receipt {
                by: Some("site1:4".into()),
                why: "set over inc (matrix row 2)".into(),
            },
        }],
        sites: [
            (
                "site1".into(),
                vec![PlannedStep::Run {
                    operation: "site1:4".into(),
                    kind: "set".into(),
                    replaces: true,
                    again: false,
                }],
            ),
            ("site2".into(), vec![PlannedStep::Clear, PlannedStep::More]),
        ]
        .into(),
        parts: Vec::new(),
    };
    let answer = rehearsal.clone();
    let agent = Agent::start(move |_| json(&answer));
    let line = [&EXEC[..], &["--dry-run"]].concat();
    assert_eq!(
        agent.cheops(&line).fine(),
        "\
Nothing was done. This is what site1:4 would do, as far as is known here.
It would reset: all that it follows would be over.

Block
  before   site1:1  site2:3
  after    site1:4

Would leave the block
  site2:3   by site1:4   set over inc (matrix row 2)

Each site would run
  site1   site1:4 (set), replaces the state
  site2   the Reset command
          and so on
"
    );
    assert_eq!(agent.last().json()["dry_run"], true);
    let said = agent.cheops(&[&line[..], &["-o", "name"]].concat()).fine();
    assert_eq!(said, "operation/site1:4\n");
    let said = agent.cheops(&[&line[..], &["-o", "json"]].concat()).fine();
    assert_eq!(serde_json::from_str::<Rehearsal>(&said).unwrap(), rehearsal);
}

#[test]
fn a_rehearsal_names_the_part_of_each_site() {
    let rehearsal = Rehearsal {
        known: None,
        operation: "site1:1".into(),
        reset: false,
        before: Vec::new(),
        after: vec!["site1:1".into()],
        dropped: Vec::new(),
        sites: ["site1", "site2"].map(|site| (site.into(), Vec::new())).into(),
        parts: ["site2", "site1"].map(|site| vec![site.to_owned()]).to_vec(),
    };
    let agent = Agent::start(move |_| json(&rehearsal));
    let said = agent.cheops(&[&EXEC[..], &["--dry-run"]].concat()).fine();
    let sites = "  site1 (part 2 of 2)   nothing\n  site2 (part 1 of 2)   nothing\n";
    assert!(said.ends_with(&format!("Each site would run\n{sites}")), "{said}");
}

#[test]
fn a_resource_is_deleted() {
    let agent = agent(all_ok());
    let said = agent.cheops(&["delete", "web", "--command", "rm {id}", "--author", "ada"]).fine();
    assert!(said.ends_with("web: site1:7 is OK on DC 2 and site1\n"), "{said}");
    assert_eq!(
        agent.last().line(),
        "DELETE /api/v1/resources/web?command=rm%20%7Bid%7D&wait=30s&author=ada"
    );
    assert!(agent.last().accept.starts_with("application/x-ndjson"));
}

#[test]
fn what_holds_an_operation_up_is_told() {
    let (tell, answers) = mpsc::unbounded_channel();
    let answers = Mutex::new(Some(answers));
    let agent = Agent::start(move |seen| {
        if seen.method == "POST" {
            return Reply::Stream(answers.lock().unwrap().take().unwrap());
        }
        assert_eq!(seen.path, "/api/v1/resources/web?local=true&at=DC%202");
        let mut resource = counter();
        resource.seen_by = "DC 2".into();
        resource.config["Timeout"] = "10m".into();
        resource.operations[0].runs.push(run("DC 2", RunStatus::Running, ""));
        json(&resource)
    });
    let say = |answer: Answer| tell.send(serde_json::to_value(answer).unwrap()).unwrap();
    say(accepted());
    say(Answer::Reply(run("site1", RunStatus::Ok, "")));
    let mut command = agent.command(&EXEC);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "site1  OK  12ms");
    assert_eq!(
        lines.next().unwrap(),
        "DC 2   RUNNING  site1:1, received 5m ago: echo 10 > {id}",
        "while it is waited for"
    );
    say(Answer::Timeout { sites: vec!["DC 2".into()] });
    say(Answer::Done);
    assert_eq!(
        lines.last().unwrap(),
        "DC 2 still runs site1:1, received 5m ago: echo 10 > {id}; what comes after it waits there \
         until it ends, after 10m at the latest"
    );
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// An agent that tells what it is told to of an operation, and of what a site runs only that it was
/// asked.
fn silent_about_runs(
    answers: mpsc::UnboundedReceiver<Value>,
    asked: std::sync::mpsc::Sender<()>,
) -> Agent {
    let (answers, asked, held) = (Mutex::new(Some(answers)), Mutex::new(asked), Mutex::default());
    Agent::start(move |seen| {
        if seen.method == "POST" {
            return Reply::Stream(answers.lock().unwrap().take().unwrap());
        }
        let (end, nothing) = mpsc::unbounded_channel();
        let mut held: MutexGuard<'_, Vec<_>> = held.lock().unwrap();
        held.push(end);
        asked.lock().unwrap().send(()).unwrap();
        Reply::Stream(nothing)
    })
}

#[test]
fn a_site_that_does_not_say_what_it_runs_keeps_no_reply_from_being_shown() {
    let ((tell, answers), (asked, was_asked)) =
        (mpsc::unbounded_channel(), std::sync::mpsc::channel());
    let agent = silent_about_runs(answers, asked);
    let say = |answer: Answer| tell.send(serde_json::to_value(answer).unwrap()).unwrap();
    say(accepted());
    say(Answer::Reply(run("site1", RunStatus::Ok, "")));
    let mut child = agent.command(&EXEC).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "site1  OK  12ms");
    was_asked.recv().unwrap();
    let start = Instant::now();
    say(Answer::Reply(run("DC 2", RunStatus::Ok, "")));
    assert_eq!(lines.next().unwrap(), "DC 2   OK  12ms");
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    say(Answer::Done);
    assert_eq!(lines.last().unwrap(), "web: site1:7 is OK on DC 2 and site1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn who_is_interrupted_while_a_site_does_not_say_what_it_runs_does_not_wait_for_it() {
    let ((tell, answers), (asked, was_asked)) =
        (mpsc::unbounded_channel(), std::sync::mpsc::channel());
    let agent = silent_about_runs(answers, asked);
    let say = |answer: Answer| tell.send(serde_json::to_value(answer).unwrap()).unwrap();
    say(accepted());
    let mut start = Instant::now();
    let said = interrupted(&agent, |_| {
        was_asked.recv().unwrap();
        start = Instant::now();
    });
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!(said.code, Some(130), "{}", said.err);
    // And when all is over but for what the silent site may run.
    let ((tell, answers), (asked, was_asked)) =
        (mpsc::unbounded_channel(), std::sync::mpsc::channel());
    let agent = silent_about_runs(answers, asked);
    for answer in [accepted(), Answer::Timeout { sites: vec!["DC 2".into()] }, Answer::Done] {
        tell.send(serde_json::to_value(answer).unwrap()).unwrap();
    }
    let said = interrupted(&agent, |_| {
        was_asked.recv().unwrap();
        start = Instant::now();
    });
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(said.out.contains("DC 2   TIMEOUT"), "{}", said.out);
}

/// Interrupts a program when the agent has been asked, and gives what it said.
fn interrupted(agent: &Agent, until: impl FnOnce(&mut Child)) -> Said {
    let mut command = agent.command(&EXEC);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(&mut child);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn who_is_interrupted_is_told_that_the_work_goes_on() {
    let (tell, answers) = mpsc::unbounded_channel();
    let answers = Mutex::new(Some(answers));
    let agent = Agent::start(move |_| Reply::Stream(answers.lock().unwrap().take().unwrap()));
    tell.send(serde_json::to_value(accepted()).unwrap()).unwrap();
    let reply = Answer::Reply(run("site1", RunStatus::Ok, ""));
    tell.send(serde_json::to_value(reply).unwrap()).unwrap();
    // Its first line means that it has read what came before.
    let said = interrupted(&agent, |child| {
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    });
    assert_eq!(said.code, Some(130));
    assert_eq!(
        said.err,
        "interrupted: site1:7 was accepted and goes on; 1 of 2 sites answered so far. Look at it \
         with: cheops describe web\n"
    );
}

#[test]
fn who_is_interrupted_before_it_was_accepted_is_told_how_to_look() {
    let (asked, was_asked) = std::sync::mpsc::channel();
    let asked = Mutex::new(asked);
    // It is asked, and says nothing for as long as the test goes on.
    let (_tell, nothing) = mpsc::unbounded_channel();
    let nothing = Mutex::new(Some(nothing));
    let agent = Agent::start(move |_| {
        asked.lock().unwrap().send(()).unwrap();
        Reply::Stream(nothing.lock().unwrap().take().unwrap())
    });
    let said = interrupted(&agent, |_| was_asked.recv().unwrap());
    assert_eq!((said.code, said.out.as_str()), (Some(130), ""));
    assert!(said.err.contains("Interrupted before the agent said whether"), "{}", said.err);
    assert!(said.err.contains("`cheops get operations web`"), "{}", said.err);
}
