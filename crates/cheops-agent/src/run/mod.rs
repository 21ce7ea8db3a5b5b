//! Running commands, and sending requests to the application: each under a supervisor that outlives the
//! agent.
//!
//! The node says what to run; [`Runner`] runs it and tells the node how it went. A command of an
//! operation, and the `Reset` command of a resource, run as `supervisor → SHELL -c COMMAND`; a request
//! is sent by the supervisor itself. The supervisor is this same program, started as `cheops supervise DIRECTORY`; what the two say to each
//! other is in files, so that it is still there when the agent is killed and starts again.
//!
//! | module | question it answers |
//! |---|---|
//! | `task` | what is to be run, with which variables and files? |
//! | `request` | what is sent to this site's instance for a request? |
//! | `fill` | what does the shell get for the line that the operator wrote? |
//! | `placeholder` | what in a line stands for something else? |
//! | [`confine`] | how does a process become a command within limits? |
//! | `place` | where are the files of a run, and who is at work there? |
//! | `job` | what do agent and supervisor say to each other? |
//! | `supervise` | what does the supervisor do? |
//! | `http` | how is a request sent? |
//! | [`answer`] | how does an answer stand in a reply? |
//! | `flow` | what happens to one request of the node, from start to end? |
//! | `recall` | what became of a run that was under way when the agent stopped? |
//! | `orphan` | what if the supervisor was killed? |
//! | `attend` | how is a command run that changes nothing? |
//! | `report` | what does the reply say? |
//! | [`left_out`] | what does it say that it leaves out? |
//! | `kept` | which outputs are kept in files, and for how long? |
//!
//! What must stay true:
//! - a command is started, and a request sent, at most once for each [`Effect::Run`], whoever is killed
//!   and whenever;
//! - the place of a run is removed only when the node asks for something else of the same resource.
//!   The node does so only after the reply is durable;
//! - commands of different resources do not wait for each other, up to the limit of how many run at
//!   once; a run that waits for a file counts for nothing, and one that sends requests not among
//!   commands;
//! - no end is made up: what can't be started or written down is tried again, and shown as stuck.

pub mod answer;
mod attend;
mod command;
pub mod confine;
mod fill;
mod flow;
mod http;
mod job;
mod kept;
pub mod left_out;
mod orphan;
mod overlap;
mod place;
pub(crate) mod placeholder;
mod recall;
mod report;
mod request;
mod supervise;
mod task;

use std::{
    any::Any,
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cheops_core::{
    id::{ResourceId, ServiceName, SiteId},
    replica::{Effect, Replica, Report, RunId},
};
use tokio::sync::Semaphore;

pub use self::supervise::supervise;
use self::{
    attend::Host,
    kept::Kept,
    place::{Place, Runs},
    recall::Boot,
};
pub(crate) use self::{fill::check_splits, place::missing};
use crate::{
    audit::Audit,
    config,
    engine::couchdb::Fence,
    files::{Fetch, Files},
    node,
    policy::{Asker, Gate},
};

/// What a runner is told when it starts.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How commands are run.
    pub runs: config::Runs,
    /// The name of the site.
    pub here: SiteId,
    /// Where commands run.
    pub work: PathBuf,
    /// Where runs keep their files.
    pub scratch: PathBuf,
    /// The program that supervises: `PROGRAM supervise DIRECTORY`.
    pub program: PathBuf,
    /// Where the system says which boot this is.
    pub boot_id: PathBuf,
    /// The services of the application, whose instances requests go to.
    pub services: BTreeMap<ServiceName, config::Service>,
    /// What decides whether something runs.
    pub gate: Gate,
    /// Where it is written down that something was not let run.
    pub audit: Option<Audit>,
    /// Whether this agent may start anything.
    pub fence: Fence,
}

impl Setup {
    /// The supervisor is this same program; there are no services, and whatever is asked for runs.
    pub fn new(
        runs: config::Runs,
        here: SiteId,
        work: PathBuf,
        scratch: PathBuf,
    ) -> io::Result<Self> {
        // This names the program that runs, even if its file was replaced by a newer one.
        let itself = PathBuf::from("/proc/self/exe");
        let program = if itself.exists() { itself } else { std::env::current_exe()? };
        let boot_id = PathBuf::from("/proc/sys/kernel/random/boot_id");
        let services = BTreeMap::new();
        let gate = Gate::open(here.clone());
        let audit = None;
        let fence = Fence::open();
        Ok(Self { runs, here, work, scratch, program, boot_id, services, gate, audit, fence })
    }
}

/// Whether a program is there and may be run: a file, or a name that is found in `PATH`.
pub fn can_run(program: &Path) -> Result<(), String> {
    use rustix::fs::{Access, access};
    let runs = |path: &Path| match fs::metadata(path) {
        Err(error) => Err(error.to_string()),
        Ok(about) if !about.is_file() => Err("it is no file".to_owned()),
        Ok(_) => {
            access(path, Access::EXEC_OK).map_err(|_| "this user may not execute it".to_owned())
        }
    };
    if program.components().count() > 1 {
        return runs(program);
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|place| runs(&place.join(program)).is_ok());
    if found { Ok(()) } else { Err("it is not in any directory of PATH".to_owned()) }
}

/// Who wants to know which requests are being sent to the application.
pub trait Watch: Send + Sync + 'static {
    /// A request with these headers is being sent, until what this gives is dropped.
    fn sending(&self, headers: &[(Box<str>, Box<str>)]) -> Option<Box<dyn Any + Send>>;
}

/// How much there is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Workload {
    /// Commands that run.
    pub running: usize,
    /// Commands that wait: for others to end, or for a file.
    pub waiting: usize,
    /// Commands that can't be started, because there is no room to write down what to do or no
    /// process to do it. They are tried again every second.
    pub stuck: usize,
}

/// What a run has printed, as far as it is kept.
#[derive(Debug)]
pub struct Output {
    /// From its beginning.
    pub file: fs::File,
    /// How many bytes are kept.
    pub length: u64,
    /// How many bytes after them were printed and dropped, if that is known: not while it runs.
    pub dropped: Option<u64>,
}

/// Runs commands. All clones are one.
#[derive(Clone)]
pub struct Runner(Arc<Inner>);

struct Inner {
    settings: config::Runs,
    host: Host,
    here: SiteId,
    work: PathBuf,
    runs: Runs,
    boot: Boot,
    files: Files,
    fetch: Arc<dyn Fetch>,
    node: node::Handle,
    services: BTreeMap<ServiceName, config::Service>,
    gate: Gate,
    audit: Option<Audit>,
    fence: Fence,
    watch: OnceLock<Box<dyn Watch>>,
    /// How many commands may run at the same time, how many runs may send requests, how many commands
    /// only show something, and how many of those are such that nobody waits for.
    permits: Semaphore,
    calls: Semaphore,
    shows: Semaphore,
    prints: Semaphore,
    kept: Mutex<Kept>,
    counts: Counts,
    runtime: tokio::runtime::Handle,
}

#[derive(Default)]
struct Counts {
    running: AtomicUsize,
    waiting: AtomicUsize,
    stuck: AtomicUsize,
}

impl Runner {
    /// Starts to take requests. Must be called inside the runtime.
    pub fn start(
        setup: Setup,
        files: Files,
        fetch: Arc<dyn Fetch>,
        node: node::Handle,
    ) -> io::Result<Self> {
        let Setup {
            runs: settings,
            here,
            work,
            scratch,
            program,
            boot_id,
            services,
            gate,
            audit,
            fence,
        } = setup;
        let (work, scratch) = (std::path::absolute(work)?, std::path::absolute(scratch)?);
        fs::create_dir_all(&work)?;
        fs::create_dir_all(&scratch)?;
        if !scratch.to_string_lossy().chars().all(fill::is_plain) {
            tracing::warn!(
                "the path {} has characters that are special to a shell: in commands, put no quotes around the names of attached files",
                scratch.display(),
            );
        }
        let runs = Runs::new(scratch);
        let boot = Boot::read(&boot_id, runs.boot())?;
        let kept = Kept::new(runs.clone(), settings.output as u64);
        let runner = Self(Arc::new(Inner {
            permits: Semaphore::new(settings.parallel.clamp(1, Semaphore::MAX_PERMITS)),
            calls: Semaphore::new(settings.parallel.clamp(1, Semaphore::MAX_PERMITS)),
            shows: Semaphore::new(settings.parallel.clamp(1, Semaphore::MAX_PERMITS)),
            prints: Semaphore::new((settings.parallel / 2).clamp(1, Semaphore::MAX_PERMITS)),
            kept: Mutex::new(kept),
            counts: Counts::default(),
            runtime: tokio::runtime::Handle::try_current().map_err(io::Error::other)?,
            host: Host {
                program,
                variables: Arc::new(settings.environment.of(std::env::vars_os())),
                open_files: settings.open_files,
            },
            settings,
            here,
            work,
            runs,
            boot,
            files,
            fetch,
            node,
            services,
            gate,
            audit,
            fence,
            watch: OnceLock::new(),
        }));
        let inner = runner.0.clone();
        runner.0.runtime.spawn_blocking(move || inner.find_kept());
        if runner.0.boot.is_new() {
            runner.0.runtime.spawn(runner.0.clone().settle_boot());
        }
        Ok(runner)
    }

    /// Tells someone from now on which requests are being sent. Only the first one is told.
    pub fn watched_by(&self, watch: impl Watch) {
        let _ = self.0.watch.set(Box::new(watch));
    }

    /// Carries out [`Effect::Run`], [`Effect::Recall`], [`Effect::Check`], [`Effect::Clear`],
    /// [`Effect::RecallClear`] or [`Effect::Show`], and tells the node how it went. Does not block.
    pub fn give(&self, effect: Effect) {
        let inner = self.0.clone();
        match effect {
            Effect::Run { run, op, timeout, share, before } => {
                let ran = async move { inner.run(run, &op, timeout, share, before).await };
                self.0.runtime.spawn(ran);
            }
            Effect::Recall(run) => {
                self.0.runtime.spawn(async move { inner.recall(run).await });
            }
            Effect::Check { run, command, timeout } => {
                self.0.runtime.spawn(async move { inner.check(run, &command, timeout).await });
            }
            Effect::Clear { resource, command, timeout } => {
                self.0.runtime.spawn(async move { inner.clear(resource, &command, timeout).await });
            }
            Effect::RecallClear(resource) => {
                self.0.runtime.spawn(async move { inner.recall_clear(resource).await });
            }
            Effect::Show { resource, command, timeout, block } => {
                let print = async move { inner.print(resource, block, &command, timeout).await };
                self.0.runtime.spawn(print);
            }
            other => tracing::warn!("nothing to run: {other:?}"),
        }
    }

    /// Runs a command that only shows something, at once: without an intent and without a record.
    /// It ends, with all that it has started, when the time is over or nobody waits for it any more.
    /// Without an asker it is the resource's own.
    pub async fn show(
        &self,
        resource: &ResourceId,
        command: &str,
        asker: Option<Asker>,
        timeout: Duration,
    ) -> Report {
        self.0.show(resource, command, asker, timeout).await
    }

    /// The output of a run, if it is kept. Reads the disk.
    pub fn output(&self, run: &RunId) -> io::Result<Option<Output>> {
        let place = self.0.runs.place(run);
        let kept = self.0.runs.kept_output(run);
        // It moves from the one to the other when the next run begins, and not back.
        for (path, kept) in [(place.output(), false), (kept, true)] {
            let Some(file) = fs::File::open(&path).map(Some).or_else(missing)? else { continue };
            let length = file.metadata()?.len();
            let printed = if kept {
                kept::printed(&path)
            } else {
                place.read_status()?.map(|status| status.printed)
            };
            let dropped = printed.map(|printed| printed.saturating_sub(length));
            return Ok(Some(Output { file, length, dropped }));
        }
        Ok(None)
    }

    /// Removes what is kept of a resource that was forgotten. Does not block.
    pub fn forget(&self, resource: &ResourceId) {
        let (inner, resource) = (self.0.clone(), resource.clone());
        self.0.runtime.spawn_blocking(move || {
            let forgotten = inner.kept().forget(&resource);
            complain("what was kept of a resource can't be removed", forgotten);
        });
    }

    /// How much there is to do.
    pub fn workload(&self) -> Workload {
        let Counts { running, waiting, stuck } = &self.0.counts;
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Workload { running: count(running), waiting: count(waiting), stuck: count(stuck) }
    }
}

impl Inner {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find_kept(&self) {
        let found = Kept::find(&self.runs);
        let noted = found.and_then(|outputs| {
            outputs.into_iter().try_for_each(|output| self.kept().note(output))
        });
        complain("the outputs that are kept can't be counted", noted);
    }

    /// Brings the note about the boot up to date, as soon as the node says which runs are under way.
    async fn settle_boot(self: Arc<Self>) {
        let Ok(under_way) = self.node.read(under_way).await else { return };
        loop {
            let (inner, under_way) = (self.clone(), under_way.clone());
            let settle = move || {
                let places: Vec<Place> =
                    under_way.iter().map(|run| inner.runs.place(run)).collect();
                inner.boot.settle(places.iter())
            };
            match flow::blocking(settle).await {
                Ok(()) => return,
                failed => complain("the boot of the machine can't be noted", failed),
            }
            tokio::time::sleep(flow::PAUSE).await;
        }
    }
}

/// The runs under way at this site.
fn under_way(replica: &Replica) -> Vec<RunId> {
    let run = |resource: &cheops_core::replica::Resource| {
        let (op, attempt) = resource.running()?;
        Some(RunId { resource: resource.id().clone(), op: op.clone(), attempt })
    };
    replica.resources().filter_map(run).collect()
}

/// Says that something failed which nothing depends on.
fn complain(what: &str, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!("{what}: {error}");
    }
}

/// One more of something, until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The beginning of a file.
fn beginning(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    stretch(path, 0, most as u64)
}

/// A part of a file, as far as there is one.
fn stretch(path: &Path, from: u64, most: u64) -> io::Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    if let Some(mut file) = fs::File::open(path).map(Some).or_else(missing)? {
        file.seek(SeekFrom::Start(from))?;
        file.take(most).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
