//! One resource, as every site sees it: a conflict during a cut, its healing, and what it left.

use crate::{
    browser::Browser,
    field::{Field, application::LINKS, eventually, submit},
};
use cheops_agent::api::model::Submit;

const TAKE_ONE: &str =
    r#"{"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]}"#;

#[test]
fn a_conflict_is_seen_healed_and_its_loser_is_sent_again() {
    let field = Field::with(3, LINKS);
    let browser = Browser::new();
    let url = |n: usize, path: &str| format!("http://{}:8079{path}", field.net.ip(n));
    field.sites[0].exec(
        "text",
        &Submit {
            sites: Some("site1 & site2 & site3".to_owned()),
            config: Some(serde_json::from_str(TAKE_ONE).unwrap()),
            ..submit("echo middle > {id}; cat {id}", "set")
        },
    );
    browser.open(&url(0, "/resources/text"));
    browser.wait_for("#seen", |text| text.contains("settled") && text.contains("site1:1"));
    browser.wait_for("#live", |text| text == "live");
    browser.script("window.sameAsBefore = true", Vec::new());
    browser.is_accessible();

    field.cut();
    field.wait_until_apart();
    for n in [0, 1] {
        let set = submit(&format!("echo from site{} > {{id}}", n + 1), "set");
        field.sites[n].exec("text", &Submit { wait: Some("0s".to_owned()), ..set });
    }
    // Each side has one that the other has not heard of, and nobody pretends to know more.
    let apart = browser.wait_for("#seen", |text| text.contains("echo from site1"));
    assert!(!apart.contains("echo from site2") && apart.contains("no word"), "{apart}");
    browser.shot("apart");

    field.heal();
    let healed = browser.wait_for("#seen", |text| {
        text.contains("echo from site2") && text.contains("take-one") && text.contains("settled")
    });
    assert!(healed.contains("lost to"), "{healed}");
    browser.is_accessible();
    browser.shot("resource");
    assert_eq!(browser.script("return window.sameAsBefore", Vec::new()), true);
    let count = || browser.script("return document.querySelectorAll('tr[id^=op]').length", vec![]);
    assert_eq!(count(), 3);
    browser.click("ul.dropped li:last-child button");
    eventually("it is there once more", || count() == 4);
    assert!(browser.fetched().iter().all(|origin| url(0, "").starts_with(origin)));
}
