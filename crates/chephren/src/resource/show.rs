//! What a resource is at each of its sites, side by side.
//!
//! Sites that print the same share a column; the others stand beside it, line by line. What must stay
//! true: a site that failed or did not answer is named, and never counts as one that agrees; sites with
//! different parts of a resource are not compared.

use std::collections::BTreeMap;

use axum::{
    extract::{Form, Path},
    http::Method,
};
use cheops_agent::{
    api::model::{Show, Shown, ShownAt},
    shell,
};
use maud::{Markup, html};
use serde::Deserialize;
use similar::{Algorithm, DiffTag, capture_diff_slices};

use crate::{
    api::{Answer, Api, segment},
    layout,
    words::{badge, count},
};

/// The most lines of an output that are compared.
const MOST: usize = 2_000;
/// How many lines around a difference are shown.
const AROUND: usize = 3;

/// What to run.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    command: String,
}

/// Runs the `Show` command, or another that changes nothing, at all sites.
pub(super) async fn show(
    api: Api,
    Path(id): Path<String>,
    Form(wanted): Form<Wanted>,
) -> Answer<Markup> {
    let command = Some(wanted.command).filter(|command| !command.trim().is_empty());
    let path = format!("/api/v1/resources/{}/show", segment(&id));
    let show = Show { command: command.clone(), sites: None };
    let shown: Shown = api.send(Method::POST, &path, &show).await?;
    let option = command.map(|command| format!(" {}", shell::option("--command", &command)));
    let line = format!("cheops diff{} {}", option.unwrap_or_default(), shell::last(&id));
    Ok(html! { (said(&shown)) (layout::command(&line)) })
}

fn said(shown: &Shown) -> Markup {
    let silent: Vec<(&String, &ShownAt)> =
        shown.sites.iter().filter(|(_, at)| at.status != "OK").collect();
    let parts = compare(shown);
    html! {
        @if shown.agree {
            p.notice.good role="status" {
                @if parts.len() > 1 { "All sites with the same part print the same." } @else { "All sites print the same." }
            }
        } @else if parts.iter().any(|part| part.groups.len() > 1) {
            p.notice.bad role="status" { "The sites do not agree." }
        } @else if !silent.is_empty() {
            p.notice.warn role="status" { "Not all sites have answered; those that have print the same." }
        }
        @for (site, at) in silent {
            @let colour = if matches!(at.status.as_str(), "KO" | "DENIED") { "bad" } else { "warn" };
            div.problem {
                p { strong { (site) } " " (badge((&at.status, colour))) }
                pre { (at.output) }
            }
        }
        @for part in &parts { (table(shown, part)) }
    }
}

fn table(shown: &Shown, part: &Compared<'_>) -> Markup {
    let rows = folded(&part.rows);
    html! {
        div.scroll tabindex="0" role="region" aria-label="What each site prints" {
            table.diff {
                caption {
                    "What " code { (shown.command) } " prints"
                    @if let Some(number) = part.number { ", part " (number) }
                    @if part.is_cut { "; only the first " (MOST) " lines are compared" }
                }
                thead { tr {
                    @for group in &part.groups { th scope="col" { (group.join(", ")) } }
                } }
                tbody {
                    @for row in rows {
                        @match row {
                            Folded::Row(cells) => tr { @for cell in cells { (line(*cell)) } },
                            Folded::Same(lines) => tr {
                                td.none colspan=(part.groups.len()) { "… " (count(lines, "equal line")) " …" }
                            },
                        }
                    }
                    @if part.rows.is_empty() {
                        tr { td.none colspan=(part.groups.len()) { "nothing" } }
                    }
                }
            }
        }
    }
}

fn line(cell: Line<'_>) -> Markup {
    html! {
        @match cell {
            Line::Same(text) => td { pre { (text) } },
            Line::Other(text) => td.other { span.sign { "≠ " } pre { (text) } },
            Line::None => td.lacks { span.none { "no such line" } },
        }
    }
}

/// The outputs of sites with the same part of a resource.
#[derive(Debug)]
struct Compared<'a> {
    number: Option<usize>,
    /// The sites that print the same; those that most do first.
    groups: Vec<Vec<&'a str>>,
    rows: Vec<Vec<Line<'a>>>,
    is_cut: bool,
}

/// A line of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    /// As most print it.
    Same(&'a str),
    /// Others print something else here, or nothing.
    Other(&'a str),
    None,
}

/// What is shown of rows that are mostly alike.
#[derive(Debug, PartialEq, Eq)]
enum Folded<'a> {
    Row(&'a [Line<'a>]),
    Same(usize),
}

/// Compares what sites print, part by part.
fn compare(shown: &Shown) -> Vec<Compared<'_>> {
    let mut parts: BTreeMap<Option<usize>, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (site, at) in shown.sites.iter().filter(|(_, at)| at.status == "OK") {
        parts.entry(at.part).or_default().entry(&at.output).or_default().push(site);
    }
    let compared = parts.into_iter().map(|(number, groups)| {
        let mut groups: Vec<(&str, Vec<&str>)> = groups.into_iter().collect();
        // Of groups that are as large, that of the first site.
        groups.sort_by(|(_, a), (_, b)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        let is_cut = groups.iter().any(|(output, _)| output.lines().nth(MOST).is_some());
        let texts: Vec<Vec<&str>> =
            groups.iter().map(|(output, _)| output.lines().take(MOST).collect()).collect();
        let groups = groups.into_iter().map(|(_, sites)| sites).collect();
        Compared { number, groups, rows: beside(&texts), is_cut }
    });
    compared.collect()
}

/// Texts line by line beside each other, each compared with the first.
fn beside<'a>(texts: &[Vec<&'a str>]) -> Vec<Vec<Line<'a>>> {
    let Some((first, others)) = texts.split_first() else { return Vec::new() };
    let others: Vec<Against<'a>> = others.iter().map(|other| Against::new(first, other)).collect();
    let mut rows = Vec::new();
    for n in 0..=first.len() {
        // What others have before this line of the first.
        let more = others.iter().map(|other| other.before[n].len()).max().unwrap_or_default();
        for extra in 0..more {
            let lines = others.iter().map(|other| {
                other.before[n].get(extra).map_or(Line::None, |line| Line::Other(line))
            });
            rows.push(std::iter::once(Line::None).chain(lines).collect());
        }
        let Some(line) = first.get(n) else { break };
        let lines: Vec<Line<'a>> = others.iter().map(|other| other.at[n]).collect();
        let is_same = lines.iter().all(|line| matches!(line, Line::Same(_)));
        let own = if is_same { Line::Same(line) } else { Line::Other(line) };
        rows.push(std::iter::once(own).chain(lines).collect());
    }
    rows
}

/// A text against the first.
struct Against<'a> {
    /// For each line of the first, what stands there.
    at: Vec<Line<'a>>,
    /// For each line of the first and its end, what stands before it.
    before: Vec<Vec<&'a str>>,
}

impl<'a> Against<'a> {
    fn new(first: &[&'a str], other: &[&'a str]) -> Self {
        let mut at = vec![Line::None; first.len()];
        let mut before = vec![Vec::new(); first.len() + 1];
        for op in capture_diff_slices(Algorithm::Myers, first, other) {
            let (tag, old, new) = op.as_tag_tuple();
            let mark = if tag == DiffTag::Equal { Line::Same } else { Line::Other };
            for (place, line) in old.clone().zip(&other[new.clone()]) {
                at[place] = mark(line);
            }
            let rest = new.skip(old.len());
            before[old.end].extend(rest.map(|place| other[place]));
        }
        Self { at, before }
    }
}

/// Leaves out what is far from any difference.
fn folded<'a>(rows: &'a [Vec<Line<'a>>]) -> Vec<Folded<'a>> {
    let differs = |row: &[Line<'_>]| row.iter().any(|line| !matches!(line, Line::Same(_)));
    let apart: Vec<usize> = (0..rows.len()).filter(|n| differs(&rows[*n])).collect();
    // Without a difference, the start is as good as any.
    let near = |n: usize| {
        if apart.is_empty() {
            return n < 4 * AROUND;
        }
        let next = apart.partition_point(|place| *place < n);
        let ahead = apart.get(next).is_some_and(|place| place - n <= AROUND);
        let behind = next.checked_sub(1).is_some_and(|last| n - apart[last] <= AROUND);
        ahead || behind
    };
    let mut shown = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        match shown.last_mut() {
            _ if near(n) => shown.push(Folded::Row(row)),
            Some(Folded::Same(lines)) => *lines += 1,
            _ => shown.push(Folded::Same(1)),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(texts: &[&str]) -> Vec<String> {
        let texts: Vec<Vec<&str>> =
            texts.iter().map(|text| text.split_whitespace().collect()).collect();
        let word = |line: &Line<'_>| match line {
            Line::Same(text) => (*text).to_owned(),
            Line::Other(text) => format!("!{text}"),
            Line::None => "-".to_owned(),
        };
        beside(&texts)
            .iter()
            .map(|row| row.iter().map(word).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn lines_stand_beside_those_that_they_belong_to() {
        for (texts, expected) in [
            (vec![], vec![]),
            (vec!["a b"], vec!["a", "b"]),
            (vec!["a b", "a b"], vec!["a a", "b b"]),
            (vec!["a b c", "a x c"], vec!["a a", "!b !x", "c c"]),
            (vec!["a c", "a b c"], vec!["a a", "- !b", "c c"]),
            (vec!["a b c", "a c"], vec!["a a", "!b -", "c c"]),
            (vec!["", "a"], vec!["- !a"]),
            (vec!["a c", "a b c", "a c d"], vec!["a a a", "- !b -", "c c c", "- - !d"]),
        ] {
            assert_eq!(drawn(&texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn sites_that_print_the_same_share_a_column() {
        let at = |status: &str, output: &str, part| ShownAt {
            status: status.to_owned(),
            output: output.to_owned(),
            part,
        };
        let sites = [
            ("a", at("OK", "1\n", None)),
            ("b", at("OK", "2\n", None)),
            ("c", at("OK", "2\n", None)),
            ("d", at("KO", "2\n", None)),
        ];
        let shown = Shown {
            command: "cat".to_owned(),
            sites: sites.into_iter().map(|(site, at)| (site.to_owned(), at)).collect(),
            agree: false,
        };
        let parts = compare(&shown);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].groups, [vec!["b", "c"], vec!["a"]]);
        assert_eq!(parts[0].rows, [[Line::Other("2"), Line::Other("1")]]);
    }

    #[test]
    fn lines_far_from_a_difference_are_counted() {
        let same = |count: usize| vec![vec![Line::Same("x"), Line::Same("x")]; count];
        let other = vec![vec![Line::Other("x"), Line::None]];
        let rows = [same(10), other, same(5)].concat();
        let folded = folded(&rows);
        assert_eq!(folded.first(), Some(&Folded::Same(7)));
        assert_eq!(folded.last(), Some(&Folded::Same(2)));
        assert_eq!(folded.len(), 2 + 7);
    }
}
