//! Each screen, for everybody: in light and dark, on a phone, with long names, with nothing to show, with
//! forms unfolded and with forms refused.

use serde_json::json;

use super::{
    as_on_a_phone,
    fake::{Fake, Mood, Words},
    in_the_dark, settle,
};
use crate::browser::Browser;

/// What is wider than the page, or too small for a finger. Words in a text are as high as the text is.
const CLUMSY: &str = "
    const wide = document.scrollingElement.scrollWidth > innerWidth ? ['the page is wider than the screen: '
        + [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth
            && !e.closest('.scroll')).slice(0, 3).map((e) => e.outerHTML.slice(0, 120)).join(' | ')] : [];
    const controls = 'button, input:not([type=hidden]), select, textarea, summary, nav a, header a, th a, td > a';
    const shown = [...document.querySelectorAll(controls)].filter((e) => e.checkVisibility() && !e.matches('.skip'));
    const small = shown.filter((e) => e.getBoundingClientRect().height < 24);
    return wide.concat(small.map((e) => `${e.getBoundingClientRect().height} high: ${e.outerHTML.slice(0, 120)}`));";

const UNFOLD: &str = "for (const fold of document.querySelectorAll('details')) fold.open = true";

#[test]
fn everybody_can_use_every_screen() {
    let browser = Browser::new();
    let (full, empty) = (Fake::start(Words::Long, true), Fake::start(Words::Long, false));
    full.is(Mood::Refuses);
    for (fake, name, url) in [
        (&full, "sites", full.url.clone()),
        (&full, "site", full.about("/sites/", "site2")),
        (&full, "silent", full.about("/sites/", "site3")),
        (&full, "resources", full.url.clone() + "/resources"),
        (&full, "resource", full.about("/resources/", "mail")),
        (&full, "requests", full.about("/resources/", "web~1")),
        (&full, "missing", full.about("/resources/", "missing")),
        (&full, "problems", full.url.clone() + "/problems"),
        (
            &full,
            "scope",
            full.url.clone() + "/scope?scope=image:%20site1%20%26%20(site1%3B%20site1)",
        ),
        (&full, "caret", full.about("/scope?scope=image:%20site1%20%26%20", "nowhere")),
        (&empty, "alone", empty.url.clone()),
        (&empty, "first", empty.url.clone() + "/resources"),
        (&empty, "well", empty.url.clone() + "/problems"),
        (&empty, "new", empty.url.clone() + "/sites/site1"),
        (&empty, "examples", empty.url.clone() + "/scope"),
    ] {
        let at = |what: &str| format!("{what}-{name}");
        browser.open(&url);
        browser.wait_for("#live", |text| text == "live");
        if fake.url == full.url {
            browser.script(UNFOLD, Vec::new());
            settle(&browser);
            refuse(&browser, name);
        }
        // What is wrong with a page is so in any light and size, except for colours and room.
        let none = Vec::<String>::new();
        browser.script("scrollTo(0, 0)", Vec::new());
        in_the_dark(&browser, true);
        assert_eq!(browser.barriers(&json!({})), none, "{name} in the dark");
        browser.shot(&at("dark"));
        in_the_dark(&browser, false);
        as_on_a_phone(&browser, true);
        browser.shot(&at("phone"));
        assert_eq!(browser.script(CLUMSY, Vec::new()), json!([]), "{name} on a phone");
        let room =
            json!({ "runOnly": ["color-contrast", "scrollable-region-focusable", "target-size"] });
        assert_eq!(browser.barriers(&room), none, "{name} on a phone");
        as_on_a_phone(&browser, false);
    }
}

/// Has forms refused, where there are any.
fn refuse(browser: &Browser, name: &str) {
    let (button, answer) = match name {
        "sites" | "site" => ("main .actions button", "#done"),
        "resource" => ("#run form button", "#new-answer"),
        _ => return,
    };
    browser.click(button);
    browser.wait_for(answer, |text| text.contains("detail"));
}
