//! Whether a request may be tried elsewhere, after an attempt came to nothing.
//!
//! What must stay true: a request that may have taken effect is not sent a second time, unless a
//! second time changes nothing; and a body that is partly gone is not sent as if it were whole.

use hyper::{Method, StatusCode};

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// The head of an answer.
    Answer(StatusCode),
    /// Nothing: the request can't have arrived. There is no link, or the connection was refused.
    NotThere,
    /// Nothing: it was not sent, since as many are under way as may be.
    Busy,
    /// Nothing: it may have arrived.
    Silence,
    /// Nothing in time: it may have arrived.
    Late,
    /// Nothing: the client's body is malformed, too short, or stopped coming.
    BrokenBody,
}

impl Came {
    /// The words for coming to nothing, between agents.
    const WORDS: [(&'static str, Self); 3] =
        [("not-there", Self::NotThere), ("silence", Self::Silence), ("late", Self::Late)];

    /// What another agent says with a word.
    pub(super) fn read(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, came)| *came)
    }

    /// The word for it, if it is about nothing.
    pub(super) fn word(self) -> Option<&'static str> {
        Self::WORDS.iter().find(|(_, came)| *came == self).map(|(word, _)| *word)
    }

    /// What a client is told that gets no answer because of it (RFC 9110, 15.6).
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::BrokenBody => StatusCode::BAD_REQUEST,
            Self::Answer(_) | Self::NotThere | Self::Silence => StatusCode::BAD_GATEWAY,
        }
    }
}

/// What is left of the request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// All of it: there is none, it was kept, or nobody has begun to read.
    Whole,
    /// Some of it was sent.
    Partial,
}

/// Whether the request may be tried elsewhere.
pub(super) fn may_go_on(came: Came, method: &Method, rest: Rest) -> bool {
    if rest == Rest::Partial {
        return false;
    }
    match came {
        Came::NotThere | Came::Busy => true,
        Came::BrokenBody => false,
        Came::Silence | Came::Late => method.is_idempotent(),
        Came::Answer(status) => is_no_answer(status) && method.is_idempotent(),
    }
}

/// Whether an answer says that nobody was there to give one.
pub(super) fn is_no_answer(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_not_done_again() {
        use Came::{Answer, BrokenBody, Late, NotThere, Silence};
        use Rest::{Partial, Whole};
        // came, rest, GET, PUT, POST
        for (came, rest, get, put, post) in [
            (NotThere, Whole, true, true, true),
            (NotThere, Partial, false, false, false),
            (Silence, Whole, true, true, false),
            (Silence, Partial, false, false, false),
            (Late, Whole, true, true, false),
            (BrokenBody, Whole, false, false, false),
            (Answer(StatusCode::OK), Whole, false, false, false),
            (Answer(StatusCode::NOT_FOUND), Whole, false, false, false),
            (Answer(StatusCode::INTERNAL_SERVER_ERROR), Whole, false, false, false),
            (Answer(StatusCode::BAD_GATEWAY), Whole, true, true, false),
            (Answer(StatusCode::SERVICE_UNAVAILABLE), Whole, true, true, false),
            (Answer(StatusCode::GATEWAY_TIMEOUT), Whole, true, true, false),
            (Answer(StatusCode::SERVICE_UNAVAILABLE), Partial, false, false, false),
        ] {
            for (method, expected) in [(Method::GET, get), (Method::PUT, put), (Method::POST, post)]
            {
                assert_eq!(may_go_on(came, &method, rest), expected, "{came:?} {rest:?} {method}");
            }
        }
    }
}
