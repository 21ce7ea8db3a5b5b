//! Who belongs to the federation of this site: tokens, joining, removing, and new keys.

use std::{collections::BTreeMap, time::SystemTime};

use axum::{extract::State, http::StatusCode};
use cheops_core::{
    duration,
    time::{Millis, Timestamp},
    trust::{self, Claim, PublicKey, Roster, Standing},
};
use tokio::task::spawn_blocking;

use super::{
    Shared, audited,
    error::{ApiError, ApiResult, In, Json},
    model::{Federation, Join, Member, MemberStanding, Problem, SiteKey, TokenMade, TokenWanted},
    sites::{span, time_of_day},
    view::rfc3339,
};
use crate::{
    federation::{FederationError, TTL},
    node::Stopping,
    trust::{LedgerError, token::Token},
};

/// Who belongs, and who did.
#[utoipa::path(get, path = "/api/v1/federation", tag = "sites",
    responses((status = OK, body = Federation), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(State(context): State<Shared>) -> axum::Json<Federation> {
    let own = context.peers.pki().map(|pki| (context.peers.key(), pki.valid().until));
    let met = context.peers.view().into_iter().filter_map(|peer| peer.key.zip(peer.certificate));
    let ends: BTreeMap<PublicKey, SystemTime> = met.chain(own).collect();
    let told = context.federation.ledger().read(|roster| {
        let mut members: Vec<Member> =
            roster.members().iter().map(|(key, member)| view(roster, key, member)).collect();
        for (member, key) in members.iter_mut().zip(roster.members().keys()) {
            member.certificate_expires = ends.get(key).copied().map(time_of_day);
        }
        members.sort_by(|a, b| (&a.site, &a.since).cmp(&(&b.site, &b.since)));
        (roster.root().to_string(), members)
    });
    let site = context.here().to_string();
    let (federation, members) = told.map_or((None, Vec::new()), |(root, all)| (Some(root), all));
    axum::Json(Federation { site, federation, members })
}

fn view(roster: &Roster, key: &PublicKey, member: &trust::Member) -> Member {
    let name = |key: &PublicKey| {
        roster.members().get(key).map_or_else(|| key.to_string(), |member| member.site.to_string())
    };
    let (standing, removed, removed_by) = match &member.standing {
        Standing::Belongs => (MemberStanding::Belongs, None, None),
        Standing::Renewed { .. } => (MemberStanding::Renewed, None, None),
        Standing::Removed { by, at, .. } => {
            (MemberStanding::Removed, Some(rfc3339(at.wall())), Some(name(by)))
        }
    };
    let key_since = key_since(roster, key);
    let since = Some(member.since).filter(|since| *since != Timestamp::default());
    Member {
        site: member.site.to_string(),
        key: key.to_string(),
        address: member.address.to_string(),
        since: since.map(|since| rfc3339(since.wall())),
        key_since,
        certificate_expires: None,
        standing,
        removed,
        removed_by,
    }
}

/// Since when a site has a key: since it came with it, or said so.
pub(super) fn key_since(roster: &Roster, key: &PublicKey) -> Option<String> {
    let renewed = roster.heard().iter().find(|said| said.claim == Claim::Renew { key: *key });
    let came = || roster.members().get(key).map(|member| member.since);
    let since = renewed.map(|said| said.at).or_else(came)?;
    (since != Timestamp::default()).then(|| rfc3339(since.wall()))
}

/// Makes a token by which one site can join the federation of this one, once. The first token begins a
/// federation.
#[utoipa::path(post, path = "/api/v1/federation/tokens", tag = "sites", request_body = TokenWanted,
    responses((status = CREATED, body = TokenMade), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn token(
    State(context): State<Shared>,
    Json(wanted): Json<TokenWanted>,
) -> ApiResult<(StatusCode, axum::Json<TokenMade>)> {
    let ttl = wanted.ttl.as_deref().map(span).transpose()?.unwrap_or(TTL);
    audited::about(format!("for {}", duration::print(ttl)));
    let federation = context.federation.clone();
    let made = spawn_blocking(move || federation.token(ttl, wanted.address));
    let token = made.await.map_err(|_| Stopping)??;
    let made = TokenMade {
        site: context.here().to_string(),
        expires: rfc3339(Millis(token.expires)),
        address: token.address.clone(),
        token: token.to_string(),
    };
    Ok((StatusCode::CREATED, axum::Json(made)))
}

/// Makes this site one of the federation that a token is for.
#[utoipa::path(post, path = "/api/v1/federation/join", tag = "sites", request_body = Join,
    responses((status = OK, body = Federation), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn join(
    State(context): State<Shared>,
    Json(join): Json<Join>,
) -> ApiResult<axum::Json<Federation>> {
    let token: Token = join.token.parse().map_err(|error| {
        let again =
            "run `cheops token create` at a site of the federation, and copy what it prints";
        ApiError::bad("bad-token", format!("this is no token: {error}"), again)
    })?;
    audited::about(format!("{} by way of {}", token.root(), token.address));
    // To its end, even if whoever asked is gone: the token may be spent by now.
    let federation = context.federation.clone();
    let joining = tokio::spawn(async move { federation.join(&token, join.address).await });
    joining.await.map_err(|_| Stopping)??;
    Ok(get(State(context)).await)
}

/// Removes a site from the federation, whether it can be reached or not. It does not come back with the
/// key that it has.
#[utoipa::path(delete, path = "/api/v1/sites/{name}", tag = "sites",
    params(("name" = String, Path, description = "The site")),
    responses((status = NO_CONTENT), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(context): State<Shared>,
    In(name): In<String>,
) -> ApiResult<StatusCode> {
    let site = name.parse()?;
    let federation = context.federation.clone();
    let removing = tokio::spawn(async move { federation.remove(&site).await });
    removing.await.map_err(|_| Stopping)??;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives this site a new key. The others hear of it, and take it for the same site.
#[utoipa::path(post, path = "/api/v1/federation/key", tag = "sites",
    responses((status = OK, body = SiteKey), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn renew(State(context): State<Shared>) -> ApiResult<axum::Json<SiteKey>> {
    let federation = context.federation.clone();
    let renewed = spawn_blocking(move || federation.renew());
    let key = renewed.await.map_err(|_| Stopping)??.to_string();
    audited::about(key.as_str());
    Ok(axum::Json(SiteKey { site: context.here().to_string(), key }))
}

impl From<FederationError> for ApiError {
    fn from(error: FederationError) -> Self {
        let detail = error.to_string();
        match error {
            FederationError::Refused(problem) => Self(problem),
            FederationError::Stopping(error) => error.into(),
            FederationError::NoAddress => Self::new(
                StatusCode::CONFLICT,
                "no-address",
                detail,
                "name one with `--address HOST:PORT`, or write `advertise` under [listen] of its configuration",
            ),
            FederationError::Address(_) => {
                Self::bad("bad-address", detail, "write it like 10.0.0.1:8078")
            }
            FederationError::Ttl => Self::bad(
                "bad-ttl",
                detail,
                format!("without a ttl it is {}", duration::print(TTL)),
            ),
            FederationError::OwnToken(_) => Self::bad(
                "own-token",
                detail,
                "run `cheops join` with it at the site that is to join, or make one at the site whose federation this one is to join",
            ),
            FederationError::Visit(_) => Self::new(
                StatusCode::BAD_GATEWAY,
                "unreachable",
                detail,
                "look whether the agent that has made the token runs, and whether its port for other agents can be reached from here",
            ),
            FederationError::Garbled(_) => Self::new(
                StatusCode::BAD_GATEWAY,
                "garbled",
                detail,
                "update the older of the two agents",
            ),
            FederationError::Unknown(_) => Self::not_found(
                "unknown-site",
                detail,
                "see `cheops site members` for those that do",
            ),
            FederationError::Itself(_) | FederationError::Named(_) => Self::new(
                StatusCode::CONFLICT,
                "not-removed",
                detail,
                "see `cheops site members` for the sites that have joined",
            ),
            FederationError::Ledger(LedgerError::Alone) => Self::new(
                StatusCode::CONFLICT,
                "no-federation",
                detail,
                "a site that is known by configuration alone gets a new key there: docs/links.md",
            ),
            FederationError::Ledger(LedgerError::Out) => Self::new(
                StatusCode::CONFLICT,
                "removed",
                detail,
                "join again: it gets a new key by that",
            ),
            FederationError::Ledger(LedgerError::Elsewhere(_) | LedgerError::NotAdmitted) => {
                Self::new(
                    StatusCode::CONFLICT,
                    "another-federation",
                    detail,
                    "see `cheops site members` for where it belongs",
                )
            }
            FederationError::Ledger(_)
            | FederationError::Identity(_)
            | FederationError::Tokens(_)
            | FederationError::Grants(_)
            | FederationError::Tls(_) => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "not-written",
                detail,
                "look at the data directory of the agent: its disk, and who may write there",
            ),
        }
    }
}
