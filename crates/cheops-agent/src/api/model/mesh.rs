//! What the API says of the application's services and REST resources.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::State;

/// What sites have, and how far they are from each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Catalogue {
    /// The site that answers.
    pub here: String,
    /// By name.
    pub sites: Vec<Offer>,
}

/// What a site has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Offer {
    /// The site.
    pub site: String,
    /// The services of which it has an instance.
    pub services: Vec<String>,
    /// Its round trips to other sites, in milliseconds, as it has measured them. The last known if there
    /// is no link.
    pub round_trips_ms: BTreeMap<String, f64>,
    /// The other sites that it has no link to at the moment.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cut: BTreeSet<String>,
    /// Where people reach its page, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Whether it keeps its records in CouchDB and takes in what another site's CouchDB replicates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replicates: bool,
}

/// Whose part of the catalogue to show.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CatalogueQuery {
    /// Only that of the site that answers.
    #[serde(default)]
    pub local: bool,
}

/// A REST resource at several sites.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replicant {
    /// The service that it belongs to.
    pub service: String,
    /// The id that Cheops made for it; none if it has the same path at all sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its path, as clients know it.
    pub path: String,
    /// The resource that its operations act on.
    pub resource: String,
    /// Its state, as far as is known at the site that answers.
    pub state: State,
    /// It is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// What each site has of it.
    pub replicas: Vec<Replica>,
}

/// What a site has of a REST resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The site.
    pub site: String,
    /// What it calls its own, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Which part of it the site has, from 1, if it is divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<usize>,
    /// Whether the site has carried out the creation.
    pub created: bool,
    /// Why it could not, if it could not and has nothing: `answered 503`. The creation is not sent there
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// How many operations it has not answered.
    pub pending: usize,
}

/// A page of REST resources at several sites.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replicants {
    /// The site that answers.
    pub site: String,
    /// By resource.
    pub replicants: Vec<Replicant>,
    /// Ask again with `after` set to this for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Which REST resources to list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ReplicantsQuery {
    /// At most this many; 500 by default, 5,000 at most.
    pub limit: Option<usize>,
    /// Only those whose resource comes after this one.
    pub after: Option<String>,
    /// Only those of this service.
    pub service: Option<String>,
}

/// Whom to ask about a REST resource.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ReplicantQuery {
    /// Ask no other site.
    #[serde(default)]
    pub local: bool,
}
