//! `cheops watch`: what changes, as it changes.

use std::time::Duration;

use cheops_agent::api::model::{Change, Happened, Resource, Sites};
use cheops_core::id::ResourceId;
use jiff::Timestamp;

use super::{Context, Outcome, Output, ask, json_line, yaml};
use crate::{
    client::{Ask, Client, Path},
    feed::Feed,
    printed::{Printed, fetch},
    report::{Exit, Failure, clean, first},
    screen, shell,
    words::{self, BAD, GOOD, OPEN},
};

/// How long an agent may take to say whether it knows a resource.
const SOON: Duration = Duration::from_secs(5);

/// How much of a command or an output is shown.
const SHOWN: usize = 80;

/// Watch what changes, everywhere or at one resource
///
/// Goes on until it is interrupted. A feed that breaks off is taken up again where it was. An agent
/// hears only of the resources of its own site: if that is not one of ID's, standard error says so.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this resource
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Begin after this number, which `-o wide` and `-o json` show; without it, now
    #[arg(long, value_name = "NUMBER")]
    since: Option<u64>,
    /// End when all that is known was told
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = arguments.id.as_deref().map(ask::resource).transpose()?;
    let client = context.client()?;
    let resource = id.as_ref().map(ResourceId::as_str);
    // Of what has happened before nobody knows when it did, except for operations.
    let is_live = !arguments.once && arguments.since.is_none();
    // After the feed has begun, so that the question holds up no change.
    let warn = || id.iter().for_each(|id| warn_if_elsewhere(&client, id));
    if arguments.once {
        let path = Path::api("changes")
            .query("since", Some(arguments.since.unwrap_or(0)))
            .query("resource", resource)
            .query("once", Some(true));
        let mut lines = client.lines::<Change>(Ask::get(&path))?;
        warn();
        while let Some(change) = lines.next()? {
            screen::print(&told(&change, context.output, is_live)?)?;
        }
        return Ok(Outcome::silent(Exit::Fine));
    }
    let mut feed = Feed::open(&client, resource, arguments.since)?;
    warn();
    while !screen::is_closed() {
        let change = feed.next()?;
        screen::print(&told(&change, context.output, is_live)?)?;
    }
    Ok(Outcome::silent(Exit::Fine))
}

/// Says so if the agent hears nothing of a resource. Nothing depends on it, so a question that is not
/// answered is no failure: the feed will tell.
fn warn_if_elsewhere(client: &Client, id: &ResourceId) {
    let path = ask::resource_path(id).query("limit", Some(1));
    let local: Result<Resource, Failure> =
        client.get_within(&path.clone().query("local", Some(true)), SOON);
    if !local.is_err_and(|failure| failure.is_unknown_resource()) {
        return;
    }
    let Ok(Sites { here, .. }) = client.get_within(&Path::api("sites"), SOON) else { return };
    let known: Result<Resource, Failure> = client.get_within(&path, SOON);
    if let Some(words) = elsewhere(id.as_str(), &here, &known) {
        screen::note(&words);
    }
}

/// What to say of a resource that is not known at a site, from what other sites know of it.
fn elsewhere(id: &str, here: &str, known: &Result<Resource, Failure>) -> Option<String> {
    match known {
        // It is on its way.
        Ok(resource) if resource.summary.sites.iter().any(|site| site == here) => None,
        Ok(resource) => Some(format!(
            "{here} is not a site of {id}, and hears nothing of it. It is on {}: name the agent of \
             one of them with --agent, or run `cheops watch {}` there",
            words::listed(&resource.summary.sites),
            shell::last(id)
        )),
        Err(failure) if failure.is_unknown_resource() => Some(format!(
            "no site that could be asked knows {id}; changes are told once it exists, if {here} is \
             one of its sites"
        )),
        Err(_) => None,
    }
}

fn told(change: &Change, output: Output, is_live: bool) -> Result<String, Failure> {
    let Some(words) = in_words(change) else { return Ok(String::new()) };
    match output {
        Output::Json => json_line(change),
        Output::Yaml => Ok(format!("---\n{}", yaml(change)?)),
        Output::Name => {
            Ok(change.resource.as_ref().map(|id| format!("resource/{id}\n")).unwrap_or_default())
        }
        Output::Table | Output::Wide => {
            let number = change.seq.filter(|_| output == Output::Wide);
            let number = number.map(|seq| format!("{seq}  ")).unwrap_or_default();
            Ok(format!("{number}{}  {}\n", time(change, is_live), words))
        }
    }
}

/// When it happened, if that is known.
fn time(change: &Change, is_live: bool) -> String {
    let moment = match &change.what {
        Happened::Operation { at, .. } => at.parse().ok(),
        _ => is_live.then(Timestamp::now),
    };
    moment.map_or_else(|| " ".repeat("00:00:00".len()), words::clock)
}

/// What happened, as a sentence; nothing if it is only about the feed.
fn in_words(change: &Change) -> Option<String> {
    let about = change.resource.as_deref().map(|id| format!("{}  ", clean(id))).unwrap_or_default();
    let (style, text) = match &change.what {
        Happened::Following => return None,
        Happened::Broken { why } => (BAD, format!("the feed can't be read on: {why}")),
        Happened::Operation { id, kind, author, command, .. } => {
            (anstyle::Style::new(), format!("{id}  {kind} by {author}: {}", first(command, SHOWN)))
        }
        Happened::Reply { operation, run } => {
            let took =
                run.took_ms.map(|took| format!(" in {}", words::took(took))).unwrap_or_default();
            let printed = Printed::by(run);
            let id = change.resource.as_deref().unwrap_or_default();
            let rest = printed.rest(Some(&fetch(id, operation, &run.site)));
            let rest = rest.map(|rest| format!(" {rest}"));
            let output = match rest {
                None => first(&words::first_line(printed.text), SHOWN),
                Some(rest) => first(printed.text.lines().next().unwrap_or_default(), SHOWN) + &rest,
            };
            let output = if output.is_empty() { output } else { format!(": {output}") };
            let status = printed.status(&words::word(run.status));
            (
                words::run_style(run.status),
                format!("{operation}  {status} at {}{took}{output}", run.site),
            )
        }
        Happened::Shown { peer, operation, print } => {
            let shows = print.as_deref().map_or_else(
                || "can't be shown".to_owned(),
                |print| format!("shows {}", words::print(print)),
            );
            (anstyle::Style::new(), format!("{operation}  {shows} at {peer}"))
        }
        Happened::Deleted => (OPEN, "is gone from all of its sites".to_owned()),
        Happened::NeedsDecision => (BAD, format!("needs a decision at {}", change.site)),
        Happened::Unknown { operation } => {
            (BAD, format!("{operation}  nobody knows whether it took effect at {}", change.site))
        }
        Happened::SiteReturned { peer } => {
            (GOOD, format!("{peer} can be reached from {}", change.site))
        }
        Happened::SiteLost { peer } => {
            (BAD, format!("{peer} can't be reached from {} any more", change.site))
        }
        Happened::Refused { peer, why } => (BAD, format!("refused what {peer} said: {why}")),
    };
    Some(format!("{about}{style}{}{style:#}", clean(&text)))
}
