//! The verbs that ask an agent, as an operator meets them: the program itself, and an agent that
//! answers with the words of the API and remembers what it was asked.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod exec;
mod failures;
mod look;
mod samples;
mod sites;
mod support;
mod watch;
