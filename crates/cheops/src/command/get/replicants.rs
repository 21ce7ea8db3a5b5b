//! `cheops get replicants`.

use cheops_agent::api::model::{Replica, Replicant, Replicants};

use crate::{
    client::{Client, Path},
    command::List,
    report::{Failure, clean, first},
    table::{Cell, Table},
    words,
};

/// How many are asked for at a time.
const PAGE: usize = 1000;
/// How many characters of an id or a path stand in the table; `-o json` has all of them.
const ID: usize = 60;

/// All of them, those of a service, or one.
pub(super) fn fetch(
    client: &Client,
    id: Option<&str>,
    service: Option<&str>,
) -> Result<Replicants, Failure> {
    if let Some(id) = id {
        let found: Replicant = client.get(&Path::api("replicants").then(id))?;
        let wanted = service.is_none_or(|service| service == found.service);
        let replicants = if wanted { vec![found] } else { Vec::new() };
        return Ok(Replicants { site: String::new(), replicants, next: None });
    }
    let page = |after: Option<&str>| {
        let path = Path::api("replicants")
            .query("limit", Some(PAGE))
            .query("after", after)
            .query("service", service);
        client.get::<Replicants>(&path)
    };
    let mut list = page(None)?;
    while let Some(after) = list.next.take() {
        let more = page(Some(&after))?;
        // An agent that gives the same page for ever is not followed for ever.
        let goes_on = more.next.as_deref().is_none_or(|next| next > after.as_str());
        list.next = more.next.filter(|_| goes_on);
        list.replicants.extend(more.replicants);
    }
    Ok(list)
}

impl List for Replicants {
    type Item = Replicant;

    fn items(&self) -> &[Replicant] {
        &self.replicants
    }

    fn name(replicant: &Replicant) -> String {
        format!("replicant/{}", replicant.resource)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table = Table::new(["SERVICE", "ID", "STATE", "PENDING", "REPLICAS"]);
        for replicant in &self.replicants {
            let name = replicant.id.as_deref().unwrap_or(&replicant.path);
            let pending: usize = replicant.replicas.iter().map(|replica| replica.pending).sum();
            let replicas: Vec<String> =
                replicant.replicas.iter().map(|replica| said(replica, wide)).collect();
            table.row([
                replicant.service.as_str().into(),
                first(&clean(name), ID).into(),
                if replicant.deleting {
                    Cell::styled("deleting", words::OPEN)
                } else {
                    words::state(replicant.state)
                },
                pending.to_string().into(),
                replicas.join(", ").into(),
            ]);
        }
        table
    }

    fn empty(&self) -> String {
        "No REST resource is known at several sites. Create one with a scope, like `X-Scope: image: site1 & site2`."
            .to_owned()
    }
}

/// A site, and what it calls its own.
fn said(replica: &Replica, wide: bool) -> String {
    let part = replica.part.map(|part| format!(" part {part}")).unwrap_or_default();
    let id = match &replica.id {
        Some(id) if wide || id.len() <= 12 => format!(" {}", first(&clean(id), ID)),
        Some(id) => format!(" {}", first(&clean(id), 8)),
        None if replica.created => String::new(),
        None => match &replica.failed {
            Some(why) => format!(" (failed: {why})"),
            None => " (not yet)".to_owned(),
        },
    };
    format!("{}{part}{id}", replica.site)
}
