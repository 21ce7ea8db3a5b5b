//! One resource, as every site sees it: a conflict during a cut, its healing, and what it left.

use crate::{
    browser::Browser,
    field::{Field, submit},
};
use cheops_agent::api::model::Submit;

const TAKE_ONE: &str =
    r#"{"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]}"#;

/// What would show that it is run, if it were: in a kind there can't be any.
const MARKUP: &str = "<img src=x onerror=document.title='run'>";

#[test]
fn a_conflict_is_seen_healed_and_its_loser_is_sent_again() {
    let field = Field::new(3);
    let browser = Browser::new();
    let url = |n: usize, path: &str| format!("http://{}:8079{path}", field.net.ip(n));
    field.sites[0].exec(
        "text",
        &Submit {
            sites: Some("site1 & site2 & site3".to_owned()),
            config: Some(serde_json::from_str(TAKE_ONE).unwrap()),
            author: Some(MARKUP.to_owned()),
            ..submit(&format!("echo \"{MARKUP}\" > {{id}}; cat {{id}}"), "set")
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
    let apart = browser.wait_for("#seen", |text| text.contains("site1:2"));
    assert!(!apart.contains("site2:1") && apart.contains("no word"), "{apart}");
    browser.shot("apart");

    field.heal();
    let healed = browser.wait_for("#seen", |text| {
        text.contains("site2:1") && text.contains("lost to") && text.contains("settled")
    });
    assert!(healed.contains("take-one"), "{healed}");
    browser.is_accessible();
    browser.shot("resource");
    assert_eq!(browser.script("return window.sameAsBefore", Vec::new()), true);
    browser.click("ul.dropped button");
    browser.wait_for("ul.dropped .answer", |text| text.contains("site"));
    let after = browser.wait_for("#seen", |text| text.contains("site1:3"));
    assert!(after.contains("site2:1"), "{after}");
    let title = browser.script("return document.title", Vec::new());
    assert!(title.as_str().is_some_and(|title| title.contains("text")), "{title}");
    assert!(browser.fetched().iter().all(|origin| url(0, "").starts_with(origin)));
}
