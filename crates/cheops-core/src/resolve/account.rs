//! What became of an operation, in words for people.
//!
//! What must stay true: the agent and `cheops matrix play` word receipts here and nowhere else, and
//! what is said means the same at every site: operations go by their ids, entries by their rows.

use alloc::{format, string::String};
use core::fmt;

use super::{Fate, Receipt, Resolution};
use crate::{
    id::{Kind, OpId},
    log::{Ix, Log},
    matrix::{Concurrent, Entry, Take},
    rules::{Rules, Verdict},
};

/// What became of an operation, and why.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Account {
    /// Whether it is in the block, and if not, in which way it left.
    pub fate: Fate,
    /// The operation that it lost to; nothing for one that is kept, or failed by itself.
    pub by: Option<OpId>,
    /// The row of the matrix that decided, from 1, where one did and it is known.
    pub row: Option<usize>,
    /// Why, in a few words; empty for one that is kept.
    pub because: String,
}

/// `lost to site2:7: set over inc (matrix row 2)`
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fate, &self.by) {
            (Fate::Kept, _) => f.write_str("in the block"),
            (_, Some(by)) => write!(f, "lost to {by}: {}", self.because),
            (_, None) => f.write_str(&self.because),
        }
    }
}

/// Why an operation is a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reset {
    /// The operator said so.
    Forced,
    /// By the append rule.
    Appended {
        /// The row of the matrix, from 1, for the last of the block and this one.
        row: usize,
    },
    /// By the append rule, as a delete does without an entry.
    Delete,
}

impl Resolution {
    /// An operation's receipt in words. `reset` says why the operation that ended it is a reset,
    /// where that is known: an operation carries only that it is one.
    pub fn account(
        &self,
        log: &Log,
        op: Ix,
        receipt: Option<Receipt>,
        reset: Option<Reset>,
    ) -> Account {
        let by = receipt.and_then(Receipt::by).map(|by| log.op(by).id.clone());
        let (row, because) = match receipt {
            None => (None, String::new()),
            Some(Receipt::Void) => (None, format!("void: failed at {}", log.op(op).id.site)),
            Some(Receipt::Over { by }) => self.ended_by(&log.op(by).kind, reset),
            Some(Receipt::Fallen { by, row }) => {
                let (winner, loser) = (&log.op(by).kind, &log.op(op).kind);
                (row, fell(&self.rules, winner, loser, log.earlier(op, by), row))
            }
        };
        Account { fate: self.fate(op), by, row, because }
    }

    fn ended_by(&self, kind: &Kind, reset: Option<Reset>) -> (Option<usize>, String) {
        let by_rule = self.rules.replaces(self.rules.kind(kind));
        match reset {
            Some(Reset::Appended { row }) => {
                (Some(row), format!("reset: {kind} replaced what came before (matrix row {row})"))
            }
            Some(Reset::Delete) => {
                (None, format!("reset: {kind} replaced what came before (by default)"))
            }
            None if by_rule => (None, format!("reset: {kind} replaced what came before")),
            Some(Reset::Forced) | None => {
                (None, format!("force: {kind} replaced what came before"))
            }
        }
    }
}

/// Why an operation lost to a concurrent one. `later`: the winner is the later of the two.
fn fell(rules: &Rules, winner: &Kind, loser: &Kind, later: bool, row: Option<usize>) -> String {
    let entry = row.and_then(|row| {
        let entry = rules.matrix().entries().get(row.checked_sub(1)?)?;
        Some((row, entry))
    });
    let place = |word: Option<&str>| match (word, entry) {
        (Some(word), Some((row, _))) => format!(" ({word}, matrix row {row})"),
        (None, Some((row, _))) => format!(" (matrix row {row})"),
        (_, None) => String::new(),
    };
    let by_time = || {
        let which = if later { "later" } else { "earlier" };
        if winner == loser {
            format!("the {which} of two {winner}")
        } else {
            format!("the {which} of {} and {}", winner.min(loser), winner.max(loser))
        }
    };
    if !entries_agree(rules, winner, loser, later) {
        return format!("{}, whose entries form a circle{}", by_time(), place(None));
    }
    match entry {
        None if winner == loser => format!("{} (by default)", by_time()),
        None => format!("{winner} wins by default"),
        Some((_, entry)) if takes_one(entry) => by_time() + &place(Some("take-one")),
        Some((_, entry)) if winner == loser => by_time() + &place(Some(entry_word(entry))),
        Some(_) => format!("{winner} over {loser}") + &place(None),
    }
}

/// Whether the entries let the winner win, if it is the later or the earlier of the two.
fn entries_agree(rules: &Rules, winner: &Kind, loser: &Kind, later: bool) -> bool {
    let (winner, loser) = (rules.kind(winner), rules.kind(loser));
    if later {
        rules.verdict(loser, winner) == Verdict::Later
    } else {
        rules.verdict(winner, loser) == Verdict::Earlier
    }
}

/// Whether an entry lets the time decide between concurrent operations.
fn takes_one(entry: &Entry) -> bool {
    matches!((entry.concurrent, entry.result), (Some(Concurrent::One), _) | (None, Take::One))
}

/// The word of an entry that decides about concurrent operations.
fn entry_word(entry: &Entry) -> &'static str {
    entry.concurrent.map_or(entry.result.as_str(), Concurrent::as_str)
}
