//! What a site writes down, and how it gets it back.
//!
//! An engine keeps a list of [`Durable`] values, each with a number: its place in the list. What
//! must stay true:
//! - what [`Engine::append`] has returned for is on disk, and survives a power cut;
//! - a batch is written whole or not at all, after all that was appended before;
//! - what can't be read back is reported with its place and what is lost; it is never skipped in
//!   silence, and never keeps the agent from starting;
//! - a forgotten resource leaves nothing behind but the record that it was forgotten.

use std::{io, sync::Arc};

use cheops_core::replica::Durable;

/// The place of something in what a site has written, from 1.
pub type Seq = u64;

/// Where a site writes down what it must not lose.
pub trait Engine: Send + 'static {
    /// Makes a batch durable, and says the number of its last value. After a failure nothing else
    /// may be appended before [`recover`](Self::recover) succeeds and the same batch again.
    fn append(&mut self, batch: &[Durable]) -> Result<Seq, EngineError>;

    /// Tries to get back to work after a failure.
    fn recover(&mut self) -> Result<(), EngineError>;

    /// Reads what was written, while others write.
    fn reader(&self) -> Arc<dyn Reader>;
}

/// Reads what a site has written.
pub trait Reader: Send + Sync + 'static {
    /// What was written after a number, in order: at most so many. Numbers can be missing: of what
    /// was forgotten, or can't be read.
    fn after(&self, seq: Seq, most: usize) -> Result<Vec<(Seq, Durable)>, EngineError>;

    /// The number of the last value that is durable.
    fn last(&self) -> Seq;

    /// How many bytes are free where the engine writes.
    fn free(&self) -> io::Result<u64>;
}

/// Why something could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the store in {place}: {problem}")]
pub struct EngineError {
    /// Where the store is.
    pub place: String,
    /// What went wrong, and what to do.
    pub problem: String,
}
