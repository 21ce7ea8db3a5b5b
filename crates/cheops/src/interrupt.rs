//! Signals that mean that someone wants this to end.
//!
//! What must stay true: whoever listens has the time to put things in order; nothing is ended here.
//! A signal that whoever started us wants ignored (`nohup`, a script that runs us in the background)
//! stays ignored.

use std::{fs, thread};

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
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let heard = kinds.iter().filter(|kind| !is_ignored(&status, **kind));
            heard.map(|kind| signal(*kind)).collect()
        };
        let mut signals = signals.map_err(failed)?;
        let (set, is_set) = watch::channel(false);
        thread::spawn(move || {
            runtime.block_on(async {
                let any: Vec<_> =
                    signals.iter_mut().map(|signal| Box::pin(signal.recv())).collect();
                if any.is_empty() {
                    std::future::pending::<()>().await;
                }
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

/// Whether a process ignores a signal, from what the system says of it.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask.checked_shr(kind.as_raw_value().cast_unsigned() - 1).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_ignored_is_known() {
        let (hangup, interrupt) = (SignalKind::hangup(), SignalKind::interrupt());
        for (status, expected) in [
            ("Name:\tcheops\nSigIgn:\t0000000000001001\n", [true, false]),
            ("SigIgn:\t0000000000000002\n", [false, true]),
            ("SigIgn:\tnonsense\n", [false, false]),
            ("", [false, false]),
        ] {
            assert_eq!([hangup, interrupt].map(|kind| is_ignored(status, kind)), expected);
        }
    }
}
