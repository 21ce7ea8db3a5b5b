//! Showing a resource on several sites: a command that changes nothing and leaves no trace.

use std::{collections::BTreeMap, time::Duration};

use axum::{extract::State, http::HeaderMap};
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    plan::Outcome,
    replica::Replica,
};
use futures_util::future::join_all;
use tokio::time;

use super::{
    Context, Shared, audited,
    error::{ApiError, ApiResult, In, Json},
    model::{Problem, Show, Shown, ShownAt},
    pass,
    reading::home,
    resource_id,
    submit::expect_ok,
    view,
    who::Who,
};
use crate::policy::Asker;

/// How long the command may take at each site.
const LONGEST: Duration = Duration::from_secs(30);
/// How much longer its answer may take to get here.
const GRACE: Duration = Duration::from_secs(3);

/// Shows a resource on all of its sites, or on some.
#[utoipa::path(post, path = "/api/v1/resources/{id}/show", tag = "resources",
    params(("id" = String, Path, description = "The resource")),
    request_body = Show,
    responses((status = OK, body = Shown), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(context): State<Shared>,
    In(id): In<String>,
    who: Who,
    headers: HeaderMap,
    Json(asked): Json<Show>,
) -> ApiResult<axum::Json<Shown>> {
    let passed = pass::was_passed(&headers);
    Ok(axum::Json(anywhere(&context, &who, &resource_id(&id)?, &asked, passed).await?))
}

/// Shows a resource, at a site that knows it if this one does not and would have to.
pub(super) async fn anywhere(
    context: &Context,
    who: &Who,
    id: &ResourceId,
    asked: &Show,
    passed: bool,
) -> ApiResult<Shown> {
    let known = known(context, id).await?;
    let needs_to_be_known = asked.command.is_none() || asked.sites.is_none();
    if known.is_some() || !needs_to_be_known || passed {
        let named = asked.sites.as_deref().map(|place| home(context, place)).transpose()?;
        let of_resource = known.iter().map(|known| &known.sites);
        let sites: Vec<SiteId> =
            named.iter().chain(of_resource).flat_map(Sites::iter).cloned().collect();
        may_show(who, id, asked.command.as_deref(), &sites)?;
        return on(context, who, known, id, asked).await;
    }
    if let Some(command) = &asked.command {
        audited::acts();
        audited::about(command);
    }
    let site = pass::find(context, id).await?;
    ask(context, who, &site, id, asked).await
}

/// Whoever looks may see what the resource's own command shows. A command of one's own can do anything, and
/// is an operation for those who ask, of this kind.
const KIND: &str = "show";

/// Whether somebody may have a resource shown at sites.
pub(super) fn may_show(
    who: &Who,
    id: &ResourceId,
    command: Option<&str>,
    sites: &[SiteId],
) -> ApiResult<()> {
    let Some(command) = command else { return Ok(()) };
    audited::acts();
    audited::about(command);
    who.may_operate(id, &KIND.parse()?, sites)
}

/// What is needed to show a resource.
struct Known {
    sites: Sites,
    /// Its own `Show` command.
    show: Option<String>,
    /// Which part each site has, if it is in parts.
    parts: BTreeMap<SiteId, usize>,
}

/// What is known here of a resource, if it is.
async fn known(context: &Context, id: &ResourceId) -> ApiResult<Option<Known>> {
    let id = id.clone();
    let look = move |replica: &Replica| {
        let resource = replica.resource(&id)?;
        let (sites, config) = (resource.present_sites(), resource.config());
        let part = |site: &SiteId| Some((site.clone(), view::number(config.share(site)?)));
        let parts = sites.iter().filter_map(part).collect();
        Some(Known { show: config.show.clone(), sites, parts })
    };
    Ok(context.node.read(look).await?)
}

pub(super) fn no_command() -> ApiError {
    ApiError::bad(
        "no-command",
        "there is no command to show it with",
        "name one, or put \"Show\" into the resource's configuration",
    )
}

/// Runs a command on sites: the resource's own `Show` and all of its sites, if nothing else is said.
async fn on(
    context: &Context,
    who: &Who,
    known: Option<Known>,
    id: &ResourceId,
    asked: &Show,
) -> ApiResult<Shown> {
    let (sites, show, parts) = match known {
        Some(Known { sites, show, parts }) => (Some(sites), show, parts),
        None => (None, None, BTreeMap::new()),
    };
    let written = |command: &String| !command.trim().is_empty();
    let command = match asked.command.clone() {
        Some(command) => Some(Command::Asked(command)),
        None => show.map(Command::Own),
    };
    let command = command.filter(|command| written(command.line())).ok_or_else(no_command)?;
    let sites = match asked.sites.as_deref() {
        Some(place) => home(context, place)?,
        None => sites.ok_or_else(|| ApiError::no_resource(id.as_str(), &[]))?,
    };
    let asked = sites.iter().map(async |site| {
        let shown = time::timeout(LONGEST + GRACE, at(context, who, site, id, &command)).await;
        let shown =
            shown.unwrap_or_else(|_| timeout(format!("no answer within {} s", LONGEST.as_secs())));
        // What another site says of it is good enough where nothing is known here.
        let part = parts.get(site).copied().or(shown.part);
        (site.to_string(), ShownAt { part, ..shown })
    });
    let sites: BTreeMap<String, ShownAt> = join_all(asked).await.into_iter().collect();
    // Sites with different parts print different things by design.
    let mut first: BTreeMap<Option<usize>, &ShownAt> = BTreeMap::new();
    let mut same = sites.values().map(|at| *first.entry(at.part).or_insert(at) == at);
    let agree =
        !sites.is_empty() && same.all(|same| same) && sites.values().all(|at| at.status == "OK");
    Ok(Shown { command: command.line().clone(), sites, agree })
}

/// What a resource is shown with.
pub(super) enum Command {
    /// Its own `Show` command.
    Own(String),
    /// One that somebody asks for, under his name.
    Asked(String),
}

impl Command {
    fn line(&self) -> &String {
        match self {
            Self::Own(line) | Self::Asked(line) => line,
        }
    }
}

async fn at(
    context: &Context,
    who: &Who,
    site: &SiteId,
    id: &ResourceId,
    command: &Command,
) -> ShownAt {
    if site == context.here() {
        return here(context, who, id, command).await;
    }
    let line = match command {
        Command::Own(_) => None,
        Command::Asked(line) => Some(line.clone()),
    };
    let asked = Show { command: line, sites: Some(site.to_string()) };
    let shown = ask(context, who, site, id, &asked).await;
    match shown.map(|mut shown| shown.sites.remove(site.as_str())) {
        Ok(Some(shown)) => shown,
        Ok(None) => timeout(format!("`{site}` gave no answer that makes sense")),
        Err(error) if error.is_silence() => timeout(error.0.detail),
        Err(error) => ShownAt { status: "KO".to_owned(), output: error.0.detail, part: None },
    }
}

fn timeout(output: String) -> ShownAt {
    ShownAt { status: "TIMEOUT".to_owned(), output, part: None }
}

/// Asks another agent to show a resource.
async fn ask(
    context: &Context,
    who: &Who,
    site: &SiteId,
    id: &ResourceId,
    asked: &Show,
) -> ApiResult<Shown> {
    let path = format!("/api/v1/resources/{id}/show");
    // The other site may have to wait for others itself.
    let limit = LONGEST + 2 * GRACE;
    let response =
        pass::post(context, Some(who), site, &path, "application/json", asked, limit).await?;
    let response = expect_ok(response).await?;
    let body = axum::body::to_bytes(response.into_body(), super::MAX_BODY * 4).await;
    let shown = body.ok().and_then(|body| serde_json::from_slice::<Shown>(&body).ok());
    shown.ok_or_else(|| ApiError::unreachable(format!("`{site}` gave no answer that makes sense")))
}

/// Runs a command at this site.
pub(super) async fn here(
    context: &Context,
    who: &Who,
    id: &ResourceId,
    command: &Command,
) -> ShownAt {
    let asker = match command {
        Command::Own(_) => None,
        Command::Asked(_) => Some(Asker {
            author: Some(who.author.clone()),
            origin: Some(who.received_at(context.here()).clone()),
        }),
    };
    let report = context.runner.show(id, command.line(), asker, LONGEST).await;
    let status = match report.outcome {
        Outcome::Ok => "OK",
        Outcome::Denied => "DENIED",
        Outcome::Ko | Outcome::Unknown => "KO",
    };
    ShownAt { status: status.to_owned(), output: report.output.to_string(), part: None }
}
