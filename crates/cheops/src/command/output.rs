//! `cheops output`: all that an operation printed at a site.

use cheops_agent::api::model::Operation;
use cheops_core::id::{OpId, SiteId};

use super::{Context, Outcome, ask};
use crate::{
    printed::Printed,
    report::{Exit, Failure, clean},
    screen, words,
};

/// Fetch all that an operation printed at a site
///
/// Replies hold the beginning of it only. To a file or a pipe it goes as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The resource
    #[arg(value_name = "ID")]
    id: String,
    /// The operation: site1:7
    #[arg(value_name = "OPERATION")]
    operation: String,
    /// The site that ran it; the one that received it without this
    #[arg(long)]
    site: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = ask::resource(&arguments.id)?;
    let text = &arguments.operation;
    let operation: OpId = text.parse().map_err(|error| {
        Failure::input("invalid operation").at(text, 0..text.len()).caused_by(error)
    })?;
    let site: SiteId = match &arguments.site {
        Some(text) => text.parse().map_err(|error| {
            Failure::input("invalid site").at(text, 0..text.len()).caused_by(error)
        })?,
        None => operation.site.clone(),
    };
    let of_operation = ask::resource_path(&id).then("operations").then(&operation.to_string());
    let path = of_operation.clone().then("output").query("site", Some(&site));
    let mut terminal = Terminal::default();
    let client = context.client()?;
    client.download(&path, |bytes| {
        if screen::is_terminal() {
            screen::print(&terminal.cleaned(bytes))
        } else {
            screen::print_bytes(bytes)
        }
    })?;
    // Of what comes at the end nobody can see whether it is the end: the reply tells.
    if let Ok(operation) = client.get::<Operation>(&of_operation)
        && let Some(run) = operation.runs.iter().find(|run| run.site == site.as_str())
        && let Some((all, kept)) = Printed::by(run).cut()
    {
        screen::note(&format!(
            "cut: {} of {} that were printed at {site} are kept",
            words::size(kept),
            words::size(all)
        ));
    }
    Ok(Outcome { text: terminal.rest(), exit: Exit::Fine })
}

/// Text for a terminal, of bytes that come in pieces.
#[derive(Default)]
struct Terminal {
    /// The line that has not ended yet.
    line: Vec<u8>,
}

/// A line that is longer is written in parts.
const LINE: usize = 64 << 10;

impl Terminal {
    fn cleaned(&mut self, bytes: &[u8]) -> String {
        self.line.extend_from_slice(bytes);
        let whole = self.line.iter().rposition(|&b| b == b'\n').map(|end| end + 1);
        let whole = whole.unwrap_or(if self.line.len() > LINE { self.line.len() } else { 0 });
        let lines: Vec<u8> = self.line.drain(..whole).collect();
        String::from_utf8_lossy(&lines)
            .split_inclusive('\n')
            .map(|line| match line.strip_suffix('\n') {
                Some(line) => clean(line.trim_end_matches('\r')) + "\n",
                None => clean(line),
            })
            .collect()
    }

    fn rest(&self) -> String {
        match self.line.as_slice() {
            [] => String::new(),
            line => clean(&String::from_utf8_lossy(line)) + "\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_clean_lines_whatever_the_pieces() {
        let text = "a\u{1b}[2Jb\r\nü\tend";
        for size in 1..text.len() {
            let mut terminal = Terminal::default();
            let mut written: String =
                text.as_bytes().chunks(size).map(|piece| terminal.cleaned(piece)).collect();
            written += &terminal.rest();
            assert_eq!(written, "a\u{fffd}[2Jb\nü end\n", "{size}");
        }
    }
}
