//! What an operation would do, for `--dry-run`.

use cheops_agent::api::model::{PlannedStep, Rehearsal};

use crate::{
    command::View,
    report::clean,
    table::{Cell, Table},
    words::{self, NONE},
};

/// How much of a block is shown, at its start and at its end.
const SHOWN: (usize, usize) = (5, 10);

impl View for Rehearsal {
    fn text(&self, _wide: bool) -> String {
        if let Some(known) = &self.known {
            let known = format!("The key belongs to {known} already: nothing new would be made.");
            return clean(&known) + "\n";
        }
        let title = format!(
            "Nothing was done. This is what {} would do, as far as is known here.",
            self.operation
        );
        let mut text = clean(&title) + "\n";
        if self.reset {
            text += "It would reset: all that it follows would be over.\n";
        }
        let mut blocks = Table::untitled().indented(2);
        blocks.row(["before".into(), block(&self.before).into()]);
        blocks.row(["after".into(), block(&self.after).into()]);
        text += "\nBlock\n";
        text += &blocks.render();
        if !self.dropped.is_empty() {
            let mut table = Table::untitled().indented(2);
            for dropped in &self.dropped {
                let by = dropped.receipt.by.as_deref().unwrap_or(NONE);
                table.row([
                    Cell::from(&dropped.operation),
                    format!("by {by}").into(),
                    Cell::from(&dropped.receipt.why),
                ]);
            }
            text += "\nWould leave the block\n";
            text += &table.render();
        }
        let mut table = Table::untitled().indented(2);
        for (site, steps) in &self.sites {
            let part = self.parts.iter().position(|sites| sites.contains(site));
            let part = part.map(|part| format!(" (part {} of {})", part + 1, self.parts.len()));
            let name = format!("{site}{}", part.unwrap_or_default());
            let mut name = name.as_str();
            if steps.is_empty() {
                table.row([name.into(), Cell::from("nothing")]);
            }
            for step in steps {
                table.row([name.into(), step_in_words(step).into()]);
                name = "";
            }
        }
        if !table.is_empty() {
            text += "\nEach site would run\n";
            text += &table.render();
        }
        text
    }

    fn names(&self) -> Vec<String> {
        vec![format!("operation/{}", self.known.as_ref().unwrap_or(&self.operation))]
    }
}

fn block(ids: &[String]) -> String {
    if ids.is_empty() {
        return "nothing".to_owned();
    }
    let skipped = |count| format!("… {count} more …");
    words::shown(ids.to_vec(), SHOWN, |id| id, skipped).join("  ")
}

fn step_in_words(step: &PlannedStep) -> String {
    match step {
        PlannedStep::Run { operation, kind, replaces, again } => {
            let mut text = format!("{operation} ({kind})");
            if *replaces {
                text += ", replaces the state";
            }
            if *again {
                text += ", again";
            }
            text
        }
        PlannedStep::Clear => "the Reset command".to_owned(),
        PlannedStep::Decide => "nothing: a person must decide".to_owned(),
        PlannedStep::More => "and so on".to_owned(),
    }
}
