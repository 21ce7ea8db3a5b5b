//! Findings in the operator's words.
//!
//! Each text says what was found, what it does to two operations, and what could be written
//! instead. What must stay true: the advice can be pasted as it stands, and a matrix that follows
//! one of its proposals no longer has the finding.

use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use super::{Circle, Concurrent, Entry, Finding, Severity, Step, Take, What, Wins};
use crate::id::Kind;

/// A finding, told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What was found, on one line.
    pub title: String,
    /// What it means for operations, in whole sentences.
    pub meaning: String,
    /// What could be written instead: one of these.
    pub advice: Vec<Advice>,
}

/// A proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// When this is the right one, and what to do with the entries.
    pub when: String,
    /// The entries to write.
    pub entries: Vec<Entry>,
}

impl Finding {
    /// The finding in words.
    pub fn explain(&self) -> Explanation {
        let (a, b) = (&self.pair.0, &self.pair.1);
        match &self.what {
            What::Missing { replacing } => missing(a, b, replacing),
            What::NoMirror(entry) => no_mirror(entry),
            What::Contradiction(there, back) => contradiction(self, there, back),
            What::ConcurrentContradiction(there, back) => {
                concurrent_contradiction(&self.rows, there, back)
            }
            What::Twice(entries) => twice(&self.rows, entries),
            What::OrderOfOneKind(entry) => order_of_one_kind(entry),
            What::Circle(circle) => circular(circle),
        }
    }
}

fn missing(a: &Kind, b: &Kind, replacing: &[Kind]) -> Explanation {
    let propose = |when: &str, result| advice(when, both_ways(Entry::new(a, b, result)));
    let any = propose("If the order makes no difference:", Take::Both);
    let agreed =
        propose("If both must run, in the same order at every site:", Take::BothAgreedOrder);
    let one = propose("If the later one makes the earlier one pointless:", Take::One);
    let advice = match replacing {
        // An operation that replaces others of its sort has no use for two of itself.
        _ if a == b && !replacing.is_empty() => vec![one, agreed, any],
        _ if a == b => vec![agreed, one, any],
        [] => vec![agreed, any],
        [kind] => vec![replaces(kind, if kind == a { b } else { a }), agreed, any],
        _ => vec![one, agreed, any],
    };
    let follows = if a == b {
        format!("{} after {}", name(a), name(a))
    } else {
        "One after the other".into()
    };
    Explanation {
        title: if a == b {
            format!("no entry for two {}", name(a))
        } else {
            format!("no entry for {} and {}, in either direction", name(a), name(b))
        },
        meaning: format!(
            "{}, both stay and each site may run them in another order: if the order matters, the \
             sites end up different. {follows} at one site is simply added.",
            apart(a, b)
        ),
        advice,
    }
}

/// The entries that say: `strong` makes an earlier `weak` pointless.
fn replaces(strong: &Kind, weak: &Kind) -> Advice {
    advice(
        format!("If {} makes an earlier {} pointless:", name(strong), name(weak)),
        both_ways(Entry::new(strong, weak, Take::BothKeepOrder)),
    )
}

fn no_mirror(entry: &Entry) -> Explanation {
    let (a, b) = (name(&entry.before), name(&entry.after));
    let mirror = entry.mirror();
    let meaning = if mirror.result.resets() {
        format!(
            "At one site, {a} after {b} is simply added: it does not start over, as it would \
             with the mirror entry. When two sites receive them before they hear of each other, \
             this entry is read backwards and the mirror is not missed."
        )
    } else {
        format!(
            "Nothing changes: at one site {a} after {b} is added, as the mirror entry would \
             say. With it, the matrix says so itself."
        )
    };
    Explanation {
        title: format!("{a} then {b} has an entry, {b} then {a} has none"),
        meaning,
        advice: vec![advice("To say the same in both directions, add:", vec![mirror])],
    }
}

fn contradiction(finding: &Finding, there: &Entry, back: &Entry) -> Explanation {
    let (first, second) = (row(&finding.rows, 0), row(&finding.rows, 1));
    let concurrently = if there.concurrent.is_some() || back.concurrent.is_some() {
        format!("{}, \"Concurrent\" decides.", apart(&there.before, &there.after))
    } else if finding.severity != Severity::Problem {
        "The stricter one is obeyed: both stay, in the same order at every site.".to_owned()
    } else {
        clocks_decide(&finding.rows, there, back)
    };
    Explanation {
        title: format!(
            "{first} says `{}` and {second}, its mirror, says `{}`",
            there.result, back.result
        ),
        meaning: format!(
            "At one site, {} ({first}), and {} ({second}). {concurrently}",
            following(there),
            following(back)
        ),
        advice: vec![
            advice(
                format!("If {first} is right, write for {second}:"),
                vec![Entry { concurrent: back.concurrent, ..there.mirror() }],
            ),
            advice(
                format!("If {second} is right, write for {first}:"),
                vec![Entry { concurrent: there.concurrent, ..back.mirror() }],
            ),
        ],
    }
}

fn concurrent_contradiction(rows: &[usize], there: &Entry, back: &Entry) -> Explanation {
    let (first, second) = (row(rows, 0), row(rows, 1));
    let fixed = |entry: &Entry, other: &Entry| Entry {
        concurrent: other.concurrent.map(Concurrent::mirror),
        ..entry.clone()
    };
    Explanation {
        title: format!("{first} and {second}, its mirror, differ in \"Concurrent\""),
        meaning: clocks_decide(rows, there, back),
        advice: vec![
            advice(format!("If {first} is right, write for {second}:"), vec![fixed(back, there)]),
            advice(format!("If {second} is right, write for {first}:"), vec![fixed(there, back)]),
        ],
    }
}

fn twice(rows: &[usize], entries: &[Entry]) -> Explanation {
    let (kept, others) = (row(rows, 0), rows.get(1..).unwrap_or_default());
    let others = match others {
        [row] => format!("row {row}"),
        rows => format!("rows {}", some(rows.iter().map(ToString::to_string)).join(", ")),
    };
    let mut different: Vec<&Entry> = Vec::new();
    for entry in entries {
        if !different.contains(&entry) {
            different.push(entry);
        }
    }
    let (title, meaning) = if different.len() > 1 {
        (
            "the same pair has entries that differ",
            format!("Only {kept} counts, since it comes first; {others} can't be obeyed as well."),
        )
    } else {
        (
            "the same entry is there more than once",
            format!("Nothing changes as long as they say the same: only {kept} counts."),
        )
    };
    Explanation {
        title: title.to_owned(),
        meaning,
        advice: different
            .into_iter()
            .enumerate()
            .map(|(n, entry)| {
                let when = match n {
                    0 => format!("If {kept} is right, delete {others} and leave:"),
                    _ => "Or, in place of all of them:".to_owned(),
                };
                advice(when, vec![entry.clone()])
            })
            .collect(),
    }
}

fn order_of_one_kind(entry: &Entry) -> Explanation {
    let kind = name(&entry.before);
    let with = |result| vec![Entry { result, ..entry.clone() }];
    let title = format!("`{}` for two operations of the same kind", entry.result);
    let earlier = vec![Entry { concurrent: Some(Concurrent::Before), ..entry.clone() }];
    if entry.result.resets() {
        return Explanation {
            title,
            meaning: format!("It is read as `take-one`: of two {kind}, the later one stays."),
            advice: vec![advice("To say so:", with(Take::One))],
        };
    }
    Explanation {
        title,
        meaning: format!(
            "{}, only the one with the earlier timestamp stays. At one site, {kind} after \
             {kind} is added.",
            apart(&entry.before, &entry.after)
        ),
        advice: vec![
            advice(
                "If both must run, in the same order at every site:",
                with(Take::BothAgreedOrder),
            ),
            advice("If the earlier one is to stay alone, say so:", earlier),
        ],
    }
}

fn circular(circle: &Circle) -> Explanation {
    let told = some(circle.steps().map(step));
    let title = if circle.is_of_kinds() {
        "kinds win over each other in a circle"
    } else {
        "kinds can win over each other in a circle"
    };
    let last = circle.last();
    let cut = |step: &Step, concurrent| {
        both_ways(Entry { concurrent: Some(concurrent), ..step.entry.clone() })
    };
    let (over, under) = (name(&last.over), name(&last.under));
    let mut choices =
        vec![advice(format!("If {over} and {under} may both stay:"), cut(last, Concurrent::Both))];
    if circle.is_of_kinds() {
        let turned =
            if last.under == last.entry.before { Concurrent::Before } else { Concurrent::After };
        choices.push(advice(format!("If {under} is to win over {over}:"), cut(last, turned)));
    } else if circle.steps().filter(|step| step.wins != Wins::Later).count() == 1 {
        let first = &circle.first;
        choices.push(advice(
            format!(
                "If of {} and {} the later one is to stay:",
                name(&first.over),
                name(&first.under)
            ),
            cut(first, Concurrent::One),
        ));
    }
    Explanation {
        title: title.to_owned(),
        meaning: format!(
            "When several sites each receive one of these before they hear of each other, each can \
             lose to another: {}. The later timestamp decides, so the clocks of the sites do.",
            told.join(", ")
        ),
        advice: choices,
    }
}

/// What happens where two rows give two answers about the same concurrent operations.
fn clocks_decide(rows: &[usize], there: &Entry, back: &Entry) -> String {
    format!(
        "{}, {} by {} and {} by {}. The row that starts with the earlier of the two operations is \
         obeyed, so the clocks of the sites decide.",
        apart(&there.before, &there.after),
        outcome(there),
        row(rows, 0),
        outcome(back),
        row(rows, 1)
    )
}

/// One step of a circle in words.
fn step(step: &Step) -> String {
    let (over, under) = (name(&step.over), name(&step.under));
    let row = step.row;
    match step.wins {
        Wins::Always => format!("{over} wins over {under} (row {row})"),
        Wins::Later => format!("of {over} and {under} the later wins (row {row})"),
        Wins::Earlier => format!("of two {over} the earlier wins (row {row})"),
    }
}

/// "When two sites…": the start of a sentence about concurrent operations.
fn apart(a: &Kind, b: &Kind) -> String {
    if a == b {
        format!("When two sites each receive {} before they hear of each other", name(a))
    } else {
        format!(
            "When one site receives {} and another {} before they hear of each other",
            name(a),
            name(b)
        )
    }
}

/// What an entry says of two concurrent operations.
fn outcome(entry: &Entry) -> String {
    let only = |kind: &Kind| format!("only {} stays", name(kind));
    match (entry.concurrent, entry.result) {
        (Some(Concurrent::Before), _) | (None, Take::BothKeepOrder) => only(&entry.before),
        (Some(Concurrent::After), _) | (None, Take::BothReverseOrder) => only(&entry.after),
        (Some(Concurrent::One), _) | (None, Take::One) => "only the later one stays".to_owned(),
        (Some(Concurrent::Both), _) | (None, Take::Both) => "both stay".to_owned(),
        (None, Take::BothAgreedOrder) => "both stay in an agreed order".to_owned(),
    }
}

/// What an entry says of an operation that follows another.
fn following(entry: &Entry) -> String {
    let (before, after) = (name(&entry.before), name(&entry.after));
    if entry.result.resets() {
        format!("{after} after {before} starts over and drops what came before it")
    } else {
        format!("{after} after {before} is added")
    }
}

/// A kind as it stands in a sentence.
fn name(kind: &Kind) -> String {
    format!("`{kind}`")
}

/// A row of those that a finding is about.
fn row(rows: &[usize], n: usize) -> String {
    rows.get(n).map_or_else(|| "the row".to_owned(), |row| format!("row {row}"))
}

fn advice(when: impl Into<String>, entries: Vec<Entry>) -> Advice {
    Advice { when: when.into(), entries }
}

/// The first of many, and how many more there are: a finding can be about every row of a matrix.
fn some(mut told: impl Iterator<Item = String>) -> Vec<String> {
    const NAMED: usize = 10;
    let mut named: Vec<String> = told.by_ref().take(NAMED).collect();
    match (told.next(), told.count()) {
        (Some(last), 0) => named.push(last),
        (Some(_), more) => named.push(format!("and {} more", more + 1)),
        (None, _) => {}
    }
    named
}

/// An entry and its mirror; one is enough where they are the same.
fn both_ways(entry: Entry) -> Vec<Entry> {
    if entry.before == entry.after {
        vec![entry]
    } else {
        let mirror = entry.mirror();
        vec![entry, mirror]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Config, check};

    /// The explanations of a matrix, with the proposals as they would be pasted.
    fn told(rows: &str) -> Vec<(String, String, Vec<String>)> {
        let config = format!(r#"{{"ResolutionMatrix": [{rows}]}}"#);
        let matrix = Config::from_json(&config).unwrap().matrix;
        let pasted = |advice: &Advice| {
            let entries: Vec<String> = advice.entries.iter().map(ToString::to_string).collect();
            format!("{} {}", advice.when, entries.join(", "))
        };
        check(&matrix)
            .iter()
            .map(Finding::explain)
            .map(|e| (e.title, e.meaning, e.advice.iter().map(pasted).collect()))
            .collect()
    }

    #[test]
    fn a_pair_without_an_entry_is_the_trap() {
        let table5 = r#"
            {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
            {"Before": "inc", "After": "set", "Result": "take-both-reverse-order"},
            {"Before": "inc", "After": "inc", "Result": "take-both"}"#;
        let [(title, meaning, advice)] = &told(table5)[..] else { panic!("one finding") };
        assert_eq!(title, "no entry for two `set`");
        assert_eq!(
            meaning,
            "When two sites each receive `set` before they hear of each other, both stay and each \
             site may run them in another order: if the order matters, the sites end up different. \
             `set` after `set` at one site is simply added."
        );
        // `set` replaces `inc`, so the likeliest comes first.
        assert_eq!(
            advice[0],
            "If the later one makes the earlier one pointless: \
             {\"Before\": \"set\", \"After\": \"set\", \"Result\": \"take-one\"}"
        );
    }

    #[test]
    fn an_entry_without_its_mirror_does_not_reset() {
        let rows = r#"
            {"Before": "set", "After": "inc", "Result": "take-both-keep-order"},
            {"Before": "inc", "After": "inc", "Result": "take-both"},
            {"Before": "set", "After": "set", "Result": "take-one"}"#;
        let [(title, meaning, advice)] = &told(rows)[..] else { panic!("one finding") };
        assert_eq!(title, "`set` then `inc` has an entry, `inc` then `set` has none");
        assert!(meaning.starts_with("At one site, `set` after `inc` is simply added"), "{meaning}");
        assert_eq!(
            *advice,
            ["To say the same in both directions, add: \
              {\"Before\": \"inc\", \"After\": \"set\", \"Result\": \"take-both-reverse-order\"}"]
        );
    }

    #[test]
    fn mirrors_that_contradict_each_other_leave_it_to_the_clocks() {
        let rows = r#"
            {"Before": "a", "After": "b", "Result": "take-both-keep-order"},
            {"Before": "b", "After": "a", "Result": "take-one"},
            {"Before": "a", "After": "a", "Result": "take-one"},
            {"Before": "b", "After": "b", "Result": "take-one"}"#;
        let [(_, meaning, advice)] = &told(rows)[..] else { panic!("one finding") };
        assert_eq!(
            meaning,
            "At one site, `b` after `a` is added (row 1), and `a` after `b` starts over and drops \
             what came before it (row 2). When one site receives `a` and another `b` before they \
             hear of each other, only `a` stays by row 1 and only the later one stays by row 2. The \
             row that starts with the earlier of the two operations is obeyed, so the clocks of the \
             sites decide."
        );
        assert_eq!(advice.len(), 2);
    }
}
