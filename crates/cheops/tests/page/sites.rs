//! The sites, and a cut that is made on the page.

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
    for name in ["site2", "site3"] {
        browser.wait_for(&format!("#site-{name}"), |row| row.contains("reachable"));
    }
    browser.wait_for("#live", |text| text == "live");
    // Whatever is seen from now on is seen without loading the page again.
    browser.script("window.sameAsBefore = true", Vec::new());
    browser.is_accessible();
    browser.shot("sites");

    browser.click("#site-site2 button:first-of-type");
    browser.wait_for("#pinged", |text| text.contains("site2 answered after"));
    browser.click("#site-site2 button.warn");
    browser.wait_for("#site-site2", |row| row.contains("paused"));
    browser.wait_for(".notice", |notice| notice.contains("A cut is being rehearsed"));
    browser.is_accessible();
    browser.shot("cut");
    browser.click("#site-site2 button:last-of-type");
    browser.wait_for("#site-site2", |row| row.contains("reachable"));
    assert_eq!(browser.script("return window.sameAsBefore", Vec::new()), true);
    // Another site's own page is one click away.
    let page = url(1);
    browser.wait_for(&format!("#site-site2 a[href='{page}']"), |text| text.contains("its page"));
    assert!(browser.fetched().iter().all(|origin| *origin == url(0)), "{:?}", browser.fetched());
    browser.click(&format!("#site-site2 a[href='{page}']"));
    browser.wait_for(".here", |text| text.contains("site2"));
}
