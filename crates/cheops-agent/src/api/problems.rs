//! Everything that needs a person, here or anywhere.
//!
//! What must stay true: a site that does not answer is named, and holds nobody up for long; least of all a
//! page of all sites, which only wants numbers.

use std::time::Duration;

use axum::{extract::State, http::HeaderMap};
use serde::{Deserialize, de::DeserializeOwned};
use utoipa::IntoParams;

use super::{
    Context, Shared,
    error::{ApiResult, Asked},
    model::{Problem, TroubleCount, Troubles},
    pass,
    resources::elsewhere,
};
use crate::{
    peers::{Peer, State as Reach},
    problems,
};

/// How long a site may take to say how many there are, besides the round trip to it, and all of them at most
/// twice as long: a page waits for it.
const COUNTED: Duration = Duration::from_millis(800);

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
        let (theirs, silent) =
            ask::<Troubles>(&context, "/api/v1/problems?local=true", |_| pass::PATIENCE).await;
        all.extend(theirs.into_iter().flat_map(|theirs| theirs.problems));
        not_asked = silent;
    }
    all.sort_by(|a, b| {
        let key = |t: &super::model::Trouble| (t.urgency, t.resource.clone(), t.site.clone());
        key(a).cmp(&key(b))
    });
    Ok(axum::Json(Troubles { problems: all, not_asked }))
}

/// How many things are wrong at each site: the most that a page of all sites needs.
#[utoipa::path(get, path = "/api/v1/problems/count", tag = "agent", params(ProblemsQuery),
    responses((status = OK, body = TroubleCount), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn count(
    State(context): State<Shared>,
    Asked(query): Asked<ProblemsQuery>,
    headers: HeaderMap,
) -> ApiResult<axum::Json<TroubleCount>> {
    let path = "/api/v1/problems/count?local=true";
    if let Some(site) = elsewhere(&context, query.at.as_deref())? {
        return Ok(axum::Json(pass::ask(&context, &site, path).await?));
    }
    let mut counted = TroubleCount::default();
    for trouble in problems::here(&context).await? {
        *counted.sites.entry(trouble.site).or_default() += 1;
    }
    if !query.local && query.at.is_none() && !pass::was_passed(&headers) {
        let patience = |peer: &Peer| COUNTED + peer.round_trip.unwrap_or_default();
        let (theirs, silent) = ask::<TroubleCount>(&context, path, patience).await;
        for (site, count) in theirs.into_iter().flat_map(|theirs| theirs.sites) {
            *counted.sites.entry(site).or_default() += count;
        }
        counted.not_asked = silent;
    }
    Ok(axum::Json(counted))
}

/// Asks all other sites at once, the nearest first, each for as long as it may take: what they say, and who could not be asked.
async fn ask<T: DeserializeOwned>(
    context: &Context,
    path: &str,
    patience: impl Fn(&Peer) -> Duration,
) -> (Vec<T>, Vec<String>) {
    let (mut reachable, unreachable): (Vec<Peer>, Vec<Peer>) =
        context.peers.view().into_iter().partition(|peer| peer.state == Reach::Reachable);
    reachable.sort_by_key(|peer| peer.round_trip.unwrap_or(Duration::MAX));
    let mut silent: Vec<String> = unreachable.iter().map(|peer| peer.site.to_string()).collect();
    let asked: Vec<_> = reachable.iter().map(|peer| (peer.site.clone(), patience(peer))).collect();
    let longest = asked.iter().map(|(_, patience)| *patience).max().unwrap_or_default();
    let answers = pass::ask_all(context, &asked, path, 2 * longest).await;
    let mut said = Vec::new();
    for ((site, _), answer) in asked.iter().zip(answers) {
        match answer {
            Ok(answer) => said.push(answer),
            Err(_) => silent.push(site.to_string()),
        }
    }
    silent.sort();
    (said, silent)
}
