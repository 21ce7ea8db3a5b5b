//! The tray between the decider and the committer: one batch, which grows until it is taken.
//!
//! What must stay true: the committer takes all that is there, so that what comes while the disk is busy
//! costs one sync together; a full tray takes nothing more, so that the decider waits.

use std::{
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use super::decide::Batch;

#[derive(Default)]
pub(super) struct Tray {
    lies: Mutex<Lies>,
    filled: Condvar,
    taken: Notify,
}

/// What lies in the tray.
#[derive(Default)]
struct Lies {
    batch: Batch,
    /// One of the two has gone.
    closed: bool,
}

/// Nobody takes anything any more.
pub(super) struct Closed;

impl Tray {
    fn lies(&self) -> MutexGuard<'_, Lies> {
        self.lies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a batch behind what lies there, if there is room; otherwise it stays where it is.
    pub(super) fn put(&self, batch: &mut Batch) -> Result<(), Closed> {
        let mut lies = self.lies();
        if lies.closed {
            return Err(Closed);
        }
        if !batch.is_empty() && !lies.batch.is_full() {
            lies.batch.follow(mem::take(batch));
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Whether there is somebody at both ends.
    pub(super) fn is_open(&self) -> Result<(), Closed> {
        if self.lies().closed { Err(Closed) } else { Ok(()) }
    }

    /// Waits until what lay there was taken.
    pub(super) async fn taken(&self) {
        self.taken.notified().await;
    }

    /// Takes all that lies there, once there is something; nothing if that is not within a time.
    pub(super) fn take(&self, within: Duration) -> Result<Option<Batch>, Closed> {
        let empty = |lies: &mut Lies| lies.batch.is_empty() && !lies.closed;
        let waited = self.filled.wait_timeout_while(self.lies(), within, empty);
        let (mut lies, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let batch = mem::take(&mut lies.batch);
        if batch.is_empty() {
            return if lies.closed { Err(Closed) } else { Ok(None) };
        }
        self.taken.notify_one();
        Ok(Some(batch))
    }

    /// Hands out what only looked: it waits no longer for a disk that fails.
    pub(super) fn release(&self) {
        self.lies().batch.release();
    }

    /// Says that one of the two goes. What lies there can still be taken.
    pub(super) fn close(&self) {
        self.lies().closed = true;
        self.filled.notify_one();
        self.taken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;
    use crate::node::decide::{FULL, Then};

    fn batch(count: usize) -> Batch {
        let mut batch = Batch::default();
        batch.then.extend((0..count).map(|_| Then::Release(Box::new(|| {}))));
        batch
    }

    /// Takes what lies there or comes soon.
    fn take(tray: &Tray) -> Option<Batch> {
        tray.take(Duration::from_secs(5)).ok().flatten()
    }

    #[test]
    fn all_that_lies_there_is_taken_at_once() {
        let tray = Tray::default();
        for count in [1, 2, 3] {
            assert!(tray.put(&mut batch(count)).is_ok());
        }
        assert!(tray.take(Duration::ZERO).is_ok_and(|taken| taken.unwrap().then.len() == 6));
        assert!(tray.take(Duration::ZERO).is_ok_and(|taken| taken.is_none()));
    }

    #[tokio::test]
    async fn a_full_tray_takes_nothing_until_it_is_emptied() {
        let tray = Arc::new(Tray::default());
        assert!(tray.put(&mut batch(FULL)).is_ok());
        let mut more = batch(1);
        assert!(tray.put(&mut more).is_ok() && !more.is_empty());
        let taking = thread::spawn({
            let tray = tray.clone();
            move || take(&tray).unwrap().then.len()
        });
        tokio::time::timeout(Duration::from_secs(5), tray.taken()).await.unwrap();
        assert_eq!(taking.join().unwrap(), FULL);
        assert!(tray.put(&mut more).is_ok() && more.is_empty());
    }

    #[test]
    fn what_lies_there_when_the_other_goes_is_still_taken() {
        let tray = Tray::default();
        assert!(tray.put(&mut batch(1)).is_ok());
        tray.close();
        assert!(tray.put(&mut batch(1)).is_err());
        assert!(take(&tray).is_some() && tray.take(Duration::ZERO).is_err());
    }
}
