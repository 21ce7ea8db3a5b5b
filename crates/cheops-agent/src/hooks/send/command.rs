//! A command: one event, one run of a line of the shell, with the event as JSON on its standard input
//! and its parts in the environment.
//!
//! It is told, not trusted: it runs in a process group of its own, which ends with it or when its time is
//! over, and what it prints is only looked at if it fails. What counts is how the shell ends: one that has
//! left something behind, which keeps its standard error open, is not waited for. Unlike an operation it
//! has no supervisor: if the agent ends meanwhile, it runs again.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
    time,
};

use super::{Shell, down};
use crate::{api::model::HookEvent, hooks::retry::Failure};

/// How much of what it prints is looked at, in bytes.
const LOOKED_AT: u64 = 16 << 10;
/// How long what it printed may take to come after its end.
const REST: Duration = Duration::from_millis(500);

pub(super) async fn send(
    line: &str,
    shell: &Shell,
    event: &HookEvent,
    limit: Duration,
) -> Result<(), Failure> {
    let body = serde_json::to_vec(event).map_err(|error| Failure::Refused(error.to_string()))?;
    let mut command = Command::new(&shell.program);
    command.arg("-c").arg(line).current_dir(&shell.work).process_group(0).kill_on_drop(true);
    command.env_clear().envs(&shell.variables);
    let nothing = String::new();
    for (name, value) in [
        ("CHEOPS_EVENT", &event.event),
        ("CHEOPS_EVENT_ID", &event.id),
        ("CHEOPS_EVENT_SITE", &event.site),
        ("CHEOPS_EVENT_TEXT", &event.text),
        ("CHEOPS_EVENT_RESOURCE", event.resource.as_ref().unwrap_or(&nothing)),
        ("CHEOPS_EVENT_OPERATION", event.operation.as_ref().unwrap_or(&nothing)),
        ("CHEOPS_EVENT_KIND", event.kind.as_ref().unwrap_or(&nothing)),
        ("CHEOPS_EVENT_PEER", event.peer.as_ref().unwrap_or(&nothing)),
    ] {
        // A variable can't hold it, and no name or sentence has it.
        command.env(name, value.replace('\0', ""));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(down("the command can't be started"))?;
    let group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let (input, errors) = (child.stdin.take(), child.stderr.take());
    let mut printed = Vec::new();
    let mut talk = Box::pin(async {
        let give = async {
            if let Some(mut input) = input {
                // A command that does not read is none the worse for it.
                let _ = input.write_all(&body).await;
            }
        };
        let read = async {
            if let Some(mut errors) = errors {
                let _ = (&mut errors).take(LOOKED_AT).read_to_end(&mut printed).await;
                let _ = tokio::io::copy(&mut errors, &mut tokio::io::sink()).await;
            }
        };
        tokio::join!(give, read);
    });
    let mut talks = true;
    let end = time::timeout(limit, async {
        loop {
            tokio::select! {
                status = child.wait() => return status,
                () = &mut talk, if talks => talks = false,
            }
        }
    });
    let status = end.await.map_err(|_| {
        let limit = cheops_core::duration::print(limit);
        Failure::Unavailable(format!("the command did not end within {limit}, and was ended"))
    })?;
    drop(group);
    let status = status.map_err(down("the command"))?;
    if status.success() {
        return Ok(());
    }
    if talks {
        // Whoever has its standard error now may keep it.
        let _ = time::timeout(REST, &mut talk).await;
    }
    drop(talk);
    let text = String::from_utf8_lossy(&printed);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let last: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
    let ended = format!("the command ended with {status}");
    Err(Failure::Unavailable(if last.is_empty() { ended } else { format!("{ended}: {last}") }))
}

/// A process group that ends with this.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Usually nobody is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::tests::sample;

    async fn run(line: &str, limit: Duration) -> Result<(), Failure> {
        let variables = crate::policy::Environment::default().of(std::env::vars_os());
        let shell = Shell { program: "/bin/sh".into(), work: std::env::temp_dir(), variables };
        send(line, &shell, &sample("a"), limit).await
    }

    #[tokio::test]
    async fn a_command_gets_the_event() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("out");
        let line =
            format!("cat > {0}; echo \" $CHEOPS_EVENT $CHEOPS_EVENT_ID\" >> {0}", place.display());
        run(&line, Duration::from_secs(30)).await.unwrap();
        let text = std::fs::read_to_string(place).unwrap();
        let (json, words) =
            text.rsplit_once(' ').and_then(|(a, id)| Some((a.rsplit_once(' ')?.0, id))).unwrap();
        assert_eq!(serde_json::from_str::<HookEvent>(json).unwrap(), sample("a"));
        assert_eq!(words.trim(), "a");
    }

    #[tokio::test]
    async fn a_command_has_a_clean_environment() {
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "Cargo sets it");
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("out");
        run(&format!("env > {}", place.display()), Duration::from_secs(30)).await.unwrap();
        let text = std::fs::read_to_string(place).unwrap();
        let unexpected = |line: &&str| {
            let name = line.split('=').next().unwrap_or_default();
            let known = ["PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_"];
            !known.contains(&name) && !name.starts_with("CHEOPS_EVENT")
        };
        assert_eq!(text.lines().filter(unexpected).collect::<Vec<_>>(), [""; 0]);
    }

    #[tokio::test]
    async fn a_command_that_fails_or_hangs_is_a_failure_and_nothing_of_it_is_left() {
        let error = run("echo no disk >&2; exit 3", Duration::from_secs(30)).await.unwrap_err();
        assert!(
            error.to_string().contains('3') && error.to_string().contains("no disk"),
            "{error}"
        );
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("pid");
        let line = format!("sleep 600 & echo $! > {}; wait", place.display());
        let error = run(&line, Duration::from_millis(500)).await.unwrap_err();
        assert!(error.to_string().contains("did not end within"), "{error}");
        let pid = std::fs::read_to_string(place).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        let start = std::time::Instant::now();
        // Ended, or only waiting for somebody to take note of it.
        while state().is_ok_and(|stat| !stat.contains(") Z")) {
            assert!(start.elapsed() < Duration::from_secs(30), "it goes on");
            time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_a_command_leaves_behind_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("pid");
        // In a session of its own, so that nothing ends it with the command.
        for (end, delivered) in [("true", true), ("echo no disk >&2; false", false)] {
            let _ = std::fs::remove_file(&place);
            let line = format!(
                "setsid sh -c 'echo $$ > {0}; exec sleep 600' & until [ -s {0} ]; do sleep 0.01; done; {end}",
                place.display()
            );
            let start = std::time::Instant::now();
            let sent = run(&line, Duration::from_mins(5)).await;
            assert!(start.elapsed() < Duration::from_mins(1));
            let pid = std::fs::read_to_string(&place).unwrap().trim().parse().unwrap();
            let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            assert_eq!(sent.is_ok(), delivered);
            assert!(delivered || sent.unwrap_err().to_string().contains("no disk"));
        }
    }
}
