//! Where resources are that this site has no part in, as other sites have last said.
//!
//! What must stay true: about one resource, one question is under way at a time; that nobody knows one
//! is remembered too, for a short time, so that a client that goes on asking costs other sites nothing;
//! no more is remembered than the limit.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use cheops_core::id::{ResourceId, SiteId};
use tokio::sync::Mutex as Turn;

/// For how long it is remembered where one is.
const KNOWN: Duration = Duration::from_mins(1);
/// And that nobody knows it: it may be created at any time.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Of how many.
const MOST: usize = 10_000;

/// What other sites have said.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<HashMap<ResourceId, Arc<Turn<Option<Said>>>>>);

/// The sites that know a resource, and when they said so.
#[derive(Debug)]
struct Said {
    at: Instant,
    sites: Vec<SiteId>,
}

impl Said {
    fn counts(&self, now: Instant) -> bool {
        let span = if self.sites.is_empty() { UNKNOWN } else { KNOWN };
        now.saturating_duration_since(self.at) < span
    }
}

impl Strangers {
    /// The sites that know a resource: as is remembered, or as they say now.
    pub(super) async fn of(
        &self,
        resource: ResourceId,
        ask: impl Future<Output = Vec<SiteId>>,
    ) -> Vec<SiteId> {
        let said = self.place(resource, Instant::now());
        let mut said = said.lock().await;
        if let Some(said) = said.as_ref().filter(|said| said.counts(Instant::now())) {
            return said.sites.clone();
        }
        let sites = ask.await;
        *said = Some(Said { at: Instant::now(), sites: sites.clone() });
        sites
    }

    fn place(&self, resource: ResourceId, now: Instant) -> Arc<Turn<Option<Said>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST && !all.contains_key(&resource) {
            all.retain(|_, said| {
                said.try_lock().map_or(true, |said| said.as_ref().is_some_and(|s| s.counts(now)))
            });
            // Who waits for an answer still gets it.
            if all.len() >= MOST {
                all.clear();
            }
        }
        all.entry(resource).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn id(n: usize) -> ResourceId {
        format!("image~{n}").parse().unwrap()
    }

    #[tokio::test]
    async fn many_that_ask_at_once_are_one_question_also_if_nobody_knows() {
        for sites in [Vec::new(), vec!["site2".parse().unwrap()]] {
            let (strangers, questions) = (Strangers::default(), AtomicUsize::new(0));
            let ask = || {
                strangers.of(id(1), async {
                    questions.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    sites.clone()
                })
            };
            let answers = futures_util::future::join_all((0..10).map(|_| ask())).await;
            assert!(answers.iter().all(|answer| *answer == sites), "{answers:?}");
            assert_eq!(ask().await, sites);
            assert_eq!(questions.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn that_nobody_knows_it_counts_for_a_short_time() {
        let at = Instant::now();
        let unknown = Said { at, sites: Vec::new() };
        let known = Said { at, sites: vec!["site2".parse().unwrap()] };
        for (span, expected) in
            [(Duration::ZERO, (true, true)), (UNKNOWN, (false, true)), (KNOWN, (false, false))]
        {
            assert_eq!((unknown.counts(at + span), known.counts(at + span)), expected, "{span:?}");
        }
    }

    #[tokio::test]
    async fn no_more_is_remembered_than_the_limit() {
        let strangers = Strangers::default();
        for n in 0..=MOST {
            strangers.of(id(n), async { Vec::new() }).await;
        }
        assert!(strangers.0.lock().unwrap().len() <= MOST);
    }
}
