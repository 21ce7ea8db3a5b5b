//! What an operator should know about a matrix before relying on it.
//!
//! A finding is about what happens to two operations, never about style. What must stay true: a
//! *problem* is where the matrix says two things at once and something other than the operator
//! (a clock, the order of the rows) decides; a *warning* is where it is silent or likely to say
//! something other than what was meant; a *note* changes nothing. A matrix that answers every
//! question about its own kinds has no finding.
//!
//! The meaning of entries that this relies on:
//!
//! - an operation that follows another at a site is compared with it by the pair's own entry only;
//!   without an entry it is appended;
//! - of two concurrent operations the entry whose `Before` is the earlier one decides, or the other
//!   one read backwards; an entry with `Concurrent` goes first;
//! - of two entries for the same pair the first counts;
//! - `delete` needs no entries: without one it replaces what it follows and wins over what it is
//!   concurrent with, and what follows it is appended.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};

use super::{Circle, Entry, Matrix, Step, Take, circle};
use crate::id::Kind;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The matrix contradicts itself.
    Problem,
    /// The matrix works, and perhaps not as it was meant.
    Warning,
    /// Nothing happens in another way than it seems.
    Note,
}

/// One thing to know about a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The rows that it is about, counted from 1; none where an entry is missing.
    pub rows: Vec<usize>,
    /// The two kinds that it is about; of a circle, the first two.
    pub pair: (Kind, Kind),
    /// What it is.
    pub what: What,
}

/// The sorts of findings, each with the entries that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The pair has no entry in either direction.
    Missing {
        /// Which of the two kinds make what came before them pointless, by other entries.
        replacing: Vec<Kind>,
    },
    /// The pair has an entry in one direction only: this one.
    NoMirror(Entry),
    /// The entries of the two directions don't say the same.
    Contradiction(Entry, Entry),
    /// The entries of the two directions don't say the same about concurrent operations.
    ConcurrentContradiction(Entry, Entry),
    /// The pair has several entries in the same direction, of which the first counts.
    Twice(Vec<Entry>),
    /// An order between two operations of the same kind, which only their timestamps tell apart.
    OrderOfOneKind(Entry),
    /// Kinds that win over each other in a circle when they are concurrent.
    Circle(Circle),
}

/// The first entry of each pair with its row; the entries that repeat it are findings.
type Index<'m> = BTreeMap<(&'m Kind, &'m Kind), (usize, &'m Entry)>;

/// All that is to be said about a matrix: problems first, then in the order of the rows.
pub fn check(matrix: &Matrix) -> Vec<Finding> {
    let mut rows: BTreeMap<(&Kind, &Kind), Vec<(usize, &Entry)>> = BTreeMap::new();
    for (row, entry) in (1..).zip(matrix.entries()) {
        rows.entry((&entry.before, &entry.after)).or_default().push((row, entry));
    }
    let mut findings: Vec<Finding> = rows.values().filter_map(|same| twice(same)).collect();
    let index: Index<'_> =
        rows.iter().filter_map(|(&pair, same)| Some((pair, *same.first()?))).collect();

    let resetting = index.values().filter(|(_, entry)| entry.result.resets());
    let replacing: BTreeSet<&Kind> = resetting.map(|(_, entry)| &entry.after).collect();

    let kinds = matrix.kinds();
    for (n, a) in kinds.iter().enumerate() {
        for b in kinds.iter().skip(n) {
            match (index.get(&(a, b)), index.get(&(b, a))) {
                (None, None) if a.is_delete() || b.is_delete() => {}
                (None, None) => findings.push(missing(&replacing, a, b)),
                // What follows a delete is appended, which is all that could be asked for.
                (Some(&one), None) | (None, Some(&one)) if one.1.after.is_delete() => {}
                (Some(&one), None) | (None, Some(&one)) => findings.push(no_mirror(one)),
                (Some(&one), Some(_)) if a == b => findings.extend(order_of_one_kind(one)),
                (Some(&there), Some(&back)) => {
                    // The row that was written first is the one to start from.
                    let (first, second) =
                        if there.0 < back.0 { (there, back) } else { (back, there) };
                    findings.extend(contradiction(first, second));
                    findings.extend(concurrent_contradiction(first, second));
                }
            }
        }
    }
    findings.extend(circle::find(&wins(&index)).into_iter().map(circular));
    findings.sort_by(|x, y| place(x).cmp(&place(y)));
    findings
}

/// Where a finding stands. Where an entry is missing there is no row: such pairs come last.
fn place(finding: &Finding) -> (Severity, bool, &[usize], &(Kind, Kind)) {
    (finding.severity, finding.rows.is_empty(), &finding.rows, &finding.pair)
}

fn twice(same: &[(usize, &Entry)]) -> Option<Finding> {
    let [(_, first), others @ ..] = same else { return None };
    if others.is_empty() {
        return None;
    }
    let differ = others.iter().any(|(_, other)| other != first);
    Some(Finding {
        severity: if differ { Severity::Problem } else { Severity::Warning },
        rows: same.iter().map(|(row, _)| *row).collect(),
        pair: (first.before.clone(), first.after.clone()),
        what: What::Twice(same.iter().map(|(_, entry)| (*entry).clone()).collect()),
    })
}

fn missing(replacing: &BTreeSet<&Kind>, a: &Kind, b: &Kind) -> Finding {
    let both = if a == b { vec![a] } else { vec![a, b] };
    Finding {
        severity: Severity::Warning,
        rows: Vec::new(),
        pair: (a.clone(), b.clone()),
        what: What::Missing {
            replacing: both.into_iter().filter(|kind| replacing.contains(kind)).cloned().collect(),
        },
    }
}

fn no_mirror((row, entry): (usize, &Entry)) -> Finding {
    // Without an entry an operation is appended; only a mirror that resets is missed.
    let missed = entry.result.mirror().resets();
    Finding {
        severity: if missed { Severity::Warning } else { Severity::Note },
        rows: vec![row],
        pair: (entry.before.clone(), entry.after.clone()),
        what: What::NoMirror(entry.clone()),
    }
}

fn order_of_one_kind((row, entry): (usize, &Entry)) -> Option<Finding> {
    if entry.concurrent.is_some() || entry.result.mirror() == entry.result {
        return None;
    }
    Some(Finding {
        // "The later one stays" is what `take-one` says; "the earlier one" comes as a surprise.
        severity: if entry.result.resets() { Severity::Note } else { Severity::Warning },
        rows: vec![row],
        pair: (entry.before.clone(), entry.after.clone()),
        what: What::OrderOfOneKind(entry.clone()),
    })
}

fn contradiction(there: (usize, &Entry), back: (usize, &Entry)) -> Option<Finding> {
    if there.1.result.mirror() == back.1.result {
        return None;
    }
    // Of "in any order" and "in the same order everywhere" the second includes the first.
    let compatible = |entry: &Entry| matches!(entry.result, Take::Both | Take::BothAgreedOrder);
    let harmless = compatible(there.1) && compatible(back.1);
    Some(Finding {
        severity: if harmless { Severity::Warning } else { Severity::Problem },
        rows: vec![there.0, back.0],
        pair: (there.1.before.clone(), there.1.after.clone()),
        what: What::Contradiction(there.1.clone(), back.1.clone()),
    })
}

fn concurrent_contradiction(there: (usize, &Entry), back: (usize, &Entry)) -> Option<Finding> {
    let (Some(said), Some(answered)) = (there.1.concurrent, back.1.concurrent) else {
        return None;
    };
    (said.mirror() != answered).then(|| Finding {
        severity: Severity::Problem,
        rows: vec![there.0, back.0],
        pair: (there.1.before.clone(), there.1.after.clone()),
        what: What::ConcurrentContradiction(there.1.clone(), back.1.clone()),
    })
}

/// Who wins over whom when they are concurrent. Pairs that contradict themselves are left out:
/// they are findings already, and no circle can be told while they are open.
fn wins(index: &Index<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for (&(a, b), &(row, entry)) in index {
        let back = if a == b { None } else { index.get(&(b, a)).copied() };
        if let Some((back_row, back)) = back {
            let contradict = contradiction((row, entry), (back_row, back)).is_some()
                || concurrent_contradiction((row, entry), (back_row, back)).is_some();
            let other_speaks = back.concurrent.is_some() && entry.concurrent.is_none();
            let read_already =
                back.concurrent.is_some() == entry.concurrent.is_some() && back_row < row;
            if contradict || other_speaks || read_already {
                continue;
            }
        }
        steps.extend(circle::steps(row, entry));
    }
    steps
}

fn circular(circle: Circle) -> Finding {
    let rows: BTreeSet<usize> = circle.steps().map(|step| step.row).collect();
    Finding {
        // Whether a circle that needs the help of time closes is a matter of chance.
        severity: if circle.is_of_kinds() { Severity::Problem } else { Severity::Warning },
        rows: rows.into_iter().collect(),
        pair: (circle.first.over.clone(), circle.first.under.clone()),
        what: What::Circle(circle),
    }
}

#[cfg(test)]
mod tests {
    use alloc::{
        format,
        string::{String, ToString},
    };

    use proptest::prelude::*;

    use super::{super::Concurrent, *};
    use crate::Rules;

    /// A matrix of rows such as `set inc take-both-keep-order take-both`.
    fn matrix(rows: &[&str]) -> Matrix {
        let entries = rows.iter().map(|row| {
            let words: Vec<&str> = row.split(' ').collect();
            let find = |word: &&str| Concurrent::WORDS.iter().find(|(w, _)| w == word).unwrap().1;
            Entry {
                before: words[0].parse().unwrap(),
                after: words[1].parse().unwrap(),
                result: Take::WORDS.iter().find(|(word, _)| *word == words[2]).unwrap().1,
                concurrent: words.get(3).map(find),
            }
        });
        Matrix::new(entries.collect()).unwrap()
    }

    /// The findings, each on a line: `Warning [1, 2] a b Missing`.
    fn found(rows: &[&str]) -> Vec<String> {
        check(&matrix(rows)).iter().map(told).collect()
    }

    fn told(finding: &Finding) -> String {
        let what = format!("{:?}", finding.what);
        let what = what.split(|c: char| !c.is_alphabetic()).next().unwrap();
        let (a, b) = &finding.pair;
        format!("{:?} {:?} {a} {b} {what}", finding.severity, finding.rows)
    }

    #[test]
    fn the_tables_of_the_report() {
        assert_eq!(found(&["apply apply take-one"]), [""; 0]);
        assert_eq!(
            found(&[
                "set inc take-both-keep-order",
                "inc set take-both-reverse-order",
                "inc inc take-both",
            ]),
            ["Warning [] set set Missing"]
        );
        assert_eq!(
            found(&[
                "set add take-both-keep-order",
                "add set take-both-reverse-order",
                "set set take-one",
            ]),
            ["Warning [] add add Missing"]
        );
        assert_eq!(found(&[]), [""; 0]);
    }

    #[test]
    fn pairs_and_their_mirrors() {
        // (there, back, finding), with (a, a) and (b, b) in order.
        for (there, back, expected) in [
            ("take-one", "take-one", ""),
            ("take-both", "take-both", ""),
            ("take-both-agreed-order", "take-both-agreed-order", ""),
            ("take-both-keep-order", "take-both-reverse-order", ""),
            ("take-both-reverse-order", "take-both-keep-order", ""),
            ("take-both-keep-order", "take-both-keep-order", "Problem [1, 2] a b Contradiction"),
            (
                "take-both-reverse-order",
                "take-both-reverse-order",
                "Problem [1, 2] a b Contradiction",
            ),
            ("take-one", "take-both", "Problem [1, 2] a b Contradiction"),
            ("take-one", "take-both-keep-order", "Problem [1, 2] a b Contradiction"),
            ("take-both", "take-both-agreed-order", "Warning [1, 2] a b Contradiction"),
            ("take-both-keep-order take-both", "take-both-reverse-order", ""),
            ("take-both-keep-order take-both", "take-both-reverse-order take-both", ""),
            ("take-both-keep-order take-after", "take-both-reverse-order take-before", ""),
            (
                "take-both-keep-order take-after",
                "take-both-reverse-order take-after",
                "Problem [1, 2] a b ConcurrentContradiction",
            ),
            (
                "take-one take-one",
                "take-one take-both",
                "Problem [1, 2] a b ConcurrentContradiction",
            ),
            ("take-one", "", "Warning [1] a b NoMirror"),
            ("take-both-keep-order", "", "Warning [1] a b NoMirror"),
            ("take-both-reverse-order", "", "Note [1] a b NoMirror"),
            ("take-both", "", "Note [1] a b NoMirror"),
            ("take-both-agreed-order", "", "Note [1] a b NoMirror"),
        ] {
            let mut rows = vec![format!("a b {there}")];
            if !back.is_empty() {
                rows.push(format!("b a {back}"));
            }
            rows.extend(["a a take-one", "b b take-one"].map(ToString::to_string));
            let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
            let expected: Vec<&str> =
                Some(expected).filter(|e| !e.is_empty()).into_iter().collect();
            assert_eq!(found(&rows), expected, "{rows:?}");
        }
    }

    #[test]
    fn one_kind() {
        for (row, expected) in [
            ("a a take-both-keep-order", "Warning [1] a a OrderOfOneKind"),
            ("a a take-both-reverse-order", "Note [1] a a OrderOfOneKind"),
            ("a a take-both-keep-order take-before", ""),
            ("a a take-both-keep-order take-both", ""),
            ("a a take-both-agreed-order", ""),
        ] {
            let expected: Vec<&str> =
                Some(expected).filter(|e| !e.is_empty()).into_iter().collect();
            assert_eq!(found(&[row]), expected, "{row}");
        }
    }

    #[test]
    fn the_same_pair_twice() {
        for (again, severity) in [
            ("a a take-one", "Warning"),
            ("a a take-both", "Problem"),
            ("a a take-one take-both", "Problem"),
        ] {
            let expected = format!("{severity} [1, 2] a a Twice");
            assert_eq!(found(&["a a take-one", again]), [expected], "{again}");
        }
        // A repeated row does not hide what the first one says.
        assert_eq!(
            found(&["a a take-one", "a a take-one", "b a take-one", "b b take-one"]),
            ["Warning [1, 2] a a Twice", "Warning [3] b a NoMirror"]
        );
    }

    #[test]
    fn circles() {
        let selves = ["a a take-one", "b b take-one", "c c take-one"];
        let with = |pairs: [&'static str; 3]| {
            let mut rows = pairs.to_vec();
            let mirrors: Vec<String> = pairs
                .iter()
                .map(|row| matrix(&[*row]).entries()[0].mirror())
                .map(|e| format!("{} {} {}", e.before, e.after, e.result))
                .collect();
            rows.extend(mirrors.iter().map(String::as_str));
            rows.extend(selves);
            found(&rows)
        };
        let keep = ["a b take-both-keep-order", "b c take-both-keep-order"];
        let (over, under) = ("a c take-both-keep-order", "c a take-both-keep-order");
        assert_eq!(with([keep[0], keep[1], over]), [""; 0]);
        assert_eq!(with([keep[0], keep[1], under]), ["Problem [1, 2, 3] a b Circle"]);
        // The closing step may be left to the clocks, and closes only sometimes.
        assert_eq!(with([keep[0], keep[1], "a c take-one"]), ["Warning [1, 2, 3] a b Circle"]);
        assert_eq!(with([keep[0], keep[1], "a c take-both"]), [""; 0]);
        assert_eq!(with(["a b take-one", "b c take-one", "a c take-one"]), [""; 0]);
        assert_eq!(with([keep[0], "b c take-both", under]), [""; 0]);
        assert_eq!(
            found(&["a a take-one take-before", "a b take-one", "b a take-one", "b b take-one"]),
            ["Warning [1, 2] a a Circle"]
        );
        // A word on concurrency cuts the circle, in either of the mirrors.
        assert_eq!(with([keep[0], keep[1], "c a take-both-keep-order take-both"]), [""; 0]);
    }

    fn any_matrix() -> impl Strategy<Value = Matrix> {
        let kind = || proptest::sample::select(vec!["a", "b", "c", "d"]);
        let result = proptest::sample::select(Take::WORDS.to_vec());
        let concurrent = proptest::sample::select(Concurrent::WORDS.to_vec());
        let entry = (kind(), kind(), result, proptest::option::of(concurrent)).prop_map(
            |(before, after, (_, result), concurrent)| Entry {
                before: before.parse().unwrap(),
                after: after.parse().unwrap(),
                result,
                concurrent: concurrent.map(|(_, word)| word),
            },
        );
        proptest::collection::vec(entry, 0..14).prop_map(|entries| Matrix::new(entries).unwrap())
    }

    /// A matrix whose mirrors agree.
    fn consistent_matrix() -> impl Strategy<Value = Matrix> {
        any_matrix().prop_map(|matrix| {
            let mut entries: Vec<Entry> = Vec::new();
            for entry in matrix.entries() {
                let told = |other: &Entry| {
                    let pair = (&other.before, &other.after);
                    pair == (&entry.before, &entry.after) || pair == (&entry.after, &entry.before)
                };
                if !entries.iter().any(told) {
                    entries.push(entry.clone());
                    if entry.before != entry.after {
                        entries.push(entry.mirror());
                    }
                }
            }
            Matrix::new(entries).unwrap()
        })
    }

    /// The matrix with the proposal in place of what it said of these pairs.
    fn follow(matrix: &Matrix, proposal: &[Entry]) -> Matrix {
        let same = |x: &Entry, y: &Entry| x.before == y.before && x.after == y.after;
        let mut entries: Vec<Entry> = matrix
            .entries()
            .iter()
            .filter(|entry| !proposal.iter().any(|new| same(new, entry)))
            .cloned()
            .collect();
        entries.extend(proposal.iter().cloned());
        Matrix::new(entries).unwrap()
    }

    proptest! {
        #[test]
        fn advice_that_is_followed_helps(matrix in any_matrix()) {
            for finding in check(&matrix) {
                let explanation = finding.explain();
                prop_assert!(!explanation.advice.is_empty());
                for advice in explanation.advice {
                    let after = check(&follow(&matrix, &advice.entries));
                    let again = after.iter().find(|f| f.pair == finding.pair && f.what == finding.what);
                    prop_assert_eq!(again, None, "{:?}\n{:?}", matrix, advice);
                }
            }
        }

        #[test]
        fn circles_are_found_where_the_rules_are_tangled(matrix in consistent_matrix()) {
            let found = check(&matrix).iter().any(|f| matches!(f.what, What::Circle(_)));
            prop_assert_eq!(found, Rules::new(&matrix).tangled());
        }

        #[test]
        fn a_matrix_without_findings_stays_so_when_its_rows_move(matrix in any_matrix()) {
            let mut entries = matrix.entries().to_vec();
            entries.reverse();
            let turned = Matrix::new(entries).unwrap();
            prop_assert_eq!(check(&matrix).is_empty(), check(&turned).is_empty());
        }
    }
}
