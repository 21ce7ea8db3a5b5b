//! `cheops demo`: three sites on this machine, to try things on.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use self::{agents::Agents, directory::Directory, player::Player, sites::Sites};
use super::{Context, Outcome};
use crate::{
    interrupt::Interrupt,
    report::{Exit, Failure, clean},
    screen, shell,
    table::{Cell, Table},
    words::{self, BOLD},
};

mod agents;
mod commands;
mod directory;
mod player;
mod sites;
mod story;

/// Start three sites on this machine to try things on
///
/// Three agents with directories of their own, ready in seconds; nothing to install. They stop, and
/// the directories go, with Ctrl-C, or when the terminal is closed or nobody reads what is printed.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Play a story by itself: a cut, conflicts, and how the sites come to agree
    ///
    /// The exit status is 0 only if all sites agree with what was expected.
    #[arg(long)]
    tour: bool,
    /// Keep the sites in this directory, and take them up again from there
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    if !context.output.is_text() {
        return Err(Failure::input("a demo is for people: there is no document to write")
            .hint("leave -o out; the sites that it starts can be asked with -o json"));
    }
    let interrupted = Interrupt::any()?;
    let begun = Instant::now();
    let directory = Directory::prepare(arguments.keep.as_deref())?;
    if arguments.tour && directory.holds_sites() {
        return Err(directory.is_used());
    }
    let mut agents = Agents::start(directory, &interrupted)?;
    screen::print(&ready(&agents, begun.elapsed()))?;
    let exit = if arguments.tour {
        let mut sites = Sites::new(agents.addresses(), interrupted)?;
        Player::new(&mut sites, screen::print).play(story::STORIES)?
    } else {
        screen::print(&to_try(&agents))?;
        while !interrupted.is_set() && !screen::is_closed() {
            agents.check()?;
            thread::sleep(Duration::from_millis(100));
        }
        Exit::Fine
    };
    agents.stop();
    Ok(Outcome::silent(exit))
}

fn ready(agents: &Agents, took: Duration) -> String {
    let mut table = Table::new(["SITE", "PAGE AND API", "COMMANDS RUN IN", "LOG"]).indented(2);
    for agent in agents.all() {
        table.row([
            Cell::from(&agent.site),
            agent.api.to_string().into(),
            agent.work.display().to_string().into(),
            agent.log.display().to_string().into(),
        ]);
    }
    format!("Three sites are ready, after {}.\n\n{}\n", words::took_for(took), table.render())
}

/// A page to open, and commands that can be pasted into another terminal.
fn to_try(agents: &Agents) -> String {
    let address = agents.addresses().into_iter().next().map(|(_, address)| address.to_string());
    let address = address.unwrap_or_default();
    // Quoted twice: the shell reads what stands for an alias once more when the alias is used.
    let program = shell::word(&agents.program().display().to_string());
    let program = clean(&shell::word(&program));
    format!(
        "{BOLD}Look:{BOLD:#} open {address} in a browser; each site has such a page.

{BOLD}Try, in another terminal{BOLD:#}

  alias cheops={program}
  export CHEOPS_AGENT={address}

  cheops get sites
  cheops exec --id hello --sites 'site1 & site2 & site3' --type set --command 'echo hello > {{id}}'
  cheops show hello --command 'cat {{id}}'

  cheops site pause site1                 # cut site1 off, and go on working there
  cheops exec --id hello --type set --command 'echo alone > {{id}}' --wait 2s
  cheops diff hello --command 'cat {{id}}'
  cheops site resume site1
  cheops describe hello

  cheops delete hello --command 'rm {{id}}'

Stop with Ctrl-C.
"
    )
}
