//! The resources of a site, and of all sites: found, paged through, and one created with a file.

use std::fs;

use cheops_agent::api::model::Submit;

use crate::{
    browser::Browser,
    field::{Field, application::LINKS, eventually, read, submit},
};

/// More than fit on a page, and one of them failed.
fn fill(field: &Field) {
    let at_site1 = |command: &str| Submit {
        sites: Some("site1".to_owned()),
        wait: Some("0s".to_owned()),
        ..submit(command, "set")
    };
    for n in 0..60 {
        field.sites[0].exec(&format!("item-{n:02}"), &at_site1("true"));
    }
    field.sites[0].exec("broken", &at_site1("echo no room; exit 1"));
}

#[test]
fn resources_are_found_and_one_is_created_with_a_file_and_a_matrix() {
    let field = Field::with(3, LINKS);
    let browser = Browser::new();
    let url = |path: &str| format!("http://{}:8079{path}", field.net.ip(0));
    fill(&field);
    browser.open(&url("/sites/site1"));
    browser.stay();
    let current = "header nav a[aria-current='true']";
    assert_eq!(browser.text(current).as_deref(), Some("Sites"));
    a_list_is_paged_searched_and_filtered(&browser, "/sites/site1");

    a_resource_is_created(&field, &browser);
    // It is in the list, which nobody has loaded again.
    browser.fill(".find input", "web");
    browser.wait_for("#list", |list| list.contains("site1 & site2 & site3"));
    assert!(browser.is_still_there());

    browser.open(&url("/resources"));
    browser.stay();
    a_list_is_paged_searched_and_filtered(&browser, "/resources");
    browser.choose(".find select[name=site]", "site2");
    browser.wait_for_count("#list tbody tr", 1);
    browser.wait_for("#list tbody tr", |row| row.matches("settled").count() == 4);
    browser.wait_for("#command code", |text| text == "cheops get grid --site site2");
    browser.is_accessible();
    browser.shot("resources");
    browser.fill(".find input", "nothing like that");
    browser.wait_for("#list", |list| list.contains("No resource is like that"));
    assert!(browser.is_still_there());
}

/// What is looked for is in the address, and the command says the same.
fn a_list_is_paged_searched_and_filtered(browser: &Browser, path: &str) {
    let rows = "#list tbody tr";
    browser.wait_for_count(rows, 50);
    browser.click("nav.pages a");
    browser.wait_for("#list", |list| list.contains("item-59") && !list.contains("item-00"));
    assert!(browser.address().contains(&format!("{path}?after=")), "{}", browser.address());
    browser.click("nav.pages a");
    browser.wait_for("#list", |list| list.contains("item-00"));
    browser.fill(".find input", "item-1");
    browser.wait_for_count(rows, 10);
    browser.wait_for("#command code", |text| text.contains("item-1"));
    browser.choose(".find select[name=state]", "failed");
    browser.wait_for("#list", |list| list.contains("is like that"));
    browser.fill(".find input", "");
    browser.wait_for_count(rows, 1);
    browser.wait_for(rows, |row| row.contains("broken") && row.contains("failed"));
    assert!(browser.address().contains("state=failed"), "{}", browser.address());
    browser.choose(".find select[name=state]", "");
    browser.wait_for_count(rows, 50);
}

fn a_resource_is_created(field: &Field, browser: &Browser) {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.txt");
    fs::write(&page, "from a file\n").unwrap();
    let entry = |after: &str| {
        format!(
            r#"{{"ResolutionMatrix": [{{"Before": "set", "After": "{after}", "Result": "take-one"}}]}}"#
        )
    };
    browser.fill("#id", "web");
    browser.fill("#place", "site1 & site2 & site3");
    browser.wait_for("#place-said", |text| text.contains("A copy on each of site1, site2, site3"));
    browser.fill("#line", "cat {page.txt} > {id}; cat {id}");
    browser.fill("#kind", "set");
    browser.attach("#create-files", &page);
    // What is wrong with a matrix is said while it is typed, and nothing is sent.
    browser.fill("#config", "{\"ResolutionMatrix\": [");
    browser.wait_for("#config-said .problem", |text| text.contains("not JSON"));
    browser.fill("#config", &entry("inc"));
    browser.wait_for("#config-said .findings", |text| text.contains("inc"));
    browser.is_accessible();
    browser.shot("create");
    assert!(field.sites[0].resource("web").is_none());
    browser.fill("#config", &entry("set"));
    browser.wait_for("#config-said", |text| text.contains("No findings"));
    browser.click("#create button.go");
    let created = browser.wait_for("#created", |text| text.contains("web is created"));
    assert_eq!(created.matches("from a file").count(), 3, "{created}");
    assert!(created.contains("--file page.txt"), "{created}");
    for site in &field.sites {
        let made = site.work().join("web");
        eventually("the file is there", || read(&made).as_deref() == Some("from a file\n"));
    }
}
