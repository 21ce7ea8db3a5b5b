//! The doors of the original program, so that what was written for it goes on working.

use axum::{
    extract::{FromRequest, Request, State, multipart::MultipartError},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use cheops_core::id::ResourceId;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    MAX_BODY, Shared,
    error::{ApiError, ApiResult, In, too_large},
    form::{self, Part, Parts},
    model::{Answer, File, OriginalReply, Problem, Show, ShownAt, Submit},
    pass,
    reading::{config, twice},
    resource_id, show as showing,
    submit::{Manner, converse, line, streamed},
    upload,
    who::Who,
};

/// What a form says.
#[derive(Default)]
struct Form {
    command: Option<String>,
    sites: Vec<String>,
    kind: Option<String>,
    config: Option<String>,
    files: Vec<File>,
}

/// The most files in a form.
const MAX_FILES: usize = 1_000;
/// What a text takes beside its length.
const EACH: usize = 128;

/// Whether a form may bring files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    None,
    Some,
}

/// The form of `/exec`, for the documentation.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "it documents what the form reader takes")]
pub(super) struct ExecForm {
    /// The command line.
    command: String,
    /// The sites of the resource; several, or one with `&` between them.
    sites: String,
    /// What the operation does, in the words of the matrix.
    r#type: Option<String>,
    /// The configuration of the resource, as JSON.
    config: Option<String>,
}

/// The form of `/show`, for the documentation.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "it documents what the form reader takes")]
pub(super) struct ShowForm {
    /// The command line.
    command: String,
    /// The sites to show; several, or one with `&` between them.
    sites: Option<String>,
}

impl Form {
    /// Reads a form. Files go to the store as they come.
    async fn read(context: &Shared, request: Request, files: Files) -> ApiResult<Self> {
        let not_a_form = |rejection: axum::extract::multipart::MultipartRejection| {
            ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "wrong-content-type",
                rejection.body_text(),
                "send a form: curl -F command=… -F sites=…",
            )
        };
        let mut parts = Parts::from_request(request, context).await.map_err(not_a_form)?;
        let (mut form, mut room) = (Self::default(), MAX_BODY);
        while let Some(part) = parts.next().await.map_err(|e| broken(&e))? {
            let name = part.name().to_owned();
            match name.as_str() {
                "command" if form.command.is_some() => {
                    let detail = "there are two commands";
                    return Err(ApiError::bad("bad-form", detail, "send one, joined with && or ;"));
                }
                "id" => {
                    let detail =
                        "`{id}` in a command is the resource, so no file can have this name";
                    return Err(ApiError::bad("bad-file-name", detail, "rename it"));
                }
                "command" => form.command = Some(text(part, &mut room).await?),
                "sites" => form.sites.push(text(part, &mut room).await?),
                "type" => form.kind = Some(text(part, &mut room).await?),
                "config" => form.config = Some(text(part, &mut room).await?),
                _ if files == Files::None => {
                    let detail = format!("`{name}` is not a part of this form");
                    return Err(ApiError::bad("bad-form", detail, "send `command` and `sites`"));
                }
                _ if form.files.len() == MAX_FILES => {
                    let detail = format!("there are more than {MAX_FILES} files");
                    return Err(ApiError::bad("bad-form", detail, "put them into one archive"));
                }
                _ if form.files.iter().any(|file| file.name == name) => {
                    return Err(twice(&name));
                }
                _ => {
                    let parts = part.into_stream();
                    let parts = parts.map_err(|error| std::io::Error::other(error.to_string()));
                    let stored = upload::stored(context.files.put(parts).await?);
                    form.files.push(File { name, content: stored.content, length: stored.length });
                }
            }
        }
        Ok(form)
    }

    /// The sites, as one place of the scope language.
    fn place(&self) -> Option<String> {
        (!self.sites.is_empty()).then(|| self.sites.join(" & "))
    }
}

fn broken(error: &MultipartError) -> ApiError {
    if let Some(limit) = form::too_long(error) {
        return ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            format!("the head of a part is longer than {limit} bytes"),
            "send a name and a file name in it, and the rest after an empty line",
        );
    }
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(MAX_BODY),
        _ => ApiError::bad("bad-form", error.body_text(), "send a whole multipart/form-data body"),
    }
}

/// A part that is a text. All texts of a form share the room that there is.
async fn text(mut part: Part<'_>, room: &mut usize) -> ApiResult<String> {
    // What comes with each counts, too, or there could be any number of empty ones.
    *room = room.saturating_sub(EACH);
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await.map_err(|e| broken(&e))? {
        *room = room.checked_sub(chunk.len()).ok_or_else(|| too_large(MAX_BODY))?;
        bytes.extend_from_slice(&chunk);
    }
    if *room == 0 {
        return Err(too_large(MAX_BODY));
    }
    String::from_utf8(bytes)
        .map_err(|_| ApiError::bad("bad-form", "a part is not UTF-8 text", "send it as a file"))
}

/// Asks for an operation; one JSON object a line, as replies arrive.
#[utoipa::path(post, path = "/exec/{id}", tag = "original",
    params(("id" = String, Path, description = "The resource")),
    request_body(content = ExecForm, content_type = "multipart/form-data"),
    responses((status = OK, description = "One object a line", body = OriginalReply),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn exec(
    State(context): State<Shared>,
    In(id): In<String>,
    who: Who,
    request: Request,
) -> ApiResult<Response> {
    let id = resource_id(&id)?;
    let passed = pass::was_passed(request.headers());
    let form = Form::read(&context, request, Files::Some).await?;
    let asked = Submit {
        sites: form.place(),
        command: form.command.unwrap_or_default(),
        kind: form.kind.filter(|kind| !kind.is_empty()),
        config: form
            .config
            .filter(|text| !text.is_empty())
            .map(|text| config(&text))
            .transpose()?,
        files: form.files,
        ..Submit::default()
    };
    let input = asked.command.clone();
    let manner = Manner { passed, progress: false };
    let conversation = converse(context, &who, id.clone(), asked, manner).await?;
    let (operation, mut silent) = (conversation.operation, conversation.sites);
    let template = template(&id, operation, silent.clone(), input);
    let replies = conversation.answers.flat_map(move |answer| {
        stream::iter(replies(&template, &mut silent, answer).into_iter().map(line))
    });
    Ok(streamed("application/json", replies))
}

fn template(
    id: &ResourceId,
    operation: String,
    sites: Vec<String>,
    input: String,
) -> OriginalReply {
    OriginalReply {
        locations: sites,
        site: String::new(),
        request_id: operation,
        resource_id: id.to_string(),
        status: String::new(),
        input,
        output: String::new(),
        execution_time: String::new(),
        what: "REPLY".to_owned(),
    }
}

/// What an answer is in the words of the original program. `silent` are the sites without a reply.
fn replies(
    template: &OriginalReply,
    silent: &mut Vec<String>,
    answer: Answer,
) -> Vec<OriginalReply> {
    let without = |sites: Vec<String>, status: &str, output: String| {
        let reply = |site| OriginalReply {
            site,
            status: status.to_owned(),
            output: output.clone(),
            ..template.clone()
        };
        sites.into_iter().map(reply).collect()
    };
    match answer {
        Answer::Reply(run) => {
            silent.retain(|site| *site != run.site);
            let status = if run.status == super::model::RunStatus::Ok { "OK" } else { "KO" };
            vec![OriginalReply {
                site: run.site,
                status: status.to_owned(),
                output: run.output.unwrap_or_default(),
                execution_time: format!("{}ms", run.took_ms.unwrap_or_default()),
                ..template.clone()
            }]
        }
        Answer::Superseded { by } => {
            without(std::mem::take(silent), "KO", format!("not run: operation {by} won over it"))
        }
        Answer::Timeout { sites } => {
            silent.retain(|site| !sites.contains(site));
            without(sites, "TIMEOUT", "no reply in time; the work goes on".to_owned())
        }
        // Nobody knows how it went there; it was accepted.
        Answer::Error(problem) => without(std::mem::take(silent), "TIMEOUT", problem.detail),
        Answer::Accepted { .. } | Answer::Running { .. } | Answer::Done => Vec::new(),
    }
}

/// Runs a command on sites and registers nothing.
#[utoipa::path(post, path = "/show/{id}", tag = "original",
    params(("id" = String, Path, description = "The resource")),
    request_body(content = ShowForm, content_type = "multipart/form-data"),
    responses((status = OK, description = "What each site printed, by site",
            body = std::collections::BTreeMap<String, ShownAt>),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(context): State<Shared>,
    In(id): In<String>,
    who: Who,
    request: Request,
) -> ApiResult<Response> {
    let id = resource_id(&id)?;
    let passed = pass::was_passed(request.headers());
    let form = Form::read(&context, request, Files::None).await?;
    let asked = Show { sites: form.place(), command: form.command };
    let shown = showing::anywhere(&context, &who, &id, &asked, passed).await?;
    Ok(axum::Json(shown.sites).into_response())
}

/// Runs a command on this site and registers nothing.
#[utoipa::path(post, path = "/show_local/{id}", tag = "original",
    params(("id" = String, Path, description = "The resource")),
    request_body(content = ShowForm, content_type = "multipart/form-data"),
    responses((status = OK, body = ShownAt), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show_local(
    State(context): State<Shared>,
    In(id): In<String>,
    who: Who,
    request: Request,
) -> ApiResult<axum::Json<ShownAt>> {
    let id = resource_id(&id)?;
    let form = Form::read(&context, request, Files::None).await?;
    let command = form.command.filter(|command| !command.trim().is_empty());
    let command = command.ok_or_else(showing::no_command)?;
    showing::may_show(&who, &id, Some(&command), std::slice::from_ref(context.here()))?;
    let command = showing::Command::Asked(command);
    Ok(axum::Json(showing::here(&context, &who, &id, &command).await))
}
