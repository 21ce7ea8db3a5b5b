//! What an agent notices when it starts, rather than at the first command.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "support/ports.rs"]
mod ports;

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::Path,
    process::{Child, Command},
};

use cheops_agent::{
    Agent, StartError,
    config::{Config, Socket},
};
use ports::unused;

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

/// A program that has a file or a socket open for a moment, as a child has whose parent was killed while it started it.
fn hold_for_a_moment(held: impl Into<OwnedFd>) -> Child {
    Command::new("sleep").arg("0.3").stdin(held.into()).spawn().unwrap()
}

#[tokio::test]
async fn what_a_child_of_a_killed_agent_still_holds_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new("here".parse().unwrap(), directory.path().join("data"));
    let (api, peers, socket) = (unused(), unused(), directory.path().join("socket"));
    (config.api, config.peers, config.socket) = (api, peers, Socket::At(socket.clone()));
    Agent::start(config.clone()).await.unwrap().stop().await;
    let store = config.data.join("store/lock");
    let lock = || {
        let file = File::open(&store).unwrap();
        file.try_lock().unwrap();
        OwnedFd::from(file)
    };
    let held: [(&str, &dyn Fn() -> OwnedFd); 4] = [
        ("the store", &lock),
        ("the API", &|| TcpListener::bind(api).unwrap().into()),
        ("other agents", &|| TcpListener::bind(peers).unwrap().into()),
        ("the socket", &|| UnixListener::bind(&socket).unwrap().into()),
    ];
    for (what, held) in held {
        let mut child = hold_for_a_moment(held());
        let started = Agent::start(config.clone()).await;
        child.wait().unwrap();
        started.unwrap_or_else(|error| panic!("{what}: {error}")).stop().await;
    }
}
