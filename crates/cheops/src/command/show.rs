//! `cheops show`: what a resource is at each of its sites, without changing it.

use cheops_agent::api::model::{Show, Shown};

use super::{Context, Outcome, View, ask};
use crate::{
    report::{Exit, Failure, clean_lines},
    shell,
    table::{Cell, Table},
    words,
};

/// Show what a resource is at each of its sites
///
/// Runs the resource's `Show` command, or another that changes nothing, and registers nothing. The
/// exit status is 1 if the sites differ or one said KO, and 3 if one has not answered.
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
    let exit = exit(&shown);
    if context.output.is_text() && exit == Exit::Wrong {
        let id = shell::last(id.as_str());
        text += &format!("The sites do not agree; see how with: cheops diff {id}\n");
    }
    Ok(Outcome { text, exit })
}

/// What the answers of all sites amount to.
pub(super) fn exit(shown: &Shown) -> Exit {
    let some = |status: &str| shown.sites.values().any(|at| at.status == status);
    let mut outputs = shown.sites.values().filter(|at| at.status == "OK").map(|at| &at.output);
    let first = outputs.next();
    let differ = outputs.any(|output| Some(output) != first);
    if some("KO") || differ {
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
        let is_short = self.sites.values().all(|at| at.output.trim_end().lines().count() <= 1);
        let status = |status: &str| {
            let style = match status {
                "OK" => words::GOOD,
                "KO" => words::BAD,
                _ => words::OPEN,
            };
            Cell::styled(status, style)
        };
        if is_short {
            let mut table = Table::new(["SITE", "STATUS", "OUTPUT"]);
            for (site, at) in &self.sites {
                table.row([Cell::from(site), status(&at.status), at.output.trim_end().into()]);
            }
            return table.render();
        }
        let mut text = String::new();
        for (site, at) in &self.sites {
            let mut title = Table::untitled();
            title.row([Cell::from(site), status(&at.status)]);
            text += &title.render();
            text.extend(clean_lines(at.output.trim_end()).map(|line| format!("    {line}\n")));
        }
        text
    }

    fn names(&self) -> Vec<String> {
        self.sites.keys().map(|site| format!("site/{site}")).collect()
    }
}
