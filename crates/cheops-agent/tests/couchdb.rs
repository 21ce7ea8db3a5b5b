//! The engine on CouchDB, with a real server: the one that `CHEOPS_TEST_COUCHDB` names
//! (`http://user:password@host:port`), or `pouchdb-server`, which `CHEOPS_POUCHDB` names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod conformance;
pub(crate) mod couch;
pub(crate) mod storage;
#[allow(dead_code, reason = "not every sort is written down")]
mod support;

use cheops_agent::engine::{
    Arrivals, EngineError, LostUnknown, Opened, Sort,
    couchdb::{Buffered, CouchDb},
};
use cheops_core::replica::Durable;
use conformance::Place as _;
use couch::{
    Couch, Relay,
    lagging::{Lagging, Manner},
};
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

crate::conforms!(InCouch);

/// The same, with a local journal, and a way to the server that can be cut.
struct Buffering {
    couch: Couch,
    relay: Relay,
    data: tempfile::TempDir,
    limit: u64,
}

impl conformance::Place for Buffering {
    fn new() -> Self {
        let mut couch = Couch::get();
        let relay = Relay::to(couch.config.place());
        couch.config.url = format!("http://127.0.0.1:{}", relay.port).parse().unwrap();
        Self { couch, relay, data: tempfile::tempdir().unwrap(), limit: 1 << 20 }
    }

    fn open_as(&self, site: &str) -> Result<Box<dyn Opened>, EngineError> {
        let (site, data) = (site.parse().unwrap(), self.data.path());
        Ok(Box::new(Buffered::open(&self.couch.config, site, data, self.limit)?))
    }
}

impl Buffering {
    fn file(&self) -> std::path::PathBuf {
        self.data.path().join("couchdb/waiting")
    }

    /// Lets the engine go on until nothing waits.
    fn settle(engine: &mut dyn Opened) {
        let start = std::time::Instant::now();
        while engine.reader().waiting().is_some() {
            assert!(start.elapsed() < std::time::Duration::from_secs(30), "it still waits");
            engine.tend().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

mod buffered {
    use super::{Buffering, conformance};

    crate::conforms!(Buffering);
}

/// Operations of this site.
pub(crate) fn own(numbers: impl Iterator<Item = u64>) -> Vec<Durable> {
    numbers.map(|number| operation_of(number, "here", &resource(number))).collect()
}

pub(crate) fn read(engine: &mut dyn Opened) -> Vec<Durable> {
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
fn a_document_that_was_removed_or_edited_comes_back_with_a_revision_that_ends_as_the_first_did() {
    let place = InCouch::new();
    let written = own(1..=3);
    place.open().append(&written).unwrap();
    let database = place.0.config.database.clone();
    let id = |number: u64| {
        let prefix = format!("record:{}:here:{number}:", resource(number));
        place.0.id_like(&database, &prefix)
    };
    let (removed, edited) = (id(1), id(2));
    let revision = |id: &str| {
        let document = place.0.look(&format!("/{database}/{id}"));
        document["_rev"].as_str().map(ToOwned::to_owned)
    };
    let before = [&removed, &edited].map(|id| revision(id).unwrap());
    place.0.remove(&database, &removed);
    place.0.edit(&database, &edited, |document| document["Record"] = "AAAA".into());
    place.0.edit(&database, &edited, |document| document["Record"] = "BBBB".into());
    let marker = |n: usize| Durable::Withheld { resource: resource(n as u64 + 1), floor: 2 };
    let again = [marker(0), marker(1), written[0].clone(), written[1].clone()];
    let mut engine = place.open();
    read(&mut *engine);
    engine.append(&again).unwrap();
    for (id, before) in [&removed, &edited].into_iter().zip(before) {
        let after = revision(id).unwrap();
        assert_eq!(after.split_once('-').unwrap().1, before.split_once('-').unwrap().1, "{after}");
        assert_ne!(after, before);
    }
    drop(engine);
    let mut engine = place.open();
    assert_eq!(read(&mut *engine), [&written[..], &again[..]].concat());
    assert_eq!(engine.damage(), []);
}

#[test]
fn a_document_that_can_not_be_restored_holds_up_no_other() {
    let place = InCouch::new();
    let written = own(1..=3);
    place.open().append(&written).unwrap();
    let database = place.0.config.database.clone();
    for number in [1, 2] {
        let prefix = format!("record:{}:here:{number}:", resource(number));
        place.0.remove_like(&database, &prefix);
    }
    let forbids = format!(
        "function (doc) {{ if (doc._id.indexOf('record:{}:') === 0) {{ throw({{forbidden: 'not this one'}}); }} }}",
        resource(1)
    );
    let design = serde_json::json!({"validate_doc_update": forbids});
    place.0.put(&format!("/{database}/_design/refuses"), &design);
    let marker = |n: u64| Durable::Withheld { resource: resource(n), floor: 2 };
    let again =
        [marker(1), marker(2), written[0].clone(), written[1].clone(), own(4..=4).remove(0)];
    let mut engine = place.open();
    read(&mut *engine);
    assert_eq!(engine.append(&again).unwrap(), 8);
    assert_eq!(engine.append(&own(5..=5)).unwrap(), 9);
    drop(engine);
    let mut engine = place.open();
    let expected = [&written[1..], &again[..], &own(5..=5)[..]].concat();
    let after: Vec<Durable> = read(&mut *engine);
    assert_eq!(after, expected, "the first is read from the journal, where it was written again");
    assert_eq!(engine.damage(), []);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_replication_brings_is_handed_out_until_it_is_written() {
    let (here, there) = (InCouch::new(), InCouch::new());
    let theirs = |numbers: std::ops::RangeInclusive<u64>| -> Vec<Durable> {
        numbers.map(|number| operation_of(number, "there", &resource(1))).collect()
    };
    let mut other = there.open_as("there").unwrap();
    let mut bring = async |records: &[Durable]| {
        other.append(records).unwrap();
        there.0.copy_to(&here.0);
    };
    let mut engine = here.open();
    engine.append(&own(1..=2)).unwrap();
    let mut arrivals = engine.arrivals().unwrap();
    bring(&theirs(1..=3)).await;
    assert_eq!(arrived(&mut *arrivals, 3).await, theirs(1..=3), "and none of this site's own");
    drop((arrivals, engine));

    // The agent was killed before they were written: they are found again, and then no more.
    let mut engine = here.open();
    assert_eq!((read(&mut *engine), engine.strays().unwrap()), (own(1..=2), vec![]));
    let mut arrivals = engine.arrivals().unwrap();
    assert_eq!(arrived(&mut *arrivals, 3).await, theirs(1..=3));
    engine.append(&theirs(1..=3)).unwrap();
    drop((arrivals, engine));
    let mut engine = here.open();
    assert_eq!(read(&mut *engine), [own(1..=2), theirs(1..=3)].concat());
    assert_eq!(engine.damage(), []);
    let mut arrivals = engine.arrivals().unwrap();
    bring(&theirs(4..=4)).await;
    assert_eq!(arrived(&mut *arrivals, 1).await, theirs(4..=4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lost_document_that_is_back_is_handed_out_until_it_is_written_again() {
    let place = InCouch::new();
    let theirs: Vec<Durable> = (1..=3).map(|n| operation_of(n, "there", &resource(1))).collect();
    place.open().append(&theirs).unwrap();
    let database = place.0.config.database.clone();
    let id = place.0.id_like(&database, &format!("record:{}:there:2:", resource(1)));
    let mut record = serde_json::Value::Null;
    let spoil = |document: &mut serde_json::Value| {
        record = std::mem::replace(&mut document["Record"], "AAAA".into());
    };
    place.0.edit(&database, &id, spoil);
    let mut engine = place.open();
    assert_eq!(read(&mut *engine), theirs[..1]);
    assert_eq!(engine.damage().len(), 1);
    let mut arrivals = engine.arrivals().unwrap();
    place.0.edit(&database, &id, |document| document["Record"] = record);
    assert_eq!(arrived(&mut *arrivals, 1).await, theirs[1..2]);
    let marker = Durable::Withheld { resource: resource(1), floor: 0 };
    let revision = || place.0.look(&format!("/{database}/{id}"))["_rev"].clone();
    let before = revision();
    engine.append(&[marker.clone(), theirs[1].clone()]).unwrap();
    assert_eq!(revision(), before, "it need not be restored");
    drop((arrivals, engine));
    let mut engine = place.open();
    let again = [marker, theirs[1].clone()];
    assert_eq!(read(&mut *engine), [&theirs[..], &again[..]].concat());
    assert_eq!(engine.damage(), []);
}

/// So many records that have arrived, in the order of their numbers.
async fn arrived(arrivals: &mut dyn Arrivals, count: usize) -> Vec<Durable> {
    let mut arrived = Vec::new();
    while arrived.len() < count {
        let next = tokio::time::timeout(std::time::Duration::from_secs(20), arrivals.next());
        arrived.extend(next.await.unwrap());
    }
    arrived.sort_by_key(storage::number);
    arrived
}

#[test]
fn a_last_page_that_makes_no_sense_is_named_and_a_page_before_it_is_reported() {
    let place = InCouch::new();
    let mut engine = place.open();
    for batch in own(1..=9).chunks(3) {
        engine.append(batch).unwrap();
    }
    drop(engine);
    let spoil = |page: &str, field: &str, value: serde_json::Value| {
        let mut was = serde_json::Value::Null;
        let local = place.0.config.local();
        place.0.edit(&local, page, |page| was = std::mem::replace(&mut page[field], value));
        was
    };
    let last = "page:00000000000000000007";
    for (field, value) in [("Entries", "x".into()), ("First", 8.into()), ("First", "7".into())] {
        let was = spoil(last, field, value);
        let Err(error) = place.open_as("here") else { panic!("it was opened: {field}") };
        let problem = error.to_string();
        assert!(problem.contains(&format!("`{last}`, the last of the journal")), "{problem}");
        assert!(problem.contains("from a backup"), "{problem}");
        spoil(last, field, was);
        assert_eq!(read(&mut *place.open()), own(1..=9));
    }
    place.0.remove(&place.0.config.local(), last);
    spoil("page:00000000000000000001", "Entries", "x".into());
    let mut engine = place.open();
    assert_eq!(read(&mut *engine), own(4..=6));
    assert_eq!(engine.damage().len(), 1, "{:?}", engine.damage());
}

#[test]
fn what_is_accepted_while_the_server_is_away_is_read_at_once_and_written_when_it_is_back() {
    let place = Buffering::new();
    let mut engine = place.open();
    let reader = engine.reader();
    let batches: Vec<_> = own(1..=12).chunks(3).map(<[Durable]>::to_vec).collect();
    engine.append(&batches[0]).unwrap();
    place.relay.cut();
    for (n, batch) in batches.iter().enumerate().skip(1) {
        assert_eq!(engine.append(batch).unwrap(), 3 * n as u64 + 3);
    }
    assert_eq!(engine.append(&[]).unwrap(), 12);
    let waiting = reader.waiting().unwrap();
    assert_eq!((waiting.values, waiting.limit), (9, place.limit));
    assert!(waiting.why.contains("CouchDB can't be reached"), "{}", waiting.why);
    assert_eq!(waiting.bytes, std::fs::metadata(place.file()).unwrap().len());
    let numbers = |after, most| {
        let read = reader.after(after, most).unwrap();
        assert!(read.iter().all(|(number, durable)| storage::number(durable) == *number));
        read.iter().map(|(number, _)| *number).collect::<Vec<_>>()
    };
    assert_eq!((reader.last(), numbers(3, 2)), (12, vec![4, 5]));
    assert_eq!(numbers(7, 100), [8, 9, 10, 11, 12]);
    assert!(reader.after(0, 100).is_err(), "the server has it, and is away");
    let Durable::Record(record, _) = &batches[2][0] else { panic!("a record") };
    let sealed = reader.seals(record.resource(), &[record.id().clone()].into()).unwrap();
    assert!(sealed.is_empty(), "it has none");

    place.relay.heal();
    Buffering::settle(&mut *engine);
    assert_eq!(std::fs::metadata(place.file()).unwrap().len(), 0);
    assert_eq!(numbers(0, 100), (1..=12).collect::<Vec<_>>());
    assert_eq!(engine.append(&own(13..=13)).unwrap(), 13);
    drop((engine, reader));
    let mut engine = place.open();
    assert_eq!(engine.strays().unwrap(), []);
    assert_eq!(read(&mut *engine), own(1..=13));
}

#[test]
fn what_is_forgotten_while_the_server_is_away_is_not_read_back() {
    let place = Buffering::new();
    let (gone, here) = (resource(5), "here".parse::<cheops_core::id::SiteId>().unwrap());
    let forgotten = Durable::Forgotten {
        resource: gone,
        version: [(here.clone(), 5)].into(),
        by: cheops_core::id::OpId { site: here, number: 5 },
        at: cheops_core::time::Timestamp::at(cheops_core::time::Millis(1)),
    };
    let mut engine = place.open();
    place.relay.cut();
    engine.append(&own(5..=6)).unwrap();
    engine.append(std::slice::from_ref(&forgotten)).unwrap();
    let expected = [(2, own(6..=6).remove(0)), (3, forgotten)];
    assert_eq!(engine.reader().after(0, 9).unwrap(), expected);
    place.relay.heal();
    Buffering::settle(&mut *engine);
    assert_eq!(engine.reader().after(0, 9).unwrap(), expected);
}

#[test]
fn a_local_journal_that_is_full_takes_nothing_and_the_same_batch_goes_on_later() {
    let place = Buffering { limit: 2_000, ..Buffering::new() };
    let mut engine = place.open();
    engine.append(&own(1..=1)).unwrap();
    place.relay.cut();
    let mut taken = 1;
    let error = loop {
        match engine.append(&own(taken + 1..=taken + 1)) {
            Ok(last) => taken = last,
            Err(error) => break error,
        }
        assert!(taken < 100, "it is never full");
    };
    assert!(taken > 2, "{error}");
    assert_eq!((error.sort, error.is_permanent()), (Sort::Server, false));
    assert!(error.to_string().contains("the local journal is full"), "{error}");
    let op = cheops_core::id::OpId { site: "here".parse().unwrap(), number: u64::MAX };
    let resource = "r".parse().unwrap();
    let no_number = Durable::Intent { resource, op, attempt: 1, fresh: false };
    assert!(engine.append(&[no_number]).unwrap_err().is_permanent());
    place.relay.heal();
    Buffering::settle(&mut *engine);
    engine.recover().unwrap();
    assert_eq!(engine.append(&own(taken + 1..=taken + 1)).unwrap(), taken + 1);
    drop(engine);
    assert_eq!(read(&mut *place.open()), own(1..=taken + 1));
}

#[test]
fn an_agent_that_is_killed_at_any_point_has_what_waited_once() {
    let batches: Vec<_> = own(1..=12).chunks(3).map(<[Durable]>::to_vec).collect();
    // So many of the batches that waited were in CouchDB when it was killed.
    for written in 0..=3 {
        let place = Buffering::new();
        let mut engine = place.open();
        engine.append(&batches[0]).unwrap();
        place.relay.cut();
        for batch in &batches[1..] {
            engine.append(batch).unwrap();
        }
        drop(engine);
        place.relay.heal();
        let aside = place.file().with_extension("aside");
        std::fs::rename(place.file(), &aside).unwrap();
        let mut engine = place.open();
        for batch in &batches[1..=written] {
            engine.append(batch).unwrap();
        }
        drop(engine);
        std::fs::rename(&aside, place.file()).unwrap();
        // Whether the local journal is still configured or not.
        let mut engine: Box<dyn Opened> = if written % 2 == 0 {
            place.open()
        } else {
            let here = "here".parse().unwrap();
            Box::new(CouchDb::open(&place.couch.config, here, place.data.path()).unwrap())
        };
        assert_eq!(engine.strays().unwrap(), [], "{written}");
        assert_eq!(read(&mut *engine), own(1..=12), "{written}");
        assert_eq!(std::fs::metadata(place.file()).unwrap().len(), 0);
    }
}

#[test]
fn what_waited_and_does_not_go_with_the_databases_is_an_error() {
    // What others have written there instead, and what is said then.
    for (there, expected) in [
        (vec![own(1..=3), own(20..=22)], "number 4 is something else"),
        (vec![own(1..=3), own(4..=5)], "it holds the numbers 4 to 6"),
        (vec![own(1..=2)], "what http"),
    ] {
        let place = Buffering::new();
        let mut engine = place.open();
        engine.append(&own(1..=3)).unwrap();
        place.relay.cut();
        engine.append(&own(4..=6)).unwrap();
        drop(engine);
        place.relay.heal();
        let other = Buffering { data: place.data, ..Buffering::new() };
        // It says that there were others.
        std::fs::remove_file(other.file().with_file_name("written")).unwrap();
        let aside = other.file().with_extension("aside");
        std::fs::rename(other.file(), &aside).unwrap();
        let mut engine = other.open();
        for batch in &there {
            engine.append(batch).unwrap();
        }
        drop(engine);
        std::fs::rename(&aside, other.file()).unwrap();
        let Err(error) = other.open_as("here") else { panic!("it was opened: {expected}") };
        let problem = error.to_string();
        assert!(problem.contains(expected), "{problem}");
        assert!(problem.contains("give up what waits in it: mv "), "{problem}");
        assert!(std::fs::metadata(other.file()).unwrap().len() > 0, "it is kept");
    }
}

#[test]
fn that_another_agent_has_taken_a_number_stays_an_error() {
    let place = Buffering::new();
    let other = tempfile::tempdir().unwrap();
    let mut engine = place.open();
    let here = "here".parse().unwrap();
    let mut second = CouchDb::open(&place.couch.config, here, other.path()).unwrap();
    cheops_agent::engine::Engine::append(&mut second, &own(1..=1)).unwrap();
    for _ in 0..2 {
        let error = engine.append(&own(2..=2)).unwrap_err();
        assert!(error.to_string().contains("another agent has written"), "{error}");
        assert_eq!(engine.reader().waiting(), None);
    }
    place.relay.cut();
    engine.append(&own(2..=2)).unwrap();
    place.relay.heal();
    let start = std::time::Instant::now();
    while !engine.reader().waiting().unwrap().why.contains("another agent has written") {
        assert!(start.elapsed() < std::time::Duration::from_secs(30), "nobody says so");
        engine.tend().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(engine.append(&own(3..=3)).is_err());
}

#[test]
fn a_node_of_a_cluster_that_lacks_pages_hides_nothing() {
    let place = InCouch::new();
    let mut engine = place.open();
    engine.append(&own(1..=1)).unwrap();
    engine.append(&own(2..=3)).unwrap();
    // More than a page.
    engine.append(&own(4..=2_004)).unwrap();
    drop(engine);
    let pages = place.0.look(&format!(
        "/{}/_all_docs?startkey=%22page:%22&endkey=%22page%3B%22",
        place.0.config.local()
    ));
    assert!(pages["rows"].as_array().unwrap().len() > 3, "{pages}");
    let hides: [fn(&str) -> bool; 3] = [
        |id| id.starts_with("page:"),
        |id| id.starts_with("page:") && id.ends_with('2'),
        |id| id.starts_with("page:") && id.ends_with("2004"),
    ];
    for hides in hides {
        // With a snapshot, the pages would not be asked for.
        let _ = std::fs::remove_file(place.1.path().join("couchdb/snapshot"));
        let way = Lagging::before(place.0.config.place(), Manner::Hides(hides));
        let mut config = place.0.config.clone();
        config.url = format!("http://127.0.0.1:{}", way.port).parse().unwrap();
        let opened = CouchDb::open(&config, "here".parse().unwrap(), place.1.path());
        let mut engine: Box<dyn Opened> = Box::new(opened.unwrap());
        assert_eq!(engine.reader().last(), 2_004);
        assert_eq!(read(&mut *engine).len(), 2_004);
        assert!(engine.damage().is_empty() && way.hidden() > 0);
    }
    assert_eq!(read(&mut *place.open()).len(), 2_004);
}

#[test]
fn documents_that_are_too_long_together_are_asked_for_in_parts() {
    let place = InCouch::new();
    place.open().append(&own(1..=7)).unwrap();
    let way = Lagging::before(place.0.config.place(), Manner::Long(4));
    let mut config = place.0.config.clone();
    config.url = format!("http://127.0.0.1:{}", way.port).parse().unwrap();
    let mut engine = CouchDb::open(&config, "here".parse().unwrap(), place.1.path()).unwrap();
    assert_eq!(read(&mut engine), own(1..=7));
    assert!(way.hidden() > 0);
}

/// These need a server whose files the test can copy and put back: `pouchdb-server` itself.
mod pouchdb_only {
    use super::{
        InCouch, Opened,
        conformance::Place as _,
        couch::{Couch, Pouch},
        own, read,
    };

    /// A server of its own, of which there is a backup, with an engine that has written three values before that and two
    /// since.
    fn backed_up() -> (Pouch, InCouch, std::path::PathBuf, Box<dyn Opened>) {
        let mut server = Pouch::start();
        let place = InCouch(Couch::at(&server), tempfile::tempdir().unwrap());
        let backup = place.1.path().join("backup");
        let mut engine = place.open();
        engine.append(&own(1..=3)).unwrap();
        server.back_up(&backup);
        engine.append(&own(4..=5)).unwrap();
        (server, place, backup, engine)
    }

    #[test]
    fn nothing_is_acknowledged_after_the_databases_were_put_back() {
        let (mut server, place, backup, mut engine) = backed_up();
        server.put_back(&backup);
        let error = engine.append(&own(6..=6)).unwrap_err();
        assert!(error.is_permanent() && error.to_string().contains("is gone"), "{error}");
        assert!(engine.append(&own(7..=7)).is_err());
        drop(engine);
        let mut engine = place.open();
        read(&mut *engine);
        assert!(engine.reader().last() >= 5);
        assert_eq!(engine.damage()[0].seqs, 4..=5);
    }

    #[test]
    fn databases_that_were_put_back_while_nobody_looked_are_known_to_be_old() {
        let (mut server, place, backup, mut engine) = backed_up();
        // About every second, an agent has it do what is due.
        engine.tend().unwrap();
        drop(engine);
        server.put_back(&backup);
        let mut engine = place.open();
        read(&mut *engine);
        assert_eq!((engine.reader().last(), engine.damage()[0].seqs.clone()), (5, 4..=5));
    }
}

#[test]
fn a_copy_that_goes_on_in_databases_that_were_filled_before_others_ends_there() {
    let data = tempfile::tempdir().unwrap();
    let couches = [Couch::get(), Couch::get()];
    let fill = |couch: &Couch| CouchDb::fill(&couch.config, "here".parse().unwrap(), data.path());
    let open = |couch: &Couch| CouchDb::open(&couch.config, "here".parse().unwrap(), data.path());
    for couch in &couches {
        cheops_agent::engine::Engine::append(&mut fill(couch).unwrap(), &own(1..=2)).unwrap();
    }
    let mut filled = fill(&couches[0]).unwrap();
    cheops_agent::engine::Engine::append(&mut filled, &own(3..=3)).unwrap();
    cheops_agent::engine::Filling::finish(&mut filled).unwrap();
    drop(filled);
    // The note of which engine holds the records was not written: the same again finds all there.
    let mut filled = fill(&couches[0]).unwrap();
    assert_eq!(read(&mut filled), own(1..=3));
    cheops_agent::engine::Filling::finish(&mut filled).unwrap();
    drop(filled);
    assert_eq!(read(&mut open(&couches[0]).unwrap()), own(1..=3));
    assert!(open(&couches[1]).is_err());
}
