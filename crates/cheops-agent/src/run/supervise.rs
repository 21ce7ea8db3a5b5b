//! The supervisor: a small process between the agent and a command, that outlives the agent. It sends
//! requests to the application, too (see `http`).
//!
//! It holds the lock of its place from before it starts until it is gone (see `place`), keeps the
//! time limit, keeps what is printed within its limit, and writes down how it ended. What must stay
//! true:
//! - the marker `started` is there before the command is, and before the first byte of a request;
//! - nothing that the command does, or leaves behind, keeps the status from being written when the
//!   command itself has ended;
//! - a full disk delays the status, and never changes it;
//! - it starts fast: no threads, no arguments but one, and no runtime before there is a request to
//!   send.
//!
//! The status is on disk, and not only in the memory of the system, if the agent is gone by then. An
//! agent that is there writes down the reply itself, as fast as we could.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{Child, ExitCode, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, kill_process_group, pidfd_open,
        set_child_subreaper, test_kill_process_group, waitpgid,
    },
};

use super::{
    command::{Later, Sink, command},
    http,
    job::{End, Job, Status, Step},
    orphan,
    place::Place,
};
use crate::open_files;

/// How long a command has from being asked to end until it is made to.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long to wait before something that had no room is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// This program, even if its file was replaced by a newer one.
const ITSELF: &str = "/proc/self/exe";
/// How often to look where the system can't tell by itself.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the job in a directory, as the whole work of this process, which is started by the agent
/// with the lock of that directory as its standard input.
pub fn supervise(directory: &Path) -> ExitCode {
    let place = Place::at(directory);
    match carry_out(&place) {
        Ok(()) => ExitCode::SUCCESS,
        // Nothing was started, or nobody wants to know. An agent that finds no marker tries again.
        Err(_) => ExitCode::FAILURE,
    }
}

fn carry_out(place: &Place) -> io::Result<()> {
    let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "there is no job to do");
    let job = place.read_job()?.ok_or_else(unreadable)?;
    open_files::take();
    let mut sink = Sink::new(Later::at(place.output()), job.keep);
    let mut marker = Marker { path: place.started(), file: None };
    let start = Instant::now();
    let deadline = start.checked_add(job.timeout);
    let (mut end, mut answer) = (End::Exit(0), None);
    for step in &job.steps {
        end = match step {
            Step::Line(_) | Step::Program(_) => run(&job, step, deadline, marker.set()?, &mut sink),
            Step::Request(request) => {
                let (from, first) = (sink.printed, marker.file.is_none());
                let mark = || marker.set().map(drop);
                let end = http::send(request, deadline, &mut sink, first, mark)?;
                if request.makes {
                    answer = Some(from..sink.printed);
                }
                end
            }
        };
        if !end.is_ok() {
            break;
        }
    }
    let (printed, kept) = (sink.printed, sink.kept);
    let status = Status { end, took: start.elapsed(), printed, kept, answer };
    let text = status.encode();
    loop {
        match write_status(place, &text, job.agent) {
            Ok(()) => return Ok(()),
            // The place was removed: nobody will ask for it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// The marker `started`, which is there from the first step on that may take effect.
struct Marker {
    path: PathBuf,
    file: Option<File>,
}

impl Marker {
    fn set(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => File::create(&self.path)?,
        };
        Ok(self.file.insert(file))
    }
}

/// Runs one command to its end.
fn run(
    job: &Job,
    step: &Step,
    deadline: Option<Instant>,
    marker: &mut File,
    sink: &mut Sink<Later>,
) -> End {
    loop {
        match begin(job, step) {
            Ok((child, pipe)) => {
                // Only an agent that finds us dead needs it, and can do without.
                let _ = orphan::note(marker, child.id());
                return attend(child, pipe, deadline, sink);
            }
            Err(error) if out_of_processes(&error) && !past(deadline) => thread::sleep(LOOK * 10),
            Err(error) => {
                let program = match step {
                    Step::Program(program) => program.path.clone(),
                    Step::Line(_) | Step::Request(_) => job.shell.display().to_string(),
                };
                let work = job.work.display();
                return End::Failed(format!("{program} can't be started in {work}: {error}"));
            }
        }
    }
}

fn out_of_processes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
}

fn past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

fn begin(job: &Job, step: &Step) -> io::Result<(Child, OwnedFd)> {
    let (mut command, pipe) = command(job, step, Path::new(ITSELF), None)?;
    Ok((command.spawn()?, pipe))
}

/// Waits for the end of a command, takes in what it prints, and keeps the time.
fn attend(
    mut child: Child,
    pipe: OwnedFd,
    deadline: Option<Instant>,
    sink: &mut Sink<Later>,
) -> End {
    let group = Pid::from_child(&child);
    // Without it (before Linux 5.3) we look now and then.
    let exit = pidfd_open(group, PidfdFlags::empty()).ok();
    let mut pipe = File::from(pipe);
    let (mut open, mut limit) = (true, Limit::Runs(deadline));
    let status = loop {
        let (printed, ended) = wait(open.then_some(&pipe), exit.as_ref(), limit.next());
        if printed {
            open = sink.take(|buffer| pipe.read(buffer), None);
        }
        if ended && let Ok(Some(status)) = child.try_wait() {
            break status;
        }
        limit = limit.keep(group);
    };
    if !matches!(limit, Limit::Runs(_)) {
        end_group(group, &limit);
    }
    if open && let Ok(left) = rustix::io::ioctl_fionread(&pipe) {
        // What the command printed is in the pipe by now. Whoever else has it open may go on
        // printing for ever; that is not waited for.
        sink.take(|buffer| pipe.read(buffer), Some(left));
    }
    if matches!(limit, Limit::Runs(_)) { end_of(status) } else { End::TimedOut }
}

pub(super) fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, signal) => End::Signal(signal.unwrap_or_default()),
    }
}

/// Waits until something was printed, the command may have ended, or the time has come.
fn wait(pipe: Option<&File>, exit: Option<&OwnedFd>, until: Option<Instant>) -> (bool, bool) {
    let mut fds = Vec::with_capacity(2);
    fds.extend(exit.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
    fds.extend(pipe.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = if exit.is_none() { Some(left.map_or(LOOK, |left| left.min(LOOK))) } else { left };
    // A time that the system can't express is far enough away to be looked at again.
    let left = left.map(|left| left.min(Duration::from_hours(24)));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let Ok(_) = poll(&mut fds, left.as_ref()) else { return (false, true) };
    let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
    match exit {
        Some(_) => (ready(1), ready(0)),
        None => (ready(0), true),
    }
}

/// How far the time limit has gone.
enum Limit {
    /// The command may run until then.
    Runs(Option<Instant>),
    /// It was asked to end, and is made to end then.
    Asked(Instant),
    /// It was made to end.
    Killed,
}

impl Limit {
    fn next(&self) -> Option<Instant> {
        match self {
            Self::Runs(until) => *until,
            Self::Asked(until) => Some(*until),
            Self::Killed => None,
        }
    }

    fn keep(self, group: Pid) -> Self {
        match self {
            Self::Runs(until) if past(until) => {
                // What loses its parent from now on is ours to wait for, so that we see it go.
                let _ = set_child_subreaper(Some(getpid()));
                let _ = kill_process_group(group, Signal::TERM);
                Self::Asked(Instant::now() + GRACE)
            }
            Self::Asked(until) if past(Some(until)) => {
                let _ = kill_process_group(group, Signal::KILL);
                Self::Killed
            }
            other => other,
        }
    }
}

/// The command is gone, and what it had started may still be on its way to an orderly end.
fn end_group(group: Pid, limit: &Limit) {
    while let Limit::Asked(until) = limit
        && !past(Some(*until))
    {
        while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
        if test_kill_process_group(group) == Err(Errno::SRCH) {
            return;
        }
        thread::sleep(LOOK);
    }
    let _ = kill_process_group(group, Signal::KILL);
}

/// Writes the status. One that is not there whole counts as none, so it needs no other name first.
fn write_status(place: &Place, text: &str, agent: u32) -> io::Result<()> {
    let mut file = File::create(place.status())?;
    file.write_all(text.as_bytes())?;
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get().cast_unsigned());
    if parent != Some(agent) {
        file.sync_all()?;
        for directory in place.directory().ancestors().take(3) {
            File::open(directory)?.sync_all()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_supervisor_whose_place_was_removed_ends() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::at(&directory.path().join("place"));
        std::fs::create_dir(place.directory()).unwrap();
        let job = Job {
            boot: String::new(),
            agent: std::process::id(),
            shell: "/bin/sh".into(),
            work: directory.path().to_owned(),
            timeout: Duration::from_secs(10),
            keep: 0,
            environment: Vec::new(),
            steps: vec![Step::Line("rm -r place".to_owned())],
        };
        place.write_job(&job).unwrap();
        let (to_ended, ended) = mpsc::channel();
        thread::spawn(move || to_ended.send(carry_out(&place)));
        let ended = ended.recv_timeout(Duration::from_secs(10)).expect("it goes on for ever");
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
