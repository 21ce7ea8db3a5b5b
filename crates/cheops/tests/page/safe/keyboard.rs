//! Without a mouse: all can be reached and done, one sees where one is, and nobody loses their place or is
//! talked to all the time because a page is live.

use cheops_agent::api::model::Submit;
use serde_json::{Value, json};

use super::{
    complaints,
    fake::{Fake, Words},
    fetch_again, settle,
};
use crate::{
    browser::Browser,
    field::{agent::Agent, submit},
};

/// Keys, as the driver has them.
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const SPACE: &str = " ";

/// What has the focus: its text, its purpose and its line.
fn here(browser: &Browser) -> Value {
    let script = "const at = document.activeElement, style = getComputedStyle(at);
        return {
            tag: at.tagName, id: at.id, text: at.textContent, to: at.getAttribute('href') ?? at.getAttribute('hx-post'),
            row: at.closest('tr')?.dataset.site ?? null, seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
        }";
    browser.script(script, Vec::new())
}

/// Goes on by Tab until the focus is on what is looked for, which is seen to have it.
fn tab_to(browser: &Browser, what: &str, is: impl Fn(&Value) -> bool) {
    let mut seen = Vec::new();
    for _ in 0..60 {
        browser.press(TAB);
        let at = here(browser);
        assert_eq!(at["seen"], true, "nobody sees that the focus is on {at}");
        if is(&at) {
            return;
        }
        seen.push(at["text"].to_string());
    }
    panic!("{what} is not reached: {seen:?}");
}

#[test]
fn an_operation_is_run_by_keyboard_alone() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::alone(directory.path());
    agent.exec("web", &Submit { sites: Some("site1".to_owned()), ..submit("true", "set") });
    let browser = Browser::new();
    browser.open(&agent.url);
    browser.wait_for("#live", |text| text == "live");
    // The first stop leads past the navigation.
    tab_to(&browser, "the way to the content", |at| at["to"] == "#content");
    browser.press(ENTER);
    assert_eq!(here(&browser)["id"], "content");
    browser.open(&agent.url);
    tab_to(&browser, "the resources", |at| at["text"] == "Resources");
    browser.press(ENTER);
    browser.wait_for("#grid", |text| text.contains("web"));
    tab_to(&browser, "the resource", |at| at["to"] == "/resources/web");
    browser.press(ENTER);
    browser.wait_for("h1", |text| text == "web");
    tab_to(&browser, "the form", |at| at["text"] == "Run a new operation");
    browser.press(SPACE);
    tab_to(&browser, "the command", |at| at["id"] == "new-command");
    browser.press("echo by keyboard");
    tab_to(&browser, "the button", |at| at["text"] == "Run on all sites");
    browser.press(ENTER);
    browser.wait_for("#new-answer", |text| text.contains("accepted") && text.contains("OK"));
    // The button was closed meanwhile, and the page was fetched again because of it.
    browser.wait_for("#seen", |text| text.contains("echo by keyboard"));
    settle(&browser);
    assert_eq!(here(&browser)["text"], "Run on all sites");
    // It is heard, too.
    let region = "return document.querySelector('#new-answer').closest('[role=status]') !== null";
    assert_eq!(browser.script(region, Vec::new()), true);
    assert_eq!(complaints(&browser), Vec::<String>::new());
}

/// Counts what a program that reads pages aloud would say: changes of what is live, and what is live and new.
const LISTEN: &str = "window.spoken = [];
    const live = '[role=status], [role=alert], [role=log], [aria-live]:not([aria-live=off])';
    new MutationObserver((changes) => {
        for (const { target, addedNodes } of changes) {
            const around = (target.nodeType === 1 ? target : target.parentElement)?.closest(live);
            const added = [...addedNodes].filter((n) => n.nodeType === 1);
            const anew = added.flatMap((n) => [...n.querySelectorAll(live), ...(n.matches(live) ? [n] : [])]);
            for (const region of [around, ...anew]) {
                if (region?.textContent.trim()) window.spoken.push(region.outerHTML.slice(0, 200));
            }
        }
    }).observe(document.body, { subtree: true, childList: true, characterData: true });";

#[test]
fn nobody_loses_their_place_or_is_talked_to_all_the_time() {
    let browser = Browser::new();
    // Names have what means something in selectors, which htmx finds things by.
    let (long, hostile) = (Fake::start(Words::Long, true), Fake::start(Words::Hostile, true));
    for (url, places) in [
        (
            long.url.clone(),
            &["#sites tbody th a", "#sites tr:nth-child(2) button.warn", ".actions button"][..],
        ),
        (
            hostile.url.clone(),
            &["#sites tbody th a", "#sites tr:nth-child(3) button:first-of-type"],
        ),
        (long.about("/sites/", "site2"), &["#list tbody tr:nth-child(2) th a", "#ping"]),
        (
            long.url.clone() + "/resources",
            &["#list tbody tr:nth-child(3) th a", "#grid", ".pages a", "[name=find]"],
        ),
        (long.url.clone() + "/problems", &["#list tbody tr:nth-child(2) td a"]),
        (
            long.about("/resources/", "mail"),
            &[
                "#seen ul.dropped li:nth-child(2) button",
                "#seen details summary",
                "#seen .summary a",
            ],
        ),
        (long.about("/scope?scope=", "image: site1 & "), &["#scope", "#answer pre"]),
    ] {
        browser.open(&url);
        browser.wait_for("#live", |text| text == "live");
        settle(&browser);
        browser.script(LISTEN, Vec::new());
        for place in places {
            let place = vec![json!(place)];
            let begin = "const at = document.querySelector(arguments[0]);
                at.focus();
                return at === document.activeElement";
            assert_eq!(browser.script(begin, place.clone()), true, "{url} {place:?}");
            fetch_again(&browser);
            let stays = "return document.activeElement === document.querySelector(arguments[0])";
            let stayed = browser.script(stays, place.clone());
            assert_eq!(stayed, true, "{url} {place:?}: {}", here(&browser));
        }
        assert_eq!(browser.script("return window.spoken", Vec::new()), json!([]), "{url}");
    }
    // What a button did puts another in its place.
    browser.open(&long.url);
    browser.wait_for("#live", |text| text == "live");
    settle(&browser);
    browser.script("document.querySelector('#sites tr:nth-child(2) button.warn').focus()", vec![]);
    browser.press(ENTER);
    browser.wait_for("#sites tr:nth-child(2)", |row| row.contains("Resume"));
    settle(&browser);
    let at = here(&browser);
    assert_eq!(at["text"], "Resume", "{at}");
    assert!(at["row"].as_str().is_some_and(|row| row.starts_with("site2")), "{at}");
    assert_eq!(complaints(&browser), Vec::<String>::new());
}
