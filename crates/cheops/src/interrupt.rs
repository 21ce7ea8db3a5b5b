//! Signals that mean that someone wants this to end.
//!
//! What must stay true: whoever listens has the time to put things in order; nothing is ended here.

use std::thread;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::report::{Exit, Failure};

/// Whether someone wants this to end. Clones listen to the same.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Listens to all signals that mean so, from now on: Ctrl-C, a request to end, a terminal that
    /// was closed.
    pub(crate) fn any() -> Result<Self, Failure> {
        Self::listen(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])
    }

    /// Listens to Ctrl-C alone, from now on.
    pub(crate) fn ctrl_c() -> Result<Self, Failure> {
        Self::listen(&[SignalKind::interrupt()])
    }

    fn listen(kinds: &[SignalKind]) -> Result<Self, Failure> {
        let failed = |error| Failure::new(Exit::Wrong, "cannot listen to signals").caused_by(error);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let signals: Result<Vec<_>, _> = {
            let _inside = runtime.enter();
            kinds.iter().map(|kind| signal(*kind)).collect()
        };
        let mut signals = signals.map_err(failed)?;
        let (set, is_set) = watch::channel(false);
        thread::spawn(move || {
            runtime.block_on(async {
                let any = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
                futures_util::future::select_all(any).await;
            });
            // Whoever listened may be gone.
            let _ = set.send(true);
        });
        Ok(Self(is_set))
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is set.
    pub(crate) async fn set(&self) {
        // Without a sender nobody can ask any more, and the wait has no end.
        if self.0.clone().wait_for(|is_set| *is_set).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// A failure if it is.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_set() { Err(Failure::new(Exit::Interrupted, "interrupted")) } else { Ok(()) }
    }
}
