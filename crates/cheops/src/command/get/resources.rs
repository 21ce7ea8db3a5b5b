//! `cheops get resources`.

use cheops_agent::api::model::{Resource, ResourceSummary, Resources, State};
use cheops_core::id::ResourceId;

use crate::{
    client::{Client, Path},
    command::{List, ask},
    report::Failure,
    table::{Cell, Table},
    words,
};

/// How many resources are asked for at a time.
const PAGE: usize = 1000;

/// Which resources to list.
pub(super) struct Wanted {
    id: Option<ResourceId>,
    prefix: Option<String>,
    state: Option<State>,
    limit: usize,
    at: Option<String>,
}

impl Wanted {
    pub(super) fn new(arguments: &super::Resources) -> Result<Self, Failure> {
        let (mut id, mut prefix) = (None, None);
        match arguments.id.as_deref().map(|text| (text, text.strip_suffix('*'))) {
            None | Some((_, Some(""))) => {}
            // What a prefix may hold is what an id may hold.
            Some((_, Some(start))) => prefix = Some(ask::resource(start)?.to_string()),
            Some((whole, None)) => id = Some(ask::resource(whole)?),
        }
        let limit = arguments.limit.unwrap_or(usize::MAX);
        Ok(Self {
            id,
            prefix,
            state: arguments.state.map(Into::into),
            limit,
            at: arguments.at.clone(),
        })
    }

    pub(super) fn fetch(&self, client: &Client) -> Result<Resources, Failure> {
        if let Some(id) = &self.id {
            let path =
                ask::resource_path(id).query("limit", Some(1)).query("at", self.at.as_deref());
            let Resource { summary, seen_by, .. } = client.get(&path)?;
            let wanted = self.state.is_none_or(|state| state == summary.state);
            let resources = if wanted { vec![summary] } else { Vec::new() };
            return Ok(Resources { site: seen_by, resources, next: None });
        }
        let page = |after: Option<&str>, limit: usize| {
            let path = Path::api("resources")
                .query("limit", Some(limit.min(PAGE)))
                .query("after", after)
                .query("prefix", self.prefix.as_deref())
                .query("state", self.state.map(words::word))
                .query("at", self.at.as_deref());
            client.get::<Resources>(&path)
        };
        let mut list = page(None, self.limit)?;
        while let Some(after) = list.next.take() {
            let left = self.limit.saturating_sub(list.resources.len());
            if left == 0 {
                list.next = Some(after);
                break;
            }
            let more = page(Some(&after), left)?;
            // An agent that gives the same page for ever is not followed for ever.
            let goes_on = more.next.as_deref().is_none_or(|next| next > after.as_str());
            list.next = more.next.filter(|_| goes_on);
            list.resources.extend(more.resources);
        }
        list.resources.truncate(self.limit);
        Ok(list)
    }
}

impl List for Resources {
    type Item = ResourceSummary;

    fn items(&self) -> &[ResourceSummary] {
        &self.resources
    }

    fn name(resource: &ResourceSummary) -> String {
        format!("resource/{}", resource.id)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table = Table::new(["ID", "STATE", "OPERATIONS", "BLOCK", "UPDATED", "SITES"]);
        for resource in &self.resources {
            let sites = if wide || resource.sites.len() <= 3 {
                words::place(resource)
            } else {
                format!("{}, … {} more", resource.sites[..2].join(", "), resource.sites.len() - 2)
            };
            table.row([
                words::id(&resource.id, wide).into(),
                if resource.deleting {
                    Cell::styled("deleting", words::OPEN)
                } else {
                    words::state(resource.state)
                },
                resource.operation_count.to_string().into(),
                resource.block_length.to_string().into(),
                words::ago_or_none(resource.updated.as_deref()).into(),
                sites.into(),
            ]);
        }
        table
    }

    fn empty(&self) -> String {
        format!("No resources are known at {}.", self.site)
    }

    fn note(&self) -> Option<String> {
        self.next.as_ref().map(|_| "There are more: take a larger --limit.".to_owned())
    }
}
