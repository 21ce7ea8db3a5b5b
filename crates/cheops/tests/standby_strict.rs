//! The tests of `standby.rs` with the strict stand-in, which answers as CouchDB does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "standby.rs"]
mod standby;
