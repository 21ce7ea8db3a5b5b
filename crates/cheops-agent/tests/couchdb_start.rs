//! Starts of the engine on CouchDB, with a snapshot and without; and purges beside the writes. The server is one in
//! memory (`couch::memory`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod conformance;
mod couch;
mod storage;
#[allow(dead_code, reason = "not every sort is written down")]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_agent::engine::{Engine as _, EngineError, Opened, Seq, couchdb::CouchDb};
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    operation::Action,
    replica::{Durable, Record},
    time::{Millis, Timestamp},
};
use couch::{Couch, memory::Memory};
use storage::{operation_of, resource};

/// The databases of a site at a server in memory, with a data directory.
struct Place {
    server: Memory,
    couch: Couch,
    data: tempfile::TempDir,
}

impl conformance::Place for Place {
    fn new() -> Self {
        let server = Memory::start();
        let couch = Couch::at_address(server.address);
        Self { server, couch, data: tempfile::tempdir().unwrap() }
    }

    /// Each time with a snapshot of all that was written before.
    fn open_as(&self, site: &str) -> Result<Box<dyn Opened>, EngineError> {
        let open = || CouchDb::open(&self.couch.config, site.parse().unwrap(), self.data.path());
        let mut engine = open()?;
        engine.written().for_each(|read| drop(read.unwrap()));
        engine.snapshot().unwrap();
        drop(engine);
        Ok(Box::new(open()?))
    }
}

mod with_a_snapshot {
    use super::{Place, conformance};

    crate::conforms!(Place);
}

impl Place {
    fn new() -> Self {
        conformance::Place::new()
    }

    fn open(&self) -> CouchDb {
        CouchDb::open(&self.couch.config, "here".parse().unwrap(), self.data.path()).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.data.path().join("couchdb/snapshot")
    }

    /// What a start reads, and how many documents it asks for.
    fn start(&self) -> (CouchDb, Vec<Durable>) {
        let mut engine = self.open();
        assert_eq!(engine.strays().unwrap(), []);
        let read = read(&mut engine);
        (engine, read)
    }

    fn records(&self, prefix: &str) -> usize {
        self.server.documents(&self.couch.config.database, prefix)
    }
}

fn read(engine: &mut CouchDb) -> Vec<Durable> {
    engine.written().map(Result::unwrap).collect()
}

/// Operations of this site, one batch for each hundred.
fn own(numbers: impl Iterator<Item = u64>) -> Vec<Durable> {
    numbers.map(|number| operation_of(number, "here", &resource(number))).collect()
}

fn append(engine: &mut CouchDb, values: &[Durable]) -> Seq {
    values.chunks(100).map(|batch| engine.append(batch).unwrap()).last().unwrap()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_mins(1), "not after a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn forgotten(resource: &ResourceId, last: u64) -> Durable {
    forgotten_of(resource, &[("here", last)])
}

/// That a resource is forgotten, with the last numbers of sites.
fn forgotten_of(resource: &ResourceId, version: &[(&str, u64)]) -> Durable {
    let version: BTreeMap<SiteId, u64> =
        version.iter().map(|(site, last)| (site.parse().unwrap(), *last)).collect();
    let (site, number) = version.iter().next().map(|(site, last)| (site.clone(), *last)).unwrap();
    let (by, at) = (OpId { site, number }, Timestamp::at(Millis(1)));
    Durable::Forgotten { resource: resource.clone(), version, by, at }
}

#[test]
fn a_start_reads_the_snapshot_and_from_the_server_only_what_came_after_it() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=3_000));
    assert_eq!(engine.snapshot().unwrap(), 3_000);
    append(&mut engine, &own(3_001..=3_010));
    drop(engine);
    let requests = || place.server.count("_all_docs");
    let before = requests();
    let (engine, with) = place.start();
    let asked = requests() - before;
    assert_eq!(with, own(1..=3_010));
    assert_eq!(engine.damage(), []);
    drop(engine);
    assert!(asked < 10, "{asked} requests for pages and documents");

    fs::remove_file(place.file()).unwrap();
    let before = requests();
    let (_, without) = place.start();
    assert_eq!(without, with);
    assert!(requests() - before > asked, "all was read from the server");
}

#[test]
fn the_snapshot_is_brought_up_to_date_without_being_asked() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=2_500));
    eventually("there is a snapshot", || {
        fs::metadata(place.file()).is_ok_and(|about| about.len() > 2_500 * 500)
    });
    append(&mut engine, &own(2_501..=2_600));
    drop(engine);
    assert_eq!(place.start().1, own(1..=2_600));
}

#[test]
fn a_snapshot_that_is_damaged_or_older_is_made_up_for() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=1_000));
    engine.snapshot().unwrap();
    let old = fs::read(place.file()).unwrap();
    append(&mut engine, &own(1_001..=2_000));
    engine.snapshot().unwrap();
    append(&mut engine, &own(2_001..=2_010));
    drop(engine);
    let whole = fs::read(place.file()).unwrap();
    let damaged = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (what, bytes) in [
        ("older", old.clone()),
        ("empty", Vec::new()),
        ("its head", damaged(9)),
        ("its first half", damaged(old.len() / 2)),
        ("its second half", damaged(old.len() + 5_000)),
        ("its last byte", damaged(whole.len() - 1)),
        ("torn", whole[..whole.len() - 3].to_vec()),
    ] {
        fs::write(place.file(), bytes).unwrap();
        let (engine, read) = place.start();
        assert_eq!((read.len(), engine.damage()), (2_010, &[][..]), "{what}");
        assert_eq!(read, own(1..=2_010), "{what}");
        // It is whole again, and goes on from there.
        assert_eq!(engine.snapshot().unwrap(), 2_010, "{what}");
        drop(engine);
        assert_eq!(place.start().1, own(1..=2_010), "{what}");
    }
}

#[test]
fn a_snapshot_that_is_newer_than_the_databases_hides_nothing() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=200));
    engine.snapshot().unwrap();
    let backup = place.server.back_up();
    append(&mut engine, &own(201..=300));
    engine.snapshot().unwrap();
    engine.tend().unwrap();
    drop(engine);
    place.server.put_back(backup);
    let (mut engine, read) = place.start();
    assert_eq!(read, own(1..=200));
    assert_eq!((engine.damage()[0].seqs.clone(), engine.reader().last()), (201..=300, 300));
    // From here on, there are others than the snapshot had: it is made anew.
    assert_eq!(append(&mut engine, &own(301..=302)), 302);
    assert_eq!(engine.snapshot().unwrap(), 302);
    drop(engine);
    let (engine, read) = place.start();
    assert_eq!(read, own((1..=200).chain(301..=302)));
    assert_eq!(engine.damage(), []);
    assert_eq!(engine.lost_unknown().map(|lost| lost.records), Some(100));
}

#[test]
fn a_snapshot_of_databases_that_were_filled_anew_does_not_count() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=300));
    engine.snapshot().unwrap();
    drop(engine);
    let lost = resource(5);
    let id = format!("record:{lost}:here:5:");
    assert_eq!(place.server.remove(&place.couch.config.database, &id), 1);
    place.server.replicate_anew();
    let (engine, read) = place.start();
    let [damage] = engine.damage() else { panic!("{:?}", engine.damage()) };
    assert_eq!((&damage.resource, damage.seqs.clone()), (&Some(lost.clone()), 5..=5));
    assert!(read.iter().all(|value| *value.resource() != lost));
}

#[test]
fn what_was_removed_from_the_databases_is_reported_with_a_snapshot_as_without() {
    for (prefix, seqs, while_it_ran) in [
        ("record:resource5:here:5:", 5..=5, false),
        ("record:resource5:here:5:", 5..=5, true),
        ("page:00000000000000000101", 101..=200, false),
        ("page:00000000000000000101", 101..=200, true),
    ] {
        let place = Place::new();
        let mut engine = place.open();
        append(&mut engine, &own(1..=300));
        engine.snapshot().unwrap();
        let config = &place.couch.config;
        let database =
            if prefix.starts_with("page") { config.local() } else { config.database.clone() };
        if while_it_ran {
            assert_eq!(place.server.remove(&database, prefix), 1);
            append(&mut engine, &own(301..=301));
            let error = engine.snapshot().unwrap_err().to_string();
            assert!(error.contains("is removed: the next start reads all documents"), "{error}");
            assert!(!place.file().exists());
            assert_eq!(engine.snapshot().unwrap(), 0, "there is none until the next start");
            drop(engine);
        } else {
            drop(engine);
            assert_eq!(place.server.remove(&database, prefix), 1);
        }
        for _ in 0..2 {
            let (engine, _) = place.start();
            let [damage] = engine.damage() else { panic!("{prefix}: {:?}", engine.damage()) };
            assert_eq!(damage.seqs, seqs, "{prefix}");
        }
    }
}

#[test]
fn a_loss_that_was_dealt_with_is_in_the_snapshot_as_such() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=20));
    drop(engine);
    let lost = resource(5);
    let id = format!("record:{lost}:here:5:");
    place.server.remove(&place.couch.config.database, &id);
    let (mut engine, _) = place.start();
    let marker = Durable::Withheld { resource: lost.clone(), floor: 19 };
    engine.append(std::slice::from_ref(&marker)).unwrap();
    assert_eq!(engine.snapshot().unwrap(), 21);
    drop(engine);
    let (engine, with) = place.start();
    assert_eq!((engine.damage(), with.last()), (&[][..], Some(&marker)));
    drop(engine);
    fs::remove_file(place.file()).unwrap();
    assert_eq!(place.start().1, with);
}

#[test]
fn what_is_forgotten_after_the_snapshot_is_not_read_from_it() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=700));
    engine.snapshot().unwrap();
    let gone = resource(3);
    engine.append(&[forgotten(&gone, 696)]).unwrap();
    let id = format!("record:{gone}:");
    eventually("its documents are purged", || place.records(&id) == 0);
    engine.snapshot().unwrap();
    drop(engine);
    let mut expected = own(1..=700);
    expected.retain(|value| *value.resource() != gone);
    expected.push(forgotten(&gone, 696));
    let before = place.server.count("_all_docs");
    assert_eq!(place.start().1, expected);
    assert!(place.server.count("_all_docs") - before < 10, "the snapshot was used");
}

#[test]
fn one_process_writes_the_snapshot_and_others_read_it() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=200));
    engine.snapshot().unwrap();
    // An agent that hangs has it: another has taken over meanwhile.
    let (mut other, read) = place.start();
    assert_eq!(read, own(1..=200));
    append(&mut other, &own(201..=210));
    let error = other.snapshot().unwrap_err().to_string();
    assert!(error.contains("another process writes the snapshot"), "{error}");
    drop(engine);
    assert_eq!(other.snapshot().unwrap(), 210);
    drop(other);
    assert_eq!(place.start().1, own(1..=210));
}

/// How many documents the resource has that is purged, and how long each request to purge takes.
const LARGE: u64 = 3_000;
const SLOW: Duration = Duration::from_millis(150);

/// A resource that was written, with a server that takes its time to purge it.
fn large() -> (Place, CouchDb, ResourceId) {
    large_of(LARGE)
}

/// The same, with so many documents.
fn large_of(count: u64) -> (Place, CouchDb, ResourceId) {
    let place = Place::new();
    let mut engine = place.open();
    let large: ResourceId = "large".parse().unwrap();
    let values: Vec<_> = (1..=count).map(|n| operation_of(n, "here", &large)).collect();
    append(&mut engine, &values);
    place.server.slow_purges(SLOW);
    (place, engine, large)
}

#[test]
fn writes_do_not_wait_for_the_purge_of_a_large_resource() {
    let (place, mut engine, large) = large();
    let start = Instant::now();
    engine.append(&[forgotten(&large, LARGE)]).unwrap();
    for n in 1..=20 {
        engine.append(&own(n..=n)).unwrap();
    }
    let took = start.elapsed();
    // All of it takes 30 requests.
    assert!(took < 15 * SLOW, "writes took {took:?}");
    assert!(place.records("record:large:") > 0, "the purge is under way");
    eventually("it is purged", || place.records("record:large:") == 0);
    assert_eq!(place.records("record:"), 20);
}

#[test]
fn a_purge_goes_on_after_a_restart_with_a_snapshot_and_without() {
    for keep in [true, false] {
        let (place, mut engine, large) = large();
        if keep {
            engine.snapshot().unwrap();
        }
        engine.append(&[forgotten(&large, LARGE)]).unwrap();
        eventually("some of it is purged", || {
            place.records("record:large:") < usize::try_from(LARGE).unwrap()
        });
        drop(engine);
        assert!(place.records("record:large:") > 0, "the purge is under way");
        if !keep {
            let _ = fs::remove_file(place.file());
        }
        place.server.slow_purges(Duration::ZERO);
        let (engine, read) = place.start();
        assert_eq!(read, [forgotten(&large, LARGE)]);
        eventually("it is purged", || place.records("record:large:") == 0);
        let pages = place.couch.config.local();
        eventually("no page names it", || {
            !place.server.text(&pages, "page:").contains("record:large:")
        });
        drop(engine);
        assert_eq!(place.start().1, [forgotten(&large, LARGE)]);
    }
}

impl Place {
    /// Waits until nothing is left of the large resource, neither documents nor names of them.
    fn wait_until_purged(&self) {
        eventually("it is purged", || self.records("record:large:") == 0);
        let pages = self.couch.config.local();
        eventually("no page names it", || {
            !self.server.text(&pages, "page:").contains("record:large:")
        });
    }
}

#[test]
fn a_purge_goes_on_after_a_start_from_a_snapshot_that_was_made_meanwhile() {
    // So few that there is no snapshot before this one.
    let count = 1_500;
    let (place, mut engine, large) = large_of(count);
    engine.append(&[forgotten(&large, count)]).unwrap();
    assert_eq!(engine.snapshot().unwrap(), count + 1);
    drop(engine);
    assert!(place.records("record:large:") > 0, "the purge is under way");
    place.server.slow_purges(Duration::ZERO);
    let before = place.server.count("_all_docs");
    let (engine, read) = place.start();
    assert_eq!(read, [forgotten(&large, count)]);
    assert!(place.server.count("_all_docs") - before < 10, "the snapshot was used");
    place.wait_until_purged();
    drop(engine);
    assert_eq!(place.start().1, [forgotten(&large, count)]);
}

#[test]
fn what_is_forgotten_again_while_it_is_purged_is_purged_to_the_end() {
    let count = 1_000;
    let (place, mut engine, large) = large_of(count);
    let operation = |n| operation_of(n, "here", &large);
    let first = forgotten(&large, count + 1);
    // The last page that the purge looks at holds something that is not forgotten yet.
    engine.append(&[operation(count + 1), first, operation(count + 2)]).unwrap();
    let before = place.records("record:large:");
    eventually("some of it is purged", || place.records("record:large:") < before);
    let again = forgotten(&large, count + 2);
    engine.append(std::slice::from_ref(&again)).unwrap();
    assert!(place.records("record:large:") > 500, "the first purge is under way");
    place.server.slow_purges(Duration::ZERO);
    place.wait_until_purged();
    engine.snapshot().unwrap();
    drop(engine);
    assert_eq!(place.start().1, [again]);
}

#[test]
fn documents_that_replication_brought_and_no_page_names_are_purged_with_their_resource() {
    let (place, mut engine, large) = large_of(10);
    let id =
        |resource: &str, number: u64| format!("record:{resource}:there:{number}:{number:032x}");
    let brought = [id("large", 1), id("large", 9), id("large", 10), id("larger", 1)];
    for id in &brought {
        place.server.bring(&place.couch.config.database, id);
    }
    engine.append(&[forgotten_of(&large, &[("here", 10), ("there", 9)])]).unwrap();
    eventually("it is purged", || place.records("record:large:") == 1);
    eventually("no page names it", || {
        !place.server.text(&place.couch.config.local(), "page:").contains("record:large:")
    });
    // A record of its next life, and one of another resource.
    assert_eq!(brought.map(|id| place.records(&id)), [0, 0, 1, 1]);
}

#[test]
fn a_snapshot_that_does_not_go_with_the_databases_is_removed() {
    let place = Place::new();
    let mut engine = place.open();
    append(&mut engine, &own(1..=300));
    engine.snapshot().unwrap();
    drop(engine);
    let id = format!("record:{}:here:5:", resource(5));
    assert_eq!(place.server.remove(&place.couch.config.database, &id), 1);
    drop(place.open());
    assert!(!place.file().exists(), "it may fit again later, and hide what is lost");
}

/// A page that stands for lost ones.
fn lost_page(first: u64, last: u64) -> serde_json::Value {
    serde_json::json!({
        "_id": format!("page:{first:020}"), "First": first, "Batch": [first, last], "Entries": [], "Lost": 1, "Upto": last
    })
}

#[test]
fn a_snapshot_that_holds_what_the_journal_says_is_lost_is_not_used() {
    // The last page of the snapshot, and one before it.
    for first in [101, 201] {
        let place = Place::new();
        let mut engine = place.open();
        append(&mut engine, &own(1..=300));
        engine.snapshot().unwrap();
        append(&mut engine, &own(301..=301));
        drop(engine);
        let (local, last) = (place.couch.config.local(), first + 99);
        place.server.drop_documents(&local, &format!("page:{first:020}"));
        place.server.replace(&local, lost_page(first, last), "1-ff");
        for _ in 0..2 {
            let mut engine = place.open();
            assert_eq!(read(&mut engine), own((1..first).chain(last + 1..=301)), "{first}");
            assert_eq!(engine.lost_unknown().map(|lost| lost.records), Some(100));
            // The new one says that they are lost, and is used.
            assert_eq!(engine.snapshot().unwrap(), 301);
            drop(engine);
        }
        let before = place.server.count("_all_docs");
        assert_eq!(read(&mut place.open()).len(), 201);
        assert!(place.server.count("_all_docs") - before < 10, "the snapshot was used");
    }
}

#[test]
fn a_lost_document_that_is_back_is_read_though_a_snapshot_says_that_it_is_lost() {
    for while_it_ran in [false, true] {
        let place = Place::new();
        let mut engine = place.open();
        append(&mut engine, &own(1..=300));
        drop(engine);
        let (database, id) =
            (&place.couch.config.database, format!("record:{}:here:5:", resource(5)));
        let document = place.server.document(database, &id);
        assert_eq!(place.server.remove(database, &id), 1);
        let (mut engine, read) = place.start();
        assert_eq!((read.len() < 300, engine.damage().len()), (true, 1));
        engine.snapshot().unwrap();
        // As another site restores it: it follows what says that it was removed.
        let revision = document["_rev"].as_str().unwrap().replacen("1-", "3-", 1);
        place.server.replace(database, document, &revision);
        if while_it_ran {
            append(&mut engine, &own(301..=301));
            let error = engine.snapshot().unwrap_err().to_string();
            assert!(error.contains("is there again"), "{error}");
            assert_eq!(engine.snapshot().unwrap(), 301, "another is made");
        }
        drop(engine);
        for _ in 0..2 {
            let (engine, read) = place.start();
            assert_eq!(read, own(1..=if while_it_ran { 301 } else { 300 }));
            assert_eq!(engine.damage(), []);
        }
    }
}

/// How long answers may be that hold several documents, about.
const PART: usize = 10 << 20;

/// Operations that are long: 60 of half a MiB each, each in a batch of its own.
fn long() -> Vec<Durable> {
    let lengthen = |durable: Durable| {
        let Durable::Record(Record::Operation(op), seal) = durable else { panic!("an operation") };
        let mut op = (*op).clone();
        op.action = Action::command("x".repeat(512 << 10).as_str());
        Durable::Record(Record::Operation(Arc::new(op)), seal)
    };
    own(1..=60).into_iter().map(lengthen).collect()
}

#[test]
fn long_documents_are_asked_for_in_parts_of_few_bytes() {
    let (place, values) = (Place::new(), long());
    let mut engine = place.open();
    for value in &values {
        engine.append(std::slice::from_ref(value)).unwrap();
    }
    place.server.longest_answer();
    engine.snapshot().unwrap();
    let longest = place.server.longest_answer();
    assert!(longest < PART, "{longest} bytes for the snapshot");
    assert_eq!(engine.reader().after(0, 100).unwrap().len(), 60);
    let longest = place.server.longest_answer();
    assert!(longest < PART, "{longest} bytes for a reader");
    drop(engine);
    fs::remove_file(place.file()).unwrap();
    assert_eq!(place.start().1, values);
    let longest = place.server.longest_answer();
    assert!(longest < PART, "{longest} bytes for a start");
}

#[test]
fn long_pages_are_asked_for_in_parts_and_all_of_them_are_read_and_purged() {
    let (place, gone) = (Place::new(), resource(1));
    let mut engine = place.open();
    let values = own(1..=21);
    for value in &values {
        engine.append(std::slice::from_ref(value)).unwrap();
    }
    // As pages are that hold copies of long records.
    let local = place.couch.config.local();
    for first in 1..=21 {
        let mut page = place.server.document(&local, &format!("page:{first:020}"));
        page["Padding"] = "x".repeat(4 << 20).into();
        place.server.replace(&local, page, "2-ff");
    }
    drop(engine);
    let (mut engine, read) = place.start();
    assert_eq!(read, values);
    engine.append(&[forgotten(&gone, 21)]).unwrap();
    eventually("no page names it", || {
        !place.server.text(&local, "page:").contains(&format!("record:{gone}:"))
    });
    let cut = place.server.cut_off();
    assert!(cut > 0, "no answer was too long");
}
