//! `cheops supervise DIR`: the process beside a command that keeps its result while the agent may
//! come and go. Agents start it; it is no verb for people.
//!
//! It is looked for before the command line is read, because it stands in the way of every command.

use std::{ffi::OsString, path::Path, process::ExitCode};

/// The directory of the run, if this process is to supervise one.
pub(crate) fn asked(arguments: &[OsString]) -> Option<&Path> {
    match arguments {
        [_, verb, directory] if verb == "supervise" => Some(Path::new(directory)),
        _ => None,
    }
}

/// Supervises a run.
pub(crate) fn run(directory: &Path) -> ExitCode {
    cheops_agent::run::supervise(directory)
}
