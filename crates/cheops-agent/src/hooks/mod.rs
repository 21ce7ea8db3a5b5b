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
//! | what happened? | `derive`, with what `look` finds: `seen` |
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
//! - a hook that is added or removed by the API is so when that is written down: a disk that fails, and
//!   a crash, leave it as it was or as it is to be;
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
mod seen;
mod send;
mod summary;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
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
use self::{
    event::Teller,
    journal::{remove, replace},
    runner::Runner,
    send::Shell,
};
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
    /// Held by who adds or removes a hook, all the time.
    changing: Mutex<()>,
    /// There is a first hook.
    began: Notify,
    /// How many operations were not followed to their end.
    unfollowed: AtomicU64,
}

#[derive(Default)]
struct All {
    runners: BTreeMap<String, Arc<Runner>>,
    /// Those that the API added, as they were written. One that this version can't read is here and
    /// has no runner.
    added: Added,
}

type Added = BTreeMap<String, HookSection>;

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
            shell: Shell {
                program: config.runs.shell.clone(),
                work: config.work.clone(),
                variables: config.runs.environment.of(std::env::vars_os()),
            },
            takeover: config.takeover,
            settle: links.silence + links.retry * 2,
            all: RwLock::default(),
            changing: Mutex::default(),
            began: Notify::new(),
            unfollowed: AtomicU64::new(0),
        }));
        for hook in &config.hooks {
            hooks.put(hooks.start_one(hook.clone())?, None);
        }
        for (name, section) in hooks.0.read_added()? {
            match Hook::read(section.clone(), &config.data) {
                Ok(_) if hooks.0.runner(&name).is_some() => {
                    tracing::warn!(
                        "the hook `{name}` is in the configuration now; the one that was added by the API is gone"
                    );
                }
                Ok(hook) => hooks.put(hooks.start_one(hook)?, Some(section)),
                Err(problem) => {
                    tracing::warn!("a hook that was added by the API is left out: {problem}");
                    hooks.0.write().added.insert(name, section);
                }
            }
        }
        hooks.0.tidy()?;
        Ok(hooks)
    }

    /// Begins to tell; for ever.
    pub fn start(&self, node: node::Handle, peers: Peers) -> JoinHandle<()> {
        // Before anything can be asked for: what comes from now on is news.
        let (live, last) = (node.feed().follow(), node.feed().last());
        tokio::spawn(follow::follow(self.clone(), node, peers, (live, last)))
    }

    /// Adds a hook, for good. It is there when that is written down, and begins with nothing.
    pub fn add(&self, section: HookSection) -> Result<(), HookError> {
        let _alone = self.0.alone();
        let data = self.0.directory.parent().unwrap_or(Path::new(".")).to_owned();
        let hook = Hook::read(section.clone(), &data).map_err(HookError::Wrong)?;
        let name = hook.name.clone();
        let mut added = {
            let all = self.0.read();
            if all.runners.contains_key(&name) || all.added.contains_key(&name) {
                return Err(HookError::Known(name));
            }
            if all.runners.len() >= MOST_HOOKS {
                return Err(HookError::TooMany);
            }
            all.added.clone()
        };
        added.insert(name.clone(), section.clone());
        remove(&runner::place(&self.0.directory, &name)).map_err(self.0.disk())?;
        let runner = self.start_one(hook).map_err(self.0.disk())?;
        if let Err(error) = self.0.write_added(&added) {
            // What is left of it would go with the next start.
            let _ = runner.remove();
            return Err(self.0.disk()(error));
        }
        self.put(runner, Some(section));
        Ok(())
    }

    /// Removes a hook that was added, with all that waits for it. It is gone when that is written down:
    /// if that fails, it is there as before.
    pub fn remove(&self, name: &str) -> Result<(), HookError> {
        let _alone = self.0.alone();
        let mut added = {
            let all = self.0.read();
            if !all.added.contains_key(name) {
                let name = name.to_owned();
                let configured = all.runners.contains_key(&name);
                return Err(if configured {
                    HookError::Configured(name)
                } else {
                    HookError::Unknown(name)
                });
            }
            all.added.clone()
        };
        added.remove(name);
        self.0.write_added(&added).map_err(self.0.disk())?;
        let runner = {
            let mut all = self.0.write();
            all.added = added;
            all.runners.remove(name)
        };
        if let Some(Err(error)) = runner.map(|runner| runner.remove()) {
            // Nobody reads it any more: it goes with the next start, or with a hook of this name.
            tracing::warn!("what waited for the hook `{name}` is still on disk: {error}");
        }
        Ok(())
    }

    /// All of them, and how they are doing.
    pub fn list(&self) -> Vec<model::Hook> {
        let all = self.0.read();
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
        let sent = runner.try_out(&self.0.shell, sample).await;
        Some(HookTested {
            hook: name.to_owned(),
            delivered: sent.is_ok(),
            took_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            error: sent.err().map(|failure| failure.to_string()),
        })
    }

    /// The hooks that fail.
    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        let failing = |(name, runner): (&String, &Arc<Runner>)| {
            let span = runner.failing()?;
            trouble(&self.0.here, name, &runner.view(false), span)
        };
        self.0.read().runners.iter().filter_map(failing).collect()
    }

    /// Writes down what could not be written before. Whether all is durable.
    async fn heal(&self) -> bool {
        let mut well = true;
        for runner in self.0.runners() {
            well &= runner.heal().await;
        }
        well
    }

    fn start_one(&self, hook: Hook) -> io::Result<Arc<Runner>> {
        Runner::start(hook, self.0.shell.clone(), &self.0.directory)
    }

    fn put(&self, runner: Arc<Runner>, section: Option<HookSection>) {
        let name = runner.hook.name.clone();
        let mut all = self.0.write();
        all.runners.insert(name.clone(), runner);
        if let Some(section) = section {
            all.added.insert(name, section);
        }
        self.0.began.notify_one();
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
    fn read(&self) -> RwLockReadGuard<'_, All> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, All> {
        self.all.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runner(&self, name: &str) -> Option<Arc<Runner>> {
        self.read().runners.get(name).cloned()
    }

    fn runners(&self) -> Vec<Arc<Runner>> {
        self.read().runners.values().cloned().collect()
    }

    fn disk(&self) -> impl Fn(io::Error) -> HookError {
        let place = self.directory.clone();
        move |error| HookError::Disk { place: place.clone(), error }
    }

    fn read_added(&self) -> io::Result<Added> {
        let place = self.directory.join("added.json");
        match fs::read(&place) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let file = "added.json, the hooks that were added by the API, can't be read";
                io::Error::other(format!("{file}: {error}; mend it, or move it away"))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Added::new()),
            Err(error) => Err(error),
        }
    }

    fn write_added(&self, added: &Added) -> io::Result<()> {
        let bytes = serde_json::to_vec(added).map_err(io::Error::other)?;
        replace(&self.directory.join("added.json"), &bytes)
    }

    /// Removes what waits for hooks that are no more: one that gets such a name later is a new one.
    fn tidy(&self) -> io::Result<()> {
        let all = self.read();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
            let is_known = all.runners.contains_key(name) || all.added.contains_key(name);
            if path.extension() == Some(OsStr::new("log")) && !is_known {
                match remove(&path) {
                    Ok(()) => {
                        tracing::info!("the hook `{name}` is no more, nor what waited for it");
                    }
                    Err(error) => tracing::warn!("{} can't be removed: {error}", path.display()),
                }
            }
        }
        Ok(())
    }
}

/// What needs a person about a hook that has failed for so long; nothing if it does no more.
fn trouble(here: &SiteId, name: &str, hook: &model::Hook, span: Duration) -> Option<Trouble> {
    let (why, span) = (hook.last_error.as_ref()?, roughly(span));
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
        text: format!("the hook `{name}` has told nothing for {span}: {why}; {waiting}{dropped}"),
        next: format!(
            "mend what it says; it is tried again by itself. To see: cheops hooks test {name}"
        ),
    })
}

/// A length of time for people, in minutes at the finest: a text that says it is not another one every second.
fn roughly(span: Duration) -> String {
    match span.as_secs() / 60 {
        0 => "less than a minute".to_owned(),
        minutes @ 1..120 => format!("{minutes}m"),
        minutes @ 120..2_880 => format!("{}h", minutes / 60),
        minutes => format!("{}d", minutes / 1_440),
    }
}

/// The time, in milliseconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
