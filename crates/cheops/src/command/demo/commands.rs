//! Ends the commands that the agents of the demo have left running.
//!
//! A command outlives its agent, under a supervisor. Where the data of the agents goes, nobody will
//! ever ask for its result. What must stay true: only supervisors of runs in that directory are
//! ended, and what they have started.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long they may take to be gone.
const END: Duration = Duration::from_secs(5);

/// How often they are looked at meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// A process, as the system lists it.
struct Process {
    parent: i32,
    is_supervisor: bool,
}

/// Ends all supervisors of runs in a directory, and what they have started.
pub(super) fn end(directory: &Path) {
    let deadline = Instant::now() + END;
    while Instant::now() < deadline {
        let left = left(&processes(directory));
        if left.is_empty() {
            return;
        }
        for id in left {
            if let Some(id) = Pid::from_raw(id) {
                // One that has ended by itself needs no signal.
                let _ = kill_process(id, Signal::KILL);
            }
        }
        thread::sleep(LOOK);
    }
}

/// The supervisors, and all processes below them: these first, so that none is left without a
/// supervisor by which it could be found.
fn left(processes: &BTreeMap<i32, Process>) -> Vec<i32> {
    let supervisors = processes.iter().filter(|(_, process)| process.is_supervisor);
    let supervisors: Vec<i32> = supervisors.map(|(&id, _)| id).collect();
    let mut below: Vec<i32> = Vec::new();
    let mut above = supervisors.clone();
    while !above.is_empty() {
        let children = processes.iter().filter(|(_, process)| above.contains(&process.parent));
        let children: Vec<i32> = children.map(|(&id, _)| id).collect();
        above = children.into_iter().filter(|id| !below.contains(id)).collect();
        below.extend(&above);
    }
    if below.is_empty() { supervisors } else { below }
}

/// All processes, by id. What can't be read is not ours.
fn processes(directory: &Path) -> BTreeMap<i32, Process> {
    let Ok(all) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let ids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: i32| Some((id, process(id, directory).ok()??))).collect()
}

fn process(id: i32, directory: &Path) -> io::Result<Option<Process>> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let line = fs::read(format!("/proc/{id}/cmdline"))?;
    let mut words = line.split(|&byte| byte == 0).skip(1);
    let is_supervisor = words.next() == Some(b"supervise")
        && words
            .next()
            .is_some_and(|path| Path::new(OsStr::from_bytes(path)).starts_with(directory))
        && fs::read_link(format!("/proc/{id}/exe"))? == fs::read_link("/proc/self/exe")?;
    // After the name, which may hold anything and ends with the last bracket: state, parent. One
    // that has ended and only waits for its parent is gone.
    let mut rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let (state, parent) = (rest.next(), rest.next().and_then(|parent| parent.parse().ok()));
    let is_gone = state.is_none_or(|state| state == "Z" || state == "X");
    Ok(parent.filter(|_| !is_gone).map(|parent| Process { parent, is_supervisor }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_supervisors_have_started_goes_before_them() {
        let process = |parent, is_supervisor| Process { parent, is_supervisor };
        let mut all = BTreeMap::from([
            (1, process(0, false)),
            (5, process(1, true)),
            (6, process(5, false)),
            (7, process(6, false)),
            (8, process(1, false)),
        ]);
        assert_eq!(left(&all), [6, 7]);
        all.retain(|id, _| ![6, 7].contains(id));
        assert_eq!(left(&all), [5]);
        all.remove(&5);
        assert!(left(&all).is_empty());
    }
}
