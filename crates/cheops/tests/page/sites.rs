//! The sites, a cut that is made on the page, and addresses that lead nowhere.

use crate::{
    browser::Browser,
    field::{Field, application::LINKS},
};

#[test]
fn a_cut_is_made_seen_and_healed_on_the_page() {
    let field = Field::with(3, LINKS);
    let browser = Browser::new();
    let url = |n: usize| format!("http://{}:8079", field.net.ip(n));
    browser.open(&url(0));
    assert!(browser.text("h1").unwrap().contains("Sites"));
    let are = |state: &str| {
        for name in ["site2", "site3"] {
            browser.wait_for(&format!("[data-site={name}]"), |row| row.contains(state));
        }
    };
    are("reachable");
    browser.stay();
    browser.is_accessible();
    browser.shot("sites");
    one_link_is_paused_for_a_time(&browser);

    browser.click("#ping-all");
    browser.wait_for("#done", |text| {
        ["site2 answered after", "site3 answered after", "cheops site ping"]
            .iter()
            .all(|expected| text.contains(expected))
    });
    browser.click("#cut");
    are("paused");
    browser.wait_for("#done", |text| text.contains("cheops site pause site1"));
    browser.wait_for(".notice", |notice| notice.contains("2 of the 2 links from here are paused"));
    browser.click("[data-site=site3] .do button:first-of-type");
    browser.wait_for("[data-site=site3]", |row| row.contains("site3 did not answer"));
    browser.click("#resume-all");
    are("reachable");
    assert!(browser.is_still_there());

    // Another site's own page is one click away.
    let page = url(1);
    browser
        .wait_for(&format!("[data-site=site2] a[href='{page}']"), |text| text.contains("its page"));
    browser.click(&format!("[data-site=site2] a[href='{page}']"));
    browser.wait_for(".here", |text| text.contains("site2"));
    addresses_that_lead_nowhere_lead_back(&field, &browser);
}

/// Whoever pauses a link is at the button that resumes it then, and what came of it stands there.
fn one_link_is_paused_for_a_time(browser: &Browser) {
    browser.click("[data-site=site2] .do button:first-of-type");
    browser.wait_for("[data-site=site2] .answer", |text| text.contains("site2 answered after"));
    browser.choose("#lasting", "10m");
    browser.click("[data-site=site2] .do button.warn");
    browser.wait_for("[data-site=site2]", |row| {
        row.contains("paused") && row.contains("cheops site pause --for 10m site2")
    });
    let notice = browser.wait_for(".notice", |notice| notice.contains("A cut is being rehearsed"));
    assert!(notice.contains("until ") && !notice.contains("until resumed"), "{notice}");
    browser.is_accessible();
    browser.shot("cut");
    let focus = "return document.activeElement.getAttribute('aria-label')";
    assert_eq!(browser.script(focus, Vec::new()), "Resume site2");
    browser.click("[data-site=site2] .do button:last-of-type");
    browser.wait_for("[data-site=site2]", |row| {
        row.contains("reachable") && row.contains("cheops site resume site2")
    });
    browser.choose("#lasting", "");
}

fn addresses_that_lead_nowhere_lead_back(field: &Field, browser: &Browser) {
    let url = |path: &str| format!("http://{}:8079{path}", field.net.ip(0));
    for (path, title, leads) in [
        ("/sites/nowhere", "Unknown site", "/"),
        ("/resources/nothing", "Unknown resource", "/resources"),
        ("/resources?state=odd", "Bad parameter", "/resources"),
        ("/problems?from=first", "Bad Request", "/problems"),
        ("/nothing/here", "There is no such page", "/"),
    ] {
        browser.open(&url(path));
        assert_eq!(browser.text("h1").as_deref(), Some(title), "{path}");
        assert!(browser.text(".problem").unwrap().contains("Next: "), "{path}");
        browser.wait_for("#live", |text| text == "live");
        browser.is_accessible();
        browser.shot("nowhere");
        browser.click(&format!("main a[href='{leads}']"));
        browser.wait_for("main", |_| browser.address() == url(leads));
    }
    // For programs, an address that leads nowhere is what the API says of it.
    let (status, body) = field.sites[0].ask("/nothing/here").unwrap();
    assert!(status == 404 && body.starts_with('{'), "{status} {body}");
    let (status, body) = field.sites[0].ask("/sites/nowhere").unwrap();
    assert!(status == 404 && body.contains("<header>"), "{status} {body}");
}
