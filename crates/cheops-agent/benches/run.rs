//! What the supervisor adds to a command: an operation that runs `true`, from the request to run it
//! to its reply, against `sh -c true`, started and waited for in the same way.
//!
//! The two are measured in turn, so that whatever else the machine does hits both alike. The node is
//! the real one and its log is in memory: what the disk adds is the engine's own matter.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a bench prints its results"
)]

use std::{process::Stdio, time::Instant};

use cheops_core::plan::Outcome;

#[path = "../tests/support/site.rs"]
mod site;

const ROUNDS: usize = 500;
const WARM_UP: usize = 20;

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let directory = tempfile::tempdir().unwrap();
    let program = std::env::var_os("CHEOPS_SUPERVISOR")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_cheops-test-runner").into());
    let site = site::Plan::new(directory.path(), program).start();
    let (mut plain, mut supervised) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + WARM_UP {
        let start = Instant::now();
        shell(&site.config.work).await;
        let shell = start.elapsed();
        let start = Instant::now();
        // A resource for each, so that the log of one does not grow.
        let reply = site.exec(&format!("r{}", round % 50), "true", None).await;
        let run = start.elapsed();
        assert_eq!(reply.outcome, Outcome::Ok);
        if round >= WARM_UP {
            plain.push(shell.as_secs_f64() * 1e3);
            supervised.push(run.as_secs_f64() * 1e3);
        }
    }
    println!("{:<28} {:>10} {:>10} {:>10}", "milliseconds", "10 %", "median", "99 %");
    let (shell, run) = (quantiles(plain), quantiles(supervised));
    row("sh -c true", &shell);
    row("an operation that runs true", &run);
    row("what that adds", &std::array::from_fn(|at| run[at] - shell[at]));
}

fn row(what: &str, [best, median, worst]: &[f64; 3]) {
    println!("{what:<28} {best:>10.2} {median:>10.2} {worst:>10.2}");
}

async fn shell(work: &std::path::Path) {
    let work = work.to_owned();
    let spawn = move || {
        let mut command = tokio::process::Command::new("/bin/sh");
        command.arg("-c").arg("true").current_dir(work).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut child = tokio::task::spawn_blocking(spawn).await.unwrap();
    assert!(child.wait().await.unwrap().success());
}

/// What a tenth, a half and 99 of a hundred stay below. On a busy machine the first says most about
/// the program.
fn quantiles(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [10, 50, 99].map(|percent| samples[samples.len() * percent / 100])
}
