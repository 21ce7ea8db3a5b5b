//! What a configuration means, while it is typed: the findings of `cheops matrix check`.

use axum::extract::Form;
use cheops_core::{
    json::JsonError,
    matrix::{Config, Finding, Severity, check},
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::words::{badge, count};

/// How many findings are explained.
const EXPLAINED: usize = 20;
/// How many rows of the matrix one of them names.
const ROWS: usize = 10;

/// What was typed.
#[derive(Debug, Deserialize)]
pub(super) struct Typed {
    config: String,
}

pub(super) async fn look(Form(typed): Form<Typed>) -> Markup {
    said(&typed.config)
}

fn said(text: &str) -> Markup {
    if text.trim().is_empty() {
        return html! { p.said { "Without a matrix, all operations stay, in an order that is the same everywhere." } };
    }
    match Config::from_json(text) {
        Err(error) => wrong(&error),
        Ok(config) => findings(&config, &check(&config.matrix)),
    }
}

fn wrong(error: &JsonError) -> Markup {
    html! {
        div.problem {
            p { strong { (error) } }
            @if let Some(hint) = &error.hint { p.next { (hint) } }
        }
    }
}

fn findings(config: &Config, findings: &[Finding]) -> Markup {
    let kinds = config.matrix.kinds().len();
    html! {
        @if findings.is_empty() {
            p.said.good {
                @match kinds {
                    0 => "No findings, and no entries: all operations stay, in any order.",
                    1 => "No findings: its one kind has its entry.",
                    _ => { "No findings: all pairs of its " (kinds) " kinds have their entries." }
                }
            }
        } @else {
            p.said { (count(findings.len(), "finding")) " of the matrix checker:" }
            ul.findings { @for finding in findings.iter().take(EXPLAINED) { li { (explained(finding)) } } }
            @if findings.len() > EXPLAINED {
                p.said { "and " (findings.len() - EXPLAINED) " more; see to these first" }
            }
        }
    }
}

fn explained(finding: &Finding) -> Markup {
    let said = finding.explain();
    let (before, after) = &finding.pair;
    let rows: Vec<String> = finding.rows.iter().take(ROWS).map(ToString::to_string).collect();
    html! {
        p {
            (badge(severity(finding.severity))) " "
            code { (before) } " and " code { (after) }
            @if !rows.is_empty() { ", row " (rows.join(", ")) }
            ": " (said.title)
        }
        p.why { (said.meaning) }
        @for advice in &said.advice {
            p.why { (advice.when) }
            pre { @for (n, entry) in advice.entries.iter().enumerate() { @if n > 0 { ",\n" } (entry) } }
        }
    }
}

fn severity(severity: Severity) -> (&'static str, &'static str) {
    match severity {
        Severity::Problem => ("problem", "bad"),
        Severity::Warning => ("warning", "warn"),
        Severity::Note => ("note", "busy"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_explained() {
        for (text, expected) in [
            ("", "Without a matrix"),
            ("{", "this is not JSON"),
            (r#"{"Resolution": []}"#, "Resolution"),
            ("{}", "No findings, and no entries"),
            (
                r#"{"ResolutionMatrix": [{"Before": "<b>", "After": "inc", "Result": "take-both"}]}"#,
                "warning",
            ),
        ] {
            let said = said(text).into_string();
            assert!(said.contains(expected) && !said.contains("<b>"), "{text}: {said}");
        }
    }
}
