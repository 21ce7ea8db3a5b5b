//! One resource, as every site sees it: a conflict during a cut, its healing, and what it left.

use crate::{
    browser::Browser,
    field::{Field, application::LINKS, eventually, submit},
};
use cheops_agent::api::model::Submit;

const TAKE_ONE: &str =
    r#"{"ResolutionMatrix": [{"Before": "set", "After": "set", "Result": "take-one"}]}"#;

fn create(field: &Field, id: &str, sites: &str) {
    field.sites[0].exec(
        id,
        &Submit {
            sites: Some(sites.to_owned()),
            config: Some(serde_json::from_str(TAKE_ONE).unwrap()),
            ..submit("echo middle > {id}; cat {id}", "set")
        },
    );
}

/// Two sites set it, and can't hear of each other.
fn conflict(field: &Field, id: &str) {
    for n in [0, 1] {
        let set = submit(&format!("echo from site{} > {{id}}", n + 1), "set");
        field.sites[n].exec(id, &Submit { wait: Some("0s".to_owned()), ..set });
    }
}

#[test]
fn a_conflict_is_seen_healed_and_its_loser_is_sent_again() {
    let field = Field::with(3, LINKS);
    let browser = Browser::new();
    seen_from_one_side(&field, &browser);
    seen_by_a_third(&field, &browser);
}

/// The network is cut: nobody can be asked, and nobody pretends to know more.
fn seen_from_one_side(field: &Field, browser: &Browser) {
    let url = |n: usize, path: &str| format!("http://{}:8079{path}", field.net.ip(n));
    create(field, "text", &field.everywhere());
    browser.open(&url(0, "/resources/text"));
    browser.wait_for("#seen", |text| text.contains("settled") && text.contains("site1:1"));
    browser.stay();
    browser.is_accessible();

    field.cut();
    field.wait_until_apart();
    conflict(field, "text");
    // Each side has one that the other has not heard of.
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
    assert!(browser.is_still_there());
    assert_eq!(browser.count("tr[id^=op]"), 3);
    // One operation, and two that knew of it and not of each other.
    assert_eq!((browser.count("svg.graph g"), browser.count("svg.graph path")), (3, 2));
    let foreign = "return [...document.querySelectorAll('time')].filter((time) =>
        time.title !== new Date(time.dateTime).toISOString()
            || time.textContent !== new Date(time.dateTime).toLocaleString()).length";
    assert_eq!(browser.script(foreign, Vec::new()), 0, "times are local, with UTC on hover");
    browser.click("ul.dropped li:last-child button");
    browser.wait_for_count("tr[id^=op]", 4);
    browser
        .wait_for("ul.dropped .answer:not(:empty)", |text| text.contains("cheops exec --id text"));
}

/// The link of two sites is paused on the page of one of them; a third, which sees both, shows which
/// operation is missing where.
fn seen_by_a_third(field: &Field, browser: &Browser) {
    let url = |n: usize, path: &str| format!("http://{}:8079{path}", field.net.ip(n));
    create(field, "pair", "site1 & site2");
    browser.open(&url(2, "/resources/pair"));
    browser.wait_for("#seen", |text| text.contains("settled"));
    browser.stay();
    let operator = Browser::new();
    operator.open(&url(0, "/"));
    operator.stay();
    operator.click("[data-site=site2] .do button.warn");
    operator.wait_for("[data-site=site2]", |row| row.contains("paused"));
    eventually("site2 has noticed", || field.sites[1].reachable() == ["site3"]);
    conflict(field, "pair");

    browser.wait_for_count("td.missing", 2);
    assert_eq!(
        beside(browser),
        [
            ("echo middle > {id}; cat {id}".to_owned(), vec!["OK", "OK"]),
            ("echo from site1 > {id}".to_owned(), vec!["OK", "missing"]),
            ("echo from site2 > {id}".to_owned(), vec!["missing", "OK"]),
        ]
        .map(|(command, cells)| (command, cells.into_iter().map(str::to_owned).collect()))
    );
    browser.is_accessible();
    browser.shot("missing");

    operator.click("[data-site=site2] .do button:last-of-type");
    operator.wait_for("[data-site=site2]", |row| row.contains("reachable"));
    browser.wait_for_count("td.missing", 0);
    assert_eq!(browser.count("tr[id^=op]"), 3);
    let healed = browser.wait_for("#seen", |text| text.contains("settled"));
    assert!(healed.contains("lost to op"), "{healed}");
    browser.shot("healed");
    assert!(browser.is_still_there() && operator.is_still_there());
}

/// The commands, and what each site says of them.
fn beside(browser: &Browser) -> Vec<(String, Vec<String>)> {
    let rows = browser.script(
        "return [...document.querySelectorAll('tr[id^=op]')].map((row) => [
            row.querySelector('.line').textContent,
            [...row.querySelectorAll('td .badge')].map((badge) => badge.textContent),
        ])",
        Vec::new(),
    );
    serde_json::from_value(rows).unwrap()
}
