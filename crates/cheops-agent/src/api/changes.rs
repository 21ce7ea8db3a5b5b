//! The change feed, as server-sent events or as lines of JSON.
//!
//! What must stay true: a reader that asks with `since` gets every change with a greater number,
//! once, in order. One that is too slow for the live feed is served from the disk instead; one that
//! takes nothing at all is told where to go on, and let go; none keeps the agent from stopping.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use cheops_core::duration;
use tokio::{
    sync::{
        broadcast::error::RecvError,
        mpsc::{self, error::SendTimeoutError},
    },
    time,
};

use super::{
    Context, Shared,
    audited::{From, bucket},
    error::{ApiError, ApiResult, Asked},
    model::{Change, ChangesQuery, Happened, Problem},
    resource_id,
    submit::{NDJSON, accepts, line, received, streamed},
    view,
    who::{Door, Who},
};
use crate::{
    engine::Seq,
    limits::{NoPlace, Place},
    node::Told,
};

/// How many records are read from the disk at a time.
const PAGE: usize = 1_000;
/// How many changes are made ready ahead of what the reader takes.
const AHEAD: usize = 16;
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
    who: Who,
    from: Option<Extension<From>>,
    Asked(query): Asked<ChangesQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let address = from.map(|Extension(From(address))| address);
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
    let place = context.feeds.take(sharer(&who, address)).map_err(|no| too_many(&context, no))?;
    let events = accepts(&headers, SSE);
    let (to_parts, parts) = mpsc::channel(AHEAD);
    let resource = resource.map(|id| id.to_string());
    let reader = Reader { context, resource, events, to_parts, _place: place };
    tokio::spawn(reader.work(since, query.once));
    Ok(streamed(if events { SSE } else { NDJSON }, received(parts)))
}

/// Who shares places with whom: all who follow with one token, or for one author by way of a site, or from
/// one machine. Those on this machine who need no token are not told apart, and may have them all.
fn sharer(who: &Who, address: Option<SocketAddr>) -> Option<String> {
    match (who.token(), &who.door) {
        (Some(_), _) => Some(bucket(Some(who), address)),
        (None, Door::Link(site)) => Some(format!("site {site} for {}", who.author)),
        (None, Door::Wide { .. }) => address.map(|_| bucket(Some(who), address)),
        (None, Door::Loopback | Door::Socket { .. }) => None,
    }
}

fn too_many(context: &Context, no_place: NoPlace) -> ApiError {
    context.metrics.refused("feeds");
    let (most, share) = (context.config.serve.feeds, context.feeds.share());
    let detail = match no_place {
        NoPlace::All => format!(
            "{most} others follow the changes of this site, which is the most that it serves"
        ),
        NoPlace::Share => format!(
            "you follow the changes of this site {share} times already, which is the share of one token or machine"
        ),
    };
    ApiError::too_many(
        "too-many-readers",
        detail,
        "end some, try again, or ask another site; `api.feeds` in its configuration is the limit",
    )
}

struct Reader {
    context: Shared,
    resource: Option<String>,
    events: bool,
    to_parts: mpsc::Sender<Bytes>,
    /// Its place among those who follow.
    _place: Place,
}

/// Why no more is told.
enum Over {
    /// The reader is gone, or all is told.
    Gone,
    /// It takes nothing.
    Slow,
}

impl Reader {
    async fn work(self, since: Seq, once: bool) {
        let mut seq = since;
        // Room for a last word, for a reader that leaves no room for others.
        let Ok(last_word) = self.to_parts.clone().reserve_owned().await else { return };
        if let Err(Over::Slow) = self.tell_until_stopped(&mut seq, once).await {
            let stall = duration::print(self.context.config.serve.stall);
            let why = format!(
                "the reader took nothing for {stall}, and was let go; go on with since={seq}"
            );
            last_word.send(self.part(&self.broken(why)));
        }
    }

    /// Who follows ends when the API is to stop: nobody is to wait for it. It goes on elsewhere, or
    /// later, after the last change that it was told. Who wants all that there is now gets it all,
    /// or sees that it was cut.
    async fn tell_until_stopped(&self, seq: &mut Seq, once: bool) -> Result<(), Over> {
        let mut stopping = self.context.stopping.clone();
        tokio::select! {
            told = self.tell_all(seq, once) => told,
            _ = stopping.wait_for(|stopping| *stopping), if !once => Ok(()),
        }
    }

    async fn tell_all(&self, seq: &mut Seq, once: bool) -> Result<(), Over> {
        let here = self.context.here();
        self.tell(&Change {
            seq: Some(*seq),
            site: here.to_string(),
            resource: None,
            what: Happened::Following,
        })
        .await?;
        loop {
            let mut live = self.context.node.feed().follow();
            self.catch_up(seq).await?;
            if once {
                return Ok(());
            }
            loop {
                let next = tokio::select! {
                    next = time::timeout(QUIET, live.recv()) => next,
                    () = self.context.node.stopping() => return Ok(()),
                    () = self.to_parts.closed() => return Err(Over::Gone),
                };
                match next {
                    Err(_) => self.send(self.quiet()).await?,
                    Ok(Ok(Told::Wrote(number, _))) if number <= *seq => {}
                    Ok(Ok(told)) => {
                        let number = if let Told::Wrote(number, _) = told { number } else { *seq };
                        if let Some(change) = view::told(here, told) {
                            self.tell(&change).await?;
                        }
                        *seq = number;
                    }
                    Ok(Err(RecvError::Lagged(_))) => break,
                    Ok(Err(RecvError::Closed)) => return Ok(()),
                }
            }
        }
    }

    /// Tells what was written down after a number, up to now.
    async fn catch_up(&self, seq: &mut Seq) -> Result<(), Over> {
        loop {
            let (feed, after) = (self.context.node.feed().clone(), *seq);
            let read = tokio::task::spawn_blocking(move || feed.after(after, PAGE)).await;
            let written = match read {
                Ok(Ok(written)) => written,
                Ok(Err(error)) => {
                    tracing::warn!("the change feed can't be read: {error}");
                    self.tell(&self.broken(error.to_string())).await?;
                    return Err(Over::Gone);
                }
                Err(_) => return Err(Over::Gone),
            };
            if written.is_empty() {
                return Ok(());
            }
            for (number, durable) in written {
                if let Some(change) = view::wrote(self.context.here(), number, &durable) {
                    self.tell(&change).await?;
                }
                *seq = number;
            }
        }
    }

    fn broken(&self, why: String) -> Change {
        let site = self.context.here().to_string();
        Change { seq: None, site, resource: None, what: Happened::Broken { why } }
    }

    async fn tell(&self, change: &Change) -> Result<(), Over> {
        let others = change.resource.is_some() && self.resource != change.resource;
        if self.resource.is_some() && others {
            return Ok(());
        }
        self.send(self.part(change)).await
    }

    async fn send(&self, part: Bytes) -> Result<(), Over> {
        match self.to_parts.send_timeout(part, self.context.config.serve.stall).await {
            Ok(()) => Ok(()),
            Err(SendTimeoutError::Closed(_)) => Err(Over::Gone),
            Err(SendTimeoutError::Timeout(_)) => Err(Over::Slow),
        }
    }

    fn part(&self, change: &Change) -> Bytes {
        if self.events { event(change) } else { line(change) }
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

#[cfg(test)]
mod tests {
    use cheops_core::trust::people::Role;

    use super::*;
    use crate::api::who::Proof;

    #[test]
    fn places_are_shared_by_token_author_and_machine() {
        let with = |door: Door, proof| Who {
            author: "ada".parse().unwrap(),
            role: Some(Role::Viewer),
            door,
            proof,
        };
        let link = || Door::Link("site2".parse().unwrap());
        let token = || Proof::Token([1; 32]);
        let session = Proof::Session { session: [7; 32], token: [1; 32] };
        let of = |who: &Who, ip: Option<&str>| {
            let address = ip.map(|ip| SocketAddr::new(ip.parse().unwrap(), 4_000));
            sharer(who, address)
        };
        let (wide, here) = (Door::Wide { secure: true }, Door::Loopback);
        let ada = of(&with(wide.clone(), token()), Some("192.0.2.1"));
        assert!(ada.is_some());
        assert_eq!(of(&with(here.clone(), session), Some("127.0.0.1")), ada);
        assert_ne!(of(&with(wide.clone(), Proof::Token([2; 32])), Some("192.0.2.1")), ada);
        let anyone = with(wide, Proof::Door);
        assert_ne!(of(&anyone, Some("192.0.2.1")), of(&anyone, Some("192.0.2.2")));
        let (by_link, local) = (with(link(), Proof::Site), with(here, Proof::Door));
        let other = Who { author: "bob".parse().unwrap(), ..by_link.clone() };
        assert_ne!(of(&by_link, None), of(&other, None));
        assert_eq!(of(&local, Some("127.0.0.1")), None);
    }
}
