//! What a page can't know now, it does not pretend to: a site that is cut off is shown as of when it was
//! heard of, and a page whose agent is gone says so, keeps what it has, and is live again by itself.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use cheops_agent::api::model::Submit;
use serde_json::json;

use super::{
    asked,
    fake::{Fake, Mood, Words},
    fetch_again,
};
use crate::{
    browser::Browser,
    field::{Field, application::LINKS, eventually, submit},
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
fn a_site_that_hangs_holds_no_page_up_and_is_named() {
    // Its link is not lost while this lasts.
    let field = Field::with(3, "[links]\nsilence = '5m'\n");
    let both = Submit { sites: Some("site1 & site3".to_owned()), ..submit("echo one", "set") };
    field.sites[0].exec("text", &both);
    let asked = [
        ("/", "No word from site3"),
        ("/part/sites", "No word from site3"),
        ("/sites/site3", "site3 can't be asked: "),
        ("/part/sites/site3", "site3 can't be asked: "),
    ];
    let page = |path: &str| {
        let start = Instant::now();
        let (status, text) = field.sites[0].ask(path).unwrap();
        assert_eq!(status, 200, "{path}: {text}");
        (start.elapsed(), text)
    };
    for (path, says) in asked {
        assert!(!page(path).1.contains(says), "{path}");
    }
    signal("-STOP", field.sites[2].pid());
    for (path, says) in asked {
        let (took, text) = page(path);
        assert!(took < Duration::from_secs(2), "{path} took {took:?}");
        assert!(text.contains(says), "{path}: {text}");
        assert!(text.contains("reachable"), "the link holds: {text}");
    }
    // What this site knows of the other is there meanwhile, and why.
    let (_, text) = page("/sites/site3");
    for part in ["it has a link, and did not answer within 1 s", "row-text", "not known"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    signal("-CONT", field.sites[2].pid());
    eventually("it answers again", || {
        asked.iter().all(|(path, says)| !page(path).1.contains(says))
    });
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
        browser.wait_for("#live", |text| text == "not live: not all can be fetched");
        assert!(browser.text("main table").unwrap().contains("site2"), "{path}");
        assert!(browser.text("#refused").unwrap().contains("detail"), "{path}");
        assert_eq!(browser.script("return window.ran ?? 0", Vec::new()), 0, "{path}");
        fake.is(Mood::Willing);
        fetch_again(&browser);
        browser.wait_for("#live", |text| text == "live");
        assert_eq!(browser.text(".problem"), None, "{path}");
    }
}

/// A browser has six connections for all pages of one agent.
#[test]
fn as_many_pages_as_one_likes_can_be_open() {
    let fake = Fake::start(Words::Plain, true);
    let browser = Browser::new();
    for n in 0..8 {
        if n > 0 {
            browser.new_tab();
        }
        browser.open(&fake.url);
        browser.wait_for("#live", |text| text == "live");
    }
    // One that was out of sight is told again what happens.
    browser.first_tab();
    let open = "return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/part/sites')).length";
    let before = browser.script(open, Vec::new()).as_u64().unwrap();
    eventually("it is fetched again", || browser.script(open, Vec::new()).as_u64() > Some(before));
    browser.wait_for("#live", |text| text == "live");
}

fn signal(signal: &str, process: u32) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}
