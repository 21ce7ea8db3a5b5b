//! What the user of an agent may do at CouchDB, and servers that do not answer it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_agent::engine::{
    Engine as _,
    couchdb::{Buffered, CouchDb},
};
use cheops_core::{id::SiteId, replica::Durable};

use super::couchdb::{
    couch::{
        Couch,
        strict::{
            Strict,
            accounts::{DATABASE_ADMIN, Login, SERVER_ADMIN},
        },
    },
    own, read,
    storage::resource,
};

/// How long anything may take that should happen.
const SOON: Duration = Duration::from_secs(30);

struct Place {
    strict: Arc<Strict>,
    couch: Couch,
    data: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let strict = Arc::new(Strict::start(1));
        let couch = Couch::on(strict.clone());
        Self { strict, couch, data: tempfile::tempdir().unwrap() }
    }

    fn open_as(&self, user: Login) -> CouchDb {
        let mut config = self.couch.config.clone();
        let known = Couch::known_as(user, self.strict.clone()).config;
        (config.user, config.password) = (known.user, known.password);
        CouchDb::open(&config, "here".parse().unwrap(), self.data.path()).unwrap()
    }

    /// How many documents there are of records.
    fn records(&self) -> usize {
        let found = self.couch.look(&format!("/{}/_all_docs", self.couch.config.database));
        let ids = found["rows"].as_array().unwrap().iter().filter_map(|row| row["id"].as_str());
        ids.filter(|id| id.starts_with("record:")).count()
    }
}

#[test]
fn what_an_admin_of_the_databases_can_not_purge_stays_until_a_server_admin_starts() {
    let place = Place::new();
    drop(place.open_as(SERVER_ADMIN));
    let mut engine = place.open_as(DATABASE_ADMIN);
    engine.append(&own(1..=2)).unwrap();
    let here: SiteId = "here".parse().unwrap();
    let forgotten = Durable::Forgotten {
        resource: resource(1),
        version: [(here.clone(), 1)].into(),
        by: cheops_core::id::OpId { site: here, number: 1 },
        at: cheops_core::time::Timestamp::at(cheops_core::time::Millis(1)),
    };
    engine.append(std::slice::from_ref(&forgotten)).unwrap();
    engine.append(&own(3..=3)).unwrap();
    let expected = [own(2..=2), vec![forgotten], own(3..=3)].concat();
    assert_eq!((read(&mut engine), place.records()), (expected.clone(), 3));
    drop(engine);
    let mut engine = place.open_as(SERVER_ADMIN);
    let start = Instant::now();
    while place.records() > 2 {
        assert!(start.elapsed() < SOON, "nothing is purged");
        engine.tend().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(read(&mut engine), expected);
}

#[test]
fn a_user_who_is_locked_out_is_told_so_and_what_is_accepted_waits() {
    let place = Place::new();
    let here: SiteId = "here".parse().unwrap();
    let mut engine = Buffered::open(&place.couch.config, here, place.data.path(), 1 << 20).unwrap();
    engine.append(&own(1..=1)).unwrap();
    place.strict.lock(SERVER_ADMIN.0);
    engine.append(&own(2..=3)).unwrap();
    let waiting = engine.reader().waiting().unwrap();
    assert!(waiting.why.contains("locked `couchdb.user` out"), "{}", waiting.why);
    assert_eq!(waiting.values, 2);
    place.strict.unlock();
    let start = Instant::now();
    while engine.reader().waiting().is_some() {
        assert!(start.elapsed() < SOON, "it still waits");
        engine.tend().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(engine);
    let mut engine = place.open_as(SERVER_ADMIN);
    assert_eq!(read(&mut engine), own(1..=3));

    place.strict.lock(SERVER_ADMIN.0);
    let error = engine.append(&own(4..=4)).unwrap_err();
    assert!(error.to_string().contains("locked `couchdb.user` out"), "{error}");
    place.strict.unlock();
    assert_eq!(engine.append(&own(4..=4)).unwrap(), 4);
}

#[test]
fn five_wrong_passwords_lock_a_user_out_and_each_is_reported_as_what_it_is() {
    let place = Place::new();
    drop(place.open_as(SERVER_ADMIN));
    let mut wrong = place.couch.config.clone();
    wrong.password = Some(cheops_agent::config::Secret::Text("guess".to_owned()));
    let refused = |config| {
        let opened = CouchDb::open(config, "here".parse().unwrap(), place.data.path());
        opened.err().unwrap().to_string()
    };
    for _ in 0..5 {
        let said = refused(&wrong);
        assert!(said.contains("`couchdb.user` and `couchdb.password_file`"), "{said}");
    }
    for config in [&wrong, &place.couch.config] {
        let said = refused(config);
        assert!(said.contains("locked `couchdb.user` out"), "{said}");
    }
}

#[test]
fn tls_to_a_port_for_plain_http_is_reported_within_five_seconds() {
    let place = Place::new();
    let mut config = place.couch.config.clone();
    config.url = format!("https://{}", place.strict.address).parse().unwrap();
    let start = Instant::now();
    let opened = CouchDb::open(&config, "here".parse().unwrap(), place.data.path());
    let said = opened.err().unwrap().to_string();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(said.contains("write `http://` in `couchdb.url`"), "{said}");
}
