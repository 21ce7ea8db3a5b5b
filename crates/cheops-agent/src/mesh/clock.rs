//! Time limits that each request sets anew, and hardly any reaches.
//!
//! To set a timer of the runtime, and to take it back, costs more than to look at the time. So a timer
//! stays where it is while a limit moves to later and later times, and is set again only when it ends
//! too soon: once in as long as the limit is, and not twice for each request.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::rt::Timer;
use tokio::time::{Instant, Sleep, sleep_until};

/// What is set to a time again and again, and hardly ever rings.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    pub(super) fn set(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// Waits for the time that it is set to.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if at < timer.deadline() {
            timer.as_mut().reset(at);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
    }
}

/// The time as hyper keeps it for one connection of HTTP/1, where it waits for one thing at a time.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock(Arc<Mutex<Alarm>>);

impl Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Waits { clock: self.clone(), until: Instant::now() + duration })
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Waits { clock: self.clone(), until: deadline.into() })
    }
}

struct Waits {
    clock: Clock,
    until: Instant,
}

impl hyper::rt::Sleep for Waits {}

impl Future for Waits {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut alarm = self.clock.0.lock().unwrap_or_else(PoisonError::into_inner);
        alarm.set(self.until);
        alarm.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::timeout;

    use super::*;

    const FAR: u64 = 3_600_000;

    #[tokio::test]
    async fn an_alarm_rings_when_it_was_last_set_to_ring() {
        let mut alarm = Alarm::default();
        for set in [&[5][..], &[FAR, 5], &[FAR, 1, 30], &[20, 10]] {
            let start = Instant::now();
            for millis in set {
                alarm.set(start + Duration::from_millis(*millis));
                let rings = poll_fn(|cx| Poll::Ready(alarm.poll(cx).is_ready())).await;
                assert!(!rings || *millis < FAR, "{set:?}");
            }
            let rings = timeout(Duration::from_mins(1), poll_fn(|cx| alarm.poll(cx))).await;
            assert!(rings.is_ok(), "{set:?}");
            let last = set.last().copied().unwrap_or_default();
            assert!(start.elapsed() >= Duration::from_millis(last), "{set:?}");
        }
    }

    #[tokio::test]
    async fn what_was_waited_for_before_does_not_count() {
        let clock = Clock::default();
        let mut far = clock.sleep(Duration::from_hours(1));
        assert!(poll_fn(|cx| Poll::Ready(far.as_mut().poll(cx).is_pending())).await);
        for span in [5, 20].map(Duration::from_millis) {
            let start = Instant::now();
            assert!(timeout(Duration::from_mins(1), clock.sleep(span)).await.is_ok());
            assert!(start.elapsed() >= span);
        }
    }
}
