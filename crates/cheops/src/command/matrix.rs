//! `cheops matrix`: what a matrix means, before anything depends on it.

use std::{collections::BTreeMap, path::PathBuf};

use cheops_core::matrix::{Config, Entry, Finding, Severity, What, check};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Outcome, Output, play};
use crate::{
    input,
    report::{Exit, Failure, clean},
};

/// How many pairs without an entry are explained; the text is much the same for each, so that the
/// others are only named.
const EXPLAINED: usize = 3;

/// How many findings of any other sort are explained. Who has corrected these asks again.
const EXPLAINED_OTHERS: usize = 10;

/// How many things of one sort a sentence names: pairs, rows.
const NAMED: usize = 10;

/// How many rows of one finding programs are told.
const ROWS: usize = 1000;

/// How wide a line of text becomes.
const WIDTH: usize = 96;

/// Say what a matrix means, before anything depends on it
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// Say what a matrix leaves open or contradicts, and what to write instead
    ///
    /// The exit status is 1 if the matrix contradicts itself, and 0 otherwise.
    Check(Check),
    /// Say what a history amounts to, why operations drop out, and what each site would run
    Play(play::Arguments),
}

/// The arguments of `cheops matrix check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The resource's configuration; `-` reads it from standard input
    #[arg(value_name = "CONFIG.json")]
    config: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, output: Output) -> Result<Outcome, Failure> {
    match arguments {
        Arguments::Check(arguments) => run_check(arguments, output),
        Arguments::Play(arguments) => play::run(arguments, output),
    }
}

fn run_check(arguments: &Check, output: Output) -> Result<Outcome, Failure> {
    let path = &arguments.config;
    let text = input::document(path, "configuration", "{}")?;
    let config = Config::from_json(&text).map_err(|error| {
        Failure::json(format!("invalid configuration `{}`", path.display()), &text, error)
    })?;
    let findings = check(&config.matrix);
    let contradicts = findings.iter().any(|finding| finding.severity == Severity::Problem);
    Ok(Outcome {
        text: output
            .local(|| in_words(&config, &findings), || format!("{:#}\n", in_json(&findings)))?,
        exit: if contradicts { Exit::Wrong } else { Exit::Fine },
    })
}

fn in_words(config: &Config, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return match config.matrix.kinds().len() {
            0 => "No findings, and no entries: all operations stay, in any order.\n".to_owned(),
            1 => "No findings: its one kind has its entry.\n".to_owned(),
            n => format!("No findings: all pairs of its {n} kinds have their entries.\n"),
        };
    }
    let mut told: BTreeMap<&str, usize> = BTreeMap::new();
    let (explained, also): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(|finding| {
        let told = told.entry(sort(&finding.what)).or_default();
        *told += 1;
        *told <= if is_missing(finding) { EXPLAINED } else { EXPLAINED_OTHERS }
    });
    let (missing, others): (Vec<&Finding>, Vec<&Finding>) =
        also.into_iter().partition(|finding| is_missing(finding));
    let mut paragraphs: Vec<String> = explained.into_iter().map(paragraph).collect();
    if !others.is_empty() {
        paragraphs.push(format!(
            "{} more of the sorts above; correct those first, and run this again\n",
            counts(&others)
        ));
    }
    if !missing.is_empty() {
        let pair = |finding: &&Finding| format!("`{}` and `{}`", finding.pair.0, finding.pair.1);
        paragraphs.push(format!(
            "warning: no entry for {} more pair{}; the same holds there\n{}",
            missing.len(),
            if missing.len() == 1 { "" } else { "s" },
            wrapped(&some(&missing, pair).join(", "))
        ));
    }
    paragraphs.push(counts(&findings.iter().collect::<Vec<_>>()) + "\n");
    paragraphs.join("\n")
}

fn is_missing(finding: &Finding) -> bool {
    matches!(finding.what, What::Missing { .. })
}

/// The first of many things, and how many more there are.
fn some<T>(things: &[T], name: impl Fn(&T) -> String) -> Vec<String> {
    // To leave out a single one saves no room.
    let most = if things.len() <= NAMED + 1 { things.len() } else { NAMED };
    let mut names: Vec<String> = things.iter().take(most).map(name).collect();
    if most < things.len() {
        names.push(format!("{} more", things.len() - most));
    }
    names
}

/// One finding: where, what, what it means, and what to write.
fn paragraph(finding: &Finding) -> String {
    let explanation = finding.explain();
    let (before, after) = &finding.pair;
    let place = match some(&finding.rows, ToString::to_string).as_slice() {
        [] => String::new(),
        [row] => format!(", row {row}"),
        [rows @ .., last] => format!(", rows {} and {last}", rows.join(", ")),
    };
    let title = format!(
        "{}: (`{before}`, `{after}`){place}: {}",
        word(finding.severity),
        explanation.title
    );
    let mut text = clean(&title) + "\n";
    text += &wrapped(&explanation.meaning);
    for advice in &explanation.advice {
        text += &wrapped(&advice.when);
        let entries: Vec<String> =
            advice.entries.iter().map(|entry| format!("      {}", pasteable(entry))).collect();
        text += &entries.join(",\n");
        text.push('\n');
    }
    text
}

/// An entry as JSON in which all can be seen: what [`clean`] would replace is escaped, so that the
/// entry still means the same where it is pasted.
fn pasteable(entry: &Entry) -> String {
    let mut text = String::new();
    for c in entry.to_string().chars() {
        let mut bytes = [0; 4];
        let alone: &str = c.encode_utf8(&mut bytes);
        if clean(alone) == alone {
            text.push(c);
        } else {
            text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

/// A text in lines that fit on a screen, indented.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in clean(text).split(' ') {
        let width = word.chars().count();
        if column == 0 || column + 1 + width > WIDTH {
            lines += if column == 0 { "    " } else { "\n    " };
            column = 4;
        } else {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += width;
    }
    lines + "\n"
}

/// `1 problem, 2 warnings`.
fn counts(findings: &[&Finding]) -> String {
    let counted: Vec<String> = [Severity::Problem, Severity::Warning, Severity::Note]
        .into_iter()
        .map(|severity| (count(findings, severity), word(severity)))
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| format!("{n} {word}{}", if n == 1 { "" } else { "s" }))
        .collect();
    counted.join(", ")
}

fn count(findings: &[&Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Problem => "problem",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// All findings. Of the rows of one only the first, with their number, since one finding can be
/// about every row of the matrix.
fn in_json(findings: &[Finding]) -> Value {
    let all: Vec<&Finding> = findings.iter().collect();
    let told: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let explanation = finding.explain();
            let advice: Vec<Value> = explanation
                .advice
                .iter()
                .map(|advice| {
                    let entries: Value = advice.entries.iter().map(Entry::to_json).collect();
                    json!({"When": advice.when, "Entries": entries})
                })
                .collect();
            json!({
                "Severity": word(finding.severity),
                "What": sort(&finding.what),
                "Rows": finding.rows.get(..ROWS).unwrap_or(&finding.rows),
                "RowCount": finding.rows.len(),
                "Pair": [finding.pair.0.as_str(), finding.pair.1.as_str()],
                "Title": explanation.title,
                "Meaning": explanation.meaning,
                "Advice": advice,
            })
        })
        .collect();
    json!({
        "Findings": told,
        "Problems": count(&all, Severity::Problem),
        "Warnings": count(&all, Severity::Warning),
        "Notes": count(&all, Severity::Note),
    })
}

/// The sort of a finding, for programs; these words don't change.
fn sort(what: &What) -> &'static str {
    match what {
        What::Missing { .. } => "missing",
        What::NoMirror(_) => "no-mirror",
        What::Contradiction(..) => "contradiction",
        What::ConcurrentContradiction(..) => "concurrent-contradiction",
        What::Twice(_) => "twice",
        What::OrderOfOneKind(_) => "order-of-one-kind",
        What::Circle(_) => "circle",
    }
}
