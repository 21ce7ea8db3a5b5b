//! The store of attached files, each by the hash of its content.
//!
//! ```text
//! files/HASH        a file, whole, and on disk
//! files/HASH.part   one that is being fetched from another site
//! files/put-N       one that is being taken in
//! ```
//!
//! What must stay true:
//! - under the name of a hash there is the content with that hash, whole and durable, or nothing;
//! - whatever a file's length, it passes through a buffer and is never in memory whole;
//! - what can't be completed leaves nothing behind, except a part that a later fetch goes on with;
//! - a file that somebody has just put or claimed is not collected before it can be used;
//! - where there is a depot, a file that was put is there, too, and is got back from there if it is not here;
//! - no file takes the room that the site keeps for what it writes down.

mod depot;
mod fetch;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::{Display, Write as _},
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::task::spawn_blocking;

use self::fetch::Slot;
pub use self::{depot::Depot, fetch::Fetch};
use crate::{config, engine::free};

/// The hash of a file's content.
pub type Content = [u8; 32];

/// How much is gathered before it is written.
const CHUNK: usize = 1 << 20;
/// How long a site may send nothing before the next one is asked.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a file could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is larger than what this site takes.
    #[error(
        "the file is larger than {largest} bytes, which is the most that this site stores; see `store.file`"
    )]
    TooLarge {
        /// The limit.
        largest: u64,
    },
    /// It would take room that is kept for what the site writes down.
    #[error(
        "there is no room for the file: {free} bytes are free, and {reserve} of them must stay so; see `store.reserve`"
    )]
    Full {
        /// How many bytes are free.
        free: u64,
        /// How many must stay so.
        reserve: u64,
    },
    /// Whoever sent it stopped.
    #[error("the file did not arrive whole: {0}")]
    Broken(String),
    /// What keeps files beside the disk.
    #[error("the file can't be kept in CouchDB: {0}")]
    Depot(io::Error),
    /// The disk.
    #[error("the file can't be stored in {place}: {error}", place = place.display())]
    Disk {
        /// Where.
        place: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
}

/// The store. All clones are one.
#[derive(Clone)]
pub struct Files(Arc<Store>);

struct Store {
    directory: PathBuf,
    limits: config::Store,
    patience: Duration,
    next: AtomicU64,
    /// Held while a file gets its name, and while it is decided whether one is collected.
    names: Mutex<()>,
    fetching: Mutex<HashMap<Content, Arc<Slot>>>,
    /// Where files are kept besides.
    depot: Option<Box<dyn Depot>>,
}

impl Files {
    /// Opens the store in a directory, which is made if it is not there.
    pub fn open(directory: PathBuf, limits: config::Store) -> io::Result<Self> {
        Self::open_with(directory, limits, PATIENCE, None)
    }

    /// The same, with another place for files, if there is one.
    pub fn with_depot(
        directory: PathBuf,
        limits: config::Store,
        depot: Option<Box<dyn Depot>>,
    ) -> io::Result<Self> {
        Self::open_with(directory, limits, PATIENCE, depot)
    }

    /// The same, with another time that a site may send nothing before the next one is asked.
    pub fn with_patience(
        directory: PathBuf,
        limits: config::Store,
        patience: Duration,
    ) -> io::Result<Self> {
        Self::open_with(directory, limits, patience, None)
    }

    fn open_with(
        directory: PathBuf,
        limits: config::Store,
        patience: Duration,
        depot: Option<Box<dyn Depot>>,
    ) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b"put-") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self(Arc::new(Store {
            directory: std::path::absolute(directory)?,
            limits,
            patience,
            next: AtomicU64::new(0),
            names: Mutex::default(),
            fetching: Mutex::default(),
            depot,
        })))
    }

    /// Takes in a file, and says its hash and its length.
    pub async fn put<S, E>(&self, content: S) -> Result<(Content, u64), FileError>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: Display,
    {
        let mut content = pin!(content);
        let path =
            self.0.directory.join(format!("put-{}", self.0.next.fetch_add(1, Ordering::Relaxed)));
        let mut draft = self.blocking(move || Draft::new(path)).await?;
        let mut gathered = Vec::new();
        let mut length = 0;
        loop {
            let part = content.next().await.transpose();
            let part = part.map_err(|error| FileError::Broken(error.to_string()))?;
            if let Some(part) = &part {
                length += part.len() as u64;
                self.bound(length)?;
                gathered.push(part.clone());
            }
            let count = gathered.iter().map(Bytes::len).sum::<usize>();
            if part.is_none() || count >= CHUNK {
                self.room(count).await?;
                let parts = std::mem::take(&mut gathered);
                let write = move || {
                    parts.iter().try_for_each(|part| draft.add(part))?;
                    Ok(draft)
                };
                draft = self.blocking(write).await?;
            }
            if part.is_none() {
                let store = self.0.clone();
                let hash = self.blocking(move || store.name(&draft)).await?;
                self.deposit(&hash, length).await?;
                return Ok((hash, length));
            }
        }
    }

    /// Where a file is, if it is here.
    pub fn path(&self, content: &Content) -> Option<PathBuf> {
        let path = self.0.path(content);
        path.is_file().then_some(path)
    }

    /// Makes sure that a file is here for whoever is about to name it, and says how long it is: it
    /// counts as new, so it is not collected meanwhile. Waits for the disk.
    pub fn claim(&self, content: &Content) -> Option<u64> {
        let _names = lock(&self.0.names);
        renew(&self.0.path(content)).ok()
    }

    /// Opens a file from an offset on, and says how long it is in all.
    pub async fn open_at(
        &self,
        content: &Content,
        offset: u64,
    ) -> io::Result<(tokio::fs::File, u64)> {
        let path = self.0.path(content);
        if self.path(content).is_none() {
            self.recover(content).await.map_err(io::Error::other)?;
        }
        let open = move || {
            let mut file = File::open(path)?;
            let length = file.metadata()?.len();
            // What is beyond the end is the caller's to refuse; the system knows no offsets beyond 2^63.
            file.seek(SeekFrom::Start(offset.min(length)))?;
            Ok((tokio::fs::File::from_std(file), length))
        };
        spawn_blocking(open).await.map_err(io::Error::other)?
    }

    /// Removes what nobody uses and what was not touched for some time; says how many files. Reads
    /// the disk.
    pub fn keep_only(&self, in_use: &BTreeSet<Content>, older_than: Duration) -> io::Result<usize> {
        let names: BTreeSet<_> = in_use.iter().map(hex).collect();
        let fetching: BTreeSet<_> = lock(&self.0.fetching).keys().map(hex).collect();
        let mut removed = 0;
        for entry in fs::read_dir(&self.0.directory)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let part = name.strip_suffix(".part");
            let used = match part {
                Some(content) => fetching.contains(content),
                None => names.contains(name) || name.starts_with("put-"),
            };
            if !used {
                // It may have been claimed since it was listed, or since it was known who uses what.
                let _names = lock(&self.0.names);
                if older(&path, older_than)? {
                    fs::remove_file(&path)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    fn bound(&self, length: u64) -> Result<(), FileError> {
        let largest = self.0.limits.file;
        if length > largest { Err(FileError::TooLarge { largest }) } else { Ok(()) }
    }

    /// Whether there is room for so many bytes more.
    async fn room(&self, more: usize) -> Result<(), FileError> {
        let (store, reserve) = (self.0.clone(), self.0.limits.reserve);
        let free = self.blocking(move || free(&store.directory)).await?;
        if free < reserve.saturating_add(more as u64) {
            return Err(FileError::Full { free, reserve });
        }
        Ok(())
    }

    /// Does something with the disk, where nobody waits for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, FileError> {
        let done = spawn_blocking(work).await.map_err(io::Error::other).and_then(|done| done);
        done.map_err(|error| FileError::Disk { place: self.0.directory.clone(), error })
    }
}

impl Store {
    fn path(&self, content: &Content) -> PathBuf {
        self.directory.join(hex(content))
    }

    /// Makes a draft that is complete durable, and gives it its name.
    fn name(&self, draft: &Draft) -> io::Result<Content> {
        let hash = *draft.hash.finalize().as_bytes();
        let path = self.path(&hash);
        self.publish(&draft.file, &draft.path, &path)?;
        Ok(hash)
    }

    /// Makes a file durable, under its name. One that is there already stays, since operations may
    /// share it, and counts as new, so that it is not collected before whoever put it can use it.
    fn publish(&self, file: &File, from: &Path, to: &Path) -> io::Result<()> {
        let length = file.metadata()?.len();
        {
            let _names = lock(&self.names);
            if renew(to).is_ok_and(|there| there == length) {
                return fs::remove_file(from);
            }
        }
        file.sync_all()?;
        let _names = lock(&self.names);
        fs::rename(from, to)?;
        let mut read_only = file.metadata()?.permissions();
        read_only.set_readonly(true);
        file.set_permissions(read_only)?;
        File::open(&self.directory)?.sync_all()
    }
}

/// A file that has no name yet. It is gone when it is dropped.
struct Draft {
    path: PathBuf,
    file: File,
    hash: blake3::Hasher,
}

impl Draft {
    fn new(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { path, file, hash: blake3::Hasher::new() })
    }

    fn add(&mut self, part: &[u8]) -> io::Result<()> {
        self.hash.update(part);
        self.file.write_all(part)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // One that has its name by now is not found any more.
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a file count as new, and says how long it is.
fn renew(path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    file.set_modified(SystemTime::now())?;
    Ok(file.metadata()?.len())
}

fn older(path: &Path, span: Duration) -> io::Result<bool> {
    let Some(about) = fs::metadata(path).map(Some).or_else(crate::run::missing)? else {
        return Ok(false);
    };
    // A clock that was set back makes it look new; the next time will do.
    Ok(about.modified()?.elapsed().is_ok_and(|age| age >= span))
}

fn hex(content: &Content) -> String {
    content.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
