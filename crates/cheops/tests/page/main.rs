//! Chephren, the web page, in a real browser, against three real agents with hosts of their own, and against
//! a hundred on one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../field/mod.rs"]
mod field;

mod actions;
mod browser;
mod federation;
mod login;
mod resource;
mod safe;
mod scale;
mod screens;
mod site;
mod sites;
