//! Whether a response of the application means the same to everyone who reads it.
//!
//! The HTTP library accepts responses that two readers could cut at different places, or that change the protocol
//! without being asked. It leaves their header fields as they came, so they can be checked here. Pure.
//!
//! What must stay true: no body is passed on, and no connection is used again, after a response that is not sound.

use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING, UPGRADE},
};

/// Why a response can't be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsoundResponse {
    #[error("its response has both a Content-Length and a Transfer-Encoding")]
    TwoFramings,
    #[error("its response has more than one Content-Length")]
    TwoLengths,
    #[error("its response has a Transfer-Encoding other than `chunked`, which nobody asked for")]
    Encoding,
    #[error("it switches to a protocol (101) that the request did not ask for")]
    UnrequestedSwitch,
}

/// Checks the head of a response. `upgrade`: the protocols that the request asked for, if it did.
pub(crate) fn sound_response(
    status: StatusCode,
    headers: &HeaderMap,
    upgrade: Option<&HeaderValue>,
) -> Result<(), UnsoundResponse> {
    let switches = status == StatusCode::SWITCHING_PROTOCOLS;
    if switches && !upgrade.is_some_and(|asked| is_among(headers.get(UPGRADE), asked)) {
        return Err(UnsoundResponse::UnrequestedSwitch);
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_list = |length: &HeaderValue| length.as_bytes().contains(&b',');
    if lengths.next().is_some_and(is_list) || lengths.next().is_some() {
        return Err(UnsoundResponse::TwoLengths);
    }
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(encoding) = encodings.next() else { return Ok(()) };
    if headers.contains_key(CONTENT_LENGTH) {
        return Err(UnsoundResponse::TwoFramings);
    }
    // `identity` stands for no encoding at all. Old servers send it, and RFC 9112 dropped it.
    let is_plain = ["chunked", "identity"]
        .iter()
        .any(|e| encoding.as_bytes().eq_ignore_ascii_case(e.as_bytes()));
    if is_plain && encodings.next().is_none() { Ok(()) } else { Err(UnsoundResponse::Encoding) }
}

/// Whether the protocols that a response switches to are among those that were asked for. A response that names none
/// means the one that was.
fn is_among(switched: Option<&HeaderValue>, asked: &HeaderValue) -> bool {
    let protocols = |list: &HeaderValue| -> Vec<Vec<u8>> {
        let names = list.as_bytes().split(|&byte| byte == b',');
        names.map(|name| name.trim_ascii().to_ascii_lowercase()).collect()
    };
    let asked = protocols(asked);
    switched.is_none_or(|switched| protocols(switched).iter().all(|name| asked.contains(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::tests::headers;

    #[test]
    fn only_responses_with_one_reading_are_sound() {
        use UnsoundResponse::{Encoding, TwoFramings, TwoLengths, UnrequestedSwitch};
        for (status, given, asked, expected) in [
            (200, "", "", Ok(())),
            (200, "content-length: 3", "", Ok(())),
            (200, "content-length: 3, 3", "", Err(TwoLengths)),
            (200, "content-length: 3\ncontent-length: 3", "", Err(TwoLengths)),
            (200, "transfer-encoding: chunked", "", Ok(())),
            (200, "transfer-encoding: Chunked", "", Ok(())),
            (200, "transfer-encoding: identity", "", Ok(())),
            (200, "content-length: 3\ntransfer-encoding: chunked", "", Err(TwoFramings)),
            (200, "transfer-encoding: identity\ncontent-length: 3", "", Err(TwoFramings)),
            (304, "transfer-encoding: chunked\ncontent-length: 0", "", Err(TwoFramings)),
            (200, "transfer-encoding: gzip, chunked", "", Err(Encoding)),
            (200, "transfer-encoding: chunked\ntransfer-encoding: chunked", "", Err(Encoding)),
            (101, "upgrade: websocket", "", Err(UnrequestedSwitch)),
            (101, "upgrade: websocket", "websocket", Ok(())),
            (101, "upgrade: WebSocket", "h2c, websocket", Ok(())),
            (101, "", "websocket", Ok(())),
            (101, "upgrade: other", "websocket", Err(UnrequestedSwitch)),
            (101, "upgrade: websocket, other", "websocket", Err(UnrequestedSwitch)),
            (200, "upgrade: h2c", "", Ok(())),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let upgrade = (!asked.is_empty()).then(|| HeaderValue::from_static(asked));
            let found = sound_response(status, &headers(given), upgrade.as_ref());
            assert_eq!(found, expected, "{status} {given} {asked}");
        }
    }
}
