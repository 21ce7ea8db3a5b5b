//! One hook at work: what waits for it, and a task that tells it.
//!
//! What must stay true: events are told in order; while the first can't be delivered, the others wait;
//! an event is written down before it is told, as far as the disk takes it, and that it was delivered
//! after, so that a crash between leads to a double and not to a loss. What is asked while the disk
//! writes does not wait for it: the queue and its file have a lock each, and only who is about to write
//! takes both, the file's first.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cheops_core::time::Millis;
use tokio::{
    sync::Notify,
    task::{AbortHandle, spawn_blocking},
    time,
};

use super::{
    journal::Journal,
    now,
    queue::{Entry, Item, Queue},
    retry::{Attempts, Failure, Limits, Next},
    send::{self, Shell},
};
use crate::{
    api::{
        model::{self, HookEvent},
        view::rfc3339,
    },
    config::Hook,
};

/// A hook at work.
pub(super) struct Runner {
    pub(super) hook: Hook,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    state: Mutex<State>,
    /// Held while the disk writes.
    journal: Mutex<Journal>,
    /// There is more to tell.
    more: Notify,
    /// There is a reason not to wait for the next attempt.
    again: Notify,
}

struct State {
    queue: Queue,
    /// How many of the last in the queue are being written.
    fresh: usize,
    health: Health,
}

#[derive(Debug, Clone, Default)]
struct Health {
    last_delivery: Option<u64>,
    failing_since: Option<u64>,
    last_error: Option<String>,
}

impl Runner {
    pub(super) fn start(hook: Hook, shell: Shell, directory: &Path) -> io::Result<Arc<Self>> {
        let (journal, queue) = Journal::open(place(directory, &hook.name), hook.keep)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { queue, fresh: 0, health: Health::default() }),
            journal: Mutex::new(journal),
            more: Notify::new(),
            again: Notify::new(),
        });
        let task = tokio::spawn(work(hook.clone(), shell, shared.clone())).abort_handle();
        Ok(Arc::new(Self { hook, shared, task }))
    }

    /// Takes events in. Whether they are durable.
    pub(super) async fn give(&self, events: Vec<HookEvent>, since: u64) -> bool {
        let add = move |queue: &mut Queue| {
            events.into_iter().flat_map(|event| queue.add(event, since)).collect()
        };
        let written = self.shared.change(true, add).await;
        self.shared.more.notify_one();
        written
    }

    /// Writes down what could not be written before, if there is something. Whether all is durable.
    pub(super) async fn heal(&self) -> bool {
        self.shared.change(true, |_| Vec::new()).await
    }

    /// Sends a sample now. If it arrives, the hook is well, as far as is known, and what waits is not kept
    /// waiting: it may be that nothing does, and that nobody would learn of it otherwise.
    pub(super) async fn try_out(&self, shell: &Shell, sample: HookEvent) -> Result<(), Failure> {
        let (_, sent) = Box::pin(send::send(&self.hook, shell, &[sample])).await;
        if sent.is_ok() {
            self.shared.is_well();
            self.shared.again.notify_waiters();
        }
        sent
    }

    /// For how long it has failed, if it does.
    pub(super) fn failing(&self) -> Option<Duration> {
        let since = self.shared.lock().health.failing_since?;
        Some(Duration::from_millis(now().saturating_sub(since)))
    }

    /// How it is doing.
    pub(super) fn view(&self, added: bool) -> model::Hook {
        let state = self.shared.lock();
        let Health { last_delivery, failing_since, last_error } = state.health.clone();
        let filter = &self.hook.filter;
        let texts = |patterns: &[super::Pattern]| {
            patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect()
        };
        let (way, to) = send::to(&self.hook.way);
        let time = |millis: Option<u64>| millis.map(|millis| rfc3339(Millis(millis)));
        model::Hook {
            name: self.hook.name.clone(),
            on: texts(&filter.on),
            mode: filter.mode.as_str().to_owned(),
            way: way.to_owned(),
            to,
            resources: texts(&filter.resources),
            kinds: texts(&filter.kinds),
            sites: texts(&filter.sites),
            added,
            waiting: state.queue.len(),
            delivered: state.queue.delivered,
            dropped: state.queue.dropped,
            last_delivery: time(last_delivery),
            failing_since: time(failing_since),
            last_error,
        }
    }

    /// Ends it, with all that waits.
    pub(super) fn remove(&self) -> io::Result<()> {
        self.task.abort();
        self.shared.journal().remove()
    }
}

/// Where a hook keeps what waits.
pub(super) fn place(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.log"))
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has arrived now.
    fn is_well(&self) {
        self.lock().health = Health { last_delivery: Some(now()), ..Health::default() };
    }

    /// The first that can be told, at most so many.
    fn first(&self, most: usize) -> Vec<Item> {
        let State { queue, fresh, .. } = &*self.lock();
        queue.first(most.min(queue.len().saturating_sub(*fresh)))
    }

    /// Changes the queue, and writes down what changed. Whether that went well.
    async fn change(
        self: &Arc<Self>,
        sync: bool,
        change: impl FnOnce(&mut Queue) -> Vec<Entry> + Send + 'static,
    ) -> bool {
        let shared = self.clone();
        let write = move || {
            let mut journal = shared.journal();
            let known = journal.is_stale();
            let change = {
                let mut state = shared.lock();
                let entries = change(&mut state.queue);
                if entries.is_empty() && !known {
                    return true;
                }
                state.fresh = entries.iter().filter(|e| matches!(e, Entry::Add { .. })).count();
                journal.change(entries, &state.queue)
            };
            let written = journal.write(&change, sync);
            shared.lock().fresh = 0;
            if let Err(error) = &written
                && !known
            {
                tracing::error!("what a hook is to tell can't be written down: {error}");
            }
            written.is_ok()
        };
        spawn_blocking(write).await.unwrap_or(false)
    }
}

/// Tells what waits, for ever.
async fn work(hook: Hook, shell: Shell, shared: Arc<Shared>) {
    let limits = Limits { pause: hook.retry, give_up: hook.give_up };
    let mut attempts = Attempts::default();
    loop {
        let items = shared.first(send::batch(&hook.way));
        if items.is_empty() {
            shared.more.notified().await;
            continue;
        }
        let events: Vec<HookEvent> = items.iter().map(|item| item.event.clone()).collect();
        let (count, sent) = Box::pin(send::send(&hook, &shell, &events)).await;
        if count > 0 {
            attempts = Attempts::default();
            delivered(&shared, &events[..count.min(events.len())]).await;
        }
        let (Err(failure), Some(item)) = (sent, items.get(count)) else { continue };
        failed(&hook, &shared, &failure);
        let waited = Duration::from_millis(now().saturating_sub(item.since));
        match attempts.failed(&failure, waited, limits, fastrand::f64()) {
            Next::Again(pause) => tokio::select! {
                () = time::sleep(pause) => {}
                () = shared.again.notified() => {}
            },
            Next::GiveUp => {
                let id = item.event.id.clone();
                tracing::warn!("the hook `{}` gives up the event {id}: {failure}", hook.name);
                shared.change(true, move |queue| end(queue, vec![Entry::Drop(id)])).await;
            }
        }
    }
}

async fn delivered(shared: &Arc<Shared>, events: &[HookEvent]) {
    shared.is_well();
    let done = events.iter().map(|event| Entry::Done(event.id.clone())).collect();
    shared.change(false, move |queue| end(queue, done)).await;
}

fn end(queue: &mut Queue, entries: Vec<Entry>) -> Vec<Entry> {
    for entry in &entries {
        queue.apply(entry.clone());
    }
    entries
}

fn failed(hook: &Hook, shared: &Shared, failure: &Failure) {
    let health = &mut shared.lock().health;
    if health.failing_since.is_none() {
        tracing::warn!("the hook `{}` can't tell: {failure}; it is tried again", hook.name);
    }
    health.failing_since.get_or_insert_with(now);
    health.last_error = Some(failure.to_string());
}
