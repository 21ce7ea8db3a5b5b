//! `cheops describe`: all about one resource that a person wants to see at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use cheops_agent::api::model::{Fate, Operation, Resource};
use serde::Serialize;

use super::{
    Context, Outcome, View, ask,
    get::operations::{COMMAND, runs},
    running::{self, Running},
};
use crate::{
    report::{Failure, clean, clean_lines, first},
    table::{Cell, Table},
    words::{self, BOLD, NONE, shown},
};

/// How much of a long list is shown, at its start and at its end.
const SHOWN: (usize, usize) = (10, 20);

/// How many operations are asked for.
const LIMIT: usize = 1000;

/// Describe a resource: its state, how each site is doing, the block, what was dropped and why
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The resource
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = ask::resource(&arguments.id)?;
    let path = ask::resource_path(&id).query("limit", Some(LIMIT));
    let client = context.client()?;
    let resource: Resource = client.get(&path)?;
    let running = if context.output.is_text() {
        let others = resource.by_site.iter().filter(|at| at.waiting > 0);
        let others = others.map(|at| at.site.as_str()).filter(|site| *site != resource.seen_by);
        let others = running::at(&client, &id, &others.collect::<Vec<_>>());
        running::here(&resource).into_iter().chain(others).collect()
    } else {
        Vec::new()
    };
    Ok(Outcome::success(context.output.write(&Described { resource, running })?))
}

/// A resource, and what its sites run.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Described {
    resource: Resource,
    #[serde(skip)]
    running: Vec<Running>,
}

impl View for Described {
    fn text(&self, wide: bool) -> String {
        let resource = &self.resource;
        let waits = running::sentences(&self.running);
        let waits = waits.iter().map(|line| format!("  {line}\n"));
        let parts = [
            summary(resource),
            titled("Sites", &at_sites(resource, &self.running)) + &waits.collect::<String>(),
            titled(&block_title(resource), &block(resource, wide)),
            titled("Dropped", &dropped(resource, wide)),
            config(resource),
        ];
        parts.join("\n")
    }

    fn names(&self) -> Vec<String> {
        vec![format!("resource/{}", self.resource.summary.id)]
    }
}

fn summary(resource: &Resource) -> String {
    let about = &resource.summary;
    let mut table = Table::untitled();
    table.row([Cell::from("Resource"), Cell::styled(&about.id, BOLD)]);
    table.row([Cell::from("State"), words::state(about.state)]);
    if about.deleting {
        table.row(["".into(), Cell::styled("is being deleted", words::OPEN)]);
    }
    table.row([Cell::from("Sites"), words::place(about).into()]);
    if !about.removed.is_empty() {
        table.row([Cell::from("Removed"), about.removed.join(", ").into()]);
    }
    let operations = format!("{}, {} in the block", about.operation_count, about.block_length);
    table.row([Cell::from("Operations"), operations.into()]);
    let updated = about.updated.as_deref();
    let updated =
        updated.map_or_else(|| NONE.to_owned(), |at| format!("{} ({at})", words::ago(at)));
    table.row([Cell::from("Updated"), updated.into()]);
    table.row([Cell::from("Seen by"), Cell::from(&resource.seen_by)]);
    table.render()
}

fn titled(title: &str, table: &Table) -> String {
    let rows = if table.is_empty() { "  none\n".to_owned() } else { table.render() };
    format!("{BOLD}{title}{BOLD:#}\n{rows}")
}

fn at_sites(resource: &Resource, running: &[Running]) -> Table {
    let in_parts = resource.by_site.iter().any(|at| at.part.is_some());
    let mut table = Table::new(["SITE"]).indented(2);
    table.titles(in_parts.then_some("PART"));
    let some_denied = resource.by_site.iter().any(|at| at.denied > 0);
    table.titles(["OK", "KO"]);
    table.titles(some_denied.then_some("DENIED"));
    table.titles(["UNKNOWN", "WAITING", "SHOWS"]);
    if !running.is_empty() {
        table.titles(["RUNNING"]);
    }
    // Sites with different parts show different things by design.
    let mut prints: BTreeMap<Option<usize>, BTreeSet<&str>> = BTreeMap::new();
    for at in &resource.by_site {
        prints.entry(at.part).or_default().extend(at.shown.as_deref());
    }
    let shows = |print: &str, part: Option<usize>| {
        let short = words::print(print);
        let apart = prints.get(&part).is_some_and(|prints| prints.len() > 1);
        if apart { Cell::styled(short, words::BAD) } else { Cell::from(short) }
    };
    for at in &resource.by_site {
        let bad = |count: usize, style| match count {
            0 => Cell::from("0"),
            _ => Cell::styled(count.to_string(), style),
        };
        let mut row = vec![Cell::from(&at.site)];
        let part = || at.part.map_or(words::NONE.to_owned(), |part| part.to_string());
        row.extend(in_parts.then(|| Cell::from(part())));
        row.extend([at.ok.to_string().into(), bad(at.ko, words::BAD)]);
        row.extend(some_denied.then(|| bad(at.denied, words::BAD)));
        row.extend([
            bad(at.unknown, words::BAD),
            bad(at.waiting, words::OPEN),
            at.shown.as_deref().map_or(Cell::from(words::NONE), |print| shows(print, at.part)),
        ]);
        let runs = running.iter().find(|running| running.site == at.site);
        row.extend(runs.map(|running| Cell::styled(&running.operation, words::OPEN)));
        table.row(row);
    }
    table
}

fn block_title(resource: &Resource) -> String {
    format!(
        "Block ({} of {})",
        resource.summary.block_length,
        words::count(resource.summary.operation_count, "operation")
    )
}

fn block(resource: &Resource, wide: bool) -> Table {
    let operations: BTreeMap<&str, &Operation> =
        resource.operations.iter().map(|operation| (operation.id.as_str(), operation)).collect();
    let mut table =
        Table::new(["#", "OPERATION", "KIND", "RUNS", "WHEN", "AUTHOR", "COMMAND"]).indented(2);
    let first_place = resource.summary.block_length.saturating_sub(resource.block_ids.len()) + 1;
    let places: Vec<(usize, &String)> = (first_place..).zip(&resource.block_ids).collect();
    let row = |(place, id): (usize, &String)| {
        let mut row: Vec<Cell> = vec![format!("{place}.").into(), Cell::from(id)];
        if let Some(operation) = operations.get(id.as_str()) {
            row.extend([
                Cell::from(&operation.kind),
                runs(operation),
                words::ago(&operation.at).into(),
                Cell::from(&operation.author),
                command(operation, wide),
            ]);
        }
        row
    };
    table.rows(rows(places, wide, row));
    table
}

fn dropped(resource: &Resource, wide: bool) -> Table {
    let mut table =
        Table::new(["OPERATION", "KIND", "FATE", "BY", "WHY", "AUTHOR", "COMMAND"]).indented(2);
    let dropped: Vec<&Operation> =
        resource.operations.iter().filter(|operation| operation.fate != Fate::Kept).collect();
    let row = |operation: &Operation| {
        let receipt = operation.receipt.as_ref();
        vec![
            Cell::from(&operation.id),
            Cell::from(&operation.kind),
            words::fate(operation.fate),
            receipt.and_then(|receipt| receipt.by.as_deref()).unwrap_or(NONE).into(),
            receipt.map_or(NONE, |receipt| words::why(operation.fate, receipt)).into(),
            Cell::from(&operation.author),
            command(operation, wide),
        ]
    };
    table.rows(rows(dropped, wide, row));
    table
}

/// A row for each item; of a long list the start and the end, unless all is wanted.
fn rows<T>(items: Vec<T>, wide: bool, row: impl Fn(T) -> Vec<Cell>) -> Vec<Vec<Cell>> {
    let most = if wide { (items.len(), 0) } else { SHOWN };
    shown(items, most, row, |count| vec!["…".into(), format!("{count} more").into()])
}

fn command(operation: &Operation, wide: bool) -> Cell {
    if wide {
        Cell::from(&operation.command)
    } else {
        first(&clean(&operation.command), COMMAND).into()
    }
}

/// The configuration as it is written: an entry of the matrix is a line.
fn config(resource: &Resource) -> String {
    let mut text = format!("{BOLD}Configuration{BOLD:#}\n");
    let fields: Vec<(&String, &serde_json::Value)> = resource
        .config
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| is_set(value))
        .collect();
    if fields.is_empty() {
        text += "  none: all operations stay, in any order\n";
    }
    for (name, value) in fields {
        // Writing to a string can't fail.
        let _ = match value.as_array() {
            Some(entries) => entries.iter().try_fold((), |(), entry| {
                writeln!(text, "  {} {}", clean(name), clean(&entry.to_string()))
            }),
            None => clean_lines(&value.to_string())
                .try_fold((), |(), line| writeln!(text, "  {} {line}", clean(name))),
        };
    }
    text
}

/// Whether a field of a configuration says anything.
fn is_set(value: &serde_json::Value) -> bool {
    !value.is_null() && value.as_array().is_none_or(|entries| !entries.is_empty())
}
