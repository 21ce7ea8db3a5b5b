//! When a delivery that failed is tried again, and when it is given up. Arithmetic alone: no clock is
//! read and nothing is drawn here.
//!
//! What must stay true: a hook that fails is tried less and less often, but never stops being tried
//! while there is something to tell; one event that is refused does not hold up the others for ever.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(500);
/// How often an event is tried that the receiver refuses.
const REFUSALS: u32 = 3;

/// Why a delivery failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// Nobody took it: it can go well later.
    #[error("{0}")]
    Unavailable(String),
    /// The receiver was there, and does not want this one.
    #[error("{0}")]
    Refused(String),
}

/// What is done after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Try the same again after a pause.
    Again(Duration),
    /// Give this event up, and go on with the next.
    GiveUp,
}

/// How often the next event in line has failed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attempts {
    failures: u32,
    refusals: u32,
}

/// How long to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The longest pause.
    pub(crate) pause: Duration,
    /// The longest that an event may wait.
    pub(crate) give_up: Duration,
}

impl Attempts {
    /// After a failure of an event that has waited for so long. `draw` is between 0 and 1, and
    /// different each time, so that sites don't try in step.
    pub(crate) fn failed(
        &mut self,
        failure: &Failure,
        waited: Duration,
        limits: Limits,
        draw: f64,
    ) -> Next {
        if matches!(failure, Failure::Refused(_)) {
            self.refusals += 1;
        }
        let pause = FIRST.saturating_mul(1 << self.failures.min(20)).min(limits.pause);
        self.failures = self.failures.saturating_add(1);
        if self.refusals >= REFUSALS || waited >= limits.give_up {
            self.refusals = 0;
            return Next::GiveUp;
        }
        Next::Again(pause.mul_f64(0.75 + draw.clamp(0.0, 1.0) / 4.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { pause: Duration::from_mins(5), give_up: Duration::from_hours(24) };

    fn down() -> Failure {
        Failure::Unavailable("connection refused".into())
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let mut attempts = Attempts::default();
        let mut last = Duration::ZERO;
        for n in 0..60 {
            let next = attempts.failed(&down(), Duration::ZERO, LIMITS, 1.0);
            let Next::Again(pause) = next else { panic!("{n}: {next:?}") };
            assert!(pause >= last && pause <= LIMITS.pause, "{n}: {pause:?}");
            last = pause;
        }
        assert_eq!(last, LIMITS.pause);
        let low = Attempts::default().failed(&down(), Duration::ZERO, LIMITS, 0.0);
        assert_eq!(low, Next::Again(FIRST.mul_f64(0.75)));
    }

    #[test]
    fn what_is_refused_is_given_up_soon_and_what_waits_too_long_in_the_end() {
        let mut attempts = Attempts::default();
        let refused = Failure::Refused("answered 400".into());
        let mut fail = |waited| attempts.failed(&refused, waited, LIMITS, 1.0);
        assert!(matches!(fail(Duration::ZERO), Next::Again(_)));
        assert!(matches!(fail(Duration::ZERO), Next::Again(_)));
        assert_eq!(fail(Duration::ZERO), Next::GiveUp);
        assert!(
            matches!(fail(Duration::ZERO), Next::Again(_)),
            "the next event has its own chances"
        );
        let mut attempts = Attempts::default();
        assert_eq!(attempts.failed(&down(), LIMITS.give_up, LIMITS, 1.0), Next::GiveUp);
    }
}
