//! Histories for the tests, and a reference for what they amount to.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by it"
)]

pub mod history;
pub mod pair;
pub mod reference;
pub mod world;

/// How many cases a property is tried on: the usual number, or what `PROPTEST_CASES` says.
pub fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}
