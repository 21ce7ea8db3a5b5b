//! The verbs, one file each. A verb reads what it needs, and returns what it has to say: it writes
//! to no stream itself, so that every verb reports, pipes and exits alike.

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};

use crate::report::Failure;

mod matrix;
mod play;
mod scope;

/// What the program can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Scope(scope::Arguments),
    #[command(subcommand)]
    Matrix(matrix::Arguments),
}

impl Command {
    pub(crate) fn run(self, output: Output) -> Result<Outcome, Failure> {
        match self {
            Self::Scope(arguments) => scope::run(&arguments, output),
            Self::Matrix(arguments) => matrix::run(&arguments, output),
        }
    }
}

/// For whom the result is written.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

/// What a verb has to say, and the exit status that says it in a number.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) exit: ExitCode,
}

impl Outcome {
    /// All is well.
    pub(crate) fn success(text: String) -> Self {
        Self { text, exit: ExitCode::SUCCESS }
    }
}
