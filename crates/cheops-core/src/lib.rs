//! What Cheops decides.
//!
//! This crate does no I/O, reads no clock and draws no random number; the compiler checks it, since
//! the crate is `no_std`. All collections are ordered, so the same inputs give the same outputs in
//! the same order, in the agent, in the simulator and in the model checker.
//!
//! The modules build on each other in this order:
//!
//! | module | question it answers |
//! |---|---|
//! | [`id`] | what is a well-formed name? |
//! | [`time`] | which of two operations is later? |
//! | [`trust`] | whom does a site believe? |
//! | [`scope`] | where should each service of a request run? |
//! | [`route`] | what does that mean for this request, at this site, now? |
//! | [`matrix`] | of two kinds of operations, which stay, and in which order? |
//! | [`log`] | which operations are known, and which caused which? |
//! | [`resolve`] | what do they amount to: the block, and a receipt for each that is not in it |
//! | [`plan`] | what must this site run next to get there? |
//! | [`replica`] | what does a site do about an input? |
//! | [`history`] | what would become of these operations, if a person wrote them down? |
#![no_std]

extern crate alloc;

pub mod duration;
mod few;
pub mod history;
pub mod id;
pub mod json;
pub mod log;
pub mod matrix;
pub mod operation;
pub mod pattern;
pub mod plan;
pub mod replica;
pub mod resolve;
pub mod route;
mod rules;
pub mod scope;
mod spelling;
pub mod time;
pub mod trust;

pub use rules::{Rules, Verdict};
