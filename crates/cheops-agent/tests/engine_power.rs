//! The embedded engine when its process or its machine stops in the middle.
//!
//! Tests that mount a file system need root, and say so if they are not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod replay;
mod storage;

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cheops_agent::engine::{
    Engine, Opened as _,
    embedded::{Embedded, Options},
};
use storage::{PATIENCE, broken, memory, mount, number, open, operation, options, read, run};

/// Where the writer writes.
const STORE: &str = "CHEOPS_TEST_STORE";
/// After how many operations it stops, if it does.
const MOST: &str = "CHEOPS_TEST_MOST";

/// Writes batches until it fails, and says what was acknowledged.
#[test]
#[ignore = "other tests run it, and stop it in the middle"]
fn writer() {
    let store = std::env::var(STORE).unwrap();
    let most = std::env::var(MOST).map_or(u64::MAX, |most| most.parse().unwrap());
    let memtable = if most == u64::MAX { 64 << 10 } else { 16 << 10 };
    let options = Options { memtable, ..options("here") };
    let mut engine = Embedded::open(Path::new(&store), options).unwrap();
    let mut last = read(&mut engine).len() as u64;
    let mut random = fastrand::Rng::with_seed(last);
    let mut out = std::io::stdout();
    while last < most {
        let batch: Vec<_> = (last + 1..=last + random.u64(1..=8)).map(operation).collect();
        let Ok(acknowledged) = engine.append(&batch) else { return };
        last = acknowledged;
        writeln!(out, "acknowledged {last}").unwrap();
        out.flush().unwrap();
    }
}

/// A writer at work in a process of its own.
struct Writer {
    child: Child,
    acknowledged: Arc<AtomicU64>,
}

impl Writer {
    fn start(store: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "writer", "--nocapture"])
            .env(STORE, store)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let acknowledged = Arc::new(AtomicU64::new(0));
        let (lines, heard) = (child.stdout.take().unwrap(), acknowledged.clone());
        thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let said = line.split("acknowledged ").nth(1);
                if let Some(last) = said.and_then(|number| number.parse().ok()) {
                    heard.store(last, Ordering::SeqCst);
                }
            }
        });
        Self { child, acknowledged }
    }

    fn wait_for(&self, last: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.acknowledged.load(Ordering::SeqCst) < last {
            assert!(Instant::now() < deadline, "the writer does not write");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What was acknowledged is there; what is there beyond is the batch that was being written.
fn all_there(engine: &mut Embedded, acknowledged: u64, context: &str) -> u64 {
    let found = read(engine);
    let numbers: Vec<_> = found.iter().map(number).collect();
    assert_eq!(numbers, (1..=found.len() as u64).collect::<Vec<_>>(), "{context}");
    let count = found.len() as u64;
    assert!(count >= acknowledged, "{context}: {count} are there, {acknowledged} acknowledged");
    assert_eq!(engine.damage(), [], "{context}");
    count
}

#[test]
fn a_killed_agent_finds_all_that_was_acknowledged() {
    let directory = memory();
    let mut random = fastrand::Rng::with_seed(2);
    let mut count = 0;
    for round in 0..8 {
        let writer = Writer::start(directory.path());
        writer.wait_for(count + random.u64(1..400));
        let acknowledged = writer.acknowledged.load(Ordering::SeqCst);
        writer.kill();
        count = all_there(&mut open(directory.path()), acknowledged, &format!("round {round}"));
        assert_eq!(broken(directory.path()), 0, "round {round}");
    }
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    // Shuts the file system down without writing out anything: what was not synced is gone.
    const CUT: &str = "import fcntl, os, struct, sys; \
        fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]);
    let disk = directory.path().join("disk");
    let store = disk.join("store");
    let mut random = fastrand::Rng::with_seed(3);
    let mut count = 0;
    for round in 0..25 {
        let mounted = mount(&["-o", "loop", image.to_str().unwrap()], &disk);
        if round > 0 {
            let context = format!("round {round}");
            count = all_there(&mut open(&store), count, &context);
            assert_eq!(broken(&store), 0, "{context}");
        }
        let writer = Writer::start(&store);
        writer.wait_for(count + random.u64(1..200));
        count = writer.acknowledged.load(Ordering::SeqCst);
        run("python3", &["-c", CUT, disk.to_str().unwrap()]);
        writer.kill();
        run("umount", &[disk.to_str().unwrap()]);
        std::mem::forget(mounted);
    }
    let _mounted = mount(&["-o", "loop", image.to_str().unwrap()], &disk);
    all_there(&mut open(&store), count, "after the last round");
}

#[test]
fn a_power_cut_after_any_call_to_the_system_loses_nothing_that_was_acknowledged() {
    let directory = memory();
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let log = directory.path().join("calls");
    let writer = std::env::current_exe().unwrap();
    let status = Command::new("strace")
        .args(replay::STRACE)
        .arg(&log)
        .arg(writer)
        .args(["--ignored", "--exact", "writer", "--nocapture"])
        .env(STORE, root.join("store"))
        .env(MOST, "80")
        .stdout(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "this test needs strace: install it");
    let calls = replay::read(&log);
    let mut disk = replay::Disk::new(&root);
    let mut random = fastrand::Rng::with_seed(4);
    let (mut acknowledged, mut cuts) = (0, 0);
    for (at, call) in calls.iter().enumerate() {
        let changed = disk.apply(at, call);
        acknowledged = disk.said().rsplit("acknowledged ").next().map_or(0, |text| {
            let digits = text.lines().next().unwrap_or_default();
            digits.parse().unwrap_or(acknowledged)
        });
        // What is not synced is all gone, or some of it is there, in any order.
        let outcomes =
            [changed.durable.then(|| disk.synced()), changed.any.then(|| disk.some(&mut random))];
        for (after, what) in outcomes.into_iter().zip(["all", "some"]) {
            let Some(after) = after else { continue };
            let place = memory();
            let store = place.path().join("store");
            after.write(place.path());
            let context = format!("call {at} ({}), {what} unsynced lost", call.name);
            all_there(&mut open(&store), acknowledged, &context);
            let why = std::fs::read_to_string(store.join("broken-1/why")).unwrap_or_default();
            assert_eq!(broken(&store), 0, "{context}: {why}");
            cuts += 1;
        }
    }
    assert!(acknowledged >= 80 && cuts > 300, "{acknowledged} acknowledged, {cuts} cuts");
}
