//! A history that a person wrote down: which operations would stay, and what would each site run?
//!
//! A history is a configuration and a set of operations with names, times and parents. It may hold
//! what no site would do (clocks that run backwards, a site whose operations don't know of each
//! other), and still has one answer. What must stay true:
//!
//! - the answer depends on the set of operations, not on the order in which the file lists them;
//! - operations are ordered by time, then site, then id as text, wherever causality leaves a choice;
//! - `reset` is not written but derived, for each operation from the block of its own causal past;
//! - no text, however odd, leads to a panic, and no graph, however deep, to an overflow.

mod read;
mod site;
mod view;

use alloc::{boxed::Box, collections::BTreeSet, string::String, sync::Arc, vec, vec::Vec};

pub use self::site::Story;
use self::{
    read::{Document, Row},
    view::Graph,
};
use crate::{
    id::{Author, NameError, OpId, ResourceId, SiteId},
    json::JsonError,
    log::{Ix, Log},
    matrix::Config,
    operation::{Action, Operation, SharedOperation},
    resolve::Resolution,
    rules::Rules,
    time::Timestamp,
};
pub use crate::{plan::Act, resolve::Reset};

/// A history, and what it amounts to.
#[derive(Debug, Clone)]
pub struct History {
    config: Config,
    graph: Graph,
    resolution: Resolution,
    /// For each operation, the id that it was written with.
    ids: Vec<Box<str>>,
    void: Vec<bool>,
    resets: Vec<Option<Reset>>,
}

/// An operation that is not in the block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Which one.
    pub op: Ix,
    /// The one that it lost to; nothing if it failed by itself.
    pub by: Option<Ix>,
    /// Why, in a few words.
    pub because: String,
}

/// The bit that, turned over, makes the order of signed numbers that of unsigned ones.
const SIGN: u64 = 1 << 63;

impl History {
    /// The most operations that a history can have.
    pub const MAX_OPERATIONS: usize = 100_000;

    /// The most operations that it can have if the matrix is circular: then each operation has to
    /// be compared with all others.
    pub const MAX_TANGLED: usize = 5_000;

    /// The most chains that its operations can form: what is known of an operation's past is a
    /// number for each of them.
    pub const MAX_CHAINS: usize = 20_000;

    /// The history that a text in JSON stands for.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        let Document { config, place, rows } = Document::from_json(text)?;
        let mut ops = operations(&rows).map_err(|error| JsonError::new("$", error))?;
        let rules = Rules::new(&config.matrix);
        if rules.tangled() && ops.len() > Self::MAX_TANGLED {
            return Err(too_many_tangled(place, ops.len()));
        }
        let void: Vec<bool> = rows.iter().map(|row| row.void).collect();
        let is_void = |ix: Ix| void[ix.usize()];

        let mut graph = graph(&ops).ok_or_else(|| too_many_chains(place))?;
        let forced = |ix: Ix| rows[ix.usize()].force;
        let resets = view::resets(&rules, &graph, &mut ops, forced, is_void);
        // The same operations, of which some reset now, so they form the same chains.
        graph.log = log(&ops).unwrap_or(graph.log);
        let resolution = Resolution::of(rules, &graph.log, is_void);
        let ids = rows.into_iter().map(|row| row.id).collect();
        Ok(Self { config, graph, resolution, ids, void, resets })
    }

    /// The configuration that it is played by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its operations, each after its parents and otherwise in order of time, site and id.
    pub fn log(&self) -> &Log {
        &self.graph.log
    }

    /// The operations that should have been seen everywhere, in order.
    pub fn block(&self) -> &[Ix] {
        self.resolution.block()
    }

    /// The id that an operation was written with.
    pub fn id(&self, op: Ix) -> &str {
        &self.ids[op.usize()]
    }

    /// The time that an operation was written with.
    pub fn time(&self, op: Ix) -> i64 {
        (self.log().op(op).at.to_bits() ^ SIGN).cast_signed()
    }

    /// The operations that one names as its parents.
    pub fn parents(&self, op: Ix) -> &[Ix] {
        &self.graph.parents[op.usize()]
    }

    /// Whether an operation failed where it was received.
    pub fn is_void(&self, op: Ix) -> bool {
        self.void[op.usize()]
    }

    /// Why an operation ends all that it follows; nothing if it does not.
    pub fn reset(&self, op: Ix) -> Option<Reset> {
        self.resets[op.usize()]
    }

    /// The sites that received something.
    pub fn sites(&self) -> BTreeSet<&SiteId> {
        self.log().iter().map(|(_, op)| &op.id.site).collect()
    }

    /// How many chains its operations form: one for each site, and more where a site received
    /// operations that did not know of each other. What a [`story`](Self::story) costs grows with
    /// it.
    pub fn chains(&self) -> usize {
        self.log().lane_count()
    }

    /// The operations that are not in the block, in order of time, site and id.
    pub fn dropped(&self) -> Vec<Dropped> {
        let receipts = self.resolution.receipts(self.log()).into_iter();
        let mut dropped: Vec<Dropped> = receipts
            .map(|(op, receipt)| {
                let by = receipt.by();
                let reset = by.and_then(|by| self.reset(by));
                let account = self.resolution.account(self.log(), op, Some(receipt), reset);
                Dropped { op, by, because: account.because }
            })
            .collect();
        dropped.sort_by_key(|dropped| self.log().op(dropped.op).key());
        dropped
    }
}

/// The rows as operations, of which none resets yet.
fn operations(rows: &[Row]) -> Result<Vec<SharedOperation>, NameError> {
    let (resource, author): (ResourceId, Author) = ("history".parse()?, "history".parse()?);
    // A number that is the rank of the id makes the core's last resort, the number, that of the id.
    let mut by_id: Vec<usize> = (0..rows.len()).collect();
    by_id.sort_unstable_by_key(|&n| &rows[n].id);
    let mut numbers = vec![0; rows.len()];
    for (number, n) in (1..).zip(by_id) {
        numbers[n] = number;
    }
    let id = |n: usize| OpId { site: rows[n].site.clone(), number: numbers[n] };
    let operation = |(n, row): (usize, &Row)| {
        Arc::new(Operation {
            id: id(n),
            resource: resource.clone(),
            kind: row.kind.clone(),
            author: author.clone(),
            at: Timestamp::from_bits(row.time.cast_unsigned() ^ SIGN),
            parents: row.parents.iter().map(|&parent| id(parent)).collect(),
            action: Action::command(""),
            reset: false,
            keep_going: false,
            key: None,
            declares: None,
        })
    };
    Ok(rows.iter().enumerate().map(operation).collect())
}

fn too_many_tangled(place: String, count: usize) -> JsonError {
    let most = History::MAX_TANGLED;
    JsonError::new(
        place,
        format_args!(
            "the kinds of the matrix win over each other in a circle, and then a history has at \
             most {most} operations; this one has {count}"
        ),
    )
    .with_hint(
        "Write the matrix alone into a file and run `cheops matrix check` on it: it shows the \
         circle, and what to write instead.",
    )
}

fn too_many_chains(place: String) -> JsonError {
    let most = History::MAX_CHAINS;
    JsonError::new(
        place,
        format_args!(
            "the operations form more than {most} chains that don't know of each other, and a \
             history has at most {most}"
        ),
    )
    .with_hint(
        "Are parents missing? An operation names in \"Parents\" what its site knew before it.",
    )
}

/// A log of operations that are in order, so that each has the same place there and here. Nothing if
/// they form too many chains; that is found on the way, because a log of them takes too much room.
fn log(ops: &[SharedOperation]) -> Option<Log> {
    let mut log = Log::default();
    for op in ops {
        // The reader has seen to it that each comes once, and after its parents.
        let _ = log.insert(op.clone());
        if log.lane_count() > History::MAX_CHAINS {
            return None;
        }
    }
    Some(log)
}

fn graph(ops: &[SharedOperation]) -> Option<Graph> {
    let log = log(ops)?;
    let parents =
        ops.iter().map(|op| op.parents.iter().filter_map(|id| log.find(id)).collect()).collect();
    Some(Graph { log, parents })
}
