//! What a page can't know now, it does not pretend to: a site that is cut off is shown as of when it was
//! heard of, and a page whose agent is gone says so, keeps what it has, and is live again by itself.

use std::process::Command;

use cheops_agent::api::model::Submit;
use serde_json::json;

use super::{
    asked,
    fake::{Fake, Mood, Words},
    fetch_again,
};
use crate::{
    browser::Browser,
    field::{Field, application::LINKS, submit},
};

/// The moments that a part of the page names, in seconds before now.
const AGES: &str = "return [...document.querySelectorAll(arguments[0] + ' time')]
    .map((time) => (Date.now() - new Date(time.dateTime)) / 1000)";

#[test]
fn what_was_seen_before_a_cut_is_shown_as_of_then() {
    let field = Field::with(3, LINKS);
    let browser = Browser::new();
    let url = |path: &str| format!("http://{}:8079{path}", field.net.ip(0));
    let text = Submit { sites: Some("site1 & site2".to_owned()), ..submit("echo one", "set") };
    field.sites[0].exec("text", &text);
    browser.open(&url("/resources"));
    browser.wait_for("#live", |text| text == "live");
    field.net.cut(0, 1);
    // It is read out once, where it is read out.
    browser.wait_for("#list .notice", |text| text.contains("No word from 1 of 3 sites"));
    let said = browser.script("return document.getElementById('said').textContent", Vec::new());
    assert!(said.as_str().unwrap().contains("site2: last heard of"), "{said}");
    for (path, part, says) in [
        ("/", "[data-site=site2]", "unreachable"),
        ("/", "#sites .notice", "No word from site2"),
        ("/sites/site2", "#list .notice", "site2 can't be asked"),
        ("/sites/site2", "#reach", "unreachable"),
        ("/resources", "#list .notice", "site2: last heard of"),
        ("/resources/text", "#seen .notice", "site2 can’t be asked now"),
        ("/resources/text", "#seen table", "as it said before"),
        ("/problems", "#list .notice", "site2, last heard of"),
    ] {
        browser.open(&url(path));
        browser.wait_for(part, |text| text.contains(says));
        let ages: Vec<f64> =
            serde_json::from_value(browser.script(AGES, vec![json!(part)])).unwrap();
        let dated = says.starts_with("No word") || ages.iter().any(|age| (0.0..60.0).contains(age));
        assert!(dated, "{path} {part} says nothing of when: {ages:?}");
    }
    browser.shot("as-of");
}

#[test]
fn a_page_without_its_agent_says_so_and_is_live_again_by_itself() {
    let mut field = Field::with(2, LINKS);
    let browser = Browser::new();
    let url = format!("http://{}:8079", field.net.ip(0));
    let text = Submit { sites: Some("site1 & site2".to_owned()), ..submit("echo one", "set") };
    field.sites[0].exec("text", &text);
    browser.open(&format!("{url}/resources/text"));
    browser.wait_for("#seen", |text| text.contains("settled"));
    browser.wait_for("#live", |text| text == "live");
    browser.script("window.sameAsBefore = true", Vec::new());

    field.sites[0].kill();
    browser.wait_for("#live", |text| text == "not live: the agent does not answer");
    browser.wait_for("#as-of", |text| text.starts_with("· shown as of "));
    assert!(browser.text("#seen").unwrap().contains("echo one"));
    browser.is_accessible();
    browser.shot("not-live");
    // What is asked for now is not lost without a word.
    browser.click("#show ~ form button");
    browser.wait_for("#show-answer", |text| text.contains("There is no answer"));

    // What happens meanwhile is seen when it is back.
    let more = Submit { wait: Some("0s".to_owned()), ..submit("echo two", "set") };
    field.sites[1].exec("text", &more);
    field.sites[0].start();
    field.sites[0].wait_until_ready();
    browser.wait_for("#live", |text| text == "live");
    browser.wait_for("#seen", |text| text.contains("echo two") && text.contains("settled"));
    assert_eq!(browser.text("#as-of").as_deref(), Some(""));

    // An agent that is there and says nothing is no better; time flies, for once.
    signal("-STOP", field.sites[0].pid());
    browser
        .script("const now = Date.now; window.now = now; Date.now = () => now() + 60000", vec![]);
    browser.wait_for("#live", |text| text == "not live: no word from the agent");
    signal("-CONT", field.sites[0].pid());
    browser.script("Date.now = window.now", Vec::new());
    field.sites[1].exec("text", &submit("echo three", "set"));
    browser.wait_for("#live", |text| text == "live");
    browser.wait_for("#seen", |text| text.contains("echo three"));
    assert_eq!(browser.script("return window.sameAsBefore", Vec::new()), true);
    assert_eq!(asked(&browser).into_iter().collect::<Vec<_>>(), [url]);
}

#[test]
fn a_part_that_cannot_be_had_stays_as_it_was() {
    let fake = Fake::start(Words::Hostile, true);
    let browser = Browser::new();
    for path in ["/", "/resources", "/problems"] {
        browser.open(&(fake.url.clone() + path));
        browser.wait_for("#live", |text| text == "live");
        fake.is(Mood::Fails);
        fetch_again(&browser);
        let why = format!("not live: {}", fake.words.text("detail"));
        let why = why.lines().next().unwrap();
        browser.wait_for("#live", |text| text.starts_with(why));
        assert!(browser.text("main table").unwrap().contains("site2"), "{path}");
        assert!(browser.text("#refused").unwrap().contains("detail"), "{path}");
        assert_eq!(browser.script("return window.ran ?? 0", Vec::new()), 0, "{path}");
        fake.is(Mood::Willing);
        fetch_again(&browser);
        browser.wait_for("#live", |text| text == "live");
        assert_eq!(browser.text(".problem"), None, "{path}");
    }
}

fn signal(signal: &str, process: u32) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}
