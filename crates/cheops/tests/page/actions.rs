//! What is done about a resource on its page: run, rehearse, compare, repair, delete. And what needs a
//! person: problems, which go away by themselves when they are seen to, and a hook that fails.

use std::fs;

use cheops_agent::api::model::Submit;
use serde_json::json;

use crate::{
    browser::Browser,
    field::{Field, application::LINKS, eventually, read, submit},
};

/// Tells nobody before there is a file `there`.
const HOOK: &str = "[[hook]]\nname = 'ops'\non = ['operation.ran']\nretry = '500ms'\ncommand = '[ -e there ] || { echo nobody is there >&2; false; }'\n";

#[test]
fn a_resource_is_changed_compared_repaired_and_deleted() {
    let field = Field::with_each(3, |n, _| [LINKS, if n == 0 { HOOK } else { "" }].concat());
    let browser = Browser::new();
    let url = |path: &str| format!("http://{}:8079{path}", field.net.ip(0));
    let config = json!({
        "ResolutionMatrix": [{ "Before": "set", "After": "set", "Result": "take-one" }],
        "Show": "cat {id}",
    });
    let sites = Some(field.everywhere());
    let first = Submit { sites, config: Some(config), ..submit("echo one > {id}", "set") };
    field.sites[0].exec("web", &first);

    browser.open(&url("/resources/web"));
    browser.stay();
    operations_are_rehearsed_and_run(&field, &browser);
    sites_that_differ_are_shown_beside_each_other(&browser);
    browser.open(&url("/problems"));
    browser.stay();
    a_problem_leads_to_its_repair(&browser);
    it_is_deleted_by_who_means_it(&field, &browser);

    browser.open(&url("/problems"));
    browser.stay();
    problems_come_and_go(&field, &browser);
    browser.open(&url("/sites/site1#hooks"));
    browser.stay();
    a_hook_is_tried(&field, &browser);
    for (n, shows) in [(0, "the hooks of site2"), (1, "[[hook]]")] {
        browser.open(&format!("http://{}:8079/sites/site2", field.net.ip(n)));
        browser.wait_for("section[aria-labelledby=hooks]", |text| text.contains(shows));
    }
}

/// As the form for a new operation has it.
fn run(browser: &Browser, command: &str) {
    browser.fill("#new-command", command);
    browser.fill("#new-kind", "set");
}

fn operations_are_rehearsed_and_run(field: &Field, browser: &Browser) {
    browser.wait_for_count("tr[id^=op]", 1);
    browser.click("#run summary");
    browser.fill("#author", "ada");
    run(browser, "echo two > {id}\necho done");
    browser.click("#run button[type=button]");
    let would = browser.wait_for("#new-answer", |text| text.contains("Nothing was done"));
    assert!(would.contains("site3 would run") && would.contains("--dry-run"), "{would}");
    assert_eq!(browser.count("tr[id^=op]"), 1);
    browser.click("#run button[type=submit]");
    let ran = browser.wait_for("#new-answer", |text| text.matches("OK").count() == 3);
    assert!(ran.contains("is accepted") && ran.matches("done").count() >= 3, "{ran}");
    browser.wait_for_count("tr[id^=op]", 2);
    browser.wait_for("#seen", |text| text.contains("by anyone:ada") && text.contains("settled"));
    assert_eq!(read(&field.sites[2].work().join("web")).as_deref(), Some("two\n"));
    // Whoever works with the keyboard is where they were.
    let focus = "return document.activeElement.textContent";
    assert_eq!(browser.script(focus, Vec::new()), "Run on all sites");

    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.txt");
    fs::write(&page, "from a file\n").unwrap();
    browser.attach("#new-files", &page);
    run(browser, "cat {page.txt} > {id}");
    browser.click("#run button[type=submit]");
    browser.wait_for("#new-answer", |text| {
        text.contains("--file page.txt") && text.matches("OK").count() == 3
    });
    browser.wait_for("#seen", |text| text.contains("brings page.txt"));
    for site in &field.sites {
        assert_eq!(read(&site.work().join("web")).as_deref(), Some("from a file\n"));
    }
    browser.is_accessible();
    // A file that is gone by now can't be sent, and that is said, too.
    drop(folder);
    browser.click("#run button[type=submit]");
    browser.wait_for("#new-answer .problem", |text| text.contains("a file can't be read"));
    browser.script("document.querySelector('#new-files').value = ''", Vec::new());
    assert!(browser.is_still_there());
}

fn sites_that_differ_are_shown_beside_each_other(browser: &Browser) {
    let show = "form[hx-post$='/show'] button";
    browser.click(show);
    browser.wait_for("#show-answer", |text| text.contains("All sites print the same"));
    run(browser, "[ $CHEOPS_SITE != site2 ] && echo three > {id}");
    browser.click("#run button[type=submit]");
    browser.wait_for("#new-answer", |text| text.contains("KO"));
    browser.wait_for("#seen .summary", |text| text.contains("diverged"));
    browser.click(show);
    let shown = browser.wait_for("#show-answer", |text| text.contains("The sites do not agree"));
    assert!(shown.contains("site1, site3") && shown.contains("cheops diff web"), "{shown}");
    assert_eq!(browser.count("#show-answer td.other"), 2);
    browser.is_accessible();
    browser.script("document.querySelector('#show').scrollIntoView()", Vec::new());
    browser.shot("diff");
    assert!(browser.is_still_there());
}

fn a_problem_leads_to_its_repair(browser: &Browser) {
    let problems = browser.wait_for("#list", |text| text.contains("failed at `site2`"));
    assert!(problems.contains("Next: ") && problems.contains("the hook `ops`"), "{problems}");
    browser.is_accessible();
    browser.shot("problems");
    browser.choose(".find select", "site3");
    browser.wait_for("#list", |text| text.contains("1 problem,") && !text.contains("`ops`"));
    browser.wait_for("#command code", |text| text.contains("grep -w site3"));
    assert!(browser.is_still_there());
    // The way to the form is one click, and it is open.
    browser.click("#list a[href='/resources/web#repair']");
    browser.fill("#repair-command", "echo four > {id}");
    let name = "return document.getElementById('author').value";
    assert_eq!(browser.script(name, Vec::new()), "ada", "nobody has to say who they are twice");
    browser.fill("#repair-kind", "set");
    browser.stay();
    browser.click("#repair button[type=submit]");
    browser.wait_for("#repair-answer", |text| text.matches("OK").count() == 3);
    browser.wait_for("#seen .summary", |text| text.contains("settled"));
    assert!(browser.is_still_there());
}

fn it_is_deleted_by_who_means_it(field: &Field, browser: &Browser) {
    browser.click("#delete summary");
    browser.fill("#delete-command", "rm {id}");
    browser.click("#delete button[type=submit]");
    browser.wait_for("#delete-answer .problem", |text| text.contains("Nothing was deleted"));
    assert!(field.sites[1].work().join("web").exists());
    browser.click("#delete-sure");
    browser.click("#delete button[type=submit]");
    browser.wait_for("#delete-answer", |text| {
        text.contains("It is being deleted")
            && text.contains("cheops delete --command 'rm {id}' web")
    });
    browser.wait_for("#seen", |text| text.contains("web is gone"));
    browser.shot("deleted");
    eventually("it is gone everywhere", || {
        field.sites.iter().all(|site| !site.work().join("web").exists())
    });
    assert!(browser.is_still_there());
}

fn problems_come_and_go(field: &Field, browser: &Browser) {
    browser.wait_for("#list", |text| !text.contains("`web`"));
    let job = |command: &str| Submit { sites: Some("site1".to_owned()), ..submit(command, "set") };
    field.sites[0].exec("job", &job("echo no room; exit 3"));
    let listed = browser.wait_for("#list", |text| text.contains("`job`"));
    assert!(listed.contains("see why: cheops describe job"), "{listed}");
    // What can't be fetched again stays as it was, with the reason above it until it can.
    eventually("the reason is shown", || {
        browser.script("htmx.ajax('GET', '/part/problems?from=first', '#list')", Vec::new());
        browser.text("#refused .problem").is_some_and(|text| text.contains("Bad Request"))
    });
    assert!(browser.text("#list").unwrap().contains("`job`"));
    field.sites[0].exec("job", &job("true"));
    browser.wait_for("#list", |text| !text.contains("`job`"));
    browser.wait_for_count("#refused .problem", 0);
    assert!(browser.is_still_there());
}

fn a_hook_is_tried(field: &Field, browser: &Browser) {
    browser.wait_for("#hook-ops", |row| row.contains("fails") && row.contains("nobody is there"));
    browser.click("#hook-ops button");
    let tried =
        browser.wait_for("#hook-ops .answer", |text| text.contains("No sample was delivered"));
    assert!(tried.contains("nobody is there"), "{tried}");
    browser.is_accessible();
    browser.script("document.querySelector('#hooks').scrollIntoView()", Vec::new());
    browser.shot("hooks");
    fs::write(field.sites[0].work().join("there"), "").unwrap();
    browser.click("#hook-ops button");
    browser.wait_for("#hook-ops .answer", |text| {
        text.contains("A sample was delivered") && text.contains("cheops hooks test ops")
    });
    // What waited is told, and nobody has loaded the page again.
    browser.wait_for("#hook-ops", |row| row.contains("works"));
    assert!(browser.is_still_there());
}
