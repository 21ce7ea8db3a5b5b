//! Chephren, the web page, in a real browser, against three real agents with hosts of their own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../field/mod.rs"]
mod field;

mod actions;
mod browser;
mod resource;
mod safe;
mod screens;
mod site;
mod sites;
