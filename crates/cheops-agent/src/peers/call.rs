//! Requests from this agent to another, over their link.
//!
//! What must stay true: nothing waits on a link that has ended. A call whose answer has not begun fails
//! when its link ends, and an answer that has begun breaks off. The connection under the link may stay
//! open for a moment longer, so that the other end reads why it ended, and TCP may take minutes to
//! notice a cut: neither counts.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use cheops_core::id::SiteId;
use hyper::{
    Request, Response, Version,
    body::{Frame, Incoming, SizeHint},
};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{
    CallError, OPENING, Peers, State, http,
    link::{self, Link},
    not_connected,
};

impl Peers {
    /// Asks another agent something, over the link that there is. Bodies are not kept here: they
    /// pass as they come.
    pub async fn call(
        &self,
        site: &SiteId,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, CallError> {
        let (slot, link) = self.link(site)?;
        let Some(mut calls) = link.calls(OPENING).await else {
            return Err(not_connected(&slot, &link));
        };
        *request.uri_mut() = http::at_peer(std::mem::take(request.uri_mut()));
        *request.version_mut() = Version::HTTP_2;
        let broke = |why| CallError::Broke { site: site.clone(), why };
        tokio::select! {
            biased;
            answered = calls.send_request(request) => match answered {
                Ok(response) => Ok(response.map(|body| Body::new(Answer::new(body, site, &link)))),
                Err(error) => {
                    let why = link.end().map_or_else(|| link::root(&error), |end| end.text.clone());
                    Err(broke(why))
                }
            },
            () = link.ended() => Err(broke(why_ended(&link))),
        }
    }

    /// Returns once there is no link to a site.
    pub(crate) async fn lost(&self, site: &SiteId) {
        if let Some(slot) = self.shared.slot(site) {
            // A slot that is dropped has no link either.
            let _ = slot.state().wait_for(|state| *state != State::Reachable).await;
        }
    }
}

fn why_ended(link: &Link) -> String {
    link.end().map_or_else(|| "the link ended".to_owned(), |end| end.text.clone())
}

/// The body of an answer, which breaks off when its link ends.
struct Answer {
    body: Incoming,
    link_ended: Pin<Box<WaitForCancellationFutureOwned>>,
    site: SiteId,
}

impl Answer {
    fn new(body: Incoming, site: &SiteId, link: &Link) -> Self {
        Self { body, link_ended: Box::pin(link.ended_owned()), site: site.clone() }
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into);
        // What has arrived is given on, whatever became of the link.
        if frame.is_pending() && self.link_ended.as_mut().poll(cx).is_ready() {
            let error = format!("the link with `{}` ended before its answer did", self.site);
            return Poll::Ready(Some(Err(error.into())));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
