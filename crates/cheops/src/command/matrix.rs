//! `cheops matrix`: what a matrix means, before anything depends on it.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use cheops_core::matrix::{Config, Entry, Finding, Severity, What, check};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Outcome, Output, play};
use crate::report::Failure;

/// How many pairs without an entry are explained; the text is much the same for each, so that the
/// others are only named.
const EXPLAINED: usize = 3;

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
    let text = read(path, "configuration")?;
    let config = Config::from_json(text.trim_start_matches('\u{feff}')).map_err(|error| {
        Failure::json(format!("invalid configuration `{}`", path.display()), error)
    })?;
    let findings = check(&config.matrix);
    let contradicts = findings.iter().any(|finding| finding.severity == Severity::Problem);
    Ok(Outcome {
        text: match output {
            Output::Text => in_words(&config, &findings),
            Output::Json => format!("{:#}\n", in_json(&findings)),
        },
        exit: if contradicts { ExitCode::FAILURE } else { ExitCode::SUCCESS },
    })
}

/// The text of a file, or of standard input; `what` it should be is for the message.
pub(super) fn read(path: &Path, what: &str) -> Result<String, Failure> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    text.map_err(|error| {
        Failure::input(format!("cannot read the {what} `{}`", path.display())).caused_by(error)
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
    let mut missing = 0;
    let (explained, also): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(|finding| {
        missing += usize::from(matches!(finding.what, What::Missing { .. }));
        missing <= EXPLAINED || !matches!(finding.what, What::Missing { .. })
    });
    let mut paragraphs: Vec<String> = explained.into_iter().map(paragraph).collect();
    if !also.is_empty() {
        let pairs: Vec<String> =
            also.iter().map(|f| format!("`{}` and `{}`", f.pair.0, f.pair.1)).collect();
        paragraphs.push(format!(
            "warning: no entry for {} more pair{}; the same holds there\n{}",
            also.len(),
            if also.len() == 1 { "" } else { "s" },
            wrapped(&pairs.join(", "))
        ));
    }
    paragraphs.push(counts(findings) + "\n");
    paragraphs.join("\n")
}

/// One finding: where, what, what it means, and what to write.
fn paragraph(finding: &Finding) -> String {
    let explanation = finding.explain();
    let (before, after) = &finding.pair;
    let place = match finding.rows.as_slice() {
        [] => String::new(),
        [row] => format!(", row {row}"),
        [rows @ .., last] => {
            let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
            format!(", rows {} and {last}", rows.join(", "))
        }
    };
    let mut text = format!(
        "{}: (`{before}`, `{after}`){place}: {}\n",
        word(finding.severity),
        explanation.title
    );
    text += &wrapped(&explanation.meaning);
    for advice in &explanation.advice {
        text += &wrapped(&advice.when);
        let entries: Vec<String> =
            advice.entries.iter().map(|entry| format!("      {entry}")).collect();
        text += &entries.join(",\n");
        text.push('\n');
    }
    text
}

/// A text in lines that fit on a screen, indented.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
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
fn counts(findings: &[Finding]) -> String {
    let counted: Vec<String> = [Severity::Problem, Severity::Warning, Severity::Note]
        .into_iter()
        .map(|severity| (count(findings, severity), word(severity)))
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| format!("{n} {word}{}", if n == 1 { "" } else { "s" }))
        .collect();
    counted.join(", ")
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Problem => "problem",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

fn in_json(findings: &[Finding]) -> Value {
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
                "Rows": finding.rows,
                "Pair": [finding.pair.0.as_str(), finding.pair.1.as_str()],
                "Title": explanation.title,
                "Meaning": explanation.meaning,
                "Advice": advice,
            })
        })
        .collect();
    json!({
        "Findings": told,
        "Problems": count(findings, Severity::Problem),
        "Warnings": count(findings, Severity::Warning),
        "Notes": count(findings, Severity::Note),
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
