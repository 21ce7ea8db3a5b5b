//! `cheops get`: lists of sites, resources, replicants, operations and problems, and the grid.
//!
//! With `--watch` a list is asked for again when the change feed says something, and only what is
//! different is written.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use cheops_agent::api::model::State;
use clap::{Args, Subcommand, ValueEnum};

use super::{Context, List, Outcome, Output, ask};
use crate::{
    client::Client,
    feed::Feed,
    report::{Exit, Failure, clean},
    screen,
};

mod grid;
pub(crate) mod operations;
mod problems;
mod replicants;
mod resources;
pub(crate) mod sites;

/// Changes that come in a burst are waited for, so long after the last and at most so long.
const BURST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// List sites, resources, replicants, operations or problems
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// List the sites: whether they can be reached, how far away they are, what waits for them
    #[command(visible_aliases = ["site", "s"])]
    Sites(Sites),
    /// List resources and their state
    #[command(visible_aliases = ["resource", "res", "r"])]
    Resources(Resources),
    /// Show in which state each site sees its resources, for all sites that can be asked
    #[command(visible_alias = "g")]
    Grid(GridOf),
    /// List REST resources at several sites: what each site calls its own, and what it has yet to do
    #[command(visible_aliases = ["replicant", "rep"])]
    Replicants(Replicants),
    /// List the operations of a resource, and what became of them
    #[command(visible_aliases = ["operation", "ops", "op", "o"])]
    Operations(Operations),
    /// List what needs a person, anywhere
    ///
    /// The exit status is 1 if there is something, and 0 otherwise.
    #[command(visible_aliases = ["problem", "p"])]
    Problems(Problems),
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Go on, and write what changes
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Sites {
    /// Only these sites
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Args)]
pub(crate) struct Resources {
    /// Only this resource, or with `*` at the end those that begin so: `web*`
    #[arg(value_name = "ID or PREFIX*")]
    id: Option<String>,
    /// Only those in this state
    #[arg(long, value_enum)]
    state: Option<StateName>,
    /// At most so many
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Those of this site, as it sees them, instead of the agent's own
    #[arg(long, value_name = "SITE")]
    at: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Args)]
pub(crate) struct GridOf {
    /// Only those whose id holds this
    #[arg(value_name = "TEXT")]
    contains: Option<String>,
    /// Only those that are in this state at one of their sites
    #[arg(long, value_enum)]
    state: Option<StateName>,
    /// Only those that exist at this site
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Args)]
pub(crate) struct Replicants {
    /// Only this one: its id, that of a site, or that of its resource
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Only those of this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

/// The states, as options have them.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum StateName {
    Settled,
    Pending,
    Failed,
    Denied,
    Diverged,
    NeedsDecision,
}

impl From<StateName> for State {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Settled => Self::Settled,
            StateName::Pending => Self::Pending,
            StateName::Failed => Self::Failed,
            StateName::Denied => Self::Denied,
            StateName::Diverged => Self::Diverged,
            StateName::NeedsDecision => Self::NeedsDecision,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Operations {
    /// The resource
    #[arg(value_name = "ID")]
    id: String,
    /// At most so many, the newest
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Args)]
pub(crate) struct Problems {
    #[command(flatten)]
    watch: Watch,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let (client, output) = (context.client()?, context.output);
    let fine = |_: &_| Exit::Fine;
    match arguments {
        Arguments::Sites(Sites { names, watch }) => {
            follow(&client, output, watch, None, || sites::fetch(&client, names), fine)
        }
        Arguments::Resources(wanted) => {
            let wanted_list = resources::Wanted::new(wanted)?;
            let fetch = || wanted_list.fetch(&client);
            follow(&client, output, &wanted.watch, None, fetch, |_| Exit::Fine)
        }
        Arguments::Grid(GridOf { contains, state, site, limit, watch }) => {
            let wanted = grid::Wanted {
                contains: contains.as_deref(),
                state: state.map(Into::into),
                site: site.as_deref(),
                limit: limit.unwrap_or(usize::MAX),
            };
            follow(&client, output, watch, None, || wanted.fetch(&client), |_| Exit::Fine)
        }
        Arguments::Replicants(Replicants { id, service, watch }) => {
            let fetch = || replicants::fetch(&client, id.as_deref(), service.as_deref());
            follow(&client, output, watch, None, fetch, |_| Exit::Fine)
        }
        Arguments::Operations(Operations { id, limit, watch }) => {
            let id = ask::resource(id)?;
            let fetch = || operations::fetch(&client, &id, *limit);
            follow(&client, output, watch, Some(id.as_str()), fetch, |_| Exit::Fine)
        }
        Arguments::Problems(Problems { watch }) => {
            follow(&client, output, watch, None, || problems::fetch(&client), problems::exit)
        }
    }
}

/// Lists once, or for as long as someone watches.
fn follow<T: List>(
    client: &Client,
    output: Output,
    Watch { watch }: &Watch,
    resource: Option<&str>,
    fetch: impl Fn() -> Result<T, Failure>,
    exit: impl Fn(&T) -> Exit,
) -> Result<Outcome, Failure> {
    if !watch {
        let list = fetch()?;
        return Ok(Outcome { text: output.write(&list)?, exit: exit(&list) });
    }
    // Before the first list, so that nothing happens between the two unnoticed.
    let mut feed = Feed::open(client, resource, None)?;
    let mut list = fetch()?;
    screen::print(&output.write(&list)?)?;
    while !screen::is_closed() {
        feed.next()?;
        let (quiet, longest) = BURST;
        let deadline = Instant::now() + longest;
        while Instant::now() < deadline && feed.next_within(quiet)?.is_some() {}
        let newer = fetch()?;
        screen::print(&difference(&list, &newer, output)?)?;
        list = newer;
    }
    Ok(Outcome::silent(Exit::Fine))
}

/// What is new or different in a list: rows for people, the whole list for programs.
fn difference<T: List>(old: &T, new: &T, output: Output) -> Result<String, Failure> {
    let known = by_name(old);
    let is_known =
        |item: &T::Item| known.get(&T::name(item)).is_some_and(|items| items.contains(&item));
    let changed: Vec<bool> = new.items().iter().map(|item| !is_known(item)).collect();
    let there = by_name(new);
    let gone: Vec<&String> = known.keys().filter(|name| !there.contains_key(*name)).collect();
    if gone.is_empty() && !changed.contains(&true) {
        return Ok(String::new());
    }
    match output {
        Output::Json | Output::Yaml => output.write(new),
        Output::Name => {
            let different = new.items().iter().zip(&changed).filter(|(_, changed)| **changed);
            let names = different.flat_map(|(item, _)| T::names_of(item));
            Ok(names.map(|name| clean(&name) + "\n").collect())
        }
        Output::Table | Output::Wide => {
            // The columns of the whole table, so that rows stand below those before them.
            let table = new.table(output == Output::Wide).render();
            let rows = table.lines().skip(1).zip(&changed).filter(|(_, changed)| **changed);
            let gone = gone.into_iter().map(|name| format!("{} is gone", clean(name)));
            let mut lines: Vec<String> = rows.map(|(row, _)| row.to_owned()).collect();
            lines.extend(gone);
            Ok(lines.join("\n") + "\n")
        }
    }
}

fn by_name<T: List>(list: &T) -> BTreeMap<String, Vec<&T::Item>> {
    let mut named: BTreeMap<String, Vec<&T::Item>> = BTreeMap::new();
    for item in list.items() {
        named.entry(T::name(item)).or_default().push(item);
    }
    named
}
