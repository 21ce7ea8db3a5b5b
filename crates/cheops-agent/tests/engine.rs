//! The embedded engine on a sound disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod conformance;
mod storage;
#[allow(dead_code, reason = "not every sort is written down")]
mod support;

use std::{fs, path::Path};

use cheops_agent::engine::{Damage, Engine, EngineError, Opened, embedded::Embedded};
use storage::{broken, directory, open, operation, options, read};

struct InDirectory(tempfile::TempDir);

impl conformance::Place for InDirectory {
    fn new() -> Self {
        Self(directory())
    }

    fn open_as(&self, site: &str) -> Result<Box<dyn Opened>, EngineError> {
        Ok(Box::new(Embedded::open(self.0.path(), options(site))?))
    }
}

conforms!(InDirectory);

#[test]
fn a_store_with_many_tables_is_opened_again_without_a_rebuild() {
    let directory = directory();
    let mut written = Vec::new();
    for round in 0..6 {
        let mut engine = open(directory.path());
        assert_eq!(read(&mut engine), written, "round {round}");
        assert_eq!(engine.damage(), &[], "round {round}");
        for _ in 0..60 {
            let first = written.len() as u64 + 1;
            let batch: Vec<_> = (first..first + 20).map(operation).collect();
            assert_eq!(engine.append(&batch).unwrap(), first + 19);
            written.extend(batch);
        }
        drop(engine);
        assert_eq!(broken(directory.path()), 0, "round {round}");
    }
    let tables = directory.path().join("db/keyspaces/1/tables");
    assert!(fs::read_dir(tables).unwrap().count() > 1, "the test means to have tables");
}

#[test]
fn a_reader_does_not_keep_a_store_open_whose_engine_is_gone() {
    let directory = directory();
    let mut engine = open(directory.path());
    engine.append(&[operation(1)]).unwrap();
    let reader = engine.reader();
    drop(engine);
    let error = reader.after(0, 1).unwrap_err().to_string();
    assert!(error.contains("it is closed"), "{error}");
    assert_eq!(read(&mut open(directory.path())), [operation(1)]);
}

#[test]
fn a_store_of_another_format_site_or_agent_is_refused_with_what_to_do() {
    let directory = directory();
    let engine = open(directory.path());
    let refused = |site: &str| match Embedded::open(directory.path(), options(site)) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    };
    assert!(refused("here").contains("is another agent running on it?"), "{}", refused("here"));
    drop(engine);
    let problem = refused("elsewhere");
    assert!(problem.contains("it belongs to site `here`, and this agent is `elsewhere`"));

    let about = fs::read_to_string(directory.path().join("about")).unwrap();
    let (content, _) = about.rsplit_once("checksum ").unwrap();
    for (format, advice) in [("2", "upgrade the program"), ("0", "use the program that wrote it")] {
        let content = content.replace("format 1", &format!("format {format}"));
        let sum = crc32fast::hash(content.as_bytes());
        fs::write(directory.path().join("about"), format!("{content}checksum {sum:08x}\n"))
            .unwrap();
        let problem = refused("here");
        let expected = format!("with format {format}; this program reads 1: {advice}");
        assert!(problem.contains(&expected), "{problem}");
        assert!(problem.contains(&directory.path().display().to_string()), "{problem}");
    }
}

#[test]
fn a_store_that_does_not_say_what_it_is_is_opened_and_reported() {
    for about in [None, Some("format 1\nsite hare\nchecksum 00000000\n")] {
        let directory = directory();
        open(directory.path()).append(&[operation(1)]).unwrap();
        let path = directory.path().join("about");
        match about {
            None => fs::remove_file(path).unwrap(),
            Some(text) => fs::write(path, text).unwrap(),
        }
        let mut engine = open(directory.path());
        assert_eq!(read(&mut engine), [operation(1)]);
        let [Damage { seqs, what, .. }] = engine.damage() else { panic!("{:?}", engine.damage()) };
        assert!(seqs.is_empty() && what.contains("`about`"), "{what}");
        drop(engine);
        let mut engine = open(directory.path());
        read(&mut engine);
        assert_eq!(engine.damage(), &[]);
    }
}

#[test]
fn an_interrupted_rebuild_or_a_first_start_is_put_right() {
    let store = directory();
    let written: Vec<_> = (1..=50).map(operation).collect();
    open(store.path()).append(&written).unwrap();
    let at = |name: &str| store.path().join(name);
    let check = |place: &Path| {
        let mut engine = open(place);
        assert_eq!(read(&mut engine), written);
        assert_eq!(engine.damage(), &[]);
    };
    // While the new one was written.
    fs::create_dir_all(at("db.new/keyspaces")).unwrap();
    fs::write(at("db.new/0.jnl"), "half").unwrap();
    check(store.path());
    assert!(!at("db.new").exists());
    // Between putting the old one aside and the new one in its place.
    fs::rename(at("db"), at("db.new")).unwrap();
    check(store.path());
    assert!(at("db").exists());

    // While the database was made for the first time.
    for left in ["0.jnl", "lock", "version"] {
        let young = directory();
        fs::create_dir_all(young.path().join("db/keyspaces")).unwrap();
        fs::write(young.path().join("db").join(left), "").unwrap();
        let mut engine = open(young.path());
        assert_eq!(read(&mut engine), []);
        assert_eq!(engine.append(&[operation(1)]).unwrap(), 1);
        assert_eq!(broken(young.path()), 0, "{left}");
    }
}

#[test]
fn acknowledged_records_that_are_not_there_are_reported_until_something_is_appended() {
    let directory = directory();
    let written: Vec<_> = (1..=9).map(operation).collect();
    open(directory.path()).append(&written).unwrap();
    fs::remove_dir_all(directory.path().join("db")).unwrap();
    for _ in 0..2 {
        let mut engine = open(directory.path());
        assert_eq!(read(&mut engine), []);
        let [damage] = engine.damage() else { panic!("{:?}", engine.damage()) };
        assert_eq!((damage.seqs.clone(), &damage.resource), (1..=9, &None));
        assert!(damage.to_string().contains("(numbers 1 to 9)"), "{damage}");
    }
    let mut engine = open(directory.path());
    read(&mut engine);
    // The numbers that readers may have seen are not given again.
    assert_eq!(engine.append(&[operation(10)]).unwrap(), 10);
    drop(engine);
    let mut engine = open(directory.path());
    assert_eq!(read(&mut engine), [operation(10)]);
    assert_eq!(engine.damage(), &[]);
}
