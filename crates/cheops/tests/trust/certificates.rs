//! Sites of an operator who has a PKI: certificates say who is who.

use std::fs;

use cheops_agent::api::model::{SiteState, Submit};

use super::{
    QUICK,
    ca::{Ca, Wanted},
    cheops,
    field::{Field, all_ok, eventually, submit},
    member_names, on, said, seen, token, well,
};

/// What the configuration of a site says of its certificate.
fn trust(ca: &Ca, site: &str) -> String {
    ca.site(site);
    let [root, certificate, key, revoked] =
        ["ca.pem", &format!("{site}.pem"), &format!("{site}.key"), "revoked.pem"]
            .map(|file| ca.path(file).display().to_string());
    format!(
        "{QUICK}\n[trust]\nca = '{root}'\ncertificate = '{certificate}'\nkey = '{key}'\nrevoked = '{revoked}'\n"
    )
}

/// Three sites that name each other without keys. The first and the third never meet.
fn certified(ca: &Ca) -> Field {
    Field::of_strangers_each(3, |n, ips| {
        let mut config = trust(ca, &format!("site{}", n + 1));
        for (m, ip) in ips.iter().enumerate().filter(|&(m, _)| m != n) {
            let port = if n.abs_diff(m) == 2 { 9 } else { 8078 };
            let peer = format!("[[peer]]\nname = 'site{}'\naddress = '{ip}:{port}'\n", m + 1);
            config.push_str(&peer);
        }
        config
    })
}

#[test]
fn sites_with_certificates_replicate_renew_them_and_refuse_a_revoked_one() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let field = certified(&ca);
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    eventually("they are linked", || two.reachable().len() == 2);
    // The third takes in what the first has signed, whose key it has from the second.
    let at_once = |submit| Submit { wait: Some("0s".to_owned()), ..submit };
    one.exec("x", &at_once(on(&field.everywhere(), "echo begin > {id}")));
    two.wait_for("x", "the second has it", |x| x.operations.len() == 1);
    // Two sites compare what they know when they meet.
    well(two, &["site", "pause", "site3"]);
    well(two, &["site", "resume", "site3"]);
    three.wait_for("x", "the third has it", |x| x.operations.len() == 1);

    // A new certificate, and no restart.
    let ends = || seen(two, "site2").unwrap().certificate_expires.unwrap();
    let before = ends();
    let wanted = Wanted { until: "+300 days", ..Wanted::of("site2", "DNS:site2") };
    let (certificate, key) = ca.issue("next", &wanted);
    fs::rename(key, ca.path("site2.key")).unwrap();
    fs::rename(certificate, ca.path("site2.pem")).unwrap();
    eventually("the new one is used", || ends() > before);
    well(two, &["site", "pause", "site1"]);
    well(two, &["site", "resume", "site1"]);
    let shown = || seen(one, "site2").and_then(|site| site.certificate_expires);
    eventually("the other is shown the new one", || shown() == Some(ends()));
    let (_, metrics) = two.ask("/metrics").unwrap();
    for line in [
        "cheops_certificate_remaining_seconds{certificate=\"links\"} 25",
        "cheops_site_certificate_remaining_seconds{site=\"site1\"} 7",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }

    let (_, page) = two.ask("/sites/site2").unwrap();
    assert!(page.contains("Certificate ends") && page.contains(&ends()), "{page}");
    // One that can't be used changes nothing, and is shown.
    fs::write(ca.path("site1.pem"), "nothing").unwrap();
    let problems = || said(&cheops(one, &["get", "problems"]));
    eventually("it is shown", || problems().contains("`[trust]` are not used"));

    ca.revoke("site3");
    eventually("the third is out", || two.reachable() == ["site1"]);
    let why = || seen(three, "site2").and_then(|site| site.error).unwrap_or_default();
    eventually("the third is told", || why().contains("the certificate of `site3` was revoked"));
    let problems = said(&cheops(three, &["get", "problems"]));
    assert!(problems.contains("was revoked"), "{problems}");
    one.exec("x", &at_once(submit("echo more >> {id}", "add")));
    two.wait_for("x", "the others go on", |x| x.operations.len() == 2);
}

#[test]
fn a_site_that_was_removed_stays_out_though_its_certificate_is_good() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let field = Field::of_strangers_each(3, |n, _| match n {
        2 => QUICK.to_owned(),
        n => trust(&ca, &format!("site{}", n + 1)),
    });
    let [one, two, three] = &field.sites[..] else { panic!("three sites") };
    let refused = cheops(three, &["join", &token(one)]);
    assert!(said(&refused).contains("`[trust]` in its configuration"), "{}", said(&refused));
    well(two, &["join", &token(one)]);
    eventually("they are linked", || one.reachable() == ["site2"]);
    assert!(all_ok(&one.exec("x", &on("site1 & site2", "echo begin > {id}")), 2));

    well(one, &["site", "remove", "site2"]);
    let why = || seen(two, "site1").and_then(|site| site.error).unwrap_or_default();
    eventually("the second is told", || why().contains("does not belong to the federation"));
    // It has dialled again, shown its certificate, and was turned away for its key.
    let audit = || said(&cheops(one, &["audit"]));
    let known = "`site2` was removed from the federation";
    eventually("it is refused", || audit().contains(known));
    assert!(one.reachable().is_empty());
    assert_eq!(member_names(one), ["site1"]);
    assert_eq!(seen(two, "site1").unwrap().state, SiteState::Unreachable);
}
