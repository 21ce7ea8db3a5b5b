//! An agent that is killed while it starts commands can be started again at once: a child between `fork` and `exec`
//! still holds the locks and the sockets of the killed agent, and the new one waits for it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod field;

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use cheops_agent::api::model::Submit;
use field::{agent::Agent, submit};

/// How many times the agent is killed and started again.
const RESTARTS: usize = 150;
/// How many clients send operations meanwhile, each for a resource of its own.
const CLIENTS: usize = 12;

#[test]
fn every_restart_right_after_a_kill_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let mut agent = Agent::alone_with(directory.path(), "work = 'work'");
    let (stop, accepted) = (AtomicBool::new(false), AtomicUsize::new(0));
    let clients = [(); CLIENTS].map(|()| agent.again());
    let mut random = fastrand::Rng::new();
    thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            let (stop, accepted) = (&stop, &accepted);
            scope.spawn(move || {
                let mut first = true;
                while !stop.load(Ordering::Relaxed) {
                    let sites = first.then(|| "site1".to_owned());
                    let wait = Some("0s".to_owned());
                    let request = Submit { sites, wait, ..submit("true", "run") };
                    if client.try_exec(&format!("resource-{n}"), &request).is_ok() {
                        first = false;
                        accepted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for n in 1..=RESTARTS {
            // Only a part of the restarts would count if the agent were killed before it starts commands.
            let before = accepted.load(Ordering::Relaxed);
            field::eventually("operations are accepted", || {
                accepted.load(Ordering::Relaxed) > before
            });
            thread::sleep(Duration::from_micros(random.u64(..20_000)));
            agent.kill();
            agent.start();
            while agent.ask("/readyz").is_none_or(|(status, _)| status != 200) {
                if let Some(code) = agent.ended() {
                    stop.store(true, Ordering::Relaxed);
                    let log = fs::read_to_string(directory.path().join("log")).unwrap_or_default();
                    let last = log.lines().last().unwrap_or_default();
                    panic!("restart {n} of {RESTARTS} ended with code {code}: {last}");
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
