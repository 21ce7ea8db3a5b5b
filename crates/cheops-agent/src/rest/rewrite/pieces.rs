//! The pieces of a path or a URL that can be ids: segments of the path, and values of the query.
//!
//! A value of a query may be a list of ids, and say how they are to be compared: `?id=in:a,b`. Its
//! [choices](Piece::choices) are what of it can be an id by itself.
//!
//! What must stay true: a piece is a part of the text as it stands there, with its place, so that
//! whatever is not replaced stays byte for byte.

use std::borrow::Cow;

use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode,
};

/// What stands in a segment or in a query as it is (RFC 3986, "unreserved").
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What stands between the items of a list, and after what says how to compare.
const COMMAS: [&str; 3] = [",", "%2C", "%2c"];
const COLONS: [&str; 3] = [":", "%3A", "%3a"];
/// The longest word that says how to compare: `notin`, `contains`.
const LONGEST_WORD: usize = 10;

/// A part of a path or URL that can be an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// As it stands there.
    pub(crate) raw: &'a str,
    /// Where it begins, in bytes.
    pub(crate) at: usize,
    /// What it is.
    pub(crate) place: Place<'a>,
}

/// What a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// A segment of the path.
    Segment {
        /// The one before it, or nothing.
        below: &'a str,
    },
    /// A value of the query.
    Value {
        /// What it is the value of.
        key: &'a str,
    },
}

impl<'a> Piece<'a> {
    /// What it says, if that is text.
    pub(crate) fn decoded(&self) -> Option<Cow<'a, str>> {
        match self.place {
            Place::Value { .. } if self.raw.contains('+') => {
                let spaced = self.raw.replace('+', " ");
                Some(Cow::Owned(decoded(&spaced)?.into_owned()))
            }
            Place::Segment { .. } | Place::Value { .. } => decoded(self.raw),
        }
    }

    /// What of it can be an id: all of it, and of a value of a query, each item of the list that it may
    /// be, as it is and without a word in front that says how to compare. The longer come first, and
    /// those that are not a part of each other don't overlap.
    pub(crate) fn choices(self) -> impl Iterator<Item = Self> {
        let is_value = matches!(self.place, Place::Value { .. });
        let items = is_value.then(|| self.items()).into_iter().flatten();
        let items = items.flat_map(move |item| {
            let is_all = item.raw.len() == self.raw.len();
            [(!is_all).then_some(item), item.compared()]
        });
        [self].into_iter().chain(items.flatten())
    }

    /// The first of its choices that are something, where they don't overlap.
    pub(crate) fn find<T>(self, mut is: impl FnMut(&Self) -> Option<T>) -> Vec<(Self, T)> {
        let mut found: Vec<(Self, T)> = Vec::new();
        for choice in self.choices() {
            if found.last().is_none_or(|(last, _)| last.end() <= choice.at)
                && let Some(what) = is(&choice)
            {
                found.push((choice, what));
            }
        }
        found
    }

    /// The items of a list.
    fn items(self) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let list = rest?;
            let comma =
                COMMAS.iter().filter_map(|comma| Some((list.raw.find(comma)?, comma.len())));
            let Some((end, length)) = comma.min() else { return rest.take() };
            let (raw, after) = (&list.raw[..end], end + length);
            rest = Some(Self { raw: &list.raw[after..], at: list.at + after, ..list });
            Some(Self { raw, ..list })
        })
    }

    /// What is compared, if a word says how.
    fn compared(self) -> Option<Self> {
        let end = self.raw.find(|c: char| !c.is_ascii_alphabetic() && c != '_')?;
        let word = (1..=LONGEST_WORD).contains(&end);
        let colon = COLONS.iter().find(|colon| self.raw[end..].starts_with(**colon))?;
        let start = end + colon.len();
        word.then(|| Self { raw: &self.raw[start..], at: self.at + start, ..self })
    }

    /// Where it ends.
    pub(crate) fn end(&self) -> usize {
        self.at + self.raw.len()
    }

    /// Whether the name of the query's value says that it is an id: `id`, `image_id`, `imageIds`,
    /// `filter[uuid]`.
    pub(crate) fn is_called_id(&self) -> bool {
        let Place::Value { key } = self.place else { return false };
        let Some(key) = decoded(key) else { return false };
        let key = key.trim_end_matches(']');
        ["id", "ids", "uuid", "uuids"].iter().any(|word| {
            let Some(start) = key.len().checked_sub(word.len()) else { return false };
            let (Some(before), Some(end)) = (key.get(..start), key.get(start..)) else {
                return false;
            };
            end.eq_ignore_ascii_case(word)
                && (!before.ends_with(char::is_alphanumeric) || end.starts_with(char::is_uppercase))
        })
    }
}

/// The segments of the path, empty ones too, and then the values of the query. The text may be a
/// path, a target or a whole URL; the authority and the fragment of a URL hold no ids.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let end = text.find('#').unwrap_or(text.len());
    let (path_end, query_start) = match text[..end].find('?') {
        Some(mark) => (mark, mark + 1),
        None => (end, end),
    };
    let start = path_start(&text[..path_end]);
    let mut below = "";
    let segments = parts(text, start, path_end, '/').map(move |(at, raw)| {
        let place = Place::Segment { below };
        below = raw;
        Piece { raw, at, place }
    });
    let values = parts(text, query_start, end, '&').filter_map(|(at, item)| {
        let (key, raw) = item.split_once('=')?;
        Some(Piece { raw, at: at + key.len() + 1, place: Place::Value { key } })
    });
    segments.chain(values)
}

/// The id as it can stand in a path or in a query.
pub(crate) fn encoded(id: &str) -> impl std::fmt::Display {
    utf8_percent_encode(id, UNRESERVED)
}

/// Writes a segment in the one form that all of its spellings have: what is not unreserved is encoded, in
/// upper case, and nothing else is (RFC 3986, 6.2.2). An application that looks at a segment decodes it,
/// so that to encode what may stand there as it is makes no difference either.
pub(crate) fn push_canonical(path: &mut String, segment: &str) {
    let bytes: Vec<u8> = percent_decode_str(segment).collect();
    path.extend(percent_encode(&bytes, UNRESERVED));
}

/// The path of a target or a URL in the one form that all of its spellings have. A query takes no part,
/// nor does a slash at the end.
pub fn canonical(target: &str) -> String {
    let mut path = String::with_capacity(target.len());
    let segments = pieces(target).filter(|piece| matches!(piece.place, Place::Segment { .. }));
    for (n, segment) in segments.enumerate() {
        if n > 0 {
            path.push('/');
        }
        push_canonical(&mut path, segment.raw);
    }
    path.truncate(path.trim_end_matches('/').len());
    if path.is_empty() { "/".to_owned() } else { path }
}

/// Where the path begins: after the authority, if there is one.
fn path_start(text: &str) -> usize {
    let Some(colon) = text.find("://") else { return 0 };
    let scheme = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    if colon == 0 || !text.bytes().take(colon).all(scheme) {
        return 0;
    }
    let authority = colon + 3;
    text[authority..].find('/').map_or(text.len(), |slash| authority + slash)
}

/// The parts of a stretch of the text, with their places.
fn parts(
    text: &str,
    start: usize,
    end: usize,
    separator: char,
) -> impl Iterator<Item = (usize, &str)> {
    let mut at = start;
    text[start..end].split(separator).map(move |part| {
        let here = at;
        at += part.len() + 1;
        (here, part)
    })
}

fn decoded(raw: &str) -> Option<Cow<'_, str>> {
    if raw.contains('%') { percent_decode_str(raw).decode_utf8().ok() } else { Some(raw.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart() {
        let table: [(&str, &[&str]); 9] = [
            ("/v2/images/a", &["", "v2", "images", "a"]),
            ("images/a/", &["images", "a", ""]),
            ("/a?x=1&y&z=2=3&=4", &["", "a", "1", "2=3", "4"]),
            ("http://host:80/a/b?c=d#e?f=g", &["", "a", "b", "d"]),
            ("http://host", &[""]),
            ("http://host?a=/b/", &["", "/b/"]),
            ("/a?b=http://host/c", &["", "a", "http://host/c"]),
            ("not a scheme://a/b", &["not a scheme:", "", "a", "b"]),
            ("", &[""]),
        ];
        for (text, expected) in table {
            let found: Vec<&str> = pieces(text).map(|piece| piece.raw).collect();
            assert_eq!(found, expected, "{text}");
            for piece in pieces(text) {
                assert_eq!(&text[piece.at..piece.end()], piece.raw, "{text}");
            }
        }
    }

    #[test]
    fn a_value_may_be_a_list_of_ids() {
        let table: [(&str, &[&str]); 12] = [
            ("/a,b", &["a,b"]),
            ("/?x=a", &["a"]),
            ("/?x=a,b", &["a,b", "a", "b"]),
            ("/?x=in:a,b", &["in:a,b", "in:a", "a", "b"]),
            ("/?x=in%3Aa%2Cb%2cc", &["in%3Aa%2Cb%2cc", "in%3Aa", "a", "b", "c"]),
            ("/?x=eq:a", &["eq:a", "a"]),
            ("/?x=not_in:a", &["not_in:a", "a"]),
            ("/?x=urn:uuid:a", &["urn:uuid:a", "uuid:a"]),
            ("/?x=2026-01-01T00:00", &["2026-01-01T00:00"]),
            ("/?x=averylongword:a", &["averylongword:a"]),
            ("/?x=:a,", &[":a,", ":a", ""]),
            ("/?x=", &[""]),
        ];
        for (text, expected) in table {
            let last = pieces(text).last().unwrap();
            let found: Vec<&str> = last.choices().map(|piece| piece.raw).collect();
            assert_eq!(found, expected, "{text}");
            for piece in last.choices() {
                assert_eq!(&text[piece.at..piece.end()], piece.raw, "{text}");
            }
        }
        let last = pieces("/?x=in:a,b,in:c").last().unwrap();
        for (known, expected) in [
            (&["a", "c"][..], &["a", "c"][..]),
            (&["in:a", "a", "b"], &["in:a", "b"]),
            (&["in:a,b,in:c", "a"], &["in:a,b,in:c"]),
            (&["x"], &[]),
        ] {
            let found = last.find(|piece| known.contains(&piece.raw).then_some(()));
            let found: Vec<&str> = found.iter().map(|(piece, ())| piece.raw).collect();
            assert_eq!(found, expected, "{known:?}");
        }
    }

    #[test]
    fn all_spellings_of_a_path_are_one() {
        let table = [
            (
                "/kv/a-b",
                &["/kv/a%2Db", "/kv/a%2db", "/%6bv/a-b/", "/kv/a-b?x=y/z", "/kv/a-b//"][..],
            ),
            ("/kv/a%20b%2Fc", &["/kv/a%20b%2fc"]),
            ("/kv/a%3Ab", &["/kv/a:b", "/kv/a%3ab"]),
            ("/kv/%FF", &["/kv/%ff"]),
            ("/kv/%C3%A9", &["/kv/é"]),
            ("/a//b", &["http://host/a//b/"]),
            ("/", &["", "//", "/?x", "http://host"]),
        ];
        for (expected, spellings) in table {
            for spelling in spellings.iter().chain([&expected]) {
                assert_eq!(canonical(spelling), expected, "{spelling}");
            }
        }
        for (one, other) in [("/a/b", "/a%2Fb"), ("/a", "/A"), ("/a/b", "/b/a"), ("/ab", "/a/b")] {
            assert_ne!(canonical(one), canonical(other));
        }
    }

    #[test]
    fn a_query_says_what_is_an_id() {
        for (key, expected) in [
            ("id", true),
            ("ID", true),
            ("image_id", true),
            ("imageId", true),
            ("image-ids", true),
            ("filter[uuid]", true),
            ("filter%5Buuid%5D", true),
            ("limit", false),
            ("paid", false),
            ("grids", false),
            ("éid", false),
            ("", false),
        ] {
            let text = format!("/?{key}=1");
            let value = pieces(&text).last().unwrap();
            assert_eq!(value.is_called_id(), expected, "{key}");
        }
    }
}
