//! `cheops matrix play`: what a history amounts to, and what each of its sites would run.
//!
//! What must stay true: ids, kinds and sites come from the file, so on a screen they stand only in
//! tables and titles that are cleaned; a program gets them as they are.

use std::{fmt::Write as _, path::PathBuf};

use cheops_core::{
    history::{Act, Dropped, History, Reset},
    id::SiteId,
    log::Ix,
};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::{Outcome, Output, graph};
use crate::{
    input,
    report::{Failure, clean},
    words::shown,
};

/// The most operations that a drawing is readable for.
const DRAWN: usize = 60;

/// The most chains of operations for which it is told what sites run. In a history where nothing
/// has parents each operation is its own chain, and to follow a site takes the cube of their number.
const FOLLOWED: usize = 300;

/// How much of a long list is shown, at its start and at its end.
const SHOWN: (usize, usize) = (30, 10);

/// The arguments of `cheops matrix play`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The configuration and the operations; `-` reads them from standard input
    #[arg(value_name = "HISTORY.json")]
    history: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, output: Output) -> Result<Outcome, Failure> {
    let path = &arguments.history;
    let text = input::document(path, "history", "{\"Operations\": []}")?;
    let history = History::from_json(&text).map_err(|error| {
        Failure::json(format!("invalid history `{}`", path.display()), &text, error)
    })?;
    Ok(Outcome::success(output.local(|| in_words(&history), || in_json(&history))?))
}

/// By hand, because the order of the fields is part of how it reads.
fn in_json(history: &History) -> String {
    let id = |op: Ix| Value::from(history.id(op));
    let block: Value = history.block().iter().map(|&op| id(op)).collect();
    let dropped: Vec<String> = history
        .dropped()
        .into_iter()
        .map(|dropped| {
            let by = dropped.by.map_or(Value::Null, id);
            let because = Value::from(dropped.because);
            format!(r#"{{"Id": {}, "By": {by}, "Because": {because}}}"#, id(dropped.op))
        })
        .collect();
    let lines = if dropped.is_empty() {
        String::new()
    } else {
        format!("\n    {}\n  ", dropped.join(",\n    "))
    };
    format!("{{\n  \"Block\": {block},\n  \"Dropped\": [{lines}]\n}}\n")
}

fn in_words(history: &History) -> String {
    drawing(history) + &block(history) + &dropped(history) + &at_sites(history)
}

fn at_sites(history: &History) -> String {
    let chains = history.chains();
    if chains > FOLLOWED {
        return format!(
            "\nWhat each site runs is left out: the operations form {chains} chains that don't know \
             of each other,\nand at most {FOLLOWED} can be followed. Are there parents missing?\n"
        );
    }
    let sites: Vec<&SiteId> = history.sites().into_iter().collect();
    shown(sites, SHOWN, |site| at_site(history, site), skipped_sites).concat()
}

fn skipped_sites(count: usize) -> String {
    format!("\n… {count} more sites …\n")
}

/// What stands for an operation in every table: id, kind, site and time.
fn cells(history: &History, op: Ix) -> Vec<String> {
    let operation = history.log().op(op);
    let time = history.time(op).to_string();
    vec![history.id(op).to_owned(), operation.kind.to_string(), operation.id.site.to_string(), time]
}

fn drawing(history: &History) -> String {
    let count = history.log().len();
    if count > DRAWN {
        return format!(
            "History: {count} operations. The drawing is left out, since it is readable for {DRAWN} \
             at most.\n"
        );
    }
    let sign = |op| match () {
        () if history.is_void(op) => '×',
        () if history.block().contains(&op) => '●',
        () => '○',
    };
    let rows = graph::draw(history, sign).into_iter().map(|line| {
        let mut row = vec![line.drawn];
        if let Some(op) = line.op {
            row.extend(cells(history, op));
            row.push(match history.reset(op) {
                _ if history.is_void(op) => "failed at its site".to_owned(),
                Some(Reset::Forced) => "forced: ends what came before".to_owned(),
                Some(Reset::Appended { row }) => format!("ends what came before (row {row})"),
                Some(Reset::Delete) => "ends what came before (by default)".to_owned(),
                None => String::new(),
            });
        }
        row
    });
    let table = table(&rows.collect::<Vec<_>>());
    format!("History (● in the block, ○ dropped, × void)\n{table}")
}

fn block(history: &History) -> String {
    let places = (1..).zip(history.block());
    let rows = shown(
        places.collect(),
        SHOWN,
        |(place, &op)| [vec![format!("{place}.")], cells(history, op)].concat(),
        skipped,
    );
    let (kept, all) = (history.block().len(), history.log().len());
    format!("\nBlock ({kept} of {all} operations)\n{}", listed(&rows))
}

fn dropped(history: &History) -> String {
    let row = |dropped: Dropped| {
        let by = dropped.by.map_or("-", |by| history.id(by));
        let mut row = cells(history, dropped.op);
        row.extend([format!("by {by}"), dropped.because]);
        row
    };
    format!("\nDropped\n{}", listed(&shown(history.dropped(), SHOWN, row, skipped)))
}

fn at_site(history: &History, site: &SiteId) -> String {
    let story = history.story(site);
    let row = |act: Act| match act {
        Act::Clear => vec!["(clear)".into(), String::new(), "runs the Reset command".into()],
        Act::Decide => vec!["(stop)".into(), String::new(), DECIDE.into()],
        Act::Run { op, again, fresh, failed } => {
            let remark = match (again, fresh) {
                _ if failed => "fails, and is void everywhere",
                (true, true) => "again; replaces the state",
                (true, false) => "again",
                (false, true) => "replaces the state",
                (false, false) => "",
            };
            let kind = history.log().op(op).kind.to_string();
            vec![history.id(op).to_owned(), kind, remark.to_owned()]
        }
    };
    let phases = [("apart", story.apart), ("joined", story.after)];
    let rows: Vec<Vec<String>> = phases
        .into_iter()
        .flat_map(|(name, acts)| {
            let mut rows = shown(acts, SHOWN, row, skipped);
            if rows.is_empty() {
                rows.push(vec!["nothing".into()]);
            }
            let names = [name].into_iter().chain(std::iter::repeat(""));
            names
                .zip(rows)
                .map(|(name, row)| [vec![name.to_owned()], row].concat())
                .collect::<Vec<_>>()
        })
        .collect();
    format!("\n{} runs\n{}", clean(site.as_str()), table(&rows))
}

/// What an operator reads where the plan has no way on.
const DECIDE: &str = "needs a decision: what it ran can't be undone, and there is no Reset command";

fn skipped(count: usize) -> Vec<String> {
    vec!["…".into(), format!("{count} more")]
}

/// A table, or a word where it would be empty.
fn listed(rows: &[Vec<String>]) -> String {
    if rows.is_empty() { "  none\n".to_owned() } else { table(rows) }
}

/// Rows as lines, with the columns below each other and nothing in them that acts on a terminal.
fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell_width =
        |column: usize| move |row: &Vec<String>| row.get(column).map(|cell| cell.width());
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(cell_width(column)).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let pad = width - cell.width();
            // Writing to a string can't fail.
            let _ = write!(line, "  {cell}{:pad$}", "");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
