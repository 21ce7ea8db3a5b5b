//! A digest of the tail of a block, and of the command that shows it.
//!
//! What must stay true: it is the one that a walk over the tail gives (`walk`), and other sites, too:
//! sites compare such digests. An operation that is appended costs one step; a change further ahead
//! costs what comes after it.

use alloc::{boxed::Box, vec::Vec};
use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use super::index::On;
use crate::id::OpId;

/// After so many operations the hasher is kept, to go on from there.
const STRIDE: usize = 256;

/// Hashes a tail, one operation after the other.
#[derive(Debug, Clone)]
pub(super) struct Hasher(SipHasher13);

impl Hasher {
    pub(super) fn new(command: &str) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(command.as_bytes());
        Self(hasher)
    }

    pub(super) fn add(&mut self, id: &OpId) {
        self.0.write(&[0]);
        self.0.write(id.site.as_str().as_bytes());
        self.0.write(&[0]);
        self.0.write(&id.number.to_le_bytes());
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[derive(Debug, Clone)]
pub(super) struct BlockDigest {
    command: Box<str>,
    /// Where the tail begins.
    from: usize,
    /// Before the tail, and after each stride of it.
    kept: Vec<Hasher>,
    /// After all of it.
    end: Hasher,
    /// How long it is.
    len: usize,
}

impl BlockDigest {
    pub(super) fn new(command: &str, on: On<'_>) -> Self {
        let start = Hasher::new(command);
        let from = on.tail();
        let mut this = Self {
            command: command.into(),
            from,
            kept: [start.clone()].into(),
            end: start,
            len: 0,
        };
        this.extend(on);
        this
    }

    /// Takes in that a block has changed from a place on.
    pub(super) fn update(&mut self, command: &str, on: On<'_>, changed: usize) {
        let from = on.tail();
        if from != self.from || changed <= from || *command != *self.command {
            *self = Self::new(command, on);
            return;
        }
        let same = changed.saturating_sub(from);
        if same < self.len {
            self.kept.truncate(same / STRIDE + 1);
            let kept = self.kept.len() - 1;
            self.end = self.kept[kept].clone();
            self.len = kept * STRIDE;
        }
        self.extend(on);
    }

    fn extend(&mut self, on: On<'_>) {
        for &op in &on.resolution.block()[self.from + self.len..] {
            self.end.add(&on.resource.log.op(op).id);
            self.len += 1;
            if self.len.is_multiple_of(STRIDE) {
                self.kept.push(self.end.clone());
            }
        }
    }

    pub(super) fn value(&self) -> u64 {
        self.end.finish()
    }
}
