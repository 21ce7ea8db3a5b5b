//! Sites join by tokens, are removed, and get new keys, while lines between them are cut and heal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "../../cheops-agent/tests/support/ca.rs"]
mod ca;
#[path = "trust/certificates.rs"]
mod certificates;
mod field;

use std::{
    process::Output,
    time::{Duration, Instant},
};

use cheops_agent::api::model::{
    Federation, Held, HeldOperation, MemberStanding, RunStatus, Site, State, Submit, Troubles,
};
use field::{Field, agent::Agent, all_ok, eventually, http::Client, read, submit};
use serde_json::Value;

const QUICK: &str = "[links]\nheartbeat = '100ms'\nsilence = '400ms'\nretry = '200ms'";

fn on(sites: &str, command: &str) -> Submit {
    Submit { sites: Some(sites.into()), ..submit(command, "set") }
}

/// What the program says at a site.
fn cheops(site: &Agent, arguments: &[&str]) -> Output {
    let mut command = site.command(env!("CARGO_BIN_EXE_cheops"));
    command.env("CHEOPS_AGENT", &site.url).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(text).unwrap()
}

fn well(site: &Agent, arguments: &[&str]) -> String {
    let output = cheops(site, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What the program refuses at a site, and why.
fn refused(site: &Agent, arguments: &[&str]) -> String {
    let output = cheops(site, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
    // The program begins sentences with capital letters.
    said(&output).to_lowercase()
}

fn token(site: &Agent) -> String {
    let made: Value =
        serde_json::from_str(&well(site, &["token", "create", "-o", "json"])).unwrap();
    made["token"].as_str().unwrap().to_owned()
}

fn member_names(site: &Agent) -> Vec<String> {
    let federation: Federation = site.try_get("/api/v1/federation").unwrap();
    let members = federation.members.into_iter();
    let here = members.filter(|member| member.standing == MemberStanding::Belongs);
    here.map(|member| member.site).collect()
}

fn seen(site: &Agent, other: &str) -> Option<Site> {
    let sites: cheops_agent::api::model::Sites = site.try_get("/api/v1/sites")?;
    sites.sites.into_iter().find(|site| site.name == other)
}

/// A federation of sites that have joined, each with a token of the one before it.
fn federation(count: usize) -> Field {
    let field = Field::of_strangers(count, QUICK);
    for pair in field.sites.windows(2) {
        well(&pair[1], &["join", &token(&pair[0])]);
    }
    field.wait_until_linked();
    field
}

#[test]
fn sites_that_join_one_after_the_other_work_together_and_find_each_other_again() {
    let mut field = federation(3);
    let one = &field.sites[0];
    assert!(all_ok(&one.exec("x", &on(&field.everywhere(), "echo begin > {id}")), 3));
    field.agreed("x", &[0, 1, 2]);
    assert_eq!(member_names(&field.sites[2]), ["site1", "site2", "site3"]);
    for site in &mut field.sites {
        site.kill();
    }
    for site in &mut field.sites {
        site.start();
    }
    field.sites.iter().for_each(Agent::wait_until_ready);
    field.wait_until_linked();
    assert!(all_ok(&field.sites[2].exec("x", &submit("echo more >> {id}", "add")), 3));
    field.agreed("x", &[0, 1, 2]);
}

#[test]
fn what_the_application_asks_reaches_sites_that_have_joined_as_far_as_they_let_it() {
    // Any server will do for an instance, and there is one at each site.
    let settings = format!(
        "{QUICK}\n[[service]]\nname = 'any'\nlisten = 'HOST:9000'\naddress = 'HOST:8079'\n\
         [[policy.rule]]\nname = 'only read'\ndecision = 'deny'\nservices = ['any']\nmethods = ['POST']"
    );
    let field = Field::of_strangers(2, &settings);
    let [one, two] = &field.sites[..] else { panic!("two sites") };
    well(two, &["join", &token(one)]);
    field.wait_until_linked();
    let (client, here) = (Client::new(), format!("http://{}:9000", field.net.ip(0)));
    let ask = |method: &str, path: &str, scope: &str| {
        client.call(method, &format!("{here}{path}")).scope(scope).send()
    };
    eventually("the mesh knows of it", || ask("GET", "/readyz", "any: site2").site() == "site2");
    ask("POST", "/api/v1/sites/site1/ping", "any: site2").problem(403, "denied");
    // What clients here ask of the instance here is between the two.
    assert_eq!(ask("POST", "/api/v1/sites/site2/ping", "any: site1").expect(200).site(), "site1");
}

#[test]
fn a_token_that_lets_nobody_in_says_why() {
    let field = Field::of_strangers(4, QUICK);
    let [one, two, three, four] = &field.sites[..] else { panic!("four sites") };
    let used = token(one);
    well(two, &["join", &used]);
    assert!(
        refused(three, &["join", &used]).contains("was used already, by the site with the key")
    );

    let short: Value =
        serde_json::from_str(&well(one, &["token", "create", "--ttl", "1s", "-o", "json"]))
            .unwrap();
    let made = Instant::now();
    eventually("its time is over", || made.elapsed() > Duration::from_secs(1));
    let why = refused(three, &["join", short["token"].as_str().unwrap()]);
    assert!(why.contains("the token has expired"), "{why}");

    // Of another federation, and brought to the wrong door by its holder: the key in it is that of `four`.
    let foreign = token(four);
    assert!(refused(two, &["join", &foreign]).contains("belongs to the federation"));
    let own = refused(four, &["join", &foreign]);
    assert!(own.contains("`site4` has made this token itself: it lets another site join"), "{own}");
    let long = refused(one, &["token", "create", "--ttl", "8d"]);
    assert!(long.contains("for a week at most"), "{long}");
    let damaged = &used[..used.len() - 3];
    assert!(refused(three, &["join", damaged]).contains("it is damaged: copy it again"));
    assert!(refused(three, &["join", "hello"]).contains("is it a token"));
    assert_eq!(member_names(three), Vec::<String>::new());
    // What was refused has spent nothing.
    well(three, &["join", &token(one)]);
    eventually("it belongs", || member_names(two) == ["site1", "site2", "site3"]);
}

#[test]
fn a_token_is_good_only_at_the_site_that_has_made_it() {
    let mut field = Field::of_strangers(3, QUICK);
    let made = token(&field.sites[0]);
    // The site forgets: a backup from before the token was made.
    field.sites[0].kill();
    std::fs::remove_file(field.directory(0).join("data/tokens")).unwrap();
    field.sites[0].start();
    field.sites[0].wait_until_ready();
    assert!(refused(&field.sites[1], &["join", &made]).contains("the token is none of this site"));
}

#[test]
fn two_sites_of_one_name_do_not_both_belong() {
    let field = federation(2);
    let other = tempfile::tempdir().unwrap();
    let config = "site = 'site2'\n[listen]\napi = '127.0.0.1:7079'\npeers = '0.0.0.0:7078'\n";
    std::fs::write(other.path().join("site.toml"), config).unwrap();
    let mut twin = Agent::new("site2", field.net.namespace(0), "127.0.0.1", other.path());
    twin.url = "http://127.0.0.1:7079".into();
    twin.start();
    eventually("the twin answers", || cheops(&twin, &["site", "list"]).status.success());
    let why = refused(&twin, &["join", &token(&field.sites[0])]);
    assert!(why.contains("another site of the federation is called `site2`"), "{why}");
}

#[test]
fn a_dead_site_is_removed_and_stays_so() {
    let mut field = federation(3);
    let everywhere = field.everywhere();
    assert!(all_ok(&field.sites[0].exec("x", &on(&everywhere, "echo begin > {id}")), 3));
    field.agreed("x", &[0, 1, 2]);
    field.sites[2].kill();
    let [one, two, _] = &field.sites[..] else { panic!("three sites") };
    well(one, &["site", "remove", "site3"]);
    eventually("both have heard of it", || {
        [one, two].iter().all(|site| member_names(site) == ["site1", "site2"])
    });
    assert!(refused(one, &["site", "remove", "site3"]).contains("no site `site3` belongs"));
    assert!(refused(one, &["site", "remove", "site1"]).contains("remove it at another site"));

    // It comes back from the dead, knows nothing of it, and asks for something.
    field.sites[2].start();
    field.sites[2].wait_until_ready();
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    let lost = Submit { wait: Some("0s".into()), ..submit("echo lost >> {id}", "add") };
    three.exec("x", &lost);
    eventually("it hears why nobody speaks with it", || {
        let error = seen(three, "site1").and_then(|site| site.error).unwrap_or_default();
        error.contains("was removed from the federation")
    });
    for site in [one, two] {
        assert_eq!(site.reachable().len(), 1);
        assert_eq!(site.resource("x").unwrap().operations.len(), 1, "nothing of it came");
    }
    let problems = said(&cheops(three, &["get", "problems"]));
    assert!(problems.contains("cheops join TOKEN"), "and what to do: {problems}");
}

/// The commands that have run at a site, in order.
fn effects(field: &Field, n: usize) -> Vec<String> {
    let text = read(&field.directory(n).join("work/effects")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn held(site: &Agent) -> Vec<HeldOperation> {
    let held: Held = site.try_get("/api/v1/federation/held").unwrap();
    assert_eq!(held.held.len(), held.count);
    held.held
}

/// `set` makes the state anew, `add` adds to it.
const SET_AND_ADD: &str = r#"{"ResolutionMatrix": [
    {"Before": "set", "After": "set", "Result": "take-one"},
    {"Before": "add", "After": "set", "Result": "take-both-reverse-order"},
    {"Before": "set", "After": "add", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "add", "After": "add", "Result": "take-both-agreed-order"}]}"#;

#[test]
fn what_only_a_removed_site_had_is_decided_about_when_it_is_back() {
    let mut field = federation(3);
    let line = |word: &str, how: &str| format!("echo {word} {how} {{id}}; echo {word} >> effects");
    let add = |word: &str| submit(&line(word, ">>"), "add");
    let alone = |word: &str| Submit { wait: Some("0s".into()), ..add(word) };
    let begin = Submit {
        config: Some(serde_json::from_str(SET_AND_ADD).unwrap()),
        ..on(&field.everywhere(), &line("begin", ">"))
    };
    assert!(all_ok(&field.sites[0].exec("x", &begin), 3));
    field.agreed("x", &[0, 1, 2]);
    let other = Submit { command: "touch {id}".into(), ..begin };
    assert!(all_ok(&field.sites[0].exec("y", &other), 3));
    field.net.cut(0, 2);
    field.net.cut(1, 2);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    eventually("the third is alone", || three.reachable().is_empty());
    three.exec("x", &alone("one"));
    three.exec("x", &alone("two"));
    eventually("it runs what it accepts", || effects(&field, 2) == ["begin", "one", "two"]);

    // The others go on without it.
    well(one, &["site", "remove", "site3"]);
    eventually("both have heard of it", || {
        [one, two].iter().all(|site| member_names(site) == ["site1", "site2"])
    });
    assert!(all_ok(&two.exec("x", &add("after")), 2));
    let seen = field.agreed("x", &[0, 1]);
    assert_eq!((seen.summary.state, seen.summary.sites.len()), (State::Settled, 2));
    assert_eq!(seen.summary.removed, ["site3"]);
    well(one, &["delete", "y", "--command", "rm {id}"]);
    assert!(!well(one, &["get", "resources"]).contains("\ny "), "what is deleted is out of sight");

    field.net.heal();
    well(three, &["join", &token(two)]);
    field.wait_until_linked();
    eventually("it has what the others have", || {
        read(&field.directory(2).join("work/x")).as_deref() == Some("begin\nafter\n")
    });
    eventually("what was deleted meanwhile is deleted there", || {
        !field.directory(2).join("work/y").exists() && one.resource("y").is_none()
    });
    let waits = held(three);
    assert_eq!(waits.len(), 2, "{waits:?}");
    assert!(waits[0].command.contains("one") && waits[1].command.contains("two"));
    assert!(waits.iter().all(|held| held.status == RunStatus::Ok), "what came of them there");
    assert!(
        said(&cheops(three, &["get", "problems"]))
            .contains(&format!("adopt x {}", waits[0].operation))
    );
    assert_eq!(held(one), []);

    // It is still so after a restart, and what is decided stays decided.
    field.sites[2].restart();
    let three = &field.sites[2];
    assert_eq!(held(three), waits);
    let [first, second] = [0, 1].map(|n| waits[n].operation.as_str());
    let adopted = well(three, &["site", "adopt", "x", first]);
    assert_eq!(well(three, &["site", "adopt", "x", first]), adopted, "once is enough");
    for _ in 0..2 {
        well(three, &["site", "discard", "x", second]);
    }
    assert!(refused(three, &["site", "discard", "x", first]).contains("submitted again"));
    assert!(refused(three, &["site", "adopt", "x", second]).contains("was discarded already"));
    field.sites[2].restart();
    field.wait_until_linked();
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    assert_eq!(held(three), []);
    assert!(well(three, &["audit"]).contains("/held/x/"));

    // What it asks for reaches the others, and all are the same.
    assert!(all_ok(&three.exec("x", &add("last")), 3));
    let seen = field.agreed("x", &[0, 1, 2]);
    assert_eq!(seen.summary.state, State::Settled);
    assert_eq!(seen.summary.sites, ["site1", "site2", "site3"]);
    for n in 0..3 {
        let found = read(&field.directory(n).join("work/x")).unwrap();
        assert_eq!(found, "begin\nafter\none\nlast\n", "at {n}");
    }
    assert_eq!(effects(&field, 0), ["begin", "after", "one", "last"]);
    assert_eq!(effects(&field, 1), ["begin", "after", "one", "last"]);
    let replayed = ["begin", "one", "two", "begin", "after", "one", "last"];
    assert_eq!(effects(&field, 2), replayed, "it was made anew once");
    for site in [one, two, three] {
        let problems: Troubles = site.try_get("/api/v1/problems").unwrap();
        // That anybody may do anything is how these agents are set up.
        assert!(problems.problems.iter().all(|problem| problem.what == "anyone"), "{problems:?}");
    }
}

#[test]
fn what_a_removed_site_tells_one_that_has_not_heard_of_it_counts_up_to_there_and_no_further() {
    let field = federation(3);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    assert!(all_ok(&one.exec("x", &on(&field.everywhere(), "echo begin > {id}")), 3));
    field.agreed("x", &[0, 1, 2]);
    // The first is alone, and removes the third, which goes on with the second.
    field.net.cut(0, 1);
    field.net.cut(0, 2);
    eventually("the first is alone", || one.reachable().is_empty());
    well(one, &["site", "remove", "site3"]);
    let now = |command: &str| Submit { wait: Some("0s".into()), ..submit(command, "add") };
    three.exec("x", &now("echo two has heard this >> {id}"));
    eventually("the second has it", || two.resource("x").unwrap().operations.len() == 2);
    field.net.heal();
    eventually("the second has heard of it, too", || member_names(two) == ["site1", "site2"]);
    eventually("the second does not speak with it any more", || two.reachable() == ["site1"]);
    three.exec("x", &now("echo nobody has heard this >> {id}"));
    // What the second had taken in counts for the first; what nobody had does not, through any site.
    eventually("the first has what the second had", || {
        one.resource("x").unwrap().operations.len() == 2
    });
    assert_eq!(three.resource("x").unwrap().operations.len(), 3);
    one.exec("x", &now("echo after >> {id}"));
    eventually("the two that are left go on", || {
        [one, two].iter().all(|site| site.resource("x").unwrap().operations.len() == 3)
    });
    for site in [one, two] {
        let resource = site.resource("x").unwrap();
        assert!(resource.operations.iter().all(|op| !op.command.contains("nobody")));
    }
}

#[test]
fn a_site_gets_a_new_key_while_it_is_cut_off_and_is_known_again() {
    let mut field = federation(3);
    let before = seen(&field.sites[0], "site2").unwrap().key;
    field.net.cut(0, 1);
    field.net.cut(1, 2);
    eventually("it is alone", || field.sites[1].reachable().is_empty());
    let key = well(&field.sites[1], &["site", "key", "--renew"]);
    assert_ne!(key.trim(), before);
    field.net.heal();
    field.wait_until_linked();
    for site in [&field.sites[0], &field.sites[2]] {
        assert_eq!(seen(site, "site2").unwrap().key, key.trim());
    }
    assert!(all_ok(&field.sites[1].exec("x", &on(&field.everywhere(), "echo a > {id}")), 3));
    // Also after it starts again.
    field.sites[1].kill();
    field.sites[1].start();
    field.sites[1].wait_until_ready();
    field.wait_until_linked();
    assert_eq!(well(&field.sites[1], &["site", "key"]), key);
    assert!(all_ok(&field.sites[1].exec("x", &submit("echo b >> {id}", "add")), 3));
}

/// A site that has renewed its key where nobody heard of it, has asked for something there, and was removed
/// meanwhile: the third of three. The lines are whole again.
fn removed_with_a_key_that_nobody_has_heard_of() -> Field {
    let field = federation(3);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    let begin = Submit {
        config: Some(serde_json::from_str(SET_AND_ADD).unwrap()),
        ..on(&field.everywhere(), "echo begin > {id}")
    };
    assert!(all_ok(&one.exec("x", &begin), 3));
    field.agreed("x", &[0, 1, 2]);
    field.net.cut(0, 2);
    field.net.cut(1, 2);
    eventually("the third is alone", || three.reachable().is_empty());
    well(three, &["site", "key", "--renew"]);
    let alone = Submit { wait: Some("0s".into()), ..submit("echo alone >> {id}", "add") };
    three.exec("x", &alone);
    eventually("it runs what it accepts", || {
        read(&field.directory(2).join("work/x")).as_deref() == Some("begin\nalone\n")
    });
    well(one, &["site", "remove", "site3"]);
    eventually("both have heard of it", || {
        [one, two].iter().all(|site| member_names(site) == ["site1", "site2"])
    });
    field.net.heal();
    field
}

#[test]
fn a_site_that_was_removed_while_it_renewed_its_key_comes_back_with_another() {
    let field = removed_with_a_key_that_nobody_has_heard_of();
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    let before = well(three, &["site", "key"]);
    well(three, &["join", &token(one)]);
    field.wait_until_linked();
    let key = well(three, &["site", "key"]);
    assert_ne!(key, before, "the one that it had was put out with the one before");
    for site in [one, two, three] {
        eventually("all know the same", || {
            member_names(site) == ["site1", "site2", "site3"]
                && (seen(site, "site3").unwrap().key == key.trim())
        });
    }
    let waits = held(three);
    assert_eq!(waits.len(), 1, "{waits:?}");
    assert!(waits[0].command.contains("alone"));
    assert!(all_ok(&three.exec("x", &submit("echo back >> {id}", "add")), 3));
    // Joining once more changes nothing, and it may have yet another key.
    well(three, &["join", &token(two)]);
    assert_eq!(well(three, &["site", "key"]), key);
    well(three, &["site", "key", "--renew"]);
    field.wait_until_linked();
    assert!(all_ok(&three.exec("x", &submit("echo renewed >> {id}", "add")), 3));
    for n in 0..3 {
        let found = read(&field.directory(n).join("work/x")).unwrap();
        assert_eq!(found, "begin\nback\nrenewed\n", "at {n}");
    }
}

#[test]
fn a_removed_site_does_not_come_back_by_the_configuration() {
    let mut field = removed_with_a_key_that_nobody_has_heard_of();
    let key = well(&field.sites[2], &["site", "key"]);
    let config = field.directory(0).join("site.toml");
    let address = format!("{}:8078", field.net.ip(2));
    let more = format!("[[peer]]\nname = 'site3'\naddress = '{address}'\nkey = '{}'\n", key.trim());
    std::fs::write(&config, read(&config).unwrap() + &more).unwrap();
    field.sites[0].restart();
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    let problems = |site: &Agent| said(&cheops(site, &["get", "problems", "-o", "json"]));
    assert!(problems(one).contains("it is not let in by that, whatever its key"));
    assert!(problems(one).contains("removed-peer"));
    assert!(problems(one).contains("`cheops join TOKEN` at `site3`"));
    // It tells the others itself that its key follows one that was removed.
    for site in [one, two] {
        eventually("it is known where it knocks", || {
            well(site, &["audit"]).contains("`site3` was removed from the federation")
        });
        eventually("it is told", || {
            let error = seen(three, &site.name).and_then(|site| site.error).unwrap_or_default();
            error.contains("was removed from the federation, says")
        });
    }
    let told = problems(three);
    assert!(!told.contains("into the configuration"), "{told}");
    assert!(!told.contains("what it misses is sent"), "{told}");
    assert_eq!((one.reachable(), two.reachable()), (vec!["site2".into()], vec!["site1".into()]));
    assert_eq!(one.resource("x").unwrap().operations.len(), 1, "nothing of it came");
    // By joining it does.
    well(three, &["join", &token(one)]);
    field.wait_until_linked();
    assert_eq!(held(three).len(), 1);
    assert!(all_ok(&three.exec("x", &submit("echo back >> {id}", "add")), 3));
    assert!(!problems(one).contains("removed-peer"));
}

#[test]
fn who_may_do_what_is_the_same_at_all_sites_and_revoked_at_all_when_the_cut_heals() {
    let field = federation(3);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    let made = well(one, &["access", "create", "vera", "--role", "viewer", "-o", "json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    let token = made["token"].as_str().unwrap().to_owned();
    // A token is sent over TLS, or without leaving the machine.
    let is_good = |site: &Agent| {
        let socket = format!("unix:{}/data/api.sock", site.work().parent().unwrap().display());
        let arguments = ["--agent", &socket, "--token", &token, "site", "list"];
        cheops(site, &arguments).status.success()
    };
    eventually("the token is good everywhere", || [one, two, three].into_iter().all(is_good));
    field.net.cut(2, 0);
    field.net.cut(2, 1);
    eventually("the third is alone", || three.reachable().is_empty());
    well(two, &["access", "revoke", "vera"]);
    eventually("it is not good any more where that is heard", || !is_good(one) && !is_good(two));
    assert!(is_good(three), "it can't know");
    field.net.heal();
    eventually("nor at the third when it hears of it", || !is_good(three));
}
