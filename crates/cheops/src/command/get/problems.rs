//! `cheops get problems`.

use cheops_agent::api::model::{Trouble, Troubles};

use crate::{
    client::{Client, Path},
    command::List,
    report::{Exit, Failure},
    table::{Cell, Table},
    words::{self, NONE},
};

pub(super) fn fetch(client: &Client) -> Result<Troubles, Failure> {
    client.get(&Path::api("problems"))
}

/// A problem is worth an exit status, and so is a site that may have some.
pub(super) fn exit(troubles: &Troubles) -> Exit {
    match (troubles.problems.is_empty(), troubles.not_asked.is_empty()) {
        (false, _) => Exit::Wrong,
        (true, false) => Exit::Silent,
        (true, true) => Exit::Fine,
    }
}

impl List for Troubles {
    type Item = Trouble;

    fn items(&self) -> &[Trouble] {
        &self.problems
    }

    fn name(trouble: &Trouble) -> String {
        match &trouble.resource {
            Some(resource) => format!("resource/{resource}"),
            None => format!("site/{}", trouble.site),
        }
    }

    fn table(&self, _wide: bool) -> Table {
        let mut table = Table::new(["URGENCY", "WHAT", "SITE", "RESOURCE", "PROBLEM", "NEXT"]);
        for trouble in &self.problems {
            table.row([
                words::urgency(trouble.urgency),
                Cell::from(&trouble.what),
                Cell::from(&trouble.site),
                trouble.resource.as_deref().unwrap_or(NONE).into(),
                Cell::from(&trouble.text),
                Cell::from(&trouble.next),
            ]);
        }
        table
    }

    fn empty(&self) -> String {
        "No problems.".to_owned()
    }

    fn note(&self) -> Option<String> {
        if self.not_asked.is_empty() {
            return None;
        }
        Some(format!("Not asked, since they can't be reached: {}.", words::listed(&self.not_asked)))
    }
}
