//! The tests of `couchdb.rs` with the strict stand-in, which answers as CouchDB does.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "strict/cluster.rs"]
mod cluster;
#[path = "couchdb.rs"]
mod couchdb;
#[path = "strict/rights.rs"]
mod rights;
