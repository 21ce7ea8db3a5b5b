//! `cheops hooks`: how a site tells people what happened.

use std::time::Duration;

use cheops_agent::api::model::{Hook, HookTested, Hooks};
use clap::{Args, Subcommand};
use hyper::Method;
use serde::Serialize;

use super::{Context, List, Outcome, View};
use crate::{
    client::{Ask, Path},
    report::{Exit, Failure, clean},
    table::{Cell, Table},
    words::{self, NONE},
};

/// How long a sample may take: as long as a hook may be told to wait, and a little more.
const PATIENCE: Duration = Duration::from_mins(11);

/// Look at the hooks of the agent's site, and try them
#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// List the hooks, and how they are doing
    #[command(visible_alias = "ls")]
    List,
    /// Send a sample now, and say what came of it
    ///
    /// The exit status is 1 if it was not delivered.
    Test(Test),
}

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// The hook
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Outcome, Failure> {
    let client = context.client()?;
    match arguments {
        Arguments::List => {
            let Hooks { site, hooks, unfollowed } = client.get(&Path::api("hooks"))?;
            Ok(Outcome::success(context.output.write(&Listed { site, hooks, unfollowed })?))
        }
        Arguments::Test(Test { name }) => {
            let path = Path::api("hooks").then(name).then("test");
            let ask = Ask::new(Method::POST, &path).within(PATIENCE);
            let tested: HookTested = client.ask(ask)?;
            let exit = if tested.delivered { Exit::Fine } else { Exit::Wrong };
            Ok(Outcome { text: context.output.write(&Tested(tested))?, exit })
        }
    }
}

#[derive(Debug, Serialize)]
struct Listed {
    site: String,
    hooks: Vec<Hook>,
    unfollowed: u64,
}

impl List for Listed {
    type Item = Hook;

    fn items(&self) -> &[Hook] {
        &self.hooks
    }

    fn name(hook: &Hook) -> String {
        format!("hook/{}", hook.name)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table = Table::new(["NAME", "WAY", "MODE", "WAITING", "DROPPED", "LAST", "ERROR"]);
        if wide {
            table.titles(["ON", "TO"]);
        }
        for hook in &self.hooks {
            let failing = hook.failing_since.is_some();
            let error = hook.last_error.as_deref().filter(|_| failing).unwrap_or(NONE);
            let style = if failing { words::BAD } else { words::GOOD };
            let mut row = vec![
                Cell::from(&hook.name),
                hook.way.as_str().into(),
                hook.mode.as_str().into(),
                hook.waiting.to_string().as_str().into(),
                hook.dropped.to_string().as_str().into(),
                words::ago_or_none(hook.last_delivery.as_deref()).as_str().into(),
                Cell::styled(error, style),
            ];
            if wide {
                row.push(hook.on.join(" ").as_str().into());
                row.push(hook.to.as_str().into());
            }
            table.row(row);
        }
        table
    }

    fn note(&self) -> Option<String> {
        let count = self.unfollowed;
        (count > 0).then(|| {
            format!(
                "{count} operations were not followed to their end: too many were open at once."
            )
        })
    }

    fn empty(&self) -> String {
        format!(
            "{} has no hooks. Add a [[hook]] to its configuration: see docs/hooks.md.",
            clean(&self.site)
        )
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Tested(HookTested);

impl View for Tested {
    fn text(&self, _wide: bool) -> String {
        let HookTested { hook, took_ms, error, .. } = &self.0;
        let took = words::took(*took_ms);
        clean(&match error {
            None => format!("{hook} delivered a sample in {took}"),
            Some(error) => format!("{hook} did not deliver a sample ({took}): {error}"),
        }) + "\n"
    }

    fn names(&self) -> Vec<String> {
        vec![format!("hook/{}", self.0.hook)]
    }
}
