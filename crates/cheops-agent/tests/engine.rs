//! The embedded engine on a sound disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod storage;
#[allow(dead_code, reason = "not every sort is written down")]
mod support;

use std::{collections::BTreeSet, fs, path::Path};

use cheops_agent::engine::{Damage, Engine, Seq, embedded::Embedded};
use cheops_core::{
    id::{OpId, ResourceId},
    replica::Durable,
    trust::Seal,
};
use proptest::{prelude::*, test_runner::TestRunner};
use storage::{broken, directory, number, open, operation, options, read};

#[test]
fn what_is_appended_is_read_back_in_order_with_its_numbers() {
    let strategy = prop::collection::vec(prop::collection::vec(support::durable(), 1..9), 1..9);
    let config = ProptestConfig::with_cases(24);
    TestRunner::new(config)
        .run(&strategy, |batches| {
            let directory = directory();
            let mut engine = open(directory.path());
            let mut last = 0;
            for batch in &batches {
                last += batch.len() as u64;
                prop_assert_eq!(engine.append(batch).unwrap(), last);
            }
            let numbered = kept(&batches.concat());
            let all: Vec<_> = numbered.iter().map(|(_, durable)| durable.clone()).collect();
            for round in 0..2 {
                prop_assert_eq!(&read(&mut engine), &all, "round {}", round);
                prop_assert_eq!(engine.damage(), &[]);
                let reader = engine.reader();
                prop_assert_eq!(reader.last(), last);
                prop_assert_eq!(&reader.after(0, 1_000).unwrap(), &numbered);
                let some = reader.after(2, 3).unwrap();
                let expected: Vec<_> =
                    numbered.iter().filter(|(n, _)| *n > 2).take(3).cloned().collect();
                prop_assert_eq!(some, expected);
                prop_assert_eq!(reader.after(last, 3).unwrap(), vec![]);
                drop(reader);
                drop(engine);
                engine = open(directory.path());
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn seals_are_found_by_the_records_that_they_are_of() {
    let directory = directory();
    let mut engine = open(directory.path());
    let seal = |n: u64| Seal::new(&n.to_be_bytes());
    let sealed = |n: u64| match operation(n) {
        Durable::Record(record, _) => Durable::Record(record, seal(n).filter(|_| n != 5)),
        other => panic!("{other:?}"),
    };
    let batch: Vec<Durable> = (1..=9).map(sealed).collect();
    engine.append(&batch).unwrap();
    for _ in 0..2 {
        let reader = engine.reader();
        for (n, durable) in (1..).zip(&batch) {
            let Durable::Record(record, seal) = durable else { panic!("{durable:?}") };
            let mut wanted = BTreeSet::from([record.id().clone()]);
            wanted.insert(OpId { number: 77, ..record.id().clone() });
            let found = reader.seals(record.resource(), &wanted).unwrap();
            let expected = seal.iter().map(|seal| (record.id().clone(), seal.clone()));
            assert_eq!(found, expected.collect(), "{n}");
            assert!(reader.seals(&"nothing".parse().unwrap(), &wanted).unwrap().is_empty());
        }
        drop(engine);
        engine = open(directory.path());
    }
}

/// What is left of a list, with its numbers: a resource that is forgotten leaves nothing but that.
fn kept(all: &[Durable]) -> Vec<(Seq, Durable)> {
    let forgets = |durable: &Durable, resource: &ResourceId| {
        matches!(durable, Durable::Forgotten { .. }) && durable.resource() == resource
    };
    let is_kept = |(n, durable): &(Seq, Durable)| {
        let later = all.iter().skip(usize::try_from(*n).unwrap());
        !later.into_iter().any(|later| forgets(later, durable.resource()))
    };
    (1..).zip(all.iter().cloned()).filter(is_kept).collect()
}

#[test]
fn what_has_no_form_on_disk_is_refused_for_good_and_other_batches_are_taken() {
    let directory = directory();
    let mut engine = open(directory.path());
    assert_eq!(engine.append(&[operation(1)]).unwrap(), 1);
    let op = OpId { site: "here".parse().unwrap(), number: u64::MAX };
    let resource = "r".parse().unwrap();
    let no_number = Durable::Intent { resource, op, attempt: 1, fresh: false };
    let failure = engine.append(&[operation(2), no_number]).unwrap_err();
    assert!(failure.is_permanent(), "{failure}");
    let expected = format!("the start of a run of here:{} of resource r can't be", u64::MAX);
    assert!(failure.to_string().contains(&expected), "{failure}");
    assert_eq!(engine.reader().last(), 1);
    assert_eq!(engine.append(&[operation(2)]).unwrap(), 2);
    drop(engine);
    assert_eq!(read(&mut open(directory.path())), [operation(1), operation(2)]);
}

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
fn nothing_comes_after_the_last_number_there_can_be() {
    let directory = directory();
    let mut engine = open(directory.path());
    engine.append(&[operation(1)]).unwrap();
    for after in [1, Seq::MAX - 1, Seq::MAX] {
        assert_eq!(engine.reader().after(after, usize::MAX).unwrap(), [], "{after}");
    }
    assert_eq!(engine.reader().after(0, usize::MAX).unwrap().len(), 1);
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
fn a_reader_reads_while_others_write() {
    let directory = directory();
    let mut engine = open(directory.path());
    let reader = engine.reader();
    let follower = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while seen.len() < 2_000 {
            let last = seen.len() as u64;
            for (seq, durable) in reader.after(last, 100).unwrap() {
                assert!(seq <= reader.last());
                assert_eq!((seq, number(&durable)), (seen.len() as u64 + 1, seq));
                seen.push(durable);
            }
        }
        assert!(reader.free().unwrap() > 0);
        seen
    });
    let written: Vec<_> = (1..=2_000).map(operation).collect();
    for batch in written.chunks(10) {
        engine.append(batch).unwrap();
    }
    assert_eq!(follower.join().unwrap(), written);
}

#[test]
fn an_empty_batch_changes_nothing() {
    let directory = directory();
    let mut engine = open(directory.path());
    assert_eq!(engine.append(&[]).unwrap(), 0);
    assert_eq!(engine.append(&[operation(1)]).unwrap(), 1);
    assert_eq!(engine.append(&[]).unwrap(), 1);
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
