//! `cheops show`: what a resource is at each of its sites, without changing it.

use std::collections::{BTreeMap, BTreeSet};

use cheops_agent::api::model::{Show, Shown, ShownAt};

use super::{Context, Outcome, View, ask};
use crate::{
    printed::Printed,
    report::{Exit, Failure, clean},
    shell,
    table::{Cell, Table},
    words,
};

/// Show what a resource is at each of its sites
///
/// Runs the resource's `Show` command, or another that changes nothing, and registers nothing. The
/// exit status is 1 if the sites differ or one said KO, and 3 if one has not answered. Of a resource
/// in parts, all parts are gathered, and the sites of one part are compared.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The resource
    #[arg(value_name = "ID", required_unless_present = "named", conflicts_with = "named")]
    id: Option<String>,
    /// The resource, as the original program has it
    #[arg(long = "id", id = "named", value_name = "ID", hide = true)]
    named: Option<String>,
    /// The command, instead of the resource's `Show`
    #[arg(long, allow_hyphen_values = true)]
    command: Option<String>,
    /// Only on these sites: 'site1 & site2'
    #[arg(long, value_name = "PLACE")]
    sites: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let id = arguments.id.as_ref().or(arguments.named.as_ref());
    let id = ask::resource(id.map_or("", String::as_str))?;
    if let Some(sites) = &arguments.sites {
        ask::place(sites)?;
    }
    let show = Show { command: arguments.command.clone(), sites: arguments.sites.clone() };
    let shown: Shown = context.client()?.post(&ask::resource_path(&id).then("show"), &show)?;
    let mut text = context.output.write(&shown)?;
    if context.output.is_text() {
        text += &verdict(&shown, id.as_str(), arguments.command.as_deref());
    }
    Ok(Outcome { text, exit: exit(&shown) })
}

/// What does not go without saying: who failed, who is silent, and whether the others agree.
fn verdict(shown: &Shown, id: &str, command: Option<&str>) -> String {
    let with = |status: &str| -> Vec<&str> {
        let sites = shown.sites.iter().filter(|(_, at)| at.status == status);
        sites.map(|(site, _)| site.as_str()).collect()
    };
    let (ok, failed, silent) = (with("OK"), with("KO"), with("TIMEOUT"));
    let mut lines = Vec::new();
    if !failed.is_empty() {
        lines.push(format!("{} failed.", words::listed(&failed)));
    }
    if !silent.is_empty() {
        lines.push(format!("{} did not answer.", words::listed(&silent)));
    }
    let is_part = !lines.is_empty();
    if differ(shown) {
        let who = if is_part { "The sites that answered" } else { "The sites" };
        let command = command.map(|command| shell::option("--command", command) + " ");
        let command = command.unwrap_or_default();
        let id = shell::last(id);
        lines.push(format!("{who} do not agree; see how with: cheops diff {command}{id}"));
    } else if is_part && comparable(shown, &ok) {
        lines.push(format!("{} agree.", words::listed(&ok)));
    }
    lines.into_iter().map(|line| clean(&line) + "\n").collect()
}

/// Whether sites that answered print different things of the same part.
fn differ(shown: &Shown) -> bool {
    let mut first: BTreeMap<Option<usize>, &str> = BTreeMap::new();
    let mut ok = shown.sites.values().filter(|at| at.status == "OK");
    ok.any(|at| *first.entry(at.part).or_insert(&at.output) != at.output)
}

/// Whether any of these hold the same, so that they can agree.
fn comparable(shown: &Shown, sites: &[&str]) -> bool {
    let mut seen = BTreeSet::new();
    sites.iter().any(|site| !seen.insert(shown.sites.get(*site).and_then(|at| at.part)))
}

/// What the answers of all sites amount to.
pub(super) fn exit(shown: &Shown) -> Exit {
    let some = |status: &str| shown.sites.values().any(|at| at.status == status);
    if some("KO") || differ(shown) {
        Exit::Wrong
    } else if some("TIMEOUT") {
        Exit::Silent
    } else if shown.agree {
        Exit::Fine
    } else {
        Exit::Wrong
    }
}

impl View for Shown {
    fn text(&self, _wide: bool) -> String {
        let printed = |at: &ShownAt| -> (Cell, Vec<String>) {
            let style = match at.status.as_str() {
                "OK" => words::GOOD,
                "KO" => words::BAD,
                _ => words::OPEN,
            };
            let printed = Printed::new(&at.output, at.status == "KO");
            let lines = printed.text.trim_end().lines().map(str::to_owned);
            let lines = lines.chain(printed.rest(None)).collect();
            (Cell::styled(printed.status(&at.status), style), lines)
        };
        // Part by part, as the resource was spread.
        let mut sites: Vec<(&String, &ShownAt)> = self.sites.iter().collect();
        sites.sort_by_key(|(_, at)| at.part);
        let in_parts = sites.iter().any(|(_, at)| at.part.is_some());
        let head = |site: &String, at: &ShownAt, status: Cell, titled: bool| {
            let part = at.part.map_or(words::NONE.to_owned(), |part| part.to_string());
            let part = if titled { part } else { format!("part {part}") };
            let mut head = vec![Cell::from(site)];
            head.extend(in_parts.then(|| Cell::from(part)));
            head.push(status);
            head
        };
        let printed: Vec<(Cell, Vec<String>)> = sites.iter().map(|(_, at)| printed(at)).collect();
        let is_short = printed.iter().all(|(_, lines)| lines.len() <= 1);
        let answers = sites.into_iter().zip(printed);
        if is_short {
            let mut table = if in_parts {
                Table::new(["SITE", "PART", "STATUS", "OUTPUT"])
            } else {
                Table::new(["SITE", "STATUS", "OUTPUT"])
            };
            for ((site, at), (status, lines)) in answers {
                let mut row = head(site, at, status, true);
                row.push(lines.concat().into());
                table.row(row);
            }
            return table.render();
        }
        let mut text = String::new();
        for ((site, at), (status, lines)) in answers {
            let mut title = Table::untitled();
            title.row(head(site, at, status, false));
            text += &title.render();
            text.extend(lines.iter().map(|line| format!("    {}\n", clean(line))));
        }
        text
    }

    fn names(&self) -> Vec<String> {
        self.sites.keys().map(|site| format!("site/{site}")).collect()
    }
}
