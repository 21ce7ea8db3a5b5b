//! The `cheops` program: reads its arguments, calls a verb, and turns what it says into text on the
//! two streams and an exit status. What a verb does is in [`command`], one file each.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

use crate::{
    command::{Command, Output},
    report::Failure,
};

mod command;
mod input;
mod report;
mod sites;

/// Makes the sites of an application work together.
#[derive(Debug, Parser)]
#[command(name = "cheops", version, max_term_width = 100)]
struct Arguments {
    /// How to write the result
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = arguments.command.run(arguments.output).and_then(|outcome| {
        write(&outcome.text)?;
        Ok(outcome.exit)
    });
    match result {
        Ok(exit) => exit,
        Err(failure) => failure.show(),
    }
}

/// Writes to standard output. A reader that has seen enough (`| head`) is not a failure.
fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::input("cannot write the result")
                .caused_by(error)
                .hint("is the disk full?"))
        }
        _ => Ok(()),
    }
}
