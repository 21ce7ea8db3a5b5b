//! `cheops get operations`.

use cheops_agent::api::model::{Operation, Resource, RunStatus};
use cheops_core::id::ResourceId;
use serde::Serialize;

use crate::{
    client::Client,
    command::{List, ask},
    printed::Printed,
    report::{Failure, first},
    table::{Cell, Table},
    words::{self, NONE},
};

/// How much of a command stands in a table.
pub(crate) const COMMAND: usize = 60;

/// The operations of a resource: the newest of them, oldest first.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Operations {
    operations: Vec<Operation>,
    #[serde(skip)]
    older: usize,
}

pub(super) fn fetch(
    client: &Client,
    id: &ResourceId,
    limit: Option<usize>,
) -> Result<Operations, Failure> {
    let resource: Resource = client.get(&ask::resource_path(id).query("limit", limit))?;
    let older = resource.summary.operation_count.saturating_sub(resource.operations.len());
    Ok(Operations { operations: resource.operations, older })
}

impl List for Operations {
    type Item = Operation;

    fn items(&self) -> &[Operation] {
        &self.operations
    }

    fn name(operation: &Operation) -> String {
        format!("operation/{}", operation.id)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table =
            Table::new(["OPERATION", "KIND", "FATE", "RUNS", "WHEN", "AUTHOR", "COMMAND"]);
        if wide {
            table.titles(["PLACE", "PARENTS", "WHY"]);
        }
        for operation in &self.operations {
            let command =
                if wide { operation.command.clone() } else { first(&operation.command, COMMAND) };
            let mut row: Vec<Cell> = vec![
                Cell::from(&operation.id),
                Cell::from(&operation.kind),
                words::fate(operation.fate),
                runs(operation),
                words::ago(&operation.at).into(),
                Cell::from(&operation.author),
                command.into(),
            ];
            if wide {
                let none = || NONE.to_owned();
                row.extend([
                    operation.place.map_or_else(none, |place| place.to_string()).into(),
                    if operation.parents.is_empty() {
                        none()
                    } else {
                        operation.parents.join(", ")
                    }
                    .into(),
                    operation
                        .receipt
                        .as_ref()
                        .map_or_else(none, |receipt| words::why(operation.fate, receipt).to_owned())
                        .into(),
                ]);
            }
            table.row(row);
        }
        table
    }

    fn empty(&self) -> String {
        "No operations.".to_owned()
    }

    fn note(&self) -> Option<String> {
        (self.older > 0).then(|| {
            format!("{} older: take a larger --limit.", words::count(self.older, "operation"))
        })
    }
}

/// How an operation went, in a few letters: `3 OK`, `2 OK, 1 KO (exit 2)`.
pub(crate) fn runs(operation: &Operation) -> Cell {
    let order = [
        RunStatus::Ok,
        RunStatus::Ko,
        RunStatus::Denied,
        RunStatus::Unknown,
        RunStatus::Running,
        RunStatus::Waiting,
        RunStatus::Timeout,
        RunStatus::Dropped,
    ];
    let counted = order.into_iter().filter_map(|status| {
        let count = operation.runs.iter().filter(|run| run.status == status).count();
        let ends = if status == RunStatus::Ko { ends(operation) } else { String::new() };
        (count > 0).then(|| (status, format!("{count} {}{ends}", words::word(status))))
    });
    let counted: Vec<(RunStatus, String)> = counted.collect();
    let by_weight = [
        RunStatus::Ko,
        RunStatus::Denied,
        RunStatus::Unknown,
        RunStatus::Waiting,
        RunStatus::Running,
        RunStatus::Ok,
    ];
    let has = |status: &RunStatus| counted.iter().any(|(counted, _)| counted == status);
    let worst = by_weight.into_iter().find(has);
    let text: Vec<String> = counted.into_iter().map(|(_, text)| text).collect();
    match worst {
        Some(worst) => Cell::styled(text.join(", "), words::run_style(worst)),
        None if text.is_empty() => NONE.into(),
        None => text.join(", ").into(),
    }
}

/// How the runs that failed ended, each way once.
fn ends(operation: &Operation) -> String {
    let mut ends: Vec<String> = Vec::new();
    for run in operation.runs.iter().filter(|run| run.status == RunStatus::Ko) {
        let end = Printed::by(run).end().map(str::to_owned);
        ends.extend(end.filter(|end| !ends.contains(end)));
    }
    if ends.is_empty() { String::new() } else { format!(" ({})", ends.join(", ")) }
}
