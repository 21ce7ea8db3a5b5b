//! A cluster of three nodes: nothing counts that fewer than two of them have stored.

use std::sync::Arc;

use cheops_agent::engine::{Engine as _, Opened as _, couchdb::CouchDb};
use cheops_core::replica::Durable;

use super::couchdb::{
    couch::{Couch, strict::Strict},
    own, read,
};

/// Databases on a cluster, with a data directory.
struct Cluster {
    strict: Arc<Strict>,
    couch: Couch,
    data: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Self {
        let strict = Arc::new(Strict::start(3));
        let couch = Couch::on(strict.clone());
        Self { strict, couch, data: tempfile::tempdir().unwrap() }
    }

    fn open(&self) -> CouchDb {
        CouchDb::open(&self.couch.config, "here".parse().unwrap(), self.data.path()).unwrap()
    }

    /// Stops all nodes but the first: there is no quorum.
    fn only_first(&self) {
        for node in [1, 2] {
            self.strict.stop_node(node);
        }
    }

    fn start_others(&self) {
        for node in [1, 2] {
            self.strict.start_node(node);
        }
    }

    /// Stops the first node and starts the others: a quorum that lacks what the first alone has stored.
    fn only_others(&self) {
        self.strict.stop_node(0);
        self.start_others();
    }

    /// How many documents of records there are.
    fn documents(&self) -> usize {
        let found = self.couch.look(&format!("/{}/_all_docs", self.couch.config.database));
        let ids = found["rows"].as_array().unwrap().iter().filter_map(|row| row["id"].as_str());
        ids.filter(|id| id.starts_with("record:")).count()
    }

    /// All that a new engine reads, of which nothing is lost.
    fn written(&self) -> Vec<Durable> {
        let mut engine = self.open();
        let written = read(&mut engine);
        assert_eq!(engine.damage(), []);
        written
    }
}

fn assert_too_few_nodes(engine: &mut CouchDb, batch: &[Durable]) {
    let error = engine.append(batch).unwrap_err();
    assert!(error.to_string().contains("too few of its nodes"), "{error}");
    assert!(!error.is_permanent());
}

#[test]
fn a_batch_that_one_node_stored_is_not_acknowledged_however_often_it_is_written() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    cluster.only_first();
    for _ in 0..3 {
        assert_too_few_nodes(&mut engine, &own(4..=6));
    }
    // The only node that has it is lost.
    cluster.only_others();
    assert_eq!(engine.append(&own(4..=6)).unwrap(), 6);
    assert_eq!(cluster.written(), own(1..=6));
}

#[test]
fn a_batch_that_one_node_stored_counts_once_the_others_have_it() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    cluster.only_first();
    assert_too_few_nodes(&mut engine, &own(1..=3));
    cluster.start_others();
    assert_eq!(engine.append(&own(1..=3)).unwrap(), 3);
    assert_eq!(engine.append(&own(4..=4)).unwrap(), 4);
    for node in 0..3 {
        cluster.strict.stop_node(node);
        assert_eq!(cluster.written(), own(1..=4), "without node {node}");
        cluster.strict.start_node(node);
    }
}

#[test]
fn records_whose_documents_one_node_stored_and_lost_are_read_from_the_journal() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=1)).unwrap();
    // The server reports no failure: it says nothing of how many nodes have stored a copy of a document.
    for node in [1, 2] {
        cluster.strict.fail_database(node, &cluster.couch.config.database);
    }
    let sealed = sealed(7);
    let batch = [own(2..=3), vec![sealed.clone()]].concat();
    assert_eq!(engine.append(&batch).unwrap(), 4);
    cluster.only_others();
    assert_eq!(cluster.written(), [own(1..=1), batch].concat());
    let Durable::Record(record, Some(seal)) = &sealed else { panic!("{sealed:?}") };
    let found = engine.reader().seals(record.resource(), &[record.id().clone()].into());
    assert_eq!(found.unwrap(), [(record.id().clone(), seal.clone())].into());
}

/// An operation of this site, with a seal.
fn sealed(number: u64) -> Durable {
    match own(number..=number).remove(0) {
        Durable::Record(record, _) => {
            Durable::Record(record, cheops_core::trust::Seal::new(b"seal"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_agent_does_not_start_on_databases_that_one_node_stored() {
    let cluster = Cluster::start();
    drop(cluster.open());
    cluster.only_first();
    let opened = CouchDb::open(&cluster.couch.config, "here".parse().unwrap(), cluster.data.path());
    let Err(error) = opened else { panic!("it was opened") };
    assert!(error.to_string().contains("too few of its nodes"), "{error}");
}

#[test]
fn a_page_that_was_never_acknowledged_does_not_displace_one_that_was() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    cluster.only_first();
    for _ in 0..2 {
        assert_too_few_nodes(&mut engine, &own(4..=5));
    }
    drop(engine);
    // Another agent goes on without the node that has the page.
    cluster.only_others();
    let mut engine = cluster.open();
    read(&mut engine);
    assert_eq!(engine.append(&own(6..=8)).unwrap(), 6);
    assert_eq!(engine.append(&own(9..=9)).unwrap(), 7);
    cluster.strict.start_node(0);
    assert_eq!(engine.append(&own(10..=10)).unwrap(), 8);
    assert_eq!(cluster.written(), [own(1..=3), own(6..=10)].concat());
}

#[test]
fn one_node_that_is_down_holds_up_nothing() {
    let cluster = Cluster::start();
    cluster.strict.stop_node(2);
    let mut engine = cluster.open();
    engine.append(&own(1..=5)).unwrap();
    cluster.strict.start_node(2);
    cluster.strict.stop_node(0);
    engine.append(&own(6..=9)).unwrap();
    assert_eq!(cluster.written(), own(1..=9));
}

#[test]
fn a_batch_of_several_pages_that_one_node_stored_is_not_the_end_of_the_journal() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    cluster.only_first();
    for _ in 0..2 {
        assert_too_few_nodes(&mut engine, &own(4..=1_503));
    }
    drop(engine);
    cluster.only_others();
    // Another agent gives the first of these numbers to other values. Then the node with the old pages is back.
    let mut engine = cluster.open();
    read(&mut engine);
    assert_eq!(engine.append(&own(2_004..=2_006)).unwrap(), 6);
    drop(engine);
    cluster.strict.start_node(0);
    assert_eq!(cluster.written(), [own(1..=3), own(2_004..=2_006)].concat());
    let mut engine = cluster.open();
    assert_eq!(engine.append(&own(2_007..=2_007)).unwrap(), 7);
}

/// A page as an agent has left it whose batch of several pages no quorum has stored.
fn leave_page(cluster: &Cluster, first: u64, batch: (u64, u64), entries: u64) {
    let entry = |n: u64| format!("record:resource{n}:here:{n}:{n:032x}");
    let entries: Vec<String> = (first..first + entries).map(entry).collect();
    let page = serde_json::json!({"First": first, "Batch": batch, "Entries": entries, "Term": 1});
    let path = format!("/{}/page:{first:020}", cluster.couch.config.local());
    cluster.couch.put(&path, &page);
}

#[test]
fn a_page_whose_batch_has_another_first_page_is_removed() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    engine.append(&own(4..=6)).unwrap();
    drop(engine);
    leave_page(&cluster, 1_004, (4, 2_503), 1_000);
    leave_page(&cluster, 2_004, (4, 2_503), 500);
    assert_eq!(cluster.written(), own(1..=6));
    let mut engine = cluster.open();
    assert_eq!(engine.append(&own(7..=7)).unwrap(), 7);
    drop(engine);
    assert_eq!(cluster.written(), own(1..=7));
}

#[test]
fn a_page_that_no_quorum_stored_amid_numbers_of_others_is_passed_over() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    engine.append(&own(4..=8)).unwrap();
    engine.append(&own(9..=9)).unwrap();
    leave_page(&cluster, 6, (4, 6), 1);
    assert_eq!(engine.snapshot().unwrap(), 9);
    drop(engine);
    for _ in 0..2 {
        assert_eq!(cluster.written(), own(1..=9));
        let _ = std::fs::remove_file(cluster.data.path().join("couchdb/snapshot"));
    }
}

#[test]
fn documents_are_written_after_a_quorum_has_stored_the_page_that_names_them() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    for node in [1, 2] {
        cluster.strict.fail_database(node, &cluster.couch.config.local());
    }
    for _ in 0..2 {
        assert_too_few_nodes(&mut engine, &own(4..=6));
        // Replication would carry them to other sites, while this site may give their numbers to others.
        assert_eq!(cluster.documents(), 3);
    }
    cluster.start_others();
    assert_eq!(engine.append(&own(4..=6)).unwrap(), 6);
    assert_eq!(cluster.documents(), 6);
    assert_eq!(cluster.written(), own(1..=6));
}

#[test]
fn documents_that_were_not_written_when_the_agent_ended_are_written_by_the_next() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    for node in 0..3 {
        cluster.strict.fail_database(node, &cluster.couch.config.database);
    }
    engine.append(&own(4..=6)).unwrap_err();
    drop(engine);
    for node in 0..3 {
        cluster.strict.mend_database(node, &cluster.couch.config.database);
    }
    let mut engine = cluster.open();
    // The number of each is taken, so that no other operation gets it.
    assert_eq!((read(&mut engine), engine.damage()), (own(1..=6), &[][..]));
    assert_eq!(cluster.documents(), 3);
    assert_eq!(engine.append(&own(7..=7)).unwrap(), 7);
    assert_eq!(cluster.documents(), 7);
    assert_eq!(cluster.written(), own(1..=7));
}

#[test]
fn a_start_has_a_quorum_store_the_last_batch_before_it_counts() {
    let cluster = Cluster::start();
    let local = cluster.couch.config.local();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    for node in [1, 2] {
        cluster.strict.fail_database(node, &local);
    }
    assert_too_few_nodes(&mut engine, &own(4..=6));
    drop(engine);
    // Two nodes are up when the next agent starts, and one of them has the page.
    cluster.strict.mend_database(1, &local);
    cluster.strict.stop_node(2);
    assert_eq!(read(&mut cluster.open()), own(1..=6));
    cluster.strict.stop_node(0);
    cluster.strict.start_node(2);
    assert_eq!(cluster.written(), own(1..=6), "the node that had it is lost");
}

#[test]
fn a_start_writes_all_pages_of_the_last_batch_once_more() {
    let cluster = Cluster::start();
    let mut engine = cluster.open();
    engine.append(&own(1..=3)).unwrap();
    engine.append(&own(4..=1_503)).unwrap();
    drop(engine);
    assert_eq!(cluster.written(), own(1..=1_503));
    let generation = |page: u64| {
        let path = format!("/{}/page:{page:020}", cluster.couch.config.local());
        cluster.couch.look(&path)["_rev"].as_str().unwrap().split('-').next().map(ToOwned::to_owned)
    };
    let written = [1, 4, 1_004].map(|page| generation(page).unwrap());
    assert_eq!(written, ["1", "2", "2"]);
}
