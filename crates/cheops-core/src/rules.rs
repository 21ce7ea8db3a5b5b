//! A matrix, made ready for use: one look-up for each question the resolution asks.
//!
//! Operators write entries for pairs of kinds; the resolution asks about pairs of operations. What
//! must stay true: all answers about a pair come from here, so that the block, the receipts and
//! the plan can't read the matrix in different ways.
//!
//! Kinds that the matrix does not name behave alike (they go with everything but `delete`), so they
//! share one number. The tables are therefore as large as the matrix, whatever kinds operations
//! invent.
//!
//! `delete` has a meaning of its own, so it needs no entries. Where the matrix has none for it and
//! another kind, in either direction, (x, `delete`) is `take-both-reverse-order`: a delete that
//! follows x resets, and of two concurrent ones the delete alone stays. (`delete`, `delete`) is
//! `take-one`.

use alloc::{vec, vec::Vec};

use crate::{
    id::Kind,
    matrix::{Concurrent, Entry, Matrix, Take},
};

/// The number of a kind in these rules; 0 for every kind that the matrix does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KindIx(u16);

impl KindIx {
    pub(crate) fn usize(self) -> usize {
        usize::from(self.0)
    }
}

/// What becomes of two concurrent operations, told apart by their timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Both stay; nothing is said about their order.
    Both,
    /// Both stay, the earlier one first.
    EarlierFirst,
    /// Both stay, the later one first.
    LaterFirst,
    /// Only the earlier one stays.
    Earlier,
    /// Only the later one stays.
    Later,
}

/// When an operation of one kind acts on an operation of another: the time of the first relative
/// to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum When {
    Earlier,
    Later,
    Always,
}

impl When {
    /// The condition under which either of two things happens.
    fn of(earlier: bool, later: bool) -> Option<Self> {
        match (earlier, later) {
            (true, true) => Some(Self::Always),
            (true, false) => Some(Self::Earlier),
            (false, true) => Some(Self::Later),
            (false, false) => None,
        }
    }
}

/// In which order the operations of a kind are decided: lower ranks first, and within a rank by
/// time. Who is decided first can only fall to one that was decided before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Strength {
    pub(crate) rank: u16,
    pub(crate) earlier_first: bool,
}

/// A matrix, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rules {
    matrix: Matrix,
    /// The kinds that the matrix names, and `delete`, in order; the first has the number 1.
    kinds: Vec<Kind>,
    verdicts: Vec<Verdict>,
    /// For each kind: which others fell it, and when they do.
    foes: Vec<Vec<(KindIx, When)>>,
    /// For each kind: which others it fells, and when.
    prey: Vec<Vec<(KindIx, When)>>,
    /// For each kind: which concurrent ones stand before it in the block.
    ahead: Vec<Vec<(KindIx, When)>>,
    resets: Vec<bool>,
    commutes: Vec<bool>,
    replaces: Vec<bool>,
    strength: Vec<Strength>,
    tangled: bool,
}

impl Rules {
    /// Compiles a matrix.
    pub fn new(matrix: &Matrix) -> Self {
        let mut kinds = matrix.kinds();
        kinds.extend(Kind::DELETE.parse());
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        let n = kinds.len() + 1;
        let mut rules = Self {
            matrix: matrix.clone(),
            verdicts: vec![Verdict::Both; n * n],
            foes: vec![Vec::new(); n],
            prey: vec![Vec::new(); n],
            ahead: vec![Vec::new(); n],
            resets: vec![false; n * n],
            commutes: vec![true; n * n],
            replaces: vec![false; n],
            strength: vec![Strength { rank: 0, earlier_first: false }; n],
            tangled: false,
            kinds,
        };
        rules.compile_pairs();
        rules.compile_conditions();
        rules.compile_strength();
        rules
    }

    fn compile_pairs(&mut self) {
        for a in self.all() {
            for b in self.all() {
                let (own, mirror) = (self.said(a, b), self.said(b, a));
                let at = self.pair(a, b);
                let replacing = own.is_some_and(|said| said.result.resets());
                self.resets[at] = replacing;
                self.replaces[b.usize()] |= replacing;
                self.commutes[at] = [own, mirror]
                    .into_iter()
                    .all(|said| said.is_none_or(|said| said.result == Take::Both));
                self.verdicts[at] = verdict(own, mirror);
            }
        }
    }

    /// What is said about two kinds in this order: by their entry, or by default.
    fn said(&self, before: KindIx, after: KindIx) -> Option<Said> {
        let names = self.name(before).zip(self.name(after));
        let entry = |(before, after)| self.matrix.entry(before, after);
        let entry = |names| entry(names).map(|(_, entry)| entry);
        if let Some(Entry { result, concurrent, .. }) = names.and_then(entry) {
            return Some(Said { result: *result, concurrent: *concurrent });
        }
        let is_delete = |kind| self.name(kind).is_some_and(Kind::is_delete);
        let mirrored = names.is_some_and(|(before, after)| entry((after, before)).is_some());
        let result = match (is_delete(before), is_delete(after)) {
            (true, true) => Take::One,
            (false, true) if !mirrored => Take::BothReverseOrder,
            _ => return None,
        };
        Some(Said { result, concurrent: None })
    }

    fn compile_conditions(&mut self) {
        for x in self.all() {
            for y in self.all() {
                // What y does to x: if it is the earlier of the two, and if it is the later.
                let (y_first, x_first) = (self.verdict(y, x), self.verdict(x, y));
                if let Some(when) = When::of(y_first == Verdict::Earlier, x_first == Verdict::Later)
                {
                    self.foes[x.usize()].push((y, when));
                }
                if let Some(when) = When::of(y_first == Verdict::Later, x_first == Verdict::Earlier)
                {
                    self.prey[x.usize()].push((y, when));
                }
                if let Some(when) =
                    When::of(y_first == Verdict::EarlierFirst, x_first == Verdict::LaterFirst)
                {
                    self.ahead[x.usize()].push((y, when));
                }
            }
        }
    }

    /// Finds an order in which all operations can be decided, strongest first, or finds that there
    /// is none because kinds fell each other in a circle.
    fn compile_strength(&mut self) {
        let n = self.kinds.len() + 1;
        // over[a][b]: an operation of kind a may, through others, decide the fate of one of kind b.
        let mut over = vec![vec![false; n]; n];
        for x in self.all() {
            for &(y, _) in &self.foes[x.usize()] {
                over[y.usize()][x.usize()] = true;
            }
        }
        for via in 0..n {
            let onward = over[via].clone();
            for row in &mut over {
                if row[via] {
                    row.iter_mut().zip(&onward).for_each(|(reached, &next)| *reached |= next);
                }
            }
        }
        for x in self.all() {
            let in_circle = |y: KindIx| over[x.usize()][y.usize()] && over[y.usize()][x.usize()];
            let (mut earlier, mut later) = (false, false);
            for &(y, when) in self.foes(x) {
                if in_circle(y) {
                    earlier |= when != When::Later;
                    later |= when != When::Earlier;
                }
            }
            // Within a circle, "the later wins" throughout is an order, and so is "the earlier
            // wins"; a mix of the two, or of these with fixed winners, can bite its own tail.
            self.tangled |= earlier && later;
            let stronger = |y: &KindIx| over[y.usize()][x.usize()] && !in_circle(*y);
            let rank = u16::try_from(self.all().filter(stronger).count()).unwrap_or(u16::MAX);
            self.strength[x.usize()] = Strength { rank, earlier_first: earlier };
        }
        for x in self.all() {
            for y in self.all() {
                let in_circle = over[x.usize()][y.usize()] && over[y.usize()][x.usize()];
                let differ = self.strength(x).earlier_first != self.strength(y).earlier_first;
                self.tangled |= in_circle && differ;
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = KindIx> + use<> {
        // A matrix names at most 255 kinds.
        (0..=u16::try_from(self.kinds.len()).unwrap_or(u16::MAX)).map(KindIx)
    }

    fn pair(&self, a: KindIx, b: KindIx) -> usize {
        a.usize() * (self.kinds.len() + 1) + b.usize()
    }

    fn name(&self, kind: KindIx) -> Option<&Kind> {
        kind.usize().checked_sub(1).and_then(|n| self.kinds.get(n))
    }

    /// The matrix that these are the rules of.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// The number of a kind.
    pub(crate) fn kind(&self, kind: &Kind) -> KindIx {
        match self.kinds.binary_search(kind) {
            Ok(n) => KindIx(u16::try_from(n + 1).unwrap_or(0)),
            Err(_) => KindIx(0),
        }
    }

    /// How many numbers of kinds there are.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len() + 1
    }

    /// What becomes of two concurrent operations of these kinds, the earlier one first.
    pub(crate) fn verdict(&self, earlier: KindIx, later: KindIx) -> Verdict {
        self.verdicts[self.pair(earlier, later)]
    }

    /// Which kinds fell this one, and when.
    pub(crate) fn foes(&self, kind: KindIx) -> &[(KindIx, When)] {
        &self.foes[kind.usize()]
    }

    /// Which kinds this one fells; the condition is on the time of the other.
    pub(crate) fn prey(&self, kind: KindIx) -> &[(KindIx, When)] {
        &self.prey[kind.usize()]
    }

    /// Which kinds, where concurrent, stand before this one in the block.
    pub(crate) fn ahead(&self, kind: KindIx) -> &[(KindIx, When)] {
        &self.ahead[kind.usize()]
    }

    /// Which kinds, where concurrent, may have to stand behind this one.
    pub(crate) fn behind(&self, kind: KindIx) -> impl Iterator<Item = KindIx> {
        self.all().filter(move |&other| self.ahead(other).iter().any(|&(ahead, _)| ahead == kind))
    }

    /// Whether any entry asks for an order of concurrent operations other than that of time.
    pub(crate) fn orders(&self) -> bool {
        self.ahead.iter().any(|ahead| !ahead.is_empty())
    }

    /// The append rule: whether a new operation of one kind, received when one of the other is the
    /// last of the block, starts afresh.
    pub(crate) fn resets(&self, last: KindIx, new: KindIx) -> bool {
        self.resets[self.pair(last, new)]
    }

    /// Whether the state after an operation of this kind does not depend on what came before.
    pub(crate) fn replaces(&self, kind: KindIx) -> bool {
        self.replaces[kind.usize()]
    }

    /// Whether two operations may run in either order.
    pub(crate) fn commute(&self, a: KindIx, b: KindIx) -> bool {
        self.commutes[self.pair(a, b)]
    }

    /// In which order operations are decided; meaningless if the rules are tangled.
    pub(crate) fn strength(&self, kind: KindIx) -> Strength {
        self.strength[kind.usize()]
    }

    /// Whether kinds fell each other in a circle, so that no order of deciding them is right.
    pub(crate) fn tangled(&self) -> bool {
        self.tangled
    }

    /// The row of the matrix, from 1, that a verdict on concurrent operations comes from; none where
    /// it is what deletes do by default.
    pub(crate) fn row(&self, earlier: &Kind, later: &Kind) -> Option<usize> {
        let own = self.matrix.entry(earlier, later);
        let mirror = self.matrix.entry(later, earlier);
        let speaks = |found: &(usize, &Entry)| found.1.concurrent.is_some();
        own.filter(speaks).or(mirror.filter(speaks)).or(own).or(mirror).map(|(row, _)| row)
    }
}

/// The words of an entry, or what holds without one.
#[derive(Debug, Clone, Copy)]
struct Said {
    result: Take,
    concurrent: Option<Concurrent>,
}

/// What two entries say of concurrent operations; `own` is the entry (earlier, later), `mirror`
/// the entry (later, earlier).
fn verdict(own: Option<Said>, mirror: Option<Said>) -> Verdict {
    // An explicit word on concurrency, in either entry, comes before what the result implies.
    let speaks = |said: &Said| said.concurrent.is_some();
    let forward = |entry| read(entry, Verdict::Earlier, Verdict::EarlierFirst, Verdict::LaterFirst);
    let backward = |entry| read(entry, Verdict::Later, Verdict::LaterFirst, Verdict::EarlierFirst);
    own.filter(speaks)
        .map(forward)
        .or_else(|| mirror.filter(speaks).map(backward))
        .or_else(|| own.map(forward))
        .or_else(|| mirror.map(backward))
        .unwrap_or(Verdict::Both)
}

/// One entry's word on concurrent operations, given the verdicts that mean "its `Before` stays",
/// "both, `Before` first" and "both, `After` first". Only `take-one` looks at the time and not at
/// the places in the entry, so it reads the same in both directions.
fn read(entry: Said, before: Verdict, in_order: Verdict, reversed: Verdict) -> Verdict {
    let after = if before == Verdict::Earlier { Verdict::Later } else { Verdict::Earlier };
    match (entry.concurrent, entry.result) {
        (Some(Concurrent::Both), Take::BothKeepOrder) => in_order,
        (Some(Concurrent::Both), Take::BothReverseOrder) => reversed,
        (Some(Concurrent::Both), _) | (None, Take::Both | Take::BothAgreedOrder) => Verdict::Both,
        (Some(Concurrent::Before), _) | (None, Take::BothKeepOrder) => before,
        (Some(Concurrent::After), _) | (None, Take::BothReverseOrder) => after,
        (Some(Concurrent::One), _) | (None, Take::One) => Verdict::Later,
    }
}
