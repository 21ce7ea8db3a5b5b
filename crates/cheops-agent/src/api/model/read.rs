//! Reading what people write in more than one way.
//!
//! What must stay true: a form that is taken means one thing; any other is refused with the form
//! that is expected.

use std::fmt;

use cheops_core::id::SiteId;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, SeqAccess, Visitor},
};
use utoipa::openapi::{
    Array, Object, OneOf, Type,
    schema::{Schema, SchemaType},
};

/// A span of time: a text with a unit, or a number of seconds.
pub(super) fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    struct Span;

    impl Visitor<'_> for Span {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text like \"30s\", or a whole number of seconds")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.to_owned()))
        }

        fn visit_u64<E: Error>(self, seconds: u64) -> Result<Self::Value, E> {
            Ok(Some(format!("{seconds}s")))
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }

    from.deserialize_any(Span)
}

/// A place: a text of the scope language, or a list of the names of sites, which is each of them.
pub(super) fn place<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    struct Place;

    impl<'de> Visitor<'de> for Place {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text like \"site1 & site2\", or a list of names of sites")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.to_owned()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut names = Vec::new();
            while let Some(name) = list.next_element::<String>()? {
                if name.parse::<SiteId>().is_err() {
                    return Err(A::Error::custom(format!(
                        "`{name}` in a list is not the name of a site; write a place as one text, like \"site1 & site2\""
                    )));
                }
                names.push(name);
            }
            if names.is_empty() {
                return Err(A::Error::custom("an empty list names no site; leave it out instead"));
            }
            Ok(Some(names.join(" & ")))
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }

    from.deserialize_any(Place)
}

/// A list of objects. Values that stand there in the order of the fields, without names, are none.
pub(super) fn objects<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<serde_json::Map<String, serde_json::Value>>::deserialize(from)?;
    let read = |object| serde_json::from_value(serde_json::Value::Object(object));
    objects.into_iter().map(|object| read(object).map_err(D::Error::custom)).collect()
}

fn text() -> Schema {
    Object::with_type(Type::String).into()
}

fn or_null(forms: [Schema; 2]) -> Schema {
    let null: Schema = Object::with_type(SchemaType::Type(Type::Null)).into();
    forms
        .into_iter()
        .chain([null])
        .fold(OneOf::builder(), utoipa::openapi::OneOfBuilder::item)
        .into()
}

pub(super) fn span_schema() -> Schema {
    or_null([text(), Object::with_type(Type::Integer).into()])
}

pub(super) fn place_schema() -> Schema {
    or_null([text(), Array::new(text()).into()])
}

#[cfg(test)]
mod tests {
    use super::super::Submit;

    fn read(text: &str) -> Result<Submit, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_can_be_written_in_two_ways_means_the_same() {
        for (text, sites, wait) in [
            (r#"{"command": "x"}"#, None, None),
            (r#"{"command": "x", "sites": null, "wait": null}"#, None, None),
            (r#"{"command": "x", "sites": "a & b", "wait": "1m"}"#, Some("a & b"), Some("1m")),
            (
                r#"{"command": "x", "sites": ["a", "DC 1"], "wait": 30}"#,
                Some("a & DC 1"),
                Some("30s"),
            ),
            (r#"{"command": "x", "sites": ["a"], "wait": 0}"#, Some("a"), Some("0s")),
        ] {
            let read = read(text).unwrap();
            assert_eq!((read.sites.as_deref(), read.wait.as_deref()), (sites, wait), "{text}");
        }
    }

    #[test]
    fn what_is_not_taken_is_refused_with_the_form_that_is_expected() {
        for (text, expected) in [
            (r#"{"command": "x", "wait": 1.5}"#, "a text like \"30s\", or a whole number"),
            (r#"{"command": "x", "wait": -1}"#, "a text like \"30s\", or a whole number"),
            (r#"{"command": "x", "wait": true}"#, "a text like \"30s\", or a whole number"),
            (r#"{"command": "x", "sites": 3}"#, "a text like \"site1 & site2\", or a list"),
            (r#"{"command": "x", "sites": ["a & b"]}"#, "`a & b` in a list is not the name"),
            (r#"{"command": "x", "sites": []}"#, "an empty list names no site"),
            (r#"{"command": "x", "files": [["a", "b", 3]]}"#, "expected a map"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
