//! Connections that change what they speak: WebSocket, and whatever else an application agrees on.
//!
//! The two ends talk to each other, and the agent only carries bytes, until one of them is done.

use hyper::{
    HeaderMap, Response,
    header::{CONNECTION, HeaderValue, UPGRADE},
    http::request::Parts,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::pool::Answer;

/// The connection of the client, when it has changed.
pub(super) fn of(parts: &mut Parts) -> Option<OnUpgrade> {
    parts.extensions.remove::<OnUpgrade>()
}

/// Asks the next one to change, too.
pub(super) fn ask(headers: &mut HeaderMap, to: &HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, to.clone());
}

/// Joins both connections, as soon as both have changed.
pub(super) fn join(client: Option<OnUpgrade>, response: &mut Response<Answer>) {
    let instance = response.extensions_mut().remove::<OnUpgrade>();
    let (Some(client), Some(instance)) = (client, instance) else { return };
    tokio::spawn(async move {
        let Ok((client, instance)) = tokio::try_join!(client, instance) else { return };
        let (mut client, mut instance) = (TokioIo::new(client), TokioIo::new(instance));
        // Either end may be gone at any time.
        let _ = copy_bidirectional(&mut client, &mut instance).await;
    });
}
