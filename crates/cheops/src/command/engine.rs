//! `cheops engine`: what keeps what a site has written.

use std::{
    fmt::Write as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use cheops_agent::{
    config::Config,
    copy_engine,
    engine::{Copied, CopyFailure, Kind, Progress},
};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::{Context, Outcome, json};
use crate::{
    report::{Exit, Failure, clean},
    screen,
};

/// How often is told how far it is.
const TELL: Duration = Duration::from_secs(2);

/// Move what a site has written from one engine to another
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// Copy all that a site has written to its other engine, and read it back
    ///
    /// The agent must be stopped, and the other engine empty. The one that is copied stays as it is.
    /// A copy that was broken off goes on when it is asked for again.
    Copy(Copy),
}

#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// The site's configuration, in TOML, with a section `[couchdb]`
    #[arg(long, value_name = "SITE.toml")]
    config: PathBuf,
    /// The data directory, if the agent is given another one than the configuration names
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The engine that holds the records
    #[arg(long, value_enum, value_name = "ENGINE")]
    from: Name,
    /// The engine that is to hold them
    #[arg(long, value_enum, value_name = "ENGINE")]
    to: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// The store in the data directory
    Embedded,
    /// The databases that `[couchdb]` names
    Couchdb,
}

impl From<Name> for Kind {
    fn from(name: Name) -> Self {
        match name {
            Name::Embedded => Self::Embedded,
            Name::Couchdb => Self::CouchDb,
        }
    }
}

/// What was done, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    site: &'a str,
    from: &'static str,
    to: &'static str,
    values: u64,
    resumed: u64,
    digest: &'a str,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let Arguments::Copy(asked) = arguments;
    let mut config = Config::read(&asked.config).map_err(|error| {
        Failure::input(format!("invalid configuration `{}`", asked.config.display()))
            .caused_by(error.problem)
            .hint("see docs/couchdb.md")
    })?;
    if let Some(data) = &asked.data {
        config.data.clone_from(data);
    }
    let kinds @ (from, to) = (asked.from.into(), asked.to.into());
    let mut told = Instant::now();
    let copied = copy_engine(&config, kinds, &mut |progress| {
        if told.elapsed() >= TELL {
            told = Instant::now();
            screen::note(&in_words(progress));
        }
    });
    let copied = copied.map_err(failed)?;
    let site = config.site.to_string();
    let text = || summary(&copied, kinds, &asked.config.display().to_string());
    let document = || {
        let Copied { values, resumed, digest } = &copied;
        let (from, to) = (Kind::name(from), Kind::name(to));
        json(&Report { site: &site, from, to, values: *values, resumed: *resumed, digest })
    };
    let document = document()?;
    Ok(Outcome::success(context.output.local(text, || document)?))
}

fn in_words(progress: Progress) -> String {
    match progress {
        Progress::Read(count) => format!("{count} values read"),
        Progress::Copied(count, all) => format!("{count} of {all} values copied"),
        Progress::Checked(count, all) => format!("{count} of {all} values read back"),
    }
}

fn summary(copied: &Copied, (from, to): (Kind, Kind), file: &str) -> String {
    let Copied { values, resumed, digest } = copied;
    let mut text = format!("Copied {values} values from {from} to {to}");
    if *resumed > 0 {
        let _ = write!(text, ", of which {resumed} were there already");
    }
    let _ = writeln!(text, ". Read back, they are the same.\nDigest: {digest}");
    let file = clean(file);
    let _ = writeln!(text, "Now write this in {file}, and start the agent:\n\nengine = \"{to}\"");
    text
}

fn failed(failure: CopyFailure) -> Failure {
    let hint = match &failure {
        CopyFailure::Damaged { .. } => Some(
            "start the agent on it once: it deals with what is lost; see docs/store.md. Then stop it, and copy again",
        ),
        CopyFailure::BrokenOff(_) => Some("run the same command again: it goes on from there"),
        CopyFailure::Changed => {
            Some("stop the agent, and run the same command again: it goes on from there")
        }
        CopyFailure::Refused(_) | CopyFailure::Other(_) | CopyFailure::Differs(..) => None,
    };
    let exit = match failure {
        CopyFailure::Refused(_) | CopyFailure::Damaged { .. } | CopyFailure::Other(_) => {
            Exit::Refused
        }
        CopyFailure::BrokenOff(_) | CopyFailure::Differs(..) | CopyFailure::Changed => Exit::Wrong,
    };
    let message = match exit {
        Exit::Refused => "nothing was copied",
        _ => "not all was copied",
    };
    let shown = Failure::new(exit, message).caused_by(failure);
    match hint {
        Some(hint) => shown.hint(hint),
        None => shown,
    }
}
