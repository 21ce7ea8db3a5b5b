//! Resources × sites: the state of every resource at every one of its sites, from any agent.
//!
//! What must stay true: a page is bounded, however many resources and sites there are; and what is not a
//! site's own word, or not known at all, is not shown as if it were.

use axum::{
    Router,
    extract::{Query, State as From},
    response::Response,
    routing::get,
};
use cheops_agent::{
    api::model::{Grid, GridCell, GridRow, GridSite, Sites, State},
    shell,
};
use maud::{Markup, html};

use crate::{
    api::{Answer, Api, segment},
    find::{self, Sought},
    fresh::{Before, Beside, List},
    layout::Page,
    words::{self, badge, time},
};

/// From so many sites on, a state is one letter.
const CROWD: usize = 13;

const LEGEND: &str =
    "S settled, P pending, F failed, D diverged, N needs a decision; with ? as another site says";

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/resources", get(screen)).route("/part/grid", get(part))
}

async fn screen(From(api): From<Api>, Query(sought): Query<Sought>) -> Answer<Markup> {
    let path = sought.ask("/api/v1/grid", &[]);
    let (sites, grid) =
        tokio::try_join!(api.get::<Sites>("/api/v1/sites"), api.get::<Grid>(&path))?;
    let page = Page {
        title: "Resources × sites",
        here: &sites.here,
        at: "/resources",
        command: command(&sought),
        content: html! {
            (sought.form("/resources", Some(&sites.sites)))
            (list(&sought, &grid).render())
        },
    };
    Ok(page.render())
}

/// The command that shows the same.
fn command(sought: &Sought) -> String {
    let text = Some(sought.find.trim()).filter(|text| !text.is_empty()).map(shell::last);
    let text = text.map(|text| format!(" {text}")).unwrap_or_default();
    format!("cheops get grid{text}{}", sought.options())
}

async fn part(
    From(api): From<Api>,
    Query(sought): Query<Sought>,
    Query(before): Query<Before>,
) -> Answer<Response> {
    let grid: Grid = api.get(&sought.ask("/api/v1/grid", &[])).await?;
    Ok(list(&sought, &grid).again(&before, &Beside::default()))
}

fn list(sought: &Sought, grid: &Grid) -> List {
    List {
        path: sought.at("/part/grid"),
        trigger: find::trigger(),
        content: html! {
            (silent(grid))
            @if grid.rows.is_empty() { (nothing(sought, grid)) } @else { (table(grid)) }
            (sought.pages("/resources", grid.next.as_deref()))
        },
    }
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
    html! {
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
                    @if crowd { ". " (LEGEND) }
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
                tbody { @for row in &grid.rows { (line(row, &sites, crowd)) } }
            }
        }
    }
}

fn line(row: &GridRow, sites: &[&GridSite], crowd: bool) -> Markup {
    html! {
        tr {
            th scope="row" { a id={ "row-" (row.id) } href={ "/resources/" (segment(&row.id)) } { (row.id) } }
            td {
                @if let Some(state) = worst(row) { (badge(words::state(state))) }
                @if row.deleting { " " (badge(("being deleted", "busy"))) }
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
        let page = list(&Sought::default(), &grid(100, crate::find::PAGE)).render().into_string();
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
        let page = list(&Sought::default(), &grid).render().into_string();
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
    fn names_are_shown_and_not_run() {
        let mut grid = grid(1, 1);
        grid.sites[0].name = "<script>".to_owned();
        grid.rows[0].id = "<img src=x>".to_owned();
        let page = list(&Sought::default(), &grid).render().into_string();
        assert!(!page.contains("<script>") && !page.contains("<img"), "{page}");
    }
}
