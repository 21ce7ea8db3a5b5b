//! `cheops exec`: a command for a resource, on all of its sites.

use std::{cell::OnceCell, path::Path as LocalPath};

use cheops_agent::api::model::{File, Rehearsal, Submit};
use cheops_core::{
    id::{Key, Kind},
    matrix::Config,
};
use hyper::Method;

use self::answers::Asked;
use super::{Context, Outcome, ask};
use crate::{
    client::{Ask, Client},
    input,
    interrupt::Interrupt,
    report::Failure,
    screen,
};

pub(super) mod accepted;
pub(super) mod answers;
mod attach;
pub(super) mod progress;
mod rehearsal;

/// Run a command for a resource on all of its sites
///
/// The command is durable at the agent's site when it is accepted, and reaches all sites of the
/// resource, at once or when they can be reached again. Nothing is lost when the waiting ends.
///
/// `{id}` in the command stands for the resource's id. `{path}` of a file that is there is
/// attached, and stands for its path at each site. A resource on 'site1 % site2' is in parts:
/// each site does its own, with `CHEOPS_PART` and `CHEOPS_PARTS` in the environment, and
/// `{split 10}` is its share of the number.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 all sites said OK; 1 some said KO, or another operation won; \
                        2 refused; 3 some have not answered in time; 4 no agent answers; 130 \
                        interrupted: what was accepted goes on."
)]
pub(crate) struct Arguments {
    /// The resource
    #[arg(long)]
    id: String,
    /// Where the resource is to exist: 'site1 & site2', or in parts: 'site1 % site2'. Needed to
    /// create it
    #[arg(long, value_name = "PLACE")]
    sites: Option<String>,
    /// The command line, for the shell of each site
    #[arg(long, allow_hyphen_values = true)]
    command: String,
    /// What the command does, in the words of the matrix: `set`, `inc`, `apply`
    #[arg(long = "type", visible_alias = "kind", value_name = "KIND")]
    kind: Option<String>,
    /// The resource's configuration: a file, `-` for standard input, or the JSON itself
    #[arg(long, value_name = "FILE or JSON")]
    config: Option<String>,
    /// A file that the command uses as `{NAME}`; may be given more than once
    #[arg(long = "file", value_name = "PATH or NAME=PATH")]
    files: Vec<String>,
    /// Declare a repair: all that came before is over
    #[arg(long)]
    force: bool,
    /// Let it count even if it fails at the site that receives it
    #[arg(long)]
    keep_going: bool,
    /// How long to wait for the replies of all sites; `0s` not at all
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    wait: String,
    /// A name for this request: the same again is the same operation
    #[arg(long)]
    key: Option<String>,
    /// Only say what it would do
    #[arg(long)]
    dry_run: bool,
    /// Who asks; without it `CHEOPS_AUTHOR`, or the user's name
    #[arg(long)]
    author: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = ask::resource(&arguments.id)?;
    if let Some(sites) = &arguments.sites {
        ask::place(sites)?;
    }
    let wait = ask::duration("--wait", &arguments.wait)?;
    let attached =
        attach::plan(&arguments.command, &arguments.files, |path| LocalPath::new(path).is_file())?;
    let mut submit = Submit {
        command: attached.command,
        kind: arguments.kind.as_deref().map(kind).transpose()?,
        sites: arguments.sites.clone(),
        config: arguments.config.as_deref().map(config).transpose()?,
        files: Vec::new(),
        force: arguments.force,
        keep_going: arguments.keep_going,
        // Always, so that both wait as long, whatever the agent would do by itself.
        wait: Some(arguments.wait.clone()),
        author: ask::author(arguments.author.as_deref())?,
        key: arguments.key.as_deref().map(key).transpose()?,
        dry_run: arguments.dry_run,
    };
    let client = context.client()?;
    submit.files = upload(&client, &attached.files)?;
    let path = ask::resource_path(&id).then("operations");
    if arguments.dry_run {
        let rehearsal: Rehearsal = client.post(&path, &submit)?;
        return Ok(Outcome::success(context.output.write(&rehearsal)?));
    }
    let client = client.until(Interrupt::ctrl_c()?);
    let request = Ask::new(Method::POST, &path).json(&submit)?;
    let accepted = OnceCell::new();
    let asked = Asked { id: &id, wait, keep_going: arguments.keep_going, accepted: &accepted };
    let followed = progress::follow(&client, request, asked, context.output);
    let place = arguments.sites.as_deref();
    if let Some(note) = place.zip(accepted.get()).and_then(|(place, it)| it.note(&id, place)) {
        screen::note(&note);
    }
    conclude(followed, asked)
}

/// Says the last words about an operation. Whatever fails once it was accepted, this included, tells
/// that it goes on.
pub(super) fn conclude(
    followed: Result<Outcome, Failure>,
    asked: Asked<'_>,
) -> Result<Outcome, Failure> {
    let said = followed.and_then(|Outcome { text, exit }| {
        screen::print(&text)?;
        Ok(Outcome::silent(exit))
    });
    said.map_err(|failure| match asked.accepted.get() {
        Some(accepted) => accepted.goes_on(failure, asked.id),
        None => failure,
    })
}

fn upload(client: &Client, files: &[attach::Attached]) -> Result<Vec<File>, Failure> {
    let sent = files.iter().map(|file| {
        let stored = client.upload(&file.path)?;
        Ok(File { name: file.name.clone(), content: stored.content, length: stored.length })
    });
    sent.collect()
}

fn kind(text: &str) -> Result<String, Failure> {
    let kind: Result<Kind, _> = text.parse();
    kind.map(|kind| kind.to_string()).map_err(|error| {
        Failure::input("invalid kind for `--type`").at(text, 0..text.len()).caused_by(error)
    })
}

fn key(text: &str) -> Result<String, Failure> {
    let key: Result<Key, _> = text.parse();
    key.map(|key| key.to_string())
        .map_err(|error| Failure::input("invalid key").at(text, 0..text.len()).caused_by(error))
}

/// The configuration in a file, or in the argument itself.
fn config(argument: &str) -> Result<serde_json::Value, Failure> {
    let (text, name) = if argument.trim_start().starts_with('{') {
        (argument.to_owned(), "of `--config`".to_owned())
    } else {
        let text = input::document(LocalPath::new(argument), "configuration", "{}")?;
        (text, format!("`{argument}`"))
    };
    let invalid = || format!("invalid configuration {name}");
    Config::from_json(&text).map_err(|error| Failure::json(invalid(), &text, error))?;
    serde_json::from_str(&text).map_err(|error| Failure::input(invalid()).caused_by(error))
}
