//! Who asked for what: in the record, whatever happens to the agent.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use cheops_agent::{
    api::model::AuditPage,
    audit::{self, Entry, Wanted, What},
};

use super::{
    field::{agent::Agent, eventually},
    here,
};

fn cheops(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cheops")).args(arguments).output().unwrap()
}

/// What it says, and its exit status.
fn verified(data: &Path) -> (String, Option<i32>) {
    let output = cheops(&["audit", "--verify", "--data", data.to_str().unwrap()]);
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

fn entries(site: &Agent, query: &str) -> Vec<Entry> {
    site.try_get::<AuditPage>(&format!("/api/v1/audit?limit=1000{query}")).unwrap().entries
}

/// All lines on the disk.
fn all(data: &Path) -> Vec<Entry> {
    let wanted = Wanted { after: Some(0), limit: usize::MAX, ..Wanted::default() };
    audit::entries(&audit::directory(data), &wanted).unwrap()
}

/// Sends a request as it is, and gives the answer.
fn raw(site: &Agent, request: &str) -> String {
    let address = site.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_changes_something_or_is_refused_has_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let mut asked = here("true");
    asked.author = Some("ada".into());
    let operation = site.exec("web", &asked).operation;
    // Looking leaves no line; asking for what can't be does.
    site.ask("/api/v1/resources/web").unwrap();
    site.ask("/api/v1/resources/nowhere").unwrap();
    assert_eq!(site.post("/api/v1/resources/web/operations", &"no object").unwrap().0, 400);
    let evil = raw(
        &site,
        "POST /api/v1/sites/site1/pause?hush=1 HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    );
    assert!(evil.starts_with("HTTP/1.1 403"), "{evil}");

    let lines = entries(&site, "");
    let requests: Vec<_> = lines.iter().filter(|line| line.event.what == What::Request).collect();
    let told: Vec<_> = requests
        .iter()
        .map(|line| (line.event.status.unwrap(), line.event.why.as_deref().unwrap_or("-")))
        .collect();
    assert_eq!(told, [(200, "-"), (400, "bad-request"), (403, "foreign-host")]);
    let first = &requests[0].event;
    assert!(first.author.as_deref().unwrap().contains("ada"), "{first:?}");
    assert_eq!(first.operation.as_ref(), Some(&operation));
    assert_eq!(first.resource.as_deref(), Some("web"));
    assert!(first.from.as_deref().unwrap().starts_with("127.0.0.1:"), "{first:?}");
    assert_eq!(requests[2].event.path.as_deref(), Some("/api/v1/sites/site1/pause"));
    assert_eq!(entries(&site, "&resource=web").len(), 2);
    assert_eq!(entries(&site, "&resource=other").len(), 0);
    assert_eq!(entries(&site, &format!("&after={}", requests[1].n)).len(), 1);

    // The command line says the same, from the agent and from the disk.
    let data = directory.path().join("data");
    for source in [["--agent", &site.url], ["--data", data.to_str().unwrap()]] {
        let output = cheops(&[&["audit"][..], &source].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        assert!(text.contains("POST /api/v1/resources/web/operations"), "{text}");
        assert!(text.contains("403 foreign-host"), "{text}");
        let verified = cheops(&[&["audit", "--verify"][..], &source].concat());
        let text = String::from_utf8(verified.stdout).unwrap();
        assert!(verified.status.success() && text.contains("as they were written"), "{text}");
    }
}

#[test]
fn a_line_says_who_was_refused_and_what_it_may_do() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let asked = serde_json::json!({"name": "eve", "role": "viewer"});
    let (status, text) = site.post("/api/v1/access", &asked).unwrap();
    assert_eq!(status, 201, "{text}");
    let made: serde_json::Value = serde_json::from_str(&text).unwrap();
    let token = made["token"].as_str().unwrap();
    let post = |token: &str| {
        raw(
            &site,
            &format!(
                "POST /api/v1/resources/web/operations HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
            ),
        )
    };
    assert!(post(token).starts_with("HTTP/1.1 403"));
    assert!(post("cheops_nobody").starts_with("HTTP/1.1 401"));
    let mut lines = entries(&site, "&resource=web");
    let [viewer, nobody] = [lines.remove(0), lines.remove(0)].map(|line| line.event);
    assert_eq!((viewer.author.as_deref(), viewer.role.as_deref()), (Some("eve"), Some("viewer")));
    assert_eq!((viewer.status, viewer.why.as_deref()), (Some(403), Some("not-allowed")));
    assert_eq!((nobody.author, nobody.role, nobody.status), (None, None, Some(401)));
    let (_, audit) = site.ask("/api/v1/audit?limit=1000").unwrap();
    assert!(!audit.contains(token) && !audit.contains("cheops_nobody"), "{audit}");
}

#[test]
fn reads_have_a_line_if_the_configuration_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone_with(directory.path(), "[audit]\nreads = true");
    site.ask("/api/v1/sites?hush=1").unwrap();
    let line = entries(&site, "")
        .into_iter()
        .rfind(|line| line.event.path.as_deref() == Some("/api/v1/sites"));
    assert_eq!(line.unwrap().event.method.as_deref(), Some("GET"));
}

#[test]
fn whoever_touches_the_record_is_found_and_the_place_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Agent::alone(directory.path());
    for n in 0..5 {
        site.exec("web", &here(&format!("echo {n}")));
    }
    let data = directory.path().join("data");
    let file = audit::directory(&data).join("00000000000000000001.jsonl");
    eventually("the end is signed", || {
        let (text, _) = verified(&data);
        text.contains("1 to 6") && !text.contains("came after")
    });
    site.kill();
    let good = fs::read_to_string(&file).unwrap();
    let (text, _) = verified(&data);
    let expect = text.split("--expect ").nth(1).unwrap().trim().to_owned();
    let lines: Vec<&str> = good.lines().collect();
    let without = |n: usize| {
        let mut lines = lines.clone();
        lines.remove(n);
        lines.join("\n") + "\n"
    };
    for (changed, expected) in [
        (good.replacen("\"status\":200", "\"status\":403", 1), "line 2 was changed"),
        (without(3), "line 4 is missing"),
        (lines[..4].join("\n") + "\n", "the end was cut off: lines 5 to 6 are missing"),
    ] {
        fs::write(&file, changed).unwrap();
        let (text, exit) = verified(&data);
        assert!(text.contains(expected) && exit == Some(1), "{text}");
    }
    // What was written down elsewhere tells even if all is written anew with the key of the site.
    let with = |expect: &str| {
        let data = data.to_str().unwrap();
        cheops(&["audit", "--verify", "--data", data, "--expect", expect]).status.code()
    };
    fs::write(&file, &good).unwrap();
    assert_eq!(with(&expect), Some(0));
    assert_eq!(with(&format!("3{}", &expect[1..])), Some(1));
    // An agent that starts on a record without its end says so, for good.
    fs::write(&file, lines[..4].join("\n") + "\n").unwrap();
    site.start();
    site.wait_until_ready();
    let (_, problems) = site.ask("/api/v1/problems").unwrap();
    assert!(problems.contains("lines 5 to 6 of the audit of `site1` are gone"), "{problems}");
    assert!(verified(&data).0.contains("lines 5 to 6 are missing"));
}

#[test]
fn an_agent_that_finds_no_head_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Agent::alone(directory.path());
    for n in 0..5 {
        site.exec("web", &here(&format!("echo {n}")));
    }
    let (_, problems) = site.ask("/api/v1/problems").unwrap();
    assert!(!problems.contains("audit"), "{problems}");
    site.kill();
    let data = directory.path().join("data");
    let file = audit::directory(&data).join("00000000000000000001.jsonl");
    let lines = fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = lines.lines().take(4).collect();
    fs::write(&file, kept.join("\n") + "\n").unwrap();
    fs::remove_file(audit::directory(&data).join("head")).unwrap();
    let (text, exit) = verified(&data);
    assert!(text.contains("Nothing says where the record ends") && exit == Some(1), "{text}");
    site.start();
    site.wait_until_ready();
    let (_, problems) = site.ask("/api/v1/problems").unwrap();
    assert!(problems.contains("lines after 4 may have been cut off"), "{problems}");
    let repaired = entries(&site, "").into_iter().find(|line| line.event.what == What::Repaired);
    let why = repaired.unwrap().event.why.unwrap();
    assert!(why.contains("the record ended with line 4"), "{why}");
}

/// The agent is killed again and again under load; what it has answered is in the record, which goes on.
#[test]
fn a_killed_agent_loses_no_line_of_what_it_has_answered() {
    let directory = tempfile::tempdir().unwrap();
    let mut site = Agent::alone(directory.path());
    let data = directory.path().join("data");
    let mut answered = Vec::new();
    for round in 0..4 {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking: Vec<_> = (0..3)
                .map(|n| {
                    let (client, stop) = (site.again(), &stop);
                    scope.spawn(move || {
                        let mut operations = Vec::new();
                        let mut asked = here("true");
                        asked.wait = Some("0s".into());
                        while !stop.load(Relaxed) {
                            let told = client.try_exec(&format!("r{round}-{n}"), &asked);
                            let Ok(told) = told else { break };
                            operations.push(told.operation);
                        }
                        operations
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(300));
            site.kill();
            stop.store(true, Relaxed);
            answered.extend(asking.into_iter().flat_map(|asking| asking.join().unwrap()));
        });
        // As if the system had been stopped in the middle of a line, too.
        if round % 2 == 0 {
            let mut files: Vec<_> = fs::read_dir(audit::directory(&data))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
                .collect();
            files.sort();
            let newest = fs::OpenOptions::new().append(true).open(files.pop().unwrap());
            newest.unwrap().write_all(b"{\"n\":12345,\"at\":\"20").unwrap();
        }
        site.start();
        site.wait_until_ready();
    }
    assert!(answered.len() > 20, "{}", answered.len());
    let (text, exit) = verified(&data);
    assert_eq!(exit, Some(0), "{text}");
    let lines = all(&data);
    for operation in &answered {
        let has = lines.iter().any(|line| line.event.operation.as_ref() == Some(operation));
        assert!(has, "{operation} has no line");
    }
    let count = |what| lines.iter().filter(|line| line.event.what == what).count();
    assert_eq!((count(What::Started), count(What::Repaired)), (5, 2));
}

#[test]
fn one_who_does_not_wait_for_the_answer_has_a_line_too() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let body = r#"{"sites": "site1", "command": "sleep 5", "author": "ada"}"#;
    let request = format!(
        "POST /api/v1/resources/web/operations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(site.url.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    eventually("it is accepted", || site.resource("web").is_some());
    drop(stream);
    let mut found = None;
    eventually("there is a line", || {
        found = entries(&site, "&resource=web").pop();
        found.is_some()
    });
    let event = found.unwrap().event;
    assert!(event.author.is_some() && event.operation.is_some(), "{event:?}");
    assert_eq!(event.status, None);
}

#[test]
fn one_whose_key_is_not_known_has_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone(directory.path());
    let config = fs::read_to_string(directory.path().join("site.toml")).unwrap();
    let peers = config.split("peers = '").nth(1).unwrap().split('\'').next().unwrap();
    let mut stream = TcpStream::connect(peers).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut found = None;
    eventually("there is a line", || {
        found = entries(&site, "").into_iter().find(|line| line.event.what == What::Link);
        found.is_some()
    });
    let event = found.unwrap().event;
    assert!(event.from.unwrap().starts_with("127.0.0.1"));
    assert!(event.why.unwrap().contains("is not an agent"));
}

#[test]
fn a_record_that_can_not_be_written_is_a_problem_and_requests_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let site = Agent::alone_with(directory.path(), "[audit]\nbytes = 65536");
    let data = directory.path().join("data");
    site.exec("web", &here("true"));
    // The next file can't be begun: its name is taken, whichever number it has.
    let before = audit::directory(&data);
    let aside = data.join("aside");
    fs::rename(&before, &aside).unwrap();
    fs::write(&before, "in the way").unwrap();
    let mut asked = here("true");
    asked.wait = Some("0s".into());
    asked.author = Some("x".repeat(120));
    eventually("it is a problem", || {
        for _ in 0..50 {
            site.exec("web", &asked);
        }
        site.ask("/api/v1/problems").unwrap().1.contains("can't be written")
    });
    assert!(site.ask("/metrics").unwrap().1.contains("cheops_audit_failing 1"));
    fs::remove_file(&before).unwrap();
    fs::rename(&aside, &before).unwrap();
    eventually("it goes on", || site.ask("/metrics").unwrap().1.contains("cheops_audit_failing 0"));
    site.exec("web", &asked);
    let (text, exit) = verified(&data);
    assert_eq!(exit, Some(0), "{text}");
}
