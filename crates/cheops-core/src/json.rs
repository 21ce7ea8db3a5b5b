//! Reading JSON that people write: configurations, histories.
//!
//! A [`Node`] is a value that knows where in the document it stands, so every complaint names its
//! place (`$.ResolutionMatrix[2].Result`), says what is wrong there, and hints at what was probably
//! meant. What must stay true:
//!
//! - no document, however odd, leads to a panic;
//! - nothing is skipped in silence: a field that nobody reads is an error, not a remark that is lost,
//!   and so is a field that is given twice, of which only one could count;
//! - the names of fields are matched without regard to case, because configurations written for the
//!   original program rely on it;
//! - `null` is the same as a field that is not there.

use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str::FromStr};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::spelling::nearest;

/// What is wrong with a document, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {path}: {cause}")]
pub struct JsonError {
    /// The place: a path such as `$.Show`, or `line 3, column 7` where the text is not JSON at all.
    pub path: String,
    /// What is wrong there, as a sentence without its full stop.
    pub cause: String,
    /// What was probably meant, as a sentence.
    pub hint: Option<String>,
    /// The place in the text, where that is known.
    pub spot: Option<Spot>,
}

/// A place in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// The line, from 1.
    pub line: usize,
    /// The byte of the line, from 1; 0 if the text ends before there is one.
    pub column: usize,
}

impl JsonError {
    /// A complaint about what stands at a path.
    pub fn new(path: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { path: path.into(), cause: cause.to_string(), hint: None, spot: None }
    }

    /// The same complaint with a hint.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// The value that a text in JSON stands for.
pub fn parse(text: &str) -> Result<Value, JsonError> {
    serde_json::from_str(text).map(|Unambiguous(value)| value).map_err(|error| {
        let Spot { line, column } = Spot { line: error.line(), column: error.column() };
        let said = error.to_string();
        let place = format!(" at line {line} column {column}");
        let said = said.strip_suffix(&place).unwrap_or(&said);
        // The text was JSON, and what is wrong with the data is said by us.
        let (cause, hint) = if error.is_data() {
            (said.to_owned(), TWICE_HINT)
        } else {
            (format!("this is not JSON: {said}"), JSON_HINT)
        };
        JsonError {
            path: format!("line {line}, column {column}"),
            cause,
            hint: Some(hint.to_owned()),
            spot: Some(Spot { line, column }),
        }
    })
}

const JSON_HINT: &str = "JSON has double quotes around names and texts, a comma between two items \
                         and none after the last, and no comments.";

const TWICE_HINT: &str = "Delete one of the two.";

/// A value in which no object has two fields of one name. The reader of plain values keeps the last
/// of them, and whoever wrote the first would never hear of it.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnambiguousVisitor).map(Self)
    }
}

struct UnambiguousVisitor;

impl<'de> Visitor<'de> for UnambiguousVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value in JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            // Before its value is read, so that the error's place is that of the name.
            if map.contains_key(&name) {
                let name = quote(&name);
                return Err(A::Error::custom(format_args!("the field {name} is given twice")));
            }
            let Unambiguous(value) = fields.next_value()?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

/// A value and its place in the document.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    value: &'a Value,
    path: String,
}

/// A field that an object may have, present or not.
#[derive(Debug, Clone)]
pub struct Field<'a> {
    name: &'static str,
    owner: String,
    node: Option<Node<'a>>,
}

impl<'a> Field<'a> {
    /// The field's value, if it is there and not `null`.
    pub fn optional(self) -> Option<Node<'a>> {
        self.node
    }

    /// The field's value; an error that names the object if it is not there.
    pub fn required(self) -> Result<Node<'a>, JsonError> {
        self.node.ok_or_else(|| {
            JsonError::new(self.owner, format_args!("the field `{}` is missing", self.name))
        })
    }
}

impl<'a> Node<'a> {
    /// A whole document.
    pub fn root(value: &'a Value) -> Self {
        Self { value, path: "$".to_owned() }
    }

    /// Where the value stands in the document.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A complaint about this value.
    pub fn error(&self, cause: impl fmt::Display) -> JsonError {
        JsonError::new(self.path.clone(), cause)
    }

    /// The fields of an object, in the order in which they are asked for.
    ///
    /// A field of another name is an error, and so is one that is given twice in two spellings.
    pub fn object<const N: usize>(
        &self,
        known: [&'static str; N],
    ) -> Result<[Field<'a>; N], JsonError> {
        let Value::Object(map) = self.value else {
            return Err(self.expected("an object"));
        };
        let mut fields = known.map(|name| Field { name, owner: self.path.clone(), node: None });
        let mut seen = [false; N];
        for (name, value) in map {
            let node = Self { value, path: step(&self.path, name) };
            let Some(at) = known.iter().position(|known| known.eq_ignore_ascii_case(name)) else {
                return Err(node.unknown_field(name, &known));
            };
            if core::mem::replace(&mut seen[at], true) {
                return Err(node
                    .error(format_args!(
                        "the field `{}` is given twice, in two spellings",
                        known[at]
                    ))
                    .with_hint(TWICE_HINT));
            }
            fields[at].node = (!value.is_null()).then_some(node);
        }
        Ok(fields)
    }

    /// The fields of an object whose names are free, such as names of sites; `null` is left out.
    pub fn entries(&self) -> Result<impl Iterator<Item = (&'a str, Node<'a>)>, JsonError> {
        let Value::Object(map) = self.value else {
            return Err(self.expected("an object"));
        };
        let path = self.path.clone();
        Ok(map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(move |(name, value)| (name.as_str(), Node { value, path: step(&path, name) })))
    }

    /// The items of a list.
    pub fn list(&self) -> Result<impl ExactSizeIterator<Item = Node<'a>>, JsonError> {
        let Value::Array(items) = self.value else {
            return Err(self.expected("a list"));
        };
        let path = self.path.clone();
        Ok(items
            .iter()
            .enumerate()
            .map(move |(n, value)| Node { value, path: format!("{path}[{n}]") }))
    }

    /// A text.
    pub fn text(&self) -> Result<&'a str, JsonError> {
        self.value.as_str().ok_or_else(|| self.expected("a text in quotes"))
    }

    /// `true` or `false`.
    pub fn bool(&self) -> Result<bool, JsonError> {
        self.value.as_bool().ok_or_else(|| self.expected("`true` or `false`"))
    }

    /// A whole number.
    pub fn integer(&self) -> Result<i64, JsonError> {
        self.value.as_i64().ok_or_else(|| {
            if self.value.is_number() {
                self.error(format_args!(
                    "expected a whole number from {} to {}, found {}",
                    i64::MIN,
                    i64::MAX,
                    self.value
                ))
            } else {
                self.expected("a whole number")
            }
        })
    }

    /// A text that has a door of its own: a name, a duration.
    pub fn parse<T: FromStr<Err: fmt::Display>>(&self) -> Result<T, JsonError> {
        self.text()?.parse().map_err(|error| self.error(error))
    }

    /// One of a few words, and what it stands for; other words are an error that lists these.
    ///
    /// A word of the list may have several spellings; a message shows the first for each meaning.
    pub fn word<T: Copy + PartialEq>(&self, words: &[(&str, T)]) -> Result<T, JsonError> {
        let text = self.text()?;
        if let Some(&(_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(meaning);
        }
        let mut shown: Vec<&str> = Vec::new();
        for (n, (word, meaning)) in words.iter().enumerate() {
            if !words[..n].iter().any(|(_, earlier)| earlier == meaning) {
                shown.push(word);
            }
        }
        let error = self.error(format_args!(
            "{} is none of the words that can stand here: {}",
            quote(text),
            listed(&shown)
        ));
        Err(match nearest(text, words.iter().map(|(word, _)| *word)) {
            Some(word) => error.with_hint(format!("Did you mean `{word}`?")),
            None => error,
        })
    }

    fn expected(&self, what: &str) -> JsonError {
        let found = match self.value {
            Value::Null => "null",
            Value::Bool(_) => "`true` or `false`",
            Value::Number(_) => "a number",
            Value::String(_) => "a text",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        self.error(format_args!("expected {what}, found {found}"))
    }

    fn unknown_field(&self, name: &str, known: &[&str]) -> JsonError {
        let error = self.error(format_args!(
            "there is no field {} here; there are {}",
            quote(name),
            listed(known)
        ));
        match nearest(name, known.iter().copied()) {
            Some(known) => error.with_hint(format!("Did you mean `{known}`?")),
            None => error,
        }
    }
}

/// The path of a field below another path; names that are no plain word stand in brackets.
fn step(path: &str, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.is_empty() && name.len() <= SHOWN && name.chars().all(plain) {
        format!("{path}.{name}")
    } else {
        format!("{path}[{}]", escaped(name, '"'))
    }
}

/// How many characters of a text from the document a message repeats.
const SHOWN: usize = 40;

/// A text from the document as it may stand in a message.
fn quote(text: &str) -> String {
    escaped(text, '`')
}

/// The text between two marks, short enough for a line and without signs that a terminal obeys.
fn escaped(text: &str, mark: char) -> String {
    let mut shown = String::from(mark);
    shown.extend(text.chars().take(SHOWN).flat_map(char::escape_debug));
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown.push(mark);
    shown
}

/// Words as a list for a sentence: `` `a`, `b` and `c` ``.
fn listed(words: &[&str]) -> String {
    let mut text = String::new();
    for (n, word) in words.iter().enumerate() {
        if n > 0 {
            text.push_str(if n + 1 == words.len() { " and " } else { ", " });
        }
        text.push_str(&quote(word));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said<T: fmt::Debug>(result: Result<T, JsonError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_text_that_is_not_json_has_a_line_and_a_column() {
        for (text, error) in [
            ("", "at line 1, column 0: this is not JSON: EOF while parsing a value"),
            ("{\n  \"a\": 1,\n}", "at line 3, column 1: this is not JSON: trailing comma"),
            ("[1 2]", "at line 1, column 4: this is not JSON: expected `,` or `]`"),
        ] {
            assert_eq!(said(parse(text)), error);
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn a_field_is_given_once() {
        for (text, error) in [
            (r#"{"a": 1, "a": 1}"#, "at line 1, column 12: the field `a` is given twice"),
            (
                "[{\"a\": {},\n  \"b\": [{\"x\": null, \"x\": 2}]}]",
                "at line 2, column 23: the field `x` is given twice",
            ),
            (r#"{"a": 1, "\u0061": 2}"#, "at line 1, column 17: the field `a` is given twice"),
            (r#"{"": 1, "": 2}"#, "at line 1, column 10: the field `` is given twice"),
        ] {
            let found = parse(text).unwrap_err();
            assert_eq!(found.to_string(), error);
            assert_eq!(found.hint.as_deref(), Some("Delete one of the two."));
        }
        // Whether case matters depends on who asks: names of fields have none, those of sites do.
        let value = parse(r#"{"Result": 1, "result": 2}"#).unwrap();
        assert_eq!(Node::root(&value).entries().unwrap().count(), 2);
        assert_eq!(
            said(Node::root(&value).object(["Result"])),
            "at $.result: the field `Result` is given twice, in two spellings"
        );
        let long = format!(r#"{{"{0}": 1, "{0}": 2}}"#, "x".repeat(1_000_000));
        assert!(said(parse(&long)).len() < 200);
    }

    #[test]
    fn values_are_read_as_the_plain_reader_reads_them() {
        for text in [
            "null",
            "true",
            "-3",
            "18446744073709551615",
            "1.5",
            "-0.0",
            "1e300",
            r#""a\nb""#,
            r#""plain""#,
            "[]",
            "{}",
            r#"[1, "x", {"b": [null], "a": {"A": false}}]"#,
        ] {
            assert_eq!(parse(text).ok(), serde_json::from_str(text).ok(), "{text}");
        }
        assert!(said(parse("1e999")).contains("number out of range"));
    }

    #[test]
    fn each_value_is_what_it_was_asked_for() {
        let value = json!({"Text": "x", "Bool": true, "Whole": -3, "Part": 1.5, "List": [1, "y"]});
        let [text, bool, whole, part, list] = Node::root(&value)
            .object(["Text", "Bool", "Whole", "Part", "List"])
            .unwrap()
            .map(|field| field.required().unwrap());
        assert_eq!((text.text(), bool.bool(), whole.integer()), (Ok("x"), Ok(true), Ok(-3)));
        assert_eq!(
            said(bool.text()),
            "at $.Bool: expected a text in quotes, found `true` or `false`"
        );
        assert_eq!(said(text.bool()), "at $.Text: expected `true` or `false`, found a text");
        assert_eq!(said(list.integer()), "at $.List: expected a whole number, found a list");
        assert_eq!(
            said(part.integer()),
            "at $.Part: expected a whole number from -9223372036854775808 to \
             9223372036854775807, found 1.5"
        );
        assert_eq!(said(text.list().map(|_| ())), "at $.Text: expected a list, found a text");
        let items: Vec<_> = list.list().unwrap().collect();
        assert_eq!(said(items[1].integer()), "at $.List[1]: expected a whole number, found a text");
        assert_eq!(said(items[0].object([])), "at $.List[0]: expected an object, found a number");
    }

    #[test]
    fn null_is_a_field_that_is_not_there() {
        for value in [json!({"A": null}), json!({})] {
            let [field] = Node::root(&value).object(["A"]).unwrap();
            assert!(field.clone().optional().is_none());
            assert_eq!(said(field.required()), "at $: the field `A` is missing");
        }
    }

    #[test]
    fn names_of_fields_have_no_case_and_stand_once() {
        let value = json!({"before": 1});
        let [before] = Node::root(&value).object(["Before"]).unwrap();
        assert_eq!(before.required().unwrap().path(), "$.before");
        let value = json!({"before": null, "BEFORE": 1});
        assert_eq!(
            said(Node::root(&value).object(["Before"])),
            "at $.before: the field `Before` is given twice, in two spellings"
        );
    }

    #[test]
    fn names_may_be_free() {
        let value = json!({"site1": 1, "DC 1": 2, "gone": null});
        let root = Node::root(&value);
        let read: Vec<_> = root.entries().unwrap().map(|(name, n)| (name, n.path)).collect();
        let expected = [("DC 1", r#"$["DC 1"]"#), ("site1", "$.site1")];
        assert_eq!(read, expected.map(|(name, path)| (name, path.to_owned())));
        assert_eq!(
            said(Node::root(&json!(1)).entries().map(|_| ())),
            "at $: expected an object, found a number"
        );
    }

    #[test]
    fn an_unknown_field_names_the_nearest() {
        for (name, path, hint) in [
            ("Shwo", "$.Shwo", Some("Did you mean `Show`?")),
            ("reset ", r#"$["reset "]"#, Some("Did you mean `Reset`?")),
            ("Operations", "$.Operations", None),
            ("", r#"$[""]"#, None),
            ("\u{1b}[31m", r#"$["\u{1b}[31m"]"#, None),
        ] {
            let value = json!({name: 1});
            let error = Node::root(&value).object(["Show", "Reset"]).unwrap_err();
            assert_eq!((error.path.as_str(), error.hint.as_deref()), (path, hint), "{name:?}");
        }
    }

    #[test]
    fn words_may_have_several_spellings() {
        let words = [("yes", 1), ("no", 0), ("yea", 1)];
        for (text, meaning) in [("yes", Some(1)), ("yea", Some(1)), ("no", Some(0)), ("Yes", None)]
        {
            assert_eq!(Node::root(&json!(text)).word(&words).ok(), meaning, "{text}");
        }
        let long = json!("y".repeat(1_000_000));
        let error = Node::root(&long).word(&words).unwrap_err();
        assert!(error.to_string().len() < 200, "{error}");
        assert!(error.cause.ends_with("`yes` and `no`"), "{error}");
    }
}
