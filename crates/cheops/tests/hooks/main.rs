//! Hooks, with real agents as processes and real receivers: a web server that fails, hangs and comes
//! back, a mail server, an IRC server, commands.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../field/mod.rs"]
mod field;

mod added;
mod irc;
mod killed;
mod load;
mod mail;
mod python;
mod receiver;
mod secrets;
mod sites;
mod story;
mod summary;
mod web;

use cheops_agent::api::model::{Hook, HookTested, Hooks, Submit};
use field::{agent::Agent, submit};

/// The hook of an agent.
fn hook(site: &Agent, name: &str) -> Hook {
    let hooks: Hooks = site.try_get("/api/v1/hooks").unwrap();
    hooks.hooks.into_iter().find(|hook| hook.name == name).unwrap()
}

/// Sends a sample.
fn sample(site: &Agent, name: &str) -> HookTested {
    let path = format!("/api/v1/hooks/{name}/test");
    let (status, text) = site.post(&path, &serde_json::json!({})).unwrap();
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// A request for an operation at sites.
fn at(sites: &str, command: &str) -> Submit {
    Submit { sites: Some(sites.into()), ..submit(command, "set") }
}
