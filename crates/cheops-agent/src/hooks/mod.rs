//! Hooks: how a site tells people what happened.
//!
//! ```text
//!   the feed ──► derive ──► events ──► filter of each hook ──► its queue ──► its way to tell
//!                 │                                             │             web, command,
//!               hooks/memory.json                             hooks/NAME.log  mail, irc
//! ```
//!
//! | question | module |
//! |---|---|
//! | what are events called, what is in them, what makes them the same? | `event` |
//! | what happened? | `derive`, with what `look` sees |
//! | who tells of an operation for all sites together? | `summary` |
//! | which events does a hook tell of? | `filter` |
//! | what waits, and what is dropped? | `queue`, on disk `journal` |
//! | when is it tried again? | `retry` |
//! | how is the feed followed? | `follow` |
//! | how is one hook at work? | `runner` |
//! | how does an event get out? | `send` |
//!
//! What must stay true:
//! - what has a number in the feed is told at least once, also over a crash: the number is written down
//!   after the events are;
//! - the same event has the same id, so that a receiver can drop doubles;
//! - nothing waits for a hook: operations don't, and neither do other hooks. What one can't tell waits
//!   in a queue with a limit, and what is over is dropped and counted.

mod derive;
mod event;
mod filter;
mod follow;
mod journal;
mod look;
mod queue;
mod retry;
mod runner;
mod send;
mod summary;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cheops_core::{id::SiteId, time::Millis};
use tokio::{sync::Notify, task::JoinHandle};

pub use self::{
    event::Name,
    filter::{Filter, Mode, Pattern},
};
use self::{event::Teller, journal::replace, runner::Runner, send::Shell};
use crate::{
    api::{
        model::{self, HookEvent, HookTested, Trouble, Urgency},
        view::rfc3339,
    },
    config::{Config, Hook, HookSection, MOST_HOOKS},
    node,
    peers::Peers,
};

/// The hooks of a site. A handle; clones share it.
#[derive(Clone)]
pub struct Hooks(Arc<Inner>);

struct Inner {
    here: SiteId,
    directory: PathBuf,
    shell: Shell,
    /// How long a site waits for another to tell for all.
    takeover: Duration,
    /// How long after a start a site that was there before may take to be there again.
    settle: Duration,
    all: RwLock<All>,
    /// There is a first hook.
    began: Notify,
    /// How many operations were not followed to their end.
    unfollowed: AtomicU64,
}

#[derive(Default)]
struct All {
    runners: BTreeMap<String, Arc<Runner>>,
    /// Those that the API added, as they were written.
    added: BTreeMap<String, HookSection>,
}

/// Why a hook can't be added or removed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// It is not one.
    #[error("{0}")]
    Wrong(String),
    /// There is one with this name.
    #[error("there is a hook `{0}` already")]
    Known(String),
    /// There are too many.
    #[error("there are {MOST_HOOKS} hooks, which is the most that a site has")]
    TooMany,
    /// There is none with this name.
    #[error("there is no hook `{0}` at this site")]
    Unknown(String),
    /// It is in the configuration.
    #[error("the hook `{0}` is in the site's configuration, and can only be removed there")]
    Configured(String),
    /// The disk.
    #[error("the hooks can't be written to {}: {error}", place.display())]
    Disk {
        /// Where.
        place: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
}

impl Hooks {
    /// Reads what hooks there are, and what waits for them. Nothing is told yet.
    pub fn open(config: &Config) -> io::Result<Self> {
        let directory = config.data.join("hooks");
        fs::create_dir_all(&directory)?;
        let links = &config.links;
        let hooks = Self(Arc::new(Inner {
            here: config.site.clone(),
            directory,
            shell: Shell { program: config.runs.shell.clone(), work: config.work.clone() },
            takeover: config.takeover,
            settle: links.silence + links.retry * 2,
            all: RwLock::default(),
            began: Notify::new(),
            unfollowed: AtomicU64::new(0),
        }));
        for hook in &config.hooks {
            hooks.put(hook.clone(), None)?;
        }
        for (name, section) in hooks.0.read_added()? {
            match Hook::read(section.clone(), &config.data) {
                Ok(_) if hooks.0.runner(&name).is_some() => {
                    tracing::warn!(
                        "the hook `{name}` is in the configuration now; the one that was added by the API is gone"
                    );
                }
                Ok(hook) => hooks.put(hook, Some(section))?,
                Err(problem) => {
                    tracing::warn!("a hook that was added by the API is left out: {problem}");
                }
            }
        }
        Ok(hooks)
    }

    /// Begins to tell; for ever.
    pub fn start(&self, node: node::Handle, peers: Peers) -> JoinHandle<()> {
        // Before anything can be asked for: what comes from now on is news.
        let (live, last) = (node.feed().follow(), node.feed().last());
        tokio::spawn(follow::follow(self.clone(), node, peers, (live, last)))
    }

    /// Adds a hook, for good.
    pub fn add(&self, section: HookSection) -> Result<(), HookError> {
        let data = self.0.directory.parent().unwrap_or(Path::new(".")).to_owned();
        let hook = Hook::read(section.clone(), &data).map_err(HookError::Wrong)?;
        if self.0.runner(&hook.name).is_some() {
            return Err(HookError::Known(hook.name));
        }
        if self.0.all.read().unwrap_or_else(PoisonError::into_inner).runners.len() >= MOST_HOOKS {
            return Err(HookError::TooMany);
        }
        let place = self.0.directory.clone();
        let name = hook.name.clone();
        let added = self.put(hook, Some(section)).and_then(|()| self.0.write_added());
        added.map_err(|error| {
            let mut all = self.0.all.write().unwrap_or_else(PoisonError::into_inner);
            all.added.remove(&name);
            all.runners.remove(&name);
            HookError::Disk { place, error }
        })
    }

    /// Removes a hook that was added, with all that waits for it.
    pub fn remove(&self, name: &str) -> Result<(), HookError> {
        let runner = {
            let mut all = self.0.all.write().unwrap_or_else(PoisonError::into_inner);
            if !all.runners.contains_key(name) {
                return Err(HookError::Unknown(name.to_owned()));
            }
            if all.added.remove(name).is_none() {
                return Err(HookError::Configured(name.to_owned()));
            }
            all.runners.remove(name)
        };
        let failed = |error| HookError::Disk { place: self.0.directory.clone(), error };
        self.0.write_added().map_err(failed)?;
        runner.map_or(Ok(()), |runner| runner.remove()).map_err(failed)
    }

    /// All of them, and how they are doing.
    pub fn list(&self) -> Vec<model::Hook> {
        let all = self.0.all.read().unwrap_or_else(PoisonError::into_inner);
        all.runners.iter().map(|(name, r)| r.view(all.added.contains_key(name))).collect()
    }

    /// How many operations were not followed to their end, because there were too many.
    pub fn unfollowed(&self) -> u64 {
        self.0.unfollowed.load(Ordering::Relaxed)
    }

    /// Sends a sample now, and says what came of it; nothing if there is no such hook.
    pub async fn test(&self, name: &str) -> Option<HookTested> {
        let runner = self.0.runner(name)?;
        let at = rfc3339(Millis(now()));
        let sample = Teller { here: &self.0.here, at: &at }.sample(name);
        let start = Instant::now();
        let (_, sent) = send::send(&runner.hook, &self.0.shell, &[sample]).await;
        Some(HookTested {
            hook: name.to_owned(),
            delivered: sent.is_ok(),
            took_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            error: sent.err().map(|failure| failure.to_string()),
        })
    }

    /// The hooks that fail.
    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        self.list().into_iter().filter_map(|hook| trouble(&self.0.here, hook)).collect()
    }

    /// Writes down what could not be written before. Whether all is durable.
    async fn heal(&self) -> bool {
        let mut well = true;
        for runner in self.0.runners() {
            well &= runner.heal().await;
        }
        well
    }

    fn put(&self, hook: Hook, section: Option<HookSection>) -> io::Result<()> {
        let name = hook.name.clone();
        let runner = Runner::start(hook, self.0.shell.clone(), &self.0.directory)?;
        let mut all = self.0.all.write().unwrap_or_else(PoisonError::into_inner);
        all.runners.insert(name.clone(), runner);
        if let Some(section) = section {
            all.added.insert(name, section);
        }
        self.0.began.notify_one();
        Ok(())
    }

    /// Gives each hook the events that it tells of. When this returns, they are durable; or not, if the
    /// disk failed.
    async fn tell(&self, events: Vec<HookEvent>) -> bool {
        let runners = self.0.runners();
        let now = now();
        let mut well = true;
        for runner in runners {
            let passed = events.iter().filter(|event| runner.hook.filter.passes(event));
            let passed: Vec<HookEvent> = passed.cloned().collect();
            if !passed.is_empty() {
                well &= runner.give(passed, now).await;
            }
        }
        well
    }
}

impl Inner {
    fn runner(&self, name: &str) -> Option<Arc<Runner>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).runners.get(name).cloned()
    }

    fn runners(&self) -> Vec<Arc<Runner>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.runners.values().cloned().collect()
    }

    fn read_added(&self) -> io::Result<BTreeMap<String, HookSection>> {
        let place = self.directory.join("added.json");
        match fs::read(&place) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    fn write_added(&self) -> io::Result<()> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let bytes = serde_json::to_vec(&all.added).map_err(io::Error::other)?;
        replace(&self.directory.join("added.json"), &bytes)
    }
}

/// What needs a person about a hook.
fn trouble(here: &SiteId, hook: model::Hook) -> Option<Trouble> {
    let since = hook.failing_since?;
    let why = hook.last_error.unwrap_or_default();
    let name = hook.name;
    let waiting = match hook.waiting {
        1 => "1 event waits".to_owned(),
        count => format!("{count} events wait"),
    };
    let dropped = match hook.dropped {
        0 => String::new(),
        count => format!(", {count} were dropped"),
    };
    Some(Trouble {
        urgency: Urgency::Medium,
        site: here.to_string(),
        resource: None,
        what: "hook".to_owned(),
        text: format!(
            "the hook `{name}` has told nothing since {since}: {why}; {waiting}{dropped}"
        ),
        next: format!(
            "mend what it says; it is tried again by itself. To see: cheops hooks test {name}"
        ),
    })
}

/// The time, in milliseconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An event with this id.
    pub(crate) fn sample(id: &str) -> HookEvent {
        HookEvent {
            id: id.into(),
            event: "operation.ran".into(),
            at: "2026-11-15T08:33:03.033Z".into(),
            site: "site1".into(),
            told_by: "site1".into(),
            text: "web: operation site1:1 ran at site1".into(),
            summary: false,
            resource: Some("web".into()),
            operation: Some("site1:1".into()),
            kind: Some("set".into()),
            author: Some("ada".into()),
            command: None,
            runs: Vec::new(),
            by: None,
            peer: None,
            next: None,
        }
    }
}
