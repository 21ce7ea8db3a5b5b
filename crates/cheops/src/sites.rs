//! Reads a list of sites: plain text or JSON.
//!
//! ```text
//! # one site a line                    ["site1", "site2"]
//! site1                                or
//! site2                                {"Sites": ["site1", "site2"],
//! site1 <-> site2: 8ms                  "RoundTrips": {"site1": {"site2": "8ms"}}}
//! ```
//!
//! A round trip between sites that are not listed is an error: it is more likely a slip of the
//! keyboard than another site. So are two lines that differ about one pair, in whatever order they
//! name its sites; the table in JSON has a direction, and may differ for the other one.

use std::{collections::BTreeMap, ops::Range, path::Path, time::Duration};

use cheops_core::{
    duration,
    id::SiteId,
    json::{self, JsonError},
    scope::Catalogue,
};
use serde_json::Value;

use crate::{input, report::Failure};

const TEXT_HINT: &str =
    "write one site a line, and a round trip as `site1 <-> site2: 8ms`; `#` starts a comment";

/// Reads the list in a file, or on standard input.
pub(crate) fn read(path: &Path) -> Result<Catalogue, Failure> {
    let text = input::read(path, "list of sites")?;
    let message = format!("invalid list of sites `{}`", path.display());
    if text.trim_start().starts_with(['[', '{']) {
        from_json(&text).map_err(|error| Failure::json(message, &text, error))
    } else {
        from_text(&text).map_err(|wrong| {
            Failure::input(message).at(&text, wrong.span).caused_by(wrong.cause).hint(wrong.hint)
        })
    }
}

/// What is wrong with a list in plain text.
struct Wrong {
    span: Range<usize>,
    cause: String,
    hint: String,
}

fn from_text(text: &str) -> Result<Catalogue, Wrong> {
    let wrong = |part: &str, cause: String, hint: &str| Wrong {
        span: within(text, part),
        cause,
        hint: hint.to_owned(),
    };
    let name = |part: &str| {
        let part = part.trim();
        part.parse::<SiteId>().map_err(|error| wrong(part, error.to_string(), TEXT_HINT))
    };
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let (trips, sites): (Vec<_>, Vec<_>) =
        lines.filter(|line| !line.is_empty()).partition(|line| line.contains("<->"));

    let sites: Result<Vec<_>, _> = sites.into_iter().map(name).collect();
    let mut catalogue = Catalogue::new(sites?);
    let mut measured_before: BTreeMap<[SiteId; 2], (Duration, &str)> = BTreeMap::new();
    for line in trips {
        let Some((from, (to, round_trip))) =
            line.split_once("<->").and_then(|(from, rest)| Some((from, rest.split_once(':')?)))
        else {
            return Err(wrong(line, "the round trip has no duration".to_owned(), TEXT_HINT));
        };
        let round_trip = round_trip.trim();
        let measured = duration::parse(round_trip).map_err(|error| {
            let part = round_trip.get(error.at.clone()).unwrap_or(round_trip);
            wrong(part, error.to_string(), duration::HINT)
        })?;
        for end in [from, to] {
            if let Some((cause, hint)) = unlisted(&name(end)?, &catalogue) {
                return Err(wrong(end.trim(), cause, &hint));
            }
        }
        let mut pair = [name(from)?, name(to)?];
        pair.sort();
        match measured_before.get(&pair) {
            Some((other, first)) if *other != measured => {
                let cause = format!(
                    "`{line}` and `{first}` in line {} differ about one pair of sites",
                    line_number(text, first)
                );
                return Err(wrong(line, cause, "delete one of the two lines"));
            }
            _ => measured_before.insert(pair, (measured, line)),
        };
        catalogue.measure(name(from)?, name(to)?, measured);
    }
    Ok(catalogue)
}

fn from_json(text: &str) -> Result<Catalogue, JsonError> {
    let document = json::parse(text)?;
    let root = json::Node::root(&document);
    if document.is_array() {
        return Ok(Catalogue::new(names(&root)?));
    }
    let [sites, round_trips] = root.object(["Sites", "RoundTrips"])?;
    let mut catalogue = Catalogue::new(names(&sites.required()?)?);
    if let Some(path) = round_trips.optional().map(|node| node.path().to_owned()) {
        // The fields of the table are sites, which the reader of fixed fields does not know.
        let mut fields = document.as_object().into_iter().flatten();
        let table = fields.find(|(name, _)| name.eq_ignore_ascii_case("RoundTrips"));
        measure(table.map_or(&Value::Null, |(_, table)| table), &path, &mut catalogue)?;
    }
    Ok(catalogue)
}

fn names(list: &json::Node<'_>) -> Result<Vec<SiteId>, JsonError> {
    list.list()?.map(|name| name.parse()).collect()
}

/// Notes the round trips of a table from site to site.
fn measure(table: &Value, path: &str, catalogue: &mut Catalogue) -> Result<(), JsonError> {
    for (from, others) in sites_in(table, path, catalogue)? {
        let path = format!("{path}[\"{from}\"]");
        for (to, round_trip) in sites_in(others, &path, catalogue)? {
            let node = json::Node::root(round_trip);
            let measured = node
                .text()
                .and_then(|text| {
                    duration::parse(text)
                        .map_err(|error| node.error(error).with_hint(duration::HINT))
                })
                .map_err(|error| JsonError { path: format!("{path}[\"{to}\"]"), ..error })?;
            catalogue.measure(from.clone(), to, measured);
        }
    }
    Ok(())
}

/// The fields of an object whose names are listed sites.
fn sites_in<'a>(
    value: &'a Value,
    path: &str,
    catalogue: &Catalogue,
) -> Result<Vec<(SiteId, &'a Value)>, JsonError> {
    let error = |cause: String| JsonError::new(path, cause);
    let Value::Object(fields) = value else {
        return Err(error("expected an object with a field for each site".to_owned()));
    };
    let site = |(name, value): (&String, &'a Value)| {
        let site: SiteId = name.parse().map_err(|wrong| error(format!("{wrong}")))?;
        match unlisted(&site, catalogue) {
            Some((cause, hint)) => Err(error(cause).with_hint(hint)),
            None => Ok((site, value)),
        }
    };
    fields.iter().map(site).collect()
}

/// The cause and the hint for a site that is not in the list.
fn unlisted(site: &SiteId, catalogue: &Catalogue) -> Option<(String, String)> {
    if catalogue.knows(site) {
        return None;
    }
    let hint = catalogue.suggest(site.as_str()).unwrap_or_else(|| "list the site too".to_owned());
    Some((format!("the site `{site}` is not in the list"), hint))
}

/// The line where a part of a text starts, from 1.
fn line_number(text: &str, part: &str) -> usize {
    text.get(..within(text, part).start).unwrap_or_default().matches('\n').count() + 1
}

/// Where a part of a text stands in it.
fn within(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Catalogue {
        let site = |name: &str| name.parse::<SiteId>().unwrap();
        let mut catalogue = Catalogue::new([site("DC 1"), site("b")]);
        catalogue.measure(site("DC 1"), site("b"), Duration::from_millis(8));
        catalogue
    }

    #[test]
    fn spellings_of_one_list() {
        let text = "# our sites\nDC 1 <-> b: 8ms\r\n  DC 1  # the first\nb\n\n";
        assert_eq!(from_text(text).ok(), Some(expected()));
        for json in [
            r#"{"Sites": ["DC 1", "b"], "RoundTrips": {"DC 1": {"b": "8ms"}}}"#,
            r#"{"roundtrips": {"DC 1": {"b": "0.008s"}}, "sites": ["b", "DC 1"]}"#,
        ] {
            assert_eq!(from_json(json), Ok(expected()), "{json}");
        }
        let bare = Catalogue::new(expected().sites().cloned());
        assert_eq!(from_json(r#"["DC 1", "b"]"#), Ok(bare.clone()));
        assert_eq!(from_json(r#"{"Sites": ["DC 1", "b"], "RoundTrips": null}"#), Ok(bare));
        assert_eq!(from_text("").ok(), Some(Catalogue::default()));
        // The same twice does no harm, in whatever unit.
        assert!(from_text("a\nb\na <-> b: 8ms\nb <-> a: 0.008s").is_ok());
    }

    #[test]
    fn errors_in_text() {
        for (text, pointed, cause) in [
            ("a\na/b", "a/b", "`a/b` is not a site name"),
            ("a, b", "a, b", "`a, b` is not a site name"),
            ("a\nb\na <-> b", "a <-> b", "the round trip has no duration"),
            ("a\nb\na <-> b: 8mss", "mss", "unknown unit `mss`"),
            ("a\nb\na <-> b:", "", "a duration starts with a number"),
            ("a\nb\na <-> bb: 8ms", "bb", "the site `bb` is not in the list"),
            ("a\na <-> : 8ms", "", "`` is not a site name"),
            (
                "a\nb\na <-> b: 8ms\nb <-> a: 9ms # ?",
                "b <-> a: 9ms",
                "`b <-> a: 9ms` and `a <-> b: 8ms` in line 3 differ about one pair of sites",
            ),
        ] {
            let wrong = from_text(text).err().unwrap();
            assert_eq!(&text[wrong.span], pointed, "{text}");
            assert!(wrong.cause.starts_with(cause), "{text}: {}", wrong.cause);
        }
    }

    #[test]
    fn errors_in_json() {
        for (json, message) in [
            ("[1]", "at $[0]: expected a text in quotes, found a number"),
            ("[", "at line 1, column 1: this is not JSON: EOF while parsing a list"),
            (
                r#"{"Sites": ["a"], "RoundTrips": {"b": {}}}"#,
                "at $.RoundTrips: the site `b` is not in the list",
            ),
            (
                r#"{"Sites": ["a", "b"], "RoundTrips": {"a": {"b": 8}}}"#,
                r#"at $.RoundTrips["a"]["b"]: expected a text in quotes, found a number"#,
            ),
            (
                r#"{"Sites": ["a", "b"], "RoundTrips": {"a": {"b": "8"}}}"#,
                r#"at $.RoundTrips["a"]["b"]: the number has no unit"#,
            ),
            (
                r#"{"Sites": ["a"], "RoundTrips": ["a"]}"#,
                "at $.RoundTrips: expected an object with a field for each site",
            ),
        ] {
            assert_eq!(from_json(json).unwrap_err().to_string(), message, "{json}");
        }
    }
}
