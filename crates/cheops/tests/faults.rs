//! What goes wrong at a site: disks, peers, clocks and commands. The rest goes on, and what went
//! wrong is said.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cheops_agent::api::model::{Run, RunStatus, Submit, Submitted};
use field::{
    Field,
    agent::Agent,
    all_ok,
    couch::Couch,
    engine::{Engine, on_both_engines},
    eventually, read, submit, within,
};

on_both_engines!(
    a_full_disk_stops_accepting_and_recovers_by_itself,
    a_damaged_store_says_what_is_lost_and_the_rest_goes_on,
    what_is_said_of_a_resource_whose_creation_is_lost_works,
    a_store_of_which_nothing_is_left_makes_nothing_run_twice,
    a_log_that_can_not_be_written_hurts_nobody,
    garbage_from_a_peer_is_refused_and_changes_nothing,
    a_peer_that_accepts_and_never_answers_delays_nobody,
    a_clock_two_hours_off_hurts_nobody,
    commands_that_misbehave_are_ended_or_cut_short,
);

const QUICK: &str = "[links]\nheartbeat = '100ms'\nsilence = '400ms'\nretry = '200ms'";

fn on(sites: &str, command: &str) -> Submit {
    Submit { sites: Some(sites.into()), ..submit(command, "set") }
}

fn run_at<'a>(submitted: &'a Submitted, site: &str) -> &'a Run {
    submitted.runs.iter().find(|run| run.site == site).unwrap()
}

/// A small disk in memory, at a path.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: &Path, megabytes: usize) -> Self {
        fs::create_dir_all(path).unwrap();
        let size = format!("size={megabytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).status();
        assert!(mounted.unwrap().success(), "a disk can't be mounted: these tests need root");
        Self(path.to_owned())
    }

    fn remount(&self, how: &str) -> bool {
        let options = format!("remount,{how}");
        Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success()
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = File::create(self.0.join("filler")).unwrap();
        for size in [1 << 20, 4096, 1] {
            let block = vec![0; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Three sites; the data of the first is on a disk of its own.
fn with_a_small_disk(engine: Engine, reserve: usize) -> (Field, Disk) {
    let mut field = Field::on(engine, 3, &format!("{QUICK}\n[store]\nreserve = {reserve}"));
    field.sites[0].kill();
    let data = field.directory(0).join("data");
    let key = fs::read(data.join("site.key")).unwrap();
    fs::remove_dir_all(&data).unwrap();
    let disk = Disk::mount(&data, 160);
    // It is the same site, with nothing but its key.
    let mut file = fs::OpenOptions::new();
    let mut file =
        file.write(true).create_new(true).mode(0o600).open(data.join("site.key")).unwrap();
    file.write_all(&key).unwrap();
    field.sites[0].start();
    field.sites[0].wait_until_ready();
    field.wait_until_linked();
    (field, disk)
}

fn refused_for_want_of_room(site: &Agent) -> bool {
    let request = Submit { wait: Some("0s".into()), ..submit("echo no >> {id}", "add") };
    site.try_exec("x", &request).is_err_and(|problem| problem.status == 507)
}

fn a_full_disk_stops_accepting_and_recovers_by_itself(engine: Engine) {
    let (field, disk) = with_a_small_disk(engine, 16 << 20);
    let [one, two, _] = &field.sites[..] else { panic!("three sites") };
    assert!(all_ok(&one.exec("x", &on(&field.everywhere(), "echo begin > {id}")), 3));
    disk.fill();
    eventually("operations are refused", || refused_for_want_of_room(one));
    assert_eq!(one.ask("/readyz").unwrap().0, 503);
    let stored = one.resource("x").unwrap().summary.operation_count;
    assert!(refused_for_want_of_room(one));
    let now = one.resource("x").unwrap().summary.operation_count;
    assert_eq!(now, stored, "reads go on, and nothing is stored");
    let (_, problems) = one.ask("/api/v1/problems").unwrap();
    assert!(problems.contains("the disk is full"), "{problems}");
    // The others go on.
    let request = Submit { wait: Some("1s".into()), ..submit("echo more >> {id}", "add") };
    let submitted = two.exec("x", &request);
    assert_eq!(run_at(&submitted, "site2").status, RunStatus::Ok);
    assert_eq!(run_at(&submitted, "site1").status, RunStatus::Timeout);
    disk.free();
    eventually("operations are accepted again", || !refused_for_want_of_room(one));
    field.agreed("x", &[0, 1, 2]);
    assert!(read(&one.work().join("x")).unwrap().contains("more\n"));
}

#[test]
fn a_disk_without_a_byte_left_loses_nothing() {
    let (field, disk) = with_a_small_disk(Engine::Embedded, 0);
    let one = &field.sites[0];
    let begin = one.exec("x", &on(&field.everywhere(), "echo begin > {id}"));
    assert!(all_ok(&begin, 3), "{begin:?}");
    disk.fill();
    // The store finds a little room in its own files now and then; what it accepts meanwhile counts.
    let mut accepted = vec![begin.operation];
    let mut refused = 0;
    let request = Submit { wait: Some("0s".into()), ..submit("true", "add") };
    for _ in 0..300 {
        match one.try_exec("x", &request) {
            Ok(submitted) => accepted.push(submitted.operation),
            Err(problem) => {
                assert_eq!(problem.status, 507, "{problem:?}");
                refused += 1;
            }
        }
        let (status, _) = one.ask("/api/v1/resources/x?limit=1").unwrap();
        assert_eq!(status, 200, "reads go on");
    }
    assert!(refused > 0, "the disk was not full");
    disk.free();
    eventually("operations are accepted again", || {
        one.try_exec("x", &request).is_ok_and(|submitted| {
            accepted.push(submitted.operation);
            true
        })
    });
    field.agreed("x", &[0, 1, 2]);
    for site in &field.sites {
        let known: Vec<String> =
            site.resource("x").unwrap().operations.into_iter().map(|op| op.id).collect();
        let lost: Vec<&String> = accepted.iter().filter(|id| !known.contains(id)).collect();
        assert!(lost.is_empty(), "{} has lost {lost:?}", site.name);
    }
}

#[test]
fn an_agent_does_not_start_on_a_disk_that_can_only_be_read_and_says_why() {
    let (field, disk) = with_a_small_disk(Engine::Embedded, 0);
    let one = &field.sites[0];
    assert!(all_ok(&one.exec("x", &on(&field.everywhere(), "echo begin > {id}")), 3));
    // Files that are open for writing keep a disk writable, so a remount needs the agent to be gone.
    let mut field = field;
    field.sites[0].kill();
    assert!(disk.remount("ro"));
    field.sites[0].start();
    let log = field.directory(0).join("log");
    eventually("the agent says why it does not start", || {
        read(&log).is_some_and(|log| log.to_lowercase().contains("read-only"))
    });
    eventually("the agent ends", || field.sites[0].ended().is_some_and(|code| code != 0));
    field.sites[0].kill();
    assert!(disk.remount("rw"));
    field.sites[0].start();
    field.sites[0].wait_until_ready();
    field.wait_until_linked();
    assert_eq!(field.sites[0].resource("x").unwrap().summary.operation_count, 1);
}

/// Breaks what is stored of a text, wherever it stands below a directory.
fn spoil(directory: &Path, text: &str) -> usize {
    let found = Command::new("grep").args(["-rlaF", text]).arg(directory).output().unwrap();
    let mut spoilt = 0;
    for path in String::from_utf8_lossy(&found.stdout).lines() {
        let mut content = fs::read(path).unwrap();
        let places: Vec<usize> = (0..content.len().saturating_sub(text.len()))
            .filter(|&at| content[at..].starts_with(text.as_bytes()))
            .collect();
        for at in &places {
            content[*at] ^= 0xff;
        }
        spoilt += places.len();
        fs::write(path, content).unwrap();
    }
    spoilt
}

/// Loses a record of a site, which holds this text: on its disk, or in its database.
fn lose(site: &Path, couch: Option<&Couch>, record: &str, text: &str) {
    match couch {
        None => assert!(spoil(&site.join("data/store"), text) > 0),
        Some(couch) => couch.remove_like(&couch.config.database, &format!("record:{record}:")),
    }
}

fn a_damaged_store_says_what_is_lost_and_the_rest_goes_on(engine: Engine) {
    let mut field = Field::on(engine, 3, QUICK);
    let everywhere = field.everywhere();
    for id in ["x", "y"] {
        assert!(all_ok(&field.sites[0].exec(id, &on(&everywhere, "echo begin > {id}")), 3));
    }
    assert!(all_ok(&field.sites[0].exec("x", &submit("echo to-be-lost >> {id}", "add")), 3));
    assert!(all_ok(&field.sites[0].exec("x", &submit("echo last >> {id}", "add")), 3));
    field.agreed("x", &[0, 1, 2]);
    field.sites[0].kill();
    let couch = field.databases.as_ref().map(|databases| databases.of(0));
    lose(&field.directory(0), couch, "x:site1:3", "to-be-lost");
    field.sites[0].start();
    field.sites[0].wait_until_ready();
    field.wait_until_linked();

    let one = &field.sites[0];
    let (_, problems) = one.ask("/api/v1/problems?local=true").unwrap();
    let lost = match engine {
        Engine::Embedded => "lost: operation site1:3",
        Engine::CouchDb => "lost: the document `record:x:site1:3:",
    };
    assert!(problems.contains(lost), "{problems}");
    let refused = one.try_exec("x", &submit("echo more >> {id}", "add")).unwrap_err();
    assert_eq!((refused.status, refused.kind.as_str()), (503, "damaged"));
    assert!(all_ok(&one.exec("y", &submit("echo more >> {id}", "add")), 3), "others go on");
    // What the other sites have comes back, and nothing is run twice.
    one.wait_for("x", "what was lost is here again", |x| x.summary.operation_count == 3);
    assert_eq!(read(&one.work().join("x")).unwrap(), "begin\nto-be-lost\nlast\n");

    // It has to hear first what the others have of it.
    let repair = Submit { force: true, ..submit("echo declared > {id}", "set") };
    let mut repaired = None;
    eventually("the state is declared", || {
        repaired = one.try_exec("x", &repair).ok();
        repaired.is_some()
    });
    assert!(all_ok(&repaired.unwrap(), 3));
    assert!(all_ok(&one.exec("x", &submit("echo more >> {id}", "add")), 3));
    field.sites[0].restart();
    field.wait_until_linked();
    field.agreed("x", &[0, 1, 2]);
    for site in &field.sites {
        assert_eq!(read(&site.work().join("x")).unwrap(), "declared\nmore\n", "{}", site.name);
    }
    let (_, problems) = field.sites[0].ask("/api/v1/problems?local=true").unwrap();
    assert!(!problems.contains("lost"), "{problems}");
}

fn what_is_said_of_a_resource_whose_creation_is_lost_works(engine: Engine) {
    let directory = tempfile::tempdir().unwrap();
    let couch = (engine == Engine::CouchDb).then(Couch::get);
    let settings = couch.as_ref().map(|couch| couch.settings(directory.path()));
    let mut site = Agent::alone_with(directory.path(), &settings.unwrap_or_default());
    assert!(all_ok(&site.exec("x", &on("site1", "echo the-creation > {id}")), 1));
    site.kill();
    lose(directory.path(), couch.as_ref(), "x:site1:1", "the-creation");
    site.start();
    site.wait_until_ready();
    let (_, problems) = site.ask("/api/v1/problems").unwrap();
    let next = "cheops exec --id x --sites '…' --force --command …";
    assert!(problems.contains(next), "{problems}");
    let declared = Submit { force: true, ..on("site1", "echo declared > {id}") };
    assert!(all_ok(&site.exec("x", &declared), 1));
    assert!(all_ok(&site.exec("x", &submit("echo more >> {id}", "add")), 1));
    let (_, problems) = site.ask("/api/v1/problems").unwrap();
    assert!(!problems.contains(next), "{problems}");
}

fn a_store_of_which_nothing_is_left_makes_nothing_run_twice(engine: Engine) {
    let mut field = Field::on(engine, 3, QUICK);
    assert!(all_ok(&field.sites[0].exec("x", &on(&field.everywhere(), "echo once >> {id}")), 3));
    field.agreed("x", &[0, 1, 2]);
    field.sites[0].kill();
    if field.databases.as_ref().map(|databases| databases.of(0).wipe()).is_some() {
        // They may be somewhere else: it takes a word from somebody who knows that they are gone.
        field.sites[0].start();
        eventually("it does not start", || field.sites[0].ended().is_some());
        field.sites[0].kill();
        let notes = field.directory(0).join("data/couchdb");
        fs::rename(notes.join("written"), notes.join("lost")).unwrap();
    } else {
        fs::remove_dir_all(field.directory(0).join("data/store/db")).unwrap();
        fs::create_dir(field.directory(0).join("data/store/db")).unwrap();
    }
    field.sites[0].start();
    field.sites[0].wait_until_ready();
    field.wait_until_linked();

    let (one, two) = (&field.sites[0], &field.sites[1]);
    one.wait_for("x", "it comes back", |x| x.summary.operation_count == 1);
    let waits = Submit { wait: Some("0s".into()), ..submit("echo twice >> {id}", "add") };
    two.exec("x", &waits);
    one.wait_for("x", "the next one arrives", |x| x.summary.operation_count == 2);
    let refused = one.try_exec("x", &submit("echo more >> {id}", "add")).unwrap_err();
    assert_eq!((refused.status, refused.kind.as_str()), (503, "damaged"));
    assert_eq!(read(&one.work().join("x")).unwrap(), "once\n");

    let repair = Submit { force: true, ..submit("echo declared > {id}", "set") };
    assert!(all_ok(&two.exec("x", &repair), 3));
    field.agreed("x", &[0, 1, 2]);
    for site in &field.sites {
        assert_eq!(read(&site.work().join("x")).unwrap(), "declared\n", "{}", site.name);
    }
}

fn a_log_that_can_not_be_written_hurts_nobody(engine: Engine) {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    // The reader is gone at once.
    let unread = || Stdio::from(std::io::pipe().unwrap().1);
    let mut field = Field::on(engine, 2, QUICK);
    for (log, what) in [(full(), "/dev/full"), (unread(), "a pipe that nobody reads")] {
        field.sites[0].kill();
        field.sites[0].start_logging_to(log);
        field.sites[0].wait_until_ready();
        field.wait_until_linked();
        field.sites[1].kill();
        eventually("the other is missed", || field.sites[0].reachable().is_empty());
        field.sites[1].start();
        field.sites[1].wait_until_ready();
        field.wait_until_linked();
        assert!(all_ok(&field.sites[0].exec("x", &on(&field.everywhere(), "true")), 2), "{what}");
        let pid = field.sites[0].pid().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        eventually("the agent stops", || field.sites[0].ended().is_some());
        assert_eq!(field.sites[0].ended(), Some(0), "{what}");
    }
}

fn garbage_from_a_peer_is_refused_and_changes_nothing(engine: Engine) {
    let field = Field::on(engine, 2, QUICK);
    let one = &field.sites[0];
    assert!(all_ok(&one.exec("x", &on(&field.everywhere(), "echo begin > {id}")), 2));
    let mut random = fastrand::Rng::new();
    let address = one.url.trim_start_matches("http://").replace("8079", "8078");
    for round in 0..50 {
        let mut stream = TcpStream::connect(&address).unwrap();
        if round % 2 == 0 {
            // The preface of HTTP/2, so that the garbage gets further.
            let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        }
        let garbage: Vec<u8> = (0..random.usize(..20_000)).map(|_| random.u8(..)).collect();
        let _ = stream.write_all(&garbage);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
        let _ = stream.read(&mut [0; 1024]);
    }
    let submitted = one.exec("x", &submit("echo more >> {id}", "add"));
    assert!(all_ok(&submitted, 2), "{submitted:?}");
}

fn a_peer_that_accepts_and_never_answers_delays_nobody(engine: Engine) {
    let mut field = Field::on(engine, 3, QUICK);
    field.sites[2].kill();
    let address = field.sites[2].url.trim_start_matches("http://").replace("8079", "8078");
    // In site3's place, at its address: something that takes all and says nothing.
    let mut silent = field.sites[2].command("python3");
    let (host, port) = address.split_once(':').unwrap();
    let script = format!(
        "import socket\ns=socket.create_server(('{host}',{port}))\nc=[]\nwhile True: c.append(s.accept()); print(c[-1][1][0], flush=True)"
    );
    let callers = field.directory(2).join("callers");
    silent.args(["-c", &script]).stdout(File::create(&callers).unwrap());
    let mut silent = silent.spawn().unwrap();
    eventually("both others talk to the silent one", || {
        let callers = read(&callers).unwrap_or_default();
        [0, 1].iter().all(|&n| callers.lines().any(|caller| caller == field.net.ip(n)))
    });
    let start = Instant::now();
    let request = Submit { wait: Some("1s".into()), ..on(&field.everywhere(), "echo x > {id}") };
    let submitted = field.sites[0].exec("x", &request);
    assert_eq!(run_at(&submitted, "site2").status, RunStatus::Ok);
    assert_eq!(run_at(&submitted, "site3").status, RunStatus::Timeout);
    assert!(start.elapsed() < Duration::from_secs(5));
    let quick = Submit { wait: Some("10s".into()), ..on("site1 & site2", "true") };
    let start = Instant::now();
    assert!(all_ok(&field.sites[0].exec("y", &quick), 2));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    silent.kill().unwrap();
    silent.wait().unwrap();
    field.sites[2].start();
    field.sites[2].wait_until_ready();
    field.agreed("x", &[0, 1, 2]);
}

fn a_clock_two_hours_off_hurts_nobody(engine: Engine) {
    let mut field = Field::on(engine, 3, QUICK);
    field.sites[1].kill();
    field.sites[1].start_at("+2h");
    field.sites[1].wait_until_ready();
    field.wait_until_linked();
    let table =
        r#"{"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]}"#;
    let request = Submit {
        config: Some(serde_json::from_str(table).unwrap()),
        ..on(&field.everywhere(), "echo begin > {id}")
    };
    field.sites[0].exec("x", &request);
    // After the site with the fast clock has written, the others still come later.
    for (n, word) in [(1, "fast"), (0, "slow"), (2, "last")] {
        let submitted = field.sites[n].exec("x", &submit(&format!("echo {word} > {{id}}"), "set"));
        assert!(all_ok(&submitted, 3), "{submitted:?}");
    }
    field.agreed("x", &[0, 1, 2]);
    for site in &field.sites {
        assert_eq!(read(&site.work().join("x")).unwrap(), "last\n");
    }
}

fn commands_that_misbehave_are_ended_or_cut_short(engine: Engine) {
    let field = Field::on(engine, 2, &format!("{QUICK}\n[runs]\ntimeout = '1s'"));
    let one = &field.sites[0];
    let both = field.everywhere();

    let start = Instant::now();
    let endless = one.exec("endless", &on(&both, "echo begun; sleep 1000"));
    assert!(start.elapsed() < Duration::from_secs(10));
    let output = run_at(&endless, "site1").output.clone().unwrap();
    assert_eq!(run_at(&endless, "site1").status, RunStatus::Ko);
    assert!(output.contains("begun") && output.contains("timed out"), "{output}");

    let before = resident(one);
    let loud = one.exec("loud", &on("site1", "head -c 1000000000 /dev/zero | tr '\\0' x"));
    let run = run_at(&loud, "site1");
    assert!(run.output.as_ref().unwrap().len() < 100_000);
    assert!(resident(one) < before + (64 << 20), "{} bytes more", resident(one) - before);
    let kept = one.ask(&format!("/api/v1/resources/loud/operations/{}/output", loud.operation));
    assert!(kept.unwrap().1.len() > 1 << 20, "the rest can be fetched");

    let start = Instant::now();
    let daemon = one.exec("daemon", &on("site1", "sleep 300 & echo $!"));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(all_ok(&daemon, 1), "{daemon:?}");
    let pid: u32 = run_at(&daemon, "site1").output.as_ref().unwrap().trim().parse().unwrap();

    let reader = one.exec("reader", &on("site1", "cat; echo end of input"));
    assert!(all_ok(&reader, 1), "{reader:?}");
    assert_eq!(run_at(&reader, "site1").output.as_deref(), Some("end of input\n"));
    within(Duration::from_secs(5), "nothing is left running but the daemon", || {
        [vec![one.pid(), pid], vec![field.sites[1].pid()]].iter().enumerate().all(|(n, wanted)| {
            let mut running = field.net.processes(n);
            running.sort_unstable();
            let server = field.databases.as_ref().and_then(|databases| databases.process(n));
            let mut wanted: Vec<u32> = wanted.iter().copied().chain(server).collect();
            wanted.sort_unstable();
            running == wanted
        })
    });
}

/// How much memory an agent holds, in bytes.
fn resident(site: &Agent) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", site.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn an_address_that_is_taken_is_said_to_be() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["agent", "--site", "site1", "--api", &address, "--peers", "127.0.0.1:0", "--data"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(&address) && error.contains("another agent"), "{error}");
}
