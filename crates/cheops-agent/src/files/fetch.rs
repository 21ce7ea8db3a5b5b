//! Fetching a file from another site.
//!
//! What must stay true: a fetch goes on with what there is, whoever began it and however often the
//! link breaks; a site that sends something else than what was asked for costs time and nothing
//! more; of those who wait for the same file one fetches, and if that one gives up the next does.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cheops_core::{id::SiteId, operation::Attachment};
use futures_util::{StreamExt, future::BoxFuture, stream::BoxStream};
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use super::{CHUNK, Content, FileError, Files, Store, lock};

/// The pause after no site could give the file: it doubles from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// How a file is asked for at another site.
pub trait Fetch: Send + Sync + 'static {
    /// The content of a file from an offset on.
    fn fetch(
        &self,
        site: &SiteId,
        content: Content,
        offset: u64,
    ) -> BoxFuture<'static, io::Result<BoxStream<'static, io::Result<Bytes>>>>;
}

/// What is there of a file that is being fetched. Whoever holds the lock fetches.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<Part>>);

/// The beginning of a file.
struct Part {
    path: PathBuf,
    file: File,
    hash: blake3::Hasher,
    length: u64,
    /// Whether all of it came from the same site.
    from: From,
}

#[derive(Clone, PartialEq, Eq)]
enum From {
    Nobody,
    One(SiteId),
    Several,
}

/// How an attempt with one site went.
enum Attempt {
    Done(PathBuf),
    /// It sent something else, all by itself.
    Wrong,
    /// What several sites sent does not make the file. The same site is asked for all of it.
    Mixed,
    /// It did not send all.
    Short(String),
}

impl Files {
    /// Where a file is. If it is not here, it is fetched from one of these sites, for as long as it
    /// takes: a site that can't be reached is tried again, and so is one that has it only later. A
    /// fetch that fails for want of room, or of a sound disk, keeps what it has got for the next.
    pub async fn fetch(
        &self,
        attachment: &Attachment,
        sites: &[SiteId],
        fetch: &dyn Fetch,
    ) -> Result<PathBuf, FileError> {
        self.bound(attachment.length)?;
        let content = attachment.content;
        if let Some(path) = self.path(&content) {
            return Ok(path);
        }
        // Before what there is of it is read again.
        self.room(usize::try_from(attachment.length).map_or(CHUNK, |all| all.min(CHUNK))).await?;
        match self.recover(&content).await {
            Ok(Some(path)) => return Ok(path),
            Ok(None) => {}
            // Other sites may have it.
            Err(error) => tracing::debug!("{error}"),
        }
        let claim = Claim::new(&self.0, content);
        let mut pause = FIRST_PAUSE;
        let mut wrong = BTreeSet::new();
        loop {
            let mut part = claim.slot.0.lock().await;
            // Whoever held the lock may have fetched it, or somebody has put it.
            if let Some(path) = self.path(&content) {
                return Ok(path);
            }
            let before = part.as_ref().map(|part| part.length);
            if let Some(path) = self.round(attachment, sites, fetch, &mut part, &mut wrong).await? {
                // It can be used; that it is in the depot, too, is seen to later if not now.
                if let Err(error) = self.deposit(&content, attachment.length).await {
                    tracing::warn!("{error}");
                }
                return Ok(path);
            }
            if part.as_ref().map(|part| part.length) > before {
                pause = FIRST_PAUSE;
            }
            // Others that wait for it may know other sites: they have their turn meanwhile.
            drop(part);
            sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Asks each site once. One that has sent something else is not asked again, since it would
    /// spoil what the others send bit by bit; unless there is no other.
    async fn round(
        &self,
        attachment: &Attachment,
        sites: &[SiteId],
        fetch: &dyn Fetch,
        part: &mut Option<Part>,
        wrong: &mut BTreeSet<SiteId>,
    ) -> Result<Option<PathBuf>, FileError> {
        if sites.iter().all(|site| wrong.contains(site)) {
            wrong.clear();
        }
        for site in sites {
            if wrong.contains(site) {
                continue;
            }
            loop {
                match self.attempt(attachment, site, fetch, part).await? {
                    Attempt::Done(path) => return Ok(Some(path)),
                    Attempt::Mixed => {}
                    Attempt::Wrong => {
                        let name = &attachment.name;
                        tracing::warn!(%site, "what it sent for the file `{name}` is not that file");
                        wrong.insert(site.clone());
                        break;
                    }
                    Attempt::Short(why) => {
                        tracing::debug!(%site, "the file `{}` did not come whole: {why}", attachment.name);
                        break;
                    }
                }
            }
        }
        Ok(None)
    }

    async fn attempt(
        &self,
        attachment: &Attachment,
        site: &SiteId,
        fetch: &dyn Fetch,
        slot: &mut Option<Part>,
    ) -> Result<Attempt, FileError> {
        let path = self.0.path(&attachment.content).with_extension("part");
        let taken = slot.take();
        let open = move || taken.map_or_else(|| Part::open(path), Ok);
        let mut part = self.blocking(open).await?;
        if part.length > attachment.length {
            part = self.blocking(move || part.restart()).await?;
        }
        let asked = fetch.fetch(site, attachment.content, part.length);
        let mut stream = match timeout(self.0.patience, asked).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Ok(short(slot, part, &error)),
            Err(_) => return Ok(short(slot, part, &"it does not answer")),
        };
        part.comes_from(site);
        let (mut gathered, mut count) = (Vec::new(), 0);
        let why = loop {
            let next = if part.length + count as u64 == attachment.length {
                Ok(None)
            } else {
                timeout(self.0.patience, stream.next()).await
            };
            let stop = match next {
                Ok(Some(Ok(bytes))) => {
                    count += bytes.len();
                    gathered.push(bytes);
                    (part.length + count as u64 > attachment.length).then(|| "too much".to_owned())
                }
                Ok(Some(Err(error))) => Some(error.to_string()),
                Ok(None) => Some("it ended".to_owned()),
                Err(_) => Some("it stopped sending".to_owned()),
            };
            if stop.is_some() || count >= CHUNK {
                self.room(count).await?;
                let parts = std::mem::take(&mut gathered);
                count = 0;
                part = self.blocking(move || part.add(&parts)).await?;
            }
            if let Some(why) = stop {
                break why;
            }
        };
        if part.length < attachment.length {
            return Ok(short(slot, part, &why));
        }
        if part.length == attachment.length && part.hash.finalize() == attachment.content {
            let store = self.0.clone();
            let content = attachment.content;
            return Ok(Attempt::Done(
                self.blocking(move || store.complete(&part, &content)).await?,
            ));
        }
        let wrong =
            if part.from == From::One(site.clone()) { Attempt::Wrong } else { Attempt::Mixed };
        *slot = Some(self.blocking(move || part.restart()).await?);
        Ok(wrong)
    }
}

fn short(slot: &mut Option<Part>, part: Part, why: &dyn std::fmt::Display) -> Attempt {
    *slot = Some(part);
    Attempt::Short(why.to_string())
}

impl Store {
    fn complete(&self, part: &Part, content: &Content) -> io::Result<PathBuf> {
        let path = self.path(content);
        part.file.set_modified(SystemTime::now())?;
        self.publish(&part.file, &part.path, &path)?;
        Ok(path)
    }
}

impl Part {
    /// What an earlier fetch has left, or nothing yet.
    fn open(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        // A fetch that was cancelled may still be writing what it had got.
        file.lock()?;
        let mut hash = blake3::Hasher::new();
        let mut length = 0;
        let mut buffer = vec![0; CHUNK];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                count => {
                    hash.update(&buffer[..count]);
                    length += count as u64;
                }
            }
        }
        // Nobody knows any more who sent it.
        let from = if length > 0 { From::Several } else { From::Nobody };
        Ok(Self { path, file, hash, length, from })
    }

    fn comes_from(&mut self, site: &SiteId) {
        self.from = match &self.from {
            From::Nobody => From::One(site.clone()),
            From::One(same) if same == site => return,
            From::One(_) | From::Several => From::Several,
        };
    }

    fn add(mut self, parts: &[Bytes]) -> io::Result<Self> {
        for bytes in parts {
            self.file.write_all(bytes)?;
            self.hash.update(bytes);
            self.length += bytes.len() as u64;
        }
        Ok(self)
    }

    fn restart(self) -> io::Result<Self> {
        let Self { path, mut file, .. } = self;
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { path, file, hash: blake3::Hasher::new(), length: 0, from: From::Nobody })
    }
}

/// A place in the table of what is being fetched, for as long as somebody waits for it.
struct Claim<'a> {
    store: &'a Store,
    content: Content,
    slot: Arc<Slot>,
}

impl<'a> Claim<'a> {
    fn new(store: &'a Store, content: Content) -> Self {
        let slot = lock(&store.fetching).entry(content).or_default().clone();
        Self { store, content, slot }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut fetching: std::sync::MutexGuard<'_, HashMap<Content, Arc<Slot>>> =
            lock(&self.store.fetching);
        // The table has one, and we have one.
        if Arc::strong_count(&self.slot) <= 2 {
            fetching.remove(&self.content);
        }
    }
}
