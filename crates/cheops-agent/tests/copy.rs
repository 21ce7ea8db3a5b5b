//! Copies from one engine to the other, with a real server: see `couchdb.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod couch;
mod storage;
#[allow(dead_code, reason = "not every sort is written down")]
mod support;

use std::{cell::Cell, path::PathBuf, sync::Arc};

use cheops_agent::{
    config::Config,
    copy_engine,
    engine::{
        self, Copied, CopyFailure, Damage, Engine, EngineError, Filling, Kind, LostUnknown, Opened,
        Reader, Seq, Sort, couchdb::CouchDb, embedded::Embedded,
    },
};
use cheops_core::replica::Durable;
use couch::Couch;
use proptest::{prelude::*, test_runner::TestRunner};
use storage::{operation_of, options, resource};

/// A site with both engines, empty.
struct Site {
    config: Config,
    couch: Couch,
    _directory: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let (couch, directory) = (Couch::get(), tempfile::tempdir().unwrap());
        let data = directory.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut config = Config::new("here".parse().unwrap(), data);
        config.couchdb = Some(couch.config.clone());
        Self { config, couch, _directory: directory }
    }

    fn store(&self) -> PathBuf {
        self.config.data.join("store")
    }

    fn open(&self, kind: Kind) -> Result<Box<dyn Opened>, EngineError> {
        let (couch, here) = (&self.couch.config, self.config.site.clone());
        Ok(match kind {
            Kind::Embedded => Box::new(Embedded::open(&self.store(), options("here"))?),
            Kind::CouchDb => Box::new(CouchDb::open(couch, here, &self.config.data)?),
        })
    }

    fn fill(&self, kind: Kind) -> Result<Box<dyn Filling>, EngineError> {
        let (couch, here) = (&self.couch.config, self.config.site.clone());
        Ok(match kind {
            Kind::Embedded => Box::new(Embedded::fill(&self.store(), options("here"))?),
            Kind::CouchDb => Box::new(CouchDb::fill(couch, here, &self.config.data)?),
        })
    }

    fn read(&self, kind: Kind) -> Vec<Durable> {
        self.open(kind).unwrap().written().map(Result::unwrap).collect()
    }

    fn copy(&self, from: Kind, to: Kind) -> Result<Copied, CopyFailure> {
        copy_engine(&self.config, (from, to), &mut |_| ())
    }

    /// Copies, and takes what was not acknowledged as this site's own.
    fn copy_all(&self, from: Kind, to: Kind) -> Result<Copied, CopyFailure> {
        engine::copy(&|| self.open(from), &|| self.fill(to), &mut |_| true, &mut |_| ())
    }

    /// Copies, and breaks off after so many batches.
    fn copy_some(&self, from: Kind, to: Kind, batches: usize) -> Result<Copied, CopyFailure> {
        let left = Arc::new(Left(Cell::new(batches).into()));
        let target = || Ok(Box::new(Breaking(self.fill(to)?, left.clone())) as Box<dyn Filling>);
        engine::copy(&|| self.open(from), &target, &mut |_| false, &mut |_| ())
    }
}

const WAYS: [(Kind, Kind); 2] = [(Kind::Embedded, Kind::CouchDb), (Kind::CouchDb, Kind::Embedded)];

struct Left(std::sync::Mutex<Cell<usize>>);

/// A target that takes so many batches and no more.
struct Breaking(Box<dyn Filling>, Arc<Left>);

impl Engine for Breaking {
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError> {
        let left = self.1.0.lock().unwrap();
        let Some(less) = left.get().checked_sub(1) else {
            let (place, problem) = ("a test".to_owned(), "broken off".to_owned());
            return Err(EngineError { place, problem, sort: Sort::Disk });
        };
        left.set(less);
        self.0.append(batch)
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        self.0.recover()
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.0.reader()
    }
}

impl Opened for Breaking {
    fn written(&mut self) -> Box<dyn Iterator<Item = Result<Durable, EngineError>> + '_> {
        self.0.written()
    }

    fn damage(&self) -> &[Damage] {
        self.0.damage()
    }

    fn lost_unknown(&self) -> Option<LostUnknown> {
        self.0.lost_unknown()
    }
}

impl Filling for Breaking {
    fn lose_unknown(&mut self, lost: LostUnknown) -> Result<(), EngineError> {
        self.0.lose_unknown(lost)
    }

    fn how_to_begin_again(&self) -> String {
        self.0.how_to_begin_again()
    }

    fn finish(&mut self) -> Result<(), EngineError> {
        self.0.finish()
    }
}

fn own(numbers: impl Iterator<Item = u64>) -> Vec<Durable> {
    numbers.map(|number| operation_of(number, "here", &resource(number))).collect()
}

#[test]
fn what_goes_there_and_back_is_the_same() {
    let strategy = prop::collection::vec(prop::collection::vec(support::durable(), 1..9), 0..9);
    TestRunner::new(ProptestConfig::with_cases(6))
        .run(&strategy, |batches| {
            let site = Site::new();
            let mut engine = site.open(Kind::Embedded).unwrap();
            for batch in &batches {
                engine.append(batch).unwrap();
            }
            drop(engine);
            let written = site.read(Kind::Embedded);
            let there = site.copy(Kind::Embedded, Kind::CouchDb).unwrap();
            prop_assert_eq!(&site.read(Kind::CouchDb), &written);
            prop_assert_eq!(&site.read(Kind::Embedded), &written, "the source is as it was");
            std::fs::remove_dir_all(site.store()).unwrap();
            let back = site.copy(Kind::CouchDb, Kind::Embedded).unwrap();
            prop_assert_eq!(&site.read(Kind::Embedded), &written);
            prop_assert_eq!((there.values, there.resumed), (written.len() as u64, 0));
            prop_assert_eq!(there, back);
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_copy_that_is_broken_off_is_no_store_and_goes_on() {
    for (from, to) in WAYS {
        for batches in [0, 2] {
            let site = Site::new();
            let written = own(1..=2_500);
            site.open(from).unwrap().append(&written).unwrap();
            let failure = site.copy_some(from, to, batches).unwrap_err();
            assert!(matches!(failure, CopyFailure::BrokenOff(_)), "{failure}");
            let Err(refused) = site.open(to) else { panic!("{to} was opened half filled") };
            assert!(
                refused.to_string().contains("`cheops engine copy` is filling it"),
                "{refused}"
            );
            let copied = site.copy(from, to).unwrap();
            assert_eq!((copied.values, copied.resumed), (2_500, batches as u64 * 1_000));
            assert_eq!(site.read(to), written);
        }
    }
}

#[test]
fn what_is_half_filled_with_something_else_is_refused() {
    for (from, to) in WAYS {
        let site = Site::new();
        site.open(from).unwrap().append(&own(1..=10)).unwrap();
        site.fill(to).unwrap().append(&own(2..=3)).unwrap();
        let failure = site.copy(from, to).unwrap_err();
        assert!(matches!(failure, CopyFailure::Other(_)), "{failure}");
        let how = if to == Kind::Embedded { "rm -r " } else { "delete the databases" };
        assert!(failure.to_string().contains(how), "{failure}");
        assert!(site.open(to).is_err());
    }
}

#[test]
fn what_is_not_empty_damaged_in_use_or_not_there_is_refused_and_nothing_is_copied() {
    for (from, to) in WAYS {
        let site = Site::new();
        let refused = |expected: &str| {
            let failure = site.copy(from, to).unwrap_err().to_string();
            assert!(failure.contains(expected), "{from} to {to}: {failure}");
        };
        if from == Kind::Embedded {
            refused("there is no store in");
        }
        let mut engine = site.open(from).unwrap();
        engine.append(&own(1..=3)).unwrap();
        let word = site.config.data.join("engine");
        std::fs::write(&word, to.name()).unwrap();
        if to == Kind::CouchDb {
            refused("what is in embedded is old");
        }
        std::fs::write(&word, from.name()).unwrap();
        if from == Kind::Embedded {
            refused("it is in use");
        }
        drop(engine);
        let mut other = site.open(to).unwrap();
        if to == Kind::Embedded {
            refused("it is in use");
        }
        other.append(&own(1..=1)).unwrap();
        drop(other);
        refused("it is not empty");
        assert_eq!(site.read(to), own(1..=1));
    }
    let site = Site::new();
    site.open(Kind::CouchDb).unwrap().append(&own(1..=3)).unwrap();
    let lost = format!("record:{}:here:2:", resource(2));
    site.couch.remove_like(&site.couch.config.database, &lost);
    let failure = site.copy(Kind::CouchDb, Kind::Embedded).unwrap_err();
    assert!(matches!(failure, CopyFailure::Damaged { others: 0, .. }), "{failure}");
    assert_eq!(site.read(Kind::Embedded), []);
}

#[test]
fn that_something_unknown_was_lost_is_copied_too() {
    let site = Site::new();
    let mut engine = site.open(Kind::CouchDb).unwrap();
    for batch in own(1..=9).chunks(3) {
        engine.append(batch).unwrap();
    }
    drop(engine);
    site.couch.remove(&site.couch.config.local(), "page:00000000000000000004");
    let mut engine = site.open(Kind::CouchDb).unwrap();
    assert_eq!(engine.written().count(), 6);
    engine.append(&own(10..=10)).unwrap();
    drop(engine);
    let lost = |site: &Site, kind| {
        let mut engine = site.open(kind).unwrap();
        engine.written().for_each(drop);
        assert_eq!(engine.damage(), []);
        engine.lost_unknown().unwrap()
    };
    let before = lost(&site, Kind::CouchDb);
    assert_eq!(before.records, 3);
    assert_eq!(site.copy(Kind::CouchDb, Kind::Embedded).unwrap().values, 7);
    assert_eq!(lost(&site, Kind::Embedded), before);
    let mut anew = Site::new();
    anew.config.data.clone_from(&site.config.data);
    anew.copy(Kind::Embedded, Kind::CouchDb).unwrap();
    assert_eq!(lost(&anew, Kind::CouchDb), before);
    assert_eq!(anew.read(Kind::CouchDb), site.read(Kind::Embedded));
}

#[test]
fn what_was_not_acknowledged_is_copied_if_it_counts() {
    let site = Site::new();
    let mut engine = site.open(Kind::CouchDb).unwrap();
    engine.append(&own(1..=3)).unwrap();
    engine.append(&own(4..=5)).unwrap();
    drop(engine);
    site.couch.remove(&site.couch.config.local(), "page:00000000000000000004");
    assert_eq!(site.copy(Kind::CouchDb, Kind::Embedded).unwrap().values, 3, "nobody has sealed it");
    assert_eq!(site.read(Kind::Embedded), own(1..=3));
    std::fs::remove_dir_all(site.store()).unwrap();
    // As if it had not been copied before.
    std::fs::remove_file(site.config.data.join("couchdb/left")).unwrap();
    assert_eq!(site.copy_all(Kind::CouchDb, Kind::Embedded).unwrap().values, 5);
    let mut all = site.read(Kind::Embedded);
    all.sort_by_key(storage::number);
    assert_eq!(all, own(1..=5));
}
