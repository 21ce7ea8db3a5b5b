//! What is decided about links by arithmetic alone: when to try again, how far away a site is, how
//! far behind it is, whether it is still there. No clock is read and nothing is drawn here.

use std::time::{Duration, Instant};

/// The first pause between two attempts to reach a site.
const FIRST: Duration = Duration::from_millis(100);
/// How many silences a ping may stay without an answer while other bytes still arrive. They may
/// have had to wait behind much else on a slow line.
const PATIENCE: u32 = 4;

/// How long to wait before a site is tried again: longer and longer, up to a limit.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    failures: u32,
    limit: Duration,
}

impl Backoff {
    pub(super) fn new(limit: Duration) -> Self {
        Self { failures: 0, limit }
    }

    /// The next pause. `draw` is between 0 and 1, and different each time, so that sites that lost
    /// each other at the same moment don't meet in step for ever.
    pub(super) fn next(&mut self, draw: f64) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.failures.min(20)).min(self.limit);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(0.5 + draw.clamp(0.0, 1.0) / 2.0)
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A round trip after one more was measured: a mean in which the last ones count most.
pub(super) fn smooth(before: Option<Duration>, measured: Duration) -> Duration {
    before.map_or(measured, |before| (before * 7 + measured) / 8)
}

/// By how many milliseconds the clock of another site is ahead of ours. It was read at some moment
/// of a round trip: most likely in the middle.
pub(super) fn clock_offset(theirs: u64, ours_at_the_end: u64, round_trip: Duration) -> i64 {
    let half = i128::try_from(round_trip.as_millis() / 2).unwrap_or(0);
    let offset = i128::from(theirs) - (i128::from(ours_at_the_end) - half);
    i64::try_from(offset).unwrap_or(if offset < 0 { i64::MIN } else { i64::MAX })
}

/// Whether two sites know the same of what they share, and when they last did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Agreement {
    last: Option<Instant>,
    holds: bool,
}

impl Agreement {
    /// The two have compared their digests.
    pub(super) fn compared(&mut self, equal: bool, now: Instant) {
        self.holds = equal;
        if equal {
            self.last = Some(now);
        }
    }

    /// The link is gone: nobody knows any more.
    pub(super) fn cut(&mut self) {
        self.holds = false;
    }

    /// How long ago the two last knew the same; not at all if that was never seen.
    pub(super) fn lag(&self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.last?);
        Some(if self.holds { Duration::ZERO } else { since })
    }
}

/// Why a site counts as gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// Nothing was heard for this long.
    Silent(Duration),
    /// Bytes arrive, but a ping was not answered for this long.
    Deaf(Duration),
}

/// Whether a site is gone: when it was last heard, and when the oldest ping without an answer was
/// sent. If it is not: when to look again.
pub(super) fn is_gone(
    now: Instant,
    heard: Instant,
    asked: Option<Instant>,
    silence: Duration,
) -> Result<Instant, Gone> {
    let quiet = now.saturating_duration_since(heard);
    if quiet >= silence {
        return Err(Gone::Silent(quiet));
    }
    let patience = silence * PATIENCE;
    match asked.map(|asked| (asked, now.saturating_duration_since(asked))) {
        Some((_, waited)) if waited >= patience => Err(Gone::Deaf(waited)),
        Some((asked, _)) => Ok((heard + silence).min(asked + patience)),
        None => Ok(heard + silence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_up_to_the_limit_and_start_again() {
        let mut backoff = Backoff::new(ms(1_000));
        let pauses: Vec<_> = (0..6).map(|_| backoff.next(1.0)).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000].map(ms));
        assert_eq!(backoff.next(0.0), ms(500));
        for _ in 0..100 {
            assert!(backoff.next(0.5) <= ms(1_000));
        }
        backoff.reset();
        assert_eq!(backoff.next(1.0), ms(100));
    }

    #[test]
    fn a_limit_below_the_first_pause_holds() {
        assert_eq!(Backoff::new(ms(20)).next(1.0), ms(20));
    }

    #[test]
    fn the_first_round_trip_counts_whole_and_the_others_by_an_eighth() {
        assert_eq!(smooth(None, ms(80)), ms(80));
        assert_eq!(smooth(Some(ms(80)), ms(160)), ms(90));
        let settled = (0..60).fold(ms(500), |before, _| smooth(Some(before), ms(20)));
        assert!(settled < ms(21), "{settled:?}");
    }

    #[test]
    fn clocks_are_compared_in_the_middle_of_the_round_trip() {
        let table = [
            (1_000, 1_000, 0, 0),
            (1_000, 1_100, 200, 0),
            (7_000, 1_100, 200, 6_000),
            (0, 10_100, 200, -10_000),
            (u64::MAX, 0, 0, i64::MAX),
            (0, u64::MAX, 0, i64::MIN),
        ];
        for (theirs, ours, round_trip, offset) in table {
            assert_eq!(clock_offset(theirs, ours, ms(round_trip)), offset, "{theirs} {ours}");
        }
    }

    #[test]
    fn lag_is_the_time_since_the_two_agreed() {
        let start = Instant::now();
        let mut agreement = Agreement::default();
        agreement.compared(false, start);
        assert_eq!(agreement.lag(start + ms(5)), None);
        agreement.compared(true, start + ms(10));
        assert_eq!(agreement.lag(start + ms(500)), Some(ms(0)));
        agreement.compared(false, start + ms(600));
        assert_eq!(agreement.lag(start + ms(700)), Some(ms(690)));
        agreement.compared(true, start + ms(800));
        agreement.cut();
        assert_eq!(agreement.lag(start + ms(900)), Some(ms(100)));
    }

    #[test]
    fn a_site_is_gone_when_it_is_silent_or_does_not_answer() {
        let start = Instant::now();
        let at = |n| start + ms(n);
        let table = [
            (99, 0, None, Ok(at(100))),
            (100, 0, None, Err(Gone::Silent(ms(100)))),
            (100, 50, None, Ok(at(150))),
            (399, 390, Some(0), Ok(at(400))),
            (400, 390, Some(0), Err(Gone::Deaf(ms(400)))),
            (400, 390, Some(300), Ok(at(490))),
        ];
        for (now, heard, asked, expected) in table {
            assert_eq!(is_gone(at(now), at(heard), asked.map(at), ms(100)), expected, "{now}");
        }
    }
}
