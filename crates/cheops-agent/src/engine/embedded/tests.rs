//! What only the inside can see: what is left of what was forgotten, and the states after a failure.

use std::{collections::BTreeSet, path::Path};

use cheops_core::{
    id::{OpId, ResourceId},
    replica::{Durable, Version},
    time::{Millis, Timestamp},
};

use super::{
    Acknowledged, Embedded, Options, State,
    frame::{self, Kind},
    rebuild,
    store::Items,
};
use crate::engine::{Engine, Opened as _, Seq, entry::Entry, meaning};

fn open(directory: &Path) -> Embedded {
    let options = Options { memtable: 16 << 10, ..Options::of("here".parse().unwrap()) };
    Embedded::open(directory, options).unwrap()
}

fn resource(name: &str) -> ResourceId {
    name.parse().unwrap()
}

fn intent(name: &str, number: u64) -> Durable {
    let op = OpId { site: "here".parse().unwrap(), number };
    Durable::Intent { resource: resource(name), op, attempt: 1, fresh: false }
}

fn forget(engine: &Embedded, name: &str, before: u64) {
    let guard = engine.shared.store();
    let store = guard.as_ref().unwrap();
    let mut items = Items::default();
    rebuild::forget(store, &resource(name), before, &mut items).unwrap();
    store.write(items, true).unwrap();
}

fn read(engine: &mut Embedded) -> Vec<Durable> {
    engine.written().map(Result::unwrap).collect()
}

/// The numbers of which files still say that they are of a resource, whether they count or not.
fn traces(directory: &Path, name: &str) -> BTreeSet<Seq> {
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            numbers.extend(traces(&path, name));
            continue;
        }
        frame::scan(&std::fs::File::open(path).unwrap(), 0, |_, frame| {
            let entry = (frame.kind == Kind::Index).then(|| Entry::decode(frame.body)).flatten();
            if entry.is_some_and(|entry| entry.resource == resource(name)) {
                numbers.insert(frame.seq);
            }
        });
    }
    numbers
}

#[test]
fn a_forgotten_resource_is_gone_without_damage_and_stays_gone_when_the_store_is_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = open(directory.path());
    let name = |number: u64| if number.is_multiple_of(3) { "old" } else { "young" };
    let written: Vec<_> = (1..=300).map(|number| intent(name(number), number)).collect();
    for batch in written.chunks(7) {
        engine.append(batch).unwrap();
    }
    forget(&engine, "old", 200);
    let stays = |(seq, durable): (u64, &Durable)| {
        (name(seq) == "young" || seq >= 200).then(|| durable.clone())
    };
    let left: Vec<_> = (1..).zip(&written).filter_map(stays).collect();
    assert!(left.len() < written.len());
    drop(engine);
    for why in ["", "a test", "another test"] {
        let mut engine = open(directory.path());
        if !why.is_empty() {
            engine.rebuild(Acknowledged::AtLeast(300), why).unwrap();
        }
        assert_eq!(read(&mut engine), left, "{why}");
        assert_eq!(engine.damage(), [], "{why}");
        assert_eq!(engine.reader().after(0, 1_000).unwrap().len(), left.len(), "{why}");
    }
    // The last rebuild took over only what counts.
    let counts = (200..=300).filter(|seq| name(*seq) == "old").collect();
    assert_eq!(traces(&directory.path().join("db"), "old"), counts);
}

fn forgotten(name: &str) -> Durable {
    let by = OpId { site: "here".parse().unwrap(), number: 1 };
    let at = Timestamp::at(Millis(1_800_000_000_000));
    Durable::Forgotten { resource: resource(name), version: Version::default(), by, at }
}

#[test]
fn what_a_batch_forgets_again_is_not_missed_when_the_store_is_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = open(directory.path());
    engine.append(&[intent("old", 1), intent("young", 2)]).unwrap();
    let batch = [
        intent("old", 3),
        forgotten("old"),
        intent("young", 4),
        intent("old", 5),
        forgotten("old"),
        intent("old", 6),
    ];
    assert_eq!(engine.append(&batch).unwrap(), 8);
    let left = [intent("young", 2), batch[2].clone(), batch[4].clone(), batch[5].clone()];
    drop(engine);
    // After a power cut it may not be known that the last batch was acknowledged.
    for acknowledged in [8, 2] {
        let mut engine = open(directory.path());
        assert_eq!(read(&mut engine), left);
        engine.rebuild(Acknowledged::AtLeast(acknowledged), "a test").unwrap();
        assert_eq!((read(&mut engine), engine.damage()), (left.to_vec(), [].as_slice()));
    }
}

#[test]
fn many_holes_are_each_reported_with_what_is_known_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = open(directory.path());
    let name = |number: u64| format!("r{}", number % 10);
    let written: Vec<_> = (1..=2_000).map(|number| intent(&name(number), number)).collect();
    engine.append(&written).unwrap();
    // What has these numbers, and from 1999 on all, is not there any more.
    let lost = |number: u64| number % 20 == 3 || number > 1_998;
    let mut items = Items::default();
    (1..=2_000).filter(|number| lost(*number)).for_each(|number| items.lose(number));
    engine.shared.store().as_ref().unwrap().write(items, true).unwrap();
    drop(engine);
    for start in ["first", "second"] {
        let mut engine = open(directory.path());
        let after_a_loss = |number: u64| name(number) == "r3" && number > 2;
        let left = (1..=2_000).filter(|number| !lost(*number) && !after_a_loss(*number));
        let left: Vec<_> = left.map(|number| intent(&name(number), number)).collect();
        assert!(read(&mut engine) == left, "{start}");
        let damage = engine.damage();
        assert_eq!(damage.len(), 102, "{start}");
        assert_eq!(damage[1].what, "the start of a run of here:23 of resource r3", "{start}");
        assert_eq!(damage[100].resource, Some(resource("r9")), "{start}");
        assert_eq!(damage[101].seqs, 2_000..=2_000, "{start}");
    }
}

#[test]
fn nothing_that_is_written_down_forgets_or_resumes_a_resource() {
    for durable in
        [intent("r", 1), Durable::Clearing(resource("r")), Durable::Cleared(resource("r"))]
    {
        assert_eq!(meaning::forgets(&durable), None);
        assert_eq!(meaning::resumes(&durable), None);
        assert_eq!(durable.resource(), &resource("r"));
    }
}

/// An engine that has written five numbers and then four that nobody was told of, as if the sync
/// after the write had failed.
fn failed(directory: &Path, batch: &[Durable], disk: bool) -> Embedded {
    let mut engine = open(directory);
    let before: Vec<_> = (1..=5).map(|number| intent("r", number)).collect();
    engine.append(&before).unwrap();
    engine.append(batch).unwrap();
    engine.next = 6;
    engine.shared.last.store(5, std::sync::atomic::Ordering::Release);
    engine.tail.write(5).unwrap();
    engine.state = State::Failed { disk };
    engine
}

#[test]
fn a_batch_that_is_there_after_a_failure_and_a_rebuild_is_not_there_twice() {
    let directory = tempfile::tempdir().unwrap();
    let next: Vec<_> = (6..=9).map(|number| intent("r", number)).collect();
    let mut engine = failed(directory.path(), &next, false);
    let mut items = Items::default();
    items.garble(&resource("r"), 3);
    engine.shared.store().as_ref().unwrap().write(items, true).unwrap();
    engine.recover().unwrap();
    assert!(directory.path().join("broken-1").exists());
    assert_eq!(engine.state, State::Again { last: 9 });
    let reader = engine.reader();
    assert_eq!((reader.last(), reader.after(0, 100).unwrap().len()), (5, 5), "nobody was told");
    assert_eq!(engine.append(&next).unwrap(), 9);
    assert_eq!(engine.append(&[intent("r", 10)]).unwrap(), 10);
    drop((engine, reader));
    let mut engine = open(directory.path());
    assert_eq!(read(&mut engine), (1..=10).map(|number| intent("r", number)).collect::<Vec<_>>());
    assert_eq!(engine.damage(), []);
}

#[test]
fn a_batch_that_is_there_after_a_failure_is_not_there_twice() {
    let directory = tempfile::tempdir().unwrap();
    let next: Vec<_> = (6..=9).map(|number| intent("r", number)).collect();
    let mut engine = failed(directory.path(), &next, true);
    let batch: Vec<_> = (1..=4).map(|number| intent("r", number)).collect();
    assert!(engine.append(&next).is_err());
    assert_eq!(engine.reader().after(0, 100).unwrap().len(), 5);
    engine.recover().unwrap();
    assert_eq!(engine.state, State::Again { last: 9 });
    for other in [&next[..3], &batch] {
        let problem = engine.append(other).unwrap_err().to_string();
        assert!(problem.contains("another batch than the one that failed"), "{problem}");
    }
    assert_eq!(engine.append(&next).unwrap(), 9);
    assert_eq!(engine.append(&[intent("r", 10)]).unwrap(), 10);
    drop(engine);
    let mut engine = open(directory.path());
    assert_eq!(read(&mut engine), (1..=10).map(|number| intent("r", number)).collect::<Vec<_>>());
}
