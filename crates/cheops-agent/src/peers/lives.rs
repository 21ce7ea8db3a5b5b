//! Whether one agent is at the other end of a link, or two agents that have the same key.
//!
//! Pure. An agent draws a number at each start, its *life*, and says it when a link is made. An agent that was
//! started again has a new one, and the old one is gone for good. So a life that comes back after another one
//! belongs to an agent that still runs: there are two.
//!
//! A life may come back once although its agent is gone: what it had sent before it was killed may arrive after
//! the greeting of its successor. It can't come back twice. So there are two agents if one life has come back
//! [`RETURNS`] times while a newer one was known. That the newest one comes back says nothing: it takes the place
//! of such a late greeting.
//!
//! Invariant: what is remembered is bounded, however often an agent is started.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How many lives are remembered.
const MOST: usize = 8;
/// How often a life has to come back before that is taken for a second agent.
const RETURNS: u32 = 2;
/// For how long two agents are reported after one of them was last seen to come back.
const LASTS: Duration = Duration::from_mins(10);

/// The lives that were seen of one site.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// The last one is the one that was seen last.
    seen: VecDeque<Life>,
    /// The one that was seen for the first time last.
    newest: Option<u64>,
    /// When a life last came back that had done so before.
    alternated: Option<Instant>,
}

#[derive(Debug)]
struct Life {
    life: u64,
    returns: u32,
}

impl Lives {
    /// Takes note that a link was made with an agent. Whether it shows for the first time, or again after a
    /// while, that there are two.
    pub(super) fn linked(&mut self, life: u64, now: Instant) -> bool {
        let known = self.seen.iter().position(|seen| seen.life == life);
        if known.is_some_and(|at| at + 1 == self.seen.len()) {
            return false;
        }
        let before = known.and_then(|at| self.seen.remove(at));
        if before.is_none() {
            self.newest = Some(life);
        }
        let counts = self.newest != Some(life);
        let returns = before.map_or(0, |before| before.returns.saturating_add(u32::from(counts)));
        if self.seen.len() == MOST {
            self.seen.pop_front();
        }
        self.seen.push_back(Life { life, returns });
        let reported = self.are_two(now);
        let alternates = counts && returns >= RETURNS;
        if alternates {
            self.alternated = Some(now);
        }
        !reported && alternates
    }

    /// Whether two agents have the key of the site, as far as links have shown lately.
    pub(super) fn are_two(&self, now: Instant) -> bool {
        self.alternated.is_some_and(|then| now.saturating_duration_since(then) < LASTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_agents_are_told_from_one_that_is_started_again() {
        for (lives, expected) in [
            (&[1][..], false),
            (&[1, 1, 1, 1], false),
            (&[1, 2, 3, 4, 5], false),
            (&[1, 1, 2, 2, 3, 3], false),
            // A late greeting of an agent that was killed.
            (&[1, 2, 1, 2, 2], false),
            (&[1, 2, 1, 2, 3, 2], false),
            (&[1, 2, 1, 2, 1], true),
            (&[1, 2, 1, 1, 2, 2, 1], true),
            // Three agents, and one of two that is started again and again.
            (&[1, 2, 3, 1, 2, 3, 1], true),
            (&[1, 2, 1, 3, 1], true),
        ] {
            let (mut seen, now) = (Lives::default(), Instant::now());
            let news = lives.iter().filter(|life| seen.linked(**life, now)).count();
            assert_eq!(seen.are_two(now), expected, "{lives:?}");
            assert_eq!(news, usize::from(expected), "{lives:?}: said once");
        }
    }

    #[test]
    fn what_was_long_ago_is_not_reported_and_no_number_of_starts_takes_memory() {
        let (mut seen, start) = (Lives::default(), Instant::now());
        assert!([1, 2, 1, 2, 1].iter().any(|life| seen.linked(*life, start)));
        assert!(seen.are_two(start + LASTS / 2));
        assert!(!seen.are_two(start + LASTS));
        assert!(!seen.linked(2, start + LASTS));
        assert!(seen.linked(1, start + LASTS), "said again");
        for life in 10..1_000 {
            assert!(!seen.linked(life, start + 3 * LASTS));
            assert!(seen.seen.len() <= MOST);
        }
        assert!(!seen.are_two(start + 3 * LASTS));
    }
}
