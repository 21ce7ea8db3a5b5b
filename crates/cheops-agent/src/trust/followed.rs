//! Something that is read from files, and read again when they change: renewed without a restart.
//!
//! What must stay true: files that can't be used leave what was read before in place, and are a problem that is
//! shown until they can be; nobody waits for the disk to get what is there.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use super::certificate::CertificateError;

/// How often files are looked at.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

type Read<T> = Box<dyn Fn(Option<&T>) -> Result<T, CertificateError> + Send + Sync>;
/// What tells that a file is another one, or has other content.
type Stamp = Option<(SystemTime, u64, u64)>;

/// What files amount to, as they were when they could last be used.
pub(super) struct Followed<T> {
    /// What it is, for people.
    what: &'static str,
    files: Vec<PathBuf>,
    read: Read<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    now: Arc<T>,
    stamps: Vec<Stamp>,
    /// Why the files that are there now can't be used.
    failure: Option<String>,
}

impl<T> Followed<T> {
    /// Reads the files. Whoever reads them again is given what was read before.
    pub(super) fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn(Option<&T>) -> Result<T, CertificateError> + Send + Sync + 'static,
    ) -> Result<Self, CertificateError> {
        let stamps = stamps(&files);
        let now = Arc::new(read(None)?);
        let state = Mutex::new(State { now, stamps, failure: None });
        Ok(Self { what, files, read: Box::new(read), state })
    }

    /// What there is now.
    pub(super) fn now(&self) -> Arc<T> {
        self.lock().now.clone()
    }

    /// Why the files that are there now can't be used.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Reads the files again if they have changed.
    pub(super) fn look(&self) {
        let stamps = stamps(&self.files);
        let before = {
            let state = self.lock();
            if state.stamps == stamps {
                return;
            }
            state.now.clone()
        };
        let read = (self.read)(Some(&before));
        let mut state = self.lock();
        state.stamps = stamps;
        match read {
            Ok(read) => {
                tracing::info!("{} was read again", self.what);
                (state.now, state.failure) = (Arc::new(read), None);
            }
            Err(error) => {
                tracing::warn!("{} is kept, since the new files can't be used: {error}", self.what);
                state.failure = Some(error.to_string());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let about = fs::metadata(path).ok()?;
        Some((about.modified().ok()?, about.ino(), about.len()))
    };
    files.iter().map(stamp).collect()
}
