//! The matrix: of two kinds of operations, which stay, and in which order?
//!
//! A matrix is a list of entries, as the operator wrote it. It says nothing about how operations
//! meet: what an entry means for a log is decided elsewhere, and that keeps this module small enough
//! to be checked against the page that documents it.
//!
//! What must stay true: a matrix has at most 255 kinds, so that a kind fits in a byte; where a pair
//! is named twice the first entry counts; a row is counted from 1, as people count.

mod check;
mod circle;
mod explain;
mod parts;
mod read;

use alloc::{collections::BTreeSet, string::String, vec::Vec};
use core::{fmt, time::Duration};

use serde_json::Value;

pub use self::{
    check::{Finding, Severity, What, check},
    circle::{Circle, Step, Wins},
    explain::{Advice, Explanation},
    parts::{PartsError, Share, check_parts},
};
use crate::id::{Kind, Sites};

/// What stays of two operations, one before the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Take {
    /// One of them: the later one.
    One,
    /// Both, in any order.
    Both,
    /// Both, if they come in this order; otherwise the one before.
    BothKeepOrder,
    /// Both, if they come in the other order; otherwise the one after.
    BothReverseOrder,
    /// Both, in the same order at every site.
    BothAgreedOrder,
}

/// What stays of two operations that did not know of each other, where it differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Concurrent {
    /// Both, in the entry's order.
    Both,
    /// The one that the entry names before.
    Before,
    /// The one that the entry names after.
    After,
    /// The later one.
    One,
}

/// A row of the matrix: what to do about an operation of one kind after one of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The kind of the first operation.
    pub before: Kind,
    /// The kind of the second one.
    pub after: Kind,
    /// What stays of the two.
    pub result: Take,
    /// What stays if neither knew of the other; without it, `result` says.
    pub concurrent: Option<Concurrent>,
}

/// The entries, in the order in which they were written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Matrix {
    entries: Vec<Entry>,
    /// The places of the entries, sorted by their pairs and then by row, to look pairs up: a
    /// configuration comes from outside, and can be as long as a message can.
    sorted: Vec<usize>,
}

/// A matrix was to be made from entries that name more than 255 kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a matrix has at most {max} kinds, and this one has {count}", max = Matrix::MAX_KINDS)]
pub struct TooManyKinds {
    /// How many there are.
    pub count: usize,
}

/// What the operator says about a resource: its matrix, and commands that help to look after it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Config {
    /// Which operations stay, and in which order.
    pub matrix: Matrix,
    /// The command that prints the resource's state, so that sites can be compared.
    pub show: Option<String>,
    /// The command that brings the resource back to its start.
    pub reset: Option<String>,
    /// The command that says whether an operation in doubt was run.
    pub check: Option<String>,
    /// How long one operation may run.
    pub timeout: Option<Duration>,
    /// The sites of each part, the prime one first, if each site does only its [share](Share) of an
    /// operation; empty if all do the whole. [`check_parts`] says what can stand here.
    pub parts: Vec<Sites>,
}

impl Config {
    /// The names of the fields that hold a command, and differ from those of another configuration.
    pub fn changed_commands(&self, other: &Self) -> Vec<&'static str> {
        // A new field has to be looked at here: is it a command?
        let Self { matrix: _, show, reset, check, timeout: _, parts: _ } = self;
        [
            ("Show", show, &other.show),
            ("Reset", reset, &other.reset),
            ("Check", check, &other.check),
        ]
        .into_iter()
        .filter(|(_, ours, theirs)| ours != theirs)
        .map(|(field, _, _)| field)
        .collect()
    }

    /// A configuration that says nothing.
    pub const fn nothing() -> Self {
        Self {
            matrix: Matrix { entries: Vec::new(), sorted: Vec::new() },
            show: None,
            reset: None,
            check: None,
            timeout: None,
            parts: Vec::new(),
        }
    }
}

impl Take {
    /// The words for each result; the first for a meaning is the one that is printed.
    pub const WORDS: [(&'static str, Self); 6] = [
        ("take-one", Self::One),
        ("take-both", Self::Both),
        ("take-both-keep-order", Self::BothKeepOrder),
        ("take-both-reverse-order", Self::BothReverseOrder),
        ("take-both-agreed-order", Self::BothAgreedOrder),
        // The original program's word for `take-both`.
        ("take-both-any-order", Self::Both),
    ];

    /// What the entry of the same two kinds the other way round says, if the two agree.
    #[must_use]
    pub fn mirror(self) -> Self {
        match self {
            Self::BothKeepOrder => Self::BothReverseOrder,
            Self::BothReverseOrder => Self::BothKeepOrder,
            Self::One | Self::Both | Self::BothAgreedOrder => self,
        }
    }

    /// Whether an operation that is appended with this entry ends all that came before it.
    pub fn resets(self) -> bool {
        matches!(self, Self::One | Self::BothReverseOrder)
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::One => "take-one",
            Self::Both => "take-both",
            Self::BothKeepOrder => "take-both-keep-order",
            Self::BothReverseOrder => "take-both-reverse-order",
            Self::BothAgreedOrder => "take-both-agreed-order",
        }
    }
}

impl Concurrent {
    /// The words for each answer.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("take-both", Self::Both),
        ("take-before", Self::Before),
        ("take-after", Self::After),
        ("take-one", Self::One),
    ];

    /// The same answer, read from the entry of the two kinds the other way round.
    #[must_use]
    pub fn mirror(self) -> Self {
        match self {
            Self::Before => Self::After,
            Self::After => Self::Before,
            Self::Both | Self::One => self,
        }
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Both => "take-both",
            Self::Before => "take-before",
            Self::After => "take-after",
            Self::One => "take-one",
        }
    }
}

impl fmt::Display for Take {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Concurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Entry {
    /// An entry without a word of its own on concurrency.
    pub fn new(before: &Kind, after: &Kind, result: Take) -> Self {
        Self { before: before.clone(), after: after.clone(), result, concurrent: None }
    }

    fn pair(&self) -> (&Kind, &Kind) {
        (&self.before, &self.after)
    }

    /// The entry that says the same of the two kinds the other way round.
    #[must_use]
    pub fn mirror(&self) -> Self {
        Self {
            before: self.after.clone(),
            after: self.before.clone(),
            result: self.result.mirror(),
            concurrent: self.concurrent.map(Concurrent::mirror),
        }
    }
}

/// As it is written in a configuration.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |kind: &Kind| Value::from(kind.as_str());
        let (before, after) = (text(&self.before), text(&self.after));
        write!(f, r#"{{"Before": {before}, "After": {after}, "Result": "{}""#, self.result)?;
        if let Some(concurrent) = self.concurrent {
            write!(f, r#", "Concurrent": "{concurrent}""#)?;
        }
        f.write_str("}")
    }
}

impl Matrix {
    /// The most kinds that a matrix can name.
    pub const MAX_KINDS: usize = 255;

    /// A matrix of these entries.
    pub fn new(entries: Vec<Entry>) -> Result<Self, TooManyKinds> {
        let mut sorted: Vec<usize> = (0..entries.len()).collect();
        sorted.sort_by(|&x, &y| entries[x].pair().cmp(&entries[y].pair()));
        let matrix = Self { entries, sorted };
        let count = matrix.kinds().len();
        if count > Self::MAX_KINDS { Err(TooManyKinds { count }) } else { Ok(matrix) }
    }

    /// The entries, in the order in which they were written.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The first entry for the pair, with its row counted from 1.
    pub fn entry(&self, before: &Kind, after: &Kind) -> Option<(usize, &Entry)> {
        let pair = (before, after);
        let first = self.sorted.partition_point(|&n| self.entries[n].pair() < pair);
        let n = *self.sorted.get(first)?;
        (self.entries[n].pair() == pair).then(|| (n + 1, &self.entries[n]))
    }

    /// All kinds that an entry names.
    pub fn kinds(&self) -> BTreeSet<Kind> {
        self.entries.iter().flat_map(|entry| [&entry.before, &entry.after]).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_of_a_pair_counts() {
        let kinds = ["c", "a", "b"].map(|kind| kind.parse::<Kind>().unwrap());
        let [c, a, b] = &kinds;
        let matrix = Matrix::new(Vec::from([
            Entry::new(c, a, Take::One),
            Entry::new(a, c, Take::Both),
            Entry::new(a, a, Take::One),
            Entry::new(c, a, Take::Both),
        ]))
        .unwrap();
        let found = |before, after| matrix.entry(before, after).map(|(row, e)| (row, e.result));
        for (before, after, expected) in [
            (c, a, Some((1, Take::One))),
            (a, c, Some((2, Take::Both))),
            (a, a, Some((3, Take::One))),
            (c, c, None),
            (a, b, None),
        ] {
            assert_eq!(found(before, after), expected, "{before} {after}");
        }
        assert_eq!(Matrix::default().entry(a, a), None);
        assert_eq!(Matrix::new(Vec::new()), Ok(Matrix::default()));
    }

    #[test]
    fn a_mirror_of_a_mirror_is_the_entry() {
        let (a, b): (Kind, Kind) = ("a".parse().unwrap(), "b".parse().unwrap());
        for (_, result) in Take::WORDS {
            for (_, concurrent) in Concurrent::WORDS {
                let entry = Entry { concurrent: Some(concurrent), ..Entry::new(&a, &b, result) };
                assert_eq!(entry.mirror().mirror(), entry);
            }
        }
    }
}
