//! `cheops completions`: what a shell needs to complete the program's words.

use clap::CommandFactory;
use clap_complete::Shell;

use super::Outcome;

/// Write completions for a shell
///
/// For bash: `cheops completions bash > /etc/bash_completion.d/cheops`; for zsh:
/// `cheops completions zsh > "${fpath[1]}/_cheops"`; for fish:
/// `cheops completions fish > ~/.config/fish/completions/cheops.fish`.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut crate::Arguments::command(),
        "cheops",
        &mut script,
    );
    Outcome::success(String::from_utf8_lossy(&script).into_owned())
}
