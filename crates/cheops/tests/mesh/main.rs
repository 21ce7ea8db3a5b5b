//! The application's own requests, on their way through the agents: three sites with hosts of their
//! own, and at each a small real application of two services that knows nothing of Cheops.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../field/mod.rs"]
mod field;

mod addresses;
mod cross;
mod crowd;
mod cuts;
mod dead_links;
mod far;
mod leftovers;
mod linked;
mod otherwise;
mod refused;
mod replicants;
mod scopes_from;
mod sharing;
mod stalled;
mod strangers;
