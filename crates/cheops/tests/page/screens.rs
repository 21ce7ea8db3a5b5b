//! The other pages: each is there, can be used by everybody, and says what is wrong where it is.

use crate::{
    browser::Browser,
    field::{Field, application::LINKS},
};

#[test]
fn a_scope_is_explained_and_a_form_is_refused_where_it_was_filled_in() {
    let field = Field::with(3, LINKS);
    let browser = Browser::new();
    let url = |path: &str| format!("http://{}:8079{path}", field.net.ip(0));
    browser.open(&url("/scope"));
    browser.fill("#scope", "image: site2; site1");
    browser.wait_for("#answer", |text| text.contains("site2") && text.contains("site1"));
    browser.is_accessible();
    browser.shot("scope");
    browser.fill("#scope", "image: site1 &");
    browser.wait_for("#answer", |text| text.contains('^'));
    browser.is_accessible();

    browser.open(&url("/sites/site1"));
    browser.fill("#id", "web");
    browser.fill("#place", "site1 & nowhere");
    browser.fill("#line", "echo '<b>bold</b>'");
    browser.click("#create button.go");
    browser.wait_for("#create .problem", |text| text.contains("nowhere"));
    browser.is_accessible();
    browser.shot("refused");
    browser.fill("#place", "site1 & site2");
    browser.click("#create button.go");
    browser.wait_for("#list", |text| text.contains("web") && text.contains("settled"));
    browser.shot("site");

    for (path, shows) in [
        ("/", "Ping all"),
        ("/sites/site2", "Hooks"),
        ("/resources", "web"),
        ("/resources/web", "<b>bold</b>"),
        ("/problems", "Problems"),
        ("/scope?scope=image%3A%20site1%20%26%20site2", "Right now"),
    ] {
        browser.open(&url(path));
        browser.wait_for("main", |text| text.contains(shows));
        browser.is_accessible();
    }
}
