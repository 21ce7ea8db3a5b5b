//! Everything that needs a person, here or anywhere.

use axum::{extract::State, http::HeaderMap};
use cheops_core::id::SiteId;
use futures_util::future::join_all;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    Shared,
    error::{ApiResult, Asked},
    model::{Problem, Troubles},
    pass,
    resources::elsewhere,
};
use crate::problems;

/// Whose problems to list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ProblemsQuery {
    /// Only those of the site that answers.
    #[serde(default)]
    local: bool,
    /// Only those of this site, as it tells them.
    at: Option<String>,
}

/// What is wrong anywhere, the most urgent first, each with what to do.
#[utoipa::path(get, path = "/api/v1/problems", tag = "agent", params(ProblemsQuery),
    responses((status = OK, body = Troubles), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(context): State<Shared>,
    Asked(query): Asked<ProblemsQuery>,
    headers: HeaderMap,
) -> ApiResult<axum::Json<Troubles>> {
    if let Some(site) = elsewhere(&context, query.at.as_deref())? {
        return Ok(axum::Json(pass::ask(&context, &site, "/api/v1/problems?local=true").await?));
    }
    let mut all = problems::here(&context).await?;
    let mut not_asked = Vec::new();
    if !query.local && query.at.is_none() && !pass::was_passed(&headers) {
        let peers: Vec<SiteId> = context.config.sites.keys().cloned().collect();
        let reachable = context.reachable(&peers);
        not_asked
            .extend(peers.iter().filter(|site| !reachable.contains(site)).map(ToString::to_string));
        let path = "/api/v1/problems?local=true";
        let asked = reachable.iter().map(|site| pass::ask::<Troubles>(&context, site, path));
        for (site, answer) in reachable.iter().zip(join_all(asked).await) {
            match answer {
                Ok(theirs) => all.extend(theirs.problems),
                Err(_) => not_asked.push(site.to_string()),
            }
        }
        not_asked.sort();
    }
    all.sort_by(|a, b| {
        let key = |t: &super::model::Trouble| (t.urgency, t.resource.clone(), t.site.clone());
        key(a).cmp(&key(b))
    });
    Ok(axum::Json(Troubles { problems: all, not_asked }))
}
