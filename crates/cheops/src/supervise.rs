//! `cheops supervise DIR`: the process beside a command that keeps its result while the agent may
//! come and go. `cheops confine TERMS PROGRAM …`: the process that becomes a command within limits.
//! Agents start them; they are no verbs for people.
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

/// The terms, the program and its arguments, if this process is to become a command within limits.
pub(crate) fn asked_to_confine(arguments: &[OsString]) -> Option<(&str, &OsString, &[OsString])> {
    match arguments {
        [_, verb, terms, program, arguments @ ..] if verb == cheops_agent::run::confine::VERB => {
            Some((terms.to_str()?, program, arguments))
        }
        _ => None,
    }
}

/// Supervises a run.
pub(crate) fn run(directory: &Path) -> ExitCode {
    cheops_agent::run::supervise(directory)
}
