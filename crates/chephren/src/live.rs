//! When a part of a page may be out of date: the change feed, as events that parts of pages wait for.
//!
//! An event has a name and nothing else to say; whoever waits for it asks again for what it shows. What
//! must stay true: a page that lost its connection for a while shows what it missed, since it asks for
//! everything again when it is connected again.

use std::time::Duration;

use axum::{
    body::Body,
    extract::State,
    http::{Method, header},
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use cheops_agent::api::model::{Change, Happened};
use futures_util::{Stream, StreamExt as _, stream};
use xxhash_rust::xxh3::xxh3_64;

use crate::api::{Answer, Api};

/// How soon a browser tries again.
const AGAIN: Duration = Duration::from_secs(1);

/// The event that says that a page is connected, or connected again.
pub(crate) const CONNECTED: &str = "connected";
/// The event of whatever concerns sites and their links.
pub(crate) const SITES: &str = "sites";
/// The event of whatever concerns any resource.
pub(crate) const RESOURCES: &str = "resources";

/// The event of whatever concerns one resource.
pub(crate) fn resource(id: &str) -> String {
    format!("resource-{:016x}", xxh3_64(id.as_bytes()))
}

/// The event that says that nothing happens, and that the agent is there. What is heard of no more for
/// longer than that takes is not live (`page.js`).
const QUIET: &str = "quiet";

/// The events that a change is.
fn events(change: &Change) -> Vec<String> {
    match &change.what {
        Happened::Following => vec![CONNECTED.to_owned()],
        Happened::SiteReturned { .. } | Happened::SiteLost { .. } | Happened::Refused { .. } => {
            vec![SITES.to_owned()]
        }
        Happened::Broken { .. } => Vec::new(),
        _ => {
            let own = change.resource.as_deref().map(resource);
            own.into_iter().chain([RESOURCES.to_owned()]).collect()
        }
    }
}

/// Follows the change feed.
pub(crate) async fn follow(State(api): State<Api>) -> Answer<Response> {
    let changes = api.call(Method::GET, "/api/v1/changes", Body::empty()).await?;
    let begin = Bytes::from(format!("retry: {}\n\n", AGAIN.as_millis()));
    let told = lines(changes.into_body().into_data_stream()).map(|line| said(&line));
    let body = stream::once(async { begin }).chain(told).map(Ok::<_, axum::Error>);
    let sort = (header::CONTENT_TYPE, "text/event-stream");
    Ok(([sort], Body::from_stream(body)).into_response())
}

/// What a line of the feed is for a browser. An empty one keeps the connection, and is told, since a
/// browser does not tell a page of a connection that has broken without a word.
fn said(line: &[u8]) -> Bytes {
    let change = serde_json::from_slice::<Change>(line);
    let mut events = change.as_ref().map(events).unwrap_or_default();
    if events.is_empty() {
        events.push(QUIET.to_owned());
    }
    let events: Vec<String> =
        events.iter().map(|event| format!("event: {event}\ndata:\n\n")).collect();
    events.concat().into()
}

/// The lines of a body, until it breaks off.
fn lines(
    body: impl Stream<Item = Result<Bytes, axum::Error>> + Unpin,
) -> impl Stream<Item = Bytes> {
    stream::unfold((body, BytesMut::new()), |(mut body, mut rest)| async move {
        loop {
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(end + 1).freeze();
                return Some((line, (body, rest)));
            }
            rest.extend_from_slice(&body.next().await?.ok()?);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_to_those_whom_it_concerns() {
        for (line, expected) in [
            (r#"{"seq": 3, "site": "a", "type": "following"}"#, vec!["connected".to_owned()]),
            (r#"{"site": "a", "type": "site-lost", "peer": "b"}"#, vec!["sites".to_owned()]),
            (
                r#"{"seq": 4, "site": "a", "resource": "web", "type": "deleted"}"#,
                vec![resource("web"), "resources".to_owned()],
            ),
        ] {
            assert_eq!(events(&serde_json::from_str(line).unwrap()), expected, "{line}");
        }
        assert_eq!(said(b"\n"), "event: quiet\ndata:\n\n");
    }

    #[tokio::test]
    async fn lines_are_lines_however_they_come() {
        let pieces = ["a\nb", "", "c\n", "\nd"].map(|piece| Ok(Bytes::from(piece)));
        let all: Vec<Bytes> = lines(stream::iter(pieces)).collect().await;
        assert_eq!(all, ["a\n", "bc\n", "\n"]);
    }
}
