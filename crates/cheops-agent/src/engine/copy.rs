//! Copies all that a site has written from one engine to another, and makes sure that it is there.
//!
//! What must stay true:
//! - the source is read, and nothing is appended to it;
//! - the target is marked as half filled from before the first value until all was read back from it, and found to
//!   be the same: count and digest;
//! - a copy that was broken off goes on if what is there is the beginning of what is to be copied, and is refused
//!   if it is not.

use cheops_core::replica::Durable;

use super::{EngineError, Filling, LostUnknown, Opened, Sort};
use crate::wire;

/// How much is written at once: values, and about how many bytes.
const VALUES: usize = 1_000;
const BYTES: usize = 4 << 20;

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// How many values there are.
    pub values: u64,
    /// How many of them were there already.
    pub resumed: u64,
    /// The digest of all of them, in their order.
    pub digest: String,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many values were read.
    Read(u64),
    /// So many of all values were copied.
    Copied(u64, u64),
    /// So many of all values were read back.
    Checked(u64, u64),
}

/// Why nothing was copied, or not all.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nothing was copied: one of the two can't be used.
    #[error(transparent)]
    Refused(EngineError),
    /// Something of the source is lost.
    #[error("what is to be copied is damaged: {first}{}", more(*others))]
    Damaged {
        /// What is lost first.
        first: String,
        /// How much more is.
        others: usize,
    },
    /// The target holds something else.
    #[error(
        "what is there already is not the beginning of what is to be copied; to begin again, {0}"
    )]
    Other(String),
    /// It broke off.
    #[error("{0}; what was copied is kept")]
    BrokenOff(EngineError),
    /// What was read back is not what was copied.
    #[error("what was read back is not what was copied: {0}; to begin again, {1}")]
    Differs(String, String),
    /// The source is not as it was.
    #[error("an agent has written to the source meanwhile, and not all is copied")]
    Changed,
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(", and {others} more") }
}

/// How many values, and what they are.
#[derive(Default, Clone)]
struct Sum {
    count: u64,
    hash: blake3::Hasher,
}

impl Sum {
    /// Adds a value, and says how long it is.
    fn add(&mut self, durable: &Durable) -> Result<usize, EngineError> {
        let bytes = wire::encode_durable(durable).map_err(|problem| EngineError {
            place: "memory".to_owned(),
            problem: format!("something of resource {} has no form: {problem}", durable.resource()),
            sort: Sort::Permanent,
        })?;
        self.count += 1;
        self.hash.update(&(bytes.len() as u64).to_be_bytes());
        self.hash.update(&bytes);
        Ok(bytes.len())
    }

    fn digest(&self) -> String {
        self.hash.finalize().to_hex().to_string()
    }

    fn is(&self, other: &Self) -> bool {
        self.count == other.count && self.digest() == other.digest()
    }
}

/// Copies all from one engine to another. Of the records that were written and not acknowledged, those are
/// copied that `counts` says so of.
pub fn copy(
    open_source: &dyn Fn() -> Result<Box<dyn Opened>, EngineError>,
    open_target: &dyn Fn() -> Result<Box<dyn Filling>, EngineError>,
    counts: &mut dyn FnMut(&Durable) -> bool,
    tell: &mut dyn FnMut(Progress),
) -> Result<Copied, Failure> {
    let mut source = open_source().map_err(Failure::Refused)?;
    let mut strays = source.strays().map_err(Failure::Refused)?;
    strays.retain(|stray| counts(stray));
    let mut all = Sum::default();
    for durable in source.written().chain(strays.iter().cloned().map(Ok)) {
        durable.and_then(|durable| all.add(&durable)).map_err(Failure::Refused)?;
        tell(Progress::Read(all.count));
    }
    if let [first, others @ ..] = source.damage() {
        let (first, others) = (first.to_string(), others.len());
        return Err(Failure::Damaged { first, others });
    }
    let (lost, end) = (source.lost_unknown(), source.reader().last());
    let mut target = open_target().map_err(Failure::Refused)?;
    let resumed = fill(&mut *source, &strays, &mut *target, (&all, lost), tell)?;
    // Nothing that is only in memory is to pass for written.
    drop(target);
    let mut target = open_target().map_err(Failure::BrokenOff)?;
    check(&mut *target, (&all, lost), tell)?;
    drop(source);
    let source = open_source().map_err(Failure::BrokenOff)?;
    if source.reader().last() != end {
        return Err(Failure::Changed);
    }
    target.finish().map_err(Failure::BrokenOff)?;
    Ok(Copied { values: all.count, resumed, digest: all.digest() })
}

/// Appends what the target lacks, and says how much it did not.
fn fill(
    source: &mut dyn Opened,
    strays: &[Durable],
    target: &mut dyn Filling,
    (all, lost): (&Sum, Option<LostUnknown>),
    tell: &mut dyn FnMut(Progress),
) -> Result<u64, Failure> {
    let mut there = Sum::default();
    for durable in target.written() {
        durable.and_then(|durable| there.add(&durable)).map_err(Failure::BrokenOff)?;
    }
    let other = Failure::Other(target.how_to_begin_again());
    if target.reader().last() == 0 {
        if let Some(lost) = lost {
            target.lose_unknown(lost).map_err(Failure::BrokenOff)?;
        }
    } else if target.lost_unknown() != lost || there.count > all.count {
        return Err(other);
    }
    let (mut done, mut batch, mut bytes) = (Sum::default(), Vec::new(), 0);
    for durable in source.written().chain(strays.iter().cloned().map(Ok)) {
        let durable = durable.map_err(Failure::BrokenOff)?;
        let length = done.add(&durable).map_err(Failure::BrokenOff)?;
        if done.count < there.count {
            continue;
        }
        if done.count == there.count {
            if !done.is(&there) {
                return Err(other);
            }
            continue;
        }
        batch.push(durable);
        bytes += length;
        if batch.len() == VALUES || bytes >= BYTES {
            target.append(&batch).map_err(Failure::BrokenOff)?;
            batch.clear();
            bytes = 0;
            tell(Progress::Copied(done.count, all.count));
        }
    }
    target.append(&batch).map_err(Failure::BrokenOff)?;
    Ok(there.count)
}

/// Reads all back.
fn check(
    target: &mut dyn Filling,
    (all, lost): (&Sum, Option<LostUnknown>),
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Failure> {
    let mut found = Sum::default();
    for durable in target.written() {
        durable.and_then(|durable| found.add(&durable)).map_err(Failure::BrokenOff)?;
        tell(Progress::Checked(found.count, all.count));
    }
    let problem = if let [damage, ..] = target.damage() {
        damage.to_string()
    } else if !found.is(all) {
        let (found, all, has, had) = (found.count, all.count, found.digest(), all.digest());
        format!("{found} of {all} values, with the digest {has} instead of {had}")
    } else if target.lost_unknown() != lost {
        "it does not say what was lost before".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::Differs(problem, target.how_to_begin_again()))
}
