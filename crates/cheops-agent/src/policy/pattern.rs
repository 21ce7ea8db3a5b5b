//! What an argument may be.
//!
//! `*` stands for any number of characters, `{id}` for the id of the resource, `{file}` for an attached
//! file; all else stands for itself. What must stay true: neither `*` nor `{id}` lets through an option where
//! the pattern names none (`--checkpoint-action=…` for `*`, a resource that is called `-rf`) or a way out of a
//! directory (`..`); an id that holds a `*` is no pattern; matching costs time in proportion to the product of
//! both lengths.

use super::words::{Known, Piece, Word};

/// What one argument may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Is(char),
    Any,
    Id,
    File,
}

/// One step of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Char(char),
    File,
}

impl Pattern {
    /// A pattern. Every text is one.
    pub(super) fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (part, length) = match c {
                _ if rest.starts_with("{id}") => (Part::Id, 4),
                _ if rest.starts_with("{file}") => (Part::File, 6),
                '*' => (Part::Any, 1),
                c => (Part::Is(c), c.len_utf8()),
            };
            parts.push(part);
            rest = &rest[length..];
        }
        Self(parts)
    }

    /// Whether all of an argument matches.
    pub(super) fn matches(&self, word: &Word, known: Known<'_>) -> bool {
        let units = units(word, known);
        let open = |part: &Part| matches!(part, Part::Any | Part::Id);
        let is_option = units.first() == Some(&Unit::Char('-'));
        if is_option && self.0.first().is_some_and(open)
            || self.0.iter().any(open) && leads_out(&units)
        {
            return false;
        }
        let mut wanted: Vec<Part> = Vec::with_capacity(self.0.len());
        for part in &self.0 {
            match part {
                Part::Id => wanted.extend(known.id.chars().map(Part::Is)),
                other => wanted.push(*other),
            }
        }
        glob(&wanted, &units)
    }
}

fn units(word: &Word, known: Known<'_>) -> Vec<Unit> {
    let mut units = Vec::new();
    for piece in &word.0 {
        match piece {
            Piece::Text(text) => units.extend(text.chars().map(Unit::Char)),
            Piece::Id => units.extend(known.id.chars().map(Unit::Char)),
            Piece::Split(whole) => {
                units.extend(known.share(*whole).to_string().chars().map(Unit::Char));
            }
            Piece::File(_) => units.push(Unit::File),
        }
    }
    units
}

/// Whether a part of it leads out of the directory that it begins in. What stands before the dots does not
/// matter, since some programs take a path behind a letter or a sign (`-C..`, `@../x`).
fn leads_out(units: &[Unit]) -> bool {
    let dot = Unit::Char('.');
    let ends = |unit: Option<&Unit>| {
        unit.is_none_or(|unit| matches!(unit, Unit::Char('/' | '=' | ':' | ',') | Unit::File))
    };
    let begins = |at: usize| at == 0 || units[at - 1] != dot;
    (units.windows(2).enumerate())
        .any(|(at, two)| two == [dot, dot] && begins(at) && ends(units.get(at + 2)))
}

fn glob(wanted: &[Part], units: &[Unit]) -> bool {
    let (mut w, mut u) = (0, 0);
    // Where the last `*` is, and what it has taken so far.
    let mut back: Option<(usize, usize)> = None;
    while u < units.len() {
        let fits = match (wanted.get(w), units[u]) {
            (Some(Part::Is(c)), Unit::Char(found)) => *c == found,
            (Some(Part::File), Unit::File) => true,
            _ => false,
        };
        if fits {
            (w, u) = (w + 1, u + 1);
        } else if wanted.get(w) == Some(&Part::Any) {
            back = Some((w, u));
            w += 1;
        } else if let Some((star, taken)) = back {
            back = Some((star, taken + 1));
            (w, u) = (star + 1, taken + 1);
        } else {
            return false;
        }
    }
    wanted[w..].iter().all(|part| *part == Part::Any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::words::split;

    #[test]
    fn an_argument_matches_or_does_not() {
        for (pattern, argument, expected) in [
            ("get", "get", true),
            ("get", "gets", false),
            ("get", "Get", false),
            ("", "''", true),
            ("*", "''", true),
            ("*", "anything", true),
            ("*", "-x", false),
            ("*", "--checkpoint-action=exec=sh", false),
            ("-*", "-x", true),
            ("--replicas=*", "--replicas=3", true),
            ("--replicas=*", "--replicas", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("web-*", "web-", true),
            ("/data/*", "/data/x", true),
            ("/data/*", "/data/../etc/shadow", false),
            ("/data/*", "/data/x/..", false),
            ("/data/*", "/data/..x/y", true),
            ("/data/../x", "/data/../x", true),
            ("--file=*", "--file=../x", false),
            ("*:*", "a:..", false),
            ("-C*", "-C..", false),
            ("-C*", "-C../x", false),
            ("@*", "@../x", false),
            ("@*", "@x", true),
            ("*", "wait...", true),
            ("*", "a..b", true),
            ("*", "..{a}", false),
            ("{id}", "{id}", true),
            ("{id}", "'web*'", true),
            ("{id}", "web-1", false),
            ("key:{id}", "'key:web*'", true),
            ("key:{id}", "key:webs", false),
            ("{file}", "{a}", true),
            ("{file}", "/etc/shadow", false),
            ("@{file}", "@{a}", true),
            ("*", "{a}", true),
            ("*", "{a}/../../x", false),
            ("{split 10}", "'{split 10}'", false),
            ("10", "{split 10}", true),
            ("é*", "éa", true),
        ] {
            let words = split(&format!("program {argument}"), &["a"]).unwrap();
            let known = Known { id: "web*", share: None };
            let found = Pattern::new(pattern).matches(&words[1], known);
            assert_eq!(found, expected, "{pattern} {argument}");
        }
    }

    #[test]
    fn an_id_is_no_option_and_no_way_out_unless_the_pattern_says_so() {
        for (id, pattern, argument, expected) in [
            ("-rf", "{id}", "{id}", false),
            ("-rf", "{id}", "-rf", false),
            ("-rf", "{id}*", "-rfx", false),
            ("-rf", "*", "{id}", false),
            ("-rf", "*{id}", "{id}", false),
            ("rf", "-{id}", "-rf", true),
            ("-rf", "-{id}", "--rf", true),
            ("-rf", "key:{id}", "key:-rf", true),
            ("..", "{id}", "{id}", false),
            ("..", "/data/{id}", "/data/{id}", false),
            ("..", "/data/{id}/x", "/data/{id}/x", false),
            ("a..b", "/data/{id}", "/data/{id}", true),
            // A pattern without anything open is what it says.
            ("x", "-rf", "-rf", true),
            ("x", "..", "..", true),
        ] {
            let words = split(&format!("program {argument}"), &[]).unwrap();
            let found = Pattern::new(pattern).matches(&words[1], Known { id, share: None });
            assert_eq!(found, expected, "{id} {pattern} {argument}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_time() {
        let word = Word(vec![Piece::Text("a".repeat(20_000))]);
        let pattern = Pattern::new(&"a*".repeat(200)).matches(&word, KNOWN);
        assert!(pattern);
        assert!(!Pattern::new(&("*a".repeat(200) + "b")).matches(&word, KNOWN));
    }

    const KNOWN: Known<'_> = Known { id: "x", share: None };
}
