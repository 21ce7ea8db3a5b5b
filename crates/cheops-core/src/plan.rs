//! The plan: what a site must run next, from what it has run to the block.
//!
//! An operation *replaces* when the state after it does not depend on what came before: it is a
//! reset, or its kind can replace another in the matrix. Only the block from its last replacing
//! operation on, the *tail*, counts:
//! - what was run since that operation is a prefix of the tail: run what follows;
//! - every pair that was run in another order commutes, and nothing that was run has left the
//!   tail: run what is missing;
//! - the tail is made of requests, which set what they name: run again what has to come after something
//!   that was run later, and nothing else;
//! - otherwise run again from that operation; where none replaces, from the start, after the
//!   resource's `Reset` command;
//! - otherwise the resource needs a decision.
//!
//! What must stay true: once [`Journal::next`] says [`Step::Rest`], the application is in the
//! state of a fresh one that ran the block once, provided that the matrix tells the truth about
//! the application, that a command that fails changes nothing, and that of requests that set the same
//! thing the last one counts.
//!
//! The plan is made one step at a time and keeps nothing between steps but the journal. A replay
//! needs no state of its own: once the replacing operation has run again, what was run since is a
//! prefix of the tail.

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};

use crate::{
    few::{Few, OnDemand},
    log::{Ix, Log},
    resolve::{Fate, Resolution},
    rules::KindIx,
};

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing: the application has seen the block.
    Rest,
    /// Run an operation.
    Run {
        /// Which one.
        op: Ix,
        /// It replaces the state: what was run before it counts no more.
        fresh: bool,
    },
    /// Run the resource's `Reset` command, and then the block from its start.
    Clear,
    /// Something that was run has left the block, and there is no way back: a person must decide.
    Decide,
}

/// One thing that a site does on its way to the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// It runs an operation.
    Run {
        /// Which one.
        op: Ix,
        /// It ran this one before.
        again: bool,
        /// The operation replaces the state: what was run before it counts no more.
        fresh: bool,
        /// The command fails.
        failed: bool,
    },
    /// It runs the resource's `Reset` command.
    Clear,
    /// It can't go on: something that was run has left the block, and a person must decide.
    Decide,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It may or may not have happened.
    Unknown,
    /// The command failed.
    Ko,
    /// The command succeeded.
    Ok,
    /// The site's policy does not let it run: nothing was started.
    Denied,
}

impl Outcome {
    /// Whether it has changed nothing: the command failed, or was not let run.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Ko | Self::Denied)
    }
}

/// How many runs were in vain, since when, and in a block of which length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Counted {
    vain: u32,
    since: u32,
    block: usize,
    /// Operations that failed after that.
    more: Vec<Ix>,
}

/// What a comparison of the tail with the runs has found.
enum Found {
    /// All of the tail was run, in an order that amounts to it.
    All,
    /// So was what came first; this operation is the first that is missing.
    Missing(Ix),
    /// Something else was run, or in another order.
    Disorder,
}

/// What a site has run for a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Journal {
    /// For each operation of the log, the number of its last run here; 0 if there was none.
    runs: Few<u32>,
    /// The number of the last run.
    last: u32,
    /// The first run that the state still depends on.
    since: u32,
    /// The operation that replaced the state in that run; nothing if the state began empty.
    base: Option<Ix>,
    /// How often the state has been made anew.
    era: u32,
    /// Nobody knows the state: something that was to replace it may or may not have happened.
    unsure: bool,
    /// Operations that failed here since then.
    failed: OnDemand<BTreeSet<Ix>>,
    /// The numbers of failed runs since then whose operations are void, ascending.
    vain: OnDemand<Vec<u32>>,
    /// What was found when failed runs were last counted, as long as it holds.
    counted: Option<Box<Counted>>,
    /// How much of the block, counted from its start, needs no second look: its tail up to here
    /// was run, in this order or one that amounts to it.
    checked: usize,
    /// The run that the tail began with when that was found, and its place in the block. A tail that
    /// begins with another run, or earlier in the block, needs a look of its own.
    checked_since: u32,
    checked_from: u32,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            runs: Few::default(),
            last: 0,
            since: 1,
            base: None,
            era: 0,
            unsure: false,
            failed: OnDemand::default(),
            vain: OnDemand::default(),
            counted: None,
            checked: 0,
            checked_since: 0,
            checked_from: 0,
        }
    }
}

impl Journal {
    /// Takes note that the block has changed, from a place on.
    pub fn changed(&mut self, from: usize) {
        self.checked = self.checked.min(from);
        // As long as operations are only appended, none of those that failed can have left.
        self.counted.take_if(|counted| from < counted.block);
    }

    /// Takes note of a run. `fresh` as the step said.
    pub fn ran(&mut self, op: Ix, fresh: bool, outcome: Outcome) {
        if self.runs.len() <= op.usize() {
            self.runs.resize(op.usize() + 1, 0);
        }
        self.last += 1;
        self.runs[op.usize()] = self.last;
        if self.failed.filled_mut().is_some_and(|failed| failed.remove(&op)) {
            self.counted = None;
        }
        if outcome.is_failure() {
            self.failed.make().insert(op);
            if let Some(counted) = &mut self.counted {
                counted.more.push(op);
            }
        } else if fresh && outcome == Outcome::Ok {
            self.begin(self.last, Some(op));
        } else if fresh {
            self.doubt();
        }
        if fresh {
            self.checked = 0;
        }
    }

    fn begin(&mut self, since: u32, base: Option<Ix>) {
        self.since = since;
        self.base = base;
        self.era += 1;
        self.unsure = false;
        self.failed = OnDemand::default();
        self.vain = OnDemand::default();
        self.counted = None;
    }

    /// Takes note that the state may or may not have been replaced: only one that is made anew is
    /// known again. So it is while the `Reset` command runs, and after it failed.
    pub fn doubt(&mut self) {
        self.base = None;
        self.unsure = true;
    }

    /// Whether the state is known: nothing that was to replace it may or may not have happened.
    pub(crate) fn is_sure(&self) -> bool {
        !self.unsure
    }

    /// Takes note that the `Reset` command was run: the state is empty.
    pub fn cleared(&mut self) {
        self.begin(self.last + 1, None);
        self.checked = 0;
    }

    /// How often the state has been made anew, by an operation that replaces or by `Reset`. What was
    /// run before the last time has left no trace in it.
    pub fn era(&self) -> u32 {
        self.era
    }

    /// Takes note that the state was made anew more often than the runs that are known tell.
    pub(crate) fn reach(&mut self, era: u32) {
        self.era = self.era.max(era);
    }

    /// The number of an operation's last run, 0 if it has not been run.
    fn run(&self, op: Ix) -> u32 {
        self.runs.get(op.usize()).copied().unwrap_or(0)
    }

    /// The operations that failed here since the state was last made anew.
    fn failed(&self) -> impl Iterator<Item = Ix> {
        self.failed.filled().into_iter().flatten().copied()
    }

    /// Whether an operation is one of them.
    fn has_failed(&self, op: Ix) -> bool {
        self.failed.filled().is_some_and(|failed| failed.contains(&op))
    }

    /// Whether an operation was run and the state still depends on that run.
    pub fn counts(&self, op: Ix) -> bool {
        self.run(op) >= self.since
    }

    /// Whether the state began empty after an operation was last run.
    pub(crate) fn was_cleared(&self, op: Ix) -> bool {
        self.is_sure() && self.base.is_none() && !self.counts(op)
    }

    /// The journal of a log without the operations that have no new place in it; nothing if the state
    /// depends on them. What made the state anew and is gone has left it empty.
    pub(crate) fn moved(&self, place: impl Fn(Ix) -> Option<Ix>) -> Option<Self> {
        if self.unsure {
            return None;
        }
        let base = self.base.map(&place);
        let since = if base == Some(None) { self.since + 1 } else { self.since };
        let mut moved =
            Self { last: self.last, since, base: base.flatten(), era: self.era, ..Self::default() };
        for op in self.failed().filter_map(&place) {
            moved.failed.make().insert(op);
        }
        let mut vain: Vec<u32> = self.vain.iter().copied().filter(|&run| run >= since).collect();
        for (op, &run) in self.runs.iter().enumerate() {
            let op = Ix::new(op);
            match place(op) {
                Some(op) => {
                    if moved.runs.len() <= op.usize() {
                        moved.runs.resize(op.usize() + 1, 0);
                    }
                    moved.runs[op.usize()] = run;
                }
                // A run that failed has changed nothing.
                None if run >= since && self.has_failed(op) => vain.push(run),
                None if run >= since && !self.vain.contains(&run) => return None,
                None => {}
            }
        }
        if !vain.is_empty() {
            vain.sort_unstable();
            *moved.vain.make() = vain;
        }
        Some(moved)
    }

    /// A journal that knows nothing of the state, and counts on.
    pub(crate) fn anew(&self) -> Self {
        let since = self.last + 1;
        Self { last: self.last, since, era: self.era, unsure: true, ..Self::default() }
    }

    /// The operation that the state began with; nothing if it began empty.
    pub(crate) fn base(&self) -> Option<Ix> {
        self.base
    }

    /// Goes all the way to the block, or until it takes a decision, or after so many steps. What
    /// `fails` is void then; all else succeeds.
    pub(crate) fn follow(
        &mut self,
        log: &Log,
        resolution: &mut Resolution,
        can_clear: bool,
        fails: impl Fn(Ix) -> bool,
        most: usize,
    ) -> Vec<Act> {
        let mut acts = Vec::new();
        while acts.len() < most {
            match self.next(log, resolution, can_clear) {
                Step::Rest => break,
                Step::Decide => {
                    acts.push(Act::Decide);
                    break;
                }
                Step::Clear => {
                    self.cleared();
                    acts.push(Act::Clear);
                }
                Step::Run { op, fresh } => {
                    let (again, failed) = (self.run(op) > 0, fails(op));
                    acts.push(Act::Run { op, again, fresh, failed });
                    self.ran(op, fresh, if failed { Outcome::Ko } else { Outcome::Ok });
                    if failed {
                        self.changed(resolution.void(log, op).from);
                    }
                }
            }
        }
        acts
    }

    /// What to do next. `can_clear`: the resource has a `Reset` command that may be tried.
    pub fn next(&mut self, log: &Log, resolution: &Resolution, can_clear: bool) -> Step {
        let block = resolution.block();
        let restart = match resolution.last_replacing() {
            Some(place) => Step::Run { op: block[place], fresh: true },
            None if can_clear => Step::Clear,
            None => Step::Decide,
        };
        // Where the tail begins, in the block and in time.
        let (from, since) = match resolution.last_replacing() {
            Some(place) => {
                let first = block[place];
                let failed = self.has_failed(first) && self.counts(first);
                if failed && self.unsure {
                    return if can_clear { Step::Clear } else { Step::Decide };
                }
                if self.base != Some(first) && !failed {
                    return restart;
                }
                (place, self.run(first))
            }
            None if self.base.is_some() || self.unsure => return restart,
            None => (0, self.since),
        };
        let runs = self.last + 1 - since - self.vain(resolution, since);
        match self.compare(resolution, from, since, runs) {
            // The run that should have replaced the state failed, so what was run before is still
            // in it: to run that again would do it twice.
            Found::Missing(op) if since > self.since && self.counts(op) => {
                if can_clear {
                    Step::Clear
                } else {
                    Step::Decide
                }
            }
            Found::All => Step::Rest,
            Found::Missing(op) => Step::Run { op, fresh: resolution.replaces(log, op) },
            Found::Disorder if self.are_requests(log, &block[from..], since) => {
                self.in_order(log, resolution, from, since)
            }
            Found::Disorder => {
                self.checked = 0;
                restart
            }
        }
    }

    /// Whether a tail, and all else that the state depends on, is made of requests.
    fn are_requests(&self, log: &Log, tail: &[Ix], since: u32) -> bool {
        let is_request = |op: Ix| log.op(op).action.is_request();
        let runs = self.runs.iter().enumerate().filter(|(_, run)| **run >= since);
        !tail.is_empty()
            && tail.iter().all(|&op| is_request(op))
            && runs.map(|(op, _)| Ix::new(op)).all(is_request)
    }

    /// The next request of a tail of requests that has to be sent, for the first time or once more, so
    /// that the last times they were sent are in the order of the tail. What is not sent twice keeps
    /// its place.
    fn in_order(&mut self, log: &Log, resolution: &Resolution, from: usize, since: u32) -> Step {
        let tail = &resolution.block()[from..];
        let base = self.base.filter(|base| tail.first() == Some(base));
        let mut latest: Vec<(KindIx, u32)> = Vec::new();
        let left = self.runs.iter().enumerate().map(|(op, &run)| (Ix::new(op), run));
        let left = left.filter(|&(op, run)| {
            run >= since && resolution.fate(op) != Fate::Kept && !self.has_failed(op)
        });
        // Whatever left the block and was run may have set what these set.
        let left = left.map(|(_, run)| run).max().unwrap_or(0);
        if let Some(op) = base.filter(|&base| left > 0 && log.op(base).action.is_repeatable()) {
            return Step::Run { op, fresh: true };
        }
        for &op in tail.iter().filter(|&&op| Some(op) != base) {
            let (run, kind) = (self.run(op), resolution.kind(op));
            let sent = run >= since;
            let fits = |&(other, last): &(KindIx, u32)| {
                last < run || resolution.rules().commute(other, kind)
            };
            let again = run < left || !latest.iter().all(fits);
            if !sent || (again && log.op(op).action.is_repeatable()) {
                return Step::Run { op, fresh: resolution.replaces(log, op) };
            }
            if again {
                continue;
            }
            match latest.iter_mut().find(|(k, _)| *k == kind) {
                Some((_, last)) => *last = run.max(*last),
                None => latest.push((kind, run)),
            }
        }
        self.settle(tail, since);
        Step::Rest
    }

    /// Takes the last runs of a tail as if they had been the only ones since it began.
    fn settle(&mut self, tail: &[Ix], since: u32) {
        for run in self.runs.iter_mut().filter(|run| **run >= since) {
            *run = 0;
        }
        self.last = since.saturating_sub(1);
        for op in tail {
            self.last += 1;
            if let Some(run) = self.runs.get_mut(op.usize()) {
                *run = self.last;
            }
        }
        if let Some(failed) = self.failed.filled_mut() {
            failed.retain(|op| tail.contains(op));
        }
        if let Some(vain) = self.vain.filled_mut() {
            vain.retain(|&run| run < since);
        }
        self.counted = None;
        self.checked = 0;
    }

    /// How many runs since then failed and are of operations that have left the block: they
    /// changed nothing, and nothing is owed for them.
    fn vain(&mut self, resolution: &Resolution, since: u32) -> u32 {
        if self.failed().next().is_none() && self.vain.is_empty() {
            return 0;
        }
        let runs = &self.runs;
        let fallen = |op: &Ix| runs[op.usize()] >= since && resolution.fate(*op) != Fate::Kept;
        let block = resolution.block();
        let still_holds = |counted: &&mut Box<Counted>| {
            // One that had left may have come back as the last of the block.
            let appended = &block[counted.block.min(block.len())..];
            counted.since == since
                && !appended
                    .iter()
                    .any(|op| self.failed.filled().is_some_and(|failed| failed.contains(op)))
        };
        if let Some(counted) = self.counted.as_mut().filter(still_holds) {
            let more = counted.more.drain(..).filter(fallen).count();
            counted.vain += u32::try_from(more).unwrap_or(u32::MAX);
            counted.block = block.len();
            return counted.vain;
        }
        // Void is for good; the others may come back.
        let is_void = |op: &Ix| resolution.fate(*op) == Fate::Void;
        for op in self.failed.make().extract_if(.., is_void) {
            let run = runs[op.usize()];
            let at = self.vain.partition_point(|&other| other < run);
            self.vain.make().insert(at, run);
        }
        let void = self.vain.len() - self.vain.partition_point(|&run| run < since);
        let vain = self.failed().filter(|op| fallen(op)).count() + void;
        let vain = u32::try_from(vain).unwrap_or(u32::MAX);
        let counted = Counted { vain, since, block: block.len(), more: Vec::new() };
        self.counted = Some(Box::new(counted));
        vain
    }

    /// Compares the tail with what was run since it began: `runs` operations.
    fn compare(&mut self, resolution: &Resolution, from: usize, since: u32, runs: u32) -> Found {
        let block = resolution.block();
        let place = u32::try_from(from).unwrap_or(u32::MAX);
        if self.checked_since != since || place < self.checked_from {
            (self.checked, self.checked_since) = (0, since);
        }
        self.checked_from = place;
        self.checked = self.checked.max(from);
        let mut met = u32::try_from(self.checked - from).unwrap_or(u32::MAX);
        let mut missing = None;
        // For each kind met, the last run of one of its operations; one that is missing will be
        // run after all others.
        let mut latest: Vec<(KindIx, u32)> = Vec::new();
        let mut place = self.checked;
        while place < block.len() && (met < runs || missing.is_none()) {
            let op = block[place];
            place += 1;
            let was_run = self.run(op) >= since;
            let run = if was_run { self.run(op) } else { u32::MAX };
            let kind = resolution.kind(op);
            if was_run {
                met += 1;
                let rules = resolution.rules();
                let fits =
                    |&(other, last): &(KindIx, u32)| last < run || rules.commute(other, kind);
                if !latest.iter().all(fits) {
                    return Found::Disorder;
                }
            } else if missing.is_none() {
                missing = Some((place - 1, op));
            }
            match latest.iter_mut().find(|(k, _)| *k == kind) {
                Some((_, last)) => *last = run.max(*last),
                None => latest.push((kind, run)),
            }
        }
        if met != runs {
            return Found::Disorder;
        }
        let (checked, found) = match missing {
            Some((place, op)) => (place, Found::Missing(op)),
            None => (block.len(), Found::All),
        };
        self.checked = checked;
        found
    }
}
