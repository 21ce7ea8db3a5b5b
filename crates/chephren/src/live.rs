//! When a part of a page may be out of date: the change feed, as events that parts of pages wait for.
//!
//! An event has a name, and at most the names of resources to say; whoever waits for it asks again for what
//! it shows. What must stay true:
//! - a page that lost its connection for a while shows what it missed, since it asks for everything again
//!   when it is connected again;
//! - however much happens, a page is told at the pace of `news`, and nothing else is kept for it.

use std::time::{Duration, Instant};

use axum::{
    body::Body,
    http::{Method, header},
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use cheops_agent::api::model::Change;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::sleep_until;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    api::{Answer, Api},
    news::News,
};

/// How soon a browser tries again.
const AGAIN: Duration = Duration::from_secs(1);

/// The event that says that a page is connected, or connected again, or that too much has happened to say
/// what: all may be out of date.
pub(crate) const CONNECTED: &str = "connected";
/// The event of whatever concerns sites and their links.
pub(crate) const SITES: &str = "sites";
/// The event of whatever concerns any resource; it says which ones, with spaces between them.
pub(crate) const RESOURCES: &str = "resources";
/// The event of resources that come or go.
pub(crate) const LISTED: &str = "listed";
/// The event of whatever concerns any resource, told calmly: for what it takes several sites to make anew.
pub(crate) const LISTS: &str = "lists";

/// The event of whatever concerns one resource.
pub(crate) fn resource(id: &str) -> String {
    format!("resource-{:016x}", xxh3_64(id.as_bytes()))
}

/// The event that says that nothing happens, and that the agent is there. What is heard of no more for
/// longer than that takes is not live (`page.js`).
const QUIET: &str = "quiet";

/// Follows the change feed.
pub(crate) async fn follow(api: Api) -> Answer<Response> {
    let changes = api.call(Method::GET, "/api/v1/changes", Body::empty()).await?;
    let begin = Bytes::from(format!("retry: {}\n\n", AGAIN.as_millis()));
    let told = told(Box::pin(lines(changes.into_body().into_data_stream())));
    let body = stream::once(async { begin }).chain(told).map(Ok::<_, axum::Error>);
    let sort = (header::CONTENT_TYPE, "text/event-stream");
    Ok(([sort], Body::from_stream(body)).into_response())
}

/// What the lines of the feed are for a browser. An empty one keeps the connection, and is told, since a
/// browser does not tell a page of a connection that has broken without a word.
fn told(lines: impl Stream<Item = Bytes> + Unpin) -> impl Stream<Item = Bytes> {
    let news = News::new(Instant::now());
    stream::unfold((lines, news), |(mut lines, mut news)| async move {
        loop {
            let due = news.due(Instant::now());
            if !due.is_empty() {
                return Some((due.into(), (lines, news)));
            }
            let wake = news.next();
            let line = tokio::select! {
                line = lines.next() => line?,
                () = sleep_until(wake.unwrap_or_else(Instant::now).into()), if wake.is_some() => continue,
            };
            let Ok(change) = serde_json::from_slice::<Change>(&line) else {
                let quiet = format!("event: {QUIET}\ndata:\n\n");
                return Some((quiet.into(), (lines, news)));
            };
            news.add(&change);
        }
    })
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

    #[tokio::test]
    async fn what_happens_is_told_and_silence_keeps_the_connection() {
        let feed = [
            r#"{"seq": 3, "site": "a", "type": "following"}"#,
            "\n",
            r#"{"seq": 4, "site": "a", "resource": "web", "type": "deleted"}"#,
            "\n",
        ];
        // The feed stays open: what waits for its time is told then.
        let feed = stream::iter(feed.map(Bytes::from)).chain(stream::pending());
        let all: Vec<Bytes> = told(Box::pin(feed)).take(5).collect().await;
        let all: Vec<&str> = all.iter().map(|part| std::str::from_utf8(part).unwrap()).collect();
        assert_eq!(all[..2], ["event: connected\ndata: \n\n", "event: quiet\ndata:\n\n"]);
        assert!(all[2..].concat().contains("event: resources\ndata: web\n\n"), "{all:?}");
    }

    #[tokio::test]
    async fn lines_are_lines_however_they_come() {
        let pieces = ["a\nb", "", "c\n", "\nd"].map(|piece| Ok(Bytes::from(piece)));
        let all: Vec<Bytes> = lines(stream::iter(pieces)).collect().await;
        assert_eq!(all, ["a\n", "bc\n", "\n"]);
    }
}
