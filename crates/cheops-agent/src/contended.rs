//! Locks and addresses that a process which was killed just now still holds.
//!
//! While a process starts a child, the child has a copy of all its open files until it becomes another program. If the
//! process is killed in that moment, the child still holds the locks and the listening sockets of the dead process, for
//! milliseconds. So an agent that starts waits briefly before it reports that something is in use. What must stay true:
//! - only "in use" is waited for: every other failure is reported at once;
//! - nothing is waited for longer than [`PATIENCE`].

use std::{
    fs::{File, TryLockError},
    io,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use tokio::{net::TcpListener, time::sleep};

/// How long a lock or an address may stay in use. A child becomes another program within milliseconds, and within a
/// second on a machine that is very busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Locks a file for this process alone.
pub(crate) fn lock(file: &File) -> Result<(), TryLockError> {
    lock_within(file, PATIENCE)
}

fn lock_within(file: &File, patience: Duration) -> Result<(), TryLockError> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => thread::sleep(PAUSE),
            locked => return locked,
        }
    }
}

/// Listens on an address.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let start = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(error) if is_in_use(&error) && start.elapsed() < PATIENCE => sleep(PAUSE).await,
            bound => return bound,
        }
    }
}

/// Tries something again for as long as it fails since an address is in use.
pub(crate) async fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && start.elapsed() < PATIENCE => sleep(PAUSE).await,
            done => return done,
        }
    }
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_and_no_longer_than_it_may_take() {
        let [one, other] = {
            let file = tempfile::NamedTempFile::new().unwrap();
            [(); 2].map(|()| File::open(file.path()).unwrap())
        };
        one.lock().unwrap();
        let short = Duration::from_millis(30);
        assert!(matches!(lock_within(&other, short), Err(TryLockError::WouldBlock)));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(&other));
            one.unlock().unwrap();
            waiting.join().unwrap().unwrap();
        });
    }

    #[tokio::test]
    async fn an_address_is_waited_for() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = holder.local_addr().unwrap();
        let waiting = tokio::spawn(listen(address));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it is in use");
        drop(holder);
        assert_eq!(waiting.await.unwrap().unwrap().local_addr().unwrap(), address);
    }

    #[tokio::test]
    async fn every_other_failure_is_reported_at_once() {
        let mut attempts = 0;
        let refused = retry(|| -> io::Result<()> {
            attempts += 1;
            Err(io::ErrorKind::PermissionDenied.into())
        })
        .await;
        assert_eq!((refused.unwrap_err().kind(), attempts), (io::ErrorKind::PermissionDenied, 1));
        let mut left = 2;
        let done = retry(|| {
            left -= 1;
            if left > 0 { Err(io::ErrorKind::AddrInUse.into()) } else { Ok(left) }
        })
        .await;
        assert_eq!(done.unwrap(), 0);
    }
}
