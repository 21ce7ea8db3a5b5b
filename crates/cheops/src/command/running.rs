//! What sites run right now: why an operation still waits there.
//!
//! The commands of a resource run one after the other, so one that takes long holds up all that come
//! after it, also a repair or a deletion. Only the site itself knows that it runs something, so each
//! is asked. What must stay true: nothing depends on it; a site that does not answer soon is left
//! out.

use std::{collections::BTreeMap, time::Duration};

use cheops_agent::api::model::{Resource, RunStatus};
use cheops_core::id::ResourceId;

use super::{ask, get::operations::COMMAND};
use crate::{
    client::{Client, Path},
    report::{Failure, clean, first},
    words,
};

/// How long a site may take to answer.
const SOON: Duration = Duration::from_secs(3);

/// The most sites that are asked.
const MOST: usize = 20;

/// An operation that a site runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) site: String,
    pub(crate) operation: String,
    command: String,
    /// When it was received; it was started then or later.
    received: String,
    /// How long it may run, if the resource says so.
    timeout: Option<String>,
}

/// What these sites run of a resource; nothing if nobody wants to wait for it.
pub(crate) fn at(client: &Client, id: &ResourceId, sites: &[&str]) -> Vec<Running> {
    client.wait_for(look(client, id, sites)).unwrap_or_default()
}

/// The same, to be waited for beside something else.
pub(crate) fn look<'a>(
    client: &'a Client,
    id: &ResourceId,
    sites: &[&str],
) -> impl Future<Output = Vec<Running>> + use<'a> {
    let path =
        |site: &&str| ask::resource_path(id).query("local", Some(true)).query("at", Some(site));
    let paths: Vec<Path> = sites.iter().take(MOST).map(path).collect();
    async move {
        let known: Vec<Result<Resource, Failure>> = client.each_within(&paths, SOON).await;
        known.iter().filter_map(|resource| here(resource.as_ref().ok()?)).collect()
    }
}

/// What the site that tells of a resource runs of it.
pub(crate) fn here(resource: &Resource) -> Option<Running> {
    let site = &resource.seen_by;
    let operation = resource.operations.iter().find(|operation| {
        let mut runs = operation.runs.iter();
        runs.any(|run| run.site == *site && run.status == RunStatus::Running)
    })?;
    let mut fields = resource.config.as_object().into_iter().flatten();
    let timeout = fields.find(|(name, _)| name.eq_ignore_ascii_case("Timeout"));
    Some(Running {
        site: site.clone(),
        operation: operation.id.clone(),
        command: operation.command.clone(),
        received: operation.at.clone(),
        timeout: timeout.and_then(|(_, value)| value.as_str().map(str::to_owned)),
    })
}

impl Running {
    /// In a few words: `site1:7, received 3m ago: sleep 600`.
    pub(crate) fn brief(&self) -> String {
        let Self { operation, command, received, .. } = self;
        let command = first(command, COMMAND);
        clean(&format!("{operation}, received {}: {command}", words::ago(received)))
    }
}

/// What it means for what comes after them: a line for each operation, with the sites that run it.
pub(crate) fn sentences(running: &[Running]) -> Vec<String> {
    let mut sites: BTreeMap<&str, (&Running, Vec<&str>)> = BTreeMap::new();
    for one in running {
        let (_, sites) = sites.entry(&one.operation).or_insert((one, Vec::new()));
        sites.push(&one.site);
    }
    let sentence = |(one, sites): (&Running, Vec<&str>)| {
        let (runs, there) = if sites.len() == 1 { ("runs", "there") } else { ("run", "at each") };
        let limit = match &one.timeout {
            Some(timeout) => format!("after {timeout} at the latest"),
            None => "at the site's time limit at the latest (5m if none is set)".to_owned(),
        };
        clean(&format!(
            "{} still {runs} {}; what comes after it waits {there} until it ends, {limit}",
            words::listed(&sites),
            one.brief()
        ))
    };
    sites.into_values().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_what_and_for_how_long() {
        let running = |site: &str, operation: &str, timeout: Option<&str>| Running {
            site: site.into(),
            operation: operation.into(),
            command: "sleep 600".into(),
            received: "yesterday".into(),
            timeout: timeout.map(str::to_owned),
        };
        let all = [
            running("site1", "site1:1", None),
            running("DC 2", "site1:2", Some("30s")),
            running("site3", "site1:1", None),
        ];
        assert_eq!(
            sentences(&all),
            [
                "site1 and site3 still run site1:1, received yesterday: sleep 600; what comes after \
                 it waits at each until it ends, at the site's time limit at the latest (5m if none \
                 is set)",
                "DC 2 still runs site1:2, received yesterday: sleep 600; what comes after it waits \
                 there until it ends, after 30s at the latest",
            ]
        );
    }
}
