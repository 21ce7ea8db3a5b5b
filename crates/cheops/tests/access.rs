//! Tokens, a certificate and the Unix socket, as people and programs meet them: the program itself, against a
//! real agent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

#[path = "field/mod.rs"]
mod field;

use field::{agent::Agent, eventually, ports::unused};

/// Runs the program, for an agent.
fn cheops(agent: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cheops"));
    for variable in ["CHEOPS_TOKEN", "CHEOPS_TOKEN_FILE", "CHEOPS_CACERT"] {
        command.env_remove(variable);
    }
    command.env("CHEOPS_AGENT", agent).env("NO_COLOR", "1").args(arguments);
    command.envs(variables.iter().copied()).output().unwrap()
}

/// What it said, if all was well.
fn fine(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What it said, if it was refused.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn socket(directory: &Path) -> String {
    format!("unix:{}", directory.join("data/api.sock").display())
}

#[test]
fn tokens_are_made_at_the_socket_shown_by_who_has_them_and_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::alone_with(directory.path(), "[api]\ntokens = 'required'\n");
    let socket = socket(directory.path());
    let without = refused(&cheops(&agent.url, &["get", "sites"], &[]));
    assert!(without.contains("Token required") && without.contains("CHEOPS_TOKEN"), "{without}");

    let made = cheops(&socket, &["access", "create", "vera", "--role", "viewer"], &[]);
    let made = fine(&made);
    let token = made.lines().next().unwrap().to_owned();
    assert!(token.starts_with("cheops_") && made.contains("shown once"), "{made}");
    assert!(made.contains("vera has the role viewer until 20"), "{made}");
    let reach = ["--resource", "web-*", "--kind", "set", "--ttl", "12h", "-o", "json"];
    let omar = [&["access", "create", "omar", "--role", "operator"][..], &reach].concat();
    let omar: Value = serde_json::from_str(&fine(&cheops(&socket, &omar, &[]))).unwrap();
    let operator = omar["token"].as_str().unwrap();

    let file = directory.path().join("token");
    fs::write(&file, format!("{token}\n")).unwrap();
    let file = file.to_str().unwrap();
    for (arguments, variables) in [
        (&["get", "sites", "--token-file", file][..], &[][..]),
        (&["get", "sites", "--token", &token], &[]),
        (&["get", "sites"], &[("CHEOPS_TOKEN", token.as_str())]),
        (&["get", "sites"], &[("CHEOPS_TOKEN_FILE", file)]),
    ] {
        assert!(fine(&cheops(&agent.url, arguments, variables)).contains("site1"));
    }
    let exec = |id, variables: &[_]| {
        let line = ["exec", "--id", id, "--sites", "site1", "--type", "set", "--command", "true"];
        cheops(&agent.url, &line, variables)
    };
    let viewer = refused(&exec("web-1", &[("CHEOPS_TOKEN", &token)]));
    assert!(viewer.contains("a viewer may look at everything, and change nothing"), "{viewer}");
    fine(&exec("web-1", &[("CHEOPS_TOKEN", operator)]));
    let outside = refused(&exec("db-1", &[("CHEOPS_TOKEN", operator)]));
    assert!(outside.contains("the resource `db-1` is not among them"), "{outside}");
    let log = fine(&cheops(&agent.url, &["log", "web-1"], &[("CHEOPS_TOKEN", &token)]));
    assert!(log.contains("omar"), "{log}");

    // What is wrong with a token is said, and nothing of it.
    let cut = &token[..40];
    let said = refused(&cheops(&agent.url, &["get", "sites"], &[("CHEOPS_TOKEN", cut)]));
    assert!(said.contains("not whole") && !said.contains(&cut[8..]), "{said}");
    let listed = fine(&cheops(&socket, &["access", "list"], &[]));
    assert!(listed.contains("resources web-*; kinds set"), "{listed}");
    assert!(!listed.contains(&token[7..20]) && !listed.contains(&operator[7..20]), "{listed}");
    let id = omar["id"].as_str().unwrap();
    for (who, named) in [("vera", "vera"), (id, "omar")] {
        let revoked = fine(&cheops(&socket, &["access", "revoke", who], &[]));
        assert!(revoked.contains(&format!("the token of {named}")), "{revoked}");
    }
    for token in [&token, operator] {
        let said = refused(&cheops(&agent.url, &["get", "sites"], &[("CHEOPS_TOKEN", token)]));
        assert!(said.contains("The token was revoked"), "{said}");
    }
    let unknown = refused(&cheops(&socket, &["access", "revoke", "nobody"], &[]));
    assert!(unknown.contains("cheops access list"), "{unknown}");
}

#[test]
fn an_agent_that_others_reach_proves_who_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (api, peers) = (unused(), unused());
    let listen = format!("[listen]\napi = '0.0.0.0:{}'\npeers = '{peers}'\n", api.port());
    fs::write(path("site.toml"), format!("site = 'site1'\n{listen}")).unwrap();
    let config = path("site.toml");
    let alone = refused(&cheops("", &["agent", "--config", &config], &[]));
    assert!(alone.contains("certificate = ") && alone.contains("0.0.0.0:"), "{alone}");

    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=site1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "30"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-out", &path("api.crt"), "-keyout", &path("api.key")])
        .output();
    assert!(made.unwrap().status.success());
    let secure = "[api]\ncertificate = 'api.crt'\nkey = 'api.key'\n";
    fs::write(&config, format!("site = 'site1'\n{secure}{listen}")).unwrap();
    let mut agent = Agent::on_loopback("site1", &api.to_string(), directory.path());
    agent.start();
    let socket = socket(directory.path());
    eventually("it listens", || cheops(&socket, &["get", "sites"], &[]).status.success());
    let made = fine(&cheops(&socket, &["access", "create", "ada", "--role", "admin"], &[]));
    let token = ("CHEOPS_TOKEN", made.lines().next().unwrap());
    let https = format!("https://{api}");
    let certificate = path("api.crt");
    let trusted = ["get", "sites", "--cacert", certificate.as_str()];
    assert!(fine(&cheops(&https, &trusted, &[token])).contains("site1"));
    assert!(refused(&cheops(&https, &trusted, &[])).contains("Token required"));
    // One that nobody vouches for gets no token, and one that speaks TLS answers nothing else.
    for address in [https, format!("http://{api}")] {
        let output = cheops(&address, &["get", "sites"], &[token]);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
    }
}
