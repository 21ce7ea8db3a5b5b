//! What each site says of a resource, asked at the same time.
//!
//! What must stay true: a site that does not answer holds nobody up for long, and is said to be silent,
//! with the time of its last word.

use std::{collections::BTreeMap, time::Duration};

use cheops_agent::api::model::{Replicant, Resource, Site, Sites};
use futures_util::future::join_all;
use serde::Deserialize;
use tokio::time::timeout;

use super::columns::{Told, View};
use crate::api::{Answer, Api, segment};

/// How long a site may take to say what it knows.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many sites stand beside each other.
pub(super) const COLUMNS: usize = 12;
/// How many operations are shown at first.
const FEW: usize = 40;
/// The most operations that are shown.
pub(super) const MOST: usize = 500;

/// How much of what runs printed comes with them, in bytes: enough to say how they ended.
const PRINTED: usize = 1_000;

/// Which part of it all is shown.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Part {
    /// How many operations, the newest.
    limit: Option<usize>,
    /// The first of the sites.
    from: Option<usize>,
}

impl Part {
    pub(super) fn limit(self) -> usize {
        self.limit.unwrap_or(FEW).clamp(1, MOST)
    }

    pub(super) fn from(self) -> usize {
        self.from.unwrap_or_default()
    }

    /// The same, with more operations.
    pub(super) fn more(self) -> String {
        Self { limit: Some((self.limit() * 4).min(MOST)), ..self }.query()
    }

    /// The same, for other sites.
    pub(super) fn sites(self, from: usize) -> String {
        Self { from: Some(from), ..self }.query()
    }

    pub(super) fn query(self) -> String {
        format!("?limit={}&from={}", self.limit(), self.from())
    }
}

/// All that the page shows.
pub(super) struct Seen {
    pub(super) here: String,
    pub(super) resource: Resource,
    pub(super) views: Vec<View>,
    pub(super) replicant: Option<Replicant>,
    pub(super) part: Part,
}

impl Seen {
    pub(super) async fn look(api: &Api, id: &str, part: Part) -> Answer<Self> {
        let limit = part.limit();
        let path = format!("/api/v1/resources/{}?limit={limit}&printed={PRINTED}", segment(id));
        let (sites, resource, replicant) = tokio::join!(
            api.get::<Sites>("/api/v1/sites"),
            api.get::<Resource>(&path),
            replicant(api, id),
        );
        let (sites, resource) = (sites?, resource?);
        let known: BTreeMap<&str, &Site> =
            sites.sites.iter().map(|site| (site.name.as_str(), site)).collect();
        let columns = resource.summary.sites.iter().skip(part.from()).take(COLUMNS);
        let views = columns.map(async |site| {
            let told = if *site == resource.seen_by {
                Told::Knows(Box::new(resource.clone()))
            } else {
                ask(api, &path, site, known.get(site.as_str()).copied()).await
            };
            View { site: site.clone(), told }
        });
        let views = join_all(views).await;
        Ok(Self { here: sites.here, resource, views, replicant, part })
    }

    /// Whether the change feed of the agent that shows the page tells of this resource.
    pub(super) fn is_here(&self) -> bool {
        self.resource.seen_by == self.here
    }

    /// The sites that could not be asked.
    pub(super) fn silent(&self) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
        self.views.iter().filter_map(|view| match &view.told {
            Told::Silent { why, since } => {
                Some((view.site.as_str(), why.as_str(), since.as_deref()))
            }
            Told::Knows(_) | Told::Unheard => None,
        })
    }
}

/// Asks a site for a resource as it sees it.
async fn ask(api: &Api, path: &str, site: &str, known: Option<&Site>) -> Told {
    let path = format!("{path}&local=true&at={}", segment(site));
    let why = match timeout(PATIENCE, api.get::<Resource>(&path)).await {
        Ok(Ok(resource)) => return Told::Knows(Box::new(resource)),
        Ok(Err(refusal)) if refusal.0.kind == "unknown-resource" => return Told::Unheard,
        Ok(Err(refusal)) => refusal.0.detail,
        Err(_) => format!("it did not answer within {} s", PATIENCE.as_secs()),
    };
    Told::Silent { why, since: known.and_then(|site| site.last_seen.clone()) }
}

/// What is known of it as a REST resource, if it is one: those have such ids.
async fn replicant(api: &Api, id: &str) -> Option<Replicant> {
    if !id.contains('~') {
        return None;
    }
    let path = format!("/api/v1/replicants/{}", segment(id));
    timeout(PATIENCE, api.get(&path)).await.ok()?.ok()
}
