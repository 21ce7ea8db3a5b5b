//! What is written down of who asks, and how often anyone may: `[audit]` and `[limits]`.

use std::time::Duration;

use serde::Deserialize;

use super::{set, span};

/// The least that a file of the audit may hold, in bytes: a line has room in it.
const LEAST_BYTES: u64 = 64 << 10;

/// The record of who asked for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// Whether requests that only look are written down, too. Those that are refused always are.
    pub reads: bool,
    /// After how many bytes a new file is begun.
    pub bytes: u64,
    /// After how long a new file is begun.
    pub age: Duration,
    /// How many files are kept.
    pub keep: usize,
}

impl Default for Audit {
    fn default() -> Self {
        Self { reads: false, bytes: 64 << 20, age: Duration::from_hours(30 * 24), keep: 16 }
    }
}

/// How often one who asks may do so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates {
    /// How many requests a second, in the long run.
    pub rate: u32,
    /// How many at once, after a while of quiet.
    pub burst: u32,
}

impl Default for Rates {
    fn default() -> Self {
        Self { rate: 20_000, burst: 40_000 }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditSection {
    reads: Option<bool>,
    bytes: Option<u64>,
    age: Option<String>,
    keep: Option<usize>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsSection {
    rate: Option<u32>,
    burst: Option<u32>,
}

impl Audit {
    pub(super) fn read(section: AuditSection) -> Result<Self, String> {
        let mut audit = Self::default();
        set(&mut audit.reads, section.reads);
        set(&mut audit.bytes, section.bytes);
        set(&mut audit.age, span("audit.age", section.age)?);
        set(&mut audit.keep, section.keep);
        Ok(audit)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.bytes < LEAST_BYTES {
            return Err(format!("`audit.bytes` must be at least {LEAST_BYTES}"));
        }
        if self.keep < 2 {
            return Err("`audit.keep` must be at least 2: one that is full, and the next".into());
        }
        if self.age < Duration::from_secs(1) {
            return Err("`audit.age` must be at least 1s".into());
        }
        Ok(())
    }
}

impl Rates {
    pub(super) fn read(section: &LimitsSection) -> Self {
        let mut rates = Self::default();
        set(&mut rates.rate, section.rate);
        let LimitsSection { rate, burst } = section;
        set(&mut rates.burst, burst.or_else(|| rate.map(|rate| rate.saturating_mul(2))));
        rates
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.rate == 0 || self.burst == 0 {
            return Err("`limits.rate` and `limits.burst` must be at least 1".into());
        }
        Ok(())
    }
}
