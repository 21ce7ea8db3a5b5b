//! What an agent notices when it starts, rather than at the first command.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{fs, net::SocketAddr, path::Path};

use cheops_agent::{Agent, StartError, config::Config};

async fn start(directory: &Path, shell: &Path) -> Result<Agent, StartError> {
    let mut config = Config::new("here".parse().unwrap(), directory.join("data"));
    config.api = SocketAddr::from(([127, 0, 0, 1], 0));
    config.peers = SocketAddr::from(([127, 0, 0, 1], 0));
    config.runs.shell = shell.to_owned();
    Agent::start(config).await
}

#[tokio::test]
async fn a_shell_that_can_not_be_run_is_noticed_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "no program").unwrap();
    for (shell, expected) in [
        (directory.path().join("none"), "No such file"),
        (directory.path().to_owned(), "it is no file"),
        (text, "this user may not execute it"),
        ("no-such-shell".into(), "not in any directory of PATH"),
    ] {
        let Err(error) = start(directory.path(), &shell).await else { panic!("it started") };
        let error = error.to_string();
        assert!(error.contains(expected) && error.contains("`runs.shell`"), "{error}");
        assert!(!directory.path().join("data").exists(), "nothing was made");
    }
    for shell in ["/bin/sh", "sh"] {
        start(directory.path(), Path::new(shell)).await.unwrap().stop().await;
    }
}
