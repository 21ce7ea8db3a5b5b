//! Where resources live, and how what is asked for gets there: with real agents and a real network.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{fs, path::Path, process::Command, time::Duration};

use cheops_agent::api::model::{Fate, Resource, RunStatus, SiteState, Sites, State, Submit};
use serde_json::json;

use field::{Field, all_ok, eventually, read, submit, within};

const QUICK: &str = "[links]\nheartbeat = '100ms'\nsilence = '400ms'\nretry = '200ms'";

fn on(sites: &str, command: &str) -> Submit {
    Submit { sites: Some(sites.into()), ..submit(command, "set") }
}

/// Whether a text stands in any file below a directory.
fn mentions(directory: &Path, text: &str) -> bool {
    let found = Command::new("grep").args(["-rqaF", text]).arg(directory).status().unwrap();
    found.success()
}

#[test]
fn a_resource_on_two_of_three_sites_never_shows_up_on_the_third() {
    let field = Field::with(3, QUICK);
    let submitted = field.sites[0].exec("secret-plan", &on("site1 & site2", "echo x > {id}"));
    assert!(all_ok(&submitted, 2), "{submitted:?}");
    field.cut();
    field.sites[1]
        .exec("secret-plan", &Submit { wait: Some("0s".into()), ..submit("echo y > {id}", "set") });
    field.heal();
    field.agreed("secret-plan", &[0, 1]);
    assert!(field.sites[2].resource("secret-plan").is_none());
    assert!(mentions(&field.directory(0), "secret-plan"));
    assert!(!mentions(&field.directory(2), "secret-plan"), "it is on the third site's disk");
}

#[test]
fn an_operation_reaches_the_third_site_after_its_origin_has_gone_for_good() {
    let mut field = Field::with(3, QUICK);
    field.sites[0].exec("x", &on(&field.everywhere(), "echo begin > {id}"));
    field.net.cut(0, 2);
    eventually("site1 and site3 are apart", || field.sites[2].reachable() == ["site2"]);
    let request = Submit { wait: Some("0s".into()), ..submit("echo last words > {id}", "set") };
    field.sites[0].exec("x", &request);
    field.sites[1].wait_for("x", "site2 knows it", |x| x.summary.operation_count == 2);
    field.sites[0].kill();
    let (two, three) = (&field.sites[1], &field.sites[2]);
    three.wait_for("x", "site3 has run it", |x| {
        let last = x.operations.iter().find(|op| op.command.contains("last words"));
        let runs = last.map_or(&[][..], |op| &op.runs);
        runs.iter().any(|run| run.site == "site3" && run.status == RunStatus::Ok)
    });
    for site in [two, three] {
        assert_eq!(read(&site.work().join("x")).unwrap(), "last words\n");
    }
}

#[test]
fn a_cut_of_one_direction_only_is_a_cut_and_heals() {
    let field = Field::with(3, QUICK);
    field.sites[0].exec("x", &on(&field.everywhere(), "echo begin > {id}"));
    field.net.cut_one_way(0, 1);
    eventually("both notice", || {
        field.sites[0].reachable() == ["site3"] && field.sites[1].reachable() == ["site3"]
    });
    let request = Submit { wait: Some("0s".into()), ..submit("echo one > {id}", "set") };
    field.sites[0].exec("x", &request);
    // By way of site3 it arrives all the same.
    field.sites[1].wait_for("x", "site2 hears of it", |x| x.summary.operation_count == 2);
    field.heal();
    field.agreed("x", &[0, 1, 2]);
    assert_eq!(read(&field.sites[1].work().join("x")).unwrap(), "one\n");
}

#[test]
fn a_site_that_is_not_one_of_the_resources_passes_on_what_it_is_asked() {
    let field = Field::with(3, QUICK);
    let third = &field.sites[2];
    let created = third.exec("x", &on("site1 & site2", "echo made > {id}"));
    assert_eq!(
        created.runs.iter().map(|run| run.site.as_str()).collect::<Vec<_>>(),
        ["site1", "site2"]
    );
    assert!(all_ok(&created, 2), "{created:?}");
    let again = third.exec("x", &submit("echo more >> {id}", "add"));
    assert!(all_ok(&again, 2), "{again:?}");
    assert!(third.resource("x").is_none(), "it keeps nothing of it");
    let (status, text) = third.ask("/api/v1/resources/x").unwrap();
    assert_eq!(status, 200, "{text}");
    let shown = third.show("x", Some("cat {id}"));
    assert_eq!(shown.sites.keys().collect::<Vec<_>>(), ["site1", "site2"]);
    assert!(shown.agree && shown.sites["site1"].output == "made\nmore\n", "{shown:?}");
    let (status, text) =
        third.post("/api/v1/resources/y/operations", &submit("true", "set")).unwrap();
    assert_eq!(status, 404, "{text}");
}

#[test]
fn a_silent_site_is_said_to_be_silent_and_catches_up() {
    let mut field = Field::with(3, QUICK);
    field.sites[2].kill();
    let request = Submit { wait: Some("700ms".into()), ..on(&field.everywhere(), "echo x > {id}") };
    let submitted = field.sites[0].exec("x", &request);
    let statuses: Vec<RunStatus> = submitted.runs.iter().map(|run| run.status).collect();
    assert_eq!(statuses, [RunStatus::Ok, RunStatus::Ok, RunStatus::Timeout]);
    field.sites[2].start();
    field.sites[2].wait_until_ready();
    field.agreed("x", &[0, 1, 2]);
    assert_eq!(read(&field.sites[2].work().join("x")).unwrap(), "x\n");
}

#[test]
fn a_deleted_resource_is_forgotten_everywhere_and_can_be_made_again() {
    let field = Field::with(3, QUICK);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    one.exec("x", &on(&field.everywhere(), "echo first > {id}"));
    field.net.cut(0, 2);
    field.net.cut(1, 2);
    eventually("site3 is alone", || three.reachable().is_empty());
    three.exec("x", &Submit { wait: Some("0s".into()), ..submit("echo meanwhile > {id}", "set") });
    one.exec("x", &Submit { wait: Some("300ms".into()), ..submit("rm {id}", "delete") });
    assert!(one.resource("x").is_some(), "site3 has not run it");
    field.heal();
    eventually("all have forgotten", || {
        field.sites.iter().all(|site| site.resource("x").is_none())
    });
    for site in &field.sites {
        assert_eq!(read(&site.work().join("x")), None, "{}", site.name);
    }
    let again = two.exec("x", &on(&field.everywhere(), "echo second > {id}"));
    assert!(all_ok(&again, 3), "{again:?}");
    let resource = field.agreed("x", &[0, 1, 2]);
    assert_eq!((resource.summary.operation_count, resource.summary.state), (1, State::Settled));
}

#[test]
fn a_forced_operation_repairs_what_has_diverged() {
    let field = Field::with(3, QUICK);
    field.sites[0].exec("x", &on(&field.everywhere(), "echo begin > {id}"));
    fs::remove_file(field.sites[1].work().join("x")).unwrap();
    fs::create_dir(field.sites[1].work().join("x")).unwrap();
    field.sites[0].exec("x", &submit("echo more >> {id}", "add"));
    let resource = field.agreed("x", &[0, 1, 2]);
    assert_eq!(resource.summary.state, State::Diverged);
    let (_, problems) = field.sites[2].ask("/api/v1/problems").unwrap();
    assert!(problems.contains("diverged") && problems.contains("--force"), "{problems}");
    let request = Submit { force: true, ..submit("rm -rf {id}; echo repaired > {id}", "set") };
    let repaired = field.sites[2].exec("x", &request);
    assert!(all_ok(&repaired, 3), "{repaired:?}");
    let resource = field.agreed("x", &[0, 1, 2]);
    assert_eq!(resource.summary.state, State::Settled);
    let over = resource.operations.iter().filter(|op| op.fate == Fate::Over).count();
    assert_eq!(over, 2, "{:?}", resource.operations);
    for site in &field.sites {
        assert_eq!(read(&site.work().join("x")).unwrap(), "repaired\n");
    }
}

#[test]
fn what_show_prints_tells_that_a_matrix_lies() {
    let field = Field::with(3, QUICK);
    let request = Submit {
        config: Some(json!({ "Show": "cat {id}" })),
        ..on(&field.everywhere(), "echo begin > {id}")
    };
    field.sites[0].exec("x", &request);
    let shown = |resource: &Resource| resource.by_site.iter().all(|at| at.shown.is_some());
    field.sites[1].wait_for("x", "all sites have shown it", shown);
    assert_eq!(field.agreed("x", &[0, 1, 2]).summary.state, State::Settled);

    // No entry says that appends do not commute.
    field.cut();
    for (site, word) in field.sites.iter().zip(["left", "middle", "right"]) {
        let command = format!("echo {word} >> {{id}}");
        site.exec("x", &Submit { wait: Some("0s".into()), ..submit(&command, "add") });
    }
    field.heal();
    for site in &field.sites {
        let apart = |x: &Resource| shown(x) && x.summary.state == State::Diverged;
        site.wait_for("x", "it is found to be apart", apart);
        let x = site.resource("x").unwrap();
        assert!(x.operations.iter().flat_map(|op| &op.runs).all(|run| run.status == RunStatus::Ok));
    }
    let (_, problems) = field.sites[2].ask("/api/v1/problems").unwrap();
    assert!(problems.contains("prints different things"), "{problems}");

    let request = Submit { force: true, ..submit("echo end > {id}", "set") };
    field.sites[1].exec("x", &request);
    for site in &field.sites {
        let settled = |x: &Resource| shown(x) && x.summary.state == State::Settled;
        site.wait_for("x", "it is settled", settled);
    }
}

#[test]
fn a_file_travels_once_and_outside_the_log() {
    let field = Field::with(3, QUICK);
    let content = vec![b'x'; 40 << 20];
    let path = field.directory(0).join("image");
    fs::write(&path, &content).unwrap();
    for id in ["a", "b"] {
        let output = Command::new(env!("CARGO_BIN_EXE_cheops"))
            .args([
                "exec",
                "--agent",
                &field.sites[0].url,
                "--id",
                id,
                "--sites",
                &field.everywhere(),
            ])
            .args(["--command", "wc -c < {image} > {id}", "--file"])
            .arg(format!("image={}", path.display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for site in &field.sites {
        assert_eq!(read(&site.work().join("b")).unwrap().trim(), content.len().to_string());
    }
    let bytes = |n: usize| {
        let output = Command::new("du")
            .args(["-s", "--block-size=1"])
            .arg(field.directory(n).join("data"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().next().unwrap().parse::<usize>().unwrap()
    };
    for n in 0..3 {
        assert!(bytes(n) < content.len() * 3 / 2, "site{} keeps {} bytes", n + 1, bytes(n));
    }
}

#[test]
fn each_site_does_its_own_part_also_after_a_cut() {
    let field = Field::with(3, QUICK);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    let holds = |site: &field::agent::Agent| read(&site.work().join("pods"));
    let request = Submit {
        config: Some(json!({ "Show": "cat {id}; echo $CHEOPS_PART" })),
        ..on("site3 % site1 % site2", "echo {split 10} $CHEOPS_PART/$CHEOPS_PARTS > {id}")
    };
    let submitted = one.exec("pods", &request);
    assert!(all_ok(&submitted, 3), "{submitted:?}");
    assert_eq!(holds(three).unwrap(), "4 1/3\n");
    assert_eq!(holds(one).unwrap(), "3 2/3\n");
    assert_eq!(holds(two).unwrap(), "3 3/3\n");

    field.net.cut(0, 2);
    field.net.cut(1, 2);
    eventually("site3 is alone", || three.reachable().is_empty());
    let request = Submit { wait: Some("500ms".into()), ..submit("echo {split 20} > {id}", "set") };
    let submitted = two.exec("pods", &request);
    let statuses: Vec<RunStatus> = submitted.runs.iter().map(|run| run.status).collect();
    assert_eq!(statuses, [RunStatus::Ok, RunStatus::Ok, RunStatus::Timeout]);
    assert_eq!((holds(one).unwrap(), holds(two).unwrap()), ("7\n".into(), "6\n".into()));
    assert_eq!(holds(three).unwrap(), "4 1/3\n", "it has not heard of it");
    let shown = one.show("pods", None);
    assert_eq!(shown.sites["site3"].status, "TIMEOUT", "{shown:?}");

    field.heal();
    let pods = field.agreed("pods", &[0, 1, 2]);
    assert_eq!(holds(three).unwrap(), "7\n");
    assert_eq!(pods.summary.parts, [["site3"], ["site1"], ["site2"]]);
    let shown = one.show("pods", None);
    let gathered = shown.sites.values().map(|at| (at.part, at.output.as_str()));
    let expected = [(Some(2), "7\n2\n"), (Some(3), "6\n3\n"), (Some(1), "7\n1\n")];
    assert_eq!(gathered.collect::<Vec<_>>(), expected);
    assert!(shown.agree, "each part is on one site only: {shown:?}");
    // Parts differ by design.
    let shown = |pods: &Resource| pods.by_site.iter().all(|at| at.shown.is_some());
    two.wait_for("pods", "all sites have shown it", shown);
    assert_eq!(two.resource("pods").unwrap().summary.state, State::Settled);

    let wrong = [
        ("pods", submit("echo {split ten}", "set"), 400, "bad-split"),
        ("new", on("site1 % (site1 & site2)", "true"), 400, "one site"),
        ("new", on("none(site1 & site2)", "true"), 400, "always recorded"),
    ];
    for (id, request, status, expected) in wrong {
        let path = format!("/api/v1/resources/{id}/operations");
        let (answered, text) = one.post(&path, &request).unwrap();
        assert!(answered == status && text.contains(expected), "{answered} {text}");
    }
    one.exec("copies", &on("site1 & site2", "true"));
    let refused = one.try_exec("copies", &on("site1 % site2", "echo {split 10}")).unwrap_err();
    assert_eq!((refused.status, refused.kind.as_str()), (409, "not-in-parts"));
}

#[test]
fn links_can_be_paused_to_rehearse_a_cut() {
    let field = Field::with(3, QUICK);
    let [one, two, _] = &field.sites[..] else { panic!("three sites") };
    one.exec("x", &on(&field.everywhere(), "echo begin > {id}"));
    let (status, _) = one.post("/api/v1/sites/site1/pause", &()).unwrap();
    assert_eq!(status, 204);
    eventually("site1 is alone", || one.reachable().is_empty() && two.reachable() == ["site3"]);
    let sites: Sites = one.try_get("/api/v1/sites").unwrap();
    assert!(sites.sites.iter().all(|s| matches!(s.state, SiteState::Here | SiteState::Paused)));
    one.exec("x", &Submit { wait: Some("0s".into()), ..submit("echo one > {id}", "set") });
    two.exec("x", &Submit { wait: Some("0s".into()), ..submit("echo two > {id}", "set") });
    let (status, _) = one.post("/api/v1/sites/site1/resume", &()).unwrap();
    assert_eq!(status, 204);
    within(Duration::from_secs(20), "the links are back", || one.reachable().len() == 2);
    field.agreed("x", &[0, 1, 2]);

    let until = || {
        let sites: Sites = one.try_get("/api/v1/sites").unwrap();
        sites.sites.into_iter().map(|site| site.paused_until).collect::<Vec<_>>()
    };
    assert_eq!(one.post("/api/v1/sites/site2/pause?for=1s", &()).unwrap().0, 204);
    assert!(matches!(&until()[..], [None, Some(_), None]), "{:?}", until());
    within(Duration::from_secs(20), "it ends by itself", || one.reachable().len() == 2);
    assert_eq!(until(), [None, None, None]);
}
