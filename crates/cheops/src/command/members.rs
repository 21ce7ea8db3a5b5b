//! `cheops site members`: who belongs to the federation of a site, and who did.

use cheops_agent::api::model::{Federation, Member, MemberStanding};

use super::{Context, List, Outcome};
use crate::{
    client::Path,
    report::Failure,
    table::{Cell, Table},
    words::{self, NONE},
};

pub(super) fn run(context: &Context) -> Result<Outcome, Failure> {
    let federation: Federation = context.client()?.get(&Path::api("federation"))?;
    Ok(Outcome::success(context.output.write(&federation)?))
}

impl List for Federation {
    type Item = Member;

    fn items(&self) -> &[Member] {
        &self.members
    }

    fn name(member: &Member) -> String {
        format!("site/{}", member.site)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table = Table::new(["SITE", "STANDING", "SINCE", "ADDRESS", "REMOVED", "BY"]);
        if wide {
            table.titles(["KEY"]);
        }
        for member in &self.members {
            let (standing, style) = match member.standing {
                MemberStanding::Belongs => ("belongs", words::GOOD),
                MemberStanding::Renewed => ("renewed", words::OPEN),
                MemberStanding::Removed => ("removed", words::BAD),
            };
            let or_none = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or(NONE));
            let mut row = vec![
                Cell::from(&member.site),
                Cell::styled(standing, style),
                or_none(&member.since),
                Cell::from(&member.address),
                or_none(&member.removed),
                or_none(&member.removed_by),
            ];
            if wide {
                row.push(Cell::from(&member.key));
            }
            table.row(row);
        }
        table
    }

    fn empty(&self) -> String {
        "The site belongs to no federation. Begin one with: cheops token create".to_owned()
    }
}
