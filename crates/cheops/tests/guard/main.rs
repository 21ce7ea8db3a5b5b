//! What keeps a site from harm, against real agents: the audit, limits, and secrets that stay secret.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../field/mod.rs"]
mod field;

mod audit;
mod confined;
mod limits;
mod names;
mod secrets;

use cheops_agent::api::model::Submit;

/// An operation at the only site.
fn here(command: &str) -> Submit {
    Submit { sites: Some("site1".into()), ..field::submit(command, "set") }
}
