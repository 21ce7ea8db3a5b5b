//! `cheops get grid`: in which state each site sees its resources.

use cheops_agent::api::model::{Grid, GridRow, GridSite, State};

use crate::{
    client::{Client, Path},
    command::List,
    report::Failure,
    table::{Cell, Table},
    words::{self, NONE},
};

/// How many resources are asked for at a time.
const PAGE: usize = 200;

/// Which resources to show.
pub(super) struct Wanted<'a> {
    pub(super) contains: Option<&'a str>,
    pub(super) state: Option<State>,
    pub(super) site: Option<&'a str>,
    pub(super) limit: usize,
}

impl Wanted<'_> {
    pub(super) fn fetch(&self, client: &Client) -> Result<Grid, Failure> {
        let page = |after: Option<&str>, limit: usize| {
            let path = Path::api("grid")
                .query("limit", Some(limit.min(PAGE)))
                .query("after", after)
                .query("contains", self.contains)
                .query("state", self.state.map(words::word))
                .query("site", self.site);
            client.get::<Grid>(&path)
        };
        let mut grid = page(None, self.limit)?;
        while let Some(after) = grid.next.take() {
            let left = self.limit.saturating_sub(grid.rows.len());
            if left == 0 {
                grid.next = Some(after);
                break;
            }
            let more = page(Some(&after), left)?;
            // An agent that gives the same page for ever is not followed for ever.
            let goes_on = more.next.as_deref().is_none_or(|next| next > after.as_str());
            grid.next = more.next.filter(|_| goes_on);
            grid.rows.extend(more.rows);
            grid.sites = more.sites;
        }
        Ok(grid)
    }
}

impl List for Grid {
    type Item = GridRow;

    fn items(&self) -> &[GridRow] {
        &self.rows
    }

    fn name(row: &GridRow) -> String {
        format!("resource/{}", row.id)
    }

    fn table(&self, wide: bool) -> Table {
        let mut table = Table::new(["ID", "UPDATED"]);
        table.titles(self.sites.iter().map(|site| site.name.as_str()));
        for row in &self.rows {
            let mut cells: Vec<Cell> = vec![
                words::id(&row.id, wide).into(),
                words::ago_or_none(row.updated.as_deref()).into(),
            ];
            cells.extend(self.sites.iter().map(|site| cell(row, site)));
            table.row(cells);
        }
        table
    }

    fn empty(&self) -> String {
        "No resources.".to_owned()
    }

    fn note(&self) -> Option<String> {
        let silent: Vec<&str> = self
            .sites
            .iter()
            .filter(|site| !site.answered)
            .map(|site| site.name.as_str())
            .collect();
        let unheard = (!silent.is_empty()).then(|| {
            format!("No word from {}: with ? is what others know of it.", words::listed(&silent))
        });
        let more = self.next.as_ref().map(|_| "There are more: take a larger --limit.".to_owned());
        let notes: Vec<String> = unheard.into_iter().chain(more).collect();
        (!notes.is_empty()).then(|| notes.join("\n"))
    }
}

fn cell(row: &GridRow, site: &GridSite) -> Cell {
    match row.cells.get(&site.name) {
        Some(cell) if cell.told_by.is_some() => format!("{}?", words::word(cell.state)).into(),
        Some(cell) => words::state(cell.state),
        None if site.answered => NONE.into(),
        None => "?".into(),
    }
}
