//! A channel of IRC, with a small real server that goes away and comes back.

use std::{fs, path::Path};

use super::{
    at,
    field::{agent::Agent, eventually, read},
    hook,
    python::{Server, certificate},
    sample,
};

#[test]
fn events_are_said_in_a_channel_also_after_the_server_was_away() {
    let directory = tempfile::tempdir().unwrap();
    let said = directory.path().join("said");
    fs::write(directory.path().join("password"), "hush\n").unwrap();
    let start = |port: &str| {
        Server::start(Path::new("python3"), "ircd.py", &[said.to_str().unwrap(), port, "hush"])
    };
    let server = start("0");
    let settings = format!(
        "[[hook]]\nname = 'irc'\non = ['operation.ran', 'operation.failed']\nretry = '1s'\n[hook.irc]\nserver = '{}'\nchannel = '#ops'\npassword_file = 'password'\n",
        server.address
    );
    let site = Agent::alone_with(directory.path(), &settings);
    let tested = sample(&site, "irc");
    assert!(tested.delivered, "{tested:?}");
    site.exec("web", &at("site1", "true"));
    let lines = || read(&said).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    eventually("two lines", || lines().len() == 2);
    assert!(lines()[0].starts_with("cheops_: [test] this is a test"), "{:?}", lines());
    assert!(lines()[1].contains("[operation.ran] web: operation site1:1"), "{:?}", lines());

    let port = server.address.port().to_string();
    drop(server);
    for n in 0..15 {
        site.exec(&format!("r{n}"), &at("site1", "true"));
    }
    eventually("it fails", || hook(&site, "irc").failing_since.is_some());
    let _server = start(&port);
    eventually("all is said", || lines().len() == 17);
    for n in 0..15 {
        assert!(lines()[n + 2].contains(&format!(" r{n}: ")), "{:?}", lines());
    }
}

#[test]
fn a_channel_is_reached_over_tls_by_who_trusts_the_server_and_by_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let said = directory.path().join("said");
    let (certificate, key) = certificate(directory.path());
    let arguments = [said.to_str().unwrap(), "0", "hush", &certificate, &key];
    let server = Server::start(Path::new("python3"), "ircd.py", &arguments);
    let port = server.address.port();
    let way = |name: &str, host: &str, tls: &str| {
        format!(
            "[[hook]]\nname = '{name}'\non = ['operation.ran']\ntimeout = '3s'\n[hook.irc]\nserver = '{host}:{port}'\nchannel = '#ops'\npassword = 'hush'\n{tls}"
        )
    };
    let settings = way("trusting", "localhost", "tls = true\nca = 'cert.pem'\n")
        + &way("wary", "localhost", "tls = true\n")
        + &way("misled", "127.0.0.1", "tls = true\nca = 'cert.pem'\n")
        + &way("open", "localhost", "");
    let site = Agent::alone_with(directory.path(), &settings);
    for (name, why) in
        [("wary", "certificate"), ("misled", "certificate"), ("open", "it broke off")]
    {
        let tested = sample(&site, name);
        assert!(!tested.delivered, "{name}");
        assert!(tested.error.as_ref().unwrap().contains(why), "{tested:?}");
    }
    assert!(!said.exists());
    let tested = sample(&site, "trusting");
    assert!(tested.delivered, "{tested:?}");
    site.exec("web", &at("site1", "true"));
    eventually("it is said", || read(&said).unwrap_or_default().lines().count() == 2);
    assert!(read(&said).unwrap().contains("[operation.ran] web: "));
}
