//! Asking for operations: here, or at a site of the resource that the request is passed on to.
//!
//! Whatever door a request comes through, it becomes a [`Conversation`]: the operation, and what is
//! heard of it as it is heard.

use std::{collections::BTreeSet, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use cheops_core::{
    duration,
    id::{Kind, OpId, ResourceId, SiteId, Sites},
    matrix::Config,
    replica::{self, Refusal, Replica, Submission},
    trust::people,
};
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{self, Instant},
};
use tokio_util::io::ReaderStream;

use super::{
    Context, Shared, audited,
    error::{ApiError, ApiResult, Asked, In, Json},
    model::{Answer, DeleteQuery, File, Outcome, Problem, Run, RunStatus, Submit, Submitted},
    pass,
    reading::submission,
    rehearse::rehearse,
    resource_id,
    sites::span,
    view,
    who::Who,
};
use crate::{node::Stopping, replicants::Replicant};

/// How long other sites may take to say that they know a resource, before it is created.
const CREATING: Duration = Duration::from_secs(1);
/// How often sites that are silent are asked whether they have begun.
const LOOK: Duration = Duration::from_millis(500);
/// Lines of JSON.
pub(super) const NDJSON: &str = "application/x-ndjson";

/// An operation that was accepted, and what is heard of it.
pub(super) struct Conversation {
    pub(super) operation: String,
    pub(super) sites: Vec<String>,
    /// The last is [`Answer::Done`] or [`Answer::Error`].
    pub(super) answers: Answers,
}

/// What is heard, as it is heard. Whoever listens no longer lets it go.
type Answers = BoxStream<'static, Answer>;

/// Asks for an operation. With `Accept: application/x-ndjson` the answer comes in lines, as replies
/// arrive; otherwise at once, when all is known.
#[utoipa::path(post, path = "/api/v1/resources/{id}/operations", tag = "operations",
    params(("id" = String, Path, description = "The resource"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key again is the same operation")),
    request_body = Submit,
    responses(
        (status = OK, description = "All sites have replied, another operation won, or it was a rehearsal",
            body = Outcome),
        (status = ACCEPTED, description = "Accepted; some sites have not replied yet", body = Submitted),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn submit(
    State(context): State<Shared>,
    In(id): In<String>,
    who: Who,
    headers: HeaderMap,
    Json(mut asked): Json<Submit>,
) -> ApiResult<Response> {
    let id = resource_id(&id)?;
    if let Some(key) = headers.get("idempotency-key") {
        let key = key.to_str().map_err(|_| bad_key("the key is not plain text"))?;
        if asked.key.as_deref().is_some_and(|other| other != key) {
            return Err(bad_key("the header and the body name different keys"));
        }
        asked.key = Some(key.to_owned());
    }
    let passed = pass::was_passed(&headers);
    if asked.dry_run {
        return rehearse(&context, &who, &id, &asked, passed).await;
    }
    let progress = accepts(&headers, NDJSON);
    let waits = asked.wait.as_deref().map(span).transpose()? != Some(Duration::ZERO);
    let conversation = converse(context, &who, id, asked, Manner { passed, progress }).await?;
    answer(&headers, conversation, waits).await
}

fn bad_key(why: &str) -> ApiError {
    ApiError::bad("bad-idempotency-key", why, "name one, of letters and digits")
}

/// Deletes a resource at all of its sites.
#[utoipa::path(delete, path = "/api/v1/resources/{id}", tag = "operations",
    params(("id" = String, Path, description = "The resource"), DeleteQuery),
    responses(
        (status = OK, description = "All sites have replied", body = Submitted),
        (status = ACCEPTED, description = "Accepted; some sites have not replied yet", body = Submitted),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete(
    State(context): State<Shared>,
    In(id): In<String>,
    Asked(query): Asked<DeleteQuery>,
    who: Who,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let asked = Submit {
        command: query.command.unwrap_or_else(|| "true".to_owned()),
        kind: Some(Kind::DELETE.to_owned()),
        wait: query.wait,
        author: query.author,
        key: query.key,
        force: query.force,
        ..Submit::default()
    };
    let (passed, progress) = (pass::was_passed(&headers), accepts(&headers, NDJSON));
    let manner = Manner { passed, progress };
    let waits = asked.wait.as_deref().map(span).transpose()? != Some(Duration::ZERO);
    let conversation = converse(context, &who, resource_id(&id)?, asked, manner).await?;
    answer(&headers, conversation, waits).await
}

/// The answer in the form that was asked for. Who does not wait has not waited in vain.
async fn answer(
    headers: &HeaderMap,
    conversation: Conversation,
    waits: bool,
) -> ApiResult<Response> {
    if accepts(headers, NDJSON) {
        return Ok(lines(conversation));
    }
    let (status, mut submitted) = whole(conversation).await?;
    for run in submitted.runs.iter_mut().filter(|run| !waits && run.status == RunStatus::Timeout) {
        run.status = RunStatus::Waiting;
    }
    Ok((status, axum::Json(submitted)).into_response())
}

/// Whether a form is among those that are asked for by name.
pub(super) fn accepts(headers: &HeaderMap, form: &str) -> bool {
    let accept = headers.get_all(header::ACCEPT);
    accept.iter().filter_map(|value| value.to_str().ok()).any(|value| value.contains(form))
}

/// One line of JSON for each answer.
fn lines(conversation: Conversation) -> Response {
    let Conversation { operation, sites, answers } = conversation;
    let first = Answer::Accepted { operation, sites };
    streamed(NDJSON, stream::once(async { first }).chain(answers).map(line))
}

/// A value as a line.
pub(super) fn line(value: impl serde::Serialize) -> Bytes {
    let mut line = serde_json::to_vec(&value).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// What comes out of a channel.
pub(super) fn received<T: Send + 'static>(
    receiver: mpsc::Receiver<T>,
) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|value| (value, receiver))
    })
}

/// A response whose body comes bit by bit.
pub(super) fn streamed(
    content_type: &'static str,
    parts: impl Stream<Item = Bytes> + Send + 'static,
) -> Response {
    let body = Body::from_stream(parts.map(Ok::<_, std::convert::Infallible>));
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// All that is heard, when it has been.
async fn whole(mut conversation: Conversation) -> ApiResult<(StatusCode, Submitted)> {
    let mut runs = Vec::new();
    let mut superseded_by = None;
    let mut status = StatusCode::OK;
    let mut done = false;
    while let Some(answer) = conversation.answers.next().await {
        match answer {
            Answer::Reply(run) => runs.push(run),
            Answer::Superseded { by } => superseded_by = Some(by),
            Answer::Timeout { sites } => {
                status = StatusCode::ACCEPTED;
                runs.extend(sites.into_iter().map(silent));
            }
            Answer::Error(problem) => return Err(ApiError(Box::new(problem))),
            Answer::Done => done = true,
            Answer::Accepted { .. } | Answer::Running { .. } => {}
        }
    }
    if !done {
        return Err(broke_off(&conversation.operation));
    }
    runs.sort_by(|a, b| a.site.cmp(&b.site));
    Ok((status, Submitted { operation: conversation.operation, runs, superseded_by }))
}

/// Whoever told us of an operation is gone before it had told all.
fn broke_off(operation: &str) -> ApiError {
    ApiError::broke_off(format!(
        "{operation} is accepted, but the site that it was passed on to broke off before all replies were known"
    ))
}

/// Whoever told us of an operation tells no more.
fn unfinished(operation: &str, limit: Duration) -> ApiError {
    let limit = duration::print(limit);
    ApiError::late(format!(
        "{operation} is accepted, but the site that it was passed on to did not tell all replies within {limit}"
    ))
}

/// A site that has not answered in time.
pub(super) fn silent(site: String) -> Run {
    Run { site, status: RunStatus::Timeout, attempt: None, took_ms: None, output: None }
}

/// How an operation is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// It was passed on by another agent already.
    pub(super) passed: bool,
    /// Whoever asks wants to hear when sites have begun.
    pub(super) progress: bool,
}

/// Asks for an operation, wherever it has to be asked for.
pub(super) async fn converse(
    context: Shared,
    who: &Who,
    id: ResourceId,
    asked: Submit,
    manner: Manner,
) -> ApiResult<Conversation> {
    let author = who.author_of(asked.author.as_deref())?;
    let conversation = begin(context, who, id, asked, manner).await?;
    audited::made(author.as_str(), &conversation.operation);
    Ok(conversation)
}

async fn begin(
    context: Shared,
    who: &Who,
    id: ResourceId,
    asked: Submit,
    manner: Manner,
) -> ApiResult<Conversation> {
    let Manner { passed, progress } = manner;
    let submission = submission(&context, who, &id, &asked)?;
    may_submit(&context, who, &submission).await?;
    let accept = context.config.serve.accept;
    let patience = accept + Duration::from_millis(submission.wait.0);
    let for_others = patience + accept / 2;
    if !passed {
        let sites = known_elsewhere(&context, &submission).await?;
        if !sites.is_empty() {
            return at_one_of(&context, who, &sites, &id, &asked, for_others).await;
        }
    }
    hear_first(&context, &submission).await?;
    spare_copies(&context, &submission).await?;
    super::policy::let_in(&context, &submission).await?;
    let mut answers = request(&context, who, submission, patience).await?;
    let first = time::timeout(patience, answers.recv()).await.map_err(|_| unconfirmed())?;
    match first {
        Some(replica::Answer::Accepted(op, sites)) => {
            Ok(here(context, id, op, &sites, answers, progress))
        }
        Some(replica::Answer::Refused(Refusal::Elsewhere { sites, .. })) if !passed => {
            let sites: Vec<SiteId> = sites.iter().cloned().collect();
            at_one_of(&context, who, &sites, &id, &asked, for_others).await
        }
        Some(replica::Answer::Refused(Refusal::NoSites(_))) if !passed => {
            let site = pass::find(&context, &id).await?;
            let heard = there(context, who, site, id, &asked, for_others).await;
            heard.map_err(Unheard::into_error)
        }
        Some(replica::Answer::Refused(refusal)) => Err(refusal.into()),
        Some(_) | None => {
            let stalled = context.node.health().stalled();
            Err(stalled.map_or_else(|| Stopping.into(), ApiError::from))
        }
    }
}

/// Hands a request to the node. Another one may have given the resource commands since this one was checked: what an
/// operator that is held to kinds sends is checked again when it is its turn.
async fn request(
    context: &Context,
    who: &Who,
    submission: Submission,
    patience: Duration,
) -> ApiResult<mpsc::UnboundedReceiver<replica::Answer>> {
    let Some(config) = checked_config(who, &submission).cloned() else {
        return Ok(context.node.submit(submission).await?);
    };
    let (to_changed, changed) = oneshot::channel();
    let id = submission.resource.clone();
    let leaves_commands = move |replica: &Replica| {
        let known = replica.resource(&id).map(|known| config.changed_commands(known.config()));
        let changed = known.unwrap_or_default();
        let none = changed.is_empty();
        // The client may have closed its connection.
        let _ = to_changed.send(changed);
        none
    };
    let answers = context.node.submit_if(submission, leaves_commands).await?;
    // The channel closes without a value if the agent stops.
    if let Ok(fields) = time::timeout(patience, changed).await.map_err(|_| unconfirmed())? {
        who.may(&people::Asked::Commands { fields: &fields })?;
    }
    Ok(answers)
}

/// The configuration of a request whose commands have to be checked. One that names parts alone leaves the commands of a
/// resource as they are.
fn checked_config<'a>(who: &Who, submission: &'a Submission) -> Option<&'a Config> {
    let config = submission.config.as_ref().filter(|config| config.says_more_than_parts());
    config.filter(|_| who.is_held_to_kinds())
}

/// Whether somebody may ask for this. Where the resource is known, its own sites count as well as those that
/// are asked for; where it is not, the site that it is passed on to looks again.
pub(super) async fn may_submit(
    context: &Context,
    who: &Who,
    submission: &Submission,
) -> ApiResult<()> {
    may_configure(context, who, submission).await?;
    // For most, it makes no difference where.
    if !who.is_held_to_sites() {
        return who.may_operate(&submission.resource, &submission.kind, &[]);
    }
    let id = submission.resource.clone();
    let look = move |replica: &Replica| replica.resource(&id).map(|known| known.sites().clone());
    let known = context.node.read(look).await?;
    let sites: BTreeSet<SiteId> =
        known.iter().chain(&submission.sites).flat_map(Sites::iter).cloned().collect();
    let sites: Vec<SiteId> = sites.into_iter().collect();
    who.may_operate(&submission.resource, &submission.kind, &sites)
}

/// Whether somebody may give a resource the commands of the configuration that is asked for. Where the
/// resource is not known, it counts as one without commands; the site that the request is passed on to
/// looks again.
///
/// The latest configuration counts at all sites, and may remove commands that only another site knows. So
/// an operator that is held to kinds may give one only while all sites that may have given another can be
/// asked.
async fn may_configure(context: &Context, who: &Who, submission: &Submission) -> ApiResult<()> {
    let Some(config) = checked_config(who, submission) else { return Ok(()) };
    let id = submission.resource.clone();
    let look = move |replica: &Replica| {
        let known = replica.resource(&id)?;
        let others = known.present().filter(|site| *site != replica.here());
        Some((known.config().clone(), others.cloned().collect::<Vec<SiteId>>()))
    };
    let known = context.node.read(look).await?;
    let (known, unasked) = match known {
        Some((config, others)) => {
            let reachable = context.reachable(&others);
            (config, others.into_iter().filter(|site| !reachable.contains(site)).collect())
        }
        // This request does not create the resource: a site that has it checks the configuration.
        None if submission.sites.is_none() => (Config::default(), Vec::new()),
        None => {
            let told = pass::who_knows(context, &submission.resource, CREATING).await;
            let unasked = if told.knowing.is_empty() { told.silent } else { Vec::new() };
            (Config::default(), unasked)
        }
    };
    who.may(&people::Asked::Commands { fields: &config.changed_commands(&known) })?;
    if unasked.is_empty() { Ok(()) } else { Err(unasked_for_commands(submission, &unasked)) }
}

/// It is not known whether a configuration removes commands.
fn unasked_for_commands(submission: &Submission, unasked: &[SiteId]) -> ApiError {
    let (id, sites) = (&submission.resource, view::names(unasked).join(", "));
    ApiError::new(
        StatusCode::BAD_GATEWAY,
        "unreachable",
        format!(
            "this operator may not change `Show`, `Reset` or `Check` of `{id}`, and whether this configuration does can't be checked: no answer from {sites}"
        ),
        "send the operation without the configuration, or try again when the link is back",
    )
}

/// The sites that know a resource which a request would create here or at the sites that it names.
/// Those that can't be reached, or don't answer at once, are not waited for: what is created on both
/// sides of a cut is one resource as far as the sites overlap, and merged.
pub(super) async fn known_elsewhere(
    context: &Context,
    submission: &Submission,
) -> ApiResult<Vec<SiteId>> {
    if submission.sites.is_none() || !context.peers.members().has_others() {
        return Ok(Vec::new());
    }
    let id = submission.resource.clone();
    if context.node.read(move |replica| replica.resource(&id).is_some()).await? {
        return Ok(Vec::new());
    }
    Ok(pass::who_knows(context, &submission.resource, CREATING).await.knowing)
}

/// Passes the request on to the nearest of these sites that can be reached.
async fn at_one_of(
    context: &Shared,
    who: &Who,
    sites: &[SiteId],
    id: &ResourceId,
    asked: &Submit,
    limit: Duration,
) -> ApiResult<Conversation> {
    for site in context.reachable(sites) {
        match there(context.clone(), who, site, id.clone(), asked, limit).await {
            // It can't have accepted what did not reach it: the next one is asked.
            Err(Unheard::NotReached(_)) => {}
            Err(Unheard::Refused(error)) => return Err(error),
            Ok(conversation) => return Ok(conversation),
        }
    }
    let sites = view::names(sites).join(", ");
    let detail = format!("`{id}` is, or is to be, on {sites}; none of them can be reached");
    Err(ApiError::unreachable(detail))
}

/// Refuses to create a resource that may have been here before, as long as another of its sites may
/// know more of it. Once the two have agreed, all that it knows is known here.
pub(super) async fn hear_first(context: &Context, submission: &Submission) -> ApiResult<()> {
    let here = context.here();
    let sites = submission.sites.iter().filter(|sites| context.wary && sites.contains(here));
    let peers = context.peers.view();
    let heard = |site: &SiteId| peers.iter().any(|peer| peer.site == *site && peer.lag.is_some());
    let unheard: Vec<String> = sites
        .flat_map(Sites::iter)
        .filter(|site| *site != here && !heard(site))
        .map(ToString::to_string)
        .collect();
    let id = submission.resource.clone();
    if unheard.is_empty()
        || context.node.read(move |replica| replica.resource(&id).is_some()).await?
    {
        return Ok(());
    }
    let (id, unheard) = (&submission.resource, unheard.join(", "));
    Err(ApiError::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "damaged",
        format!(
            "records were lost at this site, and nobody knows of which resources; before `{id}` is created here, this site must hear what others have of it: {unheard}"
        ),
        "see to it that these sites can be reached, or ask one of them",
    ))
}

/// Refuses to delete what is made of the application's own requests with a command: the application
/// would keep its copies, and nobody would know that they are one.
pub(super) async fn spare_copies(context: &Context, submission: &Submission) -> ApiResult<()> {
    if !submission.kind.is_delete() || submission.force {
        return Ok(());
    }
    let id = submission.resource.clone();
    let look = move |replica: &Replica| replica.resource(&id).and_then(Replicant::of);
    let Some(replicant) = context.node.read(look).await? else { return Ok(()) };
    let (id, path, service) = (&submission.resource, replicant.path(), &replicant.service);
    Err(ApiError::new(
        StatusCode::CONFLICT,
        "made-of-requests",
        format!(
            "`{id}` is made of requests to the service `{service}`: deleted from here it would be forgotten, and its copies would stay"
        ),
        format!(
            "send DELETE {path} to the service `{service}`; with --force (force=true) it is only forgotten"
        ),
    ))
}

fn unconfirmed() -> ApiError {
    ApiError::new(
        StatusCode::INSUFFICIENT_STORAGE,
        "not-confirmed",
        "the agent could not write the operation down in time; it may still, when the store takes it",
        "send it again with the same idempotency key, and it will not run twice",
    )
}

/// What is heard of an operation that was accepted here.
fn here(
    context: Shared,
    id: ResourceId,
    op: OpId,
    sites: &Sites,
    heard: mpsc::UnboundedReceiver<replica::Answer>,
    progress: bool,
) -> Conversation {
    let operation = op.to_string();
    let heard = stream::unfold(heard, async |mut heard| Some((next_of(&mut heard).await, heard)));
    let answers = if progress {
        let silent = sites.iter().cloned().collect();
        up_to_the_last(stream::select(heard, watch(context, id, op, silent)))
    } else {
        up_to_the_last(heard)
    };
    Conversation { operation, sites: view::names(sites.iter()), answers }
}

/// The next answer, in words for whoever has asked.
async fn next_of(heard: &mut mpsc::UnboundedReceiver<replica::Answer>) -> Answer {
    loop {
        return match heard.recv().await {
            Some(replica::Answer::Reply(reply)) => Answer::Reply(view::run(&reply)),
            Some(replica::Answer::Superseded { by }) => Answer::Superseded { by: by.to_string() },
            Some(replica::Answer::Silent(sites)) => Answer::Timeout { sites: view::names(&sites) },
            Some(replica::Answer::Done) => Answer::Done,
            Some(replica::Answer::Accepted(..) | replica::Answer::Refused(_)) => continue,
            None => Answer::Error(*ApiError::from(Stopping).0),
        };
    }
}

/// Answers, and none after the last.
fn up_to_the_last(answers: impl Stream<Item = Answer> + Send + 'static) -> Answers {
    let answers = stream::unfold(Some(Box::pin(answers)), async |answers| {
        let mut answers = answers?;
        let answer = answers.next().await?;
        let last = matches!(answer, Answer::Done | Answer::Error(_));
        Some((answer, (!last).then_some(answers)))
    });
    answers.boxed()
}

/// Tells which sites have begun, until all have.
fn watch(
    context: Shared,
    id: ResourceId,
    op: OpId,
    silent: BTreeSet<SiteId>,
) -> impl Stream<Item = Answer> + Send + 'static {
    let looks = stream::unfold((context, id, op, silent), async |(context, id, op, mut silent)| {
        if silent.is_empty() {
            return None;
        }
        time::sleep(LOOK).await;
        let begun = begun(&context, &id, &op, &silent).await;
        silent.retain(|site| !begun.contains(site));
        Some((begun, (context, id, op, silent)))
    });
    looks.flat_map(|begun| {
        stream::iter(begun).map(|site| Answer::Running { site: site.to_string() })
    })
}

/// Which of these sites are running an operation now.
async fn begun(
    context: &Context,
    id: &ResourceId,
    op: &OpId,
    silent: &BTreeSet<SiteId>,
) -> Vec<SiteId> {
    let path =
        format!("/api/v1/resources/{id}/operations/{}?local=true", pass::encode(&op.to_string()));
    let asked = silent.iter().map(async |site| {
        let running = if site == context.here() {
            let (id, op) = (id.clone(), op.clone());
            let look = move |replica: &Replica| {
                replica.resource(&id).and_then(|r| r.running()).is_some_and(|(now, _)| *now == op)
            };
            context.node.read(look).await.unwrap_or(false)
        } else {
            let path = path.clone();
            let asked = time::timeout(LOOK, running_at(context, site, &path)).await;
            asked.unwrap_or(false)
        };
        running.then(|| site.clone())
    });
    futures_util::future::join_all(asked).await.into_iter().flatten().collect()
}

async fn running_at(context: &Context, site: &SiteId, path: &str) -> bool {
    let Ok(response) = pass::get(context, site, path).await else { return false };
    let body = axum::body::to_bytes(response.into_body(), super::MAX_BODY).await;
    let operation =
        body.ok().and_then(|b| serde_json::from_slice::<super::model::Operation>(&b).ok());
    let Some(operation) = operation else { return false };
    operation.runs.iter().any(|run| run.site == site.as_str() && run.status == RunStatus::Running)
}

/// Why nothing is heard of a request that was passed on.
enum Unheard {
    /// It did not reach the site.
    NotReached(ApiError),
    /// The site refused it, or broke off.
    Refused(ApiError),
}

impl Unheard {
    fn of(error: ApiError) -> Self {
        if error.is_unreachable() { Self::NotReached(error) } else { Self::Refused(error) }
    }

    fn into_error(self) -> ApiError {
        match self {
            Self::NotReached(error) | Self::Refused(error) => error,
        }
    }
}

/// Passes the request on to a site of the resource, with its files. It has to tell all within the
/// limit.
async fn there(
    context: Shared,
    who: &Who,
    site: SiteId,
    id: ResourceId,
    asked: &Submit,
    limit: Duration,
) -> Result<Conversation, Unheard> {
    for file in &asked.files {
        // A file that was sent twice is still one file, and no operation.
        send_file(&context, &site, file).await.map_err(Unheard::NotReached)?;
    }
    let path = format!("/api/v1/resources/{id}/operations");
    let deadline = Instant::now() + limit;
    let response = pass::post(&context, Some(who), &site, &path, NDJSON, asked, limit).await;
    let response = response.map_err(Unheard::of)?;
    let response = expect_ok(response).await.map_err(Unheard::Refused)?;
    let (to_answers, mut answers) = mpsc::channel(16);
    let late = pass::late(&site, limit);
    tokio::spawn(async move {
        let mut told = None;
        let relayed = time::timeout_at(deadline, relay(response, &mut told, &to_answers)).await;
        if relayed.is_err() {
            let late = told.map_or(late, |operation| unfinished(&operation, limit));
            let _ = to_answers.send(Answer::Error(*late.0)).await;
        }
    });
    match answers.recv().await {
        Some(Answer::Accepted { operation, sites }) => {
            Ok(Conversation { operation, sites, answers: received(answers).boxed() })
        }
        Some(Answer::Error(problem)) => Err(Unheard::Refused(ApiError(Box::new(problem)))),
        _ => Err(Unheard::Refused(ApiError::broke_off(format!(
            "`{site}`, which the request was passed on to, broke off"
        )))),
    }
}

async fn send_file(context: &Context, site: &SiteId, file: &File) -> ApiResult<()> {
    let unknown = |why: String| ApiError::not_found("unknown-file", why, "send it again");
    let hash = blake3::Hash::from_hex(&file.content).map_err(|e| unknown(e.to_string()))?;
    let opened = context.files.open_at(hash.as_bytes(), 0).await;
    let (stored, length) = opened.map_err(|error| unknown(error.to_string()))?;
    let body = Body::from_stream(ReaderStream::with_capacity(stored, 64 << 10));
    expect_ok(pass::send(context, site, "/api/v1/files", body, length).await?).await?;
    Ok(())
}

/// Gives on what another agent answers, line by line, and notes the operation once it is told. If
/// it breaks off, that is the last answer.
async fn relay(response: Response, told: &mut Option<String>, to_answers: &mpsc::Sender<Answer>) {
    let mut parts = response.into_body().into_data_stream();
    let mut text = Vec::new();
    while let Some(Ok(part)) = parts.next().await {
        text.extend_from_slice(&part);
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let Ok(answer) = serde_json::from_slice::<Answer>(&line) else { continue };
            let last = matches!(answer, Answer::Done | Answer::Error(_));
            if let Answer::Accepted { operation, .. } = &answer {
                *told = Some(operation.clone());
            }
            if to_answers.send(answer).await.is_err() || last {
                return;
            }
        }
        if text.len() > super::MAX_BODY {
            break;
        }
    }
    let broken = ApiError::broke_off("the site that the request was passed on to broke off");
    let _ = to_answers.send(Answer::Error(*broken.0)).await;
}

/// A response of another agent, or its error as ours.
pub(super) async fn expect_ok(response: Response) -> ApiResult<Response> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), super::MAX_BODY).await;
    let problem = body.ok().and_then(|body| serde_json::from_slice::<Problem>(&body).ok());
    Err(match problem {
        Some(problem) => ApiError(Box::new(problem)),
        None => ApiError::unreachable(format!("another agent answered with {status}")),
    })
}
