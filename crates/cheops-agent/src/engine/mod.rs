//! What a site writes down, and how it gets it back.
//!
//! An engine keeps a list of [`Durable`] values, each with a number: its place in the list. What
//! must stay true:
//! - what [`Engine::append`] has returned for is on disk, and survives a power cut;
//! - a batch is written whole or not at all, after all that was appended before;
//! - what can't be read back is reported with its place and what is lost; it is never skipped in
//!   silence, and never keeps the agent from starting;
//! - a forgotten resource leaves nothing behind but the record that it was forgotten.

mod chosen;
mod copy;
pub mod couchdb;
mod disk;
pub mod embedded;
mod entry;
mod meaning;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    ops::RangeInclusive,
    path::Path,
    sync::Arc,
};

use cheops_core::{
    id::{OpId, ResourceId},
    replica::Durable,
    time::Millis,
    trust::Seal,
};
use futures_util::future::BoxFuture;

pub(crate) use self::chosen::{check as check_choice, chosen, note as note_choice};
pub use self::{
    chosen::Kind,
    copy::{Copied, Failure as CopyFailure, Progress, copy},
};

/// The place of something in what a site has written, from 1.
pub type Seq = u64;

/// Where a site writes down what it must not lose.
pub trait Engine: Send + 'static {
    /// Makes a batch durable, and says the number of its last value. After a failure nothing else
    /// may be appended before [`recover`](Self::recover) succeeds and the same batch again; unless
    /// the failure [is permanent](EngineError::is_permanent).
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError>;

    /// Tries to get back to work after a failure.
    fn recover(&mut self) -> Result<(), EngineError>;

    /// Does what is to be done now and then, and fails if it is known by now that nothing can be written: for good if
    /// the failure [is permanent](EngineError::is_permanent). Whoever has the engine calls it about every second.
    fn tend(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Reads what was written, while others write.
    fn reader(&self) -> Arc<dyn Reader>;
}

/// An engine that was opened just now: what was written before comes first.
pub trait Opened: Engine {
    /// Reads all that was written, in order. To be read to its end before anything is appended:
    /// only then is it known what was lost.
    fn written(&mut self) -> Box<dyn Iterator<Item = Result<Durable, EngineError>> + '_>;

    /// Records of this site that others may have, since they were written where others read, and that were
    /// not acknowledged. Anyone may have written them: those that this site has sealed are its own, and count
    /// once they are appended.
    fn strays(&mut self) -> Result<Vec<Durable>, EngineError> {
        Ok(Vec::new())
    }

    /// What others bring into the store from now on, if they can.
    fn arrivals(&self) -> Option<Box<dyn Arrivals>> {
        None
    }

    /// What was lost and is still to be dealt with, known once all was [read](Self::written).
    ///
    /// What was lost of a resource is reported at each start until a marker for that resource is
    /// appended. What is not known to be of a resource is reported until something is appended.
    fn damage(&self) -> &[Damage];

    /// What was ever lost of resources that are not known, if anything was; known once all was
    /// [read](Self::written). There may have been resources of which nothing is left.
    fn lost_unknown(&self) -> Option<LostUnknown>;
}

/// What others bring into a store.
pub trait Arrivals: Send + 'static {
    /// The next records that came, once there are some. They are not written down by that: whoever wants them
    /// appends them. Anyone may have brought them, and they may come more than once.
    fn next(&mut self) -> BoxFuture<'_, Vec<Durable>>;
}

/// An engine that is being filled with what another one holds. It is marked as such: until it is whole, no
/// agent opens it.
pub trait Filling: Opened {
    /// Notes, before anything is appended, that something of resources that are not known was lost.
    fn lose_unknown(&mut self, lost: LostUnknown) -> Result<(), EngineError>;

    /// What to do to begin with an empty one, as an order in a sentence.
    fn how_to_begin_again(&self) -> String;

    /// Takes the mark away: all is there.
    fn finish(&mut self) -> Result<(), EngineError>;
}

/// Why an engine that is being filled is not opened.
const HALF_FILLED: &str = "`cheops engine copy` is filling it, and has not come to its end: run it again. Until then the agent works with the engine that it had before";

/// What was lost of resources that are not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostUnknown {
    /// When that was last found, in milliseconds since 1970.
    pub found: u64,
    /// How many records it was.
    pub records: u64,
}

/// Reads what a site has written.
pub trait Reader: Send + Sync + 'static {
    /// What was written after a number, in order: at most so many. Numbers can be missing: of what
    /// was forgotten, or can't be read.
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError>;

    /// The seals of these records of a resource, of those that were written with one.
    fn seals(
        &self,
        resource: &ResourceId,
        records: &BTreeSet<OpId>,
    ) -> Result<BTreeMap<OpId, Seal>, EngineError>;

    /// The number of the last value that is durable.
    fn last(&self) -> Seq;

    /// How many bytes are free where the engine writes.
    fn free(&self) -> io::Result<u64>;

    /// What is durable here, and waits for a server that is away, if anything does.
    fn waiting(&self) -> Option<Waiting> {
        None
    }
}

/// What waits for a server that is away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Since when.
    pub since: Millis,
    /// Why, and what to do.
    pub why: String,
    /// How many values.
    pub values: u64,
    /// How many bytes they take.
    pub bytes: u64,
    /// How many they may take.
    pub limit: u64,
}

/// How many bytes are free where a path is.
pub(crate) fn free(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Why something could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the store in {place}: {problem}")]
pub struct EngineError {
    /// Where the store is.
    pub place: String,
    /// What went wrong, and what to do.
    pub problem: String,
    /// What can be done about it.
    pub sort: Sort,
}

/// What can be done about a failure of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// The disk is to be looked at.
    Disk,
    /// The server is to be looked at that the engine writes to.
    Server,
    /// Nothing: the same would fail again, whatever happens to the disk.
    Permanent,
}

impl EngineError {
    /// Whether the batch can never be written: something in it has no form on disk. Nothing of it was
    /// written, there is nothing to recover from, and the engine takes other batches as before.
    ///
    /// Whoever has decided by what is in the batch must not go on as if it were durable: see
    /// `docs/store.md`.
    pub fn is_permanent(&self) -> bool {
        self.sort == Sort::Permanent
    }
}

/// Something that was written and can't be read any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Its numbers. Empty if it had none.
    pub seqs: RangeInclusive<Seq>,
    /// The resource that it was of, if that is known. What came after it of this resource is not
    /// handed out until a marker.
    pub resource: Option<ResourceId>,
    /// What is lost.
    pub what: String,
    /// Why, as far as that is known.
    pub why: String,
    /// The highest number of this site's own stream that the engine has seen for the resource. The
    /// site must not give it, or one below it, to anything else.
    pub floor: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lost: {}", self.what)?;
        match (self.seqs.start(), self.seqs.end()) {
            (first, last) if first > last => {}
            (first, last) if first == last => write!(f, " (number {first})")?,
            (first, last) => write!(f, " (numbers {first} to {last})")?,
        }
        write!(f, ": {}", self.why)
    }
}
