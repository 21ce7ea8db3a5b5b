//! `cheops diff`: how the sites of a resource differ.
//!
//! Each site is asked for what it knows itself, and for what its `Show` command prints. What must
//! stay true: a site that could not be asked is named, and never counts as one that agrees.

use cheops_agent::api::model::{Resource, Show, Shown};

use self::compare::{Differences, Seen};
use super::{Context, Outcome, ask};
use crate::{client::Path, report::Failure};

mod compare;

/// How many operations of a site are compared, the newest.
const LIMIT: usize = 10_000;

/// Show how the sites of a resource differ
///
/// Operations that a site has not heard of, runs that went differently, and what `Show` prints. The
/// exit status is 1 if they differ, and 3 if they don't but a site could not be asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The resource
    #[arg(value_name = "ID")]
    id: String,
    /// Show with this command, instead of the resource's `Show`
    #[arg(long, allow_hyphen_values = true)]
    command: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = ask::resource(&arguments.id)?;
    let client = context.client()?;
    let here: Resource = client.get(&ask::resource_path(&id).query("limit", Some(1)))?;
    let path = |site: &String| {
        ask::resource_path(&id)
            .query("limit", Some(LIMIT))
            .query("local", Some(true))
            .query("at", Some(site))
    };
    let sites = &here.summary.sites;
    let paths: Vec<Path> = sites.iter().map(path).collect();
    let seen = sites.iter().zip(client.get_each::<Resource>(&paths));
    let seen: Vec<Seen> = seen
        .map(|(site, resource)| Seen {
            site: site.clone(),
            resource: match resource {
                // It has not heard of the resource yet. Whatever else came back says nothing of what
                // the site knows.
                Err(failure) if failure.is_unknown_resource() => Ok(unheard(&here)),
                resource => resource.map_err(|failure| failure.line()),
            },
        })
        .collect();

    let can_show = arguments.command.is_some() || has_show(&here.config);
    let shown = can_show
        .then(|| {
            let show = Show { command: arguments.command.clone(), sites: None };
            client.post::<Shown>(&ask::resource_path(&id).then("show"), &show)
        })
        .transpose()?;
    let differences = Differences::new(id.as_str(), &seen, shown);
    Ok(Outcome { text: context.output.write(&differences)?, exit: differences.exit() })
}

/// What a site knows that has not heard of a resource.
fn unheard(resource: &Resource) -> Resource {
    let mut resource = resource.clone();
    resource.summary.operation_count = 0;
    resource.summary.block_length = 0;
    resource.operations.clear();
    resource.block_ids.clear();
    resource.version.clear();
    resource
}

/// Whether a configuration has a `Show` command; names of fields may be written in any case.
fn has_show(config: &serde_json::Value) -> bool {
    let mut fields = config.as_object().into_iter().flatten();
    fields.any(|(name, value)| name.eq_ignore_ascii_case("Show") && value.is_string())
}
