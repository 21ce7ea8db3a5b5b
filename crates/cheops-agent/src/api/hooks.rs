//! The hooks of this site: how they are doing, samples, and those that are added while it runs.

use axum::{extract::State, http::StatusCode};
use tokio::task::spawn_blocking;

use super::{
    Shared, audited,
    error::{ApiError, ApiResult, In, Json},
    model::{HookTested, Hooks, Problem},
};
use crate::{config::HookSection, hooks::HookError, node::Stopping};

/// The hooks of this site, and how they are doing. Nothing secret is shown.
#[utoipa::path(get, path = "/api/v1/hooks", tag = "hooks",
    responses((status = OK, body = Hooks), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(context): State<Shared>) -> axum::Json<Hooks> {
    let (site, hooks) = (context.here().to_string(), context.hooks.list());
    axum::Json(Hooks { site, hooks, unfollowed: context.hooks.unfollowed() })
}

/// Adds a hook to this site, for good. The settings are those of `[[hook]]` in a configuration, except for
/// commands: what runs at a site is the site's own decision.
#[utoipa::path(post, path = "/api/v1/hooks", tag = "hooks", request_body = HookSection,
    responses((status = CREATED, body = Hooks), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn add(
    State(context): State<Shared>,
    Json(section): Json<HookSection>,
) -> ApiResult<(StatusCode, axum::Json<Hooks>)> {
    audited::about(section.name.as_str());
    if section.runs_a_command() {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "command-hook",
            "a hook that runs a command is not added from outside: what runs at a site is the site's own decision",
            "write it into the site's configuration, as [[hook]], and restart the agent",
        ));
    }
    let hooks = context.hooks.clone();
    aside(move || hooks.add(section)).await?;
    Ok((StatusCode::CREATED, list(State(context)).await))
}

/// Removes a hook that was added to this site, with all that waits for it.
#[utoipa::path(delete, path = "/api/v1/hooks/{name}", tag = "hooks",
    params(("name" = String, Path, description = "The hook")),
    responses((status = NO_CONTENT), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(context): State<Shared>,
    In(name): In<String>,
) -> ApiResult<StatusCode> {
    let hooks = context.hooks.clone();
    aside(move || hooks.remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Does what waits for the disk, to its end, even if whoever asked is gone.
async fn aside(work: impl FnOnce() -> Result<(), HookError> + Send + 'static) -> ApiResult<()> {
    Ok(spawn_blocking(work).await.map_err(|_| Stopping)??)
}

/// Sends a sample now, and says what came of it.
#[utoipa::path(post, path = "/api/v1/hooks/{name}/test", tag = "hooks",
    params(("name" = String, Path, description = "The hook")),
    responses((status = OK, body = HookTested), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn test(
    State(context): State<Shared>,
    In(name): In<String>,
) -> ApiResult<axum::Json<HookTested>> {
    let tested = context.hooks.test(&name).await;
    tested.map(axum::Json).ok_or_else(|| HookError::Unknown(name).into())
}

impl From<HookError> for ApiError {
    fn from(error: HookError) -> Self {
        let text = error.to_string();
        match error {
            HookError::Wrong(_) => Self::bad("bad-hook", text, "see docs/hooks.md"),
            HookError::Known(_) => Self::new(
                StatusCode::CONFLICT,
                "known-hook",
                text,
                "use another name, or remove it first",
            ),
            HookError::TooMany => {
                Self::new(StatusCode::CONFLICT, "hooks-full", text, "remove one that is not needed")
            }
            HookError::Unknown(_) => Self::not_found(
                "unknown-hook",
                text,
                "see /api/v1/hooks for those that there are; each site has its own",
            ),
            HookError::Configured(_) => Self::new(
                StatusCode::CONFLICT,
                "configured-hook",
                text,
                "remove it from the configuration, and restart the agent",
            ),
            HookError::Disk { .. } => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "cannot-write",
                text,
                "look at the disk, and try again",
            ),
        }
    }
}
