//! The engine on CouchDB, with a real server: the one that `CHEOPS_TEST_COUCHDB` names
//! (`http://user:password@host:port`), or `pouchdb-server`, which `CHEOPS_POUCHDB` names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod conformance;
mod couch;
mod storage;
#[allow(dead_code, reason = "not every sort is written down")]
mod support;

use cheops_agent::engine::{EngineError, LostUnknown, Opened, couchdb::CouchDb};
use cheops_core::replica::Durable;
use conformance::Place as _;
use couch::Couch;
use storage::{operation_of, resource};

struct InCouch(Couch, tempfile::TempDir);

impl conformance::Place for InCouch {
    fn new() -> Self {
        Self(Couch::get(), tempfile::tempdir().unwrap())
    }

    fn open_as(&self, site: &str) -> Result<Box<dyn Opened>, EngineError> {
        Ok(Box::new(CouchDb::open(&self.0.config, site.parse().unwrap(), self.1.path())?))
    }
}

conforms!(InCouch);

/// Operations of this site.
fn own(numbers: impl Iterator<Item = u64>) -> Vec<Durable> {
    numbers.map(|number| operation_of(number, "here", &resource(number))).collect()
}

fn read(engine: &mut dyn Opened) -> Vec<Durable> {
    engine.written().map(Result::unwrap).collect()
}

#[test]
fn a_batch_without_its_last_page_does_not_count_and_its_own_records_are_strays() {
    let place = InCouch::new();
    let (first, second) = (own(1..=3), own(4..=1_500));
    let mut engine = place.open();
    engine.append(&first).unwrap();
    engine.append(&second).unwrap();
    drop(engine);
    place.0.remove(&place.0.config.local(), "page:00000000000000001004");
    for _ in 0..2 {
        let mut engine = place.open();
        let mut strays = engine.strays().unwrap();
        assert_eq!(read(&mut *engine), first);
        assert_eq!((engine.damage(), engine.reader().last()), (&[][..], 3));
        strays.sort_by_key(storage::number);
        assert_eq!(strays, second);
    }
    let mut engine = place.open();
    let strays = engine.strays().unwrap();
    read(&mut *engine);
    assert_eq!(engine.append(&strays).unwrap(), 1_500);
    drop(engine);
    let mut engine = place.open();
    assert_eq!(engine.strays().unwrap(), []);
    assert_eq!(read(&mut *engine).len(), 1_500);
}

#[test]
fn a_document_that_is_gone_is_reported_until_a_marker_and_the_rest_is_read() {
    let place = InCouch::new();
    let written = own(1..=21);
    place.open().append(&written).unwrap();
    let lost = resource(4);
    place.0.remove_like(&place.0.config.database, &format!("record:{lost}:here:4:"));
    let mut engine = place.open();
    let others = |durable: &&Durable| *durable.resource() != lost;
    for _ in 0..2 {
        assert_eq!(read(&mut *engine).iter().collect::<Vec<_>>(), {
            written.iter().filter(others).collect::<Vec<_>>()
        });
        let [damage] = engine.damage() else { panic!("{:?}", engine.damage()) };
        assert_eq!((&damage.resource, damage.seqs.clone()), (&Some(lost.clone()), 4..=4));
        assert_eq!(damage.floor, 18, "the last number of this site that the journal names");
        assert!(damage.to_string().contains("its document is not there any more"), "{damage}");
    }
    let marker = Durable::Withheld { resource: lost.clone(), floor: 18 };
    engine.append(std::slice::from_ref(&marker)).unwrap();
    drop(engine);
    let mut engine = place.open();
    assert_eq!(read(&mut *engine).last(), Some(&marker));
    assert_eq!(engine.damage(), []);
}

#[test]
fn a_document_that_was_removed_is_put_back_with_its_record() {
    let place = InCouch::new();
    let written = own(1..=3);
    place.open().append(&written).unwrap();
    let lost = resource(2);
    place.0.remove_like(&place.0.config.database, &format!("record:{lost}:here:2:"));
    let marker = Durable::Withheld { resource: lost, floor: 2 };
    let again = [marker, written[1].clone()];
    let mut engine = place.open();
    read(&mut *engine);
    engine.append(&again).unwrap();
    for _ in 0..2 {
        let mut engine = place.open();
        assert_eq!(read(&mut *engine), [&written[..], &again[..]].concat());
        assert_eq!(engine.damage(), []);
    }
}

#[test]
fn what_is_forgotten_is_no_stray() {
    let place = InCouch::new();
    let (gone, here) = (resource(1), "here".parse::<cheops_core::id::SiteId>().unwrap());
    let forgotten = Durable::Forgotten {
        resource: gone.clone(),
        version: [(here.clone(), 1)].into(),
        by: cheops_core::id::OpId { site: here, number: 1 },
        at: cheops_core::time::Timestamp::at(cheops_core::time::Millis(1)),
    };
    place.open().append(&own(1..=2)).unwrap();
    place.open().append(std::slice::from_ref(&forgotten)).unwrap();
    let mut engine = place.open();
    assert_eq!(engine.strays().unwrap(), []);
    assert_eq!(read(&mut *engine), [own(2..=2), vec![forgotten]].concat());
}

#[test]
fn pages_that_are_gone_are_reported_with_their_numbers() {
    let place = InCouch::new();
    let mut engine = place.open();
    for batch in own(1..=9).chunks(3) {
        engine.append(batch).unwrap();
    }
    drop(engine);
    place.0.remove(&place.0.config.local(), "page:00000000000000000004");
    let lost = |engine: &dyn Opened| {
        matches!(engine.lost_unknown(), Some(LostUnknown { records: 3, found: 1.. }))
    };
    let mut engine = place.open();
    for _ in 0..2 {
        assert_eq!(read(&mut *engine), [own(1..=3), own(7..=9)].concat());
        let [damage] = engine.damage() else { panic!("{:?}", engine.damage()) };
        assert_eq!((damage.seqs.clone(), &damage.resource), (4..=6, &None));
        assert!(lost(&*engine));
    }
    assert_eq!(engine.append(&own(10..=10)).unwrap(), 10);
    drop(engine);
    let mut engine = place.open();
    assert_eq!(read(&mut *engine), [own(1..=3), own(7..=10)].concat());
    assert_eq!(engine.damage(), []);
    assert!(lost(&*engine), "there may have been resources of which nothing is left");
}
