//! Which of two operations is later: a hybrid logical clock, by hand and pure.
//!
//! What must stay true:
//! - a timestamp that a site gives is greater than all that it has given or seen before, even if
//!   its wall clock stands still, jumps back, or began in 1970;
//! - as long as wall clocks agree, timestamps read as the time of day.

use core::fmt;

/// How many bits of a timestamp count the operations within one millisecond.
const COUNTER_BITS: u32 = 16;

/// A point in hybrid logical time: milliseconds since 1970 and a counter, in one number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last timestamp that another site may show us, somewhere in the year 6429. A site that
    /// shows a greater one is broken, and believing it would use up the clock of everyone else.
    pub const LAST: Self = Self(u64::MAX >> 1);

    /// The first timestamp of a millisecond.
    pub const fn at(wall: Millis) -> Self {
        Self(wall.0 << COUNTER_BITS)
    }

    /// The millisecond that the timestamp falls in.
    pub const fn wall(self) -> Millis {
        Millis(self.0 >> COUNTER_BITS)
    }

    /// The timestamp as one number, for the wire and the disk.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The timestamp that [`to_bits`](Self::to_bits) gave.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.wall().0, self.0 & ((1 << COUNTER_BITS) - 1))
    }
}

/// A time or a span in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub u64);

impl Millis {
    /// This much later; the end of time instead of an overflow.
    #[must_use]
    pub const fn plus(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// The time as the shell tells it with each input.
///
/// Two clocks, because they fail apart: the wall clock may be wrong by hours and jump; the steady
/// one only ever goes forward, but says nothing about the time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Now {
    /// Milliseconds since 1970, as far as this site knows. For timestamps.
    pub wall: Millis,
    /// Milliseconds since some moment of this process's life. For deadlines.
    pub steady: Millis,
}

/// The clock of a site.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Clock {
    last: Timestamp,
}

impl Clock {
    /// A new timestamp, later than all before.
    pub fn tick(&mut self, wall: Millis) -> Timestamp {
        let next = Timestamp(self.last.0 + 1);
        // A wall clock beyond the representable years counts for nothing.
        let wall = Timestamp(wall.0.min(Timestamp::LAST.wall().0) << COUNTER_BITS);
        self.last = next.max(wall);
        self.last
    }

    /// Takes note of a timestamp that was given elsewhere.
    pub fn observe(&mut self, seen: Timestamp) {
        self.last = self.last.max(seen.min(Timestamp::LAST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_whatever_the_wall_clock_does() {
        let mut clock = Clock::default();
        let mut before = clock.tick(Millis(1000));
        assert_eq!(before.wall(), Millis(1000));
        for wall in [1000, 1000, 10, 0, 1001, u64::MAX, 5] {
            let now = clock.tick(Millis(wall));
            assert!(now > before, "{wall}");
            before = now;
        }
    }

    #[test]
    fn what_was_seen_is_in_the_past() {
        let mut clock = Clock::default();
        let seen = Timestamp::at(Millis(9_000_000));
        clock.observe(seen);
        assert!(clock.tick(Millis(3)) > seen);
        clock.observe(Timestamp::from_bits(u64::MAX));
        assert!(clock.tick(Millis(3)) > Timestamp::LAST);
    }

    #[test]
    fn many_operations_in_one_millisecond_borrow_from_the_next() {
        let mut clock = Clock::default();
        let first = clock.tick(Millis(7));
        let mut last = first;
        for _ in 0..=1 << COUNTER_BITS {
            last = clock.tick(Millis(7));
        }
        assert_eq!(last.wall(), Millis(8));
    }
}
