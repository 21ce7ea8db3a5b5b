//! Where files are kept beside the directory of the store, by those who have such a place.
//!
//! What must stay true: what a depot hands out is not believed before its hash was taken; a depot that fails never
//! makes a file disappear that is in the directory.

use std::{collections::BTreeSet, io, path::PathBuf, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream::BoxStream};

use super::{CHUNK, Content, Draft, FileError, Files, Ordering};

/// A place for files outside of the data directory.
pub trait Depot: Send + Sync + 'static {
    /// Whether it may be away while files are put: it gets them later.
    fn may_be_away(&self) -> bool;

    /// Keeps a file of so many bytes, if it is not there yet.
    fn keep(
        &self,
        content: Content,
        path: PathBuf,
        length: u64,
    ) -> BoxFuture<'static, io::Result<()>>;

    /// The content of a file, if it is there.
    fn open(
        &self,
        content: Content,
    ) -> BoxFuture<'static, io::Result<Option<BoxStream<'static, io::Result<Bytes>>>>>;

    /// Drops what nobody uses and what was not kept just now; says what of the rest is not there.
    fn keep_only(
        &self,
        in_use: BTreeSet<Content>,
        older_than: Duration,
    ) -> BoxFuture<'static, io::Result<BTreeSet<Content>>>;
}

impl Files {
    /// Brings a file to the depot, if there is one. Whoever has put it is told that it is safe only then; unless
    /// the depot may be away, and gets it later.
    pub(super) async fn deposit(&self, content: &Content, length: u64) -> Result<(), FileError> {
        let Some(depot) = &self.0.depot else { return Ok(()) };
        match depot.keep(*content, self.0.path(content), length).await {
            Err(error) if !depot.may_be_away() => Err(FileError::Depot(error)),
            Err(error) => {
                tracing::warn!("an attached file is not in CouchDB yet: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Gets a file back from the depot, if it is there, and says where it is then.
    pub(super) async fn recover(&self, content: &Content) -> Result<Option<PathBuf>, FileError> {
        let Some(depot) = &self.0.depot else { return Ok(None) };
        let opened = depot.open(*content).await.map_err(FileError::Depot)?;
        let Some(stream) = opened else { return Ok(None) };
        let name = format!("put-{}", self.0.next.fetch_add(1, Ordering::Relaxed));
        let path = self.0.directory.join(name);
        let mut draft = self.blocking(move || Draft::new(path)).await?;
        let (mut stream, mut length) = (pin!(stream), 0);
        while let Some(part) = stream.next().await {
            let part = part.map_err(FileError::Depot)?;
            length += part.len() as u64;
            self.bound(length)?;
            self.room(part.len().max(CHUNK)).await?;
            let write = move || draft.add(&part).map(|()| draft);
            draft = self.blocking(write).await?;
        }
        if draft.hash.finalize() != *content {
            let odd = "what CouchDB has of an attached file is something else";
            return Err(FileError::Depot(io::Error::other(odd)));
        }
        let store = self.0.clone();
        self.blocking(move || store.name(&draft)).await?;
        Ok(self.path(content))
    }

    /// Drops from the depot what nobody uses, and brings files there that it lacks.
    pub async fn tend_depot(
        &self,
        in_use: &BTreeSet<Content>,
        older_than: Duration,
    ) -> io::Result<()> {
        let Some(depot) = &self.0.depot else { return Ok(()) };
        let mut failure = Ok(());
        for content in depot.keep_only(in_use.clone(), older_than).await? {
            let Some(path) = self.path(&content) else { continue };
            let kept = match tokio::fs::metadata(&path).await {
                Ok(about) => depot.keep(content, path, about.len()).await,
                Err(error) => Err(error),
            };
            // One that can't be brought is no reason to leave the others.
            failure = failure.and(kept);
        }
        failure
    }
}
