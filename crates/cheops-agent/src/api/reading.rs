//! What a request asks for: read once, and checked, before anything is done about it.
//!
//! What must stay true: what becomes a [`Submission`] here can be written down and run; whatever is wrong
//! with a request by itself is said here, with what to do.

use std::{collections::BTreeSet, time::Duration};

use axum::http::StatusCode;
use cheops_core::{
    duration,
    id::{Key, Kind, ResourceId, Sites},
    json::{self, Node},
    matrix,
    operation::{Action, Attachment},
    replica::{Submission, Ticket},
    route, scope,
    time::Millis,
};

use super::{
    Context,
    error::{ApiError, ApiResult},
    model::{File, Submit},
    sites::span,
    who::Who,
};
use crate::run::check_splits;

/// How long to wait for all replies, if the request does not say.
const WAIT: Duration = Duration::from_secs(30);
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_hours(1);
/// The longest command, in bytes: what the system takes as one argument, with room for the paths of
/// files in it.
const MAX_COMMAND: usize = 100 << 10;
/// The kind of an operation that does not say.
const KIND: &str = "exec";

/// The request, checked.
pub(super) fn submission(
    context: &Context,
    who: &Who,
    id: &ResourceId,
    asked: &Submit,
) -> ApiResult<Submission> {
    if asked.command.trim().is_empty() {
        return Err(ApiError::bad(
            "no-command",
            "there is no command",
            "say what each site is to run",
        ));
    }
    if asked.command.contains('\0') {
        let detail = "the command holds a zero byte, which no shell can read";
        return Err(ApiError::bad("bad-command", detail, "attach what is not text as a file"));
    }
    if asked.command.len() > MAX_COMMAND {
        return Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            format!("the command is longer than {MAX_COMMAND} bytes, which no shell can be given"),
            "attach it as a file, and run that: sh {name}",
        ));
    }
    check_splits(&asked.command).map_err(bad_split)?;
    let config = asked.config.as_ref().map(|value| matrix::Config::read(&Node::root(value)));
    let (sites, config) = placed(context, asked.sites.as_deref(), config.transpose()?)?;
    let kind: Kind = asked.kind.as_deref().unwrap_or(KIND).parse()?;
    let author = who.author_of(asked.author.as_deref())?;
    let key: Option<Key> = asked.key.as_deref().map(str::parse).transpose()?;
    let wait = asked.wait.as_deref().map(span).transpose()?.unwrap_or(WAIT);
    if wait > MAX_WAIT {
        let (wait, most) = (duration::print(wait), duration::print(MAX_WAIT));
        let detail = format!("`wait` is {wait}, and {most} is the longest");
        let hint = "wait for less, and look at the operation later";
        return Err(ApiError::bad("bad-duration", detail, hint));
    }
    let mut names = BTreeSet::new();
    if let Some(file) = asked.files.iter().find(|file| !names.insert(&file.name)) {
        return Err(twice(&file.name));
    }
    let files = asked.files.iter().map(|file| attachment(context, file, asked.dry_run));
    Ok(Submission {
        ticket: Ticket(0),
        resource: id.clone(),
        sites,
        config,
        kind,
        author,
        action: Action::Command {
            line: asked.command.as_str().into(),
            files: files.collect::<ApiResult<_>>()?,
        },
        force: asked.force,
        keep_going: asked.keep_going,
        wait: Millis::from(wait),
        key,
    })
}

/// A command could mean only one of two files with this name.
pub(super) fn twice(name: &str) -> ApiError {
    ApiError::bad("bad-file-name", format!("two files are called `{name}`"), "rename one of them")
}

/// A configuration, from a text.
pub(super) fn config(text: &str) -> ApiResult<serde_json::Value> {
    Ok(json::parse(text)?)
}

/// A number to share that is none would be refused at every site.
fn bad_split(error: impl std::fmt::Display) -> ApiError {
    let hint = "write a whole number: {split 10} in three parts is 4, 3 and 3";
    ApiError::bad("bad-split", error.to_string(), hint)
}

/// Where a resource is to exist, and its configuration with the parts that it is to have: those of a
/// place that spreads it, or those that the configuration names.
fn placed(
    context: &Context,
    place: Option<&str>,
    config: Option<matrix::Config>,
) -> ApiResult<(Option<Sites>, Option<matrix::Config>)> {
    let commands = config.iter().flat_map(|config| [&config.show, &config.reset, &config.check]);
    commands.flatten().try_for_each(|line| check_splits(line)).map_err(bad_split)?;
    let named = config.as_ref().map(|config| &config.parts).filter(|parts| !parts.is_empty());
    let written = named.map(|parts| {
        let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        parts.join(" % ")
    });
    let Some(place) = place.or(written.as_deref()) else { return Ok((None, config)) };
    let parts = spread(context, place)?;
    if let Some(written) = &written
        && named != Some(&parts)
    {
        let detail =
            format!("the sites are `{place}`, and the parts of the configuration `{written}`");
        return Err(ApiError::bad("bad-sites", detail, "name the parts in one of them"));
    }
    let sites = whole_of(&parts);
    let config = if parts.len() > 1 {
        Some(matrix::Config { parts, ..config.unwrap_or_default() })
    } else {
        config
    };
    Ok((sites, config))
}

/// The sites of all parts.
fn whole_of(parts: &[Sites]) -> Option<Sites> {
    parts.iter().cloned().reduce(|all, part| all.union(&part))
}

/// The parts of a resource that a place means here and now: one, unless it spreads it.
fn spread(context: &Context, place: &str) -> ApiResult<Vec<Sites>> {
    Ok(route::spread(&scope::parse_place(place)?, context.here(), &context.catalogue())?)
}

/// The sites that a place means here and now, whatever part each of them has.
pub(super) fn home(context: &Context, place: &str) -> ApiResult<Sites> {
    let nowhere = || ApiError::bad("bad-sites", format!("`{place}` is nowhere"), "name a site");
    whole_of(&spread(context, place)?).ok_or_else(nowhere)
}

/// A file that an operation names. A rehearsal may name one that was not sent.
fn attachment(context: &Context, file: &File, rehearsal: bool) -> ApiResult<Attachment> {
    let hash = blake3::Hash::from_hex(&file.content).map_err(|_| {
        let detail = format!("`{}` is not a BLAKE3 hash in hexadecimal", file.content);
        ApiError::bad("bad-file", detail, "take it from the answer of POST /api/v1/files")
    })?;
    let bad_name =
        |why| ApiError::bad("bad-file-name", format!("`{}` {why}", file.name), "rename it");
    if file.name.is_empty() || file.name.len() > 255 {
        return Err(bad_name("is empty or longer than 255 bytes"));
    }
    if file.name == "id" {
        return Err(bad_name("is what `{id}` in a command is: the resource"));
    }
    if file.name.starts_with("split ") {
        return Err(bad_name("begins like `{split 10}` in a command, a number to share"));
    }
    if matches!(file.name.as_str(), "." | "..") || file.name.contains(['/', '\0', '{', '}']) {
        return Err(bad_name("is not a file name: no slashes, no braces"));
    }
    if rehearsal {
        return Ok(Attachment {
            name: file.name.as_str().into(),
            content: *hash.as_bytes(),
            length: file.length,
        });
    }
    let length = context.files.claim(hash.as_bytes());
    let length = length.ok_or_else(|| {
        let detail = format!("no file with the content {} was sent to this site", file.content);
        ApiError::bad("unknown-file", detail, "send it first: POST /api/v1/files")
    })?;
    if length != file.length {
        let detail = format!("`{}` has {length} bytes here, not {}", file.name, file.length);
        return Err(ApiError::bad(
            "bad-file",
            detail,
            "take it from the answer of POST /api/v1/files",
        ));
    }
    Ok(Attachment { name: file.name.as_str().into(), content: *hash.as_bytes(), length })
}
