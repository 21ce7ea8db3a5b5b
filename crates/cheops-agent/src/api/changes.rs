//! The change feed, as server-sent events or as lines of JSON.
//!
//! What must stay true: a reader that asks with `since` gets every change with a greater number,
//! once, in order. One that is too slow for the live feed is served from the disk instead.

use std::time::Duration;

use axum::{body::Bytes, extract::State, http::HeaderMap, response::Response};
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time,
};

use super::{
    Shared,
    error::{ApiResult, Asked},
    model::{Change, ChangesQuery, Problem},
    resource_id,
    submit::{NDJSON, accepts, line, received, stream},
};
use crate::engine::Seq;

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
    let events = accepts(&headers, SSE);
    let (to_parts, parts) = mpsc::channel(256);
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
        loop {
            let mut live = self.context.node.feed().follow();
            seq = self.catch_up(seq).await?;
            if once {
                return Ok(());
            }
            loop {
                match time::timeout(QUIET, live.recv()).await {
                    Err(_) => self.to_parts.send(self.quiet()).await.map_err(|_| Gone)?,
                    Ok(Ok(change)) if change.seq.is_some_and(|number| number <= seq) => {}
                    Ok(Ok(change)) => {
                        seq = change.seq.unwrap_or(seq);
                        self.tell(&change).await?;
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
            let (feed, here) = (self.context.node.feed().clone(), self.context.here().clone());
            let read = tokio::task::spawn_blocking(move || feed.after(&here, seq, PAGE)).await;
            let (changes, last) = match read {
                Ok(Ok(read)) => read,
                Ok(Err(error)) => {
                    tracing::warn!("the change feed can't be read: {error}");
                    return Err(Gone);
                }
                Err(_) => return Err(Gone),
            };
            for change in changes {
                self.tell(&change).await?;
            }
            match last {
                Some(last) => seq = last,
                None => return Ok(seq),
            }
        }
    }

    async fn tell(&self, change: &Change) -> Result<(), Gone> {
        if self.resource.is_some() && self.resource != change.resource {
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
