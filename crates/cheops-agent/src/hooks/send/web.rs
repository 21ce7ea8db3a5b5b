//! A web hook: one event, one `POST` with JSON.
//!
//! The body is signed, so that the receiver can tell that it comes from who knows the secret, and that
//! nobody changed it: `X-Cheops-Signature: sha256=` and the HMAC of the body in hexadecimal. Redirects
//! are not followed: who answers one gets no event.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use ring::hmac;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{reveal, tls};
use crate::{
    api::model::HookEvent,
    config::{Server, Web},
    hooks::retry::Failure,
};

pub(super) async fn send(web: &Web, event: &HookEvent) -> Result<(), Failure> {
    let secret = reveal(web.secret.as_ref()).await?;
    let request = request(web, event, secret.as_deref())?;
    let protected = web.url.scheme_str() == Some("https");
    let server = Server {
        host: web.url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
        port: web.url.port_u16().unwrap_or(if protected { 443 } else { 80 }),
    };
    let stream = tls::connect(&server).await?;
    let status = if protected {
        exchange(tls::protect(stream, &server, web.ca.as_deref()).await?, request).await?
    } else {
        exchange(stream, request).await?
    };
    judge(status)
}

fn request(
    web: &Web,
    event: &HookEvent,
    secret: Option<&str>,
) -> Result<Request<Full<Bytes>>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Refused(error.to_string());
    let body = serde_json::to_vec(event).map_err(|error| wrong(&error))?;
    let path = web.url.path_and_query().map_or("/", |path| path.as_str());
    let host = web.url.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("cheops/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .header("X-Cheops-Event", &event.event)
        .header("X-Cheops-Id", &event.id);
    if let Some(secret) = secret {
        request = request.header("X-Cheops-Signature", signature(secret, &body));
    }
    request.body(Full::new(body.into())).map_err(|error| wrong(&error))
}

/// What proves that a body comes from who knows a secret.
pub(crate) fn signature(secret: &str, body: &[u8]) -> String {
    use std::fmt::Write as _;
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body);
    tag.as_ref().iter().fold("sha256=".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Result<StatusCode, Failure> {
    let broke = |error: hyper::Error| Failure::Unavailable(format!("it broke off: {error}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    let mut connection = std::pin::pin!(connection);
    // The status is all that is wanted: the connection ends with this, whatever else would come.
    tokio::select! {
        biased;
        answered = &mut answer => Ok(answered.map_err(broke)?.status()),
        ended = &mut connection => {
            ended.map_err(broke)?;
            Ok(answer.await.map_err(broke)?.status())
        }
    }
}

/// What a status means for the event.
fn judge(status: StatusCode) -> Result<(), Failure> {
    let text = format!("it answered {status}");
    match status.as_u16() {
        200..=299 => Ok(()),
        300..=399 => Err(Failure::Unavailable(format!(
            "{text}: redirects are not followed; name the new address in `url`"
        ))),
        // Who we are, where it is and how often we come is not about this event.
        400..=499 if !matches!(status.as_u16(), 401 | 403..=405 | 407 | 408 | 425 | 429) => {
            Err(Failure::Refused(text))
        }
        _ => Err(Failure::Unavailable(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second case of RFC 4231.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let expected = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signature("Jefe", b"what do ya want for nothing?"), expected);
    }

    #[test]
    fn what_a_status_means() {
        for (status, delivered, refused) in [
            (200, true, false),
            (204, true, false),
            (301, false, false),
            (400, false, true),
            (401, false, false),
            (404, false, false),
            (410, false, true),
            (422, false, true),
            (429, false, false),
            (500, false, false),
            (503, false, false),
        ] {
            let judged = judge(StatusCode::from_u16(status).unwrap());
            assert_eq!(judged.is_ok(), delivered, "{status}");
            assert_eq!(matches!(judged, Err(Failure::Refused(_))), refused, "{status}");
        }
    }
}
