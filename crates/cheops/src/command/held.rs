//! `cheops site held`: what a site received while it was removed, and what becomes of it.

use cheops_agent::api::model::{Adopted, Held, HeldOperation};
use hyper::Method;
use serde::Serialize;

use super::{Context, List, Outcome, View};
use crate::{
    client::{Ask, Path},
    report::{Failure, clean},
    table::{Cell, Table},
    words,
};

fn path() -> Path {
    Path::api("federation").then("held")
}

pub(super) fn list(context: &Context) -> Result<Outcome, Failure> {
    let held: Held = context.client()?.get(&path())?;
    Ok(Outcome::success(context.output.write(&held)?))
}

pub(super) fn adopt(
    resource: &str,
    operations: &[String],
    context: &Context,
) -> Result<Outcome, Failure> {
    let client = context.client()?;
    let mut decided = Vec::new();
    for operation in operations {
        let path = path().then(resource).then(operation).then("adopt");
        let Adopted { resource, operation, adopted } = client.ask(Ask::new(Method::POST, &path))?;
        decided.push(Decided { resource, operation, adopted: Some(adopted) });
    }
    Ok(Outcome::success(context.output.write(&Decisions { decided })?))
}

pub(super) fn discard(
    resource: &str,
    operations: &[String],
    context: &Context,
) -> Result<Outcome, Failure> {
    let client = context.client()?;
    let mut decided = Vec::new();
    for operation in operations {
        client.tell(Method::DELETE, &path().then(resource).then(operation))?;
        let (resource, operation) = (resource.to_owned(), operation.clone());
        decided.push(Decided { resource, operation, adopted: None });
    }
    Ok(Outcome::success(context.output.write(&Decisions { decided })?))
}

/// What was decided.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Decisions {
    decided: Vec<Decided>,
}

#[derive(Debug, Serialize)]
struct Decided {
    resource: String,
    operation: String,
    adopted: Option<String>,
}

impl View for Decisions {
    fn text(&self, _wide: bool) -> String {
        let line = |Decided { resource, operation, adopted }: &Decided| {
            clean(&match adopted {
                Some(adopted) => format!("adopted {resource} {operation} as {adopted}"),
                None => format!("discarded {resource} {operation}"),
            }) + "\n"
        };
        self.decided.iter().map(line).collect()
    }

    fn names(&self) -> Vec<String> {
        let name = |decided: &Decided| {
            let operation = decided.adopted.as_ref().unwrap_or(&decided.operation);
            format!("operation/{operation}")
        };
        self.decided.iter().map(name).collect()
    }
}

impl List for Held {
    type Item = HeldOperation;

    fn items(&self) -> &[HeldOperation] {
        &self.held
    }

    fn name(held: &HeldOperation) -> String {
        format!("operation/{}", held.operation)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table =
            Table::new(["RESOURCE", "OPERATION", "TYPE", "AUTHOR", "AT", "RUN", "COMMAND"]);
        if wide {
            table.titles(["OUTPUT"]);
        }
        for held in &self.held {
            let mut row = vec![
                Cell::from(&held.resource),
                Cell::from(&held.operation),
                Cell::from(&held.kind),
                Cell::from(&held.author),
                Cell::from(&held.at),
                Cell::styled(words::word(held.status), words::run_style(held.status)),
                Cell::from(&held.command),
            ];
            if wide {
                row.push(Cell::from(held.output.as_deref().unwrap_or(words::NONE)));
            }
            table.row(row);
        }
        table
    }

    fn empty(&self) -> String {
        format!("Nothing is held at {}.", self.site)
    }
}
