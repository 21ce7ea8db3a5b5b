//! What is secret about a hook is told to who is told events, and to nobody else.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::json;

use super::{
    at,
    field::{agent::Agent, eventually, read},
    hook, sample,
};

/// In every secret here.
const HUSH: &str = "hush-hush";

#[test]
fn nothing_secret_is_shown_anywhere() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody is there.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fs::write(directory.path().join("password"), HUSH).unwrap();
    let settings = format!(
        "[[hook]]\nname = 'web'\nurl = 'http://{nobody}/{HUSH}?token={HUSH}'\nsecret = '{HUSH}'\n\
         [[hook]]\nname = 'command'\ncommand = 'false {HUSH}'\n\
         [[hook]]\nname = 'mail'\n[hook.mail]\nserver = '{nobody}'\nfrom = 'a@b.c'\nto = ['d@e.f']\nuser = 'u'\npassword = '{HUSH}'\n\
         [[hook]]\nname = 'irc'\n[hook.irc]\nserver = '{nobody}'\nchannel = '#ops'\npassword_file = 'password'\n"
    );
    let mut site = Agent::alone_with(directory.path(), &settings);
    site.exec("web", &at("site1", "true"));
    let names = ["web", "command", "mail", "irc"];
    let tests = names.map(|name| format!("{:?}", sample(&site, name)));
    eventually("all fail", || names.iter().all(|name| hook(&site, name).last_error.is_some()));
    let mut seen = tests.to_vec();
    for (url, status) in [
        (format!("http://u:{HUSH}@{nobody}/"), 400),
        (format!("ftp://{nobody}/{HUSH}"), 400),
        (format!("http://{nobody}/?{HUSH}"), 201),
    ] {
        let answer = site.post("/api/v1/hooks", &json!({"name": "x", "url": url, "secret": HUSH}));
        let (found, text) = answer.unwrap();
        assert_eq!(found, status, "{text}");
        seen.push(text);
    }
    for path in ["/api/v1/hooks", "/api/v1/problems", "/metrics"] {
        seen.push(site.ask(path).unwrap().1);
    }
    for arguments in [&["hooks", "list", "-o", "wide"][..], &["hooks", "test", "web"]] {
        let mut cheops = Command::new(env!("CARGO_BIN_EXE_cheops"));
        let output = cheops.args(["--agent", &site.url]).args(arguments).output().unwrap();
        seen.push(String::from_utf8([output.stdout, output.stderr].concat()).unwrap());
    }
    site.restart();
    seen.push(read(&directory.path().join("log")).unwrap());
    for text in &seen {
        assert!(!text.contains(HUSH), "{text}");
    }
    assert!(seen.iter().any(|text| text.contains("false …")), "{seen:?}");
    // Where it is kept, only the owner reads it.
    let kept = directory.path().join("data/hooks/added.json");
    assert!(read(&kept).unwrap().contains(HUSH));
    assert_eq!(fs::metadata(kept).unwrap().permissions().mode() & 0o077, 0);
}
