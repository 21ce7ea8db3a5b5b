//! HTTP as it is spoken: real clients and servers on both sides of one agent, and some that mean it
//! harm.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../field/mod.rs"]
mod field;

mod changed;
mod clients;
mod crowded;
mod edges;
mod hostile;
mod limits;
mod origin;
mod passing;
