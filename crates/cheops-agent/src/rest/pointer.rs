//! JSON pointers (RFC 6901), with one addition: the token `*` stands for the only member of an
//! object. `/*/id` finds the id in `{"image": {"id": …}}`, whatever the wrapper is called.

use std::borrow::Cow;

use serde_json::Value;

/// What is at the pointer.
pub(super) fn find<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    tokens(pointer).try_fold(value, |value, token| match value {
        Value::Object(members) if token == "*" && members.len() == 1 => members.values().next(),
        Value::Object(members) => members.get(&*token),
        Value::Array(items) => items.get(index(&token)?),
        _ => None,
    })
}

/// What is at the pointer, to be changed.
pub(super) fn find_mut<'v>(value: &'v mut Value, pointer: &str) -> Option<&'v mut Value> {
    tokens(pointer).try_fold(value, |value, token| match value {
        Value::Object(members) => {
            if token == "*" && members.len() == 1 {
                members.values_mut().next()
            } else {
                members.get_mut(&*token)
            }
        }
        Value::Array(items) => items.get_mut(index(&token)?),
        _ => None,
    })
}

/// Puts a value at the pointer, if all that leads there exists. Lists get no new items.
pub(super) fn set(value: &mut Value, pointer: &str, new: Value) {
    if let Some(place) = find_mut(value, pointer) {
        *place = new;
        return;
    }
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    if let Some(Value::Object(members)) = find_mut(value, parent)
        && last != "*"
    {
        members.insert(unescaped(last).into_owned(), new);
    }
}

/// Takes out what is at the pointer. What is an item of a list, or lies in one, goes with the item:
/// of `{"links": [{"rel": "next", "href": …}]}`, `/links/0/href` leaves `{"links": []}`.
pub(super) fn remove(value: &mut Value, pointer: &str) {
    if find(value, pointer).is_none() {
        return;
    }
    let mut rest = pointer;
    while let Some((parent, last)) = rest.rsplit_once('/') {
        if let Some(Value::Array(items)) = find_mut(value, parent) {
            if let Some(n) = index(last).filter(|n| *n < items.len()) {
                items.remove(n);
            }
            return;
        }
        rest = parent;
    }
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    if let Some(Value::Object(members)) = find_mut(value, parent) {
        let name = match members.keys().next() {
            Some(only) if last == "*" && members.len() == 1 => only.clone(),
            _ => unescaped(last).into_owned(),
        };
        members.remove(&name);
    }
}

/// Whether one of two pointers leads to what the other does, or to what lies in it. A `*` of the first may
/// be anything.
pub(super) fn meet(pointer: &str, place: &str) -> bool {
    tokens(pointer).zip(tokens(place)).all(|(one, other)| one == "*" || one == other)
}

/// The last token: the name of the member that the pointer leads to.
pub(super) fn last(pointer: &str) -> Cow<'_, str> {
    unescaped(pointer.rsplit_once('/').map_or(pointer, |(_, last)| last))
}

/// The pointer without its first token, if that leaves one.
pub(super) fn inner(pointer: &str) -> Option<&str> {
    let (_, rest) = pointer.strip_prefix('/')?.split_once('/')?;
    Some(&pointer[pointer.len() - rest.len() - 1..])
}

/// The empty pointer, which means the whole document, has no token.
fn tokens(pointer: &str) -> impl Iterator<Item = Cow<'_, str>> {
    pointer.split('/').skip(1).map(unescaped)
}

fn unescaped(token: &str) -> Cow<'_, str> {
    if token.contains('~') {
        token.replace("~1", "/").replace("~0", "~").into()
    } else {
        token.into()
    }
}

fn index(token: &str) -> Option<usize> {
    let plain = token == "0" || !token.starts_with(['0', '+']);
    token.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pointers_find_members_items_and_the_only_member() {
        let value = json!({"a": {"b": [1, {"c/d": 2, "e~f": 3}]}, "g": {"h": {"id": 4}}});
        let table = [
            ("/a/b/0", Some(json!(1))),
            ("/a/b/1/c~1d", Some(json!(2))),
            ("/a/b/1/e~0f", Some(json!(3))),
            ("/a/*/0", Some(json!(1))),
            ("/g/*/id", Some(json!(4))),
            ("/g/h/id", Some(json!(4))),
            ("", Some(value.clone())),
            ("/*/b", None),
            ("/a/b/2", None),
            ("/a/b/00", None),
            ("/a/b/+1", None),
            ("/a/b/c", None),
            ("/a/b/0/x", None),
            ("/x", None),
        ];
        for (pointer, found) in table {
            assert_eq!(find(&value, pointer), found.as_ref(), "{pointer}");
            assert_eq!(find_mut(&mut value.clone(), pointer), found.clone().as_mut(), "{pointer}");
        }
    }

    #[test]
    fn what_is_set_is_found_if_its_parent_is_there() {
        let table = [
            ("/a", json!({"a": 7, "b": [1]})),
            ("/c", json!({"a": {}, "b": [1], "c": 7})),
            ("/a/x~1y", json!({"a": {"x/y": 7}, "b": [1]})),
            ("/b/0", json!({"a": {}, "b": [7]})),
            ("/b/1", json!({"a": {}, "b": [1]})),
            ("/x/y", json!({"a": {}, "b": [1]})),
            ("/*", json!({"a": {}, "b": [1]})),
            ("", json!(7)),
        ];
        for (pointer, expected) in table {
            let mut value = json!({"a": {}, "b": [1]});
            set(&mut value, pointer, json!(7));
            assert_eq!(value, expected, "{pointer}");
        }
    }

    #[test]
    fn what_lies_in_a_list_goes_with_its_item() {
        let table = [
            ("/next", json!({"links": [{"href": 1}, {"href": 2}], "only": {"x": 1}})),
            ("/links/0/href", json!({"links": [{"href": 2}], "next": 0, "only": {"x": 1}})),
            ("/links/1", json!({"links": [{"href": 1}], "next": 0, "only": {"x": 1}})),
            ("/only/*", json!({"links": [{"href": 1}, {"href": 2}], "next": 0, "only": {}})),
            ("/links/2", json!({"links": [{"href": 1}, {"href": 2}], "next": 0, "only": {"x": 1}})),
            ("/x", json!({"links": [{"href": 1}, {"href": 2}], "next": 0, "only": {"x": 1}})),
        ];
        for (pointer, expected) in table {
            let mut value =
                json!({"links": [{"href": 1}, {"href": 2}], "next": 0, "only": {"x": 1}});
            remove(&mut value, pointer);
            assert_eq!(value, expected, "{pointer}");
        }
    }

    #[test]
    fn pointers_meet_where_one_leads_into_the_other() {
        for (pointer, place, expected) in [
            ("/a/b", "/a/b", true),
            ("/a/b", "/a", true),
            ("/a", "/a/b/0", true),
            ("/a", "", true),
            ("", "/a", true),
            ("/*/b", "/x/b/-", true),
            ("/a~1b", "/a~1b", true),
            ("/a", "/b", false),
            ("/a/b", "/a/c", false),
            ("/*/b", "/x/c", false),
        ] {
            assert_eq!(meet(pointer, place), expected, "{pointer} {place}");
        }
    }

    #[test]
    fn pointers_come_apart() {
        for (pointer, name, within) in [
            ("/id", "id", None),
            ("/*/id", "id", Some("/id")),
            ("/server/a/b~1c", "b/c", Some("/a/b~1c")),
            ("", "", None),
        ] {
            assert_eq!((last(pointer).as_ref(), inner(pointer)), (name, within), "{pointer}");
        }
    }
}
