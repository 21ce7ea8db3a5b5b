//! A command that is watched by the agent itself: to show something, or to check.
//!
//! There is no supervisor, no intent and no record: such a command changes nothing, and nobody asks
//! for its result later. What must stay true: it ends with whoever waits for it, in time, with all
//! that it has started; and it takes no more memory than its limit, whatever it prints.

use std::{
    collections::BTreeMap, ffi::OsString, io, os::fd::OwnedFd, path::PathBuf, sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    net::unix::pipe,
    process::{Child, Command},
    time::{Instant, timeout_at},
};

use super::{
    command::{Sink, command},
    job::{End, Job, Status},
    supervise::end_of,
};
use crate::open_files;

/// What became of it, and the beginning of what it printed.
pub(super) struct Attended {
    pub(super) status: Status,
    pub(super) printed: Vec<u8>,
}

/// What a command gets from the agent.
#[derive(Clone)]
pub(super) struct Host {
    /// This program, which becomes a command that is to be confined.
    pub(super) program: PathBuf,
    /// The variables that all commands get.
    pub(super) variables: Arc<BTreeMap<OsString, OsString>>,
    /// How many files a command may have open, if that is not as many as the agent may.
    pub(super) open_files: Option<u64>,
}

/// Runs the first step of a job. At most so many bytes of what it prints are kept.
pub(super) async fn attend(job: Job, host: Host, most: usize) -> Attended {
    let start = Instant::now();
    let mut sink = Sink::new(Vec::new(), most as u64);
    let timeout = job.timeout;
    let begun = tokio::task::spawn_blocking(move || begin(&job, &host)).await;
    let end = match begun.map_err(io::Error::other).and_then(|begun| begun) {
        Err(error) => End::Failed(format!("the command can't be started: {error}")),
        Ok((group, child, pipe)) => {
            let watched = watch(group, child, pipe, &mut sink);
            // A time that the clock can't express never comes.
            match start.checked_add(timeout) {
                Some(deadline) => timeout_at(deadline, watched).await.unwrap_or(End::TimedOut),
                None => watched.await,
            }
        }
    };
    let (printed, kept) = (sink.printed, sink.kept);
    let status = Status { end, took: start.elapsed(), printed, kept, answer: None };
    Attended { status, printed: sink.place }
}

/// A process group, with what is left of it. It ends when it is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn begin(job: &Job, host: &Host) -> io::Result<(Group, Child, OwnedFd)> {
    let nothing = || io::Error::other("there is no command");
    let step = job.steps.first().ok_or_else(nothing)?;
    let (command, pipe) = command(job, step, &host.program, Some(&host.variables))?;
    let child = Command::from(command).spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let (Some(process), Some(files)) = (group, host.open_files) {
        // Nothing can be done in it before the shell begins; it has hardly begun by now.
        let _ = open_files::give(process, files);
    }
    Ok((Group(group), child, pipe))
}

async fn watch(group: Group, mut child: Child, pipe: OwnedFd, sink: &mut Sink<Vec<u8>>) -> End {
    // The runtime may not have heard yet that there is something to read: what is left in the end
    // is read without it.
    let left = pipe.try_clone();
    let mut pipe = pipe::Receiver::from_owned_fd(pipe).ok();
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            readable = readable(pipe.as_ref()) => {
                let more = pipe.as_ref().is_some_and(|pipe| {
                    readable && sink.take(|buffer| pipe.try_read(buffer), None)
                });
                if !more {
                    pipe = None;
                }
            }
        }
    };
    // As in the supervisor: what the command printed is there by now, and no more is waited for.
    if let Ok(pipe) = left {
        let left = rustix::io::ioctl_fionread(&pipe).unwrap_or_default();
        sink.take(|buffer| Ok(rustix::io::read(&pipe, buffer)?), Some(left));
    }
    drop(group);
    match status {
        Ok(status) => end_of(status),
        Err(error) => End::Failed(format!("the command was lost: {error}")),
    }
}

async fn readable(pipe: Option<&pipe::Receiver>) -> bool {
    match pipe {
        Some(pipe) => pipe.readable().await.is_ok(),
        None => std::future::pending().await,
    }
}

/// How long to wait before a check that could not be made is made again.
pub(super) const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// What a `Check` command says: whether the operation took effect, or nothing at all. The codes from
/// 126 on are the shell's own: it found no such program, or the program was killed.
pub(super) fn verdict(end: &End) -> Option<bool> {
    match end {
        End::Exit(0) => Some(true),
        End::Exit(1..=125) => Some(false),
        End::Exit(_)
        | End::Signal(_)
        | End::TimedOut
        | End::Http(_)
        | End::Gone(_)
        | End::Failed(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::job::Step;

    #[tokio::test]
    async fn a_command_has_the_limit_of_open_files_that_it_is_to_have() {
        let directory = tempfile::tempdir().unwrap();
        let job = Job {
            boot: String::new(),
            agent: std::process::id(),
            shell: "/bin/sh".into(),
            work: directory.path().to_owned(),
            timeout: Duration::from_mins(1),
            keep: 0,
            environment: Vec::new(),
            steps: vec![Step::Line(
                "until [ \"$(ulimit -Sn)\" = 77 ]; do :; done; ulimit -Hn".to_owned(),
            )],
        };
        let host = Host {
            program: "/proc/self/exe".into(),
            variables: Arc::default(),
            open_files: Some(77),
        };
        let Attended { status, printed } = attend(job, host, 100).await;
        assert_eq!(status.end, End::Exit(0));
        assert_ne!(printed, b"77\n", "it may raise it by itself");
    }

    #[test]
    fn a_check_that_could_not_be_made_says_nothing() {
        for (end, expected) in [
            (End::Exit(0), Some(true)),
            (End::Exit(1), Some(false)),
            (End::Exit(125), Some(false)),
            (End::Exit(126), None),
            (End::Exit(127), None),
            (End::Exit(137), None),
            (End::Exit(-1), None),
            (End::Signal(15), None),
            (End::TimedOut, None),
            (End::Failed(String::new()), None),
        ] {
            assert_eq!(verdict(&end), expected, "{end:?}");
        }
    }
}
