//! What a resource is called: by the application at a site (its *local* id), and by Cheops (its
//! *meta* id), which stands for the local ids of all sites.
//!
//! A meta id is one of two:
//!
//! - a UUID of version 8 and variant 2 whose second group is `ce05`:
//!   `xxxxxxxx-ce05-8xxx-[89ab]xxx-xxxxxxxxxxxx`, in lower case, 106 bits of it by chance. Any agent
//!   can tell that such an id was made by Cheops, even if it has never heard of it;
//! - a number from 2^52 to 2^53 - 1, for services whose clients expect numbers: large enough not to
//!   be met by chance, and small enough for a double.
//!
//! An id is *distinctive* if text that equals it can hardly mean anything else: at least 16 bytes of
//! `A-Z a-z 0-9 - _ . ~`, one of which is a digit. UUIDs, hashes, object ids and both sorts of meta
//! ids are; `42`, `web-1` and `kubernetes-dashboard` are not.
//!
//! What must stay true: an id that comes from an answer can stand in a path. It is never empty,
//! never `.` or `..`, holds no control characters and is at most [`MAX_LENGTH`] bytes long.

use cheops_core::id::{NameError, ResourceId, ServiceName};
use hyper::{HeaderMap, header::LOCATION};
use serde_json::Value;

use super::{
    pointer,
    rewrite::{Piece, Place, canonical, pieces},
};
use crate::config::{Ids, Meta};

/// The longest local id, in bytes.
pub const MAX_LENGTH: usize = 255;

/// The length from which an id can be distinctive, in bytes.
const DISTINCTIVE: usize = 16;

/// What the second group of each of our UUIDs says.
const MARK: u128 = 0xce05;

/// The numbers that are meta ids.
const NUMBERS: std::ops::Range<u64> = 1 << 52..1 << 53;
/// How many digits each of them has.
const DIGITS: usize = 16;

/// The local id that the answer to a creation names: where a pointer finds a text or an integer, or
/// the last segment of `Location`. An answer that says that nothing was made names none.
///
/// `303 See Other` is how some applications answer a form; its body is for people.
pub fn made(ids: &Ids, status: u16, headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let good = (200..300).contains(&status);
    let told = good.then(|| serde_json::from_slice::<Value>(body).ok()).flatten();
    let pointed = |value: &Value| ids.pointers.iter().find_map(|at| id(pointer::find(value, at)?));
    told.as_ref().and_then(pointed).or_else(|| {
        let located = ids.location && (good || status == 303);
        headers.get(LOCATION).filter(|_| located)?.to_str().ok().and_then(last_segment)
    })
}

/// An id that is new, if the number is.
pub fn meta(ids: &Ids, random: u128) -> String {
    match ids.meta {
        Meta::Uuid => uuid(8, random & !(0xffff << 80) | MARK << 80),
        Meta::Number => {
            let span = u128::from(NUMBERS.end - NUMBERS.start);
            (u128::from(NUMBERS.start) + random % span).to_string()
        }
    }
}

/// The second group of each UUID that Cheops made, and the length of one.
const GROUP: &str = "ce05";
const UUID: usize = 36;

/// Whether some part of the text may be an id that Cheops made for this service. Nearly none is, so that
/// should be seen soon.
pub fn may_hold_meta(ids: &Ids, text: &str) -> bool {
    match ids.meta {
        Meta::Uuid => text.len() >= UUID && text.contains(GROUP),
        Meta::Number => text.as_bytes().windows(DIGITS).any(|w| w.iter().all(u8::is_ascii_digit)),
    }
}

/// Whether the text is an id that Cheops made for this service.
pub fn is_meta_of(ids: &Ids, text: &str) -> bool {
    match ids.meta {
        Meta::Uuid => is_meta(text),
        Meta::Number => is_number(text),
    }
}

/// Whether the text is a UUID that Cheops made.
fn is_meta(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == UUID
        && text.bytes().enumerate().all(|(n, b)| match n {
            8 | 13 | 18 | 23 => b == b'-',
            14 => b == b'8',
            19 => matches!(b, b'8' | b'9' | b'a' | b'b'),
            _ => hex(b),
        })
        && &text[9..13] == GROUP
}

/// Whether the text is a number that Cheops made.
fn is_number(text: &str) -> bool {
    text.len() == DIGITS && text.parse().is_ok_and(|number| NUMBERS.contains(&number))
}

/// Whether the text is an id that Cheops made, of either sort.
pub fn is_made(text: &str) -> bool {
    is_meta(text) || is_number(text)
}

/// Whether text that equals the id can hardly mean anything else.
pub fn is_distinctive(id: &str) -> bool {
    let mut digit = false;
    let plain = |b: u8| {
        digit |= b.is_ascii_digit();
        b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~')
    };
    id.len() >= DISTINCTIVE && id.bytes().all(plain) && digit
}

/// The resource of what is known by a meta id. It can't fail for a service of the configuration,
/// whose name is plain.
pub fn resource_id(service: &ServiceName, meta: &str) -> Result<ResourceId, NameError> {
    format!("{service}~{meta}").parse()
}

/// The service and the meta id of a resource, if it has one.
pub fn parse_resource(resource: &ResourceId) -> Option<(ServiceName, &str)> {
    let (service, meta) = resource.as_str().split_once('~')?;
    if is_made(meta) { Some((service.parse().ok()?, meta)) } else { None }
}

/// The resource of what has the same path at all sites: `{service}~{its last segment}~{hash}`.
///
/// Two spellings of a path that differ in percent-encoding only, or in a slash at the end, are the same.
/// A query takes no part.
pub fn natural_resource(service: &ServiceName, path: &str) -> Result<ResourceId, NameError> {
    let mut hash = blake3::Hasher::new();
    let mut last = String::new();
    for piece in pieces(&canonical(path)) {
        let segment: Vec<u8> = percent_encoding::percent_decode_str(piece.raw).collect();
        hash.update(&(segment.len() as u64).to_le_bytes()).update(&segment);
        if !segment.is_empty() {
            last = plain(&segment);
        }
    }
    let hash = hash.finalize().to_hex();
    format!("{service}~{last}~{}", &hash[..12]).parse()
}

/// The service of a resource that has the same path at all sites.
pub fn parse_natural(resource: &ResourceId) -> Option<ServiceName> {
    let mut parts = resource.as_str().split('~');
    let (service, _, hash) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let natural = hash.len() == 12 && hash.bytes().all(hex) && parts.next().is_none();
    if natural { service.parse().ok() } else { None }
}

/// A UUID of a version, by chance but for that.
pub(crate) fn uuid(version: u8, random: u128) -> String {
    let free = !(0xf << 76 | 0b11 << 62);
    let hex = format!("{:032x}", random & free | u128::from(version) << 76 | 0b10 << 62);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// What a value says as an id.
fn id(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => usable(text).then(|| text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        _ => None,
    }
}

fn last_segment(location: &str) -> Option<String> {
    let named =
        |piece: &Piece<'_>| matches!(piece.place, Place::Segment { .. }) && !piece.raw.is_empty();
    let last = pieces(location.trim()).filter(named).last();
    last?.decoded().filter(|text| usable(text)).map(Into::into)
}

fn usable(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && text.len() <= MAX_LENGTH
        && !text.chars().any(char::is_control)
}

/// At most 64 characters of a segment, those that a resource id can't hold as `-`.
fn plain(segment: &[u8]) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    segment.iter().take(64).map(|&b| if keep(b) { char::from(b) } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;
    use crate::config::Service;

    fn defaults() -> Ids {
        let listen = "127.0.0.1:1".parse().unwrap();
        Service::new("image".parse().unwrap(), listen, None).ids
    }

    fn located(location: &str) -> HeaderMap {
        [(LOCATION, HeaderValue::from_str(location).unwrap())].into_iter().collect()
    }

    #[test]
    fn the_id_is_where_a_pointer_finds_it() {
        let table = [
            (r#"{"id": "a", "uuid": "b"}"#, Some("a")),
            (r#"{"uuid": "b"}"#, Some("b")),
            (r#"{"image": {"id": "c"}}"#, Some("c")),
            (r#"{"image": {"id": "c"}, "links": []}"#, None),
            (r#"{"metadata": {"name": "d"}, "kind": "Pod"}"#, Some("d")),
            (r#"{"id": 42}"#, Some("42")),
            (r#"{"id": -42}"#, Some("-42")),
            (r#"{"id": 18446744073709551615}"#, Some("18446744073709551615")),
            (r#"{"id": 4.5, "uuid": "b"}"#, Some("b")),
            (r#"{"id": "", "uuid": "b"}"#, Some("b")),
            (r#"{"id": null}"#, None),
            (r#"{"id": ".."}"#, None),
            (r#"{"id": "a\nb"}"#, None),
            (r#"["a"]"#, None),
            ("no JSON", None),
            ("", None),
        ];
        for (body, expected) in table {
            let found = made(&defaults(), 201, &HeaderMap::new(), body.as_bytes());
            assert_eq!(found.as_deref(), expected, "{body}");
        }
        let long = format!(r#"{{"id": "{}"}}"#, "x".repeat(MAX_LENGTH + 1));
        assert_eq!(made(&defaults(), 200, &HeaderMap::new(), long.as_bytes()), None);
    }

    #[test]
    fn otherwise_it_is_the_last_segment_of_the_location() {
        let table = [
            ("/v2/images/a", Some("a")),
            ("http://host:1/v2/images/a%20b?x=/y#z", Some("a b")),
            ("/v2/images/a/", Some("a")),
            ("images/a", Some("a")),
            ("a", Some("a")),
            ("http://host", None),
            ("http://host/", None),
            ("/..", None),
            ("/%2e%2E", None),
            ("/", None),
            ("/a/%ff", None),
            ("/%0a", None),
        ];
        for (location, expected) in table {
            let found = made(&defaults(), 201, &located(location), b"{}");
            assert_eq!(found.as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn only_an_answer_that_went_well_names_an_id() {
        let table = [
            (200, true, Some("body")),
            (299, true, Some("body")),
            (303, true, Some("header")),
            (302, true, None),
            (404, true, None),
            (199, true, None),
            (201, false, Some("body")),
            (303, false, None),
        ];
        for (status, location, expected) in table {
            let ids = Ids { location, ..defaults() };
            let found = made(&ids, status, &located("/header"), br#"{"id": "body"}"#);
            assert_eq!(found.as_deref(), expected, "{status} {location}");
        }
    }

    #[test]
    fn a_meta_id_is_recognised() {
        let numbers = Ids { meta: Meta::Number, ..defaults() };
        for random in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let uuid = meta(&defaults(), random);
            assert!(is_meta_of(&defaults(), &uuid) && is_distinctive(&uuid), "{uuid}");
            let number = meta(&numbers, random);
            assert!(is_meta_of(&numbers, &number) && is_distinctive(&number), "{number}");
            assert!(!is_meta_of(&defaults(), &number) && !is_meta_of(&numbers, &uuid));
            for (ids, id) in [(&defaults(), &uuid), (&numbers, &number)] {
                assert!(may_hold_meta(ids, &format!("/v2/images/{id}/file?x=1")), "{id}");
                assert!(!may_hold_meta(ids, "/v2/images/41?limit=100"));
            }
        }
        assert_eq!(meta(&defaults(), u128::MAX), "ffffffff-ce05-8fff-bfff-ffffffffffff");
        assert_eq!(meta(&numbers, u128::MAX), "9007199254740991");
        for other in [
            "",
            "0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f",
            "FFFFFFFF-ce05-8fff-bfff-ffffffffffff",
            "ffffffff-ce05-8fff-cfff-ffffffffffff",
            "ffffffff-ce05-4fff-bfff-ffffffffffff",
            "ffffffff-ce06-8fff-bfff-ffffffffffff",
            "ffffffffxce05-8fff-bfff-ffffffffffff",
            "ffffffff-ce05-8fff-bfff-ffffffffffff0",
            "éééé-ce05-8fff-bfff-fffffffffffffffff",
        ] {
            assert!(!is_meta(other), "{other}");
        }
    }

    #[test]
    fn only_long_ids_with_a_digit_are_distinctive() {
        for (id, expected) in [
            ("0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f", true),
            ("507f1f77bcf86cd799439011", true),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAV", true),
            ("4503599627370496", true),
            ("42", false),
            ("123456789012345", false),
            ("kubernetes-dashboard", false),
            ("a title of 20 words", false),
            ("/v2/images/1234567", false),
        ] {
            assert_eq!(is_distinctive(id), expected, "{id}");
        }
    }

    #[test]
    fn natural_resources_are_told_by_their_path() {
        let service: ServiceName = "kv".parse().unwrap();
        let of = |path| natural_resource(&service, path).unwrap();
        for (path, start) in [
            ("/v1/keys/a", "kv~a~"),
            ("/v1/keys/a%20b%2F~", "kv~a-b--~"),
            ("/v1/keys/", "kv~keys~"),
            ("/", "kv~~"),
            ("/é", "kv~--~"),
        ] {
            let id = of(path);
            assert!(id.as_str().starts_with(start), "{id}");
            assert_eq!(id.as_str().len(), start.len() + 12, "{id}");
            assert_eq!(parse_natural(&id).as_ref(), Some(&service), "{id}");
            assert_eq!(parse_resource(&id), None, "{id}");
        }
        let same =
            [("/a/b", "/a/b?c=d"), ("/a/b", "/%61/b/"), ("/a%2fb", "/a%2Fb"), ("/a/b", "/a/b/")];
        let different = [("/a/b", "/a%2Fb"), ("/a/b", "/b/a"), ("/ab", "/a/b")];
        for (one, other) in same {
            assert_eq!(of(one), of(other));
        }
        for (one, other) in different {
            assert_ne!(of(one), of(other));
        }
        let long = of(&format!("/{}", "x".repeat(5_000)));
        assert_eq!(long.as_str().len(), 3 + 64 + 1 + 12);
    }

    #[test]
    fn other_resources_have_no_meta_id() {
        for id in ["kv", "kv~a", "kv~42", "kv~4503599627370495", "kv~04503599627370496", "~a~b~c"] {
            let id: ResourceId = id.parse().unwrap();
            assert_eq!((parse_resource(&id), parse_natural(&id)), (None, None), "{id}");
        }
    }

    proptest! {
        #[test]
        fn a_resource_tells_its_meta_id(random: u128, number: bool, service in "[a-zA-Z0-9._-]{1,63}") {
            let ids = Ids { meta: if number { Meta::Number } else { Meta::Uuid }, ..defaults() };
            let meta = meta(&ids, random);
            let service: ServiceName = service.parse().unwrap();
            let resource = resource_id(&service, &meta).unwrap();
            prop_assert_eq!(parse_resource(&resource), Some((service, meta.as_str())));
            prop_assert_eq!(parse_natural(&resource), None);
        }

        #[test]
        fn any_path_has_a_resource(path in "\\PC{0,60}") {
            let service = "kv".parse().unwrap();
            prop_assert!(natural_resource(&service, &path).is_ok());
        }

        #[test]
        fn what_an_answer_names_can_stand_in_a_path(location in "[ -~]{0,30}", body in "\\PC{0,30}") {
            let headers = located(&location);
            if let Some(id) = made(&defaults(), 201, &headers, body.as_bytes()) {
                let target = super::super::rewrite::target("/x/5c1de9a0-ce05-8123-8abc-0123456789ab/y",
                    "5c1de9a0-ce05-8123-8abc-0123456789ab", &id);
                prop_assert_eq!(target.split('/').count(), 4);
            }
        }
    }
}
