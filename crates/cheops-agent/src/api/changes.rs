//! The change feed, as server-sent events or as lines of JSON.
//!
//! What must stay true: a reader that asks with `since` gets every change with a greater number,
//! once, in order. One that is too slow for the live feed is served from the disk instead.

use std::time::Duration;

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time,
};

use super::{
    Shared,
    error::{ApiError, ApiResult, Asked},
    model::{Change, ChangesQuery, Happened, Problem},
    resource_id,
    submit::{NDJSON, accepts, line, received, stream},
    view,
};
use crate::{engine::Seq, node::Told};

/// How many records are read from the disk at a time.
const PAGE: usize = 1_000;
/// How often something is sent if nothing happens, so that both ends notice a broken connection.
const QUIET: Duration = Duration::from_secs(15);

const SSE: &str = "text/event-stream";

/// What changes at this site, from now on or after a number. As server-sent events with `Accept:
/// text/event-stream` (`Last-Event-ID` is understood), otherwise one JSON object a line; an empty
/// line now and then means that nothing happened.
#[utoipa::path(get, path = "/api/v1/changes", tag = "resources", params(ChangesQuery),
    responses((status = OK, description = "One object a line, or events",
            content((Change = "application/x-ndjson"), (Change = "text/event-stream"))),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn follow(
    State(context): State<Shared>,
    Asked(query): Asked<ChangesQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let resource = query.resource.as_deref().map(resource_id).transpose()?;
    let last_event = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let since = last_event.or(query.since).unwrap_or_else(|| context.node.feed().last());
    if since > context.node.feed().last() {
        return Err(ApiError::new(
            StatusCode::GONE,
            "unknown-number",
            format!("no change has the number {since} here: was the store of this site replaced?"),
            "ask without `since`, or with since=0 for all that there is",
        ));
    }
    let events = accepts(&headers, SSE);
    let (to_parts, parts) = mpsc::channel(16);
    let resource = resource.map(|id| id.to_string());
    let reader = Reader { context, resource, events, to_parts };
    tokio::spawn(reader.work(since, query.once));
    Ok(stream(if events { SSE } else { NDJSON }, received(parts)))
}

struct Reader {
    context: Shared,
    resource: Option<String>,
    events: bool,
    to_parts: mpsc::Sender<Bytes>,
}

/// The reader is gone.
struct Gone;

impl Reader {
    async fn work(self, since: Seq, once: bool) {
        // Whoever reads may leave at any time.
        let _ = self.tell_all(since, once).await;
    }

    async fn tell_all(&self, mut seq: Seq, once: bool) -> Result<(), Gone> {
        let here = self.context.here();
        self.tell(&Change {
            seq: Some(seq),
            site: here.to_string(),
            resource: None,
            what: Happened::Following,
        })
        .await?;
        loop {
            let mut live = self.context.node.feed().follow();
            seq = self.catch_up(seq).await?;
            if once {
                return Ok(());
            }
            loop {
                let next = tokio::select! {
                    next = time::timeout(QUIET, live.recv()) => next,
                    () = self.context.node.stopping() => return Ok(()),
                };
                match next {
                    Err(_) => self.to_parts.send(self.quiet()).await.map_err(|_| Gone)?,
                    Ok(Ok(Told::Wrote(number, _))) if number <= seq => {}
                    Ok(Ok(told)) => {
                        if let Told::Wrote(number, _) = told {
                            seq = number;
                        }
                        if let Some(change) = view::told(here, told) {
                            self.tell(&change).await?;
                        }
                    }
                    Ok(Err(RecvError::Lagged(_))) => break,
                    Ok(Err(RecvError::Closed)) => return Ok(()),
                }
            }
        }
    }

    /// Tells what was written down after a number, up to now.
    async fn catch_up(&self, mut seq: Seq) -> Result<Seq, Gone> {
        loop {
            let feed = self.context.node.feed().clone();
            let read = tokio::task::spawn_blocking(move || feed.after(seq, PAGE)).await;
            let written = match read {
                Ok(Ok(written)) => written,
                Ok(Err(error)) => {
                    tracing::warn!("the change feed can't be read: {error}");
                    let what = Happened::Broken { why: error.to_string() };
                    let site = self.context.here().to_string();
                    self.tell(&Change { seq: None, site, resource: None, what }).await?;
                    return Err(Gone);
                }
                Err(_) => return Err(Gone),
            };
            let Some((last, _)) = written.last() else { return Ok(seq) };
            seq = *last;
            for (number, durable) in &written {
                if let Some(change) = view::wrote(self.context.here(), *number, durable) {
                    self.tell(&change).await?;
                }
            }
        }
    }

    async fn tell(&self, change: &Change) -> Result<(), Gone> {
        let others = change.resource.is_some() && self.resource != change.resource;
        if self.resource.is_some() && others {
            return Ok(());
        }
        let part = if self.events { event(change) } else { line(change) };
        self.to_parts.send(part).await.map_err(|_| Gone)
    }

    fn quiet(&self) -> Bytes {
        Bytes::from_static(if self.events { b":\n\n" } else { b"\n" })
    }
}

fn event(change: &Change) -> Bytes {
    let id = change.seq.map(|seq| format!("id: {seq}\n")).unwrap_or_default();
    let data = serde_json::to_string(change).unwrap_or_default();
    format!("{id}data: {data}\n\n").into()
}
