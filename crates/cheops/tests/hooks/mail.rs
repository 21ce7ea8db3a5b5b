//! E-mail, with a real server: in the open, and after STARTTLS with a password.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    at,
    field::{agent::Agent, eventually, read},
    hook,
    python::{Server, certificate},
    sample,
};

/// The interpreter that has aiosmtpd.
fn python() -> PathBuf {
    let tools = std::env::var("CHEOPS_SMTPD").map_or_else(
        |_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/smtpd"),
        PathBuf::from,
    );
    let python = tools.join("bin/python");
    assert!(python.exists(), "{} is missing: run `make smtpd`", python.display());
    python
}

/// A server that writes mails into a directory.
pub(crate) fn mail_server(mails: &Path) -> Server {
    Server::start(&python(), "smtpd.py", &[mails.to_str().unwrap(), &free()])
}

#[test]
fn events_arrive_by_mail_and_what_is_refused_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let mails = directory.path().join("mails");
    fs::create_dir(&mails).unwrap();
    let server = mail_server(&mails);
    let settings = format!(
        "[[hook]]\nname = 'mail'\non = ['operation.*']\nretry = '500ms'\n[hook.mail]\nserver = '{}'\ntls = 'none'\nfrom = 'Cheops <cheops@example.org>'\nto = ['ops@example.org', 'b@example.org']\n",
        server.address
    );
    let site = Agent::alone_with(directory.path(), &settings);
    assert!(sample(&site, "mail").delivered);
    site.exec("web", &at("site1", "echo out; exit 3"));
    let mail = |n: usize| read(&mails.join(format!("{n}.eml"))).unwrap_or_default();
    eventually("three mails", || !mail(3).is_empty());
    assert!(mail(1).starts_with("cheops@example.org ops@example.org,b@example.org tls=False\n"));
    let failed = mail(3);
    assert!(failed.contains("X-Cheops-Event: operation.failed"), "{failed}");
    assert!(failed.contains("Subject: [cheops] web: operation site1:1"), "{failed}");
    assert!(failed.contains("site1: KO") && failed.contains("  out"), "{failed}");
    let id = failed.lines().find_map(|line| line.strip_prefix("X-Cheops-Id: ")).unwrap();
    assert!(failed.contains(&format!("Message-ID: <{id}.cheops@example.org>")), "{failed}");

    site.exec("bad", &at("site1", "true # refuse this"));
    site.exec("good", &at("site1", "true"));
    eventually("the next arrive", || (4..30).any(|n| mail(n).contains("good: operation")));
    assert!(hook(&site, "mail").dropped > 0);
}

#[test]
fn a_password_is_only_given_after_starttls_to_who_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let mails = directory.path().join("mails");
    fs::create_dir(&mails).unwrap();
    let (certificate, key) = certificate(directory.path());
    fs::write(directory.path().join("password"), "hush\n").unwrap();
    let arguments = [mails.to_str().unwrap(), &free(), &certificate, &key];
    let server = Server::start(&python(), "smtpd.py", &arguments);
    let port = server.address.port();
    let way = |name: &str, ca: &str| {
        format!(
            "[[hook]]\nname = '{name}'\non = ['operation.ran']\nretry = '500ms'\n[hook.mail]\nserver = 'localhost:{port}'\nfrom = 'cheops@example.org'\nto = ['ops@example.org']\nuser = 'ops'\npassword_file = 'password'\n{ca}"
        )
    };
    let settings = way("trusting", "ca = 'cert.pem'\n") + &way("wary", "");
    let site = Agent::alone_with(directory.path(), &settings);
    let tested = sample(&site, "trusting");
    assert!(tested.delivered, "{tested:?}");
    assert!(
        read(&mails.join("1.eml"))
            .unwrap()
            .starts_with("cheops@example.org ops@example.org tls=True")
    );
    let tested = sample(&site, "wary");
    assert!(!tested.delivered);
    let error = tested.error.unwrap();
    assert!(error.contains("certificate") && !error.contains("hush"), "{error}");
    site.exec("web", &at("site1", "true"));
    eventually("it arrives", || mails.join("2.eml").exists());
    eventually("the other waits", || hook(&site, "wary").waiting == 1);
}

#[test]
fn mail_goes_over_tls_from_the_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let mails = directory.path().join("mails");
    fs::create_dir(&mails).unwrap();
    let (certificate, key) = certificate(directory.path());
    let arguments = [mails.to_str().unwrap(), &free(), &certificate, &key, "wrapped"];
    let server = Server::start(&python(), "smtpd.py", &arguments);
    let port = server.address.port();
    let way = |name: &str, ca: &str| {
        format!(
            "[[hook]]\nname = '{name}'\non = ['operation.ran']\ntimeout = '5s'\n[hook.mail]\nserver = 'localhost:{port}'\ntls = 'tls'\nfrom = 'cheops@example.org'\nto = ['ops@example.org']\nuser = 'ops'\npassword = 'hush'\n{ca}"
        )
    };
    let settings = way("trusting", "ca = 'cert.pem'\n") + &way("wary", "");
    let site = Agent::alone_with(directory.path(), &settings);
    let tested = sample(&site, "wary");
    assert!(tested.error.as_ref().is_some_and(|why| why.contains("certificate")), "{tested:?}");
    let tested = sample(&site, "trusting");
    assert!(tested.delivered, "{tested:?}");
    assert!(mails.join("1.eml").exists() && !mails.join("2.eml").exists());
}

/// A port that nobody uses.
fn free() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}
