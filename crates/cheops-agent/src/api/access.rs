//! Who may do what: tokens are made, listed and taken back; and sessions of browsers begin and end.
//!
//! What must stay true: a token is in one answer, that to whoever made it, and in no other; a session begins
//! with an id of its own, in a cookie that no script can read and no other site's page can have sent.

use std::time::{Duration, Instant};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use cheops_core::{
    duration,
    time::Millis,
    trust::people::{Grant, Name, Role},
};

use super::{
    Access, Context, Shared, audited,
    enter::token_error,
    error::{ApiError, ApiResult, In, Json},
    model::{AccessGrant, AccessList, AccessMade, AccessRequest, Login, Problem, Session},
    sites::span,
    view::rfc3339,
    who::{Proof, Who},
};
use crate::trust::{
    people::{GrantsError, NoRandomness, Rights, Token, now},
    sessions,
};

/// How long a token is good for, if nobody says so, and at most.
const TTL: Duration = Duration::from_hours(30 * 24);
const MAX_TTL: Duration = Duration::from_hours(366 * 24);

/// The tokens that there are, without their secrets.
#[utoipa::path(get, path = "/api/v1/access", tag = "access",
    responses((status = OK, body = AccessList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(context): State<Shared>) -> axum::Json<AccessList> {
    let now = now();
    let mut tokens: Vec<AccessGrant> = (context.access.grants.all().into_iter())
        .map(|(grant, revoked)| shown(&grant, revoked, now))
        .collect();
    tokens.sort_by(|a, b| (&a.name, &a.issued).cmp(&(&b.name, &b.issued)));
    axum::Json(AccessList { tokens })
}

fn shown(grant: &Grant, revoked: Option<Millis>, now: Millis) -> AccessGrant {
    let state = match revoked {
        Some(_) => "revoked",
        None if grant.holds_at(now) => "valid",
        None => "expired",
    };
    AccessGrant {
        id: grant.id(),
        name: grant.name.to_string(),
        rights: Rights::of(&grant.role),
        issued: rfc3339(grant.issued),
        expires: rfc3339(grant.expires),
        revoked: revoked.map(rfc3339),
        state: state.to_owned(),
    }
}

/// Makes a token. The answer is the only place where it can be read.
#[utoipa::path(post, path = "/api/v1/access", tag = "access", request_body = AccessRequest,
    responses((status = CREATED, body = AccessMade), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(context): State<Shared>,
    Json(asked): Json<AccessRequest>,
) -> ApiResult<(StatusCode, axum::Json<AccessMade>)> {
    let name: Name = asked.name.parse()?;
    let bad = |why: String| ApiError::bad("bad-role", why, "see docs/access.md for the roles");
    let AccessRequest { role, resources, kinds, sites, ttl, .. } = asked;
    let role = Rights { role, resources, kinds, sites }.role().map_err(bad)?;
    let ttl = ttl.as_deref().map(span).transpose()?.unwrap_or(TTL);
    if ttl.is_zero() || ttl > MAX_TTL {
        let detail = "a token is good for longer than nothing and at most 366 days";
        return Err(ApiError::bad("bad-duration", detail, "say for how long: 12h, 30d"));
    }
    let reach = match &role {
        Role::Operator(reach) => format!(" ({reach})"),
        Role::Viewer | Role::Admin => String::new(),
    };
    audited::about(format!("{name}: {role}{reach}, for {}", duration::print(ttl)));
    let issued = now();
    let is_taken =
        context.access.grants.all().into_iter().any(|(grant, revoked)| {
            grant.name == name && revoked.is_none() && grant.holds_at(issued)
        });
    if is_taken {
        return Err(ApiError::new(
            StatusCode::CONFLICT,
            "known-token",
            format!("`{name}` has a token that is still good"),
            "use another name, or revoke that one first: `cheops access revoke`",
        ));
    }
    let token = Token::make()?;
    let expires = Millis(issued.0.saturating_add(Millis::from(ttl).0));
    let grant = Grant { name, digest: token.digest(), role, issued, expires };
    let about = shown(&grant, None, issued);
    context.access.grants.grant(grant).await?;
    share(&context).await;
    Ok((StatusCode::CREATED, axum::Json(AccessMade { token: token.reveal(), about })))
}

/// Tells the other sites now. What can't be told now is told later.
async fn share(context: &Context) {
    if let Err(error) = context.federation.share_people().await {
        tracing::warn!("the other sites could not be told of a token: {error}");
    }
}

/// Takes back the tokens with a name, or the one with an id, for good. Sessions that were begun with them end.
#[utoipa::path(delete, path = "/api/v1/access/{name}", tag = "access",
    params(("name" = String, Path, description = "The name of the token, or its id")),
    responses((status = OK, body = AccessList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke(
    State(context): State<Shared>,
    In(name): In<String>,
) -> ApiResult<axum::Json<AccessList>> {
    let now = now();
    let called =
        context.access.grants.all().into_iter().filter(|(grant, _)| grant.is_called(&name));
    let called: Vec<_> = called.collect();
    if called.is_empty() {
        return Err(ApiError::not_found(
            "unknown-token",
            format!("no token has the name or the id `{name}`"),
            "see /api/v1/access for those that there are",
        ));
    }
    let mut tokens = Vec::new();
    for (grant, revoked) in called {
        if revoked.is_none() {
            context.access.grants.revoke(grant.digest, now).await?;
        }
        context.access.sessions.end_all(&grant.digest);
        tokens.push(shown(&grant, revoked.or(Some(now)), now));
    }
    share(&context).await;
    Ok(axum::Json(AccessList { tokens }))
}

/// Who asks, as far as the agent knows.
#[utoipa::path(get, path = "/api/v1/session", tag = "access",
    responses((status = OK, body = Session), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn whoami(who: Who) -> axum::Json<Session> {
    let by = match who.proof {
        Proof::Door => "door",
        Proof::Token(_) => "token",
        Proof::Session { .. } => "session",
        Proof::Site => "site",
    };
    axum::Json(Session {
        author: who.author.to_string(),
        rights: who.role.as_ref().map(Rights::of),
        by: by.to_owned(),
    })
}

/// Begins a session: a token is sent once, and a cookie comes back.
#[utoipa::path(post, path = "/api/v1/session", tag = "access", request_body = Login,
    responses((status = NO_CONTENT), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn login(
    State(context): State<Shared>,
    who: Who,
    Json(asked): Json<Login>,
) -> ApiResult<Response> {
    let token: Token = asked.token.parse().map_err(token_error)?;
    let digest = token.digest();
    audited::is(context.access.grant_of(&digest)?.name.as_str());
    if let Proof::Session { session, .. } = &who.proof {
        context.access.sessions.end(session);
    }
    let id = context.access.sessions.begin(digest, Instant::now())?;
    let cookie = cookie(&context.access, &id.reveal(), sessions::LONGEST);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Ends the session of whoever asks.
#[utoipa::path(delete, path = "/api/v1/session", tag = "access",
    responses((status = NO_CONTENT), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn logout(State(context): State<Shared>, who: Who) -> Response {
    if let Proof::Session { session, .. } = &who.proof {
        context.access.sessions.end(session);
    }
    let cookie = cookie(&context.access, "", Duration::ZERO);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

/// The cookie of a session.
fn cookie(access: &Access, id: &str, age: Duration) -> HeaderValue {
    let secure = if access.secure { "; Secure" } else { "" };
    let (name, age) = (&access.cookie, age.as_secs());
    let cookie = format!("{name}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age}{secure}");
    HeaderValue::from_str(&cookie).unwrap_or_else(|_| HeaderValue::from_static(""))
}

impl From<GrantsError> for ApiError {
    fn from(error: GrantsError) -> Self {
        let text = error.to_string();
        match error {
            GrantsError::Full(_) => Self::new(
                StatusCode::CONFLICT,
                "tokens-full",
                text,
                "those that have expired are forgotten after 30 days, when the agent starts",
            ),
            GrantsError::Disk(_) => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "cannot-write",
                text,
                "look at the disk, and try again",
            ),
        }
    }
}

impl From<NoRandomness> for ApiError {
    fn from(error: NoRandomness) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no-randomness",
            error.to_string(),
            "look at the system's log",
        )
    }
}
