//! Which of two operations is later: a hybrid logical clock, by hand and pure.
//!
//! What must stay true:
//! - a timestamp that a site gives is greater than all that it has given before and than those of
//!   the operations that it follows, even if the wall clock stands still, jumps back, or began in
//!   1970;
//! - as long as wall clocks agree, timestamps read as the time of day;
//! - a clock that is far ahead, or a site that lies, shifts the timestamps of the resources that it
//!   writes to, and of no others: there is no clock that one resource could set for another.

use core::{fmt, time::Duration};

/// How many bits of a timestamp count the operations within one millisecond.
const COUNTER_BITS: u32 = 16;

/// A point in hybrid logical time: milliseconds since 1970 and a counter, in one number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last timestamp that a wall clock can lead to, somewhere in the year 6429. A greater one
    /// comes only from operations that follow such a one.
    pub const LAST: Self = Self(u64::MAX >> 1);

    /// The first timestamp of a millisecond.
    pub const fn at(wall: Millis) -> Self {
        Self(wall.0 << COUNTER_BITS)
    }

    /// The millisecond that the timestamp falls in.
    pub const fn wall(self) -> Millis {
        Millis(self.0 >> COUNTER_BITS)
    }

    /// Whether an honest site can have given this to an operation that follows one of that time:
    /// what is beyond all wall clocks goes on in small steps.
    pub const fn is_plausible_after(self, followed: Self) -> bool {
        self.0 <= Self::LAST.0 || self.0.saturating_sub(followed.0) <= 1 << COUNTER_BITS
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

/// Rounded up, so that a span is never shorter than what was asked for.
impl From<Duration> for Millis {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
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
    /// A new timestamp, later than all before and than that of what it follows.
    pub fn tick(&mut self, wall: Millis, followed: Timestamp) -> Timestamp {
        let next = self.last.0.max(followed.0).saturating_add(1);
        // What follows something from beyond all wall clocks does not move the clock itself.
        let own = Timestamp::at(Millis(wall.0.min(Timestamp::LAST.wall().0)));
        let given = Timestamp(next).max(own);
        self.last = if given <= Timestamp::LAST { given } else { self.last.max(own) };
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(0);

    #[test]
    fn time_goes_forward_whatever_the_wall_clock_does() {
        let mut clock = Clock::default();
        let mut before = clock.tick(Millis(1000), START);
        assert_eq!(before.wall(), Millis(1000));
        for wall in [1000, 1000, 10, 0, 1001, 5] {
            let now = clock.tick(Millis(wall), START);
            assert!(now > before, "{wall}");
            before = now;
        }
    }

    #[test]
    fn what_is_followed_is_in_the_past() {
        let mut clock = Clock::default();
        let followed = Timestamp::at(Millis(9_000_000));
        assert!(clock.tick(Millis(3), followed) > followed);
    }

    #[test]
    fn what_is_beyond_all_wall_clocks_stays_where_it_is() {
        let mut clock = Clock::default();
        let next = clock.tick(Millis(3), Timestamp::LAST);
        assert!(next > Timestamp::LAST && next.is_plausible_after(Timestamp::LAST));
        assert_eq!(clock.tick(Millis(4), START).wall(), Millis(4), "other resources don't notice");
        assert!(!next.is_plausible_after(START));
        assert!(clock.tick(Millis(u64::MAX), START).is_plausible_after(START));
    }

    #[test]
    fn many_operations_in_one_millisecond_borrow_from_the_next() {
        let mut clock = Clock::default();
        let mut last = clock.tick(Millis(7), START);
        for _ in 0..=1 << COUNTER_BITS {
            last = clock.tick(Millis(7), START);
        }
        assert_eq!(last.wall(), Millis(8));
    }
}
