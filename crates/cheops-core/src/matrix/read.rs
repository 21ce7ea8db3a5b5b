//! Configurations as JSON: what the original program reads, and our additions to it.
//!
//! What must stay true: what is written reads back as the same configuration, and a configuration
//! of the original program reads as what it meant there.

use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};
use core::time::Duration;

use serde_json::{Map, Value};

use super::{Concurrent, Config, Entry, Matrix, Take, check_parts};
use crate::{
    duration,
    id::Sites,
    json::{self, JsonError, Node},
    scope,
};

impl Config {
    /// The configuration that a text in JSON stands for.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        Self::read(&Node::root(&json::parse(text)?))
    }

    /// The configuration at a place in a document.
    pub fn read(node: &Node<'_>) -> Result<Self, JsonError> {
        let [matrix, show, reset, check, timeout, parts] =
            node.object(["ResolutionMatrix", "Show", "Reset", "Check", "Timeout", "Parts"])?;
        Ok(Self {
            matrix: matrix
                .optional()
                .map_or_else(|| Ok(Matrix::default()), |m| Matrix::read(&m))?,
            show: show.optional().map(|node| command(&node)).transpose()?,
            reset: reset.optional().map(|node| command(&node)).transpose()?,
            check: check.optional().map(|node| command(&node)).transpose()?,
            timeout: timeout.optional().map(|node| time_limit(&node)).transpose()?,
            parts: parts.optional().map(|node| read_parts(&node)).transpose()?.unwrap_or_default(),
        })
    }

    /// The configuration as JSON; what is not set is left out.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("ResolutionMatrix".to_owned(), self.matrix.to_json());
        let commands = [("Show", &self.show), ("Reset", &self.reset), ("Check", &self.check)];
        for (name, command) in commands {
            if let Some(command) = command {
                map.insert(name.to_owned(), command.as_str().into());
            }
        }
        if let Some(timeout) = self.timeout {
            map.insert("Timeout".to_owned(), duration::print(timeout).to_string().into());
        }
        if !self.parts.is_empty() {
            map.insert("Parts".to_owned(), self.parts.iter().map(ToString::to_string).collect());
        }
        Value::Object(map)
    }
}

impl Matrix {
    /// The matrix at a place in a document: a list of entries.
    pub fn read(node: &Node<'_>) -> Result<Self, JsonError> {
        let entries: Vec<Entry> =
            node.list()?.map(|item| Entry::read(&item)).collect::<Result<_, _>>()?;
        Self::new(entries).map_err(|error| node.error(error))
    }

    /// The entries as a JSON list.
    pub fn to_json(&self) -> Value {
        self.entries.iter().map(Entry::to_json).collect()
    }
}

impl Entry {
    /// The entry at a place in a document.
    pub fn read(node: &Node<'_>) -> Result<Self, JsonError> {
        let [before, after, result, concurrent] =
            node.object(["Before", "After", "Result", "Concurrent"])?;
        Ok(Self {
            before: before.required()?.parse()?,
            after: after.required()?.parse()?,
            result: result.required()?.word(&Take::WORDS)?,
            concurrent: concurrent
                .optional()
                .map(|node| node.word(&Concurrent::WORDS))
                .transpose()?,
        })
    }

    /// The entry as a JSON object.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("Before".to_owned(), self.before.as_str().into());
        map.insert("After".to_owned(), self.after.as_str().into());
        map.insert("Result".to_owned(), self.result.as_str().into());
        if let Some(concurrent) = self.concurrent {
            map.insert("Concurrent".to_owned(), concurrent.as_str().into());
        }
        Value::Object(map)
    }
}

/// A command line. An empty one would succeed without doing anything, and a `Check` or a `Reset`
/// that does nothing is a lie about the resource.
fn command(node: &Node<'_>) -> Result<String, JsonError> {
    let text = node.text()?;
    if text.trim().is_empty() {
        return Err(node.error("the command is empty").with_hint("Leave the field out."));
    }
    Ok(text.to_owned())
}

/// A limit that something can stay within.
fn time_limit(node: &Node<'_>) -> Result<Duration, JsonError> {
    let limit = duration::parse(node.text()?)
        .map_err(|error| node.error(error).with_hint(duration::HINT))?;
    if limit.is_zero() {
        return Err(node.error("no command ends in no time").with_hint("Leave the field out."));
    }
    Ok(limit)
}

/// The parts of a resource: sites, joined with `&` where a part has copies.
fn read_parts(node: &Node<'_>) -> Result<Vec<Sites>, JsonError> {
    const HINT: &str = "Write [\"site1\", \"site2 & site3\"], or leave the field out.";
    let parts: Vec<Sites> = node.list()?.map(|item| sites(&item)).collect::<Result<_, _>>()?;
    if parts.is_empty() {
        return Err(node.error("no part is named").with_hint(HINT));
    }
    check_parts(&parts).map_err(|error| node.error(error).with_hint(HINT))?;
    Ok(parts)
}

/// Sites that are all named.
fn sites(node: &Node<'_>) -> Result<Sites, JsonError> {
    const HINT: &str = "A part is a site, or several: \"site1 & site2\".";
    let text = node.text()?;
    let place = scope::parse_place(text).map_err(|error| node.error(error).with_hint(HINT))?;
    let named = |place: &scope::Place| match place.node() {
        scope::Node::Site(site) => Some(site.clone()),
        _ => None,
    };
    let sites: Option<Vec<_>> = match place.node() {
        scope::Node::Several(scope::Operator::All, places) => places.iter().map(named).collect(),
        _ => named(&place).map(|site| Vec::from([site])),
    };
    let several = || {
        node.error(format_args!("`{place}` is not a list of sites joined with `&`")).with_hint(HINT)
    };
    Sites::new(sites.ok_or_else(several)?).map_err(|error| node.error(error))
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use proptest::prelude::*;

    use super::*;

    /// The report's table 5, as its experiment sends it.
    const REDIS: &str = r#"{"ResolutionMatrix": [
        {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
        {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
        {"Before": "inc", "After": "inc", "Result": "take-both-any-order"}
    ]}"#;

    #[test]
    fn reads_what_the_original_program_reads() {
        let config = Config::from_json(REDIS).unwrap();
        let told: Vec<String> = config.matrix.entries().iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                r#"{"Before": "set", "After": "inc", "Result": "take-both-keep-order"}"#,
                r#"{"Before": "inc", "After": "set", "Result": "take-both-reverse-order"}"#,
                r#"{"Before": "inc", "After": "inc", "Result": "take-both"}"#,
            ]
        );
        let loud = REDIS.replace("Before", "BEFORE").replace("Result\"", "result\"");
        assert_eq!(Config::from_json(&loud).unwrap(), config);
    }

    #[test]
    fn every_field_may_be_left_out() {
        for text in ["{}", r#"{"ResolutionMatrix": null}"#, r#"{"Show": null, "Timeout": null}"#] {
            assert_eq!(Config::from_json(text), Ok(Config::default()), "{text}");
        }
    }

    #[test]
    fn says_where_and_what_and_what_would_be_right() {
        let entry = |result: &str| {
            format!(
                r#"{{"ResolutionMatrix": [{{"Before": "a", "After": "a", "Result": {result}}}]}}"#
            )
        };
        let words = "`take-one`, `take-both`, `take-both-keep-order`, `take-both-reverse-order` \
                     and `take-both-agreed-order`";
        for (text, error, hint) in [
            (
                entry("\"take-bth\""),
                format!(
                    "at $.ResolutionMatrix[0].Result: `take-bth` is none of the words that can \
                     stand here: {words}"
                ),
                Some("Did you mean `take-both`?"),
            ),
            (
                entry("\"first\""),
                format!(
                    "at $.ResolutionMatrix[0].Result: `first` is none of the words that can stand \
                     here: {words}"
                ),
                None,
            ),
            (
                entry("3"),
                "at $.ResolutionMatrix[0].Result: expected a text in quotes, found a number".into(),
                None,
            ),
            (
                entry("null"),
                "at $.ResolutionMatrix[0]: the field `Result` is missing".into(),
                None,
            ),
            (
                entry(r#""take-one", "Concurent": "take-one""#),
                "at $.ResolutionMatrix[0].Concurent: there is no field `Concurent` here; there are \
                 `Before`, `After`, `Result` and `Concurrent`"
                    .into(),
                Some("Did you mean `Concurrent`?"),
            ),
            (
                r#"{"ResolutionMatrix": [{"Before": " ", "After": "a", "Result": "take-one"}]}"#.into(),
                "at $.ResolutionMatrix[0].Before: ` ` is not a kind: it needs at least one \
                 character that is not a space"
                    .into(),
                None,
            ),
            (
                r#"{"Timeout": "30"}"#.into(),
                "at $.Timeout: the number has no unit".into(),
                Some(duration::HINT),
            ),
            (
                r#"{"Timeout": "0s"}"#.into(),
                "at $.Timeout: no command ends in no time".into(),
                Some("Leave the field out."),
            ),
            (
                r#"{"Reset": " "}"#.into(),
                "at $.Reset: the command is empty".into(),
                Some("Leave the field out."),
            ),
            (
                r#"{"Parts": []}"#.into(),
                "at $.Parts: no part is named".into(),
                Some(r#"Write ["site1", "site2 & site3"], or leave the field out."#),
            ),
            (
                r#"{"Parts": ["a & b"]}"#.into(),
                "at $.Parts: a resource in parts has at least two".into(),
                Some(r#"Write ["site1", "site2 & site3"], or leave the field out."#),
            ),
            (
                r#"{"Parts": ["a", "b & a"]}"#.into(),
                "at $.Parts: `a` has two parts".into(),
                Some(r#"Write ["site1", "site2 & site3"], or leave the field out."#),
            ),
            (
                r#"{"Parts": ["a", "b; c"]}"#.into(),
                "at $.Parts[1]: `b; c` is not a list of sites joined with `&`".into(),
                Some(r#"A part is a site, or several: "site1 & site2"."#),
            ),
            (
                r#"{"Parts": ["a", "b &"]}"#.into(),
                "at $.Parts[1]: no site is named after `&`".into(),
                Some(r#"A part is a site, or several: "site1 & site2"."#),
            ),
        ] {
            let found = Config::from_json(&text).unwrap_err();
            assert_eq!(found.to_string(), error, "{text}");
            assert_eq!(found.hint.as_deref(), hint, "{text}");
        }
    }

    #[test]
    fn a_matrix_has_at_most_255_kinds() {
        let rows = |n: usize| {
            let rows: Vec<String> = (0..n)
                .map(|k| format!(r#"{{"Before": "k{k}", "After": "k0", "Result": "take-one"}}"#))
                .collect();
            format!(r#"{{"ResolutionMatrix": [{}]}}"#, rows.join(","))
        };
        assert!(Config::from_json(&rows(255)).is_ok());
        assert_eq!(
            Config::from_json(&rows(256)).unwrap_err().to_string(),
            "at $.ResolutionMatrix: a matrix has at most 255 kinds, and this one has 256"
        );
    }

    fn any_entry() -> impl Strategy<Value = Entry> {
        let kind = || "[a-c\"é \\\\]{0,3}x".prop_map(|text| text.parse().unwrap());
        let result = proptest::sample::select(Take::WORDS.map(|(_, take)| take).to_vec());
        let concurrent = proptest::sample::select(Concurrent::WORDS.map(|(_, c)| c).to_vec());
        (kind(), kind(), result, proptest::option::of(concurrent)).prop_map(
            |(before, after, result, concurrent)| Entry { before, after, result, concurrent },
        )
    }

    /// Some sites, cut into pieces.
    fn any_parts() -> impl Strategy<Value = Vec<Sites>> {
        let sites = proptest::collection::btree_set("[a-z]{1,3}( [é.-]{1,2})?", 0..8);
        (sites, 1..4_usize).prop_map(|(names, size)| {
            let sites: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
            let pieces = sites.chunks(size).map(|piece| Sites::new(piece.to_vec()).unwrap());
            let parts: Vec<Sites> = pieces.collect();
            if parts.len() < 2 { Vec::new() } else { parts }
        })
    }

    fn any_config() -> impl Strategy<Value = Config> {
        let command = || proptest::option::of("\\PC*x");
        let nanos = proptest::option::of(1..u64::MAX);
        let entries = proptest::collection::vec(any_entry(), 0..6);
        (entries, command(), command(), command(), nanos, any_parts()).prop_map(
            |(entries, show, reset, check, nanos, parts)| Config {
                matrix: Matrix::new(entries).unwrap(),
                show,
                reset,
                check,
                timeout: nanos.map(Duration::from_nanos),
                parts,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(config in any_config()) {
            prop_assert_eq!(Config::from_json(&config.to_json().to_string()), Ok(config));
        }

        #[test]
        fn an_entry_prints_as_it_is_read(entry in any_entry()) {
            let value = json::parse(&entry.to_string()).unwrap();
            prop_assert_eq!(Entry::read(&Node::root(&value)), Ok(entry));
        }

        #[test]
        fn no_text_leads_to_a_panic(text in ".*") {
            let _ = Config::from_json(&text);
        }
    }
}
