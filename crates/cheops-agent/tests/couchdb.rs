//! The engine on CouchDB, with a real server: the one that `CHEOPS_TEST_COUCHDB` names
//! (`http://user:password@host:port`), or `pouchdb-server`, which `CHEOPS_POUCHDB` names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod conformance;
mod couch;
#[allow(dead_code, reason = "not every sort is written down")]
mod storage;
#[allow(dead_code, reason = "not every sort is written down")]
mod support;

use cheops_agent::engine::{EngineError, Opened, couchdb::CouchDb};
use couch::Couch;

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
