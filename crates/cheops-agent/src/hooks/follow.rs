//! Follows the feed, and hands events to the hooks.
//!
//! What must stay true: the number up to which the feed was followed is written down after all events
//! before it are; a site without hooks costs nothing, and one with hooks little: operations and hooks
//! share a replica and a disk.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use cheops_core::{id::SiteId, replica::Event};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError, error::TryRecvError},
    task::spawn_blocking,
    time,
};

use super::{
    Hooks,
    derive::{Memory, Moment, Page},
    journal::replace,
    look::look,
    now,
};
use crate::{
    engine::Seq,
    node::{self, Stopping, Told},
    peers::{Peers, State},
};

/// How much is taken in at a time. Others wait for the replica meanwhile.
const PAGE: usize = 200;
/// How long what comes in is gathered, unless it is a page. Each page is a look at the replica and, for
/// each hook that tells of it, a write that the disk has to confirm: under load there are few of them.
const GATHER: Duration = Duration::from_millis(50);
/// How often what is remembered is written down at most, and what is due is looked at.
const TICK: Duration = Duration::from_millis(250);

/// Follows the feed from a moment on, or from where it was left, for as long as the agent is at work.
pub(super) async fn follow(
    hooks: Hooks,
    node: node::Handle,
    peers: Peers,
    (mut live, mut last): (Receiver<Told>, Seq),
) {
    let place = hooks.0.directory.join("memory.json");
    if hooks.0.runners().is_empty() {
        // What was remembered gets old while nobody tells it.
        let _ = fs::remove_file(&place);
        hooks.0.began.notified().await;
        (live, last) = (node.feed().follow(), node.feed().last());
    }
    let anew = || Memory::after(last);
    let memory = match read(&place) {
        Ok(Some(memory)) if memory.seq <= last => memory,
        Ok(_) => anew(),
        Err(error) => {
            tracing::warn!("{} can't be read, and hooks begin anew: {error}", place.display());
            anew()
        }
    };
    let mut follower = Follower { hooks, node, peers, place, memory, saved: None, lost: false };
    // Where it begins is known even if the agent ends before anything happens.
    follower.save().await;
    // Whatever ends it, the agent is stopping.
    let _ = follower.work(live).await;
}

struct Follower {
    hooks: Hooks,
    node: node::Handle,
    peers: Peers,
    place: PathBuf,
    memory: Memory,
    /// What is on disk of it.
    saved: Option<Memory>,
    /// Some events could not be written down: what is on disk must stay before them.
    lost: bool,
}

impl Follower {
    async fn work(&mut self, mut live: Receiver<Told>) -> Result<(), Stopping> {
        let mut ticks = time::interval(TICK);
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let settled = Instant::now() + self.hooks.0.settle;
        let mut looked = false;
        self.catch_up().await?;
        self.wrong_now().await?;
        loop {
            tokio::select! {
                told = live.recv() => {
                    if live.len() < PAGE {
                        time::sleep(GATHER).await;
                    }
                    let mut page = Page::default();
                    let lagged = self.gather(told, &mut live, &mut page)?;
                    // It has no number, so that only what is remembered tells that it was told.
                    let now = !page.links.is_empty();
                    self.take(page).await?;
                    if lagged {
                        live = self.node.feed().follow();
                        self.catch_up().await?;
                        self.wrong_now().await?;
                        self.take(Page { links: self.changed(), ..Page::default() }).await?;
                    }
                    if now {
                        self.save().await;
                    }
                }
                _ = ticks.tick() => {
                    let mut page = Page { look: self.memory.ripe(now()), ..Page::default() };
                    if !looked && Instant::now() >= settled {
                        looked = true;
                        page.links = self.changed();
                    }
                    self.take(page).await?;
                    self.save().await;
                }
            }
        }
    }

    /// Puts what is told, and what else is there by now, into a page. Whether something was missed.
    fn gather(
        &mut self,
        first: Result<Told, RecvError>,
        live: &mut Receiver<Told>,
        page: &mut Page,
    ) -> Result<bool, Stopping> {
        let mut next = first;
        loop {
            match next {
                Ok(Told::Wrote(seq, _)) if seq <= self.memory.seq => {}
                Ok(Told::Wrote(seq, durable)) => page.written.push((seq, durable)),
                Ok(Told::Event(Event::NeedsDecision(resource))) => {
                    self.memory.touch(&resource, false);
                }
                Ok(Told::Event(_)) => {}
                Ok(Told::Link { peer, up }) => page.links.push((peer, up)),
                Err(RecvError::Lagged(_)) => return Ok(true),
                Err(RecvError::Closed) => return Err(Stopping),
            }
            if page.written.len() >= PAGE {
                return Ok(false);
            }
            next = match live.try_recv() {
                Ok(told) => Ok(told),
                Err(TryRecvError::Empty) => return Ok(false),
                Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
                Err(TryRecvError::Closed) => return Err(Stopping),
            };
        }
    }

    /// Takes in what was written and not told yet.
    async fn catch_up(&mut self) -> Result<(), Stopping> {
        loop {
            let (feed, after): (_, Seq) = (self.node.feed().clone(), self.memory.seq);
            let written = match spawn_blocking(move || feed.after(after, PAGE)).await {
                Ok(Ok(written)) => written,
                Ok(Err(error)) => {
                    tracing::warn!("hooks can't read what was written: {error}");
                    time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
                Err(_) => return Err(Stopping),
            };
            if written.is_empty() {
                return Ok(());
            }
            self.take(Page { written, ..Page::default() }).await?;
            // A crash does not begin with all of it again.
            self.save().await;
        }
    }

    /// What is wrong when the agent starts and was not told yet: what has no number in the feed.
    async fn wrong_now(&mut self) -> Result<(), Stopping> {
        let stuck = self.node.walk(BTreeSet::new(), |_, resource, found: &mut BTreeSet<_>| {
            if resource.is_stuck() {
                found.insert(resource.id().clone());
            }
            found.len() < PAGE
        });
        for resource in stuck.await? {
            self.memory.touch(&resource, false);
        }
        Ok(())
    }

    /// The sites that were lost or came back while nobody looked.
    fn changed(&self) -> Vec<(SiteId, bool)> {
        let peers = self.peers.view().into_iter();
        let now = peers.map(|peer| (peer.site, peer.state == State::Reachable));
        now.filter(|(site, up)| self.memory.was_up(site).is_some_and(|was| was != *up)).collect()
    }

    fn reachable(&self) -> BTreeSet<SiteId> {
        let peers = self.peers.view().into_iter();
        peers.filter(|peer| peer.state == State::Reachable).map(|peer| peer.site).collect()
    }

    async fn take(&mut self, page: Page) -> Result<(), Stopping> {
        if page.is_empty() {
            return Ok(());
        }
        let wanted = self.memory.wanted(&page, now());
        let here = self.hooks.0.here.clone();
        let seen = self.node.read(move |replica| look(&here, replica, &wanted)).await?;
        let reachable = self.reachable();
        let moment = Moment {
            here: &self.hooks.0.here,
            now: now(),
            patience: u64::try_from(self.hooks.0.takeover.as_millis()).unwrap_or(u64::MAX),
            reachable: &reachable,
        };
        let events = self.memory.take(&page, &seen, &moment);
        self.hooks.0.unfollowed.store(self.memory.unfollowed, Ordering::Relaxed);
        self.lost |= !self.hooks.tell(events).await;
        Ok(())
    }

    async fn save(&mut self) {
        if self.lost {
            self.lost = !self.hooks.heal().await;
        }
        if self.lost || self.saved.as_ref() == Some(&self.memory) {
            return;
        }
        let (memory, path) = (self.memory.clone(), self.place.clone());
        let write = move || {
            serde_json::to_vec(&memory)
                .map_err(io::Error::other)
                .and_then(|bytes| replace(&path, &bytes))
        };
        match spawn_blocking(write).await {
            Ok(Ok(())) => self.saved = Some(self.memory.clone()),
            Ok(Err(error)) => {
                tracing::warn!("what hooks have told can't be written down: {error}");
            }
            Err(_) => {}
        }
    }
}

fn read(place: &Path) -> io::Result<Option<Memory>> {
    match fs::read(place) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).map_err(io::Error::other)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
