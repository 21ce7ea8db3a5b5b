//! A command whose supervisor is gone: killed by hand, or by a system that had no memory left.
//!
//! Nobody will ever know how it ended, and it must not go on beside a second run. So the supervisor
//! notes its process, and whoever finds the supervisor dead ends it. What must stay true: nothing
//! else is ended. A number that was given to another process since is recognised by the time at
//! which that one started.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// How long to wait for processes that were made to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Notes a process that was just started, in the marker.
pub(super) fn note(marker: &mut File, process: u32) -> io::Result<()> {
    let Some(since) = since(process) else { return Ok(()) };
    marker.write_all(format!("{process} {since}\n").as_bytes())
}

/// Ends the process that was noted last in a marker, and its group. Says whether there was one.
pub(super) fn end(marker: &Path) -> bool {
    let Some((process, then)) = fs::read_to_string(marker).ok().as_deref().and_then(read) else {
        return false;
    };
    let group = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(group) = group.filter(|_| since(process) == Some(then)) else { return false };
    if kill_process_group(group, Signal::KILL).is_err() {
        return false;
    }
    let start = Instant::now();
    while start.elapsed() < PATIENCE && test_kill_process_group(group).is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The last line that is whole.
fn read(text: &str) -> Option<(u32, u64)> {
    let whole = &text[..text.rfind('\n')?];
    let (process, since) = whole.lines().last()?.split_once(' ')?;
    Some((process.parse().ok()?, since.parse().ok()?))
}

/// When a process started, in the system's own count since it was booted.
fn since(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program comes second, in parentheses, and can hold anything.
    stat[stat.rfind(')')?..].split_ascii_whitespace().nth(20)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::{CommandExt, ExitStatusExt},
        process::Command,
    };

    use super::*;

    #[test]
    fn the_process_that_was_noted_is_ended_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let marker = directory.path().join("started");
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let then = since(child.id()).unwrap();
        for (text, why) in [
            (String::new(), "nothing is noted"),
            (format!("{} {then}", child.id()), "the note was cut short"),
            (format!("{} {}\n", child.id(), then + 1), "the number was given to another process"),
            ("999999999 1\n".to_owned(), "there is no such process"),
            ("a b\n".to_owned(), "the note is not one"),
        ] {
            fs::write(&marker, text).unwrap();
            assert!(!end(&marker), "{why}");
            assert!(child.try_wait().unwrap().is_none(), "{why}");
        }
        let mut file = File::create(&marker).unwrap();
        file.write_all(b"1 1\n").unwrap();
        note(&mut file, child.id()).unwrap();
        // The test is its parent: until it waits for it, the group is not gone.
        let ended = thread::spawn(move || end(&marker));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(ended.join().unwrap());
    }
}
