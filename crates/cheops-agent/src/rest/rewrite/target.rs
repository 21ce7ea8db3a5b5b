//! Ids in the target of a request.
//!
//! An id that is not distinctive, like `42`, could mean anything. In a path it is taken for the id at
//! the first segment that equals it; in a query only where the name of the value speaks of an id, so
//! that `?limit=42` stays.

use std::{borrow::Cow, fmt::Write};

use super::pieces::{Piece, Place, encoded, pieces};
use crate::rest::ids::is_distinctive;

/// The target with one id in place of another, where that is a whole segment of the path or a whole
/// value of the query, or an item of one that is a list. All else stays byte for byte.
pub fn target(target: &str, from: &str, to: &str) -> String {
    let distinctive = is_distinctive(from);
    let mut result = String::with_capacity(target.len() + to.len());
    let mut copied = 0;
    let mut in_path = false;
    let is_named = |piece: &Piece<'_>| names(piece, from).then_some(());
    for (piece, ()) in pieces(target).flat_map(|piece| piece.find(is_named)) {
        let meant = match piece.place {
            Place::Segment { .. } => !std::mem::replace(&mut in_path, true),
            Place::Value { .. } => piece.is_called_id(),
        };
        if distinctive || meant {
            result.push_str(&target[copied..piece.at]);
            // Writing to a string can't fail.
            let _ = write!(result, "{}", encoded(to));
            copied = piece.end();
        }
    }
    result.push_str(&target[copied..]);
    result
}

/// All in a target that can be an id, decoded: the segments of the path, and the values of the query
/// that are distinctive or whose name speaks of an id, and the items of those that are lists.
pub fn segments(target: &str) -> impl Iterator<Item = Cow<'_, str>> {
    pieces(target).flat_map(Piece::choices).filter_map(|piece| {
        let text = piece.decoded().filter(|text| !text.is_empty())?;
        let can_be = match piece.place {
            Place::Segment { .. } => true,
            Place::Value { .. } => is_distinctive(&text) || piece.is_called_id(),
        };
        can_be.then_some(text)
    })
}

/// The path of the resource that the id names, and what follows it: `/v2/images/ID` and `/file`. The
/// first segment that equals the id counts; a query is left out.
pub fn own_path<'p>(path: &'p str, id: &str) -> Option<(&'p str, &'p str)> {
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let path = &path[..end];
    let own = pieces(path).find(|piece| names(piece, id))?;
    Some(path.split_at(own.end()))
}

/// Whether a path is that of the resource that the id names, and not of what lies below it. A slash at
/// the end makes no difference.
pub fn is_own(path: &str, id: &str) -> bool {
    own_path(path, id).is_some_and(|(_, rest)| rest.trim_end_matches('/').is_empty())
}

fn names(piece: &Piece<'_>, id: &str) -> bool {
    !piece.raw.is_empty() && piece.decoded().is_some_and(|text| text == id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG: &str = "0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f";
    const META: &str = "5c1de9a0-ce05-8123-8abc-0123456789ab";

    #[test]
    fn ids_are_replaced_where_they_are_whole() {
        let table = [
            ("/v2/images/ID", "/v2/images/TO"),
            ("/v2/images/ID/file", "/v2/images/TO/file"),
            ("/v2/images/ID?x=%41+b", "/v2/images/TO?x=%41+b"),
            ("/a/ID/b/ID?c=ID&d=xID", "/a/TO/b/TO?c=TO&d=xID"),
            ("/a/IDx/xID/ID;v=1", "/a/IDx/xID/ID;v=1"),
            ("/a?ids=x,ID,IDx,ID", "/a?ids=x,TO,IDx,TO"),
            ("/a?id=in:ID,y&z=in%3AID%2CID", "/a?id=in:TO,y&z=in%3ATO%2CTO"),
            ("/ID,ID?x=ID:y", "/ID,ID?x=ID:y"),
            ("/a%2FID/b", "/a%2FID/b"),
            ("http://ID/ID", "http://ID/TO"),
            ("/?ID", "/?ID"),
            ("/", "/"),
            ("*", "*"),
            ("", ""),
        ];
        for (before, after) in table {
            let (before, after) = (before.replace("ID", LONG), after.replace("TO", META));
            assert_eq!(target(&before, LONG, META), after.replace("ID", LONG), "{before}");
        }
    }

    #[test]
    fn a_short_id_is_replaced_once_in_the_path_and_where_the_query_speaks_of_ids() {
        let table = [
            ("/things/42", "/things/m"),
            ("/things/42/parts/42", "/things/m/parts/42"),
            ("/things/42?limit=42", "/things/m?limit=42"),
            ("/parts?thing_id=42&size=42", "/parts?thing_id=m&size=42"),
            ("/parts?ids=7,42&sizes=7,42", "/parts?ids=7,m&sizes=7,42"),
            ("/v42/x42/420", "/v42/x42/420"),
        ];
        for (before, after) in table {
            assert_eq!(target(before, "42", "m"), after);
        }
    }

    #[test]
    fn percent_encoding_is_respected() {
        let table = [
            ("/t/a%20b/x%20y", "a b", "c/d", "/t/c%2Fd/x%20y"),
            ("/t/%61", "a", "b", "/t/b"),
            ("/t?id=a+b&q=a+b", "a b", "é", "/t?id=%C3%A9&q=a+b"),
            ("/t/a+b", "a+b", "x~y-z_.", "/t/x~y-z_."),
            ("/t/%ff/%zz", "\u{fffd}", "x", "/t/%ff/%zz"),
            ("//", "", "x", "//"),
        ];
        for (before, from, to, after) in table {
            assert_eq!(target(before, from, to), after);
        }
    }

    #[test]
    fn what_can_be_an_id_is_listed() {
        let all = |text: &str| segments(text).map(Cow::into_owned).collect::<Vec<String>>();
        assert_eq!(all("/v2/a%20b/7?limit=42&x_id=42"), ["v2", "a b", "7", "42"]);
        let found = all(&format!("/a?marker={LONG}&sort=name&%ff=%ff"));
        assert_eq!(found, ["a", LONG]);
        let found = all(&format!("/a?marker=in:{LONG},{META}&sort=name,up"));
        assert_eq!(found, ["a", LONG, META]);
    }

    #[test]
    fn the_own_path_of_a_resource_is_told_from_what_lies_below() {
        let table = [
            ("/v2/images/42", Some(("/v2/images/42", ""))),
            ("/v2/images/42/file?x=42", Some(("/v2/images/42", "/file"))),
            ("/v2/images/42/", Some(("/v2/images/42", "/"))),
            ("/v2/images/%34%32/42", Some(("/v2/images/%34%32", "/42"))),
            ("/v2/images?id=42", None),
            ("/v2/images", None),
        ];
        for (path, expected) in table {
            assert_eq!(own_path(path, "42"), expected, "{path}");
            let own = matches!(expected, Some((_, "" | "/")));
            assert_eq!(is_own(path, "42"), own, "{path}");
        }
    }

    proptest! {
        #[test]
        fn what_does_not_name_the_id_stays(text in "[/?&=#%+a-c1 :é]{0,40}", id in "[a-c1%/é.]{1,3}") {
            let named = segments(&text).any(|segment| segment == id);
            if !named {
                prop_assert_eq!(target(&text, &id, "other"), text);
            }
        }

        #[test]
        fn there_and_back_names_the_same(
            before in "(/[a-z0-9%]{0,4}){0,3}",
            after in "(/[a-z0-9]{1,4}){0,2}",
            local in "[ -~é]{1,20}",
        ) {
            prop_assume!(!matches!(local.as_str(), "." | ".."));
            let by_meta = format!("{before}/{META}{after}");
            let by_local = target(&by_meta, META, &local);
            let (own, rest) = own_path(&by_meta, META).unwrap();
            prop_assert_eq!(own.len() + rest.len(), by_meta.len());
            prop_assert!(segments(&by_local).any(|segment| segment == local));
            prop_assert!(by_local.ends_with(rest));
        }
    }
}
