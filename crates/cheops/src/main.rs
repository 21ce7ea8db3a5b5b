//! The `cheops` program: reads its arguments, calls a verb, and turns what it says into text on the
//! two streams and an exit status. What a verb does is in [`command`], one file each.

use std::{env, ffi::OsString, process::ExitCode};

use cheops_agent::shell;
use clap::Parser;

use crate::{
    client::Access,
    command::{Command, Context, Output},
    report::Exit,
};

/// A request allocates some hundred times, and what one thread allocates another frees: with this allocator an agent
/// accepts a fifth more operations a second than with the system's, in no more memory.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod client;
mod command;
mod feed;
mod input;
mod interrupt;
mod printed;
mod report;
mod screen;
mod sites;
mod spelling;
mod supervise;
mod table;
mod words;

/// Makes the sites of an application work together.
#[derive(Debug, Parser)]
#[command(
    name = "cheops",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0 all is well; 1 something is wrong (a site said KO, sites differ, there are \
                  problems); 2 bad input, or the agent refused; 3 no answer in time, and the work goes on; \
                  4 no agent answers; 130 interrupted with Ctrl-C."
)]
struct Arguments {
    /// How to write the result
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Where the agent is: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`; without it `CHEOPS_AGENT`,
    /// or the one on this machine
    #[arg(long, global = true, value_name = "URL")]
    agent: Option<String>,
    #[command(flatten)]
    access: Access,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().collect();
    // First of all, since every command that a site runs starts with it.
    if let Some(directory) = supervise::asked(&arguments) {
        return supervise::run(directory);
    }
    if let Some((terms, program, rest)) = supervise::asked_to_confine(&arguments) {
        return cheops_agent::run::confine::confine(terms, program, rest);
    }
    let Arguments { output, agent, access, command } =
        Arguments::parse_from(spelling::with_verb(arguments));
    let context = Context { output, agent, access };
    let result = command.run(&context).and_then(|outcome| {
        screen::print(&outcome.text)?;
        Ok(outcome.exit)
    });
    let exit: Exit = match result {
        Ok(exit) => exit,
        Err(failure) => failure.show(),
    };
    exit.into()
}
