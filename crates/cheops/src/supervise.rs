//! `cheops supervise DIR`: the process beside a command that keeps its result while the agent may
//! come and go. Agents start it; it is no verb for people.
//!
//! It is looked for before the command line is read, because it stands in the way of every command.

use std::{ffi::OsString, path::Path, process::ExitCode};

use crate::report::{Exit, Failure};

/// The directory of the run, if this process is to supervise one.
pub(crate) fn asked(arguments: &[OsString]) -> Option<&Path> {
    match arguments {
        [_, verb, directory] if verb == "supervise" => Some(Path::new(directory)),
        _ => None,
    }
}

/// Supervises a run.
pub(crate) fn run(directory: &Path) -> ExitCode {
    Failure::new(Exit::Wrong, format!("cannot supervise the run in `{}`", directory.display()))
        .caused_by("this program was built without runs")
        .show()
        .into()
}
