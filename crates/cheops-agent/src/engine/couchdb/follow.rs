//! Follows the database of records: what replication brings there is handed to the agent.
//!
//! The feed of changes names documents. Those that the journal names are passed over; the others are fetched and
//! handed out. What must stay true:
//! - all that came before the checkpoint is in the journal, or was handed out and not wanted, for as long as
//!   [`UNWANTED`] or until there were [`MOST`] of them: what was only handed out when the agent was killed is found by
//!   the next one;
//! - so are this site's own documents of which the journal knows nothing yet: the checkpoint waits for them as long;
//! - a feed that is silent, that breaks, or of a database that was set back is begun anew, from the checkpoint.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::Durable,
};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    Shared,
    databases::Checkpoint,
    document::Name,
    server::{Trouble, refused},
};
use crate::{engine::Arrivals, wire::Names};

/// How often the server is to say that it is there, and how long it may be silent.
const HEARTBEAT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(20);
/// How long to wait before the feed is begun anew.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest line of the feed, in bytes.
const LONGEST: usize = 1 << 20;
/// How often what was handed out and is not in the journal is handed out again, and for how long. It may lack
/// something that comes later; or it is of no use, and then other sites would send it if it were.
const AGAIN: Duration = Duration::from_secs(30);
const UNWANTED: Duration = Duration::from_mins(10);
/// How many documents may wait for that.
const MOST: usize = 10_000;
/// How many are fetched at once.
const AT_ONCE: usize = 200;
/// How often the checkpoint is written.
const KEEP: Duration = Duration::from_secs(5);

pub(super) struct Follower {
    shared: Arc<Shared>,
    here: SiteId,
    feed: Option<Feed>,
    backlog: Backlog,
    /// The checkpoint as it is written, and when that was.
    kept: Option<Checkpoint>,
    kept_at: Instant,
    /// Whether it was said that the feed does not go.
    silent: bool,
}

impl Arrivals for Follower {
    fn next(&mut self) -> BoxFuture<'_, Vec<Durable>> {
        Box::pin(self.arrived())
    }
}

impl Follower {
    pub(super) fn new(shared: Arc<Shared>, here: SiteId) -> Self {
        Self {
            shared,
            here,
            feed: None,
            backlog: Backlog::default(),
            kept: None,
            kept_at: Instant::now(),
            silent: false,
        }
    }

    /// The next records that others have brought.
    async fn arrived(&mut self) -> Vec<Durable> {
        loop {
            match self.step().await {
                Ok(arrived) if arrived.is_empty() => {}
                Ok(arrived) => return arrived,
                Err(trouble) => {
                    self.feed = None;
                    self.shared.unfollowed.store(true, Ordering::Relaxed);
                    if !self.silent {
                        let place = &self.shared.databases.place;
                        tracing::warn!(
                            "the changes of {place} can't be followed: {trouble}; it is tried again every second"
                        );
                        self.silent = true;
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Vec<Durable>, Trouble> {
        let mut feed = match self.feed.take() {
            Some(feed) => feed,
            None => self.begin().await?,
        };
        let mut due = self.due(Vec::new());
        // All that came is handed out before more is read.
        if due.is_empty() {
            let changes = feed.next().await?;
            due = self.due(changes);
        }
        self.feed = Some(feed);
        let arrived = self.fetch(due).await?;
        self.keep().await?;
        Ok(arrived)
    }

    /// Takes note of changes, and says which documents are to be handed out now.
    fn due(&mut self, changes: Vec<Change>) -> Vec<String> {
        let now = Instant::now();
        let index = self.shared.index();
        let settled = |name: &Name<'_>| index.has(name);
        for change in changes {
            self.backlog.note(change, settled, now);
        }
        self.backlog.settle(settled, now);
        let afoot = self.shared.afoot();
        let here = self.here.as_str();
        let ours = |name: &Name<'_>| {
            (name.site == here && !index.lacks(name)) || afoot.ours.contains(&name.hash)
        };
        self.backlog.due(ours, now)
    }

    /// Begins the feed at the checkpoint.
    async fn begin(&mut self) -> Result<Feed, Trouble> {
        let shared = self.shared.clone();
        let checkpoint = blocking(move || {
            shared.look_back()?;
            shared.databases.checkpoint()
        });
        let checkpoint = checkpoint.await?;
        self.shared.afoot().brought.clear();
        self.backlog = Backlog { reached: checkpoint.since.clone(), ..Backlog::default() };
        let path = self.shared.databases.feed(&checkpoint.since, HEARTBEAT);
        self.kept = Some(checkpoint);
        let response = self.shared.databases.server().listen(&path).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(refused(status, b""));
        }
        self.shared.unfollowed.store(false, Ordering::Relaxed);
        if self.silent {
            tracing::info!("the changes of {} are followed again", self.shared.databases.place);
            self.silent = false;
        }
        Ok(Feed { body: response.into_body(), read: Vec::new() })
    }

    /// Reads documents, those that are records.
    async fn fetch(&self, names: Vec<String>) -> Result<Vec<Durable>, Trouble> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let shared = self.shared.clone();
        let documents = blocking(move || shared.databases.documents(&names)).await?;
        let mut known = Names::default();
        let mut afoot = self.shared.afoot();
        let read = documents.into_values().filter_map(|document| {
            let durable = document.read(&mut known);
            let place = &self.shared.databases.place;
            let durable = durable.map_err(|why| {
                tracing::warn!("the document `{}` in {place} is no record: {why}", document.id);
            });
            afoot.brought.extend(Name::read(&document.id).map(|name| name.hash));
            durable.ok()
        });
        Ok(read.collect())
    }

    /// Moves the checkpoint on, now and then.
    async fn keep(&mut self) -> Result<(), Trouble> {
        let Some(kept) = &self.kept else { return Ok(()) };
        if kept.since == *self.backlog.checkpoint() || self.kept_at.elapsed() < KEEP {
            return Ok(());
        }
        let next = kept.at(self.backlog.checkpoint().clone());
        let shared = self.shared.clone();
        self.kept = Some(blocking(move || shared.databases.keep(next)).await?);
        self.kept_at = Instant::now();
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let stopped = |_| Trouble::Silent("the agent is stopping".to_owned());
    spawn_blocking(work).await.map_err(stopped)?
}

/// A line of the feed.
#[derive(Debug, Clone, Deserialize)]
struct Change {
    seq: Option<Value>,
    id: Option<String>,
    #[serde(default)]
    deleted: bool,
}

/// The feed of changes.
struct Feed {
    body: Incoming,
    /// What was read and is no whole line yet.
    read: Vec<u8>,
}

impl Feed {
    /// The next lines; none of them may be one, if the server says only that it is there.
    async fn next(&mut self) -> Result<Vec<Change>, Trouble> {
        loop {
            let frame = timeout(SILENCE, self.body.frame()).await;
            let frame = frame.map_err(|_| Trouble::Silent("its feed is silent".to_owned()))?;
            let frame = frame.ok_or_else(|| Trouble::Silent("its feed has ended".to_owned()))?;
            let frame = frame.map_err(|error| Trouble::Silent(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            self.read.extend_from_slice(&data);
            if let Some(lines) = lines(&mut self.read)? {
                return Ok(lines);
            }
        }
    }
}

/// Takes all whole lines off what was read, if there are any.
fn lines(read: &mut Vec<u8>) -> Result<Option<Vec<Change>>, Trouble> {
    let Some(end) = read.iter().rposition(|byte| *byte == b'\n') else {
        let long = read.len() > LONGEST;
        let odd = || Trouble::Odd("a line of its feed does not end".to_owned());
        return if long { Err(odd()) } else { Ok(None) };
    };
    let rest = read.split_off(end + 1);
    let whole = std::mem::replace(read, rest);
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let odd = |error: serde_json::Error| Trouble::Odd(error.to_string());
    lines.map(|line| serde_json::from_slice(line).map_err(odd)).collect::<Result<_, _>>().map(Some)
}

/// Documents that are not in the journal, in the order in which they came.
#[derive(Debug, Default)]
struct Backlog {
    waiting: VecDeque<Waiting>,
    /// Up to where the feed was read.
    reached: Value,
}

#[derive(Debug)]
struct Waiting {
    name: String,
    /// The position before it.
    before: Value,
    came: Instant,
    handed_out: Option<Instant>,
}

impl Backlog {
    /// Takes note of a change. Documents that are settled, or that are no records, count as dealt with.
    fn note(&mut self, change: Change, settled: impl Fn(&Name<'_>) -> bool, now: Instant) {
        let Change { seq: Some(seq), id: Some(name), deleted } = change else { return };
        let before = std::mem::replace(&mut self.reached, seq);
        if deleted || Name::read(&name).is_none_or(|name| settled(&name)) {
            return;
        }
        if self.waiting.len() >= MOST {
            // One that was handed out goes, and others send it if it is of use; without one, there are a few more.
            let handed_out = self.waiting.iter().position(|waiting| waiting.handed_out.is_some());
            handed_out.and_then(|first| self.waiting.remove(first));
        }
        self.waiting.push_back(Waiting { name, before, came: now, handed_out: None });
    }

    /// Drops what is settled by now, and what nobody wants.
    fn settle(&mut self, settled: impl Fn(&Name<'_>) -> bool, now: Instant) {
        self.waiting.retain(|waiting| {
            now.duration_since(waiting.came) < UNWANTED
                && Name::read(&waiting.name).is_some_and(|name| !settled(&name))
        });
    }

    /// What is to be handed out now, save for what is this site's own affair.
    fn due(&mut self, ours: impl Fn(&Name<'_>) -> bool, now: Instant) -> Vec<String> {
        let due = |waiting: &&mut Waiting| {
            let again = |at: Instant| now.duration_since(at) >= AGAIN;
            waiting.handed_out.is_none_or(again)
                && Name::read(&waiting.name).is_some_and(|name| !ours(&name))
        };
        let due = self.waiting.iter_mut().filter(due).take(AT_ONCE);
        due.map(|waiting| {
            waiting.handed_out = Some(now);
            waiting.name.clone()
        })
        .collect()
    }

    /// The position up to which nothing waits.
    fn checkpoint(&self) -> &Value {
        self.waiting.front().map_or(&self.reached, |waiting| &waiting.before)
    }
}

impl super::Index {
    /// Whether the journal knows a document, or that what it is of is forgotten. A lost document that is back has to be
    /// handed out.
    pub(super) fn has(&self, name: &Name<'_>) -> bool {
        let (Ok(resource), Ok(site)) = (name.resource.parse::<ResourceId>(), name.site.parse())
        else {
            // Nothing has such a name: there is nothing to wait for.
            return true;
        };
        let id = OpId { site, number: name.number };
        self.of(&resource).is_some_and(|known| {
            known.hash(&id) == Some(name.hash) || known.is_over(&id.site, id.number)
        }) && !self.lacks(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(seq: u64, id: &str) -> Change {
        Change { seq: Some(seq.into()), id: Some(id.to_owned()), deleted: false }
    }

    fn name(site: &str, number: u64) -> String {
        Name { resource: "r", site, number, hash: 7 }.to_string()
    }

    #[test]
    fn the_checkpoint_waits_for_what_is_not_in_the_journal() {
        let (mut backlog, start) = (Backlog::default(), Instant::now());
        let known = |names: &[u64]| {
            let names = names.to_vec();
            move |name: &Name<'_>| names.contains(&name.number)
        };
        backlog.note(change(1, &name("there", 1)), known(&[1]), start);
        assert_eq!(*backlog.checkpoint(), 1);
        for number in 2..=4 {
            backlog.note(change(number, &name("there", number)), known(&[1]), start);
        }
        backlog.note(change(5, &name("here", 1)), known(&[]), start);
        backlog.note(change(6, "_design/x"), known(&[]), start);
        assert_eq!(*backlog.checkpoint(), 1);
        let own = |name: &Name<'_>| name.site == "here";
        assert_eq!(backlog.due(own, start), [2, 3, 4].map(|number| name("there", number)));
        assert!(backlog.due(own, start).is_empty(), "once is enough for a while");
        backlog.settle(known(&[3]), start);
        assert_eq!(*backlog.checkpoint(), 1);
        backlog.settle(known(&[2, 3]), start);
        assert_eq!(*backlog.checkpoint(), 3, "the next one waits");
        let later = start + AGAIN;
        assert_eq!(backlog.due(own, later), [name("there", 4)], "again, after a while");
        backlog.settle(known(&[2, 3, 4]), later);
        assert_eq!(*backlog.checkpoint(), 4, "this site's own waits for its page");
        backlog.settle(known(&[]), start + UNWANTED);
        assert_eq!(*backlog.checkpoint(), 6, "nobody waits for ever");
    }

    #[test]
    fn no_more_waits_than_may() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        let most = MOST as u64;
        let note = |backlog: &mut Backlog, number: u64, site: &str| {
            backlog.note(change(number + 1, &name(site, number)), |_| false, now);
        };
        note(&mut backlog, 0, "here");
        (1..most).for_each(|number| note(&mut backlog, number, "there"));
        while !backlog.due(|name| name.site == "here", now).is_empty() {}
        (most..most + 3).for_each(|number| note(&mut backlog, number, "there"));
        assert_eq!(backlog.waiting.len(), MOST);
        assert_eq!(backlog.waiting[0].name, name("here", 0), "what was not handed out stays");
        assert_eq!(backlog.waiting[1].name, name("there", 4));
        let due = backlog.due(|name| name.site == "here", now);
        assert_eq!(due, [most, most + 1, most + 2].map(|number| name("there", number)));
    }

    #[test]
    fn lines_are_taken_whole() {
        let mut read = b"{\"seq\":1,\"id\":\"a\"}\n\n{\"seq\":\"2-x\",\"id\":\"b\",\"dele".to_vec();
        assert_eq!(lines(&mut read).unwrap().unwrap().len(), 1);
        assert!(lines(&mut read).unwrap().is_none());
        read.extend_from_slice(b"ted\":true}\n{\"last_seq\":3,\"pending\":0}\n");
        let found = lines(&mut read).unwrap().unwrap();
        assert!(found[0].deleted && found[0].seq == Some("2-x".into()) && found[1].seq.is_none());
        assert!(read.is_empty());
        for odd in ["no\n".to_owned(), "x".repeat(LONGEST + 1)] {
            assert!(lines(&mut odd.into_bytes()).is_err());
        }
    }
}
