//! Whether a response of the application means the same to everyone who reads it.
//!
//! The HTTP library accepts responses that two readers could cut at different places, or that change the protocol
//! without being asked. It leaves their header fields as they came, so they can be checked here. Pure.
//!
//! What must stay true: no body is passed on, and no connection is used again, after a response that is not sound.

use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};

/// Why a response can't be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsoundResponse {
    #[error("its response has both a Content-Length and a Transfer-Encoding")]
    TwoFramings,
    #[error("its response has a Transfer-Encoding other than `chunked`, which nobody asked for")]
    Encoding,
    #[error("it switches protocols (101), which nobody asked for")]
    UnrequestedSwitch,
}

/// Checks the head of a response. `asked_to_switch`: the request asked to change the protocol of its connection.
pub(crate) fn sound_response(
    status: StatusCode,
    headers: &HeaderMap,
    asked_to_switch: bool,
) -> Result<(), UnsoundResponse> {
    if status == StatusCode::SWITCHING_PROTOCOLS && !asked_to_switch {
        return Err(UnsoundResponse::UnrequestedSwitch);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::tests::headers;

    #[test]
    fn only_responses_with_one_reading_are_sound() {
        use UnsoundResponse::{Encoding, TwoFramings, UnrequestedSwitch};
        for (status, given, asked, expected) in [
            (200, "", false, Ok(())),
            (200, "content-length: 3", false, Ok(())),
            (200, "transfer-encoding: chunked", false, Ok(())),
            (200, "transfer-encoding: Chunked", false, Ok(())),
            (200, "transfer-encoding: identity", false, Ok(())),
            (200, "content-length: 3\ntransfer-encoding: chunked", false, Err(TwoFramings)),
            (200, "transfer-encoding: identity\ncontent-length: 3", false, Err(TwoFramings)),
            (304, "transfer-encoding: chunked\ncontent-length: 0", false, Err(TwoFramings)),
            (200, "transfer-encoding: gzip, chunked", false, Err(Encoding)),
            (200, "transfer-encoding: chunked\ntransfer-encoding: chunked", false, Err(Encoding)),
            (101, "upgrade: websocket", false, Err(UnrequestedSwitch)),
            (101, "upgrade: websocket", true, Ok(())),
            (200, "upgrade: h2c", false, Ok(())),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let found = sound_response(status, &headers(given), asked);
            assert_eq!(found, expected, "{status} {given} {asked}");
        }
    }
}
