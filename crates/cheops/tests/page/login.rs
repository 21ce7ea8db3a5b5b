//! Logging in to the page, and what somebody sees who may only look.

use std::process::Command;

use serde_json::{Value, json};

use crate::{browser::Browser, field::agent::Agent};

fn token(directory: &std::path::Path, name: &str, role: &str) -> String {
    let socket = format!("unix:{}", directory.join("data/api.sock").display());
    let made = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["--agent", &socket, "-o", "json", "access", "create", name, "--role", role])
        .output()
        .unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    made["token"].as_str().unwrap().to_owned()
}

#[test]
fn a_token_is_typed_once_and_what_it_does_not_allow_is_not_offered() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::alone_with(directory.path(), "[api]\ntokens = 'required'\n");
    let (viewer, admin) =
        (token(directory.path(), "vera", "viewer"), token(directory.path(), "ada", "admin"));
    let browser = Browser::new();
    let url = |path: &str| format!("{}{path}", agent.url);
    let is = |title: &'static str| move |text: &str| text == title;

    browser.open(&url("/sites/site1"));
    browser.wait_for("h1", is("Log in"));
    browser.is_accessible();
    browser.fill("#token", &viewer[..40]);
    browser.click("button.go");
    browser.wait_for(".problem", |text| text.contains("not whole"));
    browser.fill("#token", &viewer);
    browser.click("button.go");
    // One comes back to where one wanted to go.
    browser.wait_for(".who", |text| text.contains("vera, viewer"));
    assert_eq!(browser.address(), url("/sites/site1"));
    browser.wait_for("#live", |text| text == "live");
    browser.is_accessible();
    assert_eq!(browser.script("return document.cookie", Vec::new()), "");
    let hidden = "return getComputedStyle(document.querySelector(arguments[0])).display";
    for css in ["#create", "#cut"] {
        assert_eq!(browser.script(hidden, vec![json!(css)]), "none", "{css}");
    }
    // What is asked for all the same is refused, with the reason.
    let post = "const done = arguments[1]; fetch(arguments[0], { method: 'POST', headers: { 'HX-Request': 'true' } })
        .then(async answer => done([answer.status, await answer.text()]));";
    let pause = json!("/sites/site1/resume");
    let answer = browser.script_until_done(post, vec![pause.clone()]);
    assert_eq!(answer[0], 403, "{answer}");
    assert!(answer[1].as_str().unwrap().contains("this is for the role admin"), "{answer}");

    browser.click("#logout");
    browser.wait_for("h1", is("Log in"));
    browser.open(&url("/resources"));
    browser.wait_for("h1", is("Log in"));
    browser.fill("#token", &admin);
    browser.click("button.go");
    browser.wait_for(".who", |text| text.contains("ada, admin"));
    browser.open(&url("/sites/site1"));
    browser.wait_for("#create", |text| !text.is_empty());
    let answer = browser.script_until_done(post, vec![pause]);
    assert_eq!(answer[0], 200, "{answer}");
}
