//! Resources × sites: the state of every resource at every one of its sites, from any agent.
//!
//! What this site knows is shown at once; what the others say takes its place as soon as they have said it.
//! From then on rows are fetched again when something happens to their resources: only these, all of them
//! with one question, and only their sites are asked. The whole list is made anew when resources come or go,
//! and now and then.
//!
//! What must stay true:
//! - a page is bounded, however many resources and sites there are;
//! - no site that is slow, and no number of sites, keeps a page from being there;
//! - what is not a site's own word, or not known at all, is not shown as if it were.

use std::collections::BTreeSet;

use axum::{Router, extract::Query, response::Response, routing::get};
use cheops_agent::{
    api::model::{Grid, GridCell, GridRow, GridSite, Sites, State},
    shell,
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    address::address,
    api::{Answer, Api, segment},
    find::Sought,
    fresh::{Before, Beside, List},
    layout::Page,
    live,
    words::{self, DELETING, badge, time},
};

/// From so many sites on, a state is one letter.
const CROWD: usize = 13;

const LEGEND: &str =
    "S settled, P pending, F failed, D diverged, N needs a decision; with ? as another site says";

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/resources", get(screen))
        .route("/part/grid", get(part))
        .route("/part/grid/rows", get(rows))
}

/// The page as far as this site alone can tell.
async fn screen(api: Api, Query(sought): Query<Sought>) -> Answer<Markup> {
    let path = sought.ask("/api/v1/grid", &[("local", "true")]);
    let (sites, grid) =
        tokio::try_join!(api.get::<Sites>("/api/v1/sites"), api.get::<Grid>(&path))?;
    let grid = Grid { sites: told_of(&grid), ..grid };
    let whole = if sites.sites.len() > 1 { Whole::NotYet } else { Whole::Yes };
    let page = Page {
        who: api.who(),
        title: "Resources × sites",
        here: &sites.here,
        at: "/resources",
        command: command(&sought),
        content: html! {
            (sought.form("/resources", Some(&sites.sites)))
            (list(&sought, &grid, whole).render())
        },
    };
    Ok(page.render())
}

/// The sites that a grid of one site tells of: itself, and those that can't be asked.
fn told_of(grid: &Grid) -> Vec<GridSite> {
    let named = grid.rows.iter().flat_map(|row| row.cells.keys());
    let named: BTreeSet<&String> = named.chain([&grid.site]).collect();
    let site = |name: &String| GridSite {
        name: name.clone(),
        answered: *name == grid.site,
        last_seen: None,
        why: None,
    };
    named.into_iter().map(site).collect()
}

/// Whether a grid has what the other sites say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    Yes,
    /// They are asked at once.
    NotYet,
}

/// The command that shows the same.
fn command(sought: &Sought) -> String {
    let text = Some(sought.find.trim()).filter(|text| !text.is_empty()).map(shell::last);
    let text = text.map(|text| format!(" {text}")).unwrap_or_default();
    format!("cheops get grid{text}{}", sought.options())
}

async fn part(
    api: Api,
    Query(sought): Query<Sought>,
    Query(before): Query<Before>,
) -> Answer<Response> {
    let grid: Grid = api.get(&sought.ask("/api/v1/grid", &[])).await?;
    Ok(list(&sought, &grid, Whole::Yes).again(&before, &Beside::default()))
}

/// Some of the rows of a page, and the columns that it has.
#[derive(Debug, Deserialize)]
struct Rows {
    #[serde(default)]
    ids: String,
    #[serde(default)]
    sites: String,
}

/// Rows to take the place of those that the page has. What is gone is taken away.
async fn rows(api: Api, Query(asked): Query<Rows>) -> Answer<Markup> {
    if asked.ids.is_empty() {
        return Ok(html! {});
    }
    let grid: Grid = api.get(&address("/api/v1/grid", &[("ids", &asked.ids)])).await?;
    Ok(anew(&grid, &asked))
}

fn anew(grid: &Grid, asked: &Rows) -> Markup {
    let column = |name: &str| {
        let known = grid.sites.iter().find(|site| site.name == name).cloned();
        known.unwrap_or_else(|| GridSite {
            name: name.to_owned(),
            answered: false,
            last_seen: None,
            why: None,
        })
    };
    let sites: Vec<GridSite> = asked.sites.split(',').map(column).collect();
    let sites: Vec<&GridSite> = sites.iter().collect();
    let crowd = sites.len() >= CROWD;
    html! {
        @for id in asked.ids.split(',') {
            @match grid.rows.iter().find(|row| row.id == id) {
                Some(row) => (line(row, &sites, crowd, true)),
                None => tr id=(place(id)) hx-swap-oob="delete" {},
            }
        }
    }
}

/// The id of a row on the page.
fn place(id: &str) -> String {
    format!("line-{id}")
}

fn list(sought: &Sought, grid: &Grid, whole: Whole) -> List {
    List {
        path: sought.at("/part/grid"),
        trigger: trigger(sought, grid, whole),
        content: html! {
            @match whole {
                Whole::Yes => (silent(grid)),
                Whole::NotYet => p.notice data-say { "This is what " (grid.site) " knows. The other sites are being asked …" },
            }
            @if grid.rows.is_empty() {
                @if whole == Whole::Yes { (nothing(sought, grid)) }
            } @else {
                (table(grid))
            }
            (sought.pages("/resources", grid.next.as_deref()))
        },
    }
}

/// When the list is fetched again: what is not whole at once; else when resources come or go, when one may
/// be in the wanted state now, and now and then, since not all that happens elsewhere is told here. The more
/// sites have to be asked, the more seldom that is.
fn trigger(sought: &Sought, grid: &Grid, whole: Whole) -> String {
    let first = match whole {
        Whole::Yes => format!("sse:{}", live::CONNECTED),
        Whole::NotYet => "load".to_owned(),
    };
    let moved = if sought.state.is_empty() {
        String::new()
    } else {
        format!("sse:{} delay:500ms, ", live::LISTS)
    };
    let every = if grid.sites.len() < CROWD { "5s" } else { "15s" };
    let (sites, listed) = (live::SITES, live::LISTED);
    format!("{first}, sse:{sites}, sse:{listed}, {moved}every {every}")
}

/// Who has not answered, and what that means for what is shown.
fn silent(grid: &Grid) -> Markup {
    let silent: Vec<&GridSite> = grid.sites.iter().filter(|site| !site.answered).collect();
    let (named, more) = silent.split_at(silent.len().min(10));
    html! {
        @if !silent.is_empty() {
            div.notice.warn data-say {
                p {
                    "No word from " (silent.len()) " of " (grid.sites.len()) " sites. What others know of them is marked "
                    em { "says …" } "; what exists there alone is not shown."
                }
                ul {
                    @for site in named {
                        li {
                            strong { (site.name) } ": last heard of " (time(site.last_seen.as_deref()))
                            @if let Some(why) = &site.why { " (" (why) ")" }
                        }
                    }
                    @if !more.is_empty() { li { "and " (more.len()) " more" } }
                }
            }
        }
    }
}

fn nothing(sought: &Sought, grid: &Grid) -> Markup {
    html! {
        @if !sought.is_all() {
            p.notice { "No resource is like that. " a href="/resources" { "Show all" } }
        } @else {
            div.notice {
                p { "There are no resources yet. Create the first one on the page of a site:" }
                p { a href={ "/sites/" (segment(&grid.site)) "#create" } { "Create a resource at " (grid.site) } }
            }
        }
    }
}

/// The sites that have a column: of many only those that have one of the resources.
fn columns(grid: &Grid) -> Vec<&GridSite> {
    let has = |site: &&GridSite| {
        grid.sites.len() < CROWD || grid.rows.iter().any(|row| row.cells.contains_key(&site.name))
    };
    grid.sites.iter().filter(has).collect()
}

fn table(grid: &Grid) -> Markup {
    let sites = columns(grid);
    let crowd = sites.len() >= CROWD;
    let names: Vec<&str> = sites.iter().map(|site| site.name.as_str()).collect();
    let shown = serde_json::json!({ "sites": names.join(",") });
    html! {
        // `page.js` says when, and which rows.
        div #rows hx-get="/part/grid/rows" hx-vals=(shown) hx-swap="none" hx-trigger="changed" {}
        // Beside the table, which is wider than the screen.
        @if crowd { p.quiet { (LEGEND) } }
        div #grid .scroll.grid.crowd[crowd] tabindex="0" role="region" aria-label="States of resources at sites" {
            table {
                caption {
                    (grid.rows.len()) " resources and "
                    @if sites.len() < grid.sites.len() {
                        (sites.len()) " of " (grid.sites.len()) " sites (the others have none of these)"
                    } @else {
                        (sites.len()) " sites"
                    }
                    ", as each site sees its own"
                }
                thead { tr {
                    th scope="col" { "Resource" }
                    th scope="col" { "Worst" }
                    th scope="col" { "Last update" }
                    @for site in &sites {
                        th.site.silent[!site.answered] scope="col" {
                            a href={ "/sites/" (segment(&site.name)) } { (site.name) }
                            @if !site.answered && !crowd { " " span.why { "no word" } }
                        }
                    }
                } }
                tbody { @for row in &grid.rows { (line(row, &sites, crowd, false)) } }
            }
        }
    }
}

/// A row, as part of its table or `again`, in place of itself.
fn line(row: &GridRow, sites: &[&GridSite], crowd: bool, again: bool) -> Markup {
    html! {
        tr id=(place(&row.id)) hx-swap-oob=[again.then_some("true")] {
            th scope="row" { a id={ "row-" (row.id) } href={ "/resources/" (segment(&row.id)) } { (row.id) } }
            td {
                @if let Some(state) = worst(row) { (badge(words::state(state))) }
                @if row.deleting { " " (badge(DELETING)) }
            }
            td { (time(row.updated.as_deref())) }
            @for site in sites {
                @match (row.cells.get(&site.name), site.answered) {
                    (Some(cell), _) => (seen(cell, crowd)),
                    (None, true) => td {},
                    (None, false) => td.none { "?" },
                }
            }
        }
    }
}

/// The state that most needs a look.
fn worst(row: &GridRow) -> Option<State> {
    row.cells.values().map(|cell| cell.state).max()
}

fn seen(cell: &GridCell, crowd: bool) -> Markup {
    let (word, colour) = words::state(cell.state);
    let says = cell.told_by.as_deref();
    html! {
        @if crowd {
            td class=(colour) {
                @match says {
                    None => abbr title=(word) { (letter(cell.state)) },
                    Some(by) => abbr title={ (word) ", says " (by) } { (letter(cell.state)) "?" },
                }
            }
        } @else {
            td {
                (badge((word, colour)))
                @if let Some(by) = says { p.why { "says " (by) } }
            }
        }
    }
}

/// A state as one letter.
fn letter(state: State) -> &'static str {
    match state {
        State::Settled => "S",
        State::Pending => "P",
        State::Failed => "F",
        State::Denied => "X",
        State::Diverged => "D",
        State::NeedsDecision => "N",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(sites: usize, rows: usize) -> Grid {
        let cell = GridCell { state: State::Settled, told_by: None };
        let name = |n: usize| format!("site-{n:03}");
        Grid {
            site: name(0),
            sites: (0..sites)
                .map(|n| GridSite { name: name(n), answered: true, last_seen: None, why: None })
                .collect(),
            rows: (0..rows)
                .map(|n| GridRow {
                    id: format!("resource-{n:05}"),
                    deleting: false,
                    updated: None,
                    cells: (0..sites).map(|n| (name(n), cell.clone())).collect(),
                })
                .collect(),
            next: None,
        }
    }

    #[test]
    fn a_full_page_of_a_hundred_sites_is_small_enough() {
        let page = list(&Sought::default(), &grid(100, crate::find::PAGE), Whole::Yes)
            .render()
            .into_string();
        assert!(page.len() < 400_000, "{} bytes", page.len());
    }

    #[test]
    fn whose_word_a_state_is_can_be_told() {
        let mut grid = grid(3, 1);
        grid.sites[1].answered = false;
        grid.sites[2].answered = false;
        let cells = &mut grid.rows[0].cells;
        let heard = GridCell { state: State::Pending, told_by: Some("site-000".to_owned()) };
        cells.insert("site-001".to_owned(), heard);
        cells.remove("site-002");
        let page = list(&Sought::default(), &grid, Whole::Yes).render().into_string();
        for expected in ["No word from 2 of 3 sites", "says site-000", "<td class=\"none\">?</td>"]
        {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert_eq!(worst(&grid.rows[0]), Some(State::Pending));
    }

    #[test]
    fn of_many_sites_those_have_a_column_that_have_a_resource() {
        for (sites, expected) in [(3, 3), (CROWD - 1, CROWD - 1), (CROWD, 2), (100, 2)] {
            let mut grid = grid(sites, 1);
            grid.rows[0].cells.retain(|site, _| ["site-000", "site-002"].contains(&site.as_str()));
            assert_eq!(columns(&grid).len(), expected, "{sites}");
        }
    }

    #[test]
    fn rows_fit_into_the_page_that_they_are_for() {
        let mut grid = grid(100, 2);
        grid.rows[0].cells.remove("site-003");
        let asked = Rows {
            ids: "resource-00000,resource-00001,gone".to_owned(),
            sites: "site-002,site-003,elsewhere".to_owned(),
        };
        let page = anew(&grid, &asked).into_string();
        let rows: Vec<&str> = page.split("</tr>").filter(|row| !row.is_empty()).collect();
        let cells = |row: &str| row.matches("<td").count();
        assert_eq!(rows.iter().map(|row| cells(row)).collect::<Vec<_>>(), [5, 5, 0], "{page}");
        assert!(rows[0].contains("id=\"line-resource-00000\" hx-swap-oob=\"true\""), "{page}");
        assert!(rows[2].contains("id=\"line-gone\" hx-swap-oob=\"delete\""), "{page}");
        // What a site that nobody knows has is not known.
        assert!(rows[0].ends_with("<td></td><td class=\"none\">?</td>"), "{page}");
    }

    #[test]
    fn what_one_site_knows_is_not_shown_as_what_all_say() {
        let mut grid = grid(3, 1);
        grid.sites.clear();
        grid.rows[0].cells.remove("site-002");
        let told = GridCell { state: State::Pending, told_by: Some("site-000".to_owned()) };
        grid.rows[0].cells.insert("site-001".to_owned(), told);
        grid.sites = told_of(&grid);
        let page = list(&Sought::default(), &grid, Whole::NotYet).render().into_string();
        for expected in ["The other sites are being asked", "says site-000", "hx-trigger=\"load, "]
        {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert!(!page.contains("site-002"), "{page}");
        // It is a part that is fetched again: the page says it once.
        assert!(page.contains("data-say") && !page.contains("role=\"status\""), "{page}");
    }

    #[test]
    fn names_are_shown_and_not_run() {
        let mut grid = grid(1, 1);
        grid.sites[0].name = "<script>".to_owned();
        grid.rows[0].id = "<img src=x>".to_owned();
        let page = list(&Sought::default(), &grid, Whole::Yes).render().into_string();
        assert!(!page.contains("<script>") && !page.contains("<img"), "{page}");
    }
}
