//! `cheops demo`: three sites on this machine, to try things on.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::signal::unix::{SignalKind, signal};

use self::{agents::Agents, player::Player, sites::Sites};
use super::Outcome;
use crate::{
    report::{Exit, Failure, clean},
    screen, shell,
    table::{Cell, Table},
    words::{self, BOLD},
};

mod agents;
mod player;
mod sites;
mod story;

/// Start three sites on this machine to try things on
///
/// Three agents with directories of their own, ready in seconds; nothing to install. They stop, and
/// the directories go, with Ctrl-C.
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

pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Failure> {
    let interrupted = Interrupt::listen()?;
    let begun = Instant::now();
    let mut agents = Agents::start(arguments.keep.as_deref(), &interrupted)?;
    screen::print(&ready(&agents, begun.elapsed()))?;
    let exit = if arguments.tour {
        let mut sites = Sites::new(agents.addresses(), interrupted)?;
        Player::new(&mut sites, screen::print).play(story::STORIES)?
    } else {
        screen::print(&to_try(&agents))?;
        while !interrupted.is_set() {
            agents.check()?;
            thread::sleep(Duration::from_millis(100));
        }
        Exit::Fine
    };
    agents.stop();
    Ok(Outcome::silent(exit))
}

fn ready(agents: &Agents, took: Duration) -> String {
    let mut table = Table::new(["SITE", "API", "COMMANDS RUN IN", "LOG"]).indented(2);
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

/// Commands that can be pasted into another terminal.
fn to_try(agents: &Agents) -> String {
    let address = agents.addresses().into_iter().next().map(|(_, address)| address.to_string());
    let address = address.unwrap_or_default();
    // Quoted twice: the shell reads what stands for an alias once more when the alias is used.
    let program = shell::word(&agents.program().display().to_string());
    let program = clean(&shell::word(&program));
    format!(
        "{BOLD}Try, in another terminal{BOLD:#}

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

/// Whether someone wants this to end.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens to the signals that mean so, from now on.
    fn listen() -> Result<Self, Failure> {
        let failed = |error| Failure::new(Exit::Wrong, "cannot listen to signals").caused_by(error);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (mut interrupt, mut terminate) = {
            let _inside = runtime.enter();
            (
                signal(SignalKind::interrupt()).map_err(failed)?,
                signal(SignalKind::terminate()).map_err(failed)?,
            )
        };
        let set = Arc::new(AtomicBool::new(false));
        let flag = Self(set.clone());
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            });
            set.store(true, Ordering::Relaxed);
        });
        Ok(flag)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// A failure if it is.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_set() { Err(Failure::new(Exit::Wrong, "interrupted")) } else { Ok(()) }
    }
}
