//! `get`, `describe`, `log`, `show`, `diff` and `output`.

use cheops_agent::{
    api::model::{
        Fate, Operation, Receipt, Replica, Replicant, Replicants, Resource, Resources, RunStatus,
        Shown, ShownAt, Sites, State, Trouble, Troubles, Urgency,
    },
    run::left_out::{Kept, LeftOut},
};

use crate::{
    samples::{self, counter, summary},
    support::{Agent, Reply, Seen, json, problem},
};

fn shown(outputs: &[(&str, &str, &str)]) -> Shown {
    let at = |&(site, status, output): &(&str, &str, &str)| {
        (site.to_owned(), ShownAt { status: status.into(), output: output.into(), part: None })
    };
    let first = outputs[0].2;
    Shown {
        command: "cat {id}".into(),
        sites: outputs.iter().map(at).collect(),
        agree: outputs.iter().all(|&(_, status, output)| status == "OK" && output == first),
    }
}

const LONG: usize = 5_000;

/// One that has no copy at the last of its sites, and one with a long path.
fn replicants() -> Replicants {
    let replica = |site: &str, id: Option<&str>, failed: Option<&str>| Replica {
        site: site.into(),
        id: id.map(Into::into),
        part: None,
        created: failed.is_none(),
        failed: failed.map(Into::into),
        pending: 0,
    };
    let made = vec![
        replica("site1", Some("8c1d52f0-aaaa"), None),
        replica("site2", None, Some("answered 503")),
    ];
    let put = vec![replica("site1", None, None)];
    let replicant = |id: Option<&str>, path: String, resource: &str, state, replicas| Replicant {
        service: "image".into(),
        id: id.map(Into::into),
        path,
        resource: resource.into(),
        state,
        deleting: false,
        replicas,
    };
    Replicants {
        site: "site1".into(),
        replicants: vec![
            replicant(Some("4f0c"), "/v2/images/4f0c".into(), "image~4f0c", State::Diverged, made),
            replicant(None, "/".repeat(LONG), "image~a~0123456789ab", State::Settled, put),
        ],
        next: None,
    }
}

fn agent() -> Agent {
    Agent::start(answer)
}

fn answer(seen: &Seen) -> Reply {
    let path = seen.path.split('?').next().unwrap();
    match path {
        "/api/v1/sites" => json(&samples::sites()),
        "/api/v1/resources" if seen.path.contains("after=counter") => json(&Resources {
            site: "site1".into(),
            resources: vec![summary("web", State::Diverged)],
            next: None,
        }),
        "/api/v1/resources" => json(&Resources {
            site: "site1".into(),
            resources: vec![summary("counter", State::Settled)],
            next: Some("counter".into()),
        }),
        "/api/v1/replicants" => json(&replicants()),
        "/api/v1/resources/counter" => json(&counter()),
        "/api/v1/resources/counter/show" => {
            json(&shown(&[("site1", "OK", "29\n"), ("site2", "OK", "29\n")]))
        }
        "/api/v1/problems" => json(&Troubles { problems: Vec::new(), not_asked: Vec::new() }),
        _ => problem(
            404,
            "not found",
            &format!("there is no {path}"),
            "look with `cheops get resources`",
        ),
    }
}

#[test]
fn replicants_are_shortened_for_people_and_whole_for_programs() {
    let agent = agent();
    let told = agent.cheops(&["get", "replicants"]).fine();
    let path = format!("{}…", "/".repeat(60));
    let rows: Vec<Vec<&str>> = told
        .lines()
        .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect())
        .collect();
    let row = |line: usize| rows[line].iter().map(|cell| cell.trim()).collect::<Vec<_>>().join("|");
    assert_eq!(row(1), "image|4f0c|diverged|0|site1 8c1d52f0…, site2 (failed: answered 503)");
    assert_eq!(row(2), format!("image|{path}|settled|0|site1"));
    let json = agent.cheops(&["get", "replicants", "-o", "json"]).fine();
    assert!(json.contains(&"/".repeat(LONG)));
    let names = agent.cheops(&["get", "replicants", "-o", "name"]).fine();
    assert_eq!(names, "replicant/image~4f0c\nreplicant/image~a~0123456789ab\n");
}

#[test]
fn what_name_prints_is_taken_by_other_verbs() {
    let agent = agent();
    for name in ["counter", "resource/counter", "replicant/counter"] {
        let told = agent.cheops(&["describe", name]).fine();
        assert!(told.starts_with("Resource     counter\n"), "{told}");
    }
}

#[test]
fn lists_for_people() {
    let agent = agent();
    for (lines, expected) in [
        (
            &["get sites", "get site", "site list", "get s -o text"][..],
            "\
NAME    STATE         RTT     SEEN     LAG    RESOURCES   UNANSWERED
site1   here          -       -        -      3           1
site2   reachable     8.2ms   5m ago   1.5s   3           1
DC 3    unreachable   -       5m ago   1.5s   3           1
",
        ),
        (
            &["get sites site2 -o wide"],
            "\
NAME    STATE       RTT     SEEN     LAG    RESOURCES   UNANSWERED   ADDRESS                  QUEUE      ERROR
site2   reachable   8.2ms   5m ago   1.5s   3           1            site2.example.org:8078   2 (4KiB)   -
",
        ),
        (
            &["get resources", "get r", "get res *"],
            "\
ID        STATE      OPERATIONS   BLOCK   UPDATED   SITES
counter   settled    3            2       3m ago    site1, site2
web       diverged   3            2       3m ago    site1, site2
",
        ),
        (
            &["get resources counter"],
            "\
ID        STATE     OPERATIONS   BLOCK   UPDATED   SITES
counter   settled   3            2       3m ago    site1, site2
",
        ),
        (
            &["get operations counter", "get ops counter"],
            "\
OPERATION   KIND   FATE     RUNS              WHEN     AUTHOR   COMMAND
site1:1     set    kept     2 OK              5m ago   ada      echo 10 > {id}
site2:3     inc    fallen   1 OK, 1 DROPPED   3m ago   ada      inc 13
site1:4     set    kept     2 OK              3m ago   ada      echo 29 > {id}
",
        ),
        (&["get problems", "get p"], "No problems.\n"),
        (&["get r -o name"], "resource/counter\nresource/web\n"),
        (&["get ops counter -o name"], "operation/site1:1\noperation/site2:3\noperation/site1:4\n"),
        (&["get sites -o name"], "site/site1\nsite/site2\nsite/DC 3\n"),
    ] {
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(agent.cheops(&words).fine(), expected, "{line}");
        }
    }
}

#[test]
fn a_long_id_is_shortened_for_people_alone() {
    let id = format!("{}-blue", "a".repeat(60));
    let long = id.clone();
    let agent = Agent::start(move |_| {
        let resources = vec![summary(&long, State::Settled)];
        json(&Resources { site: "site1".into(), resources, next: None })
    });
    let said = agent.cheops(&["get", "resources"]).fine();
    assert!(
        said.contains(&format!("\n{}…{}-blue   settled", "a".repeat(24), "a".repeat(10))),
        "{said}"
    );
    for form in ["wide", "json", "yaml", "name"] {
        let said = agent.cheops(&["get", "resources", "-o", form]).fine();
        assert!(said.contains(&id), "{form}: {said}");
    }
}

#[test]
fn lists_for_programs() {
    let agent = agent();
    let sites: Sites =
        serde_json::from_str(&agent.cheops(&["get", "sites", "-o", "json"]).fine()).unwrap();
    assert_eq!(sites.here, "site1");
    let text = agent.cheops(&["get", "resources", "-o", "json"]).fine();
    let resources: Resources = serde_json::from_str(&text).unwrap();
    assert_eq!((resources.resources.len(), resources.next), (2, None));
    let text = agent.cheops(&["get", "operations", "counter", "-o", "json"]).fine();
    let operations: Vec<Operation> = serde_json::from_str(&text).unwrap();
    assert_eq!(operations[1].receipt.as_ref().unwrap().why, "set over inc (matrix row 2)");
    let text = agent.cheops(&["describe", "counter", "-o", "json"]).fine();
    assert_eq!(serde_json::from_str::<Resource>(&text).unwrap().summary.id, "counter");
    let text = agent.cheops(&["log", "counter", "-o", "json"]).fine();
    assert_eq!(serde_json::from_str::<Vec<Operation>>(&text).unwrap().len(), 3);
    let text = agent.cheops(&["show", "counter", "-o", "json"]).fine();
    assert!(serde_json::from_str::<Shown>(&text).unwrap().agree);
    let text = agent.cheops(&["get", "problems", "-o", "json"]).fine();
    assert!(serde_json::from_str::<Troubles>(&text).unwrap().problems.is_empty());
    let text = agent.cheops(&["get", "resources", "-o", "yaml"]).fine();
    assert!(text.contains("id: counter\n") && text.contains("state: settled\n"), "{text}");
}

#[test]
fn resources_are_asked_for_as_the_options_say() {
    for (line, expected) in [
        (&["get", "r", "web*"][..], "GET /api/v1/resources?limit=1000&prefix=web"),
        (
            &["get", "r", "--state", "needs-decision"],
            "GET /api/v1/resources?limit=1000&state=needs-decision",
        ),
        (&["get", "r", "--limit", "1"], "GET /api/v1/resources?limit=1"),
        (&["get", "ops", "counter", "--limit", "9"], "GET /api/v1/resources/counter?limit=9"),
        (&["describe", "counter"], "GET /api/v1/resources/counter?limit=1000"),
        (
            &["log", "counter", "--before", "site1:4"],
            "GET /api/v1/resources/counter?limit=50&before=site1%3A4",
        ),
    ] {
        let agent = agent();
        assert_eq!(agent.cheops(line).code, Some(0), "{line:?}");
        assert_eq!(agent.asked()[0], expected, "{line:?}");
    }
    let said = agent().cheops(&["get", "r", "--limit", "1"]).fine();
    assert!(said.ends_with("There are more: take a larger --limit.\n"), "{said}");
}

#[test]
fn problems_are_an_exit_status() {
    let trouble = Trouble {
        urgency: Urgency::High,
        site: "site2".into(),
        resource: Some("web".into()),
        what: "needs-decision".into(),
        text: "what was run can't be undone".into(),
        next: "cheops exec --force".into(),
    };
    let agent = Agent::start(move |_| {
        json(&Troubles { problems: vec![trouble.clone()], not_asked: vec!["site3".into()] })
    });
    let said = agent.cheops(&["get", "problems"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(
        said.out,
        "\
URGENCY   WHAT             SITE    RESOURCE   PROBLEM                        NEXT
high      needs-decision   site2   web        what was run can't be undone   cheops exec --force
Not asked, since they can't be reached: site3.
"
    );
    let agent =
        Agent::start(|_| json(&Troubles { problems: Vec::new(), not_asked: vec!["site3".into()] }));
    assert_eq!(agent.cheops(&["get", "problems"]).code, Some(3));
}

#[test]
fn a_problem_that_several_sites_tell_of_is_one() {
    let trouble = |site: &str, resource: Option<&str>, text: &str| Trouble {
        urgency: Urgency::High,
        site: site.into(),
        resource: resource.map(str::to_owned),
        what: "sort".into(),
        text: text.into(),
        next: "look".into(),
    };
    let told = Troubles {
        problems: vec![
            trouble("site1", None, "site3 is gone"),
            trouble("site2", None, "site3 is gone"),
            trouble("site1", Some("web"), "the sites differ"),
            trouble("DC 2", Some("web"), "stuck at DC 2"),
            trouble("site2", Some("web"), "the sites differ"),
        ],
        not_asked: Vec::new(),
    };
    let answer = told.clone();
    let agent = Agent::start(move |_| json(&answer));
    let said = agent.cheops(&["get", "problems"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(
        said.out,
        "\
URGENCY   WHAT   SITE           RESOURCE   PROBLEM            NEXT
high      sort   site1, site2   -          site3 is gone      look
high      sort   site1, site2   web        the sites differ   look
high      sort   DC 2           web        stuck at DC 2      look
"
    );
    let said = agent.cheops(&["get", "problems", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Troubles>(&said.out).unwrap(), told);
    let said = agent.cheops(&["get", "problems", "-o", "name"]);
    assert_eq!(said.out, "site/site1\nsite/site2\nresource/web\n");
}

#[test]
fn a_resource_is_described() {
    let said = agent().cheops(&["describe", "counter"]).fine();
    let updated = counter().summary.updated.unwrap();
    let minute = &updated[..14];
    let (before, after) = said.split_once("Updated      3m ago (").unwrap();
    assert!(after.starts_with(minute), "{after}");
    assert_eq!(
        before,
        "\
Resource     counter
State        settled
Sites        site1, site2
Operations   3, 2 in the block
"
    );
    assert_eq!(
        after.split_once('\n').unwrap().1,
        r#"Seen by      site1

Sites
  SITE    OK   KO   UNKNOWN   WAITING   SHOWS
  site1   2    0    0         0         5f5f5f5f
  site2   2    0    0         0         5f5f5f5f

Block (2 of 3 operations)
  #    OPERATION   KIND   RUNS   WHEN     AUTHOR   COMMAND
  1.   site1:1     set    2 OK   5m ago   ada      echo 10 > {id}
  2.   site1:4     set    2 OK   3m ago   ada      echo 29 > {id}

Dropped
  OPERATION   KIND   FATE     BY        WHY                           AUTHOR   COMMAND
  site2:3     inc    fallen   site1:4   set over inc (matrix row 2)   ada      inc 13

Configuration
  ResolutionMatrix {"After":"set","Before":"inc","Result":"take-both-reverse-order"}
  Show "cat {id}"
"#
    );
}

/// A resource on `site2 % site1`.
fn in_parts() -> Resource {
    let mut resource = counter();
    resource.summary.parts = ["site2", "site1"].map(|site| vec![site.to_owned()]).to_vec();
    for (at, (part, print)) in resource.by_site.iter_mut().zip([(2, "5f"), (1, "6a")]) {
        (at.part, at.shown) = (Some(part), Some(print.repeat(16)));
    }
    resource
}

#[test]
fn parts_are_named() {
    let agent = Agent::start(|seen| match seen.path.split('?').next().unwrap() {
        "/api/v1/resources" => json(&Resources {
            site: "site1".into(),
            resources: vec![in_parts().summary],
            next: None,
        }),
        _ => json(&in_parts()),
    });
    let said = agent.cheops(&["get", "resources"]).fine();
    assert!(said.ends_with("site2 % site1\n"), "{said}");
    let said = agent.cheops(&["describe", "counter"]).fine();
    let sites = "\
  SITE    PART   OK   KO   UNKNOWN   WAITING   SHOWS
  site1   2      2    0    0         0         5f5f5f5f
  site2   1      2    0    0         0         6a6a6a6a
";
    assert!(said.contains("Sites        site2 % site1\n") && said.contains(sites), "{said}");
}

#[test]
fn parts_are_gathered_and_differ_by_design() {
    // What the sites print, and whether those of one part agree.
    let sample = |outputs: [(&str, usize, &str); 3]| {
        let at = |(site, part, output): (&str, usize, &str)| {
            let at = ShownAt { status: "OK".into(), output: output.into(), part: Some(part) };
            (site.to_owned(), at)
        };
        let agree = outputs[1].2 == outputs[2].2;
        Shown { command: "x".into(), sites: outputs.map(at).into(), agree }
    };
    let show = |shown: &Shown, verb: &str| {
        let shown = shown.clone();
        let agent = Agent::start(move |seen| {
            if seen.path.ends_with("/show") { json(&shown) } else { json(&in_parts()) }
        });
        agent.cheops(&[verb, "counter"])
    };
    let agreed = sample([("a", 2, "4\n"), ("b", 1, "3\n"), ("c", 1, "3\n")]);
    let expected = "\
SITE   PART   STATUS   OUTPUT
b      1      OK       3
c      1      OK       3
a      2      OK       4
";
    assert_eq!(show(&agreed, "show").fine(), expected);
    let long = sample([("a", 2, "4\n5\n"), ("b", 1, "3\n"), ("c", 1, "3\n")]);
    let said = show(&long, "show").fine();
    assert!(said.ends_with("a   part 2   OK\n    4\n    5\n"), "{said}");
    let apart = sample([("a", 2, "4\n"), ("b", 1, "3\n"), ("c", 1, "8\n")]);
    let said = show(&apart, "show");
    assert!(said.code == Some(1) && said.out.contains("The sites do not agree"), "{said:?}");
    let said = show(&apart, "diff");
    assert!(said.code == Some(1) && said.out.contains("--- b\n+++ c\n"), "{said:?}");
    assert!(!said.out.contains("+++ a"), "{said:?}");
    let said = show(&agreed, "diff");
    assert!(said.code == Some(0), "{said:?}");
}

#[test]
fn what_sites_run_while_others_wait_is_described() {
    let agent = Agent::start(|seen| {
        let mut resource = counter();
        resource.by_site[1].waiting = 1;
        if seen.path.contains("at=site2") {
            resource.seen_by = "site2".into();
            resource.operations[1].runs[1] = samples::run("site2", RunStatus::Running, "");
        }
        json(&resource)
    });
    let said = agent.cheops(&["describe", "counter"]).fine();
    let expected = "\
  SITE    OK   KO   UNKNOWN   WAITING   SHOWS      RUNNING
  site1   2    0    0         0         5f5f5f5f
  site2   2    0    0         1         5f5f5f5f   site2:3
  site2 still runs site2:3, received 3m ago: inc 13; what comes after it waits there until it ends, \
                    at the site's time limit at the latest (5m if none is set)
";
    assert!(said.contains(expected), "{said}");
    agent.cheops(&["describe", "counter", "-o", "json"]).fine();
    assert_eq!(agent.last().line(), "GET /api/v1/resources/counter?limit=1000");
}

#[test]
fn a_history_is_drawn() {
    assert_eq!(
        agent().cheops(&["log", "counter"]).fine(),
        "\
History (● in the block, ○ dropped, × void)
  ●      site1:1   set   5m ago   ada   echo 10 > {id}
  ├──╮
  │  ○   site2:3   inc   3m ago   ada   inc 13           fallen by site1:4: set over inc (matrix row 2)
  ●      site1:4   set   3m ago   ada   echo 29 > {id}
"
    );
}

#[test]
fn what_is_void_is_called_so_once() {
    let agent = Agent::start(|_| {
        let mut resource = counter();
        let inc = &mut resource.operations[1];
        inc.fate = Fate::Void;
        inc.receipt = Some(Receipt { by: None, why: "void: failed at site2".into() });
        json(&resource)
    });
    let said = agent.cheops(&["log", "counter"]).fine();
    assert!(said.contains("   inc 13           void: failed at site2\n"), "{said}");
    let said = agent.cheops(&["describe", "counter"]).fine();
    assert!(said.contains("   void   -    failed at site2   "), "{said}");
}

#[test]
fn what_sites_show() {
    for (outputs, code, expected) in [
        (
            &[("site1", "OK", "29\n"), ("site2", "OK", "29\n")][..],
            0,
            "SITE    STATUS   OUTPUT\nsite1   OK       29\nsite2   OK       29\n",
        ),
        (
            &[("site1", "OK", "29\n"), ("site2", "OK", "30\n")],
            1,
            "SITE    STATUS   OUTPUT\nsite1   OK       29\nsite2   OK       30\n\
             The sites do not agree; see how with: cheops diff counter\n",
        ),
        (
            &[("site1", "OK", "29\n"), ("site2", "TIMEOUT", "")],
            3,
            "SITE    STATUS    OUTPUT\nsite1   OK        29\nsite2   TIMEOUT\n\
             site2 did not answer.\n",
        ),
        (
            &[("site1", "OK", "a\n\u{1b}b\n"), ("site2", "KO", "no such file\nexit code 2")],
            1,
            "site1   OK\n    a\n    \u{fffd}b\nsite2   KO (exit 2)\n    no such file\n\
             site2 failed.\n",
        ),
        (
            &[("site1", "OK", "29\n"), ("site2", "KO", "exit code 2"), ("site3", "OK", "29\n")],
            1,
            "SITE    STATUS        OUTPUT\nsite1   OK            29\nsite2   KO (exit 2)\n\
             site3   OK            29\nsite2 failed.\nsite1 and site3 agree.\n",
        ),
        (
            &[("site1", "OK", "29"), ("site2", "KO", "exit code 2"), ("site3", "OK", "30")],
            1,
            "SITE    STATUS        OUTPUT\nsite1   OK            29\nsite2   KO (exit 2)\n\
             site3   OK            30\nsite2 failed.\n\
             The sites that answered do not agree; see how with: cheops diff counter\n",
        ),
        (
            &[("site1", "OK", &LeftOut { more: 4096, kept: Kept::NoMore }.to_string())],
            0,
            "SITE    STATUS   OUTPUT\nsite1   OK       … 4KiB more, not kept\n",
        ),
    ] {
        let answer = shown(outputs);
        let agent = Agent::start(move |_| json(&answer));
        let said = agent.cheops(&["show", "counter"]);
        assert_eq!((said.out.as_str(), said.code), (expected, Some(code)));
        assert_eq!(agent.last().line(), "POST /api/v1/resources/counter/show");
        assert_eq!(agent.last().json(), serde_json::json!({}));
    }
    let agent = agent();
    for line in [
        &["show", "counter", "--command", "cat {id}", "--sites", "site1"][..],
        &["show", "--id", "counter", "--command", "cat {id}", "--sites", "site1"],
    ] {
        agent.cheops(line).fine();
        assert_eq!(
            agent.last().json(),
            serde_json::json!({"command": "cat {id}", "sites": "site1"})
        );
    }
    assert_eq!(agent.cheops(&["show"]).code, Some(2));
    assert_eq!(agent.cheops(&["show", "a", "--id", "b"]).code, Some(2));
}

/// An agent whose sites know different things: what `site2` says can be changed.
fn two_sites(change: impl Fn(&mut Resource) + Send + Sync + 'static, shows: Shown) -> Agent {
    Agent::start(move |seen| {
        let mut resource = counter();
        if seen.path.contains("at=site2") {
            resource.seen_by = "site2".into();
            change(&mut resource);
        }
        if seen.path.ends_with("/show") { json(&shows) } else { json(&resource) }
    })
}

#[test]
fn sites_that_agree_do_not_differ() {
    let shows = shown(&[("site1", "OK", "29\n"), ("site2", "OK", "29\n")]);
    let agent = two_sites(|_| {}, shows);
    assert_eq!(
        agent.cheops(&["diff", "counter"]).fine(),
        "site1 and site2 know and ran the same and show the same.\n"
    );
    let mut asked = agent.asked();
    asked.sort();
    assert_eq!(
        asked,
        [
            "GET /api/v1/resources/counter?limit=1",
            "GET /api/v1/resources/counter?limit=10000&local=true&at=site1",
            "GET /api/v1/resources/counter?limit=10000&local=true&at=site2",
            "POST /api/v1/resources/counter/show",
        ]
    );
}

#[test]
fn differences_are_shown() {
    let shows = shown(&[
        ("site1", "OK", "a\nb\nc\n"),
        ("site2", "OK", "a\nx\nc\n"),
        ("site3", "OK", "a\nb\nc\n"),
    ]);
    let change = |resource: &mut Resource| {
        resource.operations.remove(1);
        resource.summary.operation_count = 2;
        resource.version.remove("site2");
        resource.operations[1].runs[1].status = RunStatus::Ko;
        resource.operations[1].runs[1].output = Some("no\nexit code 7".into());
    };
    let agent = two_sites(change, shows);
    let said = agent.cheops(&["diff", "counter"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(
        said.out,
        "\
Operations that have not arrived
  site2   site2:3

Runs that differ
  OPERATION   KIND   site1   site2         COMMAND
  site1:4     set    OK      KO (exit 7)   echo 29 > {id}

What `cat {id}` prints
--- site1
+++ site2
@@ -1,3 +1,3 @@
 a
-b
+x
 c
"
    );
    let said = agent.cheops(&["diff", "counter", "-o", "json"]);
    let value: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(value["missing"], serde_json::json!({"site2": ["site2:3"]}));
    assert_eq!(value["runs"][0]["status"]["site2"], "KO");
    assert_eq!(said.code, Some(1));
}

#[test]
fn sites_that_know_the_same_and_have_other_blocks_are_told() {
    let shows = shown(&[("site1", "OK", ""), ("site2", "OK", "")]);
    let agent = two_sites(|resource| resource.block_ids.reverse(), shows);
    let said = agent.cheops(&["diff", "counter"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(said.out, "Sites that know the same and have different blocks\n  site1\n  site2\n");
}

#[test]
fn a_site_that_can_not_be_asked_is_named_and_lacks_nothing() {
    for (status, title) in [
        (504, "site2 does not answer"),
        (502, "unreachable"),
        (503, "stopping"),
        (503, "damaged"),
        (500, "broken"),
        (404, "unknown site"),
    ] {
        let agent = Agent::start(move |seen| match seen.path.as_str() {
            path if path.contains("at=site2") => problem(status, title, "no link", ""),
            path if path.ends_with("/show") => {
                json(&shown(&[("site1", "OK", "1"), ("site2", "TIMEOUT", "")]))
            }
            _ => json(&counter()),
        });
        let said = agent.cheops(&["diff", "counter"]);
        assert_eq!(said.code, Some(3), "{title}: {}", said.out);
        assert!(said.out.ends_with("Only site1 could be asked: there is nothing to compare.\n"));
        let expected = format!("Not asked\n  site2   {title}: no link\n");
        assert!(said.out.contains(&expected), "{}", said.out);
        assert!(!said.out.contains("not arrived"), "{}", said.out);
    }
}

#[test]
fn a_site_that_has_not_heard_of_a_resource_lacks_all_of_it() {
    let agent = Agent::start(|seen| match seen.path.as_str() {
        path if path.contains("at=site2") => problem(404, "unknown resource", "", ""),
        path if path.ends_with("/show") => {
            json(&shown(&[("site1", "OK", "1"), ("site2", "OK", "1")]))
        }
        _ => json(&counter()),
    });
    let said = agent.cheops(&["diff", "counter"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(said.out, "Operations that have not arrived\n  site2   site1:1, site2:3, site1:4\n");
}

#[test]
fn all_that_was_printed_can_be_fetched() {
    let agent = Agent::start(|_| Reply::Bytes(vec![0, 159, 10, 27]));
    let output = agent.command(&["output", "web", "site1:7", "--site", "DC 2"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), vec![0, 159, 10, 27]));
    assert_eq!(
        agent.asked()[0],
        "GET /api/v1/resources/web/operations/site1%3A7/output?site=DC%202"
    );
    assert_eq!(agent.cheops(&["output", "web", "7"]).code, Some(2));
}

#[test]
fn an_output_says_whether_it_is_kept_whole() {
    let part = Kept::First { kept: 64 << 20, dropped: (2 << 30) - (64 << 20) };
    for (kept, expected) in [
        (part, "cut: 64MiB of 2GiB that were printed at site2 are kept\n"),
        (Kept::NoMore, "cut: 3B of 2GiB that were printed at site2 are kept\n"),
        (Kept::All, ""),
    ] {
        let left_out = LeftOut { more: (2 << 30) - 3, kept };
        let agent = Agent::start(move |seen| {
            if seen.path.contains("/output") {
                return Reply::Bytes(b"ab\n".to_vec());
            }
            let mut operation = samples::operation("site1:7", "set", "yes", &[]);
            operation.runs[1].output = Some(format!("ab\n{left_out}"));
            json(&operation)
        });
        let said = agent.cheops(&["output", "web", "site1:7", "--site", "site2"]);
        assert_eq!((said.code, said.out.as_str()), (Some(0), "ab\n"));
        assert_eq!(said.err, expected);
        agent.cheops(&["output", "web", "site1:7"]).fine();
    }
}

#[test]
fn runs_that_failed_say_how() {
    let agent = Agent::start(|_| {
        let mut resource = counter();
        let runs = &mut resource.operations[0].runs;
        for (run, output) in runs.iter_mut().zip(["no\nexit code 7", "ended by signal 9"]) {
            (run.status, run.output) = (RunStatus::Ko, Some(output.into()));
        }
        json(&resource)
    });
    let said = agent.cheops(&["get", "operations", "counter"]).fine();
    assert!(said.contains("   2 KO (exit 7, signal 9)   "), "{said}");
    let said = agent.cheops(&["describe", "counter"]).fine();
    assert!(said.contains("   2 KO (exit 7, signal 9)   "), "{said}");
}
