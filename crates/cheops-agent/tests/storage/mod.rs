//! Stores for tests, and operations that say which number they have.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::Arc,
    time::Duration,
};

use cheops_agent::engine::{
    Opened as _,
    embedded::{Embedded, Options},
};
use cheops_core::{
    id::{OpId, ResourceId},
    operation::{Action, Operation},
    replica::{Durable, Record},
    time::{Millis, Timestamp},
};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// How many resources the operations are of.
pub(crate) const RESOURCES: u64 = 7;

pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// In memory where that is possible, for tests that sync a lot.
pub(crate) fn memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let memory = memory.exists().then_some(memory);
    tempfile::tempdir_in(memory.unwrap_or(&std::env::temp_dir())).unwrap()
}

/// With so little memory that there are soon tables.
pub(crate) fn options(site: &str) -> Options {
    Options { memtable: 64 << 10, ..Options::of(site.parse().unwrap()) }
}

pub(crate) fn open(directory: &Path) -> Embedded {
    Embedded::open(directory, options("here")).unwrap()
}

pub(crate) fn read(engine: &mut Embedded) -> Vec<Durable> {
    engine.written().map(Result::unwrap).collect()
}

/// How many broken databases were put aside.
pub(crate) fn broken(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("broken-")).count()
}

pub(crate) fn resource(number: u64) -> ResourceId {
    format!("resource{}", number % RESOURCES).parse().unwrap()
}

/// An operation of 500 bytes. Each third one is of this site.
pub(crate) fn operation(number: u64) -> Durable {
    let site = if number.is_multiple_of(3) { "here" } else { "there" };
    operation_of(number, site, &resource(number))
}

/// The same, of any site and resource.
pub(crate) fn operation_of(number: u64, site: &str, resource: &ResourceId) -> Durable {
    let operation = |line: &str| Operation {
        id: OpId { site: site.parse().unwrap(), number },
        resource: resource.clone(),
        kind: "inc".parse().unwrap(),
        author: "operator".parse().unwrap(),
        at: Timestamp::at(Millis(1_800_000_000_000 + number)),
        parents: [].into(),
        action: Action::command(line),
        reset: false,
        keep_going: false,
        key: None,
        declares: None,
    };
    let line = "x".repeat(500 - operation("").weight());
    Durable::Record(Record::Operation(Arc::new(operation(&line))), None)
}

/// The number of such an operation.
pub(crate) fn number(durable: &Durable) -> u64 {
    match durable {
        Durable::Record(Record::Operation(op), _) => op.id.number,
        other => panic!("{other:?}"),
    }
}

/// A file system of our own, for as long as it is held.
pub(crate) struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

pub(crate) fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.as_ref().is_ok_and(ExitStatus::success), "{program}: {status:?}");
}

pub(crate) fn mount(arguments: &[&str], at: &Path) -> Mounted {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts a file system: run it as root, in a container that may mount",
    );
    fs::create_dir_all(at).unwrap();
    run("mount", &[arguments, &[at.to_str().unwrap()]].concat());
    Mounted(at.to_owned())
}
