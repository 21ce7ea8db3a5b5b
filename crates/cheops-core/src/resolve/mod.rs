//! What a log and a matrix amount to: the block, and a receipt for each operation that is not in it.
//!
//! The block of a set of operations, and of what is known of their runs, is made in four steps:
//!
//! 0. *Void*: an operation that failed at the site that received it takes no part.
//! 1. *Live*: those that no reset causally follows. The others are *over*.
//! 2. *Kept*: of two live concurrent operations the matrix says who stays. One *falls* only to one
//!    that is itself kept.
//! 3. *Order*: causality first, then the order that the entries ask for between concurrent ones,
//!    then timestamp, site, number.
//!
//! What must stay true: the result depends on the set and on nothing else, not on the order of
//! arrival, nor on duplicates, nor on how often it was computed on the way. It is kept up to date
//! as operations arrive; what an arrival costs depends on how many operations are concurrent with
//! it, not on how many there are.

mod account;
mod order;
mod standing;
mod tangle;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};

pub use self::account::{Account, Reset};
use self::standing::Standing;
use crate::{
    few::{Few, OnDemand},
    id::Kind,
    log::{Ix, LaneIx, Log},
    rules::{KindIx, Rules, Verdict, When},
};

/// What became of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It is in the block.
    Kept,
    /// A concurrent one that is kept won over it.
    Fallen,
    /// A reset follows it.
    Over,
    /// It failed where it was received.
    Void,
}

/// Why an operation is not in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Receipt {
    /// It failed at the site that received it, so it takes no part anywhere.
    Void,
    /// A reset that causally follows it ended all that came before.
    Over {
        /// The earliest such reset that is the first of its chain.
        by: Ix,
    },
    /// It lost to a concurrent operation that is kept.
    Fallen {
        /// The latest such operation.
        by: Ix,
        /// The row of the matrix that says so, from 1.
        row: Option<usize>,
    },
}

impl Receipt {
    /// The operation that it was lost to; nothing for one that failed by itself.
    pub fn by(self) -> Option<Ix> {
        match self {
            Self::Void => None,
            Self::Over { by } | Self::Fallen { by, .. } => Some(by),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    fate: Fate,
    kind: KindIx,
    /// Whether it stands in the block as that is written now; lags behind `fate` until the block
    /// is arranged anew.
    listed: bool,
    /// Its place in the block, if it is listed; 0 otherwise.
    place: u32,
}

/// How the block changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The first place of the block that changed; its length if nothing did.
    pub from: usize,
    /// The operations that entered or left the block.
    pub moved: Vec<Ix>,
}

/// The block of a log, kept up to date.
///
/// It borrows nothing: each method takes the log that it was made for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resolution {
    rules: Arc<Rules>,
    states: Few<State>,
    /// For each lane, how many of its operations a reset follows: these are over.
    over: Few<u32>,
    /// For each lane, the places of the resets in it that are not void.
    resets: Few<OnDemand<Vec<u32>>>,
    standing: Standing,
    /// For a kept operation, those that were found to fall to it. If it goes, they are asked again.
    /// The receipts are not made from this: who is found first depends on the order of arrival.
    felled: OnDemand<BTreeMap<Ix, Vec<Ix>>>,
    /// Where kinds fell each other in a circle: for each fallen operation, the latest kept one that it fell to.
    winners: OnDemand<BTreeMap<Ix, Ix>>,
    block: Few<Ix>,
    /// The places in the block of operations that replace the state.
    replacing: Few<usize>,
    /// The places in the block where the order that entries ask for could not be kept.
    forced: OnDemand<Vec<usize>>,
}

/// Operations whose fate must be decided (again), strongest first.
#[derive(Default)]
struct Work {
    due: BTreeSet<(u16, u64, Ix)>,
    touched: Vec<Ix>,
}

impl Resolution {
    /// The resolution of an empty log.
    pub fn new(rules: impl Into<Arc<Rules>>) -> Self {
        let rules = rules.into();
        Self {
            standing: Standing::new(rules.len()),
            rules,
            states: Few::default(),
            over: Few::default(),
            resets: Few::default(),
            felled: OnDemand::default(),
            winners: OnDemand::default(),
            block: Few::default(),
            replacing: Few::default(),
            forced: OnDemand::default(),
        }
    }

    /// The resolution of a whole log, with what is known to be void.
    pub fn of(rules: impl Into<Arc<Rules>>, log: &Log, void: impl Fn(Ix) -> bool) -> Self {
        let mut this = Self::new(rules);
        let mut work = Work::default();
        for (ix, _) in log.iter() {
            this.admit(log, ix);
            if void(ix) {
                this.states[ix.usize()].fate = Fate::Void;
            } else {
                this.note_reset(log, ix);
            }
        }
        this.over = this.ended(log);
        for (ix, _) in log.iter() {
            let (lane, index) = log.place(ix);
            if this.states[ix.usize()].fate == Fate::Void {
                continue;
            }
            if index < this.over[lane.usize()] {
                this.states[ix.usize()].fate = Fate::Over;
            } else {
                this.ask(log, ix, &mut work);
            }
        }
        this.settle(log, work);
        this
    }

    /// Takes in the next operation of a log, which may have more of them already.
    pub fn add(&mut self, log: &Log, ix: Ix) -> Change {
        let mut work = Work::default();
        self.admit(log, ix);
        if self.note_reset(log, ix) {
            self.end_past(log, ix, &mut work);
        }
        self.ask(log, ix, &mut work);
        self.settle(log, work)
    }

    /// Takes note that an operation failed where it was received.
    pub fn void(&mut self, log: &Log, ix: Ix) -> Change {
        let mut work = Work::default();
        if self.fate(ix) == Fate::Void {
            return Change { from: self.block.len(), moved: Vec::new() };
        }
        self.retire(log, ix, Fate::Void, &mut work);
        let (lane, index) = log.place(ix);
        let resets = &mut self.resets[lane.usize()];
        if let Ok(at) = resets.binary_search(&index) {
            resets.make().remove(at);
            self.revive_past(log, &mut work);
        }
        self.settle(log, work)
    }

    /// The list of operations that the application should have seen, in order.
    pub fn block(&self) -> &[Ix] {
        &self.block
    }

    /// Where in the block the last operation stands that replaces the state, if one does.
    pub fn last_replacing(&self) -> Option<usize> {
        self.replacing.last().copied()
    }

    /// The places in the block of all operations that replace the state, ascending.
    pub(crate) fn replacing(&self) -> &[usize] {
        &self.replacing
    }

    /// What became of an operation.
    pub fn fate(&self, ix: Ix) -> Fate {
        self.states[ix.usize()].fate
    }

    /// Where in the block an operation stands, if it is in the block.
    pub fn place(&self, ix: Ix) -> Option<usize> {
        let state = &self.states[ix.usize()];
        state.listed.then_some(state.place as usize)
    }

    /// For how many operations of the log it was made.
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// The rules that it was made by.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The same, to be shared.
    pub(crate) fn shared_rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Shares the rules with others that have equal ones.
    pub(crate) fn share_rules(&mut self, rules: Arc<Rules>) {
        debug_assert_eq!(self.rules, rules, "equal rules");
        self.rules = rules;
    }

    /// The append rule: whether a new operation of this kind starts afresh.
    pub fn resets(&self, kind: &Kind) -> bool {
        self.block.last().is_some_and(|&last| {
            self.rules.resets(self.states[last.usize()].kind, self.rules.kind(kind))
        })
    }

    /// Whether the state after an operation does not depend on what came before.
    pub fn replaces(&self, log: &Log, ix: Ix) -> bool {
        log.op(ix).reset || self.rules.replaces(self.kind(ix))
    }

    pub(crate) fn kind(&self, ix: Ix) -> KindIx {
        self.states[ix.usize()].kind
    }

    /// Why an operation is not in the block; nothing for one that is.
    ///
    /// Of several that would do, the receipt names the earliest reset, or the latest winner, so
    /// that all sites give the same.
    pub fn receipt(&self, log: &Log, ix: Ix) -> Option<Receipt> {
        match self.fate(ix) {
            Fate::Kept => None,
            Fate::Void => Some(Receipt::Void),
            Fate::Over => self.first_reset(log, ix).map(|by| Receipt::Over { by }),
            Fate::Fallen => self.last_winner(log, ix).map(|by| self.fallen_to(log, ix, by)),
        }
    }

    /// The receipts of all operations that are not in the block.
    pub fn receipts(&self, log: &Log) -> BTreeMap<Ix, Receipt> {
        log.iter().filter_map(|(ix, _)| Some((ix, self.receipt(log, ix)?))).collect()
    }

    fn fallen_to(&self, log: &Log, ix: Ix, by: Ix) -> Receipt {
        let (first, second) = if log.earlier(by, ix) { (by, ix) } else { (ix, by) };
        let row = self.rules.row(&log.op(first).kind, &log.op(second).kind);
        Receipt::Fallen { by, row }
    }

    /// The earliest reset that counts and causally follows an operation.
    fn first_reset(&self, log: &Log, ix: Ix) -> Option<Ix> {
        let following = log.lanes().filter_map(|lane| {
            let from = log.seen_from(ix, lane);
            let resets = &self.resets[lane.usize()];
            let first = *resets.get(resets.partition_point(|&index| index < from))?;
            Some(log.lane(lane)[first as usize])
        });
        following.reduce(|a, b| if log.earlier(b, a) { b } else { a })
    }

    /// The latest kept operation that one falls to.
    fn last_winner(&self, log: &Log, ix: Ix) -> Option<Ix> {
        if self.rules.tangled() {
            return self.winners.filled()?.get(&ix).copied();
        }
        let mut last: Option<Ix> = None;
        for &(kind, when) in self.rules.foes(self.kind(ix)) {
            self.standing.last_concurrent(log, ix, kind, when, |winner| {
                last =
                    Some(last.map_or(winner, |l| if log.earlier(l, winner) { winner } else { l }));
            });
        }
        last
    }

    /// Makes room for an operation, which has no fate yet.
    fn admit(&mut self, log: &Log, ix: Ix) {
        let kind = self.rules.kind(&log.op(ix).kind);
        self.states.push(State { fate: Fate::Fallen, kind, listed: false, place: 0 });
        let lanes = log.lanes().count();
        self.over.resize(lanes, 0);
        self.resets.resize(lanes, OnDemand::default());
        self.standing.grow(lanes);
    }

    fn note_reset(&mut self, log: &Log, ix: Ix) -> bool {
        let reset = log.op(ix).reset;
        if reset {
            let (lane, index) = log.place(ix);
            self.resets[lane.usize()].make().push(index);
        }
        reset
    }

    /// For each lane, how many operations the resets that count have ended. The last reset of a
    /// lane has seen at least what those before it have.
    fn ended(&self, log: &Log) -> Few<u32> {
        let last = log.lanes().filter_map(|lane| {
            let index = *self.resets[lane.usize()].last()?;
            Some(log.lane(lane)[index as usize])
        });
        let last: Vec<Ix> = last.collect();
        let mut ended = Few::default();
        for lane in log.lanes() {
            ended.push(last.iter().map(|&reset| log.seen(reset, lane)).max().unwrap_or(0));
        }
        ended
    }

    /// Ends all that a new reset causally follows.
    fn end_past(&mut self, log: &Log, reset: Ix, work: &mut Work) {
        for lane in log.lanes() {
            let (from, to) = (self.over[lane.usize()], log.seen(reset, lane));
            // From the end, where `standing` removes without moving the rest.
            for index in (from..to).rev() {
                let ix = log.lane(lane)[index as usize];
                if self.fate(ix) != Fate::Void {
                    self.retire(log, ix, Fate::Over, work);
                }
            }
            self.over[lane.usize()] = from.max(to);
        }
    }

    /// Brings back what only resets that are now void had ended.
    fn revive_past(&mut self, log: &Log, work: &mut Work) {
        let over = self.ended(log);
        for lane in log.lanes() {
            for index in over[lane.usize()]..self.over[lane.usize()] {
                let ix = log.lane(lane)[index as usize];
                if self.fate(ix) == Fate::Over {
                    self.states[ix.usize()].fate = Fate::Fallen;
                    self.ask(log, ix, work);
                }
            }
        }
        self.over = over;
    }

    /// Takes an operation out of the contest. Those that fell to it are asked again.
    fn retire(&mut self, log: &Log, ix: Ix, fate: Fate, work: &mut Work) {
        if self.fate(ix) == Fate::Kept {
            self.standing.remove(log, self.kind(ix), ix);
            self.ask_felled(log, ix, work);
        }
        // Also one that was not kept: it may have been what closed a circle.
        work.touched.push(ix);
        self.states[ix.usize()].fate = fate;
    }

    fn ask_felled(&mut self, log: &Log, ix: Ix, work: &mut Work) {
        let felled = self.felled.filled_mut().and_then(|felled| felled.remove(&ix));
        for felled in felled.unwrap_or_default() {
            if self.fate(felled) == Fate::Fallen {
                self.ask(log, felled, work);
            }
        }
    }

    fn ask(&self, log: &Log, ix: Ix, work: &mut Work) {
        let strength = self.rules.strength(self.kind(ix));
        let at = log.timestamp(ix).to_bits();
        work.due.insert((strength.rank, if strength.earlier_first { at } else { !at }, ix));
    }

    /// Decides all that is due, and arranges the block.
    fn settle(&mut self, log: &Log, mut work: Work) -> Change {
        if self.rules.tangled() {
            tangle::decide(self, log, &mut work);
        } else {
            while let Some((_, _, ix)) = work.due.pop_first() {
                self.decide(log, ix, &mut work);
            }
        }
        order::arrange(self, log, &work.touched)
    }

    /// Decides one operation, given the fates of all that are stronger.
    fn decide(&mut self, log: &Log, ix: Ix, work: &mut Work) {
        let before = self.fate(ix);
        if matches!(before, Fate::Over | Fate::Void) {
            return;
        }
        let kind = self.kind(ix);
        let foes = self.rules.foes(kind);
        let winner =
            foes.iter().find_map(|&(foe, when)| self.standing.any_concurrent(log, ix, foe, when));
        match winner {
            Some(winner) => {
                self.retire(log, ix, Fate::Fallen, work);
                self.felled.make().entry(winner).or_default().push(ix);
            }
            None if before == Fate::Kept => {}
            None => {
                self.keep(log, ix, work);
                let mut prey = Vec::new();
                for &(kind, when) in self.rules.prey(kind) {
                    self.standing.each_concurrent(log, ix, kind, when, |loser| prey.push(loser));
                }
                for loser in prey {
                    self.ask(log, loser, work);
                }
            }
        }
    }

    fn keep(&mut self, log: &Log, ix: Ix, work: &mut Work) {
        self.states[ix.usize()].fate = Fate::Kept;
        self.standing.insert(log, self.kind(ix), ix);
        work.touched.push(ix);
    }

    /// Whether, of two concurrent operations, the first fells the second.
    fn fells(&self, log: &Log, winner: Ix, loser: Ix) -> bool {
        let (a, b) = (self.kind(winner), self.kind(loser));
        if log.earlier(winner, loser) {
            self.rules.verdict(a, b) == Verdict::Earlier
        } else {
            self.rules.verdict(b, a) == Verdict::Later
        }
    }
}

impl When {
    /// Whether the condition holds for `other` relative to `ix`.
    fn holds(self, log: &Log, other: Ix, ix: Ix) -> bool {
        match self {
            Self::Always => true,
            Self::Earlier => log.earlier(other, ix),
            Self::Later => log.earlier(ix, other),
        }
    }
}

/// The operations of a lane that are concurrent with one of another lane, as a range of places.
fn concurrent_range(log: &Log, ix: Ix, lane: LaneIx) -> core::ops::Range<u32> {
    let from = log.seen(ix, lane);
    if log.place(ix).0 == lane { from..from } else { from..log.seen_from(ix, lane) }
}
