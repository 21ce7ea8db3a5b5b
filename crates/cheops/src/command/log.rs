//! `cheops log`: the history of a resource, with a drawing of which operation knew of which.

use std::collections::BTreeMap;

use cheops_agent::api::model::{Fate, Operation, Resource};
use cheops_core::{history::History, log::Ix};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::{Context, Outcome, View, ask, get::operations::COMMAND, graph};
use crate::{
    report::{Failure, clean, first},
    shell,
    table::{Cell, Table},
    words,
};

/// The most chains of operations that a drawing is readable for.
const DRAWN: usize = 40;

/// Show the history of a resource: who knew of what, what stayed, and why the rest did not
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The resource
    #[arg(value_name = "ID")]
    id: String,
    /// At most so many operations, the newest
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Only operations before this one
    #[arg(long, value_name = "OPERATION")]
    before: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = ask::resource(&arguments.id)?;
    let path = ask::resource_path(&id)
        .query("limit", Some(arguments.limit))
        .query("before", arguments.before.as_deref());
    let resource: Resource = context.client()?.get(&path)?;
    let history = Told {
        operations: resource.operations,
        id: arguments.id.clone(),
        all: resource.summary.operation_count,
    };
    Ok(Outcome::success(context.output.write(&history)?))
}

/// A part of a history, oldest first.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Told {
    operations: Vec<Operation>,
    #[serde(skip)]
    id: String,
    #[serde(skip)]
    all: usize,
}

impl View for Told {
    fn text(&self, wide: bool) -> String {
        if self.operations.is_empty() {
            return "No operations.\n".to_owned();
        }
        let mut table = Table::untitled().indented(2);
        let drawing = drawing(&self.operations);
        for (drawn, operation) in drawing {
            let mut row = vec![Cell::from(drawn)];
            row.extend(operation.map(|operation| cells(operation, wide)).unwrap_or_default());
            table.row(row);
        }
        let title = "History (● in the block, ○ dropped, × void)\n";
        let is_part = self.operations.len() < self.all;
        let older = self.operations.first().filter(|_| is_part).map(|oldest| {
            let before = shell::option("--before", &oldest.id);
            clean(&format!("Older ones: cheops log {before} {}", shell::last(&self.id))) + "\n"
        });
        [title.to_owned(), table.render(), older.unwrap_or_default()].concat()
    }

    fn names(&self) -> Vec<String> {
        self.operations.iter().map(|operation| format!("operation/{}", operation.id)).collect()
    }
}

fn cells(operation: &Operation, wide: bool) -> Vec<Cell> {
    let receipt = operation.receipt.as_ref();
    let why = |receipt| words::why(operation.fate, receipt);
    let why = match (operation.fate, receipt) {
        (Fate::Kept, _) if operation.reset => "ends what came before".to_owned(),
        (Fate::Kept, _) => String::new(),
        (_, Some(receipt)) => match &receipt.by {
            Some(by) => format!("{} by {by}: {}", words::word(operation.fate), why(receipt)),
            None => format!("{}: {}", words::word(operation.fate), why(receipt)),
        },
        (fate, None) => words::word(fate),
    };
    let command = if wide { operation.command.clone() } else { first(&operation.command, COMMAND) };
    let mut row = vec![
        Cell::from(&operation.id),
        Cell::from(&operation.kind),
        words::ago(&operation.at).into(),
        Cell::from(&operation.author),
        command.into(),
        why.into(),
    ];
    if wide {
        row.insert(3, Cell::from(&operation.at));
    }
    row
}

/// The operations with the drawing in front of each, and the lines between them.
fn drawing(operations: &[Operation]) -> Vec<(String, Option<&Operation>)> {
    let sign = |operation: &Operation| match operation.fate {
        Fate::Kept => '●',
        Fate::Over | Fate::Fallen => '○',
        Fate::Void => '×',
    };
    let by_id: BTreeMap<&str, &Operation> =
        operations.iter().map(|operation| (operation.id.as_str(), operation)).collect();
    let history = history(operations, &by_id);
    match history.filter(|history| history.chains() <= DRAWN) {
        None => operations
            .iter()
            .map(|operation| (sign(operation).to_string(), Some(operation)))
            .collect(),
        Some(history) => {
            let find = |op: Ix| by_id.get(history.id(op)).copied();
            let lines = graph::draw(&history, |op| find(op).map_or('●', sign));
            lines.into_iter().map(|line| (line.drawn, line.op.and_then(find))).collect()
        }
    }
}

/// The operations as a history, for its shape alone: what stayed was decided by the agent. Nothing
/// if they don't make one.
fn history(operations: &[Operation], by_id: &BTreeMap<&str, &Operation>) -> Option<History> {
    let row = |operation: &Operation| {
        let (site, _) = operation.id.rsplit_once(':')?;
        let at: Timestamp = operation.at.parse().ok()?;
        // Parents that are older than this part of the history are not drawn.
        let parents: Vec<&String> =
            operation.parents.iter().filter(|id| by_id.contains_key(id.as_str())).collect();
        Some(json!({
            "Id": operation.id,
            "Kind": operation.kind,
            "Site": site,
            "Time": at.as_microsecond(),
            "Parents": parents,
        }))
    };
    let rows: Option<Vec<serde_json::Value>> = operations.iter().map(row).collect();
    History::from_json(&json!({ "Operations": rows? }).to_string()).ok()
}
