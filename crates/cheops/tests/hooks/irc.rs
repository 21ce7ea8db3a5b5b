//! A channel of IRC, with a small real server that goes away and comes back.

use std::{fs, path::Path};

use super::{
    at,
    field::{agent::Agent, eventually, read},
    hook,
    python::Server,
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
