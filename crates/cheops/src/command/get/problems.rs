//! `cheops get problems`.
//!
//! Each site tells of a problem that it sees. What must stay true: people read each problem once,
//! with the sites that tell of it; programs get what the sites said.

use std::collections::BTreeMap;

use cheops_agent::api::model::{Trouble, Troubles};
use serde::Serialize;

use crate::{
    client::{Client, Path},
    command::List,
    report::{Exit, Failure},
    table::{Cell, Table},
    words::{self, NONE},
};

/// What needs a person.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Problems {
    told: Troubles,
    #[serde(skip)]
    grouped: Vec<Grouped>,
}

/// A problem, and the sites that tell of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grouped {
    /// As the first of them tells it.
    trouble: Trouble,
    sites: Vec<String>,
}

pub(super) fn fetch(client: &Client) -> Result<Problems, Failure> {
    let told: Troubles = client.get(&Path::api("problems"))?;
    Ok(Problems { grouped: grouped(&told.problems), told })
}

/// Each problem once, in the order in which they were told first.
fn grouped(troubles: &[Trouble]) -> Vec<Grouped> {
    let mut groups: Vec<Grouped> = Vec::new();
    let mut places = BTreeMap::new();
    for trouble in troubles {
        let Trouble { urgency, site, resource, what, text, next } = trouble;
        let place = *places.entry((urgency, resource, what, text, next)).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Grouped { trouble: trouble.clone(), sites: Vec::new() });
        }
        let sites = &mut groups[place].sites;
        if !sites.contains(site) {
            sites.push(site.clone());
        }
    }
    groups
}

/// A problem is worth an exit status, and so is a site that may have some.
pub(super) fn exit(problems: &Problems) -> Exit {
    match (problems.grouped.is_empty(), problems.told.not_asked.is_empty()) {
        (false, _) => Exit::Wrong,
        (true, false) => Exit::Silent,
        (true, true) => Exit::Fine,
    }
}

impl List for Problems {
    type Item = Grouped;

    fn items(&self) -> &[Grouped] {
        &self.grouped
    }

    fn name(group: &Grouped) -> String {
        match &group.trouble.resource {
            Some(resource) => format!("resource/{resource}"),
            None => format!("site/{}", group.trouble.site),
        }
    }

    fn names_of(group: &Grouped) -> Vec<String> {
        match &group.trouble.resource {
            Some(_) => vec![Self::name(group)],
            None => group.sites.iter().map(|site| format!("site/{site}")).collect(),
        }
    }

    fn table(&self, wide: bool) -> Table {
        let mut table = Table::new(["URGENCY", "WHAT", "SITE", "RESOURCE", "PROBLEM", "NEXT"]);
        for Grouped { trouble, sites } in &self.grouped {
            table.row([
                words::urgency(trouble.urgency),
                Cell::from(&trouble.what),
                sites.join(", ").into(),
                words::id(trouble.resource.as_deref().unwrap_or(NONE), wide).into(),
                Cell::from(&trouble.text),
                Cell::from(&trouble.next),
            ]);
        }
        table
    }

    fn empty(&self) -> String {
        "No problems.".to_owned()
    }

    fn note(&self) -> Option<String> {
        if self.told.not_asked.is_empty() {
            return None;
        }
        let sites = words::listed(&self.told.not_asked);
        Some(format!("Not asked, since they can't be reached: {sites}."))
    }
}
