//! Links between agents, over real sockets, in good times and in bad ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../support/ca.rs"]
mod ca;
mod calls;
mod certificates;
mod cheats;
#[path = "../support/disk.rs"]
mod disk;
mod doubled;
mod fake;
mod greeting;
mod proxy;
mod replicate;
mod site;
mod trouble;
