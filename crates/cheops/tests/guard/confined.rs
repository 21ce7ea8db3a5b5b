//! Commands that are shut in: the agent itself does not let them out.

use std::{path::Path, process::Command};

use super::field::agent::Agent;

/// What a command prints that is asked for at the Unix socket of a site.
fn ran(directory: &Path, command: &str) -> String {
    let socket = format!("unix:{}", directory.join("data/api.sock").display());
    let asked = Command::new(env!("CARGO_BIN_EXE_cheops"))
        .args(["--agent", &socket, "exec", "--id", "x", "--sites", "site1", "--command", command])
        .output()
        .unwrap();
    String::from_utf8(asked.stdout).unwrap() + &String::from_utf8(asked.stderr).unwrap()
}

#[test]
fn a_confined_command_asks_in_vain_for_what_its_rule_does_not_allow() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rule = "[[policy.rule]]\nname = 'r'\ndecision = 'allow'\nallow_any_shell_command = true\nuser = '54321:54321'\n";
    for (tokens, expected) in [("", "401"), ("[api]\ntokens = 'optional'\n", "201")] {
        let directory = tempfile::tempdir().unwrap();
        let site = Agent::alone_with(directory.path(), &format!("{tokens}{rule}"));
        let ask = format!(
            "curl -s -o /dev/null -w 'got %{{http_code}}' -H 'content-type: application/json' -d '{{\"name\":\"eve\",\"role\":\"admin\"}}' {}/api/v1/access",
            site.url
        );
        let said = ran(directory.path(), &ask);
        assert!(said.contains(&format!("got {expected}")), "{tokens}: {said}");
    }
}
