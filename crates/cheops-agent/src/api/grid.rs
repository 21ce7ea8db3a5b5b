//! Resources × sites: the state in which each site sees its resources, for all sites that can be asked.
//!
//! Every site that can be reached is asked for the next few of its own resources, all at once, and the
//! answers are merged by id. If only those in some state are wanted, a second question to all is how the
//! other sites see what was found. If some are asked for by id, only their own sites are asked. What must
//! stay true:
//! - a page costs each site at most two short questions, and nobody waits long for one of them;
//! - nobody is asked for what can't be on the page: what this site has fills it, or ends it;
//! - a row is complete as far as the sites that have answered go: what might still come from one of them
//!   is left for the next page;
//! - what is not a site's own word says whose it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Context, Shared,
    error::{ApiResult, Asked},
    model::{Grid, GridCell, GridQuery, GridRow, GridSite, Problem},
    pass, resource_id,
    resources::Wanted,
    sites::time_of_day,
    view,
};
use crate::peers::{Peer, State as Reach};
use axum::{extract::State, http::HeaderMap};
use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{self, Replica},
};

/// How long a site may take, besides the round trip to it, and all of them at most twice as long: people look
/// at what comes of it.
const PATIENCE: Duration = Duration::from_millis(800);
/// The most bytes of names in a question.
const NAMES: usize = 8 << 10;

/// Resources and the state that each of their sites sees them in, by id, a page at a time.
#[utoipa::path(get, path = "/api/v1/grid", tag = "resources", params(GridQuery),
    responses((status = OK, body = Grid), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    State(context): State<Shared>,
    Asked(query): Asked<GridQuery>,
    headers: HeaderMap,
) -> ApiResult<axum::Json<Grid>> {
    let limit = query.limit.unwrap_or(50).min(200);
    let own = own(&context, &query, limit).await?;
    if query.local || limit == 0 || pass::was_passed(&headers) {
        return Ok(axum::Json(own));
    }
    let peers = context.peers.view();
    let among = match &query.ids {
        Some(ids) => sites_of(&context, ids).await?,
        None => None,
    };
    let mut asking = Asking::new(&context, &peers, among);
    let first = GridQuery { until: own.next.clone(), ..query.clone() };
    let mut answers = vec![own];
    answers.extend(asking.all(&first, limit).await);
    let mut page = merge(&answers, limit);
    let mut ids = page.ids();
    if query.state.is_some() && !ids.is_empty() {
        let left = page.rows.len();
        cut(&mut ids);
        page.rows.truncate(ids.len());
        if ids.len() < left {
            page.next = ids.last().cloned();
        }
        let rest = GridQuery { ids: Some(ids.join(",")), ..GridQuery::default() };
        let mut fuller = vec![self::own(&context, &rest, limit).await?];
        fuller.extend(asking.all(&rest, limit).await);
        // What was said last counts.
        fuller.append(&mut answers);
        page.rows = rows(&fuller, |id| ids.iter().any(|wanted| wanted == id));
    }
    let late = asking.late();
    if !late.is_empty() && !ids.is_empty() {
        let rest = GridQuery {
            ids: Some(ids.join(",")),
            silent: Some(late.join(",")),
            ..GridQuery::default()
        };
        let known = self::own(&context, &rest, limit).await?;
        page.rows =
            rows(&[Grid { rows: std::mem::take(&mut page.rows), ..known.clone() }, known], |_| {
                true
            });
    }
    page.site = context.here().to_string();
    page.sites = asking.told(&page.rows);
    Ok(axum::Json(page))
}

/// The sites of resources, if they are all known here.
async fn sites_of(context: &Context, ids: &str) -> ApiResult<Option<BTreeSet<SiteId>>> {
    let ids: Vec<ResourceId> = ids.split(',').map(resource_id).collect::<Result<_, _>>()?;
    let look = move |replica: &Replica| {
        let mut sites = BTreeSet::new();
        for id in &ids {
            sites.extend(replica.resource(id)?.present().cloned());
        }
        Some(sites)
    };
    Ok(context.node.read(look).await?)
}

/// What this site has, without asking another.
async fn own(context: &Context, query: &GridQuery, limit: usize) -> ApiResult<Grid> {
    let here = context.here().clone();
    let silent: Vec<SiteId> = if let Some(names) = &query.silent {
        names.split(',').map(str::parse).collect::<Result<_, _>>()?
    } else {
        let peers = context.peers.view().into_iter();
        peers.filter(|peer| peer.state != Reach::Reachable).map(|peer| peer.site).collect()
    };
    let site = here.to_string();
    let known = context.peers.sites();
    let show = move |resource: &replica::Resource| {
        let untold = |site: &&SiteId| silent.contains(site) || !known.contains(*site);
        let others: Vec<&SiteId> =
            resource.present().filter(|site| **site != here).filter(untold).collect();
        row(&here, resource, &others)
    };
    let (rows, next) = if let Some(ids) = &query.ids {
        let ids: Vec<ResourceId> = ids.split(',').map(resource_id).collect::<Result<_, _>>()?;
        let look = move |replica: &Replica| {
            let known = ids.iter().filter_map(|id| replica.resource(id));
            known.take(limit).map(show).collect::<Vec<_>>()
        };
        (context.node.read(look).await?, None)
    } else {
        let wanted = Wanted {
            prefix: query.prefix.clone().unwrap_or_default(),
            contains: query.contains.clone().unwrap_or_default(),
            state: query.state,
            site: query.site.as_deref().map(str::parse).transpose()?,
            until: query.until.as_deref().map(resource_id).transpose()?,
        };
        wanted.page(context, query.after.as_deref(), limit, show).await?
    };
    Ok(Grid { site, sites: Vec::new(), rows, next: next.map(|id| id.to_string()) })
}

/// A resource as this site sees it, and what it knows of others of its sites that can't be asked.
fn row(here: &SiteId, resource: &replica::Resource, others: &[&SiteId]) -> GridRow {
    let own = GridCell { state: view::state(resource), told_by: None };
    let heard = |site: &SiteId| GridCell {
        state: view::hearsay(resource, site),
        told_by: Some(here.to_string()),
    };
    GridRow {
        id: resource.id().to_string(),
        deleting: resource.is_deleting(),
        updated: view::updated(resource),
        cells: others
            .iter()
            .map(|site| (site.to_string(), heard(site)))
            .chain([(here.to_string(), own)])
            .collect(),
    }
}

/// The other sites, and whether they answer.
struct Asking<'a> {
    context: &'a Context,
    peers: &'a [Peer],
    /// The only ones that are asked, if not all are.
    among: Option<BTreeSet<SiteId>>,
    /// Why those that can be reached have not answered.
    failed: BTreeMap<SiteId, String>,
}

impl<'a> Asking<'a> {
    fn new(context: &'a Context, peers: &'a [Peer], among: Option<BTreeSet<SiteId>>) -> Self {
        Self { context, peers, among, failed: BTreeMap::new() }
    }

    fn is_asked(&self, peer: &Peer) -> bool {
        peer.state == Reach::Reachable
            && !self.failed.contains_key(&peer.site)
            && self.among.as_ref().is_none_or(|among| among.contains(&peer.site))
    }

    /// Asks all that can be reached and have not failed to answer, at once; the nearest comes first.
    async fn all(&mut self, query: &GridQuery, limit: usize) -> Vec<Grid> {
        let mut silent: Vec<String> = (self.peers.iter())
            .filter(|peer| peer.state != Reach::Reachable)
            .map(|peer| peer.site.to_string())
            .collect();
        cut(&mut silent);
        let silent = (!silent.is_empty()).then(|| silent.join(","));
        let (state, limit) = (query.state.map(view::word), limit.to_string());
        let path = pass::query(
            "/api/v1/grid",
            [
                ("local", Some("true")),
                ("limit", Some(limit.as_str())),
                ("after", query.after.as_deref()),
                ("until", query.until.as_deref()),
                ("prefix", query.prefix.as_deref()),
                ("contains", query.contains.as_deref()),
                ("state", state.as_deref()),
                ("site", query.site.as_deref()),
                ("ids", query.ids.as_deref()),
                ("silent", silent.as_deref()),
            ],
        );
        let mut asked: Vec<&Peer> = self.peers.iter().filter(|peer| self.is_asked(peer)).collect();
        asked.sort_by_key(|peer| peer.round_trip.unwrap_or(Duration::MAX));
        let sites: Vec<(SiteId, Duration)> = (asked.iter())
            .map(|peer| (peer.site.clone(), PATIENCE + peer.round_trip.unwrap_or_default()))
            .collect();
        let farthest = sites.iter().map(|(_, patience)| *patience).max().unwrap_or_default();
        let mut answers = Vec::new();
        for ((site, _), answer) in
            sites.iter().zip(pass::ask_all::<Grid>(self.context, &sites, &path, 2 * farthest).await)
        {
            match answer {
                Ok(grid) => answers.push(grid),
                Err(error) => _ = self.failed.insert(site.clone(), error.0.detail),
            }
        }
        answers
    }

    /// The sites that were asked, and have not answered.
    fn late(&self) -> Vec<String> {
        let mut late: Vec<String> = self.failed.keys().map(ToString::to_string).collect();
        cut(&mut late);
        late
    }

    /// The sites, by name: all that are known, and any that a row names besides.
    fn told(&self, rows: &[GridRow]) -> Vec<GridSite> {
        let here = GridSite {
            name: self.context.here().to_string(),
            answered: true,
            last_seen: None,
            why: None,
        };
        let mut sites: Vec<GridSite> = self.peers.iter().map(|peer| self.of(peer)).collect();
        sites.push(here);
        let strange = |name: &&String| !sites.iter().any(|site| site.name == **name);
        let named: BTreeSet<String> =
            rows.iter().flat_map(|row| row.cells.keys()).filter(strange).cloned().collect();
        sites.extend(named.into_iter().map(|name| GridSite {
            name,
            answered: false,
            last_seen: None,
            why: Some("it is not known here".to_owned()),
        }));
        sites.sort_by(|a, b| a.name.cmp(&b.name));
        sites
    }

    fn of(&self, peer: &Peer) -> GridSite {
        let why = match peer.state {
            Reach::Reachable => self.failed.get(&peer.site).cloned(),
            Reach::Paused => Some("its link is paused".to_owned()),
            Reach::Unreachable => {
                Some(peer.error.clone().unwrap_or_else(|| "there is no link to it".to_owned()))
            }
        };
        GridSite {
            name: peer.site.to_string(),
            answered: why.is_none(),
            last_seen: why.is_some().then(|| peer.last_seen.map(time_of_day)).flatten(),
            why,
        }
    }
}

/// Keeps no more names than a question holds.
fn cut(names: &mut Vec<String>) {
    let mut length = 0;
    let fitting = names.iter().take_while(|name| {
        length += name.len() + 1;
        length <= NAMES
    });
    let fitting = fitting.count().max(1);
    names.truncate(fitting);
}

/// The first rows of all, as far as nothing can come between them any more.
fn merge(answers: &[Grid], limit: usize) -> Grid {
    let known_to = answers.iter().filter_map(|grid| grid.next.as_deref()).min();
    let mut rows = rows(answers, |id| known_to.is_none_or(|end| id <= end));
    let mut next = known_to.map(ToOwned::to_owned);
    if rows.len() > limit {
        rows.truncate(limit);
        next = rows.last().map(|row| row.id.clone());
    }
    Grid { site: String::new(), sites: Vec::new(), rows, next }
}

/// One row for each of the ids that are wanted: a site's own word comes before that of others, and of the
/// same sort the first.
fn rows(answers: &[Grid], wanted: impl Fn(&str) -> bool) -> Vec<GridRow> {
    let mut merged: BTreeMap<&str, GridRow> = BTreeMap::new();
    for row in answers.iter().flat_map(|grid| &grid.rows).filter(|row| wanted(&row.id)) {
        let Some(known) = merged.get_mut(row.id.as_str()) else {
            merged.insert(&row.id, row.clone());
            continue;
        };
        known.deleting |= row.deleting;
        known.updated = known.updated.take().max(row.updated.clone());
        for (site, cell) in &row.cells {
            let other = known.cells.get(site);
            let better =
                other.is_none_or(|other| other.told_by.is_some() && cell.told_by.is_none());
            if better {
                known.cells.insert(site.clone(), cell.clone());
            }
        }
    }
    merged.into_values().collect()
}

impl Grid {
    fn ids(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::model::State as Seen;

    /// `a=settled b=pending/here`: a site, what it says, and who says so if it is another.
    fn grid(text: &str, next: Option<&str>) -> Grid {
        let cell = |word: &str| {
            let (site, said) = word.split_once('=').unwrap();
            let (state, told_by) = match said.split_once('/') {
                Some((state, by)) => (state, Some(by.to_owned())),
                None => (said, None),
            };
            let state: Seen = serde_json::from_value(state.into()).unwrap();
            (site.to_owned(), GridCell { state, told_by })
        };
        let row = |line: &str| {
            let mut words = line.split_whitespace();
            GridRow {
                id: words.next().unwrap().to_owned(),
                deleting: false,
                updated: None,
                cells: words.map(cell).collect(),
            }
        };
        let rows = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(row).collect();
        Grid { site: String::new(), sites: Vec::new(), rows, next: next.map(ToOwned::to_owned) }
    }

    #[test]
    fn pages_are_complete_and_own_words_count() {
        for (answers, limit, expected, next) in [
            (vec![grid("", None)], 2, "", None),
            (
                vec![grid("x a=settled\ny a=pending", None), grid("x b=failed", None)],
                2,
                "x a=settled b=failed\ny a=pending",
                None,
            ),
            // What b has after `m` is not known yet, so `z` has to wait.
            (
                vec![
                    grid("c a=settled\nz a=settled", None),
                    grid("d b=settled\nm b=settled", Some("m")),
                ],
                10,
                "c a=settled\nd b=settled\nm b=settled",
                Some("m"),
            ),
            (
                vec![
                    grid("c a=settled\nz a=settled", Some("z")),
                    grid("d b=settled\nm b=settled", Some("m")),
                ],
                2,
                "c a=settled\nd b=settled",
                Some("d"),
            ),
            // A site's own word comes before what others say of it; of those, the first that is asked.
            (
                vec![
                    grid("x a=settled b=pending/a c=pending/a", None),
                    grid("x b=settled c=settled/b", None),
                ],
                2,
                "x a=settled b=settled c=pending/a",
                None,
            ),
        ] {
            let merged = merge(&answers, limit);
            assert_eq!(merged.rows, grid(expected, None).rows, "{expected}");
            assert_eq!(merged.next.as_deref(), next, "{expected}");
        }
    }

    #[test]
    fn a_question_is_short() {
        let mut names: Vec<String> = (0..200).map(|n| format!("{n:0>250}")).collect();
        cut(&mut names);
        assert_eq!(names.len(), NAMES / 251);
        let mut one = vec!["x".repeat(2 * NAMES)];
        cut(&mut one);
        assert_eq!(one.len(), 1);
    }
}
