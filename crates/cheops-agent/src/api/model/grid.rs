//! What the API says of resources and sites together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::State;

/// Resources and the state that each of their sites sees them in, a page at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Grid {
    /// The site that answers.
    pub site: String,
    /// All sites that are known here, and any others that a resource of this page names, by name.
    pub sites: Vec<GridSite>,
    /// By id.
    pub rows: Vec<GridRow>,
    /// Ask again with `after` set to this for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A site of the grid, and how fresh its word is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GridSite {
    /// The site.
    pub name: String,
    /// Whether it has answered just now. If not, what is told of it is hearsay, and what exists there
    /// alone is not in the grid.
    pub answered: bool,
    /// When it was last heard of, if it has not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<String>,
    /// Why it has not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A resource, and its state at each of its sites.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GridRow {
    /// Its id.
    pub id: String,
    /// It is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// When the newest of its operations was received, as far as any of those asked knows.
    pub updated: Option<String>,
    /// By site.
    pub cells: BTreeMap<String, GridCell>,
}

/// The state of a resource at a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GridCell {
    /// As the site itself sees it; if it was not asked, whether it had run what is known of the resource.
    pub state: State,
    /// Who tells, if it is not the site itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_by: Option<String>,
}

/// Which part of the grid to show.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct GridQuery {
    /// At most this many resources; 50 by default, 200 at most.
    pub limit: Option<usize>,
    /// Only ids after this one.
    pub after: Option<String>,
    /// Only ids up to this one.
    pub until: Option<String>,
    /// Only ids that begin with this.
    pub prefix: Option<String>,
    /// Only ids that hold this.
    pub contains: Option<String>,
    /// Only those that are in this state at one of their sites.
    pub state: Option<State>,
    /// Only those that exist at this site.
    pub site: Option<String>,
    /// Ask no other site.
    #[serde(default)]
    pub local: bool,
    /// Only these ids, with commas between them, whatever else is asked.
    pub ids: Option<String>,
    /// Sites that can't be asked, with commas between them: what is known here of these is told as well.
    pub silent: Option<String>,
}
