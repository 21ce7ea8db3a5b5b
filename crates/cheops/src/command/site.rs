//! `cheops site`: the other sites, as an agent sees them, and the links to them.

use std::{fs, path::PathBuf};

use cheops_agent::{
    api::model::{Pong, Site, SiteKey, SiteState},
    trust::Identity,
};
use clap::{Args, Subcommand};
use hyper::Method;
use serde::Serialize;

use super::{Context, List, Outcome, View, ask, get::sites, held, members};
use crate::{
    client::{Ask, Path},
    report::{Exit, Failure, clean},
    shell,
    table::{Cell, Table},
    words::{self, NONE},
};

/// Look at the sites, pause links, remove sites, decide about what one has recorded alone
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// List the sites
    #[command(visible_alias = "ls")]
    List,
    /// Ask sites whether they answer, and how long that takes
    ///
    /// The exit status is 3 if one does not.
    Ping(Ping),
    /// Pause the link to a site, to rehearse a cut
    ///
    /// Both sites go on accepting work. The agent's own site stands for all of its links.
    Pause(Pause),
    /// Resume the link to a site
    Resume(Resume),
    /// Print the public key of a site: what others recognise it by
    Key(Key),
    /// List who belongs to the federation of the agent's site, and who did
    Members,
    /// Remove a site from the federation, whether it can be reached or not
    ///
    /// What it says from then on is refused everywhere; what the others had heard of it before stays. It
    /// does not come back with the key that it has.
    #[command(visible_alias = "rm")]
    Remove(Remove),
    /// List what the agent's site received while it was removed, and the others do not have
    ///
    /// These operations are out of the block until you decide about each: `cheops site adopt` or
    /// `cheops site discard`.
    Held,
    /// Submit an operation that is held once more, as a new one
    Adopt(Decide),
    /// Discard an operation that is held
    Discard(Decide),
}

#[derive(Debug, Args)]
pub(crate) struct Decide {
    /// The resource
    #[arg(value_name = "RESOURCE")]
    resource: String,
    /// The operations
    #[arg(value_name = "OPERATION", required = true)]
    operations: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Ping {
    /// The sites; all without this
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// The sites
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Resume by itself after so long: `10m`
    #[arg(long = "for", value_name = "DURATION")]
    time: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Resume {
    /// The sites
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The site
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Key {
    /// The site; the agent's own without this
    #[arg(value_name = "NAME", conflicts_with = "data")]
    name: Option<String>,
    /// Ask no agent: the key in this data directory, which is made if there is none
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Give the agent's own site a new key: the others hear of it, and know it as the same site
    #[arg(long, conflicts_with_all = ["name", "data"])]
    renew: bool,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    match arguments {
        Arguments::List => {
            let sites = sites::fetch(&context.client()?, &[])?;
            Ok(Outcome::success(context.output.write(&sites)?))
        }
        Arguments::Ping(Ping { names }) => ping(names, context),
        Arguments::Pause(Pause { names, time }) => {
            if let Some(time) = time {
                ask::duration("--for", time)?;
            }
            each(names, context, "pause", SiteState::Paused, time.as_deref())
        }
        Arguments::Resume(Resume { names }) => {
            each(names, context, "resume", SiteState::Reachable, None)
        }
        Arguments::Members => members::run(context),
        Arguments::Remove(Remove { name }) => {
            context.client()?.tell(Method::DELETE, &Path::api("sites").then(name))?;
            Ok(Outcome::success(context.output.write(&Removed { removed: name.clone() })?))
        }
        Arguments::Held => held::list(context),
        Arguments::Adopt(Decide { resource, operations }) => {
            held::adopt(resource, operations, context)
        }
        Arguments::Discard(Decide { resource, operations }) => {
            held::discard(resource, operations, context)
        }
        Arguments::Key(Key { renew: true, .. }) => {
            let path = Path::api("federation").then("key");
            let SiteKey { site, key } = context.client()?.ask(Ask::new(Method::POST, &path))?;
            Ok(Outcome::success(context.output.write(&Known { site: Some(site), key })?))
        }
        Arguments::Key(key) => Ok(Outcome::success(context.output.write(&find(key, context)?)?)),
    }
}

/// The key of a site.
fn find(Key { name, data, .. }: &Key, context: &Context) -> Result<Known, Failure> {
    if let Some(data) = data {
        let open = || {
            fs::create_dir_all(data).map_err(|error| error.to_string())?;
            Identity::open(data).map_err(|error| error.to_string())
        };
        let failed = |why: String| Failure::input("there is no key to be had").caused_by(why);
        let key = open().map_err(failed)?.public().to_string();
        return Ok(Known { site: None, key });
    }
    let names: Vec<String> = name.iter().cloned().collect();
    let sites = sites::fetch(&context.client()?, &names)?.sites;
    let meant = |site: &Site| name.is_some() || site.state == SiteState::Here;
    let site = sites.into_iter().find(meant);
    let Site { name, key, .. } = site.ok_or_else(|| Failure::input("the agent names no site"))?;
    if key.is_empty() {
        return Err(Failure::input(format!("the key of {name} is not known yet")).hint(
            "it has a certificate, and says its key when the two are linked for the first time",
        ));
    }
    Ok(Known { site: Some(name), key })
}

/// A site that belongs no more.
#[derive(Debug, Serialize)]
struct Removed {
    removed: String,
}

impl View for Removed {
    fn text(&self, _wide: bool) -> String {
        clean(&format!("removed {}; see who belongs with: cheops site members", self.removed))
            + "\n"
    }

    fn names(&self) -> Vec<String> {
        vec![format!("site/{}", self.removed)]
    }
}

/// A key, and whose it is.
#[derive(Debug, Serialize)]
struct Known {
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    key: String,
}

impl View for Known {
    fn text(&self, _wide: bool) -> String {
        format!("{}\n", self.key)
    }

    fn names(&self) -> Vec<String> {
        vec![self.key.clone()]
    }
}

fn each(
    names: &[String],
    context: &Context,
    verb: &str,
    wanted: SiteState,
    time: Option<&str>,
) -> Result<Outcome, Failure> {
    let client = context.client()?;
    let mut links = Vec::new();
    for site in names {
        client.tell(Method::POST, &Path::api("sites").then(site).then(verb).query("for", time))?;
        links.push(Link { site: site.clone(), wanted, time: time.map(str::to_owned) });
    }
    Ok(Outcome::success(context.output.write(&Links { links })?))
}

/// What the links to sites were asked to be.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Links {
    links: Vec<Link>,
}

#[derive(Debug, Serialize)]
struct Link {
    site: String,
    wanted: SiteState,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    time: Option<String>,
}

impl View for Links {
    fn text(&self, _wide: bool) -> String {
        let line = |Link { site, wanted, time }: &Link| {
            let how_long = time.as_ref().map(|time| format!(" for {time}")).unwrap_or_default();
            clean(&match wanted {
                SiteState::Paused => {
                    let last = shell::last(site);
                    format!("paused {site}{how_long}; resume with: cheops site resume {last}")
                }
                _ => format!("resumed {site}"),
            })
        };
        self.links.iter().map(line).collect::<Vec<_>>().join("\n") + "\n"
    }

    fn names(&self) -> Vec<String> {
        self.links.iter().map(|link| format!("site/{}", link.site)).collect()
    }
}

fn ping(names: &[String], context: &Context) -> Result<Outcome, Failure> {
    let client = context.client()?;
    let asked = sites::fetch(&client, names)?.sites;
    let asked = asked.into_iter().filter(|site| !names.is_empty() || site.state != SiteState::Here);
    let names: Vec<String> = asked.map(|site| site.name).collect();
    let paths: Vec<Path> =
        names.iter().map(|name| Path::api("sites").then(name).then("ping")).collect();
    let mut pings = Vec::new();
    let mut exit = Exit::Fine;
    for (site, pong) in names.into_iter().zip(client.post_each::<Pong>(&paths)) {
        match pong {
            Ok(pong) => {
                pings.push(Pinged { site, round_trip_ms: Some(pong.round_trip_ms), error: None });
            }
            // It is this agent that does not answer.
            Err(failure) if failure.exit() == Exit::Unreachable => return Err(failure),
            Err(failure) => {
                exit = Exit::Silent;
                pings.push(Pinged { site, round_trip_ms: None, error: Some(failure.line()) });
            }
        }
    }
    Ok(Outcome { text: context.output.write(&Pings { pings })?, exit })
}

/// What sites answered to a ping.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Pings {
    pings: Vec<Pinged>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Pinged {
    site: String,
    round_trip_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl List for Pings {
    type Item = Pinged;

    fn items(&self) -> &[Pinged] {
        &self.pings
    }

    fn name(ping: &Pinged) -> String {
        format!("site/{}", ping.site)
    }

    fn table(&self, _wide: bool) -> Table {
        let mut table = Table::new(["SITE", "RTT", "ERROR"]);
        for ping in &self.pings {
            let (trip, style) = match ping.round_trip_ms {
                Some(millis) => (words::round_trip(millis), words::GOOD),
                None => ("no answer".to_owned(), words::BAD),
            };
            let error = ping.error.as_deref().unwrap_or(NONE);
            table.row([Cell::from(&ping.site), Cell::styled(trip, style), error.into()]);
        }
        table
    }

    fn empty(&self) -> String {
        "There are no other sites.".to_owned()
    }
}
