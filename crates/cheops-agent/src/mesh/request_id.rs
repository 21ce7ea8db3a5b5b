//! Ids that the agent gives to requests, so that the calls of the application can be attributed to them.
//!
//! Each request to an instance gets an id in every header in which applications pass ids on, unless the
//! client has sent one there. All of them hold one UUID, each in the form that applications expect:
//! OpenStack passes `X-OpenStack-Request-ID` on only if it is `req-` and a UUID in lower case.
//!
//! Every id is marked: a part of it is a keyed digest of the rest, and one bit of that part says whether
//! the request has a scope. The agent recognises a marked id without having remembered it, also after a
//! restart, since its key is derived from the site's own. That serves two purposes:
//! - most requests have no scope, and to remember each of them would cost a lock and memory for every
//!   request that only passes through;
//! - a call with a marked id shows that the application passes ids on, also if the agent has forgotten
//!   the request.
//!
//! What must stay true:
//! - an id that the client has sent stays as it is, save for one that OpenStack would replace: its calls could not
//!   be attributed by it;
//! - without the key, a marked id looks like any other random UUID.

use bytes::Bytes;
use hyper::{
    HeaderMap,
    header::{Entry, HeaderName, HeaderValue},
};

use crate::trust::Identity;

/// The member of `baggage` that the agent adds.
pub(super) const MEMBER: &str = "cheops=";
/// What OpenStack's ids begin with.
const PREFIX: &str = "req-";
/// The length of a UUID in text.
const UUID: usize = 36;
/// The places of the dashes in it.
const DASHES: [usize; 4] = [8, 13, 18, 23];
/// The bits of an id that hold the mark.
const MARK: u128 = (1 << 48) - 1;
/// The bit of the mark that is flipped in the id of a request with a scope.
const SCOPED: u128 = 1;
/// The bits that make it a random UUID (RFC 9562, version 4), and what stands there.
const FIXED: u128 = 0xf << 76 | 0b11 << 62;
const VERSION_4: u128 = 4 << 76 | 0b10 << 62;

/// What a marked id says of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// It has a scope.
    Scoped,
    /// It has none.
    Unscoped,
}

/// Makes ids, and recognises those that it has made.
pub(super) struct RequestIds {
    key: [u8; 32],
}

impl RequestIds {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// With a key that only this site can derive, and derives again after a restart.
    pub(super) fn of(identity: &Identity) -> Self {
        const PURPOSE: &str = "cheops mesh: marks in the ids of requests without a scope";
        Self::new(blake3::derive_key(PURPOSE, &identity.sign(PURPOSE.as_bytes())))
    }

    /// A new id for a request.
    pub(super) fn marked(&self, mark: Mark) -> u128 {
        let random = random();
        let flipped = match mark {
            Mark::Scoped => SCOPED,
            Mark::Unscoped => 0,
        };
        random & !MARK | self.digest(random) ^ flipped
    }

    /// What an id says of its request, if this agent has given it.
    pub(super) fn recognise(&self, id: u128) -> Option<Mark> {
        if id & FIXED != VERSION_4 {
            return None;
        }
        match id & MARK ^ self.digest(id) {
            SCOPED => Some(Mark::Scoped),
            0 => Some(Mark::Unscoped),
            _ => None,
        }
    }

    fn digest(&self, id: u128) -> u128 {
        let digest = blake3::keyed_hash(&self.key, &(id & !MARK).to_le_bytes());
        let (first, _) = digest.as_bytes().split_at(size_of::<u64>());
        let digest = first.iter().fold(0, |all, byte| all << 8 | u128::from(*byte));
        digest & MARK
    }
}

/// A new id without a mark, for an operation of a site that takes no calls itself.
pub(super) fn random() -> u128 {
    fastrand::u128(..) & !FIXED | VERSION_4
}

/// Gives a request an id in each of these headers that applications pass ids on in, where it has none.
pub(super) fn give(by: &[HeaderName], headers: &mut HeaderMap, id: u128) {
    // One text for all: each header has a part of it.
    let text = Bytes::from(text(id));
    let part = |from: usize| HeaderValue::from_maybe_shared(text.slice(from..)).ok();
    for name in by {
        match name.as_str() {
            "x-request-id" => set(headers, name, part(MEMBER.len() + PREFIX.len())),
            "x-openstack-request-id" => {
                if !headers.get(name).is_some_and(|sent| is_openstack(sent.as_bytes())) {
                    headers.remove(name);
                }
                set(headers, name, part(MEMBER.len()));
            }
            // Tracers pass all of it on; a trace of ours would tell them what to sample.
            "baggage" => add(headers, name, part(0)),
            _ => {}
        }
    }
}

/// The number that an id is, if it is a UUID in lower case, with or without `req-` before it.
pub(super) fn number(id: &[u8]) -> Option<u128> {
    let id = id.strip_prefix(PREFIX.as_bytes()).unwrap_or(id);
    if id.len() != UUID {
        return None;
    }
    id.iter().enumerate().try_fold(0, |number: u128, (n, byte)| match byte {
        b'-' if DASHES.contains(&n) => Some(number),
        b'0'..=b'9' if !DASHES.contains(&n) => Some(number << 4 | u128::from(byte - b'0')),
        b'a'..=b'f' if !DASHES.contains(&n) => Some(number << 4 | u128::from(byte - b'a' + 10)),
        _ => None,
    })
}

/// Whether OpenStack would pass an id on.
fn is_openstack(id: &[u8]) -> bool {
    id.starts_with(PREFIX.as_bytes()) && number(id).is_some()
}

/// A member of `baggage` with an id as OpenStack has them: `cheops=req-UUID`.
fn text(id: u128) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = Vec::with_capacity(MEMBER.len() + PREFIX.len() + UUID);
    text.extend_from_slice(MEMBER.as_bytes());
    text.extend_from_slice(PREFIX.as_bytes());
    for (n, byte) in id.to_be_bytes().into_iter().enumerate() {
        if matches!(n, 4 | 6 | 8 | 10) {
            text.push(b'-');
        }
        text.extend([byte >> 4, byte & 0xf].map(|digit| HEX[usize::from(digit)]));
    }
    text
}

fn set(headers: &mut HeaderMap, name: &HeaderName, id: Option<HeaderValue>) {
    if let (Some(id), Entry::Vacant(place)) = (id, headers.entry(name)) {
        place.insert(id);
    }
}

/// Adds a member to a list. It stands in the same line: many who read a list look at one line only.
fn add(headers: &mut HeaderMap, name: &HeaderName, member: Option<HeaderValue>) {
    let Some(member) = member else { return };
    let mut lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    if lines.is_empty() {
        headers.insert(name, member);
        return;
    }
    lines.push(member.as_bytes());
    // Its parts are sound, so that it is.
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b","[..])) {
        headers.insert(name, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by() -> Vec<HeaderName> {
        ["traceparent", "x-request-id", "x-openstack-request-id", "baggage", "x-auth-token"]
            .map(HeaderName::from_static)
            .into()
    }

    fn given(ids: &RequestIds, mark: Mark) -> HeaderMap {
        let mut headers = HeaderMap::new();
        give(&by(), &mut headers, ids.marked(mark));
        headers
    }

    #[test]
    fn a_request_gets_one_id_in_the_form_of_each_header() {
        let ids = RequestIds::new([7; 32]);
        for mark in [Mark::Scoped, Mark::Unscoped] {
            let headers = given(&ids, mark);
            assert_eq!(headers.len(), 3, "{headers:?}");
            let uuid = headers["x-request-id"].to_str().unwrap();
            assert_eq!(headers["x-openstack-request-id"], format!("req-{uuid}"));
            assert_eq!(headers["baggage"], format!("cheops=req-{uuid}"));
            assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"), "{uuid}");
            assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"), "{uuid}");
            let id = number(headers["x-openstack-request-id"].as_bytes()).unwrap();
            assert_eq!(number(uuid.as_bytes()), Some(id));
            assert_eq!(ids.recognise(id), Some(mark));
        }
        assert_ne!(given(&ids, Mark::Unscoped), given(&ids, Mark::Unscoped));
    }

    #[test]
    fn what_the_client_has_sent_stays() {
        let ids = RequestIds::new([7; 32]);
        let mut headers = HeaderMap::new();
        let sent = |value| HeaderValue::from_static(value);
        let uuid = "req-3dccb8c4-08fe-4706-a91d-e843b8fe9ed2";
        headers.insert("x-openstack-request-id", sent(uuid));
        headers.insert("x-request-id", sent("mine"));
        headers.append("baggage", sent("user=7"));
        headers.append("baggage", sent("a=b"));
        give(&by(), &mut headers, ids.marked(Mark::Unscoped));
        assert_eq!(headers["x-openstack-request-id"], uuid);
        assert_eq!(headers["x-request-id"], "mine");
        let baggage: Vec<_> = headers.get_all("baggage").iter().collect();
        assert_eq!(baggage.len(), 1, "{baggage:?}");
        assert!(baggage[0].to_str().unwrap().starts_with("user=7,a=b,cheops=req-"), "{baggage:?}");
    }

    #[test]
    fn an_id_that_openstack_would_replace_is_replaced() {
        let ids = RequestIds::new([7; 32]);
        let uuid = "3dccb8c4-08fe-4706-a91d-e843b8fe9ed2";
        let upper = format!("req-{}", uuid.to_uppercase());
        for sent in ["", "mine", "req-mine", uuid, &upper, "\u{e9}"] {
            let mut headers = HeaderMap::new();
            let name = HeaderName::from_static("x-openstack-request-id");
            headers.insert(&name, HeaderValue::from_bytes(sent.as_bytes()).unwrap());
            let id = ids.marked(Mark::Scoped);
            give(&by(), &mut headers, id);
            assert_eq!(headers.get_all(&name).iter().count(), 1);
            assert_eq!(number(headers[&name].as_bytes()), Some(id), "{sent}");
        }
    }

    #[test]
    fn only_ids_that_were_made_with_the_same_key_are_recognised() {
        let (ids, others) = (RequestIds::new([7; 32]), RequestIds::new([8; 32]));
        let identity = |seed: u8| Identity::from_seed(&[seed; 32]).unwrap();
        for mark in [Mark::Scoped, Mark::Unscoped] {
            for _ in 0..1_000 {
                let id = number(given(&ids, mark)["x-request-id"].as_bytes()).unwrap();
                assert_eq!(ids.recognise(id), Some(mark));
                for unknown in [id ^ 2, id ^ 1 << 100, random()] {
                    assert_eq!(ids.recognise(unknown), None);
                }
                assert_eq!(others.recognise(id), None);
            }
            let ids = RequestIds::of(&identity(1));
            let id = number(given(&ids, mark)["x-request-id"].as_bytes()).unwrap();
            let restarted = RequestIds::of(&identity(1));
            assert_eq!(restarted.recognise(id), Some(mark), "after a restart");
            assert_eq!(RequestIds::of(&identity(2)).recognise(id), None, "at another site");
        }
    }

    #[test]
    fn an_id_is_a_number_if_openstack_would_pass_it_on() {
        let uuid = "3dccb8c4-08fe-4706-a91d-e843b8fe9ed2";
        let value = 0x3dcc_b8c4_08fe_4706_a91d_e843_b8fe_9ed2;
        for (id, expected) in [
            (uuid.to_owned(), Some(value)),
            (format!("req-{uuid}"), Some(value)),
            (uuid.to_uppercase(), None),
            (format!("req-req-{uuid}"), None),
            (uuid.replace('-', "0"), None),
            (uuid.replace("3dcc", "3d-c"), None),
            ("17".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(number(id.as_bytes()), expected, "{id}");
        }
    }
}
