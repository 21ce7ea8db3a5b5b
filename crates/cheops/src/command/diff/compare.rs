//! Finds what differs between sites. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use cheops_agent::api::model::{Fate, Operation, Resource, Run, RunStatus, Shown};
use serde::Serialize;
use similar::TextDiff;

use crate::{
    command::View,
    printed::Printed,
    report::{Exit, clean, clean_lines},
    table::{Cell, Table},
    words::{self, BOLD},
};

/// How many lines around a difference are shown.
const AROUND: usize = 3;

/// How many operations of one sort are named for a site.
const NAMED: usize = 10;

/// What a site knows of a resource, or why it could not be asked.
pub(super) struct Seen {
    pub(super) site: String,
    pub(super) resource: Result<Resource, String>,
}

/// How sites differ.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Differences {
    id: String,
    /// The sites that were compared.
    sites: Vec<String>,
    /// The sites that could not be asked, and why.
    not_asked: BTreeMap<String, String>,
    /// The operations that a site has not heard of, by site.
    missing: BTreeMap<String, Vec<String>>,
    /// Sites that know the same operations, and still have another block: these can't agree.
    blocks: Vec<Vec<String>>,
    /// The operations that went differently.
    runs: Vec<RunsDiffer>,
    /// What `Show` prints, compared with what most sites print.
    shown: Option<ShownDiffer>,
}

#[derive(Debug, PartialEq, Serialize)]
struct RunsDiffer {
    operation: String,
    kind: String,
    command: String,
    status: BTreeMap<String, RunStatus>,
    /// The status with how the command ended, for people.
    #[serde(skip)]
    told: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct ShownDiffer {
    command: String,
    /// The sites that print what most do, or most of their part.
    most: Vec<String>,
    /// The others, each with a unified diff.
    others: BTreeMap<String, String>,
    /// The sites whose command failed, or that did not answer, and what they said.
    failed: BTreeMap<String, String>,
}

impl Differences {
    pub(super) fn new(id: &str, seen: &[Seen], shown: Option<Shown>) -> Self {
        let mut not_asked = BTreeMap::new();
        let mut known: BTreeMap<&str, &Resource> = BTreeMap::new();
        for Seen { site, resource } in seen {
            match resource {
                Ok(resource) => drop(known.insert(site, resource)),
                Err(why) => drop(not_asked.insert(site.clone(), why.clone())),
            }
        }
        Self {
            id: id.to_owned(),
            sites: known.keys().map(|&site| site.to_owned()).collect(),
            not_asked,
            missing: missing(&known),
            blocks: blocks(&known),
            runs: runs(&known),
            shown: shown.map(ShownDiffer::new),
        }
    }

    fn differ(&self) -> bool {
        !self.missing.is_empty()
            || !self.blocks.is_empty()
            || !self.runs.is_empty()
            || self.shown.as_ref().is_some_and(|shown| !shown.others.is_empty() || shown.has_ko())
    }

    pub(super) fn exit(&self) -> Exit {
        let silent = self.shown.as_ref().is_some_and(|shown| !shown.failed.is_empty());
        if self.differ() {
            Exit::Wrong
        } else if silent || !self.not_asked.is_empty() {
            Exit::Silent
        } else {
            Exit::Fine
        }
    }
}

/// What each site has not heard of. Where a site told only the newest part of its history, an
/// operation that is older than all of it is not missing.
fn missing(known: &BTreeMap<&str, &Resource>) -> BTreeMap<String, Vec<String>> {
    let all: BTreeMap<&str, &Operation> = known
        .values()
        .flat_map(|resource| &resource.operations)
        .map(|operation| (operation.id.as_str(), operation))
        .collect();
    let of_site = |(&site, resource): (&&str, &&Resource)| {
        let has: BTreeSet<&str> = resource.operations.iter().map(|op| op.id.as_str()).collect();
        let is_whole = resource.summary.operation_count <= resource.operations.len();
        let oldest = resource.operations.first().filter(|_| !is_whole).map(|op| op.at.as_str());
        let lacks = all.iter().filter(|(id, operation)| {
            !has.contains(**id) && oldest.is_none_or(|oldest| operation.at.as_str() >= oldest)
        });
        let mut lacks: Vec<&Operation> = lacks.map(|(_, operation)| *operation).collect();
        lacks.sort_by(|a, b| (&a.at, &a.id).cmp(&(&b.at, &b.id)));
        let lacks: Vec<String> = lacks.into_iter().map(|operation| operation.id.clone()).collect();
        (!lacks.is_empty()).then(|| (site.to_owned(), lacks))
    };
    known.iter().filter_map(of_site).collect()
}

/// Groups of sites with one block each, where sites that know the same have different ones.
fn blocks(known: &BTreeMap<&str, &Resource>) -> Vec<Vec<String>> {
    let mut by_version: BTreeMap<_, BTreeMap<_, Vec<String>>> = BTreeMap::new();
    for (&site, resource) in known {
        let groups = by_version.entry(&resource.version).or_default();
        groups.entry(&resource.block_ids).or_default().push(site.to_owned());
    }
    by_version
        .into_values()
        .filter(|groups| groups.len() > 1)
        .flat_map(BTreeMap::into_values)
        .collect()
}

/// Operations of the block that went OK here and not there, each site's own word for its own run.
fn runs(known: &BTreeMap<&str, &Resource>) -> Vec<RunsDiffer> {
    let mut by_operation: BTreeMap<&str, (&Operation, BTreeMap<String, &Run>)> = BTreeMap::new();
    for (&site, resource) in known {
        let kept = resource.operations.iter().filter(|operation| operation.fate == Fate::Kept);
        for operation in kept {
            let Some(run) = operation.runs.iter().find(|run| run.site == site) else { continue };
            let (_, runs) =
                by_operation.entry(&operation.id).or_insert_with(|| (operation, BTreeMap::new()));
            runs.insert(site.to_owned(), run);
        }
    }
    let mut differ: Vec<(&Operation, BTreeMap<String, &Run>)> = by_operation
        .into_values()
        .filter(|(_, runs)| {
            let first = runs.values().next().map(|run| run.status);
            runs.values().any(|run| Some(run.status) != first)
        })
        .collect();
    differ.sort_by(|(a, _), (b, _)| (&a.at, &a.id).cmp(&(&b.at, &b.id)));
    let in_words = |run: &Run| Printed::by(run).status(&words::word(run.status));
    let told = |(operation, runs): (&Operation, BTreeMap<String, &Run>)| RunsDiffer {
        operation: operation.id.clone(),
        kind: operation.kind.clone(),
        command: operation.command.clone(),
        status: runs.iter().map(|(site, run)| (site.clone(), run.status)).collect(),
        told: runs.iter().map(|(site, run)| (site.clone(), in_words(run))).collect(),
    };
    differ.into_iter().map(told).collect()
}

impl ShownDiffer {
    fn new(shown: Shown) -> Self {
        let (ok, failed): (Vec<_>, Vec<_>) =
            shown.sites.into_iter().partition(|(_, at)| at.status == "OK");
        let mut parts: BTreeMap<Option<usize>, Vec<(&str, &str)>> = BTreeMap::new();
        for (site, at) in &ok {
            parts.entry(at.part).or_default().push((site, &at.output));
        }
        let mut most = Vec::new();
        let mut others = BTreeMap::new();
        for sites in parts.into_values() {
            compare(&sites, &mut most, &mut others);
        }
        most.sort_unstable();
        let failed = failed.into_iter().map(|(site, at)| {
            let printed = Printed::new(&at.output, at.status == "KO");
            let (status, said) = (printed.status(&at.status), printed.line(None));
            (site, if said.is_empty() { status } else { format!("{status}: {said}") })
        });
        Self { command: shown.command, failed: failed.collect(), most, others }
    }

    fn has_ko(&self) -> bool {
        self.failed.values().any(|said| said.starts_with("KO"))
    }
}

/// Sorts the sites of a part, or all of a resource without parts, into those that print what most of
/// them do, and the others.
fn compare(sites: &[(&str, &str)], most: &mut Vec<String>, others: &mut BTreeMap<String, String>) {
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, output) in sites {
        *groups.entry(output).or_default() += 1;
    }
    let largest = groups.values().max().copied();
    // Of groups that are as large, that of the first site.
    let usual = sites.iter().find(|(_, output)| groups.get(output).copied() == largest);
    let (most_name, usual) = usual.copied().unwrap_or_default();
    for &(site, output) in sites {
        if output == usual {
            most.push(site.to_owned());
        } else {
            let diff = TextDiff::from_lines(usual, output)
                .unified_diff()
                .context_radius(AROUND)
                .header(most_name, site)
                .to_string();
            others.insert(site.to_owned(), diff);
        }
    }
}

impl View for Differences {
    fn text(&self, wide: bool) -> String {
        let mut parts = Vec::new();
        if !self.missing.is_empty() {
            let mut table = Table::untitled().indented(2);
            for (site, operations) in &self.missing {
                table.row([Cell::from(site), named(operations, wide).into()]);
            }
            parts.push(format!(
                "{BOLD}Operations that have not arrived{BOLD:#}\n{}",
                table.render()
            ));
        }
        if !self.blocks.is_empty() {
            let lines =
                self.blocks.iter().map(|sites| format!("  {}\n", clean(&words::listed(sites))));
            parts.push(format!(
                "{BOLD}Sites that know the same and have different blocks{BOLD:#}\n{}",
                lines.collect::<String>()
            ));
        }
        if !self.runs.is_empty() {
            parts.push(format!("{BOLD}Runs that differ{BOLD:#}\n{}", self.runs_table().render()));
        }
        parts.extend(self.shown.as_ref().and_then(ShownDiffer::text));
        if !self.not_asked.is_empty() {
            let mut table = Table::untitled().indented(2);
            for (site, why) in &self.not_asked {
                table.row([Cell::from(site), Cell::from(why)]);
            }
            parts.push(format!("{BOLD}Not asked{BOLD:#}\n{}", table.render()));
        }
        let shows = self
            .shown
            .as_ref()
            .map_or("; it has no `Show` command to compare", |_| " and show the same");
        let sites = clean(&words::listed(&self.sites));
        match self.sites.len() {
            _ if self.differ() => {}
            0 => parts.push("No site could be asked.\n".to_owned()),
            1 => parts.push(format!("Only {sites} could be asked: there is nothing to compare.\n")),
            _ => parts.push(format!("{sites} know and ran the same{shows}.\n")),
        }
        parts.join("\n")
    }

    fn names(&self) -> Vec<String> {
        let others = self.shown.iter().flat_map(|shown| shown.others.keys());
        let ran = self.runs.iter().flat_map(|run| run.status.keys());
        let sites: BTreeSet<&String> = self.missing.keys().chain(others).chain(ran).collect();
        sites.into_iter().map(|site| format!("site/{site}")).collect()
    }
}

impl Differences {
    fn runs_table(&self) -> Table {
        let mut table = Table::new(["OPERATION", "KIND"]).indented(2);
        table.titles(self.sites.iter().map(String::as_str).chain(["COMMAND"]));
        for run in &self.runs {
            let mut row = vec![Cell::from(&run.operation), Cell::from(&run.kind)];
            let status = |site| match (run.status.get(site), run.told.get(site)) {
                (Some(&status), Some(told)) => Cell::styled(told, words::run_style(status)),
                _ => words::NONE.into(),
            };
            row.extend(self.sites.iter().map(status));
            row.push(Cell::from(&run.command));
            table.row(row);
        }
        table
    }
}

impl ShownDiffer {
    fn text(&self) -> Option<String> {
        if self.others.is_empty() && self.failed.is_empty() {
            return None;
        }
        let title = format!("{BOLD}What `{}` prints{BOLD:#}\n", clean(&self.command));
        let failed = self.failed.iter();
        let failed = failed.map(|(site, said)| format!("  {}  {}\n", clean(site), clean(said)));
        let lines = self.others.values().flat_map(|diff| clean_lines(diff)).map(|line| {
            let style = match line.as_bytes().first() {
                Some(b'+') => words::GOOD,
                Some(b'-') => words::BAD,
                _ => anstyle::Style::new(),
            };
            format!("{style}{line}{style:#}\n")
        });
        let parts: Vec<String> = iter::once(title).chain(failed).chain(lines).collect();
        Some(parts.concat())
    }
}

fn named(operations: &[String], wide: bool) -> String {
    let most = if wide { operations.len() } else { NAMED };
    let names = operations.iter().take(most).map(String::as_str).collect::<Vec<_>>().join(", ");
    match operations.len().saturating_sub(most) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}
